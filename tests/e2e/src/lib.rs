//! End-to-end tests live in `tests/`: each starts a real daemon and real VMs.
