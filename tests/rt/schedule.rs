//! A deterministic scheduler: tasks in place of threads, one at a time on one real thread,
//! in virtual time. All random choices come from one seed.
//!
//! A task is switched only where it waits. The time between two steps, and so their order, is
//! drawn at random.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use generator::{Generator, Gn};

/// The size of a task's stack, in words.
const STACK: usize = 0x8000;
/// A task that reads the clock this many times without ever waiting is stuck.
const PATIENCE: u32 = 100_000;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Schedule>>> = const { RefCell::new(None) };
    /// The stacks of tasks that have ended, to be used again.
    static STACKS: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

type Stack = Generator<'static, (), ()>;

/// The schedule of this thread's simulation, if there is one.
pub(crate) fn current() -> Option<Rc<Schedule>> {
    CURRENT.with(|current| current.borrow().clone())
}

/// The number of a simulated process, whose tasks are stopped together.
pub(crate) type Process = usize;

/// One call of `sleep` by one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sleeper {
    task: usize,
    stay: u64,
}

/// See the module.
pub(crate) struct Schedule {
    now: Cell<u64>,
    random: Cell<u64>,
    /// The most nanoseconds that a task may take to go on once it can.
    lag: Cell<u64>,
    queue: RefCell<BinaryHeap<Reverse<Entry>>>,
    entries: Cell<u64>,
    tasks: RefCell<Vec<Task>>,
    free: RefCell<Vec<usize>>,
    alive: Cell<usize>,
    /// The task that runs, if one does.
    running: Cell<Option<usize>>,
    /// The process that the current step belongs to.
    process: Cell<Process>,
    /// Until when each process is stopped.
    stopped: RefCell<Vec<u64>>,
    looks: Cell<u32>,
    /// The percentage of threads that cannot be started.
    poverty: Cell<u64>,
    /// Whether to print the events of the simulation.
    pub(crate) verbose: bool,
}

struct Task {
    stack: Option<Stack>,
    process: Process,
    name: String,
    stay: u64,
    sleeps: bool,
}

struct Entry {
    time: u64,
    /// The order among entries of the same time.
    rank: u64,
    what: What,
}

enum What {
    Run(usize),
    /// The end of a sleep.
    End(Sleeper),
    Call(Box<dyn FnOnce()>),
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.time, self.rank) == (other.time, other.rank)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.time, self.rank).cmp(&(other.time, other.rank))
    }
}

/// Why a step could not be taken.
pub(crate) enum Stuck {
    /// Nothing is left to do, and nothing will ever happen.
    Quiet,
    Panicked {
        task: String,
        why: String,
    },
}

/// Ends the simulation of this thread.
pub(crate) struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        let schedule = CURRENT.with(|current| current.borrow_mut().take());
        // Tasks that have not ended are not unwound: they must not go on from where they stand.
        if let Some(schedule) = schedule {
            std::mem::forget(schedule.tasks.take());
        }
    }
}

impl Schedule {
    /// Starts a simulation on this thread.
    pub(crate) fn begin(seed: u64, verbose: bool) -> (Rc<Schedule>, Running) {
        let schedule = Rc::new(Schedule {
            now: Cell::new(0),
            // Mixed: otherwise two seeds could draw the same numbers, shifted by one draw.
            random: Cell::new(mix(seed)),
            lag: Cell::new(0),
            queue: RefCell::default(),
            entries: Cell::new(0),
            tasks: RefCell::default(),
            free: RefCell::default(),
            alive: Cell::new(0),
            running: Cell::new(None),
            process: Cell::new(0),
            stopped: RefCell::default(),
            looks: Cell::new(0),
            poverty: Cell::new(0),
            verbose,
        });
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&schedule)));
        (schedule, Running)
    }

    pub(crate) fn set_lag(&self, most: Duration) {
        self.lag.set(nanos(most));
    }

    /// Prints a line with the virtual time in front.
    pub(crate) fn say(&self, what: &str) {
        eprintln!("{:12.6} {what}", self.time().as_secs_f64());
    }

    /// From now on, this percentage of threads cannot be started.
    pub(crate) fn set_poverty(&self, percent: u64) {
        self.poverty.set(percent);
    }

    // ----- chance

    /// Splitmix64, so that a seed gives the same numbers on every machine and in every version.
    pub(crate) fn next(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        mix(state)
    }

    pub(super) fn random(&self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    /// A random number in `0..end`.
    pub(crate) fn below(&self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(crate) fn chance(&self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// A random duration of at most `most`.
    pub(crate) fn some(&self, most: Duration) -> Duration {
        Duration::from_nanos(self.next() % (nanos(most) + 1))
    }

    // ----- time

    /// The virtual time since the beginning.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.now.get())
    }

    pub(super) fn instant(&self) -> Instant {
        let looks = self.looks.get() + 1;
        self.looks.set(looks);
        assert!(looks < PATIENCE, "a task runs on without ever waiting");
        base() + self.time()
    }

    pub(crate) fn at(&self, time: Duration, call: impl FnOnce() + 'static) {
        self.enter(nanos(time), What::Call(Box::new(call)));
    }

    pub(crate) fn after(&self, delay: Duration, call: impl FnOnce() + 'static) {
        self.at(self.time() + delay, call);
    }

    fn enter(&self, time: u64, what: What) {
        // The order at one time is random; if two draws are equal, the entry's number decides.
        let number = self.entries.get() + 1;
        self.entries.set(number);
        let rank = self.next() << 32 | number & 0xffff_ffff;
        let time = time.max(self.now.get());
        self.queue.borrow_mut().push(Reverse(Entry { time, rank, what }));
    }

    // ----- processes

    /// Runs `call` as a part of `process`; tasks that it starts belong to that process.
    pub(crate) fn within<T>(&self, process: Process, call: impl FnOnce() -> T) -> T {
        let before = self.process.replace(process);
        let result = call();
        self.process.set(before);
        result
    }

    /// The process that the current step belongs to.
    pub(crate) fn process(&self) -> Process {
        self.process.get()
    }

    /// Stops a process until the given time.
    pub(crate) fn stop(&self, process: Process, until: Duration) {
        let mut stopped = self.stopped.borrow_mut();
        if stopped.len() <= process {
            stopped.resize(process + 1, 0);
        }
        stopped[process] = stopped[process].max(nanos(until));
    }

    /// Until when a process is stopped, if it is.
    pub(crate) fn stopped(&self, process: Process) -> Option<Duration> {
        let until = self.stopped.borrow().get(process).copied().unwrap_or(0);
        (until > self.now.get()).then_some(Duration::from_nanos(until))
    }

    // ----- tasks

    pub(crate) fn start(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let poverty = self.poverty.get();
        if poverty > 0 && self.chance(poverty) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let stack = STACKS.with(|stacks| stacks.borrow_mut().pop());
        let stack = match stack {
            None => Gn::<()>::new_opt(STACK, body),
            Some(mut stack) => {
                stack.init_code(body);
                stack
            }
        };
        let task = Task {
            stack: Some(stack),
            process: self.process.get(),
            name: name.to_owned(),
            stay: 0,
            sleeps: false,
        };
        let mut tasks = self.tasks.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => {
                let stay = tasks[index].stay + 1;
                tasks[index] = Task { stay, ..task };
                index
            }
            None => {
                tasks.push(task);
                tasks.len() - 1
            }
        };
        drop(tasks);
        self.alive.set(self.alive.get() + 1);
        self.go_on(index);
        Ok(())
    }

    /// How many tasks have not ended.
    pub(crate) fn alive(&self) -> usize {
        self.alive.get()
    }

    /// The names of the tasks that have not ended.
    pub(crate) fn names(&self) -> Vec<String> {
        let free = self.free.borrow();
        let tasks = self.tasks.borrow();
        let alive = tasks.iter().enumerate().filter(|(index, _)| !free.contains(index));
        alive.map(|(_, task)| format!("{}/{}", task.process, task.name)).collect()
    }

    fn go_on(&self, task: usize) {
        let lag = self.next() % (self.lag.get() + 1);
        self.enter(self.now.get() + lag, What::Run(task));
    }

    /// The number of the task that runs, if one does.
    pub(crate) fn task(&self) -> Option<usize> {
        self.running.get()
    }

    /// The sleep that the running task is about to begin.
    pub(crate) fn sleeper(&self) -> Sleeper {
        let task = self.running.get().unwrap_or_else(|| unreachable!("only tasks wait"));
        Sleeper { task, stay: self.tasks.borrow()[task].stay + 1 }
    }

    /// Makes the running task wait until it is woken, or until the given time.
    pub(crate) fn sleep(&self, until: Option<Instant>) {
        let sleeper = self.sleeper();
        {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[sleeper.task];
            task.stay = sleeper.stay;
            task.sleeps = true;
        }
        if let Some(end) = until {
            let end = nanos(end.saturating_duration_since(base()));
            self.enter(end, What::End(sleeper));
        }
        #[expect(
            deprecated,
            reason = "its successor would have to be passed to everything that waits"
        )]
        generator::yield_with(());
    }

    /// Makes the running task wait for `duration`.
    pub(crate) fn pause(&self, duration: Duration) {
        let end = base() + self.time() + duration;
        self.sleep(Some(end));
    }

    pub(crate) fn wake(&self, sleeper: Sleeper) {
        let mut tasks = self.tasks.borrow_mut();
        let task = &mut tasks[sleeper.task];
        if task.stay == sleeper.stay && std::mem::replace(&mut task.sleeps, false) {
            drop(tasks);
            self.go_on(sleeper.task);
        }
    }

    /// Takes the next step.
    pub(crate) fn step(&self) -> Result<(), Stuck> {
        let next = self.queue.borrow_mut().pop();
        let Some(Reverse(Entry { time, what, .. })) = next else { return Err(Stuck::Quiet) };
        self.now.set(time);
        self.looks.set(0);
        match what {
            What::Call(call) => {
                catch_unwind(AssertUnwindSafe(call))
                    .map_err(|why| panicked("an event".to_owned(), &*why))?;
            }
            What::End(sleeper) => self.wake(sleeper),
            What::Run(task) => self.run(task)?,
        }
        Ok(())
    }

    fn run(&self, index: usize) -> Result<(), Stuck> {
        let process = self.tasks.borrow()[index].process;
        if let Some(until) = self.stopped(process) {
            self.enter(nanos(until), What::Run(index));
            return Ok(());
        }
        let stack = self.tasks.borrow_mut()[index].stack.take();
        let Some(mut stack) = stack else { return Ok(()) };
        self.running.set(Some(index));
        let result = self.within(process, || catch_unwind(AssertUnwindSafe(|| stack.resume())));
        self.running.set(None);
        if let Err(why) = result {
            std::mem::forget(stack);
            return Err(panicked(self.tasks.borrow()[index].name.clone(), &*why));
        }
        if stack.is_done() {
            STACKS.with(|stacks| stacks.borrow_mut().push(stack));
            self.free.borrow_mut().push(index);
            self.alive.set(self.alive.get() - 1);
        } else {
            self.tasks.borrow_mut()[index].stack = Some(stack);
        }
        Ok(())
    }
}

fn panicked(task: String, why: &(dyn Any + Send)) -> Stuck {
    let text = why.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Stuck::Panicked { task, why: text.to_owned() }
}

fn mix(state: u64) -> u64 {
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The instant that virtual time counts from.
fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}
