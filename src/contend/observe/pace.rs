//! When the next requests may be sent, if there must not be too many in a second.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const CHUNKS_PER_SECOND: usize = 10;

/// Which requests were sent, and when the next ones may be.
///
/// Requests count until a second after their answers: when a server got them between is not known.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    most_per_second: usize,
    /// When the answers came, and how many.
    answered: VecDeque<(Instant, usize)>,
    not_before: Option<Instant>,
}

impl Pace {
    /// This limit, which is not 0, from now on.
    pub(super) fn limit(&mut self, most_per_second: u32) {
        self.most_per_second = usize::try_from(most_per_second).unwrap_or(usize::MAX);
    }

    /// At most so many requests are sent together.
    pub(super) fn chunk(&self) -> usize {
        (self.most_per_second / CHUNKS_PER_SECOND).max(1)
    }

    /// When as many requests as this, no more than a chunk, may be sent; `None` for now.
    pub(super) fn pause(&mut self, count: usize, now: Instant) -> Option<Instant> {
        while self.answered.front().is_some_and(|(at, _)| *at + SECOND <= now) {
            self.answered.pop_front();
        }
        let mut counted: usize = self.answered.iter().map(|(_, count)| count).sum();
        let mut until = self.not_before;
        for (at, answered) in &self.answered {
            if counted + count <= self.most_per_second {
                break;
            }
            counted -= answered;
            until = until.max(Some(*at + SECOND));
        }
        until.filter(|until| *until > now)
    }

    /// So many requests were sent at a time or later, and answered, or given up, before another.
    pub(super) fn note(&mut self, count: usize, sent: Instant, answered: Instant) {
        if count > 0 {
            self.answered.push_back((answered, count));
            let share = count as f64 / self.most_per_second.max(1) as f64;
            self.not_before = Some(sent + SECOND.mul_f64(share));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When requests were sent, and answered this long after, and how many.
    fn sent(most: u32, total: usize, takes: Duration) -> Vec<(Duration, Duration, usize)> {
        let begun = Instant::now();
        let (mut now, mut pace) = (begun, Pace::default());
        pace.limit(most);
        let (mut all, mut left) = (Vec::new(), total);
        while left > 0 {
            let count = pace.chunk().min(left);
            while let Some(until) = pace.pause(count, now) {
                assert!(until > now);
                now = until;
            }
            pace.note(count, now, now + takes);
            all.push((now - begun, now + takes - begun, count));
            now += takes;
            left -= count;
        }
        all
    }

    #[test]
    fn no_second_has_more_requests_wherever_in_between_they_reached_the_server() {
        for (most, takes) in [(1, 0), (3, 5), (15, 400), (200, 0), (500, 30), (500, 2_500)] {
            let all = sent(most, 4 * most as usize, Duration::from_millis(takes));
            for (place, (_, answered, _)) in all.iter().enumerate() {
                let within = all[place..].iter().take_while(|one| one.0 < *answered + SECOND);
                let count: usize = within.map(|(_, _, count)| count).sum();
                assert!(count <= most as usize, "{count} instead of {most}, at {answered:?}");
            }
        }
    }

    #[test]
    fn they_are_spread_evenly_and_as_many_as_may_be() {
        let all = sent(500, 2_000, Duration::from_millis(2));
        let tenths: Vec<usize> = all.iter().map(|(_, _, count)| *count).collect();
        assert_eq!(tenths, [50; 40]);
        let gaps = all.windows(2).map(|two| two[1].0 - two[0].0);
        assert!(gaps.into_iter().all(|gap| gap >= Duration::from_millis(100)), "{all:?}");
        assert!(all[39].0 < Duration::from_secs(4), "{all:?}");
        let slow = sent(2, 4, Duration::ZERO);
        let begun: Vec<u128> = slow.iter().map(|(begun, ..)| begun.as_millis()).collect();
        assert_eq!(begun, [0, 500, 1_000, 1_500]);
    }

    #[test]
    fn a_few_do_not_make_the_next_ones_wait_long() {
        let (now, mut pace) = (Instant::now(), Pace::default());
        pace.limit(500);
        assert_eq!(pace.pause(50, now), None);
        pace.note(1, now, now);
        assert_eq!(pace.pause(50, now), Some(now + Duration::from_millis(2)));
        // Nothing was sent: there was no connection.
        pace.note(0, now + SECOND, now + SECOND);
        assert_eq!(pace.pause(50, now + SECOND), None);
    }

    #[test]
    fn a_smaller_limit_counts_what_was_sent_before() {
        let (now, mut pace) = (Instant::now(), Pace::default());
        pace.limit(500);
        pace.note(50, now, now);
        pace.limit(10);
        assert_eq!(pace.pause(1, now + SECOND / 2), Some(now + SECOND));
        assert_eq!(pace.pause(1, now + SECOND), None);
    }
}
