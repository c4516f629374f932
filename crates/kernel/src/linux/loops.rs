//! Loop devices (loop(4)).
#![allow(clippy::disallowed_methods, reason = "sysfs is read and written for LoopDevices")]

mod seen;
mod status;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::fsync;

use super::super::{AttachOptions, FileId, LoopDevice, LoopDevices, OpenLoop, SPARE, errno_error, is_errno};
use super::node::{Node, open_node, sysfs};
use super::{at, block, discard, holders, id_of, ioctl, kind_bits};

use seen::Seen;
use status::{backing_name, describe, is_attached, look_at, numbers};

/// For how long the next device is tried if another process has taken the one we were given. On a busy machine, the others that attach
/// at the same moment may take hundreds of milliseconds.
const ATTACHING: Duration = Duration::from_secs(5);

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How often in a row the same device may be busy. It is free until a slow LOOP_CONFIGURE of another process ends, or for as long as a
/// program has it open for itself, and LOOP_CTL_GET_FREE answers nothing else meanwhile.
const BUSY: u32 = 8;

/// How many devices that cannot discard are replaced for one attach. Where a new one cannot either, the
/// administrator wants it so (a udev rule), and the image only stays larger than it needs to be.
const RENEWALS: u32 = 3;

/// The time for which opening an image is retried while another thread or process holds a lease on it.
/// A lease is held between two system calls, and a busy machine may run other processes meanwhile.
const LEASED: Duration = Duration::from_secs(5);

const CONTROL: &str = "/dev/loop-control";

/// How often and after which pause a device that is to be given back is looked at again: somebody else, such as udev,
/// may have it open for a moment.
const PATIENCE: (u32, Duration) = (50, Duration::from_millis(10));

/// The loop devices of this machine; they belong to no namespace.
#[derive(Default)]
pub(super) struct LinuxLoops {
    /// Attaching in this process goes one by one: otherwise all would be given the same free device and all but
    /// one try again.
    attaching: Mutex<()>,
    /// The numbers that were there when this process attached its first device; `None` if they could not be read.
    others: OnceLock<Option<BTreeSet<u32>>>,
    seen: Seen,
}

impl LinuxLoops {
    /// A device that may have gone since it was listed or seen.
    fn look(&self, number: u32) -> io::Result<Option<LoopDevice>> {
        match look_at(number) {
            Ok(device) => Ok(Some(device)),
            Err(e) if is_errno(&e, Errno::ENXIO) || is_errno(&e, Errno::ENODEV) => {
                self.seen.is_gone(number, || is_attached(number));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

fn open_control() -> io::Result<OwnedFd> {
    open(CONTROL, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(at("open", Path::new(CONTROL)))
}

/// The image as the loop driver is to use it.
fn open_image(path: &Path, read_only: bool) -> io::Result<(OwnedFd, FileId)> {
    let access = if read_only { OFlag::O_RDONLY } else { OFlag::O_RDWR };
    let flags = access | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let end = Instant::now() + LEASED;
    let image = loop {
        match open(path, flags, Mode::empty()) {
            // `Files::seen_closed` holds a lease for a moment. Without O_NONBLOCK, open(2) would block.
            Err(Errno::EWOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            opened => break opened.map_err(at("open", path))?,
        }
    };
    let stat = fstat(&image).map_err(at("stat", path))?;
    match kind_bits(&stat) {
        libc::S_IFREG => Ok((image, id_of(&stat))),
        _ => Err(errno_error(Errno::EINVAL, format_args!("attach {}: not a regular file", path.display()))),
    }
}

/// LOOP_CONFIGURE; a kernel that refuses direct I/O on this file gets another try without, as it is a wish.
fn configure(node: &Node, image: &OwnedFd, options: AttachOptions) -> nix::Result<()> {
    let AttachOptions { read_only, autoclear, direct_io, block_size, .. } = options;
    let with = |direct_io| ioctl::configure(&node.fd, image, block_size, read_only, autoclear, direct_io);
    match with(direct_io) {
        Err(Errno::EINVAL) if direct_io => with(false),
        result => result,
    }
}

/// Configures the first free device that nobody else takes meanwhile.
fn attach_free(image: &OwnedFd, options: AttachOptions, image_path: &Path) -> io::Result<(u32, Node)> {
    let control_path = Path::new(CONTROL);
    let control = open_control()?;
    let (mut renewed, mut fresh) = (0, None);
    let (mut busy, mut pause) = ((0, 0), Duration::ZERO);
    let end = Instant::now() + ATTACHING;
    while Instant::now() < end {
        let number = match fresh.take() {
            Some(number) => number,
            None => ioctl::free_device(&control).map_err(at("get a free device from", control_path))?,
        };
        match open_node(number, OFlag::O_RDWR) {
            Ok(node) => match configure(&node, image, options) {
                Ok(()) if options.discard && renewed < RENEWALS && discard::is_stuck(number) => {
                    renewed += 1;
                    fresh = renew(&control, number, node).map_err(at("renew a device with", control_path))?;
                }
                Ok(()) => return Ok((number, node)),
                Err(Errno::EBUSY) => {
                    busy = if busy.0 == number { (number, busy.1 + 1) } else { (number, 1) };
                    if busy.1 % BUSY == 0 {
                        // Without room for another device it stays with the one that is busy.
                        fresh = ioctl::add_device(&control, None).ok();
                    }
                }
                Err(errno) => return Err(at(&format!("attach /dev/loop{number} to"), image_path)(errno)),
            },
            // Removed again (LOOP_CTL_REMOVE) between the two calls.
            Err(e) if is_errno(&e, Errno::ENXIO) || is_errno(&e, Errno::ENODEV) => {}
            Err(e) => return Err(e),
        }
        std::thread::sleep(pause);
        pause = (pause + Duration::from_micros(100)).min(LONGEST_PAUSE);
    }
    Err(errno_error(
        Errno::EBUSY,
        format_args!(
            "attach {}: others took every free device, the last one was loop{}",
            image_path.display(),
            busy.0
        ),
    ))
}

/// Replaces a device that cannot discard any more ([`discard::is_stuck`]): detaches and removes it, so that
/// LOOP_CTL_GET_FREE makes it anew; gives the number of another new one where somebody has it open.
fn renew(control: &OwnedFd, number: u32, node: Node) -> nix::Result<Option<u32>> {
    ioctl::clear(&node.fd)?;
    drop(node);
    match ioctl::remove_device(control, number) {
        Ok(()) | Err(Errno::ENODEV) => Ok(None),
        Err(Errno::EBUSY) => ioctl::add_device(control, None).map(Some),
        Err(errno) => Err(errno),
    }
}

/// Removes a device that nobody has attached and that cannot discard any more, and makes one with its number anew, so
/// that the number is there as before. One that somebody attaches meanwhile is his: LOOP_CTL_REMOVE refuses it.
fn make_anew(number: u32) -> io::Result<()> {
    let control = open_control()?;
    let failed = |what: &str, errno| at(&format!("{what} loop{number} with"), Path::new(CONTROL))(errno);
    let (tries, pause) = PATIENCE;
    for _ in 1..tries {
        match ioctl::remove_device(&control, number) {
            Err(Errno::EBUSY) if is_attached(number) => return Ok(()),
            Err(Errno::EBUSY) => std::thread::sleep(pause),
            Err(Errno::ENODEV) => return Ok(()),
            Err(errno) => return Err(failed("remove", errno)),
            Ok(()) => {
                return match ioctl::add_device(&control, Some(number)) {
                    // Somebody else was faster, and it is anew as well.
                    Ok(_) | Err(Errno::EEXIST) => Ok(()),
                    Err(errno) => Err(failed("add", errno)),
                };
            }
        }
    }
    Err(failed("remove", Errno::EBUSY))
}

/// See [`LoopDevices::give_back`].
fn give_back(number: u32, backing: Option<FileId>) -> io::Result<()> {
    let (tries, pause) = PATIENCE;
    for _ in 1..tries {
        if !discard::is_stuck(number) {
            return Ok(());
        }
        if !is_attached(number) {
            return make_anew(number);
        }
        match look_at(number) {
            // It goes with whoever still has it open, unless it is mounted.
            Ok(now) if now.backing == backing && now.autoclear => std::thread::sleep(pause),
            Ok(_) => return Ok(()),
            Err(_) => {} // it went just now
        }
    }
    Ok(())
}

/// What becomes of a number is no reason to fail: its next user only cannot discard, and ours replace it.
fn or_log(number: u32, given_back: io::Result<()>) {
    if let Err(error) = given_back {
        tracing::warn!(number, %error, "the next user of this loop device cannot discard with it");
    }
}

/// What keeps a device open. One with autoclear may go with it, and its number is then given back.
struct Hold {
    fd: Option<OwnedFd>,
    number: u32,
}

impl Hold {
    fn on(node: Node, number: u32) -> Box<dyn Send + Sync> {
        Box::new(Hold { fd: Some(node.fd), number })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(self.fd.take());
        if !is_attached(self.number) && discard::is_stuck(self.number) {
            or_log(self.number, make_anew(self.number));
        }
    }
}

/// Opens a device and makes sure that it still has this backing file. It keeps it while it is open: the last
/// close is what detaches. Opened for reading only, which suffices for every ioctl used (we have CAP_SYS_ADMIN)
/// and does not make udev probe the device again when it is closed.
fn open_same(device: &LoopDevice) -> io::Result<(Node, LoopDevice)> {
    let path = device.path();
    let node = open_node(device.number, OFlag::O_RDONLY)?;
    let now = describe(device.number, &node)?;
    if (now.backing, &now.known_as) != (device.backing, &device.known_as) {
        return Err(errno_error(
            Errno::ENXIO,
            format_args!("open {}: it has another file now", path.display()),
        ));
    }
    Ok((node, now))
}

impl LoopDevices for LinuxLoops {
    fn attach(&self, image: &Path, options: AttachOptions) -> io::Result<OpenLoop> {
        let (file, id) = open_image(image, options.read_only)?;
        let (number, node) = {
            let _one = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
            self.others.get_or_init(|| numbers().ok().map(BTreeSet::from_iter));
            attach_free(&file, options, image)?
        };
        let disable = if options.discard { Ok(()) } else { discard::disable(number) };
        let checked = disable.and_then(|()| {
            let device = describe(number, &node)?;
            match device.backing == Some(id) {
                true => Ok(device),
                false => {
                    Err(errno_error(Errno::ESTALE, format_args!("attach {}: exchanged", image.display())))
                }
            }
        });
        match checked {
            Ok(device) => {
                self.seen.put(number, Some(id), Some(image.to_owned()));
                Ok(OpenLoop { device, hold: Hold::on(node, number) })
            }
            Err(error) => {
                // Nothing uses it yet: it goes when `node` is closed. The first error is the one to report.
                let _ = ioctl::clear(&node.fd);
                drop(Hold::on(node, number));
                Err(error)
            }
        }
    }

    fn list(&self) -> io::Result<Vec<LoopDevice>> {
        let since = self.seen.begin();
        let mut found = Vec::new();
        for number in numbers()?.into_iter().filter(|number| is_attached(*number)) {
            found.extend(self.look(number)?);
        }
        self.seen.end(since, &found, backing_name)?;
        Ok(found)
    }

    fn seen(&self, backing: Option<FileId>, directory: &Path) -> io::Result<Vec<LoopDevice>> {
        let Some(numbers) = self.seen.to_ask(backing, directory) else {
            return self.list();
        };
        let mut found = Vec::new();
        for number in numbers {
            found.extend(self.look(number)?);
        }
        Ok(found)
    }

    fn find(&self, backing: FileId) -> io::Result<Vec<LoopDevice>> {
        let all = self.list()?;
        Ok(all.into_iter().filter(|device| device.backing == Some(backing)).collect())
    }

    fn backing_path(&self, device: &LoopDevice) -> io::Result<Option<PathBuf>> {
        backing_name(device.number)
    }

    fn open(&self, device: &LoopDevice) -> io::Result<OpenLoop> {
        let (node, device) = open_same(device)?;
        let number = device.number;
        Ok(OpenLoop { device, hold: Hold::on(node, number) })
    }

    fn detach(&self, device: &LoopDevice) -> io::Result<()> {
        let cleared = open_same(device)
            .and_then(|(node, _)| ioctl::clear(&node.fd).map_err(at("detach", &device.path())));
        match cleared {
            Err(e) if is_errno(&e, Errno::ENXIO) => Ok(()),
            result => result,
        }?;
        or_log(device.number, give_back(device.number, device.backing));
        Ok(())
    }

    fn keep(&self, device: &LoopDevice) -> io::Result<OpenLoop> {
        // The descriptor holds it until the flag is gone.
        let (node, _) = open_same(device)?;
        ioctl::keep(&node.fd).map_err(at("keep", &device.path()))?;
        let device = describe(device.number, &node)?;
        Ok(OpenLoop { device, hold: Box::new(node) })
    }

    fn holders(&self, device: &LoopDevice) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for number in numbers()?.into_iter().filter(|number| *number != device.number) {
            let opened = open_node(number, OFlag::O_RDONLY).ok();
            if opened
                .and_then(|node| ioctl::status(&node.fd).ok())
                .is_some_and(|s| s.of_device == device.rdev)
            {
                found.push(format!("/dev/loop{number} is attached to it"));
            }
        }
        found.extend(holders::holders(device.rdev));
        match found.is_empty() && !holders::sees_all() {
            true => Err(io::Error::other("the programs outside of this container are not seen")),
            false => Ok(found),
        }
    }

    fn update_size(&self, device: &LoopDevice) -> io::Result<()> {
        let (node, _) = open_same(device)?;
        ioctl::set_capacity(&node.fd).map_err(at("set the capacity of", &device.path()))
    }

    fn size(&self, device: &LoopDevice) -> io::Result<u64> {
        let (node, _) = open_same(device)?;
        ioctl::device_size(&node.fd).map_err(at("get the size of", &device.path()))
    }

    fn set_direct_io(&self, device: &LoopDevice, on: bool) -> io::Result<()> {
        let (node, _) = open_same(device)?;
        ioctl::set_direct_io(&node.fd, on).map_err(at("set direct I/O of", &device.path()))
    }

    fn stop_discard(&self, device: &LoopDevice) -> io::Result<()> {
        // Open meanwhile, so that the number stays this device's.
        let _open = open_same(device)?;
        discard::disable(device.number)
    }

    fn set_block_size(&self, device: &LoopDevice, bytes: u32) -> io::Result<()> {
        let (node, _) = open_same(device)?;
        let path = sysfs(device.number, "queue/logical_block_size");
        let now = std::fs::read_to_string(&path).map_err(at("read", &path))?;
        if now.trim().parse() == Ok(bytes) {
            return Ok(());
        }
        ioctl::set_block_size(&node.fd, bytes).map_err(at("set the block size of", &device.path()))
    }

    fn give_back(&self, device: &LoopDevice) -> io::Result<()> {
        give_back(device.number, device.backing)
    }

    fn give_back_all(&self) -> io::Result<Vec<u32>> {
        let mut given = Vec::new();
        for number in numbers()? {
            if !is_attached(number) && discard::is_stuck(number) {
                make_anew(number)?;
                given.push(number);
            }
        }
        Ok(given)
    }

    fn remove_unused(&self) -> io::Result<Vec<u32>> {
        let Some(Some(others)) = self.others.get() else { return Ok(Vec::new()) };
        let unused =
            numbers()?.into_iter().filter(|number| !others.contains(number) && !is_attached(*number));
        // The highest are those that nobody is given.
        let unused: Vec<u32> = unused.skip(SPARE).collect();
        let mut removed = Vec::new();
        for number in unused.into_iter().rev() {
            // Not for longer: each takes milliseconds.
            let _one = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
            match ioctl::remove_device(open_control()?, number) {
                Ok(()) => removed.push(number),
                Err(Errno::EBUSY | Errno::ENODEV) => {} // somebody was faster
                Err(errno) => {
                    return Err(at(&format!("remove loop{number} with"), Path::new(CONTROL))(errno));
                }
            }
        }
        Ok(removed)
    }

    fn written(&self, device: &LoopDevice) -> io::Result<Option<u64>> {
        block::written(device.rdev)
    }

    fn flush(&self, device: &LoopDevice) -> io::Result<()> {
        let (node, _) = open_same(device)?;
        fsync(&node.fd).map_err(at("fsync", &device.path()))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files of the test")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Somebody who asks whether the image is open takes a lease on it, again and again.
    #[test]
    fn an_image_with_a_lease_is_opened_a_moment_later() {
        let temp = tempfile::tempdir().expect("tempdir");
        let image = temp.path().join("disk.img");
        let looking = std::fs::File::create(&image).expect("create");
        let (alone, end) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    if ioctl::is_only_open_here(&looking).expect("ask") {
                        alone.store(true, Ordering::Relaxed);
                    }
                }
            });
            let mut opened: Vec<_> = (0..5000).map(|_| open_image(&image, false).map(drop)).collect();
            // On a busy machine the other thread may not have had its turn between two of those.
            while opened.iter().all(Result::is_ok) && !alone.load(Ordering::Relaxed) && !asks.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
                opened.push(open_image(&image, false).map(drop));
            }
            end.store(true, Ordering::Relaxed);
            assert!(opened.iter().all(Result::is_ok), "{:?}", opened.iter().find(|opened| opened.is_err()));
        });
        assert!(alone.load(Ordering::Relaxed), "nobody ever had the lease");
    }
}
