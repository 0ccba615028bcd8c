//! The client side of the small ensemble: it stands in for the connections of real sessions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::ensemble::{Server, Task, World};
use crate::connection_notice::{End, Info};
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Deadline;
use crate::rt::shuttled::{give_way, one_in};
use crate::session::{
    Answer, Connection, Created, Ensemble, Fault, NodeKind, Reply, Request, SessionRecords, Step,
    Submission, Waiter, Waits, ended, until_attached,
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The ensemble as clients see it.
pub(super) struct Servers(pub(super) Arc<World>);

impl Servers {
    fn may_open(&self, session: i64) -> Result<()> {
        let troubles = self.0.troubles;
        let time_in = |count| session <= troubles.until && count > 0 && one_in(count);
        if time_in(troubles.unreachable) {
            Err(Error::new(ErrorKind::Connect, "unreachable"))
        } else if time_in(troubles.rejected) {
            Err(ended(End::AuthFailed))
        } else if time_in(troubles.panics) {
            give_way()
        } else {
            Ok(())
        }
    }
}

impl Ensemble for Servers {
    fn open(
        &self,
        records: SessionRecords,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>> {
        let status = Arc::clone(&records.status);
        let session = self.0.open(records, |session| self.may_open(session))?;
        let wire = Wire { world: Arc::clone(&self.0), session };
        let slow = session <= self.0.troubles.until && self.0.troubles.unreachable > 0;
        let limit = if slow { Deadline::after(TIMEOUT) } else { Deadline::NEVER };
        if until_attached(&status, waiter, limit, stop)? {
            return Ok(Box::new(wire));
        }
        Err(Error::new(ErrorKind::Connect, "timed out"))
    }

    fn connect_timeout(&self) -> Duration {
        TIMEOUT
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Servers")
    }
}

/// One session.
struct Wire {
    world: Arc<World>,
    session: i64,
}

impl Connection for Wire {
    fn submit(&self, requests: Vec<Submission>, _waits: Waits) -> bool {
        for Submission { request, on_reply } in requests {
            self.world.ask(self.session, on_reply, |server| answer(server, self.session, request));
        }
        true
    }

    fn flushed_by(&self, _until: Deadline) {}

    fn trusted(&self) -> Result<Duration, End> {
        self.world.lease(self.session).map(|()| Duration::ZERO)
    }

    fn info(&self) -> Info {
        Info { session: self.session, timeout: TIMEOUT, ..Info::default() }
    }

    fn close(&self, _why: End, _give_up_after: Duration) {
        self.world.have(self.session, Task::End(End::Closed));
    }
}

/// Answers a request. Nodes have no data here, and no ACL hides anything.
fn answer(server: &mut Server, session: i64, request: Request) -> Answer<Reply> {
    let stat = |server: &mut Server, path: &str, watch| {
        server.find(session, path, watch).ok_or(Fault::NoNode)
    };
    let names = |server: &mut Server, path: &str, watch| {
        let all = server.children(session, path, watch);
        all.map(|names| names.iter().collect()).ok_or(Fault::NoNode)
    };
    Ok(match request {
        Request::One(Step::Create { path, kind, .. }) => {
            let (path, czxid) = match kind {
                NodeKind::Persistent | NodeKind::Container => {
                    (path.clone(), server.create(&path, 0)?)
                }
                NodeKind::Ephemeral | NodeKind::Named => {
                    (path.clone(), server.create(&path, session)?)
                }
                NodeKind::PersistentSequential => server.create_numbered(&path, 0)?,
                NodeKind::EphemeralSequential | NodeKind::Contender => {
                    server.create_numbered(&path, session)?
                }
            };
            Reply::Created(Created { path, czxid: Some(czxid) })
        }
        Request::One(Step::Delete { path, .. }) => {
            server.delete(&path)?;
            Reply::Done
        }
        Request::One(Step::Write { path, .. }) => Reply::Stat(stat(server, &path, false)?),
        // No model needs these.
        Request::One(Step::Check { .. })
        | Request::Transact(_)
        | Request::Acl { .. }
        | Request::SetAcl { .. } => {
            return Err(Fault::Unknown);
        }
        Request::Data { path, watch } => Reply::Data(Vec::new(), stat(server, &path, watch)?),
        Request::Exists { path, watch } => Reply::Stat(stat(server, &path, watch)?),
        Request::Children { path, watch } => Reply::Names(names(server, &path, watch)?),
        Request::ChildrenAndStat { path, watch } => {
            let names = names(server, &path, watch)?;
            Reply::NamesAndStat(names, stat(server, &path, false)?)
        }
        Request::Sync => Reply::Done,
        Request::Unwatch { path } => {
            server.unwatch(session, &path);
            Reply::Done
        }
    })
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close(End::Closed, Duration::ZERO);
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wire").field(&self.session).finish()
    }
}
