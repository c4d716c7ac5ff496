//! HTTP into a sandbox, through the daemon.

use super::round_trip::warmed_up;
use crate::BenchError;
use crate::figure::Figure;
use crate::session::Session;
use crate::stats::{Better, Summary, milliseconds_since};
use crate::traffic::{BULK_BYTES, Connection, PortClient, SERVER, detached};
use futures::future::try_join_all;
use std::cell::Cell;
use std::time::Instant;

/// Where the guest's server listens.
const PORT: u16 = 8000;

/// Connections that small requests are made on side by side.
const CONNECTIONS: usize = 8;

/// Requests of one sample on each of them.
const REQUESTS: usize = 125;

/// Small requests, bulk, and programs while bulk is on its way.
pub(super) async fn ports(session: &Session<'_>) -> Result<Vec<Figure>, BenchError> {
    let sandbox = warmed_up(session).await?;
    let port = PORT.to_string();
    session.run(&sandbox, &detached(SERVER, &[&port])).await?;
    let client = PortClient::of(session, &sandbox, PORT).await?;
    client.await_server().await?;
    // What QEMU has not translated yet is translated now.
    requests(&client).await?;
    bulk(&client).await?;
    let (mut rates, mut bulks) = (Vec::new(), Vec::new());
    for _ in 0..session.counts.traffic {
        rates.push(requests(&client).await?);
        bulks.push(bulk(&client).await?);
    }
    let delay = exec_delay(session, &sandbox, &client).await?;
    session.remove(&sandbox).await?;
    Ok(vec![
        Figure::new("ports-requests", rates),
        Figure::new("ports-download", bulks),
        delay,
    ])
}

/// Small answers in a second.
async fn requests(client: &PortClient) -> Result<f64, BenchError> {
    let connections = try_join_all((0..CONNECTIONS).map(|_| client.connect())).await?;
    let began = Instant::now();
    let each = async |mut connection: Connection| {
        for _ in 0..REQUESTS {
            connection.get("/").await?;
        }
        Ok::<_, BenchError>(())
    };
    try_join_all(connections.into_iter().map(each)).await?;
    Ok((CONNECTIONS * REQUESTS) as f64 / began.elapsed().as_secs_f64())
}

/// In MB/s.
async fn bulk(client: &PortClient) -> Result<f64, BenchError> {
    let began = Instant::now();
    client.bulk(|_| ()).await?;
    Ok(BULK_BYTES as f64 / 1e3 / milliseconds_since(began))
}

/// By how much programs take longer while bulk answers are fetched, one after the other.
async fn exec_delay(
    session: &Session<'_>,
    sandbox: &str,
    client: &PortClient,
) -> Result<Figure, BenchError> {
    let count = session.counts.busy_exec;
    let alone = execs(session, sandbox, count).await?;
    let (seen, began) = (Cell::new(0), Instant::now());
    let busy = async {
        loop {
            client.bulk(|bytes| seen.set(seen.get() + bytes)).await?;
        }
    };
    let during = tokio::select! {
        times = execs(session, sandbox, count) => times?,
        broken = busy => return broken,
    };
    let rate = seen.get() as f64 / 1e3 / milliseconds_since(began);
    let usual = Summary::of(&alone, Better::Less).map_or(0.0, |summary| summary.p50);
    let delays = during.iter().map(|time| time - usual).collect();
    Ok(Figure::new("ports-exec-delay", delays)
        .part("exec meanwhile", during)
        .part("exec alone", alone)
        .notes([format!("{rate:.0} MB/s were fetched meanwhile")]))
}

async fn execs(session: &Session<'_>, sandbox: &str, count: usize) -> Result<Vec<f64>, BenchError> {
    let mut times = Vec::new();
    for _ in 0..count {
        times.push(session.exec(sandbox).await?);
    }
    Ok(times)
}
