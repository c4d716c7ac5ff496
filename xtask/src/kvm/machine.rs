//! The machine itself: a PC that QEMU emulates, with AMD's virtualization.
//!
//! Measured on two idle cores: it has booted after 15 s, and a VM with KVM inside it
//! boots in about as long. `la57` is off because nested paging of five levels is not
//! emulated.

use crate::steps::Steps;
use anyhow::{Context as _, Result, bail};
use pando_image::KvmHost;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Room for the page cache, and for sandboxes of 256 MiB.
const MEMORY_MIB: u32 = 4096;

/// The kernel's timer interrupts a second, for `lpj`: Debian's are built with 250.
const KERNEL_HZ: u64 = 250;

/// Lines of results that are kept; the script tells about forty.
const LINES_MAX: usize = 1000;

/// How often the console is looked at, where nothing is told.
const PAUSE: Duration = Duration::from_secs(2);

/// CPUs of the machine; the script says of each that it is alive.
const CPUS: usize = 2;

/// How long nothing may be said of a CPU: 24 times what is usual, and enough for a reboot.
const SILENCE: Duration = Duration::from_secs(120);

/// What the kernel writes there when it gives up.
const PANIC: &str = "Kernel panic - not syncing";

/// How a run of the machine ended.
pub(super) enum Ended {
    /// It told this.
    Told(Vec<String>),
    /// Its own kernel, which knows nothing of what is tested, gave up; says how.
    Died(&'static str),
}

/// Runs the machine until its test is done.
pub(super) fn run(
    steps: &Steps,
    host: &KvmHost,
    payload: &Path,
    console: &Path,
    until: Instant,
) -> Result<Ended> {
    let mut command = command(host, payload, console)?;
    steps.note(&format!("$ {command:?}"));
    let child = command.spawn().context("cannot run `qemu-system-x86_64`")?;
    let mut running = Running(child);
    let results = running.0.stdout.take().context("it has no output")?;
    let lines = lines(results);
    let mut beats = [Instant::now(); CPUS];
    let mut told = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left.min(PAUSE)) {
            Ok(line) if heard(&line, &mut beats) => {}
            Ok(line) => {
                steps.note(&line);
                let done = line == "done";
                told.push(line);
                // After a failure it stays up, and has told all that it will.
                if done {
                    break;
                }
                if told.len() > LINES_MAX {
                    bail!("the machine tells too much");
                }
            }
            // QEMU has closed it: the machine is off.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if has_panicked(console) => {
                return Ok(Ended::Died("panicked"));
            }
            Err(RecvTimeoutError::Timeout) if left > PAUSE => {}
            Err(RecvTimeoutError::Timeout) => {
                told.push("not ok the whole: it took too long".to_owned());
                break;
            }
        }
        if beats.iter().any(|beat| beat.elapsed() > SILENCE) {
            return Ok(Ended::Died("hung: one of its CPUs runs no programs"));
        }
    }
    Ok(Ended::Told(told))
}

/// Whether a line says that a CPU is alive; notes when.
fn heard(line: &str, beats: &mut [Instant; CPUS]) -> bool {
    let cpu = line.strip_prefix("alive ").and_then(|cpu| cpu.parse().ok());
    match cpu.and_then(|cpu: usize| beats.get_mut(cpu)) {
        Some(beat) => {
            *beat = Instant::now();
            true
        }
        None => false,
    }
}

fn has_panicked(console: &Path) -> bool {
    let written = std::fs::read(console).unwrap_or_default();
    String::from_utf8_lossy(&written).contains(PANIC)
}

/// Killed when it is no longer looked at.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn lines(results: ChildStdout) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(results).lines() {
            let Ok(line) = line else { break };
            if send.send(line.trim_end().to_owned()).is_err() {
                break;
            }
        }
    });
    receive
}

fn command(host: &KvmHost, payload: &Path, console: &Path) -> Result<Command> {
    let khz = pando_sys::clock::measure_tsc_khz().context("there is no time stamp counter")?;
    let drive = |id: &str, path: &Path, rest: &str| {
        // QEMU takes a doubled comma for one.
        let path = path.display().to_string().replace(',', ",,");
        format!("if=none,id={id},file={path},{rest}")
    };
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-no-user-config", "-nodefaults", "-display", "none"]);
    command.args(["-machine", "q35", "-cpu", "max,-la57"]);
    command.args(["-smp", &CPUS.to_string()]);
    command.args(["-accel", "tcg,thread=multi,tb-size=512"]);
    command.args(["-m", &MEMORY_MIB.to_string()]);
    command.arg("-kernel").arg(&host.kernel);
    command.arg("-initrd").arg(&host.initrd);
    command.args(["-append", &kernel_arguments(khz)]);
    // What it writes is forgotten with it; a reboot keeps it.
    let root = drive("root", &host.root, "format=qcow2,snapshot=on,cache=unsafe");
    command.args(["-drive", &root, "-device", "virtio-blk-pci,drive=root"]);
    let payload = drive("payload", payload, "format=raw,readonly=on");
    command.args([
        "-drive",
        &payload,
        "-device",
        "virtio-blk-pci,drive=payload",
    ]);
    command.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
    // Not `stdio`, which takes the end of its input for the end of both.
    command.args(["-chardev", "file,id=results,path=/dev/stdout"]);
    command.args([
        "-device",
        "virtserialport,chardev=results,name=pando.results",
    ]);
    command.args(["-serial", "chardev:console", "-chardev"]);
    command.arg(format!("file,id=console,path={}", console.display()));
    let errors = File::create(console.with_extension("qemu.log"))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors);
    Ok(command)
}

/// The emulator's timers are too coarse for the kernel to find the rate of the time
/// stamp counter by: it is told. What else costs emulated time for nothing is off.
fn kernel_arguments(khz: u32) -> String {
    let loops_per_jiffy = u64::from(khz) * 1000 / KERNEL_HZ;
    format!(
        "console=ttyS0 quiet systemd.show_status=0 mitigations=off nowatchdog \
         rcupdate.rcu_cpu_stall_suppress=1 tsc=reliable no_timer_check tsc_early_khz={khz} \
         lpj={loops_per_jiffy}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_counts_for_its_own_cpu() {
        let long_ago = Instant::now() - SILENCE;
        let mut beats = [long_ago; CPUS];
        assert!(heard("alive 1", &mut beats));
        assert!(beats[0] == long_ago && beats[1] > long_ago);
        for other in ["alive 2", "alive", "alive x", "ok alive 1", "done"] {
            assert!(!heard(other, &mut beats), "{other}");
        }
        assert_eq!(beats[0], long_ago);
    }
}
