//! How long a lock may be held at a time.

use std::time::Duration;

use crate::rt::Moment;

/// The shortest limit that a lock can be given: with less, it would often be over before the call returns.
pub(crate) const SHORTEST: Duration = Duration::from_millis(10);

/// How long each holder of a node may hold it, and when the present one's time is over: by the lease's clock,
/// which goes on while the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldLimit {
    at_most: Duration,
    ends: Moment,
}

impl HoldLimit {
    /// Of a hold that begins now.
    pub(super) fn from_now(at_most: Duration) -> HoldLimit {
        HoldLimit { at_most, ends: Moment::now().plus(at_most) }
    }

    /// That of the next turn, which begins now; `idle` if nobody holds the node in it.
    pub(super) fn of_next_turn(self, idle: bool) -> HoldLimit {
        if idle {
            return HoldLimit { ends: Moment::NEVER, ..self };
        }
        HoldLimit::from_now(self.at_most)
    }

    pub(super) fn left(self) -> Duration {
        self.ends.since(Moment::now())
    }

    pub(super) fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// When to look again: no turn that begins from now on ends before.
    pub(super) fn until_next_look(self) -> Duration {
        self.left().min(self.at_most)
    }

    /// What an event or an error tells of it.
    pub(super) fn details(self) -> String {
        format!("at most {:?}", self.at_most)
    }
}
