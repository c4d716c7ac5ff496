//! A client of a sandbox's port, through the daemon.

use crate::BenchError;
use crate::session::{Session, limited as request};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use std::io;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// One request, however slow the machine; the bulk one at a megabyte a second.
const REQUEST_LIMIT: Duration = Duration::from_secs(90);

/// The server in the guest is Python, which starts in a second without KVM.
const LISTEN_LIMIT: Duration = Duration::from_secs(60);

/// How often we look whether it listens.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

/// What the guest's server sends for `/bulk`: its `BULK`.
pub(crate) const BULK_BYTES: usize = 32 << 20;

/// Where a port of a sandbox is.
#[derive(Clone, Debug)]
pub(crate) struct PortClient {
    /// Of the daemon.
    address: String,
    /// As the request names the port.
    host: String,
}

/// A connection to it.
pub(crate) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    host: String,
}

impl PortClient {
    /// For a port of a sandbox.
    pub(crate) async fn of(
        session: &Session<'_>,
        sandbox: &str,
        port: u16,
    ) -> Result<Self, BenchError> {
        let client = &session.daemon.client;
        let template = request("asking for a sandbox", client.get(sandbox))
            .await?
            .url_template;
        Ok(Self {
            address: authority(client.url()).to_owned(),
            host: authority(&template).replace("{port}", &port.to_string()),
        })
    }

    /// Until something answers there.
    pub(crate) async fn await_server(&self) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            let mut connection = self.connect().await?;
            match connection.get("/").await {
                Ok(_) => return Ok(()),
                Err(error) if began.elapsed() > LISTEN_LIMIT => return Err(error),
                Err(_) => tokio::time::sleep(LISTEN_PAUSE).await,
            }
        }
    }

    /// Opens a connection that is kept.
    pub(crate) async fn connect(&self) -> Result<Connection, BenchError> {
        let connecting = async {
            let stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)
        };
        let (sender, connection) = connecting.await.map_err(BenchError::Traffic)?;
        // Its errors are those of the requests on it.
        tokio::spawn(connection);
        Ok(Connection {
            sender,
            host: self.host.clone(),
        })
    }

    /// All of the bulk answer, on a connection of its own; `seen` hears of every piece.
    pub(crate) async fn bulk(&self, seen: impl FnMut(usize)) -> Result<(), BenchError> {
        match self.connect().await?.receive("/bulk", seen).await? {
            BULK_BYTES => Ok(()),
            bytes => Err(BenchError::Traffic(io::Error::other(format!(
                "an answer has {bytes} bytes and not {BULK_BYTES}"
            )))),
        }
    }
}

impl Connection {
    /// The bytes of an answer.
    pub(crate) async fn get(&mut self, path: &str) -> Result<usize, BenchError> {
        self.receive(path, |_| ()).await
    }

    async fn receive(&mut self, path: &str, seen: impl FnMut(usize)) -> Result<usize, BenchError> {
        match tokio::time::timeout(REQUEST_LIMIT, self.try_receive(path, seen)).await {
            Ok(received) => received.map_err(BenchError::Traffic),
            Err(_) => Err(BenchError::TooSlow {
                what: "a request to a port",
                limit: REQUEST_LIMIT,
            }),
        }
    }

    async fn try_receive(&mut self, path: &str, mut seen: impl FnMut(usize)) -> io::Result<usize> {
        let request = Request::get(path)
            .header(header::HOST, &self.host)
            .body(Empty::new())
            .map_err(io::Error::other)?;
        self.sender.ready().await.map_err(io::Error::other)?;
        let answer = self.sender.send_request(request).await;
        let answer = answer.map_err(io::Error::other)?;
        if !answer.status().is_success() {
            return Err(io::Error::other(format!(
                "the answer is {}",
                answer.status()
            )));
        }
        let mut body = answer.into_body();
        let mut received = 0;
        while !body.is_end_stream() {
            let Some(frame) = body.frame().await else {
                break;
            };
            if let Some(data) = frame.map_err(io::Error::other)?.data_ref() {
                received += data.len();
                seen(data.len());
            }
        }
        Ok(received)
    }
}

/// `HOST:PORT` of `http://HOST:PORT/…`.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn an_authority_is_what_stands_between_slashes() {
        assert_eq!(authority("http://127.0.0.1:7000"), "127.0.0.1:7000");
        assert_eq!(
            authority("http://{port}-s1.localhost:7/"),
            "{port}-s1.localhost:7"
        );
    }

    #[tokio::test]
    async fn the_guests_server_answers_as_it_says() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port().to_string();
        drop(free);
        let server = tokio::process::Command::new("python3")
            .args(["-c", crate::traffic::SERVER, &port])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let address = format!("127.0.0.1:{port}");
        let client = PortClient {
            host: address.clone(),
            address,
        };
        while client.connect().await.is_err() {
            tokio::time::sleep(LISTEN_PAUSE).await;
        }
        client.await_server().await.unwrap();
        let mut connection = client.connect().await.unwrap();
        for _ in 0..2 {
            assert_eq!(connection.get("/").await.unwrap(), 2);
        }
        let mut seen = 0;
        client.bulk(|bytes| seen += bytes).await.unwrap();
        assert_eq!(seen, BULK_BYTES);
        drop(server);
    }
}
