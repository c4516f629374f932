//! How a copy reports its progress, and why it stopped.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::super::super::errno_error;

/// `progress` is called at least this often.
const REPORT_BYTES: u64 = 16 << 20;
const REPORT_ENTRIES: u32 = 1000;

/// Why a copy stopped, before it is known at which path.
pub(super) enum Fault {
    /// A system call, and its error.
    Call(&'static str, Errno),
    /// What `progress` has answered.
    Caller(io::Error),
}

/// For `map_err`: names the call.
pub(super) fn call(name: &'static str) -> impl Fn(Errno) -> Fault {
    move |errno| Fault::Call(name, errno)
}

impl Fault {
    pub(super) fn at(self, path: &Path) -> io::Error {
        match self {
            Fault::Call(call, errno) => errno_error(errno, format_args!("{call} {}", path.display())),
            Fault::Caller(error) => error,
        }
    }
}

/// What `progress` is told, and when.
pub(super) struct Report<'a> {
    progress: &'a mut dyn FnMut(u64) -> io::Result<()>,
    bytes: u64,
    /// The bytes that it was told last, and the entries since.
    reported: u64,
    entries: u32,
}

impl<'a> Report<'a> {
    pub(super) fn new(progress: &'a mut dyn FnMut(u64) -> io::Result<()>) -> Self {
        Report { progress, bytes: 0, reported: 0, entries: 0 }
    }

    pub(super) fn now(&mut self) -> Result<(), Fault> {
        (self.reported, self.entries) = (self.bytes, 0);
        (self.progress)(self.bytes).map_err(Fault::Caller)
    }

    pub(super) fn bytes(&mut self, count: u64) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(count);
        if self.bytes - self.reported >= REPORT_BYTES { self.now() } else { Ok(()) }
    }

    pub(super) fn entry(&mut self) -> Result<(), Fault> {
        self.entries += 1;
        if self.entries >= REPORT_ENTRIES { self.now() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `progress` was told while `work` was done.
    fn told(work: impl FnOnce(&mut Report<'_>)) -> Vec<u64> {
        let mut told = Vec::new();
        work(&mut Report::new(&mut |bytes| {
            told.push(bytes);
            Ok(())
        }));
        told
    }

    fn done(result: Result<(), Fault>) {
        assert!(result.is_ok());
    }

    #[test]
    fn bytes_are_told_when_enough_have_come_together() {
        let told = told(|report| {
            (0..5).for_each(|_| done(report.bytes(REPORT_BYTES / 2)));
            done(report.bytes(3 * REPORT_BYTES));
        });
        assert_eq!(
            told,
            [1, 2, 5].map(|times| times * REPORT_BYTES + if times == 5 { REPORT_BYTES / 2 } else { 0 })
        );
    }

    #[test]
    fn many_small_files_are_told_as_well() {
        let told = told(|report| {
            for _ in 0..2 * REPORT_ENTRIES + 1 {
                done(report.bytes(1));
                done(report.entry());
            }
        });
        assert_eq!(told, [u64::from(REPORT_ENTRIES), 2 * u64::from(REPORT_ENTRIES)]);
    }

    #[test]
    fn whoever_is_told_may_stop_it() {
        let mut stop = |_| Err(errno_error(Errno::ECANCELED, "enough"));
        let stopped = Report::new(&mut stop).bytes(REPORT_BYTES);
        assert!(matches!(stopped, Err(Fault::Caller(_))));
    }
}
