//! Writes the inputs from which the corpora began into a directory for each target below the one that is named: lives
//! of volumes as the tests have them, the state files of tests/golden, superblocks. For when a format changes.
#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "a tool of the tests")]

use std::path::PathBuf;
use std::{env, fs};

use hostloop_fuzz::seeds;

fn main() {
    let top = PathBuf::from(env::args_os().nth(1).expect("Usage: seeds DIRECTORY [STATE-FILE...]"));
    let states = env::args_os().skip(2).map(|file| fs::read(file).expect("a state file"));
    for (target, inputs) in seeds::all(states.collect()) {
        let directory = top.join(target);
        fs::create_dir_all(&directory).expect("a directory");
        for (number, input) in inputs.iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), input).expect("an input");
        }
    }
}
