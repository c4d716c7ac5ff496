//! Starting a QEMU: its files, its jail, its sockets.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;

use pando_sys::jail::Layer;
use pando_sys::jail::landlock::{Access, Policy, Ruleset};
use pando_sys::jail::seccomp::Program;
use pando_sys::spawn::{Child, Limit, Spawn};
use pando_types::limits::DISK_LAYERS;
use pando_types::{Accelerator, Size};
use tokio::net::UnixStream;

use super::arguments::{arguments, descriptor};
use super::config::{Channels, QemuConfig, Start};
use crate::error::LaunchError;

/// Descriptors that QEMU may have open: a few dozen, and for each disk layer one, or three
/// where it was added to the running VM. Four leave room for the pause of a VM that has the
/// most layers, which adds another.
const OPEN_FILES: u64 = 4 * DISK_LAYERS as u64 + 256;

/// Where distributions keep what a QEMU maps and reads.
const SYSTEM_PATHS: [&str; 8] = [
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/usr/share/qemu",
    "/usr/share/seabios",
    "/usr/share/qboot",
    "/etc/ld.so.cache",
];

/// A started QEMU and this process's ends of its sockets.
pub(super) struct Launched {
    pub(super) child: Child,
    pub(super) qmp: UnixStream,
    pub(super) console: UnixStream,
    pub(super) stderr: UnixStream,
    pub(super) layers: Vec<String>,
}

/// Starts QEMU. Its life is tied to the calling thread's.
pub(super) fn launch(config: &QemuConfig) -> Result<Launched, LaunchError> {
    let arguments = arguments(config)?;
    if let Start::Cold { memory, .. } = &config.start {
        create_memory(memory, memory_bytes(config.size))?;
    }
    let (qmp, qmp_theirs) = socket_pair()?;
    let (console, console_theirs) = socket_pair()?;
    let (stderr, stderr_theirs) = socket_pair()?;
    let stdout_theirs = stderr_theirs.try_clone().map_err(LaunchError::Sockets)?;

    let Channels { ctl, data, nic } = &config.channels;
    let copy = |socket: &OwnedFd| socket.try_clone().map_err(LaunchError::Sockets);
    let spawn = Spawn::new(&config.binary)
        .args(&arguments)
        .current_dir(&config.slot)
        .new_session()
        .death_signal(SIGKILL)
        // A limit of its files may come later; see `Qemu::limit_file_bytes`.
        .large_files_fail()
        .limit(Limit::OpenFiles(OPEN_FILES))
        .descriptor(stdout_theirs, 1)
        .descriptor(stderr_theirs, 2)
        .descriptor(qmp_theirs, descriptor::QMP)
        .descriptor(copy(ctl)?, descriptor::CTL)
        .descriptor(copy(data)?, descriptor::DATA)
        .descriptor(copy(nic)?, descriptor::NIC)
        .descriptor(console_theirs, descriptor::CONSOLE);
    let spawn = match preload(config) {
        Some(library) => spawn
            .env("LD_PRELOAD", library)
            .env("PANDO_RAM_BYTES", memory_bytes(config.size).to_string()),
        None => spawn,
    };
    let (spawn, layers) = jail(spawn, config)?;
    Ok(Launched {
        child: spawn.spawn()?,
        qmp,
        console,
        stderr,
        layers,
    })
}

fn memory_bytes(size: Size) -> u64 {
    u64::from(size.memory_mib()) << 20
}

/// The library to load into QEMU, where the VM's memory will be a private mapping.
///
/// The loader splits its variable at spaces and colons and replaces `$` names: better no
/// library than one that it complains about not finding.
fn preload(config: &QemuConfig) -> Option<&Path> {
    if let Start::Cold { keep: true, .. } = config.start {
        return None;
    }
    config.preload.as_deref().filter(|path| {
        let splits = |byte: &u8| matches!(byte, b' ' | b':' | b'$');
        path.is_absolute() && !path.as_os_str().as_bytes().iter().any(splits)
    })
}

/// The signal's number is the same on every Linux.
pub(super) const SIGKILL: i32 = 9;

/// Sparse, so that only what the guest touches takes space.
fn create_memory(path: &Path, bytes: u64) -> Result<(), LaunchError> {
    let create = || -> io::Result<()> {
        File::options()
            .write(true)
            .create_new(true)
            .open(path)?
            .set_len(bytes)
    };
    create().map_err(|source| LaunchError::File {
        path: path.to_owned(),
        source,
    })
}

fn socket_pair() -> Result<(UnixStream, OwnedFd), LaunchError> {
    let pair = || -> io::Result<(UnixStream, OwnedFd)> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((UnixStream::from_std(ours)?, theirs.into()))
    };
    pair().map_err(LaunchError::Sockets)
}

fn jail(spawn: Spawn, config: &QemuConfig) -> Result<(Spawn, Vec<String>), LaunchError> {
    let wanted = config.jail;
    let ours = [Layer::NoNewPrivileges, Layer::Limits, Layer::Seccomp];
    let mut layers: Vec<String> = std::iter::once("qemu-sandbox")
        .chain(
            ours.into_iter()
                .filter(|layer| wanted.has(*layer))
                .map(Layer::name),
        )
        .map(str::to_owned)
        .collect();
    let ruleset = Ruleset::new(&policy(config), wanted)?;
    layers.extend(ruleset.layers().iter().cloned());
    let mut spawn = spawn.layers(wanted).landlock(ruleset);
    if wanted.has(Layer::Seccomp) {
        spawn = spawn.seccomp(Program::vmm()?);
    }
    Ok((spawn, layers))
}

fn policy(config: &QemuConfig) -> Policy {
    let mut policy = Policy::new().allow(&config.binary, Access::Execute);
    for path in SYSTEM_PATHS {
        policy = policy.allow_if_present(Path::new(path), Access::Execute);
    }
    // A QEMU outside `/usr` brings its libraries and firmware along.
    for folder in ["lib", "share/qemu"] {
        if let Some(prefix) = config.binary.parent().and_then(Path::parent) {
            policy = policy.allow_if_present(&prefix.join(folder), Access::Execute);
        }
    }
    if config.accelerator == Accelerator::Kvm {
        policy = policy.allow(Path::new("/dev/kvm"), Access::Device);
    }
    if let Some(library) = preload(config) {
        policy = policy.allow_if_present(library, Access::Execute);
    }
    // QEMU tries out what kinds of file locks there are on it.
    policy = policy.allow(Path::new("/dev/null"), Access::Write);
    policy = policy.allow(&config.slot, Access::Read);
    policy = match &config.start {
        // What comes later is in the slot.
        Start::Unbound => policy,
        Start::Cold {
            kernel,
            initrd,
            memory,
            ..
        } => policy
            .allow(kernel, Access::Read)
            .allow(initrd, Access::Read)
            .allow(memory, Access::Write),
        Start::Load { memory } => policy.allow(memory, Access::Read),
    };
    if !matches!(config.start, Start::Unbound) {
        policy = policy.allow(&config.root, Access::Read);
    }
    let top = config.disk.len().saturating_sub(1);
    config
        .disk
        .iter()
        .enumerate()
        .fold(policy, |policy, (index, path)| {
            policy.allow(
                path,
                if index == top {
                    Access::Write
                } else {
                    Access::Read
                },
            )
        })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use pando_sys::jail::Layers;

    use super::*;

    fn config(folder: &Path) -> QemuConfig {
        let path = |name: &str| -> PathBuf { folder.join(name) };
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        QemuConfig {
            binary: "/bin/sh".into(),
            accelerator: Accelerator::Tcg,
            size: Size::DEFAULT,
            tsc_khz: None,
            start: Start::Load {
                memory: path("slot/memory"),
            },
            root: path("root"),
            disk: vec![path("slot/lower"), path("slot/top")],
            channels: Channels {
                ctl: null(),
                data: null(),
                nic: null(),
            },
            slot: path("slot"),
            console: path("console"),
            jail: Layers::ALL,
            preload: None,
            tb_size_mib: 64,
        }
    }

    #[test]
    fn the_library_is_loaded_where_memory_is_private_and_its_path_is_taken_whole() {
        let mut config = config(Path::new("/somewhere"));
        assert_eq!(preload(&config), None);
        for (path, used) in [
            ("/state/v1/preload.so", true),
            ("preload.so", false),
            ("/my state/preload.so", false),
            ("/a:b/preload.so", false),
            ("/$LIB/preload.so", false),
        ] {
            config.preload = Some(path.into());
            assert_eq!(preload(&config).is_some(), used, "{path}");
        }
        config.preload = Some("/preload.so".into());
        let cold = |keep| Start::Cold {
            kernel: "/kernel".into(),
            initrd: "/initrd".into(),
            command_line: String::new(),
            memory: "/memory".into(),
            keep,
        };
        for (start, used) in [
            (Start::Unbound, true),
            (cold(false), true),
            (cold(true), false),
        ] {
            config.start = start;
            assert_eq!(preload(&config).is_some(), used, "{:?}", config.start);
        }
    }

    /// A shell in QEMU's jail, as root where the test is: only landlock stands
    /// between it and the files.
    #[test]
    fn in_its_jail_a_program_writes_the_top_layer_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("slot")).unwrap();
        let files = [
            "slot/memory",
            "slot/lower",
            "slot/top",
            "root",
            "console",
            "stranger",
        ];
        for name in files {
            std::fs::write(folder.path().join(name), "old").unwrap();
        }
        let config = config(folder.path());
        let script = "for f in slot/memory slot/lower slot/top root console stranger slot/new; \
                      do echo new >$f; done";
        let spawn = Spawn::new(&config.binary)
            .args(["-c", script])
            .current_dir(folder.path());
        let (spawn, _) = jail(spawn, &config).unwrap();
        spawn.spawn().unwrap().wait().unwrap();
        let written: Vec<&str> = files
            .into_iter()
            .filter(|name| std::fs::read(folder.path().join(name)).unwrap() != b"old")
            .collect();
        assert_eq!(written, ["slot/top"]);
        assert!(!folder.path().join("slot/new").exists());
    }
}
