//! Calls as the sidecars and kubelet make them: with a time limit, again and again until they are answered, through
//! whichever controller leads, to whichever process runs.

use std::sync::Arc;
use std::time::Duration;

use hostloop::selftest::client::Client as Caller;
use hostloop::wire::rpc::Unary;
use tokio::time::{Instant, timeout};
use tonic::{Code, Request, Status};

use crate::harness::{CONTROLLERS, Cluster};

/// After so long of a healthy cluster every call has to have its answer.
const PATIENCE: Duration = Duration::from_secs(900);
/// How much longer than its limit a call may take: the limit is sent with it.
const SLACK: Duration = Duration::from_secs(2);
/// How long a call without a limit may take: what the net keeps back (30 s) and a machine that stands still (45 s) is
/// noticed by whoever waits, and the steps of a slow disk are waited for.
const UNLIMITED: Duration = Duration::from_secs(120);
/// The same where a whole volume comes from another node, which is waited for as long as it moves on or away.
const COPYING: Duration = Duration::from_secs(900);

/// What a call to a node says whose machine is off.
pub const OFF: &str = "the machine is off";

/// Why a life cannot go on.
pub type Failure = String;

/// A client of the controllers, as a sidecar is; its limit is that of each of its calls.
#[derive(Clone)]
pub struct Client {
    pub cluster: Arc<Cluster>,
    pub name: String,
}

/// Whether the call is worth another try, for who calls: the connection's doing, or what CSI lets pass.
fn passes(status: &Status) -> bool {
    let local = std::error::Error::source(status).is_some();
    let passing =
        [Code::Unavailable, Code::Aborted, Code::ResourceExhausted, Code::DeadlineExceeded, Code::Cancelled];
    local || passing.contains(&status.code())
}

impl Client {
    /// Calls until there is an answer that counts.
    ///
    /// # Errors
    /// An answer that no caller has deserved, a call that outlived its limit, or no answer at all.
    pub async fn call<T, F>(
        &self,
        what: &str,
        mut one: impl FnMut(Option<Duration>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let (began, mut wait) = (Instant::now(), Duration::from_millis(500));
        loop {
            let limit = [Some(10), Some(15), Some(60), Some(120), None][self.cluster.below(5)]
                .map(Duration::from_secs);
            let copies = what.starts_with("CreateVolume") && what.contains('-');
            let bound = limit.map_or(if copies { COPYING } else { UNLIMITED }, |limit| limit + SLACK);
            let started = Instant::now();
            let answer = timeout(bound, one(limit)).await;
            let took = started.elapsed();
            let name = &self.name;
            let Ok(answer) = answer else {
                return Err(format!("{name}: {what} with a limit of {limit:?} has no answer after {took:?}"));
            };
            let told = answer.as_ref().map_or_else(
                |status| format!("{:?}: {}", status.code(), status.message()),
                |_| "done".to_owned(),
            );
            crate::log(|| format!("{name} {what} after {took:?}: {told}"));
            match answer {
                Ok(answer) => return Ok(answer),
                Err(status) if passes(&status) => {}
                Err(_) => return Err(format!("{name}: {what} is answered {told}")),
            }
            if began.elapsed() > PATIENCE {
                return Err(format!(
                    "{name}: {what} has failed for {:?}, at last with {told}",
                    began.elapsed()
                ));
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(20));
        }
    }

    /// A call through one of the controllers.
    pub async fn controller<Q: Unary>(
        &self,
        what: &str,
        mut request: impl FnMut() -> Q,
    ) -> Result<Q::Reply, Failure> {
        self.call(what, |limit| {
            let wanted = request();
            async move {
                let process =
                    self.cluster.controllers[self.cluster.below(CONTROLLERS)].lock().unwrap().clone();
                let client = Caller::on(process.channel().await?);
                let answer = client.send(within(wanted, limit)).await;
                heard(process.host.lives(), answer)
            }
        })
        .await
    }

    /// A call to the driver of a node.
    pub async fn node<Q: Unary>(&self, what: &str, node: usize, wanted: &Q) -> Result<Q::Reply, Failure> {
        self.call(what, |limit| async move {
            let machine = &self.cluster.machines[node];
            let none = || Status::unavailable("no process");
            // Kubelet is off as well.
            if machine.is_off() {
                return Err(Status::failed_precondition(OFF));
            }
            // Kubelet stands still with its machine.
            if self.cluster.net.is_frozen(&machine.id) {
                return Err(none());
            }
            let process = machine.process().ok_or_else(none)?;
            let client = Caller::on(process.channel().await?);
            let answer = client.send(within(wanted.clone(), limit)).await;
            heard(process.host.lives(), answer)
        })
        .await
    }
}

fn within<Q>(request: Q, limit: Option<Duration>) -> Request<Q> {
    let mut request = Request::new(request);
    if let Some(limit) = limit {
        request.set_timeout(limit);
    }
    request
}

/// An answer of a process that is dead by now was never sent.
fn heard<T>(lives: bool, answer: Result<T, Status>) -> Result<T, Status> {
    if lives { answer } else { Err(Status::unavailable("the process died")) }
}
