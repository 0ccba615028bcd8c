//! How often, and for how long, each client held a lock while it was watched.

use std::time::{Duration, Instant};

use zklock::Contender;

use crate::words::client;

/// What one client had of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Without the process, which is another one for each run of a job.
    pub(crate) client: String,
    /// How many of its contenders were seen to hold.
    pub(crate) times: u32,
    /// How long at least one of them held.
    pub(crate) held: Duration,
}

/// Collects the shares of what is seen.
#[derive(Debug)]
pub(crate) struct Shares {
    all: Vec<Share>,
    /// Who holds, by node and client.
    holders: Vec<(String, String)>,
    start: Instant,
    /// Until when it is counted.
    since: Instant,
    /// For how long it was not known who holds.
    unknown: Duration,
    is_known: bool,
}

impl Shares {
    pub(crate) fn since(start: Instant) -> Shares {
        Shares {
            all: Vec::new(),
            holders: Vec::new(),
            start,
            since: start,
            unknown: Duration::ZERO,
            is_known: true,
        }
    }

    /// For how long it has been watched.
    pub(crate) fn span(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    /// From now on, these hold.
    pub(crate) fn held_by(&mut self, holders: &[Contender], now: Instant) {
        self.hold(holders.iter().map(|one| (one.path.clone(), client(one))).collect(), now);
    }

    fn hold(&mut self, mut seen: Vec<(String, String)>, now: Instant) {
        self.count_until(now);
        for (node, client) in &mut seen {
            match self.holders.iter().find(|(before, _)| before == node) {
                // A request to release has taken the place of what it told.
                Some((_, told)) => client.clone_from(told),
                None => self.of(client).times += 1,
            }
        }
        self.holders = seen;
    }

    /// From now on, it is known who holds, or it is not.
    pub(crate) fn set_known(&mut self, is_known: bool, now: Instant) {
        self.count_until(now);
        self.is_known = is_known;
    }

    /// The shares, the longest first, and for how long it was not known who holds.
    pub(crate) fn until(mut self, end: Instant) -> (Vec<Share>, Duration) {
        self.count_until(end);
        self.all.sort_by_key(|one| std::cmp::Reverse(one.held));
        (self.all, self.unknown)
    }

    fn count_until(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.since);
        self.since = now;
        if !self.is_known {
            self.unknown += time;
            return;
        }
        let mut clients: Vec<String> =
            self.holders.iter().map(|(_, client)| client.clone()).collect();
        clients.sort();
        clients.dedup();
        for client in clients {
            self.of(&client).held += time;
        }
    }

    fn of(&mut self, client: &str) -> &mut Share {
        let at = self.all.iter().position(|one| one.client == client).unwrap_or_else(|| {
            let none = Share { client: client.to_owned(), times: 0, held: Duration::ZERO };
            self.all.push(none);
            self.all.len() - 1
        });
        &mut self.all[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_share_of_the_time_in_which_it_is_known_who_holds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let holds = |node: &str, client: &str| (node.to_owned(), client.to_owned());
        let mut shares = Shares::since(start);
        // Two readers of one client hold together; one of them goes on.
        shares.hold(vec![holds("/a/1", "web1"), holds("/a/2", "web1")], at(2));
        shares.hold(vec![holds("/a/2", "session 0x1")], at(5));
        shares.hold(Vec::new(), at(6));
        shares.hold(vec![holds("/a/3", "web2")], at(10));
        shares.set_known(false, at(11));
        shares.set_known(true, at(31));
        shares.hold(vec![holds("/a/4", "web2")], at(31));
        let (all, unknown) = shares.until(at(40));
        let share = |client: &str, times, seconds| Share {
            client: client.to_owned(),
            times,
            held: Duration::from_secs(seconds),
        };
        assert_eq!(all, [share("web2", 2, 10), share("web1", 2, 4)]);
        assert_eq!(unknown, Duration::from_secs(20));
    }
}
