//! The connection that callers share with the link's thread: whoever has it may send.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex as Lock;

use super::core::LinkCore;
use super::messages::{DeferredRequest, OneOrTwo, Outgoing};
use crate::rt::{Moment, Mutex};
use crate::session_notice::{End, Info};

/// For the end of a lease: it has come, or has not begun.
pub(super) const LAPSED: u64 = 0;

/// What stands for the end of a session in the place of its lease's end: no clock is that early.
pub(super) fn code_of(end: End) -> u64 {
    match end {
        End::Lapsed => LAPSED,
        End::Expired => 1,
        End::AuthFailed => 2,
        End::Closed => 3,
    }
}

pub(super) fn end_of(code: u64) -> Option<End> {
    let all = [End::Lapsed, End::Expired, End::AuthFailed, End::Closed];
    all.into_iter().find(|end| code_of(*end) == code)
}

pub(super) struct LinkShared {
    /// In nanoseconds of a [`Moment`]. The link moves it forward, whoever finds it in the
    /// past puts [`LAPSED`] in its place. Once the session is over, the code of how it ended.
    pub(super) lease_end: AtomicU64,
    pub(super) info: Mutex<Info>,
    pub(super) line: Lock<LockedConnection>,
    pub(super) put_off: Lock<Deferred>,
    /// The link's thread has nothing to do with the line any more, and only answers its commands.
    pub(super) stopped: AtomicBool,
}

/// What callers share with the link's thread. Whoever has it may send; to pass on what the server
/// has said, and to find another one, is for the thread alone.
pub(super) struct LockedConnection {
    pub(super) core: LinkCore,
    pub(super) server: Option<Arc<TcpStream>>,
    /// Why the connection is of no use any more, if a caller has found that.
    pub(super) broken: Option<String>,
    /// Until when the link's thread means to sleep.
    pub(super) asleep_until: Moment,
}

/// What was put off. With a lock of its own: it is asked for just when the link's thread, which has
/// told the caller something, is busy with its line.
#[derive(Default)]
pub(super) struct Deferred {
    /// And until when.
    pub(super) all: VecDeque<(Moment, DeferredRequest)>,
    /// Until when the link's thread means to sleep, in nanoseconds.
    pub(super) asleep_until: u64,
}

impl LockedConnection {
    /// Whether the system has taken all there is.
    pub(super) fn write(&mut self) -> bool {
        if let (Some(server), None) = (&self.server, &self.broken)
            && let Err(error) = write_out(&mut &**server, self.core.for_server())
        {
            self.broken = Some(error.to_string());
        }
        self.core.pass_marks();
        self.core.for_server().is_empty()
    }

    pub(super) fn ask(&mut self, verbs: OneOrTwo) {
        let now = Moment::now();
        for Outgoing { operation, body, on_answer } in verbs.into_iter().flatten() {
            self.core.verb(operation, &body, on_answer, now);
        }
    }

    /// Whether something is left to do for the link's thread before it would wake by itself.
    pub(super) fn needs_the_thread(&mut self) -> bool {
        self.broken.is_some()
            || self.core.has_news()
            || !self.core.for_server().is_empty()
            || self.core.next_tick() < self.asleep_until
    }
}

fn write_out(stream: &mut impl Write, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut written = 0;
    let result = loop {
        if written == bytes.len() {
            break Ok(());
        }
        match stream.write(&bytes[written..]) {
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    bytes.drain(..written);
    if bytes.is_empty() && bytes.capacity() > 256 * 1024 {
        *bytes = Vec::new();
    }
    result
}
