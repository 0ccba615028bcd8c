//! `zklock token check`: fencing for shell scripts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use zklock::FencingToken;

use crate::args::TokenCheck;
use crate::exit::{Exit, Failure};
use crate::words::lasting;

/// How long another process may have the file locked; a check takes milliseconds.
const LOCKED_WITHIN: Duration = Duration::from_secs(30);

/// Whether the token is at least the greatest one that the file has seen; if so, the file has it from now on.
pub(crate) fn check(options: &TokenCheck) -> Result<Exit, Failure> {
    let token: FencingToken = options
        .token
        .parse()
        .map_err(|_| Failure::usage(format!("{:?} is no fencing token", options.token)))?;
    let unusable =
        |why: io::Error| Failure::new(Exit::Failed, format!("{}: {why}", options.file.display()));
    if create(&options.file, token).map_err(unusable)? {
        return Ok(Exit::Success);
    }
    let mut file = locked(&options.file).map_err(unusable)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unusable)?;
    let greatest: FencingToken = text.trim().parse().map_err(|_| {
        unusable(io::Error::other("its content is no fencing token, so nobody knows who was here"))
    })?;
    if greatest > token {
        return Err(Failure::new(
            Exit::No,
            format!("token {token} is older than {greatest}: a later holder has been here"),
        ));
    }
    if greatest < token {
        // All tokens are of one length, so the write replaces the old one at once.
        file.rewind().and_then(|()| write(&mut file, token)).map_err(unusable)?;
    }
    Ok(Exit::Success)
}

/// Makes the file with its first token; false if it exists. It never is there without a token: a full disk
/// must not make it forget.
fn create(path: &Path, token: FencingToken) -> io::Result<bool> {
    if path.try_exists()? {
        return Ok(false);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Other processes may check the same token.
    name.push(format!(".{token}.{}", process::id()));
    let first = path.with_file_name(name);
    let created = File::create(&first)
        .and_then(|mut file| write(&mut file, token))
        .and_then(|()| fs::hard_link(&first, path));
    let removed = fs::remove_file(&first);
    match created {
        Err(why) if why.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(why) => Err(why),
        Ok(()) => removed.map(|()| true),
    }
}

fn write(file: &mut File, token: FencingToken) -> io::Result<()> {
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()
}

/// The file, which no other check uses meanwhile.
fn locked(path: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // A pipe or a device may have no end.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let (sender, locked) = mpsc::channel();
    thread::Builder::new().name("zklock-token".to_owned()).spawn(move || {
        let _ = sender.send(Flock::lock(file, FlockArg::LockExclusive));
    })?;
    match locked.recv_timeout(LOCKED_WITHIN) {
        Ok(locked) => locked.map_err(|(_, why)| why.into()),
        Err(_) => {
            let why = format!("another process has had it locked for {}", lasting(LOCKED_WITHIN));
            Err(io::Error::other(why))
        }
    }
}
