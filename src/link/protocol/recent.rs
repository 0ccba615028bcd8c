//! What a connection has seen of late, to tell why a lease has run out.

use std::net::SocketAddr;
use std::time::Duration;

use super::granted::Granted;
use crate::rt::Moment;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// When a server was asked for the session last, when it had answered, and which.
    opened: Option<(Moment, Moment, SocketAddr)>,
    /// When the server was heard last.
    heard: Option<Moment>,
    /// The last time for which a server was silent though it was asked, and which.
    silence: Option<(Moment, Moment, SocketAddr)>,
    /// Since when there is no connection.
    cut: Option<Moment>,
    /// Why the search for a server has found none yet.
    trouble: Option<String>,
    /// Since when heartbeats are refused, and with which error.
    refused: Option<(Moment, i32)>,
    /// When this process went on after a pause, and how long that was.
    paused: Option<(Moment, Duration)>,
}

impl Recent {
    pub(super) fn attached(&mut self, granted: &Granted, now: Moment) {
        self.opened = Some((granted.sent, now, granted.server));
        (self.heard, self.cut, self.refused) = (Some(now), None, None);
        self.trouble = None;
    }

    /// Why no server is found yet.
    pub(super) fn no_server(&mut self, why: Option<String>) {
        self.trouble = why;
    }

    /// The server has answered what it was asked at that time.
    pub(super) fn answered(&mut self, sent: Moment, now: Moment, timeout: Duration) {
        let since = self.heard.replace(now).unwrap_or(now).max(sent);
        if now.since(since) > timeout / 6 {
            self.silence = self.opened.map(|(.., server)| (since, now, server));
        }
    }

    pub(super) fn refused(&mut self, error: i32, now: Moment) {
        let since = self.refused.map_or(now, |(since, _)| since);
        self.refused = Some((since, error));
    }

    pub(super) fn confirmed(&mut self) {
        self.refused = None;
    }

    pub(super) fn cut(&mut self, now: Moment) {
        self.cut = self.cut.or(Some(now));
    }

    pub(super) fn paused(&mut self, gap: Duration, now: Moment) {
        self.paused = Some((now, gap));
    }

    /// Why no answer has renewed the lease in time; `unanswered` is when the oldest request was sent that
    /// has no answer.
    pub(super) fn why_lapsed(
        &self,
        timeout: Duration,
        unanswered: Option<Moment>,
        now: Moment,
    ) -> String {
        let is_late = |moment: Moment| now.since(moment) < timeout;
        let ago = |moment: Moment| format!("{:.1?} ago", now.since(moment));
        let Some((asked, opened, server)) = self.opened else {
            return "no server has served it".to_owned();
        };
        let silent = unanswered.filter(|sent| now.since(*sent) > timeout / 6);
        let troubles = [self.cut, self.refused.map(|(since, _)| since), silent];
        let is_longest = |(at, gap): &(Moment, Duration)| {
            troubles.iter().flatten().all(|since| now.since(*since.max(at)) <= *gap)
        };
        let pause = self.paused.filter(|(at, _)| is_late(*at)).filter(is_longest);
        let what = if let Some((at, gap)) = pause {
            format!("this process was not running for {gap:.1?}, until {}", ago(at))
        } else if let Some(cut) = self.cut {
            let why = self.trouble.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
            format!(
                "the connection to {server} was lost {}, and no other one was made{why}",
                ago(cut)
            )
        } else if let Some((since, error)) = self.refused {
            let overload =
                if error == crate::wire_values::code::THROTTLED { ", overloaded" } else { "" };
            format!(
                "{server} has refused all heartbeats since {} (error {error}{overload})",
                ago(since)
            )
        } else if let Some(sent) = silent {
            format!("{server} has not answered since {}", ago(sent))
        } else if let Some((from, to, server)) = self.silence.filter(|(_, to, _)| is_late(*to)) {
            format!("{server} was silent for {:.1?}, until {}", to.since(from), ago(to))
        } else if is_late(opened) {
            format!(
                "{server} took {:.1?} to open the connection, {}",
                opened.since(asked),
                ago(opened)
            )
        } else {
            format!("no answer of {server} has come through the leader in time")
        };
        format!("{what}; the session timeout is {timeout:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::protocol::granted_at;
    use crate::wire_values::code;

    const T: Duration = Duration::from_secs(12);

    fn at(seconds: f64) -> Moment {
        Moment::ZERO.plus(Duration::from_secs_f64(seconds))
    }

    fn attached() -> Recent {
        let mut recent = Recent::default();
        recent.attached(&granted_at(at(90.0)), at(90.5));
        recent
    }

    #[test]
    fn the_reason_is_what_has_happened_in_the_last_session_timeout() {
        let now = at(110.0);
        let why = |recent: &Recent, unanswered| recent.why_lapsed(T, unanswered, now);
        let mut recent = attached();
        assert!(
            why(&recent, None).contains("no answer of 127.0.0.1:2181 has come through the leader")
        );
        recent.answered(at(99.0), at(106.0), T);
        assert!(why(&recent, None).contains("was silent for 7.0s, until 4.0s ago"));
        assert!(why(&recent, Some(at(107.0))).contains("has not answered since 3.0s ago"));
        recent.refused(code::THROTTLED, at(107.0));
        recent.refused(code::THROTTLED, at(109.0));
        assert!(
            why(&recent, None)
                .contains("refused all heartbeats since 3.0s ago (error -127, overloaded)")
        );
        recent.confirmed();
        assert!(why(&recent, None).contains("was silent"));
        recent.cut(at(105.0));
        assert!(why(&recent, None).contains("was lost 5.0s ago, and no other one was made; the"));
        recent.no_server(Some("127.0.0.1:2181: no quorum".to_owned()));
        let cut = "no other one was made (127.0.0.1:2181: no quorum); the session timeout is 12s";
        assert!(why(&recent, None).ends_with(cut), "{}", why(&recent, None));
        recent.paused(Duration::from_secs(9), at(109.0));
        assert!(
            why(&recent, None).contains("this process was not running for 9.0s, until 1.0s ago")
        );
        assert!(why(&recent, None).ends_with("the session timeout is 12s"));
    }

    #[test]
    fn a_short_pause_is_no_reason_if_something_else_has_lasted_longer_since() {
        let now = at(110.0);
        let mut recent = attached();
        recent.paused(Duration::from_millis(1200), at(101.0));
        assert!(recent.why_lapsed(T, None, now).contains("was not running for 1.2s"));
        let silent = recent.why_lapsed(T, Some(at(103.0)), now);
        assert!(silent.contains("has not answered since 7.0s ago"), "{silent}");
        recent.cut(at(102.0));
        let cut = recent.why_lapsed(T, None, now);
        assert!(cut.contains("was lost 8.0s ago"), "{cut}");
        // What was asked before a long pause could not be answered in it.
        let mut recent = attached();
        recent.paused(Duration::from_secs(8), at(109.0));
        let paused = recent.why_lapsed(T, Some(at(100.0)), now);
        assert!(paused.contains("was not running for 8.0s"), "{paused}");
    }

    #[test]
    fn a_silence_is_told_of_the_server_that_was_silent() {
        let mut recent = attached();
        recent.answered(at(99.0), at(103.0), T);
        recent.cut(at(103.5));
        let server = SocketAddr::from(([127, 0, 0, 1], 2182));
        recent.attached(&Granted { server, ..granted_at(at(104.0)) }, at(104.1));
        let why = recent.why_lapsed(T, None, at(110.0));
        assert!(why.contains("127.0.0.1:2181 was silent for 4.0s"), "{why}");
    }

    #[test]
    fn what_was_longer_ago_is_no_reason() {
        let mut recent = attached();
        recent.answered(at(91.0), at(95.0), T);
        recent.paused(Duration::from_secs(2), at(96.0));
        assert!(
            recent.why_lapsed(T, None, at(110.0)).contains("has come through the leader in time")
        );
        let slow = recent.why_lapsed(T, None, at(101.0));
        assert!(slow.contains("was not running for 2.0s"), "{slow}");
        let opened = attached().why_lapsed(T, None, at(102.0));
        assert!(opened.contains("took 500.0ms to open the connection, 11.5s ago"), "{opened}");
    }
}
