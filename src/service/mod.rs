//! The RPCs. Each is declared in the file of its service (`declare.rs` says how), and `serve.rs` serves it for the driver:
//! it is checked, makes one hop to the blocking pool, and is answered. The only rule of CSI that is decided here is which
//! RPCs are announced. An answer that is a stream goes through `stream.rs`.

mod controller;
pub(crate) mod declare;
mod gate;
mod group_controller;
mod identity;
mod node;
mod object;
mod observe;
mod peer;
mod permit;
mod pod;
mod serve;
mod snapshot_metadata;
mod status;
pub(crate) mod stream;
pub(crate) mod table;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tonic::Status;
use tracing::Span;

use declare::{Declarations, Work};

pub use controller::{CONVERT, COPY, GENERATION, PERMIT, RESERVATION, SOURCE_ADDRESS, SOURCE_NODE};
pub use declare::Callers;
pub use gate::{Behind, Gate, Starting};
pub(crate) use observe::{observe, observe_made};
pub use peer::peer_callers;
pub use permit::{NoPermits, Permits};
pub use serve::{add_controller_services, add_details_service, add_node_services, add_peer_services};
pub use status::MOVED_TO;
pub use status::code;

/// What a controller serves, of one driver or of a cluster.
pub(crate) fn each_of_controller(declarations: &mut impl Declarations) {
    identity::each(declarations);
    controller::each(declarations);
    group_controller::each(declarations);
    snapshot_metadata::each(declarations);
}

/// What a node serves to kubelet.
pub(crate) fn each_of_node(declarations: &mut impl Declarations) {
    identity::each(declarations);
    node::each(declarations);
}

/// What a node serves to the other processes of its cluster, beside what a controller serves.
pub(crate) fn each_of_peer(declarations: &mut impl Declarations) {
    peer::each(declarations);
}

use crate::driver::pulse::PATIENCE;
use crate::driver::{Driver, Site};
use crate::error::{Error, Result};

/// How long a caller waits for a turn before it is told to come back.
const TURN_PATIENCE: Duration = Duration::from_secs(20);
/// How long between two looks for one.
const TURN_PAUSE: Duration = Duration::from_millis(100);

/// How long a call may take before the disk that it works on is asked whether it answers: longer than health waits for
/// that answer.
const STUCK_AFTER: Duration = Duration::from_secs(PATIENCE.as_secs() + 5);
/// How long between two looks at the answer.
const STUCK_PAUSE: Duration = Duration::from_secs(2);

/// Runs a use case on the blocking pool, in the span of the RPC. Dropping the returned future (the client went
/// away, or its deadline passed) does not stop the work, so that no volume is left half-made; a retry meets
/// the volume's lock and is answered ABORTED until the work has ended.
async fn run<T, F>(driver: &Arc<Driver>, work: F) -> Result<T, Status>
where
    F: FnOnce(&Arc<Driver>) -> Result<T> + Send + 'static,
    T: Send + 'static,
{
    ready_to_serve(driver)?;
    let site = Site::default();
    let ended = {
        let (driver, site) = (Arc::clone(driver), site.clone());
        spawn_blocking(move || site.run(|| work(&driver)))
    };
    status_of(unless_stuck(driver, &site, ended).await?)
}

/// Waits for work to end, or for the disk where it is at work to be found silent. The work goes on then, as it does without
/// its caller.
async fn unless_stuck<T>(
    driver: &Arc<Driver>,
    site: &Site,
    mut work: JoinHandle<T>,
) -> Result<Result<T, JoinError>, Status> {
    let mut patience = STUCK_AFTER;
    loop {
        match tokio::time::timeout(patience, &mut work).await {
            Ok(ended) => return Ok(ended),
            Err(_) => patience = STUCK_PAUSE,
        }
        // It reads the table of mounts for the first question, and is no work for the threads that serve everybody.
        let (driver, site) = (Arc::clone(driver), site.clone());
        if let Ok(Some(error)) = spawn_blocking(move || driver.is_stuck(&site)).await {
            return Err(error.into());
        }
    }
}

/// The same for work that may take a turn of its own (a copy). Where there is none the caller waits for one, without a
/// thread: what has ended already, or is refused for another reason, is answered at once all the same.
async fn run_in_turn<T: Send + 'static>(driver: &Arc<Driver>, work: Work<T>) -> Result<T, Status> {
    let until = Instant::now() + TURN_PATIENCE;
    loop {
        ready_to_serve(driver)?;
        let site = Site::default();
        let ended = {
            let (driver, site, work) = (Arc::clone(driver), site.clone(), Arc::clone(&work));
            spawn_blocking(move || site.run(|| work(&driver)))
        };
        match unless_stuck(driver, &site, ended).await? {
            Ok(Err(Error::Crowded(_))) if Instant::now() < until => tokio::time::sleep(TURN_PAUSE).await,
            ended => return status_of(ended),
        }
    }
}

fn ready_to_serve(driver: &Driver) -> Result<(), Status> {
    match driver.is_ready() {
        true => Ok(()),
        false => Err(Error::Unavailable("start-up recovery is running; try again".to_owned()).into()),
    }
}

/// Who calls, among the extensions of a request: a peer by its certificate. What is shared fairly between callers asks for
/// it. Nodes that share a certificate are one, and so is everybody on the socket, who has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(pub String);

fn caller<T>(request: &tonic::Request<T>) -> String {
    request.extensions().get().map_or_else(String::new, |Caller(name)| name.clone())
}

/// Starts work on the blocking pool, in the span of the RPC.
fn spawn_blocking<T, F>(work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let span = Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
}

/// What the caller is told of work that ended.
fn status_of<T>(ended: Result<Result<T>, JoinError>) -> Result<T, Status> {
    match ended {
        Ok(result) => result.map_err(Status::from),
        // What the panic said may hold anything, also a secret: it goes to nobody.
        Err(error) if error.is_panic() => {
            tracing::error!("the RPC panicked; this is a bug in hostloop");
            Err(Status::internal("internal error: the operation ended in a panic, see the log"))
        }
        Err(_) => Err(Status::unavailable("the driver is shutting down; try again")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tonic::Code;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime").block_on(future)
    }

    async fn on_blocking_pool<T, F>(work: F) -> Result<T, Status>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        status_of(spawn_blocking(work).await)
    }

    #[test]
    fn results_pass_through() {
        assert_eq!(block_on(on_blocking_pool(|| Ok(5))).expect("value"), 5);
        let status = block_on(on_blocking_pool::<(), _>(|| Err(Error::NotFound("no volume".to_owned()))));
        let status = status.expect_err("status");
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no volume"));
    }

    #[test]
    fn a_panic_is_internal_and_says_nothing() {
        let status = block_on(on_blocking_pool::<(), _>(|| panic!("CANARY"))).expect_err("status");
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().is_empty() && !status.message().contains("CANARY"));
    }

    #[test]
    fn work_that_has_begun_ends_without_its_caller() {
        let (started, has_started) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let work = move || {
            started.send(()).ok();
            std::thread::sleep(Duration::from_millis(50));
            ended.send(()).ok();
            Ok(())
        };
        block_on(async {
            let outcome = tokio::time::timeout(Duration::from_millis(5), on_blocking_pool(work)).await;
            assert!(outcome.is_err(), "the caller gave up");
        });
        has_started.recv_timeout(Duration::from_secs(5)).expect("started");
        has_ended.recv_timeout(Duration::from_secs(5)).expect("ended");
    }
}
