//! What the kernel knows about this process (proc_pid_stat(5), proc_pid_limits(5)).
#![allow(clippy::disallowed_methods, reason = "procfs is read for the process' own figures, no volume's")]

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

/// A process, as the kernel accounts for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessFigures {
    /// Processor time, its own and that of the kernel for it.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// All that are not joined, blocked ones included.
    pub threads: u64,
    /// File descriptors in use, which are the entries of /proc/self/fd.
    pub open_files: u64,
    /// The soft limit of RLIMIT_NOFILE.
    pub max_files: u64,
}

/// The number of arenas that all threads share.
const ARENAS: i32 = 2;

/// Keeps the memory of a process with many threads small. By default glibc has up to eight arenas for each processor, and each
/// arena keeps the memory that its threads have freed. Does nothing with other allocators.
pub fn share_memory_among_threads() {
    super::ioctl::limit_arenas(ARENAS);
}

const STAT: &str = "/proc/self/stat";
const DESCRIPTORS: &str = "/proc/self/fd";

/// Looks at this process.
///
/// # Errors
/// The kernel's, and where procfs is not mounted.
pub fn own_process() -> io::Result<ProcessFigures> {
    let stat = std::fs::read_to_string(STAT)?;
    let limit = |name| sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok());
    let ticks_per_second = limit(SysconfVar::CLK_TCK).unwrap_or(100);
    let page = limit(SysconfVar::PAGE_SIZE).unwrap_or(4096);
    let Stat { ticks, threads, pages } = parse(&stat)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{STAT} is malformed")))?;
    // The descriptor that the directory is read through is one of them.
    let open_files = std::fs::read_dir(DESCRIPTORS)?.count().saturating_sub(1);
    Ok(ProcessFigures {
        cpu: Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64),
        resident_bytes: pages.saturating_mul(page),
        threads,
        open_files: open_files as u64,
        max_files: getrlimit(Resource::RLIMIT_NOFILE)?.0,
    })
}

struct Stat {
    ticks: u64,
    threads: u64,
    pages: u64,
}

/// Fields 14 and 15 (utime, stime), 20 (num_threads) and 24 (rss). The name before them, in brackets, may hold anything.
fn parse(stat: &str) -> Option<Stat> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // What follows the name is field 3.
    let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
    Some(Stat { ticks: field(14)?.saturating_add(field(15)?), threads: field(20)?, pages: field(24)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) 1 2 (b) S 1 7 7 0 -1 4194560 900 0 2 0 130 21 0 0 20 0 5 0 88 9000 450 184 1 1";
        let found = parse(stat).unwrap();
        assert_eq!((found.ticks, found.threads, found.pages), (151, 5, 450));
        assert!(parse("7 (a) S 1").is_none() && parse("").is_none());
    }

    #[test]
    fn this_process_is_seen() {
        let before = own_process().unwrap();
        let files: Vec<_> = (0..3).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        let now = own_process().unwrap();
        assert!(now.resident_bytes > 1 << 20 && now.threads >= 1 && now.cpu >= before.cpu, "{now:?}");
        // Other tests open and close files meanwhile.
        assert!(now.open_files >= 2 * files.len() as u64 && now.open_files <= now.max_files, "{now:?}");
    }
}
