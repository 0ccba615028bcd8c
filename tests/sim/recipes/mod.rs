//! The plays for the [`harness`](super::harness): every recipe beside the locks, and locks on
//! programs' own handles.

#[cfg(feature = "zookeeper")]
mod adopted;
mod barrier;
mod commit;
mod counter;
mod double_barrier;
mod election;
mod group;
mod late;
mod maintenance;
mod patience;
mod priority;
mod queue;
mod znode;

use super::harness::{Tally, perform};
use super::setting;
use super::try_seeds;

/// How many seeds of each play a run tries by default.
const SEEDS: u64 = 1_000;

type Perform = fn(u64, bool) -> Result<Tally, String>;

fn try_all(play: &str, perform: Perform) {
    if let Some(seed) = setting("ZKLOCK_SEED") {
        match perform(seed, true) {
            Ok(tally) => println!("seed {seed}: {tally:?}"),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
        return;
    }
    let count = setting("ZKLOCK_SEEDS").map_or(SEEDS, |seeds| seeds.div_ceil(5));
    let totals = try_seeds(&format!(" --play {play}"), count, |seed| {
        let Tally { steps, deeds, failures, faults, late: _ } = perform(seed, false)?;
        Ok([steps, deeds, failures, faults])
    });
    let [steps, deeds, failures, faults] = totals.sums;
    println!(
        "{play}: {count} schedules from seed {} without a violation: {steps} steps, {deeds} calls \
         that succeeded, {failures} that did not, {faults} faults; {:.1} s",
        totals.first, totals.seconds
    );
}

macro_rules! plays {
    ($($play:ident),*) => {
        $(
            #[test]
            fn $play() {
                try_all(stringify!($play), $play::perform);
            }
        )*
    };
}

#[cfg(feature = "zookeeper")]
plays!(adopted);
plays!(
    barrier,
    commit,
    counter,
    double_barrier,
    election,
    group,
    maintenance,
    patience,
    priority,
    queue,
    znode
);
