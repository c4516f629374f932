//! How much of a list one answer holds.

use prost::Message;

use crate::wire::csi;

/// Most bytes of the entries of one answer. Clients of gRPC take messages of 4 MiB unless they ask for more, and the
/// token comes on top.
const MOST_BYTES: usize = (4 << 20) - (16 << 10);
/// The tag and the length of an entry in its answer, at most.
const FRAME: usize = 6;

/// An entry of a list, which is in the order of ids.
pub trait Listed: Message {
    /// The id that the token after this entry names.
    fn id(&self) -> &str;
}

impl Listed for csi::list_volumes_response::Entry {
    fn id(&self) -> &str {
        self.volume.as_ref().map_or("", |volume| &volume.volume_id)
    }
}

impl Listed for csi::VolumeHealth {
    fn id(&self) -> &str {
        &self.volume_id
    }
}

impl Listed for csi::list_snapshots_response::Entry {
    fn id(&self) -> &str {
        self.snapshot.as_ref().map_or("", |snapshot| &snapshot.snapshot_id)
    }
}

/// How many of these entries, from the first on, go into one answer, whatever their sizes: one at least.
pub fn fitting<E: Listed>(entries: &[E]) -> usize {
    let mut bytes = 0;
    let fits = entries.iter().take_while(|entry| {
        bytes += entry.encoded_len() + FRAME;
        bytes <= MOST_BYTES
    });
    fits.count().max(1).min(entries.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: usize) -> csi::VolumeHealth {
        csi::VolumeHealth { volume_id: "v".repeat(bytes), ..Default::default() }
    }

    #[test]
    fn an_answer_fits_a_client_and_is_never_empty() {
        for size in [1000, 10_000, 3 << 20] {
            let mut entries = vec![entry(size); (6 << 20) / (size + 8) + 1];
            let count = fitting(&entries);
            assert!(count < entries.len());
            entries.truncate(count);
            let answer = csi::ControllerListVolumeHealthResponse { entries, next_token: "t".repeat(256) };
            let bytes = answer.encoded_len();
            assert!(bytes <= 4 << 20 && bytes + 2 * size + (64 << 10) > 4 << 20, "{size}: {bytes}");
        }
        assert_eq!(fitting(&[entry(5 << 20)]), 1, "the caller would not come further");
        assert_eq!(fitting::<csi::VolumeHealth>(&[]), 0);
    }
}
