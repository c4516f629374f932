//! The role `node`.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tonic::service::Routes;
use tonic::transport::Uri;

use super::{Ended, Outside, Parts, StartError, blocking, open, parts, peer_routes, run_with, watch_sources};
use crate::cluster::identity::{PeerIdentity, PeerRole};
use crate::cluster::permit::Checked;
use crate::cluster::pull::{Connector, Pull, endpoint};
use crate::cluster::tls::Tls;
use crate::config::PeerPort;
use crate::error::with_causes;
use crate::kernel::Os;
use crate::metrics::Expiry;
use crate::model::{NodeKey, Settings};
use crate::server::{Observer, Stop, Stopped, serve_peers};
use crate::service::{Behind, NoPermits, Permits, Starting, add_details_service, add_node_services};
use crate::shutdown::Shutdown;

/// Serves Identity and Node on the socket, and what controllers and other nodes call on the port for them.
///
/// # Errors
/// [`StartError`] where the driver cannot serve.
pub(super) async fn run(
    settings: Settings,
    port: PeerPort,
    outside: Outside,
    os: Os,
) -> Result<Ended, StartError> {
    let tls = certificates(&settings.driver_name, &port.tls_dir, PeerRole::Node).await?;
    if let Some(found) = tls.identity().node_id.filter(|id| *id != settings.node_id) {
        let problem =
            format!("the certificate belongs to node {found:?}, but --node-id is {:?}", settings.node_id);
        return Err(StartError::Certificate { dir: port.tls_dir, problem });
    }
    let wrong = |source| StartError::PeerListen { address: port.listen, source };
    let listener = TcpListener::bind(port.listen).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    tracing::info!(%address, identity = %tls.identity(), "listening for peers");
    let _watching = Watching::new(&tls, &outside.shutdown);
    let outside = Outside { certificate: Some(expiry(&tls)), ..outside };
    let others =
        OtherNodes { connector: connector(tls.clone()), permits: Arc::new(Checked::new(tls.clone())) };
    let peers = |routes, stop, observer| serve_peers(listener, tls, routes, stop, observer);
    run_node(settings, outside, os, Some(others), peers).await
}

/// How a node has to do with the other ones.
pub struct OtherNodes {
    /// The way to them.
    pub connector: Connector,
    /// What they may read here.
    pub permits: Arc<dyn Permits>,
}

/// A node whose peers are served by `serve_peers`, which makes sure that it is them who call. Without `others` it neither
/// reads anything of another node nor lets one read anything.
///
/// # Errors
/// [`StartError`] where the driver cannot serve.
pub async fn run_node<F>(
    settings: Settings,
    outside: Outside,
    os: Os,
    others: Option<OtherNodes>,
    serve_peers: impl FnOnce(Routes, Stop, Option<Arc<dyn Observer>>) -> F,
) -> Result<Ended, StartError>
where
    F: Future<Output = Stopped>,
{
    let (sources, permits): (_, Arc<dyn Permits>) = match others {
        Some(OtherNodes { connector, permits }) => {
            (Some(Arc::new(Pull::new(connector, Handle::current()))), permits)
        }
        None => (None, Arc::new(NoPermits)),
    };
    let runtime = Handle::current();
    let certificate_end = outside.certificate.clone();
    let assemble = move |settings, os, limits, starting: &Starting| {
        let driver = open(settings, os, starting)?.with_limits(limits).with_certificate_end(certificate_end);
        let driver = Arc::new(match sources {
            Some(sources) => driver.with_remote_sources(sources),
            None => driver,
        });
        runtime.spawn(watch_sources(Arc::clone(&driver)));
        let mut routes = Routes::builder();
        add_node_services(&driver, &mut routes);
        add_details_service(&driver, &mut routes);
        let peer_routes = peer_routes(&driver, permits);
        Ok::<Parts, StartError>(parts(&driver, routes.routes(), peer_routes))
    };
    run_with(settings, outside, os, (Behind::Node, Behind::Peers), assemble, serve_peers).await
}

/// The certificates of this process.
///
/// # Errors
/// [`StartError::Tls`].
pub(super) async fn certificates(
    driver_name: &str,
    tls_dir: &Path,
    role: PeerRole,
) -> Result<Tls, StartError> {
    let (dir, name) = (tls_dir.to_owned(), driver_name.to_owned());
    Ok(blocking("reading the certificates", move || Tls::open(&dir, &name, role)).await??)
}

/// When the one of them that is in use ends.
pub(super) fn expiry(tls: &Tls) -> Expiry {
    let tls = tls.clone();
    Arc::new(move || tls.expires())
}

/// Takes renewed certificates over until it is dropped.
pub(super) struct Watching(AbortHandle);

impl Watching {
    pub(super) fn new(tls: &Tls, shutdown: &Shutdown) -> Self {
        Watching(tokio::spawn(tls.clone().watch(shutdown.clone())).abort_handle())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The way to other nodes. A certificate that names a node is taken of that node only; who answers with one that all
/// nodes share is asked by the one who pulls (Peer.Hello).
pub fn connector(tls: Tls) -> Connector {
    Arc::new(move |address: &str, node_key: &str| {
        let (tls, address, node_key) = (tls.clone(), address.to_owned(), node_key.to_owned());
        Box::pin(async move {
            let dial = tower::service_fn(move |_: Uri| {
                let (tls, address, node_key) = (tls.clone(), address.clone(), node_key.clone());
                async move {
                    let stream = TcpStream::connect(&address).await?;
                    stream.set_nodelay(true)?;
                    let stream = tls.connect(stream, PeerRole::Node, None).await;
                    let stream = stream.map_err(std::io::Error::other)?;
                    is_named(stream.identity(), &node_key)?;
                    Ok::<_, std::io::Error>(TokioIo::new(stream))
                }
            });
            endpoint()
                .connect_with_connector(dial)
                .await
                .map_err(|error| with_causes(error.to_string(), &error))
        })
    })
}

/// Whether a certificate may be that of the node with this key.
fn is_named(identity: &PeerIdentity, node_key: &str) -> std::io::Result<()> {
    match &identity.node_id {
        Some(node_id) if NodeKey::of(node_id).as_str() != node_key => Err(std::io::Error::other(format!(
            "the peer is refused: its certificate belongs to node {node_id:?}, and the node with key {node_key} is wanted"
        ))),
        _ => Ok(()),
    }
}
