//! How many cuts of volumes other nodes get: what a controller orders, and what a node does with a permit beyond that.

use hostloop::model::{NodeKey, VolumeId};
use hostloop::wire::peer::OpenSourceRequest;
use hostloop::wire::peer::open_source_request::Source;
use tonic::Code;

use super::nodes::{Pair, TARGET};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;

/// A node has standby copies of many volumes, whose passes all come within a minute.
#[test]
fn each_permit_is_good_for_one_cut_without_limit() {
    let rig = Rig::new();
    let vol = rig.volume("source", block());
    let pair = Pair::new(rig);
    let order = |n: usize| {
        let name = format!("copy-{n}");
        OpenSourceRequest {
            source: Some(Source::VolumeId(vol.id.clone())),
            target_volume_id: VolumeId::of_name(&NodeKey::of(TARGET), &name).to_string(),
            permit: pair.permit(&copy(&name, from_volume(&vol.id), block(), &[])),
            ..Default::default()
        }
    };
    let open = |request| pair.runtime.block_on(pair.source.peer.clone().open_source(request)).map(drop);
    let orders: Vec<_> = (0..40).map(order).collect();
    for (n, order) in orders.iter().enumerate() {
        open(order.clone()).unwrap_or_else(|status| panic!("{n}: {status:?}"));
    }
    // The node uses its permits again, for cuts that nothing has ordered.
    let again = |order: &OpenSourceRequest| open(OpenSourceRequest { began_ns: 1, ..order.clone() });
    let refused = orders.iter().map(again).filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused.len(), 10, "{refused:?}");
    assert!(refused.iter().all(|status| status.code() == Code::ResourceExhausted), "{refused:?}");
}
