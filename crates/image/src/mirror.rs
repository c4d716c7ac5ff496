//! Where Debian's packages come from.
//!
//! The host knows the mirror that is near and allowed, so its apt sources are
//! read: those of the Debian archive only, never a third party's. Credentials in
//! an address are dropped, not used: they were given to the host's apt.

use crate::error::BuildError;
use crate::tools;
use std::path::Path;

/// Where the suite's packages and their security updates are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// The archive, as `http://HOST/debian`.
    pub(crate) archive: String,
    /// The archive of security updates; a mirror that was named explicitly may have none.
    pub(crate) security: Option<String>,
}

impl Mirror {
    /// The lines of a `sources.list` for a suite.
    pub(crate) fn sources_list(&self, suite: &str, keyring: &str) -> String {
        let line = |address: &str, suite: &str| {
            format!("deb [signed-by={keyring}] {address} {suite} main\n")
        };
        let mut text = line(&self.archive, suite);
        text += &line(&self.archive, &format!("{suite}-updates"));
        if let Some(security) = &self.security {
            text += &line(security, &format!("{suite}-security"));
        }
        text
    }

    /// The same for the guest's own apt, in deb822 form, without credentials.
    pub(crate) fn guest_sources(&self, suite: &str) -> String {
        let stanza = |address: &str, suites: &str| {
            let address = tools::without_credentials(address);
            format!(
                "Types: deb\nURIs: {address}\nSuites: {suites}\nComponents: main\n\
                 Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
            )
        };
        let mut text = stanza(&self.archive, &format!("{suite} {suite}-updates"));
        if let Some(security) = &self.security {
            text += "\n";
            text += &stanza(security, &format!("{suite}-security"));
        }
        text
    }
}

/// The Debian archive that the host's own apt uses, as `http://HOST/debian` without
/// credentials; `None` where the host names none.
pub fn host_archive() -> Option<String> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    host_mirror(&apt_source_files(), &read).map(|mirror| mirror.archive)
}

/// Whether the host's apt has a source with this suite, Debian's or not.
pub fn host_has_suite(suite: &str) -> bool {
    let sources = apt_source_files();
    sources
        .iter()
        .flat_map(sources_of)
        .any(|source| source.suites.iter().any(|name| name == suite))
}

/// The mirrors to try, best first. `named` is the person's own choice, and then the only one.
pub(crate) fn candidates(named: Option<&str>) -> Result<Vec<Mirror>, BuildError> {
    if let Some(named) = named {
        return named_mirrors(named);
    }
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    match host_mirror(&apt_source_files(), &read) {
        None => Err(BuildError::NoMirror),
        Some(mirror) if mirror.security.is_none() => named_mirrors(&mirror.archive),
        Some(mirror) => Ok(vec![mirror]),
    }
}

/// A mirror of one's own may lack the security updates: then it is taken without.
fn named_mirrors(address: &str) -> Result<Vec<Mirror>, BuildError> {
    let address = address.trim().trim_end_matches('/');
    let plain = !address.contains(char::is_whitespace) && !address.contains(['[', ']']);
    if !(plain && is_http(address)) {
        return Err(BuildError::BadMirror);
    }
    // Debian's mirrors keep both side by side: `…/debian` and `…/debian-security`.
    let security = address
        .ends_with("/debian")
        .then(|| format!("{address}-security"));
    let bare = Mirror {
        archive: address.into(),
        security: None,
    };
    let whole = security.map(|security| Mirror {
        security: Some(security),
        ..bare.clone()
    });
    Ok(whole.into_iter().chain([bare]).collect())
}

/// The host's source files and what is in them, in apt's order.
fn apt_source_files() -> Vec<(String, String)> {
    let mut paths = vec!["/etc/apt/sources.list".to_owned()];
    let folder = std::fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .flatten();
    let mut more: Vec<String> = folder
        .map(|entry| entry.path().to_string_lossy().into_owned())
        .collect();
    more.sort();
    paths.append(&mut more);
    paths
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text)))
        .collect()
}

/// One source as either format states it.
#[derive(Debug, Default)]
struct Source {
    addresses: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
}

/// What the host's own sources say of the Debian archive. `read` opens mirror lists.
fn host_mirror(
    files: &[(String, String)],
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<Mirror> {
    let sources: Vec<Source> = files
        .iter()
        .flat_map(
            |(path, text)| match Path::new(path).extension()?.to_str()? {
                "sources" => Some(deb822_sources(text)),
                "list" => Some(one_line_sources(text)),
                _ => None,
            },
        )
        .flatten()
        .filter(Source::is_debian)
        .collect();
    let first = |security: bool, folder: &str| {
        sources
            .iter()
            .filter(|source| source.suites.iter().any(|suite| is_suite(suite, security)))
            .flat_map(|source| &source.addresses)
            .filter_map(|address| plain_address(address, read))
            .find(|address| address.ends_with(folder))
    };
    let archive = first(false, "/debian")?;
    let security = first(true, "/debian-security");
    Some(Mirror { archive, security })
}

/// The sources of a file; none if apt does not read a file of that name.
fn sources_of((path, text): &(String, String)) -> Vec<Source> {
    match Path::new(path)
        .extension()
        .and_then(|extension| extension.to_str())
    {
        Some("sources") => deb822_sources(text),
        Some("list") => one_line_sources(text),
        _ => Vec::new(),
    }
}

impl Source {
    /// Whether Debian itself signs it, as far as can be told: third parties use
    /// the names of Debian's suites and folders too.
    fn is_debian(&self) -> bool {
        let key = self
            .signed_by
            .as_deref()
            .is_none_or(|key| key.contains("debian-archive"));
        key && self.components.iter().any(|component| component == "main")
    }
}

/// Whether `suite` is a release of Debian: its security updates or the release proper.
fn is_suite(suite: &str, security: bool) -> bool {
    const RELEASES: [&str; 10] = [
        "bullseye",
        "bookworm",
        "trixie",
        "forky",
        "duke",
        "sid",
        "stable",
        "oldstable",
        "testing",
        "unstable",
    ];
    let name = match (security, suite.strip_suffix("-security")) {
        (true, Some(name)) => name,
        (true, None) => return false,
        (false, _) => suite.strip_suffix("-updates").unwrap_or(suite),
    };
    RELEASES.contains(&name)
}

/// An address that another machine could use as well: http, without credentials
/// and without a slash at its end. `mirror+file:` names a list of them, as
/// Debian's cloud images have it.
fn plain_address(address: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<String> {
    let address = match address.strip_prefix("mirror+file:") {
        None => address.to_owned(),
        Some(path) => {
            let list = read(Path::new(&format!("/{}", path.trim_start_matches('/'))))?;
            let line = list.lines().find(|line| is_http(line.trim()))?;
            line.split_whitespace().next()?.to_owned()
        }
    };
    if !is_http(&address) {
        return None;
    }
    Some(
        crate::tools::without_credentials(&address)
            .trim_end_matches('/')
            .to_owned(),
    )
}

fn is_http(address: &str) -> bool {
    let host = address
        .strip_prefix("http://")
        .or_else(|| address.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
}

/// `Types: deb`, `URIs: …`: stanzas of fields, as in `debian.sources`.
fn deb822_sources(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for stanza in stanzas(text) {
        let field = |name: &str| {
            let found = stanza
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str())
        };
        let words = |name: &str| -> Vec<String> {
            field(name)
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        let enabled = field("Enabled").is_none_or(|value| !value.trim().eq_ignore_ascii_case("no"));
        if enabled && words("Types").iter().any(|kind| kind == "deb") {
            sources.push(Source {
                addresses: words("URIs"),
                suites: words("Suites"),
                components: words("Components"),
                signed_by: field("Signed-By").map(str::to_owned),
            });
        }
    }
    sources
}

fn stanzas(text: &str) -> Vec<Vec<(String, String)>> {
    let mut stanzas = vec![Vec::<(String, String)>::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(stanza) = stanzas.last_mut() else {
            continue;
        };
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            stanza.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    stanzas
}

/// `deb [options] ADDRESS SUITE COMPONENT…`, as in `sources.list`.
fn one_line_sources(text: &str) -> Vec<Source> {
    text.lines().filter_map(one_line_source).collect()
}

fn one_line_source(line: &str) -> Option<Source> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let mut rest = line
        .strip_prefix("deb")?
        .strip_prefix([' ', '\t'])?
        .trim_start();
    let mut signed_by = None;
    if let Some(bracketed) = rest.strip_prefix('[') {
        let (options, after) = bracketed.split_once(']')?;
        signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_owned);
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source {
        addresses: vec![words.next()?],
        suites: vec![words.next()?],
        components: words.collect(),
        signed_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Option<(String, Option<String>)> {
        let list = |path: &Path| {
            let known = path == Path::new("/etc/apt/mirrors/debian.list");
            known.then(|| "# near\nhttps://near.example/debian\tpriority:1\n".to_owned())
        };
        host_mirror(&[(name.to_owned(), text.to_owned())], &list)
            .map(|mirror| (mirror.archive, mirror.security))
    }

    fn mirror(archive: &str, security: &str) -> Option<(String, Option<String>)> {
        let security = Some(security).filter(|address| !address.is_empty());
        Some((archive.to_owned(), security.map(ToOwned::to_owned)))
    }

    #[test]
    fn the_guests_sources_carry_no_credentials() {
        let mirror = Mirror {
            archive: "https://me:secret@in.example/debian".into(),
            security: Some("https://in.example/debian-security".into()),
        };
        let text = mirror.guest_sources("trixie");
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("Suites: trixie trixie-updates\n"), "{text}");
        assert!(text.contains("Suites: trixie-security\n"), "{text}");
    }

    #[test]
    fn deb822_sources_are_read() {
        let text = "Types: deb\n# a comment\nURIs: http://mirror.example/debian/\n\
                    Suites: bookworm\n bookworm-updates\nComponents: main\n\
                    Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
                    Types: deb deb-src\nURIs: http://mirror.example/debian-security\n\
                    Suites: bookworm-security\nComponents: main contrib\n";
        assert_eq!(
            found("debian.sources", text),
            mirror(
                "http://mirror.example/debian",
                "http://mirror.example/debian-security"
            )
        );
    }

    #[test]
    fn one_line_sources_are_read_without_their_credentials() {
        let text = "deb-src http://src.example/debian bookworm main\n\
                    # deb http://off.example/debian bookworm main\n\
                    deb [arch=amd64] https://me:pw@in.example/debian bookworm main # near\n";
        assert_eq!(
            found("sources.list", text),
            mirror("https://in.example/debian", "")
        );
    }

    #[test]
    fn a_third_party_is_not_taken_for_debian() {
        for text in [
            "deb [signed-by=/k/other.gpg] https://other.example/debian bookworm main",
            "deb https://other.example/debian bookworm stable",
            "deb https://other.example/packages bookworm main",
            "deb http://archive.example/ubuntu noble main",
            "deb http://archive.example/debian noble main",
            "deb cdrom:[Debian]/debian bookworm main",
            "deb file:/srv/debian bookworm main",
        ] {
            assert_eq!(found("other.list", text), None, "{text}");
        }
        let off = "Enabled: no\nTypes: deb\nURIs: http://m/debian\nSuites: sid\nComponents: main\n";
        assert_eq!(found("off.sources", off), None);
        let disabled = "deb http://m.example/debian bookworm main";
        assert_eq!(found("debian.list.disabled", disabled), None);
    }

    #[test]
    fn a_list_of_mirrors_is_followed() {
        let text = "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\n\
                    Suites: trixie\nComponents: main\n";
        assert_eq!(
            found("debian.sources", text),
            mirror("https://near.example/debian", "")
        );
    }

    #[test]
    fn a_named_mirror_is_the_only_one() {
        let one = |archive: &str, security: Option<&str>| Mirror {
            archive: archive.into(),
            security: security.map(str::to_owned),
        };
        assert_eq!(
            candidates(Some("http://m.example/debian/")).unwrap(),
            [
                one(
                    "http://m.example/debian",
                    Some("http://m.example/debian-security")
                ),
                one("http://m.example/debian", None),
            ]
        );
        assert_eq!(
            candidates(Some("https://m.example/a")).unwrap(),
            [one("https://m.example/a", None)]
        );
        for bad in [
            "",
            "m.example",
            "ftp://m.example",
            "http://",
            "http://a b",
            "http://a [x]",
        ] {
            assert!(
                matches!(candidates(Some(bad)), Err(BuildError::BadMirror)),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_sources_list_has_every_suite() {
        let mirror = Mirror {
            archive: "A".into(),
            security: Some("S".into()),
        };
        assert_eq!(
            mirror.sources_list("trixie", "K"),
            "deb [signed-by=K] A trixie main\ndeb [signed-by=K] A trixie-updates main\n\
             deb [signed-by=K] S trixie-security main\n"
        );
    }
}
