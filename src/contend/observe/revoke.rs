//! Asks holders to release a lock, or deletes their nodes.
//!
//! A [`REQUEST`] replaces the data of the contender's node. A holder watches its own node.

use crate::contend::name::{
    ChildOrigin, REQUEST, Ticket, contenders_in_order, count_holders, is_uncertain,
};
use crate::error::{Error, ErrorKind, Result};
use crate::session::{Answer, Client, Fault, Purpose, Session};
use crate::{logging, path};

/// Asks all holders to release the lock, and returns how many there were.
pub(crate) fn ask_holders(client: &Client, node: &str) -> Result<usize> {
    let whole = client.core().whole(node);
    let purpose = Purpose::to_change(
        "ask the holders to release the lock",
        "READ on the lock node and WRITE on the contenders",
    );
    purpose.ask(client.core(), node, |session| {
        let children = session.names(&whole, false)?.unwrap_or_default();
        let (mut asked, queue) = (0, contenders_in_order(session, &whole, &children)?);
        for holder in &queue[..count_holders(&queue)] {
            let path = path::join(&whole, holder);
            asked += usize::from(write(session, &path)?.unwrap_or(false));
        }
        Ok(asked)
    })
}

/// Asks one contender to release the lock; false if it is not there any more.
pub(crate) fn ask_contender(client: &Client, node: &str, contender: &str) -> Result<bool> {
    check_place(node, contender)?;
    let path = client.core().whole(contender);
    let needs = "WRITE on the contender";
    let purpose = Purpose::to_change("ask a contender to release the lock", needs);
    let asked = purpose.ask(client.core(), contender, |session| write(session, &path))?;
    asked.ok_or_else(|| {
        let message = format!(
            "{contender:?} belongs to no session, so nobody can be asked to release it: a maintenance hold is released \
             by name"
        );
        Error::new(ErrorKind::InvalidArgument, message).on(node)
    })
}

/// False if the node is not there any more; `None` if it belongs to no session: nobody would read the
/// request, and it would overwrite what a maintenance hold says.
fn write(session: &Session, path: &str) -> Answer<Option<bool>> {
    match session.exists(path, false) {
        Ok(Some(stat)) if stat.ephemeral_owner == 0 => return Ok(None),
        // The stat may be hidden.
        Ok(_) | Err(Fault::NoAuth) => {}
        Err(fault) => return Err(fault),
    }
    match session.write(path, REQUEST) {
        Ok(()) => Ok(Some(true)),
        Err(Fault::NoNode) => Ok(Some(false)),
        Err(fault) => Err(fault),
    }
}

/// Deletes a contender's node; false if it is not there any more.
pub(crate) fn break_off(client: &Client, node: &str, contender: &str) -> Result<bool> {
    check_place(node, contender)?;
    let path = client.core().whole(contender);
    check_contends(client, node, contender, &path)?;
    let needs = "DELETE on the lock node";
    let purpose = Purpose::to_change("delete a contender", needs);
    let broken = delete_contender(purpose, client, contender, &path)?;
    if broken {
        logging::warning!(target: "zklock::contend", "deleted the contender {contender:?} by force");
    }
    Ok(broken)
}

/// Deletes a contender's node, which the server knows by this path; false if it is not there any more.
pub(crate) fn delete_contender(
    purpose: Purpose,
    client: &Client,
    about: &str,
    path: &str,
) -> Result<bool> {
    let mut unanswered = false;
    purpose.ask(client.core(), about, |session| match session.delete(path) {
        Ok(()) => Ok(true),
        // An earlier attempt may have taken effect.
        Err(Fault::NoNode) => Ok(unanswered),
        Err(fault) => {
            unanswered |= fault == Fault::ConnectionLoss;
            Err(fault)
        }
    })
}

/// Refuses a child that only looks like a contender by its name, and may be anything: it belongs to no
/// session.
fn check_contends(client: &Client, node: &str, contender: &str, path: &str) -> Result<()> {
    if !is_uncertain(path::last(contender)) {
        return Ok(());
    }
    let purpose = Purpose::to_read("look whose node it is", "READ on the node");
    let stat = purpose.ask(client.core(), contender, |session| session.exists(path, false))?;
    let lasts = |stat| matches!(ChildOrigin::of(stat), ChildOrigin::Lasting { .. });
    if !stat.as_ref().is_some_and(lasts) {
        return Ok(());
    }
    let message = format!(
        "{contender:?} belongs to no session and has no name of a known recipe: it contends for nothing, and is not deleted"
    );
    Err(Error::new(ErrorKind::InvalidArgument, message).on(node))
}

/// Checks that `contender` belongs to this lock: nothing else may be written to or deleted.
fn check_place(node: &str, contender: &str) -> Result<()> {
    let contends = Ticket::parse(path::last(contender)).is_some();
    if path::parent(contender) == node && contends {
        return Ok(());
    }
    let message = format!("{contender:?} is not a contender of this lock");
    Err(Error::new(ErrorKind::InvalidArgument, message).on(node))
}
