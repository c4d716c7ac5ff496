//! A certificate authority of the lab's own.

use super::tools::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The authority, and one certificate for all the sites.
pub(super) struct Authority {
    dir: PathBuf,
}

impl Authority {
    /// Makes both, for these names. They are valid for a day.
    pub(super) fn new<'n>(dir: &Path, names: impl Iterator<Item = &'n str>) -> Self {
        std::fs::create_dir(dir).expect("a directory");
        let authority = Self {
            dir: dir.to_owned(),
        };
        let mut request = authority.request("authority.key", "/CN=Authority of a Pando test");
        request.args(["-addext", "basicConstraints=critical,CA:TRUE"]);
        run(request.arg("-out").arg(authority.certificate()));
        let names: Vec<String> = names.map(|name| format!("DNS:{name}")).collect();
        let mut request = authority.request("site.key", "/CN=Sites of a Pando test");
        request
            .arg("-addext")
            .arg(format!("subjectAltName={}", names.join(",")))
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-CA")
            .arg(authority.certificate())
            .arg("-CAkey")
            .arg(authority.dir.join("authority.key"));
        run(request.arg("-out").arg(authority.site()));
        authority
    }

    /// The authority's certificate.
    pub(super) fn certificate(&self) -> PathBuf {
        self.dir.join("authority.crt")
    }

    /// The sites' certificate.
    pub(super) fn site(&self) -> PathBuf {
        self.dir.join("site.crt")
    }

    /// The sites' key.
    pub(super) fn site_key(&self) -> PathBuf {
        self.dir.join("site.key")
    }

    fn request(&self, key: &str, subject: &str) -> Command {
        let mut openssl = Command::new("openssl");
        openssl
            .args(["req", "-x509", "-nodes", "-days", "1", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-subj", subject, "-keyout"])
            .arg(self.dir.join(key));
        openssl
    }
}
