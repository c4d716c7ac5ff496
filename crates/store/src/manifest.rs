//! The manifest: what a snapshot is made of and what can run it.
//!
//! ```text
//! PANDO-MANIFEST 2 <blake3 of the body, 64 hex digits>\n
//! { JSON body }
//! ```
//! The magic, the format's own version and the checksum stand before the body, so a
//! torn, foreign or newer file is named as such before anything in it is believed.

use crate::layer::Layer;
use serde::{Deserialize, Serialize};

const MAGIC: &str = "PANDO-MANIFEST";
const VERSION: &str = "2";

/// Longest manifest that is read; a real one has a few KiB.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// How far a guest had come when it was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedState {
    /// Root mounted, services up: new sandboxes start from it.
    Ready,
    /// Kernel and agent up, writable disk not opened: a disk that exists already starts from it.
    PreMount,
    /// A sandbox in the middle of its work.
    Running,
    /// A sandbox's disk, without memory.
    Disk,
}

/// What must be equal on the host that loads a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// VMM and full version.
    pub vmm: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// CPU model as the VMM names it.
    pub cpu_model: String,
    /// The host's TSC rate that the guest was told, in kHz; 0 where it is not told.
    pub tsc_khz: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// Machine type with its properties.
    pub machine: String,
    /// Name of the device set.
    pub devices: String,
    /// BLAKE3 of the kernel.
    pub kernel: String,
    /// BLAKE3 of the initrd, agent included.
    pub initrd: String,
}

impl Machine {
    /// Guest memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }

    /// The fields in which two machines differ, as `field: ours, theirs`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let pairs = [
            ("vmm", self.vmm.clone(), other.vmm.clone()),
            (
                "accelerator",
                self.accelerator.clone(),
                other.accelerator.clone(),
            ),
            ("CPU model", self.cpu_model.clone(), other.cpu_model.clone()),
            (
                "TSC rate in kHz",
                self.tsc_khz.to_string(),
                other.tsc_khz.to_string(),
            ),
            ("CPUs", self.cpus.to_string(), other.cpus.to_string()),
            (
                "memory in MiB",
                self.memory_mib.to_string(),
                other.memory_mib.to_string(),
            ),
            ("machine", self.machine.clone(), other.machine.clone()),
            ("device set", self.devices.clone(), other.devices.clone()),
            ("kernel", self.kernel.clone(), other.kernel.clone()),
            ("initrd", self.initrd.clone(), other.initrd.clone()),
        ];
        pairs
            .into_iter()
            .filter(|(_, ours, theirs)| ours != theirs)
            .map(|(field, ours, theirs)| format!("{field}: {ours}, not {theirs}"))
            .collect()
    }
}

/// A snapshot's description. Its directory holds every layer that it names, by hard
/// links where others have them too: it needs no other snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Its own name: a snapshot's id, or a bake's key.
    pub id: String,
    /// How far the guest had come.
    pub kind: SavedState,
    /// What can run it.
    pub machine: Machine,
    /// When it was written, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// The read-only root image, by its BLAKE3; it is shared and lives elsewhere.
    pub root: String,
    /// The read-only root image as a file beside the others; `None` where it is on another
    /// file system and stays in the cache.
    pub root_image: Option<Layer>,
    /// The writable disk's chain, base first.
    pub disks: Vec<Layer>,
    /// Guest memory, as long as the memory is; `None` is all zeros.
    pub memory: Option<Layer>,
    /// Pages that lie over `memory`, the oldest first; see [`crate::pages`].
    pub pages: Vec<Layer>,
    /// The VMM's device state; `None` where no memory is kept, or none to go on from.
    pub device_state: Option<Layer>,
    /// What the gateway knew of names and connections; `None` where no memory is kept.
    pub network: Option<Layer>,
    /// The channel was quiet at a freeze barrier; otherwise a child must resynchronise.
    pub clean_barrier: bool,
}

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// No manifest at all.
    #[error("not a Pando manifest")]
    Foreign,
    /// Written by another version of the format.
    #[error("the manifest has version {0}, this program reads version {VERSION}")]
    Version(String),
    /// Torn or changed.
    #[error("the manifest's checksum does not match")]
    Checksum,
    /// Well-formed outside, not inside.
    #[error("the manifest's body is malformed")]
    Body(#[source] serde_json::Error),
    /// A file name that is a path, or that is there twice.
    #[error("the manifest names `{0}`, which is not a plain file name of its own")]
    FileName(String),
}

impl Manifest {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_string_pretty(self).expect("a manifest has only plain fields");
        let checksum = blake3::hash(body.as_bytes()).to_hex();
        format!("{MAGIC} {VERSION} {checksum}\n{body}").into_bytes()
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// Says what is wrong, before anything of the body is used.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (head, body) = bytes.split_at(end.ok_or(ManifestError::Foreign)?);
        let body = &body[1..];
        let head = std::str::from_utf8(head).map_err(|_| ManifestError::Foreign)?;
        let mut words = head.split(' ');
        if words.next() != Some(MAGIC) {
            return Err(ManifestError::Foreign);
        }
        let version = words.next().ok_or(ManifestError::Foreign)?;
        if version != VERSION {
            return Err(ManifestError::Version(version.chars().take(20).collect()));
        }
        if words.next() != Some(blake3::hash(body).to_hex().as_str()) {
            return Err(ManifestError::Checksum);
        }
        let manifest: Self = serde_json::from_slice(body).map_err(ManifestError::Body)?;
        manifest.check_names()?;
        Ok(manifest)
    }

    /// Every layer the manifest names.
    pub fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.root_image
            .iter()
            .chain(&self.disks)
            .chain(&self.memory)
            .chain(&self.pages)
            .chain(&self.device_state)
            .chain(&self.network)
    }

    fn check_names(&self) -> Result<(), ManifestError> {
        let plain = |name: &str| {
            !name.is_empty()
                && !name.starts_with('.')
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        let mut names = std::collections::BTreeSet::new();
        let mut odd = self.layers().map(|layer| layer.file.as_str());
        // Twice the same name would let one file stand for two layers.
        match odd.find(|name| !plain(name) || !names.insert(*name)) {
            Some(name) => Err(ManifestError::FileName(name.to_owned())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn sample() -> Manifest {
        let layer = |file: &str| Layer {
            file: file.into(),
            length: 3,
            blake3: "0".repeat(64),
        };
        Manifest {
            id: "key".into(),
            kind: SavedState::Ready,
            machine: Machine {
                vmm: "qemu 10.0.2".into(),
                accelerator: "tcg".into(),
                cpu_model: "max".into(),
                tsc_khz: 2_000_000,
                cpus: 1,
                memory_mib: 512,
                machine: "microvm".into(),
                devices: "1".into(),
                kernel: "k".into(),
                initrd: "i".into(),
            },
            created_at_ms: 1,
            root: "r".into(),
            root_image: None,
            disks: vec![layer("disk.0"), layer("disk.1")],
            memory: Some(layer("memory")),
            pages: vec![layer("pages.0")],
            device_state: Some(layer("device-state")),
            network: None,
            clean_barrier: true,
        }
    }

    #[test]
    fn a_manifest_reads_back_as_written() {
        assert_eq!(Manifest::decode(&sample().encode()).unwrap(), sample());
    }

    #[test]
    fn a_newer_format_is_named() {
        let text = String::from_utf8(sample().encode())
            .unwrap()
            .replacen(" 2 ", " 3 ", 1);
        let error = Manifest::decode(text.as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the manifest has version 3, this program reads version 2"
        );
    }

    #[test]
    fn a_changed_body_is_ours_and_changed_whatever_is_in_it() {
        let mut bytes = sample().encode();
        let last = bytes.len() - 2;
        bytes[last] = 0xff;
        let error = Manifest::decode(&bytes).unwrap_err();
        assert!(matches!(error, ManifestError::Checksum), "{error}");
    }

    #[test]
    fn a_layer_may_not_be_a_path() {
        for name in ["../memory", "disk.0", ".", ""] {
            let mut manifest = sample();
            manifest.pages[0].file = name.into();
            assert!(matches!(
                Manifest::decode(&manifest.encode()),
                Err(ManifestError::FileName(_))
            ));
        }
    }

    #[test]
    fn differences_name_both_sides() {
        let mut other = sample().machine;
        other.memory_mib = 1024;
        assert_eq!(
            sample().machine.differences(&other),
            ["memory in MiB: 512, not 1024"]
        );
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_found(position in 0usize..900, flip in 1u8..) {
            let mut bytes = sample().encode();
            let position = position % bytes.len();
            bytes[position] ^= flip;
            prop_assert!(Manifest::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            prop_assert!(Manifest::decode(&bytes).is_err());
        }
    }
}
