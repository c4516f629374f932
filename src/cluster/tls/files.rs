//! The three files of an identity, as a Kubernetes Secret of type `kubernetes.io/tls` has them.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "certificates are the process' own files, no volume's: the fake kernel knows nothing of them"
)]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::TlsError;

/// The certificates of the CAs whose peers are trusted, one or more.
pub const CA: &str = "ca.crt";
/// The own certificate, and after it the intermediate ones, if there are any.
pub const CERTIFICATE: &str = "tls.crt";
/// The own private key: PKCS#8, SEC1 or PKCS#1.
pub const KEY: &str = "tls.key";

/// More than this is not a certificate or key, and would only fill the memory.
const MAX_SIZE: u64 = 1 << 20;
/// So often the files are read again where they were exchanged in between.
const TRIES: u32 = 5;
/// The time between.
const PAUSE: Duration = Duration::from_millis(20);

/// Tells whether a file is another one than before, or has other contents: device, inode, size, and time of the last
/// change in seconds and nanoseconds. `None` where there is none.
type FileStamp = Option<(u64, u64, u64, i64, i64)>;

/// The same of all three files. A Secret's mount is exchanged by a symbolic link, so links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp([FileStamp; 3]);

impl Stamp {
    /// Of the files in this directory.
    pub fn of(dir: &Path) -> Self {
        let stamp = |name: &str| {
            let found = fs::metadata(dir.join(name)).ok()?;
            Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
        };
        Stamp([stamp(CA), stamp(CERTIFICATE), stamp(KEY)])
    }
}

#[derive(Debug)]
pub struct Files {
    /// Of `ca.crt`; not empty.
    pub ca: Vec<CertificateDer<'static>>,
    /// Of `tls.crt`, the own one first; not empty.
    pub chain: Vec<CertificateDer<'static>>,
    /// Of `tls.key`.
    pub key: PrivateKeyDer<'static>,
    /// When they were read.
    pub stamp: Stamp,
}

impl Files {
    /// Reads all three as they were at one moment: again where they are exchanged meanwhile.
    ///
    /// # Errors
    /// [`TlsError::Own`] where one is missing, cannot be read or holds something else.
    pub fn read(dir: &Path) -> Result<Self, TlsError> {
        let mut tries = 1;
        loop {
            let stamp = Stamp::of(dir);
            let read = Self::read_once(dir, stamp);
            if stamp == Stamp::of(dir) || tries == TRIES {
                return read;
            }
            tries += 1;
            std::thread::sleep(PAUSE);
        }
    }

    fn read_once(dir: &Path, stamp: Stamp) -> Result<Self, TlsError> {
        let (ca, chain) = (certificates(&dir.join(CA))?, certificates(&dir.join(CERTIFICATE))?);
        Ok(Files { ca, chain, key: private_key(&dir.join(KEY))?, stamp })
    }
}

/// The certificates of a PEM file, at least one. What else is in it is passed over.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = contents(path)?;
    let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    match parsed {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(TlsError::own(path, "it contains no certificate in PEM")),
        Err(error) => Err(TlsError::own(path, format_args!("is not a PEM file: {}", describe(&error)))),
    }
}

/// The first private key of a PEM file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&contents(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            TlsError::own(path, "it contains no private key in PEM (PKCS#8, SEC1 or PKCS#1, not encrypted)")
        }
        other => TlsError::own(path, format_args!("is not a PEM file: {}", describe(&other))),
    })
}

/// What is wrong with a PEM file, without a piece of it: it may be of a key.
fn describe(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end",
        pem::Error::IllegalSectionStart { .. } => "a section has no proper beginning",
        pem::Error::Base64Decode(_) => "a section is not in base64",
        _ => "it cannot be read",
    }
}

pub fn contents(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error: io::Error| TlsError::own(path, error);
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_SIZE + 1).read_to_end(&mut text));
    if read.map_err(failed)? as u64 > MAX_SIZE {
        return Err(TlsError::own(path, "is too large for certificates and keys"));
    }
    Ok(text)
}

/// The path of one of the files, for messages.
pub fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_that_holds_something_else_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY);
        let broken = "-----BEGIN PRIVATE KEY-----\nnot&base64\n-----END PRIVATE KEY-----\n";
        let open = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n";
        let unfinished = "-----BEGIN PRIVATE KEY\nc2VjcmV0\n";
        for (text, hint) in [
            ("", "no private key"),
            ("x", "no private key"),
            (broken, "base64"),
            (open, "no end"),
            (unfinished, "no proper beginning"),
        ] {
            fs::write(&path, text).unwrap();
            let error = private_key(&path).unwrap_err().to_string();
            assert!(error.contains(hint) && error.contains(path.to_str().unwrap()), "{error}");
            assert!(!error.contains("c2V") && !error.contains('\n'), "{error}");
        }
        fs::write(&path, open).unwrap();
        assert!(certificates(&path).unwrap_err().to_string().contains("no end"));
        fs::write(&path, "").unwrap();
        assert!(certificates(&path).unwrap_err().to_string().contains("no certificate"));
    }

    #[test]
    fn missing_or_too_large_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Files::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("/ca.crt: No such file"), "{error}");
        assert!(contents(dir.path()).unwrap_err().to_string().contains("directory"));
        let large = dir.path().join("large");
        File::create(&large).unwrap().set_len(MAX_SIZE + 1).unwrap();
        assert!(contents(&large).unwrap_err().to_string().contains("too large"));
        File::create(&large).unwrap().set_len(MAX_SIZE).unwrap();
        assert_eq!(contents(&large).unwrap().len() as u64, MAX_SIZE);
    }

    /// Writes the three files, `ca.crt` with this number of certificates.
    fn write_all(dir: &Path, cas: usize) {
        let section = |kind: &str| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
        fs::write(dir.join(CA), section("CERTIFICATE").repeat(cas)).unwrap();
        fs::write(dir.join(CERTIFICATE), section("CERTIFICATE")).unwrap();
        fs::write(dir.join(KEY), section("PRIVATE KEY")).unwrap();
    }

    /// Exchanges all files while `ca.crt` is read, this number of times. Returns the number of certificates that were read last.
    fn read_during(exchanges: usize) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        write_all(dir.path(), 1);
        let text = fs::read(at(CA)).unwrap();
        fs::remove_file(at(CA)).unwrap();
        pipe(&at(CA));
        let (ca, next) = (at(CA), at("next"));
        // Not joined if the test fails: it would wait for a reader that does not come.
        let writer = std::thread::spawn(move || {
            for number in 1..=exchanges {
                let mut reader = File::options().write(true).open(&ca).unwrap();
                match number == exchanges {
                    true => fs::write(&next, text.repeat(number + 1)).unwrap(),
                    false => pipe(&next),
                }
                fs::rename(&next, &ca).unwrap();
                reader.write_all(&text.repeat(number)).unwrap();
            }
        });
        let files = Files::read(dir.path()).unwrap();
        writer.join().unwrap();
        files.ca.len()
    }

    #[test]
    fn exchanged_files_are_read_again_and_not_for_ever() {
        assert_eq!(read_during(1), 2, "those that are there now");
        assert_eq!(read_during(3), 4);
        let tries = TRIES as usize;
        assert_eq!(read_during(tries), tries, "the last try counts, whatever it has read");
    }

    #[test]
    fn a_stamp_sees_new_contents_and_a_switched_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let none = Stamp::of(dir.path());
        assert_eq!(none, Stamp::of(dir.path()));
        fs::write(at("a"), "1").unwrap();
        fs::write(at("b"), "1").unwrap();
        std::os::unix::fs::symlink("a", at(CA)).unwrap();
        let first = Stamp::of(dir.path());
        assert_ne!(first, none);
        std::os::unix::fs::symlink("b", at("new")).unwrap();
        fs::rename(at("new"), at(CA)).unwrap();
        let second = Stamp::of(dir.path());
        assert_ne!(second, first);
        fs::write(at("b"), "22").unwrap();
        assert_ne!(Stamp::of(dir.path()), second);
    }
}
