//! The seam: every call of the driver that changes something is a step, and a test can make any step fail or
//! be the last of its process.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::MutexGuard;
use std::time::Duration;

use nix::errno::Errno;

use super::tree::NodeRef;
use super::world::World;
use super::{FakeKernel, Outcome, Process};
use hostloop_kernel::errno_error;

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

/// How much of its last step a process that is killed gets done; and how much is done of a step that fails
/// ([`FakeKernel::fail_having_done_at`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// Nothing.
    Before,
    /// Half, where the kernel can do half of it (append, open_log, remove_tree, allocate, make, reflink, copy_range,
    /// unshare); otherwise nothing.
    Torn,
    /// All, but it does not learn of it.
    After,
    /// Nothing yet: the program that the step has started (make, grow_unmounted, renew_identity) goes on without it, holds
    /// its device, and comes to its end later ([`FakeKernel::set_program_time`]). Otherwise the same as `Before`.
    Left,
}

impl Kill {
    fn effect(self) -> Option<Effect> {
        match self {
            Kill::Before => None,
            Kill::Torn => Some(Effect::Torn),
            Kill::After => Some(Effect::Whole),
            Kill::Left => Some(Effect::Left),
        }
    }
}

/// How an effect is to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Whole,
    Torn,
    /// A program is to do it later.
    Left,
    /// It fails: only what a failure does to what is there.
    Failed,
}

/// What a test has in store for a later step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plan {
    Kill(Kill),
    Fail(Errno, Effect),
}

/// The steps so far and the plans for those to come.
#[derive(Clone, Default)]
pub(super) struct Seam {
    pub(super) steps: Vec<Step>,
    /// Steps ever taken, whatever the test has cleared since.
    taken: u64,
    /// Plans by the value of `taken` at their step.
    plans: Vec<(u64, Plan)>,
    /// Calls that change nothing, where a test wants to know of them.
    looks: Option<Vec<Step>>,
    /// Such calls ever made, and the errors planned by their number.
    looked: u64,
    blind: Vec<(u64, Errno)>,
    /// Errors of every call of a name.
    lasting: BTreeMap<String, Errno>,
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
        self.blind.clear();
    }

    /// Records a step and gives what is planned for it.
    fn take(&mut self, name: &'static str, subject: String) -> Option<Plan> {
        self.taken += 1;
        self.steps.push(Step { number: self.steps.len() + 1, name, subject });
        let Some(due) = self.plans.iter().position(|(at, _)| *at == self.taken) else {
            return self.lasting.get(name).map(|errno| Plan::Fail(*errno, Effect::Failed));
        };
        Some(self.plans.remove(due).1)
    }

    /// The same for a call that changes nothing, which can only fail.
    fn look(&mut self, name: &'static str, subject: impl Display) -> Option<Errno> {
        self.looked += 1;
        if let Some(looks) = &mut self.looks {
            looks.push(Step { number: looks.len() + 1, name, subject: subject.to_string() });
        }
        let Some(due) = self.blind.iter().position(|(at, _)| *at == self.looked) else {
            return self.lasting.get(name).copied();
        };
        Some(self.blind.remove(due).1)
    }
}

impl FakeKernel {
    /// The steps taken since the start or the last [`clear_steps`](Self::clear_steps), of whatever process.
    pub fn steps(&self) -> Vec<Step> {
        self.lock().seam.steps.clone()
    }

    /// Forgets the steps so far; what is planned stays.
    pub fn clear_steps(&self) {
        let seam = &mut self.lock().seam;
        seam.steps.clear();
        seam.looks.iter_mut().for_each(Vec::clear);
    }

    /// Whether calls that change nothing (stat, mountinfo, extents, space, directories …) are kept for
    /// [`looks`](Self::looks).
    pub fn watch_looks(&self, watch: bool) {
        self.lock().seam.looks = watch.then(Vec::new);
    }

    /// The calls that changed nothing since [`watch_looks`](Self::watch_looks) or [`clear_steps`](Self::clear_steps).
    pub fn looks(&self) -> Vec<Step> {
        self.lock().seam.looks.clone().unwrap_or_default()
    }

    /// The n-th call from now that changes nothing (1 is the next one) fails with this errno, once.
    pub fn fail_look_at(&self, n: usize, errno: Errno) {
        let seam = &mut self.lock().seam;
        seam.blind.push((seam.looked + n.max(1) as u64, errno));
    }

    /// Every call of this name, step or not, fails with this errno and does nothing, of whatever process and until
    /// [`heal`](Self::heal).
    pub fn fail_every(&self, name: &str, errno: Errno) {
        self.lock().seam.lasting.insert(name.to_owned(), errno);
    }

    /// What [`fail_every`](Self::fail_every) made fail works again.
    pub fn heal(&self) {
        self.lock().seam.lasting.clear();
    }

    /// The process that takes the n-th step from now (1 is the next one) dies at it.
    pub fn kill_at(&self, n: usize, kill: Kill) {
        self.lock().seam.plan(n, Plan::Kill(kill));
    }

    /// The n-th step from now (1 is the next one) fails with this errno, once, and does nothing.
    pub fn fail_at(&self, n: usize, errno: Errno) {
        self.fail_having_done_at(n, errno, Kill::Before);
    }

    /// The same where a part of the step is done, or all of it: a disk that became full in the middle of a write, or one
    /// that has written everything and does not say so.
    pub fn fail_having_done_at(&self, n: usize, errno: Errno, done: Kill) {
        self.lock().seam.plan(n, Plan::Fail(errno, done.effect().unwrap_or(Effect::Failed)));
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

    /// Drops what [`kill_at`](Self::kill_at), [`fail_at`](Self::fail_at) and [`fail_look_at`](Self::fail_look_at) have
    /// planned.
    pub fn clear_plans(&self) {
        self.lock().seam.clear_plans();
    }
}

impl Process {
    /// The one way in which a call of the driver changes the world.
    pub(super) fn step_in_every_way<T>(
        &self,
        name: &'static str,
        subject: impl Display,
        effect: impl FnOnce(&mut World, Effect) -> Outcome<T>,
    ) -> std::io::Result<T> {
        self.pace(name, &subject);
        let context = || format!("{name} {subject}");
        let mut world = self.alive_for(name).map_err(|errno| errno_error(errno, context()))?;
        world.tick();
        world.ignore_limits(true);
        let outcome = match world.seam.take(name, subject.to_string()) {
            None => effect(&mut world, Effect::Whole),
            Some(Plan::Fail(errno, how)) => {
                let _ = effect(&mut world, how);
                Err(errno)
            }
            Some(Plan::Kill(kill)) => {
                // What the step comes to is of no interest: nobody is left to hear of it.
                let _ = kill.effect().map(|how| effect(&mut world, how));
                world.kill(self.generation);
                Err(Errno::EIO)
            }
        };
        world.ignore_limits(false);
        outcome.map_err(|errno| errno_error(errno, context()))
    }

    /// [`step_in_every_way`](Self::step_in_every_way) for what no program does, and what fails without a trace.
    pub(super) fn step_torn<T>(
        &self,
        name: &'static str,
        subject: impl Display,
        effect: impl FnOnce(&mut World, Effect) -> Outcome<T>,
    ) -> std::io::Result<T> {
        self.step_in_every_way(name, subject, |world, how| match how {
            Effect::Whole | Effect::Torn => effect(world, how),
            Effect::Left | Effect::Failed => Err(Errno::EIO),
        })
    }

    /// fsync(2) and its like. One that fails loses the data: see [`World::lose_writeback`].
    pub(super) fn step_sync(
        &self,
        name: &'static str,
        subject: impl Display,
        find: impl Fn(&mut World) -> Outcome<NodeRef>,
    ) -> std::io::Result<()> {
        self.step_in_every_way(name, subject, |world, how| {
            let node = find(world)?;
            match how {
                Effect::Whole => world.sync(node),
                Effect::Failed => world.lose_writeback(node),
                Effect::Torn | Effect::Left => return Err(Errno::EIO),
            }
            Ok(())
        })
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
            _ => Err(Errno::EIO),
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
        let outcome = self.alive().and_then(|mut world| {
            world.tick();
            match world.seam.look(name, &subject) {
                Some(errno) => Err(errno),
                None => look(&world),
            }
        });
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
    pub(super) fn alive(&self) -> Outcome<MutexGuard<'_, World>> {
        let world = self.kernel.lock();
        if world.alive.contains(&self.generation) { Ok(world) } else { Err(Errno::EIO) }
    }
}
