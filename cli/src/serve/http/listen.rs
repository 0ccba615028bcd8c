//! Where readers connect: an address, or a socket file that only this user can open.

use std::fs::{self, Metadata};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;

use crate::exit::{Exit, Failure};
use crate::serve::token_file::Reach;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Net(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
pub(crate) enum Listener {
    Net(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A socket's file, which is removed at the end if it is still this one.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    itself: (u64, u64),
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Address, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(Failure::usage("unix: needs the path of a socket")),
                path => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        let unusable = |why: &str| {
            Failure::usage(format!("{text:?} is no address, such as 127.0.0.1:9142: {why}"))
        };
        let mut found = text.to_socket_addrs().map_err(|why| unusable(&why.to_string()))?;
        found.next().map(Address::Net).ok_or_else(|| unusable("nothing has this name"))
    }

    /// Who can connect.
    pub(crate) fn reach(&self) -> Reach {
        match self {
            Address::Unix(_) => Reach::ThisUser,
            Address::Net(address) if address.ip().to_canonical().is_loopback() => Reach::ThisHost,
            Address::Net(_) => Reach::Network,
        }
    }

    /// Begins to listen. No other thread may run yet, as the process creates no file for others meanwhile.
    pub(crate) fn listen(&self) -> Result<Listener, Failure> {
        let listener = match self {
            Address::Net(address) => TcpListener::bind(address).map(Listener::Net),
            Address::Unix(path) => {
                remove_stale(path)?;
                let before = umask(Mode::from_bits_truncate(0o177));
                let listener = UnixListener::bind(path);
                umask(before);
                listener.and_then(|listener| {
                    let itself = identity(&fs::symlink_metadata(path)?);
                    Ok(Listener::Unix(listener, SocketFile { path: path.clone(), itself }))
                })
            }
        };
        listener.map_err(|why| failed(&self.shown(), &why))
    }

    fn shown(&self) -> String {
        match self {
            Address::Net(address) => address.to_string(),
            Address::Unix(path) => path.display().to_string(),
        }
    }
}

impl Listener {
    /// The port, which the system has chosen if it was given as 0.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Listener::Net(listener) => listener.local_addr().ok().map(|address| address.port()),
            Listener::Unix(..) => None,
        }
    }

    /// For people and programs that start it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Listener::Net(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}/"),
                Err(why) => why.to_string(),
            },
            Listener::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| identity(&found) == self.itself) {
            // Otherwise the next start replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Removes a socket that nobody listens on any more, and nothing else.
fn remove_stale(path: &Path) -> Result<(), Failure> {
    let shown = path.display().to_string();
    let found = match fs::symlink_metadata(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|why| failed(&shown, &why))?,
    };
    let refused = |why: &str| Err(Failure::new(Exit::Failed, format!("{shown}: {why}")));
    if !found.file_type().is_socket() {
        return refused("it is there, and is no socket");
    }
    if found.uid() != geteuid().as_raw() {
        return refused("it is there, and belongs to another user");
    }
    match UnixStream::connect(path) {
        Ok(_) => refused("another process listens on it"),
        Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|why| failed(&shown, &why))
        }
        Err(why) => Err(failed(&shown, &why)),
    }
}

fn failed(shown: &str, why: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot listen on {shown}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_tells_who_reaches_it() {
        for (text, reach) in [
            ("127.0.0.1:0", Reach::ThisHost),
            ("127.8.9.1:0", Reach::ThisHost),
            ("[::1]:0", Reach::ThisHost),
            ("[::ffff:127.0.0.1]:0", Reach::ThisHost),
            ("localhost:0", Reach::ThisHost),
            ("0.0.0.0:0", Reach::Network),
            ("[::]:0", Reach::Network),
            ("192.0.2.1:80", Reach::Network),
            ("unix:/run/zklock", Reach::ThisUser),
        ] {
            assert_eq!(Address::parse(text).unwrap().reach(), reach, "{text}");
        }
        for wrong in ["", "9142", "127.0.0.1", "127.0.0.1:x", "unix:"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
