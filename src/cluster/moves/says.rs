//! What the nodes say of a volume and of its copy.

use super::act::Moves;
use super::nodes::{NodeError, Presence};
use super::resources::{ReplicaPhase, VolumeReplicaSpec};
use super::view::Says;

impl Moves {
    /// Asks the node of the volume what this move has left there, if only that says how far it came.
    pub(super) async fn ask_what_is_left(
        &self,
        spec: &VolumeReplicaSpec,
        source: &Says,
        is_status_lost: bool,
    ) -> Says {
        let is_later = matches!(source, Says::Has(has) if *has > spec.generation);
        let is_needed = is_status_lost && (is_later || spec.is_of_an_earlier_generation());
        match spec.left_id() {
            Some(left) => self.ask(is_needed, &spec.source_node, &left).await,
            None => Says::NotAsked,
        }
    }

    /// Asks the node of the volume about the volume, and that of the copy about the copy and the volume, as far as that is needed.
    pub(super) async fn ask_both(
        &self,
        spec: &VolumeReplicaSpec,
        phase: ReplicaPhase,
        (asks_source, asks_copy, asks_target): (bool, bool, bool),
    ) -> (Says, Says, Says) {
        let (source, target, id) = (&spec.source_node, &spec.target_node, &spec.volume_id);
        if spec.is_on_one_node() {
            let copy = self.ask(asks_copy, target, &spec.copy_id).await;
            let volume = self.ask(asks_source || asks_target, source, id).await;
            let (source, target) = on_one_node(spec, phase, volume);
            return (source, copy, target);
        }
        let source = self.ask(asks_source, source, id).await;
        // Before the volume: between the two answers, the copy may become the volume.
        let copy = self.ask(asks_copy, target, &spec.copy_id).await;
        (source, copy, self.ask(asks_target, target, id).await)
    }

    /// Asks a node about the volume, if that is needed.
    async fn ask(&self, needed: bool, node: &str, volume_id: &str) -> Says {
        if !needed {
            return Says::NotAsked;
        }
        let answer = self.nodes.find(node, volume_id).await;
        if !matches!(answer, Err(NodeError::Silent(_))) {
            self.silence.is_heard(node);
        }
        let what = format!("{node}/{volume_id}");
        if !matches!(answer, Ok(Presence::Unusable(_))) {
            self.unusable.is_heard(&what);
        }
        match answer {
            Ok(Presence::Has(generation)) => Says::Has(generation),
            Ok(Presence::Unusable(why)) => Says::Unusable(why, self.unusable.is_silent(&what)),
            Ok(Presence::Deleted) => Says::Deleted,
            Ok(Presence::Nothing) => Says::Nothing,
            Err(NodeError::Silent(_)) => Says::Silent(self.silence.is_silent(node)),
            Err(error) => Says::Error(error.to_string()),
        }
    }
}

/// Returns what a node that has both the volume and the copy says as the node of either: the generation tells whether the copy has become
/// the volume.
fn on_one_node(spec: &VolumeReplicaSpec, phase: ReplicaPhase, volume: Says) -> (Says, Says) {
    match volume {
        Says::Has(generation) if generation <= spec.generation => (volume, Says::Nothing),
        Says::Has(generation) if generation == spec.next_generation() => (Says::Nothing, volume),
        // The disk of the volume has failed, and not that of its copy.
        Says::Unusable(..) if phase < ReplicaPhase::Completing => (volume, Says::Nothing),
        _ => (volume.clone(), volume),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn one_node_speaks_for_the_volume_and_its_copy() {
        let spec = json!({"driver": "d", "volumeId": "v", "generation": 4, "persistentVolume": {"name": "p", "uid": "u"},
            "claim": {"namespace": "n", "name": "c", "uid": "u"}, "sourceNode": "n1", "targetNode": "n1", "copyName": "c",
            "copyId": "i", "purpose": "Move"});
        let spec: VolumeReplicaSpec = serde_json::from_value(spec).unwrap();
        let says = |phase, volume| on_one_node(&spec, phase, volume);
        let (early, late) = (ReplicaPhase::CuttingOver, ReplicaPhase::Completing);
        for phase in [early, late] {
            assert_eq!(says(phase, Says::Has(4)), (Says::Has(4), Says::Nothing));
            assert_eq!(says(phase, Says::Has(5)), (Says::Nothing, Says::Has(5)));
            assert_eq!(says(phase, Says::Has(6)), (Says::Has(6), Says::Has(6)), "it was taken back");
            assert_eq!(says(phase, Says::Deleted), (Says::Deleted, Says::Deleted));
        }
        let failed = || Says::Unusable("no disk".to_owned(), Duration::ZERO);
        assert_eq!(says(early, failed()), (failed(), Says::Nothing));
        assert_eq!(says(late, failed()), (failed(), failed()), "nothing says which of the two");
    }
}
