//! A VM that needs no kernel, and the plain verbs that tests use it with.
//!
//! Its guest is a boot sector's worth of code. It writes the letters from `A` to
//! `z` to the serial console, slowly, and with each letter writes one page of
//! memory that it had not written before; then it crashes.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pando_sys::jail::Layers;
use pando_types::{Accelerator, Size};
use pando_vmm::detect::{self, AcceleratorWish, QemuVersion};
use pando_vmm::qemu::TB_SIZE_MIB;
use pando_vmm::{Channels, LaunchError, Qemu, QemuConfig, Start, Vmm, qcow2};

const BINARY: &str = "/usr/bin/qemu-system-x86_64";

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a test's disks.
const DISK_BYTES: u64 = 1 << 20;

/// Offset of the code behind the boot protocol's header.
const CODE_OFFSET: usize = 0x280;

#[rustfmt::skip]
pub(crate) const CODE: &[u8] = &[
    0xfa,                               // cli
    0xb3, b'A',                         // mov $'A', %bl
    0x31, 0xc0,                         // tick: xor %ax, %ax
    0x88, 0xdc,                         // mov %bl, %ah
    0x05, 0x00, 0x40,                   // add $0x4000, %ax
    0x8e, 0xc0,                         // mov %ax, %es
    0x26, 0x88, 0x1e, 0x00, 0x00,       // mov %bl, %es:0
    0xba, 0xf8, 0x03,                   // mov $0x3f8, %dx
    0x88, 0xd8,                         // mov %bl, %al
    0xee,                               // out %al, %dx
    0x0f, 0x31,                         // rdtsc
    0x66, 0x89, 0xc6,                   // mov %eax, %esi
    0x0f, 0x31,                         // wait: rdtsc
    0x66, 0x29, 0xf0,                   // sub %esi, %eax
    0x66, 0x3d, 0x80, 0xb2, 0xe6, 0x0e, // cmp $250_000_000, %eax: about 0.1 s
    0x72, 0xf3,                         // jb wait
    0xfe, 0xc3,                         // inc %bl
    0x80, 0xfb, b'z' + 1,               // cmp $'z' + 1, %bl
    0x75, 0xd3,                         // jne tick
    0x2e, 0x0f, 0x01, 0x1e, 0xb7, 0x00, // lidt %cs:nothing
    0xcc,                               // int3: a third fault, which resets
    0, 0, 0, 0, 0, 0,                   // nothing
];

/// Where in memory the page is that the guest writes with a letter.
pub(crate) fn page_of(letter: u8) -> u64 {
    (0x4000 + u64::from(letter) * 0x100) << 4
}

/// The guest as a file that QEMU takes for a Linux kernel.
fn kernel_image() -> Vec<u8> {
    let mut image = vec![0; 0x600];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]); // sectors of set-up code
    put(0x1fe, &[0x55, 0xaa]);
    put(0x200, &[0xeb, 0x7e]); // jmp to the code
    put(0x202, b"HdrS");
    put(0x206, &0x0203u16.to_le_bytes()); // protocol version
    put(0x211, &[1]); // loaded high
    put(0x214, &0x0010_0000u32.to_le_bytes());
    put(0x22c, &0x37ff_ffffu32.to_le_bytes()); // highest address of an initrd
    put(CODE_OFFSET, CODE);
    image
}

/// The library of `crates/preload`: cargo puts it beside the tests that depend on it.
fn preload() -> PathBuf {
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libpando_preload.so");
    assert!(library.is_file(), "no `{}`", library.display());
    library
}

/// How changes should be found here: Linux tells what is written since 6.7.
pub(crate) fn best_method() -> &'static str {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split('.')
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next(), numbers.next());
    if version >= (Some(6), Some(7)) {
        "written"
    } else {
        "compare"
    }
}

/// A folder with everything that VMs need, on the accelerator that this host has.
pub(crate) struct World {
    accelerator: Accelerator,
    pub(crate) folder: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let binary = Path::new(BINARY);
        let version = QemuVersion::probe(binary).unwrap();
        let found = detect::accelerator(binary, &version, AcceleratorWish::Auto, None).unwrap();
        let world = Self {
            accelerator: found.accelerator,
            folder,
        };
        std::fs::create_dir(world.path("slot")).unwrap();
        std::fs::write(world.path("kernel"), kernel_image()).unwrap();
        std::fs::write(world.path("initrd"), [0; 512]).unwrap();
        std::fs::write(world.path("root"), vec![0; 1 << 20]).unwrap();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A new, empty disk layer in the slot.
    pub(crate) fn layer(&self, name: &str) -> PathBuf {
        let path = self.path("slot").join(name);
        qcow2::create(&path, DISK_BYTES).unwrap();
        path
    }

    pub(crate) fn cold(&self) -> Start {
        Start::Cold {
            kernel: self.path("kernel"),
            initrd: self.path("initrd"),
            command_line: String::new(),
            memory: self.path("memory"),
            keep: true,
        }
    }

    pub(crate) async fn launch(
        &self,
        start: Start,
        disk: Vec<PathBuf>,
    ) -> Result<Machine, LaunchError> {
        let (ctl, ctl_theirs) = UnixStream::pair().unwrap();
        let (data, data_theirs) = UnixStream::pair().unwrap();
        let (nic, nic_theirs) = UnixDatagram::pair().unwrap();
        let qemu = Qemu::launch(QemuConfig {
            binary: BINARY.into(),
            accelerator: self.accelerator,
            size: Size::new(1, 256).unwrap(),
            tsc_khz: None,
            start,
            root: self.path("root"),
            disk,
            channels: Channels {
                ctl: ctl_theirs.into(),
                data: data_theirs.into(),
                nic: nic_theirs.into(),
            },
            slot: self.path("slot"),
            console: self.path("console"),
            jail: Layers::ALL,
            preload: Some(preload()),
            tb_size_mib: TB_SIZE_MIB,
        })
        .await?;
        Ok(Machine {
            qemu,
            _host_ends: [ctl.into(), data.into(), nic.into()],
        })
    }

    /// A VM that was booted and has come to some letter; stopped, saved and
    /// ended. Returns the last letter and the path of its device state.
    pub(crate) async fn bake(&self) -> (u8, PathBuf) {
        let state = self.path("slot").join("device-state");
        let machine = self
            .launch(self.cold(), vec![self.layer("disk")])
            .await
            .unwrap();
        machine.qemu.cont().await.unwrap();
        machine.wait_for(b'C').await;
        machine.qemu.stop().await.unwrap();
        machine.qemu.save_device_state(&state).await.unwrap();
        let last = machine.last_letter().await;
        machine.qemu.quit(PATIENCE).await;
        (last, state)
    }

    /// A VM that was spawned from what [`World::bake`] left, paused.
    pub(crate) async fn spawn(&self, state: &Path, layer: &str) -> Machine {
        let disk = vec![self.path("slot").join("disk"), self.layer(layer)];
        let start = Start::Load {
            memory: self.path("memory"),
        };
        let machine = self.launch(start, disk).await.unwrap();
        machine.qemu.load(state).await.unwrap();
        machine
    }
}

/// A running QEMU, and this process's ends of its sockets.
pub(crate) struct Machine {
    pub(crate) qemu: Qemu,
    _host_ends: [OwnedFd; 3],
}

impl Machine {
    /// Waits until the guest has written `letter`.
    pub(crate) async fn wait_for(&self, letter: u8) {
        let deadline = Instant::now() + PATIENCE;
        while !self.qemu.console_tail().as_bytes().contains(&letter) {
            let console = self.qemu.console_tail();
            assert!(
                Instant::now() < deadline,
                "no `{}` in `{console}`",
                letter as char
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The last letter of a stopped guest, once all of them have arrived.
    pub(crate) async fn last_letter(&self) -> u8 {
        let mut before = self.qemu.console_tail();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.qemu.console_tail();
            if now == before {
                return *now.as_bytes().last().unwrap();
            }
            before = now;
        }
    }
}
