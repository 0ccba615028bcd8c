//! Loopback ports for servers, each claimed by one process.
//!
//! A port is claimed by a locked file. So it stays claimed while its server is stopped, when nobody listens
//! on it: the server of another test would tell the clients of this one that their sessions have expired.
//!
//! The tests of this crate include this file.

#![allow(dead_code, reason = "the tests use more of it than the library")]

use std::env;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// The range is below that of the ports that the kernel gives to clients. Otherwise a client that tries
/// again and again to reach a stopped server may be given the very port that it connects to, and is then
/// connected to itself.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A free port, claimed until this is dropped.
#[derive(Debug)]
pub(crate) struct Port(pub(crate) u16);

impl Port {
    pub(crate) fn claim_free() -> io::Result<Port> {
        free_port().map(Port)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        release(self.0);
    }
}

/// Claims a free loopback port for this process, until it ends or [`release`]s the port.
pub(crate) fn free_port() -> io::Result<u16> {
    static START: OnceLock<u16> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = *START.get_or_init(|| {
        remove_unlocked(&directory());
        // Processes that run side by side start at different places.
        (RandomState::new().hash_one(0) % u64::from(COUNT)) as u16
    });
    for _ in 0..COUNT {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        let port = FIRST + offset;
        if claim(port)? {
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
            release(port);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        format!("no port from {FIRST} to {} is free", FIRST + COUNT - 1),
    ))
}

/// The ports that this process has claimed, with their locked files.
static CLAIMS: Mutex<Vec<(u16, File)>> = Mutex::new(Vec::new());

/// Claims a port; false if this process or another one has it already.
pub(crate) fn claim(port: u16) -> io::Result<bool> {
    let directory = directory();
    let claimed = fs::create_dir_all(&directory)
        .and_then(|()| lock_file(&directory.join(port.to_string())))
        .map_err(|cause| {
            let text = format!("cannot claim a port in {}: {cause}", directory.display());
            io::Error::new(cause.kind(), text)
        })?;
    Ok(claimed.is_some_and(|file| {
        CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).push((port, file));
        true
    }))
}

/// Releases a port.
pub(crate) fn release(port: u16) {
    let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = claims.iter().position(|(claimed, _)| *claimed == port) {
        let (_, locked) = claims.swap_remove(at);
        remove(locked, &directory().join(port.to_string()));
    }
}

/// Makes a file and locks it; `None` if it is locked already.
fn lock_file(path: &Path) -> io::Result<Option<File>> {
    // Each further attempt means that another process has released the same port in this moment.
    for _ in 0..10 {
        let file = File::create(path)?;
        match lock(&file, path) {
            Locked::Yes => return Ok(Some(file)),
            Locked::ByAnother => return Ok(None),
            Locked::Removed => {}
        }
    }
    Ok(None)
}

#[derive(Debug, PartialEq, Eq)]
enum Locked {
    Yes,
    ByAnother,
    /// The file was removed after it was opened: other processes lock another file now.
    Removed,
}

fn lock(file: &File, path: &Path) -> Locked {
    if flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Locked::ByAnother;
    }
    let identity = |file: fs::Metadata| (file.dev(), file.ino());
    match (file.metadata().map(identity), fs::metadata(path).map(identity)) {
        (Ok(ours), Ok(there)) if ours == there => Locked::Yes,
        _ => Locked::Removed,
    }
}

/// Removes a file while it is still locked: whoever has it open finds out.
fn remove(locked: File, path: &Path) {
    // A file that stays is removed later, by another process.
    let _ = fs::remove_file(path);
    // Closing it is not enough: a child that this process starts at this moment has it open, too, until it
    // runs its program.
    let _ = flock(&locked, FlockOperation::Unlock);
}

/// Removes the files of processes that have ended without releasing their ports.
fn remove_unlocked(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(file) = File::open(&path) else { continue };
        if lock(&file, &path) == Locked::Yes {
            remove(file, &path);
        }
    }
}

/// One for each user, since a user cannot write to another one's files.
fn directory() -> PathBuf {
    let user = fs::metadata("/proc/self").map_or(0, |process| process.uid());
    env::temp_dir().join(format!("zklock-ports-{user}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            // This file is part of several modules, which may be tested in one process.
            let module = module_path!().replace("::", "-");
            let name = format!("zklock-test-{name}-{}-{module}", std::process::id());
            let path = env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_port_is_claimed_once_and_its_file_removed() {
        let directory = Directory::new("once");
        let path = directory.0.join("port");
        let file = lock_file(&path).unwrap().expect("it is free");
        assert!(lock_file(&path).unwrap().is_none());
        remove(file, &path);
        assert!(!path.exists());
        assert!(lock_file(&path).unwrap().is_some());
    }

    #[test]
    fn the_lock_of_a_removed_file_claims_nothing() {
        let directory = Directory::new("removed");
        let path = directory.0.join("port");
        let first = lock_file(&path).unwrap().expect("it is free");
        // It was opened before the first was removed.
        let late = File::open(&path).unwrap();
        assert_eq!(lock(&late, &path), Locked::ByAnother);
        // As a child has it that another thread starts.
        let _inherited = first.try_clone().unwrap();
        remove(first, &path);
        assert_eq!(lock(&late, &path), Locked::Removed);
        let _next = lock_file(&path).unwrap().expect("it is free");
        assert_eq!(lock(&late, &path), Locked::Removed);
    }

    #[test]
    fn files_without_a_process_are_removed() {
        let directory = Directory::new("unlocked");
        let [left, claimed] = ["left", "claimed"].map(|name| directory.0.join(name));
        File::create(&left).unwrap();
        let _file = lock_file(&claimed).unwrap().expect("it is free");
        remove_unlocked(&directory.0);
        assert!(!left.exists());
        assert!(claimed.exists());
    }
}
