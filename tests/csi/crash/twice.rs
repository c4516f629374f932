//! A driver on the fake kernel serves, stops, and starts again.

use std::time::Instant;

use crate::harness::{Server, VOLUMES, machine, settings};
use crate::invariants::check_invariants;
use crate::requests::{Kind, Spec, delete, publish, stage, unpublish, unstage};

/// A volume goes through its life, twice, with a restart in between.
#[test]
fn the_server_serves_and_starts_again() {
    let (kernel, settings) = (machine(), settings());
    for kind in Kind::ALL {
        let spec = Spec::new(kind);
        let server = Server::start(&kernel, &settings);
        let id = server.call(spec.create("a")).unwrap().volume.unwrap().volume_id;
        server.call(stage(&id, spec.capability())).unwrap();
        server.call(publish(&id, spec.capability(), "pod")).unwrap();
        check_invariants(&kernel, &server);
        server.stop();
        let started = Instant::now();
        let server = Server::start(&kernel, &settings);
        println!("start: {:?}", started.elapsed());
        check_invariants(&kernel, &server);
        server.call(unpublish(&id, "pod")).unwrap();
        server.call(unstage(&id)).unwrap();
        server.call(delete(&id)).unwrap();
        check_invariants(&kernel, &server);
        kernel.kill();
        server.abandon();
        kernel.restart();
        assert!(kernel.tree(VOLUMES).is_empty() && kernel.loops().is_empty() && kernel.mounts().is_empty());
    }
}
