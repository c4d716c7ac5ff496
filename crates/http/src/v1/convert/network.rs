//! Between the API's types of the network and the engine's.

use super::{invalid, timestamp};
use crate::error::ApiError;
use pando_api as api;
use pando_engine::request as engine;
use pando_types::{EgressAction, EgressEntry, EgressError, EgressPolicy};

/// What something may reach.
pub(in crate::v1) fn egress(egress: &api::Egress) -> Result<EgressPolicy, ApiError> {
    let entries = |entries: &[String]| {
        let read = entries.iter().map(|entry| entry.parse());
        read.collect::<Result<Vec<EgressEntry>, EgressError>>()
    };
    let policy = || {
        let (allow, deny) = (entries(&egress.allow)?, entries(&egress.deny)?);
        EgressPolicy::native(egress.default.parse()?, &allow, &deny)
    };
    policy().map_err(|error| invalid(format!("`egress`: {error}")))
}

/// The same as the API says it.
pub(in crate::v1) fn egress_of(policy: &EgressPolicy) -> api::Egress {
    let entries = |action: EgressAction| {
        let of = policy.rules.iter().filter(|rule| rule.action == action);
        of.map(|rule| rule.entry.to_string()).collect()
    };
    api::Egress {
        default: policy.default.to_string(),
        allow: entries(EgressAction::Allow),
        deny: entries(EgressAction::Deny),
    }
}

/// A report as the API says it.
pub(in crate::v1) fn report(report: engine::NetworkReport) -> api::Network {
    let connections = report.connections.into_iter();
    let connections = connections.map(|connection| api::Connection {
        protocol: connection.protocol,
        local: connection.guest,
        remote: connection.remote,
        name: connection.name,
        state: connection.state,
        sent_bytes: connection.sent_bytes,
        received_bytes: connection.received_bytes,
        age_ms: connection.age_ms,
    });
    let refusals = report.refusals.into_iter().map(|refusal| api::Refusal {
        at: timestamp(refusal.at),
        protocol: refusal.protocol,
        address: refusal.address,
        port: refusal.port,
        name: refusal.name,
        rule: refusal.rule,
        count: refusal.count,
    });
    api::Network {
        egress: egress_of(&report.egress),
        connections: connections.collect(),
        refusals: refusals.collect(),
        totals: api::NetworkTotals {
            connections: report.connections_total,
            refused: report.refused_total,
            sent_bytes: report.sent_bytes,
            received_bytes: report.received_bytes,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_comes_back_as_it_was_given() {
        let given = api::Egress {
            default: "deny".into(),
            allow: vec!["github.com".into(), "10.1.0.0/16:53/udp".into()],
            deny: vec!["*.example.org:443".into()],
        };
        let read = egress(&given).unwrap_or_else(|_| panic!("it is a policy"));
        assert_eq!(read.rules[0].to_string(), "deny *.example.org:443");
        assert_eq!(egress_of(&read), given);
    }

    #[test]
    fn what_is_no_entry_is_named() {
        let wrong = api::Egress {
            default: "allow".into(),
            allow: vec!["https://github.com/".into()],
            deny: Vec::new(),
        };
        let Err(ApiError::BadParameter(text)) = egress(&wrong) else {
            panic!("a URL is no entry");
        };
        assert!(text.contains("https://github.com/"), "{text}");
    }
}
