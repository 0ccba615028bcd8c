//! Ends the maintenance holds ahead of a waiter whose time is over: nobody else does. It is the one case in
//! which a client deletes a contender that is not its own.
//!
//! A hold is deleted in the version that was read, so one whose end has been moved meanwhile stays. "Now" is
//! what the ensemble's clock says: when the waiter's own node was made, and how long ago that is. So no
//! host's clock matters.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::contend::name::{EnsembleClock, Ticket, end_of};
use crate::rt::{self, AtomicBool, Signal};
use crate::session::{Answer, Fault, Session, Subscription};
use crate::{logging, path};

/// Of so many holds a waiter looks after the end, beginning with the first.
const MOST: usize = 8;

/// So many contenders behind a hold end it at once. The others do a moment later, each at another time, if
/// those have not: they may be other libraries', or hang.
const AT_ONCE: usize = 3;
const LATER: std::ops::Range<u64> = 500..1_500;

/// So many contenders behind a hold hear when its end is moved; the others see that at its former end.
const WATCHING: usize = 100;

/// A hold that changes so often in one look is left for later.
const MOST_READS: usize = 3;

/// When it is tried again after a lost connection, and after an error of the server.
const PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// A maintenance hold ahead of a contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldAhead {
    pub(super) name: String,
    /// How many contenders are between the two.
    pub(super) between: usize,
}

impl HoldAhead {
    /// Those among all contenders ahead, which are in grant order.
    pub(crate) fn among(ahead: &[Ticket<'_>]) -> Vec<HoldAhead> {
        let between = ahead.iter().rev().enumerate().filter(|(_, one)| one.is_maintenance());
        let holds =
            between.map(|(between, one)| HoldAhead { name: one.name().to_owned(), between });
        let mut holds: Vec<HoldAhead> = holds.collect();
        holds.reverse();
        holds
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct MaintenanceAhead {
    /// When a hold ends, at the earliest.
    due: Option<Instant>,
    /// Whether the end of one may have been moved.
    is_changed: Arc<AtomicBool>,
    /// The connection on which the last look began: one that has ended tells of no change.
    looked_on: Option<u64>,
    watches: Vec<Subscription>,
}

impl MaintenanceAhead {
    /// When it is time to look again, if nothing changes.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Has it try again in a second, if the next look gets no answer.
    pub(super) fn put_off(&mut self, session: &Session) {
        self.is_changed = Arc::default();
        self.looked_on = Some(session.status().now().connection);
        self.due = rt::now().checked_add(PAUSE);
    }

    pub(crate) fn is_due(&self, session: &Session) -> bool {
        let connection = session.status().now().connection;
        self.is_changed.load(Ordering::SeqCst)
            || self.looked_on.is_some_and(|looked_on| looked_on != connection)
            || self.due.is_some_and(|due| rt::now() >= due)
    }

    /// Deletes those of the holds that are over, and returns whether any of them has gone. With a bell, that
    /// is rung when an end may have been moved.
    pub(crate) fn look(
        &mut self,
        session: &Session,
        lock_node: &str,
        ahead: &[HoldAhead],
        clock: EnsembleClock,
        bell: Option<&Signal>,
    ) -> Answer<bool> {
        self.put_off(session);
        self.watches.clear();
        let (mut has_gone, mut due) = (false, None);
        for hold in ahead.iter().take(MOST) {
            let path = path::join(lock_node, &hold.name);
            let bell = bell.filter(|_| hold.between < WATCHING);
            let patience = match hold.between < AT_ONCE {
                true => Duration::ZERO,
                false => Duration::from_millis(later()),
            };
            let wait = match self.end(session, &path, clock, patience, bell)? {
                End::Gone => {
                    has_gone = true;
                    continue;
                }
                End::Never => continue,
                End::In(wait) => wait,
            };
            due = rt::now().checked_add(wait).into_iter().chain(due).min();
        }
        self.due = due;
        Ok(has_gone)
    }

    /// Deletes this hold if it has been over for so long.
    fn end(
        &mut self,
        session: &Session,
        path: &str,
        clock: EnsembleClock,
        patience: Duration,
        bell: Option<&Signal>,
    ) -> Answer<End> {
        let patience = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX);
        for _ in 0..MOST_READS {
            if let Some(bell) = bell {
                self.watch(session, path, bell);
            }
            let (data, stat) = match session.data(path, bell.is_some()) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(End::Gone),
                Err(fault) if fault.is_loss() => return Err(fault),
                Err(fault) => return Ok(cannot("read", path, &fault)),
            };
            let Some(end) = end_of(&data, &stat) else { return Ok(End::Never) };
            let left = clock.until(end.saturating_add(patience));
            if !left.is_zero() {
                return Ok(End::In(left));
            }
            match session.delete_version(path, Some(stat.version)) {
                Ok(()) => {
                    logging::info!(target: "zklock::contend", "deleted the maintenance hold {path:?}: its time is over");
                    return Ok(End::Gone);
                }
                Err(Fault::NoNode) => return Ok(End::Gone),
                // Its end has been moved.
                Err(Fault::BadVersion) => {}
                Err(fault) if fault.is_loss() => return Err(fault),
                Err(fault) => return Ok(cannot("delete", path, &fault)),
            }
        }
        Ok(End::In(PAUSE))
    }

    fn watch(&mut self, session: &Session, path: &str, bell: &Signal) {
        let (is_changed, bell) = (Arc::clone(&self.is_changed), Arc::clone(bell));
        let signal: Signal = Arc::new(move || {
            is_changed.store(true, Ordering::SeqCst);
            bell();
        });
        self.watches.push(session.watches().subscribe(path, signal));
    }
}

/// How many milliseconds after the end one looks that is not among the first.
fn later() -> u64 {
    LATER.start + rt::random() as u64 % (LATER.end - LATER.start)
}

/// What is so of a hold.
enum End {
    /// It is not there any more.
    Gone,
    /// This waiter does not end it.
    Never,
    In(Duration),
}

fn cannot(what: &str, path: &str, fault: &Fault) -> End {
    logging::warning!(
        target: "zklock::contend",
        "could not {what} the maintenance hold {path:?}, so its end is left to others: {fault}"
    );
    if *fault == Fault::NoAuth { End::Never } else { End::In(LONG_PAUSE) }
}
