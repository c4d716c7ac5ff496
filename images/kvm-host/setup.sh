#!/bin/sh
# Finishes the root file system of the machine that `make test-kvm` runs, then
# packs what it boots from. mmdebstrap runs this on the host, as (namespaced)
# root, once the packages are in place; the files of files/ are there already.
#
#   setup.sh ROOT
#
# In:  ROOT/.pando/initrd-init      the initrd's process 1
# Out: ROOT/.pando/root.qcow2       the disk, ext4
#      ROOT/.pando/boot.tar         vmlinuz, initrd
set -eu
# The folder this was started in may be closed to a namespace's root.
cd /
root=$1
work=$root/.pando

# Modules that the initrd loads, after what each needs.
readonly initrd_modules='virtio_pci virtio_blk ext4'

# Free space on the disk beside what is in it, in MiB: two bakes of 256 MiB and
# what the sandboxes of the test write.
readonly free_mib=3072

step() { echo "pando-step: $1"; }

unpack_kernel() {
    apt() { APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" "$@"; }
    # The meta package's one dependency is the newest kernel of the suite.
    package=$(apt apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    test -n "$package" || { echo 'the suite has no linux-image-cloud-amd64' >&2; exit 1; }
    (cd "$work" && apt apt-get --quiet download "$package")
    mkdir "$work/kernel" "$work/boot"
    dpkg-deb --extract "$work"/linux-image-*.deb "$work/kernel"
    release=${package#linux-image-}
    cp "$work/kernel/boot/vmlinuz-$release" "$work/boot/vmlinuz"
    modules=$(find "$work/kernel" -type d -path "*/modules/$release")
    mkdir -p "$root/usr/lib/modules"
    mv "$modules" "$root/usr/lib/modules/"
    chroot "$root" depmod "$release"
    # They are many, and no part of the disk.
    rm -rf "$work/kernel" "$work"/linux-image-*.deb
}

# `modprobe --show-depends` prints `insmod PATH` a line, dependencies first.
make_initrd() {
    initrd=$work/initrd
    mkdir -p "$initrd/bin" "$initrd/dev" "$initrd/proc" "$initrd/root" "$initrd/modules"
    cp "$root/usr/bin/busybox" "$initrd/bin/busybox"
    cp "$work/initrd-init" "$initrd/init"
    chmod 755 "$initrd/init"
    : > "$initrd/modules/order"
    for name in $initrd_modules; do
        chroot "$root" modprobe --set-version "$release" --show-depends "$name" > "$work/insmod"
        while read -r verb path _; do
            test "$verb" = insmod || continue
            module=$(basename "$path" .xz)
            grep -qxF "$module" "$initrd/modules/order" && continue
            xz --decompress --stdout "$root$path" > "$initrd/modules/$module"
            echo "$module" >> "$initrd/modules/order"
        done < "$work/insmod"
    done
    chroot "$root" sh -c 'cd /.pando/initrd && find . | busybox cpio -o -H newc' > "$work/boot/initrd"
}

configure() {
    echo 'pando-kvm-host' > "$root/etc/hostname"
    printf '127.0.0.1 localhost pando-kvm-host\n' > "$root/etc/hosts"
    chroot "$root" systemctl enable pando-test.service
    # Nothing here waits for a network, and every emulated second counts.
    for unit in systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer \
        dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
        systemd-timesyncd.service getty@tty1.service systemd-firstboot.service \
        ldconfig.service systemd-hwdb-update.service systemd-pcrphase.service; do
        chroot "$root" systemctl mask "$unit"
    done
    # The first boot would ask for the machine's identity.
    echo 70616e646f0040008000000000000004 > "$root/etc/machine-id"
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin \
        "$root"/var/cache/apt/archives/*.deb
}

# mke2fs takes all of a folder, and this root has the host's /proc in it: so what
# belongs on the disk is copied out first. qcow2, so that what is free takes no room.
pack_root() {
    outside=$(mktemp -d "${TMPDIR:-/var/tmp}/disk.XXXXXX")
    mkdir "$outside/root"
    tar --create --one-file-system --numeric-owner --directory "$root" --exclude='./.pando' \
        --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --exclude='./run/*' \
        --exclude='./tmp/*' --exclude='./usr/sbin/policy-rc.d' . |
        tar --extract --numeric-owner --same-permissions --directory "$outside/root"
    used_mib=$(du -sm "$outside/root" | cut -f 1)
    truncate -s "$((used_mib * 5 / 4 + free_mib))M" "$outside/root.ext4"
    mke2fs -q -F -t ext4 -m 0 -E lazy_itable_init=1,lazy_journal_init=1,nodiscard \
        -U 70616e64-6f00-4000-8000-000000000005 -d "$outside/root" "$outside/root.ext4"
    qemu-img convert -f raw -O qcow2 "$outside/root.ext4" "$work/root.qcow2"
    rm -r "$outside"
}

step 'unpacking the kernel'
unpack_kernel
step 'making the initrd'
make_initrd
step 'packing the root file system'
configure
tar --create --file "$work/boot.tar" --directory "$work/boot" vmlinuz initrd
pack_root
