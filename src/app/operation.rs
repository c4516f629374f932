//! What the process offers for its operation: metrics and probes over HTTP, and registration with kubelet.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::StartError;
use crate::config::OperationConfig;
use crate::metrics::{Expiry, Health, Metrics, Site};
use crate::register::{self, Introduction};
use crate::server::Observer;
use crate::shutdown::Shutdown;
use crate::wire;

/// Metrics and health, where they are wanted.
pub struct Measured {
    metrics: Option<(TcpListener, Arc<Metrics>)>,
    health: Option<(TcpListener, Health)>,
}

/// Listens for those who want metrics, and for those who ask for nothing but health.
pub async fn listen(
    operation: &OperationConfig,
    health: Health,
    certificate: Option<Expiry>,
) -> Result<Measured, StartError> {
    let metrics = match operation.metrics_listen {
        Some(address) => {
            let listener = bind("--metrics-listen", address, "serving metrics and health").await?;
            let metrics = Metrics::new(Arc::clone(&health), certificate, wire::METHODS);
            Some((listener, Arc::new(metrics.with_volumes(operation.volume_metrics))))
        }
        None => None,
    };
    let health = match operation.health_listen {
        Some(address) => Some((bind("--health-listen", address, "serving health").await?, health)),
        None => None,
    };
    Ok(Measured { metrics, health })
}

async fn bind(flag: &'static str, address: SocketAddr, what: &str) -> Result<TcpListener, StartError> {
    let wrong = |source| StartError::Metrics { flag, address, source };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    tracing::info!(%address, "{what}");
    Ok(listener)
}

impl Measured {
    /// What the server is to tell of its calls.
    pub fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.metrics.as_ref().map(|(_, metrics)| metrics.observer())
    }

    /// The metrics, to which a driver can be attached.
    pub fn metrics(&self) -> Option<Arc<Metrics>> {
        self.metrics.as_ref().map(|(_, metrics)| Arc::clone(metrics))
    }

    /// Serves them until it is dropped.
    pub async fn serve(self) -> Infallible {
        let serve = |site: Option<(Site, TcpListener)>| async {
            match site {
                Some((site, listener)) => site.serve(listener).await,
                None => pending().await,
            }
        };
        let metrics = self.metrics.map(|(listener, metrics)| (Site::metrics(metrics), listener));
        let health = self.health.map(|(listener, health)| (Site::health(health), listener));
        tokio::select! {
            never = serve(metrics) => never,
            never = serve(health) => never,
        }
    }
}

/// Tells kubelet of the driver, if that is wanted, up to the end of the process. Completes before that only if it fails.
pub async fn register(introduction: Option<Introduction>, shutdown: Shutdown) -> Result<(), StartError> {
    if let Some(introduction) = introduction {
        register::run(introduction, shutdown.requested()).await?;
    }
    pending().await
}
