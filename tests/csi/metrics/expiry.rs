//! The end of the certificate that peers are shown, as the metrics tell it.

use std::net::{Ipv4Addr, SocketAddr};

use hostloop::cluster::certs::Authority;
use hostloop::cluster::identity::{PeerIdentity, PeerRole};
use hostloop::cluster::tls::certificate::Validity;
use hostloop::config::{ControllerSettings, Discovery, OperationConfig, PeerPort, Role, StaticPeer};
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::harness::{NODE, Server, machine, settings};
use crate::metrics::scrape::{Samples, address, get, scrape, watched};
use crate::wait::until;

const DRIVER: &str = "hostloop.csi.dev";
const EXPIRY: &str = "hostloop_certificate_expiry_timestamp_seconds";

/// A process of a cluster with a certificate of a CA of its own.
pub struct Certified {
    ca: Authority,
    dir: TempDir,
    role: PeerRole,
}

impl Certified {
    pub fn new(role: PeerRole) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::create(&dir.path().join("ca"), DRIVER, days(3000)).unwrap();
        let certified = Certified { ca, dir, role };
        certified.issue(90);
        certified
    }

    /// Gives it a certificate for so many days; returns its last second since the epoch.
    fn issue(&self, length: i64) -> f64 {
        let validity = days(length);
        let identity = PeerIdentity { driver: DRIVER.to_owned(), role: self.role, node_id: None };
        self.ca.issue(&identity, validity).unwrap().write(&self.dir.path().join("tls")).unwrap();
        validity.until.unix_timestamp() as f64
    }

    /// Runs it while `look` does, which has the address of its metrics.
    pub fn serve<T>(&self, look: impl FnOnce(&Server, SocketAddr) -> T) -> T {
        let tls_dir = self.dir.path().join("tls");
        let role = match self.role {
            PeerRole::Node => {
                let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                Role::Node(settings(), PeerPort { listen, tls_dir })
            }
            PeerRole::Controller => {
                let peer = StaticPeer { node_id: NODE.to_owned(), address: "127.0.0.1:1".to_owned() };
                let discovery = Discovery::Static(vec![peer]);
                let (driver_name, forget_nodes) = (DRIVER.to_owned(), [].into());
                let attach = false;
                Role::Controller(ControllerSettings {
                    driver_name,
                    attach,
                    tls_dir,
                    discovery,
                    inspect_listen: None,
                    inspect_fix: false,
                    forget_nodes,
                    moves: None,
                    move_limits: Default::default(),
                    events: None,
                })
            }
        };
        let address = address();
        let operation = OperationConfig { metrics_listen: Some(address), ..OperationConfig::default() };
        let server = Server::try_start_as(machine().os(), role, operation).expect("it starts");
        let seen = look(&server, address);
        server.stop();
        seen
    }
}

/// From yesterday on.
fn days(length: i64) -> Validity {
    let from = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap() - time::Duration::DAY;
    Validity { from, until: from + time::Duration::days(length) }
}

#[test]
fn the_end_of_the_certificate_is_told_after_a_renewal() {
    for role in [PeerRole::Node, PeerRole::Controller] {
        let certified = Certified::new(role);
        let first = certified.issue(60);
        certified.serve(|server, address| {
            assert_eq!(scrape(server, address).get(EXPIRY), first, "{role:?}");
            let second = certified.issue(120);
            server.block_on(until("the new certificate is told of", async || {
                let now = Samples::of(&get(address, "/metrics").await.body).get(EXPIRY);
                assert!(now == first || now == second, "{role:?}: {now}");
                now == second
            }));
        });
    }
}

#[test]
fn a_driver_without_peers_has_no_certificate() {
    let (kernel, address) = (machine(), address());
    let server = watched(kernel.os(), &settings(), address);
    let samples = scrape(&server, address);
    assert!(!samples.0.contains_key(EXPIRY) && samples.0.contains_key("hostloop_ready"));
    server.stop();
}
