//! `pando serve`: the daemon, in the foreground or left in the background.

use super::doctor::{Check, Outcome};
use super::{block_on, client, limits};
use crate::agent;
use crate::cli::{Bake, Global, Serve};
use crate::config::{ARRAKIS_ALWAYS, Config, SettingKey};
use crate::daemon_log::{self, RotatingFile, tail};
use crate::exit::{self, Failure};
use crate::output;
use crate::preload::PRELOAD;
use crate::supervisor;
use anyhow::Context as _;
use pando_client::ClientError;
use pando_engine::request::Caller;
use pando_engine::{
    AcceleratorWish, Access, BakeOptions, Engine, EngineConfig, OpenError, PoolConfig, PortsConfig,
    WarmCount,
};
use pando_http::{ArrakisConfig, HttpConfig, PublicUrl};
use pando_shim::host::QemuVersion;
use pando_sys::cgroup::{self, Cgroups, NotDelegated};
use pando_trace::{Endpoint, Exporter};
use pando_types::{Accelerator, Size};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{FilterExt as _, FilterFn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// How long a daemon in the background may take to answer: it may first find out
/// whether KVM works, and take over many sandboxes.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// How often we look.
const READY_PAUSE: Duration = Duration::from_millis(25);

/// How long one question may wait, so that a daemon that ends meanwhile is noticed.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines of the log shown when it does not come up.
const LOG_LINES: usize = 10;

/// The tenant of whoever runs the daemon.
const TENANT: &str = "default";

/// Runs the daemon, or starts one in the background.
pub(super) fn serve(global: &Global, flags: &Serve) -> anyhow::Result<u8> {
    let settings: Vec<_> = global
        .settings()
        .into_iter()
        .chain(flags.settings())
        .collect();
    let config = Config::of_process(&settings)?;
    if flags.detach {
        return block_on(detach(&config));
    }
    if flags.in_background {
        // A session of our own: a closing terminal says nothing to us.
        let _ = rustix::process::setsid();
    }
    // Dropped last: it sends what is left.
    let _traces = start_log(&config, flags.in_background)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build();
    let runtime = runtime.context("cannot start")?;
    let served = runtime.block_on(run(&config, flags.in_background));
    // Streams of processes are cut; their clients attach again to the next daemon.
    runtime.shutdown_background();
    served.map(|()| exit::DONE)
}

/// Threads of the daemon: it waits far more than it works.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8))
}

async fn run(config: &Config, in_background: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch signals")?;
    // Before anything is opened: a port that is taken is the likeliest fault.
    let listener = listen(config.get(SettingKey::Listen)).await?;
    // Before the engine starts a process.
    let groups = cgroup::take_over();
    supervisor::starting();
    let engine = open_engine(engine_config(config)?).await?;
    tell_of_groups(groups);
    let address = listener.local_addr().context("cannot listen")?;
    tracing::info!(%address, "serving");
    if let Some(why) = super::jail::below_floor() {
        tracing::warn!("{why}; `pando doctor` says more");
    }
    if !in_background {
        // For whoever asked for port 0: the one line on stdout.
        output::line(&format!("http://{address}"));
        output::note("serving; Ctrl-C ends the daemon, sandboxes run on");
    }
    let ending = CancellationToken::new();
    let mcp = pando_mcp::router(own_url(address), ending.clone());
    let ended = engine.clone();
    let shutdown = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("ending");
        supervisor::stopping();
        ended.end_calls();
        // Its streams are endless: the listener would wait for them.
        ending.cancel();
    };
    let http = HttpConfig {
        public_hosts: config.public_hosts(),
        public_url: public_url(config)?,
        arrakis: arrakis_config(config)?,
        routes: mcp,
    };
    // Whoever connects from now on is answered: nothing that could fail is left.
    supervisor::ready(address);
    let served = pando_http::serve(listener, engine.clone(), http, shutdown).await;
    engine.close_pool().await;
    served.context("cannot serve")
}

/// Where this daemon reaches itself.
fn own_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// Whether the host lets sandboxes be limited by control groups.
fn tell_of_groups(groups: Result<&Cgroups, NotDelegated>) {
    match groups {
        Ok(groups) => {
            tracing::info!(path = %groups.root().display(), "sandboxes get control groups");
        }
        Err(error) => tracing::info!("sandboxes get no control groups: {error}"),
    }
}

async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let failure = Failure::new(exit::FAILED, format!("cannot listen on `{address}`: {error}"));
        match error.kind() {
            std::io::ErrorKind::AddrInUse => failure
                .hint("`pando status` tells whether a daemon runs there; `--listen 127.0.0.1:PORT` takes another port"),
            _ => failure,
        }
        .into()
    })
}

async fn open_engine(config: EngineConfig) -> anyhow::Result<Engine> {
    Engine::open(config).await.map_err(|error| match error {
        OpenError::AlreadyRunning(_) => Failure::new(exit::FAILED, error.to_string())
            .hint("`pando status` shows it, `pando stop` ends it; PANDO_STATE_DIR names another directory")
            .into(),
        error => anyhow::Error::new(error),
    })
}

fn engine_config(config: &Config) -> anyhow::Result<EngineConfig> {
    Ok(EngineConfig {
        state_dir: config.path(SettingKey::StateDir),
        cache_dir: config.path(SettingKey::CacheDir),
        admin_key: config.admin_key_file(),
        tenants: vec![(pando_http::ARRAKIS_TENANT, config.arrakis_key_file())],
        qemu: find_program(config.get(SettingKey::Qemu)),
        accelerator: match wish(config.get(SettingKey::Accel)) {
            Some(wish) => wish,
            None => {
                let accel = config.get(SettingKey::Accel);
                let message = format!("`accel` is `{accel}`: choose auto, kvm or tcg");
                return Err(Failure::usage(message).into());
            }
        },
        shim_program: std::env::current_exe().context("cannot find this program's file")?,
        agent: agent::agent()?,
        preload: match config.get(SettingKey::TrackWrites) {
            "auto" => PRELOAD,
            "compare" => &[],
            other => {
                let message = format!("`track_writes` is `{other}`: choose auto or compare");
                return Err(Failure::usage(message).into());
            }
        },
        pool: pool_config(config)?,
        admission: limits::admission(config)?,
        limits: limits::defaults(config)?,
        ports: ports_config(config)?,
        // It has a default: without one nothing is put together.
        materialized_mib: number(config, SettingKey::MaterializedMib, "materialized_mib")?
            .unwrap_or_default(),
        bandwidth_bytes_per_second: number(config, SettingKey::NetMibS, "net_mib_s")?
            .map(|mib| mib.saturating_mul(1 << 20)),
        dns: config.dns()?,
        debian_mirror: Some(config.get(SettingKey::DebianMirror).to_owned())
            .filter(|mirror| !mirror.is_empty()),
    })
}

fn pool_config(config: &Config) -> anyhow::Result<PoolConfig> {
    let warm = config.get(SettingKey::Warm).parse();
    let warm = warm.map_err(|error: String| Failure::usage(format!("`warm`: {error}")))?;
    let reserve_mib = number(config, SettingKey::ReserveMib, "reserve_mib")?;
    Ok(PoolConfig { warm, reserve_mib })
}

fn public_url(config: &Config) -> anyhow::Result<Option<PublicUrl>> {
    let text = Some(config.get(SettingKey::PublicUrl)).filter(|text| !text.is_empty());
    let url = text.map(str::parse).transpose();
    url.map_err(|error| Failure::usage(format!("`public_url`: {error}")).into())
}

fn arrakis_config(config: &Config) -> anyhow::Result<ArrakisConfig> {
    let template = Some(config.get(SettingKey::ArrakisTemplate)).filter(|name| !name.is_empty());
    let template = template.map(str::parse).transpose();
    let auth = config.get(SettingKey::ArrakisAuth);
    Ok(ArrakisConfig {
        template: template
            .map_err(|error| Failure::usage(format!("`arrakis_template`: {error}")))?,
        demands_key: match auth {
            "local" => false,
            ARRAKIS_ALWAYS => true,
            _ => {
                let message = format!("`arrakis_auth` is `{auth}`: choose local or always");
                return Err(Failure::usage(message).into());
            }
        },
    })
}

fn ports_config(config: &Config) -> anyhow::Result<PortsConfig> {
    let wrong = |name: &str, value: &str, what: &str| -> anyhow::Error {
        Failure::usage(format!("`{name}` is `{value}`: {what}")).into()
    };
    let bind = config.get(SettingKey::PortBind);
    let range = config.get(SettingKey::PortRange);
    let access = match config.get(SettingKey::PortAccess) {
        "auto" if is_private(config) => Access::Public,
        "auto" => Access::Token,
        word => word
            .parse()
            .map_err(|_| wrong("port_access", word, "choose auto, public or token"))?,
    };
    Ok(PortsConfig {
        bind: bind
            .parse()
            .map_err(|_| wrong("port_bind", bind, "give an IP address"))?,
        range: port_range(range)
            .ok_or_else(|| wrong("port_range", range, "give two ports, such as 20000-29999"))?,
        access,
    })
}

fn port_range(text: &str) -> Option<std::ops::RangeInclusive<u16>> {
    let (first, last) = text.split_once('-')?;
    let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < first && first <= last).then_some(first..=last)
}

/// Whether the daemon is for programs of this machine alone.
fn is_private(config: &Config) -> bool {
    let listen = config.get(SettingKey::Listen);
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    let loopback = address.map_or(host == "localhost", |address| address.is_loopback());
    loopback && config.get(SettingKey::PublicUrl).is_empty()
}

/// A setting that is a number, or is not set.
pub(super) fn number(config: &Config, key: SettingKey, name: &str) -> anyhow::Result<Option<u64>> {
    match config.get(key) {
        "" => Ok(None),
        text => {
            let malformed = || Failure::usage(format!("`{name}` is `{text}`: give a number"));
            Ok(Some(text.parse().map_err(|_| malformed())?))
        }
    }
}

fn wish(word: &str) -> Option<AcceleratorWish> {
    Some(match word {
        "auto" => AcceleratorWish::Auto,
        "kvm" => AcceleratorWish::Kvm,
        "tcg" => AcceleratorWish::Tcg,
        _ => return None,
    })
}

/// A program by its path, or looked up in PATH: the daemon's children get an environment without one.
fn find_program(name: &str) -> PathBuf {
    if name.contains('/') {
        return PathBuf::from(name);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file());
    found.unwrap_or_else(|| PathBuf::from(name))
}

/// Begins to log, and to trace where that is wished.
fn start_log(config: &Config, in_background: bool) -> anyhow::Result<Option<Exporter>> {
    let filter = daemon_log::filter(config.get(SettingKey::Log))?;
    let writer = if in_background {
        let path = config.path(SettingKey::LogFile);
        let file = RotatingFile::open(&path)
            .with_context(|| format!("cannot write the log `{}`", path.display()))?;
        BoxMakeWriter::new(Mutex::new(file))
    } else {
        BoxMakeWriter::new(std::io::stderr)
    };
    let traces = start_traces(config)?;
    let spans = FilterFn::new(|metadata| metadata.target() != pando_trace::TARGET);
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(writer)
        .with_filter(filter.and(spans));
    tracing_subscriber::registry()
        .with(traces.as_ref().map(Exporter::layer))
        .with(log)
        .init();
    Ok(traces)
}

fn start_traces(config: &Config) -> anyhow::Result<Option<Exporter>> {
    let endpoint = match config.get(SettingKey::OtlpEndpoint) {
        "" => return Ok(None),
        text => text
            .parse::<Endpoint>()
            .map_err(|error| Failure::usage(format!("`otlp_endpoint` is `{text}`: {error}")))?,
    };
    Ok(Some(Exporter::start(&endpoint, env!("CARGO_PKG_VERSION"))?))
}

/// Starts a daemon in the background and waits until it answers.
async fn detach(config: &Config) -> anyhow::Result<u8> {
    let client = client(config)?;
    if client.health().await.is_ok() {
        let failure = Failure::new(
            exit::FAILED,
            format!("a daemon already runs at {}", config.url()),
        );
        return Err(failure
            .hint("`pando status` shows it, `pando stop` ends it")
            .into());
    }
    let log = config.path(SettingKey::LogFile);
    let before = fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let mut child = spawn_daemon(config, &log)?;
    let began = Instant::now();
    loop {
        // Its socket is there before it answers, so a question may wait.
        match tokio::time::timeout(HEALTH_TIMEOUT, client.health()).await {
            Ok(Ok(())) => break,
            Ok(Err(ClientError::NotReachable { .. } | ClientError::Broken(_))) | Err(_) => {}
            Ok(Err(error)) => return Err(error.into()),
        }
        if let Some(status) = child.try_wait().context("cannot look after the daemon")? {
            return Err(not_up(&log, before, &format!("it ended: {status}")));
        }
        if began.elapsed() > READY_DEADLINE {
            return Err(not_up(
                &log,
                before,
                &format!("it does not answer after {} s", READY_DEADLINE.as_secs()),
            ));
        }
        tokio::time::sleep(READY_PAUSE).await;
    }
    output::note(&format!(
        "the daemon runs at {}, process {}; its log is {}",
        config.url(),
        child.id(),
        log.display()
    ));
    Ok(exit::DONE)
}

fn spawn_daemon(config: &Config, log: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    // What is printed before the log is open, and a panic, go to the log too.
    if let Some(directory) = log.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make `{}`", directory.display()))?;
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(log);
    let file = file.with_context(|| format!("cannot write the log `{}`", log.display()))?;
    let mut command = std::process::Command::new(program);
    command
        .args(background_arguments(config))
        .current_dir("/")
        // Left in the background it is nobody's service.
        .env_remove(supervisor::NOTIFY_SOCKET)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file);
    command.spawn().context("cannot start the daemon")
}

/// What a daemon in the background is told: whatever this one was, be it by a flag or not.
fn background_arguments(config: &Config) -> Vec<String> {
    let mut arguments = vec!["serve".to_owned(), "--in-background".to_owned()];
    for (flag, key) in [
        ("--listen", SettingKey::Listen),
        ("--accel", SettingKey::Accel),
        ("--warm", SettingKey::Warm),
        ("--public-url", SettingKey::PublicUrl),
        ("--port-bind", SettingKey::PortBind),
        ("--port-range", SettingKey::PortRange),
        ("--port-access", SettingKey::PortAccess),
        ("--state-dir", SettingKey::StateDir),
    ] {
        if !config.get(key).is_empty() {
            arguments.extend([flag.to_owned(), config.get(key).to_owned()]);
        }
    }
    if config.source(SettingKey::ConfigFile) != crate::config::Source::Default {
        let file = config.get(SettingKey::ConfigFile).to_owned();
        arguments.extend(["--config".to_owned(), file]);
    }
    if config.get(SettingKey::ArrakisAuth) == ARRAKIS_ALWAYS {
        arguments.push("--arrakis-auth".to_owned());
    }
    arguments
}

/// Says why, with what this daemon, and none before it, wrote into its log.
fn not_up(log: &Path, before: u64, why: &str) -> anyhow::Error {
    let mut message = format!("the daemon did not come up: {why}");
    if let Ok(text) = tail(log, before, LOG_LINES)
        && !text.is_empty()
    {
        message.push_str("; the end of its log:");
        text.lines()
            .for_each(|line| message.push_str(&format!("\n    {line}")));
    }
    Failure::new(exit::FAILED, message)
        .hint("`pando doctor` checks what the host lacks")
        .into()
}

/// Makes a template in this process, for a machine whose daemon does not run yet.
pub(super) fn bake_here(config: &Config, flags: &Bake) -> anyhow::Result<u8> {
    let template = flags
        .name
        .parse()
        .map_err(|error| Failure::usage(format!("{error}")))?;
    let size = Size::new(
        flags.cpus.unwrap_or(Size::DEFAULT.cpus()),
        flags.memory.unwrap_or(Size::DEFAULT.memory_mib()),
    );
    let size = Some(size.map_err(|error| Failure::usage(error.to_string()))?);
    let options = BakeOptions {
        host_ca: flags.host_ca,
        size,
    };
    let caller = Caller {
        tenant: TENANT.to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build();
    let runtime = runtime.context("cannot start")?;
    let made = runtime.block_on(async {
        // It makes a template and ends: nothing is to wait.
        let pool = PoolConfig {
            warm: WarmCount::Fixed(0),
            reserve_mib: None,
        };
        let config = engine_config(config)?;
        let engine = open_engine(EngineConfig { pool, ..config }).await?;
        anyhow::Ok(
            engine
                .bake_template(&caller, &template, options, |step: &str| output::note(step))
                .await?,
        )
    });
    output::line(&made?.reference.to_string());
    Ok(exit::DONE)
}

/// What `doctor` checks without a daemon.
pub(super) fn host_checks(config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    let qemu = find_program(config.get(SettingKey::Qemu));
    match QemuVersion::probe(&qemu) {
        Ok(version) => {
            checks.push(Check::new("qemu", Outcome::Ok, version.full()));
            checks.push(check_accelerator(config, &qemu, &version));
        }
        Err(error) => checks.push(Check::new("qemu", Outcome::Failed, error.to_string())),
    }
    checks.extend(super::jail::checks());
    checks.push(check_ports(config));
    checks.push(match agent::agent() {
        Ok(agent) => Check::new("agent", Outcome::Ok, output::bytes(agent.len() as u64)),
        Err(error) => Check::new("agent", Outcome::Failed, error.to_string()),
    });
    checks.push(match PRELOAD.len() {
        0 => Check::new(
            "preload",
            Outcome::Warning,
            "this `pando` was built without the library for QEMU: snapshots of running sandboxes take longer",
        ),
        bytes => Check::new("preload", Outcome::Ok, output::bytes(bytes as u64)),
    });
    checks
}

/// The ports that the kernel takes for outgoing connections, where it says.
const EPHEMERAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Whether the ports that are given to sandboxes are nobody else's.
fn check_ports(config: &Config) -> Check {
    let check = |outcome, text: String| Check::new("ports", outcome, text);
    let range = match ports_config(config) {
        Ok(ports) => ports.range,
        Err(error) => return check(Outcome::Failed, error.to_string()),
    };
    let shown = format!("{}-{}", range.start(), range.end());
    let kernels = fs::read_to_string(EPHEMERAL_PORTS).unwrap_or_default();
    let kernels = kernels.split_whitespace().collect::<Vec<_>>().join("-");
    match port_range(&kernels) {
        Some(kernels) if overlap(&range, &kernels) => check(
            Outcome::Warning,
            format!(
                "{shown} meets {}-{}, from which outgoing connections take theirs: change `port_range`",
                kernels.start(),
                kernels.end()
            ),
        ),
        _ => check(Outcome::Ok, shown),
    }
}

fn overlap(one: &std::ops::RangeInclusive<u16>, other: &std::ops::RangeInclusive<u16>) -> bool {
    one.start() <= other.end() && other.start() <= one.end()
}

/// How guests are run here, and why; starts a small guest unless that was done since the
/// host's start.
fn check_accelerator(config: &Config, qemu: &Path, version: &QemuVersion) -> Check {
    let wish = wish(config.get(SettingKey::Accel)).unwrap_or(AcceleratorWish::Auto);
    let cache = config.path(SettingKey::CacheDir).join("accelerator");
    match pando_shim::host::accelerator(qemu, version, wish, Some(&cache)) {
        Ok(found) => {
            let (outcome, than) = match found.accelerator {
                Accelerator::Kvm => (Outcome::Ok, ""),
                Accelerator::Tcg => (Outcome::Warning, ", several times slower than kvm"),
            };
            let text = format!("{}{than} ({})", found.accelerator, found.reason);
            Check::new("accelerator", outcome, text)
        }
        Err(error) => Check::new("accelerator", Outcome::Failed, error.to_string()),
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
