//! One of three candidates leads. Another takes over when the leader resigns, when its session
//! ends, and when its node is deleted.
//!
//! ```text
//! cargo run --example election
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! everything was as it should be, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::ops::ControlFlow::Continue;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use support::{Checks, Result, find, say, unique};
use zklock::election::ElectionPhase;
use zklock::{Cancel, Client, DistributedLock, ErrorKind, FencingToken, LeaderElection};

const BASE: &str = "/zklock-examples";
const IDS: [&str; 3] = ["anna", "bela", "cleo"];
const STEP: Duration = Duration::from_millis(20);
const SOON: Duration = Duration::from_secs(15);

/// The beginning of a term.
struct Term {
    id: &'static str,
    token: FencingToken,
}

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let (name, cancel, mut checks) = (unique("scheduler"), Cancel::new(), Checks::default());
    let (tell, terms) = mpsc::channel();
    // Three candidates, each with its own session, like separate processes.
    let (mut clients, mut elections, mut resign) = (Vec::new(), Vec::new(), Vec::new());
    for id in IDS {
        let zk = Client::connect(zookeeper.hosts())?;
        elections.push(LeaderElection::new(&zk, BASE, &name).id(id));
        clients.push(zk);
    }
    let watcher = Client::connect(zookeeper.hosts())?;
    let watched = LeaderElection::new(&watcher, BASE, &name);

    thread::scope(|scope| -> Result<()> {
        // The candidates' threads end however this closure ends.
        let _ends = CancelWhenDropped(&cancel);
        let mut loops = Vec::new();
        for (number, election) in elections.iter().enumerate() {
            let (ask, asked) = mpsc::channel();
            resign.push(ask);
            let (tell, cancel) = (tell.clone(), &cancel);
            loops.push(scope.spawn(move || stand(election, IDS[number], cancel, &tell, &asked)));
            // The candidates stand in the order of `IDS`.
            in_line(&watched, number + 1)?;
        }
        let mut last = terms.recv_timeout(SOON)?;
        checks.that("anna came first, and leads", last.id == "anna");
        let leader = watched.leader()?.map(|leader| leader.label());
        checks.that("as the others can see", leader.as_deref() == Some("anna"));
        let mut next = |checks: &mut Checks, what: &str, id: &str| -> Result<()> {
            let term = terms.recv_timeout(SOON)?;
            checks.that(what, term.id == id && term.token > last.token);
            last = term;
            Ok(())
        };

        resign[0].send(())?;
        next(&mut checks, "anna resigns, and bela takes over", "bela")?;
        in_line(&watched, 3)?; // anna, behind the others
        clients[1].close();
        next(&mut checks, "bela's session ends, and cleo takes over", "cleo")?;
        // For operators only. A mutex with the same path sees the leader as the holder.
        let lock = DistributedLock::new(&watcher, BASE, &name);
        let leader = lock.contenders()?.into_iter().next().ok_or("there is no leader")?;
        lock.break_lock(&leader)?;
        next(&mut checks, "cleo's node is deleted, and anna leads again", "anna")?;
        in_line(&watched, 2)?;
        resign[0].send(())?;
        next(&mut checks, "cleo was told of the loss, stood again, and is next", "cleo")?;

        let progress = elections[2].progress();
        checks.that("it is cleo's second term", progress.terms == 2);
        checks.that("as any thread can see", progress.phase == ElectionPhase::Leading);
        cancel.cancel();
        for (id, one) in IDS.iter().zip(loops) {
            let end = one.join().map_err(|_| "a candidate panicked")?;
            let right = if *id == "bela" { ErrorKind::Closed } else { ErrorKind::Cancelled };
            checks.that(format!("{id} ends, as {end:?}"), end == right);
        }
        let successor = watched.campaign_within(SOON)?;
        checks.that("all have resigned: the watcher could lead", successor.is_some());
        Ok(())
    })?;
    Ok(checks.all_passed)
}

/// Waits until there are `count` candidates.
fn in_line(election: &LeaderElection, count: usize) -> Result<()> {
    let until = Instant::now() + SOON;
    while election.contenders()?.len() != count {
        if Instant::now() > until {
            return Err(format!("there were never {count} candidates").into());
        }
        thread::sleep(STEP);
    }
    Ok(())
}

/// Runs a candidate: it leads until it is told to resign, and stands again, until it is cancelled.
fn stand(
    election: &LeaderElection,
    id: &'static str,
    cancel: &Cancel,
    tell: &Sender<Term>,
    resign: &Receiver<()>,
) -> ErrorKind {
    let ended = election.lead_within::<()>(cancel, |leadership| {
        let token = leadership.fencing_token();
        say(format!("     {id} is at work, with the token {token}"));
        tell.send(Term { id, token })?;
        // The leader's work goes here, a step at a time.
        while leadership.is_held() && !cancel.is_cancelled() {
            if resign.recv_timeout(STEP).is_ok() {
                break;
            }
        }
        Ok(Continue(()))
    });
    match ended {
        Ok(_) => ErrorKind::Cancelled,
        Err(error) => error.kind(),
    }
}

struct CancelWhenDropped<'a>(&'a Cancel);

impl Drop for CancelWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
