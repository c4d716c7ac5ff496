//! Landlock rulesets: the paths a process may reach, and whether it may use TCP
//! or signal processes outside.
//!
//! Kernels differ: files since 5.13, renames across folders 5.19, truncation 6.2,
//! TCP 6.7, device ioctls 6.10, abstract sockets and signals 6.12. A ruleset
//! asks for all of it, the kernel enforces what it knows, and
//! [`Ruleset::layers`] says what that is.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use ::landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset as Builder, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};

use super::{Layer, Layers};

/// The newest rights asked for. Raise it together with a test of what is new.
const NEWEST: ABI = ABI::V6;

/// The rights that [`Layer::Files`] stands for: those before truncation got one of its own.
const FILES: ABI = ABI::V2;

/// What a process may do with a path and everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read files and list folders.
    Read,
    /// Read, and map or run as code.
    Execute,
    /// Read, write and truncate files that exist; nothing is created or removed.
    Write,
    /// Write, and create, rename and remove files, folders and sockets.
    Manage,
    /// Read, write and ioctl a device.
    Device,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write = read | AccessFs::WriteFile | AccessFs::Truncate;
        match self {
            Self::Read => read,
            Self::Execute => read | AccessFs::Execute,
            Self::Write => write,
            Self::Manage => {
                write
                    | AccessFs::MakeReg
                    | AccessFs::MakeDir
                    | AccessFs::MakeSock
                    | AccessFs::RemoveFile
                    | AccessFs::RemoveDir
                    | AccessFs::Refer
            }
            Self::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        }
    }
}

/// A path and what may be done with it.
#[derive(Clone, Debug)]
struct Rule {
    path: PathBuf,
    access: Access,
    /// Whether its absence is an error.
    required: bool,
}

/// What a process may reach. Everything that no rule names is denied.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    allow_tcp: bool,
}

impl Policy {
    /// Nothing at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows `access` to a path that must exist.
    pub fn allow(mut self, path: &Path, access: Access) -> Self {
        self.rules.push(Rule {
            path: path.to_owned(),
            access,
            required: true,
        });
        self
    }

    /// Allows `access` to a path, where it exists: system folders differ by distribution.
    pub fn allow_if_present(mut self, path: &Path, access: Access) -> Self {
        self.rules.push(Rule {
            path: path.to_owned(),
            access,
            required: false,
        });
        self
    }

    /// Leaves TCP to the process.
    pub fn allow_tcp(mut self) -> Self {
        self.allow_tcp = true;
        self
    }
}

/// Why there is no ruleset.
#[derive(Debug, thiserror::Error)]
pub enum RulesetError {
    /// A required path cannot be opened.
    #[error("`{}` cannot be opened to allow access to it", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What landlock said.
        #[source]
        source: Box<::landlock::PathFdError>,
    },
    /// The kernel refused the ruleset.
    #[error("the kernel refused the landlock ruleset")]
    Kernel(#[source] Box<::landlock::RulesetError>),
    /// The kernel refused to apply it.
    #[error("the landlock ruleset could not be applied")]
    Apply(#[source] io::Error),
}

impl From<::landlock::RulesetError> for RulesetError {
    fn from(error: ::landlock::RulesetError) -> Self {
        Self::Kernel(Box::new(error))
    }
}

/// A prepared ruleset, to be applied to a child or to this process.
#[derive(Debug)]
pub struct Ruleset {
    /// Absent where the kernel has no landlock.
    descriptor: Option<OwnedFd>,
    layers: Vec<String>,
}

impl Ruleset {
    /// Turns a policy into a ruleset of this kernel, as far as `wanted` asks for it.
    ///
    /// # Errors
    /// Names the required path that is missing, or passes on the kernel's refusal.
    /// A kernel without landlock is no error: the layers are then empty.
    pub fn new(policy: &Policy, wanted: Layers) -> Result<Self, RulesetError> {
        let files = files(wanted);
        let scopes = scopes(wanted);
        let tcp = wanted.has(Layer::NoTcp) && !policy.allow_tcp;
        // Without a right that is handled there is no ruleset.
        if !wanted.has(Layer::NoPtrace) || (files.is_empty() && scopes.is_empty() && !tcp) {
            return Ok(Self {
                descriptor: None,
                layers: Vec::new(),
            });
        }
        let mut builder = Builder::default().set_compatibility(CompatLevel::BestEffort);
        if !files.is_empty() {
            builder = builder.handle_access(files)?;
        }
        if !scopes.is_empty() {
            builder = builder.scope(scopes)?;
        }
        if tcp {
            builder = builder.handle_access(AccessNet::from_all(NEWEST))?;
        }
        let mut created = builder.create()?;
        for rule in policy.rules.iter().filter(|_| !files.is_empty()) {
            created = add_rule(created, rule, files)?;
        }
        Ok(Self {
            descriptor: created.into(),
            layers: layers(abi(), wanted, policy.allow_tcp),
        })
    }

    /// The rights that the kernel enforces, each as a short name such as
    /// `landlock-files`; empty where it has no landlock.
    pub fn layers(&self) -> &[String] {
        &self.layers
    }

    /// Confines the calling thread, and every thread it starts from now on.
    /// Sets `no_new_privs`. Call it before other threads exist.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn restrict_self(self) -> Result<(), RulesetError> {
        let Some(descriptor) = self.descriptor else {
            return Ok(());
        };
        rustix::thread::set_no_new_privs(true)
            .map_err(|error| RulesetError::Apply(error.into()))?;
        // SAFETY: a descriptor number and flags; no memory is passed.
        let result =
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, descriptor.as_raw_fd(), 0) };
        if result < 0 {
            return Err(RulesetError::Apply(io::Error::last_os_error()));
        }
        Ok(())
    }

    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        self.descriptor.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// The rights on files that are not there unless a rule gives them.
fn files(wanted: Layers) -> BitFlags<AccessFs> {
    let rights = [
        (Layer::Files, AccessFs::from_all(FILES)),
        (Layer::Truncate, AccessFs::Truncate.into()),
        (Layer::DeviceIoctl, AccessFs::IoctlDev.into()),
    ];
    let wanted = rights.iter().filter(|(layer, _)| wanted.has(*layer));
    wanted.fold(BitFlags::empty(), |all, (_, rights)| all | *rights)
}

fn scopes(wanted: Layers) -> BitFlags<Scope> {
    let scopes = [
        (Layer::NoSignals, Scope::Signal),
        (Layer::NoAbstractSockets, Scope::AbstractUnixSocket),
    ];
    let wanted = scopes.iter().filter(|(layer, _)| wanted.has(*layer));
    wanted.fold(BitFlags::empty(), |all, (_, scope)| all | *scope)
}

fn add_rule(
    created: RulesetCreated,
    rule: &Rule,
    handled: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let descriptor = match PathFd::new(&rule.path) {
        Ok(descriptor) => descriptor,
        Err(_) if !rule.required => return Ok(created),
        Err(source) => {
            return Err(RulesetError::Path {
                path: rule.path.clone(),
                source: Box::new(source),
            });
        }
    };
    let mut rights = rule.access.rights() & handled;
    if !rule.path.is_dir() {
        rights &= AccessFs::from_file(NEWEST);
    }
    Ok(created.add_rule(PathBeneath::new(descriptor, rights))?)
}

/// The kernel's landlock version, 0 for none.
pub fn abi() -> u32 {
    const VERSION_QUERY: libc::c_uint = 1;
    // SAFETY: with the version flag the kernel takes a null pointer and size zero.
    let version = unsafe {
        let none = std::ptr::null::<libc::c_void>();
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            none,
            0usize,
            VERSION_QUERY,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Names of what a kernel with this version enforces.
fn layers(abi: u32, wanted: Layers, allow_tcp: bool) -> Vec<String> {
    Layer::all()
        .filter(|layer| (1..=abi).contains(&layer.landlock()) && wanted.has(*layer))
        .filter(|layer| !(allow_tcp && *layer == Layer::NoTcp))
        .map(|layer| layer.name().to_owned())
        .collect()
}

/// The layers of landlock that this kernel does not have, by name.
pub fn missing() -> Vec<&'static str> {
    let abi = abi();
    Layer::all()
        .filter(|layer| layer.landlock() > abi)
        .map(Layer::name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_grow_with_the_kernel_and_shrink_with_what_is_allowed() {
        assert!(layers(0, Layers::ALL, false).is_empty());
        assert_eq!(
            layers(3, Layers::ALL, false),
            ["landlock-no-ptrace", "landlock-files", "landlock-truncate"]
        );
        let newest = |allow_tcp| layers(6, Layers::ALL, allow_tcp);
        assert!(newest(false).contains(&"landlock-no-tcp".to_owned()));
        assert!(!newest(true).contains(&"landlock-no-tcp".to_owned()));
        let loose = layers(6, Layers::ALL.without(Layer::Truncate), true);
        assert!(!loose.contains(&"landlock-truncate".to_owned()));
    }

    #[test]
    fn with_its_layers_off_there_is_no_ruleset_to_put_on() {
        let policy = Policy::new().allow_tcp();
        let of = |layers: Layers| Ruleset::new(&policy, layers).unwrap();
        assert!(of(Layers::NONE).layers().is_empty());
        let only_tcp = Layers::ALL
            .without(Layer::Files)
            .without(Layer::NoSignals)
            .without(Layer::NoAbstractSockets);
        assert!(of(only_tcp).layers().is_empty());
        assert!(of(only_tcp).raw_fd().is_none());
        assert!(!of(Layers::ALL).layers().is_empty());
    }

    #[test]
    fn a_missing_required_path_is_named_and_a_missing_optional_one_is_skipped() {
        let missing = Path::new("/no/such/folder");
        let error =
            Ruleset::new(&Policy::new().allow(missing, Access::Read), Layers::ALL).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
        Ruleset::new(
            &Policy::new().allow_if_present(missing, Access::Read),
            Layers::ALL,
        )
        .unwrap();
    }
}
