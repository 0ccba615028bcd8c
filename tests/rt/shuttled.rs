//! Threads, bells, locks and clocks for tests of all interleavings: shuttle's, which switches
//! threads at each of them.
//!
//! All threads of one model run on one real thread: so at state that is kept here without shuttle's
//! locks, no switch happens, and other models do not share it.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
use shuttle::rand::{Rng, thread_rng};
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use shuttle::thread;

use super::Deadline;

thread_local! {
    /// Nanoseconds.
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    /// The percentage of threads that cannot be started.
    static POVERTY: Cell<u32> = const { Cell::new(0) };
    static THREADS: RefCell<Vec<thread::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Resets the clock and the threads; to be called before each schedule.
pub(crate) fn begin() {
    CLOCK.set(0);
    POVERTY.set(0);
    THREADS.take();
}

/// From now on, this percentage of threads cannot be started.
pub(crate) fn set_poverty(percent: u32) {
    POVERTY.set(percent);
}

/// Waits for the end of all threads that were started here.
pub(crate) fn join_all() {
    while let Some(thread) = THREADS.with(|threads| threads.borrow_mut().pop()) {
        assert!(thread.join().is_ok(), "a thread panicked");
    }
}

/// The payload of panics that a model makes on purpose.
struct Meant;

/// Panics without a report, as the panic is a part of the model.
pub(crate) fn give_way() -> ! {
    resume_unwind(Box::new(Meant))
}

/// True one time in `count`, at random.
pub(crate) fn one_in(count: u32) -> bool {
    thread_rng().gen_range(0..count) == 0
}

pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let poverty = POVERTY.get();
    if poverty > 0 && thread_rng().gen_range(0..100) < poverty {
        // A failure takes time as well, so other threads may run.
        thread::sleep(Duration::ZERO);
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    start_always(name, body);
    Ok(())
}

/// Starts a thread of the code that the library stands on; unlike [`start`], this never fails.
pub(crate) fn start_always(name: &str, body: impl FnOnce() + Send + 'static) {
    // A panic made by the model on purpose is no failure of it.
    let body = || {
        if let Err(why) = catch_unwind(AssertUnwindSafe(body))
            && !why.is::<Meant>()
        {
            resume_unwind(why);
        }
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
    let Ok(thread) = thread else { unreachable!("shuttle refuses no thread") };
    THREADS.with(|threads| threads.borrow_mut().push(thread));
}

pub(crate) use shuttle::thread::ThreadId;

pub(crate) fn thread_id() -> ThreadId {
    thread::current().id()
}

/// Each call moves the clock forward, now and then by much: a thread may be held up.
pub(crate) fn now() -> Instant {
    let step = if one_in(16) { thread_rng().gen_range(0..1 << 30) } else { 1 };
    CLOCK.set(CLOCK.get() + step);
    base() + Duration::from_nanos(CLOCK.get())
}

/// Moves the clock to the end of a wait.
fn pass(end: Instant) {
    let end = end.saturating_duration_since(base()).as_nanos();
    CLOCK.set(CLOCK.get().max(u64::try_from(end).unwrap_or(u64::MAX)));
}

fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}

pub(crate) fn random() -> u128 {
    thread_rng().r#gen()
}

// ----- waiting

/// A thread's sleep; a wake-up may come before it begins.
#[derive(Debug)]
struct Sleeper(BatchSemaphore);

impl Sleeper {
    fn new() -> Sleeper {
        Sleeper(BatchSemaphore::new(0, Fairness::Unfair))
    }

    fn wake(&self) {
        self.0.release(1);
    }

    /// Sleeps, and says whether it was woken. A sleep with a time limit ends at random.
    fn sleep(&self, until: Option<Instant>) -> bool {
        let Some(end) = until else {
            return self.0.acquire_blocking(1).is_ok();
        };
        loop {
            if self.0.try_acquire(1).is_ok() {
                return true;
            }
            if one_in(4) {
                pass(end);
                return false;
            }
            thread::yield_now();
        }
    }
}

/// A mutex like parking_lot's, without poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { mutex: self, inner: Some(inner) }
    }
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only during a wait.
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(inner) = &self.inner else { unreachable!("used while waiting") };
        inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(inner) = &mut self.inner else { unreachable!("used while waiting") };
        inner
    }
}

/// A condition variable with timeouts, which shuttle's own never has.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    sleepers: std::sync::Mutex<Vec<Arc<Sleeper>>>,
}

pub(crate) struct Waited {
    timed_out: bool,
}

impl Waited {
    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    fn sleepers(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.sleep(guard, None);
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> Waited {
        self.sleep(guard, Some(end))
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> Waited {
        self.sleep(guard, Some(now() + limit))
    }

    fn sleep<T>(&self, guard: &mut MutexGuard<'_, T>, end: Option<Instant>) -> Waited {
        let sleeper = Arc::new(Sleeper::new());
        // Other threads may run before the mutex is released, but then not before the push.
        guard.inner = None;
        self.sleepers().push(Arc::clone(&sleeper));
        let mut woken = sleeper.sleep(end);
        if !woken {
            let mut sleepers = self.sleepers();
            let before = sleepers.len();
            sleepers.retain(|other| !Arc::ptr_eq(other, &sleeper));
            // A sleeper that is already being woken counts as woken, although its time is over.
            woken = sleepers.len() == before;
        }
        *guard = guard.mutex.lock();
        Waited { timed_out: !woken }
    }

    pub(crate) fn notify_one(&self) {
        thread::sleep(Duration::ZERO);
        let chosen = {
            let mut sleepers = self.sleepers();
            match sleepers.len() {
                0 => return,
                count => sleepers.swap_remove(thread_rng().gen_range(0..count)),
            }
        };
        chosen.wake();
    }

    pub(crate) fn notify_all(&self) {
        thread::sleep(Duration::ZERO);
        let all = std::mem::take(&mut *self.sleepers());
        for sleeper in all {
            sleeper.wake();
        }
    }
}

pub(crate) fn bell() -> (Bell, Rung) {
    let shared = Arc::new(Shared { rung: atomic::AtomicBool::new(false), sleeper: Sleeper::new() });
    (Bell(Arc::clone(&shared)), Rung(shared))
}

#[derive(Debug)]
struct Shared {
    /// Not shuttle's: the switch happens at the sleeper.
    rung: atomic::AtomicBool,
    sleeper: Sleeper,
}

#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<Shared>);

impl Bell {
    pub(crate) fn ring(&self) {
        thread::sleep(Duration::ZERO);
        if !self.0.rung.swap(true, Ordering::SeqCst) {
            self.0.sleeper.wake();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rung(Arc<Shared>);

impl Rung {
    pub(crate) fn wait(&self, until: Deadline) {
        if self.0.sleeper.sleep(until.instant()) {
            self.0.rung.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_rung(&self) -> bool {
        self.0.rung.load(Ordering::SeqCst)
    }
}
