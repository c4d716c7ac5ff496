//! Stands in for a QEMU or a shim that was taken over: see `pando_e2e::jail`.
//!
//! ```text
//! jail-probe start FILE   starts it in a sandbox's directory, as the daemon would, and
//!                         prints its report
//! jail-probe shim .       as the daemon starts a shim
//! jail-probe …            as a shim starts QEMU
//! ```

use pando_e2e::jail::{
    ATTEMPTS, OWN_VMM_MEMORY, Outcome, Report, Role, Start, Stop, TARGETS, Targets,
};
use pando_engine::stand_in::StandIn;
use pando_shim::spec::ShimSpec;
use pando_store::{SandboxDir, SandboxDirs};
use pando_sys::jail::{Layer, Layers, attempts};
use std::error::Error;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long the shim's QEMU may take to be there, on a busy machine.
const VMM_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a QEMU that has nothing to do waits for its end, which its shim brings.
const IDLE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["start", file] => start(&serde_json::from_slice(&fs::read(file)?)?),
        ["shim", "."] => shim(),
        _ => vmm(),
    }
}

fn start(config: &Start) -> Result<()> {
    let shared_memory = attempts::make_shared_memory()?;
    let mut targets = Targets {
        shared_memory,
        ..config.targets.clone()
    };
    let started = move_in(config, &mut targets).and_then(|(dir, spec)| {
        let layers = layers(&config.off)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .worker_threads(1)
            .build()?;
        runtime.block_on(async {
            let probe = StandIn::start(&config.program, &dir, &spec, layers).await?;
            probe.settled().await;
            probe.kill().await;
            Ok(())
        })
    });
    attempts::remove_shared_memory(shared_memory)?;
    let report = fs::read(config.home.join(&targets.report));
    let log = fs::read_to_string(config.home.join("shim.log")).unwrap_or_default();
    fs::remove_dir_all(&config.home)?;
    started?;
    let report: Report =
        serde_json::from_slice(&report?).map_err(|error| format!("no report: {error}\n{log}"))?;
    io::stdout().write_all(&serde_json::to_vec(&report)?)?;
    Ok(())
}

fn layers(off: &[String]) -> Result<Layers> {
    off.iter().try_fold(Layers::ALL, |layers, name| {
        let layer = Layer::named(name).ok_or_else(|| format!("no layer `{name}`"))?;
        Ok(layers.without(layer))
    })
}

/// Lays out the probe's directory as the donor's is: the same spec, links to the same
/// layers, but for the one that the shim makes.
fn move_in(config: &Start, targets: &mut Targets) -> Result<(SandboxDir, ShimSpec)> {
    let text = fs::read(config.donor.join("spec.json"))?;
    let mut spec: ShimSpec = serde_json::from_slice(&text)?;
    let (parent, name) = (config.home.parent(), config.home.file_name());
    let (parent, name) = (parent.ok_or("no parent")?, name.ok_or("no name")?);
    let name = name.to_string_lossy().into_owned();
    let dir = SandboxDirs::open(parent)?.create(&name.parse().map_err(|_| "not an id")?)?;
    spec.sandbox_id = name;
    spec.qemu.clone_from(&config.program);
    let own = pando_shim::spec::disk(spec.disks - 1);
    targets.report = match targets.role {
        Role::Qemu => Path::new(pando_store::SLOT).join(&own),
        Role::Shim => Path::new(pando_store::SHIM).join("report.json"),
    };
    for entry in fs::read_dir(config.donor.join(pando_store::SLOT))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != own && entry.metadata()?.permissions().readonly() {
            dir.link(&entry.path(), &name)?;
        }
    }
    fs::write(dir.slot().join(&targets.own_file), "its own")?;
    fs::write(dir.slot().join(TARGETS), serde_json::to_vec(targets)?)?;
    Ok((dir, spec))
}

/// What there is to be reached; everybody's working directory is the slot from here on.
fn targets(slot: &Path) -> Result<Targets> {
    std::env::set_current_dir(slot)?;
    let targets: Targets = serde_json::from_slice(&fs::read(TARGETS)?)?;
    let parent = rustix::process::getppid().ok_or("no parent")?;
    let parent = parent.as_raw_nonzero().get().unsigned_abs();
    Ok(Targets { parent, ..targets })
}

fn try_everything(targets: &Targets) -> Report {
    let worth_it = |stop| !matches!(stop, Stop::Pointless);
    ATTEMPTS
        .iter()
        .filter(|attempt| worth_it(attempt.stop(targets.role)))
        .map(|attempt| {
            let result = attempts::in_child(|| (attempt.run)(targets));
            (attempt.name.to_owned(), Outcome::of(result))
        })
        .collect()
}

fn vmm() -> Result<()> {
    let targets = targets(Path::new("."))?;
    if targets.role == Role::Shim {
        std::thread::sleep(IDLE);
        return Ok(());
    }
    let report = serde_json::to_vec(&try_everything(&targets))?;
    // The disk, the one file that a QEMU may write; it was made a moment ago.
    let path = Path::new("..").join(&targets.report);
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?
        .write_all(&report)?;
    Ok(())
}

fn shim() -> Result<()> {
    let home = std::env::current_dir()?;
    let targets = targets(&home.join(pando_store::SLOT))?;
    if targets.role == Role::Qemu {
        std::env::set_current_dir(&home)?;
        return run_shim(&home);
    }
    let mut report = try_everything(&targets);
    // Only now: attempts are made without other threads.
    std::env::set_current_dir(&home)?;
    std::thread::spawn(move || run_shim(&home).map_err(|error| error.to_string()));
    report.insert(OWN_VMM_MEMORY.to_owned(), Outcome::of(own_vmm()));
    fs::write(&targets.report, serde_json::to_vec(&report)?)?;
    Ok(())
}

/// What `pando shim` does.
fn run_shim(home: &Path) -> Result<()> {
    let listener = pando_sys::socket::take_inherited_listener(pando_shim::LISTENER_FD)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(1)
        .build()?;
    Ok(runtime.block_on(pando_shim::run(home, listener))?)
}

/// Reads the memory of the QEMU that was started in the meantime, as snapshots do.
fn own_vmm() -> io::Result<()> {
    let deadline = Instant::now() + VMM_TIMEOUT;
    loop {
        for thread in fs::read_dir("/proc/self/task")? {
            let children = fs::read_to_string(thread?.path().join("children"))?;
            if let Some(pid) = children.split_whitespace().find_map(|pid| pid.parse().ok()) {
                return attempts::read_memory(pid);
            }
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
