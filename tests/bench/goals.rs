//! Goals for this crate's speed, and whether they are met.

use super::contestant::Contestant::{
    self, Curator, Raw, RawOneConnectionLeader, RawUnwaited, Zklock, ZklockCrate, ZklockKept,
    ZklockOff, ZookeeperClient,
};
use super::results::{Results, Run, Spread};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    workload: &'static str,
    contestant: Contestant,
    measure: Measure,
    bound: Bound,
}

#[derive(Clone, Copy, Debug)]
enum Measure {
    /// Operations per second, divided by those of another contestant.
    Speed(Contestant),
    /// Processor time per operation, divided by that of another contestant.
    Cost(Contestant),
    /// Microseconds of processor time per operation.
    Processor,
    /// Requests per operation. Some are made once in a run, so a bound is a little above a whole number.
    Requests,
    /// How far a process's share is from the mean.
    Unfairness,
    /// Megabytes of a process, over all workloads of locks with up to 32 threads.
    Memory,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    Above(f64),
    AtMost(f64),
}

#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    pub(crate) workload: &'static str,
    /// The measured value, or why there is none.
    pub(crate) seen: Result<Spread, String>,
    pub(crate) met: Option<bool>,
}

const fn faster(
    workload: &'static str,
    contestant: Contestant,
    bound: Bound,
    other: Contestant,
) -> Goal {
    Goal { workload, contestant, measure: Measure::Speed(other), bound }
}

const fn cheaper(contestant: Contestant, bound: f64) -> Goal {
    at_most("one", contestant, Measure::Cost(Curator), bound)
}

const fn at_most(
    workload: &'static str,
    contestant: Contestant,
    measure: Measure,
    bound: f64,
) -> Goal {
    Goal { workload, contestant, measure, bound: Bound::AtMost(bound) }
}

/// A floor has the shape of what is compared with it: as many connections and threads, and no waits
/// for releases.
const GOALS: [Goal; 28] = [
    faster("one", Zklock, Bound::AtLeast(2.0), Curator),
    faster("one", Zklock, Bound::Above(1.0), ZookeeperClient),
    faster("one", Zklock, Bound::AtLeast(0.95), RawUnwaited),
    at_most("one", Zklock, Measure::Processor, 60.0),
    faster("one-nofsync", Zklock, Bound::AtLeast(1.0), Curator),
    faster("one", ZklockKept, Bound::AtLeast(1000.0), Curator),
    faster("own", Zklock, Bound::AtLeast(1.9), Curator),
    faster("own", Zklock, Bound::Above(1.0), ZookeeperClient),
    faster("own", Zklock, Bound::AtLeast(0.9), RawOneConnectionLeader),
    faster("shared-8", ZklockOff, Bound::AtLeast(1.4), Curator),
    faster("shared-8", ZklockOff, Bound::Above(1.0), ZookeeperClient),
    faster("shared-8", ZklockOff, Bound::AtLeast(0.9), RawOneConnectionLeader),
    faster("shared-8", Zklock, Bound::AtLeast(40.0), Curator),
    faster("shared-32", Zklock, Bound::AtLeast(40.0), Curator),
    faster("processes-2", Zklock, Bound::AtLeast(2.2), Curator),
    faster("processes-2", Zklock, Bound::AtLeast(0.85), Raw),
    faster("processes-4", Zklock, Bound::AtLeast(2.2), Curator),
    faster("processes-4", Zklock, Bound::AtLeast(0.92), RawUnwaited),
    faster("processes-4x8", Zklock, Bound::AtLeast(5.0), Curator),
    at_most("processes-4x8", Zklock, Measure::Unfairness, 0.25),
    faster("queued-1000", ZklockOff, Bound::AtLeast(2.0), Curator),
    faster("queued-1000", ZklockOff, Bound::AtLeast(0.9), RawOneConnectionLeader),
    at_most("queued-1000", ZklockOff, Measure::Processor, 330.0),
    faster("one", ZklockCrate, Bound::AtLeast(0.9), Curator),
    at_most("one", ZklockCrate, Measure::Requests, 4.1),
    cheaper(ZklockCrate, 0.8),
    cheaper(Zklock, 0.4),
    at_most("one", Zklock, Measure::Memory, 12.0),
];

/// The verdicts on goals whose workload was measured.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    let measured = |goal: &&Goal| results.workloads.iter().any(|one| one.name == goal.workload);
    GOALS.iter().filter(measured).map(|goal| goal.judge(results)).collect()
}

impl Goal {
    fn judge(&self, results: &Results) -> Verdict {
        let seen = self.seen(results);
        let met = seen.as_ref().ok().map(|spread| self.bound.holds(spread.median));
        Verdict { goal: self.to_text(), workload: self.workload, seen, met }
    }

    fn seen(&self, results: &Results) -> Result<Spread, String> {
        let Goal { workload, contestant, .. } = *self;
        match self.measure {
            Measure::Speed(other) => {
                results.ratio(workload, (contestant, other), |run| Some(run.speed))
            }
            Measure::Cost(other) => {
                results.ratio(workload, (contestant, other), |run| Some(run.cost()))
            }
            Measure::Processor => results.figure(workload, contestant, |run| Some(run.cost())),
            Measure::Requests => {
                results.figure(workload, contestant, |run| Some(run.requests_each()))
            }
            Measure::Unfairness => results.figure(workload, contestant, Run::unfairness),
            Measure::Memory => greatest_peak(results, contestant),
        }
    }

    fn to_text(self) -> String {
        let (name, bound) = (self.contestant.name(), self.bound.to_text());
        match self.measure {
            Measure::Speed(other) => format!("{name}: {bound} × {}", other.name()),
            Measure::Cost(other) => {
                format!("{name}: processor time {bound} × {}", other.name())
            }
            Measure::Processor => format!("{name}: processor time {bound} µs"),
            Measure::Requests => format!("{name}: requests {bound}"),
            Measure::Unfairness => {
                format!("{name}: each process's share, away from the mean by {bound} of it")
            }
            Measure::Memory => format!("{name}: memory {bound} MB, with up to 32 threads"),
        }
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::Above(bound) => value > bound,
            Bound::AtMost(bound) => value <= bound,
        }
    }

    fn to_text(self) -> String {
        match self {
            Bound::AtLeast(bound) => format!("≥ {bound}"),
            Bound::Above(bound) => format!("> {bound}"),
            Bound::AtMost(bound) => format!("≤ {bound}"),
        }
    }
}

/// The greatest memory of all runs. Spoiled runs count: load does not make processes smaller, and
/// the goal is an upper bound.
fn greatest_peak(results: &Results, contestant: Contestant) -> Result<Spread, String> {
    let peaks = results
        .runs
        .iter()
        .filter(|run| run.contestant == contestant)
        .filter(|run| {
            !["queued", "held", "recipe"].iter().any(|large| run.workload.starts_with(large))
        })
        .filter_map(Run::megabytes)
        .collect();
    let spread = Spread::of(peaks).ok_or("not known")?;
    Ok(Spread { median: spread.most, ..spread })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{results, run};
    use super::*;

    fn verdict_of(results: &Results, goal: &str) -> Verdict {
        let mut found = verdicts(results).into_iter().filter(|verdict| verdict.goal == goal);
        found.next().unwrap_or_else(|| panic!("no goal {goal:?}"))
    }

    #[test]
    fn a_goal_is_met_missed_or_not_known() {
        const GOAL: &str = "zklock: ≥ 2 × curator";
        for (speed, met) in [(2.1, true), (2.0, true), (1.9, false)] {
            let runs =
                (0..3).flat_map(|round| [run(Zklock, round, speed), run(Curator, round, 1.0)]);
            assert_eq!(verdict_of(&results(runs.collect()), GOAL).met, Some(met), "{speed}");
        }
        let unknown = verdict_of(&results(vec![run(Zklock, 0, 9.0), run(Curator, 0, 1.0)]), GOAL);
        assert_eq!((unknown.met, unknown.seen), (None, Err("spoiled".to_owned())));
    }

    #[test]
    fn only_what_was_measured_is_judged() {
        let mut results = results(Vec::new());
        results.workloads.retain(|workload| workload.name == "own");
        assert_eq!(verdicts(&results).len(), 3);
    }

    #[test]
    fn the_greatest_memory_counts_but_for_a_thousand_threads_and_other_recipes() {
        let of = |workload, peak| Run { workload, peak: Some(peak), ..run(Zklock, 0, 1.0) };
        let mut results = results(vec![of("one", 4_000_000), of("own", 11_000_000)]);
        results.runs.push(of("queued-1000", 90_000_000));
        results.runs.push(of("recipe-take", 28_000_000));
        assert_eq!(greatest_peak(&results, Zklock).unwrap().median, 11.0);
    }
}
