//! `hostloop certs`: a CA, and the identities that it gives to the processes of a cluster.
//!
//! Start reading at [`run`]. cert-manager can make all of it instead: the files are the same.

mod authority;
mod files;
mod renew;
mod secret;
mod show;

use std::io;
use std::path::PathBuf;

use time::{Duration, OffsetDateTime};

use super::identity::{PeerIdentity, PeerRole};
use super::tls::TlsError;
use super::tls::certificate::{Details, Moment, Validity};
use super::tls::files::{CERTIFICATE, certificates};

pub use self::authority::Authority;
pub(crate) use self::secret::SecretName;

/// A certificate is good a little before it is made, for clocks that are behind.
const BACKDATED: Duration = Duration::minutes(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    Init {
        /// Where its `ca.crt` and `ca.key` are to be.
        dir: PathBuf,
        /// CSI plugin name, for which it is.
        driver: String,
        valid: Duration,
    },
    /// Make a CA in a Secret of the cluster that this process runs in, unless there is one.
    InitSecret {
        secret: SecretName,
        /// CSI plugin name, for which it is.
        driver: String,
        valid: Duration,
    },
    Issue {
        ca: PathBuf,
        /// CSI plugin name, where it is not to be read from the CA.
        driver: Option<String>,
        role: PeerRole,
        /// Of a node, if the identity is to be that of one node only.
        node_id: Option<String>,
        /// Where `ca.crt`, `tls.crt` and `tls.key` are to be.
        out: PathBuf,
        valid: Duration,
    },
    Renew {
        ca: PathBuf,
        dirs: Vec<PathBuf>,
        /// So long before the end; `None` for a third of its life.
        before: Option<Duration>,
        /// How long the new one is good; `None` for as long as the one before.
        valid: Option<Duration>,
    },
    Show {
        /// The directory of an identity or a CA.
        dir: PathBuf,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// For people; lines.
    pub text: String,
    /// Whether all is well: nothing failed, and what was shown can be used.
    pub good: bool,
}

/// Why it was not done. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    #[error(transparent)]
    File(#[from] TlsError),
    #[error("{doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// Something of value would be lost.
    #[error("{} already exists, and a CA is never replaced: choose another directory", .0.display())]
    Exists(PathBuf),
    /// It cannot be done with what is there.
    #[error("{}: {problem}", path.display())]
    Refused { path: PathBuf, problem: String },
    #[error("the API server: {0}")]
    Kubernetes(#[from] secret::ApiError),
    /// A Secret of this name is something else.
    #[error("the Secret {}/{} exists and holds no CA (ca.crt and ca.key): delete it, or choose another name", .0.namespace, .0.name)]
    SecretWithoutCa(SecretName),
    #[error("start: {0}")]
    Runtime(io::Error),
    #[error("make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl CertsError {
    fn refused(path: impl Into<PathBuf>, problem: impl ToString) -> Self {
        CertsError::Refused { path: path.into(), problem: problem.to_string() }
    }
}

/// Does it, and says what was done. Reads and writes files, or asks the API server; not to be called from async code.
///
/// # Errors
/// [`CertsError`] where nothing was done.
pub fn run(task: &Task) -> Result<Report, CertsError> {
    let now = OffsetDateTime::now_utc();
    match task {
        Task::Init { dir, driver, valid } => {
            let authority = Authority::create(dir, driver, from_now(now, *valid))?;
            Ok(done(format!(
                "made a CA for {driver} in {}, good until {}; keep its ca.key secret\n",
                dir.display(),
                Moment(authority.validity().until)
            )))
        }
        Task::InitSecret { secret, driver, valid } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let validity = from_now(now, *valid);
            let text = runtime.map_err(CertsError::Runtime)?.block_on(secret::run(secret, driver, validity));
            Ok(done(text?))
        }
        Task::Issue { ca, driver, role, node_id, out, valid } => {
            let authority = Authority::open(ca)?;
            let driver = driver.as_deref().or(authority.driver()).ok_or_else(|| {
                CertsError::refused(ca, "its ca.crt does not say for which driver it is: give --driver-name")
            })?;
            let identity = PeerIdentity { driver: driver.to_owned(), role: *role, node_id: node_id.clone() };
            keep_others(out, &identity)?;
            let validity = authority.limit(from_now(now, *valid));
            authority.issue(&identity, validity)?.write(out)?;
            let until = Moment(validity.until);
            Ok(done(format!("made {identity} in {}, good until {until}\n", out.display())))
        }
        Task::Renew { ca, dirs, before, valid } => renew::renew(ca, dirs, *before, *valid, now),
        Task::Show { dir } => show::show(dir, now),
    }
}

fn done(text: String) -> Report {
    Report { text, good: true }
}

/// From a little before now up to `valid` after it.
fn from_now(now: OffsetDateTime, valid: Duration) -> Validity {
    // Certificates have no fractions of a second.
    let now = now.replace_nanosecond(0).unwrap_or(now);
    Validity { from: now.saturating_sub(BACKDATED), until: now.saturating_add(valid) }
}

/// Refuses to put an identity in the place of another one: the process that has it would be locked out.
fn keep_others(dir: &std::path::Path, wanted: &PeerIdentity) -> Result<(), CertsError> {
    // Where there is none, or what is there cannot be read, nothing is lost.
    let Some(found) = certificates(&dir.join(CERTIFICATE)).ok().and_then(|chain| identity_of(&chain)) else {
        return Ok(());
    };
    match found == *wanted {
        true => Ok(()),
        false => {
            Err(CertsError::refused(dir, format_args!("it already holds {found}: choose another directory")))
        }
    }
}

/// The identity of a chain's first certificate, if it has exactly one.
fn identity_of(chain: &[rustls::pki_types::CertificateDer<'_>]) -> Option<PeerIdentity> {
    let details = Details::of(chain.first()?)?;
    let mut identities = details.uris.iter().filter_map(|uri| uri.parse().ok());
    identities.next().filter(|_| identities.next().is_none())
}
