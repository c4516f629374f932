//! The nodes that a new volume may be on, best first. No I/O: the rules alone.

use std::sync::Arc;

use crate::cluster::peers::{Member, Members};
use crate::model::TopologyRequirement;

/// The nodes that a new volume may be on, best first, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidates {
    pub(super) nodes: Vec<Arc<Member>>,
    /// So many of them stand where they stand for a reason; the others are ordered by their room.
    pub(super) fixed: usize,
}

impl Candidates {
    /// The source's node is first where it is allowed, since the copy is made at once there. Then the preferred
    /// ones in order, then the requisite ones that nobody prefers (csi.proto, TopologyRequirement). Without a
    /// requirement every node is allowed. What the requirement names and the cluster does not have is left out.
    pub(super) fn new(
        members: &Members,
        requirement: Option<&TopologyRequirement>,
        source: Option<&Arc<Member>>,
    ) -> Self {
        let allowed = |member: &Arc<Member>| requirement.is_none_or(|r| r.allows(&member.node_id));
        let mut nodes: Vec<Arc<Member>> =
            source.filter(|member| allowed(member)).cloned().into_iter().collect();
        let mut add = |member: &Arc<Member>| {
            if allowed(member) && !nodes.iter().any(|there| there.node_id == member.node_id) {
                nodes.push(Arc::clone(member));
            }
        };
        if let Some(TopologyRequirement { requisite, preferred }) = requirement {
            let named = preferred.iter().chain(requisite).flatten();
            named.filter_map(|node_id| members.with_id(node_id)).for_each(add);
            return Candidates { fixed: nodes.len(), nodes };
        }
        let fixed = usize::from(source.is_some());
        members.iter().for_each(|(_, member)| add(member));
        Candidates { nodes, fixed }
    }

    /// Orders those without a fixed place by what they have left, most first; those that have not told are last.
    pub(super) fn order_by_room(&mut self, room: impl Fn(&Member) -> Option<i64>) {
        if let Some(free) = self.nodes.get_mut(self.fixed..) {
            free.sort_by_key(|member| std::cmp::Reverse(room(member)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn members(ids: &[&str]) -> Members {
        let member = |id: &&str| Member { node_id: (*id).to_owned(), address: None };
        Members::new(ids.iter().map(member), BTreeSet::new())
    }

    fn requirement(requisite: &[&str], preferred: &[&str]) -> TopologyRequirement {
        let terms = |ids: &[&str]| ids.iter().map(|id| Some((*id).to_owned())).collect();
        TopologyRequirement { requisite: terms(requisite), preferred: terms(preferred) }
    }

    fn order(requirement: Option<&TopologyRequirement>, source: Option<&str>) -> Vec<String> {
        let members = members(&["a", "b", "c"]);
        let source = source.and_then(|id| members.with_id(id));
        let candidates = Candidates::new(&members, requirement, source);
        candidates.nodes.iter().map(|member| member.node_id.clone()).collect()
    }

    #[test]
    fn preferred_nodes_come_before_requisite_ones() {
        assert_eq!(order(Some(&requirement(&["a", "b", "c"], &["c", "a"])), None), ["c", "a", "b"]);
        assert_eq!(order(Some(&requirement(&[], &["b", "a"])), None), ["b", "a"]);
        assert_eq!(order(Some(&requirement(&["b", "a"], &[])), None), ["b", "a"]);
        // What is preferred only is not allowed where something is requisite.
        assert_eq!(order(Some(&requirement(&["a"], &["b", "a"])), None), ["a"]);
        assert_eq!(order(Some(&requirement(&["x"], &["y"])), None), [""; 0]);
    }

    #[test]
    fn the_sources_node_is_first_where_it_is_allowed() {
        assert_eq!(order(Some(&requirement(&["a", "b", "c"], &["c"])), Some("b")), ["b", "c", "a"]);
        assert_eq!(order(Some(&requirement(&["a", "c"], &["c"])), Some("b")), ["c", "a"]);
    }

    #[test]
    fn the_most_room_is_first_without_a_requirement() {
        let members = members(&["a", "b", "c", "d"]);
        let room = |member: &Member| match member.node_id.as_str() {
            "a" => Some(1),
            "b" => Some(3),
            "d" => Some(2),
            _ => None,
        };
        let ordered = |source: Option<&str>| {
            let mut candidates = Candidates::new(&members, None, source.and_then(|id| members.with_id(id)));
            candidates.order_by_room(room);
            candidates.nodes.iter().map(|member| member.node_id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(ordered(None), ["b", "d", "a", "c"]);
        assert_eq!(ordered(Some("c")), ["c", "b", "d", "a"]);
        let both = requirement(&["a", "b"], &["a"]);
        let mut fixed = Candidates::new(&members, Some(&both), None);
        fixed.order_by_room(room);
        assert_eq!(fixed.nodes[0].node_id, "a", "a preference is not overruled");
    }
}
