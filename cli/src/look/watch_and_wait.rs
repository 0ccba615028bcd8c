//! `zklock watch` and `wait`: a lock for as long as it takes.

use std::io::stdout;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use zklock::{Cancel, Client, Contender, DistributedRwLock, ErrorKind, Wait};

use super::contender_json_and_kinds::{as_json, lock_on};
use super::hold_times_by_client::{Share, Shares};
use super::path_without_contenders::{LeaderNode, NO_SUCH_NODE, PathWithoutContenders};
use crate::args::{Global, WaitFor, Watch};
use crate::exit::{Exit, Failure};
use crate::output::print_table;
use crate::output::{print, print_json, say};
use crate::words::{Ages, client, held, held_by, lasting, lasting_short, who};

/// How often it is checked whether the connection is there.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) fn watch(global: &Global, options: &Watch) -> Result<Exit, Failure> {
    let path = global.path(&options.lock)?;
    if options.span.is_some_and(|span| span.is_zero()) {
        return Err(Failure::usage("--for needs more than no time"));
    }
    let client = global.connect()?;
    let lock = lock_on(&client, &path);
    let mut changes = lock.observe();
    let mut is_known = true;
    let (begin, mut seen) = (Instant::now(), None::<Shares>);
    let end = when_nobody_reads();
    loop {
        let now = Instant::now();
        let watched = seen.as_ref().map_or(now - begin, |shares| shares.span(now));
        let left = options.span.map_or(LOOK, |span| span.saturating_sub(watched));
        if left.is_zero() {
            break;
        }
        let change = match changes.next_within((LOOK.min(left), &end)) {
            Err(error) if error.kind() == ErrorKind::Cancelled => return Ok(Exit::Success),
            change => change?,
        };
        if change.is_none() && left < LOOK {
            // Too short a wait to say that no server answers.
            continue;
        }
        let is_current = changes.is_current() || change.is_some();
        if is_known != is_current {
            is_known = is_current;
            if let Some(shares) = &mut seen {
                shares.set_known(is_known, Instant::now());
            }
            let text = match is_known {
                true => "connected again",
                false => "no server answers: what follows may be late",
            };
            say(&options.lock, text);
        }
        let Some(holders) = change else { continue };
        if seen.is_none() && holders.is_empty() {
            let without = PathWithoutContenders::at(&client, &path.path)?;
            if let Some(node) = without.leader_node() {
                say(&options.lock, &node.in_words());
            }
        }
        let now = Instant::now();
        seen.get_or_insert_with(|| Shares::since(now)).held_by(&holders, now);
        if !print_holders(global, &path.path, &holders)? {
            return Ok(Exit::Success);
        }
    }
    let Some(shares) = seen else {
        return Err(no_answer_within(options.span.unwrap_or_default()));
    };
    let now = Instant::now();
    let (span, shares) = (shares.span(now), shares.until(now));
    // What was seen is told in any case.
    let contenders = lock.contenders();
    sum_up(global, &path.path, span, shares, contenders.as_deref().ok())?;
    contenders?;
    Ok(Exit::Success)
}

/// False if nobody reads any more.
fn print_holders(global: &Global, path: &str, holders: &[Contender]) -> Result<bool, Failure> {
    let time = humantime::format_rfc3339_seconds(SystemTime::now());
    match global.json {
        true => {
            let all: Vec<_> = holders.iter().map(as_json).collect();
            print_json(&json!({ "time": time.to_string(), "lock": path, "holders": all }))
        }
        false if holders.is_empty() => print(&format!("{time}  free")),
        false => print(&format!("{time}  {}", held_by_each(holders))),
    }
}

/// All of them: `held by web1 (pid 4711, backup.sh), web2 (pid 911, backup.sh)`.
///
/// A hold for maintenance is held from when it is the first, and says so only then, so what it said before is
/// left out.
fn held_by_each(holders: &[Contender]) -> String {
    let is_asked_for = |one: &Contender| one.maintenance().is_some_and(|hold| hold.is_asked_for);
    match holders {
        [hold] if is_asked_for(hold) => format!("held for {}", client(hold)),
        [hold] => held(hold),
        _ => format!("held by {}", holders.iter().map(who).collect::<Vec<_>>().join(", ")),
    }
}

fn no_answer_within(limit: Duration) -> Failure {
    let message = format!("no server has answered within {}", lasting(limit));
    Failure::new(Exit::Unavailable, message)
}

/// How often and how long each client held the lock, and who waits now, if that is known.
fn sum_up(
    global: &Global,
    path: &str,
    span: Duration,
    (shares, unknown): (Vec<Share>, Duration),
    contenders: Option<&[Contender]>,
) -> Result<(), Failure> {
    let waiters =
        contenders.map(|all| all.iter().filter(|one| !one.holds).collect::<Vec<&Contender>>());
    if global.json {
        let shares = shares.iter().map(|one| {
            json!({ "client": one.client, "times": one.times, "seconds": one.held.as_secs_f64() })
        });
        print_json(&json!({
            "lock": path,
            "seconds": span.as_secs_f64(),
            "unknown_seconds": unknown.as_secs_f64(),
            "clients": shares.collect::<Vec<_>>(),
            "waiting": waiters.map(|all| all.into_iter().map(as_json).collect::<Vec<_>>()),
        }))?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = shares
        .iter()
        .map(|one| vec![one.client.clone(), one.times.to_string(), lasting_short(one.held)])
        .collect();
    let not_known = match unknown.is_zero() {
        true => String::new(),
        false => format!(", for {} of which it is not known who held it", lasting(unknown)),
    };
    let waits = match waiters.as_deref() {
        None => "it is not known who waits".to_owned(),
        Some([]) => "nobody waits".to_owned(),
        Some(waiters @ [first, ..]) => {
            let since = Ages::of_all(contenders.unwrap_or_default()).after_comma(first);
            format!("{} wait, the first of them {}{since}", waiters.len(), who(first))
        }
    };
    let _ = print(&format!("{path}  seen for {}{not_known}", lasting(span)))?
        && print_table(&["HELD BY", "TIMES", "HELD"], &rows, &[0])?
        && print(&waits)?;
    Ok(())
}

/// Is tripped when nobody reads the standard output any more, as after `zklock watch x | head -1`.
fn when_nobody_reads() -> Cancel {
    let end = Cancel::new();
    let cancel = end.clone();
    // Without a thread, it ends with the next change.
    let _ = thread::Builder::new().name("zklock-reader".to_owned()).spawn(move || {
        let out = stdout();
        // An error at the other end is reported without being asked for.
        let mut asked = [PollFd::new(out.as_fd(), PollFlags::empty())];
        while poll(&mut asked, PollTimeout::NONE) == Err(Errno::EINTR) {}
        cancel.cancel();
    });
    end
}

pub(crate) fn wait(global: &Global, options: &WaitFor) -> Result<Exit, Failure> {
    let path = global.path(&options.lock)?.path;
    let client = global.connect()?;
    let lock = lock_on(&client, &global.path(&options.lock)?);
    let is_free = |holders: &[Contender]| {
        // A server may lag behind; a lock that is free is asked about once more.
        Ok(holders.is_empty() && lock.contenders()?.is_empty())
    };
    let (begun, mut is_first) = (Instant::now(), true);
    let not_free = |by: String| {
        let limit = lasting(options.wait.unwrap_or_default());
        Err(Failure::new(Exit::Conflict(124), format!("not free within {limit}: {by}")))
    };
    loop {
        let left = options.wait.map(|limit| limit.saturating_sub(begun.elapsed()));
        let all = wait_until(&lock, left, is_free)?;
        if !all.is_empty() {
            return not_free(held_by(&all));
        }
        match PathWithoutContenders::at(&client, &path)? {
            // Afterwards, it was removed.
            PathWithoutContenders::NotThere if is_first && options.must_exist => {
                return Err(Failure::new(Exit::Failed, NO_SUCH_NODE));
            }
            PathWithoutContenders::NotThere if is_first => {
                say(&options.lock, NO_SUCH_NODE);
                return Ok(Exit::Success);
            }
            PathWithoutContenders::NotThere | PathWithoutContenders::Free => {
                return Ok(Exit::Success);
            }
            PathWithoutContenders::OfALeader(node) => {
                is_first = false;
                let left = options.wait.map(|limit| limit.saturating_sub(begun.elapsed()));
                if !ends_within(&client, &node, left)? {
                    return not_free(node.in_words());
                }
            }
        }
    }
}

/// Waits until a leader's node is not there, or another one's.
fn ends_within(
    client: &Client,
    node: &LeaderNode,
    limit: Option<Duration>,
) -> Result<bool, Failure> {
    let limit = limit.unwrap_or(Duration::MAX);
    let until = Wait::from(limit);
    let mut changes = client.znode(&node.path).observe();
    loop {
        match changes.next_within(&until)? {
            Some(None) => return Ok(true),
            Some(Some(_)) => {}
            None if changes.is_current() => return Ok(false),
            None => return Err(no_answer_within(limit)),
        }
    }
}

/// Waits until the holders of a lock are as they should be, and returns nothing; or all contenders, if that
/// takes longer than the limit. An error if no server answers then: it is not known who holds.
pub(crate) fn wait_until(
    lock: &DistributedRwLock,
    limit: Option<Duration>,
    is_enough: impl Fn(&[Contender]) -> Result<bool, Failure>,
) -> Result<Vec<Contender>, Failure> {
    let limit = limit.unwrap_or(Duration::MAX);
    let until = Wait::from(limit);
    let mut changes = lock.observe();
    loop {
        match changes.next_within(&until)? {
            Some(holders) if is_enough(&holders)? => return Ok(Vec::new()),
            Some(_) => {}
            None if changes.is_current() => return Ok(lock.contenders()?),
            None => return Err(no_answer_within(limit)),
        }
    }
}
