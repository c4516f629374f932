//! CSI GetCapacity: of one node, or of all together.

use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use tonic::{Code, Status};

use super::Router;
use super::forward::ask_each;
use super::route::Asked;
use crate::cluster::peers::Member;
use crate::service::table;
use crate::wire::{csi, decode};

/// How long a node may take where others answer as well.
const QUESTION: Duration = Duration::from_secs(2);

impl Router {
    /// The capacity at one place: that of its node, and none where no node of this driver is. Without a place, what
    /// all nodes have: the room in sum, and the largest and smallest volume that any of them can make. A node that
    /// cannot be asked has a line in the log then, and counts nothing.
    ///
    /// # Errors
    /// The node's; UNAVAILABLE where none answers.
    pub(super) async fn get_capacity(self, asked: Asked<csi::GetCapacityRequest>) -> Result<Bytes, Status> {
        let Asked { bytes, request, wrong, envelope } = asked;
        let members = self.members()?;
        if let Some(place) = decode::place(request.accessible_topology)? {
            let mut here = place.requisite.iter().flatten().filter_map(|node_id| members.with_id(node_id));
            return match (here.next(), wrong) {
                (Some(member), _) => self.pass::<csi::GetCapacityRequest>(member, &envelope, bytes).await,
                (None, Some(wrong)) => Err(wrong.into()),
                (None, None) => Ok(Bytes::new()),
            };
        }
        let ask = |member: Arc<Member>| {
            let (router, envelope, bytes) = (&self, &envelope, bytes.clone());
            async move {
                let answer = router.ask::<csi::GetCapacityRequest>(&member, envelope, bytes, QUESTION).await;
                (member, answer)
            }
        };
        let all = members.iter().map(|(_, member)| Arc::clone(member)).collect();
        sum(ask_each(all, ask).await).map(|all| table::encode(&all))
    }
}

type Answer = Result<csi::GetCapacityResponse, Status>;

fn sum(answers: Vec<(Arc<Member>, Answer)>) -> Answer {
    let (mut all, mut wrong, mut missing) = (None, None, Vec::new());
    for (member, answer) in answers {
        match answer {
            Ok(more) => all = Some(all.map_or(more, |all| add(all, more))),
            // The request makes no sense there, such as a pool that this node does not have.
            Err(status) if status.code() == Code::InvalidArgument => wrong = wrong.or(Some(status)),
            Err(status) => missing.push((member.node_id.clone(), status)),
        }
    }
    if all.is_some() {
        for (node, status) in &missing {
            tracing::warn!(node, error = status.message(), "the capacity is without that of a node");
        }
    }
    let first = missing.into_iter().next().map(|(_, status)| status);
    match (all, first.or(wrong)) {
        (Some(all), _) => Ok(all),
        (None, Some(status)) => Err(status),
        (None, None) => Ok(csi::GetCapacityResponse::default()),
    }
}

fn add(all: csi::GetCapacityResponse, more: csi::GetCapacityResponse) -> csi::GetCapacityResponse {
    let both = |one: Option<i64>, two: Option<i64>, choose: fn(i64, i64) -> i64| match (one, two) {
        (Some(one), Some(two)) => Some(choose(one, two)),
        (one, two) => one.or(two),
    };
    csi::GetCapacityResponse {
        available_capacity: all.available_capacity.saturating_add(more.available_capacity),
        maximum_volume_size: both(all.maximum_volume_size, more.maximum_volume_size, i64::max),
        minimum_volume_size: both(all.minimum_volume_size, more.minimum_volume_size, i64::min),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(node_id: &str, answer: Result<[i64; 3], Code>) -> (Arc<Member>, Answer) {
        let member = Member { node_id: node_id.to_owned(), address: None };
        let capacity = |[available, maximum, minimum]: [i64; 3]| csi::GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: Some(maximum),
            minimum_volume_size: Some(minimum),
        };
        (Arc::new(member), answer.map(capacity).map_err(|code| Status::new(code, node_id)))
    }

    #[test]
    fn rooms_add_up_and_the_maximum_is_of_one_node() {
        let all = sum(vec![
            answer("a", Ok([10, 8, 2])),
            answer("b", Ok([20, 15, 1])),
            answer("c", Err(Code::Unavailable)),
            answer("d", Err(Code::InvalidArgument)),
        ]);
        let all = all.expect("an answer");
        assert_eq!(
            (all.available_capacity, all.maximum_volume_size, all.minimum_volume_size),
            (30, Some(15), Some(1))
        );
    }

    #[test]
    fn a_node_down_counts_more_than_one_that_refuses() {
        let code = |answers| sum(answers).expect_err("no answer").code();
        let refused = answer("a", Err(Code::InvalidArgument));
        assert_eq!(code(vec![refused.clone(), answer("b", Err(Code::Unavailable))]), Code::Unavailable);
        assert_eq!(code(vec![refused]), Code::InvalidArgument);
        assert_eq!(sum(Vec::new()).expect("no nodes").available_capacity, 0);
    }
}
