//! Makes one request to the ensemble, outside of contending. Repeats it after lost connections and
//! sessions, within the connect timeout.

use super::errors::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Deadline;
use crate::session::client::Client;
use crate::session::client_core::ClientCore;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;
use crate::session::watch_loop::WatchLoop;

/// What a request is for and which permission it needs, for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    tried: &'static str,
    needs: &'static str,
    /// Whether a request without an answer may have changed something.
    changes: bool,
}

impl Purpose {
    pub(crate) const fn to_read(tried: &'static str, needs: &'static str) -> Purpose {
        Purpose { tried, needs, changes: false }
    }

    pub(crate) const fn to_change(tried: &'static str, needs: &'static str) -> Purpose {
        Purpose { tried, needs, changes: true }
    }

    /// What the request is for, as it stands after "could not".
    pub(crate) fn tried(self) -> &'static str {
        self.tried
    }

    /// The error for a request about the node that the server refuses, or that had no answer.
    pub(crate) fn refused(self, fault: &Fault, node: &str) -> Error {
        match fault {
            Fault::ConnectionLoss if !self.changes => {
                let message = format!("could not {}: {fault}", self.tried);
                Error::new(ErrorKind::Connect, message).on(node)
            }
            fault => refusal(fault, self.tried, self.needs, node),
        }
    }

    /// The error of a call that had no answer in time, after a request or without any.
    pub(crate) fn unanswered(self, core: &ClientCore, was_asked: bool, node: &str) -> Error {
        let (tried, why) = (self.tried, core.why_unreachable());
        let (kind, doubt) = if was_asked && self.changes {
            (ErrorKind::ConnectionLoss, "; it may have been done")
        } else {
            (ErrorKind::Connect, "")
        };
        let message = format!("could not {tried}: no server answered in time ({why}){doubt}");
        Error::new(kind, message).on(node)
    }

    /// The error of a call that ended otherwise, after a request without an answer or without any.
    pub(crate) fn in_doubt_if(self, was_asked: bool, error: Error) -> Error {
        if self.is_in_doubt(was_asked) { error.in_doubt() } else { error }
    }

    /// Whether it may have changed something, if the latest request had no answer.
    pub(crate) fn is_in_doubt(self, was_asked: bool) -> bool {
        self.changes && was_asked
    }
}

/// Asks about a node until there is an answer, within the connect timeout.
pub(crate) fn ask<T>(
    client: &Client,
    node: &str,
    purpose: Purpose,
    mut question: impl FnMut(&Session) -> Answer<T>,
) -> Result<T> {
    let deadline = Deadline::after(client.core().connect_timeout());
    let (mut watch_loop, mut lost) = (WatchLoop::new(client, None), false);
    loop {
        let Some(session) = watch_loop.session(deadline)? else {
            return Err(purpose.unanswered(client.core(), lost, node));
        };
        match watch_loop.ask(&session, deadline, &mut question) {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) if !deadline.has_passed() => {
                lost = true;
            }
            // A cut because of the size looks like any other: the earlier attempt may have been
            // done.
            Some(Err(Fault::TooLarge(why))) if lost => {
                let why = format!("{why}; an earlier attempt had no answer: it may have been done");
                return Err(purpose.refused(&Fault::TooLarge(why), node));
            }
            Some(Err(fault)) => return Err(purpose.refused(&fault, node)),
            None => return Err(purpose.unanswered(client.core(), true, node)),
        }
    }
}
