//! The runs of data in a file, found before they are read.
//!
//! After a read, the kernel reads ahead. If it reads ahead into blocks that are allocated and were never written, lseek(2) reports them as
//! data. A reader that looked for the next run after each read would therefore read a whole preallocated file.

use std::collections::VecDeque;

/// The number of runs that are found at a time.
const AT_ONCE: usize = 1024;

/// See the module. `N` is as [`Images::next_data`](super::Images::next_data) of one file.
pub struct Runs<N> {
    next: N,
    found: VecDeque<(u64, u64)>,
    /// Where to look for more; `None` after the last.
    at: Option<u64>,
}

impl<N> Runs<N> {
    /// Those from `at` on.
    pub fn new<E>(at: u64, next: N) -> Self
    where
        N: FnMut(u64) -> Result<Option<(u64, u64)>, E>,
    {
        Runs { next, found: VecDeque::new(), at: Some(at) }
    }

    /// Returns the start and the end of the next one; `None` after the last one.
    ///
    /// # Errors
    /// Those of the closure.
    pub fn next_run<E>(&mut self) -> Result<Option<(u64, u64)>, E>
    where
        N: FnMut(u64) -> Result<Option<(u64, u64)>, E>,
    {
        if self.found.is_empty() {
            while self.found.len() < AT_ONCE
                && let Some(at) = self.at
            {
                let run = (self.next)(at)?;
                self.at = run.map(|(_, end)| end);
                self.found.extend(run);
            }
        }
        Ok(self.found.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_before_the_first_is_read() {
        let mut asked = Vec::new();
        let mut runs = Runs::new(1, |at| {
            asked.push(at);
            Ok::<_, ()>((at < 10_000).then_some((at + 1, at + 3)))
        });
        let first = runs.next_run();
        let rest = std::iter::from_fn(|| runs.next_run().transpose()).collect::<Result<Vec<_>, ()>>();
        assert_eq!(first, Ok(Some((2, 4))));
        let rest = rest.expect("no error");
        assert_eq!((rest.len(), rest.last()), (3332, Some(&(9998, 10_000))));
        assert_eq!(asked.len(), 3334, "each once");
        let mut none = Runs::new(0, |_| Ok::<_, ()>(None));
        assert_eq!((none.next_run(), none.next_run()), (Ok(None), Ok(None)));
        let mut broken = Runs::new(0, |_| Err(5));
        assert_eq!(broken.next_run(), Err(5));
    }
}
