//! Permits: how a controller makes one, and how the source's node verifies it.
//!
//! A node's certificate says who may make copies on that node, but not of what: that is for a controller to say, which
//! was asked for the volume. A permit is signed with the key of the controller's certificate and includes that
//! certificate. So a node needs only `ca.crt` to check it, and every controller's is equally valid (docs/decisions/0009).

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use time::OffsetDateTime;

use super::identity::PeerRole;
use super::tls::certificate::Moment;
use super::tls::{Signature, Tls};
use crate::model::{Grant, Permit};
use crate::service::Permits;
use crate::wire::{peer, permit};

/// How long a permit is good. A caller that wants its volume comes back after two minutes at the most, and each time with
/// a fresh one; what is left is for clocks that differ, and for a source that is away for a while.
pub const VALID_FOR: Duration = Duration::from_secs(900);

/// What is signed begins with this, so that the signature is good for nothing else. A field that narrows a permit needs
/// another number: nodes that do not know it skip it.
const WORDS: &[u8] = b"hostloop permit 1\0";

pub type Signer = Arc<dyn Fn(&Grant) -> Result<Permit, String> + Send + Sync>;

/// The last second of a permit that is made now.
pub fn expiry() -> u64 {
    now().saturating_add(VALID_FOR.as_secs())
}

fn now() -> u64 {
    u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or_default()
}

fn signed_text(permit: &[u8]) -> Vec<u8> {
    [WORDS, permit].concat()
}

/// Makes permits with the certificate of this process, which is to be a controller's.
pub fn signer(tls: Tls) -> Signer {
    Arc::new(move |grant| sign(&tls, grant))
}

/// The permit for this, with the certificate in use.
///
/// # Errors
/// Why the key cannot sign; or that the certificates are too many for a header.
pub fn sign(tls: &Tls, grant: &Grant) -> Result<Permit, String> {
    let permit = permit::encode(grant);
    let signature = tls.sign(&signed_text(&permit)).map_err(|error| error.to_string())?;
    let Signature { certificates, scheme, bytes } = signature;
    let signed = peer::SignedPermit { permit, certificates, scheme: scheme.into(), signature: bytes };
    let bytes = signed.encode_to_vec();
    let length = bytes.len();
    Permit::new(bytes).ok_or_else(|| {
        format!(
            "a permit with the certificates in tls.crt has {length} bytes, and {} is the most: take out the CA's, and \
             intermediate ones that are not needed",
            Permit::LONGEST
        )
    })
}

/// Makes sure of permits by the CAs of this process.
pub struct Checked(Tls);

impl Checked {
    /// By the CAs of this process, which is to be a node.
    pub fn new(tls: Tls) -> Self {
        Checked(tls)
    }
}

impl Permits for Checked {
    fn open(&self, permit: &[u8]) -> Result<Grant, String> {
        if permit.len() > Permit::LONGEST {
            return Err(format!("it has more than {} bytes", Permit::LONGEST));
        }
        let unreadable = || "it cannot be read".to_owned();
        let signed = peer::SignedPermit::decode(permit).map_err(|_| unreadable())?;
        let peer::SignedPermit { permit, certificates, scheme, signature } = signed;
        let scheme = u16::try_from(scheme).map_err(|_| unreadable())?;
        let signature = Signature { certificates, scheme, bytes: signature };
        let signer = self.0.signer_of(&signed_text(&permit), &signature, PeerRole::Controller);
        signer.map_err(|refusal| format!("a controller has not signed it: {refusal}"))?;
        let grant = permit::decode(&permit).map_err(|malformed| malformed.to_string())?;
        let now = now();
        if now > grant.expires {
            return Err(format!(
                "it expired at {}, and it is {} here: a retry brings a new one; if it expires as well, set the clocks of \
                 the nodes",
                Moment::from_unix(grant.expires),
                Moment::from_unix(now)
            ));
        }
        Ok(grant)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    /// Without the words, a signature that was made for another protocol could be taken for a permit's.
    #[test]
    fn a_signed_text_begins_with_its_purpose() {
        assert_eq!(signed_text(b"grant"), b"hostloop permit 1\0grant");
    }

    #[test]
    fn a_permit_is_good_for_a_quarter_of_an_hour() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
        assert!((now + 890..now + 910).contains(&expiry()), "{now} {}", expiry());
    }
}
