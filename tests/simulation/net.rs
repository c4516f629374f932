//! The net between the processes of a cluster: connections in memory whose bytes take their time, stand still and break
//! as the seed has it. As with TCP nothing is lost or changes its order while a connection lives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Sleep};

use crate::random::Random;

/// What may be under way.
const WINDOW: usize = 256 << 10;

/// A process at an end of the net; over when its machine or the process is.
#[derive(Clone)]
pub struct Host {
    pub name: String,
    lives: Arc<AtomicBool>,
    machine: Option<hostloop_fake_kernel::FakeKernel>,
}

impl Host {
    pub fn new(name: &str, machine: Option<hostloop_fake_kernel::FakeKernel>) -> Host {
        Host { name: name.to_owned(), lives: Arc::new(AtomicBool::new(true)), machine }
    }

    pub fn lives(&self) -> bool {
        self.lives.load(Ordering::Relaxed) && !self.machine.as_ref().is_some_and(|machine| machine.is_dead())
    }

    pub fn end(&self) {
        self.lives.store(false, Ordering::Relaxed);
    }
}

/// One direction of a connection.
struct Line {
    from: String,
    to: String,
    chunks: VecDeque<(Instant, Vec<u8>)>,
    waiting: usize,
    /// Its end was sent; it comes after what was sent before.
    closed: bool,
    broken: bool,
    wakers: Vec<Waker>,
}

impl Line {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

type SharedLine = Arc<Mutex<Line>>;

struct Inner {
    random: Random,
    ports: BTreeMap<String, (Host, UnboundedSender<Stream>)>,
    lines: Vec<SharedLine>,
    /// Pairs between which nothing gets through, in the order of names.
    parted: BTreeSet<(String, String)>,
    frozen: BTreeSet<String>,
    /// How long a chunk takes at the most, in microseconds.
    slowest: u64,
    /// One chunk of so many is the last of its connection.
    breaks: u64,
}

/// Clones are the same net.
#[derive(Clone)]
pub struct Net(Arc<Mutex<Inner>>);

fn pair(a: &str, b: &str) -> (String, String) {
    let (a, b) = if a < b { (a, b) } else { (b, a) };
    (a.to_owned(), b.to_owned())
}

impl Inner {
    fn passes(&self, from: &str, to: &str) -> bool {
        !self.frozen.contains(from) && !self.frozen.contains(to) && !self.parted.contains(&pair(from, to))
    }

    fn wake_all(&mut self) {
        self.lines.retain(|line| Arc::strong_count(line) > 1);
        self.lines.iter().for_each(|line| line.lock().unwrap().wake());
    }
}

impl Net {
    pub fn new(mut random: Random) -> Net {
        let slowest = *random.choose(&[500, 5_000, 100_000]);
        let breaks = *random.choose(&[300, 3_000, u64::MAX]);
        let (ports, lines, parted, frozen) = Default::default();
        Net(Arc::new(Mutex::new(Inner { random, ports, lines, parted, frozen, slowest, breaks })))
    }

    /// The connections to an address from now on.
    pub fn listen(&self, host: &Host, address: &str) -> UnboundedReceiver<Stream> {
        let (accept, accepted) = unbounded_channel();
        self.0.lock().unwrap().ports.insert(address.to_owned(), (host.clone(), accept));
        accepted
    }

    /// Every connection of a host breaks; what was under way is lost.
    pub fn cut(&self, host: &str) {
        for line in &self.0.lock().unwrap().lines {
            let mut line = line.lock().unwrap();
            if line.from == host || line.to == host {
                line.broken = true;
                line.wake();
            }
        }
    }

    pub fn part(&self, a: &str, b: &str, parted: bool) {
        let mut net = self.0.lock().unwrap();
        if parted {
            net.parted.insert(pair(a, b))
        } else {
            net.parted.remove(&pair(a, b))
        };
        net.wake_all();
    }

    pub fn freeze(&self, host: &str, frozen: bool) {
        let mut net = self.0.lock().unwrap();
        if frozen {
            net.frozen.insert(host.to_owned())
        } else {
            net.frozen.remove(host)
        };
        net.wake_all();
    }

    pub fn is_frozen(&self, host: &str) -> bool {
        self.0.lock().unwrap().frozen.contains(host)
    }

    /// Everything gets through from here on, and no connection breaks by itself.
    pub fn heal(&self) {
        let mut net = self.0.lock().unwrap();
        net.parted.clear();
        net.frozen.clear();
        net.breaks = u64::MAX;
        net.wake_all();
    }

    /// Connects; takes for ever where nothing gets through.
    pub async fn dial(&self, from: &Host, address: &str) -> io::Result<Stream> {
        let delay = {
            let mut net = self.0.lock().unwrap();
            let slowest = net.slowest;
            Duration::from_micros(net.random.between(20, slowest))
        };
        tokio::time::sleep(delay).await;
        loop {
            {
                let mut net = self.0.lock().unwrap();
                let Some((host, accept)) = net.ports.get(address).cloned() else {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                };
                if !from.lives() || !host.lives() {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                if net.passes(&from.name, &host.name) {
                    let line = |from: &Host, to: &Host| {
                        let (from, to) = (from.name.clone(), to.name.clone());
                        let chunks = VecDeque::new();
                        let wakers = Vec::new();
                        Arc::new(Mutex::new(Line {
                            from,
                            to,
                            chunks,
                            waiting: 0,
                            closed: false,
                            broken: false,
                            wakers,
                        }))
                    };
                    let (out, back) = (line(from, &host), line(&host, from));
                    net.lines.extend([Arc::clone(&out), Arc::clone(&back)]);
                    let near = Stream::new(self, from, &back, &out);
                    let far = Stream::new(self, &host, &out, &back);
                    accept.send(far).map_err(|_| io::ErrorKind::ConnectionRefused)?;
                    return Ok(near);
                }
            }
            // As a SYN is sent again.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// An end of a connection.
pub struct Stream {
    net: Net,
    own: Host,
    reads: SharedLine,
    writes: SharedLine,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    fn new(net: &Net, own: &Host, reads: &SharedLine, writes: &SharedLine) -> Stream {
        let (reads, writes) = (Arc::clone(reads), Arc::clone(writes));
        Stream { net: net.clone(), own: own.clone(), reads, writes, sleep: None }
    }

    fn reset(&self) -> bool {
        !self.own.lives() || self.reads.lock().unwrap().broken || self.writes.lock().unwrap().broken
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for line in [&self.writes, &self.reads] {
            let mut line = line.lock().unwrap();
            line.closed = true;
            line.wake();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.reset() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let reads = Arc::clone(&self.reads);
            let net = Arc::clone(&self.net.0);
            let (net, mut line) = (net.lock().unwrap(), reads.lock().unwrap());
            let now = Instant::now();
            let passes = net.passes(&line.from, &line.to);
            drop(net);
            match line.chunks.front().map(|(at, _)| *at) {
                Some(at) if passes && at <= now => {
                    let (at, mut chunk) = line.chunks.pop_front().unwrap();
                    let taken = chunk.len().min(buffer.remaining());
                    buffer.put_slice(&chunk[..taken]);
                    line.waiting -= taken;
                    if taken < chunk.len() {
                        chunk.drain(..taken);
                        line.chunks.push_front((at, chunk));
                    }
                    line.wake();
                    return Poll::Ready(Ok(()));
                }
                Some(at) if passes => {
                    line.wakers.push(cx.waker().clone());
                    drop(line);
                    let mut sleep = Box::pin(tokio::time::sleep_until(at));
                    if sleep.as_mut().poll(cx).is_pending() {
                        self.sleep = Some(sleep);
                        return Poll::Pending;
                    }
                }
                None if line.closed && passes => return Poll::Ready(Ok(())),
                _ => {
                    line.wakers.push(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.reset() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let (delay, breaks) = {
            let mut net = self.net.0.lock().unwrap();
            let (slowest, one_in) = (net.slowest, net.breaks);
            // Most are quick, some are not.
            let limit = if net.random.one_in(8) { slowest } else { slowest / 20 + 30 };
            (net.random.between(10, limit), net.random.one_in(one_in))
        };
        let mut line = self.writes.lock().unwrap();
        if breaks {
            line.broken = true;
            line.wake();
            drop(line);
            self.reads.lock().unwrap().broken = true;
            self.reads.lock().unwrap().wake();
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if line.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if line.waiting >= WINDOW {
            line.wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        let taken = bytes.len().min(WINDOW - line.waiting);
        let last = line.chunks.back().map(|(at, _)| *at);
        let at = Instant::now() + Duration::from_micros(delay);
        let at = last.map_or(at, |last| at.max(last));
        line.chunks.push_back((at, bytes[..taken].to_vec()));
        line.waiting += taken;
        line.wake();
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = self.writes.lock().unwrap();
        line.closed = true;
        line.wake();
        Poll::Ready(Ok(()))
    }
}
