//! Locks and guards of all recipes behind one interface.

use std::time::{Duration, Instant};

use crate::acl::Acl;
use crate::contend::Lost;
use crate::error::Result;
use crate::loss_reason::LossReason;
use crate::rt::schedule::Schedule;
use crate::sim::plan::{Plan, Recipe, Sharing};
use crate::{
    Cancel, Changes, Client, Contender, DistributedLock, DistributedRwLock, DistributedSemaphore,
    FencingToken, HandOver, LockGuard, MultiGuard, MultiLock, Permit, ReadGuard, WriteGuard, path,
};

pub(super) const BASE: &str = "/locks";
/// The lock node of all recipes; a multi-lock also uses others.
pub(super) const NODE: &str = "/locks/one";

/// Returns the lock nodes of a trial.
pub(super) fn nodes(recipe: Recipe) -> Vec<String> {
    let count = if let Recipe::Multi { nodes } = recipe { nodes } else { 1 };
    ["one", "two", "three"][..count].iter().map(|name| path::join(BASE, name)).collect()
}

/// The locks of one thread.
#[derive(Clone)]
pub(super) enum Locks {
    Mutex(DistributedLock),
    ReadWrite(DistributedRwLock),
    Semaphore(DistributedSemaphore),
    /// Mutexes on all nodes except for the second one, which has a read/write lock.
    Several(Vec<DistributedLock>, DistributedRwLock),
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Alone,
    Reading,
    Writing,
    Permits(u32),
    Several(MultiLock, usize),
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(super) enum Patience<'a> {
    Forever,
    For(Duration),
    Until(Instant),
    None,
    Unless(&'a Cancel),
}

pub(super) enum Guard {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(Permit),
    Several(MultiGuard),
}

impl Locks {
    pub(super) fn new(client: &Client, plan: &Plan, data: &str, acl: &[Acl], odd: bool) -> Locks {
        macro_rules! limited {
            ($lock:expr) => {
                match plan.hold_at_most {
                    Some(limit) => $lock.hold_at_most(limit),
                    None => $lock,
                }
            };
        }
        let mutex = |name| {
            let builder = DistributedLock::new(client, BASE, name).naming(plan.naming);
            let builder = limited!(builder.data(data).acl(acl));
            match plan.sharing {
                None => builder.hand_over(HandOver::Off),
                Some(Sharing { turns, time, keep }) => {
                    let builder = builder.hand_over(HandOver::Within { turns, time });
                    keep.into_iter().fold(builder, DistributedLock::keep_for)
                }
            }
        };
        let read_write = |name| {
            let builder = DistributedRwLock::new(client, BASE, name).naming(plan.naming);
            limited!(builder.data(data).acl(acl))
        };
        match plan.recipe {
            Recipe::Mutex => Locks::Mutex(mutex("one")),
            Recipe::ReadWrite => Locks::ReadWrite(read_write("one")),
            Recipe::Semaphore { permits, disagreed } => {
                let permits = permits + u32::from(disagreed && odd);
                let builder = DistributedSemaphore::new(client, BASE, "one", permits);
                Locks::Semaphore(limited!(builder.data(data).acl(acl)))
            }
            Recipe::Multi { nodes } => {
                let names = ["one", "three"].into_iter().take(nodes - 1);
                Locks::Several(names.map(mutex).collect(), read_write("two"))
            }
        }
    }

    /// Draws what the next call asks for.
    pub(super) fn wanted(&self, schedule: &Schedule) -> Wanted {
        match self {
            Locks::Mutex(_) => Wanted::Alone,
            Locks::ReadWrite(_) if schedule.chance(60) => Wanted::Reading,
            Locks::ReadWrite(_) => Wanted::Writing,
            Locks::Semaphore(lock) => {
                Wanted::Permits(1 + schedule.below(lock.permits as usize) as u32)
            }
            Locks::Several(..) if schedule.chance(20) => Wanted::Alone,
            Locks::Several(mutexes, read_write) => {
                let mut multi = MultiLock::new();
                let count = mutexes.len() + 1;
                let (first, forwards) = (schedule.below(count), schedule.chance(50));
                for place in 0..count {
                    let place = first + if forwards { place } else { count - place };
                    multi = match mutexes.get(place % count) {
                        Some(mutex) => multi.with(mutex),
                        None if schedule.chance(50) => multi.with_read(read_write),
                        None => multi.with_write(read_write),
                    };
                }
                Wanted::Several(multi, count)
            }
        }
    }

    pub(super) fn take(&self, wanted: &Wanted, patience: Patience<'_>) -> Result<Option<Guard>> {
        use Patience::{For, Forever, None as Now, Unless, Until};
        match (self, wanted) {
            (Locks::ReadWrite(lock), Wanted::Writing) => Ok(match patience {
                Forever => Some(lock.write()?),
                For(limit) => lock.try_write_for(limit)?,
                Until(end) => lock.write_within(end)?,
                Now => lock.try_write()?,
                Unless(cancel) => lock.write_within(cancel)?,
            }
            .map(Guard::Write)),
            (Locks::ReadWrite(lock), _) => Ok(match patience {
                Forever => Some(lock.read()?),
                For(limit) => lock.try_read_for(limit)?,
                Until(end) => lock.read_within(end)?,
                Now => lock.try_read()?,
                Unless(cancel) => lock.read_within(cancel)?,
            }
            .map(Guard::Read)),
            (Locks::Semaphore(lock), wanted) => {
                let many = if let Wanted::Permits(many) = wanted { *many } else { 1 };
                let permit = match patience {
                    Forever => Some(lock.acquire_many(many)?),
                    For(limit) => lock.acquire_many_within(many, limit)?,
                    Until(end) => lock.acquire_many_within(many, end)?,
                    Now => lock.try_acquire_many(many)?,
                    Unless(cancel) => lock.acquire_many_within(many, cancel)?,
                };
                Ok(permit.map(Guard::Permits))
            }
            (_, Wanted::Several(lock, _)) => Ok(match patience {
                Forever => Some(lock.lock()?),
                For(limit) => lock.try_lock_for(limit)?,
                Until(end) => lock.lock_within(end)?,
                Now => lock.try_lock()?,
                Unless(cancel) => lock.lock_within(cancel)?,
            }
            .map(Guard::Several)),
            (Locks::Mutex(_) | Locks::Several(..), _) => {
                let lock = self.first();
                Ok(match patience {
                    Forever => Some(lock.lock()?),
                    For(limit) => lock.try_lock_for(limit)?,
                    Until(end) => lock.lock_within(end)?,
                    Now => lock.try_lock()?,
                    Unless(cancel) => lock.lock_within(cancel)?,
                }
                .map(Guard::Mutex))
            }
        }
    }

    /// Returns the mutex of the first node.
    fn first(&self) -> &DistributedLock {
        match self {
            Locks::Mutex(lock) => lock,
            Locks::Several(locks, _) => &locks[0],
            Locks::ReadWrite(_) | Locks::Semaphore(_) => unreachable!("no mutex"),
        }
    }

    // ----- observing the first node

    pub(super) fn observe(&self) -> Changes<Vec<Contender>> {
        match self {
            Locks::ReadWrite(lock) => lock.observe(),
            Locks::Semaphore(lock) => lock.observe(),
            _ => self.first().observe(),
        }
    }

    pub(super) fn contenders(&self) -> Result<Vec<Contender>> {
        match self {
            Locks::ReadWrite(lock) => lock.contenders(),
            Locks::Semaphore(lock) => lock.contenders(),
            _ => self.first().contenders(),
        }
    }

    pub(super) fn request_release(&self) -> Result<usize> {
        match self {
            Locks::ReadWrite(lock) => lock.request_release(),
            Locks::Semaphore(lock) => lock.request_release(),
            _ => self.first().request_release(),
        }
    }

    pub(super) fn request_release_of(&self, contender: &Contender) -> Result<bool> {
        match self {
            Locks::ReadWrite(lock) => lock.request_release_of(contender),
            Locks::Semaphore(lock) => lock.request_release_of(contender),
            _ => self.first().request_release_of(contender),
        }
    }
}

macro_rules! each {
    ($guard:expr, $one:ident => $of_one:expr, $several:ident => $of_several:expr) => {
        match $guard {
            Guard::Mutex($one) => $of_one,
            Guard::Read($one) => $of_one,
            Guard::Write($one) => $of_one,
            Guard::Permits($one) => $of_one,
            Guard::Several($several) => $of_several,
        }
    };
}

impl Guard {
    pub(super) fn is_held(&self) -> bool {
        each!(self, guard => guard.is_held(), guards => guards.is_held())
    }

    /// Returns what `is_held` would, without recording a loss: a check must not change the guard.
    pub(super) fn seems_held(&self) -> bool {
        each!(self, guard => guard.seems_held(), guards => guards.seems_held())
    }

    pub(super) fn ensure_held(&self) -> Result<()> {
        each!(self, guard => guard.ensure_held(), guards => guards.ensure_held())
    }

    pub(super) fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        each!(self, guard => guard.on_lost(callback), guards => guards.on_lost(callback));
    }

    /// A multi-lock's guard cannot be waited for.
    pub(super) fn lost(&self) -> Option<Lost> {
        each!(self, guard => Some(guard.lost()), _guards => None)
    }

    pub(super) fn release_requested(&self) -> bool {
        each!(self, guard => guard.release_requested(), _guards => false)
    }

    pub(super) fn on_release_requested(&self, callback: impl FnOnce() + Send + 'static) {
        each!(self, guard => guard.on_release_requested(callback), _guards => ());
    }

    pub(super) fn unlock(self) -> Result<()> {
        match self {
            Guard::Mutex(guard) => guard.unlock(),
            Guard::Read(guard) => guard.unlock(),
            Guard::Write(guard) => guard.unlock(),
            Guard::Permits(permit) => permit.release(),
            Guard::Several(guards) => guards.unlock(),
        }
    }

    /// Returns the nodes with their tokens, if they have any.
    pub(super) fn tokens(&self) -> Vec<(&str, Option<FencingToken>)> {
        match self {
            Guard::Mutex(guard) => vec![(guard.path(), Some(guard.fencing_token()))],
            Guard::Read(guard) => vec![(guard.path(), Some(guard.fencing_token()))],
            Guard::Write(guard) => vec![(guard.path(), Some(guard.fencing_token()))],
            Guard::Permits(permit) => vec![(permit.path(), None)],
            Guard::Several(guards) => {
                let some = |(path, token)| (path, Some(token));
                guards.fencing_tokens().into_iter().map(some).collect()
            }
        }
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.tokens().into_iter().map(|(path, _)| path.to_owned()).collect()
    }

    /// Makes the guard droppable on another thread, which a multi-lock's guard is not.
    pub(super) fn into_sendable(self) -> Result<Box<dyn Send>, Box<Guard>> {
        each!(self, guard => Ok(Box::new(guard)), guards => Err(Box::new(Guard::Several(guards))))
    }
}
