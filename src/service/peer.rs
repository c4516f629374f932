//! The protocol between the processes of a cluster, as a node serves it.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use tracing::Span;

use super::permit::{self, Permits};
use super::stream::{self, Messages};
use super::{Reply, caller, run};
use crate::driver::Driver;
use crate::model::{Grant, NodeKey};
use crate::wire::{peer, pull, reserve};

/// Serves `hostloop.v1.Peer`.
pub struct PeerService {
    driver: Arc<Driver>,
    permits: Arc<dyn Permits>,
}

impl PeerService {
    /// The service of this driver, which lets nothing be read but with permits that these find good.
    pub fn new(driver: Arc<Driver>, permits: Arc<dyn Permits>) -> Self {
        PeerService { driver, permits }
    }

    /// What a call may read here, by its permit and the caller's certificate.
    ///
    /// # Errors
    /// PERMISSION_DENIED.
    fn grant(&self, permit: &[u8], caller: Option<&NodeKey>) -> Result<Grant, Status> {
        permit::grant(self.permits.as_ref(), permit, &self.driver.settings().node_id, caller)
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
        let grant = self.grant(&request.permit, caller.as_ref())?;
        let request = pull::open_source(request)?;
        permit::may_open(&grant, &request)?;
        let source = run(&self.driver, move |driver| driver.open_source(&request)).await?;
        Ok(Response::new(pull::encode_description(&source)))
    }

    async fn pull_blocks(
        &self,
        request: Request<peer::PullBlocksRequest>,
    ) -> Reply<Messages<peer::PullBlocksResponse>> {
        let who = caller(&request);
        observe(&[("source.id", &request.get_ref().handle)]);
        let grant = self.grant(&request.get_ref().permit, named_node(&request).as_ref())?;
        let (handle, offset) = pull::blocks_request(request.get_ref())?;
        permit::may_read(&grant, &handle.id)?;
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
        let grant = self.grant(&request.get_ref().permit, named_node(&request).as_ref())?;
        let (handle, base, from) = pull::tree_request(request.get_ref())?;
        permit::may_read(&grant, &handle.id)?;
        base.iter().try_for_each(|base| permit::may_read(&grant, &base.id))?;
        let work = move |driver: &Driver, emit: stream::Emit<'_, _>| {
            driver.pull_tree(&handle, base.as_ref(), from, emit)
        };
        Ok(Response::new(stream::run(&self.driver, &who, pull::encode_tree, work)?))
    }

    async fn pull_changes(
        &self,
        request: Request<peer::PullChangesRequest>,
    ) -> Reply<Messages<peer::PullChangesResponse>> {
        let who = caller(&request);
        observe(&[("source.id", request.get_ref().cut.as_ref().map_or("", |cut| cut.handle.as_str()))]);
        let grant = self.grant(&request.get_ref().permit, named_node(&request).as_ref())?;
        let (base, cut, offset) = pull::changes_request(request.get_ref())?;
        permit::may_read(&grant, &base.id)?;
        permit::may_read(&grant, &cut.id)?;
        let work =
            move |driver: &Driver, emit: stream::Emit<'_, _>| driver.pull_changes(&base, &cut, offset, emit);
        Ok(Response::new(stream::run(&self.driver, &who, pull::encode_changes, work)?))
    }

    async fn update_copy(
        &self,
        request: Request<peer::UpdateCopyRequest>,
    ) -> Reply<peer::UpdateCopyResponse> {
        let request = request.into_inner();
        observe(&[("volume.id", &request.volume_id)]);
        let request = pull::update_copy(request)?;
        let updated = run(&self.driver, move |driver| driver.update_copy(&request)).await?;
        Ok(Response::new(pull::encode_updated(&updated)))
    }

    async fn complete_copy(
        &self,
        request: Request<peer::CompleteCopyRequest>,
    ) -> Reply<peer::CompleteCopyResponse> {
        let peer::CompleteCopyRequest { volume_id, stale } = request.into_inner();
        observe(&[("volume.id", &volume_id)]);
        run(&self.driver, move |driver| driver.complete_copy(&volume_id, stale)).await?;
        Ok(Response::new(peer::CompleteCopyResponse {}))
    }

    async fn seal_volume(
        &self,
        request: Request<peer::SealVolumeRequest>,
    ) -> Reply<peer::SealVolumeResponse> {
        let peer::SealVolumeRequest { volume_id, moved_to } = request.into_inner();
        observe(&[("volume.id", &volume_id)]);
        let moved_to = pull::moved_to(moved_to)?;
        run(&self.driver, move |driver| driver.seal_volume(&volume_id, moved_to)).await?;
        Ok(Response::new(peer::SealVolumeResponse {}))
    }

    async fn release_cuts(
        &self,
        request: Request<peer::ReleaseCutsRequest>,
    ) -> Reply<peer::ReleaseCutsResponse> {
        let request = request.into_inner();
        observe(&[("volume.id", &request.volume_id)]);
        if let Some((volume, copy)) = pull::release_cuts(&request) {
            run(&self.driver, move |driver| driver.release_cuts(&volume, &copy)).await?;
        }
        Ok(Response::new(peer::ReleaseCutsResponse {}))
    }

    async fn close_source(
        &self,
        request: Request<peer::CloseSourceRequest>,
    ) -> Reply<peer::CloseSourceResponse> {
        observe(&[("source.id", &request.get_ref().handle)]);
        let grant = self.grant(&request.get_ref().permit, named_node(&request).as_ref())?;
        if let Some(id) = pull::close_source(request.get_ref()) {
            permit::may_read(&grant, &id)?;
            run(&self.driver, move |driver| driver.close_source(&id)).await?;
        }
        Ok(Response::new(peer::CloseSourceResponse {}))
    }
}
