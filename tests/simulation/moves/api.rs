//! The way of the controllers to the API server, and what happens there: it is slow, does not answer, is cut off from one of
//! them, loses requests and answers, and does late what it was asked for long ago.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::Moves;
use crate::kubernetes::server;
use crate::net::Host;
use crate::random::Random;

/// What gets through.
pub(super) struct Way {
    /// Until when the API server does not run.
    down: Option<Instant>,
    /// Controllers that it cannot be reached from.
    cut: BTreeSet<String>,
    /// How long a message takes at the most, in milliseconds.
    slowest: u64,
    /// Something happens to one of so many requests.
    often: u64,
    /// Watches of what happened up to this version have to begin anew.
    compacted: u64,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Done,
    Lost,
    AnswerLost,
    /// It is done after so many milliseconds, whether its sender is still there or not.
    Late(u64),
}

impl Way {
    pub(super) fn new(random: &mut Random) -> Way {
        let (slowest, often) = (*random.choose(&[5, 50, 1000]), *random.choose(&[4, 20, 200]));
        Way { down: None, cut: BTreeSet::new(), slowest, often, compacted: 0 }
    }

    pub(super) fn heal(&mut self) {
        *self =
            Way { down: None, cut: BTreeSet::new(), slowest: 20, often: u64::MAX, compacted: self.compacted };
    }

    fn is_down(&self) -> bool {
        self.down.is_some_and(|until| Instant::now() < until)
    }
}

fn fails(kind: io::ErrorKind) -> io::Result<Response<Body>> {
    Err(kind.into())
}

impl Moves {
    /// Breaks something between a controller and the API server, for so long.
    pub async fn hurt(&self, controller: &str, time: Duration) {
        let number = self.below(4);
        crate::log(|| format!("the API server and {controller}: trouble {number} for {time:?}"));
        match number {
            0 => self.way.lock().unwrap().down = Some(Instant::now() + time),
            1 => {
                let version = self.with(|kubernetes| kubernetes.version);
                self.way.lock().unwrap().compacted = version;
                self.changed.notify_waiters();
            }
            _ => {
                self.way.lock().unwrap().cut.insert(controller.to_owned());
                sleep(time).await;
                self.way.lock().unwrap().cut.remove(controller);
            }
        }
    }

    fn fate(&self, changes: bool) -> Fate {
        let often = self.way.lock().unwrap().often;
        let mut random = self.random.lock().unwrap();
        if !random.one_in(often) {
            return Fate::Done;
        }
        match random.below(3) {
            0 => Fate::Lost,
            1 => Fate::AnswerLost,
            _ if changes => Fate::Late(random.between(1, 40_000)),
            _ => Fate::Done,
        }
    }

    /// A message on its way: a caller that is dead never hears again, and one that is cut off gives up after a while.
    async fn travel(&self, host: &Host) -> io::Result<()> {
        let slowest = self.way.lock().unwrap().slowest;
        self.pause(1, slowest + 1).await;
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            if !host.lives() {
                return std::future::pending().await;
            }
            {
                let way = self.way.lock().unwrap();
                if way.is_down() {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                if !way.cut.contains(&host.name) {
                    return Ok(());
                }
            }
            if Instant::now() > patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Waits for something to tell to a watch.
    async fn watch(&self, host: &Host, path: &str, query: &str) -> io::Result<(u16, Vec<u8>)> {
        let since = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
        let since: u64 = since.and_then(|version| version.parse().ok()).unwrap_or_default();
        let (key, _) = server::parse(path);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let changed = self.changed.notified();
            if since < self.way.lock().unwrap().compacted {
                let expired =
                    serde_json::json!({"type": "ERROR", "object": server::status(410, "Expired").1});
                return Ok((200, expired.to_string().into_bytes()));
            }
            let lines = self.with(|kubernetes| server::changes(kubernetes, &key.0, query, since));
            if !lines.is_empty() || Instant::now() >= until {
                self.travel(host).await?;
                return Ok((200, lines));
            }
            let _ = tokio::time::timeout_at(until, changed).await;
        }
    }

    async fn serve(self: Arc<Self>, host: Host, request: Request<Body>) -> io::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.map_err(io::Error::other)?;
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let (method, path) = (parts.method, parts.uri.path().to_owned());
        let query = parts.uri.query().unwrap_or_default().to_owned();
        self.travel(&host).await?;
        if query.contains("watch=true") {
            let (code, lines) = self.watch(&host, &path, &query).await?;
            return Ok(Response::builder().status(code).body(Body::from(lines)).unwrap());
        }
        let fate = self.fate(method != Method::GET);
        if fate == Fate::Lost {
            sleep(Duration::from_secs(20)).await;
            return fails(io::ErrorKind::TimedOut);
        }
        let (moves, name) = (Arc::clone(&self), host.name.clone());
        // What was sent arrives, also if its sender has ended since.
        let arrives = tokio::spawn(async move {
            if let Fate::Late(milliseconds) = fate {
                sleep(Duration::from_millis(milliseconds)).await;
            }
            moves.asks((&method, &path, &query), &body);
            moves.rules.lock().unwrap().is_late = matches!(fate, Fate::Late(_));
            let (code, answer) =
                moves.with(|kubernetes| server::answer(kubernetes, &method, &path, &query, &body));
            moves.rules.lock().unwrap().is_late = false;
            if method != Method::GET && !path.contains("/leases") {
                crate::log(|| format!("{name} {method} {path} {fate:?}: {code} {body}"));
            }
            (code, answer)
        });
        let (code, answer) = arrives.await.expect("no panic");
        if fate == Fate::AnswerLost {
            return fails(io::ErrorKind::ConnectionReset);
        }
        self.travel(&host).await?;
        let text = serde_json::to_vec(&answer).unwrap();
        Ok(Response::builder().status(code).body(Body::from(text)).unwrap())
    }
}

/// A client of the API server for a process.
pub fn client(moves: &Arc<Moves>, host: &Host) -> kube::Client {
    let (moves, host) = (Arc::clone(moves), host.clone());
    let service =
        tower::service_fn(move |request: Request<Body>| Arc::clone(&moves).serve(host.clone(), request));
    kube::Client::new(service, "default")
}
