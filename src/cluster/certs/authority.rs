//! A CA: a key, and the certificate for it.

use std::fmt;
use std::path::Path;

use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;

use super::{CertsError, files};
use crate::cluster::identity::{PeerIdentity, PeerRole};
use crate::cluster::tls::certificate::{Details, Moment, Validity};
use crate::cluster::tls::files::{CA, CERTIFICATE, KEY, certificates, contents, private_key};
use crate::cluster::tls::trust::{Trust, Usage};

/// The CA's private key, PKCS#8.
pub const CA_KEY: &str = "ca.key";
/// Permissions of a private key.
const SECRET: u32 = 0o600;
/// Permissions of a certificate.
const PUBLIC: u32 = 0o644;

pub struct Authority {
    /// The whole of `ca.crt`: during a rotation it has other CAs as well.
    bundle: Vec<u8>,
    certificate: CertificateDer<'static>,
    details: Details,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("details", &self.details).finish_non_exhaustive()
    }
}

/// A new identity as the text of its files.
pub struct Issued {
    ca: Vec<u8>,
    certificate: String,
    key: String,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").finish_non_exhaustive()
    }
}

impl Issued {
    /// Puts them into `dir`, which is made if it is missing, all at once (see `files.rs`).
    pub fn write(&self, dir: &Path) -> Result<(), CertsError> {
        let files = [
            (CA, self.ca.as_slice(), PUBLIC),
            (CERTIFICATE, self.certificate.as_bytes(), PUBLIC),
            (KEY, self.key.as_bytes(), SECRET),
        ];
        files::switch(dir, &files)
    }
}

impl Authority {
    /// Makes a CA in `dir`, which is made if it is missing: `ca.key` (mode 0600) and `ca.crt`, which says in a URI
    /// for which driver it is, `spiffe://DRIVER` (SPIFFE X.509-SVID, 3.1). It signs identities only, no other CA.
    ///
    /// # Errors
    /// [`CertsError::Exists`] where there is one.
    pub fn create(dir: &Path, driver: &str, validity: Validity) -> Result<Self, CertsError> {
        let (text, secret) = Self::make(driver, validity)?;
        files::create(dir, CA_KEY, secret.as_bytes(), SECRET, CA)?;
        files::create(dir, CA, text.as_bytes(), PUBLIC, CA)?;
        Self::open(dir)
    }

    /// A new CA as the text of `ca.crt` and `ca.key`.
    ///
    /// # Errors
    /// [`CertsError::Make`] for a name that no certificate can hold.
    pub(super) fn make(driver: &str, validity: Validity) -> Result<(String, String), CertsError> {
        let key = KeyPair::generate()?;
        // The date tells the CAs of a rotation apart.
        let date: String = Moment(validity.from).to_string().chars().take(10).collect();
        let mut params = params(driver, &format!("hostloop CA {date}"), validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.subject_alt_names = vec![uri(&format!("spiffe://{driver}"))?];
        let certificate = params.self_signed(&key)?;
        Ok((pem_of("CERTIFICATE", certificate.der()), pem_of("PRIVATE KEY", key.serialized_der())))
    }

    /// The CA in `dir`: the certificate in `ca.crt` that fits `ca.key`.
    ///
    /// # Errors
    /// [`CertsError`] where there is none, or nobody would accept what it signs.
    pub fn open(dir: &Path) -> Result<Self, CertsError> {
        let (ca_path, key_path) = (dir.join(CA), dir.join(CA_KEY));
        let key = KeyPair::try_from(&private_key(&key_path)?).map_err(|_| {
            CertsError::refused(&key_path, "is not a supported key; use ECDSA, Ed25519 or RSA in PKCS#8")
        })?;
        let public = key.subject_public_key_info();
        let mut signers = certificates(&ca_path)?.into_iter().filter_map(|certificate| {
            let details = Details::of(&certificate).filter(|details| details.public_key == public)?;
            Some((certificate, details))
        });
        let (certificate, details) = signers.next().ok_or_else(|| {
            CertsError::refused(&ca_path, "it contains no certificate for the key in ca.key")
        })?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        let authority = Authority { bundle: contents(&ca_path)?, certificate, details, issuer };
        authority.try_out().map_err(|why| CertsError::refused(&ca_path, why))?;
        Ok(authority)
    }

    /// CSI plugin name, for which it is, if it says so.
    pub fn driver(&self) -> Option<&str> {
        let names = self.details.uris.iter().filter_map(|uri| uri.strip_prefix("spiffe://"));
        names.into_iter().find(|name| !name.is_empty() && !name.contains('/'))
    }

    pub fn validity(&self) -> Validity {
        self.details.validity
    }

    /// What is left of a validity within the CA's own: nobody outlives it.
    pub fn limit(&self, wanted: Validity) -> Validity {
        Validity { from: wanted.from, until: wanted.until.min(self.details.validity.until) }
    }

    /// Makes an identity with a new key. One that is expired or not valid yet is made as well.
    ///
    /// # Errors
    /// [`CertsError::Make`] for a name that no certificate can hold.
    pub fn issue(&self, identity: &PeerIdentity, validity: Validity) -> Result<Issued, CertsError> {
        let (certificate, key) = self.sign(identity, validity)?;
        let (certificate, key) =
            (pem_of("CERTIFICATE", &certificate), pem_of("PRIVATE KEY", key.serialized_der()));
        Ok(Issued { ca: self.bundle.clone(), certificate, key })
    }

    fn sign(
        &self,
        identity: &PeerIdentity,
        validity: Validity,
    ) -> Result<(CertificateDer<'static>, KeyPair), CertsError> {
        let key = KeyPair::generate()?;
        let name = identity.node_id.as_deref().unwrap_or(identity.role.as_str());
        let mut params = params(&identity.driver, name, validity)?;
        params.subject_alt_names = vec![uri(&identity.to_string())?];
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if identity.role == PeerRole::Node {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let signed = params.signed_by(&key, &self.issuer)?;
        Ok((signed.der().clone(), key))
    }

    pub(super) fn bundle(&self) -> &[u8] {
        &self.bundle
    }

    /// Whether this CA signed a certificate, and it is good now.
    pub(super) fn signed(&self, certificate: &CertificateDer<'_>, now: OffsetDateTime) -> Result<(), String> {
        let trust = Trust::new(std::slice::from_ref(&self.certificate))?;
        trust.verify(certificate, &[], Usage::Client, now).map_err(|refusal| refusal.to_string())
    }

    /// Signs something and looks whether it is accepted. A CA of other making may have expired, or may not be allowed
    /// to sign, and that should be known before a cluster stands still.
    fn try_out(&self) -> Result<(), String> {
        let now = OffsetDateTime::now_utc();
        if !self.details.validity.covers(now) {
            let Validity { from, until } = self.details.validity;
            return Err(format!("the CA is good from {} to {} only", Moment(from), Moment(until)));
        }
        let driver = self.driver().unwrap_or("hostloop").to_owned();
        let identity = PeerIdentity { driver, role: PeerRole::Controller, node_id: None };
        let tried = self.sign(&identity, self.details.validity).map_err(|error| error.to_string())?;
        self.signed(&tried.0, now).map_err(|why| format!("what this CA signs is not accepted: {why}"))
    }
}

/// What a CA and an identity have in common.
fn params(organization: &str, name: &str, validity: Validity) -> Result<CertificateParams, CertsError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (validity.from, validity.until);
    Ok(params)
}

fn uri(text: &str) -> Result<SanType, CertsError> {
    Ok(SanType::URI(Ia5String::try_from(text)?))
}

fn pem_of(tag: &str, der: &[u8]) -> String {
    pem::encode_config(&Pem::new(tag, der), EncodeConfig::new().set_line_ending(LineEnding::LF))
}
