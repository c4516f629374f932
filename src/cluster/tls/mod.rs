//! Mutual TLS between the processes of a cluster: TLS 1.3 only. Both sides show a certificate, whose identity says who
//! they are and what they may do. Names and addresses say nothing, because pods change theirs.
//!
//! Start reading at [`Tls`]. A handshake asks `verifier.rs`, which asks `trust.rs` (the chain, by webpki) and `wanted.rs`
//! (the identity).

pub mod certificate;
mod credentials;
mod error;
pub(in crate::cluster) mod files;
mod signature;
mod stream;
pub(in crate::cluster) mod trust;
mod verifier;
mod wanted;
mod watch;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, ServerName};
use time::OffsetDateTime;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use self::credentials::Credentials;
use self::verifier::Verifier;
use self::wanted::Wanted;
use super::identity::{PeerIdentity, PeerRole};
use crate::shutdown::Shutdown;

pub use self::error::{Refusal, TlsError};
pub use self::signature::Signature;
pub use self::stream::PeerStream;

/// How long a handshake may take. It is two round trips and some signatures; a peer that needs longer has stopped.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a peer that is refused may take to hear of it.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes connections secure, with the certificates of a directory that are the newest. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    driver: String,
    role: PeerRole,
    current: RwLock<Arc<Credentials>>,
}

impl Tls {
    /// Reads `ca.crt`, `tls.crt` and `tls.key` in `dir`: the identity of this process, which is to have this role of
    /// the driver with this CSI plugin name. Reads files; call it before the runtime has something to do.
    ///
    /// # Errors
    /// [`TlsError::Own`], one line that names the file: it is missing or damaged; the own certificate is expired, not
    /// valid yet, of another driver or role, signed by no CA of `ca.crt`, or does not fit the key.
    pub fn open(dir: &Path, driver_name: &str, role: PeerRole) -> Result<Tls, TlsError> {
        let current = Credentials::load(dir, driver_name, role, OffsetDateTime::now_utc())?;
        let (dir, driver) = (dir.to_owned(), driver_name.to_owned());
        Ok(Tls(Arc::new(Inner { dir, driver, role, current: RwLock::new(Arc::new(current)) })))
    }

    /// Who this process is by the certificate in use. A node that has one with a node id must have that id.
    pub fn identity(&self) -> PeerIdentity {
        self.current().identity.clone()
    }

    /// The last moment of the certificate in use (RFC 5280, notAfter).
    pub fn expires(&self) -> SystemTime {
        self.current().validity.until.into()
    }

    /// Takes renewed files over up to `shutdown`: new connections use them, those that stand go on. Where they are
    /// wrong, or of another node, the old ones stay in use, and the log has an error. Warns when less than a third of the certificate's
    /// life is left.
    pub async fn watch(self, shutdown: Shutdown) {
        watch::watch(self, shutdown).await;
    }

    /// The server's side of a handshake. Takes controllers and nodes of the same driver.
    ///
    /// # Errors
    /// [`TlsError`] where the peer is refused, hangs or goes away; never one about the own files.
    pub async fn accept<IO>(&self, io: IO) -> Result<PeerStream<IO>, TlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let current = self.current();
        let accept = TlsAcceptor::from(Arc::clone(&current.server)).accept(io).into_fallible();
        let stream = match timeout(HANDSHAKE_TIMEOUT, accept).await.map_err(too_long)? {
            Ok(stream) => stream,
            Err((error, io)) => {
                say_goodbye(io).await;
                return Err(TlsError::of_handshake(error));
            }
        };
        let verifier = current.verifier(self.wanted(None, None));
        PeerStream::identified(TlsStream::from(stream), &verifier)
    }

    /// The client's side of a handshake with a peer of this role, for a node also with this CSI node id. A node whose
    /// certificate has no node id is taken: ask it who it is (Peer.Hello).
    ///
    /// A peer that refuses this process is known by the first read only ([`std::io::ErrorKind::PermissionDenied`]): in
    /// TLS 1.3 the client's side is done before the server has seen its certificate.
    ///
    /// # Errors
    /// [`TlsError`] where the peer is another one, hangs or goes away.
    pub async fn connect<IO>(
        &self,
        io: IO,
        expected_role: PeerRole,
        node_id: impl Into<Option<&str>>,
    ) -> Result<PeerStream<IO>, TlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let current = self.current();
        let verifier = Arc::new(current.verifier(self.wanted(Some(expected_role), node_id.into())));
        let config = current.client(Arc::clone(&verifier) as _);
        let config = config.map_err(|error| TlsError::own(&self.0.dir, error))?;
        // It is neither sent nor compared.
        let nobody = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
        let connect = TlsConnector::from(Arc::new(config)).connect(nobody, io);
        let stream = timeout(HANDSHAKE_TIMEOUT, connect).await.map_err(too_long)?;
        let stream = stream.map_err(TlsError::of_handshake)?;
        PeerStream::identified(TlsStream::from(stream), &verifier)
    }

    fn wanted(&self, role: Option<PeerRole>, node_id: Option<&str>) -> Wanted {
        Wanted { driver: self.0.driver.clone(), role, node_id: node_id.map(str::to_owned) }
    }

    fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, new: Credentials) {
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
    }
}

/// Lets a peer that is refused read its alert: a socket that is closed before all was read is reset (RFC 1122,
/// 4.2.2.13), and a peer that is still sending sees the reset only.
async fn say_goodbye<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    let goodbye = async {
        io.shutdown().await?;
        let mut rest = [0; 1024];
        while io.read(&mut rest).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    // How it ends does not matter: the peer is refused already.
    let _ = timeout(GOODBYE_TIMEOUT, goodbye).await;
}

fn too_long(_: tokio::time::error::Elapsed) -> TlsError {
    TlsError::Timeout(HANDSHAKE_TIMEOUT)
}

impl<IO> PeerStream<IO> {
    /// The stream of a handshake that went well, with the identity that was let in.
    fn identified(stream: TlsStream<IO>, verifier: &Verifier) -> Result<Self, TlsError> {
        let certificates: Option<&[CertificateDer<'_>]> = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(<[_]>::first);
        let certificate = certificate.ok_or(TlsError::Refused(Refusal::NoCertificate))?;
        let identity = verifier.identity(certificate).map_err(TlsError::Refused)?;
        Ok(PeerStream::new(stream, identity))
    }
}
