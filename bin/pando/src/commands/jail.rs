//! What this host has of the jails' layers, and what it withholds: for `pando doctor`, and
//! for the sentence that `pando serve` says where it is too little.

use super::doctor::{Check, Outcome};
use pando_sys::jail::{Layer, landlock};
use std::fs;
use std::path::Path;

/// The newest kernel that a layer needs.
const WHOLE: &str = "Linux 6.12 and newer have all of landlock that Pando uses";

/// What the kernel says of itself.
#[derive(Clone, Debug)]
struct Host {
    /// Version of landlock, 0 for none.
    landlock: u32,
    /// Whether this process is root.
    root: bool,
    /// The security modules that are in use, where they can be read.
    modules: Option<Vec<String>>,
    /// `kernel.yama.ptrace_scope`, 0 where there is none.
    ptrace_scope: u32,
    /// `kernel.apparmor_restrict_unprivileged_userns`.
    apparmor_users: bool,
    /// `kernel.unprivileged_userns_clone` is 0, or `user.max_user_namespaces` is.
    no_users: bool,
    /// The option `hidepid` of `/proc`, where it hides anything.
    hidepid: Option<String>,
}

impl Host {
    fn of_this_kernel() -> Self {
        let number = |path: &str| -> Option<u32> {
            fs::read_to_string(Path::new("/proc/sys").join(path))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let modules = fs::read_to_string("/sys/kernel/security/lsm").ok();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self {
            landlock: landlock::abi(),
            root: rustix::process::geteuid().is_root(),
            modules: modules.map(|list| list.trim().split(',').map(str::to_owned).collect()),
            ptrace_scope: number("kernel/yama/ptrace_scope").unwrap_or_default(),
            apparmor_users: number("kernel/apparmor_restrict_unprivileged_userns") == Some(1),
            no_users: number("kernel/unprivileged_userns_clone") == Some(0)
                || number("user/max_user_namespaces") == Some(0),
            hidepid: hidepid(&mounts),
        }
    }

    /// The layers that are in force around QEMU here.
    fn layers(&self) -> Vec<&'static str> {
        let present = |layer: &Layer| match layer {
            Layer::Account => self.root,
            layer => layer.landlock() <= self.landlock,
        };
        Layer::all().filter(present).map(Layer::name).collect()
    }

    /// The floor of SECURITY.md, where this host is below it: in one sentence, why.
    fn below_floor(&self) -> Option<String> {
        let missing = |layer: Layer| layer.landlock() > self.landlock;
        if missing(Layer::Files) {
            let reach = if self.root {
                "its account may"
            } else {
                "you may, the daemon's key among them"
            };
            return Some(format!(
                "this kernel has no landlock, so a QEMU that its guest has taken over could read every file that {reach}"
            ));
        }
        if !self.root && missing(Layer::NoSignals) {
            return Some(
                "this kernel has no landlock for signals (Linux 6.12), and Pando does not run as root, so a shim that was taken over could end your other processes"
                    .to_owned(),
            );
        }
        None
    }

    fn checks(&self) -> Vec<Check> {
        let mut checks = vec![
            self.check_jail(),
            self.check_landlock(),
            self.check_tracing(),
        ];
        checks.push(self.check_users());
        checks.push(match &self.hidepid {
            None => Check::new("hidepid", Outcome::Ok, "off: /proc shows every process"),
            Some(value) => Check::new(
                "hidepid",
                Outcome::Ok,
                format!("{value}: /proc shows everybody their own processes, which is enough"),
            )
            .fix("`mount -o remount,hidepid=0 /proc` would show all"),
        });
        checks
    }

    fn check_jail(&self) -> Check {
        let layers = self.layers().join(", ");
        match self.below_floor() {
            None => Check::new("jail", Outcome::Ok, layers),
            Some(why) => {
                Check::new("jail", Outcome::Warning, format!("{layers}; {why}")).fix(WHOLE)
            }
        }
    }

    fn check_landlock(&self) -> Check {
        let check = |outcome, text: String| Check::new("landlock", outcome, text);
        let missing: Vec<&str> = Layer::all()
            .filter(|layer| layer.landlock() > self.landlock)
            .map(Layer::name)
            .collect();
        if missing.is_empty() {
            return check(Outcome::Ok, format!("version {}", self.landlock));
        }
        if self.landlock > 0 {
            let text = format!("version {}, without {}", self.landlock, missing.join(", "));
            return check(Outcome::Warning, text).fix(WHOLE);
        }
        let none = check(
            Outcome::Warning,
            "none: QEMU is confined by seccomp and its account alone".to_owned(),
        );
        match &self.modules {
            Some(modules) if !modules.iter().any(|module| module == "landlock") => {
                none.fix(format!(
                    "it is not among the kernel's security modules: boot with `lsm=landlock,{}`",
                    modules.join(",")
                ))
            }
            _ => none.fix(WHOLE),
        }
    }

    /// A shim reads and writes the memory of its QEMU, its child.
    fn check_tracing(&self) -> Check {
        let found = format!("kernel.yama.ptrace_scope is {}", self.ptrace_scope);
        match self.ptrace_scope {
            0 | 1 => Check::new("ptrace_scope", Outcome::Ok, found),
            _ => Check::new(
                "ptrace_scope",
                Outcome::Warning,
                format!(
                    "{found}: a shim may not read its QEMU's memory, so sandboxes cannot be saved"
                ),
            )
            .fix("`sysctl -w kernel.yama.ptrace_scope=1`; from 3 only a reboot leads back"),
        }
    }

    /// Templates are made in a user namespace where Pando is not root.
    fn check_users(&self) -> Check {
        let check = |outcome, text| Check::new("user namespaces", outcome, text);
        if self.root {
            return check(Outcome::Ok, "not needed by root");
        }
        if self.no_users {
            return check(
                Outcome::Warning,
                "the host has none for ordinary users: templates cannot be made",
            )
            .fix("`sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000`");
        }
        if self.apparmor_users {
            return check(
                Outcome::Warning,
                "AppArmor takes away what they are good for: templates cannot be made",
            )
            .fix("`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`");
        }
        check(Outcome::Ok, "ordinary users may have them")
    }
}

/// The value of `hidepid` at `/proc`, where it hides anything. A later mount is above.
fn hidepid(mounts: &str) -> Option<String> {
    let proc = mounts.lines().rev().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields[..], [_, "/proc", ..])
            .then(|| fields.get(3).copied().unwrap_or_default().to_owned())
    })?;
    let value = proc
        .split(',')
        .find_map(|option| option.strip_prefix("hidepid="))?;
    (!matches!(value, "0" | "off")).then(|| value.to_owned())
}

/// What `doctor` checks of the jails.
pub(super) fn checks() -> Vec<Check> {
    Host::of_this_kernel().checks()
}

/// Why the jails of this host are below the floor, if they are.
pub(super) fn below_floor() -> Option<String> {
    Host::of_this_kernel().below_floor()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(landlock: u32, root: bool) -> Host {
        Host {
            landlock,
            root,
            modules: None,
            ptrace_scope: 0,
            apparmor_users: false,
            no_users: false,
            hidepid: None,
        }
    }

    fn check(host: &Host, name: &str) -> (Outcome, String, Option<String>) {
        let checks = host.checks();
        let check = checks.into_iter().find(|check| check.name == name).unwrap();
        (check.outcome, check.found, check.fix)
    }

    #[test]
    fn the_floor_is_files_for_all_and_signals_where_there_are_no_accounts() {
        for (landlock, root, below) in [
            (6, true, false),
            (6, false, false),
            (5, true, false),
            (5, false, true),
            (1, true, false),
            (0, true, true),
            (0, false, true),
        ] {
            let host = host(landlock, root);
            let why = host.below_floor();
            assert_eq!(why.is_some(), below, "{landlock} {root}");
            let (outcome, found, fix) = check(&host, "jail");
            assert_eq!(outcome == Outcome::Warning, below, "{found}");
            assert_eq!(fix.is_some(), below);
            let layers = found.split(';').next().unwrap_or_default();
            assert_eq!(layers.contains("account"), root, "{found}");
            assert!(why.is_none_or(|why| !why.contains(". ")), "one sentence");
        }
    }

    #[test]
    fn what_an_older_kernel_lacks_is_named() {
        let (outcome, found, _) = check(&host(2, true), "landlock");
        assert_eq!(outcome, Outcome::Warning);
        assert!(
            found.contains("version 2") && found.contains("landlock-truncate"),
            "{found}"
        );
        assert!(!found.contains("landlock-files"), "{found}");
        assert_eq!(check(&host(7, true), "landlock").0, Outcome::Ok);
    }

    #[test]
    fn what_the_host_withholds_is_named_with_what_to_do() {
        let fix_of = |host: &Host, name: &str| {
            let (outcome, found, fix) = check(host, name);
            (outcome == Outcome::Warning, fix.unwrap_or(found))
        };
        let without = Host {
            modules: Some(vec!["yama".to_owned(), "apparmor".to_owned()]),
            ..host(0, true)
        };
        let (_, fix) = fix_of(&without, "landlock");
        assert!(fix.contains("lsm=landlock,yama,apparmor"), "{fix}");
        for (scope, warns) in [(0, false), (1, false), (2, true), (3, true)] {
            let host = Host {
                ptrace_scope: scope,
                ..host(6, true)
            };
            assert_eq!(fix_of(&host, "ptrace_scope").0, warns, "{scope}");
        }
        let name = "user namespaces";
        let apparmor = |root| Host {
            apparmor_users: true,
            ..host(6, root)
        };
        let (warns, fix) = fix_of(&apparmor(false), name);
        assert!(warns && fix.contains("apparmor_restrict"), "{fix}");
        assert!(!fix_of(&apparmor(true), name).0, "root needs none");
        let none = Host {
            no_users: true,
            ..host(6, false)
        };
        assert!(
            fix_of(&none, name)
                .1
                .contains("unprivileged_userns_clone=1")
        );
    }

    #[test]
    fn hidepid_is_read_from_the_uppermost_proc() {
        let plain = "proc /proc proc rw,relatime 0 0\nx /procx x hidepid=2 0 0\n";
        assert_eq!(hidepid(plain), None);
        let hidden = format!("{plain}proc /proc proc rw,hidepid=invisible,gid=5 0 0\n");
        assert_eq!(hidepid(&hidden).as_deref(), Some("invisible"));
        assert_eq!(
            hidepid(&format!("{hidden}proc /proc proc rw,hidepid=0 0 0\n")),
            None
        );
        assert_eq!(hidepid(""), None);
    }
}
