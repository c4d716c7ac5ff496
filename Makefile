# Each target is one line into xtask; `cargo xtask help` tells more.
.PHONY: quickstart test test-kvm full bench uninstall

quickstart:
	@cargo xtask quickstart $(ARGS)

test:
	@cargo xtask test $(ARGS)

test-kvm:
	@cargo xtask test-kvm $(ARGS)

full:
	@cargo xtask test --full $(ARGS)

bench:
	@cargo xtask bench -- $(ARGS)

uninstall:
	@cargo xtask uninstall $(ARGS)
