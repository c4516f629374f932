//! Before there is a driver, its socket is already served while the state is read and the pools are prepared, which may
//! take hours if a large managed pool has to be checked. Identity answers, so that callers learn that the driver is alive
//! and not ready. NodeGetInfo and NodeGetCapabilities answer too, because their answers are known, and so does Hello of the protocol
//! between processes: without it, a controller would take the node for silent. Every other call is
//! UNAVAILABLE and says what is going on. From one moment on, all calls go to the driver.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tower::Service;

use super::declare::{Call, Declarations, Facts, Question, StreamCall};
use super::table::Table;
use super::{each_of_node, each_of_peer};
use crate::error::Error;
use crate::model::Settings;
use crate::wire::{csi, peer};

/// A driver that is being made. Clones share it.
#[derive(Clone)]
pub struct Starting(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// What is done now, and since when.
    doing: Mutex<(String, Instant)>,
}

impl Starting {
    /// Nothing is done yet.
    pub fn new(settings: Settings) -> Self {
        Starting(Arc::new(Inner { settings, doing: Mutex::new(("starting".to_owned(), Instant::now())) }))
    }

    /// From now on this is done.
    pub fn begin(&self, what: impl Into<String>) {
        *self.0.doing.lock().unwrap_or_else(PoisonError::into_inner) = (what.into(), Instant::now());
    }

    /// What is done, and for how long already.
    pub fn reason(&self) -> String {
        let (what, since) = &*self.0.doing.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{what}, {} so far", rough(since.elapsed()))
    }

    fn unavailable(&self) -> Status {
        Error::Unavailable(format!("the driver is not ready: {}; try again", self.reason())).into()
    }

    /// The answer to a call.
    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let mut known = Known { starting: self.clone(), table: Table::default() };
        each_of_node(&mut known);
        each_of_peer(&mut known);
        match known.table.has(request.uri().path()) {
            true => Ok(known.table.answer(request).await),
            false => Ok(self.unavailable().into_http()),
        }
    }
}

/// What can be answered without a driver.
struct Known {
    starting: Starting,
    table: Table,
}

impl Declarations for Known {
    fn question<Q: Question>(&mut self) {
        let Starting(inner) = self.starting.clone();
        self.table.unary::<Q, _>(move |_| {
            let settings = &inner.settings;
            let (driver_name, attach) = (settings.driver_name.as_str(), settings.attach);
            let reply = Q::answer(&Facts { driver_name, attach, ready: false, node: Some(settings) });
            async { Ok(reply) }
        });
    }

    fn call<Q: Call>(&mut self) {}

    fn stream<Q: StreamCall>(&mut self) {}
}

/// A duration for people: in seconds, minutes or hours.
fn rough(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// The way to the services of one listener, which are there later. Clones share it.
#[derive(Clone)]
pub struct Gate {
    starting: Starting,
    services: Arc<OnceLock<Routes>>,
}

/// What is behind a [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// All of CSI.
    Everything,
    /// Identity and Node.
    Node,
    /// What controllers and other nodes call.
    Peers,
    /// Nothing.
    Nothing,
}

impl Gate {
    /// A closed one.
    pub fn new(starting: Starting) -> Self {
        Gate { starting, services: Arc::default() }
    }

    /// From now on calls go to these services. Only the first time counts.
    pub fn open(&self, services: Routes) {
        let _ = self.services.set(services);
    }

    /// Whether there is a driver.
    pub fn is_open(&self) -> bool {
        self.services.get().is_some()
    }

    /// The services as they are known beforehand, to be served at once.
    pub fn routes(&self, behind: Behind) -> Routes {
        let mut routes = Routes::builder();
        let everything = behind == Behind::Everything;
        if everything || behind == Behind::Node {
            routes.add_service(IdentityDoor(self.clone())).add_service(NodeDoor(self.clone()));
        }
        if everything || behind == Behind::Peers {
            routes.add_service(ControllerDoor(self.clone()));
            routes.add_service(GroupControllerDoor(self.clone()));
            routes.add_service(SnapshotMetadataDoor(self.clone()));
        }
        // On the socket only the questions of people who look at the node.
        if behind != Behind::Nothing {
            routes.add_service(PeerDoor(self.clone()));
        }
        routes.routes()
    }

    fn pass(&self, request: Request<Body>) -> Passing {
        match self.services.get() {
            Some(services) => {
                let mut services = services.clone();
                Box::pin(async move { services.call(request).await })
            }
            None => Box::pin(self.starting.clone().answer(request)),
        }
    }
}

/// A call on its way.
type Passing = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

macro_rules! doors {
    ($($door:ident = $name:expr;)*) => {
        $(
            /// One service behind a gate.
            #[derive(Clone)]
            struct $door(Gate);

            impl NamedService for $door {
                const NAME: &'static str = $name;
            }

            impl Service<Request<Body>> for $door {
                type Response = Response<Body>;
                type Error = Infallible;
                type Future = Passing;

                fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                    Poll::Ready(Ok(()))
                }

                fn call(&mut self, request: Request<Body>) -> Passing {
                    self.0.pass(request)
                }
            }
        )*
    };
}

doors! {
    IdentityDoor = csi::identity_server::SERVICE_NAME;
    NodeDoor = csi::node_server::SERVICE_NAME;
    ControllerDoor = csi::controller_server::SERVICE_NAME;
    GroupControllerDoor = csi::group_controller_server::SERVICE_NAME;
    SnapshotMetadataDoor = csi::snapshot_metadata_server::SERVICE_NAME;
    PeerDoor = peer::peer_server::SERVICE_NAME;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_as_people_tell_them() {
        let told = |seconds| rough(Duration::from_secs(seconds));
        assert_eq!([told(0), told(119), told(120)], ["0 s", "119 s", "2 min"]);
        assert_eq!([told(7199), told(7200), told(11_000)], ["119 min", "2 h 0 min", "3 h 3 min"]);
    }
}
