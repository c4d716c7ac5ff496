//! QEMU's monitor: as much of it as is needed here.

use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

/// Pause between two looks at a load, which takes a few milliseconds.
const LOAD_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Over a new connection.
    pub(super) async fn new(stream: UnixStream) -> io::Result<Self> {
        let mut qmp = Self {
            stream: BufReader::new(stream),
        };
        // Its greeting.
        qmp.read().await?;
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Lets the VM run.
    pub(super) async fn cont(&mut self) -> io::Result<()> {
        self.execute("cont", json!({})).await.map(drop)
    }

    /// A command for people, which says nothing if it went well.
    pub(super) async fn monitor(&mut self, command: &str) -> io::Result<()> {
        let arguments = json!({ "command-line": command });
        let said = self.execute("human-monitor-command", arguments).await?;
        match said.as_str() {
            None | Some("") => Ok(()),
            Some(said) => Err(io::Error::other(format!("`{command}`: {}", said.trim()))),
        }
    }

    /// Loads device state.
    pub(super) async fn migrate_incoming(&mut self, file: &Path) -> io::Result<()> {
        let uri = json!({ "uri": format!("file:{}", file.display()) });
        self.execute("migrate-incoming", uri).await?;
        loop {
            let status = self.execute("query-status", json!({})).await?;
            match status["status"].as_str() {
                Some("inmigrate") => tokio::time::sleep(LOAD_PAUSE).await,
                Some("paused") => return Ok(()),
                _ => return Err(io::Error::other("QEMU does not load the VM")),
            }
        }
    }

    async fn execute(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        let line = format!("{request}\n");
        self.stream.get_mut().write_all(line.as_bytes()).await?;
        loop {
            let mut answer = self.read().await?;
            if let Some(error) = answer.get("error") {
                let reason = error["desc"].as_str().unwrap_or_default();
                return Err(io::Error::other(format!(
                    "QEMU refused `{command}`: {reason}"
                )));
            }
            // Events come in between.
            if let Some(answer) = answer.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    async fn read(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Err(io::Error::other("QEMU ended"));
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}
