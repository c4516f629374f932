//! CSI SnapshotMetadata: answers that are streams.

use super::declare::{Declarations, Named, Request, Route, StreamCall, StreamWork, declare};
use super::stream::Emit;
use crate::driver::Driver;
use crate::error::Result;
use crate::wire::{csi, decode, encode};

declare! { each of csi;
    stream GetMetadataAllocatedRequest {
        logs: "snapshot.id" = snapshot_id;
        route: |request| Route::Owner(Named::Snapshot(&request.snapshot_id));
        check: |request| decode::get_metadata_allocated(request);
        work: |driver, request, emit| {
            driver.get_metadata_allocated(request, &mut |found| emit(encode::get_metadata_allocated(found)))
        };
    }
    stream GetMetadataDeltaRequest {
        logs: "snapshot.id" = target_snapshot_id, "base.id" = base_snapshot_id;
        // Both have to be on one node.
        route: |_| Route::Controller;
        check: |request| decode::get_metadata_delta(request);
        work: |driver, request, emit| {
            driver.get_metadata_delta(request, &mut |found| emit(encode::get_metadata_delta(found)))
        };
    }
}
