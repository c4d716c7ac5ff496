//! The VM of a sandbox whose network card leads to QEMU's own gateway, `-netdev user`, and
//! in which programs can be started: what egress is compared with.
//!
//! Its agent is spoken to as a shim does it, over the channel; REST has no way to such a VM.

use super::arguments::Network;
use super::{Files, Launched, STEP_LIMIT, instead_of};
use crate::BenchError;
use crate::session::Session;
use connectrpc::client::ClientConfig;
use pando_wire::channel::{Channel, Connection, OpenOptions, base_uri};
use pando_wire::guest::Resume;
use pando_wire::process::{self, ProcessClient, process_event};
use std::fs;
use std::io;

/// A running one.
pub(crate) struct PlainNetworkVm {
    files: Files,
    launched: Connected,
}

/// The host, as the guest sees it.
pub(crate) const HOST: &str = "10.0.2.2";

struct Connected {
    child: tokio::process::Child,
    channel: Channel,
}

impl PlainNetworkVm {
    /// Loads the VM of a sandbox that is made for it and removed again, and lets it run.
    pub(crate) async fn start(session: &Session<'_>, name: &str) -> Result<Self, BenchError> {
        instead_of(session, async |sandbox| {
            Self::like(session, sandbox, name).await
        })
        .await
    }

    async fn like(session: &Session<'_>, sandbox: &str, name: &str) -> io::Result<Self> {
        let files = Files::of(session, sandbox, name, Network::User)?;
        let launched = connect(files.load().await?).await?;
        Ok(Self { files, launched })
    }

    /// Runs a program to its end.
    pub(crate) async fn run(&self, argv: &[&str]) -> Result<(), BenchError> {
        let running = run(self.launched.channel.ctl(), argv);
        let ended = tokio::time::timeout(STEP_LIMIT, running).await;
        let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a program does not end")));
        ended.map_err(BenchError::Plain)
    }

    /// Ends it, and gives its disk's space back.
    pub(crate) async fn end(mut self) {
        let _ = self.launched.child.kill().await;
        let _ = fs::remove_dir_all(&self.files.directory);
    }
}

async fn connect(mut launched: Launched) -> io::Result<Connected> {
    launched.qmp.cont().await?;
    let options = OpenOptions {
        resume: Resume {
            hostname: "plain".to_owned(),
            ..Resume::default()
        },
        resync: false,
        timeout: STEP_LIMIT,
        warm: false,
    };
    let opened = Channel::open(launched.ctl, launched.data, options).await;
    let (channel, _) = opened.map_err(io::Error::other)?;
    Ok(Connected {
        child: launched.child,
        channel,
    })
}

async fn run(ctl: &Connection, argv: &[&str]) -> io::Result<()> {
    let mut argv = argv.iter().map(|&word| word.to_owned());
    let config = process::ProcessConfig {
        cmd: argv.next().unwrap_or_default(),
        args: argv.collect(),
        ..process::ProcessConfig::default()
    };
    let request = process::StartRequest {
        process: config.into(),
        stdin: Some(false),
        ..process::StartRequest::default()
    };
    let client = ProcessClient::new(ctl.clone(), ClientConfig::new(base_uri()));
    let mut events = client.start(request).await.map_err(io::Error::other)?;
    while let Some(message) = events.message().await.map_err(io::Error::other)? {
        let event = message.to_owned_message().event.into_option();
        if let Some(process_event::Event::End(end)) = event.and_then(|event| event.event) {
            return match (end.exited, end.exit_code) {
                (true, 0) => Ok(()),
                _ => Err(io::Error::other(format!("a program ended: {}", end.status))),
            };
        }
    }
    Err(io::Error::other("the guest ended before a program did"))
}
