//! Certificates that are exchanged while they are in use, and the CAs that sign them.

use std::fs;
use std::time::Duration;

use hostloop::cluster::identity::{PeerIdentity, PeerRole};
use hostloop::cluster::tls::{Refusal, Tls, TlsError};
use hostloop::shutdown::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::log::listen;
use crate::pki::{DRIVER, Pki, controller, minutes, node};
use crate::tls::{LONG, handshake, replace};
use crate::wait::until;

#[tokio::test]
async fn renewed_certificates_are_used_without_a_restart() {
    let (pki, next) = (Pki::new(), Pki::new());
    let (lines, _listening) = listen();
    let (first, second) = (node(Some("first")), node(None));
    let server = pki.tls("server", &first);
    let old_client = pki.tls("old-client", &controller());
    let new_client = next.tls("new-client", &controller());
    let (trigger, shutdown) = Shutdown::new();
    let watching = tokio::spawn(server.clone().watch(shutdown));
    let (near, far) = handshake(&old_client, &server, "first").await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap());

    // A set that does not fit together: the old one stays, and works.
    let dir = pki.path("server");
    let data = fs::read_link(dir.join("..data")).unwrap();
    let stray = pki.issue("stray", &first, minutes(-5, 60));
    fs::remove_file(dir.join("tls.key")).unwrap();
    fs::copy(stray.join("tls.key"), dir.join("tls.key")).unwrap();
    until("the wrong key is noticed", async || lines.text().contains("ERROR")).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (near_again, far_again) = handshake(&old_client, &server, "first").await;
    assert!(near_again.is_ok() && far_again.is_ok());
    let text = lines.text();
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "said once: {text}");
    assert!(errors[0].contains("the old ones stay in use") && errors[0].contains("tls.key"), "{text}");

    // One that fits together and is another node's.
    pki.ca.issue(&node(Some("intruder")), minutes(-5, 60)).unwrap().write(&dir).unwrap();
    until("the intruder is noticed", async || lines.text().contains("\"intruder\"")).await;
    assert_eq!(server.identity(), first);
    let ended = server.expires();

    // Another CA's, by the switch of a link, as kubelet exchanges a Secret.
    next.ca.issue(&second, minutes(-5, 60)).unwrap().write(&dir).unwrap();
    assert_ne!(fs::read_link(dir.join("..data")).unwrap(), data);
    until("the new certificate is used", async || server.identity() == second).await;
    assert!(server.expires() < ended, "the new one is for minutes only");
    let (near_new, far_new) = handshake(&new_client, &server, "second").await;
    assert!(near_new.is_ok() && far_new.is_ok());
    let (_, far_old) = handshake(&old_client, &server, "second").await;
    assert!(
        matches!(far_old, Err(TlsError::RefusedByPeer(_) | TlsError::Refused(Refusal::UnknownCa))),
        "{far_old:?}"
    );

    let text = lines.text();
    let info = text.lines().find(|line| line.contains("renewed certificates are in use")).unwrap();
    assert!(info.contains("INFO") && info.contains("csi.dev/node\""), "{info}");

    // The connection from before goes on.
    near.write_all(b"still").await.unwrap();
    near.flush().await.unwrap();
    let mut buffer = [0; 5];
    far.read_exact(&mut buffer).await.unwrap();
    trigger.pull();
    tokio::time::timeout(LONG, watching).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_near_its_end_is_a_warning() {
    let pki = Pki::new();
    let (lines, _listening) = listen();
    for (name, validity, warned) in [
        ("early", minutes(-30, 70), false),
        ("late", minutes(-70, 30), true),
        ("soon", minutes(-70, 30), true),
    ] {
        let dir = pki.issue(name, &node(None), validity);
        let (trigger, shutdown) = Shutdown::new();
        trigger.pull();
        Tls::open(&dir, DRIVER, PeerRole::Node).unwrap().watch(shutdown).await;
        let text = lines.text();
        let line = text.lines().find(|line| line.contains(dir.to_str().unwrap()));
        assert_eq!(
            line.is_some_and(|line| line.contains("WARN") && line.contains("renew it")),
            warned,
            "{text}"
        );
    }
}

/// A CA is exchanged in three steps, and at each of them everybody can talk to everybody.
#[tokio::test]
async fn two_cas_in_one_file_are_a_rotation() {
    let (old, new) = (Pki::new(), Pki::new());
    let bundle = [&old, &new].map(|pki| fs::read_to_string(pki.path("ca/ca.crt")).unwrap()).concat();
    let with_both = |pki: &Pki, name: &str, identity: &PeerIdentity| {
        let dir = pki.issue(name, identity, minutes(-5, 60));
        replace(&dir, "ca.crt", &bundle);
        Tls::open(&dir, DRIVER, identity.role).unwrap()
    };
    let clients = [with_both(&old, "c", &controller()), with_both(&new, "c", &controller())];
    let servers = [with_both(&old, "n", &node(None)), with_both(&new, "n", &node(None))];
    for (client, server) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (near, far) = handshake(&clients[client], &servers[server], "x").await;
        assert!(near.is_ok() && far.is_ok(), "{client} {server}: {near:?} {far:?}");
    }
    // Who has not yet heard of the new CA refuses what it signed.
    let behind = old.tls("behind", &node(None));
    let (_, far) = handshake(&clients[1], &behind, "x").await;
    assert!(matches!(far, Err(TlsError::Refused(Refusal::UnknownCa))), "{far:?}");
}
