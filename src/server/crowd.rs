//! Connections of one kind, such as those that have sent nothing yet: a limit for all of them, and one for each address.
//! If there are too many, an existing one is closed, the oldest of the address with the most. So whoever opens connections
//! without end displaces only his own, and nobody else waits for him.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// The oldest first.
    guests: Arc<Mutex<Vec<Guest>>>,
}

/// A connection's source, and the channel that asks it to close. If its receiver is dropped, the connection has closed.
type Guest = (IpAddr, oneshot::Sender<()>);

/// The seat of one connection, freed when it is dropped. Completes with `Ok` if the connection has to close for a newer
/// one, and with `Err` if the crowd itself is dropped at shutdown: then the connection may finish.
pub type Seat = oneshot::Receiver<()>;

impl Crowd {
    pub fn new(limits: Limits) -> Self {
        Crowd { limits, guests: Arc::default() }
    }

    /// Admits a connection. If that exceeds a limit, asks the oldest connection of the address with the most to close.
    pub fn enter(&self, address: IpAddr) -> Seat {
        let newest = source(address);
        let (leave, seat) = oneshot::channel();
        // Nothing that runs under the mutex can panic half-way, so a poisoned one is as good as any.
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|(_, leave)| !leave.is_closed());
        guests.push((newest, leave));
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (source, _) in guests.iter() {
            *counts.entry(*source).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(source, _)| *source);
        let from = match counts.get(&newest) {
            Some(count) if *count > self.limits.each => Some(newest),
            _ => most.filter(|_| guests.len() > self.limits.all),
        };
        if let Some(oldest) = guests.iter().position(|(source, _)| Some(*source) == from) {
            // It may just have gone by itself.
            let _ = guests.remove(oldest).1.send(());
        }
        seat
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
        seats.iter_mut().map(|seat| seat.try_recv().is_ok()).collect()
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
        assert_eq!(
            crowd.guests.lock().unwrap().len(),
            1,
            "the last one is forgotten when the next one comes"
        );
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
