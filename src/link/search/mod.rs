//! The search for a server that serves the session.
//!
//! It runs on a thread of its own, so that neither a name server nor a silent host can
//! hold up the link.

mod config;
mod handshake;
mod outage_log;
mod reconnects_in_doubt;
mod resolver;
mod rounds;

pub(crate) use config::LinkConfig;
pub(crate) use reconnects_in_doubt::{Attempts, News};
pub(crate) use resolver::Resolver;
pub(crate) use rounds::Search;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::error;
use crate::link::protocol::Granted;
use crate::link::transport::{Failure, ServerStream};
use crate::rt::{self, Moment, Receiver, Sender, bounded};
use handshake::{close_session, is_stopped, pause, try_address};
use rounds::{Order, Rounds};

/// How a search for a server ended.
#[derive(Debug)]
pub(crate) enum Dialed {
    Server(ServerStream, Granted),
    Expired,
    /// No server lets the client in with what it shows, or the client trusts none; with the reasons.
    AuthFailed(String),
}

impl Dialed {
    /// Closes a new session that is no longer wanted.
    pub(super) fn abandon(self) {
        if let Dialed::Server(mut stream, _) = self {
            close_session(&mut stream);
        }
    }
}

const AFTER_A_PANIC: Duration = Duration::from_millis(100);

/// Starts a search; `trouble` is called with each reason why no server is found yet. It goes on until it
/// succeeds or what this returns is dropped.
pub(super) fn start_search(
    what: Search,
    found: impl FnOnce(Dialed) + Send + 'static,
    trouble: impl Fn(&str) + Send + 'static,
) -> error::Result<Sender<()>> {
    let (stop, stopped) = bounded(0);
    rt::spawn("zklock-dial", move || {
        let result = loop {
            // What is called here may panic: that must not cost the session.
            match catch_unwind(AssertUnwindSafe(|| search(&what, &stopped, &trouble))) {
                Ok(result) => break result,
                Err(_) if rest(&stopped, AFTER_A_PANIC).is_none() => break None,
                Err(_) => {}
            }
        };
        if let Some(result) = result {
            if !is_stopped(&stopped) {
                found(result);
            } else if what.session.is_none() {
                result.abandon();
            }
        }
    })?;
    Ok(stop)
}

/// Asks servers for what is wanted, as [`Rounds`] says, until that ends or nobody waits for it.
fn search(what: &Search, stopped: &Receiver<()>, trouble: &impl Fn(&str)) -> Option<Dialed> {
    let (mut rounds, mut is_first) = (Rounds::new(what), true);
    trouble(&what.no_address());
    rest(stopped, rounds.first_pause())?;
    rounds.begin(addresses(what), what.config.resolver.failures());
    while !is_stopped(stopped) {
        match rounds.next(Moment::now()) {
            Order::Ask(address, name, limit) => {
                // Later rounds leave the reasons of the one before to be reported.
                if is_first {
                    trouble(&format!("{address} has not answered yet"));
                }
                match try_until_fast(what, address, &name, limit, stopped) {
                    Ok((mut stream, granted)) if rounds.is_useless(&granted, Moment::now()) => {
                        close_session(&mut stream);
                    }
                    Ok((stream, granted)) => {
                        if what.session.is_some() {
                            what.config.resolver.replaced_sessions.went_on();
                        }
                        return Some(Dialed::Server(stream, granted));
                    }
                    Err(failure) => rounds.failed(address, &name, failure, Moment::now()),
                }
            }
            Order::Pause(time, why) => {
                is_first = false;
                trouble(&why);
                what.config.resolver.outage.no_server(Moment::now(), &why);
                rest(stopped, time)?;
                rounds.begin(addresses(what), what.config.resolver.failures());
            }
            Order::Expired => return Some(Dialed::Expired),
            Order::Rejected(why) => return Some(Dialed::AuthFailed(why)),
        }
    }
    None
}

/// The servers' addresses with their hosts' names, in another order each time.
fn addresses(what: &Search) -> Vec<(SocketAddr, String)> {
    let limit = Duration::from_secs(1).min(what.asked_timeout() / 4);
    let mut addresses = what.config.resolver.addresses(limit);
    if what.config.access.tls.is_none() {
        // Under which of its names a server is asked matters only to its certificate.
        addresses.dedup_by_key(|(address, _)| *address);
    }
    for end in (1..addresses.len()).rev() {
        addresses.swap(end, (rt::random() & 0xffff_ffff) as usize % (end + 1));
    }
    addresses
}

/// Asks this address for the session, and asks it again, twice at most, if the answer took so long that
/// the lease could hardly be renewed in time: nothing is under way on the connection yet that could be
/// lost by that.
fn try_until_fast(
    wanted: &Search,
    address: SocketAddr,
    name: &str,
    limit: Duration,
    stopped: &Receiver<()>,
) -> Result<(ServerStream, Granted), Failure> {
    let mut found = try_address(wanted, address, name, limit, stopped)?;
    let mut least = Duration::MAX;
    for _ in 0..2 {
        let before = found.1.clone();
        let took = Moment::now().since(before.sent);
        // One that took longer than the session timeout is too far away: that is told.
        if took >= least.min(before.timeout) || !before.terms().is_slow(took) {
            break;
        }
        // If another answer would count from the same earlier attempt, it would only cost time.
        let settle_time = before.terms().settle_time();
        if wanted.attempts.earliest(Moment::now(), settle_time) <= before.sent {
            break;
        }
        least = took;
        // The lease that there is may end before the next answer, which may be slow, too.
        wanted.attempts.tell(News::Granted(before.clone()));
        let again = Search { session: Some(before.clone()), ..wanted.clone() };
        // One that is not much faster is not worth what it takes of the lease. The link finds out whether
        // the connection that there still is works.
        let faster = try_address(&again, address, name, limit.min(took / 2), stopped);
        let Ok((stream, granted)) = faster else { break };
        found = (stream, granted.since(&before));
    }
    Ok(found)
}

/// Sleeps for about this time; `None` when the search is to end.
fn rest(stopped: &Receiver<()>, time: Duration) -> Option<()> {
    let fraction = (rt::random() & 0xffff) as f64 / 65_536.0;
    pause(stopped, time / 2 + time.mul_f64(fraction)).ok()
}

#[cfg(test)]
#[path = "../../../tests/link/search_thread_tests.rs"]
mod tests;
