//! What is written in a certificate (RFC 5280).

use std::fmt;

use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, UnixTime};
use time::{Duration, OffsetDateTime};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// From when to when a certificate is good, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub from: OffsetDateTime,
    /// Not after.
    pub until: OffsetDateTime,
}

impl Validity {
    /// From its first to its last moment; zero where it ends before it begins.
    pub fn length(&self) -> Duration {
        (self.until - self.from).max(Duration::ZERO)
    }

    /// What is left of it; negative once it is over.
    pub fn left(&self, now: OffsetDateTime) -> Duration {
        self.until - now
    }

    pub fn covers(&self, now: OffsetDateTime) -> bool {
        self.from <= now && now <= self.until
    }

    /// Whether less than a third of it is left: the time to renew.
    pub fn nears_its_end(&self, now: OffsetDateTime) -> bool {
        self.left(now) < self.length() / 3
    }
}

/// A moment as people read it: `2026-11-21 18:17:29 UTC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(pub OffsetDateTime);

impl Moment {
    /// So many seconds after 1970 in UTC; the farthest moment there is where that is beyond the calendar.
    pub fn from_unix(seconds: u64) -> Self {
        let farthest = OffsetDateTime::UNIX_EPOCH + Duration::days(365 * 7000);
        let moment = i64::try_from(seconds).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
        Moment(moment.unwrap_or(farthest))
    }

    /// The same as rustls has it; 1970 for what was before.
    pub(super) fn to_unix(self) -> UnixTime {
        let seconds = u64::try_from(self.0.unix_timestamp()).unwrap_or_default();
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment(at) = self;
        let (year, month, day) = at.to_calendar_date();
        let (hour, minute, second) = at.to_hms();
        write!(f, "{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC", u8::from(month))
    }
}

/// What hostloop wants to know of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// Distinguished name of its bearer, such as `O=hostloop.csi.dev, CN=node-1`.
    pub subject: String,
    /// Distinguished name of who signed it.
    pub issuer: String,
    pub validity: Validity,
    /// The URIs among its subject alternative names (RFC 5280, 4.2.1.6).
    pub uris: Vec<String>,
    /// Whether it may sign others (RFC 5280, 4.2.1.9).
    pub is_ca: bool,
    /// The public key with its algorithm, DER (RFC 5280, 4.1.2.7).
    pub public_key: Vec<u8>,
}

impl Details {
    /// Reads them; `None` if that is not a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok()?;
        let uris = names.map(|extension| uris(&extension.value.general_names)).unwrap_or_default();
        Some(Details {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            validity: Validity {
                from: parsed.validity().not_before.to_datetime(),
                until: parsed.validity().not_after.to_datetime(),
            },
            uris,
            is_ca: parsed.is_ca(),
            public_key: parsed.public_key().raw.to_owned(),
        })
    }
}

fn uris(names: &[GeneralName<'_>]) -> Vec<String> {
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.iter().filter_map(uri).collect()
}

/// SHA-256 of a certificate as `openssl x509 -fingerprint -sha256` prints it.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let bytes = digest(&SHA256, certificate);
    let pairs: Vec<String> = bytes.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_well_and_have_no_end() {
        assert_eq!(Moment::from_unix(0).to_string(), "1970-01-01 00:00:00 UTC");
        assert_eq!(Moment::from_unix(1_795_285_049).to_string(), "2026-11-21 18:17:29 UTC");
        assert!(Moment::from_unix(u64::MAX).to_string().starts_with("89"));
    }

    #[test]
    fn a_certificate_nears_its_end_in_its_last_third() {
        let from = OffsetDateTime::UNIX_EPOCH;
        let validity = Validity { from, until: from + Duration::days(90) };
        let at = |days| from + Duration::days(days);
        assert!(!validity.nears_its_end(at(0)) && !validity.nears_its_end(at(60)));
        assert!(validity.nears_its_end(at(61)) && validity.nears_its_end(at(91)));
        assert!(validity.covers(at(90)) && !validity.covers(at(91)) && !validity.covers(at(-1)));
        let odd = Validity { from: at(1), until: at(0) };
        assert!(odd.length().is_zero() && !odd.covers(at(0)) && odd.nears_its_end(at(2)));
    }

    #[test]
    fn noise_is_no_certificate() {
        for bytes in [&b""[..], b"\x30", b"\x30\x82\xff\xff", b"-----BEGIN CERTIFICATE-----"] {
            assert_eq!(Details::of(&CertificateDer::from(bytes)), None);
        }
        assert_eq!(fingerprint(&CertificateDer::from(&b""[..])).get(..8), Some("E3:B0:C4"));
    }
}
