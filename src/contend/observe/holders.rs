//! Observes who holds a lock.

use super::contender::Contender;
use crate::contend::name::{ContenderKind, Ticket, contenders_in_order, count_holders};
use crate::error::Result;
use crate::path;
use crate::session::{Answer, Changes, Client, Fault, Purpose, View};

const LOOK: Purpose = Purpose::to_read("read who holds the lock", "READ on the lock node");

/// Observes the holders, who contend for this kind, and reports what `show` makes of them.
pub(crate) fn observe<T>(
    client: &Client,
    node: Result<String>,
    kind: ContenderKind,
    show: fn(Vec<Contender>) -> T,
) -> Changes<T>
where
    T: Clone + Send + 'static,
    for<'a> &'a T: IntoIterator<Item = &'a Contender>,
{
    let shown = node.clone().unwrap_or_default();
    Changes::new(client, node, LOOK, are_same, move |view: &mut View<'_>, whole: &str| {
        look(view, whole, &shown, kind).map(show)
    })
}

/// Whether these holders and those have the same nodes.
fn are_same<T>(some: &T, others: &T) -> bool
where
    for<'a> &'a T: IntoIterator<Item = &'a Contender>,
{
    some.into_iter().map(|one| &one.path).eq(others.into_iter().map(|one| &one.path))
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
        let queue = contenders_in_order(view.session, whole, &children)?;
        if let Some(first) = queue.first().and_then(|first| Ticket::parse(first)) {
            match view.watch_node(&path::join(whole, first.name())) {
                Ok(Some((data, stat))) => {
                    let first = Contender::new(node, &first, data, &stat);
                    return Ok(vec![first.remembered().at(0, true)]);
                }
                Ok(None) => return Err(Fault::NoNode),
                // A watch on it would report nothing; one on the list does.
                Err(Fault::NoAuth) => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    let Some((children, _)) = view.watch_names_or_making(whole)? else { return Ok(Vec::new()) };
    let (mut holders, queue) = (Vec::new(), contenders_in_order(view.session, whole, &children)?);
    let tickets = queue[..count_holders(&queue)].iter().filter_map(|name| Ticket::parse(name));
    for (position, ticket) in tickets.enumerate() {
        let holder = Contender::read(view.session, whole, node, &ticket)?;
        holders.extend(holder.map(|holder| holder.remembered().at(position, true)));
    }
    Ok(holders)
}
