//! Prints the results.

use std::time::Duration;

use crate::WORK;
use crate::audit::Audit;
use crate::ledger::{Line, seconds};
use crate::options::Options;
use crate::story::{Kill, Pause, Story};

pub(crate) fn summarize(
    options: &Options,
    found: &Audit,
    story: &Story,
    session_timeout: Duration,
) {
    println!();
    println!(
        "rounds       {}; workers: {}, threads in each: {}",
        found.rounds, options.workers, options.threads
    );
    hand_overs(found);
    match &story.paused {
        Some(pause) => paused(pause, story, options.fenced()),
        None => println!("paused       no worker"),
    }
    match &story.killed {
        Some(kill) => killed(kill, found, session_timeout),
        None => println!("killed       no worker"),
    }
    speed(found);
}

fn hand_overs(found: &Audit) {
    if found.passes.is_empty() {
        return;
    }
    let mut ways: Vec<Duration> = found.passes.iter().map(|(way, _)| *way).collect();
    ways.sort_unstable();
    let at = |share: f64| ways.get((ways.len() as f64 * share) as usize).copied();
    let ms = |way: Option<Duration>| way.unwrap_or_default().as_secs_f64() * 1e3;
    let between_processes = found.passes.iter().filter(|(_, other)| *other).count();
    println!("hand-overs   {}, {between_processes} of them to another process", ways.len());
    println!(
        "latency      of a hand-over: median {:.1} ms, 99 % under {:.1} ms, at most {:.1} ms",
        ms(at(0.5)),
        ms(at(0.99)),
        ms(ways.last().copied())
    );
}

fn paused(pause: &Pause, story: &Story, fenced: bool) {
    let worker = pause.line.writer.worker;
    let Some((to, went_on)) = pause.to.zip(pause.went_on.as_ref()) else {
        println!("paused       worker {worker}, which did not report afterwards");
        return;
    };
    let ms = |at| seconds(to, at) * 1e3;
    let (asked, told) = (went_on.asked_at, went_on.told_at);
    let mut said = [
        (asked, format!("is_held() {} after {:.1} ms", went_on.held, ms(asked))),
        (told, format!("on_lost \"{}\" after {:.1} ms", went_on.why, ms(told))),
    ];
    said.sort();
    println!("paused       worker {worker} for {:.1} s, and went on", seconds(pause.from, to));
    println!("its guard    reported then: {}", said.map(|(_, what)| what).join(", "));
    let stale = story.refused.iter().filter(|line| line.token == pause.line.token).count();
    match stale {
        _ if !fenced => println!("fencing      none: worker {worker}'s late write was accepted"),
        1 => println!("fencing      1 stale write of worker {worker} was refused for its token"),
        _ => println!(
            "fencing      {stale} stale writes of worker {worker} were refused for their tokens"
        ),
    }
}

fn killed(kill: &Kill, found: &Audit, session_timeout: Duration) {
    let worker = kill.line.writer.worker;
    let own = |torn: &Line| torn.token == kill.line.token;
    match found.cleared.iter().find(|(torn, _)| own(torn)) {
        Some((_, next)) => println!(
            "killed       worker {worker}; next holder after {:.1} s (session timeout {:.1} s)",
            seconds(kill.at, next.at),
            session_timeout.as_secs_f64()
        ),
        None => println!("killed       worker {worker}; no next holder"),
    }
}

fn speed(found: &Audit) {
    let waited: f64 = found.cleared.iter().map(|(torn, next)| seconds(torn.at, next.at)).sum();
    let took = match (found.first, found.last) {
        (Some(first), Some(last)) => seconds(first.at, last.at) - waited,
        _ => 0.0,
    };
    println!(
        "speed        {:.0} rounds a second, each with {WORK:?} of work{}",
        found.rounds as f64 / took.max(0.001),
        if waited > 0.0 { ", without the waits for sessions to end" } else { "" }
    );
}

/// Prints the faults, and returns whether there are none.
pub(crate) fn faults(found: &Audit) -> bool {
    const SHOWN: usize = 5;
    for fault in found.faults.iter().take(SHOWN) {
        println!("FAULT        {fault}");
    }
    if found.faults.len() > SHOWN {
        println!("             and {} more", found.faults.len() - SHOWN);
    }
    let fine = found.faults.is_empty();
    if fine {
        println!(
            "the ledger   is in order: never two writers at once, no round lost or repeated, tokens grow"
        );
    } else {
        println!("the ledger   IS NOT IN ORDER; faults: {}", found.faults.len());
    }
    fine
}
