//! A connection whose first bytes must arrive within a time, and that must give way if there are too many. Otherwise
//! reading it fails.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use super::super::crowd::Seat;

/// The connection preface of HTTP/2 in bytes (RFC 9113, 3.4).
const PREFACE: usize = 24;

/// A connection whose other side has to send the preface of HTTP/2 in time.
#[derive(Debug)]
pub struct Prompt<IO> {
    inner: IO,
    limit: Duration,
    seat: Seat,
    /// What is still missing, and until when; `None` once it came.
    waiting: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<IO> Prompt<IO> {
    /// It has so long from now on, and its seat as long as that is not lost.
    pub fn new(inner: IO, limit: Duration, seat: Seat) -> Self {
        Prompt { inner, limit, seat, waiting: Some((PREFACE, Box::pin(tokio::time::sleep(limit)))) }
    }
}

impl<IO: Connected> Connected for Prompt<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> IO::ConnectInfo {
        self.inner.connect_info()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Prompt<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(cx, buffer);
        if polled.is_pending()
            && !this.seat.is_terminated()
            && Pin::new(&mut this.seat).poll(cx) == Poll::Ready(Ok(()))
        {
            let text = "it makes way for a newer connection of the same peer";
            return Poll::Ready(Err(io::Error::new(ErrorKind::ConnectionAborted, text)));
        }
        let Some((missing, until)) = &mut this.waiting else { return polled };
        *missing = missing.saturating_sub(buffer.filled().len() - before);
        if *missing == 0 {
            this.waiting = None;
            return polled;
        }
        if polled.is_pending() && until.as_mut().poll(cx).is_ready() {
            let text = format!("no HTTP/2 within {} s", this.limit.as_secs());
            return Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, text)));
        }
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Prompt<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::super::crowd::{Crowd, Limits};
    use super::*;

    fn alone() -> Seat {
        Crowd::new(Limits { all: 1, each: 1 }).enter([127, 0, 0, 1].into())
    }

    #[tokio::test]
    async fn whoever_says_too_little_is_cut_off() {
        for sent in [0, 1, PREFACE - 1] {
            let (mut near, far) = tokio::io::duplex(64);
            let mut far = Prompt::new(far, Duration::from_millis(30), alone());
            near.write_all(&[b'P'; PREFACE][..sent]).await.unwrap();
            let mut all = Vec::new();
            let error = far.read_to_end(&mut all).await.unwrap_err();
            assert_eq!((all.len(), error.kind()), (sent, ErrorKind::TimedOut));
        }
    }

    #[tokio::test]
    async fn a_connection_may_be_silent_after_its_beginning() {
        let (mut near, far) = tokio::io::duplex(64);
        let limit = Duration::from_millis(200);
        let mut far = Prompt::new(far, limit, alone());
        near.write_all(&[b'P'; PREFACE]).await.unwrap();
        far.read_exact(&mut [0; PREFACE]).await.unwrap();
        let later = tokio::spawn(async move {
            tokio::time::sleep(2 * limit).await;
            near.write_all(b"x").await.unwrap();
            near
        });
        assert_eq!(far.read_u8().await.unwrap(), b'x');
        later.await.unwrap();
    }

    #[tokio::test]
    async fn a_lost_place_ends_the_reading() {
        let crowd = Crowd::new(Limits { all: 8, each: 1 });
        let (_near, far) = tokio::io::duplex(64);
        let mut far = Prompt::new(far, Duration::from_secs(60), crowd.enter([10, 0, 0, 1].into()));
        let _other = crowd.enter([10, 0, 0, 2].into());
        let read = tokio::spawn(async move { far.read_u8().await });
        tokio::task::yield_now().await;
        assert!(!read.is_finished());
        let _newer = crowd.enter([10, 0, 0, 1].into());
        assert_eq!(read.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }
}
