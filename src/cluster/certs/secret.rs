//! The CA in a Secret of Kubernetes. It is made only in the cluster: Helm keeps what it renders in every revision of its
//! release, so a key in there would be in more places than its Secret, and would come back with a rollback.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

use super::CertsError;
use super::authority::{Authority, CA_KEY};
use crate::cluster::peers::api_client;
use crate::cluster::tls::certificate::{Moment, Validity};
use crate::cluster::tls::files::CA;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

/// What the API server says.
pub type ApiError = kube::Error;

/// [`init`] with the service account of this pod, or a kubeconfig.
///
/// # Errors
/// As [`init`]; [`CertsError::Kubernetes`] where there is neither.
pub(super) async fn run(place: &SecretName, driver: &str, validity: Validity) -> Result<String, CertsError> {
    init(api_client().await?, place, driver, validity).await
}

/// Makes the CA, unless there is one: of several that try at once the first wins. Says what was done.
///
/// # Errors
/// [`CertsError::Kubernetes`]; [`CertsError::SecretWithoutCa`] for a Secret that is there and holds something else.
pub(super) async fn init(
    client: Client,
    place: &SecretName,
    driver: &str,
    validity: Validity,
) -> Result<String, CertsError> {
    let secrets: Api<Secret> = Api::namespaced(client, &place.namespace);
    if let Some(there) = secrets.get_opt(&place.name).await? {
        return keep(place, &there);
    }
    let (certificate, key) = Authority::make(driver, validity)?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(place.name.clone()),
            labels: Some(map([("app.kubernetes.io/managed-by", "hostloop")])),
            ..ObjectMeta::default()
        },
        string_data: Some(map([(CA, &*certificate), (CA_KEY, &*key)])),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(format!(
            "made a CA for {driver} in the Secret {}/{}, good until {}\n",
            place.namespace,
            place.name,
            Moment(validity.until)
        )),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let there = secrets.get(&place.name).await?;
            keep(place, &there)
        }
        Err(error) => Err(error.into()),
    }
}

/// Takes the CA that is there as it is.
fn keep(place: &SecretName, there: &Secret) -> Result<String, CertsError> {
    let has = |name: &str| there.data.as_ref().is_some_and(|data| data.contains_key(name));
    if !has(CA) || !has(CA_KEY) {
        return Err(CertsError::SecretWithoutCa(place.clone()));
    }
    Ok(format!("the CA in the Secret {}/{} already exists and stays\n", place.namespace, place.name))
}

fn map<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests;
