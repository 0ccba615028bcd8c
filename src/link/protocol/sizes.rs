//! Requests that may be too large for the servers. A server does not answer a request beyond its
//! own `jute.maxbuffer`, but closes the connection. So does a server that is restarted: only if it
//! happens repeatedly is the size to blame, and then only for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::rt::Moment;

/// How many connections a request of one size may cost before it is refused.
const CLOSINGS: u32 = 3;
/// A server closes the connection at once: a request that has waited longer is not the reason.
const AT_ONCE: Duration = Duration::from_secs(2);
/// How long such a request is not sent again. It may succeed afterwards: the server may have been
/// restarted with other settings, or the suspicion may have been wrong.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Requests up to this size are not suspected: hardly any server has a lower limit, which would also
/// apply to what it reads of its own files. To ask only whether smaller requests were answered
/// between the closings would clear nobody: after each loss, a contender asks some before it repeats
/// the large one.
pub(super) const SMALLEST: usize = 64 * 1024;
/// How many sizes are remembered.
const MOST: usize = 32;

/// See the module. Sizes are those of frames, as the server compares them.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// The largest request that a server has answered.
    answered: usize,
    /// How many connections were closed on the largest request without an answer, by its size,
    /// and when last.
    closings: BTreeMap<usize, (u32, Moment)>,
}

impl Sizes {
    /// A server has answered a request of this size, and so takes it.
    pub(crate) fn answered(&mut self, size: usize) {
        if size > self.answered {
            self.answered = size;
            self.closings.retain(|suspect, _| *suspect > size);
        }
    }

    /// The server has closed the connection, on which these requests were unanswered: sizes, and
    /// when they were sent.
    pub(crate) fn closed(
        &mut self,
        unanswered: impl Iterator<Item = (usize, Moment)>,
        now: Moment,
    ) {
        let recent = unanswered.filter(|(_, sent)| now.since(*sent) < AT_ONCE);
        let Some(largest) = recent.map(|(size, _)| size).max() else { return };
        if largest <= self.answered.max(SMALLEST) {
            return;
        }
        let (count, last) = self.closings.entry(largest).or_insert((0, now));
        (*count, *last) = (count.saturating_add(1), now);
        if self.closings.len() > MOST {
            // The smaller a suspected size, the more requests it refuses.
            self.closings.pop_last();
        }
    }

    /// The reason not to send a request of this size, if there is one.
    pub(crate) fn refusal(&self, size: usize, now: Moment) -> Option<String> {
        let refused =
            |(count, last): &(u32, Moment)| *count >= CLOSINGS && now.since(*last) < REFUSED_FOR;
        let (&least, (count, _)) =
            self.closings.range(..=size).find(|(_, closings)| refused(closings))?;
        Some(format!(
            "the request has {size} bytes; servers closed the connection {count} times right \
             after one of {least} bytes, and the largest that they answered had {}: their \
             jute.maxbuffer is probably smaller than the request",
            self.answered
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::ZERO.plus(Duration::from_secs_f64(seconds))
    }

    /// Closes `times` connections on requests of these sizes, sent a moment before.
    fn closed(sizes: &mut Sizes, times: usize, unanswered: &[usize]) {
        for _ in 0..times {
            sizes.closed(unanswered.iter().map(|size| (*size, at(9.9))), at(10.));
        }
    }

    #[test]
    fn a_few_closings_prove_nothing_and_more_of_them_refuse_what_is_no_smaller() {
        let mut sizes = Sizes::default();
        sizes.answered(2000);
        closed(&mut sizes, 2, &[50, 70_000, 3000]);
        assert_eq!(sizes.refusal(70_000, at(10.)), None);
        closed(&mut sizes, 1, &[70_000]);
        assert_eq!(sizes.refusal(69_999, at(10.)), None);
        let why = sizes.refusal(80_000, at(10.)).expect("a refusal");
        for part in ["80000 bytes", "3 times", "70000 bytes", "had 2000", "jute.maxbuffer"] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn what_a_server_takes_what_is_small_and_what_waits_for_long_are_not_suspected() {
        let mut sizes = Sizes::default();
        sizes.answered(70_000);
        closed(&mut sizes, 9, &[70_000]);
        assert_eq!(sizes.refusal(70_000, at(10.)), None);
        let mut sizes = Sizes::default();
        closed(&mut sizes, 9, &[64 * 1024]);
        assert_eq!(sizes.refusal(64 * 1024, at(10.)), None);
        for _ in 0..9 {
            sizes.closed([(70_000, at(7.9))].into_iter(), at(10.));
        }
        assert_eq!(sizes.refusal(70_000, at(10.)), None);
        closed(&mut sizes, 3, &[70_000]);
        assert!(sizes.refusal(70_000, at(10.)).is_some());
        sizes.answered(70_000);
        assert_eq!(sizes.refusal(70_000, at(10.)), None, "a server has answered it");
    }

    #[test]
    fn a_suspicion_ends_after_a_while_and_one_more_closing_renews_it() {
        let mut sizes = Sizes::default();
        closed(&mut sizes, 3, &[70_000]);
        assert!(sizes.refusal(70_000, at(69.)).is_some());
        assert_eq!(sizes.refusal(70_000, at(71.)), None);
        sizes.closed([(70_000, at(71.))].into_iter(), at(71.5));
        assert!(sizes.refusal(70_000, at(72.)).is_some());
    }

    #[test]
    fn only_so_many_sizes_are_remembered() {
        let mut sizes = Sizes::default();
        for size in 100_000..110_000 {
            closed(&mut sizes, 3, &[size]);
        }
        assert_eq!(sizes.closings.len(), MOST);
        assert!(sizes.refusal(110_000, at(10.)).is_some());
    }
}
