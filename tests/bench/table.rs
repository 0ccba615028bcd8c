//! Results as a Markdown page.

use std::fmt::Write;

use super::contestant::Contestant::{self, Curator};
use super::goals::Verdict;
use super::results::{Latency, Results, Run, Spread};
use super::workload::{Work, Workload};

/// Added to all results that were measured under other load.
pub(crate) const NOT_TO_BE_QUOTED: &str =
    "Measured without regard to other load on the machine: not to be quoted.";

pub(crate) fn table(results: &Results, verdicts: &[Verdict], pictures: &[String]) -> String {
    let mut out = String::from("# Speed, beside other clients\n\n");
    if results.accepted_load {
        let _ = writeln!(out, "**{NOT_TO_BE_QUOTED}**\n");
    }
    let Results { server, machine, rounds, seconds, .. } = results;
    let _ = writeln!(
        out,
        "One ZooKeeper {server} on {machine}; clients and server share the machine. {rounds} rounds \
         of {seconds} s each. Absolute figures are this machine's: only ratios say something \
         elsewhere. Made by `scripts/bench`.\n"
    );
    out += &goals(verdicts);
    for picture in pictures {
        let _ = writeln!(out, "![{picture}]({picture})\n");
    }
    for workload in &results.workloads {
        out += &section(results, workload);
    }
    out + &notes(results)
}

fn goals(verdicts: &[Verdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let mut out = String::from("## Goals\n\n| Workload | Goal | Seen | |\n|---|---|---|---|\n");
    for Verdict { goal, workload, seen, met } in verdicts {
        let seen = seen.as_ref().map_or_else(Clone::clone, |spread| to_text(spread, ratio));
        let met = match met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not known",
        };
        let _ = writeln!(out, "| {workload} | {goal} | {seen} | {met} |");
    }
    out + "\n"
}

fn section(results: &Results, workload: &Workload) -> String {
    let Workload { name, what, .. } = workload;
    let mut out = format!("## {name}\n\n{what}.\n\n");
    let [waits, shares] = columns(workload);
    let mut head = String::from(
        "| | per second | × curator | processor, µs each | switches each | requests each | fsyncs each \
         | memory, MB |",
    );
    if waits {
        head += " acquired in, µs: median, 99 % |";
    }
    if shares {
        head += " handed over in, µs: median, 99 % | least and greatest share |";
    }
    head += " clean rounds |";
    let line: String = head.chars().filter(|c| *c == '|').skip(1).map(|_| "---|").collect();
    let _ = writeln!(out, "{head}\n|{line}");
    for contestant in workload.contestants {
        if let Some(row) = row(results, workload, *contestant) {
            let _ = writeln!(out, "{row}");
        }
    }
    out + "\n"
}

/// Whether there are columns for how long an acquisition takes, and for what several processes show.
fn columns(workload: &Workload) -> [bool; 2] {
    [matches!(workload.work, Work::Loop { .. }), workload.processes > 1]
}

/// `None` for a contestant that was not selected.
fn row(results: &Results, workload: &Workload, contestant: Contestant) -> Option<String> {
    let ([waits, shares], workload) = (columns(workload), workload.name);
    let name = contestant.name();
    let runs = results.of(workload, contestant);
    let missing = results
        .missing
        .iter()
        .find(|missing| missing.workload == workload && missing.contestant == contestant);
    let all = runs.clone().count();
    if let Some(missing) = missing {
        return Some(format!("| {name} | {} |", missing.why));
    }
    runs.clone().next()?;
    let figure = |measure: fn(&Run) -> Option<f64>, format: fn(f64) -> String| {
        let spread = results.figure(workload, contestant, measure);
        spread.map_or_else(|why| why, |spread| format(spread.median))
    };
    let speed = results
        .figure(workload, contestant, |run| Some(run.speed))
        .map_or_else(|why| why, |spread| to_text(&spread, whole));
    let by_curator = results.ratio(workload, (contestant, Curator), |run| Some(run.speed));
    let by_curator = match by_curator {
        _ if contestant == Curator => "1".to_owned(),
        Ok(spread) => to_text(&spread, ratio),
        // Curator's own row says why.
        Err(_) if results.of(workload, Curator).next().is_none() => "–".to_owned(),
        Err(why) => why,
    };
    let two_places = |value: f64| format!("{value:.2}");
    let requests = figure(|run| Some(run.requests_each()), two_places);
    let fsyncs = figure(|run| Some(run.fsyncs_each()), two_places);
    let switches = match runs.clone().any(|run| run.switches.is_some()) {
        true => figure(Run::switches_each, two_places),
        false => "–".to_owned(),
    };
    let cost = figure(|run| Some(run.cost()), whole_or_parts);
    let memory = figure(Run::megabytes, |megabytes| format!("{megabytes:.1}"));
    let clean = results.clean(workload, contestant).count();
    let mut row = format!(
        "| {name} | {speed} | {by_curator} | {cost} | {switches} | {requests} | {fsyncs} | {memory} |"
    );
    let times = |of: fn(&Run) -> Option<Latency>| {
        let spread = |measure: &dyn Fn(&Run) -> Option<f64>| {
            let figure = results.figure(workload, contestant, measure);
            figure.map_or_else(|_| "–".to_owned(), |spread| whole(spread.median))
        };
        let [median, most] = [
            spread(&|run| of(run).map(|one| one.median)),
            spread(&|run| of(run).map(|one| one.most)),
        ];
        format!(" {median}, {most} |")
    };
    if waits {
        row += &times(|run| run.acquired);
    }
    if shares {
        row += &times(|run| run.handed_over);
        let least = figure(|run| Some(run.extremes()?.0), ratio);
        let greatest = figure(|run| Some(run.extremes()?.1), ratio);
        let _ = write!(row, " {least} – {greatest} |");
    }
    let _ = write!(row, " {clean} of {all} |");
    Some(row)
}

fn notes(results: &Results) -> String {
    let mut out = String::from("## Clients\n\n");
    let measured = |contestant: &Contestant| {
        results.runs.iter().any(|run| run.contestant == *contestant)
            || results.missing.iter().any(|missing| missing.contestant == *contestant)
    };
    for contestant in Contestant::ALL.into_iter().filter(measured) {
        let _ = writeln!(out, "- {}: {}", contestant.name(), contestant.what());
    }
    let needed = results.needed;
    let _ = write!(
        out,
        "
## How it is measured

- Workers stay alive from round to round, and warm up with the same work before they are measured.
  In each round they work one after another, and each round begins with another client.
- Figures are medians of the clean rounds, with the least and the greatest in parentheses. A ratio
  is computed within each round, and then its median; it needs {needed} clean rounds of both.
- A run is spoiled if other programs use more than 15 % of one processor meanwhile. It is tried
  again a few times; the table has no figures of spoiled runs.
- An operation is an acquisition and its release; in the queued workloads, a hand-over. There,
  requests count from when the first waiter queues, and time from the release by the holder at the
  front, which opens the gate. In held-10000, the speed is that of the acquisitions alone, and all
  else counts the releases, too.
- Requests and fsyncs are what the server counts. Several requests may share one fsync. Processor
  time is that of all threads of the client. Switches are how often one of them left its processor, to
  wait or for another thread; other clients' workers do not count them. Memory is the greatest resident size in a run, of the
  largest process; each workload has new processes, except for Curator's, which would have to be
  compiled again.
- An acquisition lasts from the call until the lock is held. A hand-over lasts from when one process
  holds the lock, which it releases at once, until another one holds it. Both are those of the first
  2,000 operations of each process, spread evenly over its threads: where it has many, they show
  only its first moments. The table has the medians of all rounds.
- Shares are those of processes, as parts of their mean.
- The server runs with 512 MB of heap and otherwise with its defaults; with *nofsync* it has
  `zookeeper.forceSync=no`.
"
    );
    out
}

fn to_text(spread: &Spread, format: fn(f64) -> String) -> String {
    let Spread { median, least, most } = *spread;
    format!("{} ({}–{})", format(median), format(least), format(most))
}

pub(crate) fn ratio(value: f64) -> String {
    if value >= 100.0 { whole(value) } else { format!("{value:.2}") }
}

fn whole_or_parts(value: f64) -> String {
    if value >= 10.0 { whole(value) } else { format!("{value:.2}") }
}

/// A whole number, with commas between thousands.
pub(crate) fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::contestant::Contestant::{Kazoo, Zklock};
    use super::super::goals::verdicts;
    use super::super::results::Missing;
    use super::super::results::tests::{results, run};
    use super::*;

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!(whole(7.4), "7");
        assert_eq!(whole(999.6), "1,000");
        assert_eq!(whole(1_234_567.0), "1,234,567");
        assert_eq!(ratio(2.046), "2.05");
    }

    #[test]
    fn the_table_has_ratios_of_clean_runs_only_and_says_what_is_missing() {
        let mut results = results(
            (0..3)
                .flat_map(|round| [run(Zklock, round, 2500.0), run(Curator, round, 1000.0)])
                .collect(),
        );
        let why = "takes more than 60 s".to_owned();
        results.missing.push(Missing { workload: "one", contestant: Kazoo, why });
        results.workloads.truncate(1);
        let text = table(&results, &verdicts(&results), &[]);
        assert!(
            text.contains(
                "| zklock | 2,500 (2,500–2,500) | 2.50 (2.50–2.50) | 200 | 4.00 | 3.00 | 2.00 |"
            ),
            "{text}"
        );
        assert!(text.contains("| kazoo | takes more than 60 s |"), "{text}");
        assert!(
            text.contains("| one | zklock: ≥ 2 × curator | 2.50 (2.50–2.50) | met |"),
            "{text}"
        );
        assert!(!text.contains(NOT_TO_BE_QUOTED));

        results.runs[1].spoiled = true;
        let text = table(&results, &verdicts(&results), &[]);
        assert!(text.contains("| zklock | 2,500 (2,500–2,500) | spoiled |"), "{text}");
        assert!(text.contains("| curator | spoiled | 1 |"), "{text}");

        results.accepted_load = true;
        assert!(table(&results, &[], &[]).contains(NOT_TO_BE_QUOTED));
    }
}
