//! The way between two nodes, with what can happen on it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hostloop::cluster::pull::{Connector, endpoint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// What happens to the bytes that the source sends.
#[derive(Debug, Default)]
struct Plan {
    /// Bytes so far, over all connections.
    passed: u64,
    /// The connection breaks when so many have passed in all; the last comes first.
    cuts: Vec<u64>,
    /// A bit of this byte of every connection flips, for so many connections that get there.
    flip: Option<(u64, usize)>,
    /// The number of bytes after which nothing arrives, although no connection breaks.
    stall: Option<u64>,
}

/// The network: an address is the name of a node, and stands for its socket.
#[derive(Clone, Default)]
pub struct Network {
    sockets: Arc<Mutex<BTreeMap<String, PathBuf>>>,
    plan: Arc<Mutex<Plan>>,
}

impl Network {
    pub fn listens(&self, address: &str, socket: PathBuf) {
        self.sockets.lock().unwrap().insert(address.to_owned(), socket);
    }

    /// What listens at one address listens at another one instead.
    pub fn moves(&self, from: &str, to: &str) {
        let mut sockets = self.sockets.lock().unwrap();
        let socket = sockets.remove(from).expect("somebody listens");
        sockets.insert(to.to_owned(), socket);
    }

    /// Nobody listens there any more.
    pub fn leaves(&self, address: &str) {
        self.sockets.lock().unwrap().remove(address);
    }

    /// Breaks the connection whenever as many bytes have passed as one of these numbers.
    pub fn cut_after(&self, mut bytes: Vec<u64>) {
        bytes.sort_unstable_by(|one, other| other.cmp(one));
        *self.plan.lock().unwrap() = Plan { cuts: bytes, ..Plan::default() };
    }

    /// Flips a bit of this byte of a connection, on so many connections.
    pub fn flip(&self, byte: u64, connections: usize) {
        *self.plan.lock().unwrap() = Plan { flip: Some((byte, connections)), ..Plan::default() };
    }

    /// Stops the delivery after this number of bytes, without breaking a connection.
    pub fn stall_after(&self, bytes: u64) {
        *self.plan.lock().unwrap() = Plan { stall: Some(bytes), ..Plan::default() };
    }

    /// All goes well from here on; bytes count from 0.
    pub fn mend(&self) {
        *self.plan.lock().unwrap() = Plan::default();
    }

    /// Bytes that the source sent, headers and all.
    pub fn passed(&self) -> u64 {
        self.plan.lock().unwrap().passed
    }

    /// Whether everything that was planned has happened.
    pub fn is_spent(&self) -> bool {
        let plan = self.plan.lock().unwrap();
        plan.cuts.is_empty() && plan.flip.is_none_or(|(_, left)| left == 0)
    }

    pub fn connector(&self) -> Connector {
        let network = self.clone();
        Arc::new(move |address: &str, _: &str| {
            let (network, address) = (network.clone(), address.to_owned());
            Box::pin(async move {
                let way = tower::service_fn(move |_| network.clone().open(address.clone()));
                endpoint().connect_with_connector(way).await.map_err(|error| format!("{error:?}"))
            })
        })
    }

    async fn open(self, address: String) -> io::Result<TokioIo<Way>> {
        let socket = self.sockets.lock().unwrap().get(&address).cloned();
        let stream = UnixStream::connect(socket.ok_or(io::ErrorKind::ConnectionRefused)?).await?;
        Ok(TokioIo::new(Way { stream, plan: self.plan, read: 0 }))
    }
}

/// One connection.
struct Way {
    stream: UnixStream,
    plan: Arc<Mutex<Plan>>,
    read: u64,
}

impl AsyncRead for Way {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_stalled = |plan: &Plan| plan.stall.is_some_and(|stall| plan.passed >= stall);
        if is_stalled(&self.plan.lock().unwrap()) {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let count = (buffer.filled().len() - before) as u64;
        let (start, plan) = (self.read, self.plan.clone());
        self.read += count;
        let mut plan = plan.lock().unwrap();
        plan.passed += count;
        if let Some((byte, left)) = &mut plan.flip
            && (start..start + count).contains(byte)
            && *left > 0
        {
            *left -= 1;
            buffer.filled_mut()[before + (*byte - start) as usize] ^= 4;
        }
        if plan.cuts.last().is_some_and(|cut| plan.passed >= *cut) {
            plan.cuts.pop();
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        polled
    }
}

impl AsyncWrite for Way {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
