//! A summary of a run, on one page.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::check::Verdict;
use super::growth::Growth;
use super::history::{Nanos, seconds};
use super::linear::Judged;
use super::model::{Came, Hold, Outcome, Run};

pub(crate) fn summary(run: &Run, verdict: &Verdict) -> String {
    let mut page = Page::default();
    let length = run.ending.unwrap_or(run.end) - run.start;
    page.line(
        "run",
        format!(
            "{:.1} minutes, seed {}, plan {}, {} servers ({}), {} workers of {} threads, session timeout \
             {:.1} to {:.1} s, tick stated by {}",
            seconds(length) / 60.0,
            run.setting("seed"),
            run.setting("plan"),
            run.setting("nodes"),
            run.setting("network"),
            run.setting("workers"),
            run.setting("threads"),
            seconds(run.least_session_timeout()),
            seconds(run.session_timeout()),
            run.setting("tick")
        ),
    );
    operations(&mut page, run, length);
    recipes(&mut page, run);
    hand_overs(&mut page, run);
    faults(&mut page, run);
    losses(&mut page, run);
    limits(&mut page, run, verdict);
    order(&mut page, run, verdict);
    growth(&mut page, run, verdict);
    judgement(&mut page, verdict);
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, title: &str, what: impl AsRef<str>) {
        let _ = writeln!(self.text, "{title:<13}{}", what.as_ref());
    }
}

fn counts<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    if counts.is_empty() {
        return "none".to_owned();
    }
    let texts: Vec<String> = counts.iter().map(|(word, count)| format!("{word} {count}")).collect();
    texts.join(", ")
}

fn operations(page: &mut Page, run: &Run, length: Nanos) {
    let holds = run.holds().count();
    page.line(
        "acquisitions",
        format!(
            "{holds}, {:.0} a second; {}",
            holds as f64 / seconds(length).max(0.001),
            counts(run.holds().map(|(attempt, _)| attempt.lock.as_str()))
        ),
    );
    page.line("calls", counts(run.attempts.iter().map(|attempt| attempt.how.as_str())));
    let outcomes = run.attempts.iter().map(|attempt| match &attempt.outcome {
        Outcome::Pending => "unanswered (killed)",
        Outcome::Nothing => "not in time",
        Outcome::Cancelled => "cancelled",
        Outcome::Failed { .. } => "failed",
        Outcome::Held(_) => "held",
    });
    page.line("outcomes", counts(outcomes));
    let checked: usize = run.holds().map(|(_, hold)| hold.ensured.len()).sum();
    let (accepted, refused): (Vec<_>, Vec<_>) = run.register.iter().partition(|one| one.accepted);
    page.line(
        "register",
        format!(
            "{} writes accepted, {} stale ones refused; ensure_held {checked}",
            accepted.len(),
            refused.len()
        ),
    );
}

fn recipes(page: &mut Page, run: &Run) {
    let fine = run.deeds.iter().filter(|deed| deed.fine().is_some());
    page.line("recipes", counts(fine.map(|deed| deed.recipe.as_str())));
    let others = run.deeds.iter().filter_map(|deed| match &deed.came {
        Came::Fine(_) => None,
        Came::Nothing => Some("nothing"),
        Came::Pending => Some("unanswered (killed)"),
        Came::Failed { kind, .. } => Some(kind.as_str()),
    });
    let told = |deed: &str, said: &str| {
        let all = run.deeds.iter().filter(|one| one.deed == deed && one.fine() == Some(said));
        all.count()
    };
    page.line(
        "",
        format!(
            "not done: {}; {} passed a barrier, {} entered in pairs, {} learned commit, {} abort",
            counts(others),
            told("wait", "passed"),
            told("enter", "all"),
            told("learn", "commit"),
            told("learn", "abort")
        ),
    );
}

fn hand_overs(page: &mut Page, run: &Run) {
    let mut by_lock: HashMap<&str, Vec<(Nanos, &Hold)>> = HashMap::new();
    for (attempt, hold) in run.holds() {
        by_lock.entry(&attempt.lock).or_default().push((attempt.want, hold));
    }
    let mut ways = Vec::new();
    for holds in by_lock.values_mut() {
        holds.sort_by_key(|(_, hold)| hold.got);
        for pair in holds.windows(2) {
            // Only if the next holder was already waiting at the release.
            if let [(_, before), (want, after)] = pair
                && let Some(release) = before.release
                && *want < release
                && release < after.got
            {
                ways.push(after.got - release);
            }
        }
    }
    ways.sort_unstable();
    let at = |share: f64| {
        let way = ways.get(((ways.len() as f64 * share) as usize).min(ways.len().max(1) - 1));
        way.copied().unwrap_or_default() as f64 / 1e6
    };
    page.line(
        "hand-over",
        format!(
            "to a waiter, {} times: median {:.1} ms, 90 % {:.1} ms, 99 % {:.1} ms, 99.9 % {:.0} ms",
            ways.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999)
        ),
    );
}

fn faults(page: &mut Page, run: &Run) {
    let kinds: std::collections::HashSet<&str> =
        run.faults.iter().map(|fault| fault.kind.as_str()).collect();
    page.line("faults", format!("{} of {} kinds", run.faults.len(), kinds.len()));
    // Wrapped to lines.
    let all = counts(run.faults.iter().map(|fault| fault.kind.as_str()));
    let mut line = String::new();
    for part in all.split(", ") {
        if line.len() + part.len() > 88 {
            page.line("", std::mem::take(&mut line));
        }
        let _ = write!(line, "{}{part}", if line.is_empty() { "" } else { ", " });
    }
    page.line("", line);
}

fn losses(page: &mut Page, run: &Run) {
    let states = |wanted: &str| run.states.iter().filter(|(.., state)| state == wanted).count();
    let (suspended, lost) = (states("suspended"), states("lost"));
    page.line(
        "sessions",
        format!(
            "{suspended} times suspended; {lost} lost; {} ended by the nemesis",
            run.closed.values().filter(|(_, done)| done.is_some()).count()
        ),
    );
    let reasons = run.holds().filter_map(|(_, hold)| Some(hold.lost.as_ref()?.1.as_str()));
    let seen = run.holds().filter(|(_, hold)| hold.unheld.is_some() && hold.lost.is_none()).count();
    page.line(
        "locks lost",
        format!(
            "{}; {seen} more were seen not to be held, and released before on_lost was called",
            counts(reasons).replace('_', " ")
        ),
    );
}

fn limits(page: &mut Page, run: &Run, verdict: &Verdict) {
    let Judged { objects, calls, undecided } = verdict.judged;
    page.line(
        "histories",
        format!("{calls} calls on {objects} objects, {undecided} of them undecided in time"),
    );
    let waits = run.attempts.iter().filter_map(|one| Some(one.done? - one.want));
    page.line("longest wait", format!("{:.1} s", seconds(waits.max().unwrap_or_default())));
    let healthy: Nanos = run.healthy.iter().map(|(from, to)| to - from).sum();
    page.line(
        "longest free",
        format!(
            "{:.2} s with waiters, while nothing was broken ({:.0} s in all)",
            seconds(verdict.longest_free),
            seconds(healthy)
        ),
    );
    let starved: Nanos = run.starved.values().flatten().map(|(from, to)| to - from).sum();
    page.line(
        "latest",
        format!(
            "a call returned {:.3} s after its limit; processes had no processor for {:.1} s",
            seconds(verdict.latest),
            seconds(starved)
        ),
    );
    page.line(
        "overlaps",
        format!(
            "{} after the nemesis deleted the holder's node or session, the longest {:.3} s",
            verdict.excused,
            seconds(verdict.longest_excused)
        ),
    );
}

fn order(page: &mut Page, run: &Run, verdict: &Verdict) {
    let Some(seen) = &verdict.order else { return };
    let granted = seen.granted.iter().map(|(patience, count)| match patience {
        Some(patience) => format!("patience {patience} {count}"),
        None => format!("none {count}"),
    });
    let granted: Vec<String> = granted.collect();
    page.line(
        "patience",
        format!(
            "granted, at the servers: {}; {} claims compared; Curator {}; asked {} times",
            granted.join(", "),
            seen.claims,
            run.stranger,
            seen.asked
        ),
    );
    let passed = seen.passed.iter().map(|(patience, (times, most))| {
        format!("patience {patience} passed {times} times, the same one at most {most} times")
    });
    page.line("", passed.collect::<Vec<_>>().join("; "));
}

fn growth(page: &mut Page, run: &Run, verdict: &Verdict) {
    let Some(growth) = verdict.growth else { return };
    let Growth { kilobytes, threads, judged } = growth;
    let most = run.samples.iter().map(|sample| sample.kilobytes).max().unwrap_or_default();
    page.line(
        "growth",
        format!(
            "of a worker in the last half: memory {} -> {} kB, threads {} -> {}: {}; peak {most} kB",
            kilobytes.0,
            kilobytes.1,
            threads.0,
            threads.1,
            match (growth.is_flat(), judged) {
                (true, _) => "flat".to_owned(),
                (false, true) => format!("MORE THAN {}", Growth::bound()),
                (false, false) => "not judged in a short run".to_owned(),
            }
        ),
    );
}

fn judgement(page: &mut Page, verdict: &Verdict) {
    const SHOWN: usize = 20;
    for violation in verdict.violations.iter().take(SHOWN) {
        page.line("VIOLATION", violation);
    }
    match verdict.violations.len() {
        0 => page.line("verdict", "nothing was wrong"),
        count => page.line("verdict", format!("WRONG: {count} violations")),
    }
}
