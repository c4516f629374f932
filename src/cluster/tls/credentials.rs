//! The certificates of this process, checked, as rustls wants them.

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};
use time::OffsetDateTime;

use super::certificate::{Details, Moment, Validity};
use super::error::TlsError;
use super::files::{self, Files, Stamp};
use super::trust::{PROVIDER, Trust, Usage};
use super::verifier::Verifier;
use super::wanted::Wanted;
use crate::cluster::identity::{PeerIdentity, PeerRole};

/// gRPC's protocol, as it is named in a handshake (RFC 7301, RFC 9113).
const HTTP2: &[u8] = b"h2";

/// A set of files that fits together.
#[derive(Debug)]
pub struct Credentials {
    pub identity: PeerIdentity,
    pub validity: Validity,
    /// Its certificate in the log, to compare with that of `hostloop certs show`.
    pub fingerprint: String,
    pub stamp: Stamp,
    /// For connections that come.
    pub server: Arc<ServerConfig>,
    trust: Arc<Trust>,
    certified: Arc<CertifiedKey>,
}

impl Credentials {
    /// Reads and checks those in `dir`.
    ///
    /// # Errors
    /// [`TlsError::Own`] where a file is missing or wrong, or the certificate is not one for this role of this driver.
    pub fn load(dir: &Path, driver: &str, role: PeerRole, now: OffsetDateTime) -> Result<Self, TlsError> {
        let files = Files::read(dir)?;
        let at = |name| files::path(dir, name);
        let trust = Trust::new(&files.ca).map_err(|why| TlsError::own(at(files::CA), why))?;
        if let Some(until) = trust.last_moment().filter(|until| *until < now) {
            return Err(TlsError::own(at(files::CA), format_args!("the CA expired at {}", Moment(until))));
        }
        let certified = CertifiedKey::from_der(files.chain, files.key, &PROVIDER);
        let certified = certified.map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                TlsError::own(at(files::KEY), "does not fit the certificate in tls.crt")
            }
            Error::InvalidCertificate(_) => {
                TlsError::own(at(files::CERTIFICATE), "the certificate cannot be read")
            }
            other => TlsError::own(at(files::KEY), format_args!("cannot be used: {other}")),
        })?;
        let trust = Arc::new(trust);
        let wrong = |why: String| TlsError::own(at(files::CERTIFICATE), why);
        let (identity, details) = own(&certified, &trust, driver, role, now).map_err(wrong)?;
        let fingerprint = certified.cert.first().map(super::certificate::fingerprint).unwrap_or_default();
        let certified = Arc::new(certified);
        let peers = Verifier {
            trust: Arc::clone(&trust),
            wanted: Wanted { driver: driver.to_owned(), role: None, node_id: None },
        };
        let server = server_config(Arc::clone(&certified), Arc::new(peers));
        let server = server.map_err(|error| wrong(error.to_string()))?;
        let validity = details.validity;
        let stamp = files.stamp;
        Ok(Credentials { identity, validity, fingerprint, stamp, server: Arc::new(server), trust, certified })
    }

    pub fn certified(&self) -> &CertifiedKey {
        &self.certified
    }

    /// Who may be at the other end, by these CAs.
    pub fn verifier(&self, wanted: Wanted) -> Verifier {
        Verifier { trust: Arc::clone(&self.trust), wanted }
    }

    /// For connections that this process makes.
    ///
    /// # Errors
    /// rustls'; there is none that the checks of [`load`](Self::load) would leave.
    pub fn client(&self, verifier: Arc<dyn ServerCertVerifier>) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&self.certified))));
        config.alpn_protocols = vec![HTTP2.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// A session is never resumed: a resumed one is not checked against the CAs and the time of today.
fn server_config(
    certified: Arc<CertifiedKey>,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Checks the own certificate as its peers will: a controller is a client only, a node is both.
fn own(
    certified: &CertifiedKey,
    trust: &Arc<Trust>,
    driver: &str,
    role: PeerRole,
    now: OffsetDateTime,
) -> Result<(PeerIdentity, Details), String> {
    let (certificate, intermediates) = certified.cert.split_first().ok_or("it contains no certificate")?;
    let details = Details::of(certificate).ok_or("the certificate cannot be read")?;
    let wanted = Wanted { driver: driver.to_owned(), role: Some(role), node_id: None };
    let verifier = Verifier { trust: Arc::clone(trust), wanted };
    let usages = match role {
        PeerRole::Controller => &[Usage::Client][..],
        PeerRole::Node => &[Usage::Client, Usage::Server],
    };
    for usage in usages {
        let refused = |refusal: super::error::Refusal| refusal.to_string();
        verifier.verify(certificate, intermediates, *usage, Moment(now)).map_err(refused)?;
    }
    let identity = verifier.identity(certificate).map_err(|refusal| refusal.to_string())?;
    Ok((identity, details))
}
