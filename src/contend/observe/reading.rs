//! Which contenders a repeated look reads again: a function of what the earlier look knows of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::contender::Contender;

/// A holder tells since when it holds a second after that; with many holders in its client, perhaps later.
const HAS_TOLD_AFTER: Duration = Duration::from_secs(2);

/// One of so many requests of a look reads what nothing else makes it read.
const OLDEST: usize = 10;

/// When a contender was read, at the earliest, and since when it is known to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) holds_since: Option<Instant>,
}

/// What an earlier look knows of a contender.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) one: &'a Contender,
    pub(super) reading: Reading,
    /// Whether it waits under others, or others do under it.
    pub(super) is_in_edge: bool,
}

impl Known<'_> {
    /// Whether it has to be read, given whether it holds now.
    fn is_due(&self, holds: bool, now: Instant) -> bool {
        self.is_in_edge || holds && self.has_told_since_when(now)
    }

    /// Whether it may have told, since it was read, since when it holds.
    fn has_told_since_when(&self, now: Instant) -> bool {
        let Some(since) = self.reading.holds_since else { return false };
        let may_tell = self.one.facts().is_some_and(|facts| facts.held_for.is_none());
        let told_by = since + HAS_TOLD_AFTER;
        may_tell && self.reading.at < told_by && told_by <= now
    }
}

/// Whether to read each of the contenders of so many lists, and no more than `spare` of those that need not
/// be: what is known of each, and whether it holds now.
pub(super) fn which_to_read(
    lists: usize,
    spare: usize,
    now: Instant,
    listed: &[(Option<Known<'_>>, bool)],
) -> Vec<bool> {
    let is_due = |(known, holds): &(Option<Known<'_>>, bool)| {
        known.is_none_or(|known| known.is_due(*holds, now))
    };
    let mut reads: Vec<bool> = listed.iter().map(is_due).collect();
    let due = reads.iter().filter(|is_due| **is_due).count();
    let others = listed.iter().enumerate().filter(|(place, _)| !reads[*place]);
    let age = |(place, (known, _)): (usize, &(Option<Known<'_>>, bool))| {
        Some(Reverse((known.as_ref()?.reading.at, place)))
    };
    let mut oldest: BinaryHeap<_> = others.filter_map(age).collect();
    for _ in 0..(lists + due).div_ceil(OLDEST).min(spare) {
        let Some(Reverse((_, place))) = oldest.pop() else { break };
        reads[place] = true;
    }
    reads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contend::name::Ticket;
    use crate::wire_values::Stat;

    fn contender(data: &str) -> Contender {
        let ticket = Ticket::parse("lock-0000000001").unwrap();
        Contender::new("/a", &ticket, data.into(), &Stat::default())
    }

    /// Which are read of these: the data, when each was read and since when it holds, in seconds, whether it
    /// is in an edge, and whether it holds now.
    fn read(lists: usize, all: &[(&str, u64, Option<u64>, bool, bool)]) -> Vec<usize> {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let contenders: Vec<Contender> = all.iter().map(|(data, ..)| contender(data)).collect();
        let known = |(one, case): (_, &(&str, u64, Option<u64>, bool, bool))| {
            let (_, read, holds_since, is_in_edge, holds) = *case;
            let reading = Reading { at: at(read), holds_since: holds_since.map(at) };
            (Some(Known { one, reading, is_in_edge }), holds)
        };
        let listed: Vec<_> = contenders.iter().zip(all).map(known).collect();
        places(&which_to_read(lists, 100, at(NOW), &listed))
    }

    fn places(reads: &[bool]) -> Vec<usize> {
        (0..reads.len()).filter(|place| reads[*place]).collect()
    }

    const FACTS: &str = "x\nv=1";

    /// In seconds.
    const NOW: u64 = 100;

    #[test]
    fn who_was_not_there_is_read() {
        let now = Instant::now();
        assert_eq!(which_to_read(0, 0, now, &[(None, false), (None, true)]), [true, true]);
    }

    #[test]
    fn holders_are_read_again_when_they_have_told_since_when_they_hold() {
        for (data, at, holds_since, holds, is_read) in [
            // A waiter, and one that holds since then.
            (FACTS, 90, None, false, false),
            (FACTS, 90, None, true, false),
            // Holders that can have told now, or only soon, or were read when they had.
            (FACTS, 99, Some(98), true, true),
            (FACTS, 99, Some(99), true, false),
            (FACTS, 97, Some(95), true, false),
            (FACTS, 96, Some(95), true, true),
            // One that has told, and one that will not.
            ("x\nv=1 held_for=1000", 96, Some(95), true, false),
            ("of another library", 96, Some(95), true, false),
        ] {
            let expected = if is_read { vec![0] } else { Vec::new() };
            let found = read(0, &[(data, at, holds_since, false, holds)]);
            assert_eq!(found, expected, "{data} {at} {holds_since:?} {holds}");
        }
    }

    #[test]
    fn who_takes_part_in_an_edge_is_read() {
        let all = [(FACTS, 90, Some(5), true, true), (FACTS, 90, None, true, false)];
        assert_eq!(read(0, &all), [0, 1]);
    }

    #[test]
    fn a_tenth_reads_those_that_were_not_read_for_longest() {
        let ages = [50, 40, 30, 20, 10, 10, 60];
        let all = ages.map(|at| (FACTS, at, None, false, false));
        assert_eq!(read(0, &all), [0; 0]);
        assert_eq!(read(1, &all), [4]);
        assert_eq!(read(10, &all), [4]);
        assert_eq!(read(30, &all), [3, 4, 5]);
        assert_eq!(read(1_000, &all).len(), all.len());
        // What has to be read counts as well, and is not one of them.
        let mut more = vec![(FACTS, 0, None, true, false); 10];
        more.extend(all);
        assert_eq!(read(10, &more), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15]);
    }

    #[test]
    fn after_some_looks_all_were_read_again() {
        let mut ages = vec![0; 95];
        let mut looks = 0;
        while ages.contains(&0) {
            looks += 1;
            let all: Vec<_> = ages.iter().map(|at| (FACTS, *at, None, false, false)).collect();
            read(100, &all).into_iter().for_each(|place| ages[place] = looks);
        }
        assert_eq!(looks, 10);
    }
}
