//! Is a history of concurrent calls on one object linearizable: is there an order in which a sequential specification gives
//! every answer, and in which no call comes after one that began when it had ended?
//!
//! The search goes along the time, as Lowe's just-in-time linearization does: it keeps every state that the object can be
//! in, with the running calls that have had their effect by then. When a call ends, those remain in which it has had
//! its effect; where none remains, the answer has no explanation. Objects are looked at one by one, since a history is
//! linearizable when that of each object is (Herlihy and Wing).

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

/// What an object is, and what calls do to it.
pub trait Spec: Clone + Eq + Hash + Debug {
    /// A call with its answer.
    type Op: Debug;

    /// The states after a call that began in this state and was answered so; none where this state does not explain the
    /// answer. A call that was cut off may have several.
    fn after(&self, op: &Self::Op) -> Vec<Self>;
}

/// A call with the time in which it ran.
#[derive(Debug, Clone)]
pub struct Ran<Op> {
    pub start: u64,
    /// [`u64::MAX`] where it was cut off: its effect comes at any time, or never.
    pub end: u64,
    pub op: Op,
}

/// Calls that can run on one object at a time.
const SLOTS: usize = 128;

type Configurations<S> = HashSet<(S, u128)>;

/// The states after the whole history, or why there is none.
pub fn check<S: Spec>(states: HashSet<S>, history: &[Ran<S::Op>]) -> Result<HashSet<S>, String> {
    // Ends come before starts of the same moment: who began when another had ended came after it.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (at, ran) in history.iter().enumerate() {
        assert!(ran.start <= ran.end, "{ran:?} ends before it starts");
        let end = if ran.end == ran.start { ran.end + 1 } else { ran.end };
        events.extend([(ran.start, true, at), (end, false, at)]);
    }
    events.sort_unstable();
    let mut configurations: Configurations<S> = states.into_iter().map(|state| (state, 0)).collect();
    let mut running: HashMap<usize, usize> = HashMap::new();
    for (_, starts, at) in events {
        if starts {
            let free = (0..SLOTS).find(|slot| !running.contains_key(slot)).expect("a free slot");
            running.insert(free, at);
            continue;
        }
        let slot = *running.iter().find(|(_, ran)| **ran == at).expect("it runs").0;
        let before: HashSet<S> = configurations.iter().map(|(state, _)| state.clone()).collect();
        configurations = finish(configurations, &running, slot, history);
        running.remove(&slot);
        if configurations.is_empty() {
            let mut beside: Vec<_> = running.values().map(|ran| &history[*ran]).collect();
            beside.sort_by_key(|ran| ran.start);
            return Err(format!(
                "no order explains {:?}\n    states before: {before:?}\n    running beside it: {beside:#?}",
                history[at]
            ));
        }
    }
    Ok(configurations.into_iter().map(|(state, _)| state).collect())
}

/// Lets the call in this slot have had its effect, with whatever others before it.
fn finish<S: Spec>(
    from: Configurations<S>,
    running: &HashMap<usize, usize>,
    slot: usize,
    history: &[Ran<S::Op>],
) -> Configurations<S> {
    let (mut seen, mut done, mut open) = (from.clone(), HashSet::new(), Vec::from_iter(from));
    while let Some((state, had)) = open.pop() {
        if had & (1 << slot) != 0 {
            done.insert((state, had & !(1 << slot)));
            continue;
        }
        for (next, ran) in running.iter().filter(|(other, _)| had & (1 << **other) == 0) {
            for after in state.after(&history[*ran].op) {
                let configuration = (after, had | 1 << next);
                if seen.insert(configuration.clone()) {
                    open.push(configuration);
                }
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register of one number.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Register(u8);

    #[derive(Debug, Clone, Copy)]
    enum Op {
        Write(u8),
        Read(u8),
        /// A write that was cut off.
        Perhaps(u8),
    }
    use Op::{Perhaps, Read, Write};

    impl Spec for Register {
        type Op = Op;
        fn after(&self, op: &Op) -> Vec<Self> {
            match *op {
                Write(value) => vec![Register(value)],
                Perhaps(value) => vec![self.clone(), Register(value)],
                Read(value) if value == self.0 => vec![self.clone()],
                Read(_) => Vec::new(),
            }
        }
    }

    fn linearizable(calls: &[(u64, u64, Op)]) -> bool {
        let history: Vec<_> = calls.iter().map(|&(start, end, op)| Ran { start, end, op }).collect();
        check(HashSet::from([Register(0)]), &history).is_ok()
    }

    #[test]
    fn calls_one_after_the_other_are_explained() {
        assert!(linearizable(&[(0, 1, Write(1)), (2, 3, Read(1)), (4, 5, Write(2)), (6, 7, Read(2))]));
        assert!(!linearizable(&[(0, 1, Write(1)), (2, 3, Read(0))]), "a stale read");
        assert!(!linearizable(&[(0, 1, Read(1)), (2, 3, Write(1))]), "a read of the future");
        assert!(!linearizable(&[(0, 1, Write(1)), (1, 2, Read(0))]), "it began when the write had ended");
    }

    #[test]
    fn calls_at_one_time_take_one_order_of_two() {
        for seen in [1, 2] {
            assert!(linearizable(&[(0, 9, Write(1)), (0, 9, Write(2)), (10, 11, Read(seen))]));
        }
        assert!(!linearizable(&[(0, 9, Write(1)), (0, 9, Write(2)), (10, 11, Read(0))]), "a lost write");
        let flip = [(0, 9, Write(1)), (0, 9, Write(2)), (10, 11, Read(1)), (12, 13, Read(2))];
        assert!(!linearizable(&flip), "two readers disagree about the order");
        assert!(linearizable(&[(0, 9, Write(1)), (1, 2, Read(0)), (3, 4, Read(1))]));
        assert!(!linearizable(&[(0, 9, Write(1)), (1, 2, Read(1)), (3, 4, Read(0))]), "new, then old");
    }

    #[test]
    fn a_call_cut_off_had_its_effect_once_or_never() {
        let cut = (0, u64::MAX, Perhaps(1));
        assert!(linearizable(&[cut, (5, 6, Read(0))]));
        assert!(linearizable(&[cut, (5, 6, Read(1))]));
        assert!(linearizable(&[cut, (5, 6, Read(0)), (7, 8, Read(1))]), "its effect comes late");
        assert!(!linearizable(&[cut, (5, 6, Read(1)), (7, 8, Read(0))]), "it is not undone");
        assert!(!linearizable(&[cut, (1, 2, Read(1)), (3, 4, Write(2)), (5, 6, Read(1))]), "nor comes twice");
        assert!(!linearizable(&[(2, u64::MAX, Perhaps(1)), (0, 1, Read(1))]), "nor before it was called");
    }

    #[test]
    fn agrees_with_every_order_of_small_histories() {
        // All histories of four calls of 3 kinds whose times overlap in one fixed way, against all 24 orders.
        let times = [(0, 3), (1, 5), (2, 7), (6, 9)];
        let kinds = [Write(1), Write(2), Read(0), Read(1), Read(2)];
        let mut verdicts = [0, 0];
        for n in 0..kinds.len().pow(4) {
            let op = |at: u32| kinds[n / kinds.len().pow(at) % kinds.len()];
            let calls: Vec<_> = (0..4).map(|at| (times[at].0, times[at].1, op(at as u32))).collect();
            let found = linearizable(&calls);
            assert_eq!(found, by_all_orders(&calls), "{calls:?}");
            verdicts[usize::from(found)] += 1;
        }
        assert!(verdicts.iter().all(|count| *count > 50), "{verdicts:?}");
    }

    fn by_all_orders(calls: &[(u64, u64, Op)]) -> bool {
        fn go(state: &Register, left: &[(u64, u64, Op)]) -> bool {
            left.is_empty()
                || left.iter().enumerate().any(|(at, call)| {
                    let mut rest = left.to_vec();
                    rest.remove(at);
                    rest.iter().all(|other| other.1 > call.0)
                        && state.after(&call.2).iter().any(|next| go(next, &rest))
                })
        }
        go(&Register(0), calls)
    }
}
