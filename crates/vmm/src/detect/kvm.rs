//! Whether KVM can run a guest here: by running one.
//!
//! `/dev/kvm` says little: in many virtual machines it exists and can run no
//! stock guest. So a tiny guest is started with the CPU model that sandboxes
//! get. It enters protected mode, uses SSE and, where the CPU claims it, BMI2,
//! and says so through a debug port; a KVM that only emulates fails at that.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pando_sys::spawn::{ChildExit, Spawn, SpawnError};
use pando_types::Accelerator;
use serde::{Deserialize, Serialize};

use super::QemuVersion;
use crate::qemu::CPU_MODEL_KVM;

/// How long the guest may take. It takes 50 to 100 ms; but in a VM on a busy host, while
/// the machine comes up, more than 2 s were seen, and what is found holds until the next boot.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two looks at it.
const PROBE_POLL: Duration = Duration::from_millis(5);

/// Bytes of QEMU's complaints that are kept for the reason.
const COMPLAINT_BYTES: u64 = 4096;

/// Size of the guest's firmware, the smallest that QEMU maps.
const FIRMWARE_BYTES: usize = 64 << 10;

/// Where in the firmware the code below stands.
const CODE_OFFSET: usize = 0xff00;

/// Where the CPU starts.
const RESET_OFFSET: usize = 0xfff0;

/// `isa-debug-exit` ends QEMU with twice what the guest wrote, plus one.
const DONE: i32 = 0x55 << 1 | 1;

/// `jmp` to [`CODE_OFFSET`].
const RESET_VECTOR: [u8; 3] = [0xe9, 0x0d, 0xff];

#[rustfmt::skip]
const CODE: [u8; 0x86] = [
    // 16 bit
    0xfa,                                           // cli
    0x2e, 0x66, 0x0f, 0x01, 0x16, 0x80, 0xff,       // lgdtl %cs:gdt_pointer
    0x0f, 0x20, 0xc0,                               // mov %cr0, %eax
    0x0c, 0x01,                                     // or $PE, %al
    0x0f, 0x22, 0xc0,                               // mov %eax, %cr0
    0x66, 0xea, 0x18, 0xff, 0xff, 0xff, 0x08, 0x00, // ljmpl $8, $0xffffff18
    // 32 bit
    0x66, 0xb8, 0x10, 0x00,                         // mov $16, %ax
    0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0,             // mov %ax, %ds, %es, %ss
    0x0f, 0x20, 0xc0,                               // mov %cr0, %eax
    0x83, 0xe0, 0xfb,                               // and $~EM, %eax
    0x0f, 0x22, 0xc0,                               // mov %eax, %cr0
    0x0f, 0x20, 0xe0,                               // mov %cr4, %eax
    0x0d, 0x00, 0x06, 0x00, 0x00,                   // or $OSFXSR|OSXMMEXCPT, %eax
    0x0f, 0x22, 0xe0,                               // mov %eax, %cr4
    0x66, 0x0f, 0xef, 0xc0,                         // pxor %xmm0, %xmm0
    0x0f, 0x11, 0x05, 0x00, 0x10, 0x00, 0x00,       // movups %xmm0, 0x1000
    0x31, 0xc0,                                     // xor %eax, %eax
    0x0f, 0xa2,                                     // cpuid
    0x83, 0xf8, 0x07,                               // cmp $7, %eax
    0x72, 0x14,                                     // jb done
    0xb8, 0x07, 0x00, 0x00, 0x00,                   // mov $7, %eax
    0x31, 0xc9,                                     // xor %ecx, %ecx
    0x0f, 0xa2,                                     // cpuid
    0x0f, 0xba, 0xe3, 0x08,                         // bt $BMI2, %ebx
    0x73, 0x05,                                     // jnc done
    0xc4, 0xe2, 0x79, 0xf7, 0xcb,                   // shlx %eax, %ebx, %ecx
    0xb0, 0x55,                                     // done: mov $0x55, %al
    0xe6, 0xf4,                                     // out %al, $0xf4
    0xf4,                                           // hlt
    0x00, 0x00, 0x00, 0x00, 0x00,                   // (padding)
    // Segments: null, code and data over all addresses.
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xcf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x92, 0xcf, 0x00,
    0x17, 0x00, 0x68, 0xff, 0xff, 0xff,             // gdt_pointer
];

/// Which accelerator a person asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceleratorWish {
    /// KVM where it works, else TCG.
    Auto,
    /// KVM or nothing.
    Kvm,
    /// TCG, whatever the host can do.
    Tcg,
}

/// The accelerator to use, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detection {
    /// The choice.
    pub accelerator: Accelerator,
    /// Why, as a sentence for a person.
    pub reason: String,
}

/// Why there is no accelerator.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// KVM was asked for and does not work.
    #[error("KVM was asked for, but {0}; `--accel auto` uses TCG instead")]
    KvmUnusable(String),
    /// The guest could not be prepared.
    #[error("whether KVM works cannot be found out")]
    Prepare(#[source] io::Error),
}

/// Finds the accelerator for a wish. The probe takes up to two seconds; `cache`
/// keeps what it found for as long as the host's boot, kernel and QEMU stay the same. Blocks.
///
/// # Errors
/// When KVM is wished for and does not work, with the reason.
pub fn accelerator(
    binary: &Path,
    version: &QemuVersion,
    wish: AcceleratorWish,
    cache: Option<&Path>,
) -> Result<Detection, DetectError> {
    if wish == AcceleratorWish::Tcg {
        return Ok(Detection {
            accelerator: Accelerator::Tcg,
            reason: "TCG was asked for".to_owned(),
        });
    }
    let key = cache_key(binary, version);
    let known = cache.and_then(|path| Cached::read(path, &key));
    let (kvm_works, finding) = match known {
        Some(cached) => (cached.kvm_works, cached.finding),
        None => {
            let found = match probe(binary).map_err(DetectError::Prepare)? {
                Ok(milliseconds) => (true, format!("KVM ran a test guest in {milliseconds} ms")),
                Err(why) => (false, why),
            };
            if let Some(path) = cache {
                Cached {
                    key,
                    kvm_works: found.0,
                    finding: found.1.clone(),
                }
                .write(path);
            }
            found
        }
    };
    match (kvm_works, wish) {
        (true, _) => Ok(Detection {
            accelerator: Accelerator::Kvm,
            reason: finding,
        }),
        (false, AcceleratorWish::Kvm) => Err(DetectError::KvmUnusable(finding)),
        (false, _) => Ok(Detection {
            accelerator: Accelerator::Tcg,
            reason: finding,
        }),
    }
}

/// Runs the guest: the time it took in ms, or why it did not come to its end.
fn probe(binary: &Path) -> io::Result<Result<u128, String>> {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        return Ok(Err(match error.kind() {
            io::ErrorKind::NotFound => "this host has no `/dev/kvm`".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "`/dev/kvm` may not be opened: add the user to the group `kvm`".to_owned()
            }
            _ => format!("`/dev/kvm` cannot be opened: {error}"),
        }));
    }
    let firmware = TemporaryFile::new(&firmware())?;
    let mut complaints = TemporaryFile::new(&[])?;
    let started = Instant::now();
    let exit = match run(binary, &firmware, &complaints) {
        Ok(exit) => exit,
        Err(error) => return Ok(Err(format!("QEMU cannot be started: {error}"))),
    };
    let took = started.elapsed().as_millis();
    Ok(match exit {
        Some(ChildExit::Code(DONE)) => Ok(took),
        Some(exit) => Err(format!(
            "`/dev/kvm` exists but cannot run a guest: {}",
            complaints
                .first_line()
                .unwrap_or_else(|| format!("QEMU ended with {exit}"))
        )),
        None => Err(format!(
            "`/dev/kvm` exists but cannot run a guest: {}",
            complaints
                .first_line()
                .unwrap_or_else(|| format!("a test guest hung for {} s", PROBE_TIMEOUT.as_secs()))
        )),
    })
}

/// How QEMU ended, or `None` when it had to be killed.
fn run(
    binary: &Path,
    firmware: &TemporaryFile,
    complaints: &TemporaryFile,
) -> Result<Option<ChildExit>, SpawnError> {
    let machine = format!("microvm,acpi=off,firmware={}", firmware.path.display());
    let output = || {
        complaints
            .file
            .try_clone()
            .map(OwnedFd::from)
            .map_err(SpawnError::Prepare)
    };
    let child = Spawn::new(binary)
        .args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-m",
            "16",
        ])
        .args(["-accel", "kvm", "-cpu", CPU_MODEL_KVM, "-machine", &machine])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"])
        .descriptor(output()?, 1)
        .descriptor(output()?, 2)
        .spawn()?;
    let deadline = Instant::now() + PROBE_TIMEOUT;
    while Instant::now() < deadline {
        if let Some(exit) = child.try_wait().map_err(SpawnError::Prepare)? {
            return Ok(Some(exit));
        }
        std::thread::sleep(PROBE_POLL);
    }
    child
        .kill(9)
        .and_then(|()| child.wait())
        .map_err(SpawnError::Prepare)?;
    Ok(None)
}

fn firmware() -> Vec<u8> {
    const HALT: u8 = 0xf4;
    let mut firmware = vec![HALT; FIRMWARE_BYTES];
    firmware[CODE_OFFSET..CODE_OFFSET + CODE.len()].copy_from_slice(&CODE);
    firmware[RESET_OFFSET..RESET_OFFSET + RESET_VECTOR.len()].copy_from_slice(&RESET_VECTOR);
    firmware
}

/// A file that is removed when dropped.
struct TemporaryFile {
    path: PathBuf,
    file: fs::File,
}

impl TemporaryFile {
    fn new(contents: &[u8]) -> io::Result<Self> {
        let mut random = [0; 8];
        pando_sys::random::fill(&mut random)?;
        let name = format!("pando-kvm-{:016x}", u64::from_ne_bytes(random));
        let path = std::env::temp_dir().join(name);
        let mut file = fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.write_all(contents)?;
        Ok(Self { path, file })
    }

    /// The first line that says something, without QEMU's own name before it.
    fn first_line(&mut self) -> Option<String> {
        let mut text = Vec::new();
        self.file.seek(SeekFrom::Start(0)).ok()?;
        (&mut self.file)
            .take(COMPLAINT_BYTES)
            .read_to_end(&mut text)
            .ok()?;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        let line = line
            .split_once("qemu-system-x86_64: ")
            .map_or(line, |(_, rest)| rest);
        Some(line.strip_prefix("error: ").unwrap_or(line).to_owned())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What a probe found, and for which host.
#[derive(Debug, Serialize, Deserialize)]
struct Cached {
    key: String,
    kvm_works: bool,
    finding: String,
}

impl Cached {
    fn read(path: &Path, key: &str) -> Option<Self> {
        let cached: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (cached.key == key).then_some(cached)
    }

    /// A cache that cannot be written costs a second at the next start, no more.
    fn write(&self, path: &Path) {
        let write = || -> io::Result<()> {
            let temporary = path.with_extension("new");
            fs::write(&temporary, serde_json::to_vec(self)?)?;
            fs::rename(&temporary, path)
        };
        if let Err(error) = write() {
            tracing::warn!(path = %path.display(), %error, "what KVM can do is not remembered");
        }
    }
}

/// Whatever changes it may change the finding: the boot, the kernel, QEMU, and
/// the user, who may or may not open `/dev/kvm`.
fn cache_key(binary: &Path, version: &QemuVersion) -> String {
    let read = |path| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let boot = read("/proc/sys/kernel/random/boot_id");
    let kernel = read("/proc/sys/kernel/osrelease");
    let user = fs::read_to_string("/proc/self/status")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("Uid:") || line.starts_with("Groups:"))
        .collect::<String>();
    format!(
        "{boot} {kernel} {user} {} {}",
        binary.display(),
        version.full()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_vector_jumps_to_the_code() {
        let distance = i16::from_le_bytes([RESET_VECTOR[1], RESET_VECTOR[2]]);
        let target = RESET_OFFSET as i32 + RESET_VECTOR.len() as i32 + i32::from(distance);
        assert_eq!(target, CODE_OFFSET as i32);
        assert_eq!(firmware().len(), FIRMWARE_BYTES);
    }

    #[test]
    fn what_was_found_is_remembered_for_the_same_host_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accel.json");
        let cached = Cached {
            key: "a".into(),
            kvm_works: true,
            finding: "it ran".into(),
        };
        cached.write(&path);
        assert!(Cached::read(&path, "a").unwrap().kvm_works);
        assert!(Cached::read(&path, "b").is_none());
        fs::write(&path, "broken").unwrap();
        assert!(Cached::read(&path, "a").is_none());
    }
}
