//! A CA with the identities of a test, and peers that do not play by the rules.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop::cluster::certs::Authority;
use hostloop::cluster::identity::{PeerIdentity, PeerRole};
use hostloop::cluster::tls::Tls;
use hostloop::cluster::tls::certificate::Validity;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use time::{Duration, OffsetDateTime};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The driver of the tests.
pub const DRIVER: &str = "hostloop.csi.dev";

/// From and up to so many minutes from now.
pub fn minutes(from: i64, until: i64) -> Validity {
    let now = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap();
    Validity { from: now + Duration::minutes(from), until: now + Duration::minutes(until) }
}

pub fn controller() -> PeerIdentity {
    PeerIdentity { driver: DRIVER.to_owned(), role: PeerRole::Controller, node_id: None }
}

pub fn node(id: Option<&str>) -> PeerIdentity {
    PeerIdentity { driver: DRIVER.to_owned(), role: PeerRole::Node, node_id: id.map(str::to_owned) }
}

/// A CA in a directory of its own.
pub struct Pki {
    pub dir: tempfile::TempDir,
    pub ca: Authority,
}

impl Pki {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::create(&dir.path().join("ca"), DRIVER, minutes(-60 * 24, 60 * 24 * 365)).unwrap();
        Pki { dir, ca }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes an identity in the directory `name`.
    pub fn issue(&self, name: &str, identity: &PeerIdentity, validity: Validity) -> PathBuf {
        let dir = self.path(name);
        self.ca.issue(identity, validity).unwrap().write(&dir).unwrap();
        dir
    }

    /// An identity that is good now.
    pub fn tls(&self, name: &str, identity: &PeerIdentity) -> Tls {
        let dir = self.issue(name, identity, minutes(-5, 60 * 24));
        Tls::open(&dir, &identity.driver, identity.role).unwrap()
    }
}

fn chain(dir: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(dir.join("tls.crt")).unwrap().map(Result::unwrap).collect()
}

fn key(dir: &Path) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(dir.join("tls.key")).unwrap()
}

/// Takes every certificate.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A server that shows what lies in `dir` and takes everybody. It ends with its connection.
pub async fn careless_server(dir: &Path) -> TcpStream {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain(dir), key(dir))
        .unwrap();
    let (client, server) = connected().await;
    tokio::spawn(TlsAcceptor::from(Arc::new(config)).accept(server));
    client
}

/// A client that shows what lies in `dir`, or nothing, and takes every server. Returns what it reads first.
pub async fn careless_client(dir: Option<PathBuf>, stream: TcpStream) -> io::Result<usize> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    let config = match dir {
        Some(dir) => config.with_client_auth_cert(chain(&dir), key(&dir)).unwrap(),
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("anything").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 16]).await
}

/// Both ends of a connection over the loopback device.
pub async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, server) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (client.unwrap(), server.unwrap().0)
}
