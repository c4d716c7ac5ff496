//! A network namespace and a thread that lives in it.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Far above what starting a server takes on a busy machine.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// One machine of the lab. What runs on it ends when it is dropped, or its process does.
pub(super) struct Machine {
    namespace: OwnedFd,
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// A machine with no wire.
    pub(super) fn new() -> Self {
        let namespace = fresh_namespace();
        let home = namespace.try_clone().expect("a descriptor");
        let (started, runtime) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            enter(&home);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            drop(started.send(runtime.handle().clone()));
            // Its tasks run in here, and end with it.
            drop(runtime.block_on(ended));
        });
        Self {
            namespace,
            runtime: runtime.recv().expect("the thread started"),
            end: Some(end),
            thread: Some(thread),
        }
    }

    pub(super) fn namespace(&self) -> &OwnedFd {
        &self.namespace
    }

    /// Does something there and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (sender, done) = mpsc::channel();
        self.runtime
            .spawn(async move { drop(sender.send(work.await)) });
        done.recv_timeout(WORK_TIMEOUT)
            .expect("it is done, and did not panic")
    }

    /// Starts something there that goes on until the machine goes.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    /// Sets a value of `/proc/sys`.
    pub(super) fn set(&self, name: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/{name}"), value.to_owned());
        self.run(async move {
            std::fs::write(&path, value).unwrap_or_else(|error| panic!("`{path}`: {error}"));
        });
    }

    /// Does what these lines tell `ip`.
    pub(super) fn ip(&self, lines: &str) {
        let lines = lines.to_owned();
        self.run(async move {
            let mut ip = Command::new("ip");
            ip.args(["-batch", "-"]).stdin(Stdio::piped());
            ip.stderr(Stdio::piped());
            let mut child = ip.spawn().expect("`ip`, of iproute2");
            let mut stdin = child.stdin.take().expect("it is piped");
            stdin.write_all(lines.as_bytes()).expect("`ip` reads");
            drop(stdin);
            let output = child.wait_with_output().expect("`ip` ends");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{lines}: {said}");
        });
    }

    /// The number of a network interface.
    pub(super) fn interface(&self, name: &'static str) -> u32 {
        self.run(async move {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
            rustix::net::netdevice::name_to_index(socket, name).expect("it is there")
        })
    }

    /// Joins two machines by a wire, by the names that its ends have.
    pub(super) fn join(&self, ours: &str, other: &Self, theirs: &str) {
        let (process, there) = (std::process::id(), other.namespace.as_raw_fd());
        self.ip(&format!(
            "link add {ours} type veth peer name {theirs} netns /proc/{process}/fd/{there}
             link set dev {ours} up"
        ));
        other.ip(&format!("link set dev {theirs} up"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Moves the calling thread, and all that it starts later.
pub(super) fn enter(namespace: &OwnedFd) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("only root can test with networks of its own");
}

/// Where the calling thread is.
pub(super) fn namespace_of_this_thread() -> OwnedFd {
    File::open("/proc/thread-self/ns/net")
        .expect("its namespace")
        .into()
}

/// A namespace without a name, there as long as somebody has it open.
fn fresh_namespace() -> OwnedFd {
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--net", "sh", "-c", "echo; read -r end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = unshare.spawn().expect("`unshare`, of util-linux");
    let mut said = [0];
    let there = child
        .stdout
        .take()
        .expect("it is piped")
        .read_exact(&mut said);
    assert!(there.is_ok(), "only root can make networks of its own");
    let namespace = File::open(format!("/proc/{}/ns/net", child.id())).expect("its namespace");
    drop(child.stdin.take());
    drop(child.wait());
    namespace.into()
}
