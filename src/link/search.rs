//! The search for a server that serves the session.
//!
//! It runs on a thread of its own, so that neither a name server nor a silent host can
//! hold up the link.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::attempts::News;
use super::frame::Frame;
use super::handshake::{Dialed, Failure, Wanted, is_stopped, pause, try_address};
use super::resolver::Resolver;
use crate::error;
use crate::rt::{self, Moment, Receiver, Sender, bounded};
use crate::wire_values::op;

/// What to ask the servers for, and how to search for one that gives it.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) wanted: Wanted,
    /// The server that was just lost; it is tried last.
    pub(crate) avoid: Option<SocketAddr>,
    /// How long the last reply took.
    pub(crate) round_trip: Duration,
    /// How long the caller waits for a new session.
    pub(crate) patience: Duration,
    /// How many connections in a row were lost soon after they were made.
    pub(crate) futile: u32,
}

impl Search {
    /// How long the first attempt at each address may take: long enough for the handshakes, short
    /// enough to try all `addresses` in time.
    fn first_attempt(&self, timeout: Duration, addresses: u32) -> Duration {
        let access = &self.wanted.access;
        let handshakes = 1 + u32::from(access.tls.is_some()) + u32::from(access.sasl.is_some());
        let share = (timeout / 6 / addresses)
            .clamp(Duration::from_millis(150) * handshakes, Duration::from_secs(1))
            .max(self.round_trip * 4);
        match self.wanted.session {
            Some(_) => share,
            None => share.min(self.patience / addresses.saturating_add(1)),
        }
    }
}

const AFTER_A_PANIC: Duration = Duration::from_millis(100);

/// A search for a server; it goes on until it succeeds or this is dropped.
#[derive(Debug)]
pub(crate) struct Dial {
    _stop: Sender<()>,
}

impl Dial {
    /// Starts a search; `trouble` is called with each reason why no server is found yet.
    pub(crate) fn start(
        what: Search,
        found: impl FnOnce(Dialed) + Send + 'static,
        trouble: impl Fn(&str) + Send + 'static,
    ) -> error::Result<Dial> {
        let (stop, stopped) = bounded(0);
        rt::spawn("zklock-dial", move || {
            let result = loop {
                // What is called here, such as a logger, may panic: that must not cost the session.
                match catch_unwind(AssertUnwindSafe(|| search(&what, &stopped, &trouble))) {
                    Ok(result) => break result,
                    Err(_) if rest(&stopped, AFTER_A_PANIC).is_none() => break None,
                    Err(_) => {}
                }
            };
            if let Some(result) = result {
                if !is_stopped(&stopped) {
                    found(result);
                } else if what.wanted.session.is_none() {
                    result.abandon();
                }
            }
        })?;
        Ok(Dial { _stop: stop })
    }
}

fn search(what: &Search, stopped: &Receiver<()>, trouble: &impl Fn(&str)) -> Option<Dialed> {
    let wanted = &what.wanted;
    let timeout = wanted.session.as_ref().map_or(wanted.timeout, |session| session.timeout);
    let mut longest_pause =
        (timeout / 16).clamp(Duration::from_millis(50), Duration::from_millis(500));
    // A new session is no worse if it comes late, and each attempt that is given up leaves one.
    let least = if wanted.session.is_some() { 250 } else { 5000 };
    let longest_attempt = (timeout * 2 / 3).max(Duration::from_millis(least));
    let mut pause = Duration::from_millis(10) * 2u32.pow(what.futile.min(8));
    // Counts only rounds in which a server was too slow: more time helps with nothing else.
    let mut slow_rounds = 0u32;
    // Since when each round has met a server that may have rejected the client, and the first one's reason.
    let mut rejection: Option<(Moment, String)> = None;
    // Later rounds leave the reasons of the one before to be reported.
    let mut is_first = true;
    let unknown = format!("no address is known yet for {}", what.resolver);
    trouble(&unknown);
    if what.futile > 0 {
        rest(stopped, pause.min(longest_pause))?;
    }
    loop {
        let mut addresses = what.resolver.addresses(Duration::from_secs(1).min(timeout / 4));
        if wanted.access.tls.is_none() {
            // Under which of its names a server is asked matters only to its certificate.
            addresses.dedup_by_key(|(address, _)| *address);
        }
        shuffle(&mut addresses);
        if let Some(avoid) = what.avoid {
            addresses.sort_by_key(|(address, _)| *address == avoid);
        }
        let count = u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let attempt = what.first_attempt(timeout, count);
        let attempt = (attempt * 2u32.pow(slow_rounds.min(8))).min(longest_attempt);
        let (mut slow, mut rejected, mut distrusted, mut unsure) = (false, 0, 0, 0);
        let mut others = 0;
        let mut causes = what.resolver.failures();
        let all_are_asked = causes.is_empty();
        for (address, name) in addresses {
            if is_stopped(stopped) {
                return None;
            }
            // Silent servers do not put off what another one has said.
            let attempt = match rejection.as_ref().filter(|_| wanted.session.is_none()) {
                None => attempt,
                Some((since, _)) => attempt.min(since.plus(what.patience / 2).since(Moment::now())),
            };
            if attempt.is_zero() {
                break;
            }
            if is_first {
                trouble(&format!("{address} has not answered yet"));
            }
            match try_until_fast(wanted, address, &name, attempt, stopped) {
                // Another server may accept them.
                Ok(Dialed::AuthFailed(why)) => {
                    rejected += 1;
                    let cause = format!("{address}: {why}");
                    rejection.get_or_insert_with(|| (Moment::now(), cause.clone()));
                    causes.push(cause);
                }
                Ok(Dialed::Server { mut stream, granted, .. })
                    if wanted.session.is_none()
                        && granted.sent.plus(granted.timeout) <= Moment::now() =>
                {
                    let _ = stream.send_all(&Frame::request(1, op::CLOSE_SESSION).finish());
                    causes.push(format!(
                        "{address}: the session timeout of {:?} is below the round trip of {:.1?}",
                        granted.timeout,
                        Moment::now().since(granted.sent)
                    ));
                    // Each attempt makes the ensemble open a session, and close it.
                    pause = pause.max(Duration::from_millis(250));
                    longest_pause = Duration::from_secs(5);
                }
                Ok(found) => {
                    if wanted.session.is_some() && matches!(found, Dialed::Server { .. }) {
                        what.resolver.reattachments.went_on();
                    }
                    return Some(found);
                }
                Err(_) if is_stopped(stopped) => return None,
                Err(Failure::AnotherSession) => {
                    others += 1;
                    causes.push(format!("{address}: the server answered with another session"));
                }
                Err(Failure::Distrust(why)) => {
                    distrusted += 1;
                    let cause = format!("{name} ({address}): {why}");
                    rejection.get_or_insert_with(|| (Moment::now(), cause.clone()));
                    causes.push(cause);
                }
                Err(Failure::Other(cause)) => {
                    slow |= cause.kind() == io::ErrorKind::TimedOut;
                    let is_rejection = cause.kind() == io::ErrorKind::PermissionDenied;
                    let cause = format!("{address}: {cause}");
                    if is_rejection {
                        unsure += 1;
                        rejection.get_or_insert_with(|| (Moment::now(), cause.clone()));
                    }
                    causes.push(cause);
                }
            }
        }
        if let Some(session) = wanted.session.as_ref().filter(|_| others == count && all_are_asked)
        {
            if what.resolver.reattachments.replaced(session.session) {
                return Some(Dialed::Expired);
            }
        }
        // An existing session is given up only if all servers reject the credentials; certificates may be
        // replaced before it ends. For a new one, a server that lets nobody in stands for those that do
        // not answer if they do not for long: others may be about to start.
        let refused = rejected + distrusted;
        let is_old = |since: Moment| Moment::now().since(since) >= what.patience / 2;
        let lasting = rejection.take_if(|(since, _)| is_old(*since) && wanted.session.is_none());
        if let Some((_, cause)) = &lasting {
            // The round may have ended before that server was asked.
            if !causes.contains(cause) {
                causes.push(cause.clone());
            }
        }
        let is_refused = match wanted.session {
            Some(_) => rejected == count && all_are_asked,
            None => refused == count && all_are_asked || lasting.is_some(),
        };
        if is_refused {
            return Some(Dialed::AuthFailed(causes.join("; ")));
        }
        if refused + unsure == 0 {
            rejection = None;
        }
        slow_rounds += u32::from(slow);
        is_first = false;
        let why = if causes.is_empty() { unknown.clone() } else { causes.join("; ") };
        trouble(&why);
        what.resolver.outage.no_server(Moment::now(), &why);
        pause = (pause * 2).min(longest_pause);
        rest(stopped, pause)?;
    }
}

/// Asks this address for the session, and asks it again, twice at most, if the answer took so long that
/// the lease could hardly be renewed in time: nothing is under way on the connection yet that could be
/// lost by that.
fn try_until_fast(
    wanted: &Wanted,
    address: SocketAddr,
    name: &str,
    limit: Duration,
    stopped: &Receiver<()>,
) -> Result<Dialed, Failure> {
    let mut found = try_address(wanted, address, name, limit, stopped);
    let mut least = Duration::MAX;
    for _ in 0..2 {
        let Ok(Dialed::Server { granted, .. }) = &found else { break };
        let took = Moment::now().since(granted.sent);
        // One that took longer than the session timeout is too far away: that is told.
        if took >= least.min(granted.timeout) || !granted.terms().is_slow(took) {
            break;
        }
        // If another answer would count from the same earlier attempt, it would only cost time.
        let settle_time = granted.terms().settle_time();
        if wanted.attempts.earliest(Moment::now(), settle_time) <= granted.sent {
            break;
        }
        least = took;
        let before = granted.clone();
        // The lease that there is may end before the next answer, which may be slow, too.
        wanted.attempts.tell(News::Granted(before.clone()));
        let again = Wanted { session: Some(before.clone()), ..wanted.clone() };
        // One that is not much faster is not worth what it takes of the lease.
        match try_address(&again, address, name, limit.min(took / 2), stopped) {
            Ok(Dialed::Server { stream, granted }) => {
                found = Ok(Dialed::Server { stream, granted: granted.since(&before) });
            }
            // The link finds out whether the connection that there is still works.
            _ => break,
        }
    }
    found
}

/// Sleeps for about this time; `None` when the search is to end.
fn rest(stopped: &Receiver<()>, time: Duration) -> Option<()> {
    pause(stopped, time / 2 + time.mul_f64(random_fraction())).ok()
}

/// In 0..1.
fn random_fraction() -> f64 {
    (rt::random() & 0xffff) as f64 / 65_536.0
}

fn shuffle<T>(items: &mut [T]) {
    for end in (1..items.len()).rev() {
        let other = (rt::random() & 0xffff_ffff) as usize % (end + 1);
        items.swap(end, other);
    }
}

#[cfg(test)]
#[path = "tests/search_tests.rs"]
mod tests;
