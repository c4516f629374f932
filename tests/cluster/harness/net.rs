//! A net in memory: connections that can be refused, swallowed and cut.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use hostloop::app::OtherNodes;
use hostloop::cluster::pull::{Connector, endpoint};
use hostloop::cluster::router::{Connect, Stream};
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tower::service_fn;

use crate::orders::permits;

/// What becomes of new connections to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// They get there.
    Open,
    /// They are refused at once.
    Refused,
    /// Nothing answers, as when a machine has lost its power.
    Silent,
}

struct Port {
    accept: UnboundedSender<DuplexStream>,
    lines: Vec<AbortHandle>,
}

/// Clones are the same net.
#[derive(Clone, Default)]
pub struct Net {
    ports: Arc<Mutex<HashMap<String, Port>>>,
    ways: Arc<Mutex<HashMap<String, Way>>>,
    /// Every address that somebody tried to connect to.
    tried: Arc<Mutex<Vec<String>>>,
    /// Nodes read each other's data.
    copies: bool,
}

impl Net {
    /// A net over which nodes read each other's data.
    pub fn copying() -> Net {
        Net { copies: true, ..Net::default() }
    }

    /// How a node reads the data of the others, if it does.
    pub fn others(&self) -> Option<OtherNodes> {
        let net = self.clone();
        let connector: Connector = Arc::new(move |address: &str, _: &str| {
            let (net, address) = (net.clone(), address.to_owned());
            Box::pin(async move {
                let dial = service_fn(move |_: http::Uri| {
                    let stream = net.dial(&address).map(TokioIo::new);
                    async { stream }
                });
                endpoint().connect_with_connector(dial).await.map_err(|error| error.to_string())
            })
        });
        self.copies.then(|| OtherNodes { connector, permits: permits() })
    }

    /// The connections to an address, from now on. What listened there before gets no more of them.
    pub fn listen(&self, address: &str) -> UnboundedReceiver<DuplexStream> {
        let (accept, accepted) = unbounded_channel();
        self.ports.lock().unwrap().insert(address.to_owned(), Port { accept, lines: Vec::new() });
        accepted
    }

    /// Nobody listens there any more, and every connection is cut.
    pub fn close(&self, address: &str) {
        self.cut(address);
        self.ports.lock().unwrap().remove(address);
    }

    /// Every connection to an address breaks.
    pub fn cut(&self, address: &str) {
        if let Some(port) = self.ports.lock().unwrap().get_mut(address) {
            port.lines.drain(..).for_each(|line| line.abort());
        }
    }

    pub fn set_way(&self, address: &str, way: Way) {
        self.ways.lock().unwrap().insert(address.to_owned(), way);
    }

    /// How often somebody tried to connect to an address.
    pub fn tries(&self, address: &str) -> usize {
        self.tried.lock().unwrap().iter().filter(|tried| *tried == address).count()
    }

    pub fn dial(&self, address: &str) -> io::Result<DuplexStream> {
        let mut ports = self.ports.lock().unwrap();
        let port = ports.get_mut(address).ok_or(io::ErrorKind::ConnectionRefused)?;
        let (near, mut line_near) = duplex(1 << 16);
        let (mut line_far, far) = duplex(1 << 16);
        port.accept.send(far).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        let line = tokio::spawn(async move {
            let _ = copy_bidirectional(&mut line_near, &mut line_far).await;
        });
        port.lines.push(line.abort_handle());
        Ok(near)
    }
}

#[tonic::async_trait]
impl Connect for Net {
    async fn connect(&self, address: &str, _node_id: &str) -> io::Result<Box<dyn Stream>> {
        self.tried.lock().unwrap().push(address.to_owned());
        let way = self.ways.lock().unwrap().get(address).copied().unwrap_or(Way::Open);
        match way {
            Way::Open => Ok(Box::new(self.dial(address)?)),
            Way::Refused => Err(io::ErrorKind::ConnectionRefused.into()),
            Way::Silent => std::future::pending().await,
        }
    }
}
