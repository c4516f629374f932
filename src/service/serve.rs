//! The driver's RPCs as they are declared: each is checked, makes one hop to the blocking pool, and is answered.

use std::sync::Arc;

use prost::bytes::Bytes;
use tonic::metadata::MetadataMap;
use tonic::service::RoutesBuilder;
use tonic::{Request, Status};

use super::declare::{self, Call, Declarations, Facts, Question, StreamCall, require};
use super::observe::{observe, observe_made, observe_recorded};
use super::permit::{NoPermits, Permits, grant};
use super::table::{Table, add_controller, add_node, add_peer, decode};
use super::{caller, each_of_controller, each_of_node, each_of_peer, run, run_in_turn, stream};
use crate::driver::Driver;
use crate::model::NodeKey;
use crate::wire::peer;

struct Served {
    node: Node,
    table: Table,
}

/// The driver, and what makes sure of the permits of its callers.
#[derive(Clone)]
struct Node {
    driver: Arc<Driver>,
    permits: Arc<dyn Permits>,
}

fn table(driver: &Arc<Driver>, permits: Arc<dyn Permits>) -> Arc<Table> {
    let node = Node { driver: Arc::clone(driver), permits };
    let mut served = Served { node, table: Table::default() };
    each_of_controller(&mut served);
    each_of_node(&mut served);
    each_of_peer(&mut served);
    Arc::new(served.table)
}

/// Adds CSI Identity and Node.
pub fn add_node_services(driver: &Arc<Driver>, routes: &mut RoutesBuilder) {
    add_node(&table(driver, Arc::new(NoPermits)), routes);
}

/// Adds CSI Controller, GroupController and SnapshotMetadata.
pub fn add_controller_services(driver: &Arc<Driver>, routes: &mut RoutesBuilder) {
    add_controller(&table(driver, Arc::new(NoPermits)), routes);
}

/// Adds what a node serves to the other processes of its cluster: to other nodes what these find permitted.
pub fn add_peer_services(driver: &Arc<Driver>, permits: Arc<dyn Permits>, routes: &mut RoutesBuilder) {
    let table = table(driver, permits);
    add_controller(&table, routes);
    add_peer(&table, routes);
}

/// Adds what people call who look at the cluster and mend it (`hostloop volumes`, `hostloop doctor`, `hostloop adopt`), and nothing else
/// of the protocol between processes. A process that can connect to the socket of a node can make and delete volumes already.
pub fn add_details_service(driver: &Arc<Driver>, routes: &mut RoutesBuilder) {
    let node = Node { driver: Arc::clone(driver), permits: Arc::new(NoPermits) };
    let mut served = Served { node, table: Table::default() };
    served.question::<peer::ListNodesRequest>();
    served.call::<peer::ListDetailsRequest>();
    served.call::<peer::ListFindingsRequest>();
    served.call::<peer::GetNodeReportRequest>();
    served.call::<peer::FixFindingRequest>();
    served.call::<peer::AdoptVolumeRequest>();
    add_peer(&Arc::new(served.table), routes);
}

impl Node {
    /// Decodes a call, and makes sure that its caller may have it done.
    fn take<Q: declare::Request>(&self, request: Request<Bytes>) -> Result<(MetadataMap, Q), Status> {
        let settings = self.driver.settings();
        require::<Q>(settings.attach)?;
        let (metadata, extensions, bytes) = request.into_parts();
        let request = observe(decode::<Q>(&bytes)?, &bytes);
        observe_recorded(&request, &self.driver);
        let caller: Option<&NodeKey> = extensions.get();
        request.permitted(&|permit| grant(self.permits.as_ref(), permit, &settings.node_id, caller))?;
        Ok((metadata, request))
    }
}

impl Declarations for Served {
    fn question<Q: Question>(&mut self) {
        let driver = Arc::clone(&self.node.driver);
        self.table.unary::<Q, _>(move |_| {
            if Q::TELLS_LIMITS && driver.is_ready() {
                // The answer waits for no disk. One that is silent is not asked.
                let driver = Arc::clone(&driver);
                tokio::task::spawn_blocking(move || driver.tell_limits());
            }
            let settings = driver.settings();
            let reply = Q::answer(&Facts {
                driver_name: &settings.driver_name,
                attach: settings.attach,
                ready: driver.is_ready(),
                node: Some(settings),
            });
            async { Ok(reply) }
        });
    }

    fn call<Q: Call>(&mut self) {
        let node = self.node.clone();
        self.table.unary::<Q, _>(move |request| answer::<Q>(node.clone(), request));
    }

    fn stream<Q: StreamCall>(&mut self) {
        let node = self.node.clone();
        self.table.stream::<Q, _>(move |request| {
            let node = node.clone();
            async move {
                let who = caller(&request);
                let (_, request) = node.take::<Q>(request)?;
                let reads = request.reads();
                stream::run(&node.driver, (&who, reads.as_ref()), request.check()?)
            }
        });
    }
}

async fn answer<Q: Call>(node: Node, request: Request<Bytes>) -> Result<Q::Reply, Status> {
    let (metadata, request) = node.take::<Q>(request)?;
    let driver = node.driver;
    observe_made(&request, driver.node_id());
    let work = request.check(&metadata)?;
    match Q::IN_TURN {
        true => run_in_turn(&driver, work).await,
        false => run(&driver, move |driver| work(driver)).await,
    }
}
