//! How long a candidate rests after an error.

use std::time::Duration;

use crate::rt;

/// How long to rest after errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackOff {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Default for BackOff {
    fn default() -> BackOff {
        BackOff { first: Duration::from_millis(100), longest: Duration::from_secs(10) }
    }
}

impl BackOff {
    /// How long to pause after `errors` + 1 errors in a row.
    pub(super) fn after(self, errors: u32) -> Duration {
        let whole = self.first.saturating_mul(1 << errors.min(30)).min(self.longest);
        let part = (rt::random() % 1024) as f64 / 1024.0;
        (whole / 2).saturating_add((whole / 2).mul_f64(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_up_to_the_longest_and_differ() {
        let ms = Duration::from_millis;
        let back_off = BackOff { first: ms(100), longest: ms(1_000) };
        for (errors, whole) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1_000), (40, 1_000)] {
            let rests: Vec<_> = (0..64).map(|_| back_off.after(errors)).collect();
            assert!(rests.iter().all(|rest| (ms(whole / 2)..=ms(whole)).contains(rest)));
            assert!(rests.iter().any(|rest| *rest != rests[0]), "{rests:?}");
        }
        let most = BackOff { first: Duration::MAX, longest: Duration::MAX };
        assert!(most.after(u32::MAX) >= Duration::MAX / 2);
        let none = BackOff { first: Duration::ZERO, longest: Duration::ZERO };
        assert_eq!(none.after(3), Duration::ZERO);
    }
}
