//! Which of several controllers moves volumes: the one that holds a Lease (coordination.k8s.io/v1).
//!
//! Clocks of machines differ, so nobody reads the time that another one has written: a Lease that has not changed for as
//! long as it says is free. Its holder stops before that, when it could not renew it in time.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// A Lease that nobody renews is free after so long.
const DURATION: Duration = Duration::from_secs(15);
/// Its holder stops when it could not renew it for so long. No question to the API server takes longer (deadline.rs).
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Between two tries.
const RETRY: Duration = Duration::from_secs(2);

/// The Lease of the controllers that move the volumes of a driver.
pub fn lease_name(driver: &str) -> String {
    format!("{}-mover", driver.to_ascii_lowercase())
}

/// One candidate.
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// The version of the Lease that another one holds, and since when it is the newest one.
    seen: Option<(String, Instant)>,
    /// When this candidate sent the request with which it last took or renewed the Lease.
    held: Instant,
}

impl Election {
    /// A candidate of those that move volumes.
    pub fn new(client: Client, namespace: &str, driver: &str, identity: String) -> Self {
        Election::of(client, namespace, lease_name(driver), identity)
    }

    /// A candidate of those that want the Lease of this name.
    pub fn of(client: Client, namespace: &str, name: String, identity: String) -> Self {
        Election {
            leases: Api::namespaced(client, namespace),
            name,
            identity,
            seen: None,
            held: Instant::now(),
        }
    }

    /// Completes when this one leads.
    pub async fn win(&mut self) {
        let mut failed = false;
        loop {
            // Other candidates count from the write of the Lease, which is later than this and earlier than the answer.
            let began = Instant::now();
            match timeout_at(began + DEADLINE, self.hold()).await {
                Ok(Ok(true)) => {
                    self.held = began;
                    return;
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) if failed => {
                    tracing::debug!(%error, lease = self.name, "no answer about the Lease")
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "no controller can be chosen");
                    failed = true;
                }
                Err(_) => tracing::warn!(lease = self.name, "no answer about the Lease in time"),
            }
            sleep(RETRY).await;
        }
    }

    /// Renews the Lease. Completes when another one has it, or may soon.
    pub async fn lose(&mut self) {
        loop {
            sleep_until((Instant::now() + RETRY).min(self.held + DEADLINE)).await;
            let began = Instant::now();
            match timeout_at(self.held + DEADLINE, self.hold()).await {
                Ok(Ok(true)) => self.held = began,
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "the Lease was not renewed");
                    if self.held.elapsed() >= DEADLINE {
                        return;
                    }
                }
            }
        }
    }

    /// Releases the Lease, so that another candidate leads at once. If the API server does not answer in
    /// time, the others wait until the Lease expires.
    pub async fn release(&self) {
        if timeout(RETRY, self.clear_holder()).await.is_err() {
            tracing::warn!(
                lease = self.name,
                "releasing the Lease timed out; another controller leads when it expires"
            );
        }
    }

    async fn clear_holder(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else { return };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = Some(String::new());
            let _ = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        }
    }

    /// Takes or renews the Lease where that is possible. Tells whether it is this one's now.
    async fn hold(&mut self) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.taken(0)) };
            return won(self.leases.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder == self.identity {
            lease.spec = Some(LeaseSpec { renew_time: Some(now()), ..spec });
            return won(self.leases.replace(&self.name, &PostParams::default(), &lease).await);
        }
        if !holder.is_empty() && !self.is_forsaken(&lease) {
            return Ok(false);
        }
        lease.spec = Some(self.taken(spec.lease_transitions.unwrap_or(0).saturating_add(1)));
        won(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
    }

    /// Whether the Lease has not changed for as long as one is good.
    fn is_forsaken(&mut self, lease: &Lease) -> bool {
        let version = lease.resource_version().unwrap_or_default();
        match &self.seen {
            Some((seen, since)) if *seen == version => since.elapsed() >= DURATION,
            _ => {
                self.seen = Some((version, Instant::now()));
                false
            }
        }
    }

    fn taken(&self, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

fn now() -> MicroTime {
    MicroTime(k8s_openapi::jiff::Timestamp::now())
}

/// Of several that write at once, the first one wins.
fn won(written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
