//! QEMU's command line, made from the configuration alone.
//!
//! Order matters: a snapshot's device state names devices by where they are, so
//! the devices here and their order are [`DEVICE_SET`]. A change needs a new
//! name for the set, and makes older snapshots unusable but for their disk.

use std::path::{Path, PathBuf};

use pando_types::{Accelerator, Size};
use serde_json::json;

use super::config::{QemuConfig, Start};
use crate::error::LaunchError;

/// The machine, without its PIT. The kernel finds virtio-mmio devices through ACPI only:
/// Debian builds it without device trees and without device arguments. `qboot` starts
/// a kernel faster than SeaBIOS, and needs no option ROMs.
const MACHINE: &str = "microvm,acpi=on,firmware=qboot.rom,x-option-roms=off,pic=on,rtc=on,\
                       isa-serial=on,pcie=off,usb=off,graphics=off";

/// The machine with its properties that a guest sees.
///
/// Without KVM a kernel that is told the rate of the time stamp counter needs no PIT and
/// leaves it as it found it: QEMU would wake up 36 times a second for nobody. With KVM it
/// stays: that a guest boots without it there was not tried.
pub fn machine_properties(accelerator: Accelerator, tsc_khz: Option<u32>) -> String {
    let pit = match (accelerator, tsc_khz) {
        (Accelerator::Tcg, Some(_)) => "off",
        _ => "on",
    };
    format!("{MACHINE},pit={pit}")
}

/// Properties of the machine that the guest cannot see.
const MACHINE_HOST: &str = "mem-merge=off,dump-guest-core=off,suppress-vmdesc=on";

/// Name of the set of devices below.
pub const DEVICE_SET: &str = "2";

/// The guest's CPU with KVM.
pub const CPU_MODEL_KVM: &str = "host";

/// The guest's CPU without KVM.
pub const CPU_MODEL_TCG: &str = "max,-erms,-fsrm";

/// What Linux finds for the local timer of QEMU's APIC if it measures it rightly: `mult` of
/// the clock event device, for 62.5 MHz (QEMU's 1 GHz, divided by 16) and a shift of 32.
pub const TIMER_MULT: u64 = 268_435_456;

/// Code cache of the translator: half of it thrashes on Python, twice as much
/// gains nothing that was measurable.
pub const TB_SIZE_MIB: u32 = 64;

/// QEMU's own filter, on top of ours.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The guest's network address is fixed, and so is its card's.
const NIC_ADDRESS: &str = "52:54:00:70:61:6e";

/// Descriptor numbers in QEMU.
pub(super) mod descriptor {
    pub(in crate::qemu) const QMP: i32 = 3;
    pub(in crate::qemu) const CTL: i32 = 4;
    pub(in crate::qemu) const DATA: i32 = 5;
    pub(in crate::qemu) const NIC: i32 = 6;
    pub(in crate::qemu) const CONSOLE: i32 = 7;
}

/// The node of the disk that is written: 0 at the start, one more after each snapshot.
/// It does not depend on how many layers are below, which an unbound VM does not know.
pub(super) fn disk_node(index: usize) -> String {
    format!("disk-{index}")
}

/// The node of a layer below, counted from the lowest.
fn lower_node(index: usize) -> String {
    format!("lower-{index}")
}

/// All of QEMU's arguments.
pub(super) fn arguments(config: &QemuConfig) -> Result<Vec<String>, LaunchError> {
    let mut arguments = machine(config)?;
    arguments.extend(start(config)?);
    arguments.extend(character_devices());
    arguments.extend(block_options(config)?);
    arguments.extend(devices());
    Ok(arguments)
}

fn option(name: &str, value: impl Into<String>) -> [String; 2] {
    [format!("-{name}"), value.into()]
}

fn flags(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("-{name}")).collect()
}

pub(super) fn utf8(path: &Path) -> Result<&str, LaunchError> {
    path.to_str()
        .ok_or_else(|| LaunchError::Path(path.to_owned()))
}

fn machine(config: &QemuConfig) -> Result<Vec<String>, LaunchError> {
    let (accelerator, cpu) = match config.accelerator {
        Accelerator::Kvm => ("kvm".to_owned(), CPU_MODEL_KVM),
        Accelerator::Tcg => (
            format!("tcg,thread=multi,tb-size={}", config.tb_size_mib),
            CPU_MODEL_TCG,
        ),
    };
    // -S: with a snapshot the VM would otherwise run as soon as it is loaded.
    let mut arguments = flags(&["nodefaults", "no-user-config", "no-reboot", "S"]);
    arguments.extend(option("display", "none"));
    arguments.extend(option("sandbox", SANDBOX));
    arguments.extend(option(
        "machine",
        format!(
            "{},{MACHINE_HOST}",
            machine_properties(config.accelerator, config.tsc_khz)
        ),
    ));
    arguments.extend(option("accel", accelerator));
    arguments.extend(option("cpu", cpu));
    arguments.extend(option("smp", config.size.cpus().to_string()));
    arguments.extend(option("m", format!("{}M", config.size.memory_mib())));
    Ok(arguments)
}

fn start(config: &QemuConfig) -> Result<Vec<String>, LaunchError> {
    let mut arguments = Vec::new();
    match &config.start {
        Start::Cold {
            kernel,
            initrd,
            command_line,
            ..
        } => {
            arguments.extend(option("kernel", utf8(kernel)?));
            arguments.extend(option("initrd", utf8(initrd)?));
            arguments.extend(option("append", command_line.as_str()));
        }
        Start::Load { .. } => arguments.extend(incoming()),
        Start::Unbound => {
            arguments.extend(flags(&["preconfig"]));
            arguments.extend(incoming());
        }
    }
    if let Some(file) = config.start.memory() {
        let keep = matches!(config.start, Start::Cold { keep: true, .. });
        let memory = memory(file, config.size, keep)?;
        arguments.extend(option("object", memory.to_string()));
        arguments.extend(option("machine", format!("memory-backend={MEMORY}")));
    }
    Ok(arguments)
}

fn incoming() -> Vec<String> {
    let mut arguments = Vec::from(option("incoming", "defer"));
    arguments.extend(option("global", "migration.send-configuration=off"));
    arguments
}

/// Name of the memory's object.
pub(super) const MEMORY: &str = "ram";

/// The memory's object. The file is only read and what the VM writes is its own, unless
/// the file is to `keep` it.
pub(super) fn memory(
    file: &Path,
    size: Size,
    keep: bool,
) -> Result<serde_json::Value, LaunchError> {
    let mut memory = json!({
        "qom-type": "memory-backend-file",
        "id": MEMORY,
        "size": u64::from(size.memory_mib()) << 20,
        "mem-path": utf8(file)?,
        "share": keep,
        "dump": false,
        "merge": false,
    });
    if !keep {
        memory["readonly"] = true.into();
        memory["rom"] = "off".into();
    }
    Ok(memory)
}

fn character_devices() -> Vec<String> {
    [
        ("qmp", descriptor::QMP),
        ("ctl", descriptor::CTL),
        ("data", descriptor::DATA),
        ("console", descriptor::CONSOLE),
    ]
    .into_iter()
    .flat_map(|(id, number)| option("chardev", format!("socket,id={id},fd={number}")))
    .chain(option("mon", "chardev=qmp,mode=control"))
    .chain(option("serial", "chardev:console"))
    .collect()
}

fn block_options(config: &QemuConfig) -> Result<Vec<String>, LaunchError> {
    if let Start::Unbound = config.start {
        return Ok(Vec::new());
    }
    let Some((top, lower)) = config.disk.split_last() else {
        return Err(LaunchError::NoDisk);
    };
    let nodes = block_nodes(&config.root, lower, utf8(top)?)?;
    let options = nodes
        .into_iter()
        .flat_map(|node| option("blockdev", node.to_string()));
    Ok(options.collect())
}

/// The nodes of root image and disk. The read-only layers take no locks: they never
/// change, and whoever made one may still hold it open.
pub(super) fn block_nodes(
    root: &Path,
    lower: &[PathBuf],
    top: &str,
) -> Result<Vec<serde_json::Value>, LaunchError> {
    let root = [
        json!({
            "driver": "file", "node-name": "root-file", "filename": utf8(root)?,
            "read-only": true, "locking": "off",
        }),
        json!({ "driver": "raw", "node-name": "root", "file": "root-file", "read-only": true }),
    ];
    let mut nodes = Vec::from(root);
    let mut below: Option<String> = None;
    for (index, path) in lower.iter().enumerate() {
        let node = lower_node(index);
        nodes.extend(disk_layer(&node, utf8(path)?, below.as_deref(), false));
        below = Some(node);
    }
    nodes.extend(disk_layer(&disk_node(0), top, below.as_deref(), true));
    Ok(nodes)
}

/// The file node below a layer's format node.
pub(super) fn file_node(node: &str) -> String {
    format!("{node}-file")
}

/// The file node and the format node of one layer.
///
/// `no-flush` on both: else stopping the VM would flush up to 400 ms of writes
/// within the pause. A layer is synced when it is sealed.
pub(super) fn disk_layer(
    node: &str,
    path: &str,
    backing: Option<&str>,
    writable: bool,
) -> [serde_json::Value; 2] {
    let file = file_node(node);
    let cache = json!({ "no-flush": true });
    [
        json!({
            "driver": "file", "node-name": file, "filename": path, "read-only": !writable,
            "locking": if writable { "on" } else { "off" }, "discard": "unmap", "cache": cache,
        }),
        json!({
            "driver": "qcow2", "node-name": node, "file": file, "backing": backing,
            "read-only": !writable, "discard": "unmap", "cache": cache,
        }),
    ]
}

fn devices() -> Vec<String> {
    let network = json!({
        "type": "dgram", "id": "net",
        "local": { "type": "fd", "str": descriptor::NIC.to_string() },
    });
    let mut arguments = Vec::from(option("netdev", network.to_string()));
    arguments.extend(option("object", "rng-builtin,id=rng"));
    for device in [
        "virtio-blk-device,drive=root,id=root-device".to_owned(),
        format!("virtio-blk-device,drive={},id=disk-device", disk_node(0)),
        "virtio-serial-device,max_ports=3".to_owned(),
        "virtserialport,chardev=ctl,name=pando.ctl,nr=1".to_owned(),
        "virtserialport,chardev=data,name=pando.data,nr=2".to_owned(),
        format!("virtio-net-device,netdev=net,mac={NIC_ADDRESS}"),
        "virtio-rng-device,rng=rng".to_owned(),
    ] {
        arguments.extend(option("device", device));
    }
    arguments
}

#[cfg(test)]
mod tests;
