//! PullChanges of the protocol between nodes.

use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::driver::copies::changes::{Change, Sides};
use crate::error::{Error, Result};
use crate::model::pull::{Changes, Piece, Placed, SourceHandle, Zeros};

/// A caller who hears nothing for a minute takes the connection for broken.
const HEARD_EVERY: Duration = Duration::from_secs(5);

/// What is sent, and up to where.
struct Sender<'a> {
    emit: &'a mut dyn FnMut(Placed<u64, Changes>) -> bool,
    after: u64,
    sent_bytes: u64,
    heard: Instant,
}

impl Driver {
    /// Reads what differs between two opened cuts of one volume, from `offset` on, and tells the end. `emit` gets each
    /// message and says whether the caller still listens.
    ///
    /// # Errors
    /// NOT_FOUND where either is gone; INVALID_ARGUMENT for cuts of different volumes; FAILED_PRECONDITION for those of a
    /// directory.
    pub fn pull_changes(
        &self,
        base: &SourceHandle,
        cut: &SourceHandle,
        offset: u64,
        emit: &mut dyn FnMut(Placed<u64, Changes>) -> bool,
    ) -> Result<()> {
        let ((base_guard, base), (guard, later)) = (self.opened(base)?, self.opened(cut)?);
        if base.source != later.source || base.id == later.id {
            return Err(Error::Invalid(format!(
                "{} and {} are not two cuts of one volume",
                base.id, later.id
            )));
        }
        let mut sides = Sides::new(self, &base, &later)?;
        let mut sender = Sender { emit, after: offset, sent_bytes: 0, heard: Instant::now() };
        let listening = sides.each_change(offset, &mut |change| {
            self.cuts.touch(&base.id);
            self.cuts.touch(&later.id);
            Ok(match change {
                Change::Differs { range, bytes } => {
                    sender.changed(range.start, bytes, &mut |len| self.stream_rate.spend(len))
                }
                Change::None { end } => sender.unchanged(end),
            })
        })?;
        tracing::info!(
            base = %base.id,
            cut = %later.id,
            bytes_read = sides.bytes_read(),
            sent_bytes = sender.sent_bytes,
            "changes"
        );
        // Whoever has read the end may close either.
        drop((base_guard, guard));
        if listening {
            let sent_bytes = sender.sent_bytes;
            sender.send(later.size_bytes, Changes::End { sent_bytes });
        }
        Ok(())
    }
}

/// Zeros are told from data in pieces of so many bytes.
const BLOCK: usize = 4096;

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl Sender<'_> {
    /// Sends bytes that differ, zeros among them as such. `spend` waits until so many bytes may be sent.
    fn changed(&mut self, start: u64, bytes: &[u8], spend: &mut dyn FnMut(u64)) -> bool {
        let blocks: Vec<&[u8]> = bytes.chunks(BLOCK).collect();
        let mut at = start;
        blocks.chunk_by(|one, other| is_zeros(one) == is_zeros(other)).all(|run| {
            let len: usize = run.iter().map(|block| block.len()).sum();
            let end = at + len as u64;
            let message = match run.first().is_some_and(|block| is_zeros(block)) {
                true => Changes::Zeros(Zeros::new(at, len as u64)),
                false => {
                    spend(len as u64);
                    self.sent_bytes += len as u64;
                    Changes::Data(Piece::new(at, run.concat()))
                }
            };
            at = end;
            self.send(end, message)
        })
    }

    fn send(&mut self, end: u64, message: Changes) -> bool {
        let after = std::mem::replace(&mut self.after, end);
        self.heard = Instant::now();
        (self.emit)(Placed { after, message })
    }

    fn unchanged(&mut self, end: u64) -> bool {
        self.heard.elapsed() < HEARD_EVERY || end <= self.after || self.send(end, Changes::Unchanged { end })
    }
}
