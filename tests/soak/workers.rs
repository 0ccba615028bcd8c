//! Starts, pauses, kills and ends the worker processes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::history::Journal;
use super::options::Options;
use super::worker::END;

/// The worker processes. Slot 0 is never killed, so that the growth of its memory can be measured.
#[derive(Debug)]
pub(crate) struct Crew {
    members: Mutex<Vec<Member>>,
    /// The connect string of each slot.
    hosts: Vec<String>,
    out: PathBuf,
    options: Options,
}

#[derive(Debug)]
struct Member {
    slot: usize,
    generation: usize,
    child: Child,
    orders: ChildStdin,
    gone: bool,
}

impl Crew {
    /// `hosts`: a connect string for each slot, because each worker has its own proxies.
    pub(crate) fn start(hosts: Vec<String>, out: PathBuf, options: &Options) -> io::Result<Crew> {
        let crew = Crew { members: Mutex::default(), hosts, out, options: options.clone() };
        for slot in 0..crew.hosts.len() {
            let member = crew.spawn(slot, 0)?;
            crew.members().push(member);
        }
        Ok(crew)
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, slot: usize, generation: usize) -> io::Result<Member> {
        let log = File::create(self.out.join(format!("worker-{slot}-{generation}.err")))?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--worker", &slot.to_string(), &generation.to_string(), &self.hosts[slot]])
            .args(["--threads", &self.options.threads.to_string()])
            .args(["--session", &self.options.session.as_secs().to_string()])
            .args(["--plan", self.options.plan.name(), "--tick", self.options.stated().name()])
            .args(["--locks", self.options.locks.name()])
            .args(["--seed", &self.options.seed.to_string()])
            .args(self.options.break_it.then_some("--break-it"))
            .arg("--out")
            .arg(&self.out)
            // So that the resident size is the memory in use, not the number of glibc's arenas.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_MMAP_THRESHOLD_", "131072")
            .env("MALLOC_TRIM_THRESHOLD_", "131072")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // In its own process group: the terminal's Ctrl-C must not end it, the order does.
            .process_group(0)
            .spawn()?;
        let orders = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Member { slot, generation, child, orders, gone: false })
    }

    pub(crate) fn size(&self) -> usize {
        self.hosts.len()
    }

    /// Stops a worker. The note comes before the signal here, and after it in `resume`, so that the
    /// noted span covers the whole stop.
    pub(crate) fn stop(&self, slot: usize, journal: &Journal) {
        journal.note("-", format_args!("stop {slot}"));
        self.signal(slot, Signal::STOP);
    }

    pub(crate) fn resume(&self, slot: usize, journal: &Journal) {
        self.signal(slot, Signal::CONT);
        journal.note("-", format_args!("cont {slot}"));
    }

    fn signal(&self, slot: usize, signal: Signal) {
        // The worker may have ended; `sample` and `end` notice that.
        send(&self.members()[slot].child, signal);
    }

    pub(crate) fn kill(&self, slot: usize, journal: &Journal) {
        let mut members = self.members();
        let member = &mut members[slot];
        journal.note("-", format_args!("kill {slot} {}", member.generation));
        // The worker may have ended by itself, so this may fail.
        let _ = member.child.kill();
        let _ = member.child.wait();
        member.gone = true;
    }

    /// Sends an order to a worker. Fails silently if the worker has ended.
    pub(crate) fn order(&self, slot: usize, order: &str) {
        let _ = writeln!(self.members()[slot].orders, "{order}");
    }

    pub(crate) fn replace(&self, slot: usize) {
        let generation = self.members()[slot].generation + 1;
        let member = self.spawn(slot, generation).expect("start another worker");
        self.members()[slot] = member;
    }

    /// Writes each worker's memory and threads to the history, and which workers ended too early.
    pub(crate) fn sample(&self, journal: &Journal) {
        for member in self.members().iter_mut().filter(|member| !member.gone) {
            let Member { slot, generation, .. } = *member;
            if let Ok(Some(status)) = member.child.try_wait() {
                let status = super::history::word(status);
                journal.note("-", format_args!("exited {slot} {generation} {status}"));
                member.gone = true;
                continue;
            }
            let status = fs::read_to_string(format!("/proc/{}/status", member.child.id()));
            let number = |name: &str| -> Option<u64> {
                let text = status.as_ref().ok()?;
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
            };
            if let (Some(kilobytes), Some(threads)) = (number("VmRSS"), number("Threads")) {
                let what = format!("sample {slot} {generation} {kilobytes} {threads}");
                journal.note("-", what);
            }
        }
    }

    /// Tells all workers to finish. Kills those that do not in time, and notes that.
    pub(crate) fn end(&self, limit: Duration, journal: &Journal) {
        let mut members = self.members();
        for member in members.iter_mut() {
            // Fails if the worker has ended.
            let _ = writeln!(member.orders, "{END}");
        }
        let limit = Instant::now() + limit;
        for member in members.iter_mut().filter(|member| !member.gone) {
            let Member { slot, generation, .. } = *member;
            let status = loop {
                match member.child.try_wait() {
                    Ok(Some(status)) => break Some(status),
                    Ok(None) if Instant::now() < limit => thread::sleep(Duration::from_millis(10)),
                    _ => break None,
                }
            };
            member.gone = true;
            match status {
                Some(status) if status.success() => {}
                Some(status) => {
                    let status = super::history::word(status);
                    journal.note("-", format_args!("exited {slot} {generation} {status}"));
                }
                None => {
                    journal.note("-", format_args!("stuck {slot} {generation}"));
                    let _ = member.child.kill();
                    let _ = member.child.wait();
                }
            }
        }
    }
}

/// Sends a signal to a child, if it has not ended.
pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, signal));
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in self.members().iter_mut().filter(|member| !member.gone) {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
