//! Whose certificates are believed.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, TrustAnchor};
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::certificate::{Details, Moment, Validity};
use super::error::Refusal;

/// The cryptography: ring, and what it has for TLS 1.3.
pub static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(ring::default_provider()));

/// What a certificate is to prove (RFC 5280, 4.2.1.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Who accepts connections.
    Server,
    /// Who makes them.
    Client,
}

/// The CAs of `ca.crt`.
#[derive(Debug)]
pub struct Trust(Vec<(Validity, TrustAnchor<'static>)>);

impl Trust {
    /// Trusts these.
    ///
    /// # Errors
    /// Says what is wrong with the first one that is not a CA's certificate.
    pub fn new(ca: &[CertificateDer<'static>]) -> Result<Self, String> {
        let anchors = ca.iter().enumerate().map(|(at, der)| {
            let wrong = |why: String| format!("certificate {} in it {why}", at + 1);
            let details = Details::of(der).ok_or_else(|| wrong("cannot be read".to_owned()))?;
            if !details.is_ca {
                return Err(wrong(format!("is not a CA certificate; its subject is {:?}", details.subject)));
            }
            let anchor =
                anchor_from_trusted_cert(der).map_err(|error| wrong(format!("is wrong: {error}")))?;
            Ok((details.validity, anchor.to_owned()))
        });
        Ok(Trust(anchors.collect::<Result<_, String>>()?))
    }

    /// When the CA that stays longest is over.
    pub fn last_moment(&self) -> Option<OffsetDateTime> {
        self.0.iter().map(|(validity, _)| validity.until).max()
    }

    /// Checks the way from a certificate up to one of the CAs, and all the times in it.
    pub fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        now: OffsetDateTime,
    ) -> Result<(), Refusal> {
        let (name, key_usage) = match usage {
            Usage::Server => ("server", KeyUsage::server_auth()),
            Usage::Client => ("client", KeyUsage::client_auth()),
        };
        // webpki takes a CA that is trusted as it is; its time is over some day all the same.
        let valid = self.0.iter().filter(|(validity, _)| validity.covers(now));
        let anchors: Vec<TrustAnchor<'_>> = valid.map(|(_, anchor)| anchor.clone()).collect();
        let algorithms = PROVIDER.signature_verification_algorithms.all;
        let time = Moment(now).to_unix();
        let refused = |error| Refusal::of_chain(error, name);
        let certificate = EndEntityCert::try_from(certificate).map_err(refused)?;
        let path =
            certificate.verify_for_usage(algorithms, &anchors, intermediates, time, key_usage, None, None);
        path.map(drop).map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::*;
    use crate::cluster::certs::Authority;
    use crate::cluster::identity::{PeerIdentity, PeerRole};
    use crate::cluster::tls::files::{CA, CERTIFICATE, certificates};

    /// webpki by itself never asks whether the time of a CA is over.
    #[test]
    fn a_ca_is_trusted_in_its_time_only() {
        let dir = tempfile::tempdir().unwrap();
        let now = OffsetDateTime::now_utc();
        let days = |days| Validity { from: now - Duration::DAY, until: now + Duration::days(days) };
        let ca = Authority::create(dir.path(), "d", days(10)).unwrap();
        let identity = PeerIdentity { driver: "d".to_owned(), role: PeerRole::Controller, node_id: None };
        ca.issue(&identity, days(20)).unwrap().write(&dir.path().join("out")).unwrap();
        let leaf = certificates(&dir.path().join("out").join(CERTIFICATE)).unwrap().remove(0);
        let trust = Trust::new(&certificates(&dir.path().join(CA)).unwrap()).unwrap();
        let at = |days| trust.verify(&leaf, &[], Usage::Client, now + Duration::days(days));
        assert_eq!((at(0), at(9)), (Ok(()), Ok(())));
        assert_eq!(at(11), Err(Refusal::UnknownCa));
        assert!(matches!(at(-2), Err(Refusal::NotYetValid(_))));
        let as_server = trust.verify(&leaf, &[], Usage::Server, now);
        assert_eq!(as_server, Err(Refusal::Usage("server")));
        assert_eq!(
            trust.last_moment().map(|until| until.unix_timestamp()),
            Some(days(10).until.unix_timestamp())
        );
    }
}
