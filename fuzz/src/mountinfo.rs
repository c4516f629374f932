//! /proc/self/mountinfo, whose paths and types anybody who mounts chooses.

use hostloop::kernel::linux::parse_mountinfo;

/// Runs one input.
pub fn run(input: &[u8]) {
    let lines = input.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    match parse_mountinfo(input) {
        Ok(mounts) => assert_eq!(mounts.len(), lines, "each line is a mount"),
        Err(error) => assert!(error.to_string().contains("line"), "{error}"),
    }
}
