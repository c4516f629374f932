//! The choices of the clients, the same for the same seed.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// `HOSTLOOP_SEED`, or one of the time and the process; printed.
#[allow(clippy::disallowed_methods, reason = "chosen by whoever runs the test")]
pub fn seed() -> u64 {
    let given = std::env::var("HOSTLOOP_SEED").ok();
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos() as u64;
    let seed = given.map_or(now % 1_000_000_007 + u64::from(std::process::id()), |seed| {
        seed.parse().expect("HOSTLOOP_SEED is a number")
    });
    println!("HOSTLOOP_SEED={seed}");
    seed
}
