//! The roles of a cluster: a node, and a controller with its peers.

use super::*;

fn controller(flags: &[&str]) -> Result<ControllerSettings, String> {
    match serve(&[&["--role", "controller"], flags].concat())?.role {
        Role::Controller(settings) => Ok(settings),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_has_volumes_and_a_port_for_its_controllers() {
    let port =
        |flags: &[&str]| match serve(&[&["--role=node", "--data-dir=/d"], flags].concat()).unwrap().role {
            Role::Node(settings, port) => {
                assert_eq!((settings.node_id.as_str(), settings.data_dir.to_str()), ("host-1", Some("/d")));
                port
            }
            other => panic!("{other:?}"),
        };
    let default = PeerPort { listen: "0.0.0.0:9443".parse().unwrap(), tls_dir: "/etc/hostloop/tls".into() };
    assert_eq!(port(&[]), default);
    let other = PeerPort { listen: "[::1]:1".parse().unwrap(), tls_dir: "/t".into() };
    assert_eq!(port(&["--peer-listen", "[::1]:1", "--tls-dir", "/t/"]), other);
}

#[test]
fn a_controller_knows_its_nodes_or_their_service() {
    let peers = ["--peer", "a=10.0.0.1:9443; b=node-b.example:1", "--peer=c=[fd00::1]:2;"];
    let settings = controller(&[&peers[..], &["--forget-node=x;y", "--forget-node=z", "--attach"]].concat());
    let settings = settings.unwrap();
    let peer = |node_id: &str, address: &str| StaticPeer {
        node_id: node_id.to_owned(),
        address: address.to_owned(),
    };
    let expected = [peer("a", "10.0.0.1:9443"), peer("b", "node-b.example:1"), peer("c", "[fd00::1]:2")];
    assert_eq!(settings.discovery, Discovery::Static(expected.to_vec()));
    assert_eq!(settings.forget_nodes.iter().map(String::as_str).collect::<Vec<_>>(), ["x", "y", "z"]);
    assert!(settings.attach && settings.driver_name == "hostloop.csi.dev");
    let service = Discovery::Service { namespace: "hostloop".to_owned(), name: "hostloop-node".to_owned() };
    assert_eq!(controller(&["--peer-service", "hostloop/hostloop-node"]).unwrap().discovery, service);
}

#[test]
fn a_flag_of_another_role_stops_the_start() {
    const PEERS: &str = "--peer=a=h:1";
    let cases: &[(&[&str], &str, &str)] = &[
        (&["--role=controller", PEERS, "--data-dir=/d"], "--data-dir (HOSTLOOP_DATA_DIR)", "all and node"),
        (&["--role=controller", PEERS, "--pool=a=/a"], "--pool (HOSTLOOP_POOLS)", "all and node"),
        (&["--role=controller", PEERS, "--node-id=a"], "--node-id (NODE_ID)", "all and node"),
        (&["--role=controller", PEERS, "--reserve=1Gi"], "--reserve", "all and node"),
        (&["--role=controller", PEERS, "--overcommit=1.0"], "--overcommit", "all and node"),
        (&["--role=controller", PEERS, "--max-volume-size=1Gi"], "--max-volume-size", "all and node"),
        (&["--role=controller", PEERS, "--max-volumes-per-node=1"], "--max-volumes-per-node", "all and node"),
        (&["--role=controller", PEERS, "--kubelet-dir=/k"], "--kubelet-dir", "all and node"),
        (&["--role=controller", PEERS, "--quota-ids=1-2"], "--quota-ids", "all and node"),
        (&["--role=controller", PEERS, "--peer-listen=[::]:1"], "--peer-listen", "node only"),
        (&["--role=node", PEERS], "--peer (HOSTLOOP_PEERS)", "controller only"),
        (&["--role=node", "--peer-service=a/b"], "--peer-service (HOSTLOOP_PEER_SERVICE)", "controller only"),
        (&["--forget-node=a"], "--forget-node (HOSTLOOP_FORGET_NODES)", "controller only"),
        (&["--move"], "--move (HOSTLOOP_MOVE)", "controller only"),
        (&["--events"], "--events (HOSTLOOP_EVENTS)", "controller only"),
        (&["--move-limits=all=1"], "--move-limits (HOSTLOOP_MOVE_LIMITS)", "controller only"),
        (&["--inspect-listen=127.0.0.1:1"], "--inspect-listen (HOSTLOOP_INSPECT_LISTEN)", "controller only"),
        (&["--inspect-fix"], "--inspect-fix (HOSTLOOP_INSPECT_FIX)", "controller only"),
        (&["--tls-dir=/t"], "--tls-dir (HOSTLOOP_TLS_DIR)", "node and controller only"),
        (&["--peer-listen=[::]:1"], "--peer-listen (HOSTLOOP_PEER_LISTEN)", "node only"),
    ];
    for (flags, flag, roles) in cases {
        let line = serve(flags).expect_err(&format!("{flags:?}"));
        assert!(line.starts_with(flag) && line.contains(roles) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn an_empty_flag_is_not_given() {
    let flags = ["--peer=a=h:1", "--anchor-dir=", "--kubelet-dir=", "--pool=", "--directories=false"];
    let inline = ["--inline-max-size=", "--inline-pools=", "--inline-backends=", "--quota-ids="];
    let limits = ["--max-copies=", "--max-streams=", "--stream-rate=", "--move-limits=", "--inspect-listen="];
    controller(&[&flags[..], &inline[..], &limits[..]].concat()).unwrap();
}

#[test]
fn peers_that_are_wrong_are_refused() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "--peer (HOSTLOOP_PEERS): a controller needs nodes"),
        (&["--peer=a=h:1", "--peer-service=a/b"], "--peer-service"),
        (&["--peer=a"], "NODE_ID=HOST:PORT"),
        (&["--peer=a b=h:1"], "topology value"),
        (&["--peer=a=h"], "HOST:PORT"),
        (&["--peer=a=h:0"], "HOST:PORT"),
        (&["--peer=a=h:65536"], "HOST:PORT"),
        (&["--peer=a=:1"], "HOST:PORT"),
        (&["--peer=a=http://h:1"], "HOST:PORT"),
        (&["--peer=a=fd00::1:1"], "HOST:PORT"),
        (&["--peer=a=h:1;a=i:2"], "named twice"),
        (&["--peer-service=hostloop"], "NAMESPACE/NAME"),
        (&["--peer-service=a/b/c"], "NAMESPACE/NAME"),
        (&["--peer-service=a/B"], "NAMESPACE/NAME"),
        (&["--peer=a=h:1", "--forget-node=a b"], "--forget-node"),
        (&["--peer=a=h:1", "--move"], "--move (HOSTLOOP_MOVE)"),
        (&["--peer=a=h:1", "--events"], "--events (HOSTLOOP_EVENTS)"),
        (&["--peer-service=a/b", "--move-limits=all=1"], "it works with --move only"),
        (&["--peer-service=a/b", "--move", "--move-limits=al=1"], "--move-limits"),
        (&["--peer=a=h:1", "--inspect-fix"], "it works with --inspect-listen only"),
        (&["--peer=a=h:1", "--inspect-listen=0.0.0.0:9811"], "can be reached from outside"),
        (&["--peer=a=h:1", "--inspect-listen=localhost"], "127.0.0.1:9811"),
        (&["--peer=a=h:1", "--tls-dir=tls"], "--tls-dir (HOSTLOOP_TLS_DIR)"),
    ];
    for (flags, hint) in cases {
        let line = controller(flags).expect_err(&format!("{flags:?}"));
        assert!(line.contains(hint) && !line.contains('\n'), "{line}");
    }
    let line = serve(&["--role=node", "--peer-listen=localhost:1"]).unwrap_err();
    assert!(line.starts_with("--peer-listen (HOSTLOOP_PEER_LISTEN): "), "{line}");
}
