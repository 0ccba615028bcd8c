//! What is held while the command runs: one of the library's guards.

use std::env;
use std::ops::Deref;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, Client, Contender, ContenderKind, DistributedLock, DistributedRwLock,
    DistributedSemaphore, Error, ErrorKind, FencingToken, Hold, LeaderElection, Leadership,
    LockGuard, LossReason, MultiGuard, MultiLock, NodeNaming, Permit, ReadGuard, WriteGuard,
};

use super::first_ahead::FirstAhead;
use super::run_settings::{Mode, RunSettings};
use crate::act::refuse_if_new;
use crate::connect::Lock;
use crate::exit::{Exit, Failure};
use crate::look::LeaderNode;
use crate::look::is_named_by_kazoo;
use crate::output::say;
use crate::words::{foreign_in_words, held_by, is_foreign};

/// Names, in a command's environment, the nodes of what the zklocks around it hold, one a line.
pub(crate) const HELD: &str = "ZKLOCK_HELD";

/// The same as the servers name them, whatever the chroot.
const UNDER: &str = "ZKLOCK_UNDER";

/// There if one of these zklocks ends its command after some time.
const LIMITED: &str = "ZKLOCK_LIMITED";

/// The guard that ends the hold when it is dropped.
pub(crate) enum Held {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Leader(Leadership),
    Several(MultiGuard),
}

/// A call that all guards have.
macro_rules! of_any {
    ($held:expr, $guard:ident => $call:expr) => {
        match $held {
            Held::Mutex($guard) => $call,
            Held::Read($guard) => $call,
            Held::Write($guard) => $call,
            Held::Permit($guard) => $call,
            Held::Leader($guard) => $call,
            Held::Several($guard) => $call,
        }
    };
}

/// What may be otherwise when it is tried again.
#[derive(Clone, Copy)]
struct Attempt {
    naming: NodeNaming,
    /// Whether the locks' nodes have to be there.
    must_exist: bool,
    /// How long it may take.
    left: Option<Duration>,
}

/// Waits as the settings say; `None` if others hold it.
pub(crate) fn acquire(
    client: &Client,
    settings: &RunSettings,
    cancel: &Cancel,
    first_ahead: &FirstAhead,
) -> Result<Option<Held>, Failure> {
    let begun = Instant::now();
    let naming = if settings.kazoo { NodeNaming::Kazoo } else { NodeNaming::Curator };
    let mut must_exist = !settings.create;
    // A room beside the lock would be made before.
    if must_exist && settings.patience.is_some() {
        settings.locks().try_for_each(|lock| refuse_if_new(client, lock))?;
        must_exist = false;
    }
    let mut attempt = Attempt { naming, must_exist, left: None };
    let renamed = Cancel::any([cancel]);
    if may_be_renamed(settings) {
        // Readers do not wait for each other, so these would not hear of kazoo's.
        if settings.mode == Mode::Shared && all_are_named_by_kazoo(client, settings) {
            attempt.naming = NodeNaming::Kazoo;
            say_that_it_is_renamed(settings);
        } else {
            first_ahead.trip(&renamed);
        }
    }
    let mut cancel_now = &renamed;
    loop {
        let limit = settings.how_to_wait.wait;
        attempt.left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        match Held::acquire(client, settings, attempt, cancel_now) {
            Err(error) if error.kind() == ErrorKind::NotFound && attempt.must_exist => {
                settings.locks().try_for_each(|lock| refuse_if_new(client, lock))?;
                attempt.must_exist = false;
            }
            Err(error) if error.kind() == ErrorKind::Cancelled && !cancel.is_cancelled() => {
                cancel_now = cancel;
                if all_are_named_by_kazoo(client, settings) {
                    attempt.naming = NodeNaming::Kazoo;
                    say_that_it_is_renamed(settings);
                }
            }
            got => return got.map_err(|error| not_acquired(client, settings, error)),
        }
    }
}

/// Whether its node may be named as those of the others, as far as the settings tell.
fn may_be_renamed(settings: &RunSettings) -> bool {
    let has_both_names = matches!(settings.mode, Mode::Mutex | Mode::Shared | Mode::Exclusive);
    has_both_names && !settings.kazoo && settings.patience.is_none() && settings.also.is_empty()
}

fn all_are_named_by_kazoo(client: &Client, settings: &RunSettings) -> bool {
    let all = contenders(client, &settings.lock).unwrap_or_default();
    !all.is_empty() && all.iter().all(|one| is_named_by_kazoo(&one.path))
}

fn say_that_it_is_renamed(settings: &RunSettings) {
    let text = "all who are at the lock have kazoo's names, and so has this one (--kazoo)";
    say(&settings.subject, text);
}

impl Held {
    /// Waits as the settings say; `None` if others hold it.
    fn acquire(
        client: &Client,
        settings: &RunSettings,
        attempt: Attempt,
        cancel: &Cancel,
    ) -> Result<Option<Held>, Error> {
        let (lock, how_to_wait) = (&settings.lock, &settings.how_to_wait);
        // One of three calls, each of which returns `None` if others hold it.
        macro_rules! acquired {
            ($of:expr, $try:ident, $within:ident, $kind:ident $(, $permits:expr)?) => {{
                let of = $of;
                let guard = match attempt.left {
                    _ if how_to_wait.nonblock => of.$try($($permits)?)?,
                    Some(limit) => of.$within($($permits,)? (limit, cancel))?,
                    None => of.$within($($permits,)? cancel)?,
                };
                guard.map(Held::$kind)
            }};
        }
        if !settings.also.is_empty() {
            return Ok(acquired!(
                Held::several(client, settings, attempt),
                try_lock,
                lock_within,
                Several
            ));
        }
        Ok(match settings.mode {
            Mode::Mutex => {
                acquired!(mutex(client, settings, attempt, lock), try_lock, lock_within, Mutex)
            }
            Mode::Shared => {
                acquired!(rw(client, settings, attempt, lock), try_read, read_within, Read)
            }
            Mode::Exclusive => {
                acquired!(rw(client, settings, attempt, lock), try_write, write_within, Write)
            }
            Mode::Permits { of, take } => {
                let of = semaphore(client, settings, attempt, lock, of);
                acquired!(of, try_acquire_many, acquire_many_within, Permit, take)
            }
            Mode::Leader => {
                let mut election = LeaderElection::new(client, &lock.base, &lock.name)
                    .id(&settings.data)
                    .acl(settings.acl.clone());
                if attempt.must_exist {
                    election = election.must_exist();
                }
                acquired!(election, try_campaign, campaign_within, Leader)
            }
        })
    }

    fn several(client: &Client, settings: &RunSettings, attempt: Attempt) -> MultiLock {
        settings.locks().fold(MultiLock::new(), |several, lock| match settings.mode {
            Mode::Shared => several.with_read(&rw(client, settings, attempt, lock)),
            Mode::Exclusive => several.with_write(&rw(client, settings, attempt, lock)),
            Mode::Permits { of, take } => {
                several.with_permits(&semaphore(client, settings, attempt, lock, of), take)
            }
            Mode::Mutex | Mode::Leader => several.with(&mutex(client, settings, attempt, lock)),
        })
    }

    fn hold(&self) -> Option<&Hold> {
        Some(match self {
            Held::Mutex(guard) => guard.deref(),
            Held::Read(guard) => guard.deref(),
            Held::Write(guard) => guard.deref(),
            Held::Permit(guard) => guard.deref(),
            Held::Leader(guard) => guard.deref(),
            Held::Several(_) => return None,
        })
    }

    pub(crate) fn mutex(&self) -> Option<&LockGuard> {
        match self {
            Held::Mutex(guard) => Some(guard),
            _ => None,
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        of_any!(self, guard => guard.is_held())
    }

    /// Asks a server.
    pub(crate) fn ensure_held_within(&self, limit: Duration) -> Result<(), Error> {
        of_any!(self, guard => guard.ensure_held_within(limit))
    }

    pub(crate) fn lease_left(&self) -> Duration {
        of_any!(self, guard => guard.lease_left())
    }

    pub(crate) fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        of_any!(self, guard => guard.on_lost(callback));
    }

    pub(crate) fn on_release_requested(&self, callback: impl FnOnce() + Send + 'static) {
        of_any!(self, guard => guard.on_release_requested(callback));
    }

    /// The nodes of the contenders, but for permits beside other locks.
    fn nodes(&self) -> Vec<&str> {
        match self {
            Held::Several(guard) => {
                guard.fencing_tokens().into_iter().map(|(node, _)| node).collect()
            }
            one => one.hold().map(Hold::path).into_iter().collect(),
        }
    }

    /// The fencing token, for what has one.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        match self {
            Held::Mutex(guard) => Some(guard.fencing_token()),
            Held::Read(guard) => Some(guard.fencing_token()),
            Held::Write(guard) => Some(guard.fencing_token()),
            Held::Leader(guard) => Some(guard.fencing_token()),
            Held::Permit(_) => None,
            Held::Several(guard) => guard.fencing_tokens().first().map(|(_, token)| *token),
        }
    }

    /// The variables that tell the command what it runs under.
    pub(crate) fn variables(
        &self,
        client: &Client,
        settings: &RunSettings,
    ) -> Vec<(String, String)> {
        let mut all = vec![("ZKLOCK_LOCK".to_owned(), settings.lock.path.clone())];
        let mut add = |name: &str, value: Option<String>| {
            all.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("ZKLOCK_TOKEN", self.token().map(|token| token.to_string()));
        add("ZKLOCK_ZXID", self.token().map(|token| token.zxid().to_string()));
        add("ZKLOCK_NODE", self.hold().map(|hold| hold.path().to_owned()));
        add("ZKLOCK_SESSION", client.session_id().map(|id| id.to_string()));
        let around = env::var(HELD).unwrap_or_default();
        let held = self.nodes().into_iter().chain(around.lines()).collect::<Vec<_>>();
        add(HELD, Some(held.join("\n")));
        let (outer, is_limited) = those_around();
        let own = self.nodes().into_iter().map(|node| format!("{}{node}", chroot(&settings.hosts)));
        add(UNDER, Some(own.chain(outer).collect::<Vec<_>>().join("\n")));
        let is_limited = is_limited || settings.supervision.max_run.is_some();
        add(LIMITED, is_limited.then(|| "1".to_owned()));
        all
    }

    /// Releases, within a few seconds.
    pub(crate) fn release(self) -> Result<bool, Error> {
        let limit = Duration::from_secs(5);
        match self {
            Held::Mutex(guard) => guard.unlock_within(limit),
            Held::Read(guard) => guard.unlock_within(limit),
            Held::Write(guard) => guard.unlock_within(limit),
            Held::Permit(guard) => guard.release_within(limit),
            Held::Leader(guard) => guard.resign_within(limit),
            Held::Several(guard) => guard.unlock_within(limit),
        }
    }
}

/// What the zklocks around this one say of themselves: the nodes of what they hold, as the servers name them,
/// and whether one of them ends its command after some time.
pub(crate) fn those_around() -> (Vec<String>, bool) {
    let under = env::var(UNDER).unwrap_or_default();
    (under.lines().map(str::to_owned).collect(), env::var_os(LIMITED).is_some())
}

/// The part of the servers' paths that clients of these hosts leave out.
fn chroot(hosts: &str) -> &str {
    hosts.find('/').map_or("", |begin| hosts[begin..].trim_end_matches('/'))
}

fn mutex(
    client: &Client,
    settings: &RunSettings,
    attempt: Attempt,
    lock: &Lock,
) -> DistributedLock {
    let new = DistributedLock::new(client, &lock.base, &lock.name)
        .data(settings.data.as_str())
        .naming(attempt.naming)
        .acl(settings.acl.clone());
    let new = if attempt.must_exist { new.must_exist() } else { new };
    match settings.patience {
        Some(patience) => new.patience(patience),
        None => new,
    }
}

fn rw(client: &Client, settings: &RunSettings, attempt: Attempt, lock: &Lock) -> DistributedRwLock {
    let new = DistributedRwLock::new(client, &lock.base, &lock.name)
        .data(settings.data.as_str())
        .naming(attempt.naming)
        .acl(settings.acl.clone());
    let new = if attempt.must_exist { new.must_exist() } else { new };
    match settings.patience {
        Some(patience) => new.patience(patience),
        None => new,
    }
}

fn semaphore(
    client: &Client,
    settings: &RunSettings,
    attempt: Attempt,
    lock: &Lock,
    permits: u32,
) -> DistributedSemaphore {
    let new = DistributedSemaphore::new(client, &lock.base, &lock.name, permits)
        .data(settings.data.as_str())
        .acl(settings.acl.clone());
    if attempt.must_exist { new.must_exist() } else { new }
}

fn contenders(client: &Client, lock: &Lock) -> Result<Vec<Contender>, Error> {
    DistributedLock::new(client, &lock.base, &lock.name).contenders()
}

/// Who holds the first of the settings' locks that others hold, and since when.
pub(crate) fn others(client: &Client, settings: &RunSettings) -> String {
    let held = settings.locks().find_map(|lock| {
        let all = contenders(client, lock).ok()?;
        all.iter().any(|one| one.holds).then(|| (lock, held_by(&all)))
    });
    match held {
        Some((lock, by)) if lock.path != settings.lock.path => format!("{} is {by}", lock.path),
        Some((_, by)) => by,
        None => "others held it a moment ago".to_owned(),
    }
}

/// Which node of another recipe keeps everybody from the lock until it is gone, and what to do.
pub(crate) fn foreign(client: &Client, settings: &RunSettings) -> Option<String> {
    let found = settings.locks().find_map(|lock| {
        let all = contenders(client, lock).ok()?;
        all.into_iter().find(is_foreign)
    });
    found.map(|one| foreign_in_words(&one))
}

/// Why it was not acquired. The node of another program's leader at a lock's path excludes a holder, as a
/// contender does.
fn not_acquired(client: &Client, settings: &RunSettings, error: Error) -> Failure {
    if error.kind() != ErrorKind::Conflict {
        return error.into();
    }
    let mut each = settings.locks().map(|lock| LeaderNode::in_the_way(client, &lock.path));
    match each.find_map(|found| found.ok().flatten()) {
        Some(why) => Failure::new(Exit::Conflict(settings.how_to_wait.conflict_exit_code), why),
        None => error.into(),
    }
}

/// A lock that a zklock around this one holds is never free while this one waits.
pub(crate) fn refuse_those_of_ancestors(
    client: &Client,
    settings: &RunSettings,
) -> Result<(), Failure> {
    if settings.how_to_wait.nonblock {
        return Ok(());
    }
    let held = env::var(HELD).unwrap_or_default();
    for lock in settings.locks() {
        let is_of_it = |node: &&str| node.rsplit_once('/').is_some_and(|(of, _)| of == lock.path);
        let nodes: Vec<&str> = held.lines().filter(is_of_it).collect();
        if nodes.is_empty() {
            continue;
        }
        let mut theirs = contenders(client, lock)?;
        theirs.retain(|one| nodes.contains(&one.path.as_str()));
        let is_in_the_way = match settings.mode {
            Mode::Shared => theirs.iter().any(|one| one.kind != ContenderKind::Read),
            Mode::Permits { of, take } => {
                let taken = theirs.iter().map(|one| one.weight);
                taken.fold(take, u32::saturating_add) > of
            }
            Mode::Mutex | Mode::Exclusive | Mode::Leader => !theirs.is_empty(),
        };
        if is_in_the_way {
            let message = format!(
                "{} is held by a zklock that this one runs under, and is never free before this one has ended",
                lock.path
            );
            return Err(Failure::usage(message));
        }
    }
    Ok(())
}
