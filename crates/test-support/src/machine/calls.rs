//! A process for which some system calls are not there, or are its end, as seccomp(2) makes it: an older kernel, and a
//! kill at exactly one step.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// What becomes of some system calls.
pub struct Calls(BpfProgram);

impl Calls {
    fn new(rules: BTreeMap<i64, Vec<SeccompRule>>, action: SeccompAction) -> Calls {
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("a processor with seccomp");
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).expect("a filter");
        Calls(BpfProgram::try_from(filter).expect("a program"))
    }

    /// The kernel does not know these calls: ENOSYS.
    pub fn missing(numbers: &[i64]) -> Calls {
        Calls::failing(numbers, libc::ENOSYS)
    }

    /// These calls fail.
    pub fn failing(numbers: &[i64], errno: i32) -> Calls {
        let rules = numbers.iter().map(|number| (*number, Vec::new())).collect();
        Calls::new(rules, SeccompAction::Errno(errno.cast_unsigned()))
    }

    /// The process ends before a mount(2) that changes the flags of a mount.
    pub fn deadly_remount() -> Calls {
        let remount = SeccompCmpOp::MaskedEq(libc::MS_REMOUNT);
        let flags = SeccompCondition::new(3, SeccompCmpArgLen::Qword, remount, libc::MS_REMOUNT);
        let rule = SeccompRule::new(vec![flags.expect("a condition")]).expect("a rule");
        Calls::new(BTreeMap::from([(libc::SYS_mount, vec![rule])]), SeccompAction::KillProcess)
    }

    /// Does something in a thread for which all of this holds, and for the processes that it starts.
    pub fn hold<T: Send>(all: &[Calls], what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                all.iter().for_each(|calls| apply_filter(&calls.0).expect("seccomp"));
                what()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
