//! Connections of one kind, such as those that have sent nothing yet: a limit for all of them, and one for each address.
//! If there are too many, an existing one is closed, the oldest of the address with the most. So whoever opens connections
//! without end displaces only his own, and nobody else waits for him.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub all: usize,
    /// From one source.
    pub each: usize,
}

/// Who is there. Clones share it.
#[derive(Debug, Clone)]
pub struct Crowd {
    limits: Limits,
    inside: Arc<Mutex<Inside>>,
}

#[derive(Debug, Default)]
struct Inside {
    /// The oldest first.
    guests: VecDeque<Guest>,
    numbers: u64,
}

#[derive(Debug)]
struct Guest {
    number: u64,
    source: IpAddr,
    leave: oneshot::Sender<()>,
}

/// One connection's seat, which is free again with the value.
#[derive(Debug)]
pub struct Seat {
    crowd: Crowd,
    number: u64,
    leave: oneshot::Receiver<()>,
}

impl Crowd {
    pub fn new(limits: Limits) -> Self {
        Crowd { limits, inside: Arc::default() }
    }

    /// Lets a connection in. One of the others is asked to go where they are too many then.
    pub fn enter(&self, address: IpAddr) -> Seat {
        let source = source(address);
        let (ask, leave) = oneshot::channel();
        let mut inside = self.inside();
        inside.numbers += 1;
        let number = inside.numbers;
        inside.guests.push_back(Guest { number, source, leave: ask });
        let goes = inside.one_too_many(self.limits, source);
        drop(inside);
        if let Some(guest) = goes {
            // It may just have gone by itself.
            let _ = guest.leave.send(());
        }
        Seat { crowd: self.clone(), number, leave }
    }

    // Nothing that runs under the mutex can panic half-way, so a poisoned one is as good as any.
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn one_too_many(&mut self, limits: Limits, newest: IpAddr) -> Option<Guest> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for guest in &self.guests {
            *counts.entry(guest.source).or_default() += 1;
        }
        let from = if counts.get(&newest).is_some_and(|count| *count > limits.each) {
            newest
        } else if self.guests.len() > limits.all {
            counts.into_iter().max_by_key(|(_, count)| *count)?.0
        } else {
            return None;
        };
        let oldest = self.guests.iter().position(|guest| guest.source == from)?;
        self.guests.remove(oldest)
    }
}

impl Seat {
    /// Completes when the connection has to go.
    pub async fn lost(&mut self) {
        std::future::poll_fn(|cx| self.poll_lost(cx)).await;
    }

    /// The same, to be polled up to its end only.
    pub fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The other half goes with a word, or with this value.
        Pin::new(&mut self.leave).poll(cx).map(|_| ())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.inside().guests.retain(|guest| guest.number != self.number);
    }
}

/// What counts as one source: an IPv4 address, or what a host of IPv6 usually has for itself, the first 64 bits.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd() -> Crowd {
        Crowd::new(Limits { all: 6, each: 4 })
    }

    fn enter(crowd: &Crowd, address: &str) -> Seat {
        crowd.enter(address.parse().unwrap())
    }

    /// Whether each of these has to go.
    fn lost(seats: &mut [Seat]) -> Vec<bool> {
        seats.iter_mut().map(|seat| seat.leave.try_recv().is_ok()).collect()
    }

    #[test]
    fn a_source_drives_out_its_own_oldest() {
        let crowd = crowd();
        let mut other = [enter(&crowd, "10.0.0.2")];
        let mut seats: Vec<Seat> = (0..100).map(|_| enter(&crowd, "10.0.0.1")).collect();
        let gone = lost(&mut seats);
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 96);
        assert!(gone[..96].iter().all(|gone| *gone), "the oldest go");
        assert_eq!(lost(&mut other), [false]);
    }

    #[test]
    fn among_many_sources_the_one_with_the_most_loses() {
        let crowd = crowd();
        let mut flood: Vec<Seat> = (0..4).map(|_| enter(&crowd, "10.0.0.1")).collect();
        let mut others: Vec<Seat> = (2..7).map(|n| enter(&crowd, &format!("10.0.0.{n}"))).collect();
        assert_eq!(lost(&mut flood), [true, true, true, false]);
        assert_eq!(lost(&mut others), [false; 5]);
    }

    #[test]
    fn a_place_is_free_again_with_its_value() {
        let crowd = crowd();
        for _ in 0..100 {
            let mut seat = [enter(&crowd, "10.0.0.1")];
            assert_eq!(lost(&mut seat), [false]);
        }
        assert!(crowd.inside().guests.is_empty());
    }

    #[test]
    fn a_host_is_one_source_whatever_addresses_it_takes() {
        let same = |a: &str, b: &str| source(a.parse().unwrap()) == source(b.parse().unwrap());
        assert!(same("10.0.0.1", "::ffff:10.0.0.1"), "on a socket for both families");
        assert!(!same("10.0.0.1", "10.0.0.2"));
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8:0:1::1", "2001:db8:0:2::1"));
    }
}
