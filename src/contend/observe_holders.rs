//! Observes who holds a lock.

use super::list_contenders::Contender;
use super::rule::{holds, in_grant_order};
use super::ticket::ContenderKind;
use crate::error::Result;
use crate::path;
use crate::session::changes_iterator::Changes;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::request_errors::Purpose;
use crate::session::watch_loop::View;

const LOOK: Purpose = Purpose::to_read("read who holds the lock", "READ on the lock node");

/// Observes the holders, who contend for this kind, and reports what `show` makes of them.
pub(crate) fn observe<T: Clone + Send + 'static>(
    client: &Client,
    node: Result<String>,
    kind: ContenderKind,
    show: fn(Vec<Contender>) -> T,
    is_same: fn(&T, &T) -> bool,
) -> Changes<T> {
    let shown = node.clone().unwrap_or_default();
    Changes::new(client, node, LOOK, is_same, move |view: &mut View<'_>, whole: &str| {
        look(view, whole, &shown, kind).map(show)
    })
}

/// Whether two lists of holders name the same nodes.
#[expect(clippy::ptr_arg, reason = "`Changes` requires this signature")]
pub(crate) fn are_same(some: &Vec<Contender>, others: &Vec<Contender>) -> bool {
    some.iter().map(|one| &one.path).eq(others.iter().map(|one| &one.path))
}

/// Reads who holds the lock, and watches for changes.
fn look(
    view: &mut View<'_>,
    whole: &str,
    node: &str,
    kind: ContenderKind,
) -> Answer<Vec<Contender>> {
    // While a mutex's first contender is there, no other one holds, so only its node must be
    // watched. In other locks several contenders can hold.
    if kind == ContenderKind::Mutex {
        let children = view.session.names(whole, false)?.unwrap_or_default();
        if let Some(first) = in_grant_order(children.iter()).first() {
            match view.watch_node(&path::join(whole, first.name())) {
                Ok(Some((data, stat))) => {
                    return Ok(vec![Contender::new(node, first, data, &stat).at(0, true)]);
                }
                Ok(None) => return Err(Fault::NoNode),
                // A watch on it would report nothing; one on the list does.
                Err(Fault::NoAuth) => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    let Some((children, _)) = view.watch_names_or_making(whole)? else { return Ok(Vec::new()) };
    let mut holders = Vec::new();
    let tickets =
        in_grant_order(children.iter()).into_iter().take_while(|one| holds(one, children.iter()));
    for (position, ticket) in tickets.enumerate() {
        let holder = Contender::read(view.session, whole, node, &ticket)?;
        holders.extend(holder.map(|holder| holder.at(position, true)));
    }
    Ok(holders)
}
