//! One request to the ensemble, beside contending: repeated over lost connections and sessions, within the
//! connect timeout.

use super::errors::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Deadline;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;
use crate::session::watch_loop::WatchLoop;

/// What a request is for and which permission it takes, for people who read errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    pub(crate) tried: &'static str,
    pub(crate) needs: &'static str,
}

impl Purpose {
    /// The error for a request about the node that the server refuses.
    pub(crate) fn refused(self, fault: &Fault, node: &str) -> Error {
        refusal(fault, self.tried, self.needs, node)
    }
}

/// Asks about a node until there is an answer. What had none may have taken effect.
pub(crate) fn ask<T: Send + 'static>(
    client: &Client,
    node: &str,
    purpose: Purpose,
    question: impl Fn(&Session) -> Answer<T> + Clone + Send + 'static,
) -> Result<T> {
    let limit = client.core().connect_timeout();
    let deadline = Deadline::after(limit);
    let in_vain = |what: &str| {
        let message = format!("could not {}: there was no {what} within {limit:?}", purpose.tried);
        Err(Error::new(ErrorKind::ConnectionLoss, message).on(node))
    };
    let (mut watch_loop, mut lost) = (WatchLoop::new(client, None), false);
    loop {
        let Some(session) = watch_loop.session(deadline)? else {
            if watch_loop.has_session() {
                return in_vain("connection");
            }
            let message = format!("no server could be reached within {limit:?}");
            return Err(Error::new(ErrorKind::Connect, message).on(node));
        };
        match watch_loop.ask(&session, deadline, question.clone(), drop)? {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) if !deadline.has_passed() => {
                lost = true;
            }
            // Such a cut looks like any other.
            Some(Err(Fault::TooLarge(why))) if lost => {
                let why = format!("{why}; an earlier attempt had no answer: it may have been done");
                return Err(purpose.refused(&Fault::TooLarge(why), node));
            }
            Some(Err(fault)) => return Err(purpose.refused(&fault, node)),
            None => return in_vain("answer"),
        }
    }
}
