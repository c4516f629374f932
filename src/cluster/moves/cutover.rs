//! The steps from the moment in which pods may leave to the end of a move.

use std::time::Duration;

use kube::ResourceExt as _;

use super::act::{Moves, Next, RETRY, RUNNING, Result};
use super::decide::PRESSING;
use super::exchange::{Exchange, Progress};
use super::objects::Run;
use super::resources::{ReplicaPhase, VolumeReplica, When};
use super::view::{View, Wanted};

impl Moves {
    /// Asks for everything that can be refused as a dry run. After that, the volume is fenced.
    pub(super) async fn check(&self, replica: &VolumeReplica, view: &View) -> Result<Next> {
        if let Err(refused) = Exchange::new(&self.objects, &replica.spec).check().await? {
            return self.wait(replica, RETRY, &refused.to_string()).await;
        }
        if matches!(view.wanted, Wanted::Move { when: When::Now, .. }) {
            let staying = view.users.iter().filter(|user| !user.is_leaving).map(|user| user.name.clone());
            let staying: Vec<String> = staying.collect();
            if let Some(why) = self.ask_to_leave(replica, &staying, Run::Dry).await? {
                return self.wait(replica, RETRY, &why).await;
            }
        }
        self.enter(replica, ReplicaPhase::CuttingOver, "the volume changes its node").await
    }

    pub(super) async fn evict(&self, replica: &VolumeReplica, pods: &[String]) -> Result<Next> {
        match self.ask_to_leave(replica, pods, Run::Real).await? {
            Some(why) => self.wait(replica, RUNNING, &why).await,
            None => Ok(Next::After(PRESSING)),
        }
    }

    /// Evicts pods of the volume. Returns why one of them may not be evicted.
    async fn ask_to_leave(
        &self,
        replica: &VolumeReplica,
        names: &[String],
        run: Run,
    ) -> Result<Option<String>> {
        for pod in self.pods_of(replica).iter().filter(|pod| names.contains(&pod.name_any())) {
            match self.objects.evict(pod, run).await {
                Ok(()) => {}
                Err(kube::Error::Api(answer)) if answer.code == 429 => {
                    let name = pod.name_any();
                    return Ok(Some(format!("pod {name} may not be evicted yet: {}", answer.message)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    pub(super) async fn exchange(&self, replica: &VolumeReplica) -> Result<Next> {
        let recorded = replica.status.as_ref().and_then(|status| status.recorded.as_ref());
        match Exchange::new(&self.objects, &replica.spec).step(recorded).await? {
            Progress::Done => {
                let why = format!("the volume is on node {}", replica.spec.target_node);
                self.enter(replica, ReplicaPhase::Retiring, &why).await
            }
            Progress::Record(volume) => self.write(replica, |status| status.recorded = Some(volume)).await,
            Progress::Next => Ok(Next::After(Duration::ZERO)),
            Progress::Unbound => Ok(Next::After(PRESSING)),
            Progress::Blocked(why) => self.wait(replica, RUNNING, &why).await,
        }
    }

    /// The copy, or what was left of the volume, is gone: so are the cuts that the node of the volume kept for it.
    pub(super) async fn released(&self, replica: &VolumeReplica) -> Result<Next> {
        match self.nodes.release(&replica.spec).await {
            Ok(()) => self.finish(replica).await,
            // An administrator does not wait for a node. It removes the cuts by itself after a day.
            Err(_) if replica.metadata.deletion_timestamp.is_some() => self.finish(replica).await,
            Err(error) => self.hindered(replica, error).await,
        }
    }

    /// Nothing of the copy is left to take care of.
    pub(super) async fn finish(&self, replica: &VolumeReplica) -> Result<Next> {
        self.end_request(replica).await?;
        self.objects.remove_replica(replica).await?;
        Ok(Next::Gone)
    }
}
