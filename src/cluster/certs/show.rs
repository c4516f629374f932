//! `hostloop certs show`: an identity or a CA as a table.

use std::path::Path;

use comfy_table::{Table, presets};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;

use super::{CertsError, Report};
use crate::cluster::identity::{PeerIdentity, PeerRole};
use crate::cluster::tls::TlsError;
use crate::cluster::tls::certificate::{Details, Moment, Validity, fingerprint};
use crate::cluster::tls::files::{CA, CERTIFICATE, KEY, certificates, private_key};
use crate::cluster::tls::trust::{PROVIDER, Trust, Usage};

/// Shows the identity in `dir` and its CAs; in the directory of a CA, the CA.
pub(super) fn show(dir: &Path, now: OffsetDateTime) -> Result<Report, CertsError> {
    let ca = certificates(&dir.join(CA))?;
    let (chain, missing) = match certificates(&dir.join(CERTIFICATE)) {
        Ok(chain) => (chain, None),
        // It is that of a CA then.
        Err(_) if dir.join(super::authority::CA_KEY).exists() => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut problems: Vec<String> = missing.into_iter().map(|error| error.to_string()).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for certificate in &chain {
        rows(&mut table, CERTIFICATE, certificate, now, &mut problems);
    }
    for certificate in &ca {
        rows(&mut table, CA, certificate, now, &mut problems);
    }
    if let Some((certificate, intermediates)) = chain.split_first() {
        problems.extend(check(dir, &ca, certificate, intermediates, now).err());
    }
    let mut text = format!("{}\n", table.trim_fmt());
    for problem in &problems {
        text.push_str(&format!("WRONG: {problem}\n"));
    }
    Ok(Report { text, good: problems.is_empty() })
}

/// The rows of one certificate.
fn rows(
    table: &mut Table,
    file: &str,
    certificate: &CertificateDer<'_>,
    now: OffsetDateTime,
    problems: &mut Vec<String>,
) {
    let Some(details) = Details::of(certificate) else {
        problems.push(format!("{file}: a certificate in it cannot be read"));
        return;
    };
    let Validity { from, until } = details.validity;
    let left = match details.validity.left(now).whole_days() {
        _ if now < from => "not valid yet".to_owned(),
        _ if now > until => "EXPIRED".to_owned(),
        1 => "1 day left".to_owned(),
        days => format!("{days} days left"),
    };
    if !details.validity.covers(now) {
        problems.push(format!(
            "{file}: {:?} is good from {} to {}",
            details.subject,
            Moment(from),
            Moment(until)
        ));
    }
    table.add_row([file, "identity", &details.uris.join(", ")]);
    table.add_row(["", "subject", &details.subject]);
    table.add_row(["", "signed by", &details.issuer]);
    table.add_row(["", "valid", &format!("{} to {} ({left})", Moment(from), Moment(until))]);
    table.add_row(["", "SHA-256", &fingerprint(certificate)]);
}

/// Whether it can be used: as its peers will see it.
fn check(
    dir: &Path,
    ca: &[CertificateDer<'static>],
    certificate: &CertificateDer<'static>,
    intermediates: &[CertificateDer<'static>],
    now: OffsetDateTime,
) -> Result<(), String> {
    let wrong = |what: String| format!("{CERTIFICATE}: {what}");
    let trust = Trust::new(ca).map_err(|what| format!("{CA}: {what}"))?;
    let details = Details::of(certificate).ok_or_else(|| wrong("it cannot be read".to_owned()))?;
    let identities: Vec<PeerIdentity> = details.uris.iter().filter_map(|uri| uri.parse().ok()).collect();
    let [identity] = identities.as_slice() else {
        return Err(wrong("it has not exactly one identity of hostloop among its URIs".to_owned()));
    };
    let usages = match identity.role {
        PeerRole::Controller => &[Usage::Client][..],
        PeerRole::Node => &[Usage::Client, Usage::Server],
    };
    for usage in usages {
        let verified = trust.verify(certificate, intermediates, *usage, now);
        verified.map_err(|refusal| wrong(refusal.to_string()))?;
    }
    let key = private_key(&dir.join(KEY)).map_err(|error: TlsError| error.to_string())?;
    let fits = CertifiedKey::from_der(vec![certificate.clone()], key, &PROVIDER);
    fits.map(drop).map_err(|_| format!("{KEY}: it does not fit the certificate"))
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::super::authority::Authority;
    use super::*;

    /// The validity of a CA in `dir` that is good since yesterday, for ten days.
    fn ca(dir: &Path) -> Validity {
        let from = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap() - Duration::DAY;
        let validity = Validity { from, until: from + Duration::days(10) };
        Authority::create(dir, "hostloop.csi.dev", validity).unwrap();
        validity
    }

    #[test]
    fn a_certificate_is_shown_good_within_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let Validity { from, until } = ca(dir.path());
        let second = Duration::SECOND;
        for (now, left, good) in [
            (from - second, "(not valid yet)", false),
            (from, "(10 days left)", true),
            (until - Duration::days(1), "(1 day left)", true),
            (until, "(0 days left)", true),
            (until + second, "(EXPIRED)", false),
        ] {
            let shown = show(dir.path(), now).unwrap();
            assert!(shown.text.contains(left), "{now}: {}", shown.text);
            assert_eq!((shown.good, shown.text.contains("WRONG: ca.crt")), (good, !good), "{now}");
        }
    }

    #[test]
    fn a_directory_without_identity_and_ca_key_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let Validity { from, .. } = ca(dir.path());
        #[allow(clippy::disallowed_methods, reason = "as in tls/files.rs")]
        std::fs::remove_file(dir.path().join(super::super::authority::CA_KEY)).unwrap();
        let shown = show(dir.path(), from).unwrap();
        assert!(
            !shown.good && shown.text.contains("WRONG: ") && shown.text.contains("tls.crt"),
            "{}",
            shown.text
        );
    }
}
