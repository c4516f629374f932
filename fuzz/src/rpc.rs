//! Requests of every RPC, CSI's and those between the processes of a cluster, one after the other through the whole
//! driver. The tag of a message is the number of its method.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use hostloop::app;
use hostloop::driver::Driver;
use hostloop::model::Grant;
use hostloop::service::{Permits, add_node_services};
use hostloop::wire::{METHODS, permit};
use hostloop_fake_kernel::FakeKernel;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::service::Routes;

use crate::machine::{DATA_DIR, DIRECTORIES, KUBELET, machine, start};
use crate::{grpc, messages};

/// The node.
pub const NODE: &str = "node-a";
/// More calls than that find nothing that fewer do not.
const MOST_CALLS: usize = 24;

/// Lets everybody read what a permit says, also without a signature: signatures cannot be guessed.
struct Unsigned;

impl Permits for Unsigned {
    fn open(&self, permit: &[u8]) -> Result<Grant, String> {
        permit::decode(permit).map_err(|malformed| malformed.to_string())
    }
}

thread_local! {
    /// One for all inputs, since its threads cost more than a call. Time stands still while somebody works, and jumps
    /// where everybody waits.
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
    );
}

/// Runs one input.
pub fn run(input: &[u8]) {
    RUNTIME.with_borrow(|runtime| {
        let kernel = machine();
        let (driver, _) = start(kernel.os(), NODE).expect("an empty machine");
        let outside = outside(&kernel);
        let routes = routes(&driver);
        for (tag, request) in messages::read(input).into_iter().take(MOST_CALLS) {
            let method = METHODS[usize::from(tag) % METHODS.len()];
            let answer = runtime.block_on(grpc::call(&routes, method, request, 64));
            if let Err(status) = answer {
                let code = status.code();
                // What is not a message at all is refused by tonic, with the code that gRPC has for it everywhere.
                let unreadable = status.message().starts_with("failed to decode Protobuf message");
                let wrong = matches!(code, Code::Unknown | Code::Internal | Code::DataLoss) && !unreadable;
                assert!(!wrong, "{method}: {status:?}");
                assert!(!status.message().is_empty(), "{method}: {code:?} without a message");
            }
        }
        assert_eq!(kernel.hazards(), Vec::<String>::new());
        assert_eq!(self::outside(&kernel), outside, "something was done outside of the driver's directories");
        let known = known(&driver);
        drop((routes, driver));
        kernel.kill();
        let (driver, damaged) = start(kernel.restart(), NODE).expect("it starts again");
        assert_eq!(
            (self::known(&driver), damaged),
            (known, 0),
            "what was acknowledged is there after a restart"
        );
    });
}

fn routes(driver: &Arc<Driver>) -> Routes {
    let mut routes = Routes::builder();
    add_node_services(driver, &mut routes);
    app::add_peer_services(driver, Arc::new(Unsigned), &mut routes);
    routes.routes()
}

/// Paths, and places of mounts, that are no business of the driver.
fn outside(kernel: &FakeKernel) -> BTreeSet<String> {
    let ours =
        |path: &String| [DATA_DIR, DIRECTORIES, KUBELET, "/dev/"].iter().any(|top| path.starts_with(top));
    let targets = kernel.mounts().into_iter().map(|mount| mount.target.display().to_string());
    targets.chain(kernel.tree("/")).filter(|path| !ours(path)).collect()
}

/// The ids of everything that is ready.
fn known(driver: &Driver) -> BTreeSet<String> {
    let store = driver.store();
    let volumes = store.volumes().into_iter().map(|volume| volume.id.to_string());
    let snapshots = store.snapshots().into_iter().map(|snapshot| snapshot.id.to_string());
    let groups = store.groups().into_iter().map(|group| group.id.to_string());
    volumes.chain(snapshots).chain(groups).collect()
}
