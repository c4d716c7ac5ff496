//! What `/proc` says of a process: memory and processor time. Pure parsers, and thin
//! readers over them.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

/// Memory in KiB as `VmRSS` and `VmHWM` of `status` have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) now_kib: u64,
    pub(crate) peak_kib: u64,
}

/// Private memory of a VMM in KiB, by what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VmmMemory {
    /// Of the guest's RAM: Anonymous + Swap. Clean pages of the snapshot's file are shared
    /// by all siblings.
    pub(crate) guest_kib: u64,
    /// Of all else: Private_Clean + Private_Dirty + Swap.
    pub(crate) rest_kib: u64,
}

/// Resident memory of a process.
pub(crate) fn resident(pid: u32) -> io::Result<Resident> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    parse_status(&text).ok_or_else(|| odd("status"))
}

/// Lets the peak begin anew; not allowed everywhere.
pub(crate) fn reset_peak(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// Private memory of a VMM.
pub(crate) fn vmm_memory(pid: u32) -> io::Result<VmmMemory> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    parse_smaps(&text).ok_or_else(|| odd("smaps without the guest's memory"))
}

/// Private memory of any process, in KiB.
pub(crate) fn private_kib(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(sum(text.lines(), &PRIVATE))
}

/// Open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// An address of this host that is no loopback one.
pub(crate) fn host_address() -> io::Result<Ipv4Addr> {
    let text = fs::read_to_string("/proc/net/fib_trie")?;
    parse_addresses(&text).ok_or_else(|| odd("no address but loopback ones"))
}

/// Processor time that a process has used, in clock ticks.
pub(crate) fn cpu_ticks(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text)
        .map(|stat| stat.ticks)
        .ok_or_else(|| odd("stat"))
}

/// The command line of a process.
pub(crate) fn arguments(pid: u32) -> io::Result<Vec<String>> {
    let text = String::from_utf8(fs::read(format!("/proc/{pid}/cmdline"))?);
    let text = text.map_err(|_| odd("a command line that is not text"))?;
    let words = text.split_terminator('\0');
    Ok(words.map(str::to_owned).collect())
}

/// A child of a process.
pub(crate) fn child_of(parent: u32) -> io::Result<u32> {
    for pid in processes()? {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if parse_stat(&text).is_some_and(|stat| stat.parent == parent) {
            return Ok(pid);
        }
    }
    Err(odd("no child process"))
}

/// Processes whose command line is like this; its words end with NUL.
pub(crate) fn matching(wanted: impl Fn(&str) -> bool) -> io::Result<Vec<u32>> {
    let matches = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        wanted(&String::from_utf8_lossy(&line))
    };
    Ok(processes()?.into_iter().filter(matches).collect())
}

/// Processes whose working directory is in this one: a VMM need not name it.
pub(crate) fn working_in(directory: &Path) -> Vec<u32> {
    let works = |pid: &u32| {
        let place = fs::read_link(format!("/proc/{pid}/cwd"));
        place.is_ok_and(|place| place.starts_with(directory))
    };
    processes()
        .unwrap_or_default()
        .into_iter()
        .filter(works)
        .collect()
}

fn processes() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?;
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    Ok(pids.collect())
}

fn odd(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const PRIVATE: [&str; 3] = ["Private_Clean", "Private_Dirty", "Swap"];

/// The value of `Name:   12 kB`.
fn kib(line: &str, name: &str) -> Option<u64> {
    let rest = line.strip_prefix(name)?.strip_prefix(':')?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The sum of these fields over all lines.
fn sum<'a>(lines: impl Iterator<Item = &'a str>, names: &[&str]) -> u64 {
    lines
        .filter_map(|line| names.iter().find_map(|name| kib(line, name)))
        .sum()
}

fn parse_status(text: &str) -> Option<Resident> {
    let field = |name| text.lines().find_map(|line| kib(line, name));
    Some(Resident {
        now_kib: field("VmRSS")?,
        peak_kib: field("VmHWM")?,
    })
}

/// `None` if no mapping is the guest's memory.
fn parse_smaps(text: &str) -> Option<VmmMemory> {
    let mut memory = VmmMemory::default();
    let (mut in_guest, mut seen) = (false, false);
    for line in text.lines() {
        if is_mapping(line) {
            in_guest = is_guest_memory(line);
            seen |= in_guest;
        } else if in_guest {
            memory.guest_kib += sum(std::iter::once(line), &["Anonymous", "Swap"]);
        } else {
            memory.rest_kib += sum(std::iter::once(line), &PRIVATE);
        }
    }
    seen.then_some(memory)
}

/// `7f00-7f80 rw-p 00000000 fe:00 123   /path`, as opposed to `Rss:  4 kB`.
fn is_mapping(line: &str) -> bool {
    let first = line.split(' ').next().unwrap_or_default();
    !first.ends_with(':') && first.contains('-')
}

/// The guest's RAM is the snapshot's file `memory`, linked into the sandbox's slot.
fn is_guest_memory(line: &str) -> bool {
    line.trim_end_matches(" (deleted)")
        .ends_with("/slot/memory")
}

/// The first of the host's own addresses: in a table of routes as a tree, those whose whole
/// length counts are leaves.
fn parse_addresses(text: &str) -> Option<Ipv4Addr> {
    let lines = text.lines().map(str::trim);
    let pairs = lines.clone().zip(lines.skip(1));
    let own = pairs.filter(|(_, kind)| *kind == "/32 host LOCAL");
    let addresses = own.filter_map(|(leaf, _)| leaf.strip_prefix("|-- ")?.parse().ok());
    let mut others = addresses.filter(|address: &Ipv4Addr| !address.is_loopback());
    others.next()
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    ticks: u64,
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name may hold spaces and parentheses; the fields begin after its last one.
    let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        parent: u32::try_from(field(4)?).ok()?,
        ticks: field(14)? + field(15)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0020000000 rw-p 00000000 fe:00 42   /v/v1/sandboxes/s1/slot/memory
Size:             524288 kB
Rss:               90000 kB
Private_Clean:     20000 kB
Private_Dirty:     31000 kB
Anonymous:         30000 kB
Swap:               1000 kB
SwapPss:            1000 kB
VmFlags: rd wr
7f0030000000-7f0034000000 rwxp 00000000 00:00 0
Private_Clean:         0 kB
Private_Dirty:     25000 kB
Anonymous:         25000 kB
Swap:                 50 kB
7f0040000000-7f0040001000 r--p 00000000 fe:00 43   /usr/lib/libc.so.6
Private_Clean:         4 kB
Private_Dirty:         0 kB
Swap:                  0 kB
";

    #[test]
    fn the_guests_memory_is_told_from_the_vmms() {
        let memory = parse_smaps(SMAPS).unwrap();
        assert_eq!((memory.guest_kib, memory.rest_kib), (31_000, 25_054));
        let gone = SMAPS.replace("slot/memory", "slot/memory (deleted)");
        assert_eq!(parse_smaps(&gone), Some(memory));
        assert_eq!(parse_smaps("55-56 r--p 0 00:00 0\nRss: 4 kB\n"), None);
    }

    #[test]
    fn private_memory_is_summed() {
        let rollup = "5-7 ---p 0 00:00 0 [rollup]\nPss: 9 kB\nPrivate_Clean: 1 kB\n\
                      Private_Dirty: 20 kB\nSwap: 300 kB\nSwapPss: 300 kB\n";
        assert_eq!(sum(rollup.lines(), &PRIVATE), 321);
    }

    #[test]
    fn status_has_now_and_peak() {
        let status = "Name:\tpando\nVmPeak:\t 99 kB\nVmHWM:\t   30 kB\nVmRSS:\t   20 kB\n";
        let expected = Resident {
            now_kib: 20,
            peak_kib: 30,
        };
        assert_eq!(parse_status(status), Some(expected));
        assert_eq!(parse_status("Name: kthreadd\n"), None);
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = "7 (a b) c) S 4 7 7 0 -1 0 1 2 3 4 50 6 0 0 20 0 1 0 99\n";
        let expected = Stat {
            parent: 4,
            ticks: 56,
        };
        assert_eq!(parse_stat(stat), Some(expected));
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn the_hosts_addresses_are_leaves_of_its_routes() {
        let loopback =
            "Main:\n  |-- 127.0.0.0\n     /8 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL\n";
        assert_eq!(parse_addresses(loopback), None);
        let more = "  |-- 192.0.2.0\n     /24 link UNICAST\n  |-- 192.0.2.2\n     /32 host LOCAL\n";
        let found = parse_addresses(&format!("{loopback}{more}"));
        assert_eq!(found, Some(Ipv4Addr::new(192, 0, 2, 2)));
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        assert!(resident(pid).unwrap().now_kib > 0);
        assert!(private_kib(pid).unwrap() > 0);
        assert!(cpu_ticks(pid).is_ok());
        assert!(descriptors(pid).unwrap() > 2);
        let program = std::env::args().next().unwrap();
        let found = matching(|line| line.contains(&program)).unwrap();
        assert!(found.contains(&pid));
        assert_eq!(arguments(pid).unwrap()[0], program);
    }
}
