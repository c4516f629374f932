//! Who runs. Of all simulated threads (the one with tokio's tasks, and those of the blocking pool) one runs at a time; at
//! each point where it waits, and at some where it could go on, a seeded choice says who is next. Time goes on by what
//! steps cost, and jumps to the next moment that somebody waits for when nobody can run.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::libc;
use crate::random::Random;

/// 2026-01-01, the first moment of each simulation, and its moment since the start of the machine.
const EPOCH: u64 = 1_767_225_600 * SECOND;
const UPTIME: u64 = 1_000_000 * SECOND;
const SECOND: u64 = 1_000_000_000;
/// What asking for the time costs, so that whoever asks in a loop comes to an end.
const LOOK: u64 = 50;
/// A simulation with more choices goes in a circle.
const MOST: u64 = 30_000_000;
/// A thread outside of the simulation.
const OUTSIDE: usize = usize::MAX;

thread_local! {
    static SELF: Cell<usize> = const { Cell::new(OUTSIDE) };
    /// By how much this thread's clock of the day is ahead, in nanoseconds.
    static AHEAD: Cell<i64> = const { Cell::new(0) };
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    Woken,
    TimedOut,
}

#[derive(Clone, Copy)]
enum State {
    Ready,
    /// Until somebody wakes this word, or a moment.
    Word(usize, Option<u64>),
    /// Until a moment.
    Sleep(u64),
    /// Until something happens to an epoll instance, or a moment.
    Poll(i32, Option<u64>),
    Over,
}

struct Thread {
    state: State,
    waited: Waited,
    /// 1 when it may run.
    turn: &'static AtomicU32,
}

struct World {
    threads: Vec<Thread>,
    time: u64,
    random: Random,
    bytes: Random,
    choices: u64,
    /// One of so many steps lets another thread run.
    switches: u64,
    trace: u64,
}

static WORLD: OnceLock<Mutex<World>> = OnceLock::new();

// Only the thread whose turn it is comes here, so that nobody ever waits for the mutex.
fn world() -> MutexGuard<'static, World> {
    let world = WORLD.get().unwrap_or_else(|| libc::leave(99));
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_thread() -> Thread {
    let turn = Box::leak(Box::new(AtomicU32::new(0)));
    Thread { state: State::Ready, waited: Waited::Woken, turn }
}

/// Begins the simulation of this process with this thread.
pub fn begin(seed: u64) {
    libc::stay_on_one_processor();
    let mut random = Random::new(seed);
    let bytes = random.fork();
    let switches = [2, 5, 20, 100][random.below(4)];
    let world = World {
        threads: vec![new_thread()],
        time: 0,
        random,
        bytes,
        choices: 0,
        switches,
        trace: 0xcbf2_9ce4_8422_2325,
    };
    assert!(WORLD.set(Mutex::new(world)).is_ok(), "a process simulates once");
    SELF.set(0);
}

/// Whether the calling thread is simulated.
pub fn is_simulated() -> bool {
    SELF.get() != OUTSIDE
}

/// Takes something that happened into the trace.
pub fn note(text: &str) {
    let mut world = world();
    // FNV-1a.
    for byte in text.bytes().chain([b'\n']) {
        world.trace = (world.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
}

/// A number for all that happened so far: what was noted, and every choice of a thread.
pub fn trace() -> u64 {
    world().trace
}

/// How many choices were made.
pub fn choices() -> u64 {
    world().choices
}

/// Nanoseconds since the simulation began.
pub fn elapsed() -> u64 {
    world().time
}

/// The time in nanoseconds, of the day or since the machine started; `None` outside of the simulation.
pub fn now(of_day: bool) -> Option<u64> {
    if !is_simulated() {
        return None;
    }
    let mut world = world();
    world.time += LOOK;
    let ahead = AHEAD.get();
    Some(if of_day { (EPOCH + world.time).saturating_add_signed(ahead) } else { UPTIME + world.time })
}

/// Sets the clock of the day of this thread, and gives what it was.
pub fn set_ahead(nanoseconds: i64) -> i64 {
    AHEAD.replace(nanoseconds)
}

pub fn random_bytes(buffer: &mut [u8]) {
    world().bytes.fill(buffer);
}

/// A step that takes so long; others may run meanwhile.
pub fn step(nanoseconds: u64) {
    let mut world = world();
    world.time += nanoseconds;
    let switches = world.switches;
    if world.random.one_in(switches) {
        give_turn(world, State::Ready);
    }
}

pub fn sleep(nanoseconds: u64) {
    let world = world();
    let until = world.time.saturating_add(nanoseconds);
    give_turn(world, State::Sleep(until));
}

/// Waits until the word is woken, or the moment has come (since the start of the machine).
pub fn wait(word: usize, until: Option<u64>) -> Waited {
    give_turn(world(), State::Word(word, until.map(|until| until.saturating_sub(UPTIME))))
}

/// Wakes so many that wait for this word.
pub fn wake(word: usize, most: usize) -> usize {
    let mut world = world();
    let mut woken = 0;
    while woken < most {
        let waits = |thread: &Thread| matches!(thread.state, State::Word(of, _) if of == word);
        let waiting: Vec<usize> = (0..world.threads.len()).filter(|n| waits(&world.threads[*n])).collect();
        if waiting.is_empty() {
            break;
        }
        let chosen = waiting[world.random.below(waiting.len())];
        world.threads[chosen].state = State::Ready;
        world.threads[chosen].waited = Waited::Woken;
        woken += 1;
    }
    woken
}

/// Waits until something has happened to the epoll instance, or for so many milliseconds; for ever if it is negative.
pub fn poll(epoll: i32, milliseconds: i32) {
    let world = world();
    let limit = u64::try_from(milliseconds).ok().map(|limit| world.time + limit * 1_000_000);
    give_turn(world, State::Poll(epoll, limit));
}

/// A thread that is about to begin: its number, and the word that says when it may run. `None` where it is none of the
/// simulation.
pub fn announce() -> Option<(usize, &'static AtomicU32)> {
    if !is_simulated() {
        return None;
    }
    let mut world = world();
    let over = world.threads.iter().position(|thread| matches!(thread.state, State::Over));
    let number = over.unwrap_or(world.threads.len());
    if over.is_some() {
        world.threads[number] = new_thread();
    } else {
        world.threads.push(new_thread());
    }
    Some((number, world.threads[number].turn))
}

/// The calling thread is that one, and waits for its turn.
pub fn enter(number: usize, turn: &AtomicU32) {
    SELF.set(number);
    while turn.swap(0, Acquire) == 0 {
        libc::park(turn, 0);
    }
}

/// The calling thread is over.
pub fn end() {
    let mut world = world();
    let number = SELF.replace(OUTSIDE);
    world.threads[number].state = State::Over;
    let next = choose(&mut world);
    let turn = world.threads[next].turn;
    drop(world);
    turn.store(1, Release);
    libc::unpark(turn);
}

/// Lets whoever is chosen run, and comes back when it is this thread.
fn give_turn(mut world: MutexGuard<'_, World>, state: State) -> Waited {
    let number = SELF.get();
    world.threads[number].state = state;
    let next = choose(&mut world);
    let (own, other) = (world.threads[number].turn, world.threads[next].turn);
    if next != number {
        drop(world);
        other.store(1, Release);
        libc::unpark(other);
        while own.swap(0, Acquire) == 0 {
            libc::park(own, 0);
        }
        world = self::world();
    }
    world.threads[number].waited
}

/// Chooses among those that can run. Where nobody can, the next moment comes that somebody waits for.
fn choose(world: &mut World) -> usize {
    world.choices += 1;
    if world.choices > MOST {
        stuck(world, "it goes in a circle");
    }
    let mut ready = [0; 256];
    loop {
        let (mut count, mut next) = (0, u64::MAX);
        for (number, thread) in world.threads.iter().enumerate() {
            let (runs, until) = match thread.state {
                State::Ready => (true, None),
                State::Word(_, until) => (false, until),
                State::Sleep(until) => (false, Some(until)),
                State::Poll(epoll, until) => (libc::has_events(epoll), until),
                State::Over => continue,
            };
            if runs || until.is_some_and(|until| until <= world.time) {
                ready[count] = number;
                count += 1;
            }
            next = next.min(until.unwrap_or(u64::MAX));
        }
        if count == 0 {
            if next == u64::MAX {
                stuck(world, "nobody can run");
            }
            world.time = next;
            continue;
        }
        let chosen = ready[world.random.below(count)];
        let thread = &mut world.threads[chosen];
        if let State::Word(..) = thread.state {
            thread.waited = Waited::TimedOut;
        }
        thread.state = State::Ready;
        world.trace = (world.trace ^ chosen as u64).wrapping_mul(0x100_0000_01b3);
        return chosen;
    }
}

fn stuck(world: &World, why: &str) -> ! {
    println!(
        "FAILED the simulation: {why}, {} s after its start, of {} threads",
        world.time / SECOND,
        world.threads.len()
    );
    libc::leave(3)
}
