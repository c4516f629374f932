//! PullChanges of the protocol between nodes.

use super::{Heard, expect_two_cuts};
use crate::driver::Driver;
use crate::driver::copies::changes::Change;
use crate::error::Result;
use crate::kernel::{Sent, each_sent};
use crate::model::format_bytes;
use crate::model::pull::{Changes, Placed, SourceHandle};

/// What is sent, and up to where.
struct Sender<'a> {
    emit: &'a mut dyn FnMut(Placed<u64, Changes>) -> bool,
    after: u64,
    sent_bytes: u64,
    heard: Heard,
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
        expect_two_cuts(&base, &later)?;
        let urgency = self.urgency_of(&later);
        let mut sides = self.sides(&base, &later)?;
        let mut sender = Sender { emit, after: offset, sent_bytes: 0, heard: Heard::now() };
        let listening = sides.each_change(offset, &mut |change| {
            self.cuts.touch(&base.id);
            self.cuts.touch(&later.id);
            Ok(match change {
                Change::Differs { range, bytes } => {
                    sender.changed(range.start, bytes, &mut |len| self.stream_rate.spend(len, urgency))
                }
                Change::None { end } => sender.unchanged(end),
            })
        })?;
        tracing::info!(
            base = %base.id,
            cut = %later.id,
            read = %format_bytes(sides.bytes_read()),
            sent = %format_bytes(sender.sent_bytes),
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

impl Sender<'_> {
    /// Sends bytes that differ, zeros among them as such. `spend` waits until so many bytes may be sent.
    fn changed(&mut self, start: u64, bytes: &[u8], spend: &mut dyn FnMut(u64)) -> bool {
        each_sent(start, bytes, &mut |sent| match sent {
            Sent::Zeros(zeros) => self.send(zeros.end(), Changes::Zeros(zeros)),
            Sent::Data(piece) => {
                let len = piece.data.len() as u64;
                spend(len);
                self.sent_bytes += len;
                self.send(piece.end(), Changes::Data(piece))
            }
        })
    }

    fn send(&mut self, end: u64, message: Changes) -> bool {
        let after = std::mem::replace(&mut self.after, end);
        self.heard = Heard::now();
        (self.emit)(Placed { after, message })
    }

    fn unchanged(&mut self, end: u64) -> bool {
        !self.heard.is_late() || end <= self.after || self.send(end, Changes::Unchanged { end })
    }
}
