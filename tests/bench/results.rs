//! The measurements, and what follows from them: medians with their spread, and ratios of
//! measurements of one round.

use super::contestant::Contestant;
use super::workload::Workload;

/// One contestant at one workload in one round.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) workload: &'static str,
    pub(crate) contestant: Contestant,
    pub(crate) round: usize,
    pub(crate) operations: u64,
    /// Operations per second, of all processes together.
    pub(crate) speed: f64,
    /// The client's processor time, in seconds.
    pub(crate) processor: f64,
    /// How often a thread left its processor, whether it waited or not; known for our workers only.
    pub(crate) switches: Option<u64>,
    /// The peak memory of the largest process, in bytes.
    pub(crate) peak: Option<u64>,
    pub(crate) requests: u64,
    pub(crate) fsyncs: u64,
    /// The operations of each process.
    pub(crate) shares: Vec<u64>,
    /// How long an acquisition took, and how long it took from when one process had the lock, which
    /// it released at once, until another one had it; where that was noted.
    pub(crate) acquired: Option<Latency>,
    pub(crate) handed_over: Option<Latency>,
    /// The processors that others used meanwhile.
    pub(crate) others: f64,
    pub(crate) spoiled: bool,
}

impl Run {
    /// Microseconds of processor time per operation.
    pub(crate) fn cost(&self) -> f64 {
        self.processor * 1e6 / self.operations as f64
    }

    pub(crate) fn requests_each(&self) -> f64 {
        self.requests as f64 / self.operations as f64
    }

    pub(crate) fn fsyncs_each(&self) -> f64 {
        self.fsyncs as f64 / self.operations as f64
    }

    pub(crate) fn switches_each(&self) -> Option<f64> {
        Some(self.switches? as f64 / self.operations as f64)
    }

    pub(crate) fn megabytes(&self) -> Option<f64> {
        Some(self.peak? as f64 / 1e6)
    }

    /// The smallest and the greatest share of a process, as parts of their mean.
    pub(crate) fn extremes(&self) -> Option<(f64, f64)> {
        let mean = self.shares.iter().sum::<u64>() as f64 / self.shares.len() as f64;
        let (least, most) = (self.shares.iter().min()?, self.shares.iter().max()?);
        Some((*least as f64 / mean, *most as f64 / mean))
    }

    /// How far a process's share is from the mean at most, as a part of the mean.
    pub(crate) fn unfairness(&self) -> Option<f64> {
        let (least, most) = self.extremes()?;
        Some((1.0 - least).max(most - 1.0))
    }
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    pub(crate) median: f64,
    /// 99 % took no longer.
    pub(crate) most: f64,
}

impl Latency {
    fn of(mut nanos: Vec<u64>) -> Option<Latency> {
        nanos.sort_unstable();
        let at = |percent: usize| nanos.get((nanos.len() * percent / 100).min(nanos.len() - 1));
        let micros = |nanos: &u64| *nanos as f64 / 1e3;
        (!nanos.is_empty())
            .then(|| Some(Latency { median: micros(at(50)?), most: micros(at(99)?) }))
            .flatten()
    }

    /// From when each process asked for the lock, and when it had it.
    pub(crate) fn of_waits(by_process: &[Vec<[u64; 2]>]) -> [Option<Latency>; 2] {
        let acquired = by_process.iter().flatten().map(|[asked, had]| had.saturating_sub(*asked));
        let grants = |(process, waits): (usize, &Vec<[u64; 2]>)| -> Vec<(u64, usize)> {
            waits.iter().map(|[_, had]| (*had, process)).collect()
        };
        let mut grants: Vec<_> = by_process.iter().enumerate().flat_map(grants).collect();
        grants.sort_unstable();
        let handed_over = grants.windows(2).filter_map(|pair| match pair {
            [(before, one), (after, other)] if one != other => Some(after - before),
            _ => None,
        });
        [Latency::of(acquired.collect()), Latency::of(handed_over.collect())]
    }
}

/// Why a contestant was not measured.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) workload: &'static str,
    pub(crate) contestant: Contestant,
    pub(crate) why: String,
}

#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) runs: Vec<Run>,
    pub(crate) missing: Vec<Missing>,
    /// How many clean rounds of both sides a ratio needs.
    pub(crate) needed: usize,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) machine: String,
    pub(crate) server: String,
    /// Whether spoiled runs were counted: then the results are not to be quoted.
    pub(crate) accepted_load: bool,
}

/// A median, with the least and the greatest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Spread { median: f64::midpoint(low, high), least, most })
    }
}

impl Results {
    /// All runs of one kind, including spoiled ones.
    pub(crate) fn of(
        &self,
        workload: &str,
        contestant: Contestant,
    ) -> impl Iterator<Item = &Run> + Clone {
        self.runs.iter().filter(move |run| run.workload == workload && run.contestant == contestant)
    }

    pub(crate) fn clean(
        &self,
        workload: &str,
        contestant: Contestant,
    ) -> impl Iterator<Item = &Run> + Clone {
        self.of(workload, contestant).filter(|run| !run.spoiled)
    }

    /// The spread of the clean rounds.
    pub(crate) fn spread(
        &self,
        workload: &str,
        contestant: Contestant,
        measure: impl Fn(&Run) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.clean(workload, contestant).filter_map(measure).collect())
    }

    /// The first divided by the second, each ratio within one round; or why there is none.
    pub(crate) fn ratio(
        &self,
        workload: &str,
        (one, other): (Contestant, Contestant),
        measure: impl Fn(&Run) -> Option<f64>,
    ) -> Result<Spread, String> {
        for contestant in [one, other] {
            self.present(workload, contestant)?;
        }
        let ratios: Vec<f64> = self
            .clean(workload, one)
            .filter_map(|mine| {
                let theirs = self.clean(workload, other).find(|run| run.round == mine.round)?;
                Some(measure(mine)? / measure(theirs)?)
            })
            .filter(|ratio| ratio.is_finite())
            .collect();
        if ratios.len() < self.needed {
            return Err("spoiled".to_owned());
        }
        Spread::of(ratios).ok_or_else(|| "spoiled".to_owned())
    }

    /// The spread of the clean rounds, if there are as many as a ratio needs; otherwise why there
    /// is none.
    pub(crate) fn figure(
        &self,
        workload: &str,
        contestant: Contestant,
        measure: impl Fn(&Run) -> Option<f64>,
    ) -> Result<Spread, String> {
        self.present(workload, contestant)?;
        let enough = self.clean(workload, contestant).count() >= self.needed;
        let spread = self.spread(workload, contestant, measure);
        spread.filter(|_| enough).ok_or_else(|| "spoiled".to_owned())
    }

    fn present(&self, workload: &str, contestant: Contestant) -> Result<(), String> {
        let name = contestant.name();
        let of_it =
            |missing: &&Missing| missing.workload == workload && missing.contestant == contestant;
        if let Some(missing) = self.missing.iter().find(of_it) {
            return Err(format!("{name}: {}", missing.why));
        }
        match self.of(workload, contestant).next() {
            Some(_) => Ok(()),
            None => Err(format!("{name} was not measured")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::contestant::Contestant::{Curator, Kazoo, Zklock};
    use super::super::workload;
    use super::*;

    pub(crate) fn run(contestant: Contestant, round: usize, speed: f64) -> Run {
        Run {
            workload: "one",
            contestant,
            round,
            operations: 1000,
            speed,
            processor: 0.2,
            switches: Some(4000),
            peak: Some(5_000_000),
            requests: 3000,
            fsyncs: 2000,
            shares: vec![1000],
            acquired: None,
            handed_over: None,
            others: 0.0,
            spoiled: false,
        }
    }

    pub(crate) fn results(runs: Vec<Run>) -> Results {
        Results {
            workloads: workload::ALL.into(),
            runs,
            missing: Vec::new(),
            needed: 3,
            rounds: 5,
            seconds: 1.5,
            machine: "2 × a machine".to_owned(),
            server: "3.8.0".to_owned(),
            accepted_load: false,
        }
    }

    fn spoil(run: Run) -> Run {
        Run { spoiled: true, others: 0.5, ..run }
    }

    #[test]
    fn a_hand_over_lasts_from_one_process_s_grant_to_the_next_one_s() {
        assert_eq!(Latency::of_waits(&[]), [None, None]);
        let first = vec![[0, 1_000], [2_000, 9_000], [9_000, 10_000]];
        let [acquired, handed_over] = Latency::of_waits(&[first, vec![[500, 4_000]]]);
        assert_eq!(acquired, Some(Latency { median: 3.5, most: 7.0 }));
        assert_eq!(handed_over, Some(Latency { median: 5.0, most: 5.0 }));
    }

    #[test]
    fn a_median_is_in_the_middle_of_what_was_seen() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![f64::NAN]), None);
        let spread = Spread::of(vec![9.0, 1.0, 2.0]);
        assert_eq!(spread, Some(Spread { median: 2.0, least: 1.0, most: 9.0 }));
        assert_eq!(Spread::of(vec![4.0, 2.0]).map(|spread| spread.median), Some(3.0));
    }

    /// The machine gets slower from round to round, which no ratio shows.
    #[test]
    fn a_ratio_is_that_of_one_round() {
        let runs = (0..3).flat_map(|round| {
            let slower = 1.0 / (1.0 + round as f64);
            [run(Zklock, round, 3000.0 * slower), run(Curator, round, 1000.0 * slower)]
        });
        let ratio = results(runs.collect()).ratio("one", (Zklock, Curator), |run| Some(run.speed));
        let ratio = ratio.unwrap();
        for value in [ratio.median, ratio.least, ratio.most] {
            assert!((value - 3.0).abs() < 1e-9, "{ratio:?}");
        }
    }

    #[test]
    fn three_clean_rounds_of_both_sides_make_a_ratio_and_two_do_not() {
        let mut runs: Vec<Run> =
            (0..4).flat_map(|round| [run(Zklock, round, 3.0), run(Curator, round, 1.0)]).collect();
        runs[0] = spoil(runs[0].clone());
        let mut results = results(runs);
        let ratio = |results: &Results| {
            results
                .ratio("one", (Zklock, Curator), |run| Some(run.speed))
                .map(|spread| spread.median)
        };
        assert_eq!(ratio(&results), Ok(3.0));
        // The second spoiled run is of another round, and of the other side.
        results.runs[3] = spoil(results.runs[3].clone());
        assert_eq!(ratio(&results), Err("spoiled".to_owned()));
        assert!(results.figure("one", Zklock, |run| Some(run.speed)).is_ok());
        results.needed = 1;
        assert_eq!(ratio(&results), Ok(3.0));
    }

    #[test]
    fn what_spoiled_runs_say_is_not_said() {
        let mut results = results(vec![spoil(run(Zklock, 0, 9e9)), run(Zklock, 1, 5.0)]);
        results.runs.extend([run(Zklock, 2, 5.0), run(Zklock, 3, 5.0)]);
        assert_eq!(results.figure("one", Zklock, |run| Some(run.speed)).unwrap().most, 5.0);
    }

    #[test]
    fn who_is_not_there_has_no_ratio_and_it_is_said_why() {
        let mut results = results((0..3).map(|round| run(Zklock, round, 1.0)).collect());
        let ratio =
            |results: &Results| results.ratio("one", (Zklock, Kazoo), |run| Some(run.speed));
        assert_eq!(ratio(&results).unwrap_err(), "kazoo was not measured");
        let why = "more than 60 s".to_owned();
        results.missing.push(Missing { workload: "one", contestant: Kazoo, why });
        assert_eq!(ratio(&results).unwrap_err(), "kazoo: more than 60 s");
    }

    #[test]
    fn shares_are_parts_of_their_mean() {
        let run = Run { shares: vec![80, 100, 120, 100], ..run(Zklock, 0, 1.0) };
        assert_eq!(run.extremes(), Some((0.8, 1.2)));
        assert!((run.unfairness().unwrap() - 0.2).abs() < 1e-9);
    }
}
