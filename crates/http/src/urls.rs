//! The addresses at which ports of sandboxes are reached by HTTP.

use std::fmt;
use std::str::FromStr;

/// `https://*.sandboxes.example.com`: what a reverse proxy in front of the daemon is known by.
/// The star stands for `<port>-<id>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl {
    https: bool,
    /// Lower case.
    domain: String,
    port: Option<u16>,
}

/// Not an address with a star for its first label.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an address such as `https://*.sandboxes.example.com`")]
pub struct BadPublicUrl(String);

impl FromStr for PublicUrl {
    type Err = BadPublicUrl;

    fn from_str(text: &str) -> Result<Self, BadPublicUrl> {
        Self::parse(text).ok_or_else(|| BadPublicUrl(text.to_owned()))
    }
}

impl PublicUrl {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let https = match scheme {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority = rest.strip_prefix("*.")?.trim_end_matches('/');
        let (domain, port) = match authority.split_once(':') {
            Some((domain, port)) => (domain, Some(port.parse().ok()?)),
            None => (authority, None),
        };
        let well_formed = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        domain.split('.').all(well_formed).then(|| Self {
            https,
            domain: domain.to_ascii_lowercase(),
            port,
        })
    }

    /// The names below which, and by which, the daemon is known.
    pub(crate) fn hosts(&self) -> [String; 2] {
        [self.domain.clone(), format!("api.{}", self.domain)]
    }

    /// Whether a host is below the domain.
    fn covers(&self, host: &str) -> bool {
        let name = host.split(':').next().unwrap_or_default();
        let above = name.to_ascii_lowercase();
        above
            .strip_suffix(&self.domain)
            .is_some_and(|labels| labels.ends_with('.'))
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(formatter, "{scheme}://*.{}", self.domain)?;
        match self.port {
            Some(port) => write!(formatter, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Makes addresses for clients.
#[derive(Clone, Debug)]
pub(crate) struct Urls {
    /// With `*` for the first label.
    pattern: String,
    public: Option<PublicUrl>,
}

impl Urls {
    /// `port` is the listener's, for clients on this machine when nothing public is known.
    pub(crate) fn new(public: Option<PublicUrl>, port: u16) -> Self {
        let pattern = match &public {
            Some(public) => public.to_string(),
            None => format!("http://*.localhost:{port}"),
        };
        Self { pattern, public }
    }

    /// A sandbox's address, with `{port}` where a port belongs.
    pub(crate) fn template(&self, sandbox: &str) -> String {
        let label = format!("{{port}}-{sandbox}");
        format!("{}/", self.pattern.replacen('*', &label, 1))
    }

    /// The address of a sandbox's port.
    pub(crate) fn of(&self, sandbox: &str, port: u16) -> String {
        let label = format!("{port}-{sandbox}");
        format!("{}/", self.pattern.replacen('*', &label, 1))
    }

    /// Whether clients of this host speak TLS, to the proxy in front of us.
    pub(crate) fn is_https(&self, host: &str) -> bool {
        let public = self.public.as_ref();
        public.is_some_and(|public| public.https && public.covers(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_public_one() {
        let local = Urls::new(None, 7000);
        assert_eq!(local.of("s1", 80), "http://80-s1.localhost:7000/");
        assert_eq!(local.template("s1"), "http://{port}-s1.localhost:7000/");
        let public = "https://*.Sandboxes.example.com/".parse().unwrap();
        let public = Urls::new(Some(public), 7000);
        assert_eq!(public.of("s1", 80), "https://80-s1.sandboxes.example.com/");
        assert!(public.is_https("80-s1.SANDBOXES.example.com:443"));
        assert!(!public.is_https("80-s1.localhost"));
        assert!(!public.is_https("80-s1.evilsandboxes.example.com"));
        let odd: PublicUrl = "http://*.a.test:8080".parse().unwrap();
        assert_eq!(odd.to_string(), "http://*.a.test:8080");
    }

    #[test]
    fn what_is_no_address_with_a_star_is_refused() {
        for bad in [
            "",
            "https://sandboxes.example.com",
            "*.example.com",
            "ftp://*.example.com",
            "https://*.",
            "https://*.a..b",
            "https://*.a/path",
            "https://*.a:x",
            "https://*.*.a",
        ] {
            assert!(bad.parse::<PublicUrl>().is_err(), "{bad}");
        }
    }
}
