//! What a search for a server does next, without sockets and clocks: it asks all addresses in a round, and
//! begins another round after a pause, until a server serves the session or the session is over.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::config::LinkConfig;
use super::reconnects_in_doubt::Attempts;
use crate::link::protocol::Granted;
use crate::link::transport::Failure;
use crate::rt::Moment;

/// What to ask the servers for, and how to search for one that gives it.
#[derive(Clone)]
pub(crate) struct Search {
    /// With the session timeout of a new session. An open one keeps its own, which every server can
    /// grant whose limits contain it.
    pub(crate) config: LinkConfig,
    /// The session to continue; without one, a new session is asked for.
    pub(crate) session: Option<Granted>,
    pub(crate) last_zxid: i64,
    /// Attempts to continue the session.
    pub(crate) attempts: Arc<Attempts>,
    /// The server that was just lost; it is tried last.
    pub(crate) avoid: Option<SocketAddr>,
    /// How long the last reply took.
    pub(crate) round_trip: Duration,
    /// How many connections in a row were lost soon after they were made.
    pub(crate) futile: u32,
}

impl Search {
    /// The session timeout to ask for: that of the session, or of a new one.
    pub(super) fn asked_timeout(&self) -> Duration {
        self.session.as_ref().map_or(self.config.session_timeout, |session| session.timeout)
    }

    /// Why no server is found yet, where there is nothing to ask.
    pub(super) fn no_address(&self) -> String {
        format!("no address is known yet for {}", self.config.resolver)
    }

    /// How long the first attempt at each address may take: long enough for the handshakes, short
    /// enough to try all `addresses` in time.
    fn first_attempt(&self, addresses: u32) -> Duration {
        let access = &self.config.access;
        let handshakes = 1 + u32::from(access.tls.is_some()) + u32::from(access.sasl.is_some());
        let share = (self.asked_timeout() / 6 / addresses)
            .clamp(Duration::from_millis(150) * handshakes, Duration::from_secs(1))
            .max(self.round_trip * 4);
        match self.session {
            Some(_) => share,
            None => share.min(self.config.connect_timeout / addresses.saturating_add(1)),
        }
    }
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Ask this address of the host of this name, for so long at most, and tell what came of it.
    Ask(SocketAddr, String, Duration),
    /// Tell why no server is found yet, and begin another round after about this time.
    Pause(Duration, String),
    /// Give up: the session has expired.
    Expired,
    /// Give up: no server lets the client in with what it shows, or the client trusts none.
    Rejected(String),
}

/// See the module.
pub(super) struct Rounds<'a> {
    what: &'a Search,
    pause: Duration,
    longest_pause: Duration,
    /// How many rounds there were in which a server was too slow: more time helps with nothing else.
    slow: u32,
    /// Since when each round has met a server that may have rejected the client, and the first one's reason.
    rejection: Option<(Moment, String)>,
    /// How long each attempt of this round may take.
    limit: Duration,
    /// What is left to be asked in this round.
    addresses: VecDeque<(SocketAddr, String)>,
    /// Why what was asked does not serve the session, or a host could not be asked, with the words for it.
    met: Vec<(Option<Failure>, String)>,
}

impl Rounds<'_> {
    pub(super) fn new(what: &Search) -> Rounds<'_> {
        let [shortest, longest] = [50, 500].map(Duration::from_millis);
        Rounds {
            what,
            pause: Duration::from_millis(10) * 2u32.pow(what.futile.min(8)),
            longest_pause: (what.asked_timeout() / 16).clamp(shortest, longest),
            slow: 0,
            rejection: None,
            limit: Duration::ZERO,
            addresses: VecDeque::new(),
            met: Vec::new(),
        }
    }

    /// How long to wait before the first round: the longer, the more connections were lost at once.
    pub(super) fn first_pause(&self) -> Duration {
        if self.what.futile == 0 { Duration::ZERO } else { self.pause.min(self.longest_pause) }
    }

    /// Begins a round with these addresses, in this order, but with the server that was just lost as the
    /// last one; and with the reasons why there are no addresses of some hosts.
    pub(super) fn begin(&mut self, mut addresses: Vec<(SocketAddr, String)>, without: Vec<String>) {
        addresses.sort_by_key(|(address, _)| Some(*address) == self.what.avoid);
        let count = u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        // A new session is no worse if it comes late, and each attempt that is given up leaves one.
        let least = if self.what.session.is_some() { 250 } else { 5000 };
        let longest = (self.what.asked_timeout() * 2 / 3).max(Duration::from_millis(least));
        let limit = self.what.first_attempt(count) * 2u32.pow(self.slow.min(8));
        self.limit = limit.min(longest);
        self.addresses = addresses.into();
        self.met = without.into_iter().map(|why| (None, why)).collect();
    }

    /// The next address of the round; at its end, whether to give up or to begin another one.
    pub(crate) fn next(&mut self, now: Moment) -> Order {
        if let Some((Some(Failure::Expired), _)) = self.met.last() {
            return Order::Expired;
        }
        // Silent servers do not put off what another one has said.
        let limit = self.limit.min(self.time_for_others(now));
        match self.addresses.pop_front().filter(|_| !limit.is_zero()) {
            Some((address, name)) => Order::Ask(address, name, limit),
            None => self.end_round(now),
        }
    }

    /// Notes why an address does not serve the session.
    pub(super) fn failed(
        &mut self,
        address: SocketAddr,
        name: &str,
        failure: Failure,
        now: Moment,
    ) {
        let cause = match &failure {
            Failure::Rejected(why) => format!("{address}: {why}"),
            Failure::Distrust(why) => format!("{name} ({address}): {why}"),
            Failure::Other(cause) => format!("{address}: {cause}"),
            Failure::Expired => format!("{address}: the session has expired"),
            Failure::AnotherSession => {
                format!("{address}: the server answered with another session")
            }
        };
        if failure.may_be_rejection() {
            self.rejection.get_or_insert_with(|| (now, cause.clone()));
        }
        self.met.push((Some(failure), cause));
    }

    /// Whether a session that was granted is a new one that is over already. Each one makes the ensemble
    /// open a session and close it, so the pauses are long then.
    pub(super) fn is_useless(&mut self, granted: &Granted, now: Moment) -> bool {
        let Granted { server, timeout, sent, .. } = granted;
        let took = now.since(*sent);
        let is_useless = self.what.session.is_none() && took >= *timeout;
        if is_useless {
            self.pause = self.pause.max(Duration::from_millis(250));
            self.longest_pause = Duration::from_secs(5);
            let why =
                format!("the session timeout of {timeout:?} is below the round trip of {took:.1?}");
            self.failed(*server, "", io::Error::other(why).into(), now);
        }
        is_useless
    }

    /// How long other servers have, which may be about to start, until the one that has rejected a new
    /// session stands for those that do not answer.
    fn time_for_others(&self, now: Moment) -> Duration {
        match &self.rejection {
            Some((since, _)) if self.what.session.is_none() => {
                since.plus(self.what.config.connect_timeout / 2).since(now)
            }
            _ => Duration::MAX,
        }
    }

    fn end_round(&mut self, now: Moment) -> Order {
        let Search { session, config, .. } = self.what;
        let (met, mut causes): (Vec<_>, Vec<_>) = std::mem::take(&mut self.met).into_iter().unzip();
        let met_any = |is: &dyn Fn(&Failure) -> bool| met.iter().flatten().any(is);
        let met_only = |is: fn(&Failure) -> bool| {
            !met.is_empty() && met.iter().all(|failure| failure.as_ref().is_some_and(is))
        };
        if let Some(session) = session {
            let are_all_others = met_only(|failure| matches!(failure, Failure::AnotherSession));
            if are_all_others && config.resolver.replaced_sessions.replaced(session.session) {
                return Order::Expired;
            }
        }
        // An existing session is given up only if all servers reject the credentials; certificates may be
        // replaced before it ends.
        let is_over = self.time_for_others(now).is_zero();
        let is_rejected = match session {
            Some(_) => met_only(|failure| matches!(failure, Failure::Rejected(_))),
            None => met_only(Failure::is_rejection) || is_over,
        };
        if is_rejected {
            // The round may have ended before the server was asked that stands for all.
            let first = self.rejection.take().filter(|_| is_over).map(|(_, cause)| cause);
            causes.extend(first.filter(|cause| !causes.contains(cause)));
            return Order::Rejected(causes.join("; "));
        }
        if !met_any(&Failure::may_be_rejection) {
            self.rejection = None;
        }
        self.slow += u32::from(met_any(&|failure| failure.is_error(io::ErrorKind::TimedOut)));
        self.pause = (self.pause * 2).min(self.longest_pause);
        let why = if causes.is_empty() { self.what.no_address() } else { causes.join("; ") };
        Order::Pause(self.pause, why)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::super::handshake::properties::{SESSION, wanted};
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn at(milliseconds: u64) -> Moment {
        Moment::ZERO.plus(Duration::from_millis(milliseconds))
    }

    /// A search for a session of 4 s: for one that there is, or for a new one.
    fn among(known: bool) -> Search {
        let mut what = wanted(known);
        what.config.connect_timeout = LONG;
        what
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn start(rounds: &mut Rounds<'_>, ports: &[u16]) {
        let host = |port: &u16| (address(*port), format!("host{port}"));
        rounds.begin(ports.iter().map(host).collect(), Vec::new());
    }

    /// The limit of the attempt at this port, which is the next one.
    fn limit(rounds: &mut Rounds<'_>, now: Moment, port: u16) -> Duration {
        let order = rounds.next(now);
        let Order::Ask(asked, name, limit) = order else { panic!("{order:?}") };
        assert_eq!((asked, name), (address(port), format!("host{port}")));
        limit
    }

    fn failure(kind: io::ErrorKind) -> Failure {
        io::Error::new(kind, "of no use").into()
    }

    /// What follows a round in which each port fails in its way.
    fn round(rounds: &mut Rounds<'_>, now: Moment, outcomes: Vec<Failure>) -> Order {
        let ports: Vec<u16> = (1..).take(outcomes.len()).collect();
        start(rounds, &ports);
        for (port, outcome) in ports.into_iter().zip(outcomes) {
            limit(rounds, now, port);
            rounds.failed(address(port), &format!("host{port}"), outcome, now);
        }
        rounds.next(now)
    }

    fn rejected() -> Failure {
        Failure::Rejected("not you".to_owned())
    }

    fn distrusted() -> Failure {
        Failure::Distrust("not this one".to_owned())
    }

    fn refused() -> Failure {
        failure(io::ErrorKind::ConnectionRefused)
    }

    #[test]
    fn a_round_asks_each_address_and_the_one_that_was_lost_last() {
        let what = Search { avoid: Some(address(1)), ..among(true) };
        let mut rounds = Rounds::new(&what);
        start(&mut rounds, &[1, 2, 3]);
        for port in [2, 3, 1] {
            limit(&mut rounds, at(0), port);
            rounds.failed(address(port), "", refused(), at(0));
        }
        let why = "127.0.0.1:2: of no use; 127.0.0.1:3: of no use; 127.0.0.1:1: of no use";
        assert_eq!(rounds.next(at(0)), Order::Pause(Duration::from_millis(20), why.to_owned()));
    }

    #[test]
    fn pauses_grow_and_are_longer_from_the_start_where_connections_were_in_vain() {
        for (futile, first, later) in [(0, 0, [20, 40, 80, 160]), (3, 80, [160, 250, 250, 250])] {
            let what = Search { futile, ..among(true) };
            let mut rounds = Rounds::new(&what);
            assert_eq!(rounds.first_pause(), Duration::from_millis(first));
            for pause in later {
                rounds.begin(Vec::new(), vec!["no address".to_owned()]);
                let next = Order::Pause(Duration::from_millis(pause), "no address".to_owned());
                assert_eq!(rounds.next(at(0)), next);
            }
        }
    }

    #[test]
    fn only_slow_servers_are_given_more_time() {
        let (what, mut limits) = (among(true), Vec::new());
        let mut rounds = Rounds::new(&what);
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut].repeat(3) {
            start(&mut rounds, &[1]);
            limits.push(limit(&mut rounds, at(0), 1).as_millis());
            rounds.failed(address(1), "", failure(kind), at(0));
            assert!(matches!(rounds.next(at(0)), Order::Pause(..)));
        }
        assert_eq!(limits, [666, 666, 1333, 1333, 2666, 2666]);
    }

    #[test]
    fn a_session_is_given_up_only_if_all_servers_reject_the_credentials() {
        let what = among(true);
        let mut rounds = Rounds::new(&what);
        for outcomes in [
            vec![rejected(), refused()],
            vec![rejected(), distrusted()],
            vec![distrusted(), distrusted()],
            vec![failure(io::ErrorKind::PermissionDenied)],
        ] {
            let order = round(&mut rounds, at(0), outcomes);
            assert!(matches!(order, Order::Pause(..)), "{order:?}");
        }
        rounds.begin(vec![(address(1), "host1".to_owned())], vec!["no address".to_owned()]);
        limit(&mut rounds, at(0), 1);
        rounds.failed(address(1), "", rejected(), at(0));
        assert!(matches!(rounds.next(at(0)), Order::Pause(..)), "a host was not asked");
        let order = round(&mut rounds, at(0), vec![rejected(), rejected()]);
        let why = "127.0.0.1:1: not you; 127.0.0.1:2: not you".to_owned();
        assert_eq!(order, Order::Rejected(why));
    }

    #[test]
    fn a_new_session_is_given_up_if_no_server_and_the_client_trust_each_other() {
        let what = among(false);
        let order = round(&mut Rounds::new(&what), at(0), vec![rejected(), distrusted()]);
        let why = "127.0.0.1:1: not you; host2 (127.0.0.1:2): not this one".to_owned();
        assert_eq!(order, Order::Rejected(why));
    }

    /// Half of the connect timeout is 30 s.
    #[test]
    fn a_rejection_of_a_new_session_stands_for_servers_that_do_not_answer_for_long() {
        let what = among(false);
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ConnectionRefused] {
            let mut rounds = Rounds::new(&what);
            let order = round(&mut rounds, at(1_000), vec![refused(), failure(kind)]);
            assert!(matches!(order, Order::Pause(..)), "{order:?}");
            start(&mut rounds, &[1, 2]);
            let is_limited = kind == io::ErrorKind::PermissionDenied;
            let left = limit(&mut rounds, at(30_990), 1) == Duration::from_millis(10);
            assert_eq!(left, is_limited, "the first one must not put it off");
            rounds.failed(address(1), "", refused(), at(31_000));
            let order = rounds.next(at(31_000));
            let why = "127.0.0.1:1: of no use; 127.0.0.1:2: of no use".to_owned();
            assert_eq!(order == Order::Rejected(why), is_limited, "{order:?}");
        }
        // It is forgotten after a round without one.
        let mut rounds = Rounds::new(&what);
        round(&mut rounds, at(1_000), vec![refused(), rejected()]);
        round(&mut rounds, at(2_000), vec![refused(), refused()]);
        let order = round(&mut rounds, at(40_000), vec![refused(), rejected()]);
        assert!(matches!(order, Order::Pause(..)), "{order:?}");
    }

    #[test]
    fn an_expired_session_ends_the_search_and_so_does_the_second_one_that_is_replaced() {
        let mut what = among(true);
        let replaced = || vec![Failure::AnotherSession, Failure::AnotherSession];
        let order = round(&mut Rounds::new(&what), at(0), replaced());
        assert!(matches!(order, Order::Pause(..)), "{order:?}");
        if let Some(session) = &mut what.session {
            session.session = SESSION + 1;
        }
        let mut rounds = Rounds::new(&what);
        let order = round(&mut rounds, at(0), vec![Failure::AnotherSession, refused()]);
        assert!(matches!(order, Order::Pause(..)), "another one may go on with it: {order:?}");
        assert_eq!(round(&mut rounds, at(0), replaced()), Order::Expired);
        start(&mut rounds, &[1, 2]);
        limit(&mut rounds, at(0), 1);
        rounds.failed(address(1), "", Failure::Expired, at(0));
        assert_eq!(rounds.next(at(0)), Order::Expired, "the other one is not asked");
    }

    #[test]
    fn a_new_session_that_is_over_already_is_asked_for_less_and_less() {
        let granted = wanted(true).session.unwrap();
        let (in_time, late) = (at(3_999), at(4_000));
        assert!(!Rounds::new(&among(true)).is_useless(&granted, late), "it is not a new one");
        let what = among(false);
        let mut rounds = Rounds::new(&what);
        assert!(!rounds.is_useless(&granted, in_time));
        for milliseconds in [500, 1000, 2000, 4000, 5000, 5000] {
            assert!(rounds.is_useless(&granted, late));
            let order = rounds.next(late);
            let Order::Pause(pause, why) = order else { panic!("{order:?}") };
            assert_eq!(pause, Duration::from_millis(milliseconds));
            assert!(why.ends_with("timeout of 4s is below the round trip of 4.0s"), "{why}");
        }
    }
}
