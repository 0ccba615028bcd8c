//! Jobs that run once for each key, on any of several hosts.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::contend::{Contender, HandOver, first_contender};
use crate::error::{Error, ErrorKind, Result};
use crate::fencing::FencingToken;
use crate::path;
use crate::recipes::data::{
    CreateMode, CreateOptions, NodeConfig, Version, Znode, ZnodeStat, placed,
};
use crate::recipes::locks::{DistributedLock, LockGuard, default_data};
use crate::rt::{self, Deadline};
use crate::session::{Answer, Fault, Purpose, Session, Step, Wait, cancelled};
use crate::wire_values::Stat;

/// The first line of a mark. Unknown lines after it are ignored.
const FORMAT: &str = "zklock-once 1";

const LOOK: Purpose = Purpose::to_read("look for the job's mark", "READ on it");
const FORGET: Purpose = Purpose::to_change(
    "remove the job's mark",
    "WRITE, DELETE and READ on the marks' parent, and READ on the mark",
);
const LIST: Purpose = Purpose::to_read("list the marks", "READ on their parent");

const NOT_RUN: &str = "could not create the parent of the marks, so the job has not run";

/// Runs a job once for each key, such as a date, on whichever host comes first.
///
/// `Once` leaves a mark, a persistent node, for a key whose job has run. The guard's
/// [transaction](crate::Hold::transaction) writes it: only a call that still holds the lock can
/// leave one.
///
/// # Guarantees
///
/// - No two calls run the job for one key at the same time, as far as a [`DistributedLock`] can
///   guarantee it.
/// - After [`Done`](OnceOutcome::Done) no call runs the job again until the mark is
///   [removed](Once::forget).
/// - [`DoneByOther`](OnceOutcome::DoneByOther) and [`Busy`](OnceOutcome::Busy) come only from an
///   answer of the ensemble during this call. In an outage there is an error.
/// - A job that fails or panics leaves no mark: the next call runs it again, or one that waits.
///
/// **`Busy` is no success.** The other call may fail. If all calls give up at once, as
/// [`run`](Once::run) does, nobody does the job then. Calls that [wait](Once::run_within) take
/// over.
///
/// **Not guaranteed: at most once.** If the process dies, or its session is lost, after the job has
/// done its work and before the mark is written, the next call runs the job again. So the job
/// should be harmless when it runs twice, or fence its writes: data in ZooKeeper with the guard's
/// own [transaction](crate::Hold::transaction), other stores with its [fencing
/// token](LockGuard::fencing_token).
///
/// # Nodes
///
/// The marks are at `base/name/done/KEY`, the locks at `base/name/locks/KEY`. Marks stay until
/// [`forget`](Once::forget) or [`prune`](Once::prune) removes them. The server removes unused
/// locks.
///
/// ```no_run
/// use std::error::Error;
/// use std::time::Duration;
/// use zklock::once::OnceOutcome;
/// use zklock::{Client, Once};
///
/// # fn back_up() -> Result<(), Box<dyn Error>> { Ok(()) }
/// fn nightly(zk: &Client, day: &str) -> Result<(), Box<dyn Error>> {
///     let once = Once::new(zk, "/jobs", "backup");
///     match once.run_within(Duration::from_secs(6 * 3600), day, |_| back_up())? {
///         OnceOutcome::Done(()) => println!("done"),
///         OnceOutcome::DoneByOther(mark) => println!("already done by {}", mark.by),
///         OnceOutcome::Busy(holder) => return Err(format!("not done: {}", holder.label()).into()),
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Once {
    target: NodeConfig,
}

placed!(
    Once,
    "Returns the `Once` that keeps its marks and locks below `base/name`",
    "Clients that run jobs need READ, CREATE and DELETE on the created nodes."
);

/// The outcome of [`Once::run`] and [`Once::run_within`]; no variant will be added.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum OnceOutcome<T> {
    /// The job has run in this call, with this result, and is marked as done.
    Done(T),
    /// The job was done by an earlier call, which the mark describes.
    DoneByOther(OnceMark),
    /// Another call holds the job's lock: the job is not done, and that call may fail.
    Busy(Contender),
}

/// What a [`Once`] has stored about a job that is done: when it was done, and by which process.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnceMark {
    /// The key of the job.
    pub key: String,
    /// When the job was marked as done, by the clock of the ensemble's leader.
    pub at: SystemTime,
    /// The process that ran the job: its host, process id, program and thread.
    pub by: String,
    /// The fencing token of the lock under which the job ran.
    pub fencing_token: Option<FencingToken>,
    /// The transaction that wrote it. Unlike the time, it grows whichever server leads.
    czxid: i64,
    /// The id of the call that left it.
    call: String,
}

impl OnceMark {
    fn read(key: &str, data: &[u8], stat: Stat) -> OnceMark {
        let text = String::from_utf8_lossy(data);
        let line = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or("")
        };
        OnceMark {
            key: key.to_owned(),
            at: ZnodeStat::new(stat).created_at,
            by: line("by").to_owned(),
            fencing_token: line("token").parse().ok(),
            czxid: stat.czxid,
            call: line("call").to_owned(),
        }
    }
}

impl fmt::Debug for OnceMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceMark")
            .field("key", &self.key)
            .field("at", &self.at)
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

/// The right to run a job.
struct Turn {
    guard: LockGuard,
    mark: Znode,
    /// The version of the marks' parent before the job.
    marks: Version,
    call: String,
}

impl Once {
    /// Runs the job for this key, unless it is done; returns at once if any other call is running it.
    ///
    /// [`run_within`](Once::run_within) waits for that call, which may fail.
    ///
    /// The key is one component of a path. The job receives the guard, to fence its writes and to
    /// check whether the lock is [still held](crate::Hold::is_held). Before and after the job, the
    /// call takes at most a few times the [connect timeout](crate::ClientBuilder::connect_timeout).
    ///
    /// The call returns the job's error as its own, so that error's type must be convertible from
    /// [`Error`], as `Box<dyn Error>` is; `downcast_ref::<zklock::Error>()` then tells them apart.
    ///
    /// # Errors
    ///
    /// The job's own error, and:
    ///
    /// - before the job, which has not run then: [`InvalidName`](ErrorKind::InvalidName) for a key
    ///   that cannot be a node's name; [`Connect`](ErrorKind::Connect) if the ensemble does not
    ///   answer in time; [`Unsupported`](ErrorKind::Unsupported) for a client of a program's own
    ///   handle; otherwise as [`DistributedLock::lock`];
    /// - after the job, with a message that says that it has run:
    ///   [`ConnectionLoss`](ErrorKind::ConnectionLoss) if the mark could not be written, or may have been
    ///   written: without a mark, another call runs the job again; [`NodeDeleted`](ErrorKind::NodeDeleted) or
    ///   [`SessionLost`](ErrorKind::SessionLost) if the lock was lost meanwhile, so that another call may
    ///   have run the job, too.
    pub fn run<T, E: From<Error>>(
        &self,
        key: impl AsRef<str>,
        job: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        self.run_in_turn(None, key.as_ref(), job)
    }

    /// Runs the job for this key, unless it is done, waiting at most `wait` for another call that
    /// is running it.
    ///
    /// When the other call has done the job, this one finds the mark. When the other fails, or its
    /// process dies, or its session is lost, one of those that wait runs the job.
    ///
    /// Returns [`Busy`](OnceOutcome::Busy) if a call still holds the job's lock when the time is
    /// over.
    ///
    /// The wait goes on through outages and lost sessions. The call takes longer by the job, and by
    /// at most a few times the [connect timeout](crate::ClientBuilder::connect_timeout).
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled), before the job begins; otherwise as [`run`](Once::run).
    pub fn run_within<T, E: From<Error>>(
        &self,
        wait: impl Into<Wait>,
        key: impl AsRef<str>,
        job: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        self.run_in_turn(Some(&wait.into()), key.as_ref(), job)
    }

    fn run_in_turn<T, E: From<Error>>(
        &self,
        wait: Option<&Wait>,
        key: &str,
        job: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        let turn = match self.turn(wait, key)? {
            OnceOutcome::Done(turn) => turn,
            OnceOutcome::DoneByOther(mark) => return Ok(OnceOutcome::DoneByOther(mark)),
            OnceOutcome::Busy(holder) => return Ok(OnceOutcome::Busy(holder)),
        };
        let Turn { guard, mark, marks, call } = turn;
        let result = job(&guard)?;
        self.leave_mark(key, &guard, &mark, marks, &call)?;
        Ok(OnceOutcome::Done(result))
    }

    /// Runs the job for this key, unless it is done, under a lock that the caller holds by `guard`.
    ///
    /// The guard's transaction writes the mark. Calls for one key run the job once only if all of
    /// them hold the same lock: this call takes no other, and never returns
    /// [`Busy`](OnceOutcome::Busy).
    ///
    /// # Errors
    ///
    /// As [`run`](Once::run); before the job also [`NodeDeleted`](ErrorKind::NodeDeleted) or
    /// [`SessionLost`](ErrorKind::SessionLost) if the guard does not hold, and
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if its lock has another client.
    pub fn run_holding<T, E: From<Error>>(
        &self,
        guard: &LockGuard,
        key: impl AsRef<str>,
        job: impl FnOnce() -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, E> {
        let key = key.as_ref();
        let mark = self.mark_node(key)?;
        if !Arc::ptr_eq(guard.client().core(), self.target.client.core()) {
            let message = "the guard is of another client than the marks: the guard's transaction would write \
                           the mark where others do not look for it";
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(mark.path()).into());
        }
        guard.check()?;
        if let Some(mark) = self.mark(key)? {
            return Ok(OnceOutcome::DoneByOther(mark));
        }
        let marks = self.make_parent_before(&mark)?;
        let result = job()?;
        self.leave_mark(key, guard, &mark, marks, &new_call())?;
        Ok(OnceOutcome::Done(result))
    }

    /// Reads the mark of this key; `None` if the job is not done.
    ///
    /// # Errors
    ///
    /// As for [`Znode::read`].
    pub fn mark(&self, key: impl AsRef<str>) -> Result<Option<OnceMark>> {
        let key = key.as_ref();
        let place = NodeConfig::at(self.target.client.clone(), &self.inside("done", key)?);
        place.ask(LOOK, |session, node| {
            session.sync()?;
            let found = session.data(node, false)?;
            Ok(found.map(|(data, stat)| OnceMark::read(key, &data, stat)))
        })
    }

    /// Lists the marks of all done jobs, sorted by key.
    ///
    /// # Errors
    ///
    /// As for [`Znode::read`].
    pub fn marks(&self) -> Result<Vec<OnceMark>> {
        let place = NodeConfig::at(self.target.client.clone(), &self.below("done")?);
        place.ask(LIST, |session, node| {
            session.sync()?;
            let keys = session.names(node, false)?.unwrap_or_default().sorted();
            let paths: Vec<String> = keys.iter().map(|key| path::join(node, key)).collect();
            let mut marks = Vec::with_capacity(keys.len());
            for (key, found) in keys.iter().zip(session.read_each(&paths)) {
                marks.extend(found?.map(|(data, stat)| OnceMark::read(key, &data, stat)));
            }
            Ok(marks)
        })
    }

    /// Removes the mark of this key, so that the job can run again; `false` if there was none.
    ///
    /// - A call that has written the mark, and has lost the reply, does not write it again, nor does
    ///   the ensemble carry out that request later. For that, this call writes the marks' parent.
    /// - A mark that is left after this call has succeeded is not removed by it, nor by an earlier
    ///   `forget` of this client whose reply was lost.
    ///
    /// On a program's own handle the parent is written first, and then the mark is deleted: an
    /// earlier `forget` whose reply was lost may remove a later mark there.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without WRITE and DELETE on the marks' parent, and READ
    /// on it and on the mark; otherwise as for [`Znode`].
    pub fn forget(&self, key: impl AsRef<str>) -> Result<bool> {
        self.remove(key.as_ref(), None)
    }

    /// Removes the mark of this key, unless it is another one than that of this transaction.
    fn remove(&self, key: &str, czxid: Option<i64>) -> Result<bool> {
        let place = NodeConfig::at(self.target.client.clone(), &self.inside("done", key)?);
        let (mut meant, mut is_repeated) = (czxid, false);
        place.ask(FORGET, |session, mark| forget_in(session, mark, &mut meant, &mut is_repeated))
    }

    /// Removes all marks that are older than the newest one by more than `older_than`, and returns
    /// their number.
    ///
    /// Ages are by the ensemble's clock. The newest mark, such as that of a job that has just run,
    /// stays.
    ///
    /// # Errors
    ///
    /// As [`marks`](Once::marks) and [`forget`](Once::forget). Marks that were removed before the
    /// error stay removed.
    pub fn prune(&self, older_than: Duration) -> Result<usize> {
        let mut removed = 0;
        let marks = self.marks()?;
        for mark in outdated(&marks, older_than) {
            removed += usize::from(self.remove(&mark.key, Some(mark.czxid))?);
        }
        Ok(removed)
    }

    /// Acquires the right to run the job, or returns the call that has it or had it.
    fn turn(&self, wait: Option<&Wait>, key: &str) -> Result<OnceOutcome<Turn>> {
        let client = &self.target.client;
        let mark = self.mark_node(key)?;
        let call = new_call();
        // The second line tells this call's nodes from those of other calls of the same thread.
        let label = format!("{}\ncall={call}", myself());
        let lock = DistributedLock::new(client, self.below("locks")?, key)
            .acl(self.target.acl.clone())
            .data(label.as_str())
            // Handover would let a second thread of this process wait for the first.
            .hand_over(HandOver::Off);
        let lock_node = self.inside("locks", key)?;
        // If it is over without the lock, others may have ended at that moment: then once more, without
        // a wait.
        let mut acquired = match wait {
            Some(wait) => lock.lock_within(wait)?,
            None => None,
        };
        let limit = client.core().connect_timeout();
        let until = Deadline::after(limit);
        loop {
            if acquired.is_none() {
                if let Some(mark) = self.mark(key)? {
                    return Ok(OnceOutcome::DoneByOther(mark));
                }
                acquired = lock.try_lock()?;
            }
            if let Some(guard) = acquired.take() {
                // Another call may have done the job before this one acquired the lock.
                if let Some(mark) = self.mark(key)? {
                    return Ok(OnceOutcome::DoneByOther(mark));
                }
                let marks = self.make_parent_before(&mark)?;
                if wait.is_some_and(Wait::is_cancelled) {
                    return Err(cancelled(&lock_node));
                }
                return Ok(OnceOutcome::Done(Turn { guard, mark, marks, call }));
            }
            // A node that this call's own attempt left behind is no other holder.
            match first_contender(client, &lock_node)? {
                Some(holder) if holder.data != label.as_bytes() => {
                    return Ok(OnceOutcome::Busy(holder));
                }
                _ if until.has_passed() => {
                    let message = format!("could not acquire the lock of the job within {limit:?}");
                    return Err(Error::new(ErrorKind::Connect, message).on(lock_node));
                }
                _ => {}
            }
        }
    }

    /// The node of a key's mark, which the client has to be able to write.
    fn mark_node(&self, key: &str) -> Result<Znode> {
        let client = &self.target.client;
        let mark = client.znode(self.inside("done", key)?);
        if client.core().handle().is_some() {
            let message = "the mark needs a transaction, which the zookeeper crate does not have: \
                           connect with `Client::connect`";
            return Err(Error::new(ErrorKind::Unsupported, message).on(mark.path()));
        }
        Ok(mark)
    }

    /// Without its parent, the mark could not be written after the job. An error here does not leave
    /// open whether the job has run.
    fn make_parent_before(&self, mark: &Znode) -> Result<Version> {
        self.make_parent().map_err(|error| match error.may_have_taken_effect() {
            true => Error::new(ErrorKind::Connect, NOT_RUN).on(mark.path()).caused_by(error),
            false => error,
        })
    }

    fn make_parent(&self) -> Result<Version> {
        let parent = self.target.client.znode(self.below("done")?);
        loop {
            if let Some(stat) = parent.stat()? {
                return Ok(stat.version);
            }
            match parent.create_version(&self.options(), Vec::new()) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
    }

    /// Writes the mark, if the lock is still held. `marks` is the version of the marks' parent, which
    /// each `forget` changes: a mark that was removed is not written again, neither by this call after a
    /// lost reply nor by a request that is carried out late.
    fn leave_mark(
        &self,
        key: &str,
        guard: &LockGuard,
        mark: &Znode,
        mut marks: Version,
        call: &str,
    ) -> Result<()> {
        let (by, token) = (myself(), guard.fencing_token());
        let data = format!("{FORMAT}\nby={by}\ntoken={token}\ncall={call}\n");
        let until = Deadline::after(self.target.client.core().connect_timeout());
        let mut was_lost = false;
        loop {
            let transaction = guard.transaction().check_unchanged(self.below("done")?, marks);
            let transaction = transaction.create(mark.path(), self.options(), &*data);
            let Err(error) = transaction.commit() else { return Ok(()) };
            let unsure = |cause: Error| {
                let message =
                    format!("the job has run, and its mark may have been written: {cause}");
                Error::new(ErrorKind::ConnectionLoss, message).on(mark.path()).caused_by(cause)
            };
            let unmarked = |cause: Error| {
                let message = format!("the job has run, but could not be marked as done: {cause}");
                let kind = match cause.kind() {
                    // Another call would run the job again.
                    ErrorKind::Connect => ErrorKind::ConnectionLoss,
                    kind => kind,
                };
                Error::new(kind, message).on(mark.path()).caused_by(cause)
            };
            match error.kind() {
                // The attempt without an answer may have written the mark.
                ErrorKind::ConnectionLoss | ErrorKind::AlreadyExists => match self.mark(key) {
                    Ok(Some(found)) if found.call == call => return Ok(()),
                    Ok(None) if !until.has_passed() => {
                        was_lost |= error.kind() == ErrorKind::ConnectionLoss;
                        continue;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => return Err(unsure(error)),
                    Err(cause) => return Err(unsure(cause)),
                },
                ErrorKind::VersionMismatch | ErrorKind::NotFound if was_lost => {
                    return Err(unsure(error));
                }
                // Other marks were removed during the job.
                ErrorKind::VersionMismatch | ErrorKind::NotFound if !until.has_passed() => {
                    marks = self.make_parent().map_err(unmarked)?;
                    continue;
                }
                _ => {}
            }
            return Err(unmarked(error));
        }
    }

    fn options(&self) -> CreateOptions {
        CreateOptions::new(CreateMode::Persistent).acl(self.target.acl.clone())
    }

    /// The path of one of the two nodes below `base/name`.
    fn below(&self, child: &str) -> Result<String> {
        path::lock_path(self.target.node()?, child)
    }

    fn inside(&self, child: &str, key: &str) -> Result<String> {
        path::lock_path(&self.below(child)?, key)
    }
}

/// Deletes the mark and writes its parent in the version from before. So a request without an answer can no
/// longer take effect once any `forget` has been answered, and no mark that was to be left before it can be.
/// `meant` is the mark to delete, once that is known, and `is_repeated` whether an attempt had no answer.
fn forget_in(
    session: &Session,
    mark: &str,
    meant: &mut Option<i64>,
    is_repeated: &mut bool,
) -> Answer<bool> {
    let parent = path::parent(mark);
    loop {
        let Some(before) = session.confirm(parent)? else { return Ok(*is_repeated) };
        let found = session.exists(mark, false)?.map(|stat| stat.czxid);
        if meant.is_some() && found != *meant {
            return Ok(*is_repeated);
        }
        *meant = found;
        let (path, data) = (parent.to_owned(), Vec::new());
        let mut steps = vec![Step::Write { path, data, version: Some(before.version) }];
        steps.extend(found.map(|_| Step::delete(mark.to_owned())));
        match session.transact(&steps) {
            Ok(()) => return Ok(found.is_some()),
            // Other marks were removed, or this one.
            Err(Fault::BadVersion | Fault::NoNode) => {}
            Err(fault) => {
                *is_repeated |= fault.is_loss() && found.is_some();
                return Err(fault);
            }
        }
    }
}

/// The marks that are older than the newest by more than this, if any.
fn outdated(marks: &[OnceMark], older_than: Duration) -> impl Iterator<Item = &OnceMark> {
    let now = marks.iter().max_by_key(|mark| mark.czxid).map(|newest| newest.at);
    let age = move |mark: &OnceMark| now?.duration_since(mark.at).ok();
    marks.iter().filter(move |mark| age(mark).is_some_and(|age| age > older_than))
}

/// What this process says about itself.
fn myself() -> String {
    String::from_utf8_lossy(&default_data()).into_owned()
}

/// The id of a call.
fn new_call() -> String {
    Uuid::from_u128(rt::random()).simple().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_of_a_later_version_is_a_mark() {
        let stat = Stat { ctime: 1_000, ..Stat::default() };
        let read = |text: &str| OnceMark::read("k", text.as_bytes(), stat);
        let token = "00000001000000a7-00000000";
        let full = format!("{FORMAT}\nby=host=a pid=1\nnew=x\ntoken={token}\ncall=c\n");
        let mark = read(&full);
        assert_eq!((mark.by.as_str(), mark.call.as_str()), ("host=a pid=1", "c"));
        assert_eq!(mark.fencing_token, token.parse().ok());
        assert_eq!(mark.at, SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        let foreign = read("something else");
        assert_eq!((foreign.by.as_str(), foreign.fencing_token), ("", None));
    }

    #[test]
    fn ages_are_counted_from_the_newest_mark() {
        let outdated = |times: &[(&str, i64)], age| {
            let mark = |(czxid, (key, ctime)): (i64, &(&str, i64))| {
                OnceMark::read(key, b"", Stat { ctime: *ctime, czxid, ..Stat::default() })
            };
            let mut marks: Vec<OnceMark> = (1..).zip(times).map(mark).collect();
            marks.sort_by(|one, other| one.key.cmp(&other.key));
            let keys = outdated(&marks, Duration::from_millis(age)).map(|mark| mark.key.clone());
            keys.collect::<Vec<_>>()
        };
        // In the order in which they were written. Times of long ago, and of far ahead.
        for begin in [0, 4_000_000_000_000] {
            let times = [("c", begin), ("a", begin + 400), ("b", begin + 1_000)];
            assert_eq!(outdated(&times, 1_000), [""; 0]);
            assert_eq!(outdated(&times, 999), ["c"]);
            assert_eq!(outdated(&times, 599), ["a", "c"]);
            assert_eq!(outdated(&times, 0), ["a", "c"]);
        }
        // The clock of a new leader is behind: the newest is newer all the same.
        assert_eq!(outdated(&[("a", 0), ("b", 9_000), ("c", 1_000)], 500), ["a"]);
        assert_eq!(outdated(&[], 0), [""; 0]);
    }
}
