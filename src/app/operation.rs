//! What those have who look after the process: metrics and probes over HTTP, and kubelet that is told of the driver.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::StartError;
use crate::driver::Driver;
use crate::metrics::{self, Expiry, Health, Metrics};
use crate::register::{self, Introduction};
use crate::server::Observer;
use crate::shutdown::Shutdown;
use crate::wire;

/// Metrics, if they are wanted.
pub struct Measured(Option<(TcpListener, Arc<Metrics>)>);

/// Listens for those who want metrics.
pub async fn listen(
    address: Option<SocketAddr>,
    health: Health,
    driver: Option<Arc<Driver>>,
    certificate: Option<Expiry>,
) -> Result<Measured, StartError> {
    let Some(address) = address else { return Ok(Measured(None)) };
    let wrong = |source| StartError::Metrics { address, source };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    tracing::info!(%address, "serving metrics and health");
    let metrics = Metrics::new(health, driver, certificate, wire::METHODS);
    Ok(Measured(Some((listener, Arc::new(metrics)))))
}

impl Measured {
    /// What the server is to tell of its calls.
    pub fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.0.as_ref().map(|(_, metrics)| metrics.observer())
    }

    /// Serves them until it is dropped.
    pub async fn serve(self) -> Infallible {
        match self.0 {
            Some((listener, metrics)) => metrics::serve(listener, metrics).await,
            None => pending().await,
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
