//! The seam: every call of the driver that changes something is a step, and a test can make any step fail or
//! be the last of its process.

use std::fmt::Display;
use std::sync::MutexGuard;
use std::time::Duration;

use nix::errno::Errno;

use super::world::World;
use super::{FakeKernel, Outcome, Process};
use crate::os::errno_error;

/// A step that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its number, from 1 since the start or the last [`FakeKernel::clear_steps`].
    pub number: usize,
    /// The call, such as `"allocate"`.
    pub name: &'static str,
    /// The path or device it was made on.
    pub subject: String,
}

/// How much of its last step a process that is killed gets done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// Nothing.
    Before,
    /// Half, where the kernel can do half of it (append, open_log, remove_tree, allocate, make, reflink, copy_range,
    /// unshare); otherwise nothing.
    Torn,
    /// All, but it does not learn of it.
    After,
}

/// How an effect is to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Whole,
    Torn,
}

/// What a test has in store for a later step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plan {
    Kill(Kill),
    Fail(Errno),
}

/// The steps so far and the plans for those to come.
#[derive(Default)]
pub(super) struct Seam {
    pub(super) steps: Vec<Step>,
    /// Steps ever taken, whatever the test has cleared since.
    taken: u64,
    /// Plans by the value of `taken` at their step.
    plans: Vec<(u64, Plan)>,
    /// Steps of this name wait.
    held: Option<&'static str>,
    /// The processes of those that do.
    waiting: Vec<u64>,
}

impl Seam {
    pub(super) fn plan(&mut self, n: usize, plan: Plan) {
        self.plans.push((self.taken + n.max(1) as u64, plan));
    }

    pub(super) fn clear_plans(&mut self) {
        self.plans.clear();
    }

    /// Records a step and gives what is planned for it.
    fn take(&mut self, name: &'static str, subject: String) -> Option<Plan> {
        self.taken += 1;
        self.steps.push(Step { number: self.steps.len() + 1, name, subject });
        let due = self.plans.iter().position(|(at, _)| *at == self.taken)?;
        Some(self.plans.remove(due).1)
    }
}

impl FakeKernel {
    /// The steps taken since the start or the last [`clear_steps`](Self::clear_steps), of whatever process.
    pub fn steps(&self) -> Vec<Step> {
        self.lock().seam.steps.clone()
    }

    /// Forgets the steps so far; what is planned stays.
    pub fn clear_steps(&self) {
        self.lock().seam.steps.clear();
    }

    /// The process that takes the n-th step from now (1 is the next one) dies at it.
    pub fn kill_at(&self, n: usize, kill: Kill) {
        self.lock().seam.plan(n, Plan::Kill(kill));
    }

    /// The n-th step from now (1 is the next one) fails with this errno, once, and does nothing.
    pub fn fail_at(&self, n: usize, errno: Errno) {
        self.lock().seam.plan(n, Plan::Fail(errno));
    }

    /// Before each call of a process, also one that changes nothing, this is called with its name and what it is made on,
    /// on the thread of the call and without any lock of the machine: it may take its time. To be set once.
    pub fn set_pace(&self, pace: impl Fn(&'static str, &str) + Send + Sync + 'static) {
        assert!(self.pace.set(Box::new(pace)).is_ok(), "the pace is set once");
    }

    /// Steps of this name wait from now on, as if they took long, until [`release`](Self::release) or the end of their
    /// process.
    pub fn hold(&self, name: &'static str) {
        self.lock().seam.held = Some(name);
    }

    /// How many steps wait, of processes that live.
    pub fn waiting(&self) -> usize {
        let world = self.lock();
        world.seam.waiting.iter().filter(|generation| world.alive.contains(generation)).count()
    }

    /// Steps go on.
    pub fn release(&self) {
        self.lock().seam.held = None;
    }

    /// Drops what [`kill_at`](Self::kill_at) and [`fail_at`](Self::fail_at) have planned.
    pub fn clear_plans(&self) {
        self.lock().seam.clear_plans();
    }
}

impl Process {
    /// The one way in which a call of the driver changes the world.
    pub(super) fn step_torn<T>(
        &self,
        name: &'static str,
        subject: impl Display,
        effect: impl FnOnce(&mut World, Effect) -> Outcome<T>,
    ) -> std::io::Result<T> {
        self.pace(name, &subject);
        let context = || format!("{name} {subject}");
        let mut world = self.alive_for(name).map_err(|errno| errno_error(errno, context()))?;
        let outcome = match world.seam.take(name, subject.to_string()) {
            None => effect(&mut world, Effect::Whole),
            Some(Plan::Fail(errno)) => Err(errno),
            Some(Plan::Kill(kill)) => {
                // What the step comes to is of no interest: nobody is left to hear of it.
                let _ = match kill {
                    Kill::Before => None,
                    Kill::Torn => Some(effect(&mut world, Effect::Torn)),
                    Kill::After => Some(effect(&mut world, Effect::Whole)),
                };
                world.kill(self.generation);
                Err(Errno::EIO)
            }
        };
        outcome.map_err(|errno| errno_error(errno, context()))
    }

    /// [`step_torn`](Self::step_torn) for what the kernel does in one piece.
    pub(super) fn step<T>(
        &self,
        name: &'static str,
        subject: impl Display,
        effect: impl FnOnce(&mut World) -> Outcome<T>,
    ) -> std::io::Result<T> {
        self.step_torn(name, subject, |world, how| match how {
            Effect::Whole => effect(world),
            Effect::Torn => Err(Errno::EIO),
        })
    }

    /// A call that changes nothing.
    pub(super) fn look<T>(
        &self,
        name: &'static str,
        subject: impl Display,
        look: impl FnOnce(&World) -> Outcome<T>,
    ) -> std::io::Result<T> {
        self.pace(name, &subject);
        let outcome = self.alive().and_then(|world| look(&world));
        outcome.map_err(|errno| errno_error(errno, format!("{name} {subject}")))
    }

    fn pace(&self, name: &'static str, subject: &impl Display) {
        if let Some(pace) = self.kernel.pace.get() {
            pace(name, &subject.to_string());
        }
    }

    /// [`alive`](Self::alive), once steps of this name are not held.
    fn alive_for(&self, name: &'static str) -> Outcome<MutexGuard<'_, World>> {
        let mut world = self.alive()?;
        if world.seam.held != Some(name) {
            return Ok(world);
        }
        world.seam.waiting.push(self.generation);
        while world.seam.held == Some(name) && world.alive.contains(&self.generation) {
            drop(world);
            std::thread::sleep(Duration::from_millis(1));
            world = self.kernel.lock();
        }
        if let Some(at) = world.seam.waiting.iter().position(|generation| *generation == self.generation) {
            world.seam.waiting.swap_remove(at);
        }
        drop(world);
        self.alive()
    }

    /// The world, if this process still lives in it.
    fn alive(&self) -> Outcome<MutexGuard<'_, World>> {
        let world = self.kernel.lock();
        if world.alive.contains(&self.generation) { Ok(world) } else { Err(Errno::EIO) }
    }
}
