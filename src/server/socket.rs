//! The Unix socket: private before anybody can reach it, never in place of something else, and removed at the end. No
//! other file is made beside it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the socket is the process' own, no volume's: the fake kernel has no sockets"
)]

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// The mode of the socket's directory where it is made: the permissions of the socket itself decide who connects.
const DIRECTORY_MODE: u32 = 0o750;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;
/// How long another process may take to accept a connection before it counts as serving all the same.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a socket is to be.
#[derive(Debug, Clone, Copy)]
pub struct SocketPlace<'a> {
    /// Its path.
    pub path: &'a Path,
    /// The flag that says so, for messages.
    pub flag: &'static str,
    /// Whether its directory is made if it is missing.
    pub make_directory: bool,
}

/// Why there is no socket. Messages name the path and the flag.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Someone answers there.
    #[error("another process serves {path}; stop it or choose another {flag}")]
    InUse {
        path: PathBuf,
        /// Whose path it is.
        flag: &'static str,
    },
    /// Something that is not a socket lies there.
    #[error("{path} already exists and is {what}; remove it or choose another {flag}")]
    Foreign {
        path: PathBuf,
        what: &'static str,
        /// Whose path it is.
        flag: &'static str,
    },
    #[error("{doing} {path}: {source} ({flag})")]
    Io {
        /// Whose path it is.
        flag: &'static str,
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// The socket in the file system. Removed with the value, if it is still the one that was made.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Keeps the inode, so that its number cannot come to stand for the socket of a process after this one.
    pin: File,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(path = %self.path.display(), %error, "the socket could not be removed");
        }
    }
}

impl SocketFile {
    fn remove(&self) -> io::Result<()> {
        let ours = self.pin.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (ours.dev(), ours.ino()) => {
                fs::remove_file(&self.path)
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Listens at `place` with these permissions. What is left of a process that died is replaced.
///
/// # Errors
/// [`SocketError`], with the path and the flag, where that is not possible.
pub async fn bind(place: SocketPlace<'_>, mode: u32) -> Result<(UnixListener, SocketFile), SocketError> {
    let SocketPlace { path, flag, make_directory } = place;
    let failed = |doing: &'static str, path: &Path| failed(flag, doing, path);
    if let Some(directory) = path.parent().filter(|_| make_directory) {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(DIRECTORY_MODE).create(directory);
        made.map_err(failed("make the directory", directory))?;
    }
    remove_stale(place).await?;
    let socket = UnixSocket::new_stream().map_err(failed("make a socket for", path))?;
    // Linux takes the mode of the file from the socket that is bound, less the umask (unix_bind). Nobody can
    // connect before listen(2), so that adding what the umask took away is in time.
    let handle = socket.as_fd().try_clone_to_owned().map_err(failed("prepare", path))?;
    File::from(handle).set_permissions(Permissions::from_mode(mode)).map_err(failed("prepare", path))?;
    socket.bind(path).map_err(failed("bind", path))?;
    let pin = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path);
    let file = SocketFile { path: path.to_owned(), pin: pin.map_err(failed("open", path))? };
    let found = file.pin.metadata().map_err(failed("look at", path))?.permissions().mode() & 0o777;
    if found != mode {
        fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(failed("set the permissions of", path))?;
    }
    let listener = socket.listen(BACKLOG).map_err(failed("listen on", path))?;
    Ok((listener, file))
}

/// Removes a socket that nobody serves any more.
async fn remove_stale(place: SocketPlace<'_>) -> Result<(), SocketError> {
    let SocketPlace { path, flag, .. } = place;
    let failed = |doing: &'static str, path: &Path| failed(flag, doing, path);
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", path)(error)),
    };
    if !kind.is_socket() {
        let what = match kind {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_symlink() => "a symbolic link",
            kind if kind.is_file() => "a regular file",
            _ => "no socket",
        };
        return Err(SocketError::Foreign { path: path.to_owned(), what, flag });
    }
    match tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing the socket of a process that is gone");
            fs::remove_file(path).map_err(failed("remove the old socket", path))
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Whatever it says, someone holds it: also a queue that is full, or a socket of another type.
        Ok(_) | Err(_) => Err(SocketError::InUse { path: path.to_owned(), flag }),
    }
}

fn failed(
    flag: &'static str,
    doing: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> SocketError + use<> {
    let path = path.to_owned();
    move |source| SocketError::Io { flag, doing, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener as StdListener};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    async fn bind(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), SocketError> {
        super::bind(SocketPlace { path, flag: "--endpoint", make_directory: true }, mode).await
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_and_goes_with_its_value() {
        let dir = tempfile::tempdir().unwrap();
        for wanted in [0o600, 0o660, 0o777] {
            let path = dir.path().join("new/deep/csi.sock");
            let (listener, file) = bind(&path, wanted).await.unwrap();
            assert_eq!(mode(&path), wanted);
            assert_eq!(mode(path.parent().unwrap()) & 0o027, 0, "no more than 0750");
            assert_eq!(names(path.parent().unwrap()), ["csi.sock"], "nothing beside it");
            assert!(UnixStream::connect(&path).await.is_ok());
            drop((listener, file));
            assert!(names(path.parent().unwrap()).is_empty());
        }
    }

    /// What [`bind`] relies on: the file has the socket's mode the moment it is there.
    #[tokio::test]
    async fn the_kernel_takes_the_mode_of_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let socket = UnixSocket::new_stream().unwrap();
        let handle = File::from(socket.as_fd().try_clone_to_owned().unwrap());
        handle.set_permissions(Permissions::from_mode(0o600)).unwrap();
        socket.bind(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        let refused = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "not reachable before listen");
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        drop(StdListener::bind(&path).unwrap());
        let (_listener, _file) = bind(&path, 0o600).await.unwrap();
        let error = bind(&path, 0o600).await.unwrap_err();
        assert!(error.to_string().starts_with("another process serves"), "{error}");
        assert!(UnixStream::connect(&path).await.is_ok(), "the first one still serves");
    }

    #[tokio::test]
    async fn a_file_that_is_no_stale_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "precious").unwrap();
        fs::create_dir(at("directory")).unwrap();
        let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
        drop(StdListener::bind(at("stale")).unwrap());
        std::os::unix::fs::symlink(at("stale"), at("link")).unwrap();
        for (name, hint) in [
            ("file", "a regular file"),
            ("directory", "a directory"),
            ("link", "a symbolic link"),
            ("datagram", "another process"),
        ] {
            let error = bind(&at(name), 0o600).await.unwrap_err().to_string();
            assert!(error.contains(hint) && error.contains(name), "{error}");
        }
        assert_eq!(names(dir.path()), ["datagram", "directory", "file", "link", "stale"]);
        assert_eq!(fs::read(at("file")).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn the_socket_of_a_successor_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let (_listener, file) = bind(&path, 0o600).await.unwrap();
        fs::remove_file(&path).unwrap();
        let successor = StdListener::bind(&path).unwrap();
        drop(file);
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(successor);
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let error = bind(&dir.path().join("file/csi.sock"), 0o600).await.unwrap_err().to_string();
        assert!(error.contains("--endpoint") && error.contains("/file"), "{error}");
    }

    #[tokio::test]
    async fn a_directory_that_is_not_to_be_made_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none/a.sock");
        let place = SocketPlace { path: &path, flag: "--registration-dir", make_directory: false };
        let error = super::bind(place, 0o600).await.unwrap_err().to_string();
        assert!(error.contains("--registration-dir") && error.contains("/none/a.sock"), "{error}");
        assert!(names(dir.path()).is_empty());
    }
}
