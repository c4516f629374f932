//! Permits of controllers with every kind of key, and with CAs in between.

use std::fs;
use std::path::Path;

use hostloop::cluster::identity::PeerIdentity;
use hostloop::cluster::permit::{Checked, expiry, sign};
use hostloop::cluster::tls::Tls;
use hostloop::model::{Grant, NodeKey, SnapshotId, VolumeId, VolumeSource};
use hostloop::service::Permits;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType,
};

use rustls::pki_types::PrivateKeyDer;

use crate::pki::{controller, node};

fn pem_of(tag: &str, der: &[u8]) -> String {
    pem::encode(&pem::Pem::new(tag, der))
}

/// A CA that is not ours, such as of cert-manager.
struct Ca {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

impl Ca {
    fn root() -> Ca {
        let (params, key) = (ca_params("root"), KeyPair::generate().unwrap());
        let certificate = params.self_signed(&key).unwrap();
        Ca { certificate, issuer: Issuer::new(params, key) }
    }

    fn below(&self) -> Ca {
        let (params, key) = (ca_params("below"), KeyPair::generate().unwrap());
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Ca { certificate, issuer: Issuer::new(params, key) }
    }

    fn pem(&self) -> String {
        pem_of("CERTIFICATE", self.certificate.der())
    }

    fn issue(&self, identity: &PeerIdentity, key: &KeyPair) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(identity.to_string()).unwrap())];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        pem_of("CERTIFICATE", params.signed_by(key, &self.issuer).unwrap().der())
    }
}

fn open(dir: &Path, root: &Ca, identity: &PeerIdentity, (chain, key): (&str, &KeyPair)) -> Tls {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("ca.crt"), root.pem()).unwrap();
    fs::write(dir.join("tls.crt"), chain).unwrap();
    fs::write(dir.join("tls.key"), pem_of("PRIVATE KEY", key.serialized_der())).unwrap();
    Tls::open(dir, &identity.driver, identity.role).unwrap()
}

/// One that was made for this test: ring makes none.
fn rsa() -> KeyPair {
    let bytes = include_bytes!("keys/rsa-2048.pk8").to_vec();
    KeyPair::try_from(&PrivateKeyDer::Pkcs8(bytes.into())).unwrap()
}

fn grant() -> Grant {
    Grant {
        source_node: "a".to_owned(),
        target_node: "b".to_owned(),
        source: VolumeSource::Snapshot(SnapshotId::of_name(&NodeKey::of("a"), "s")),
        target: VolumeId::of_name(&NodeKey::of("b"), "copy"),
        expires: expiry(),
    }
}

#[test]
fn every_kind_of_key_signs() {
    let (root, dir) = (Ca::root(), tempfile::tempdir().unwrap());
    let between = root.below();
    let of_node = KeyPair::generate().unwrap();
    let chain = root.issue(&node(None), &of_node);
    let checked = Checked::new(open(&dir.path().join("node"), &root, &node(None), (&chain, &of_node)));
    let keys = [
        ("p256", KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()),
        ("p384", KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap()),
        ("ed25519", KeyPair::generate_for(&PKCS_ED25519).unwrap()),
        ("rsa", rsa()),
    ];
    for (name, key) in keys {
        let direct = root.issue(&controller(), &key);
        let through = between.issue(&controller(), &key) + &between.pem();
        // The CA's own certificate need not be there, and often is.
        let with_root = through.clone() + &root.pem();
        for (number, chain) in [direct, through, with_root].iter().enumerate() {
            let dir = dir.path().join(format!("{name}-{number}"));
            let tls = open(&dir, &root, &controller(), (chain, &key));
            let (grant, permit) = (grant(), sign(&tls, &grant()).unwrap());
            assert_eq!(checked.open(permit.as_bytes()), Ok(grant), "{name}-{number}");
        }
    }
}

#[test]
fn too_many_certificates_for_a_header_are_named() {
    let (root, dir) = (Ca::root(), tempfile::tempdir().unwrap());
    let key = KeyPair::generate().unwrap();
    let chain = root.issue(&controller(), &key) + &root.pem().repeat(40);
    let tls = open(dir.path(), &root, &controller(), (&chain, &key));
    let why = sign(&tls, &grant()).unwrap_err();
    assert!(why.contains("8192 is the most: take out the CA's"), "{why}");
}
