//! Other servers, and programs of the host's to take into a guest.

use super::machine::Machine;
use super::process::Server;
use super::{socket, write};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

const IPERF3: &str = "198.51.100.26";
const SSH: &str = "198.51.100.27";

/// Addresses that only these servers have.
pub(super) const ADDRESSES: [&str; 2] = [IPERF3, SSH];

/// `git.test.example`.
const GIT: &str = "198.51.100.21";

/// `git://`.
const GIT_PORT: u16 = 9418;

const IPERF3_PORT: u16 = 5201;

/// OpenSSH, at `ssh.test.example`.
pub(super) fn ssh(machine: &Machine, dir: &Path) -> Server {
    std::fs::create_dir(dir).expect("a directory");
    for key in ["host", "client"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
        run(keygen.arg(dir.join(key)));
    }
    // Debian's unit makes it, and no unit is started here.
    std::fs::create_dir_all("/run/sshd").expect("only root can run a server for SSH");
    let config = dir.join("config");
    let at = dir.display();
    write(
        &config,
        &format!(
            "ListenAddress {SSH}\nHostKey {at}/host\nAuthorizedKeysFile {at}/client.pub\n\
             PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nUseDNS no\n\
             ForceCommand echo welcome\n"
        ),
    );
    // It starts itself anew for each connection and wants its whole path.
    let arguments = [
        "-D".as_ref(),
        "-e".as_ref(),
        "-f".as_ref(),
        config.as_os_str(),
    ];
    let log = dir.join("log");
    Server::start(machine, &log, "/usr/sbin/sshd", arguments, socket(SSH, 22))
}

/// `git daemon`, at `git.test.example`.
pub(super) fn git(machine: &Machine, repositories: &Path) -> Server {
    let base = format!("--base-path={}", repositories.display());
    let listen = format!("--listen={GIT}");
    let arguments = ["daemon", "--export-all", "--reuseaddr", &base, &listen];
    let log = repositories.join("log");
    Server::start(machine, &log, "git", arguments, socket(GIT, GIT_PORT))
}

/// iperf3, at `iperf.test.example`.
pub(super) fn iperf3(machine: &Machine, dir: &Path) -> Server {
    let log = dir.join("iperf3.log");
    let arguments = ["--server", "--bind", IPERF3];
    let listens = socket(IPERF3, IPERF3_PORT);
    Server::start(machine, &log, "iperf3", arguments, listens)
}

/// A program of the host's with all that it needs, for a guest that lacks it.
#[derive(Debug)]
pub struct Bundle {
    /// A tar archive; unpacked anywhere, `NAME/NAME` starts the program.
    pub tar: Vec<u8>,
}

impl Bundle {
    /// Packs a program that is in `PATH`, with its libraries, libc and loader included: the
    /// guest's may be older.
    pub fn of(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = dir.path().join(name);
        std::fs::create_dir_all(root.join("lib")).expect("a directory");
        let program = PathBuf::from(run(Command::new("which").arg(name)).trim());
        copy(&program, &root.join("program"));
        let mut loader = None;
        for word in run(Command::new("ldd").arg(&program)).split_whitespace() {
            if !word.starts_with('/') {
                continue;
            }
            let file = Path::new(word).file_name().expect("a file's name");
            copy(Path::new(word), &root.join("lib").join(file));
            if is_loader(file) {
                loader = Some(file.to_owned());
            }
        }
        let loader = loader.unwrap_or_else(|| panic!("`{name}` is no dynamic program"));
        let start = root.join(name);
        write(
            &start,
            &format!(
                "#!/bin/sh\nat=$(dirname \"$(readlink -f \"$0\")\")\n\
                 exec \"$at/lib/{}\" --library-path \"$at/lib\" \"$at/program\" \"$@\"\n",
                loader.display()
            ),
        );
        run(Command::new("chmod").arg("755").arg(&start));
        let tar = dir.path().join("tar");
        let mut pack = Command::new("tar");
        pack.arg("-C").arg(dir.path()).arg("-cf").arg(&tar);
        run(pack.arg(name));
        let tar = std::fs::read(tar).expect("an archive");
        Self { tar }
    }
}

fn is_loader(file: &OsStr) -> bool {
    file.to_str()
        .is_some_and(|name| name.starts_with("ld-linux"))
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Runs a command, which must succeed, and gives its stdout.
pub(super) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
