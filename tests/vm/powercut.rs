//! The client of tests/vm/power-cut: `powercut SOCKET VOLUMES CONSOLE SEED ROUND write|end`.
//!
//! It reads what was acknowledged before the power was cut (CONSOLE), checks that all of it is there and nothing
//! else, repeats what was under way, and then either goes on until the next cut or deletes everything. VOLUMES is
//! the driver's directory of volumes.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "looks from outside at what the driver did"
)]
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod client;
mod journal;

use std::collections::BTreeSet;
use std::path::Path;

use client::{Client, KINDS};
use journal::{Journal, Known, say};

const MIB: u64 = 1 << 20;
/// At once, so that a cut meets more than one call.
const WORKERS: usize = 3;
/// Volumes of each worker at most.
const MOST: usize = 3;

/// Xorshift: nothing here needs better.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.max(1);
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.draw() >> 16) as usize % end
    }
}

fn main() {
    // A worker that panics must not leave the others running until the power is cut.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::abort();
    }));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, volumes, console, seed, round, what] = args.as_slice() else {
        panic!("powercut SOCKET VOLUMES CONSOLE SEED ROUND write|end");
    };
    let journal = Journal::read(&std::fs::read_to_string(console).expect("read the console"));
    let seed: u64 = seed.parse().expect("a seed");
    let client = Client::connect(socket);
    let lines = journal.lines;
    let alive = verify(&client, journal, volumes);
    let files: usize = alive.iter().map(|(_, known)| known.files.len()).sum();
    println!(
        "round {round}: after {lines} lines, {} volumes with {files} files are as acknowledged",
        alive.len()
    );
    if what == "end" {
        for (name, known) in alive {
            delete(&client, &name, &known);
        }
        assert!(client.list().is_empty(), "{:?}", client.list());
        return assert_eq!(entries(volumes), BTreeSet::new(), "left behind");
    }
    drop(client);
    let mut shares = [const { Vec::new() }; WORKERS];
    alive.into_iter().enumerate().for_each(|(index, volume)| shares[index % WORKERS].push(volume));
    std::thread::scope(|scope| {
        for (worker, share) in shares.into_iter().enumerate() {
            let prefix = format!("r{round}w{worker}");
            let random = Random(seed ^ ((worker as u64 + 1) << 40));
            scope.spawn(move || work(&Client::connect(socket), &prefix, share, random));
        }
    });
}

/// The names in the driver's directories of volumes: that of the pool `default`, and beside it those of the managed pools.
fn entries(volumes: &str) -> BTreeSet<String> {
    let managed = ["directories", "limited"].map(|pool| format!("pools/{pool}/volumes"));
    let managed = managed.map(|place| Path::new(volumes).with_file_name(place));
    let all = std::iter::once(Path::new(volumes)).chain(managed.iter().map(|path| path.as_path()));
    all.filter_map(|path| std::fs::read_dir(path).ok())
        .flatten()
        .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
        // A directory has its record beside it.
        .map(|name| name.strip_suffix(".json").map(str::to_owned).unwrap_or(name))
        .collect()
}

/// Checks everything and repeats what was under way; gives the volumes that are there, published.
fn verify(client: &Client, journal: Journal, volumes: &str) -> Vec<(String, Known)> {
    let listed = client.list();
    let ids: BTreeSet<String> = listed.keys().cloned().collect();
    assert_eq!(entries(volumes), ids, "the directory of volumes, and the volumes that the driver shows");
    assert_eq!(journal.gone.intersection(&ids).collect::<Vec<_>>(), [""; 0], "deleted, and back again");
    let (mut explained, mut alive) = (BTreeSet::new(), Vec::new());
    for (name, mut known) in journal.volumes {
        let id = match known.id.clone() {
            Some(id) => {
                let there = ids.contains(&id);
                assert!(there || known.deleting, "{name}: acknowledged volume {id} is gone: {known:?}");
                if !there {
                    client.delete(&id);
                    say(&format!("deleted {name}"));
                    continue;
                }
                id
            }
            None => {
                let id = client.create(&name, &known.kind, known.size);
                say(&format!("created {name} {id}"));
                id
            }
        };
        explained.insert(id.clone());
        if let Some(bytes) = listed.get(&id).filter(|_| known.kind != "directory") {
            let fits = *bytes == known.size || Some(*bytes) == known.growing;
            assert!(fits, "{name}: {bytes} bytes: {known:?}");
        }
        known.id = Some(id.clone());
        client.publish(&id, &known.kind);
        // Also one that was being deleted: while it is there, all of it is.
        client::check(&id, &known.kind, known.size, &known.files)
            .unwrap_or_else(|wrong| panic!("{name}: {wrong}: {known:?}"));
        if let Some(bytes) = known.growing {
            expand(client, &name, &mut known, bytes);
        }
        if known.deleting {
            delete(client, &name, &known);
        } else {
            alive.push((name, known));
        }
    }
    assert_eq!(ids.difference(&explained).collect::<Vec<_>>(), [""; 0], "nobody asked for these");
    alive
}

/// Volumes of a kind are grown as long as they are smaller: those of the other pools have little room.
fn largest(kind: &str) -> u64 {
    match kind {
        "directory" => 0,
        "limited" => 64 * MIB,
        _ => 1 << 30,
    }
}

/// A volume's life after the other, until the power is cut.
fn work(client: &Client, prefix: &str, mut volumes: Vec<(String, Known)>, mut random: Random) {
    for number in 0.. {
        if volumes.is_empty() || (volumes.len() < MOST && random.below(4) == 0) {
            // More of what is quick to make.
            let (kind, _, mib, _) = KINDS[random.below(KINDS.len()).min(random.below(KINDS.len()))];
            volumes.push(create(client, format!("{prefix}n{number}"), kind, mib * MIB));
            continue;
        }
        let index = random.below(volumes.len());
        let (name, known) = &mut volumes[index];
        let id = known.id.clone().expect("id");
        match random.below(10) {
            0 | 1 => {
                let (name, known) = volumes.swap_remove(index);
                delete(client, &name, &known);
            }
            2 | 3 if known.size < largest(&known.kind) => {
                let bytes = known.size * 2;
                expand(client, name, known, bytes);
            }
            4 => {
                client.unpublish(&id);
                client.publish(&id, &known.kind);
                client::check(&id, &known.kind, known.size, &known.files)
                    .unwrap_or_else(|wrong| panic!("{name}: {wrong}: {known:?}"));
            }
            _ if known.files.len() < 100 => {
                let (file, seed) = (known.files.len(), random.draw());
                client::write(&id, &known.kind, file, seed);
                say(&format!("wrote {name} {file} {seed}"));
                known.files.push(seed);
            }
            _ => {}
        }
    }
}

fn create(client: &Client, name: String, kind: &str, size: u64) -> (String, Known) {
    say(&format!("creating {name} {kind} {size}"));
    let id = client.create(&name, kind, size);
    say(&format!("created {name} {id}"));
    client.publish(&id, kind);
    let (kind, id, files) = (kind.to_owned(), Some(id), Vec::new());
    (name, Known { kind, size, growing: None, id, files, deleting: false })
}

fn expand(client: &Client, name: &str, known: &mut Known, bytes: u64) {
    let id = known.id.as_deref().expect("id");
    say(&format!("expanding {name} {bytes}"));
    client.expand(id, &known.kind, bytes);
    say(&format!("expanded {name} {bytes}"));
    (known.size, known.growing) = (bytes, None);
    client.node_expand(id, &known.kind, bytes);
    client::check(id, &known.kind, bytes, &known.files)
        .unwrap_or_else(|wrong| panic!("{name}: expanded: {wrong}: {known:?}"));
}

fn delete(client: &Client, name: &str, known: &Known) {
    let id = known.id.as_deref().expect("id");
    client.unpublish(id);
    say(&format!("deleting {name}"));
    client.delete(id);
    say(&format!("deleted {name}"));
}
