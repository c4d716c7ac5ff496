//! `make quickstart`: from a fresh clone to code that runs in a microVM.
//!
//! Every step finds out what is there already, so the task can be interrupted
//! and repeated; the second run only looks.

use crate::packages::{self, Purpose};
use crate::steps::{Steps, seconds};
use crate::{artifacts, daemon, in_ci};
use anyhow::{Context as _, Result, bail};
use pando_image::{BaseOptions, Progress};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install packages without asking; as if CI=true were set
    #[arg(long)]
    yes: bool,
    /// Let sandboxes trust the certificates that this machine trusts, for
    /// networks whose proxy intercepts TLS
    #[arg(long)]
    host_ca: bool,
}

/// Free space without which a build is not begun: the build takes 1.0 GB, the
/// template 0.4, and something is left to work with.
const NEEDED_BYTES: u64 = 2_500_000_000;

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let steps = Steps::start(root, "quickstart.log")?;
    let fresh = !artifacts::pando_path(root).exists();
    if fresh {
        introduce(&steps, root)?;
    }
    packages::set_up(root, &steps, Purpose::Run, options.yes || in_ci())?;
    let changed = build_side_by_side(&steps, root, options.host_ca)?;
    let link = steps.step("linking `pando`", || link(root))?;
    let mut bake = daemon::pando(root, &["template", "bake", "base"]);
    if options.host_ca {
        bake.arg("--host-ca");
    }
    steps.step("baking the base template", || steps.run(&mut bake))?;
    steps.step("starting the daemon", || {
        daemon::start(&steps, root, changed)
    })?;
    steps.step("running `print(6*7)` in a sandbox", || {
        daemon::run_code(&steps, root)
    })?;
    conclude(&steps, &link);
    Ok(())
}

fn introduce(steps: &Steps, root: &Path) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    eprintln!(
        "Pando quickstart: installs missing Debian packages (asks first), builds Pando, makes the\n\
         base template, starts the daemon and runs code in a sandbox. On two cores it takes about\n\
         ten minutes and 1.5 GB; this machine has {cores}. Ctrl-C is safe: run it again to go on.\n\
         Full log: {}\n",
        steps.log_path().display()
    );
    let output = std::process::Command::new("df")
        .args(["--output=avail", "-B1"])
        .arg(root)
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let free = text
        .ok()
        .and_then(|text| text.lines().nth(1)?.trim().parse::<u64>().ok());
    match free {
        Some(free) if free < NEEDED_BYTES => bail!(
            "`{}` has {:.1} GB free; quickstart needs {:.1}",
            root.display(),
            free as f64 / 1e9,
            NEEDED_BYTES as f64 / 1e9
        ),
        _ => Ok(()),
    }
}

/// The image waits for the network and for dpkg, the compiler for the
/// processor: together they take little longer than the compiler alone.
fn build_side_by_side(steps: &Steps, root: &Path, host_ca: bool) -> Result<bool> {
    std::thread::scope(|scope| {
        let image = scope.spawn(|| build_image(steps, host_ca));
        let built = steps
            .step("building the guest agent", || {
                artifacts::build_agent(steps, root)
            })
            .and_then(|()| {
                steps.step("building the library for QEMU", || {
                    artifacts::build_preload(steps, root)
                })
            })
            .and_then(|()| steps.step("building `pando`", || artifacts::build_pando(steps, root)));
        // Both are waited for: a failure of one must not leave the other half done.
        let image = image
            .join()
            .unwrap_or_else(|_| bail!("the image's builder panicked"));
        image.and(built)
    })
}

/// Makes the base image in the cache where `pando` will find it.
pub(crate) fn build_image(steps: &Steps, host_ca: bool) -> Result<()> {
    let mirror = std::env::var("PANDO_DEBIAN_MIRROR")
        .ok()
        .filter(|mirror| !mirror.is_empty());
    let options = BaseOptions {
        cache_dir: daemon::cache_dir(),
        mirror,
        host_ca,
    };
    let progress = |progress: Progress<'_>| match progress {
        Progress::Step(step) => steps.note(&format!("[image] --- {step}")),
        Progress::Line(line) => steps.note(&format!("[image] {line}")),
    };
    steps.step("making the base image", || {
        let image = pando_image::base::build(&options, &progress)?;
        steps.note(&format!("[image] {}", image.root.display()));
        Ok(())
    })
}

/// Links the program into a folder that `PATH` has or usually has.
fn link(root: &Path) -> Result<PathBuf> {
    let link = link_path()?;
    let program = artifacts::pando_path(root);
    if std::fs::read_link(&link).is_ok_and(|old| old == program) {
        return Ok(link);
    }
    match std::fs::symlink_metadata(&link) {
        Ok(found) if !found.is_symlink() => {
            bail!(
                "`{}` is there already and not a link; move it away",
                link.display()
            )
        }
        Ok(_) => std::fs::remove_file(&link)?,
        Err(_) => {}
    }
    let folder = link.parent().context("a link lies in a folder")?;
    std::fs::create_dir_all(folder)?;
    std::os::unix::fs::symlink(&program, &link)
        .with_context(|| format!("cannot link `{}`", link.display()))?;
    Ok(link)
}

/// Where the link to the program is or will be.
pub(crate) fn link_path() -> Result<PathBuf> {
    if packages::is_root() {
        return Ok("/usr/local/bin/pando".into());
    }
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(PathBuf::from(home).join(".local/bin/pando"))
}

fn conclude(steps: &Steps, link: &Path) {
    let folder = link.parent().unwrap_or(link);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|entry| entry == folder);
    eprintln!(
        "\nReady after {}. `pando` is linked as {}.",
        seconds(steps.elapsed()),
        link.display()
    );
    if !found {
        eprintln!(
            "That folder is not in your PATH: export PATH=\"{}:$PATH\"",
            folder.display()
        );
    }
    eprintln!(
        "Try next:\n\n    pando run -- python3 -c 'print(6*7)'\n    pando create --name first\n    \
         pando shell first\n"
    );
}
