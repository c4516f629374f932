//! Why there is no connection, in words that say whose certificate is wrong, and what is wrong with it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, OtherError};

use super::certificate::Moment;
use crate::cluster::identity::PeerRole;

/// Why TLS is not possible. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{}: {problem}", path.display())]
    Own { path: PathBuf, problem: String },
    /// The peer is not who it should be.
    #[error("the peer is refused: {0}")]
    Refused(Refusal),
    /// The peer does not take this process for what it should be. The alert (RFC 8446, 6.2) says little on purpose.
    #[error("the peer refuses the certificate of this process (TLS alert {0:?}); the peer's log says why")]
    RefusedByPeer(AlertDescription),
    /// There was no handshake: the connection broke, or the other side does not speak TLS 1.3.
    #[error("TLS handshake: {0}")]
    Handshake(io::Error),
    /// The other side says nothing.
    #[error("no TLS handshake within {} s", .0.as_secs())]
    Timeout(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("it has no certificate")]
    NoCertificate,
    #[error("the certificate expired at {0}")]
    Expired(Moment),
    /// It will be good, or a clock is wrong.
    #[error("the certificate is not valid before {0}")]
    NotYetValid(Moment),
    /// None of our CAs signed it.
    #[error("the certificate is signed by no CA in ca.crt that is valid now")]
    UnknownCa,
    /// It must not be used like this (RFC 5280, 4.2.1.12).
    #[error("the certificate is not for {0} authentication (extended key usage)")]
    Usage(&'static str),
    /// It names nobody that hostloop knows.
    #[error(
        "the certificate has no identity of hostloop, such as spiffe://hostloop.csi.dev/node, among its URIs"
    )]
    NoIdentity,
    #[error("the certificate has several identities of {driver:?}, where one is wanted")]
    SeveralIdentities {
        /// CSI plugin name.
        driver: String,
    },
    /// It belongs to another driver.
    #[error("the certificate is of the driver {found:?} and not of {wanted:?}")]
    OtherDriver {
        /// Our CSI plugin name.
        wanted: String,
        found: String,
    },
    /// It is the other role's.
    #[error("the certificate is of a {} and not of a {}", found.as_str(), wanted.as_str())]
    OtherRole { wanted: PeerRole, found: PeerRole },
    /// It is another node's.
    #[error("the certificate is of the node {found:?} and not of {wanted:?}")]
    OtherNode { wanted: String, found: String },
    /// Somebody else signed, or something else was signed.
    #[error("the signature is not that of the certificate's key over these words")]
    Signature,
    #[error("the certificate cannot be used: {0}")]
    Unsuitable(String),
}

impl Refusal {
    /// What the check of a chain says. `usage` is what the certificate was wanted for.
    pub(super) fn of_chain(error: webpki::Error, usage: &'static str) -> Self {
        use webpki::Error as Wrong;
        match error {
            Wrong::CertExpired { not_after, .. } => Refusal::Expired(Moment::from_unix(not_after.as_secs())),
            Wrong::CertNotValidYet { not_before, .. } => {
                Refusal::NotYetValid(Moment::from_unix(not_before.as_secs()))
            }
            // A wrong signature is what another CA of the same name gives.
            Wrong::UnknownIssuer | Wrong::InvalidSignatureForPublicKey => Refusal::UnknownCa,
            Wrong::RequiredEkuNotFoundContext(_) | Wrong::EmptyEkuExtension => Refusal::Usage(usage),
            other => Refusal::Unsuitable(other.to_string()),
        }
    }
}

/// The way through rustls: the peer gets an alert that fits, and `TlsError::of_handshake` finds the refusal again.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let wrong = match refusal {
            Refusal::NoCertificate => return Error::NoCertificatesPresented,
            Refusal::UnknownCa => CertificateError::UnknownIssuer,
            Refusal::Expired(moment) => {
                CertificateError::ExpiredContext { time: UnixTime::now(), not_after: moment.to_unix() }
            }
            other => CertificateError::Other(OtherError(std::sync::Arc::new(other))),
        };
        Error::InvalidCertificate(wrong)
    }
}

impl TlsError {
    pub(super) fn own(path: impl Into<PathBuf>, problem: impl ToString) -> Self {
        TlsError::Own { path: path.into(), problem: problem.to_string() }
    }

    pub(super) fn of_handshake(error: io::Error) -> Self {
        match tls_error(&error) {
            Some(Error::NoCertificatesPresented) => TlsError::Refused(Refusal::NoCertificate),
            Some(Error::InvalidCertificate(wrong)) => TlsError::Refused(refusal(wrong)),
            Some(Error::AlertReceived(alert)) if is_refusal(*alert) => TlsError::RefusedByPeer(*alert),
            _ => TlsError::Handshake(error),
        }
    }
}

/// An error of a connection that stands: says more where the peer has refused our certificate, which a client of
/// TLS 1.3 learns after its handshake only.
pub(super) fn explain(error: io::Error) -> io::Error {
    match tls_error(&error) {
        Some(Error::AlertReceived(alert)) if is_refusal(*alert) => {
            io::Error::new(io::ErrorKind::PermissionDenied, TlsError::RefusedByPeer(*alert))
        }
        _ => error,
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn refusal(wrong: &CertificateError) -> Refusal {
    match wrong {
        CertificateError::UnknownIssuer => Refusal::UnknownCa,
        CertificateError::ExpiredContext { not_after, .. } => {
            Refusal::Expired(Moment::from_unix(not_after.as_secs()))
        }
        CertificateError::Other(OtherError(other)) => match other.downcast_ref::<Refusal>() {
            Some(refusal) => refusal.clone(),
            None => Refusal::Unsuitable(other.to_string()),
        },
        other => Refusal::Unsuitable(other.to_string()),
    }
}

/// Whether an alert is about a certificate.
fn is_refusal(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(description: AlertDescription) -> io::Error {
        io::Error::other(Error::AlertReceived(description))
    }

    #[test]
    fn alerts_about_a_certificate_are_a_refusal() {
        let refused = TlsError::of_handshake(alert(AlertDescription::UnknownCA));
        assert!(matches!(refused, TlsError::RefusedByPeer(AlertDescription::UnknownCA)), "{refused}");
        assert_eq!(
            explain(alert(AlertDescription::CertificateExpired)).kind(),
            io::ErrorKind::PermissionDenied
        );
        let other = AlertDescription::InternalError;
        assert!(matches!(TlsError::of_handshake(alert(other)), TlsError::Handshake(_)));
        assert_eq!(explain(alert(other)).kind(), io::ErrorKind::Other);
    }
}
