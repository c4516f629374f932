//! The protocol between the processes of a cluster, as a node serves it.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use tracing::Span;

use super::stream::{self, Messages};
use super::{Reply, caller, run};
use crate::driver::Driver;
use crate::model::{NodeKey, VolumeId};
use crate::wire::{peer, pull, reserve};

/// Serves `hostloop.v1.Peer`.
pub struct PeerService {
    driver: Arc<Driver>,
}

impl PeerService {
    /// The service of this driver.
    pub fn new(driver: Arc<Driver>) -> Self {
        PeerService { driver }
    }
}

/// Puts ids of a request on the span, as text that forges no line.
fn observe(fields: &[(&'static str, &str)]) {
    // No id is longer; nothing has checked it yet.
    const LIMIT: usize = 128;
    for (field, value) in fields {
        let cut = value.char_indices().nth(LIMIT).map_or(value.len(), |(at, _)| at);
        Span::current().record(*field, value.get(..cut).unwrap_or_default());
    }
}

/// The node that its certificate names, put there by the server.
fn named_node<T>(request: &Request<T>) -> Option<NodeKey> {
    request.extensions().get().cloned()
}

/// Whether what is made for `target` is the caller's to open, read and close. A certificate that all nodes share names
/// nobody, and is good for all; a snapshot is made for nobody.
fn is_theirs(caller: Option<&NodeKey>, target: Option<&VolumeId>) -> Result<(), Status> {
    match caller.zip(target) {
        Some((caller, target)) if caller.as_str() != target.node_key() => {
            Err(Status::permission_denied(format!(
                "volume {target} is made on another node than that of the caller's certificate (key {caller})"
            )))
        }
        _ => Ok(()),
    }
}

#[tonic::async_trait]
impl peer::peer_server::Peer for PeerService {
    async fn hello(&self, _request: Request<peer::HelloRequest>) -> Reply<peer::HelloResponse> {
        let settings = self.driver.settings();
        Ok(Response::new(peer::HelloResponse {
            driver_name: settings.driver_name.clone(),
            node_id: settings.node_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: self.driver.is_ready(),
        }))
    }

    async fn find_volume(
        &self,
        request: Request<peer::FindVolumeRequest>,
    ) -> Reply<peer::FindVolumeResponse> {
        let id = request.into_inner().volume_id;
        observe(&[("volume.id", &id)]);
        let id = reserve::volume(&id)?;
        let found = run(&self.driver, move |driver| Ok(driver.find_volume(&id))).await?;
        Ok(Response::new(peer::FindVolumeResponse { presence: reserve::encode(found).into() }))
    }

    async fn reserve_name(
        &self,
        request: Request<peer::ReserveNameRequest>,
    ) -> Reply<peer::ReserveNameResponse> {
        let id = request.into_inner().volume_id;
        observe(&[("volume.id", &id)]);
        let id = reserve::volume(&id)?;
        let reserved = run(&self.driver, move |driver| driver.reserve_name(&id)).await?;
        Ok(Response::new(reserve::encode_reserved(reserved)))
    }

    async fn release_name(
        &self,
        request: Request<peer::ReleaseNameRequest>,
    ) -> Reply<peer::ReleaseNameResponse> {
        let id = request.into_inner().volume_id;
        observe(&[("volume.id", &id)]);
        let id = reserve::volume(&id)?;
        let found = run(&self.driver, move |driver| Ok(driver.release_name(&id))).await?;
        Ok(Response::new(peer::ReleaseNameResponse { presence: reserve::encode(found).into() }))
    }

    async fn open_source(
        &self,
        request: Request<peer::OpenSourceRequest>,
    ) -> Reply<peer::OpenSourceResponse> {
        use peer::open_source_request::Source;
        let caller = named_node(&request);
        let request = request.into_inner();
        let source = match &request.source {
            Some(Source::SnapshotId(id) | Source::VolumeId(id)) => id.as_str(),
            None => "",
        };
        observe(&[("source.id", source), ("volume.id", &request.target_volume_id)]);
        let request = pull::open_source(request)?;
        is_theirs(caller.as_ref(), Some(&request.target))?;
        let source = run(&self.driver, move |driver| driver.open_source(&request)).await?;
        Ok(Response::new(pull::encode_description(&source)))
    }

    async fn pull_blocks(
        &self,
        request: Request<peer::PullBlocksRequest>,
    ) -> Reply<Messages<peer::PullBlocksResponse>> {
        let who = caller(&request);
        observe(&[("source.id", &request.get_ref().handle)]);
        let (handle, offset) = pull::blocks_request(request.get_ref())?;
        is_theirs(named_node(&request).as_ref(), self.driver.pulled_for(&handle.id).as_ref())?;
        let work =
            move |driver: &Driver, emit: stream::Emit<'_, _>| driver.pull_blocks(&handle, offset, emit);
        Ok(Response::new(stream::run(&self.driver, &who, pull::encode_blocks, work)?))
    }

    async fn pull_tree(
        &self,
        request: Request<peer::PullTreeRequest>,
    ) -> Reply<Messages<peer::PullTreeResponse>> {
        let who = caller(&request);
        observe(&[("source.id", &request.get_ref().handle)]);
        let (handle, from) = pull::tree_request(request.get_ref())?;
        is_theirs(named_node(&request).as_ref(), self.driver.pulled_for(&handle.id).as_ref())?;
        let work = move |driver: &Driver, emit: stream::Emit<'_, _>| driver.pull_tree(&handle, from, emit);
        Ok(Response::new(stream::run(&self.driver, &who, pull::encode_tree, work)?))
    }

    async fn close_source(
        &self,
        request: Request<peer::CloseSourceRequest>,
    ) -> Reply<peer::CloseSourceResponse> {
        observe(&[("source.id", &request.get_ref().handle)]);
        if let Some(id) = pull::close_source(request.get_ref()) {
            is_theirs(named_node(&request).as_ref(), self.driver.pulled_for(&id).as_ref())?;
            run(&self.driver, move |driver| driver.close_source(&id)).await?;
        }
        Ok(Response::new(peer::CloseSourceResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_its_certificate_names_opens_for_its_own_volumes() {
        let [own, other] = ["a", "b"].map(NodeKey::of);
        let target = VolumeId::of_name(&own, "v");
        assert!(is_theirs(Some(&own), Some(&target)).is_ok());
        let refused = is_theirs(Some(&other), Some(&target)).expect_err("another node's");
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        assert!(is_theirs(None, Some(&target)).is_ok() && is_theirs(Some(&other), None).is_ok());
    }
}
