//! Stops the guard process, or zklock, before each of its steps in turn, and sees how the other one deals with it. A
//! step is a system call: between two of them, nothing changes that others see. The file lock tells whether something
//! of the command works on.
//!
//! By default, some of the steps are tried; `ZKLOCK_STEPS=all` tries all of them.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use zklock::{Client, DistributedLock, LockGuard};

use super::support::{Site, children, until_ended};

/// A command whose guard has much to do: it says that it is there, is stopped, goes on, leaves processes in its group
/// and outside of it, and ends.
const EVENTFUL: &str = "echo ready; setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000 & \
                        (sleep 0.05; kill -CONT $$) & kill -STOP $$; exit 3";

/// A process whose threads this thread stops before each system call.
struct Traced {
    /// Those that have not ended.
    threads: HashSet<Pid>,
    /// Those that are in a system call, or about to make it.
    inside: HashSet<Pid>,
    /// The thread that stands before a system call.
    standing: Option<Pid>,
}

/// Why a thread stands still.
#[derive(Clone, Copy, PartialEq)]
enum Stop {
    /// Before a system call, or after it.
    Call,
    /// A signal is about to be delivered.
    Signal(Signal),
    Other,
}

impl Stop {
    /// With which signal it goes on.
    fn signal(self) -> Option<Signal> {
        match self {
            Stop::Signal(signal) => Some(signal),
            Stop::Call | Stop::Other => None,
        }
    }
}

impl Traced {
    fn attach(process: Pid) -> Traced {
        Traced::attach_with(process, Options::PTRACE_O_TRACECLONE)
    }

    fn attach_with(process: Pid, options: Options) -> Traced {
        let options = options | Options::PTRACE_O_TRACESYSGOOD;
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let number = |name: &str| Pid::from_raw(name.parse().unwrap());
        let threads: HashSet<Pid> =
            tasks.map(|one| number(one.unwrap().file_name().to_str().unwrap())).collect();
        for thread in &threads {
            ptrace::seize(*thread, options).unwrap();
            ptrace::interrupt(*thread).unwrap();
        }
        Traced { threads, inside: HashSet::new(), standing: None }
    }

    /// Goes on until one of the threads is about to make a system call. False if the process has ended.
    fn step(&mut self) -> bool {
        if let Some(thread) = self.standing.take() {
            let _ = ptrace::syscall(thread, None);
        }
        loop {
            match self.news() {
                None => return false,
                Some((thread, Stop::Call)) if self.inside.insert(thread) => {
                    self.standing = Some(thread);
                    return true;
                }
                Some((thread, stop)) => {
                    if stop == Stop::Call {
                        self.inside.remove(&thread);
                    }
                    // It may have been killed meanwhile.
                    let _ = ptrace::syscall(thread, stop.signal());
                }
            }
        }
    }

    /// Lets the thread that stands still go on.
    fn let_go(mut self) -> Traced {
        if let Some(thread) = self.standing.take() {
            let _ = ptrace::cont(thread, None);
        }
        self
    }

    /// Waits for the end of all threads. One that stands still is let go by nobody, and may be killed.
    fn end(mut self) {
        while let Some((thread, stop)) = self.news() {
            let _ = ptrace::cont(thread, stop.signal());
        }
    }

    /// The next thread that stands still, and why. `None` when all have ended.
    fn news(&mut self) -> Option<(Pid, Stop)> {
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        while !self.threads.is_empty() {
            // None of this thread's processes is waited for but these.
            match waitpid(Pid::from_raw(-1), Some(flags)) {
                Ok(WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, ..)) => {
                    self.threads.remove(&thread);
                }
                Ok(WaitStatus::PtraceSyscall(thread)) => return Some((thread, Stop::Call)),
                Ok(WaitStatus::PtraceEvent(thread, ..)) => {
                    self.threads.insert(thread);
                    return Some((thread, Stop::Other));
                }
                Ok(WaitStatus::Stopped(thread, signal)) => {
                    self.threads.insert(thread);
                    return Some((thread, Stop::Signal(signal)));
                }
                Ok(_) => {}
                Err(_) => self.threads.clear(),
            }
        }
        None
    }
}

/// What is tried: a zklock that waits for a lock, which the test holds.
struct Trial {
    lock: DistributedLock,
    blocker: Option<LockGuard>,
    zklock: Pid,
    guard: Pid,
    out: BufReader<ChildStdout>,
    judge: PathBuf,
    events: PathBuf,
}

impl Trial {
    fn new(site: &Site, zk: &Client, name: &str) -> Trial {
        Trial::with(site, zk, name, &[], EVENTFUL)
    }

    fn with(site: &Site, zk: &Client, name: &str, options: &[&str], script: &str) -> Trial {
        let lock = DistributedLock::new(zk, "/locks", name);
        let blocker = Some(lock.lock().unwrap());
        let (judge, events) =
            (site.file(&format!("{name}.judge")), site.file(&format!("{name}.events")));
        let zklock = site.zklock();
        let mut shell = Command::new("sh");
        // A child of this process would be reaped twice.
        shell.args(["-c", "\"$@\" & echo $!", "sh"]).arg(zklock.get_program());
        shell.args(zklock.get_args()).args(["--session-timeout", "2s", "run", "--events"]);
        shell.arg(&events).args(["--grace", "100ms"]).args(options);
        shell.args([name, "--", "flock", "-n", "-E", "99"]);
        shell.arg(&judge).args(["sh", "-c", script]).stderr(Stdio::null());
        for (variable, _) in zklock.get_envs().filter(|(_, value)| value.is_none()) {
            shell.env_remove(variable);
        }
        let mut shell = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        shell.wait().unwrap();
        let zklock = Pid::from_raw(line.trim().parse().unwrap());
        site.until_it_says("waiting", &events);
        let guard = children(zklock)[0];
        Trial { lock, blocker, zklock, guard, out, judge, events }
    }

    /// From now on, the command is started as soon as that is possible.
    fn begin(&mut self) {
        self.blocker.take().unwrap().unlock().unwrap();
    }

    /// Waits until zklock, its guard and all that the command has started have ended.
    fn until_nothing_is_left(&mut self) {
        self.out.read_to_end(&mut Vec::new()).unwrap();
    }

    fn assert_nothing_works(&self, step: usize) {
        let free = Command::new("flock").arg("-n").arg(&self.judge).arg("true").status().unwrap();
        assert!(free.success(), "before step {step}, something works on");
    }
}

/// Tries all steps, or some, as many at once.
fn at_each_step(
    test: &str,
    at_once: usize,
    usual: usize,
    of: impl Fn(&Site, &mut Trial, usize) -> bool + Sync,
) {
    let site = Site::new(test);
    let zk = Client::connect(site.server.hosts()).unwrap();
    let every = if env::var("ZKLOCK_STEPS").is_ok_and(|which| which == "all") { 1 } else { usual };
    let (next, are_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while !are_over.load(Ordering::SeqCst) {
                    let step = next.fetch_add(every, Ordering::SeqCst);
                    let mut trial = Trial::new(&site, &zk, &format!("{test}-{step}"));
                    if !of(&site, &mut trial, step) {
                        are_over.store(true, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let tried = next.load(Ordering::SeqCst);
    println!("{tried} steps, every {every}");
    assert!(tried > 50, "only {tried} steps were there");
}

/// Lets this process go on up to this step, from when the lock is free; `None` if it has ended before.
fn at(step: usize, process: Pid, trial: &mut Trial) -> Option<Traced> {
    let mut traced = Traced::attach(process);
    trial.begin();
    let is_there = (0..=step).all(|_| traced.step());
    if !is_there {
        trial.until_nothing_is_left();
    }
    is_there.then_some(traced)
}

#[test]
fn zklock_is_killed_before_each_step_of_the_guard_process() {
    at_each_step("guard-steps", 4, 1, |_, trial, step| {
        let Some(guard) = at(step, trial.guard, trial) else { return false };
        if !children(trial.guard).is_empty() {
            // A command that has hardly begun could be left alone, and end by itself.
            trial.out.read_line(&mut String::new()).unwrap();
        }
        kill(trial.zklock, Signal::SIGKILL).unwrap();
        // Nothing that the guard reports is read any more.
        until_ended(trial.zklock);
        guard.let_go().end();
        trial.assert_nothing_works(step);
        trial.until_nothing_is_left();
        true
    });
}

#[test]
fn zklock_is_killed_before_each_of_its_steps() {
    at_each_step("own-steps", 4, 7, |_, trial, step| {
        let Some(zklock) = at(step, trial.zklock, trial) else { return false };
        kill(trial.zklock, Signal::SIGKILL).unwrap();
        zklock.end();
        trial.until_nothing_is_left();
        trial.assert_nothing_works(step);
        true
    });
}

/// Until the next holder has the lock.
#[test]
fn zklock_is_stopped_before_each_of_its_steps() {
    at_each_step("own-stops", 16, 23, |_, trial, step| {
        let Some(zklock) = at(step, trial.zklock, trial) else { return false };
        let next = trial.lock.lock().unwrap();
        trial.assert_nothing_works(step);
        next.unlock().unwrap();
        kill(trial.zklock, Signal::SIGKILL).unwrap();
        zklock.end();
        trial.until_nothing_is_left();
        true
    });
}

/// The session ends, of which only zklock learns.
#[test]
fn the_guard_process_is_stopped_before_each_of_its_steps() {
    at_each_step("guard-stops", 8, 7, |site, trial, step| {
        let Some(guard) = at(step, trial.guard, trial) else { return false };
        site.until_it_says("acquired", &trial.events);
        let holders = trial.lock.contenders().unwrap();
        if let Some(holder) = holders.first() {
            trial.lock.break_lock(holder).unwrap();
        }
        guard.end();
        trial.until_nothing_is_left();
        trial.assert_nothing_works(step);
        true
    });
}

/// A program that is loaded from a server that does not answer would stand still like that.
#[test]
fn zklock_is_killed_while_the_command_is_being_started() {
    let site = Site::new("being-started");
    let zk = Client::connect(site.server.hosts()).unwrap();
    let mut trial = Trial::new(&site, &zk, "being-started");
    let mut guard = Traced::attach_with(trial.guard, Options::PTRACE_O_TRACEFORK);
    trial.begin();
    let command = loop {
        let (process, stop) = guard.news().expect("a process that becomes the command");
        if process != trial.guard {
            continue;
        }
        let forked = ptrace::getevent(process).unwrap();
        ptrace::cont(process, stop.signal()).unwrap();
        if forked > 0 {
            break Pid::from_raw(i32::try_from(forked).unwrap());
        }
    };
    // The guard waits for something else now, and not for that process.
    site.until_it_says("acquired", &trial.events);
    kill(trial.zklock, Signal::SIGKILL).unwrap();
    until_ended(command);
    guard.end();
    trial.until_nothing_is_left();
    trial.assert_nothing_works(0);
}

/// `--max-run` counts from when the guard says that the command has started.
#[test]
fn the_guard_process_is_stopped_before_it_says_that_the_command_has_started() {
    let site = Site::new("never-said");
    let zk = Client::connect(site.server.hosts()).unwrap();
    let limit = ["--max-run", "100ms"];
    let mut trial = Trial::with(&site, &zk, "never-said", &limit, "sleep 1000");
    let mut guard = Traced::attach_with(trial.guard, Options::PTRACE_O_TRACEFORK);
    trial.begin();
    let (mut standing, mut command) = (HashSet::new(), None);
    while command.is_none_or(|command| !standing.contains(&command)) {
        let (process, stop) = guard.news().expect("a process that becomes the command");
        if process != trial.guard {
            standing.insert(process);
        } else if let forked @ 1.. = ptrace::getevent(process).unwrap() {
            // The guard stands still from here on.
            command = Some(Pid::from_raw(i32::try_from(forked).unwrap()));
        } else {
            ptrace::cont(process, stop.signal()).unwrap();
        }
    }
    let command = command.unwrap();
    ptrace::detach(command, None).unwrap();
    guard.threads.remove(&command);
    guard.end();
    trial.until_nothing_is_left();
    trial.assert_nothing_works(0);
}
