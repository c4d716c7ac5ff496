#!/bin/sh
# Finishes the root file system of the `base` template, then packs what a
# sandbox boots from. mmdebstrap runs this on the host, as (namespaced) root,
# once the packages are in place; the files of files/ are there already.
#
#   setup.sh ROOT
#
# In:  ROOT/.pando/kernel-modules   modules that the image carries
#      ROOT/.pando/initrd-modules   modules that the initrd needs, by name
# Out: ROOT/.pando/root.erofs       the image
#      ROOT/.pando/boot.tar         vmlinuz, kernel-release, modules/
set -eu
# The folder this was started in may be closed to a namespace's root.
cd /
root=$1
work=$root/.pando

step() { echo "pando-step: $1"; }

create_user() {
    chroot "$root" useradd --create-home --uid 1000 --user-group --shell /bin/bash user
    # Neither account has a password that anybody could know or guess.
    chroot "$root" usermod --lock root
    for name in reboot halt shutdown; do
        ln -s poweroff "$root/usr/sbin/$name"
    done
    # Packages such as Java's fail to install where these do not exist.
    for section in 1 2 3 4 5 6 7 8; do
        mkdir -p "$root/usr/share/man/man$section"
    done
}

trust_host_certificates() {
    test -d "$root/usr/local/share/ca-certificates/pando-host" || return 0
    chroot "$root" update-ca-certificates
}

unpack_kernel() {
    apt() { APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" "$@"; }
    # The meta package's one dependency is the newest kernel of the suite.
    package=$(apt apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    test -n "$package" || { echo 'the suite has no linux-image-cloud-amd64' >&2; exit 1; }
    (cd "$work" && apt apt-get --quiet download "$package")
    mkdir "$work/kernel" "$work/boot" "$work/boot/modules"
    dpkg-deb --extract "$work"/linux-image-*.deb "$work/kernel"
    release=${package#linux-image-}
    cp "$work/kernel/boot/vmlinuz-$release" "$work/boot/vmlinuz"
    echo "$release" > "$work/boot/kernel-release"
}

install_modules() {
    all=$(find "$work/kernel" -type d -path "*/modules/$release")
    kept=$root/usr/lib/modules/$release
    mkdir -p "$kept"
    cp "$all"/modules.order "$all"/modules.builtin "$all"/modules.builtin.modinfo "$kept/"
    sed -e 's/#.*//' -e '/^ *$/d' "$work/kernel-modules" | while read -r path; do
        # Modules come and go between kernels; the initrd's are checked below.
        test -e "$all/kernel/$path" || { echo "no $path in $release"; continue; }
        mkdir -p "$kept/kernel/$(dirname "$path")"
        cp -r "$all/kernel/$path" "$kept/kernel/$path"
    done
    chroot "$root" depmod "$release" 2>&1 | head -n 20
}

# `modprobe --show-depends` prints `insmod PATH` a line, dependencies first.
export_initrd_modules() {
    : > "$work/boot/modules/order"
    while read -r name; do
        chroot "$root" modprobe --set-version "$release" --show-depends "$name" > "$work/insmod"
        while read -r verb path _; do
            test "$verb" = insmod || continue
            module=$(basename "$path" .xz)
            grep -qxF "$module" "$work/boot/modules/order" && continue
            xz --decompress --stdout "$root$path" > "$work/boot/modules/$module"
            echo "$module" >> "$work/boot/modules/order"
        done < "$work/insmod"
    done < "$work/initrd-modules"
}

# What differs from one build to the next for no good reason, or tells about the
# machine that built the image. Times of files do differ.
forget_the_build() {
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin \
        "$root"/var/cache/apt/archives/*.deb "$root"/var/cache/ldconfig/aux-cache \
        "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old \
        "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow- \
        "$root"/etc/subuid- "$root"/etc/subgid- "$root"/etc/.pwd.lock \
        "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/0000* \
        "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap \
        "$root"/usr/sbin/policy-rc.d
    chroot "$root" install -d -m 0700 -o _apt /var/lib/apt/lists/partial
    find "$root/var/log" -type f -delete
    # Empty, so that each sandbox writes its own.
    : > "$root/etc/machine-id"
    # The password's day of change is today's otherwise.
    sed -i -E 's/^((root|user):[^:]*):[0-9]*:/\1:20000:/' "$root/etc/shadow"
}

# erofs with lz4 in 16 KiB clusters. Measured against uncompressed erofs and
# ext4 under TCG: the first `true` takes 15 ms longer, `python3` and a cold read
# of the whole of /usr/lib the same within noise, and the image is 144 MB
# rather than 243. Times of files are kept: Python takes a `.pyc` for stale
# when its source's time is not the recorded one, and `pip` then took 9 s to
# start rather than 2.5. No extended attributes: no package here has any, and
# in a user namespace they would be the namespace's own. mmdebstrap removes its
# 00mmdebstrap itself, and fails if that is gone.
pack_root() {
    env --unset=SOURCE_DATE_EPOCH mkfs.erofs --quiet --preserve-mtime -x-1 \
        -zlz4 -C16384 -U 70616e64-6f00-4000-8000-000000000001 \
        --exclude-regex='^(dev|proc|sys|run|tmp)/.*' --exclude-regex='^\.pando$' \
        --exclude-path=etc/apt/apt.conf.d/00mmdebstrap \
        "$work/root.erofs" "$root"
}

step 'creating the user'
create_user
trust_host_certificates
step 'unpacking the kernel'
unpack_kernel
install_modules
export_initrd_modules
tar --create --file "$work/boot.tar" --directory "$work/boot" vmlinuz kernel-release modules
step 'packing the root file system'
forget_the_build
pack_root
