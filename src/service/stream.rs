//! An answer of many messages: the use case makes them one after the other on the blocking pool, and waits if the caller
//! reads more slowly than it makes them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::Status;

use super::{ready_to_serve, spawn_blocking, status_of};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::SnapshotId;

/// How many messages wait for the caller, beside those in the connection's own buffers. Each may hold thousands of
/// ranges.
const AHEAD: usize = 1;
/// How long a reader may leave a message waiting; then the stream ends with an error, and its thread is free.
const STALLED: Duration = Duration::from_secs(180);

/// The stream of an answer, as tonic wants it.
pub(crate) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Takes a message; `false` once nobody listens any more.
pub(crate) type Emit<'a, T> = &'a mut dyn FnMut(T) -> bool;

/// Runs a use case on the blocking pool, in the span of the RPC, and streams what it emits. Its error ends the
/// stream, whether messages went before it or not. It ends by itself soon after its caller has gone, since it is
/// told so by the next message.
///
/// `who` is the caller, and the source that it reads for another node.
pub(super) fn run<T, F>(
    driver: &Arc<Driver>,
    (who, reads): (&str, Option<&SnapshotId>),
    work: F,
) -> Result<Messages<T>, Status>
where
    F: FnOnce(&Driver, Emit<'_, T>) -> Result<()> + Send + 'static,
    T: Send + 'static,
{
    ready_to_serve(driver)?;
    let turn = driver.stream_turn(who, reads)?;
    let driver = Arc::clone(driver);
    Ok(Box::pin(stream(move |emit| {
        let _turn = turn;
        work(&driver, emit)
    })))
}

/// The same for any work.
pub(crate) fn stream<T, F>(work: F) -> Streamed<T>
where
    F: FnOnce(Emit<'_, T>) -> Result<()> + Send + 'static,
    T: Send + 'static,
{
    let (sender, messages) = mpsc::channel(AHEAD);
    let runtime = Handle::current();
    let work = spawn_blocking(move || {
        let mut patient = true;
        let done = work(&mut |message| match send(&runtime, &sender, message) {
            Ok(()) => true,
            Err(Gone::Reader) => false,
            Err(Gone::Patience) => {
                patient = false;
                false
            }
        });
        // Otherwise it would look as if all had been sent.
        let asleep = || {
            let seconds = STALLED.as_secs();
            Error::Unavailable(format!("the stream was not read for {seconds} s; open it again"))
        };
        if patient { done } else { Err(asleep()) }
    });
    Streamed { messages, work: Some(work) }
}

/// Why a message was not taken.
enum Gone {
    /// Nobody listens any more.
    Reader,
    /// Somebody does, and does not read.
    Patience,
}

/// Waits for the reader, for a while.
fn send<T>(runtime: &Handle, sender: &mpsc::Sender<T>, message: T) -> Result<(), Gone> {
    let message = match sender.try_send(message) {
        Ok(()) => return Ok(()),
        Err(TrySendError::Closed(_)) => return Err(Gone::Reader),
        Err(TrySendError::Full(message)) => message,
    };
    match runtime.block_on(async { tokio::time::timeout(STALLED, sender.send(message)).await }) {
        Ok(sent) => sent.map_err(|_| Gone::Reader),
        Err(_) => Err(Gone::Patience),
    }
}

/// What a piece of work emits, and then how it ended.
pub(crate) struct Streamed<T> {
    messages: mpsc::Receiver<T>,
    /// `None` once its end was told.
    work: Option<JoinHandle<Result<()>>>,
}

impl<T> Stream for Streamed<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        // The channel is closed by the end of the work, also by its panic: only the work itself knows which, and an
        // end without an error means that everything was sent (csi.proto, GetMetadataAllocatedResponse).
        let Some(work) = &mut self.work else {
            return Poll::Ready(None);
        };
        let ended = ready!(Pin::new(work).poll(cx));
        self.work = None;
        Poll::Ready(status_of(ended).err().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use tokio_stream::StreamExt;
    use tonic::Code;

    use super::*;

    /// What a caller that reads to the end gets.
    fn read<F>(work: F) -> (Vec<u32>, Option<Status>)
    where
        F: FnOnce(Emit<'_, u32>) -> Result<()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime.block_on(async {
            let mut messages = stream(work);
            let (mut got, mut end) = (Vec::new(), None);
            while let Some(message) = messages.next().await {
                assert!(end.is_none(), "an error is the last that comes");
                match message {
                    Ok(message) => got.push(message),
                    Err(status) => end = Some(status),
                }
            }
            assert!(messages.next().await.is_none(), "the end is the end");
            (got, end)
        })
    }

    #[test]
    fn every_message_comes_in_order() {
        let (got, end) = read(|emit| {
            assert!((0..100).all(&mut *emit));
            Ok(())
        });
        assert!(end.is_none(), "{end:?}");
        assert_eq!(got, (0..100).collect::<Vec<_>>());
        assert!(matches!(read(|_| Ok(())), (got, None) if got.is_empty()));
    }

    #[test]
    fn an_error_ends_the_stream_wherever_it_comes() {
        for before in [0, 1, 50] {
            let (got, end) = read(move |emit| {
                assert!((0..before).all(&mut *emit));
                Err(Error::OutOfRange("too far".to_owned()))
            });
            let end = end.expect("status");
            assert_eq!(
                (got.len(), end.code(), end.message()),
                (before as usize, Code::OutOfRange, "too far")
            );
        }
    }

    #[test]
    fn a_panic_in_the_middle_is_internal_and_says_nothing() {
        let (got, end) = read(|emit| {
            emit(1);
            panic!("CANARY")
        });
        let end = end.expect("a stream that was cut off must not look whole");
        assert_eq!((got.len(), end.code()), (1, Code::Internal));
        assert!(!end.message().is_empty() && !end.message().contains("CANARY"));
    }

    #[test]
    fn work_ends_when_its_caller_has_gone() {
        let (ended, has_ended) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime.block_on(async {
            let mut messages = stream(move |emit| {
                // Ends only when the caller drops the stream, and blocks until then because the caller does not read.
                let sent = (0..).take_while(|number| emit(*number)).count();
                ended.send(sent).ok();
                Ok(())
            });
            assert!(matches!(messages.next().await, Some(Ok(0))));
        });
        let sent = has_ended.recv_timeout(Duration::from_secs(10)).expect("ended");
        assert!(sent <= 1 + AHEAD + 1, "{sent} messages were made for a caller that read one");
    }
}
