//! What the driver acknowledged, as lines on the console of the emulated machine, which outlives every power cut.
//! A line says what is about to begin, or that it was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Mutex;

/// Ends every line, so that half a line is not a line.
const END: &str = ".";
const START: &str = "journal:";

/// What is known of a volume.
#[derive(Debug, Clone)]
pub struct Known {
    pub kind: String,
    /// Bytes acknowledged.
    pub size: u64,
    /// Bytes of an expansion that began.
    pub growing: Option<u64>,
    /// From the answer to CreateVolume.
    pub id: Option<String>,
    /// Seed of each acknowledged file, in the order of their numbers.
    pub files: Vec<u64>,
    /// Whether DeleteVolume began.
    pub deleting: bool,
}

/// What is known of all volumes.
#[derive(Debug, Default)]
pub struct Journal {
    pub volumes: BTreeMap<String, Known>,
    /// Ids of deleted volumes.
    pub gone: BTreeSet<String>,
    /// Lines that were read.
    pub lines: usize,
}

impl Journal {
    /// Reads the console of the earlier rounds.
    pub fn read(console: &str) -> Self {
        let mut journal = Journal::default();
        for line in console.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [START, words @ .., END] = words.as_slice() {
                journal.take(words);
                journal.lines += 1;
            }
        }
        journal
    }

    fn take(&mut self, words: &[&str]) {
        let [what, name, rest @ ..] = words else { panic!("journal: {words:?}") };
        let number = |index: usize| rest[index].parse::<u64>().expect("a number");
        match *what {
            "creating" => {
                let new = Known {
                    kind: rest[0].to_owned(),
                    size: number(1),
                    growing: None,
                    id: None,
                    files: Vec::new(),
                    deleting: false,
                };
                self.volumes.entry((*name).to_owned()).or_insert(new);
            }
            "deleted" => {
                let volume = self.volumes.remove(*name).expect("it was there");
                self.gone.insert(volume.id.expect("it had an id"));
            }
            what => {
                let volume = self.volumes.get_mut(*name).expect("it was made");
                match what {
                    "created" => volume.id = Some(rest[0].to_owned()),
                    "wrote" => {
                        assert_eq!(number(0), volume.files.len() as u64, "{words:?}");
                        volume.files.push(number(1));
                    }
                    "expanding" => volume.growing = Some(number(0)),
                    "expanded" => (volume.size, volume.growing) = (number(0), None),
                    "deleting" => volume.deleting = true,
                    what => panic!("journal: {what}"),
                }
            }
        }
    }
}

/// Says a line, and returns when it has left the machine.
pub fn say(words: &str) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().expect("lock");
    let mut out = std::io::stdout();
    out.write_all(format!("{START} {words} {END}\n").as_bytes()).expect("console");
    out.flush().expect("console");
    nix::sys::termios::tcdrain(&out).expect("the console is a terminal");
}
