//! Asks those that hold the lock to release it, for a waiter with less patience than they have.
//!
//! Each is asked once, and only those that tell their patience. The waiter watches the holders, and looks
//! again when all of them have gone: then there are others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::contend::name::{REQUEST, patience_of};
use crate::rt::{AtomicBool, Signal};
use crate::session::{Answer, Fault, Session, Subscription};
use crate::wire_values::NodeEvent;
use crate::{logging, path};

/// See the module.
#[derive(Default)]
pub(super) struct WorseAhead {
    /// The nodes of holders that were asked, or do not need to be.
    done: HashSet<String>,
    /// Those that are watched, and whether each has gone.
    watched: HashMap<String, (Subscription, Arc<AtomicBool>)>,
    /// The connection that they are watched on: one that has ended tells nothing.
    on: Option<u64>,
}

impl WorseAhead {
    /// Whether it is time to look again, by this connection.
    pub(super) fn is_due(&self, connection: u64) -> bool {
        let mut watched = self.watched.values();
        let has_gone = |one: &(_, Arc<AtomicBool>)| one.1.load(Ordering::SeqCst);
        self.on.is_some_and(|on| on != connection)
            || !self.watched.is_empty() && watched.all(has_gone)
    }

    /// Asks those of the holders that have more patience than this. The bell is rung when it may be time to
    /// look again.
    pub(super) fn look(
        &mut self,
        session: &Session,
        lock_node: &str,
        holders: &[String],
        patience: u32,
        bell: &Signal,
    ) -> Answer<()> {
        let connection = session.status().now().connection;
        if self.on.replace(connection) != Some(connection) {
            self.watched.clear();
        }
        let present: HashSet<&String> = holders.iter().collect();
        self.watched.retain(|name, _| present.contains(name));
        self.done.retain(|name| present.contains(name));
        for name in holders {
            if self.watched.contains_key(name) {
                continue;
            }
            let path = path::join(lock_node, name);
            if !self.done.contains(name) {
                match ask(session, &path, patience) {
                    Err(fault) if fault.is_loss() => return Err(fault),
                    Err(fault) => logging::warning!(
                        target: "zklock::contend",
                        "could not ask {path:?}, which may have more patience, to release the lock: {fault}"
                    ),
                    Ok(()) => {}
                }
                self.done.insert(name.clone());
            }
            let (is_gone, bell) = (Arc::<AtomicBool>::default(), Arc::clone(bell));
            let noted = Arc::clone(&is_gone);
            let on_event = move |event| {
                (event == NodeEvent::Deleted).then(|| {
                    noted.store(true, Ordering::SeqCst);
                    Arc::clone(&bell)
                })
            };
            let watches = session.watches();
            let subscription = watches.subscribe_to_events(&path, Arc::new(on_event));
            // A contender has no children, so this watch tells of its deletion only.
            match session.names(&path, true) {
                Ok(Some(_)) => {}
                Ok(None) => is_gone.store(true, Ordering::SeqCst),
                Err(fault) if fault.is_loss() => return Err(fault),
                // As an ACL hides it; the waiter goes on when its predecessor does.
                Err(_) => continue,
            }
            self.watched.insert(name.clone(), (subscription, is_gone));
        }
        Ok(())
    }
}

fn ask(session: &Session, path: &str, patience: u32) -> Answer<()> {
    let Some((data, stat)) = session.data(path, false)? else { return Ok(()) };
    // Nobody would read what is asked of a node without a session.
    let is_worse = patience_of(&data).is_some_and(|theirs| theirs > patience);
    if !is_worse || stat.ephemeral_owner == 0 {
        return Ok(());
    }
    match session.write(path, REQUEST) {
        Ok(()) => logging::info!(
            target: "zklock::contend",
            "asked {path:?}, which has more patience, to release the lock"
        ),
        Err(Fault::NoNode) => {}
        Err(fault) => return Err(fault),
    }
    Ok(())
}
