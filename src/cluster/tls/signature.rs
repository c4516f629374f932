//! Texts that a process signs with the key of its certificate, and that others accept after the same checks as in a
//! handshake.

use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use webpki::EndEntityCert;

use super::certificate::Moment;
use super::error::{Refusal, TlsError};
use super::trust::{PROVIDER, Usage};
use super::{Tls, files};
use crate::cluster::identity::{PeerIdentity, PeerRole};

/// Those of TLS 1.3 for every kind of key that a certificate here can have (RFC 8446, 4.2.3), the cheapest first.
const SCHEMES: [SignatureScheme; 6] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
];
/// More than between a certificate and its CA.
const MOST_CERTIFICATES: usize = 8;

/// A signature, with what it takes to believe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The signer's certificate, then intermediate ones, DER.
    pub certificates: Vec<Vec<u8>>,
    /// How it is made, by its number in TLS (SignatureScheme).
    pub scheme: u16,
    pub bytes: Vec<u8>,
}

impl Tls {
    /// Signs a text with the key of the certificate in use. The text has to begin unlike anything else that this key
    /// signs: a handshake's begins with 64 spaces (RFC 8446, 4.4.3).
    ///
    /// # Errors
    /// [`TlsError::Own`] for a kind of key that has no scheme here; none that a start takes is like that.
    pub fn sign(&self, text: &[u8]) -> Result<Signature, TlsError> {
        let current = self.current();
        let wrong = |why: String| TlsError::own(self.0.dir.join(files::KEY), why);
        let certified = current.certified();
        let signer = certified.key.choose_scheme(&SCHEMES);
        let signer = signer.ok_or_else(|| wrong("keys of this kind cannot sign permits".to_owned()))?;
        let bytes = signer.sign(text).map_err(|error| wrong(format!("cannot sign: {error}")))?;
        let certificates = certified.cert.iter().map(|certificate| certificate.to_vec()).collect();
        Ok(Signature { certificates, scheme: signer.scheme().into(), bytes })
    }

    /// Who has signed a text: somebody of this role, whose certificate is good at this moment.
    ///
    /// # Errors
    /// [`Refusal`] where the certificate is none of such a one by our CAs, or the signature is not of its key.
    pub fn signer_of(
        &self,
        text: &[u8],
        signature: &Signature,
        role: PeerRole,
    ) -> Result<PeerIdentity, Refusal> {
        let chain = signature.certificates.iter().take(MOST_CERTIFICATES);
        let chain: Vec<CertificateDer<'_>> = chain.map(|der| CertificateDer::from(der.as_slice())).collect();
        let (certificate, intermediates) = chain.split_first().ok_or(Refusal::NoCertificate)?;
        let verifier = self.current().verifier(self.wanted(Some(role), None));
        // Signing proves that one is who makes connections with this certificate, no more.
        let now = Moment(OffsetDateTime::now_utc());
        let identity = verifier.verify(certificate, intermediates, Usage::Client, now)?;
        let unreadable = |error: webpki::Error| Refusal::Unsuitable(error.to_string());
        let certificate = EndEntityCert::try_from(certificate).map_err(unreadable)?;
        let scheme = SignatureScheme::from(signature.scheme);
        let all = PROVIDER.signature_verification_algorithms.mapping;
        let known = all.iter().filter(|(name, _)| *name == scheme && SCHEMES.contains(name));
        // A scheme stands for one algorithm for each kind of key that it goes with.
        let is_theirs = known
            .flat_map(|(_, algorithms)| algorithms.iter())
            .any(|algorithm| certificate.verify_signature(*algorithm, text, &signature.bytes).is_ok());
        match is_theirs {
            true => Ok(identity),
            false => Err(Refusal::Signature),
        }
    }
}
