//! A server of the lab: a process that ends with its machine.

use super::machine::Machine;
use crate::world::tail;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// How long a server may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(5);

/// A running server; killed with all its children when dropped.
pub(super) struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a program and waits until it listens there. What it says goes to `log`.
    pub(super) fn start<A: AsRef<OsStr>>(
        machine: &Machine,
        log: &Path,
        program: &str,
        arguments: impl IntoIterator<Item = A>,
        listens: SocketAddr,
    ) -> Self {
        let output = std::fs::File::create(log).expect("a log");
        let errors = output.try_clone().expect("a log");
        let mut command = Command::new("setpriv");
        // The end of this machine's thread kills `unshare`, that kills the first process of
        // a process namespace, and that one's end kills whatever the server started.
        command
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(["--pid", "--fork", "--kill-child=KILL", "--", program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            // A terminal's Ctrl-C is for the test.
            .process_group(0);
        let log = log.to_owned();
        let name = program.to_owned();
        machine.run(async move {
            let child = command.spawn().expect("`setpriv`, of util-linux");
            let mut server = Self { child, log };
            server.await_listening(&name, listens).await;
            server
        })
    }

    async fn await_listening(&mut self, name: &str, listens: SocketAddr) {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(listens).await.is_err() {
            let ended = self.child.try_wait().expect("it is our child");
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "`{name}` does not listen on {listens} ({ended:?}): {}",
                tail(&self.log)
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What it said, for a test that failed.
    pub(super) fn print_log(&self) {
        eprintln!("--- {}\n{}", self.log.display(), tail(&self.log));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
