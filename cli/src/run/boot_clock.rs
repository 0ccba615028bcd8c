//! The clock that zklock and its guard process share, which also counts while the machine sleeps.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A time of this clock, in nanoseconds since the machine started.
pub(crate) type BootTime = u64;

/// The present.
pub(crate) fn now() -> BootTime {
    // It cannot fail with a clock that Linux has had since 2.6.39.
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    nanoseconds(time)
}

/// When this time has passed from then on.
pub(crate) fn after(then: BootTime, time: Duration) -> BootTime {
    then.saturating_add(nanoseconds(time))
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
