//! One session: its verbs, its state and watches, and what its callers share.

use std::borrow::Cow;
#[cfg(test)]
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Verbs;
use super::single_flight::SingleFlight;
use super::time_limit::TimeLimit;
use crate::connection_notice::{End, Notice};
use crate::error::{Error, ErrorKind, Result};
#[cfg(test)]
use crate::rt::Mutex;
use crate::rt::{self, AtomicU64, Deadline};
use crate::session::connection::{Answer, Ensemble, Fault, Names, SessionRecords, Status, Watches};
use crate::session::owned::OwnedNodes;
use crate::session::wait::{Wait, Waiter};
use crate::wire_values::Stat;

/// See the module. It never comes back once it has ended.
#[derive(Debug)]
pub(crate) struct Session {
    verbs: Verbs,
    shared: Arc<SharedParts>,
}

/// What all callers of a session share, with or without a time limit.
#[derive(Debug)]
struct SharedParts {
    status: Arc<Status>,
    watches: Arc<Watches>,
    /// The session's id, once it is known: it never changes.
    id: AtomicU64,
    listings: SingleFlight<Answer<Option<Names>>>,
    lists: SingleFlight<Answer<Option<(Names, Stat)>>>,
    /// All paths of nodes that were ever about to be deleted, for checks in tests.
    #[cfg(test)]
    left: Mutex<BTreeSet<String>>,
}

impl Session {
    /// Opens a session within the connect timeout; `stop` is called whenever the waiter's bell is rung.
    /// `paths_limit` is that of [`OwnedNodes`]. One that `replaces` another is not replaced itself for two
    /// session timeouts: servers may close each connection at the same request.
    pub(crate) fn open(
        ensemble: &dyn Ensemble,
        (paths_limit, replaces): (usize, bool),
        waiter: &Waiter,
        stop: impl Fn() -> bool,
        on_notice: impl Fn(Notice) + Send + 'static,
    ) -> Result<Session> {
        let (status, watches) = (Arc::<Status>::default(), Arc::<Watches>::default());
        let _subscription = status.subscribe(waiter.bell());
        let void = Arc::clone(&watches);
        let records = SessionRecords {
            status: Arc::clone(&status),
            watches: Arc::clone(&watches),
            on_notice: Box::new(move |notice| {
                if matches!(notice, Notice::Suspended | Notice::Ended(_)) {
                    void.forget_all();
                }
                on_notice(notice);
            }),
        };
        let connection = ensemble.open(records, waiter, &stop)?;
        let rest = if replaces { connection.info().timeout * 2 } else { Duration::ZERO };
        let may_end_from = rt::now().checked_add(rest).filter(|_| !connection.is_handle());
        let owned = OwnedNodes::new(paths_limit, may_end_from, Arc::clone(&status));
        let verbs = Verbs::new(
            connection,
            Arc::clone(&watches),
            Arc::new(owned),
            ensemble.unsupported_operations(),
        );
        let shared = Arc::new(SharedParts {
            status,
            watches,
            id: AtomicU64::new(0),
            listings: SingleFlight::default(),
            lists: SingleFlight::default(),
            #[cfg(test)]
            left: Mutex::default(),
        });
        Ok(Session { verbs, shared })
    }

    /// Asks `question` within a time limit; `None` if the limit was over first. Its requests may
    /// then have taken effect, or may do so later.
    ///
    /// A question must pass a lost connection on: otherwise its result would describe requests that
    /// were never sent.
    pub(crate) fn ask<T>(
        &self,
        wait: &Wait,
        question: impl FnOnce(&Session) -> Answer<T>,
    ) -> Option<Answer<T>> {
        if wait.until().is_never() && wait.cancel().is_none() {
            return Some(question(self));
        }
        let verbs = self.verbs.within(TimeLimit::new(wait));
        let session = Session { verbs, shared: Arc::clone(&self.shared) };
        let answer = question(&session);
        let gave_up = matches!(answer, Err(Fault::ConnectionLoss))
            && session.verbs.limit().is_some_and(TimeLimit::was_over);
        (!gave_up).then_some(answer)
    }

    pub(crate) fn status(&self) -> &Status {
        &self.shared.status
    }

    /// The table of watches, for a call that is about to wait; removes unused watches from the
    /// server first if there are many.
    pub(crate) fn watches(&self) -> &Arc<Watches> {
        let watches = &self.shared.watches;
        if watches.are_many_unused() {
            self.remove_unused_watches();
        }
        watches
    }

    fn remove_unused_watches(&self) {
        let watches = &self.shared.watches;
        let nothing_is_held = watches.is_empty();
        if self.verbs.may_unwatch(nothing_is_held) {
            watches.tidy(|path| self.verbs.unwatch_soon(path));
        } else if nothing_is_held && watches.are_too_many_unused() {
            self.verbs.reconnect();
        }
    }

    /// Whether its lease still runs, for a caller that knows that the process is not a forked one.
    pub(crate) fn is_trusted_here(&self) -> bool {
        self.verbs.trusted_here().is_ok()
    }

    /// Whether its lease still runs.
    pub(crate) fn is_trusted(&self) -> bool {
        self.verbs.trusted().is_ok()
    }

    pub(crate) fn id(&self) -> i64 {
        let known = self.shared.id.load(Ordering::Relaxed) as i64;
        if known != 0 {
            return known;
        }
        let id = self.verbs.info().session;
        self.shared.id.store(id as u64, Ordering::Relaxed);
        id
    }

    /// As [`Verbs::ask_names`], but callers may share the answer to one request, which was sent
    /// after each of them had called.
    pub(crate) fn names(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        self.together(&self.shared.listings, path, watch, || self.verbs.ask_names(path, watch))
    }

    /// As [`Verbs::ask_names_and_stat`], with shared answers as in `names`.
    pub(crate) fn names_and_stat(&self, path: &str, watch: bool) -> Answer<Option<(Names, Stat)>> {
        self.together(&self.shared.lists, path, watch, || {
            self.verbs.ask_names_and_stat(path, watch)
        })
    }

    fn together<T: Clone>(
        &self,
        callers: &SingleFlight<Answer<T>>,
        path: &str,
        watch: bool,
        ask: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        let answer = callers.get(&key(path, watch), self.verbs.limit(), ask);
        answer.unwrap_or(Err(Fault::ConnectionLoss))
    }

    /// Notes that a node of this session is no longer needed and is about to be deleted: no call
    /// will ever adopt it, and no guard relies on it.
    pub(crate) fn leaves(&self, path: &str) {
        #[cfg(test)]
        self.shared.left.lock().insert(path.to_owned());
        self.verbs.owned().leave(path);
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn has_left(&self, path: &str) -> bool {
        self.shared.left.lock().contains(path)
    }

    /// The names of the parent's children that are about to be deleted.
    pub(crate) fn leaving(&self, parent: &str) -> Vec<String> {
        self.verbs.owned().leaving(parent)
    }

    /// Before the session ends: deletes its nodes by then, if they are so many that its end would be too
    /// large. Whoever holds one of them knows first that it is lost.
    pub(crate) fn delete_many_owned(&self, until: Deadline) {
        let nodes = self.verbs.owned().to_delete_at_end();
        if !nodes.is_empty() && self.shared.status.now().is_usable() {
            self.shared.status.note(Notice::Ended(End::Closed));
            let limit = Wait::from(until);
            let verbs = self.verbs.within(TimeLimit::new(&limit));
            verbs.delete_each(&nodes);
        }
    }

    /// Ends the session, in which nothing is held. Once the server has confirmed that, nothing of it is
    /// carried out any more.
    pub(crate) fn replace(&self) {
        self.shared.status.note(Notice::Ended(End::Replaced));
        self.verbs.close(End::Replaced, self.verbs.info().timeout * 2);
    }
}

/// Callers with the same key share an answer. No path begins like the key of a request with a
/// watch.
fn key(path: &str, watch: bool) -> Cow<'_, str> {
    if watch { format!("watched {path}").into() } else { path.into() }
}

impl Deref for Session {
    type Target = Verbs;

    fn deref(&self) -> &Verbs {
        &self.verbs
    }
}

/// Waits until a server serves a session that is being opened; false if that was not in time.
/// `stop` is called whenever the waiter's bell is rung; the status must ring it.
pub(crate) fn until_attached(
    status: &Status,
    waiter: &Waiter,
    until: Deadline,
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    loop {
        let phase = status.now();
        if let Some(end) = phase.ended {
            return Err(ended(end));
        }
        // A session that is open is used, even if the time is over.
        if phase.attached {
            return Ok(true);
        }
        if stop() {
            return Err(ended(End::Closed));
        }
        if until.has_passed() {
            return Ok(false);
        }
        waiter.wait(until);
    }
}

/// The error of a call whose session has ended.
pub(crate) fn ended(end: End) -> Error {
    match end {
        End::Expired => Error::new(ErrorKind::SessionLost, "the server expired the session"),
        End::Lapsed => Error::new(
            ErrorKind::SessionLost,
            "the session's lease ran out before the ensemble could be reached again",
        ),
        End::AuthFailed => rejected(None),
        End::Closed => Error::new(
            ErrorKind::Closed,
            "the client, or the program's ZooKeeper handle that it uses, is closed",
        ),
        End::Replaced => Error::new(
            ErrorKind::SessionLost,
            "the client has opened another session, as a request of this one that got no answer could still have \
             been carried out",
        ),
    }
}

/// The error of a call that no server serves, as none accepts the client's credentials; perhaps with the
/// servers' reasons.
pub(crate) fn rejected(why: Option<String>) -> Error {
    let usual = "the server rejected the client's credentials, or demands others: check what the client has \
                 by `auth`, `sasl` and `tls`";
    Error::new(ErrorKind::AuthFailed, why.unwrap_or_else(|| usual.to_owned()))
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::connection_notice::Info;
    use crate::rt::{Receiver, Sender, unbounded};
    use crate::session::connection::{
        Answered, Connection, Created, OnReply, Reply, Request, Submission, Waits,
    };
    use crate::session::owned::StillMeant;
    use crate::session::wait::Cancel;
    use std::thread;

    const SOON: Duration = Duration::from_secs(20);

    /// Passes on each request, and leaves the answers to others.
    #[derive(Debug)]
    struct Passes(Sender<(Request, OnReply)>);

    impl Connection for Passes {
        fn submit(&self, requests: Vec<Submission>, _waits: Waits) -> bool {
            for Submission { request, on_reply } in requests {
                self.0.send((request, on_reply)).unwrap();
            }
            true
        }

        fn flushed_by(&self, _until: Deadline) {}

        fn trusted(&self) -> std::result::Result<Duration, End> {
            Ok(Duration::ZERO)
        }

        fn info(&self) -> Info {
            Info::default()
        }

        fn close(&self, _why: End, _give_up_after: Duration) {}
    }

    impl Ensemble for Passes {
        fn open(
            &self,
            _records: SessionRecords,
            _waiter: &Waiter,
            _stop: &dyn Fn() -> bool,
        ) -> Result<Box<dyn Connection>> {
            Ok(Box::new(Passes(self.0.clone())))
        }

        fn connect_timeout(&self) -> Duration {
            SOON
        }
    }

    fn session() -> (Arc<Session>, Receiver<(Request, OnReply)>) {
        let (asks, asked) = unbounded();
        let session =
            Session::open(&Passes(asks), (usize::MAX, false), &Waiter::new(), || false, drop)
                .unwrap();
        (Arc::new(session), asked)
    }

    fn names() -> Names {
        ["x"].into_iter().collect()
    }

    fn lists(
        session: &Arc<Session>,
        cancel: Option<&Cancel>,
    ) -> Receiver<Option<Answer<Option<Names>>>> {
        let (session, cancel) = (Arc::clone(session), cancel.cloned());
        let (tell, told) = unbounded();
        thread::spawn(move || {
            let list = |session: &Session| session.names("/a", false);
            let wait = cancel.as_ref().map_or(Wait::FOREVER, Wait::from);
            tell.send(session.ask(&wait, list))
        });
        told
    }

    #[test]
    fn who_has_a_time_limit_goes_and_leaves_the_common_question_to_others() {
        let (session, asked) = session();
        let [first, second] = [(); 2].map(|()| Cancel::new());
        let asks = lists(&session, Some(&first));
        let (_, unanswered) = asked.recv_timeout(SOON).unwrap();
        let [waits, goes] = [None, Some(&second)].map(|cancel| lists(&session, cancel));
        second.cancel();
        assert_eq!(goes.recv_timeout(SOON), Ok(None));
        first.cancel();
        assert_eq!(asks.recv_timeout(SOON), Ok(None));
        // The request is sent again.
        let (_, on_reply) = asked.recv_timeout(SOON).unwrap();
        on_reply(Answered::Read(Ok(Reply::Names(names()))));
        assert_eq!(waits.recv_timeout(SOON), Ok(Some(Ok(Some(names())))));
        drop(unanswered);
    }

    #[test]
    fn nothing_is_asked_when_the_time_is_over() {
        let (session, asked) = session();
        let now = Wait::from(Duration::ZERO);
        let question = |session: &Session| {
            session.delete("/a")?;
            session.confirm("/a")
        };
        assert_eq!(session.ask(&now, question), None);
        let each = |session: &Session| Ok(session.read_each(&["/a".to_owned()]));
        let read = session.ask(&now, each);
        assert_eq!(read, Some(Ok(vec![Err(Fault::ConnectionLoss)])));
        let late = Box::new(|_| panic!("an answer to no request"));
        assert_eq!(session.ask(&now, |session| session.delete_or("/a", late)), None);
        assert!(asked.is_empty());
    }

    #[test]
    fn a_node_that_was_made_too_late_for_its_caller_is_told() {
        let (session, asked) = session();
        let cancel = Cancel::new();
        let (tell, told) = unbounded();
        let (enters, token) = (Arc::clone(&session), cancel.clone());
        let call = thread::spawn(move || {
            let made = move |made| tell.send(made).unwrap();
            let enter = |session: &Session| {
                let meant = StillMeant::default();
                session.enter("/a/x-", &[], &[], &meant, false, Box::new(made))
            };
            enters.ask(&Wait::from(&token), enter)
        });
        let [(_, on_create), (_, on_list)] = [(); 2].map(|()| asked.recv_timeout(SOON).unwrap());
        cancel.cancel();
        assert_eq!(call.join().unwrap(), None);
        let made = Created { path: "/a/x-1".to_owned(), czxid: Some(7) };
        on_create(Answered::Read(Ok(Reply::Created(made.clone()))));
        assert_eq!(told.recv_timeout(SOON), Ok(Ok(made)));
        drop(on_list);
    }

    #[test]
    fn the_answer_to_a_deletion_that_nobody_waits_for_any_more_is_told() {
        for is_answered in [true, false] {
            let (session, asked) = session();
            let cancel = Cancel::new();
            let (tell, told) = unbounded();
            let (deletes, token) = (Arc::clone(&session), cancel.clone());
            let call = thread::spawn(move || {
                let late = move |answer| tell.send(answer).unwrap();
                let delete = |session: &Session| session.delete_or("/a", Box::new(late));
                deletes.ask(&Wait::from(&token), delete)
            });
            let (_, on_reply) = asked.recv_timeout(SOON).unwrap();
            cancel.cancel();
            assert_eq!(call.join().unwrap(), None);
            assert!(told.is_empty());
            match is_answered {
                true => on_reply(Answered::Read(Ok(Reply::Done))),
                false => drop(on_reply),
            }
            let expected = if is_answered { Ok(()) } else { Err(Fault::SessionEnded) };
            assert_eq!(told.recv_timeout(SOON), Ok(expected));
        }
    }
}
