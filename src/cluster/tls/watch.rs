//! Picks up renewed certificates while the process runs.

use std::pin::pin;
use std::time::{Duration, Instant};

use time::OffsetDateTime;

use super::Tls;
use super::certificate::Moment;
use super::credentials::Credentials;
use super::error::TlsError;
use super::files::{CERTIFICATE, Stamp};
use crate::shutdown::Shutdown;

/// How often the files are looked at. A notice of the kernel (inotify) would have to follow the links of a Secret's
/// mount as they are exchanged; three stat(2) every few seconds are simpler and cost nothing.
const INTERVAL: Duration = Duration::from_secs(2);
/// How often a thing that stays wrong is said again.
const REMIND: Duration = Duration::from_secs(3600);

/// A message that is not repeated at every look.
#[derive(Debug, Default)]
struct Said(Option<(String, Instant)>);

impl Said {
    /// Whether this is news, or was said long ago.
    fn is_due(&mut self, text: &str) -> bool {
        let known = self.0.as_ref().is_some_and(|(last, at)| last == text && at.elapsed() < REMIND);
        if !known {
            self.0 = Some((text.to_owned(), Instant::now()));
        }
        !known
    }

    fn forget(&mut self) {
        self.0 = None;
    }
}

pub(super) async fn watch(tls: Tls, shutdown: Shutdown) {
    let (mut wrong, mut ending) = (Said::default(), Said::default());
    let mut requested = pin!(shutdown.requested());
    loop {
        remind(&tls, &mut ending);
        tokio::select! {
            () = &mut requested => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let look = tls.clone();
        // A directory may hang, such as one on a network.
        match tokio::task::spawn_blocking(move || renewed(&look)).await {
            Ok(Ok(None)) => wrong.forget(),
            Ok(Ok(Some(new))) => {
                wrong.forget();
                ending.forget();
                tracing::info!(
                    identity = new.identity.to_string().as_str(),
                    until = Moment(new.validity.until).to_string().as_str(),
                    fingerprint = new.fingerprint.as_str(),
                    "renewed certificates are in use for new connections"
                );
                tls.put(new);
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                if wrong.is_due(&text) {
                    tracing::error!("the new certificates are wrong; the old ones stay in use: {text}");
                }
            }
            // The hook of the process has named the place already.
            Err(_) => tracing::error!("looking for new certificates met a bug"),
        }
    }
}

/// The certificates in the directory, if they are others than those in use. Ones that were wrong are read again each
/// time: they may be good a moment later, such as where the clock of who made them is ahead.
fn renewed(tls: &Tls) -> Result<Option<Credentials>, TlsError> {
    let (inner, current) = (&tls.0, tls.current());
    if Stamp::of(&inner.dir) == current.stamp {
        return Ok(None);
    }
    let new = Credentials::load(&inner.dir, &inner.driver, inner.role, OffsetDateTime::now_utc())?;
    // A node keeps its id for life: another one's certificate is here by mistake.
    let same = tls.wanted(None, current.identity.node_id.as_deref()).find(&[new.identity.to_string()]);
    same.map_err(|refusal| TlsError::own(inner.dir.join(CERTIFICATE), refusal))?;
    Ok(Some(new))
}

/// Warns where the own certificate should have been renewed by now.
fn remind(tls: &Tls, said: &mut Said) {
    let (current, now) = (tls.current(), OffsetDateTime::now_utc());
    if !current.validity.nears_its_end(now) || !said.is_due(&current.fingerprint) {
        return;
    }
    let until = Moment(current.validity.until).to_string();
    let dir = tls.0.dir.display().to_string();
    if current.validity.covers(now) {
        tracing::warn!(
            until = until.as_str(),
            dir,
            "less than a third of the certificate's life is left: renew it"
        );
    } else {
        tracing::error!(
            until = until.as_str(),
            dir,
            "the certificate has expired and peers refuse it: renew it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_said_once() {
        let mut said = Said::default();
        assert!(said.is_due("a") && !said.is_due("a") && said.is_due("b") && said.is_due("a"));
        said.forget();
        assert!(said.is_due("a"));
    }
}
