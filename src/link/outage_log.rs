//! Logs an outage of the ensemble: a line at its start, one a minute, and one at its end.

use std::time::Duration;

use crate::logging;
use crate::rt::{Moment, Mutex};

const INTERVAL: Duration = Duration::from_secs(60);

/// See the module. All sessions of a client share one.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    state: Mutex<Option<Outage>>,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    began: Moment,
    logged: Moment,
}

impl OutageLog {
    /// Notes that no server could be reached, and why.
    pub(super) fn no_server(&self, now: Moment, why: &str) {
        let line = self.note(now);
        match line {
            None => {}
            Some(Duration::ZERO) => logging::warning!(
                target: "zklock::link",
                "no ZooKeeper server can be reached, still trying ({why})"
            ),
            Some(since) => logging::warning!(
                target: "zklock::link",
                "still no ZooKeeper server after {} s ({why})", since.as_secs()
            ),
        }
    }

    /// How long the outage has lasted, if that is to be logged now.
    fn note(&self, now: Moment) -> Option<Duration> {
        let mut state = self.state.lock();
        match &mut *state {
            None => {
                *state = Some(Outage { began: now, logged: now });
                Some(Duration::ZERO)
            }
            Some(outage) if now.since(outage.logged) >= INTERVAL => {
                outage.logged = now;
                Some(now.since(outage.began))
            }
            Some(_) => None,
        }
    }

    /// Notes that a server was reached.
    pub(super) fn over(&self, now: Moment) {
        let outage = self.state.lock().take();
        if let Some(Outage { began, .. }) = outage {
            let lasted = now.since(began);
            logging::info!(target: "zklock::link", "connected again after {lasted:.1?}");
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_at_its_start_and_once_a_minute() {
        let (log, second) = (OutageLog::default(), Duration::from_secs(1));
        let at = |seconds: u32| Moment::ZERO.plus(second * seconds);
        let lines: Vec<_> = (100..300).filter_map(|now| log.note(at(now))).collect();
        assert_eq!(lines, [Duration::ZERO, second * 60, second * 120, second * 180]);
        log.over(at(300));
        assert_eq!(log.note(at(301)), Some(Duration::ZERO));
        // Never logged by an end of which there was no beginning.
        log.over(at(302));
        log.over(at(303));
    }
}
