//! The client side of the simulated ensemble: it stands in for the connections of real sessions.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use super::world::{LinkId, World};
use crate::connection_notice::{End, Info};
use crate::error::{Error, ErrorKind, Result};
use crate::rt::schedule::current;
use crate::rt::{self, Deadline};
use crate::session::{
    Connection, Ensemble, IsWanted, SessionRecords, Submission, Waiter, Waits, ended,
};

/// The simulated ensemble as one client sees it.
pub(super) struct SimulatedEnsemble(pub(super) Arc<World>);

impl Ensemble for SimulatedEnsemble {
    fn open(
        &self,
        records: SessionRecords,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>> {
        let Some(schedule) = current() else { return Err(ended(End::Closed)) };
        let deadline = Deadline::after(self.connect_timeout());
        let latency = self.0.look(|world| world.habits.latency);
        loop {
            if stop() {
                return Err(ended(End::Closed));
            }
            let reachable = self.0.look(|world| world.reachable_at(schedule.process()));
            if reachable <= schedule.time() {
                break;
            }
            if deadline.has_passed() {
                return Err(Error::new(ErrorKind::Connect, "no server can be reached"));
            }
            let then = Deadline::after(reachable - schedule.time());
            waiter.wait(then.earlier(deadline));
        }
        let link = self.0.act(|world| world.open(records));
        schedule.pause(schedule.some(latency));
        Ok(Box::new(SimulatedConnection { world: Arc::clone(&self.0), link }))
    }

    fn connect_timeout(&self) -> Duration {
        self.0.look(|world| world.habits.connect_timeout)
    }
}

impl fmt::Debug for SimulatedEnsemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedEnsemble")
    }
}

/// One session.
pub(super) struct SimulatedConnection {
    world: Arc<World>,
    link: LinkId,
}

impl Connection for SimulatedConnection {
    fn submit(&self, requests: Vec<Submission>, _waits: Waits) -> bool {
        self.world.act(|world| {
            requests.into_iter().for_each(|asked| world.send(self.link, asked));
        });
        // No delay is simulated here: it would not be bound by the caller's deadline.
        true
    }

    fn later(&self, asked: Submission, is_wanted: IsWanted) {
        self.world.act(|world| world.send_later(self.link, asked, is_wanted));
    }

    fn flushed_by(&self, _until: Deadline) {}

    fn hesitate(&self) {
        // Looking at the clock makes time pass, even for a call that is refused at once: otherwise
        // a caller might repeat it for ever.
        let _ = rt::now();
        if self.world.act(|world| world.is_to_panic()) {
            resume_unwind(Box::new("panic planned by the test"));
        }
        let hesitation = self.world.look(|world| world.habits.hesitation);
        if let Some(schedule) = current()
            && !hesitation.is_zero()
            && schedule.chance(10)
        {
            schedule.pause(schedule.some(hesitation));
        }
    }

    fn trusted(&self) -> Result<Duration, End> {
        self.world.look(|world| world.lease(self.link))
    }

    fn seen_zxid(&self) -> i64 {
        self.world.look(|world| world.seen(self.link))
    }

    fn info(&self) -> Info {
        let (session, timeout) =
            self.world.look(|world| (world.id(self.link), world.habits.session_timeout));
        Info { session, timeout, ..Info::default() }
    }

    fn close(&self, why: End, give_up_after: Duration) {
        self.world.act(|world| world.close(self.link, why, give_up_after));
    }
}

impl Drop for SimulatedConnection {
    fn drop(&mut self) {
        self.close(End::Closed, Duration::from_secs(1));
    }
}

impl fmt::Debug for SimulatedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimulatedConnection").field(&self.link).finish()
    }
}
