//! Disks that are played: files of a FUSE filesystem, to which loop devices are attached. What a loop device asks of its
//! file, the disk is asked: reads, writes, discards and flushes. Changes are recorded, in one order over all disks; and
//! requests of each kind can fail, or not be answered.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};

use crate::record::{Change, Recording, erase};

/// Attributes never change, so that the kernel may keep them.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
/// The number of the first disk's inode; that of the directory is 1.
const FIRST: u64 = 2;

/// What becomes of requests of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fault {
    /// They are served.
    #[default]
    None,
    /// So many of the next ones fail with EIO.
    Fails(u32),
    /// They are not answered until the disk is well again.
    Hangs,
}

/// Every one fails.
pub const ALWAYS: Fault = Fault::Fails(u32::MAX);

/// What is wrong with a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trouble {
    pub reads: Fault,
    pub writes: Fault,
    pub flushes: Fault,
}

impl Trouble {
    /// The same for all requests.
    pub fn all(fault: Fault) -> Trouble {
        Trouble { reads: fault, writes: fault, flushes: fault }
    }
}

/// A request whose answer waits.
type Waiting = Box<dyn FnOnce() + Send>;

/// One disk's file and state.
struct Disk {
    file: File,
    trouble: Mutex<Trouble>,
    waiting: Mutex<Vec<Waiting>>,
    /// Requests that failed so far.
    failed: Mutex<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// What becomes of the next request.
    fn next(&self, which: fn(&mut Trouble) -> &mut Fault) -> Fault {
        let mut trouble = lock(&self.trouble);
        let fault = which(&mut trouble);
        let now = *fault;
        if let Fault::Fails(left) = now {
            *lock(&self.failed) += 1;
            *fault = match left {
                u32::MAX => now,
                1 => Fault::None,
                left => Fault::Fails(left - 1),
            };
        }
        now
    }
}

struct Server {
    disks: Arc<Vec<Disk>>,
    /// Of each disk, in bytes.
    size: u64,
    recording: Arc<Recording>,
}

impl Server {
    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match u64::from(ino) {
            1 => (FileType::Directory, 0),
            number if number < FIRST + self.disks.len() as u64 => (FileType::RegularFile, self.size),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        })
    }

    /// Serves a request as the disk's faults want it, and hands what came of it to `answer`.
    fn serve<T>(
        &self,
        ino: INodeNo,
        which: fn(&mut Trouble) -> &mut Fault,
        serve: impl FnOnce(&Recording, usize, &File) -> io::Result<T> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let number = (u64::from(ino) - FIRST) as usize;
        let (disks, recording) = (Arc::clone(&self.disks), Arc::clone(&self.recording));
        let fault = self.disks[number].next(which);
        if let Fault::Fails(_) = fault {
            return answer(Err(Errno::EIO));
        }
        let work = move || answer(serve(&recording, number, &disks[number].file).map_err(Errno::from));
        match fault {
            Fault::Hangs => lock(&self.disks[number].waiting).push(Box::new(work)),
            _ => work(),
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = name.to_str().and_then(|name| name.strip_prefix("disk")?.parse::<u64>().ok());
        match number.and_then(|number| self.attributes(INodeNo(number + FIRST))) {
            Some(attributes) => reply.entry(&FOR_EVER, &attributes, Generation(0)),
            None => reply.error(Errno::from_i32(libc::ENOENT)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&FOR_EVER, &attributes),
            None => reply.error(Errno::from_i32(libc::ENOENT)),
        }
    }

    /// Nothing of it in the page cache: the disk is asked each time.
    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    /// Of close(2), which is not a flush.
    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.size.saturating_sub(offset)) as usize;
        let read = move |_: &Recording, _: usize, file: &File| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset).map(|()| bytes)
        };
        self.serve(
            ino,
            |trouble| &mut trouble.reads,
            read,
            move |done| match done {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (data, len) = (data.to_vec(), data.len() as u32);
        let write = move |recording: &Recording, number: usize, file: &File| {
            recording.add(number, Change::Write { offset, bytes: &data })?;
            file.write_all_at(&data, offset)
        };
        self.serve(
            ino,
            |trouble| &mut trouble.writes,
            write,
            move |done| match done {
                Ok(()) => reply.written(len),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            return reply.error(Errno::from_i32(libc::EOPNOTSUPP));
        }
        let zero = move |recording: &Recording, number: usize, file: &File| {
            recording.add(number, Change::Zero { offset, len: length })?;
            erase(file, offset, length)
        };
        self.serve(
            ino,
            |trouble| &mut trouble.writes,
            zero,
            move |done| match done {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let flush = |recording: &Recording, number: usize, _: &File| recording.add(number, Change::Flush);
        self.serve(
            ino,
            |trouble| &mut trouble.flushes,
            flush,
            move |done| match done {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            },
        );
    }
}

/// Disks of one size, which go when this is dropped; nothing may use them then.
pub struct Disks {
    directory: PathBuf,
    disks: Arc<Vec<Disk>>,
    pub recording: Arc<Recording>,
    session: Option<BackgroundSession>,
}

impl Disks {
    /// So many disks, empty, of `size` bytes each. `directory` is made: they are its files `disk0`, `disk1` …
    pub fn new(directory: &Path, count: usize, size: u64) -> Disks {
        assert!(Path::new("/dev/fuse").exists(), "these tests need /dev/fuse (modprobe fuse)");
        std::fs::create_dir(directory).expect("mkdir");
        let disk = |_| {
            let file = tempfile::tempfile_in("/var/tmp").expect("a file");
            file.set_len(size).expect("its size");
            Disk { file, trouble: Mutex::default(), waiting: Mutex::default(), failed: Mutex::default() }
        };
        let disks = Arc::new((0..count).map(disk).collect::<Vec<_>>());
        let recording = Arc::new(Recording::new());
        let server = Server { disks: Arc::clone(&disks), size, recording: Arc::clone(&recording) };
        let session = fuser::spawn_mount(server, directory, &Config::default()).expect("mount FUSE");
        Disks { directory: directory.to_owned(), disks, recording, session: Some(session) }
    }

    /// The file of a disk.
    pub fn path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("disk{number}"))
    }

    /// From now on this is wrong with a disk. What waits is served as soon as nothing hangs.
    pub fn trouble(&self, number: usize, trouble: Trouble) {
        let disk = &self.disks[number];
        *lock(&disk.trouble) = trouble;
        if ![trouble.reads, trouble.writes, trouble.flushes].contains(&Fault::Hangs) {
            std::mem::take(&mut *lock(&disk.waiting)).into_iter().for_each(|work| work());
        }
    }

    /// Works while something is wrong with a disk, and ends that, also after a panic: else nothing here would ever end.
    /// How many requests waited at the end.
    pub fn well_after(&self, number: usize, work: impl FnOnce()) -> usize {
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let waiting = self.waiting(number);
        self.trouble(number, Trouble::default());
        match worked {
            Ok(()) => waiting,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// How many requests of a disk have failed.
    pub fn failed(&self, number: usize) -> u64 {
        *lock(&self.disks[number].failed)
    }

    /// How many requests of a disk wait.
    pub fn waiting(&self, number: usize) -> usize {
        lock(&self.disks[number].waiting).len()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        (0..self.disks.len()).for_each(|number| self.trouble(number, Trouble::default()));
        if let Some(session) = self.session.take()
            && let Err(error) = session.umount_and_join()
        {
            eprintln!("the disks in {} stay: {error}", self.directory.display());
        }
    }
}
