//! Locks and guards of all kinds behind one interface.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, Client, DistributedLock, DistributedRwLock, DistributedSemaphore, FencingToken,
    HandOver, LeaderElection, Leadership, LockGuard, LossReason, MultiGuard, MultiLock, Permit,
    ReadGuard, Result, WriteGuard,
};

use super::history::Who;
use super::options::Locks;
use super::rng::Rng;

/// The lock nodes: two mutexes, a read/write lock, a semaphore, the two locks of the multi-locks,
/// and an election, which is checked as a lock.
pub(crate) const NODES: [&str; 7] = ["a", "b", "readwrite", "semaphore", "one", "two", ELECTION];
pub(crate) const ELECTION: &str = "election";
/// The word in histories for a writer that becomes a reader.
pub(crate) const DOWNGRADE: &str = "downgrade";

/// The locks that are taken with patience, if the workers use that.
pub(crate) const PATIENT: [&str; 2] = ["a", "readwrite"];
/// How much the threads have.
const PATIENCE: [u32; 3] = [0, 4, 40];
/// Ends the data of a call that does not give up.
pub(crate) const INSISTS: &str = "/lock";

/// The waiting room of a lock.
pub(crate) fn room(lock: &str) -> String {
    format!("_zklock_room_{lock}")
}

const PERMITS: u32 = 3;

/// The order of two contenders of a lock, by their nodes' names.
pub(crate) fn by_sequence(one: &str, other: &str) -> Ordering {
    let [one, other] = [one, other].map(|name| &name[name.len().saturating_sub(10)..]);
    one.cmp(other)
}

/// One lock, or several at once.
pub(crate) enum Work {
    Mutex(DistributedLock),
    Read(DistributedRwLock),
    Write(DistributedRwLock),
    Permits(DistributedSemaphore, u32),
    Several(MultiLock),
    Lead(LeaderElection),
}

/// Everything that a thread may acquire.
pub(crate) struct Works {
    mutex: (&'static str, DistributedLock),
    read_write: DistributedRwLock,
    semaphore: DistributedSemaphore,
    one: DistributedLock,
    two: DistributedLock,
    election: LeaderElection,
    locks: Locks,
}

/// Which call acquires it.
#[derive(Clone)]
pub(crate) enum How {
    Lock,
    TryFor(Duration),
    TryUntil(Duration),
    TryNow,
    With(Cancel),
}

pub(crate) enum Guard {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(Permit),
    Several(MultiGuard),
    Lead(Leadership),
}

/// How long a worker keeps a lock that no other contender waits for.
const KEPT: Duration = Duration::from_millis(500);
const BRIEF: HandOver = HandOver::Within { turns: 1, time: Duration::from_millis(20) };

impl Works {
    /// `mutex`: the mutex that this thread uses. The worker's slot decides how its threads hand
    /// locks over among themselves; threads that do not hand over have their own nodes and data.
    pub(crate) fn new(
        zk: &Client,
        base: &str,
        mutex: &'static str,
        who: &Who,
        locks: Locks,
    ) -> Works {
        let mutex = if locks == Locks::All { mutex } else { PATIENT[0] };
        let patience = match locks {
            Locks::All => None,
            Locks::Beside if who.thread == PATIENCE.len() => None,
            Locks::Patience | Locks::Beside => Some(PATIENCE[who.thread % PATIENCE.len()]),
        };
        let data = &who.to_string();
        let lock = |name: &str| {
            let lock = DistributedLock::new(zk, base, name);
            if locks != Locks::All {
                let lock = lock.hand_over(HandOver::Off);
                return match patience {
                    Some(patience) => lock.patience(patience).ask_worse(patience == 0),
                    None => lock,
                };
            }
            let shared = lock.clone().data(format!("{}.{}", who.slot, who.generation));
            match who.slot % 4 {
                0 => shared,
                1 => lock.data(data.as_str()).hand_over(HandOver::Off),
                2 => shared.keep_for(KEPT),
                _ => shared.hand_over(BRIEF),
            }
        };
        let [_, _, read_write, semaphore, one, two, election] = NODES;
        let mut read_write = DistributedRwLock::new(zk, base, read_write).data(data.as_str());
        if let Some(patience) = patience {
            read_write = read_write.patience(patience).ask_worse(patience == 0);
        }
        let semaphore = DistributedSemaphore::new(zk, base, semaphore, PERMITS);
        Works {
            mutex: (mutex, lock(mutex)),
            read_write,
            semaphore: semaphore.data(data.as_str()),
            one: lock(one),
            two: lock(two),
            election: LeaderElection::new(zk, base, election).id(data.as_str()),
            locks,
        }
    }

    /// Chooses what to acquire; mostly the mutex.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Work {
        match rng.below(100) {
            choice if self.locks != Locks::All => match choice {
                0..70 => Work::Mutex(self.mutex.1.clone()),
                70..90 => Work::Read(self.read_write.clone()),
                _ => Work::Write(self.read_write.clone()),
            },
            0..55 => Work::Mutex(self.mutex.1.clone()),
            55..60 => Work::Lead(self.election.clone()),
            60..75 => Work::Read(self.read_write.clone()),
            75..80 => Work::Write(self.read_write.clone()),
            80..90 => Work::Permits(self.semaphore.clone(), 1 + rng.below(PERMITS.into()) as u32),
            // The order in which they are named must not matter.
            90..95 => Work::Several(MultiLock::new().with(&self.one).with(&self.two)),
            _ => Work::Several(MultiLock::new().with(&self.two).with(&self.one)),
        }
    }

    /// The name in histories; of several locks, in the order in which they are acquired.
    pub(crate) fn name(&self, work: &Work) -> String {
        let [_, _, read_write, semaphore, one, two, election] = NODES;
        match work {
            Work::Mutex(_) => self.mutex.0.to_owned(),
            Work::Read(_) | Work::Write(_) => read_write.to_owned(),
            Work::Permits(..) => semaphore.to_owned(),
            Work::Several(_) => format!("{one}+{two}"),
            Work::Lead(_) => election.to_owned(),
        }
    }
}

impl Work {
    /// The same with this data, if it is one that may be taken with patience.
    pub(crate) fn with_data(self, data: &str) -> Work {
        match self {
            Work::Mutex(lock) => Work::Mutex(lock.data(data)),
            Work::Read(lock) => Work::Read(lock.data(data)),
            Work::Write(lock) => Work::Write(lock.data(data)),
            other => other,
        }
    }

    /// The share in histories: see `Share::parse`.
    pub(crate) fn share(&self) -> String {
        match self {
            Work::Read(_) => "read".to_owned(),
            Work::Permits(_, weight) => format!("{weight}/{PERMITS}"),
            _ => "alone".to_owned(),
        }
    }

    pub(crate) fn take(&self, how: &How) -> Result<Option<Guard>> {
        let end = |limit: &Duration| Instant::now() + *limit;
        match self {
            Work::Mutex(lock) => Ok(match how {
                How::Lock => Some(lock.lock()?),
                How::TryFor(limit) => lock.try_lock_for(*limit)?,
                How::TryUntil(limit) => lock.lock_within(end(limit))?,
                How::TryNow => lock.try_lock()?,
                How::With(cancel) => lock.lock_within(cancel)?,
            }
            .map(Guard::Mutex)),
            Work::Read(lock) => Ok(match how {
                How::Lock => Some(lock.read()?),
                How::TryFor(limit) => lock.try_read_for(*limit)?,
                How::TryUntil(limit) => lock.read_within(end(limit))?,
                How::TryNow => lock.try_read()?,
                How::With(cancel) => lock.read_within(cancel)?,
            }
            .map(Guard::Read)),
            Work::Write(lock) => Ok(match how {
                How::Lock => Some(lock.write()?),
                How::TryFor(limit) => lock.try_write_for(*limit)?,
                How::TryUntil(limit) => lock.write_within(end(limit))?,
                How::TryNow => lock.try_write()?,
                How::With(cancel) => lock.write_within(cancel)?,
            }
            .map(Guard::Write)),
            Work::Permits(lock, many) => Ok(match how {
                How::Lock => Some(lock.acquire_many(*many)?),
                How::TryFor(limit) => lock.acquire_many_within(*many, *limit)?,
                How::TryUntil(limit) => lock.acquire_many_within(*many, end(limit))?,
                How::TryNow => lock.try_acquire_many(*many)?,
                How::With(cancel) => lock.acquire_many_within(*many, cancel)?,
            }
            .map(Guard::Permits)),
            Work::Several(lock) => Ok(match how {
                How::Lock => Some(lock.lock()?),
                How::TryFor(limit) => lock.try_lock_for(*limit)?,
                How::TryUntil(limit) => lock.lock_within(end(limit))?,
                How::TryNow => lock.try_lock()?,
                How::With(cancel) => lock.lock_within(cancel)?,
            }
            .map(Guard::Several)),
            Work::Lead(election) => Ok(match how {
                How::Lock => Some(election.campaign()?),
                How::TryFor(limit) => election.campaign_within(*limit)?,
                How::TryUntil(limit) => election.campaign_within(end(limit))?,
                How::TryNow => election.try_campaign()?,
                How::With(cancel) => election.campaign_within(cancel)?,
            }
            .map(Guard::Lead)),
        }
    }
}

macro_rules! each {
    ($guard:expr, $method:ident($($argument:expr)?)) => {
        match $guard {
            Guard::Mutex(guard) => guard.$method($($argument)?),
            Guard::Read(guard) => guard.$method($($argument)?),
            Guard::Write(guard) => guard.$method($($argument)?),
            Guard::Permits(permit) => permit.$method($($argument)?),
            Guard::Several(guard) => guard.$method($($argument)?),
            Guard::Lead(leadership) => leadership.$method($($argument)?),
        }
    };
}

impl Guard {
    pub(crate) fn is_held(&self) -> bool {
        each!(self, is_held())
    }

    pub(crate) fn ensure_held(&self) -> Result<()> {
        each!(self, ensure_held())
    }

    pub(crate) fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        each!(self, on_lost(callback));
    }

    pub(crate) fn unlock(self) -> Result<()> {
        match self {
            Guard::Mutex(guard) => guard.unlock(),
            Guard::Read(guard) => guard.unlock(),
            Guard::Write(guard) => guard.unlock(),
            Guard::Permits(permit) => permit.release(),
            Guard::Several(guard) => guard.unlock(),
            Guard::Lead(leadership) => leadership.resign(),
        }
    }

    /// Tokens and nodes. Permits have no token: their sequence number stands for it.
    pub(crate) fn places(&self) -> Vec<(FencingToken, String)> {
        match self {
            Guard::Mutex(guard) => vec![(guard.fencing_token(), guard.path().to_owned())],
            Guard::Read(guard) => vec![(guard.fencing_token(), guard.path().to_owned())],
            Guard::Write(guard) => vec![(guard.fencing_token(), guard.path().to_owned())],
            Guard::Lead(leadership) => {
                vec![(leadership.fencing_token(), leadership.path().to_owned())]
            }
            Guard::Permits(permit) => {
                let path = permit.path();
                let number: u64 = path[path.len() - 10..].parse().expect("a number at the end");
                let token = format!("{number:016x}-00000000").parse().expect("a token");
                vec![(token, path.to_owned())]
            }
            Guard::Several(guard) => {
                let owned = |(path, token): (&str, FencingToken)| (token, path.to_owned());
                guard.fencing_tokens().into_iter().map(owned).collect()
            }
        }
    }

    /// Whether the holder may write to the register.
    pub(crate) fn may_write(&self) -> bool {
        !matches!(self, Guard::Read(_) | Guard::Permits(_))
    }
}
