//! How much a worker's memory and number of threads grow over a run.

use super::history::{Nanos, SECOND};
use super::model::{Run, Sample};

/// How long a run must be for its growth to be judged.
const LONG_RUN: Nanos = 600 * SECOND;
/// How much a worker's memory may grow in the last half of a run: pages of stacks and of the heap
/// become resident as they are used.
const GROWTH_KILOBYTES: u64 = 4096;
/// The same for its threads: some may be at work when the sample is taken.
const GROWTH_THREADS: u64 = 2;

/// The growth of worker 0, which is never killed: the median of the third quarter of the run, and
/// that of the last quarter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(crate) kilobytes: (u64, u64),
    pub(crate) threads: (u64, u64),
    /// Whether the run was long enough to judge.
    pub(crate) judged: bool,
}

impl Growth {
    pub(crate) fn of(run: &Run) -> Option<Growth> {
        let ending = run.ending?;
        let half = (ending - run.start) / 2;
        let quarter = |from: Nanos| -> Vec<_> {
            let within = |at| (from..from + half / 2).contains(&at);
            run.samples.iter().filter(|one| one.slot == 0 && within(one.at)).copied().collect()
        };
        let (first, last) = (quarter(run.start + half), quarter(run.start + half + half / 2));
        if first.is_empty() || last.is_empty() {
            return None;
        }
        let medians = |what: fn(&Sample) -> u64| {
            (median(first.iter().map(what)), median(last.iter().map(what)))
        };
        Some(Growth {
            kilobytes: medians(|sample| sample.kilobytes),
            threads: medians(|sample| sample.threads),
            judged: ending - run.start >= LONG_RUN,
        })
    }

    pub(crate) fn is_flat(&self) -> bool {
        self.kilobytes.1 <= self.kilobytes.0 + GROWTH_KILOBYTES
            && self.threads.1 <= self.threads.0 + GROWTH_THREADS
    }

    pub(crate) fn bound() -> String {
        format!("{GROWTH_KILOBYTES} kB and {GROWTH_THREADS} threads")
    }
}

pub(crate) fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
