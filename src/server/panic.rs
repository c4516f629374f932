//! A bug in one call must not end the process, nor reveal what was in the call.
//!
//! A handler that hands its work to `spawn_blocking` passes on a panic of it with
//! `std::panic::resume_unwind(error.into_panic())`. It ends here too, and the hook logs it once.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use tonic::Status;

#[derive(Debug, PartialEq, Eq)]
pub struct Panicked;

/// What the caller of a method that panicked is told.
pub fn status(method: &str) -> Status {
    Status::internal(format!("a bug stopped {method}; the driver's log names the place"))
}

/// Runs code up to its end or its panic. What it leaves behind must not be looked at after a panic.
pub fn catch_now<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
}

/// Runs a future up to its end or its panic.
pub async fn catch<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    // After a panic the future is dropped and never looked at again, so that no half-made state of it is seen.
    poll_fn(|cx| match catch_now(|| future.as_mut().poll(cx)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(Panicked) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// Logs the place of every panic from now on. The payload is left out, as it may hold a part of a request, such
/// as a secret.
pub fn install_hook() {
    std::panic::set_hook(Box::new(report));
}

fn report(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => tracing::error!(place, thread, %backtrace, "a bug: the code panicked"),
        _ => tracing::error!(
            place,
            thread,
            "a bug: the code panicked (RUST_BACKTRACE=1 shows how it came there)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_caught_at_any_poll() {
        assert_eq!(catch(async { 1 }).await, Ok(1));
        let late = async {
            tokio::task::yield_now().await;
            panic!("late")
        };
        assert_eq!(catch::<_>(late).await.map(|(): ()| ()), Err(Panicked));
        let work = async {
            let work = tokio::task::spawn_blocking(|| {
                if true {
                    panic!("in the pool")
                }
            });
            std::panic::resume_unwind(work.await.unwrap_err().into_panic());
        };
        assert_eq!(catch::<_>(work).await.map(|(): ()| ()), Err(Panicked));
    }
}
