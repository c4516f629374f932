//! A directory with a data directory, kubelet's directory and a driver, and nothing of it left at the end.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::process::{binary, command, serve_flags};
use super::{
    Csi, Driver, Kind, eventually, kernel, mount_image, mount_loop, new_directory, output, run, text,
};

pub struct World {
    /// The test's own directory.
    pub dir: PathBuf,
    /// The driver's data directory.
    pub data: PathBuf,
    /// kubelet's directory.
    pub kubelet: PathBuf,
    pub socket: PathBuf,
    pub csi: Csi,
    flags: Vec<String>,
    /// The default pool is one of directory volumes.
    directories: bool,
    driver: Option<Driver>,
    pool: Option<PathBuf>,
    temp: Option<TempDir>,
}

impl World {
    /// A world without a driver yet, its data directory on the machine's disk.
    pub fn empty(flags: &[&str]) -> World {
        World::with_pool(None, flags)
    }

    /// A running driver.
    pub fn new(flags: &[&str]) -> World {
        let mut world = World::empty(flags);
        world.start();
        world
    }

    /// A running driver whose data directory is on a filesystem of this type and size.
    pub fn on(fs_type: &str, size: u64, flags: &[&str]) -> World {
        let mut world = World::empty_on(fs_type, size, flags);
        world.start();
        world
    }

    /// The same without a driver yet.
    pub fn empty_on(fs_type: &str, size: u64, flags: &[&str]) -> World {
        World::with_pool(Some((fs_type, size)), flags)
    }

    fn with_pool(pool: Option<(&str, u64)>, flags: &[&str]) -> World {
        let (temp, dir) = new_directory("hostloop-root-");
        // A space, as mountinfo and tools may get it wrong.
        let (kubelet, socket) = (dir.join("kube let"), dir.join("csi.sock"));
        let csi = Csi::new(&socket);
        let mount_point = pool.map(|_| dir.join("pool"));
        let data = mount_point.as_ref().unwrap_or(&dir).join("data");
        let flags = flags.iter().map(|f| (*f).to_owned()).collect();
        let world = World {
            dir,
            data,
            kubelet,
            socket,
            csi,
            flags,
            directories: false,
            driver: None,
            pool: mount_point,
            temp: Some(temp),
        };
        std::fs::create_dir(&world.kubelet).expect("mkdir");
        if let (Some((fs_type, size)), Some(mount_point)) = (pool, &world.pool) {
            mount_image(&world.dir.join("pool.img"), mount_point, fs_type, size);
        }
        world
    }

    /// The flags of the driver.
    pub fn arguments(&self) -> Vec<String> {
        let mut all = serve_flags(&self.socket, &self.data);
        all.extend(["--kubelet-dir".to_owned(), text(&self.kubelet).to_owned()]);
        if !self.flags.iter().any(|flag| flag == "--log-level") {
            all.extend(["--log-level", "debug"].map(str::to_owned));
        }
        if !self.flags.iter().any(|flag| flag == "--reserve") {
            all.extend(["--reserve", "0"].map(str::to_owned));
        }
        all.extend(self.flags.iter().cloned());
        all.extend(self.directories.then(|| "--directories".to_owned()));
        all
    }

    /// A running driver whose default pool is for volumes of this kind.
    pub fn for_kind(kind: Kind, flags: &[&str]) -> World {
        let mut world = World::empty_for(kind, flags);
        world.start();
        world
    }

    /// The same without a driver yet.
    pub fn empty_for(kind: Kind, flags: &[&str]) -> World {
        let mut world = World::empty(flags);
        world.directories = kind == Kind::Directory;
        world
    }

    /// Makes the default pool one for volumes of this kind, where it is not: by another start of the driver. Those of
    /// the other kind are gone before.
    pub fn serve(&mut self, kind: Kind) {
        let directories = kind == Kind::Directory;
        if self.directories != directories {
            self.take_driver().stop();
            self.directories = directories;
            self.start();
        }
    }

    /// Other flags, from the next start on.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|f| (*f).to_owned()).collect();
    }

    /// Another socket, from the next start on.
    pub fn set_socket(&mut self, socket: &Path) {
        (self.socket, self.csi) = (socket.to_owned(), Csi::new(socket));
    }

    /// Starts the driver and waits until it is ready.
    pub fn start(&mut self) {
        self.start_as(command(binary()).args(self.arguments()));
    }

    /// Starts the driver in another way.
    pub fn start_as(&mut self, command: &mut std::process::Command) {
        assert!(self.driver.is_none(), "it runs already");
        let mut driver = Driver::spawn(command, &self.dir.join("log"));
        driver.wait_ready(&self.csi);
        self.driver = Some(driver);
    }

    /// Starts a driver that stands still before its first instruction; its pid.
    pub fn start_stopped(&mut self) -> u32 {
        assert!(self.driver.is_none(), "it runs already");
        let mut stopped = command("sh");
        stopped.args(["-c", r#"kill -STOP $$; exec "$@""#, "sh", binary()]).args(self.arguments());
        let driver = Driver::spawn(&mut stopped, &self.dir.join("log"));
        eventually("it stands still", || driver.state() == 'T');
        self.driver.insert(driver).pid()
    }

    /// Lets it go on, until it serves.
    ///
    /// # Errors
    /// What it said last, where it has ended.
    pub fn go_on(&mut self) -> Result<(), String> {
        let csi = &self.csi;
        let driver = self.driver.as_mut().expect("it was started");
        driver.signal(Signal::SIGCONT);
        driver.until_ready(csi)
    }

    pub fn driver(&mut self) -> &mut Driver {
        self.driver.as_mut().expect("it runs")
    }

    /// Starts a process that has to end by itself, and gives the last line that it says.
    #[track_caller]
    pub fn refused(&self) -> String {
        let log = self.dir.join("log of the refused");
        let mut driver = Driver::spawn(command(binary()).args(self.arguments()), &log);
        eventually("it ends, or serves", || {
            !driver.runs() || self.csi.probe().is_ok_and(|answer| answer.ready == Some(true))
        });
        assert!(!driver.runs(), "it serves: {}", driver.log_text());
        assert_eq!(driver.wait().code(), Some(1), "{}", driver.log_text());
        driver.log_text().lines().last().unwrap_or_default().to_owned()
    }

    /// Unmounts the disk of the data directory.
    pub fn unmount_disk(&self) {
        run("umount", &[text(self.pool.as_ref().expect("a disk"))]);
    }

    /// Mounts it again.
    pub fn mount_disk(&self) {
        let pool = self.pool.as_ref().expect("a disk");
        mount_loop(&self.dir.join("pool.img"), pool);
    }

    /// Takes the running driver, to end it.
    pub fn take_driver(&mut self) -> Driver {
        self.driver.take().expect("it runs")
    }

    /// Kills the driver and starts it again.
    pub fn restart_after_kill(&mut self) {
        self.take_driver().kill();
        self.start();
    }

    /// The volume's own directory.
    pub fn volume_directory(&self, id: &str) -> PathBuf {
        self.data.join("volumes").join(id)
    }

    /// The image of a loop volume.
    pub fn image(&self, id: &str) -> PathBuf {
        self.volume_directory(id).join("disk.img")
    }

    /// A new directory below kubelet's.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.kubelet.join(name);
        std::fs::create_dir_all(&path).expect("mkdir");
        path
    }

    /// Asserts that no volume is left, no mount and no loop device, and ends the driver.
    pub fn finish(mut self) {
        if let Some(driver) = self.driver.take() {
            let left = self.csi.list(0, "").expect("ListVolumes").entries;
            assert!(left.is_empty(), "{left:?}");
            let left = self.csi.list_snapshots().expect("ListSnapshots");
            assert!(left.is_empty(), "{left:?}");
            driver.stop();
            assert!(!self.socket.exists(), "the socket is still there");
        }
        self.assert_nothing_left();
    }

    /// The same where no driver runs.
    pub fn assert_nothing_left(&self) {
        let mounted = kernel::mounts(&self.kubelet);
        assert!(mounted.is_empty(), "{mounted:?}");
        let volumes = self.data.join("volumes");
        eventually("no loop device is left", || kernel::loops(&volumes).is_empty());
        for place in ["volumes", "snapshots", "frozen"].map(|place| self.data.join(place)) {
            if place.exists() {
                let left: Vec<_> = std::fs::read_dir(&place).expect("list").collect();
                assert!(left.is_empty(), "{left:?}");
            }
        }
        if let Some(pool) = &self.pool {
            run("umount", &[text(pool)]);
        }
        eventually("no loop device is left", || kernel::loops(&self.dir).is_empty());
        let mounted = kernel::mounts(&self.dir);
        assert!(mounted.is_empty(), "{mounted:?}");
    }
}

impl Drop for World {
    /// Whatever a failed assertion left: the driver, mounts newest first, devices, files.
    fn drop(&mut self) {
        drop(self.driver.take());
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(25).collect();
            eprintln!("the driver's log, newest first:\n{}", lines.join("\n"));
        }
        for mount in kernel::mounts(&self.dir).iter().rev() {
            for number in kernel::loops(&mount.target) {
                output("losetup", &["-d", &format!("/dev/loop{number}")]);
            }
            output("umount", &[text(&mount.target)]);
        }
        for number in kernel::loops(&self.dir) {
            output("losetup", &["-d", &format!("/dev/loop{number}")]);
        }
        // Removing a tree enters mounts: better to leave the directory than what is mounted there.
        if let (false, Some(temp)) = (kernel::mounts(&self.dir).is_empty(), self.temp.take()) {
            eprintln!("left behind: {}", temp.keep().display());
        }
    }
}
