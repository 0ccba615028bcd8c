//! Locks that were lost though nothing was broken.

use super::history::{Nanos, SECOND, seconds};
use super::model::{Hold, Run, Span, common};

/// How much longer than a session timeout before a loss a fault may have caused it: faults have
/// effects after they are healed, and the machine is busy.
const AFTERMATH: Nanos = SECOND;

/// Locks that were lost without a cause, and when that was seen.
pub(crate) fn unfounded(run: &Run) -> Vec<(Nanos, String)> {
    let mut unfounded = Vec::new();
    for (attempt, hold) in run.holds() {
        let Some(seen) = lost(hold) else { continue };
        let taken = hold.was_taken(run);
        // It held up to here, so its lease was renewed within a session timeout before.
        let held = hold.claimed.unwrap_or(hold.got).min(seen);
        let renewed = held.saturating_sub(run.session_timeout() + AFTERMATH).max(run.start);
        let healthy = run.healthy.iter().any(|span| span.0 <= renewed && seen <= span.1);
        let process = (attempt.who.slot, attempt.who.generation);
        if healthy && !taken && !was_starved(run, process, (renewed, seen)) {
            let what = format!(
                "{} lost {} though nothing was broken; it held {:.3} s before",
                attempt.who,
                hold.path,
                seconds(seen - held)
            );
            unfounded.push((seen, what));
        }
    }
    unfounded
}

/// When it was first seen not to be held, other than by releasing it.
fn lost(hold: &Hold) -> Option<Nanos> {
    let told = hold.lost.iter().chain(&hold.released).chain(&hold.ensured);
    let told = told.filter(|(_, said)| said != "ok").map(|(at, _)| *at);
    told.chain(hold.unheld).min()
}

/// Whether the process got no processor for a third of a session timeout, so that it may have sent
/// no heartbeat.
pub(crate) fn was_starved(run: &Run, process: (usize, usize), time: Span) -> bool {
    let starved = run.starved.get(&process).into_iter().flatten();
    starved.map(|starved| common(*starved, time)).sum::<Nanos>() >= run.session_timeout() / 3
}
