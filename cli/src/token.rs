//! `zklock token check`: fencing for shell scripts.

use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};

use nix::fcntl::{Flock, FlockArg};
use zklock::FencingToken;

use crate::exit::{Exit, Failure};
use crate::options::TokenCheck;

/// Whether the token is at least the greatest one that the file has seen; if so, the file has it from now on.
pub(crate) fn check(options: &TokenCheck) -> Result<Exit, Failure> {
    let token: FencingToken = options
        .token
        .parse()
        .map_err(|_| Failure::usage(format!("{:?} is no fencing token", options.token)))?;
    let unusable =
        |why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", options.file.display()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&options.file)
        .map_err(|why| unusable(&why))?;
    let mut file =
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, why)| unusable(&why.desc()))?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|why| unusable(&why))?;
    let greatest: Option<FencingToken> = match text.trim() {
        "" => None,
        text => Some(text.parse().map_err(|_| unusable(&"its content is no fencing token"))?),
    };
    if let Some(greatest) = greatest.filter(|greatest| *greatest > token) {
        return Err(Failure::new(
            Exit::No,
            format!("token {token} is older than {greatest}: a later holder has been here"),
        ));
    }
    if greatest != Some(token) {
        // All tokens are of one length, so the write replaces the old one at once.
        file.rewind()?;
        file.write_all(format!("{token}\n").as_bytes())?;
        file.sync_all()?;
    }
    Ok(Exit::Success)
}
