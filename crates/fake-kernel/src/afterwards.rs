//! What continues after the process that began it: its programs, and processes that open a device for a moment.
//!
//! Time is counted in calls of the driver, so that a run can be repeated.

use super::filesystems::Program;
use super::world::{Open, Opened, World};
use super::{FakeKernel, Outcome};

/// Something that happens later.
#[derive(Clone)]
enum Later {
    /// Somebody closes this descriptor.
    Close(u64),
    /// A program comes to its end, and closes this descriptor.
    Finish(u64, Program),
}

/// What is still to come.
#[derive(Clone, Default)]
pub(super) struct Afterwards {
    /// Calls so far.
    now: u64,
    due: Vec<(u64, Later)>,
    /// For so many calls a device outlives its last user; see [`FakeKernel::set_late_loops`].
    late: u64,
    /// For so many calls a program outlives its process; see [`FakeKernel::set_program_time`].
    program: u64,
}

impl Afterwards {
    /// The next thing that is due.
    fn take(&mut self, all: bool) -> Option<Later> {
        let due = self.due.iter().position(|(at, _)| all || *at <= self.now)?;
        Some(self.due.remove(due).1)
    }
}

impl World {
    /// A call of the driver: time passes.
    pub(super) fn tick(&mut self) {
        self.afterwards.now += 1;
        self.settle_later(false);
    }

    fn settle_later(&mut self, all: bool) {
        while let Some(later) = self.afterwards.take(all) {
            match later {
                Later::Close(open) => {
                    let late = std::mem::take(&mut self.afterwards.late);
                    self.close(open);
                    self.afterwards.late = late;
                }
                Later::Finish(open, program) => {
                    // Nobody hears of what it comes to.
                    let _ = self.finish(&program);
                    self.close(open);
                }
            }
        }
    }

    /// The machine is switched off.
    pub(super) fn forget_later(&mut self) {
        self.afterwards.due.clear();
    }

    /// Somebody, such as udev, opens a device that is about to lose its last user. Whether that was so.
    pub(super) fn lingers(&mut self, number: u32) -> bool {
        let late = self.afterwards.late;
        if late == 0 {
            return false;
        }
        let open = self.open(Open { generation: None, mount: None, what: Opened::Loop(number) });
        let at = self.afterwards.now + late;
        self.afterwards.due.push((at, Later::Close(open)));
        true
    }

    /// A program of a process that ends works on: it has its device open, and comes to its end later.
    pub(super) fn leave_program(&mut self, program: Program) -> Outcome<()> {
        let open = self.open(Open { generation: None, mount: None, what: Opened::Loop(program.device) });
        let at = self.afterwards.now + self.afterwards.program;
        self.afterwards.due.push((at, Later::Finish(open, program)));
        Ok(())
    }

    /// Whether a program that outlived its process has claimed this device (open(2), O_EXCL).
    pub(super) fn has_program(&self, number: u32) -> bool {
        let works = |later: &Later| matches!(later, Later::Finish(_, program) if program.device == number);
        self.afterwards.due.iter().any(|(_, later)| works(later))
    }
}

impl FakeKernel {
    /// From now on a device that loses its last user is let go only so many calls of the driver later, since somebody
    /// (udev, blkid) looks at it at that moment; 0 ends that.
    pub fn set_late_loops(&self, calls: u64) {
        self.lock().afterwards.late = calls;
    }

    /// A program whose process was killed ([`Kill::Left`](super::Kill::Left)) comes to its end so many calls of the
    /// driver later; from the start it does so at the next one.
    pub fn set_program_time(&self, calls: u64) {
        self.lock().afterwards.program = calls;
    }

    /// How much is still to come of programs and of users of devices.
    pub fn pending(&self) -> usize {
        self.lock().afterwards.due.len()
    }

    /// Programs that outlived their process come to their end now, and devices are let go.
    pub fn settle(&self) {
        self.lock().settle_later(true);
    }
}
