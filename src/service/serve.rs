//! The driver's RPCs as they are declared: each is checked, makes one hop to the blocking pool, and is answered.

use std::sync::Arc;

use prost::bytes::Bytes;
use tonic::service::RoutesBuilder;
use tonic::{Request, Status};

use super::declare::{Call, Declarations, Facts, Question, StreamCall, require};
use super::observe::{observe, observe_made};
use super::table::{Table, add_controller, add_node, decode};
use super::{caller, each_of_controller, each_of_node, run, run_in_turn, stream};
use crate::driver::Driver;

struct Served {
    driver: Arc<Driver>,
    table: Table,
}

fn table(driver: &Arc<Driver>) -> Arc<Table> {
    let mut served = Served { driver: Arc::clone(driver), table: Table::default() };
    each_of_controller(&mut served);
    each_of_node(&mut served);
    Arc::new(served.table)
}

/// Adds CSI Identity and Node.
pub fn add_node_services(driver: &Arc<Driver>, routes: &mut RoutesBuilder) {
    add_node(&table(driver), routes);
}

/// Adds CSI Controller, GroupController and SnapshotMetadata.
pub fn add_controller_services(driver: &Arc<Driver>, routes: &mut RoutesBuilder) {
    add_controller(&table(driver), routes);
}

impl Declarations for Served {
    fn question<Q: Question>(&mut self) {
        let driver = Arc::clone(&self.driver);
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
        let driver = Arc::clone(&self.driver);
        self.table.unary::<Q, _>(move |request| answer::<Q>(Arc::clone(&driver), request));
    }

    fn stream<Q: StreamCall>(&mut self) {
        let driver = Arc::clone(&self.driver);
        self.table.stream::<Q, _>(move |request| {
            let driver = Arc::clone(&driver);
            async move {
                require::<Q>(driver.settings().attach)?;
                let who = caller(&request);
                let bytes = request.into_inner();
                let work = observe(decode::<Q>(&bytes)?, &bytes).check()?;
                stream::run(&driver, &who, std::convert::identity, work)
            }
        });
    }
}

async fn answer<Q: Call>(driver: Arc<Driver>, request: Request<Bytes>) -> Result<Q::Reply, Status> {
    require::<Q>(driver.settings().attach)?;
    let (metadata, _, bytes) = request.into_parts();
    let request = observe(decode::<Q>(&bytes)?, &bytes);
    observe_made(&request, driver.node_id());
    let work = request.check(&metadata)?;
    match Q::IN_TURN {
        true => run_in_turn(&driver, work).await,
        false => run(&driver, move |driver| work(driver)).await,
    }
}
