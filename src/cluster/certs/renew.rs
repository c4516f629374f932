//! New certificates to replace those that end soon.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use rustls::sign::CertifiedKey;
use time::{Duration, OffsetDateTime};

use super::{Authority, BACKDATED, CertsError, Report, from_now, identity_of};
use crate::cluster::identity::PeerIdentity;
use crate::cluster::tls::certificate::{Details, Moment, Validity};
use crate::cluster::tls::files::{CA, CERTIFICATE, KEY, certificates, contents, private_key};
use crate::cluster::tls::trust::PROVIDER;

/// Renews those of `dirs` that need it. One that cannot be renewed is in the report and does not keep the others from
/// being renewed.
pub(super) fn renew(
    ca: &Path,
    dirs: &[PathBuf],
    before: Option<Duration>,
    valid: Option<Duration>,
    now: OffsetDateTime,
) -> Result<Report, CertsError> {
    let authority = Authority::open(ca)?;
    let mut report = Report { text: String::new(), good: true };
    for dir in dirs {
        let line = renew_one(&authority, dir, before, valid, now).unwrap_or_else(|error| {
            report.good = false;
            format!("NOT renewed: {error}")
        });
        let _ = writeln!(report.text, "{}: {line}", dir.display());
    }
    if authority.validity().nears_its_end(now) {
        let until = Moment(authority.validity().until);
        let _ = writeln!(
            report.text,
            "{}: the CA itself is good until {until} only: make its successor",
            ca.display()
        );
    }
    Ok(report)
}

fn renew_one(
    authority: &Authority,
    dir: &Path,
    before: Option<Duration>,
    valid: Option<Duration>,
    now: OffsetDateTime,
) -> Result<String, CertsError> {
    let path = dir.join(CERTIFICATE);
    let chain = certificates(&path)?;
    let identity =
        identity_of(&chain).ok_or_else(|| CertsError::refused(&path, "it has no identity of hostloop"))?;
    let details = chain.first().and_then(Details::of);
    let validity = details.ok_or_else(|| CertsError::refused(&path, "it cannot be read"))?.validity;
    same_driver(authority, &identity, &path)?;
    let Some(reason) = reason(authority, dir, &chain, validity, before, now) else {
        return Ok(format!("{identity} is good until {}", Moment(validity.until)));
    };
    let valid = valid.unwrap_or_else(|| validity.length().saturating_sub(BACKDATED));
    let validity = authority.limit(from_now(now, valid));
    authority.issue(&identity, validity)?.write(dir)?;
    Ok(format!("renewed {identity} until {}, as {reason}", Moment(validity.until)))
}

/// A CA does not take over the identities of another driver.
fn same_driver(authority: &Authority, identity: &PeerIdentity, path: &Path) -> Result<(), CertsError> {
    match authority.driver() {
        Some(driver) if driver != identity.driver => {
            let problem = format!("it is of the driver {:?}, and the CA is of {driver:?}", identity.driver);
            Err(CertsError::refused(path, problem))
        }
        _ => Ok(()),
    }
}

/// Why these files are to be renewed, if they are.
fn reason(
    authority: &Authority,
    dir: &Path,
    chain: &[rustls::pki_types::CertificateDer<'static>],
    validity: Validity,
    before: Option<Duration>,
    now: OffsetDateTime,
) -> Option<String> {
    let due = before.map_or_else(|| validity.nears_its_end(now), |before| validity.left(now) < before);
    if due {
        let until = Moment(validity.until);
        return Some(format!(
            "the one before {} {until}",
            if validity.until < now { "ended at" } else { "ends at" }
        ));
    }
    let key = private_key(&dir.join(KEY)).ok();
    let fits = key.is_some_and(|key| CertifiedKey::from_der(chain.to_vec(), key, &PROVIDER).is_ok());
    if !fits {
        return Some(format!("{KEY} did not fit the certificate"));
    }
    if let Some(Err(why)) = chain.first().map(|certificate| authority.signed(certificate, now)) {
        return Some(format!("of the one before this is true: {why}"));
    }
    let same = contents(&dir.join(CA)).is_ok_and(|bundle| bundle == authority.bundle());
    (!same).then(|| format!("{CA} is another one now"))
}
