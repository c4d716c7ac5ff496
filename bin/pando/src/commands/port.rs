//! `pando port`: what listens in a sandbox, and how it is reached.

use crate::cli;
use crate::exit;
use crate::output;
use pando_client::Client;
use pando_client::api::{OpenPortRequest, Port};

/// Lists ports, offers one or takes it back.
pub(super) async fn port(client: Client, flags: cli::Port) -> anyhow::Result<u8> {
    match flags.port {
        Some(port) if flags.rm => client.close_port(&flags.id, port).await?,
        Some(port) => open(&client, &flags, port).await?,
        None => list(&client, &flags).await?,
    }
    Ok(exit::DONE)
}

async fn open(client: &Client, flags: &cli::Port, port: u16) -> anyhow::Result<()> {
    let request = OpenPortRequest {
        port,
        raw: flags.access.is_none(),
        access: flags.access.clone(),
    };
    let opened = client.open_port(&flags.id, &request).await?;
    match (&opened.raw, flags.json) {
        (_, true) => output::json(&opened)?,
        (Some(raw), false) if request.raw => output::line(raw),
        _ => output::line(&opened.url),
    }
    Ok(())
}

async fn list(client: &Client, flags: &cli::Port) -> anyhow::Result<()> {
    let list = client.ports(&flags.id).await?;
    if flags.token {
        output::line(&list.token);
    } else if flags.json {
        output::json(&list)?;
    } else if flags.quiet {
        let open = list.ports.iter().filter(|port| port.open);
        open.for_each(|port| output::line(&port.port.to_string()));
    } else {
        let rows: Vec<_> = list.ports.iter().map(row).collect();
        output::table(
            &["PORT", "PROCESS", "PID", "BOUND TO", "ACCESS", "TCP", "URL"],
            &rows,
        );
    }
    Ok(())
}

fn row(port: &Port) -> Vec<String> {
    vec![
        port.port.to_string(),
        output::printable(port.process.as_deref().unwrap_or_default()),
        port.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        match port.open {
            true => port.addresses.join(" "),
            false => "closed".to_owned(),
        },
        port.access.clone(),
        port.raw.clone().unwrap_or_default(),
        port.url.clone(),
    ]
}
