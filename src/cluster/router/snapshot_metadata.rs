//! CSI SnapshotMetadata: a node's stream goes on to the caller, message by message. A caller that goes away ends
//! the stream of the node as well, and an error of the node ends that of the caller.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::forward::{Envelope, Forward};
use super::owner::Named;
use super::{Reply, Router};
use crate::cluster::peers::Member;
use crate::error::Error;
use crate::service::observe;
use crate::wire::{csi, decode};

/// The stream of an answer, as tonic wants it.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Router {
    /// Opens a node's stream.
    async fn stream<Q, T>(&self, member: Arc<Member>, envelope: &Envelope, message: Q) -> Reply<Messages<T>>
    where
        Q: Forward<Reply = Streaming<T>>,
        T: Send + 'static,
    {
        let (link, messages) = self.open(&member, envelope, message).await?;
        let router = self.clone();
        let told = move |status| router.no_answer(&member, &link, status);
        Ok(Response::new(Box::pin(messages.map(move |message| message.map_err(&told)))))
    }
}

#[tonic::async_trait]
impl csi::snapshot_metadata_server::SnapshotMetadata for Router {
    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Reply<Messages<csi::GetMetadataAllocatedResponse>> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::get_metadata_allocated(request.clone())?.snapshot_id;
        let member = self.owner(Named::snapshot(&id))?;
        self.stream(member, &envelope, request).await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<csi::GetMetadataDeltaRequest>,
    ) -> Reply<Messages<csi::GetMetadataDeltaResponse>> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let wanted = decode::get_metadata_delta(request.clone())?;
        let base = self.owner(Named::snapshot(&wanted.base_snapshot_id))?;
        let target = self.owner(Named::snapshot(&wanted.target_snapshot_id))?;
        if base.node_id != target.node_id {
            // A volume and its snapshots are on one node: these two cannot be of one volume.
            let (base_id, target_id) = (&wanted.base_snapshot_id, &wanted.target_snapshot_id);
            return Err(Error::Invalid(format!(
                "snapshots {base_id} and {target_id} are of different volumes, on the nodes {:?} and {:?}: only \
                 those of one volume can be compared",
                base.node_id, target.node_id
            ))
            .into());
        }
        self.stream(target, &envelope, request).await
    }
}
