//! Swap space of a test's own. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Asks the kernel to swap a process' memory out: pidfd_open, then process_madvise with
/// MADV_PAGEOUT on each range. In Perl, which is everywhere and has system calls.
const PAGE_OUT: &str = r#"
    my ($pid, @ranges) = @ARGV;
    my $process = syscall(434, $pid + 0, 0);
    die "pidfd_open: $!" if $process < 0;
    for (@ranges) {
        my ($start, $end) = map { hex } split /-/;
        while ($start < $end) {
            my $range = pack("QQ", $start, $end - $start);
            my $done = syscall(440, $process, $range, 1, 21, 0);
            die "process_madvise: $!" if $done <= 0;
            $start += $done;
        }
    }
"#;

/// A swap file in use until it is dropped.
pub struct SwapFile {
    path: PathBuf,
}

impl SwapFile {
    /// Makes one of this size and takes it into use.
    pub fn on(path: &Path, mib: u32) -> Self {
        let file = path.to_str().expect("text");
        run("fallocate", &["-l", &format!("{mib}MiB"), file]);
        run("chmod", &["600", file]);
        run("mkswap", &[file]);
        run("swapon", &[file]);
        Self {
            path: path.to_owned(),
        }
    }

    /// Pushes a process' mappings of the file that ends so out; returns the MiB of them that
    /// are in swap then.
    pub fn push_out(&self, pid: u32, file: &str) -> u64 {
        let ranges: Vec<String> = mappings(pid, file)
            .into_iter()
            .map(|(range, _)| range)
            .collect();
        assert!(!ranges.is_empty(), "{pid} maps no `{file}`");
        let pid_text = pid.to_string();
        let mut arguments = vec!["-e", PAGE_OUT, &pid_text];
        arguments.extend(ranges.iter().map(String::as_str));
        run("perl", &arguments);
        let swapped_kib: u64 = mappings(pid, file).into_iter().map(|(_, kib)| kib).sum();
        swapped_kib >> 10
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let off = Command::new("swapoff").arg(&self.path).status();
        let is_off = off.is_ok_and(|status| status.success());
        if !is_off && !std::thread::panicking() {
            panic!("`{}` is still in use as swap", self.path.display());
        }
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("`{program}`: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{program}`: {stderr}");
}

/// The address ranges at which a process maps the file that ends so, each with its KiB in swap.
fn mappings(pid: u32, file: &str) -> Vec<(String, u64)> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("the process");
    let mut found = Vec::new();
    let mut is_of_file = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first.contains('-') {
            is_of_file = line.ends_with(file);
            if is_of_file {
                found.push((first.to_owned(), 0));
            }
        } else if let (true, "Swap:", Some((_, swapped_kib))) =
            (is_of_file, first, found.last_mut())
        {
            *swapped_kib = words.next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        }
    }
    found
}
