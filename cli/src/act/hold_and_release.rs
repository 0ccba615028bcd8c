//! `zklock hold` and `release`: locks that are held for maintenance, with no process that stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::unistd::{User, gethostname, getuid};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use zklock::maintenance::MaintenanceEnd;
use zklock::{
    Cancel, Client, Contender, DistributedLock, DistributedRwLock, Error, ErrorKind, LockNode,
    NodeNaming, Wait,
};

use super::beside_other_programs::refuse_if_new;
use crate::args::{Global, Hold, Release};
use crate::doctor::time_of_ensemble;
use crate::exit::{Exit, Failure, ignored_signals};
use crate::look::LeaderNode;
use crate::look::as_json;
use crate::output::{print_json, say};
use crate::words::{held_by, is_at, lasting, number, quoted};
use crate::words::{in_full, to_come};

/// Clocks that differ by more are worth a word.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(5);

pub(crate) fn hold(global: &Global, options: &Hold) -> Result<Exit, Failure> {
    // What is no time at all is refused before anything is done.
    end_of(options, SystemTime::now())?;
    if options.node.is_some() && !options.change {
        return Err(Failure::usage("--node names a hold for --change"));
    }
    let place = global.path(&options.lock)?;
    let client = global.connect()?;
    let (base, name) = (&*place.base, &*place.name);
    let ensemble_time = || time_of_ensemble(global, &client, base).ok().flatten();
    let now = options.until.is_some().then(ensemble_time).flatten();
    let end = end_of(options, now.unwrap_or_else(SystemTime::now))?;
    let Some(end) = end else {
        let until = options.until.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!("--until: {until} has passed")));
    };
    if !options.change && !options.create {
        refuse_if_new(&client, &place)?;
    }
    let naming = if options.kazoo { NodeNaming::Kazoo } else { NodeNaming::Curator };
    let (data, acl) = (maker(), global.acl());
    if options.rw {
        let lock = DistributedRwLock::new(&client, base, name).naming(naming);
        return hold_on(global, options, (&client, &lock.data(data).acl(acl)), end);
    }
    let lock = DistributedLock::new(&client, base, name).naming(naming);
    hold_on(global, options, (&client, &lock.data(data).acl(acl)), end)
}

fn hold_on(
    global: &Global,
    options: &Hold,
    (client, lock): (&Client, &LockNode),
    end: MaintenanceEnd,
) -> Result<Exit, Failure> {
    if options.change {
        return change(global, options, lock, end);
    }
    let reason = options.reason.as_deref().unwrap_or_default();
    let begun = SystemTime::now();
    if options.no_wait {
        let queued = lock
            .queue_for_maintenance(reason, end)
            .map_err(|error| not_held(client, lock, error))?;
        tell_of_clocks(&options.lock, &queued, begun);
        return told(global, options, &queued, "queued for maintenance");
    }
    let interrupt = Interrupt::begin()?;
    let wait: Wait = match options.wait {
        Some(limit) => (limit, &interrupt.cancel).into(),
        None => (&interrupt.cancel).into(),
    };
    let held = match lock.hold_for_maintenance(reason, end, wait) {
        Err(error) if error.kind() == ErrorKind::Cancelled => {
            if error.may_have_taken_effect() {
                say(
                    &options.lock,
                    "what was asked for may be left: it ends within half a minute if a client of zklock waits",
                );
            }
            return Ok(interrupt.exit());
        }
        held => held.map_err(|error| not_held(client, lock, error))?,
    };
    let Some(held) = held else {
        interrupt.wait_is_over();
        let limit = options.wait.map(|limit| format!(" within {}", lasting(limit)));
        let why = limit.unwrap_or_else(|| " before that time".to_owned());
        let by = match lock.contenders() {
            Ok(all) => held_by(&all),
            Err(error) => format!("who holds it is not known: {error}"),
        };
        return Err(Failure::new(Exit::Conflict(124), format!("not free{why}: {by}")));
    };
    tell_of_clocks(&options.lock, &held, begun);
    told(global, options, &held, "held for maintenance")
}

/// Why it is not held, and what to do if that is not known.
fn not_held(client: &Client, lock: &LockNode, error: Error) -> Failure {
    if error.kind() == ErrorKind::Conflict {
        if let Ok(Some(why)) = LeaderNode::in_the_way(client, lock.path()) {
            return Failure::new(Exit::Conflict(124), why);
        }
    }
    let is_in_doubt = error.may_have_taken_effect();
    let mut failure = Failure::from(error);
    if is_in_doubt {
        failure.message +=
            &format!("; if it is held, end it by: zklock release {}", quoted(lock.path()));
    }
    failure
}

fn change(
    global: &Global,
    options: &Hold,
    lock: &LockNode,
    end: MaintenanceEnd,
) -> Result<Exit, Failure> {
    let Some(hold) = the_hold(lock, options.node.as_deref())? else {
        return Err(Failure::new(Exit::No, none_is_meant(options.node.as_deref())));
    };
    if !lock.change_maintenance(&hold, end)? {
        return Err(Failure::new(Exit::No, "that hold has just ended"));
    }
    let changed = lock.contenders()?.into_iter().find(|one| one.path == hold.path);
    told(global, options, &changed.unwrap_or(hold), "held for maintenance")
}

fn told(global: &Global, options: &Hold, hold: &Contender, what: &str) -> Result<Exit, Failure> {
    let ends = hold.maintenance().and_then(|hold| hold.ends);
    let until = match ends {
        Some(ends) => format!("until {}", in_full(ends)),
        None => "until it is released".to_owned(),
    };
    say(&options.lock, &format!("{what}, {until} (node {})", number(hold)));
    if global.json {
        print_json(&json!({ "hold": as_json(hold) }))?;
    }
    Ok(Exit::Success)
}

pub(crate) fn release(global: &Global, options: &Release) -> Result<Exit, Failure> {
    let place = global.path(&options.lock)?;
    let lock = DistributedLock::new(&global.connect()?, &place.base, &place.name);
    let Some(hold) = the_hold(&lock, options.node.as_deref())? else {
        return Err(Failure::new(Exit::No, none_is_meant(options.node.as_deref())));
    };
    let was_there = lock.release_maintenance(&hold)?;
    if global.json {
        print_json(&json!({ "released": as_json(&hold) }))?;
    }
    let text = if was_there { "released" } else { "the hold had just ended" };
    say(&options.lock, text);
    Ok(Exit::Success)
}

/// The hold that is meant; an error if there are several.
fn the_hold(lock: &LockNode, name: Option<&str>) -> Result<Option<Contender>, Failure> {
    let is_meant = |one: &Contender| name.is_none_or(|name| is_at(one, name));
    let mut holds = lock.contenders()?;
    holds.retain(|one| one.maintenance().is_some() && is_meant(one));
    if holds.len() > 1 {
        let each = holds
            .iter()
            .filter_map(|one| Some(format!("{} ({})", number(one), one.maintenance()?.reason)));
        let each: Vec<String> = each.collect();
        let message = format!(
            "{} holds for maintenance: name one by --node: {}",
            holds.len(),
            each.join(", ")
        );
        return Err(Failure::usage(message));
    }
    Ok(holds.pop())
}

fn none_is_meant(node: Option<&str>) -> String {
    match node {
        Some(node) => format!("no hold for maintenance has the node {node:?}"),
        None => "nobody holds it for maintenance".to_owned(),
    }
}

/// Who is told to have made it.
fn maker() -> String {
    let uid = getuid();
    let user = User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    let host = gethostname().map(|host| host.to_string_lossy().into_owned());
    format!("{user}@{}", host.unwrap_or_default())
}

/// A hold ends by the ensemble's clock. If this host has another time, an operator should know.
fn tell_of_clocks(lock: &str, hold: &Contender, begun: SystemTime) {
    let Some(made) = hold.since else { return };
    let is_behind = made.duration_since(SystemTime::now()).ok();
    let is_ahead = begun.duration_since(made).ok();
    let (by, what) = match (is_behind, is_ahead) {
        (Some(by), _) if by > CLOCKS_DIFFER_BY => (by, "behind"),
        (_, Some(by)) if by > CLOCKS_DIFFER_BY => (by, "ahead of"),
        _ => return,
    };
    say(
        lock,
        &format!(
            "this host's clock is {} {what} the ensemble's, by which the hold ends",
            lasting(by)
        ),
    );
}

/// When it ends, as seen from now; `None` if that has passed.
fn end_of(options: &Hold, now: SystemTime) -> Result<Option<MaintenanceEnd>, Failure> {
    Ok(match (&options.until, options.lasts) {
        (Some(until), _) => to_come(until, now)?.map(MaintenanceEnd::At),
        (None, Some(lasts)) => Some(MaintenanceEnd::After(lasts)),
        (None, None) => Some(MaintenanceEnd::Never),
    })
}

// ----- signals

/// Ends the wait after INT, TERM or HUP: then what was asked for is deleted. A second one, or one after the
/// wait, ends the command at once.
struct Interrupt {
    cancel: Cancel,
    by: Arc<AtomicI32>,
    waits: Arc<AtomicBool>,
}

impl Interrupt {
    fn begin() -> Result<Interrupt, Failure> {
        let waits = Arc::new(AtomicBool::new(true));
        let interrupt = Interrupt { cancel: Cancel::new(), by: Arc::default(), waits };
        let (cancel, by) = (interrupt.cancel.clone(), Arc::clone(&interrupt.by));
        let waits = Arc::clone(&interrupt.waits);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        // What it was started to ignore, as by nohup, it ignores.
        let ignored = ignored_signals();
        let is_taken = |kind: &SignalKind| ignored & (1 << (kind.as_raw_value() - 1)) == 0;
        let mut ends = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
            .into_iter()
            .filter(is_taken)
            .map(|kind| Ok((kind, signal(kind)?)))
            .collect::<std::io::Result<Vec<_>>>()?;
        drop(entered);
        thread::Builder::new().name("zklock-signals".to_owned()).spawn(move || {
            loop {
                let which = runtime.block_on(std::future::poll_fn(|context| {
                    let came = ends.iter_mut().find_map(|(kind, signals)| {
                        signals.poll_recv(context).is_ready().then_some(*kind)
                    });
                    came.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
                }));
                if !waits.swap(false, Ordering::SeqCst) {
                    Exit::Signal(which.as_raw_value()).end_now();
                }
                by.store(which.as_raw_value(), Ordering::SeqCst);
                cancel.cancel();
            }
        })?;
        Ok(interrupt)
    }

    fn wait_is_over(&self) {
        self.waits.store(false, Ordering::SeqCst);
    }

    fn exit(&self) -> Exit {
        Exit::Signal(self.by.load(Ordering::SeqCst))
    }
}
