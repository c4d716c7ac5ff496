//! Setting a machine up: finding which packages are missing, and installing
//! them or saying how.
//!
//! What is there is found by looking for programs, not in dpkg's data base, so
//! that a machine where they came another way needs nothing.

use crate::steps::Steps;
use anyhow::{Context as _, Result, bail};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// The oldest QEMU that works, as (major, minor).
const QEMU_MINIMUM: (u32, u32) = (8, 2);

/// Debian's backports, where the machine's own release has too old a QEMU.
pub(crate) const BACKPORTS_FILE: &str = "/etc/apt/sources.list.d/pando-backports.sources";

/// What was installed here, for `uninstall` to name.
pub(crate) const INSTALLED_FILE: &str = "target/installed-packages";

/// What keeps services from being started while packages are installed.
const POLICY_FILE: &str = "/usr/sbin/policy-rc.d";

/// Packages that come with a service, which tests have no use for, and the service's name.
const SERVICES: [(&str, &str); 3] = [
    ("nginx", "nginx"),
    ("openssh-server", "ssh"),
    ("prometheus", "prometheus"),
];

/// What the machine is to be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Building and running Pando.
    Run,
    /// That, and testing it.
    Test,
}

/// What is to be done to a machine so that Pando runs there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    packages: Vec<&'static str>,
    /// The suite that QEMU and runsc come from, if not the machine's own.
    suite: Option<String>,
    /// What that suite's source is to be, if apt has none yet.
    new_source: Option<String>,
    /// Services that come with the packages and are to stay off.
    services: Vec<&'static str>,
    /// Nothing on this machine keeps them from being started when they are installed.
    services_would_start: bool,
}

/// Installs what is missing. Asks first unless `yes`; without the right or a
/// person to ask it says what to run and fails.
pub(crate) fn set_up(root: &Path, steps: &Steps, purpose: Purpose, yes: bool) -> Result<()> {
    let plan = plan(purpose);
    if plan.packages.is_empty() {
        return Ok(());
    }
    let commands = plan.commands().join("\n    ");
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "this machine has no apt; Pando needs the programs of these Debian packages: {}",
            plan.packages.join(" ")
        );
    }
    if !is_root() {
        bail!("some packages are missing; please ask an administrator to run\n\n    {commands}\n");
    }
    if !(yes
        || confirmed(&format!(
            "Pando needs packages. This will run\n\n    {commands}\n"
        ))?)
    {
        bail!(
            "nothing was installed; run this, or this command again with `--yes`\n\n    {commands}\n"
        );
    }
    steps.step(&format!("installing {}", plan.packages.join(" ")), || {
        plan.install(steps)
    })?;
    let list = root.join(INSTALLED_FILE);
    let before = std::fs::read_to_string(&list).unwrap_or_default();
    std::fs::write(list, before + &plan.packages.join("\n") + "\n")?;

    let still = self::plan(purpose).packages;
    if !still.is_empty() {
        bail!(
            "apt installed the packages, but these lack what they should have: {}",
            still.join(" ")
        );
    }
    Ok(())
}

fn plan(purpose: Purpose) -> Plan {
    let mut packages: Vec<&str> = pando_image::missing_tools()
        .iter()
        .map(|tool| tool.package)
        .collect();
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let mut need = |package, there: bool| {
        if !there {
            packages.push(package);
        }
    };
    need("debian-archive-keyring", Path::new(keyring).exists());
    need(
        "qemu-system-x86",
        qemu_version().is_some_and(|version| version >= QEMU_MINIMUM),
    );
    // The agent is linked with libc's static half.
    need(
        "libc6-dev",
        Path::new("/usr/lib/x86_64-linux-gnu/libc.a").exists(),
    );
    if purpose == Purpose::Test {
        need("cpio", finds("cpio"));
        // Its `promtool` checks the alert rules.
        need("prometheus", finds("promtool"));
        // File systems that tests fill and cut from their power.
        for (package, program) in [("e2fsprogs", "mkfs.ext4"), ("xfsprogs", "xfs_io")] {
            // Not everybody has that folder in PATH.
            need(package, Path::new("/usr/sbin").join(program).exists());
        }
        // Two people in front of a page that a sandbox serves.
        for (package, program) in [
            ("chromium", "chromium"),
            ("chromium-driver", "chromedriver"),
        ] {
            need(package, finds(program));
        }
        // What the official MCP clients are installed with.
        need("npm", finds("npm"));
        let venv = Command::new("python3")
            .args(["-c", "import ensurepip"])
            .output();
        need("python3-venv", venv.is_ok_and(|ran| ran.status.success()));
        // What `pando bench` compares sandboxes with.
        for runtime in ["crun", "runc", "runsc"] {
            need(runtime, finds(runtime));
        }
        for (package, program) in LAB {
            need(
                package,
                finds(program) || Path::new("/usr/sbin").join(program).exists(),
            );
        }
    }
    packages.sort_unstable();
    packages.dedup();
    let newer = packages.iter().any(|package| NEWER.contains(package));
    let (suite, new_source) = match newer {
        true => backports(&release_codename()),
        false => (None, None),
    };
    let services: Vec<&str> = SERVICES
        .iter()
        .filter(|(package, _)| packages.contains(package))
        .map(|(_, service)| *service)
        .collect();
    Plan {
        packages,
        suite,
        new_source,
        services_would_start: !services.is_empty() && !Path::new(POLICY_FILE).exists(),
        services,
    }
}

/// What the tests' internet is made of: servers, and clients that come there from the host
/// or are taken into guests.
const LAB: [(&str, &str); 10] = [
    ("curl", "curl"),
    ("dnsmasq-base", "dnsmasq"),
    ("git", "git"),
    ("iperf3", "iperf3"),
    ("iproute2", "ip"),
    ("nginx", "nginx"),
    ("nodejs", "node"),
    ("openssh-client", "ssh"),
    ("openssh-server", "sshd"),
    ("openssl", "openssl"),
];

/// What Debian 12 has in too old a version: QEMU 7.2, and a runsc of 2022.
const NEWER: [&str; 2] = ["qemu-system-x86", "runsc"];

/// Where a release whose own packages are too old finds newer ones.
fn backports(codename: &str) -> (Option<String>, Option<String>) {
    if codename != "bookworm" {
        return (None, None);
    }
    let suite = "bookworm-backports".to_owned();
    if pando_image::host_has_suite(&suite) {
        return (Some(suite), None);
    }
    // Without a Debian archive of its own the host is no Debian 12 that we know.
    let Some(archive) = pando_image::host_archive() else {
        return (None, None);
    };
    let source = format!(
        "# Written by Pando for QEMU; `make uninstall` removes it.\nTypes: deb\nURIs: {archive}\n\
         Suites: {suite}\nComponents: main\n\
         Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    );
    (Some(suite), Some(source))
}

impl Plan {
    /// The same as commands for a person.
    fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        if let Some(source) = &self.new_source {
            let lines: Vec<&str> = source
                .lines()
                .filter(|line| !line.starts_with('#'))
                .collect();
            let text = lines.join("\\n");
            commands.push(format!("printf '{text}\\n' > {BACKPORTS_FILE}"));
        }
        commands.push("apt-get update".into());
        if self.services_would_start {
            commands.push(format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY_FILE}"));
            commands.push(format!("chmod 755 {POLICY_FILE}"));
        }
        commands.push(format!("apt-get {}", self.install_arguments().join(" ")));
        if self.services_would_start {
            commands.push(format!("rm {POLICY_FILE}"));
        }
        if !self.services.is_empty() {
            commands.push(format!("systemctl disable {}", self.services.join(" ")));
        }
        commands
    }

    fn install_arguments(&self) -> Vec<String> {
        let mut arguments = ["install", "--yes", "--no-install-recommends"]
            .map(String::from)
            .to_vec();
        if let Some(suite) = &self.suite {
            arguments.push(format!("--target-release={suite}"));
        }
        // Both halves of QEMU come from one version, also where one is there already.
        let qemu = self.packages.contains(&"qemu-system-x86");
        let utils = (qemu && !self.packages.contains(&"qemu-utils")).then_some("qemu-utils");
        arguments.extend(self.packages.iter().copied().chain(utils).map(String::from));
        arguments
    }

    fn install(&self, steps: &Steps) -> Result<()> {
        if let Some(source) = &self.new_source {
            std::fs::write(BACKPORTS_FILE, source)
                .with_context(|| format!("cannot write `{BACKPORTS_FILE}`"))?;
        }
        let apt = || {
            let mut apt = Command::new("apt-get");
            apt.env("DEBIAN_FRONTEND", "noninteractive")
                .env("LC_ALL", "C.UTF-8");
            // Another apt may run at a machine's first minutes.
            apt.args(["-o", "DPkg::Lock::Timeout=120"]);
            apt
        };
        steps.run(apt().arg("update"))?;
        let policy = self.services_would_start.then(Policy::set).transpose()?;
        let installed = steps.run(apt().args(self.install_arguments()));
        drop(policy);
        installed?;
        if !self.services.is_empty() && finds("systemctl") {
            steps.run(
                Command::new("systemctl")
                    .arg("disable")
                    .args(&self.services),
            )?;
        }
        Ok(())
    }
}

/// No service is started while this is there.
struct Policy;

impl Policy {
    fn set() -> Result<Self> {
        let cannot = || format!("cannot write `{POLICY_FILE}`");
        std::fs::write(POLICY_FILE, "#!/bin/sh\nexit 101\n").with_context(cannot)?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(POLICY_FILE, mode).with_context(cannot)?;
        Ok(Self)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(POLICY_FILE) {
            eprintln!("cannot remove `{POLICY_FILE}`, which keeps services from starting: {error}");
        }
    }
}

/// Asks on the terminal; nobody there is a no.
pub(crate) fn confirmed(question: &str) -> Result<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(false);
    }
    eprint!("{question}\nGo on? [Y/n] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer)?;
    Ok(read > 0 && matches!(answer.trim(), "" | "y" | "Y" | "yes"))
}

/// The version of the QEMU in `PATH`, if there is one.
fn qemu_version() -> Option<(u32, u32)> {
    let output = Command::new("qemu-system-x86_64")
        .arg("--version")
        .output()
        .ok()?;
    parse_qemu_version(&String::from_utf8_lossy(&output.stdout))
}

fn parse_qemu_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(['.', ' ', '(']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// As in `bookworm`; empty where the machine does not tell.
fn release_codename() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    value.unwrap_or_default().trim_matches('"').to_owned()
}

fn finds(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_tells_its_version() {
        for (text, version) in [
            (
                "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)\n",
                Some((10, 0)),
            ),
            (
                "QEMU emulator version 7.2.15 (Debian 1:7.2)\n",
                Some((7, 2)),
            ),
            ("QEMU emulator version 8.2.50", Some((8, 2))),
            ("something else", None),
        ] {
            assert_eq!(parse_qemu_version(text), version);
        }
    }

    #[test]
    fn the_printed_commands_do_what_set_up_does() {
        let plan = Plan {
            packages: vec!["mmdebstrap", "qemu-system-x86"],
            suite: Some("bookworm-backports".into()),
            new_source: Some("# note\nTypes: deb\nURIs: http://m/debian\n".into()),
            ..Plan::default()
        };
        assert_eq!(
            plan.commands(),
            [
                format!("printf 'Types: deb\\nURIs: http://m/debian\\n' > {BACKPORTS_FILE}"),
                "apt-get update".into(),
                "apt-get install --yes --no-install-recommends --target-release=bookworm-backports \
                 mmdebstrap qemu-system-x86 qemu-utils"
                    .into(),
            ]
        );
    }

    #[test]
    fn servers_for_tests_are_neither_started_nor_enabled() {
        let plan = Plan {
            packages: vec!["nginx"],
            services: vec!["nginx"],
            services_would_start: true,
            ..Plan::default()
        };
        assert_eq!(
            plan.commands(),
            [
                "apt-get update",
                "printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d",
                "chmod 755 /usr/sbin/policy-rc.d",
                "apt-get install --yes --no-install-recommends nginx",
                "rm /usr/sbin/policy-rc.d",
                "systemctl disable nginx",
            ]
        );
    }

    #[test]
    fn only_debian_12_needs_backports() {
        assert_eq!(backports("trixie"), (None, None));
        assert_eq!(
            backports("bookworm").0.as_deref(),
            Some("bookworm-backports")
        );
    }
}
