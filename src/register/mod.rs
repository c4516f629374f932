//! Registration with kubelet, as node-driver-registrar does it for drivers that do not register themselves.
//!
//! kubelet watches a directory for sockets and is the client of what it finds there. It asks the plugin who it is, asks
//! the CSI socket that the plugin names for the node's id and topology, and then tells the plugin whether it is now
//! registered. When the socket disappears, kubelet forgets the driver. After a restart of its own it asks again.

use std::future::{Future, pending};
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::server::{Incoming, SocketError, SocketPlace, bind_socket};
use crate::wire::registration::registration_server::{Registration, RegistrationServer};
use crate::wire::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// What kubelet calls a CSI driver.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// The only version of CSI that kubelet knows by this name.
const CSI_VERSION: &str = "1.0.0";
/// Only root may speak for the driver.
const SOCKET_MODE: u32 = 0o600;
/// How long an answer may take to get out once the socket has gone.
const LINGER: Duration = Duration::from_secs(1);
/// The longest reason of kubelet's that is passed on, in characters.
const MAX_REASON: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    /// The directory that kubelet watches.
    pub directory: PathBuf,
    /// CSI plugin name.
    pub driver_name: String,
    /// The path of the CSI socket as kubelet sees it.
    pub endpoint: String,
}

/// Why the driver is not registered. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("kubelet did not register the driver: {0:?} (--register)")]
    Refused(String),
}

impl Introduction {
    /// Where kubelet finds the plugin. kubelet takes any name. Its gRPC client sends the escaped path as the name of the
    /// host (`:authority`), where only what stands before an `@` may have a `%` (RFC 3986, 3.2), and the HTTP/2 library
    /// here refuses what is none: so the name has one.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!("{}@reg.sock", self.driver_name))
    }
}

/// Introduces the driver to kubelet until `stop` completes, and then removes the socket. Returns before that only if
/// kubelet cannot be told of the driver or does not want it.
///
/// # Errors
/// [`RegisterError`]. The process should end then: a restart tries again.
pub async fn run(introduction: Introduction, stop: impl Future<Output = ()>) -> Result<(), RegisterError> {
    let path = introduction.socket();
    let place = SocketPlace { path: &path, flag: "--registration-dir", make_directory: false };
    let (listener, file) = bind_socket(place, SOCKET_MODE).await?;
    tracing::info!(socket = %path.display(), endpoint = introduction.endpoint, "waiting for kubelet");

    let (service, mut refused) = service(introduction);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving =
        Server::builder().add_service(service).serve_with_incoming_shutdown(Incoming::new(listener), async {
            let _ = ended.await;
        });
    let mut serving = std::pin::pin!(serving);
    let outcome = tokio::select! {
        result = &mut serving => {
            // tonic ends by itself only if the listener does, and ours does not.
            tracing::error!(?result, "the registration server ended");
            pending::<()>().await;
            Ok(())
        }
        () = stop => Ok(()),
        reason = refused.recv() => Err(RegisterError::Refused(reason.unwrap_or_default())),
    };
    drop(file);
    let _ = end.send(());
    // What is being answered gets out, so that kubelet does not take it for a failure of its own.
    let _ = tokio::time::timeout(LINGER, serving).await;
    outcome
}

/// What kubelet calls, and the reasons that it gives where it does not want the driver.
pub fn service(
    introduction: Introduction,
) -> (RegistrationServer<impl Registration>, mpsc::Receiver<String>) {
    let (refuse, refused) = mpsc::channel(1);
    (RegistrationServer::new(Plugin { introduction, refuse }), refused)
}

struct Plugin {
    introduction: Introduction,
    refuse: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let Introduction { driver_name, endpoint, .. } = &self.introduction;
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: driver_name.clone(),
            endpoint: endpoint.clone(),
            supported_versions: vec![CSI_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("registered with kubelet");
        } else {
            // Where one reason waits already, that is enough.
            let _ = self.refuse.try_send(error.chars().take(MAX_REASON).collect());
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
