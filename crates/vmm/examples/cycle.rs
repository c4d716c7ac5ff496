//! Drives a real QEMU through a VM's whole life with the jail on and prints what
//! each step took: cold boot, snapshot, load, snapshot of the child while it
//! runs, load of that.
//!
//!     cargo run -p pando-vmm --example cycle -- KERNEL INITRD ROOT FOLDER
//!
//! The initrd's init answers on the port `pando.ctl`: `READY` at its start, then
//! a line for each letter: `p` counts, `d` dirties 8 MiB, `s` sums them, `w`
//! writes to the disk, `v` reads it, `o` powers off. `PANDO_PRELOAD` may name the
//! library with which the kernel tracks what the VM writes.
#![allow(
    clippy::print_stdout,
    reason = "an example talks to the person who runs it"
)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pando_sys::clock::measure_tsc_khz;
use pando_sys::file::{share_or_copy, write_sparse};
use pando_sys::jail::Layers;
use pando_types::{Accelerator, Size};
use pando_vmm::capture::ARENA_BYTES;
use pando_vmm::memory_image::seal_cold;
use pando_vmm::qemu::{BakePoint, CommandLine, TB_SIZE_MIB};
use pando_vmm::{Arena, ChangeTracker, Channels, Qemu, QemuConfig, Start, Vmm, VmmError, qcow2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Machine {
    qemu: Qemu,
    ctl: UnixStream,
    // Held open, as a shim would.
    _data: StdStream,
    _nic: UnixDatagram,
}

impl Machine {
    async fn launch(folder: &Path, root: &Path, disk: Vec<PathBuf>, start: Start) -> Result<Self> {
        let slot = folder.join("slot");
        let (ctl, ctl_theirs) = StdStream::pair()?;
        let (data, data_theirs) = StdStream::pair()?;
        let (nic, nic_theirs) = UnixDatagram::pair()?;
        ctl.set_nonblocking(true)?;
        let owned = |fd: StdStream| OwnedFd::from(fd);
        let channels = Channels {
            ctl: owned(ctl_theirs),
            data: owned(data_theirs),
            nic: nic_theirs.into(),
        };
        let started = Instant::now();
        let qemu = Qemu::launch(QemuConfig {
            binary: "/usr/bin/qemu-system-x86_64".into(),
            accelerator: Accelerator::Tcg,
            size: Size::DEFAULT,
            tsc_khz: None,
            start,
            root: root.to_owned(),
            disk,
            channels,
            slot,
            console: folder.join("console"),
            jail: Layers::ALL,
            preload: std::env::var_os("PANDO_PRELOAD").map(PathBuf::from),
            tb_size_mib: TB_SIZE_MIB,
        })
        .await?;
        step("launch", started);
        Ok(Self {
            qemu,
            ctl: UnixStream::from_std(ctl)?,
            _data: data,
            _nic: nic,
        })
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            line.push(tokio::time::timeout(Duration::from_secs(60), self.ctl.read_u8()).await??);
        }
        Ok(String::from_utf8(line)?.trim().to_owned())
    }

    async fn ask(&mut self, letter: u8) -> Result<String> {
        let started = Instant::now();
        self.ctl.write_u8(letter).await?;
        let answer = self.line().await?;
        step(&format!("  {} -> {answer}", letter as char), started);
        Ok(answer)
    }
}

fn step(name: &str, started: Instant) {
    println!(
        "{:8.1} ms  {name}",
        started.elapsed().as_secs_f64() * 1000.0
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let [kernel, initrd, root, folder] = &arguments[..] else {
        return Err("give KERNEL INITRD ROOT FOLDER".into());
    };
    std::fs::create_dir_all(folder.join("slot"))?;
    let (memory, device) = (folder.join("memory"), folder.join("slot/device"));
    let disk = folder.join("slot/disk-0");
    qcow2::create(&disk, 8 << 30)?;

    let command_line = CommandLine {
        accelerator: Accelerator::Tcg,
        tsc_khz: measure_tsc_khz(),
        bake: BakePoint::Ready,
    };
    println!("{command_line}");
    let start = Start::Cold {
        kernel: kernel.clone(),
        initrd: initrd.clone(),
        command_line: command_line.to_string(),
        memory: memory.clone(),
        keep: true,
    };
    let mut cold = Machine::launch(folder, root, vec![disk.clone()], start).await?;
    println!("layers: {}", cold.qemu.layers().join(", "));
    let started = Instant::now();
    cold.qemu.cont().await?;
    println!("{}", cold.line().await?);
    step("cold boot", started);
    cold.ask(b'p').await?;
    cold.ask(b'w').await?;
    cold.qemu.stop().await?;
    let started = Instant::now();
    cold.qemu.save_device_state(&device).await?;
    step("device state", started);
    println!("{:?}", cold.qemu.quit(Duration::from_secs(5)).await);
    let started = Instant::now();
    println!("{} bytes of memory file", seal_cold(&memory)?);
    step("seal", started);

    let child_disk = folder.join("slot/disk-1");
    qcow2::create(&child_disk, 8 << 30)?;
    let start = Start::Load {
        memory: memory.clone(),
    };
    let mut child =
        Machine::launch(folder, root, vec![disk.clone(), child_disk.clone()], start).await?;
    load(&child.qemu, &device).await?;
    child.ask(b'p').await?;
    child.ask(b'd').await?;
    let sum = child.ask(b's').await?;
    child.ask(b'v').await?;
    child.ask(b'w').await?;
    let (memory_2, device_2) = (folder.join("memory-2"), folder.join("slot/device-2"));
    let sealed = snapshot(&child.qemu, folder, &memory, &memory_2, &device_2).await?;
    assert_eq!(sealed, child_disk);
    child.ask(b'p').await?;
    child.ask(b'w').await?;
    let parent_sees = child.ask(b'v').await?;

    let grandchild_disk = folder.join("slot/disk-3");
    qcow2::create(&grandchild_disk, 8 << 30)?;
    let start = Start::Load { memory: memory_2 };
    let layers = vec![disk, sealed, grandchild_disk];
    let mut grandchild = Machine::launch(folder, root, layers, start).await?;
    load(&grandchild.qemu, &device_2).await?;
    grandchild.ask(b'p').await?;
    assert_eq!(grandchild.ask(b's').await?, sum);
    assert_ne!(grandchild.ask(b'v').await?, parent_sees);
    println!(
        "{:?}",
        pando_sys::memory::ProcessMemory::of(grandchild.qemu.pid())?
    );
    grandchild.ctl.write_u8(b'o').await?;
    println!("{:?}", grandchild.qemu.exited().await);
    child.ctl.write_u8(b'k').await?;
    println!("{}", child.qemu.exited().await);
    Ok(())
}

async fn load(qemu: &Qemu, device: &Path) -> std::result::Result<(), VmmError> {
    let started = Instant::now();
    qemu.load(device).await?;
    step("load", started);
    let started = Instant::now();
    qemu.cont().await?;
    step("cont", started);
    Ok(())
}

async fn snapshot(
    qemu: &Qemu,
    folder: &Path,
    base: &Path,
    memory: &Path,
    device: &Path,
) -> Result<PathBuf> {
    let started = Instant::now();
    let image = File::create_new(memory)?;
    share_or_copy(&File::open(base)?, &image)?;
    let mut arena = Arena::faulted_in(ARENA_BYTES);
    let mut tracker = ChangeTracker::new(qemu.guest_memory()?);
    let write = &mut |offset, bytes: &[u8]| write_sparse(&image, offset, bytes);
    let overlay_path = folder.join("slot/disk-2");
    qcow2::create(&overlay_path, 8 << 30)?;
    let overlay = qemu.prepare_disk_overlay(&overlay_path).await?;
    step("prepare", started);

    let pause = Instant::now();
    qemu.stop().await?;
    step("stop", pause);
    let started = Instant::now();
    qemu.save_device_state(device).await?;
    step("device state", started);
    let started = Instant::now();
    let captured = tracker.capture(&mut arena, write)?;
    let method = tracker.method();
    step(
        &format!("capture {} pages ({method})", captured.pages),
        started,
    );
    let started = Instant::now();
    let sealed = qemu.switch_disk_overlay(overlay).await?;
    step("switch disk", started);
    qemu.cont().await?;
    step("pause", pause);

    let started = Instant::now();
    tracker.emit(&captured, &arena, write)?;
    image.sync_all()?;
    step("finish", started);
    Ok(sealed)
}
