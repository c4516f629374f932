//! A volume that is taken back from the node of its copy, which was lost in the last step of a move.

use hostloop::model::request::NodeUnstageVolume;
use hostloop::wire::peer;
use tonic::{Code, Status};

use super::copied::Copied;
use super::identity::{get, has_moved, ids, retire, sealed, stage, succeed};
use super::nodes::{SOURCE, TARGET};

fn reclaim(copied: &Copied, generation: u64) -> Result<(), Status> {
    let request = peer::ReclaimVolumeRequest { volume_id: copied.vol.id.clone(), generation };
    copied.pair.runtime.block_on(copied.pair.source.peer.clone().reclaim_volume(request)).map(drop)
}

/// The node of the copy was lost when it had taken over the id.
#[test]
fn a_reclaimed_volume_can_be_used_again() {
    let copied = sealed();
    let (source, target, id) = (&copied.pair.source, &copied.pair.target, copied.vol.id.as_str());
    let before = copied.source_bytes();
    copied.refused(reclaim(&copied, 3), Code::FailedPrecondition, "has generation 0");
    succeed(&copied).expect("it takes the id over");
    reclaim(&copied, 2).expect("it is taken back");
    reclaim(&copied, 2).expect("again");
    source.driver.node_stage_volume(stage(&copied)).expect("pods can use it");
    let unstage = NodeUnstageVolume { volume_id: id.to_owned(), staging_path: copied.vol.staging().into() };
    source.driver.node_unstage_volume(unstage).expect("unstaged");
    assert_eq!(copied.source_bytes(), before);
    // A late repetition does not end the fence of a later move.
    let seal = |moved_to: &str| {
        let (volume_id, moved_to) = (id.to_owned(), moved_to.to_owned());
        let request = peer::SealVolumeRequest { volume_id, moved_to, generation: 2, unsealed: 0 };
        copied.pair.runtime.block_on(source.peer.clone().seal_volume(request)).expect("sealed");
    };
    seal("third");
    reclaim(&copied, 2).expect("nothing is done");
    assert_eq!(source.driver.store().volumes()[0].moved_to.as_deref(), Some("third"));
    seal("");

    copied.refused(retire(&copied, source, 1, TARGET).map(drop), Code::FailedPrecondition, "generation 2");
    let left = retire(&copied, target, 2, SOURCE).expect("the earlier generation goes");
    has_moved(get(&copied, target, id), SOURCE);
    let request = |generation| peer::DeleteCopyRequest {
        volume_id: left.clone(),
        source_volume_id: id.to_owned(),
        generation,
    };
    let delete =
        |generation| copied.pair.runtime.block_on(target.peer.clone().delete_copy(request(generation)));
    assert_eq!(delete(1).expect_err("another generation").code(), Code::FailedPrecondition);
    delete(2).expect("deleted");
    assert_eq!(ids(target), Vec::<String>::new());
}
