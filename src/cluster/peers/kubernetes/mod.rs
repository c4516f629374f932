//! Kubernetes: the pods of the nodes are the endpoints of a headless Service, and CSINode objects say on which nodes the
//! driver is registered, even if its pod is gone. This file watches; `view.rs` decides what it means.

mod client;
mod view;

use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;

pub use self::client::{api_client, api_client_of};
use self::view::View;
use super::{Known, Members, Peers};

/// The label by which the EndpointSlices of a Service are found.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

type Watched<T> = Result<Event<T>, watcher::Error>;

/// The nodes whose pods are behind a Service.
pub struct Service(watch::Sender<Option<Arc<Members>>>);

impl Service {
    /// Watches the Service and the CSINode objects in a task of its own, for as long as the runtime lives. The nodes
    /// are known once both have been listed; while the API server cannot be reached, what is known stays.
    ///
    /// # Errors
    /// Where there is no way to the API server: neither a service account nor a kubeconfig.
    pub async fn watch(namespace: &str, name: &str, driver_name: &str) -> Result<Self, kube::Error> {
        let client = api_client().await?;
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        let of_service = watcher::Config::default().labels(&format!("{SERVICE_LABEL}={name}"));
        let slices = watcher(slices, of_service).default_backoff();
        let nodes = watcher(Api::<CSINode>::all(client), watcher::Config::default()).default_backoff();
        let known = watch::Sender::new(None);
        tokio::spawn(follow(View::new(driver_name), slices.boxed(), nodes.boxed(), known.clone()));
        Ok(Service(known))
    }
}

impl Peers for Service {
    fn known(&self) -> Known {
        self.0.subscribe()
    }
}

/// Takes in what the API server tells, and tells what follows of it.
async fn follow(
    mut view: View,
    mut slices: impl Stream<Item = Watched<EndpointSlice>> + Unpin,
    mut nodes: impl Stream<Item = Watched<CSINode>> + Unpin,
    known: watch::Sender<Option<Arc<Members>>>,
) {
    loop {
        let taken = tokio::select! {
            Some(event) = slices.next() => event.map(|event| view.slice(&event)),
            Some(event) = nodes.next() => event.map(|event| view.node(&event)),
            else => return,
        };
        if let Err(error) = taken {
            tracing::warn!(%error, "the API server does not answer; what is known of the nodes may be old");
            continue;
        }
        let before = known.borrow().clone();
        let Some(now) = view.members(before.as_deref()) else { continue };
        if before.as_deref() != Some(&now) {
            tracing::info!(nodes = now.iter().count(), "the nodes have changed");
            known.send_replace(Some(Arc::new(now)));
        }
    }
}

#[cfg(test)]
mod tests;
