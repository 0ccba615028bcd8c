//! What a call is made for, and the errors of calls that do not get it.

use std::sync::Arc;
use std::time::Duration;

use super::{Call, Stop};
use crate::error::{Error, ErrorKind, Result};
use crate::session::client::ClientCore;
use crate::session::connection::{Answer, Fault};
use crate::session::requests::{Session, ended};

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

    /// Asks about a node until there is an answer, over lost connections and sessions, within the
    /// connect timeout.
    pub(crate) fn ask<T>(
        self,
        core: &Arc<ClientCore>,
        node: &str,
        question: impl FnMut(&Session) -> Answer<T>,
    ) -> Result<T> {
        let mut call = Call::strict(core, &core.connect_timeout().into());
        match call.insist(question) {
            Ok(Ok(answer)) => Ok(answer),
            // A cut because of the size looks like any other: the earlier attempt may have been
            // done.
            Ok(Err(Fault::TooLarge(why))) if call.has_lost_answers() => {
                let why = format!("{why}; an earlier attempt had no answer: it may have been done");
                Err(self.refused(&Fault::TooLarge(why), node))
            }
            Ok(Err(fault)) => Err(self.refused(&fault, node)),
            Err(stop) => Err(self.stopped(stop, &call, node)),
        }
    }

    /// The error for a request about the node that the server refuses, or that had no answer.
    pub(crate) fn refused(self, fault: &Fault, node: &str) -> Error {
        let Purpose { tried, needs, changes } = self;
        let kind = match fault {
            Fault::NoAuth => {
                let message = format!("not authorized to {tried}: requires {needs}");
                return Error::new(ErrorKind::NotAuthorized, message).on(node);
            }
            Fault::InvalidAcl(_) => ErrorKind::InvalidArgument,
            Fault::QuotaExceeded => ErrorKind::QuotaExceeded,
            Fault::LocalSession => ErrorKind::Unsupported,
            Fault::BelowEphemeral => ErrorKind::Conflict,
            Fault::TooLarge(_) => ErrorKind::TooLarge,
            Fault::System(_) => ErrorKind::System,
            Fault::ConnectionLoss if changes => ErrorKind::ConnectionLoss,
            Fault::ConnectionLoss => ErrorKind::Connect,
            Fault::SessionEnded => ErrorKind::SessionLost,
            _ => ErrorKind::Server,
        };
        Error::new(kind, format!("could not {tried}: {fault}")).on(node)
    }

    /// The error of a call that ended without an answer.
    pub(crate) fn stopped(self, stop: Stop, call: &Call, node: &str) -> Error {
        let was_asked = call.is_unanswered();
        match stop {
            Stop::TimeOver => self.unanswered(call.core(), was_asked, node),
            Stop::Cancelled => self.in_doubt_if(was_asked, cancelled(node)),
            Stop::SessionEnded(end) => self.in_doubt_if(was_asked, ended(end).on(node)),
            Stop::Failed(error) => error,
        }
    }

    /// The error of a call that had no answer in time, after a request or without any.
    pub(crate) fn unanswered(self, core: &ClientCore, was_asked: bool, node: &str) -> Error {
        let (tried, why) = (self.tried, core.why_unreachable());
        let (kind, doubt) = match self.is_in_doubt(was_asked) {
            true => (ErrorKind::ConnectionLoss, "; it may have been done"),
            false => (ErrorKind::Connect, ""),
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

/// The error of a call that was cancelled.
pub(crate) fn cancelled(node: &str) -> Error {
    Error::new(ErrorKind::Cancelled, "the wait was cancelled").on(node)
}

/// The error of a call that ran out of time, which was this long, before the ensemble told it anything.
pub(crate) fn unanswered(core: &ClientCore, waited: Duration, node: &str) -> Error {
    let why = core.why_unreachable();
    let message =
        format!("the time was over before any server answered, after {waited:.1?}: {why}");
    Error::new(ErrorKind::Connect, message).on(node)
}
