//! What the kernel of this machine says, as text for those who look into a problem. Nothing is changed, and nothing in it is secret: of
//! the environment of the driver, only its own variables are read.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "reads what the kernel shows of the machine, and no volume's files"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The largest part of one file that is read, in bytes.
const MOST: u64 = 64 << 20;
/// The most records of the kernel's log that are read.
const MOST_RECORDS: usize = 100_000;
/// The words of messages that are about filesystems and disks.
const WORDS: [&str; 13] = [
    "EXT4-fs",
    "XFS",
    "BTRFS",
    "JBD2",
    "loop",
    "I/O error",
    "blk_update_request",
    "hung_task",
    "blocked for more than",
    "nvme",
    "SCSI",
    "Out of memory",
    "hostloop",
];
/// The name of the part with the kernel's messages.
const MESSAGES: &str = "kernel-messages.txt";
/// The variables of the driver's environment that are its flags.
const VARIABLES: [&str; 3] = ["HOSTLOOP_", "CSI_ENDPOINT=", "NODE_ID="];

/// One part of the report.
#[derive(Debug)]
pub struct Part {
    /// The name of a file for it.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    pub text: io::Result<String>,
}

/// Reads all parts. One that cannot be read has the reason.
pub fn all() -> Vec<Part> {
    let flags = flags(Path::new("/proc"));
    let mut parts = of_kernel();
    parts.push(Part { name: "flags.txt", about: "the flags of the driver's processes", text: flags });
    parts
}

/// Reads what is of the kernel, and nothing of any process. One part that cannot be read has the reason.
pub fn of_kernel() -> Vec<Part> {
    let part = |name, about, text| Part { name, about, text };
    vec![
        part("kernel.txt", "the version of the kernel", read(Path::new("/proc/version"))),
        part("mountinfo.txt", "the mounts of this mount namespace", read(Path::new("/proc/self/mountinfo"))),
        part("loop-devices.txt", "the loop devices and their images", loop_devices(Path::new("/sys/block"))),
        part(MESSAGES, "what the kernel says of filesystems and disks", messages()),
    ]
}

impl Part {
    /// Returns the part with at most about `most` bytes of text, in whole lines, and a line that says what was left out. Of the kernel's
    /// messages the last ones are kept, and else the first lines.
    #[must_use]
    pub fn bounded(self, most: usize) -> Self {
        let keep = if self.name == MESSAGES { last_lines } else { first_lines };
        Part { text: self.text.map(|text| keep(text, most)), ..self }
    }
}

fn first_lines(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let kept = text.get(..end).unwrap_or_default();
    let kept = kept.rsplit_once('\n').map_or(kept, |(lines, _)| lines);
    format!("{kept}\n{} bytes that follow are left out\n", text.len().saturating_sub(kept.len()))
}

fn last_lines(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let least = text.len().saturating_sub(most);
    let start = (least..=text.len()).find(|start| text.is_char_boundary(*start)).unwrap_or(least);
    let kept = text.get(start..).unwrap_or_default();
    let kept = kept.split_once('\n').map_or(kept, |(_, lines)| lines);
    format!("{} bytes before this are left out\n{kept}", text.len().saturating_sub(kept.len()))
}

/// Reads a file as text, at most 64 MiB of it.
///
/// # Errors
/// The kernel's.
pub fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The command lines of the processes of the driver, with those of their variables that are flags.
fn flags(proc: &Path) -> io::Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(proc)? {
        let path = entry?.path();
        // A process may end meanwhile.
        let Ok(line) = read(&path.join("cmdline")) else { continue };
        let words: Vec<&str> = line.split('\0').filter(|word| !word.is_empty()).collect();
        let program = words.first().and_then(|word| Path::new(word).file_name());
        if program.is_none_or(|name| name != "hostloop") || words.get(1) != Some(&"serve") {
            continue;
        }
        text.push_str(&words.join(" "));
        text.push('\n');
        let environment = read(&path.join("environ")).unwrap_or_default();
        let ours = environment.split('\0').filter(|it| VARIABLES.iter().any(|name| it.starts_with(name)));
        ours.for_each(|variable| text.push_str(&format!("  {variable}\n")));
    }
    Ok(text)
}

/// A line for each loop device that has an image, as losetup(8) lists them.
fn loop_devices(block: &Path) -> io::Result<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(block)? {
        let path = entry?.path();
        let one = |name: &str| read(&path.join(name)).map(|text| text.trim().to_owned()).unwrap_or_default();
        let Ok(image) = read(&path.join("loop/backing_file")) else { continue };
        let device = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (size, read_only) = (one("size"), one("ro"));
        let (autoclear, direct_io) = (one("loop/autoclear"), one("loop/dio"));
        lines.push(format!(
            "/dev/{device} sectors={size} ro={read_only} autoclear={autoclear} dio={direct_io} {}",
            image.trim()
        ));
    }
    lines.sort();
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

/// The messages of the kernel about filesystems and disks.
fn messages() -> io::Result<String> {
    let mut log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
    let (mut text, mut record) = (String::new(), vec![0; 8192]);
    for _ in 0..MOST_RECORDS {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(read) => {
                let record = String::from_utf8_lossy(record.get(..read).unwrap_or_default()).into_owned();
                text.extend(message(&record));
            }
            // It was overwritten meanwhile; the next read is of the oldest that is there (Documentation/ABI/testing/dev-kmsg).
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(text)
}

/// Returns a record of the kernel's log as a line, if it is about filesystems or disks. A record is `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`.
fn message(record: &str) -> Option<String> {
    let (head, rest) = record.split_once(';')?;
    let text = rest.lines().next()?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    let is_meant = WORDS.iter().any(|word| text.contains(word));
    is_meant.then(|| format!("[{:>6}.{:06}] {text}\n", micros / 1_000_000, micros % 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_filesystems_are_kept() {
        let record = "3,1234,5000007,-;EXT4-fs error (device loop3): bad block\n SUBSYSTEM=block\n";
        assert_eq!(
            message(record).as_deref(),
            Some("[     5.000007] EXT4-fs error (device loop3): bad block\n")
        );
        for other in ["6,1,2,-;usb 1-1: new device", "no record", "6,1,x,-;XFS (loop0): Mounting", ""] {
            assert_eq!(message(other), None, "{other}");
        }
    }

    #[test]
    fn long_parts_keep_whole_lines() {
        let part = |name, text: &str| Part { name, about: "", text: Ok(text.to_owned()) };
        let bounded = |name, text: &str| part(name, text).bounded(9).text.unwrap();
        assert_eq!(
            bounded("mountinfo.txt", "one\ntwo\nthree\n"),
            "one\ntwo\n7 bytes that follow are left out\n"
        );
        assert_eq!(bounded(MESSAGES, "one\ntwo\nthree\n"), "8 bytes before this are left out\nthree\n");
        for whole in ["", "one\ntwo\n", "äöü\n"] {
            assert_eq!(
                (bounded(MESSAGES, whole), bounded("mountinfo.txt", whole)),
                (whole.into(), whole.into())
            );
        }
        for torn in ["ääääääää", "12345678ä"] {
            let text = bounded("mountinfo.txt", torn);
            assert!(torn.starts_with(text.lines().next().unwrap()), "{text}");
            assert!(bounded(MESSAGES, torn).ends_with(torn.chars().last().unwrap()));
        }
    }

    #[test]
    fn kernel_parts_have_nothing_of_processes() {
        let names: Vec<&str> = of_kernel().iter().map(|part| part.name).collect();
        assert_eq!(names, ["kernel.txt", "mountinfo.txt", "loop-devices.txt", MESSAGES]);
    }

    #[test]
    fn only_flags_of_the_driver_are_read() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: &str, line: &str, environment: &str| {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("cmdline"), line).unwrap();
            fs::write(proc.path().join(pid).join("environ"), environment).unwrap();
        };
        process(
            "7",
            "/bin/hostloop\0serve\0--attach\0",
            "AWS_SECRET=x\0HOSTLOOP_POOLS=fast=/mnt\0NODE_ID=n\0",
        );
        process("8", "/bin/sh\0-c\0serve\0", "HOSTLOOP_POOLS=other\0");
        process("9", "hostloop\0doctor\0", "");
        assert_eq!(
            flags(proc.path()).unwrap(),
            "/bin/hostloop serve --attach\n  HOSTLOOP_POOLS=fast=/mnt\n  NODE_ID=n\n"
        );
    }

    #[test]
    fn loop_devices_with_an_image_are_listed() {
        let block = tempfile::tempdir().unwrap();
        for (name, value) in [("loop3/size", "2048\n"), ("loop3/ro", "0\n"), ("loop3/loop/autoclear", "1\n")]
        {
            fs::create_dir_all(block.path().join(name).parent().unwrap()).unwrap();
            fs::write(block.path().join(name), value).unwrap();
        }
        fs::write(block.path().join("loop3/loop/backing_file"), "/data/volumes/v/disk.img\n").unwrap();
        fs::create_dir(block.path().join("loop4")).unwrap();
        assert_eq!(
            loop_devices(block.path()).unwrap(),
            "/dev/loop3 sectors=2048 ro=0 autoclear=1 dio= /data/volumes/v/disk.img\n"
        );
        assert!(
            all()
                .iter()
                .any(|part| part.name == "mountinfo.txt" && part.text.as_ref().unwrap().contains(" / "))
        );
    }
}
