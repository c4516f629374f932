//! Group commit: the caller that finds the writer free writes every waiting change, in one append and one sync. Each caller
//! is woken by itself, when its change is written or when it is its turn to write: with one condition for all, sixteen
//! clients spent a sixth of the processor on waking each other.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, Thread};

use super::error::StoreError;
use super::memory::Memory;
use super::record::{Change, FRAME};
use super::writer::Writer;
use crate::kernel::{errno_error, errno_of};

/// When a change is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Once it is on disk.
    Synced,
    /// Once it is appended. The next synced change takes it along; a power cut before that undoes it.
    Lazy,
}

/// What became of a batch; shared by all who waited for it.
type Outcome = Result<(), Arc<io::Error>>;

/// A change that waits to be written.
struct Pending {
    change: Change,
    /// The change as text.
    members: String,
    durability: Durability,
    outcome: Arc<OnceLock<Outcome>>,
    /// Who waits for it, parked.
    caller: Thread,
}

/// The line in front of the writer.
struct Queue {
    waiting: Vec<Pending>,
    /// Here when nobody writes.
    writer: Option<Writer>,
}

/// The state and the way to change it.
pub(super) struct Committer {
    /// What has been acknowledged.
    pub memory: RwLock<Memory>,
    queue: Mutex<Queue>,
}

impl Committer {
    /// Takes the state and the file that holds it.
    pub fn new(memory: Memory, writer: Writer) -> Self {
        let queue = Mutex::new(Queue { waiting: Vec::new(), writer: Some(writer) });
        Committer { memory: RwLock::new(memory), queue }
    }

    /// Makes a change in the file, then in memory. Waits for a batch that is being written, then writes the
    /// next one or finds its change written by someone else.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the change has not been made, nor has any other of its batch.
    pub fn commit(&self, change: Change, durability: Durability) -> Result<(), StoreError> {
        let members = change.members().map_err(io::Error::from)?;
        let outcome = Arc::new(OnceLock::new());
        let caller = thread::current();
        let pending = Pending { change, members, durability, outcome: Arc::clone(&outcome), caller };
        self.queue().waiting.push(pending);
        loop {
            if let Some(outcome) = outcome.get() {
                return outcome.clone().map_err(|error| StoreError::Io(copy(&error)));
            }
            match self.next_batch() {
                Some((writer, batch)) => Turn { committer: self, writer: Some(writer), batch }.run(),
                // Whoever sets the outcome or gives the writer back wakes this thread, also if it has not parked yet.
                None => thread::park(),
            }
        }
    }

    /// The writer with all that waits, where nobody writes.
    fn next_batch(&self) -> Option<(Writer, Vec<Pending>)> {
        let mut queue = self.queue();
        let writer = queue.writer.take()?;
        Some((writer, std::mem::take(&mut queue.waiting)))
    }

    /// Takes the writer back, and wakes the first who waits for it: he writes for all.
    fn give_back(&self, writer: Option<Writer>) {
        let mut queue = self.queue();
        queue.writer = writer;
        if let Some(next) = queue.waiting.first() {
            next.caller.unpark();
        }
    }

    // A panic while one of the two is held leaves nothing half done: both are changed in single steps.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state.
    pub fn read<T>(&self, read: impl FnOnce(&Memory) -> T) -> T {
        read(&self.memory.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One thread's turn as the writer. However it ends, the writer goes back and every waiter gets an answer.
struct Turn<'a> {
    committer: &'a Committer,
    writer: Option<Writer>,
    batch: Vec<Pending>,
}

impl Turn<'_> {
    fn run(mut self) {
        let outcome = self.write().map_err(Arc::new);
        if outcome.is_err() {
            self.take_back();
        }
        self.answer(&outcome);
        let live = self.committer.read(Memory::len);
        if let Some(writer) = self.writer.as_mut().filter(|writer| writer.wants_compaction(live)) {
            writer.compact(&self.committer.read(Memory::records));
        }
    }

    /// Takes the lines of a failed batch out of the file before anybody hears of the failure: a caller may go on
    /// with the volume as it was, and no later start may find the change made then, least of all a deletion.
    fn take_back(&mut self) {
        let Some(writer) = self.writer.as_mut().filter(|writer| writer.is_broken()) else { return };
        if let Err(error) = writer.repair(&self.committer.read(Memory::records)) {
            tracing::warn!(%error, "the state file may hold changes that failed until it can be written again");
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Err(interrupted());
        };
        if writer.is_broken() {
            writer.repair(&self.committer.read(Memory::records))?;
        }
        let (bytes, way_out) = self.committer.read(|memory| cost(memory, &self.batch));
        if let Err(error) = writer.make_room(bytes, way_out) {
            self.refuse(error);
        }
        let Some(writer) = &mut self.writer else {
            return Err(interrupted());
        };
        let members: Vec<&str> = self.committer.read(|memory| worth_writing(memory, &self.batch));
        let sync = self.batch.iter().any(|pending| pending.durability == Durability::Synced);
        writer.append(&members, sync)?;
        let sequence = writer.synced();
        let mut memory = self.committer.memory.write().unwrap_or_else(PoisonError::into_inner);
        self.batch.iter().for_each(|pending| memory.apply(&pending.change));
        memory.sequence = sequence;
        Ok(())
    }

    /// Takes what does not lead out of the file from the batch: the rest of the room is for what does.
    fn refuse(&mut self, error: io::Error) {
        let batch = std::mem::take(&mut self.batch);
        let leads_out = |pending: &Pending| self.committer.read(|memory| memory.leads_out(&pending.change));
        let (kept, refused) = batch.into_iter().partition(leads_out);
        self.batch = refused;
        self.answer(&Err(Arc::new(error)));
        self.batch = kept;
    }

    /// Tells those whose changes are in the batch.
    fn answer(&mut self, outcome: &Outcome) {
        for pending in self.batch.drain(..) {
            let _ = pending.outcome.set(outcome.clone());
            pending.caller.unpark();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.answer(&Err(Arc::new(interrupted())));
        self.committer.give_back(self.writer.take());
    }
}

/// The lines of a batch. Deleting what is not there needs none, and so works on a full disk: that is how a
/// failed `put` is undone.
fn worth_writing<'a>(memory: &Memory, batch: &'a [Pending]) -> Vec<&'a str> {
    let needed = |index: usize, pending: &Pending| match &pending.change {
        Change::Put(_) | Change::Rename(_) => true,
        Change::Delete(_) => {
            let id = pending.change.id();
            memory.contains(&pending.change)
                || batch.iter().take(index).any(|earlier| earlier.change.id() == id)
        }
    };
    let needed = batch.iter().enumerate().filter(|(index, pending)| needed(*index, pending));
    needed.map(|(_, pending)| pending.members.as_str()).collect()
}

/// At most so many bytes the lines of a batch have, and the way out of all records then.
fn cost(memory: &Memory, batch: &[Pending]) -> (u64, u64) {
    let bytes = worth_writing(memory, batch).iter().map(|members| members.len() as u64 + FRAME).sum();
    let longer: u64 = batch.iter().map(|pending| memory.longer_by(&pending.change)).sum();
    (bytes, memory.way_out().saturating_add(longer))
}

/// For those whose batch was being written by a thread that panicked.
fn interrupted() -> io::Error {
    io::Error::other("writing the state file was interrupted")
}

/// The same error for each waiter, with its errno.
fn copy(error: &io::Error) -> io::Error {
    let text = error.to_string();
    match errno_of(error) {
        Some(errno) => {
            let context = text.strip_suffix(&format!(": {errno}")).unwrap_or("write the state file");
            errno_error(errno, context)
        }
        None => io::Error::new(error.kind(), text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Consistency, GroupSnapshot, GroupSnapshotId, NodeKey, Phase, Timestamp};
    use crate::store::record::{self, Delete, Put};

    fn id(name: &str) -> GroupSnapshotId {
        GroupSnapshotId::of_name(&NodeKey::of("node-a"), name)
    }

    fn put(name: &str) -> Change {
        Change::Put(Put::GroupSnapshot(Arc::new(GroupSnapshot {
            id: id(name),
            name: name.to_owned(),
            phase: Phase::Creating,
            created: Timestamp::from_nanos(1),
            sources: Vec::new(),
            snapshots: Vec::new(),
            consistency: Consistency::default(),
            handover: None,
        })))
    }

    fn delete(name: &str) -> Change {
        Change::Delete(Delete::GroupSnapshot(id(name)))
    }

    fn batch(changes: Vec<Change>) -> Vec<Pending> {
        let pending = |change: Change| Pending {
            members: change.members().expect("JSON"),
            change,
            durability: Durability::Synced,
            outcome: Arc::default(),
            caller: thread::current(),
        };
        changes.into_iter().map(pending).collect()
    }

    #[test]
    fn a_removal_is_written_if_there_is_a_record() {
        let mut memory = Memory::default();
        memory.apply(&put("there"));
        let batch = batch(vec![delete("new"), put("new"), delete("new"), delete("there"), delete("none")]);
        let written = worth_writing(&memory, &batch);
        let expected: Vec<&str> = [1, 2, 3].iter().map(|index| batch[*index].members.as_str()).collect();
        assert_eq!(written, expected);
    }

    #[test]
    fn a_batch_costs_no_less_than_its_longest_lines() {
        let mut memory = Memory::default();
        memory.apply(&put("there"));
        let batch = batch(vec![put("new"), put("there"), delete("there")]);
        let longest = |pending: &Pending| record::line(u64::MAX, u64::MAX, &pending.members).len() as u64;
        let lines: u64 = batch.iter().map(longest).sum();
        let (bytes, way_out) = cost(&memory, &batch);
        assert!((lines..lines + 100).contains(&bytes), "{bytes} bytes for lines of {lines}");
        let Change::Put(new) = put("new") else { unreachable!() };
        assert_eq!(way_out, memory.way_out() + new.way_out(), "it needs one as well");
    }
}
