//! Jobs that run once for each key.

use std::cell::Cell;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zklock::once::OnceOutcome;
use zklock::znode::CreateMode;
use zklock::{Cancel, Client, DistributedLock, Error, ErrorKind, LockGuard, Once, Wait};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    connecting, eventually, kind, skip_without_server, skip_without_zookeeper, unanswered, waiting,
};

const T: Duration = Duration::from_secs(20);
/// Less than what a link waits for an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// For waits that are to end.
const BRIEF: Duration = Duration::from_millis(200);

fn once(zk: &Client, site: &Site) -> Once {
    Once::new(zk, &site.base, "job")
}

/// Runs a job that must not run.
fn idle(once: &Once, key: &str) -> Result<OnceOutcome<()>, Error> {
    once.run(key, |_: &LockGuard| -> Result<(), Error> { panic!("it was not to run") })
}

fn works(_: &LockGuard) -> Result<u32, Error> {
    Ok(7)
}

#[test]
fn a_job_is_done_once_for_each_key() {
    skip_without_zookeeper!();
    let site = Site::shared("once");
    let (zk, other) = (site.client(), site.client());
    let (ours, theirs) = (once(&zk, &site), once(&other, &site));
    assert_eq!((ours.mark("monday").unwrap(), ours.marks().unwrap()), (None, Vec::new()));
    assert_eq!(ours.run("monday", works).unwrap(), OnceOutcome::Done(7));
    let OnceOutcome::DoneByOther(mark) = idle(&theirs, "monday").unwrap() else {
        panic!("it is done");
    };
    assert_eq!(mark.key, "monday");
    assert!(mark.by.contains(&format!("pid={}", std::process::id())), "{mark:?}");
    assert!(mark.fencing_token.is_some() && mark.at.elapsed().unwrap_or_default() < T * 10);
    // The client that has done it finds the mark, too.
    assert_eq!(idle(&ours, "monday").unwrap(), OnceOutcome::DoneByOther(mark.clone()));
    assert_eq!(theirs.run("tuesday", works).unwrap(), OnceOutcome::Done(7));
    let keys: Vec<_> = ours.marks().unwrap().iter().map(|mark| mark.key.to_owned()).collect();
    assert_eq!(keys, ["monday", "tuesday"]);
    // Until it is forgotten.
    assert!(ours.forget("monday").unwrap());
    assert!(!theirs.forget("monday").unwrap());
    assert_eq!(theirs.run("monday", works).unwrap(), OnceOutcome::Done(7));
    assert_eq!(ours.prune(T * 10).unwrap(), 0);
    // Only the newest stays.
    assert_eq!(ours.prune(Duration::ZERO).unwrap(), 1);
    let keys: Vec<_> = ours.marks().unwrap().iter().map(|mark| mark.key.to_owned()).collect();
    assert_eq!(keys, ["monday"]);
    for key in ["", "a/b", "..", "a\0"] {
        assert_eq!(kind(idle(&ours, key)), ErrorKind::InvalidName, "{key:?}");
        assert_eq!(kind(ours.forget(key)), ErrorKind::InvalidName, "{key:?}");
    }
    drop((ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn while_one_is_at_work_others_are_told_who_it_is() {
    skip_without_zookeeper!();
    let site = Site::shared("once-busy");
    let (zk, other) = (site.client(), site.client());
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let runs = once(&zk, &site);
    let at_work = thread::spawn(move || {
        runs.run("a", |guard| -> Result<(), Error> {
            begin.send(guard.path().to_owned()).unwrap();
            let _ = ended.recv();
            Ok(())
        })
    });
    let node = begun.recv().unwrap();
    // Also for a thread of the same process.
    for zk in [&other, &zk] {
        let OnceOutcome::Busy(holder) = idle(&once(zk, &site), "a").unwrap() else {
            panic!("another call is running it");
        };
        assert_eq!(holder.path, node);
        assert!(holder.label().contains("pid="), "{holder:?}");
        assert!(!holder.label().contains("call="), "{holder:?}");
        assert!(
            holder.thread.as_ref().is_some_and(|thread| !thread.contains("call=")),
            "{holder:?}"
        );
    }
    assert_eq!(once(&other, &site).run("b", works).unwrap(), OnceOutcome::Done(7));
    drop(end);
    assert_eq!(at_work.join().unwrap().unwrap(), OnceOutcome::Done(()));
    assert!(matches!(idle(&once(&other, &site), "a"), Ok(OnceOutcome::DoneByOther(_))));
    site.finish([zk, other]);
}

/// A job that begins when its call has the turn, and ends with this result when it is told to.
struct AtWork {
    call: thread::JoinHandle<Result<OnceOutcome<()>, Error>>,
    end: mpsc::Sender<()>,
}

impl AtWork {
    fn start(once: Once, key: &str, result: Result<(), Error>) -> AtWork {
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let key = key.to_owned();
        let call = thread::spawn(move || {
            once.run(key, |_| {
                begin.send(()).unwrap();
                ended.recv().unwrap();
                result
            })
        });
        begun.recv().unwrap();
        AtWork { call, end }
    }

    fn end(self) -> Result<OnceOutcome<()>, Error> {
        self.end.send(()).unwrap();
        self.call.join().unwrap()
    }
}

/// Starts a call that waits for the one at work, in a thread.
fn wait_for(
    site: &Site,
    once: Once,
    wait: impl Into<Wait>,
    key: &'static str,
) -> thread::JoinHandle<Result<OnceOutcome<u32>, Error>> {
    let wait = wait.into();
    let waiter = thread::spawn(move || once.run_within(wait, key, works));
    site.wait_for_children(&format!("job/locks/{key}"), 2);
    waiter
}

#[test]
fn a_call_that_waits_finds_the_mark_or_takes_over() {
    skip_without_server!();
    let site = Site::own("once-waits");
    let (proxy, zk) = site.proxied(T);
    let other = site.client();
    let waits = |key| wait_for(&site, once(&other, &site), T * 10, key);
    let starts = |key, result| AtWork::start(once(&zk, &site), key, result);

    let (holder, waiter) = (starts("done", Ok(())), waits("done"));
    assert_eq!(holder.end().unwrap(), OnceOutcome::Done(()));
    let OnceOutcome::DoneByOther(mark) = waiter.join().unwrap().unwrap() else {
        panic!("it is done");
    };
    assert_eq!(Some(mark), once(&zk, &site).mark("done").unwrap());

    let failure = other.znode(format!("{}/missing", site.base)).delete().unwrap_err();
    let (holder, waiter) = (starts("failed", Err(failure)), waits("failed"));
    assert_eq!(kind(holder.end()), ErrorKind::NotFound);
    assert_eq!(waiter.join().unwrap().unwrap(), OnceOutcome::Done(7));
    assert!(matches!(idle(&once(&zk, &site), "failed"), Ok(OnceOutcome::DoneByOther(_))));

    // While its job goes on.
    let (holder, waiter) = (starts("expired", Ok(())), waits("expired"));
    site.expire(&proxy);
    assert_eq!(waiter.join().unwrap().unwrap(), OnceOutcome::Done(7));
    let error = holder.end().unwrap_err();
    // The connection may go while the mark is under way.
    let kinds = [ErrorKind::NodeDeleted, ErrorKind::SessionLost, ErrorKind::ConnectionLoss];
    assert!(kinds.contains(&error.kind()), "{error}");
    assert!(error.to_string().starts_with("the job has run, but"), "{error}");
    site.finish([zk, other]);
}

#[test]
fn a_call_waits_for_as_long_as_it_is_told_to() {
    skip_without_server!();
    let site = Site::own("once-limits");
    let (proxy, zk) = site.proxied(T);
    let other = site.client();
    let ours = once(&zk, &site);
    // Nobody is ahead: there is nothing to wait for.
    assert_eq!(ours.run_within(T * 10, "free", works).unwrap(), OnceOutcome::Done(7));
    let found = ours.run_within(T * 10, "free", works);
    assert!(matches!(found, Ok(OnceOutcome::DoneByOther(_))), "{found:?}");

    let holder = AtWork::start(once(&other, &site), "a", Ok(()));
    let OnceOutcome::Busy(busy) = ours.run_within(LIMIT, "a", works).unwrap() else {
        panic!("another call is running it");
    };
    assert!(busy.label().contains("pid="), "{busy:?}");
    site.wait_for_only("job/locks/a", &busy.path);

    let token = Cancel::new();
    let waiter = wait_for(&site, ours.clone(), &token, "a");
    token.cancel();
    assert_eq!(kind(waiter.join().unwrap()), ErrorKind::Cancelled);
    assert_eq!(holder.end().unwrap(), OnceOutcome::Done(()));

    // Cancelled when it has the lock, and looks for the mark.
    let token = Cancel::new();
    proxy.stall_reply(opcode::GET_DATA);
    let late = {
        let (late, token) = (ours.clone(), token.clone());
        waiting(move || late.run_within(&token, "b", works))
    };
    assert!(proxy.wait_for_request(opcode::GET_DATA, T));
    token.cancel();
    proxy.release();
    assert_eq!(kind(late.join().unwrap()), ErrorKind::Cancelled);
    assert_eq!(ours.mark("b").unwrap(), None);

    proxy.refuse();
    eventually(T, "the outage", || zk.state() != zklock::SessionState::Connected);
    assert_eq!(kind(ours.run_within(BRIEF, "c", works)), ErrorKind::Connect);
    proxy.release();
    assert_eq!(ours.run_within(T * 10, "c", works).unwrap(), OnceOutcome::Done(7));
    drop(ours);
    site.finish([zk, other]);
}

#[test]
fn a_job_that_fails_leaves_no_mark() {
    skip_without_zookeeper!();
    let site = Site::shared("once-fails");
    let zk = site.client();
    let ours = once(&zk, &site);
    let fails = |_: &LockGuard| Err::<(), Box<dyn std::error::Error>>("no paper".into());
    assert_eq!(ours.run("a", fails).unwrap_err().to_string(), "no paper");
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ours.run("a", |_| -> Result<(), Error> { std::panic::resume_unwind(Box::new("meant")) })
    }));
    assert!(panics.is_err());
    assert_eq!(ours.mark("a").unwrap(), None);
    assert_eq!(ours.run("a", works).unwrap(), OnceOutcome::Done(7));
    drop(ours);
    site.finish([zk]);
}

#[test]
fn under_a_lock_of_the_callers_choice_a_job_is_done_once() {
    skip_without_zookeeper!();
    let site = Site::shared("once-holding");
    let (zk, other) = (site.client(), site.client());
    let (ours, theirs) = (once(&zk, &site), once(&other, &site));
    let lock = |zk: &Client| DistributedLock::new(zk, &site.base, "any");
    let nothing = || -> Result<u32, Error> { panic!("it was not to run") };
    let guard = lock(&zk).lock().unwrap();
    let failed = ours
        .run_holding(&guard, "monday", || Err::<u32, _>(Box::<dyn std::error::Error>::from("no")));
    assert_eq!(failed.unwrap_err().to_string(), "no");
    assert_eq!(
        ours.run_holding(&guard, "monday", || Ok::<_, Error>(7)).unwrap(),
        OnceOutcome::Done(7)
    );
    assert!(matches!(ours.run_holding(&guard, "monday", nothing), Ok(OnceOutcome::DoneByOther(_))));
    assert_eq!(kind(ours.run_holding(&guard, "a/b", nothing)), ErrorKind::InvalidName);
    assert_eq!(kind(theirs.run_holding(&guard, "tuesday", nothing)), ErrorKind::InvalidArgument);
    // A guard that no longer holds neither runs the job nor leaves a mark.
    lock(&other).break_lock(&lock(&other).contenders().unwrap()[0]).unwrap();
    assert!(guard.lost().wait().is_err());
    assert_eq!(kind(ours.run_holding(&guard, "tuesday", nothing)), ErrorKind::NodeDeleted);
    drop(guard);
    let guard = lock(&other).lock().unwrap();
    let deposed = theirs.run_holding(&guard, "tuesday", || {
        lock(&zk).break_lock(&lock(&zk).contenders()?[0])?;
        Ok::<_, Error>(())
    });
    assert_eq!(kind(deposed), ErrorKind::NodeDeleted);
    assert_eq!(ours.mark("tuesday").unwrap(), None);
    drop((guard, ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn a_deposed_holder_leaves_no_mark() {
    skip_without_zookeeper!();
    let site = Site::shared("once-deposed");
    let (zk, other) = (site.client(), site.client());
    let (ours, theirs) = (once(&zk, &site), once(&other, &site));
    let error = ours
        .run("a", |guard| -> Result<(), Error> {
            other.znode(guard.path()).delete()?;
            // Another client runs it meanwhile, and fails.
            let fails = theirs.run("a", |_| Err::<(), _>(Box::<dyn std::error::Error>::from("no")));
            assert!(fails.is_err());
            Ok(())
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NodeDeleted, "{error}");
    assert!(error.to_string().starts_with("the job has run, but"), "{error}");
    assert_eq!(ours.mark("a").unwrap(), None);
    assert_eq!(theirs.run("a", works).unwrap(), OnceOutcome::Done(7));
    drop((ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn an_outage_is_an_error() {
    skip_without_server!();
    let site = Site::own("once-outage");
    let proxy = Proxy::start(site.server().addr());
    let builder = connecting(&proxy.hosts()).session_timeout(T);
    let zk = builder.connect_timeout(LIMIT).connect().unwrap();
    let other = site.client();
    let ours = once(&zk, &site);
    let outage = || {
        proxy.refuse();
        eventually(T, "the outage", || zk.state() != zklock::SessionState::Connected);
    };
    // Whether the job is free, running, or done.
    other
        .znode(format!("{}/job/done/done", site.base))
        .create_with_parents(CreateMode::Persistent, "")
        .unwrap();
    let held = DistributedLock::new(&other, format!("{}/job/locks", site.base), "held");
    let guard = held.lock().unwrap();
    outage();
    for key in ["free", "held", "done"] {
        assert_eq!(kind(idle(&ours, key)), ErrorKind::Connect, "{key}");
    }
    proxy.release();
    assert!(matches!(idle(&ours, "done"), Ok(OnceOutcome::DoneByOther(_))));
    assert!(matches!(idle(&ours, "held"), Ok(OnceOutcome::Busy(_))));
    drop((guard, held));
    // An outage during the job: it has run, and is not marked.
    let error = ours
        .run("a", |_| -> Result<(), Error> {
            outage();
            Ok(())
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLoss, "{error}");
    assert!(error.to_string().starts_with("the job has run"), "{error}");
    proxy.release();
    assert_eq!(ours.mark("a").unwrap(), None);
    drop(ours);
    site.finish([zk, other]);
}

#[test]
fn a_mark_that_was_written_and_forgotten_is_not_written_again() {
    skip_without_server!();
    let site = Site::own("once-forgotten");
    let (proxy, zk) = site.proxied(T);
    let other = site.client();
    let (ours, theirs) = (once(&zk, &site), once(&other, &site));
    let is_marked = || theirs.mark("day").unwrap().is_some();
    let forget = || assert!(theirs.forget("day").unwrap());
    let run = unanswered(&proxy, opcode::MULTI, || ours.run("day", works), is_marked, forget);
    let error = run.expect_err("what happened cannot be known");
    assert!(error.kind() == ErrorKind::ConnectionLoss && error.may_have_taken_effect(), "{error}");
    assert!(!is_marked());
    // That another key was marked meanwhile does not matter.
    proxy.drop_request(opcode::MULTI, 1);
    let run = ours.run("day", |guard| {
        assert_eq!(theirs.run("another day", works)?, OnceOutcome::Done(7));
        works(guard)
    });
    assert_eq!(run.unwrap(), OnceOutcome::Done(7));
    assert!(is_marked());
    drop((ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn a_mark_whose_answer_was_lost_is_found() {
    skip_without_server!();
    let site = Site::own("once-lost");
    let (proxy, zk) = site.proxied(T);
    let ours = once(&zk, &site);
    let runs = Cell::new(0);
    for key in ["a", "b"] {
        let outcome = ours.run(key, |_| -> Result<(), Error> {
            runs.set(runs.get() + 1);
            match key {
                "a" => proxy.drop_reply(opcode::MULTI, 1),
                _ => proxy.drop_request(opcode::MULTI, 1),
            }
            Ok(())
        });
        assert_eq!(outcome.unwrap(), OnceOutcome::Done(()), "{key}");
        assert!(matches!(idle(&ours, key), Ok(OnceOutcome::DoneByOther(_))));
    }
    assert_eq!(runs.get(), 2);
    drop(ours);
    site.finish([zk]);
}

/// Another client does the job after the first look at the mark and before the lock is acquired.
#[test]
fn whoever_gets_the_lock_late_finds_the_mark() {
    skip_without_server!();
    let site = Site::own("once-late");
    let (proxy, zk) = site.proxied(T);
    let other = site.client();
    proxy.stall_request(opcode::CREATE);
    let late = once(&zk, &site);
    let late = thread::spawn(move || idle(&late, "a"));
    assert!(proxy.wait_for_request(opcode::CREATE, T));
    assert_eq!(once(&other, &site).run("a", works).unwrap(), OnceOutcome::Done(7));
    proxy.release();
    assert!(matches!(late.join().unwrap(), Ok(OnceOutcome::DoneByOther(_))));
    site.finish([zk, other]);
}
