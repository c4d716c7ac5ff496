//! Settings: where each comes from, and the paths that follow from them.
//!
//! [`SETTINGS`] is the one definition: `pando config show`, the tables in
//! `docs/cli.md` and the configuration file's keys are made from it. Order:
//! flag, environment, configuration file, default.

use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SettingKey {
    /// See [`SETTINGS`] for each.
    ConfigFile,
    StateDir,
    CacheDir,
    LogFile,
    Url,
    ApiKey,
    Listen,
    PublicHosts,
    Dns,
    PublicUrl,
    PortBind,
    PortRange,
    PortAccess,
    ArrakisTemplate,
    ArrakisAuth,
    NetMibS,
    Accel,
    Qemu,
    DebianMirror,
    Warm,
    ReserveMib,
    Limits,
    MaxSandboxes,
    MaxCpus,
    MaxMemoryMib,
    MaxSnapshotGib,
    MemoryReserveMib,
    MemoryOvercommit,
    MaterializedMib,
    TrackWrites,
    Log,
    OtlpEndpoint,
}

/// What is known of a setting beyond its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Which.
    pub(crate) key: SettingKey,
    /// Its name in the configuration file.
    pub(crate) name: &'static str,
    /// Its environment variable.
    pub(crate) variable: &'static str,
    /// Its default in words.
    pub(crate) default: &'static str,
    /// What it is.
    pub(crate) meaning: &'static str,
}

const fn setting(
    key: SettingKey,
    (name, variable): (&'static str, &'static str),
    default: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting {
        key,
        name,
        variable,
        default,
        meaning,
    }
}

/// The value of `arrakis_auth` that `--arrakis-auth` stands for.
pub(crate) const ARRAKIS_ALWAYS: &str = "always";

/// Every setting.
#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = &[
    setting(SettingKey::ConfigFile, ("config", "PANDO_CONFIG"), "`/etc/pando/pando.toml` as root, else `~/.config/pando/pando.toml`", "The configuration file: TOML, a key a line, the names of this table."),
    setting(SettingKey::StateDir, ("state_dir", "PANDO_STATE_DIR"), "`/var/lib/pando` as root, else `~/.local/state/pando`", "Sandboxes, their disks, the index and the admin key."),
    setting(SettingKey::CacheDir, ("cache_dir", "PANDO_CACHE_DIR"), "`/var/cache/pando` as root, else `~/.cache/pando`", "Images and bakes; all of it can be made again."),
    setting(SettingKey::LogFile, ("log_file", "PANDO_LOG_FILE"), "`daemon.log` in the state directory", "Log of a daemon in the background; rotated at 8 MiB, one old file is kept."),
    setting(SettingKey::Url, ("url", "PANDO_URL"), "`http://127.0.0.1:7000`, or what `listen` says", "The daemon that commands speak to."),
    setting(SettingKey::ApiKey, ("api_key", "PANDO_API_KEY"), "the line in `admin.key` in the state directory", "The key that commands send."),
    setting(SettingKey::Listen, ("listen", "PANDO_LISTEN"), "`127.0.0.1:7000`", "The address that the daemon listens on."),
    setting(SettingKey::PublicHosts, ("public_hosts", "PANDO_PUBLIC_HOSTS"), "none", "Further host names that the daemon answers for, with commas between."),
    setting(SettingKey::Dns, ("dns", "PANDO_DNS"), "the name servers of `/etc/resolv.conf`", "Where the names are asked that sandboxes look up: addresses, each with an optional port, with commas between."),
    setting(SettingKey::PublicUrl, ("public_url", "PANDO_PUBLIC_URL"), "none", "Where ports of sandboxes are reached from other machines, such as `https://*.sandboxes.example.com`: the star stands for port and id, and a reverse proxy sends all such names here."),
    setting(SettingKey::PortBind, ("port_bind", "PANDO_PORT_BIND"), "`127.0.0.1`", "The address that TCP ports of sandboxes (`pando port ID PORT`) are bound to."),
    setting(SettingKey::PortRange, ("port_range", "PANDO_PORT_RANGE"), "`20000-29999`", "The TCP ports that are given to sandboxes."),
    setting(SettingKey::PortAccess, ("port_access", "PANDO_PORT_ACCESS"), "`auto`", "Who may use a sandbox's port by HTTP when nothing else was said of it. `public`: whoever knows the sandbox's id. `token`: who sends an API key or the sandbox's traffic token. `auto`: `public` where the daemon listens on a loopback address and has no `public_url`, else `token`."),
    setting(SettingKey::ArrakisTemplate, ("arrakis_template", "PANDO_ARRAKIS_TEMPLATE"), "`desktop` where that is baked, else `base`", "What clients of Arrakis (`/v1/vms`) get their VMs from; `template` below `[arrakis]` is the same."),
    setting(SettingKey::ArrakisAuth, ("arrakis_auth", "PANDO_ARRAKIS_AUTH"), "`local`", "Which clients of Arrakis need an API key. `local`: all but programs of this machine, as long as the daemon listens on a loopback address and has no `public_url` and no `public_hosts`. `always`: all."),
    setting(SettingKey::NetMibS, ("net_mib_s", "PANDO_NET_MIB_S"), "none", "The most, in MiB a second, that each sandbox may send, and receive, by its network."),
    setting(SettingKey::Accel, ("accel", "PANDO_ACCEL"), "`auto`", "How guests are run: `auto`, `kvm` or `tcg`."),
    setting(SettingKey::Qemu, ("qemu", "PANDO_QEMU"), "`qemu-system-x86_64`, looked up in PATH", "The QEMU to use; 8.2 or newer."),
    setting(SettingKey::DebianMirror, ("debian_mirror", "PANDO_DEBIAN_MIRROR"), "the mirror that the host's own apt uses", "Where the packages of `base` come from."),
    setting(SettingKey::Warm, ("warm", "PANDO_WARM"), "`auto`: 2 to 8, as many as were asked for within a minute", "Clones that wait ready, for each template and size in use; 0: none. They leave the host the memory of `reserve_mib`."),
    setting(SettingKey::ReserveMib, ("reserve_mib", "PANDO_RESERVE_MIB"), "an eighth of the host's memory, 512 to 8192", "Memory in MiB that waiting clones leave free; below it they are given up."),
    setting(SettingKey::Limits, ("limits", "PANDO_LIMITS"), "none", "What each sandbox may use of the host where it does not say so itself, such as `cpu_percent=100,disk_mib=2048`: `cpu_percent`, `processes`, `disk_mib`, `disk_mib_s`, `disk_iops`, `net_mib_s`, `open_files`."),
    setting(SettingKey::MaxSandboxes, ("max_sandboxes", "PANDO_MAX_SANDBOXES"), "none", "The most sandboxes of each tenant that run at once."),
    setting(SettingKey::MaxCpus, ("max_cpus", "PANDO_MAX_CPUS"), "none", "The most CPUs that they have together."),
    setting(SettingKey::MaxMemoryMib, ("max_memory_mib", "PANDO_MAX_MEMORY_MIB"), "none", "The most memory, in MiB, that they have together, by their sizes."),
    setting(SettingKey::MaxSnapshotGib, ("max_snapshot_gib", "PANDO_MAX_SNAPSHOT_GIB"), "none", "A tenant whose snapshots take this many GiB cannot take another."),
    setting(SettingKey::MemoryReserveMib, ("memory_reserve_mib", "PANDO_MEMORY_RESERVE_MIB"), "a sixteenth of the host's memory, 256 to 4096", "Memory in MiB that is left to the host: a sandbox that would leave it less is not started."),
    setting(SettingKey::MemoryOvercommit, ("memory_overcommit", "PANDO_MEMORY_OVERCOMMIT"), "none: what sandboxes have for their own counts, not their sizes", "What the sizes of all sandboxes that run may be together, in percent of the memory that there is for them: with 100 each can have all of its own."),
    setting(SettingKey::MaterializedMib, ("materialized_mib", "PANDO_MATERIALIZED_MIB"), "4096", "The most, in MiB, that memories may take which were put together from snapshots' layers to be mapped. What was of use longest ago goes first."),
    setting(SettingKey::TrackWrites, ("track_writes", "PANDO_TRACK_WRITES"), "`auto`", "How a snapshot of a running sandbox learns which pages changed. `auto`: from the kernel, where it can tell (Linux 6.7), else by comparing. `compare`: by comparing, for which the sandbox stands still longer."),
    setting(SettingKey::Log, ("log", "PANDO_LOG"), "`info`", "How much the daemon logs: `error`, `warn`, `info`, `debug`, or a filter per module."),
    setting(SettingKey::OtlpEndpoint, ("otlp_endpoint", "PANDO_OTLP_ENDPOINT"), "`OTEL_EXPORTER_OTLP_ENDPOINT` where it is set, else none", "Where traces are sent: the URL of a collector that speaks OTLP over HTTP, such as `http://127.0.0.1:4318`."),
];

/// Settings that may be numbers in the configuration file.
const NUMBERS: [&str; 10] = [
    "warm",
    "reserve_mib",
    "max_sandboxes",
    "max_cpus",
    "max_memory_mib",
    "max_snapshot_gib",
    "memory_reserve_mib",
    "memory_overcommit",
    "materialized_mib",
    "net_mib_s",
];

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Flag,
    Environment,
    File,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// Every value with its source.
#[derive(Debug)]
pub(crate) struct Config {
    values: BTreeMap<SettingKey, (String, Source)>,
}

/// What the defaults depend on.
pub(crate) struct Surroundings<'a> {
    /// The environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether this is root.
    pub(crate) root: bool,
}

impl Config {
    /// Reads all settings; `flags` are those given on the command line.
    pub(crate) fn load(
        flags: &[(SettingKey, Option<String>)],
        surroundings: &Surroundings<'_>,
    ) -> anyhow::Result<Self> {
        let given = |key: SettingKey, name: &str| {
            let flag = flags
                .iter()
                .find(|(flag, _)| *flag == key)
                .and_then(|(_, value)| value.clone());
            let flag = flag.map(|value| (value, Source::Flag));
            // An empty variable counts as none, as in most shells' idioms.
            let variable = || (surroundings.variable)(name).filter(|value| !value.is_empty());
            flag.or_else(|| variable().map(|value| (value, Source::Environment)))
        };
        let file_setting = &SETTINGS[0];
        let (config_file, config_source) =
            match given(SettingKey::ConfigFile, file_setting.variable) {
                Some(given) => given,
                None => (
                    default_path(SettingKey::ConfigFile, surroundings)?,
                    Source::Default,
                ),
            };
        let file = read_file(Path::new(&config_file), config_source != Source::Default)?;
        let mut values = BTreeMap::from([(SettingKey::ConfigFile, (config_file, config_source))]);
        for setting in &SETTINGS[1..] {
            let in_file = || {
                file.get(setting.name)
                    .map(|value| (value.clone(), Source::File))
            };
            let value = match given(setting.key, setting.variable).or_else(in_file) {
                Some(value) => value,
                None => (
                    default_of(setting.key, &values, surroundings)?,
                    Source::Default,
                ),
            };
            values.insert(setting.key, absolute(setting.key, value)?);
        }
        Ok(Self { values })
    }

    /// Reads all settings from this process's surroundings.
    pub(crate) fn of_process(flags: &[(SettingKey, Option<String>)]) -> anyhow::Result<Self> {
        let root = rustix::process::geteuid().is_root();
        Self::load(
            flags,
            &Surroundings {
                variable: &|name| std::env::var(name).ok(),
                root,
            },
        )
    }

    /// A value; the empty string where there is none.
    pub(crate) fn get(&self, key: SettingKey) -> &str {
        self.values.get(&key).map_or("", |(value, _)| value)
    }

    /// Where a value comes from.
    pub(crate) fn source(&self, key: SettingKey) -> Source {
        self.values
            .get(&key)
            .map_or(Source::Default, |(_, source)| *source)
    }

    /// A value that is a path.
    pub(crate) fn path(&self, key: SettingKey) -> PathBuf {
        PathBuf::from(self.get(key))
    }

    /// The file that holds the first key.
    pub(crate) fn admin_key_file(&self) -> PathBuf {
        self.path(SettingKey::StateDir).join("admin.key")
    }

    /// The file that holds the key of what clients of Arrakis made without one.
    pub(crate) fn arrakis_key_file(&self) -> PathBuf {
        self.path(SettingKey::StateDir).join("arrakis.key")
    }

    /// The key that commands send, if there is one to be had.
    pub(crate) fn api_key(&self) -> Option<String> {
        match self.get(SettingKey::ApiKey) {
            "" => fs::read_to_string(self.admin_key_file())
                .ok()
                .map(|text| text.trim().to_owned()),
            key => Some(key.to_owned()),
        }
    }

    /// Further host names of the daemon.
    pub(crate) fn public_hosts(&self) -> Vec<String> {
        let names = self.get(SettingKey::PublicHosts).split(',').map(str::trim);
        names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Name servers, empty for the host's.
    ///
    /// # Errors
    /// One is no address.
    pub(crate) fn dns(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let servers = self.get(SettingKey::Dns).split(',').map(str::trim);
        let servers = servers.filter(|server| !server.is_empty());
        let read = servers.map(|server| {
            let address = server.parse::<IpAddr>().map(|address| (address, 53).into());
            let server_address = address.or_else(|_| server.parse());
            server_address.with_context(|| format!("`dns`: `{server}` is not an address"))
        });
        read.collect()
    }

    /// Every path that a person may ask for, with what it is.
    pub(crate) fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        let state = self.path(SettingKey::StateDir);
        vec![
            ("config", self.path(SettingKey::ConfigFile)),
            ("state", state.clone()),
            ("cache", self.path(SettingKey::CacheDir)),
            ("log", self.path(SettingKey::LogFile)),
            ("key", self.admin_key_file()),
            ("arrakis_key", self.arrakis_key_file()),
            ("sockets", state.join("v1/sandboxes")),
        ]
    }
}

/// The keys of the configuration file; unknown ones are refused.
fn read_file(path: &Path, required: bool) -> anyhow::Result<BTreeMap<String, String>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
            return Ok(BTreeMap::new());
        }
        Err(error) => {
            return Err(error).context(format!(
                "cannot read the configuration file `{}`",
                path.display()
            ));
        }
    };
    parse_file(&text)
        .with_context(|| format!("the configuration file `{}` is wrong", path.display()))
}

/// Keys below a table count with its name before them: `template` below `[arrakis]` is
/// `arrakis_template`.
fn flat(table: toml::Table) -> Vec<(String, toml::Value)> {
    let mut values = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(below) => values.extend(
                below
                    .into_iter()
                    .map(|(key, value)| (format!("{name}_{key}"), value)),
            ),
            value => values.push((name, value)),
        }
    }
    values
}

fn parse_file(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let table: toml::Table = text.parse()?;
    let mut values = BTreeMap::new();
    for (name, value) in flat(table) {
        if !SETTINGS[1..].iter().any(|setting| setting.name == name) {
            let known = SETTINGS[1..]
                .iter()
                .map(|setting| setting.name)
                .collect::<Vec<_>>()
                .join(", ");
            bail!("`{name}` is not a setting; there are {known}");
        }
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Array(items) => {
                let items = items
                    .iter()
                    .map(|item| item.as_str().context("a list may hold text only"));
                items.collect::<anyhow::Result<Vec<_>>>()?.join(",")
            }
            toml::Value::Integer(number) if NUMBERS.contains(&name.as_str()) => number.to_string(),
            _ => bail!("`{name}` must be text or a list of texts"),
        };
        values.insert(name, text);
    }
    Ok(values)
}

fn default_of(
    key: SettingKey,
    known: &BTreeMap<SettingKey, (String, Source)>,
    surroundings: &Surroundings<'_>,
) -> anyhow::Result<String> {
    let value = |key: SettingKey| known.get(&key).map_or("", |(value, _)| value.as_str());
    Ok(match key {
        SettingKey::ConfigFile | SettingKey::StateDir | SettingKey::CacheDir => {
            default_path(key, surroundings)?
        }
        SettingKey::LogFile => Path::new(value(SettingKey::StateDir))
            .join("daemon.log")
            .display()
            .to_string(),
        SettingKey::Listen => DEFAULT_LISTEN.to_owned(),
        SettingKey::Accel | SettingKey::Warm | SettingKey::TrackWrites | SettingKey::PortAccess => {
            "auto".to_owned()
        }
        SettingKey::ArrakisAuth => "local".to_owned(),
        SettingKey::PortBind => "127.0.0.1".to_owned(),
        SettingKey::PortRange => "20000-29999".to_owned(),
        SettingKey::Qemu => "qemu-system-x86_64".to_owned(),
        SettingKey::Log => "info".to_owned(),
        SettingKey::MaterializedMib => "4096".to_owned(),
        SettingKey::OtlpEndpoint => {
            (surroundings.variable)("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_default()
        }
        // `url` follows `listen`, which comes later in the table; see `url`.
        SettingKey::Url
        | SettingKey::ApiKey
        | SettingKey::PublicHosts
        | SettingKey::ArrakisTemplate
        | SettingKey::Dns
        | SettingKey::NetMibS
        | SettingKey::PublicUrl
        | SettingKey::ReserveMib
        | SettingKey::Limits
        | SettingKey::MaxSandboxes
        | SettingKey::MaxCpus
        | SettingKey::MaxMemoryMib
        | SettingKey::MaxSnapshotGib
        | SettingKey::MemoryReserveMib
        | SettingKey::MemoryOvercommit
        | SettingKey::DebianMirror => String::new(),
    })
}

/// Where the daemon listens when nothing else is said.
const DEFAULT_LISTEN: &str = "127.0.0.1:7000";

impl Config {
    /// The daemon's address: as given, else where a daemon of these settings listens.
    pub(crate) fn url(&self) -> String {
        match self.get(SettingKey::Url) {
            "" => {
                let listen = self.get(SettingKey::Listen);
                // A wildcard is no address to connect to.
                let reachable = listen
                    .replace("0.0.0.0", "127.0.0.1")
                    .replace("[::]", "[::1]");
                format!("http://{reachable}")
            }
            url => url.to_owned(),
        }
    }
}

fn default_path(key: SettingKey, surroundings: &Surroundings<'_>) -> anyhow::Result<String> {
    if surroundings.root {
        let path = match key {
            SettingKey::ConfigFile => "/etc/pando/pando.toml",
            SettingKey::StateDir => "/var/lib/pando",
            _ => "/var/cache/pando",
        };
        return Ok(path.to_owned());
    }
    let (variable, below_home, rest) = match key {
        SettingKey::ConfigFile => ("XDG_CONFIG_HOME", ".config", "pando/pando.toml"),
        SettingKey::StateDir => ("XDG_STATE_HOME", ".local/state", "pando"),
        _ => ("XDG_CACHE_HOME", ".cache", "pando"),
    };
    let base = match (surroundings.variable)(variable).filter(|path| Path::new(path).is_absolute())
    {
        Some(base) => PathBuf::from(base),
        None => {
            let home = (surroundings.variable)("HOME").filter(|home| !home.is_empty());
            PathBuf::from(
                home.context("HOME is not set: set it, or PANDO_STATE_DIR and PANDO_CACHE_DIR")?,
            )
            .join(below_home)
        }
    };
    Ok(base.join(rest).display().to_string())
}

/// Paths are made absolute once, so that nothing later depends on the working directory.
fn absolute(
    key: SettingKey,
    (value, source): (String, Source),
) -> anyhow::Result<(String, Source)> {
    match key {
        SettingKey::StateDir | SettingKey::CacheDir | SettingKey::LogFile => {
            let path =
                std::path::absolute(&value).with_context(|| format!("`{value}` is not a path"))?;
            Ok((path.display().to_string(), source))
        }
        _ => Ok((value, source)),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
