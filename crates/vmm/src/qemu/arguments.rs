//! QEMU's command line, made from the configuration alone.
//!
//! Order matters: a snapshot's device state names devices by where they are, so
//! the devices here and their order are [`DEVICE_SET`]. A change needs a new
//! name for the set, and makes older snapshots unusable but for their disk.

use std::path::Path;

use pando_types::Accelerator;
use serde_json::json;

use super::config::{QemuConfig, Start};
use crate::error::LaunchError;

/// The machine. The kernel finds virtio-mmio devices through ACPI only: Debian
/// builds it without device trees and without device arguments. `qboot` starts
/// a kernel faster than SeaBIOS, and needs no option ROMs.
pub const MACHINE: &str = "microvm,acpi=on,firmware=qboot.rom,x-option-roms=off,pit=on,pic=on,\
                           rtc=on,isa-serial=on,pcie=off,usb=off,graphics=off";

/// Properties of the machine that the guest cannot see.
const MACHINE_HOST: &str =
    "mem-merge=off,dump-guest-core=off,suppress-vmdesc=on,memory-backend=ram";

/// Name of the set of devices below.
pub const DEVICE_SET: &str = "1";

/// The guest's CPU with KVM.
pub const CPU_MODEL_KVM: &str = "host";

/// The guest's CPU without KVM.
pub const CPU_MODEL_TCG: &str = "max,-erms,-fsrm";

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

/// The node of the disk layer with this index, counted from the lowest.
pub(super) fn disk_node(index: usize) -> String {
    format!("disk-{index}")
}

/// All of QEMU's arguments.
pub(super) fn arguments(config: &QemuConfig) -> Result<Vec<String>, LaunchError> {
    let mut arguments = machine(config)?;
    arguments.extend(start(config)?);
    arguments.extend(character_devices());
    arguments.extend(block_nodes(config)?);
    arguments.extend(devices(config.disk.len()));
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
    arguments.extend(option("machine", format!("{MACHINE},{MACHINE_HOST}")));
    arguments.extend(option("accel", accelerator));
    arguments.extend(option("cpu", cpu));
    arguments.extend(option("smp", config.size.cpus().to_string()));
    arguments.extend(option("m", format!("{}M", config.size.memory_mib())));
    Ok(arguments)
}

fn start(config: &QemuConfig) -> Result<Vec<String>, LaunchError> {
    let mut memory = json!({
        "qom-type": "memory-backend-file",
        "id": "ram",
        "size": u64::from(config.size.memory_mib()) << 20,
        "mem-path": utf8(config.start.memory())?,
        "share": false,
        "dump": false,
        "merge": false,
    });
    let mut arguments = Vec::new();
    match &config.start {
        Start::Cold {
            kernel,
            initrd,
            command_line,
            keep,
            ..
        } => {
            match keep {
                true => memory["share"] = true.into(),
                false => private(&mut memory),
            }
            arguments.extend(option("kernel", utf8(kernel)?));
            arguments.extend(option("initrd", utf8(initrd)?));
            arguments.extend(option("append", command_line.as_str()));
        }
        Start::Load { .. } => {
            private(&mut memory);
            arguments.extend(option("incoming", "defer"));
            arguments.extend(option("global", "migration.send-configuration=off"));
        }
    }
    arguments.extend(option("object", memory.to_string()));
    Ok(arguments)
}

/// The file is only read; what the VM writes is its own.
fn private(memory: &mut serde_json::Value) {
    memory["readonly"] = true.into();
    memory["rom"] = "off".into();
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

/// The read-only layers take no locks: they never change, and whoever made one
/// may still hold it open.
fn block_nodes(config: &QemuConfig) -> Result<Vec<String>, LaunchError> {
    let root = [
        json!({
            "driver": "file", "node-name": "root-file", "filename": utf8(&config.root)?,
            "read-only": true, "locking": "off",
        }),
        json!({ "driver": "raw", "node-name": "root", "file": "root-file", "read-only": true }),
    ];
    let mut nodes = Vec::from(root);
    let top = config.disk.len().saturating_sub(1);
    for (index, path) in config.disk.iter().enumerate() {
        let backing = index.checked_sub(1).map(disk_node);
        nodes.extend(disk_layer(
            utf8(path)?,
            index,
            backing.as_deref(),
            index == top,
        ));
    }
    Ok(nodes
        .into_iter()
        .flat_map(|node| option("blockdev", node.to_string()))
        .collect())
}

/// The file node and the format node of one layer.
///
/// `no-flush` on both: else stopping the VM would flush up to 400 ms of writes
/// within the pause. A layer is synced when it is sealed.
pub(super) fn disk_layer(
    path: &str,
    index: usize,
    backing: Option<&str>,
    writable: bool,
) -> [serde_json::Value; 2] {
    let node = disk_node(index);
    let file = format!("{node}-file");
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

fn devices(layers: usize) -> Vec<String> {
    let network = json!({
        "type": "dgram", "id": "net",
        "local": { "type": "fd", "str": descriptor::NIC.to_string() },
    });
    let mut arguments = Vec::from(option("netdev", network.to_string()));
    arguments.extend(option("object", "rng-builtin,id=rng"));
    for device in [
        "virtio-blk-device,drive=root,id=root-device".to_owned(),
        format!(
            "virtio-blk-device,drive={},id=disk-device",
            disk_node(layers.saturating_sub(1))
        ),
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
