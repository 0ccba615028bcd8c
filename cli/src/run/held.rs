//! What is held while the command runs: one of the library's guards.

use std::ops::Deref;
use std::time::Duration;

use zklock::{
    Cancel, Client, DistributedLock, DistributedRwLock, DistributedSemaphore, Error, FencingToken,
    Hold, LeaderElection, Leadership, LockGuard, LossReason, MultiGuard, MultiLock, Permit,
    ReadGuard, WriteGuard,
};

use super::{Job, Mode};
use crate::connect::Lock;
use crate::words;

/// The guard that ends the hold when it is dropped.
pub(super) enum Held {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Leader(Leadership),
    Several(MultiGuard),
}

impl Held {
    /// Waits as the job says; `None` if others hold it.
    pub(super) fn acquire(
        client: &Client,
        job: &Job,
        cancel: &Cancel,
    ) -> Result<Option<Held>, Error> {
        let Lock { base, name, .. } = &job.lock;
        let patience = &job.patience;
        // One of three calls, each of which returns `None` if others hold it.
        macro_rules! acquired {
            ($of:expr, $try:ident, $within:ident, $kind:ident) => {{
                let of = $of;
                let guard = match patience.wait {
                    _ if patience.nonblock => of.$try()?,
                    Some(limit) => of.$within((limit, cancel))?,
                    None => of.$within(cancel)?,
                };
                guard.map(Held::$kind)
            }};
        }
        if !job.also.is_empty() {
            return Ok(acquired!(Held::several(client, job), try_lock, lock_within, Several));
        }
        Ok(match job.mode {
            Mode::Mutex => acquired!(mutex(client, job, &job.lock), try_lock, lock_within, Mutex),
            Mode::Shared => acquired!(rw(client, job, &job.lock), try_read, read_within, Read),
            Mode::Exclusive => {
                acquired!(rw(client, job, &job.lock), try_write, write_within, Write)
            }
            Mode::Permits { of, take } => {
                let semaphore = semaphore(client, job, &job.lock, of);
                let permit = match patience.wait {
                    _ if patience.nonblock => semaphore.try_acquire_many(take)?,
                    Some(limit) => semaphore.acquire_many_within(take, (limit, cancel))?,
                    None => semaphore.acquire_many_within(take, cancel)?,
                };
                permit.map(Held::Permit)
            }
            Mode::Leader => {
                let election = LeaderElection::builder(client, base, name)
                    .id(&job.data)
                    .acl(job.acl.clone())
                    .build();
                acquired!(election, try_campaign, campaign_within, Leader)
            }
        })
    }

    fn several(client: &Client, job: &Job) -> MultiLock {
        let mut several = MultiLock::new();
        for lock in std::iter::once(&job.lock).chain(&job.also) {
            several = match job.mode {
                Mode::Shared => several.with_read(&rw(client, job, lock)),
                Mode::Exclusive => several.with_write(&rw(client, job, lock)),
                Mode::Permits { of, take } => {
                    several.with_permits(&semaphore(client, job, lock, of), take)
                }
                Mode::Mutex | Mode::Leader => several.with(&mutex(client, job, lock)),
            };
        }
        several
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

    pub(super) fn mutex(&self) -> Option<&LockGuard> {
        match self {
            Held::Mutex(guard) => Some(guard),
            _ => None,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        match self {
            Held::Several(guard) => guard.is_held(),
            one => one.hold().is_some_and(Hold::is_held),
        }
    }

    pub(super) fn lease_left(&self) -> Duration {
        match self {
            Held::Several(guard) => guard.lease_left(),
            one => one.hold().map_or(Duration::ZERO, Hold::lease_left),
        }
    }

    pub(super) fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        match self {
            Held::Several(guard) => guard.on_lost(callback),
            one => {
                if let Some(hold) = one.hold() {
                    hold.on_lost(callback);
                }
            }
        }
    }

    /// Calls back when another client asks for the release of a single lock.
    pub(super) fn on_release_requested(&self, callback: impl FnOnce() + Send + 'static) {
        if let Some(hold) = self.hold() {
            hold.on_release_requested(callback);
        }
    }

    /// The fencing token, for what has one.
    pub(super) fn token(&self) -> Option<FencingToken> {
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
    pub(super) fn variables(&self, client: &Client, lock: &Lock) -> Vec<(String, String)> {
        let mut all = vec![("ZKLOCK_LOCK".to_owned(), lock.path.clone())];
        let mut add = |name: &str, value: Option<String>| {
            all.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("ZKLOCK_TOKEN", self.token().map(|token| token.to_string()));
        add("ZKLOCK_ZXID", self.token().map(|token| token.zxid().to_string()));
        add("ZKLOCK_NODE", self.hold().map(|hold| hold.path().to_owned()));
        add("ZKLOCK_SESSION", client.session_id().map(|id| id.to_string()));
        all
    }

    /// Releases, within a few seconds.
    pub(super) fn release(self) -> Result<bool, Error> {
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

fn mutex(client: &Client, job: &Job, lock: &Lock) -> DistributedLock {
    DistributedLock::builder(client, &lock.base, &lock.name)
        .data(job.data.as_str())
        .acl(job.acl.clone())
        .build()
}

fn rw(client: &Client, job: &Job, lock: &Lock) -> DistributedRwLock {
    DistributedRwLock::builder(client, &lock.base, &lock.name)
        .data(job.data.as_str())
        .acl(job.acl.clone())
        .build()
}

fn semaphore(client: &Client, job: &Job, lock: &Lock, permits: u32) -> DistributedSemaphore {
    DistributedSemaphore::builder(client, &lock.base, &lock.name, permits)
        .data(job.data.as_str())
        .acl(job.acl.clone())
        .build()
}

/// What is said of the others that hold it: who, and since when.
pub(super) fn others(client: &Client, lock: &Lock) -> String {
    let lock = DistributedLock::new(client, &lock.base, &lock.name);
    lock.contenders().map_or_else(|_| "others hold it".to_owned(), |all| words::held_by(&all))
}
