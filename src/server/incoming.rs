//! Accepting connections.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_stream::Stream;

/// How long to wait after a connection that could not be accepted. The usual reason is that no file descriptor is
/// left, and then the next try fails at once as well.
const PAUSE: Duration = Duration::from_millis(100);

/// What connections come from.
pub trait Accept: Unpin {
    type Connection;
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Connection>>;
}

impl Accept for UnixListener {
    type Connection = UnixStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        UnixListener::poll_accept(self, cx).map_ok(|(stream, _)| stream)
    }
}

impl Accept for TcpListener {
    type Connection = TcpStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        TcpListener::poll_accept(self, cx).map_ok(|(stream, _)| stream)
    }
}

/// The connections of a listener, without end. tonic would try again at once after an error, and so keep a
/// processor busy; this waits a little, and says why.
pub struct Incoming<L> {
    listener: L,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<L> Incoming<L> {
    pub fn new(listener: L) -> Self {
        Incoming { listener, pause: None }
    }
}

impl<L: Accept> Stream for Incoming<L> {
    type Item = io::Result<L::Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok(connection) => return Poll::Ready(Some(Ok(connection))),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio_stream::StreamExt;

    use super::*;

    struct Flaky(Cell<u32>);

    impl Accept for Flaky {
        type Connection = u32;

        fn poll_accept(&self, _: &mut Context<'_>) -> Poll<io::Result<u32>> {
            self.0.set(self.0.get() + 1);
            Poll::Ready(if self.0.get() < 3 {
                Err(io::Error::from_raw_os_error(24))
            } else {
                Ok(self.0.get())
            })
        }
    }

    #[tokio::test]
    async fn an_error_is_a_pause_and_not_the_end() {
        let started = std::time::Instant::now();
        let mut incoming = Incoming::new(Flaky(Cell::new(0)));
        assert_eq!(incoming.next().await.unwrap().unwrap(), 3);
        assert!(started.elapsed() >= PAUSE * 2);
    }
}
