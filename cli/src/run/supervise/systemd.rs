//! What systemd is told: `--notify`, for units of `Type=notify`.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::words::visible;

/// The service manager, if there is one to be told.
#[derive(Debug)]
pub(crate) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    pub(crate) fn new(is_wanted: bool) -> Manager {
        Manager(is_wanted.then(connected).flatten())
    }

    /// What it is waiting for.
    pub(crate) fn waits(&self, status: &str) {
        self.tell(&format!("STATUS=waiting: {}", visible(status)));
    }

    /// The command runs.
    pub(crate) fn ready(&self) {
        self.tell("READY=1\nSTATUS=holds the lock");
    }

    /// All is well, although the command does not run: the unit has not failed to start.
    pub(crate) fn not_needed(&self) {
        self.tell("READY=1\nSTATUS=ends without having run the command");
    }

    /// The command has ended, and the lock is kept.
    pub(crate) fn stays(&self) {
        self.tell("STATUS=the command has ended; keeps the lock for --hold-at-least");
    }

    /// The command is being ended.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=the lock is lost");
    }

    fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.0 {
            // Whether the manager listens is its own affair.
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

fn connected() -> Option<(UnixDatagram, SocketAddr)> {
    let name = env::var_os("NOTIFY_SOCKET")?;
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}
