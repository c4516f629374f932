//! Handshakes: who is let in, and what is said of those who are not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostloop::cluster::identity::{PeerIdentity, PeerRole};
use hostloop::cluster::tls::{PeerStream, Refusal, Tls, TlsError};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, PublicKeyData, SanType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::pki::{DRIVER, Pki, careless_client, careless_server, connected, controller, minutes, node};

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(60);

type Stream = PeerStream<TcpStream>;
/// Whether it is refused for the right reason.
type Reason = fn(&Refusal) -> bool;

/// A handshake between two that follow the rules.
pub async fn handshake(
    client: &Tls,
    server: &Tls,
    node_id: &str,
) -> (Result<Stream, TlsError>, Result<Stream, TlsError>) {
    let (near, far) = connected().await;
    tokio::join!(client.connect(near, PeerRole::Node, node_id), server.accept(far))
}

/// An identity that somebody else made with this CA: other URIs, other uses.
fn odd(pki: &Pki, name: &str, uris: &[&str], usages: &[ExtendedKeyUsagePurpose]) -> PathBuf {
    let dir = pki.issue(name, &node(None), minutes(-5, 60));
    let ca_dir = pki.path("ca");
    let key_text = fs::read(ca_dir.join("ca.key")).unwrap();
    let ca_text = fs::read(ca_dir.join("ca.crt")).unwrap();
    let ca_key = KeyPair::try_from(pem::parse(key_text).unwrap().contents()).unwrap();
    let ca = pem::parse(ca_text).unwrap().into_contents();
    let issuer = rcgen::Issuer::from_ca_cert_der(&ca.into(), ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["node.example".to_owned()]).unwrap();
    for uri in uris {
        params.subject_alt_names.push(SanType::URI((*uri).try_into().unwrap()));
    }
    params.extended_key_usages = usages.to_vec();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    replace(&dir, "tls.crt", &pem_text("CERTIFICATE", certificate.der()));
    replace(&dir, "tls.key", &pem_text("PRIVATE KEY", key.serialized_der()));
    dir
}

fn pem_text(tag: &str, der: &[u8]) -> String {
    pem::encode(&pem::Pem::new(tag, der))
}

/// Puts a plain file in the place of the link.
pub fn replace(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    fs::remove_file(&path).unwrap();
    fs::write(path, text).unwrap();
}

fn both() -> [ExtendedKeyUsagePurpose; 2] {
    [ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth]
}

fn is_expired(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Expired(_))
}

#[tokio::test]
async fn peers_know_each_other_and_talk() {
    let pki = Pki::new();
    let controller_tls = pki.tls("controller", &controller());
    let (shared, one) = (pki.tls("shared", &node(None)), pki.tls("one", &node(Some("node-1"))));
    assert_eq!(one.identity(), node(Some("node-1")));
    for (client, server, node_id) in [
        (&controller_tls, &one, "node-1"),
        (&controller_tls, &shared, "node-9"),
        (&one, &shared, "x"),
        (&shared, &one, "node-1"),
    ] {
        let (near, far) = handshake(client, server, node_id).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        assert_eq!((near.identity(), far.identity()), (&server.identity(), &client.identity()));
        near.write_all(b"over there").await.unwrap();
        near.flush().await.unwrap();
        let mut buffer = [0; 10];
        far.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"over there");
    }
}

/// The directories of identities that nobody takes, and what is wrong with each.
fn wrong_identities(pki: &Pki, other: &Pki) -> Vec<(PathBuf, Reason)> {
    let other_driver = PeerIdentity { driver: "other.csi.dev".to_owned(), ..node(None) };
    let ours = format!("spiffe://{DRIVER}/node");
    let second = format!("spiffe://{DRIVER}/controller");
    vec![
        (pki.issue("expired", &node(None), minutes(-60, -30)), is_expired),
        (pki.issue("early", &node(None), minutes(30, 60)), |r| matches!(r, Refusal::NotYetValid(_))),
        (other.issue("stranger", &node(None), minutes(-5, 60)), |r| *r == Refusal::UnknownCa),
        (
            pki.issue("driver", &other_driver, minutes(-5, 60)),
            |r| matches!(r, Refusal::OtherDriver { wanted, found } if wanted == DRIVER && found == "other.csi.dev"),
        ),
        (odd(pki, "nobody", &["https://example.org/node"], &both()), |r| *r == Refusal::NoIdentity),
        (odd(pki, "double", &[&ours, &second], &both()), |r| matches!(r, Refusal::SeveralIdentities { .. })),
        (odd(pki, "mail", &[&ours], &[ExtendedKeyUsagePurpose::EmailProtection]), |r| {
            matches!(r, Refusal::Usage(_))
        }),
    ]
}

#[tokio::test]
async fn a_server_refuses_wrong_clients() {
    let (pki, other) = (Pki::new(), Pki::new());
    let server = pki.tls("server", &node(Some("node-1")));
    let mut cases: Vec<(Option<PathBuf>, Reason)> =
        wrong_identities(&pki, &other).into_iter().map(|(dir, wanted)| (Some(dir), wanted)).collect();
    cases.push((None, |refusal| *refusal == Refusal::NoCertificate));
    for (dir, wanted) in cases {
        let (near, far) = connected().await;
        let (read, accepted) = tokio::join!(careless_client(dir.clone(), near), server.accept(far));
        match accepted {
            Err(TlsError::Refused(refusal)) => assert!(wanted(&refusal), "{dir:?}: {refusal:?}"),
            other => panic!("{dir:?}: {other:?}"),
        }
        let alert = read.unwrap_err().to_string();
        assert!(alert.contains("fatal alert"), "{dir:?}: {alert}");
    }
}

#[tokio::test]
async fn a_client_refuses_wrong_servers() {
    let (pki, other) = (Pki::new(), Pki::new());
    let client = pki.tls("client", &controller());
    let mut cases = wrong_identities(&pki, &other);
    cases.push((
        pki.issue("node-2", &node(Some("node-2")), minutes(-5, 60)),
        |r| matches!(r, Refusal::OtherNode { wanted, found } if wanted == "node-1" && found == "node-2"),
    ));
    cases.push((pki.issue("controller", &controller(), minutes(-5, 60)), |r| *r == Refusal::Usage("server")));
    let both_uses = odd(&pki, "c", &[&controller().to_string()], &both());
    cases.push((both_uses, |r| {
        *r == Refusal::OtherRole { wanted: PeerRole::Node, found: PeerRole::Controller }
    }));
    for (dir, wanted) in cases {
        let stream = careless_server(&dir).await;
        match client.connect(stream, PeerRole::Node, "node-1").await {
            Err(error @ TlsError::Refused(_)) => {
                assert!(error.to_string().starts_with("the peer is refused: the certificate "), "{error}");
                let TlsError::Refused(refusal) = error else { unreachable!() };
                assert!(wanted(&refusal), "{dir:?}: {refusal:?}");
            }
            other => panic!("{dir:?}: {other:?}"),
        }
    }
}

/// In TLS 1.3 a client is done before the server has seen its certificate: the first read has to tell it.
#[tokio::test]
async fn a_refused_client_learns_it_from_its_first_read() {
    let (pki, other) = (Pki::new(), Pki::new());
    let server = pki.tls("server", &node(None));
    let dir = other.issue("client", &controller(), minutes(-5, 60));
    // It trusts both CAs, and the server one.
    let bundle = [dir.join("ca.crt"), pki.path("ca/ca.crt")].map(|path| fs::read_to_string(path).unwrap());
    replace(&dir, "ca.crt", &bundle.concat());
    let client = Tls::open(&dir, DRIVER, PeerRole::Controller).unwrap();
    // It goes on sending what the server does not want to read, and that must not end in a reset before the alert.
    let (near, far) = connected().await;
    let talk = async {
        let mut near = client.connect(near, PeerRole::Node, "any").await.unwrap();
        near.write_all(&[0; 64 << 10]).await.unwrap();
        near.flush().await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        near.write_all(b"more").await.unwrap();
        near.flush().await.unwrap();
        near.read(&mut [0; 1]).await.unwrap_err()
    };
    let (error, far) = tokio::join!(talk, server.accept(far));
    assert!(matches!(far, Err(TlsError::Refused(Refusal::UnknownCa))), "{far:?}");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("UnknownCA"), "{error}");
}

#[tokio::test]
async fn bytes_without_tls_are_an_error() {
    let pki = Pki::new();
    let tls = pki.tls("node", &node(None));
    for bytes in [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xff", b""]
    {
        let (mut near, far) = connected().await;
        near.write_all(bytes).await.unwrap();
        near.shutdown().await.unwrap();
        let accepted = tls.accept(far).await;
        assert!(matches!(accepted, Err(TlsError::Handshake(_))), "{accepted:?}");
    }
    let (near, far) = connected().await;
    drop(far);
    let connected = tls.connect(near, PeerRole::Node, "x").await;
    assert!(matches!(connected, Err(TlsError::Handshake(_))), "{connected:?}");
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_left() {
    let pki = Pki::new();
    let tls = pki.tls("node", &node(None));
    let ((_silent, far), (near, _other)) = (connected().await, connected().await);
    let both = tokio::time::timeout(LONG, async {
        tokio::join!(tls.accept(far), tls.connect(near, PeerRole::Node, "x"))
    });
    let (accepted, connected) = both.await.unwrap();
    assert!(matches!(accepted, Err(TlsError::Timeout(_))), "{accepted:?}");
    assert!(matches!(connected, Err(TlsError::Timeout(_))), "{connected:?}");
}

/// What `open` says of a directory, with the file that it names.
fn refused(dir: &Path, role: PeerRole) -> (String, String) {
    match Tls::open(dir, DRIVER, role) {
        Err(error @ TlsError::Own { .. }) => {
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{text}");
            let TlsError::Own { path, problem } = error else { unreachable!() };
            assert!(text.starts_with(path.to_str().unwrap()), "{text}");
            (path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned(), problem)
        }
        other => panic!("{}: {other:?}", dir.display()),
    }
}

#[tokio::test]
async fn a_wrong_own_certificate_stops_the_start() {
    let (pki, other) = (Pki::new(), Pki::new());
    for (dir, _) in wrong_identities(&pki, &other) {
        // The stranger's own files fit together: it is one of another cluster.
        if dir.starts_with(other.dir.path()) {
            replace(&dir, "ca.crt", &fs::read_to_string(pki.path("ca/ca.crt")).unwrap());
        }
        let (file, problem) = refused(&dir, PeerRole::Node);
        assert_eq!(file, "tls.crt", "{problem}");
    }
    let good = pki.issue("good", &node(None), minutes(-5, 60));
    let (_, problem) = refused(&good, PeerRole::Controller);
    assert_eq!(problem, "the certificate is of a node and not of a controller");
    let client_only = odd(&pki, "c", &[&node(None).to_string()], &[ExtendedKeyUsagePurpose::ClientAuth]);
    assert!(refused(&client_only, PeerRole::Node).1.contains("server authentication"));

    let key = |name: &str| fs::read_to_string(pki.path(name).join("tls.key")).unwrap();
    let certificate = fs::read_to_string(good.join("tls.crt")).unwrap();
    for (file, text, hint) in [
        ("tls.key", key("double"), "does not fit the certificate in tls.crt"),
        ("tls.key", String::new(), "no private key"),
        ("tls.key", pem_text("PRIVATE KEY", b"noise"), "cannot be used"),
        ("tls.crt", key("good"), "no certificate"),
        ("tls.crt", pem_text("CERTIFICATE", b"noise"), "cannot be read"),
        ("ca.crt", certificate, "is not a CA certificate"),
        ("ca.crt", pem_text("CERTIFICATE", b"noise"), "cannot be read"),
        ("ca.crt", "noise".to_owned(), "no certificate"),
    ] {
        let dir = pki.issue("damaged", &node(None), minutes(-5, 60));
        replace(&dir, file, &text);
        let (named, problem) = refused(&dir, PeerRole::Node);
        assert!(named == file && problem.contains(hint), "{named}: {problem}");
        fs::remove_file(dir.join(file)).unwrap();
        let (named, problem) = refused(&dir, PeerRole::Node);
        assert!(named == file && problem.contains("No such file"), "{named}: {problem}");
    }
}

/// The same key in the form of RFC 5915, as `openssl ecparam -genkey` and cert-manager (encoding PKCS1) write it.
fn sec1(key: &KeyPair) -> Vec<u8> {
    let pkcs8 = key.serialized_der();
    let start = pkcs8.windows(3).position(|w| w == [0x01, 0x04, 0x20]).unwrap() + 3;
    let private = &pkcs8[start..start + 32];
    let public = key.der_bytes();
    let curve = [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    let bits = [&[0xa1, 0x44, 0x03, 0x42, 0x00], public].concat();
    let inner = [&[0x02, 0x01, 0x01, 0x04, 0x20], private, &curve, &bits].concat();
    [&[0x30, u8::try_from(inner.len()).unwrap()], inner.as_slice()].concat()
}

#[tokio::test]
async fn keys_in_pkcs8_and_in_sec1_both_load() {
    let pki = Pki::new();
    let dir = pki.issue("node", &node(None), minutes(-5, 60));
    let text = fs::read_to_string(dir.join("tls.key")).unwrap();
    assert!(text.starts_with("-----BEGIN PRIVATE KEY-----\n"), "PKCS#8");
    let server = Tls::open(&dir, DRIVER, PeerRole::Node).unwrap();

    let key = KeyPair::try_from(pem::parse(text).unwrap().contents()).unwrap();
    replace(&dir, "tls.key", &pem_text("EC PRIVATE KEY", &sec1(&key)));
    let client = Tls::open(&dir, DRIVER, PeerRole::Node).unwrap();
    let (near, far) = handshake(&client, &server, "x").await;
    assert_eq!((near.unwrap().identity(), far.unwrap().identity()), (&node(None), &node(None)));
}
