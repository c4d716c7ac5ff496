//! Who may use the user service: a token, or a signed URL made from it.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use http::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};

use crate::reply::{self, Reply};
use crate::sandbox::Sandbox;

const TOKEN_HEADER: &str = "x-access-token";

/// What a signed URL allows.
pub(crate) struct Signed<'a> {
    /// The path as it stands in the query, decoded once.
    pub path: &'a str,
    /// `read` or `write`.
    pub operation: &'a str,
    /// The user in the query; empty if there is none.
    pub user: &'a str,
    /// The signature in the query.
    pub signature: &'a str,
    /// Until when, in seconds since the Unix epoch.
    pub expiration: Option<&'a str>,
}

/// Checks the token of a request.
///
/// # Errors
/// The answer to send instead.
// The refusal is built once and sent; boxing it would gain nothing.
#[allow(clippy::result_large_err)]
pub(crate) fn check_token(sandbox: &Sandbox, headers: &HeaderMap) -> Result<(), Reply> {
    let token = sandbox.access_token();
    let sent = headers.get(TOKEN_HEADER).map(http::HeaderValue::as_bytes);
    if token.is_empty() || sent.is_some_and(|sent| same(sent, token.as_bytes())) {
        return Ok(());
    }
    Err(reply::error(
        StatusCode::UNAUTHORIZED,
        "the access token is missing or wrong",
    ))
}

/// Checks the token or, if there is none, the signature.
///
/// # Errors
/// The answer to send instead.
#[allow(clippy::result_large_err)]
pub(crate) fn check_token_or_signature(
    sandbox: &Sandbox,
    headers: &HeaderMap,
    signed: &Signed<'_>,
) -> Result<(), Reply> {
    if headers.contains_key(TOKEN_HEADER) || signed.signature.is_empty() {
        return check_token(sandbox, headers);
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let token = sandbox.access_token();
    signed
        .check(&token, now.as_secs())
        .map_err(|reason| reply::error(StatusCode::UNAUTHORIZED, reason))
}

impl Signed<'_> {
    fn check(&self, token: &str, now: u64) -> Result<(), &'static str> {
        if token.is_empty() {
            return Ok(());
        }
        if !same(self.expected(token).as_bytes(), self.signature.as_bytes()) {
            return Err("the signature is wrong");
        }
        match self.expiration.map(str::parse::<u64>) {
            None => Ok(()),
            Some(Ok(until)) if now <= until => Ok(()),
            Some(_) => Err("the signature has expired"),
        }
    }

    fn expected(&self, token: &str) -> String {
        let Self {
            path,
            operation,
            user,
            ..
        } = self;
        let mut text = format!("{path}:{operation}:{user}:{token}");
        if let Some(expiration) = self.expiration {
            text.push(':');
            text.push_str(expiration);
        }
        format!("v1_{}", BASE64_STANDARD_NO_PAD.encode(Sha256::digest(text)))
    }
}

/// Compares in a time that does not depend on where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_what_it_was_made_for_until_it_expires() {
        let sign = |path, expiration| {
            let unsigned = Signed {
                path,
                operation: "read",
                user: "user",
                signature: "",
                expiration,
            };
            unsigned.expected("secret")
        };
        let signature = sign("/a", Some("100"));
        let signed = Signed {
            path: "/a",
            operation: "read",
            user: "user",
            signature: &signature,
            expiration: Some("100"),
        };
        assert_eq!(signed.check("secret", 100), Ok(()));
        assert!(signed.check("secret", 101).is_err());
        assert!(signed.check("other", 100).is_err());
        let other = Signed {
            path: "/b",
            ..signed
        };
        assert!(other.check("secret", 100).is_err());
        let forever = Signed {
            expiration: None,
            ..other
        };
        assert!(forever.check("secret", 100).is_err());
    }

    #[test]
    fn a_signature_has_the_documented_form() {
        let signed = Signed {
            path: "/home/user/a.txt",
            operation: "write",
            user: "",
            signature: "",
            expiration: None,
        };
        // printf '/home/user/a.txt:write::t' | sha256sum | xxd -r -p | base64
        assert_eq!(
            signed.expected("t"),
            "v1_GbmdmT8jkzFnKlWKKXeWLE84D+mkyqQGtO3DpknCfHA"
        );
    }

    #[test]
    fn comparison_is_of_all_bytes() {
        assert!(same(b"abc", b"abc") && !same(b"abc", b"abd") && !same(b"ab", b"abc"));
    }
}
