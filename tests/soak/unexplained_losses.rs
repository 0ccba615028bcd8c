//! Locks and sessions that were lost though nothing was broken, or only what must cost nothing.

use super::history::{Nanos, SECOND, seconds};
use super::model::{Hold, Run, Span, common};

/// How much longer than a session timeout before a loss a fault may have caused it: faults have
/// effects after they are healed, and the machine is busy.
const AFTERMATH: Nanos = SECOND;

/// Locks and sessions that were lost without a cause, and when that was seen.
pub(crate) fn unfounded(run: &Run) -> Vec<(Nanos, String)> {
    let calm = run.calm();
    let has_no_cause = |process, renewed: Nanos, seen: Nanos| {
        calm.iter().any(|span| span.0 <= renewed && seen <= span.1)
            && !was_starved(run, process, (renewed, seen))
    };
    // It held up to a moment, so its lease was renewed within a session timeout before.
    let renewed =
        |held: Nanos| held.saturating_sub(run.session_timeout() + AFTERMATH).max(run.start);
    let mut unfounded = Vec::new();
    for (attempt, hold) in run.holds() {
        let Some(seen) = lost(hold) else { continue };
        let held = hold.claimed.unwrap_or(hold.got).min(seen);
        let process = (attempt.who.slot, attempt.who.generation);
        if !hold.was_taken(run) && has_no_cause(process, renewed(held), seen) {
            let what = format!(
                "{} lost {} though {}; it held {:.3} s before",
                attempt.who,
                hold.path,
                cause_missing(run),
                seconds(seen - held)
            );
            unfounded.push((seen, what));
        }
    }
    // Other plans end sessions, too.
    for (at, who, client, state) in run.states.iter().filter(|_| run.is_mild()) {
        if state == "lost" && has_no_cause((who.slot, who.generation), renewed(*at), *at) {
            let what =
                format!("client {client} of {who} lost its session though {}", cause_missing(run));
            unfounded.push((*at, what));
        }
    }
    unfounded
}

fn cause_missing(run: &Run) -> &'static str {
    if run.is_mild() { "no fault explains that" } else { "nothing was broken" }
}

/// When it was first seen not to be held, other than by releasing it.
fn lost(hold: &Hold) -> Option<Nanos> {
    let told = hold.lost.iter().chain(&hold.released).chain(&hold.ensured);
    let told = told.filter(|(_, said)| said != "ok").map(|(at, _)| *at);
    told.chain(hold.unheld).min()
}

/// Whether the process got no processor for so long that it may have sent no heartbeat in time: for a
/// third of a session timeout or, when a fault uses up most of the lease, a tenth.
pub(crate) fn was_starved(run: &Run, process: (usize, usize), time: Span) -> bool {
    let starved = run.starved.get(&process).into_iter().flatten();
    let enough = run.least_session_timeout() / if run.is_mild() { 10 } else { 3 };
    starved.map(|starved| common(*starved, time)).sum::<Nanos>() >= enough
}
