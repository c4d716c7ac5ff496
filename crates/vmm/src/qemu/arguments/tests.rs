use std::os::fd::OwnedFd;

use pando_sys::jail::Layers;
use pando_types::Size;

use super::*;
use crate::qemu::Channels;

fn config(start: Start) -> QemuConfig {
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    QemuConfig {
        binary: "/usr/bin/qemu-system-x86_64".into(),
        accelerator: Accelerator::Tcg,
        size: Size::DEFAULT,
        tsc_khz: None,
        start,
        root: "/store/root.img".into(),
        disk: vec!["/store/a,b.qcow2".into(), "/slot/disk.qcow2".into()],
        channels: Channels {
            ctl: null(),
            data: null(),
            nic: null(),
        },
        slot: "/slot".into(),
        console: "/slot/console".into(),
        jail: Layers::NONE,
        preload: None,
        tb_size_mib: TB_SIZE_MIB,
    }
}

fn load() -> Start {
    Start::Load {
        memory: "/store/memory".into(),
    }
}

/// The value of every option with this name.
fn values<'a>(arguments: &'a [String], name: &str) -> Vec<&'a str> {
    arguments
        .windows(2)
        .filter(|pair| pair[0] == name)
        .map(|pair| pair[1].as_str())
        .collect()
}

#[test]
fn a_snapshot_is_loaded_paused_from_memory_that_is_only_read() {
    let arguments = arguments(&config(load())).unwrap();
    assert!(arguments.contains(&"-S".to_owned()));
    assert_eq!(values(&arguments, "-incoming"), ["defer"]);
    let memory = values(&arguments, "-object")[0];
    let memory: serde_json::Value = serde_json::from_str(memory).unwrap();
    assert_eq!(memory["share"], false);
    assert_eq!(memory["readonly"], true);
    assert_eq!(memory["rom"], "off");
    assert_eq!(memory["size"], 512 << 20);
}

#[test]
fn a_cold_start_shares_its_memory_with_the_file() {
    let start = Start::Cold {
        kernel: "/k".into(),
        initrd: "/i".into(),
        command_line: "quiet a=b".to_owned(),
        memory: "/slot/memory".into(),
        keep: true,
    };
    let arguments = arguments(&config(start)).unwrap();
    assert!(values(&arguments, "-incoming").is_empty());
    assert_eq!(values(&arguments, "-append"), ["quiet a=b"]);
    let memory: serde_json::Value = serde_json::from_str(values(&arguments, "-object")[0]).unwrap();
    assert_eq!(memory["share"], true);
    assert_eq!(memory.get("readonly"), None);
}

#[test]
fn both_starts_have_the_same_machine_and_devices() {
    let cold = Start::Cold {
        kernel: "/k".into(),
        initrd: "/i".into(),
        command_line: String::new(),
        memory: "/store/memory".into(),
        keep: false,
    };
    let (cold, load) = (
        arguments(&config(cold)).unwrap(),
        arguments(&config(load())).unwrap(),
    );
    for name in [
        "-machine", "-object", "-accel", "-cpu", "-smp", "-m", "-device", "-netdev", "-serial",
    ] {
        assert_eq!(values(&cold, name), values(&load, name), "{name}");
    }
    // What is bound later is the same machine: only memory and disks come after the start.
    let unbound = arguments(&config(Start::Unbound)).unwrap();
    for name in [
        "-accel",
        "-cpu",
        "-smp",
        "-m",
        "-device",
        "-netdev",
        "-serial",
        "-incoming",
    ] {
        assert_eq!(values(&unbound, name), values(&load, name), "{name}");
    }
    assert_eq!(
        values(&unbound, "-machine")[0],
        values(&load, "-machine")[0]
    );
    assert!(values(&unbound, "-blockdev").is_empty());
    assert_eq!(
        values(&load, "-device"),
        [
            "virtio-blk-device,drive=root,id=root-device",
            "virtio-blk-device,drive=disk-0,id=disk-device",
            "virtio-serial-device,max_ports=3",
            "virtserialport,chardev=ctl,name=pando.ctl,nr=1",
            "virtserialport,chardev=data,name=pando.data,nr=2",
            "virtio-net-device,netdev=net,mac=52:54:00:70:61:6e",
            "virtio-rng-device,rng=rng",
        ],
        "a change here needs a new DEVICE_SET"
    );
}

#[test]
fn the_chain_is_what_the_configuration_says_and_only_its_top_is_written() {
    let arguments = arguments(&config(load())).unwrap();
    let nodes: Vec<serde_json::Value> = values(&arguments, "-blockdev")
        .into_iter()
        .map(|node| serde_json::from_str(node).unwrap())
        .collect();
    let names: Vec<&str> = nodes
        .iter()
        .map(|node| node["node-name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "root-file",
            "root",
            "lower-0-file",
            "lower-0",
            "disk-0-file",
            "disk-0"
        ]
    );
    let writable: Vec<bool> = nodes
        .iter()
        .map(|node| node["read-only"] == false)
        .collect();
    assert_eq!(writable, [false, false, false, false, true, true]);
    assert_eq!(nodes[2]["filename"], "/store/a,b.qcow2");
    assert!(
        nodes[3]["backing"].is_null(),
        "the lowest layer lies on nothing, whatever it says"
    );
    assert_eq!(nodes[5]["backing"], "lower-0");
    assert!(
        nodes[2..]
            .iter()
            .all(|node| node["cache"]["no-flush"] == true)
    );
}

#[test]
fn kvm_gets_the_hosts_cpu_and_no_translator() {
    let mut config = config(load());
    config.accelerator = Accelerator::Kvm;
    let arguments = arguments(&config).unwrap();
    assert_eq!(values(&arguments, "-accel"), ["kvm"]);
    assert_eq!(values(&arguments, "-cpu"), ["host"]);
}

#[test]
fn a_path_that_qemu_cannot_be_told_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let mut config = config(load());
    config.root = std::ffi::OsStr::from_bytes(b"/store/\xff").into();
    assert!(matches!(arguments(&config), Err(LaunchError::Path(path)) if path == config.root));
}
