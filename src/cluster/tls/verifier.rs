//! What rustls asks during a handshake: the chain as webpki sees it, and then the identity in the place of a server
//! name. Nodes are known by their identities, and addresses change hands.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme};

use std::sync::Arc;

use super::certificate::{Details, Moment};
use super::error::Refusal;
use super::trust::{PROVIDER, Trust, Usage};
use super::wanted::Wanted;
use crate::cluster::identity::PeerIdentity;

/// Lets those in who are wanted.
#[derive(Debug)]
pub struct Verifier {
    pub trust: Arc<Trust>,
    /// Who may be there.
    pub wanted: Wanted,
}

impl Verifier {
    /// Checks a certificate and those that came with it.
    pub fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        now: Moment,
    ) -> Result<PeerIdentity, Refusal> {
        self.trust.verify(certificate, intermediates, usage, now.0)?;
        self.identity(certificate)
    }

    /// The identity in a certificate that was checked already.
    pub fn identity(&self, certificate: &CertificateDer<'_>) -> Result<PeerIdentity, Refusal> {
        let details =
            Details::of(certificate).ok_or_else(|| Refusal::Unsuitable("it cannot be read".to_owned()))?;
        self.wanted.find(&details.uris)
    }
}

fn tls13_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(message, certificate, signature, &PROVIDER.signature_verification_algorithms)
}

/// Whether the peer has the key of its certificate: the same methods in two traits of rustls.
macro_rules! signatures {
    () => {
        /// The configurations have TLS 1.3 only, so that this is never asked.
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            PROVIDER.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(certificate, intermediates, Usage::Server, Moment::from_unix(now.as_secs()))?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
    /// None: a client has one certificate and needs no help to choose it.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(certificate, intermediates, Usage::Client, Moment::from_unix(now.as_secs()))?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}
