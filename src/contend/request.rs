//! One question to the ensemble, beside the contending: asked again over lost connections and
//! sessions, within the connect time-out.

use super::acquire::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Deadline;
use crate::session::client::{Client, Interrupted, Patience};
use crate::session::connection::{Answer, Fault};
use crate::session::notify::Waiter;
use crate::session::session::Session;
use crate::session::status::Usable;

/// What is asked, about which node, and for people who read errors.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) node: &'a str,
    pub(crate) tried: &'a str,
    pub(crate) needs: &'a str,
}

/// Asks until there is an answer. What had none may have taken effect.
pub(crate) fn ask<T: Send + 'static>(
    client: &Client,
    about: Question<'_>,
    question: impl Fn(&Session) -> Answer<T> + Clone + Send + 'static,
) -> Result<T> {
    let core = client.core();
    let (waiter, deadline) = (Waiter::new(), Deadline::after(core.connect_timeout()));
    let refused = |fault: &Fault| refusal(fault, about.tried, about.needs, about.node);
    let in_vain = |what: &str| {
        let (tried, limit) = (about.tried, core.connect_timeout());
        let message = format!("could not {tried}: there was no {what} within {limit:?}");
        Error::new(ErrorKind::ConnectionLoss, message).on(about.node)
    };
    let mut lost = false;
    loop {
        let opened = core.session(&waiter, deadline, || false, Patience::UntilDeadline);
        let session = match opened {
            Ok(session) => session,
            Err(Interrupted::Failed(error)) => return Err(error),
            Err(Interrupted::GaveUp) => {
                return Err(Error::new(
                    ErrorKind::Connect,
                    format!("no server could be reached within {:?}", core.connect_timeout()),
                )
                .on(about.node));
            }
        };
        let _subscription = session.status().subscribe(waiter.bell());
        if session.status().until_usable(&waiter, deadline, || false) == Usable::NotInTime {
            return Err(in_vain("connection"));
        }
        match session.ask(deadline, None, question.clone(), drop)? {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) if !deadline.has_passed() => {
                lost = true;
            }
            // Such a cut looks like any other.
            Some(Err(Fault::TooLarge(why))) if lost => {
                let why = format!("{why}; an earlier attempt had no answer: it may have been done");
                return Err(refused(&Fault::TooLarge(why)));
            }
            Some(Err(fault)) => return Err(refused(&fault)),
            None => return Err(in_vain("answer")),
        }
    }
}
