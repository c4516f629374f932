//! Loop devices (loop(4)).

use std::io;
use std::path::{Path, PathBuf};

use super::FileId;

/// An attached loop device, as LOOP_GET_STATUS64 tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// N of /dev/loopN.
    pub number: u32,
    /// The backing file; `None` where the kernel does not tell, since the filesystem of the file has shut down.
    pub backing: Option<FileId>,
    /// Where the kernel does not tell which file it is: its name, as [`LoopDevices::backing_path`] gives it.
    pub known_as: Option<PathBuf>,
    /// `st_rdev` of its node.
    pub rdev: u64,
    /// Nothing can be written through it (LO_FLAGS_READ_ONLY).
    pub read_only: bool,
    /// The kernel detaches it when its last user closes it (LO_FLAGS_AUTOCLEAR).
    pub autoclear: bool,
    /// It reads and writes its image past the page cache (LO_FLAGS_DIRECT_IO).
    pub direct_io: bool,
}

impl LoopDevice {
    /// Its node, which a container's /dev may lack.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }
}

/// How to attach a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachOptions {
    /// Nothing can be written through the device.
    pub read_only: bool,
    /// The device goes away with its last user: its mount.
    pub autoclear: bool,
    /// Bypass the page cache of the filesystem that holds the image, where that is possible.
    pub direct_io: bool,
    /// Logical block size in bytes: 512 to 4096.
    pub block_size: u32,
    /// Whether the device may give blocks of the image back.
    pub discard: bool,
}

/// A loop device with an open descriptor on it, so that it outlives the moment even with autoclear.
pub struct OpenLoop {
    /// As it was when it was opened.
    pub device: LoopDevice,
    /// Keeps it open; dropped with the value.
    pub hold: Box<dyn Send + Sync>,
}

/// So many unused numbers stay. Whoever asks for a free one gets the lowest, and opens it a moment later: it must be
/// there then.
pub const SPARE: usize = 16;

/// Loop devices: an image as a block device.
pub trait LoopDevices: Send + Sync {
    /// Attaches a free device to the image with one LOOP_CONFIGURE; makes the device's node where /dev lacks
    /// it; takes the next device where another process was faster (EBUSY). With `discard` off it also sets
    /// the queue's `discard_max_bytes` to 0.
    fn attach(&self, image: &Path, options: AttachOptions) -> io::Result<OpenLoop>;
    /// Every device whose backing file is this one, by LOOP_GET_STATUS64, lowest number first. A device whose last
    /// user has gone may show for a moment longer while anybody (this method for another file, udev) looks at it.
    fn find(&self, backing: FileId) -> io::Result<Vec<LoopDevice>>;
    /// Devices that this process has attached or has seen ([`list`](LoopDevices::list)) and that may be those of this
    /// file, or of one in a directory whose path ends with `directory`; each as the kernel describes it now, lowest number
    /// first. It may be attached to something else by now. Where the process has not seen them all yet, it looks at all.
    ///
    /// What somebody else has attached meanwhile is not among them: that there is none has to be seen in another way
    /// ([`Files::seen_closed`](super::Files::seen_closed), or a list).
    fn seen(&self, backing: Option<FileId>, directory: &Path) -> io::Result<Vec<LoopDevice>>;
    /// The name of the backing file, as the kernel shows it to this process: followed by ` (deleted)` where it has none
    /// any more, and counted from the root of its mount where that is in no mount namespace, or in another one. `None`
    /// where nothing is attached any more. That the device still is the one that was found is made sure of by whatever is
    /// done to it.
    fn backing_path(&self, device: &LoopDevice) -> io::Result<Option<PathBuf>>;
    /// Opens a device that [`find`](LoopDevices::find) gave, made sure it still has the same backing file;
    /// makes its node where /dev lacks it. ENXIO where it has gone or changed.
    fn open(&self, device: &LoopDevice) -> io::Result<OpenLoop>;
    /// LOOP_CLR_FD, made sure that the device still has this backing file; fine if it is gone already. The
    /// kernel detaches a device that is still open when its last user closes it.
    fn detach(&self, device: &LoopDevice) -> io::Result<()>;
    /// Takes back a device that was detached while another process had it open: it no longer ends with its last user
    /// (LOOP_SET_STATUS64 without LO_FLAGS_AUTOCLEAR).
    ///
    /// # Errors
    /// ENXIO if it has gone or changed.
    fn keep(&self, device: &LoopDevice) -> io::Result<OpenLoop>;
    /// Returns what has the device open, for people: other loop devices and, as far as this process sees them, programs.
    ///
    /// # Errors
    /// If nothing is seen and this process does not see all programs, as in a container.
    fn holders(&self, device: &LoopDevice) -> io::Result<Vec<String>>;
    /// LOOP_SET_CAPACITY: the device takes on its image's size.
    fn update_size(&self, device: &LoopDevice) -> io::Result<()>;
    /// The device's size in bytes (BLKGETSIZE64).
    fn size(&self, device: &LoopDevice) -> io::Result<u64>;
    /// Every attached device, lowest number first.
    fn list(&self) -> io::Result<Vec<LoopDevice>>;
    /// LOOP_SET_DIRECT_IO on a device in use. EINVAL where the disk below cannot.
    fn set_direct_io(&self, device: &LoopDevice, on: bool) -> io::Result<()>;
    /// Stops a device in use from giving blocks of its image back (`discard_max_bytes` = 0). There is no way back
    /// but a new attachment.
    fn stop_discard(&self, device: &LoopDevice) -> io::Result<()>;
    /// LOOP_SET_BLOCK_SIZE on a device that nobody uses, not mounted and not open elsewhere; nothing where it has that
    /// logical block size.
    fn set_block_size(&self, device: &LoopDevice, bytes: u32) -> io::Result<()>;
    /// Gives the number of a device that was detached back as it was: where [`stop_discard`](LoopDevices::stop_discard)
    /// outlives the attachment (since Linux 6.9), the device is removed and made anew (LOOP_CTL_REMOVE, LOOP_CTL_ADD).
    /// Waits a moment for one that is about to go; nothing while it is attached to this or anything else.
    ///
    /// # Errors
    /// EBUSY where somebody keeps it open.
    fn give_back(&self, device: &LoopDevice) -> io::Result<()>;
    /// The same for every number that is not attached, whoever left it so; those that were given back.
    fn give_back_all(&self) -> io::Result<Vec<u32>>;
    /// Removes the numbers that nothing is attached to, of those that this process made (LOOP_CTL_REMOVE), but for the
    /// lowest [`SPARE`]; those that were removed. It made all that were not there when it attached its first device.
    fn remove_unused(&self) -> io::Result<Vec<u32>>;
    /// Returns a number that grows with each write to the device and with each discard; `None` if the kernel does not
    /// count them (Documentation/ABI/stable/sysfs-block, `stat` and `queue/iostats`).
    fn written(&self, device: &LoopDevice) -> io::Result<Option<u64>>;
    /// fsync(2) of the device: what its users have written is in the image.
    fn flush(&self, device: &LoopDevice) -> io::Result<()>;
}
