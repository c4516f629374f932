//! The C library as the simulation has it. What the driver, tokio and the standard library ask of the world outside
//! (the time, random bytes, to wait, to begin a thread) ends in a handful of functions of libc; those of this binary
//! stand in front of them. In a simulated thread they ask `schedule.rs`, and in any other they are the real ones.
#![allow(unsafe_code, reason = "functions of the C library, called and given with its types")]

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use libc::{clockid_t, epoll_event, pthread_attr_t, pthread_t, size_t, ssize_t, timespec};

use crate::schedule::{self, Waited};

const SECOND: u64 = 1_000_000_000;

/// The function that would have been called without ours.
macro_rules! real {
    ($name:literal as fn($($arg:ty),*) -> $result:ty) => {{
        static FOUND: AtomicUsize = AtomicUsize::new(0);
        let found = match FOUND.load(Relaxed) {
            0 => next($name, &FOUND),
            found => found,
        };
        // SAFETY: the function has this name and this signature in the C library.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($arg),*) -> $result>(found) }
    }};
}

fn next(name: &CStr, found: &AtomicUsize) -> usize {
    // SAFETY: the name ends with a NUL.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    assert_ne!(address, 0, "{name:?} is in the C library");
    found.store(address, Relaxed);
    address
}

fn real_syscall(number: c_long, a: [c_long; 6]) -> c_long {
    let call = real!(c"syscall" as fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long);
    // SAFETY: integers and pointers as the caller made them; the kernel checks what it is given.
    unsafe { call(number, a[0], a[1], a[2], a[3], a[4], a[5]) }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: every thread has its errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Waits on a word of this process as the kernel does it, not as the simulation does it.
pub fn park(word: &AtomicU32, while_it_is: u32) {
    let flags = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as c_long;
    real_syscall(libc::SYS_futex, [word.as_ptr() as c_long, flags, while_it_is as c_long, 0, 0, 0]);
}

/// Wakes who waits so.
pub fn unpark(word: &AtomicU32) {
    let flags = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as c_long;
    real_syscall(libc::SYS_futex, [word.as_ptr() as c_long, flags, 1, 0, 0, 0]);
}

/// Gives the processor to any thread.
pub fn give_way() {
    let call = real!(c"sched_yield" as fn() -> c_int);
    // SAFETY: it has no arguments.
    unsafe { call() };
}

/// Whether something has happened that an epoll instance watches for.
pub fn has_events(epoll: c_int) -> bool {
    let mut poll = libc::pollfd { fd: epoll, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, and its number.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// Ends the process at once, whatever its threads do.
pub fn leave(code: i32) -> ! {
    use std::io::Write as _;
    crate::run::clean();
    let _ = std::io::stdout().flush();
    // SAFETY: nothing of the process is of use any more.
    unsafe { libc::_exit(code) }
}

/// Keeps the process on one processor: its threads run one at a time, and are handed over sooner there.
pub fn stay_on_one_processor() {
    // SAFETY: a set of this size, made here; where the kernel refuses it is only slower.
    unsafe {
        let now = libc::sched_getcpu().max(0) as usize;
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(now, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn nanoseconds(time: &timespec) -> u64 {
    (time.tv_sec.max(0) as u64).saturating_mul(SECOND).saturating_add(time.tv_nsec as u64)
}

/// clock_gettime(2).
///
/// # Safety
/// `time` is to be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let Some(now) = schedule::now(clock == libc::CLOCK_REALTIME || clock == libc::CLOCK_REALTIME_COARSE)
    else {
        return real_syscall(libc::SYS_clock_gettime, [clock.into(), time as c_long, 0, 0, 0, 0]) as c_int;
    };
    // SAFETY: as above.
    unsafe { *time = timespec { tv_sec: (now / SECOND) as i64, tv_nsec: (now % SECOND) as i64 } };
    0
}

/// nanosleep(2).
///
/// # Safety
/// `time` is to be read, and `left` to be written to or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    if !schedule::is_simulated() {
        return real_syscall(libc::SYS_nanosleep, [time as c_long, left as c_long, 0, 0, 0, 0]) as c_int;
    }
    // SAFETY: as above.
    schedule::sleep(nanoseconds(unsafe { &*time }));
    0
}

/// clock_nanosleep(2).
///
/// # Safety
/// `time` is to be read, and `left` to be written to or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if !schedule::is_simulated() {
        let a = [clock.into(), flags.into(), time as c_long, left as c_long, 0, 0];
        return match real_syscall(libc::SYS_clock_nanosleep, a) {
            0 => 0,
            // SAFETY: every thread has its errno; this function returns it.
            _ => unsafe { *libc::__errno_location() },
        };
    }
    // SAFETY: as above.
    let wanted = nanoseconds(unsafe { &*time });
    let now = schedule::now(clock == libc::CLOCK_REALTIME).unwrap_or_default();
    let absolute = flags & libc::TIMER_ABSTIME != 0;
    schedule::sleep(if absolute { wanted.saturating_sub(now) } else { wanted });
    0
}

/// sched_yield(2).
#[unsafe(no_mangle)]
pub extern "C" fn sched_yield() -> c_int {
    if schedule::is_simulated() {
        schedule::sleep(1000);
    } else {
        give_way();
    }
    0
}

/// getrandom(2).
///
/// # Safety
/// `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !schedule::is_simulated() {
        let a = [buffer as c_long, length as c_long, flags.into(), 0, 0, 0];
        return real_syscall(libc::SYS_getrandom, a) as ssize_t;
    }
    if length > 0 {
        // SAFETY: as above.
        schedule::random_bytes(unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) });
    }
    length as ssize_t
}

/// syscall(2), by which the standard library waits for its locks. A variadic function gets integers where one with as
/// many arguments does, on x86-64 and on arm64.
///
/// # Safety
/// Arguments as the kernel wants them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if schedule::is_simulated() {
        if number == libc::SYS_getrandom {
            // SAFETY: the caller's buffer.
            return unsafe { getrandom(a as *mut c_void, b as size_t, c as c_uint) as c_long };
        }
        if number == libc::SYS_futex {
            // SAFETY: the caller's word and time.
            if let Some(result) = unsafe { futex(a as *const u32, b as c_int, c, d as *const timespec) } {
                return result;
            }
        }
    }
    real_syscall(number, [a, b, c, d, e, f])
}

/// The two operations that the standard library uses; `None` for others.
///
/// # Safety
/// The word can be read, and the time, or it is null.
unsafe fn futex(word: *const u32, operation: c_int, value: c_long, until: *const timespec) -> Option<c_long> {
    let plain = operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    match plain {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            // SAFETY: as above. Only one thread runs, so that nobody changes it meanwhile.
            if unsafe { word.read_volatile() } != value as u32 {
                return Some(fail(libc::EAGAIN).into());
            }
            // SAFETY: as above.
            let until = (!until.is_null()).then(|| nanoseconds(unsafe { &*until }));
            let relative = plain == libc::FUTEX_WAIT;
            let now = schedule::now(false).unwrap_or_default();
            let until = until.map(|until| if relative { now.saturating_add(until) } else { until });
            Some(match schedule::wait(word as usize, until) {
                Waited::Woken => 0,
                Waited::TimedOut => fail(libc::ETIMEDOUT).into(),
            })
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            let woken = schedule::wake(word as usize, value as usize);
            // Somebody outside of the simulation may wait too.
            let rest = value - woken as c_long;
            let outside = if rest > 0 {
                real_syscall(libc::SYS_futex, [word as c_long, operation.into(), rest, 0, 0, -1])
            } else {
                0
            };
            Some(woken as c_long + outside.max(0))
        }
        _ => None,
    }
}

/// epoll_wait(2), where the tasks of tokio wait together.
///
/// # Safety
/// `events` has room for so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: c_int,
) -> c_int {
    let call = real!(c"epoll_wait" as fn(c_int, *mut epoll_event, c_int, c_int) -> c_int);
    if !schedule::is_simulated() {
        // SAFETY: as above.
        return unsafe { call(epoll, events, most, limit) };
    }
    schedule::poll(epoll, limit);
    // SAFETY: as above.
    unsafe { call(epoll, events, most, 0) }
}

type Begin = extern "C" fn(*mut c_void) -> *mut c_void;

struct Start {
    begin: Begin,
    argument: *mut c_void,
    number: usize,
    turn: &'static AtomicU32,
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: made by pthread_create below, for this thread.
    let Start { begin, argument, number, turn } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    schedule::enter(number, turn);
    let result = begin(argument);
    schedule::end();
    result
}

/// pthread_create(3). A thread that a simulated one begins is simulated too.
///
/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Begin,
    argument: *mut c_void,
) -> c_int {
    let call =
        real!(c"pthread_create" as fn(*mut pthread_t, *const pthread_attr_t, Begin, *mut c_void) -> c_int);
    let Some((number, turn)) = schedule::announce() else {
        // SAFETY: as above.
        return unsafe { call(thread, attributes, start, argument) };
    };
    let start = Box::into_raw(Box::new(Start { begin: start, argument, number, turn }));
    // SAFETY: as above; the box is the new thread's.
    let result = unsafe { call(thread, attributes, begin, start.cast()) };
    assert_eq!(result, 0, "a thread");
    result
}
