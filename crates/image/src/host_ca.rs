//! Certificates that the host trusts beyond Debian's own set.
//!
//! Where package indexes are reached through a proxy that intercepts TLS, only
//! the host knows the proxy's authority. On request (never by itself) the image
//! is made to trust what the host trusts.

use crate::error::BuildError;
use std::collections::BTreeSet;
use std::path::Path;

const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
const DEBIANS_OWN: &str = "/usr/share/ca-certificates/mozilla";

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The host's additional certificates, one PEM text each, in a stable order.
/// Empty if the host trusts no more than Debian does.
pub(crate) fn additional_certificates() -> Result<Vec<String>, BuildError> {
    let bundle = Path::new(BUNDLE);
    let text = std::fs::read_to_string(bundle).map_err(BuildError::file("read", bundle))?;
    let trusted = certificates(&text);
    if trusted.is_empty() {
        return Err(BuildError::NoHostCertificates {
            path: bundle.into(),
        });
    }
    let mut debians = BTreeSet::new();
    for entry in std::fs::read_dir(DEBIANS_OWN)
        .into_iter()
        .flatten()
        .flatten()
    {
        debians.extend(certificates(
            &std::fs::read_to_string(entry.path()).unwrap_or_default(),
        ));
    }
    Ok(trusted
        .difference(&debians)
        .map(|body| format!("{BEGIN}\n{body}{END}\n"))
        .collect())
}

/// The bodies of the certificates in a PEM text: base64, in lines as they stood.
fn certificates(pem: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for part in pem.split(BEGIN).skip(1) {
        let Some((body, _)) = part.split_once(END) else {
            continue;
        };
        let lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
        found.insert(lines.map(|line| format!("{line}\n")).collect());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_told_apart_whatever_surrounds_them() {
        let one = format!("# name\r\n{BEGIN}\r\nAAAA\r\nBBBB\r\n{END}\r\n");
        let two = format!("{BEGIN}\nCCCC\n{END}\n{BEGIN}\nAAAA\nBBBB\n{END}");
        let cut = format!("{BEGIN}\nDDDD\n");
        let found = certificates(&(one + &two + &cut));
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["AAAA\nBBBB\n", "CCCC\n"]
        );
    }
}
