//! A worker process: its threads acquire, use and release locks through all calls that the library
//! has, and write the results to a history.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Cancel, Client, ErrorKind, WriteGuard};

use super::history::{Journal, MILLISECOND, Nanos, Who, nanos, now, word as word_of};
use super::idle::Idle;
use super::options::{Locks, Options, Plan, Worker};
use super::parse::worker_name;
use super::recipes::Deeds;
use super::register::Writer;
use super::rng::Rng;
use super::support::promised_lease::PromisedLease;
use super::support::{connecting, threads_named};
use super::work::{DOWNGRADE, Guard, How, Work, Works};

pub(crate) const BASE: &str = "/zklock-soak";
/// The mutexes: all threads except for the last use the first one. All threads sometimes use the
/// other kinds of locks.
pub(crate) const LOCKS: [&str; 2] = ["a", "b"];
/// The limit of `try_lock`, of other calls that do not wait, and of connecting.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// The order to end.
pub(crate) const END: &str = "end";
/// The order to hold the next lock for longer.
pub(crate) const STAY: &str = "stay";
pub(crate) const SOCKET: &str = "register.socket";

/// The threads share two sessions, besides that of the [idle holder](Idle).
pub(crate) const CLIENTS: usize = 2;
/// How often a holder checks that it still holds.
const LOOK: Duration = Duration::from_millis(5);
/// How long background work may take to finish at the end.
const REST: Duration = Duration::from_secs(10);

pub(crate) fn work(worker: &Worker, options: &Options) -> Result<(), Box<dyn Error>> {
    log_with_times();
    let out = options.out.clone().ok_or("a worker needs --out")?;
    let Worker { slot, generation, .. } = *worker;
    let journal = Arc::new(Journal::create(&out.join(worker_name(slot, generation)))?);
    let (ending, stay) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    obey(Arc::clone(&ending), Arc::clone(&stay));

    let process = Who { slot, generation, thread: 99 };
    journal.note(process, format_args!("begin {}", std::process::id()));
    watch_the_machine(process, Arc::clone(&journal));
    let idle = (options.plan == Plan::Lease).then(|| {
        // First, as the first session of a new worker is the one that may open slowly.
        let limit = CONNECT.max(options.session * 2);
        let zk = connect(worker, options, (CLIENTS, limit), process, &journal);
        let who = Who { slot, generation, thread: options.threads + 1 };
        let (journal, until, kept) = (Arc::clone(&journal), Arc::clone(&ending), zk.clone());
        (thread::spawn(move || Idle::new(zk, who, journal).work(&until)), kept)
    });
    let mut clients = Vec::new();
    let base = if options.break_it { format!("{BASE}/{slot}") } else { BASE.to_owned() };
    for index in 0..CLIENTS {
        clients.push(connect(worker, options, (index, CONNECT), process, &journal));
    }
    let canceller = canceller();
    let seed = |thread| options.seed ^ ((slot * 100 + thread) * 1000 + generation) as u64;
    let mut deeds = Deeds::new(
        &clients[slot % CLIENTS],
        Who { slot, generation, thread: options.threads },
        Rng::new(seed(options.threads)),
        Arc::clone(&journal),
    );
    let until = Arc::clone(&ending);
    let doer = thread::spawn(move || {
        while !until.load(Ordering::SeqCst) {
            deeds.one();
        }
    });
    let threads: Vec<_> = (0..options.threads)
        .map(|thread| {
            let who = Who { slot, generation, thread };
            let lock = LOCKS[usize::from(thread + 1 == options.threads)];
            let zk = clients[thread % CLIENTS].clone();
            let mut hand = Hand {
                who,
                works: Works::new(&zk, &base, lock, &who, options.locks),
                calls: (options.locks != Locks::All).then_some(0),
                zk,
                rng: Rng::new(seed(thread)),
                journal: Arc::clone(&journal),
                register: Writer::connect(&out.join(SOCKET)).expect("connect to the register"),
                canceller: canceller.clone(),
                stay: Arc::clone(&stay),
                session: options.session,
            };
            let ending = Arc::clone(&ending);
            thread::spawn(move || {
                while !ending.load(Ordering::SeqCst) {
                    hand.round();
                }
            })
        })
        .collect();
    let (idle, idle_client) = idle.unzip();
    for thread in threads.into_iter().chain([doer]).chain(idle) {
        if thread.join().is_err() {
            return Err("a thread panicked".into());
        }
    }
    clients.extend(idle_client);
    leave(clients, process, &journal);
    Ok(())
}

/// Logs with the same times as in the histories, so that the lines can be compared.
fn log_with_times() {
    let default = env_logger::Env::default().default_filter_or("warn,zklock=info");
    env_logger::Builder::from_env(default)
        .format(|out, record| {
            writeln!(out, "{} {} {}: {}", now(), record.level(), record.target(), record.args())
        })
        .init();
}

/// Follows the orders on standard input, and ends the process at its end, when the parent is gone.
fn obey(ending: Arc<AtomicBool>, stay: Arc<AtomicBool>) {
    thread::spawn(move || {
        for order in io::stdin().lock().lines().map_while(Result::ok) {
            match order.as_str() {
                END => ending.store(true, Ordering::SeqCst),
                STAY => stay.store(true, Ordering::SeqCst),
                _ => {}
            }
        }
        exit(1);
    });
}

/// Writes to the history when this process got no processor in time, which excuses late returns.
fn watch_the_machine(process: Who, journal: Arc<Journal>) {
    const NAP: Duration = Duration::from_millis(10);
    const NOTABLE: Nanos = 20 * MILLISECOND;
    thread::spawn(move || {
        loop {
            let due = now() + nanos(NAP);
            thread::sleep(NAP);
            if now() > due + NOTABLE {
                journal.note(process, format_args!("starved {due}"));
            }
        }
    });
}

fn connect(
    worker: &Worker,
    options: &Options,
    (index, limit): (usize, Duration),
    process: Who,
    journal: &Arc<Journal>,
) -> Client {
    loop {
        let lease = PromisedLease::new(options.session, options.tick(worker.slot));
        let builder = lease.set(connecting(&worker.hosts)).connect_timeout(limit);
        match builder.connect() {
            Ok(zk) => {
                let journal = Arc::clone(journal);
                zk.on_state_change(move |state| {
                    journal.note(process, format_args!("state {index} {state}"));
                })
                .detach();
                return zk;
            }
            Err(error) => journal.note(process, format_args!("unconnected {:?}", error.kind())),
        }
    }
}

/// Starts a thread that trips each `Cancel` that it is sent at the given time.
fn canceller() -> Sender<(Instant, Cancel)> {
    let (send, receive) = channel::<(Instant, Cancel)>();
    thread::spawn(move || {
        let mut pending: Vec<(Instant, Cancel)> = Vec::new();
        loop {
            let next = pending.iter().map(|(at, _)| *at).min();
            let wait = next.map_or(Duration::from_secs(1), |at| at - Instant::now().min(at));
            match receive.recv_timeout(wait) {
                Ok(one) => pending.push(one),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            pending.retain(|(at, cancel)| {
                let later = *at > Instant::now();
                if !later {
                    cancel.cancel();
                }
                later
            });
        }
    });
    send
}

/// Closes the clients, and writes to the history what they leave over.
fn leave(clients: Vec<Client>, process: Who, journal: &Journal) {
    for (index, zk) in clients.iter().enumerate() {
        let at_rest = || zk.stats().watches == 0 && zk.stats().pending_deletes == 0;
        if !eventually(at_rest) {
            journal.note(process, format_args!("left client {index}: {:?}", zk.stats()));
        }
    }
    drop(clients);
    for prefix in ["zklock-", "io", "event"] {
        if !eventually(|| threads_named(prefix).is_empty()) {
            journal.note(process, format_args!("left threads {:?}", threads_named(prefix)));
        }
    }
    journal.note(process, "end");
}

fn eventually(condition: impl Fn() -> bool) -> bool {
    let limit = Instant::now() + REST;
    while !condition() {
        if Instant::now() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The state of a thread that uses locks.
struct Hand {
    who: Who,
    works: Works,
    /// How many there were, if their nodes are to tell one from another.
    calls: Option<u64>,
    zk: Client,
    rng: Rng,
    journal: Arc<Journal>,
    register: Writer,
    canceller: Sender<(Instant, Cancel)>,
    stay: Arc<AtomicBool>,
    session: Duration,
}

impl Hand {
    fn note(&self, what: impl Display) {
        self.journal.note(self.who, what);
    }

    /// Tries to acquire a lock once, and uses it if that succeeds.
    fn round(&mut self) {
        let pause = self.rng.milliseconds(0, 4);
        let work = self.works.draw(&mut self.rng);
        let name = self.works.name(&work);
        if let Some(guard) = self.acquire(work, &name) {
            self.hold(guard, &name);
        }
        thread::sleep(pause);
    }

    fn acquire(&mut self, work: Work, name: &str) -> Option<Guard> {
        let choice = self.rng.below(100);
        let limit = match self.rng.below(3) {
            0 => self.rng.milliseconds(0, 20),
            1 => self.rng.milliseconds(20, 300),
            _ => self.rng.milliseconds(300, 3000),
        };
        let (word, limit, how) = match choice {
            0..60 => ("lock", None, How::Lock),
            60..75 => ("try_lock_for", Some(limit), How::TryFor(limit)),
            75..82 => ("lock_within", Some(limit), How::TryUntil(limit)),
            82..90 => ("try_lock", Some(CONNECT), How::TryNow),
            _ => ("lock_within", Some(limit), How::With(Cancel::new())),
        };
        let until = limit.map_or("-".to_owned(), |limit| nanos(limit).to_string());
        self.note(format_args!("want {name} {word} {until} {}", work.share()));
        if let (How::With(cancel), Some(limit)) = (&how, limit) {
            let _ = self.canceller.send((Instant::now() + limit, cancel.clone()));
        }
        let outcome = match &mut self.calls {
            Some(calls) => {
                *calls += 1;
                // With facts below, so that it tells its patience.
                work.with_data(&format!("{}/{calls}/{word}\nv=1", self.who)).take(&how)
            }
            None => work.take(&how),
        };
        let returned = now();
        match outcome {
            Ok(Some(guard)) => {
                self.got(returned, &guard);
                return Some(guard);
            }
            Ok(None) => self.journal.note_at(returned, self.who, "nothing"),
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                self.journal.note_at(returned, self.who, "cancelled");
            }
            Err(error) => {
                let what = format!("failed {:?} {}", error.kind(), word_of(&error));
                self.journal.note_at(returned, self.who, what);
            }
        }
        None
    }

    fn got(&self, returned: Nanos, guard: &Guard) {
        // If the guard is still held after this, it belongs to this session.
        let session = self.zk.session_id().map_or(0, i64::from);
        let places = guard.places();
        let (token, path) = &places[0];
        let mut what = format!("got {token} {session:x} {path}");
        for (token, path) in &places[1..] {
            what += &format!(" {token} {path}");
        }
        self.journal.note_at(returned, self.who, what);
        let (journal, who, path) = (Arc::clone(&self.journal), self.who, path.clone());
        guard.on_lost(move |why| {
            journal.note(who, format_args!("lost {path} {}", word_of(why)));
        });
    }

    fn hold(&mut self, guard: Guard, name: &str) {
        let stay = self.stay.swap(false, Ordering::SeqCst);
        let length = match self.rng.below(10_000) {
            // Longer than a session lives on without its client.
            0..5 => self.session + self.rng.milliseconds(200, 1000),
            _ if stay => self.session * 3 / 2 + self.rng.milliseconds(0, 1000),
            5..4000 => self.rng.milliseconds(0, 1),
            4000..8000 => self.rng.milliseconds(1, 8),
            _ => self.rng.milliseconds(8, 20),
        };
        // A careless holder writes without checking first; the register must refuse late writes.
        let careless = self.rng.per_mille(300);
        let ask = self.rng.per_mille(80);
        let unlock = self.rng.per_mille(250);
        let downgrade = self.rng.per_mille(400);

        let mut held = self.look(&guard);
        if held || careless {
            self.write(&guard, name);
            held = self.look(&guard);
        }
        if ask {
            let asked = now();
            let outcome = said(&guard.ensure_held());
            self.note(format_args!("ensured {asked} {outcome}"));
        }
        let end = Instant::now() + length;
        while held && Instant::now() < end {
            thread::sleep(LOOK.min(end - Instant::now().min(end)));
            held = self.look(&guard);
        }
        if !held && careless {
            thread::sleep(self.rng.milliseconds(0, 2500));
        }
        if length > LOOK && (held || careless) {
            self.write(&guard, name);
            self.look(&guard);
        }
        match guard {
            Guard::Write(guard) if downgrade => self.downgrade(guard, name),
            guard => self.release(guard, unlock),
        }
    }

    fn release(&self, guard: Guard, unlock: bool) {
        if unlock {
            self.note("release unlock");
            let outcome = said(&guard.unlock());
            self.note(format_args!("released {outcome}"));
        } else {
            self.note("release drop");
            drop(guard);
            self.note("released ok");
        }
    }

    /// In the history, a downgrade is the release of a writer and then an acquisition by a reader.
    fn downgrade(&mut self, guard: WriteGuard, name: &str) {
        self.note("release downgrade");
        let downgraded = guard.downgrade();
        let outcome = downgraded
            .as_ref()
            .map_or_else(|error| format!("{:?}", error.kind()), |_| "ok".to_owned());
        self.note(format_args!("released {outcome}"));
        if let Ok(reader) = downgraded {
            let reader = Guard::Read(reader);
            self.note(format_args!("want {name} {DOWNGRADE} - read"));
            self.got(now(), &reader);
            self.hold(reader, name);
        }
    }

    /// Whether the guard reports that it is held. True is a claim: it was held since it was
    /// acquired, at least up to the beginning of this call.
    fn look(&self, guard: &Guard) -> bool {
        let asked: Nanos = now();
        let held = guard.is_held();
        self.note(format_args!("{} {asked}", if held { "held" } else { "unheld" }));
        held
    }

    fn write(&mut self, guard: &Guard, name: &str) {
        if !guard.may_write() {
            return;
        }
        for (lock, (token, _)) in name.split('+').zip(guard.places()) {
            let asked = now();
            let accepted = self.register.write(lock, token, self.who).expect("the register");
            let verdict = if accepted { "accepted" } else { "refused" };
            self.note(format_args!("wrote {asked} {verdict}"));
        }
    }
}

fn said(outcome: &zklock::Result<()>) -> String {
    match outcome {
        Ok(()) => "ok".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}
