//! Logs an outage of the ensemble: a line at its start, one a minute, and one at its end.

use std::time::Duration;

use log::Level;

use crate::link::log_thread::write_soon;
use crate::rt::{Moment, Mutex};

const INTERVAL: Duration = Duration::from_secs(60);

/// See the module. All sessions of a client share one.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    state: Mutex<Option<Outage>>,
}

#[derive(Clone, Debug)]
struct Outage {
    began: Moment,
    logged: Moment,
    /// Why the last search found no server.
    why: String,
}

impl OutageLog {
    /// Notes that no server could be reached, and why.
    pub(super) fn no_server(&self, now: Moment, why: &str) {
        let line = self.note(now, why);
        match line {
            None => {}
            Some(Duration::ZERO) => write_soon(
                Level::Warn,
                format_args!("no ZooKeeper server can be reached, still trying ({why})"),
            ),
            Some(since) => write_soon(
                Level::Warn,
                format_args!("still no ZooKeeper server after {} s ({why})", since.as_secs()),
            ),
        }
    }

    /// How long the outage has lasted, if that is to be logged now.
    fn note(&self, now: Moment, why: &str) -> Option<Duration> {
        let mut state = self.state.lock();
        let Some(outage) = &mut *state else {
            *state = Some(Outage { began: now, logged: now, why: why.to_owned() });
            return Some(Duration::ZERO);
        };
        why.clone_into(&mut outage.why);
        (now.since(outage.logged) >= INTERVAL).then(|| {
            outage.logged = now;
            now.since(outage.began)
        })
    }

    /// Why the last search found no server, in an outage.
    pub(super) fn why(&self) -> Option<String> {
        self.state.lock().as_ref().map(|outage| outage.why.clone())
    }

    /// Notes that a server was reached.
    pub(crate) fn over(&self, now: Moment) {
        let outage = self.state.lock().take();
        if let Some(Outage { began, .. }) = outage {
            let lasted = now.since(began);
            write_soon(Level::Info, format_args!("connected again after {lasted:.1?}"));
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
        assert_eq!(log.why(), None);
        let lines: Vec<_> =
            (100..300).filter_map(|now| log.note(at(now), &now.to_string())).collect();
        assert_eq!(lines, [Duration::ZERO, second * 60, second * 120, second * 180]);
        assert_eq!(log.why().as_deref(), Some("299"));
        log.over(at(300));
        assert_eq!(log.why(), None);
        assert_eq!(log.note(at(301), "again"), Some(Duration::ZERO));
        // Never logged by an end of which there was no beginning.
        log.over(at(302));
        log.over(at(303));
    }

    /// Beside these, the link logs the loss of the connection and that of the session. So an outage of
    /// 75 s is at most five lines at `warn`, and one for each hold.
    #[test]
    fn an_outage_of_75_seconds_is_two_lines_however_often_servers_are_searched() {
        let log = OutageLog::default();
        for pause in [1, 10, 250, 999] {
            let searches = (0..75_000).step_by(pause);
            let at = |ms: usize| Moment::ZERO.plus(Duration::from_millis(ms as u64));
            let lines = searches.filter_map(|ms| log.note(at(ms), "refused")).count();
            assert_eq!(lines, 2, "searched every {pause} ms");
            log.over(at(75_000));
        }
    }
}
