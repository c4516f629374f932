//! The numbers of loop devices, which outlive their users.

use super::Driver;

impl Driver {
    /// Gives the numbers back that an earlier process could not: nobody could discard with them.
    pub(super) fn give_back_loop_devices(&self) {
        match self.os.loops.give_back_all() {
            Ok(numbers) if numbers.is_empty() => {}
            Ok(numbers) => tracing::info!(?numbers, "loop devices can discard again"),
            Err(error) => {
                tracing::warn!(%error, "some loop devices cannot discard until the next restart of the machine")
            }
        }
    }

    /// Removes the numbers that this process made and nobody uses, but for a few: after a node was drained of hundreds of
    /// volumes, everybody who lists loop devices would go through theirs for as long as the machine runs.
    pub fn remove_unused_loop_devices(&self) {
        match self.os.loops.remove_unused() {
            Ok(numbers) if numbers.is_empty() => {}
            Ok(numbers) => tracing::info!(count = numbers.len(), "removed loop devices that nobody uses"),
            Err(error) => tracing::warn!(%error, "loop devices that nobody uses stay"),
        }
    }
}
