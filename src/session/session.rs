//! One session with the ensemble: a link, a handle on it, and what they report to.

use std::sync::Arc;
use std::time::Duration;

use super::handle::Handle;
use super::status::Status;
use super::store::{Answer, Created, Fault, Kind, Names, Stat, Store};
use super::together::Together;
use super::wake::{Waiter, Watches};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::{End, Notice};
use crate::link::frame::{Frame, SYNC_ROOT, code, op};
use crate::link::{Link, LinkConfig};
use crate::rt::{Deadline, bounded};

/// How long the handle may take to connect to its link, in the same process.
const ADMISSION: Duration = Duration::from_secs(2);

/// See the module. It never comes back once it has ended.
#[derive(Debug)]
pub(crate) struct Session {
    handle: Handle,
    link: Link,
    status: Arc<Status>,
    watches: Arc<Watches>,
    listings: Together<Answer<Option<Names>>>,
}

impl Session {
    /// Connects, within the connect time-out; `stop` is asked whenever the waiter's bell is rung.
    pub(crate) fn open(
        config: LinkConfig,
        waiter: &Waiter,
        stop: impl Fn() -> bool,
        on_notice: impl Fn(Notice) + Send + 'static,
    ) -> Result<Session> {
        let limit = config.connect_timeout;
        let status = Arc::new(Status::default());
        let _subscription = status.subscribe(waiter.bell());
        let (told, hosts) = (Arc::clone(&status), Arc::clone(&config.resolver));
        let link = Link::open(
            config,
            Box::new(move |notice| {
                told.note(notice);
                on_notice(notice);
            }),
        )?;
        let deadline = Deadline::after(limit);
        loop {
            let phase = status.now();
            if let Some(end) = phase.ended {
                return Err(ended(end));
            }
            if phase.attached {
                break;
            }
            if stop() {
                return Err(ended(End::Closed));
            }
            if deadline.has_passed() {
                let trouble = link.info().trouble;
                let trouble = trouble.unwrap_or_else(|| format!("no answer yet from {hosts}"));
                return Err(Error::new(
                    ErrorKind::Connect,
                    format!("could not connect within {limit:?}; last: {trouble}"),
                ));
            }
            waiter.wait(deadline);
        }
        let watches = Arc::new(Watches::default());
        // The session is there: it is not to be thrown away for what is left of the time.
        let admit_by = Deadline::after(ADMISSION);
        let handle = Handle::open(&link, &watches, || admit_by.has_passed() || stop())?;
        Ok(Session { handle, link, status, watches, listings: Together::default() })
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    pub(crate) fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    pub(crate) fn id(&self) -> i64 {
        self.link.info().session
    }

    /// Whether a holder in this session may believe that its nodes exist.
    pub(crate) fn is_trusted(&self) -> bool {
        self.link.is_trusted()
    }

    /// Asks for a node's data, with a watch, without waiting; an ACL that hides the data
    /// does not hide whether the node exists.
    pub(crate) fn watch_soon(
        self: &Arc<Self>,
        path: &str,
        on_answer: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let body = Frame::new().buffer(path.as_bytes()).flag(true).body();
        let (session, again) = (Arc::downgrade(self), body.clone());
        let first = move |error: i32| {
            if error != code::NO_AUTH {
                return on_answer(outcome(error));
            }
            let Some(session) = session.upgrade() else { return };
            let second =
                Box::new(move |answer: crate::link::core::Answer| on_answer(outcome(answer.error)));
            session.link.verb(op::EXISTS, again, second);
        };
        self.link.verb(op::GET_DATA, body, Box::new(move |answer| first(answer.error)));
    }

    /// Asks for a node's deletion without waiting.
    pub(crate) fn delete_soon(&self, path: &str) {
        let body = Frame::new().buffer(path.as_bytes()).int(-1).body();
        self.link.verb(op::DELETE, body, Box::new(drop));
    }

    /// Asks, in one round trip, for the leader's word and for the node.
    pub(crate) fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        let (tell, told) = bounded(2);
        let second = tell.clone();
        let sync = SYNC_ROOT.to_vec();
        let exists = Frame::new().buffer(path.as_bytes()).flag(false).body();
        self.link.verb(op::SYNC, sync, Box::new(move |answer| drop(tell.send(answer))));
        self.link.verb(op::EXISTS, exists, Box::new(move |answer| drop(second.send(answer))));
        let synced = told.recv().map_err(|_| Fault::SessionEnded)?;
        let found = told.recv().map_err(|_| Fault::SessionEnded)?;
        outcome(synced.error)?;
        match outcome(found.error) {
            Ok(()) => crate::link::frame::Fields(&found.body)
                .stat()
                .map(Some)
                .map_err(|malformed| Fault::Refused(malformed.to_string())),
            Err(Fault::NoNode) => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}

fn outcome(error: i32) -> Answer<()> {
    match error {
        code::OK => Ok(()),
        code::CONNECTION_LOSS => Err(Fault::ConnectionLoss),
        code::SESSION_EXPIRED => Err(Fault::SessionEnded),
        code::NO_NODE => Err(Fault::NoNode),
        code::NO_AUTH => Err(Fault::NoAuth),
        other => Err(Fault::Refused(format!("the server refused it: error {other}"))),
    }
}

/// The error for those who needed a session that has ended.
pub(crate) fn ended(end: End) -> Error {
    match end {
        End::Expired => Error::new(ErrorKind::SessionLost, "the server expired the session"),
        End::Lapsed => Error::new(
            ErrorKind::SessionLost,
            "the session's lease ran out before the ensemble could be reached again",
        ),
        End::AuthFailed => Error::new(
            ErrorKind::AuthFailed,
            "the server rejected the client's credentials; check the scheme and the credentials",
        ),
        End::Closed => Error::new(ErrorKind::Closed, "the client is closed"),
    }
}

impl Store for Session {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created> {
        let made = self.handle.create(path, data, acl, kind, &self.link);
        match made {
            // Servers before 3.5 know no containers.
            Err(Fault::Refused(_)) if kind == Kind::Container => {
                self.handle.create(path, data, acl, Kind::Persistent, &self.link)
            }
            made => made,
        }
    }

    fn delete(&self, path: &str) -> Answer<()> {
        self.handle.delete(path)
    }

    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        match self.handle.read(path, watch) {
            // Neither an ACL that hides the data nor its size hides whether the node exists.
            Err(Fault::NoAuth | Fault::TooLarge) => {
                let stat = self.handle.exists(path, watch)?;
                Ok(stat.map(|stat| (Vec::new(), stat)))
            }
            read => read,
        }
    }

    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        if watch {
            return self.handle.children(path, true);
        }
        self.listings.get(path, || self.handle.children(path, false))
    }

    fn sync(&self) -> Answer<()> {
        let (tell, told) = bounded(1);
        let body = SYNC_ROOT.to_vec();
        self.link.verb(
            op::SYNC,
            body,
            Box::new(move |answer| {
                let _ = tell.send(answer.error);
            }),
        );
        outcome(told.recv().map_err(|_| Fault::SessionEnded)?)
    }
}
