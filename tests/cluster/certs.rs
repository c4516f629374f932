//! `hostloop certs`: the whole way from a CA to renewed certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hostloop::cluster::certs::{Report, Task, run};
use hostloop::cluster::identity::PeerRole;
use hostloop::cluster::tls::Tls;
use time::Duration;

use crate::pki::{DRIVER, Pki, controller, minutes, node};

fn task(task: Task) -> Report {
    run(&task).unwrap()
}

fn issue(ca: &Path, out: &Path, role: PeerRole, node_id: Option<&str>, valid: Duration) -> Task {
    let node_id = node_id.map(str::to_owned);
    Task::Issue { ca: ca.to_owned(), driver: None, role, node_id, out: out.to_owned(), valid }
}

fn renew(ca: &Path, dirs: &[&PathBuf]) -> Report {
    let dirs = dirs.iter().map(|dir| (*dir).clone()).collect();
    task(Task::Renew { ca: ca.to_owned(), dirs, before: None, valid: None })
}

fn show(dir: &Path) -> Report {
    task(Task::Show { dir: dir.to_owned() })
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_ca_is_made_once_and_its_identities_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let init = Task::Init { dir: at("ca"), driver: "d.example".to_owned(), valid: Duration::days(10) };
    let report = task(init.clone());
    assert!(report.good && report.text.contains("a CA for d.example"), "{report:?}");
    let key = at("ca/ca.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let before = (read(key.clone()), read(at("ca/ca.crt")));
    let error = run(&init).unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
    assert_eq!((read(key), read(at("ca/ca.crt"))), before);

    for (name, role, node_id) in
        [("c", PeerRole::Controller, None), ("n", PeerRole::Node, None), ("n1", PeerRole::Node, Some("n1"))]
    {
        let made = issue(&at("ca"), &at(name), role, node_id, Duration::days(90));
        let report = task(made.clone());
        let identity = format!("spiffe://d.example/{}", role.as_str());
        assert!(report.text.contains(&identity), "{report:?}");
        let tls = Tls::open(&at(name), "d.example", role).unwrap();
        assert_eq!(tls.identity().node_id.as_deref(), node_id);
        let mode = fs::metadata(at(name).join("tls.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // No longer than the CA, though 90 days were asked for.
        let shown = show(&at(name));
        assert!(shown.good && shown.text.contains("(9 days left)"), "{shown:?}");
        // Once more is the same identity with another key.
        let key = read(at(name).join("tls.key"));
        assert!(task(made).good && read(at(name).join("tls.key")) != key);
    }
    // A node's identity does not take the place of the controller's.
    let error = run(&issue(&at("ca"), &at("c"), PeerRole::Node, None, Duration::days(1))).unwrap_err();
    assert!(error.to_string().contains("already holds spiffe://d.example/controller"), "{error}");
}

#[test]
fn certificates_are_renewed_when_they_are_due() {
    let pki = Pki::new();
    let ca = pki.path("ca");
    let fresh = pki.issue("fresh", &controller(), minutes(-10, 90));
    let ending = pki.issue("ending", &node(Some("n1")), minutes(-75, 25));
    let ended = pki.issue("ended", &node(None), minutes(-75, -5));
    let keys = |dirs: [&PathBuf; 3]| dirs.map(|dir| read(dir.join("tls.key")));
    let before = keys([&fresh, &ending, &ended]);
    let report = renew(&ca, &[&fresh, &ending, &ended]);
    let lines: Vec<&str> = report.text.lines().collect();
    assert!(report.good && lines.len() == 3, "{report:?}");
    assert!(lines[0].contains(" is good until ") && !lines[0].contains("renewed"), "{report:?}");
    assert!(
        lines[1].contains("renewed spiffe://hostloop.csi.dev/node/n1") && lines[1].contains("ends at"),
        "{report:?}"
    );
    assert!(lines[2].contains("ended at"), "{report:?}");
    let after = keys([&fresh, &ending, &ended]);
    assert_eq!((before[0] == after[0], before[1] == after[1], before[2] == after[2]), (true, false, false));
    assert!(Tls::open(&ended, DRIVER, PeerRole::Node).is_ok());
    // It is as long as the one before, and so nothing is due now.
    let again = renew(&ca, &[&fresh, &ending, &ended]);
    assert!(!again.text.contains("renewed"), "{again:?}");
    let before = Some(Duration::days(1));
    let forced = Task::Renew { ca, dirs: vec![fresh], before, valid: Some(Duration::days(2)) };
    assert!(task(forced).text.contains("renewed"));
}

#[test]
fn a_failed_renewal_does_not_keep_the_others() {
    let (pki, other) = (Pki::new(), tempfile::tempdir().unwrap());
    let missing = pki.path("missing");
    let ending = pki.issue("ending", &node(None), minutes(-75, 25));
    let report = renew(&pki.path("ca"), &[&missing, &ending]);
    let lines: Vec<&str> = report.text.lines().collect();
    assert!(
        !report.good && lines[0].contains("NOT renewed") && lines[1].contains("renewed spiffe"),
        "{report:?}"
    );

    // The CA of another driver does not take them over.
    let foreign = other.path().join("ca");
    task(Task::Init { dir: foreign.clone(), driver: "other".to_owned(), valid: Duration::days(10) });
    let report = renew(&foreign, &[&ending]);
    assert!(!report.good && report.text.contains("\"other\""), "{report:?}");
}

#[test]
fn a_rotation_of_the_ca_is_three_renewals() {
    let (old, new) = (Pki::new(), Pki::new());
    let dir = old.issue("node", &node(None), minutes(-5, 60));
    let (old_ca, new_ca) = (old.path("ca"), new.path("ca"));
    let text = |ca: &Path| read(ca.join("ca.crt"));
    let (old_text, new_text) = (text(&old_ca), text(&new_ca));
    // Everybody learns of the new CA.
    fs::write(old_ca.join("ca.crt"), format!("{new_text}{old_text}")).unwrap();
    fs::write(new_ca.join("ca.crt"), format!("{old_text}{new_text}")).unwrap();
    let report = renew(&old_ca, &[&dir]);
    assert!(report.text.contains("ca.crt is another one now"), "{report:?}");
    // Everybody gets a certificate of the new CA.
    let report = renew(&new_ca, &[&dir]);
    assert!(report.text.contains("signed by no CA"), "{report:?}");
    // Everybody forgets the old one.
    fs::write(new_ca.join("ca.crt"), &new_text).unwrap();
    let report = renew(&new_ca, &[&dir]);
    assert!(report.text.contains("ca.crt is another one now"), "{report:?}");
    assert_eq!(text(&dir), new_text);
    assert!(Tls::open(&dir, DRIVER, PeerRole::Node).is_ok());
    assert!(!renew(&new_ca, &[&dir]).text.contains("renewed"));
}

#[test]
fn show_says_what_is_wrong() {
    let (pki, other) = (Pki::new(), Pki::new());
    let good = show(&pki.issue("good", &node(Some("n1")), minutes(-5, 60 * 24 * 2)));
    assert!(good.good, "{good:?}");
    for hint in ["spiffe://hostloop.csi.dev/node/n1", "(1 day left)", "SHA-256", "CN=n1", "hostloop CA "] {
        assert!(good.text.contains(hint), "{hint}: {}", good.text);
    }
    let ca = show(&pki.path("ca"));
    assert!(ca.good && ca.text.contains("spiffe://hostloop.csi.dev"), "{ca:?}");

    let expired = show(&pki.issue("expired", &controller(), minutes(-60, -5)));
    assert!(!expired.good && expired.text.contains("EXPIRED"), "{expired:?}");
    let mixed = pki.issue("mixed", &node(None), minutes(-5, 60));
    fs::remove_file(mixed.join("tls.key")).unwrap();
    fs::copy(pki.path("good/tls.key"), mixed.join("tls.key")).unwrap();
    let shown = show(&mixed);
    assert!(!shown.good && shown.text.contains("WRONG: tls.key: it does not fit"), "{shown:?}");
    fs::remove_file(mixed.join("ca.crt")).unwrap();
    fs::copy(other.path("ca/ca.crt"), mixed.join("ca.crt")).unwrap();
    let shown = show(&mixed);
    assert!(!shown.good && shown.text.contains("signed by no CA"), "{shown:?}");
}

#[test]
fn a_ca_that_cannot_sign_is_refused() {
    let (pki, other) = (Pki::new(), Pki::new());
    let ca = pki.path("ca");
    let refused = |ca: &Path| {
        run(&issue(ca, &pki.path("out"), PeerRole::Node, None, Duration::days(1))).unwrap_err().to_string()
    };
    fs::copy(other.path("ca/ca.crt"), ca.join("ca.crt")).unwrap();
    assert!(refused(&ca).contains("no certificate for the key in ca.key"), "{}", refused(&ca));
    fs::write(ca.join("ca.key"), "").unwrap();
    assert!(refused(&ca).contains("no private key"), "{}", refused(&ca));
    // A leaf is not a CA.
    let leaf = other.issue("leaf", &node(None), minutes(-5, 60));
    fs::copy(leaf.join("tls.crt"), ca.join("ca.crt")).unwrap();
    fs::copy(leaf.join("tls.key"), ca.join("ca.key")).unwrap();
    assert!(refused(&ca).contains("is not a CA certificate"), "{}", refused(&ca));
    assert!(refused(&pki.path("nowhere")).contains("No such file"));
    assert!(!pki.path("out").exists(), "nothing was made");
}
