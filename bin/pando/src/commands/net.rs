//! `pando net`: what a sandbox may reach and does.

use crate::cli::{EgressFlags, Net};
use crate::exit;
use crate::output;
use pando_client::Client;
use pando_client::api::{ChangeSandboxRequest, Connection, Egress, Refusal};

/// Shows it, or changes what it may reach.
pub(super) async fn net(client: Client, flags: Net) -> anyhow::Result<u8> {
    if let Some(egress) = egress(&flags.egress) {
        let change = ChangeSandboxRequest {
            egress: Some(egress),
            ..ChangeSandboxRequest::default()
        };
        client.change(&flags.id, &change).await?;
        return Ok(exit::DONE);
    }
    let network = client.network(&flags.id).await?;
    if flags.json {
        output::json(&network)?;
        return Ok(exit::DONE);
    }
    for line in rules(&network.egress) {
        output::line(&line);
    }
    if !network.connections.is_empty() {
        output::line("");
        let rows: Vec<_> = network.connections.iter().map(connection).collect();
        output::table(
            &[
                "PROTOCOL", "REMOTE", "NAME", "STATE", "SENT", "RECEIVED", "AGE",
            ],
            &rows,
        );
    }
    if !network.refusals.is_empty() {
        output::line("");
        let rows: Vec<_> = network.refusals.iter().map(refusal).collect();
        output::table(
            &["REFUSED", "PROTOCOL", "ADDRESS", "NAME", "RULE", "COUNT"],
            &rows,
        );
    }
    let totals = &network.totals;
    output::line("");
    output::line(&format!(
        "{} connections, {} refused, {} sent, {} received",
        totals.connections,
        totals.refused,
        output::bytes(totals.sent_bytes),
        output::bytes(totals.received_bytes)
    ));
    Ok(exit::DONE)
}

/// The policy that flags ask for; `None` without any.
pub(super) fn egress(flags: &EgressFlags) -> Option<Egress> {
    let given = flags.egress.is_some() || !flags.allow.is_empty() || !flags.deny.is_empty();
    given.then(|| Egress {
        default: flags.egress.clone().unwrap_or_else(|| "allow".to_owned()),
        allow: flags.allow.clone(),
        deny: flags.deny.clone(),
    })
}

/// A policy, one rule a line, in the order in which they are asked.
pub(super) fn rules(egress: &Egress) -> Vec<String> {
    let deny = egress.deny.iter().map(|entry| format!("deny {entry}"));
    let allow = egress.allow.iter().map(|entry| format!("allow {entry}"));
    let default = std::iter::once(format!("default {}", egress.default));
    deny.chain(allow).chain(default).collect()
}

fn connection(connection: &Connection) -> Vec<String> {
    vec![
        connection.protocol.clone(),
        connection.remote.clone(),
        connection.name.clone().unwrap_or_default(),
        connection.state.clone(),
        output::bytes(connection.sent_bytes),
        output::bytes(connection.received_bytes),
        format!("{} s", connection.age_ms / 1000),
    ]
}

fn refusal(refusal: &Refusal) -> Vec<String> {
    let address = match (refusal.port, refusal.address.contains(':')) {
        (0, _) => refusal.address.clone(),
        (port, true) => format!("[{}]:{port}", refusal.address),
        (port, false) => format!("{}:{port}", refusal.address),
    };
    vec![
        refusal.at.clone(),
        refusal.protocol.clone(),
        address,
        refusal.name.clone().unwrap_or_default(),
        refusal.rule.clone(),
        refusal.count.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stand_in_the_order_in_which_they_are_asked() {
        let egress = Egress {
            default: "deny".into(),
            allow: vec!["github.com".into()],
            deny: vec!["1.2.3.4".into()],
        };
        assert_eq!(
            rules(&egress),
            ["deny 1.2.3.4", "allow github.com", "default deny"]
        );
    }

    #[test]
    fn without_flags_nothing_is_asked_for() {
        let mut flags = EgressFlags {
            egress: None,
            allow: Vec::new(),
            deny: Vec::new(),
        };
        assert_eq!(egress(&flags), None);
        flags.deny.push("1.2.3.4".into());
        assert_eq!(egress(&flags).unwrap().default, "allow");
    }
}
