//! What of a lock's time is for a command's end, and what for an outage.
//!
//! Apart from `run`, because `doctor` says it on every system.

use std::time::Duration;

/// The guard kills the command this long before the lock ends.
pub(crate) const KILL_BEFORE_END: Duration = Duration::from_millis(150);

/// How long the command has from TERM to KILL, unless it is said or the session timeout is too short for
/// that.
pub(crate) const USUAL_GRACE: Duration = Duration::from_secs(2);

/// How often zklock looks at the lock, and tells the guard until when it is held.
pub(crate) fn look_interval(session_timeout: Duration) -> Duration {
    (session_timeout / 20).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

/// What a grace and an outage may take together; `None` if there is no time to end a command at all.
///
/// An outage may begin when as little is left of the lease as the library promises, and the guard may know
/// only until when it lasted one look before.
pub(crate) fn spare(session_timeout: Duration, outage_limit: Duration) -> Option<Duration> {
    outage_limit.checked_sub(KILL_BEFORE_END + look_interval(session_timeout))
}

/// The grace unless it is stated. At least half of what there is remains for an outage: otherwise the
/// command would be told to end at the smallest delay.
pub(crate) fn usual_grace(spare: Duration) -> Duration {
    USUAL_GRACE.min(spare / 2)
}

/// How long an outage surely ends no command that has the usual grace, if it loses no lock of the library's
/// within `outage_limit`; `None` if `run` refuses the session timeout.
pub(crate) fn survives(session_timeout: Duration, outage_limit: Duration) -> Option<Duration> {
    spare(session_timeout, outage_limit).map(|spare| spare - usual_grace(spare))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Session timeout and what an outage takes from the lease at most, by the library; grace and outage that
    /// a command survives; in milliseconds.
    #[test]
    fn an_outage_has_its_part_of_the_lease_beside_the_grace() {
        for (timeout, limit, grace, outage) in [
            (30_000, 20_765, 2_000, 17_615),
            (30_000, 23_333, 2_000, 20_183),
            (10_000, 4_326, 1_838, 1_838),
            (10_000, 5_555, 2_000, 2_905),
            (4_000, 1_334, 492, 492),
        ] {
            let [timeout, limit] = [timeout, limit].map(Duration::from_millis);
            assert_eq!(
                usual_grace(spare(timeout, limit).unwrap()).as_millis(),
                grace,
                "{timeout:?}"
            );
            assert_eq!(survives(timeout, limit).unwrap().as_millis(), outage, "{timeout:?}");
        }
        assert_eq!(survives(Duration::from_millis(400), Duration::from_millis(150)), None);
    }
}
