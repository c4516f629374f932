//! The RPCs between the processes of a cluster, as a node serves them.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::declare::{
    Call, Callers, Declarations, Facts, Question, Request, Route, StreamCall, StreamWork, Work, declare,
};
use super::permit;
use super::stream::Emit;
use crate::driver::{Driver, Extent};
use crate::error::{Error, Result};
use crate::model::Timestamp;
use crate::model::details::KnownNode;
use crate::wire::{adopt, details, findings, handover, peer, pull, reserve};

declare! { each of peer;
    question HelloRequest = |facts| peer::HelloResponse {
        driver_name: facts.driver_name.to_owned(),
        node_id: facts.node.map(|node| node.node_id.clone()).unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ready: facts.ready,
    };
    // A controller makes sure that no other one makes the same volume elsewhere.
    call FindVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| reserve::volume(&request.volume_id);
        work: |driver, id| {
            driver.find_volume(&id).map(|location| reserve::encode_location(&location))
        };
    }
    // A snapshot is on the node that has its disk, which may be another one than its id names.
    call FindSnapshotRequest {
        logs: "snapshot.id" = snapshot_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| Ok(request.snapshot_id.clone());
        work: |driver, id| driver.find_snapshot(&id).map(handover::encode_found);
    }
    // A controller moves a snapshot to another node.
    call TakeSnapshotRequest {
        logs: "snapshot.id" = snapshot_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| handover::take(request);
        work: |driver, request| {
            driver.take_snapshot(&request).map(|number| peer::TakeSnapshotResponse { number })
        };
    }
    call ReleaseSnapshotRequest {
        logs: "snapshot.id" = snapshot_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| handover::release(request);
        work: |driver, request| driver.release_snapshot(&request).map(|()| peer::ReleaseSnapshotResponse {});
    }
    call KeepSnapshotRequest {
        logs: "snapshot.id" = snapshot_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| handover::keep(request);
        work: |driver, request| driver.keep_snapshot(&request).map(|()| peer::KeepSnapshotResponse {});
    }
    // An administrator asks a controller for it.
    call MoveSnapshotRequest {
        logs: "snapshot.id" = snapshot_id, "node.id" = target_node_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| handover::id(&request.snapshot_id);
        work: |driver, id| {
            let node = driver.node_id();
            Err(Error::InUse(format!("node {node:?} moves no snapshot by itself; ask a controller to move {id}")))
        };
    }
    call ReserveNameRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| reserve::volume(&request.volume_id);
        work: |driver, id| driver.reserve_name(&id).map(reserve::encode_reserved);
    }
    call ReleaseNameRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| reserve::volume(&request.volume_id);
        work: |driver, id| {
            Ok(peer::ReleaseNameResponse { presence: reserve::encode(driver.release_name(&id).found).into() })
        };
    }
    // A node copies the data of another one.
    call OpenSourceRequest {
        logs: "source.id" = source, "volume.id" = target_volume_id;
        route: |_| Route::Peers(Callers::Nodes);
        permit: |request, grant| permit::may_open(&grant, &pull::open_source(request.clone())?);
        check: |request| {
            let order = pull::order(&request);
            pull::open_source(request).map(|request| (request, order))
        };
        work: |driver, (request, order)| {
            driver.open_source(&request, order).map(|source| pull::encode_description(&source))
        };
    }
    stream PullBlocksRequest {
        logs: "source.id" = handle;
        route: |_| Route::Peers(Callers::Nodes);
        permit: |request, grant| permit::may_read(&grant, &pull::blocks_request(request)?.0.id);
        reads: |request| request.handle.parse().ok();
        check: |request| pull::blocks_request(&request);
        work: |driver, (handle, offset), emit| {
            driver.pull_blocks(&handle, offset, &mut |piece| emit(pull::encode_blocks(piece)))
        };
    }
    stream PullTreeRequest {
        logs: "source.id" = handle;
        route: |_| Route::Peers(Callers::Nodes);
        permit: |request, grant| {
            let (handle, base, _) = pull::tree_request(request)?;
            permit::may_read(&grant, &handle.id)?;
            base.iter().try_for_each(|base| permit::may_read(&grant, &base.id))
        };
        reads: |request| request.handle.parse().ok();
        check: |request| pull::tree_request(&request);
        work: |driver, (handle, base, from), emit| {
            driver.pull_tree(&handle, base.as_ref(), from, &mut |item| emit(pull::encode_tree(item)))
        };
    }
    stream PullChangesRequest {
        logs: "source.id" = cut;
        route: |_| Route::Peers(Callers::Nodes);
        permit: |request, grant| {
            let (base, cut, _) = pull::changes_request(request)?;
            permit::may_read(&grant, &base.id)?;
            permit::may_read(&grant, &cut.id)
        };
        reads: |request| request.cut.as_ref()?.handle.parse().ok();
        check: |request| pull::changes_request(&request);
        work: |driver, (base, cut, offset), emit| {
            driver.pull_changes(&base, &cut, offset, &mut |piece| emit(pull::encode_changes(piece)))
        };
    }
    call CloseSourceRequest {
        logs: "source.id" = handle;
        route: |_| Route::Peers(Callers::Nodes);
        permit: |request, grant| {
            pull::close_source(request).iter().try_for_each(|id| permit::may_read(&grant, id))
        };
        check: |request| Ok(pull::close_source(&request));
        work: |driver, id| {
            id.iter().try_for_each(|id| driver.close_source(id)).map(|()| peer::CloseSourceResponse {})
        };
    }
    // A controller moves a volume to another node, or keeps a copy of it there.
    call UpdateCopyRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| pull::update_copy(request);
        work: |driver, request| driver.update_copy(&request).map(|updated| pull::encode_updated(&updated));
    }
    call CompleteCopyRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| pull::complete_copy(request);
        work: |driver, request| driver.complete_copy(&request).map(|()| peer::CompleteCopyResponse {});
    }
    call RetireVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| pull::retire_volume(request);
        work: |driver, (id, retired)| {
            let left = driver.retire_volume(&id, retired);
            left.map(|left| peer::RetireVolumeResponse { volume_id: left.to_string() })
        };
    }
    call ReclaimVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| pull::reclaim_volume(&request);
        work: |driver, (id, generation)| {
            driver.reclaim_volume(&id, generation).map(|()| peer::ReclaimVolumeResponse {})
        };
    }
    call SealVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| {
            let (id, of) = (request.volume_id, (request.generation, request.unsealed));
            pull::moved_to(request.moved_to).map(|moved_to| (id, of, moved_to))
        };
        work: |driver, (id, of, moved_to)| {
            driver.seal_volume(&id, of, moved_to).map(|()| peer::SealVolumeResponse {})
        };
    }
    call ForgetVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| reserve::volume(&request.volume_id);
        work: |driver, id| driver.forget_volume(&id).map(|()| peer::ForgetVolumeResponse {});
    }
    call DeleteCopyRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| pull::delete_copy(&request);
        work: |driver, request| driver.delete_copy(&request).map(|()| peer::DeleteCopyResponse {});
    }
    call ReleaseCutsRequest {
        logs: "volume.id" = volume_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| Ok(pull::release_cuts(&request));
        work: |driver, cuts| {
            let released = cuts.iter().try_for_each(|(volume, copy)| driver.release_cuts(volume, copy));
            released.map(|()| peer::ReleaseCutsResponse {})
        };
    }
    // People look at the cluster.
    question ListNodesRequest = |facts| {
        let itself = facts.node.map(|node| details::encode_known(KnownNode {
            node_id: node.node_id.clone(),
            address: None,
            last_answer: Some(Timestamp::now()),
        }));
        peer::ListNodesResponse { nodes: itself.into_iter().collect(), version: env!("CARGO_PKG_VERSION").to_owned() }
    };
    // An administrator has a volume made of what others have made.
    call AdoptVolumeRequest {
        logs: "node.id" = node_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| {
            let node_id = request.node_id.clone();
            adopt::request(request).map(|request| (node_id, request))
        };
        work: |driver, (node_id, request)| {
            driver.expect_named(&node_id)?;
            let adopted = driver.adopt_volume(&request)?;
            let what = (adopted.volume.as_deref(), adopted.way);
            Ok(adopt::encode(what, adopted.left.as_deref(), adopted.made, driver.settings()))
        };
    }
    call ListDetailsRequest {
        logs: "node.id" = node_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| {
            let extent = if request.pools_only { Extent::Pools } else { Extent::Everything };
            Ok((request.node_id, Some(request.token).filter(|token| !token.is_empty()), extent))
        };
        work: |driver, (node_id, token, extent)| {
            driver.list_details(&node_id, token.as_deref(), extent).map(details::encode)
        };
    }
    call ListFindingsRequest {
        logs: "node.id" = node_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| Ok((request.node_id, Some(request.token).filter(|token| !token.is_empty())));
        work: |driver, (node_id, token)| {
            driver.list_findings(&node_id, token.as_deref()).map(findings::encode)
        };
    }
    call GetNodeReportRequest {
        logs: "node.id" = node_id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| Ok(request.node_id);
        work: |driver, node_id| driver.node_report(&node_id).map(details::encode_report);
    }
    call FixFindingRequest {
        logs: "node.id" = node_id, "volume.id" = id;
        route: |_| Route::Peers(Callers::Controllers);
        check: |request| Ok(findings::decode_fix(request));
        work: |driver, fix| driver.fix_finding(&fix).map(|done| peer::FixFindingResponse { done });
    }
}

/// Returns who may call the RPC at this path; `None` if this version has none there.
pub fn peer_callers(path: &str) -> Option<Callers> {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| {
        let mut known = Known::default();
        each(&mut known);
        known
    });
    KNOWN.get(path).copied()
}

type Known = HashMap<&'static str, Callers>;

impl Declarations for Known {
    // Any process of the cluster may ask who listens at an address.
    fn question<Q: Question>(&mut self) {
        self.insert(Q::PATH, Callers::All);
    }

    fn call<Q: Call>(&mut self) {
        self.extend(callers::<Q>());
    }

    fn stream<Q: StreamCall>(&mut self) {
        self.extend(callers::<Q>());
    }
}

fn callers<Q: Request>() -> Option<(&'static str, Callers)> {
    match Q::default().route() {
        Route::Peers(callers) => Some((Q::PATH, callers)),
        _ => None,
    }
}
