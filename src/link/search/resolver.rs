//! The addresses of the servers: resolves host names anew each time.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::Level;

use super::outage_log::OutageLog;
use crate::connect_string::Host;
use crate::link::log_thread::write_soon;
use crate::link::protocol::{ReplacedSessions, UnsupportedOperations};
use crate::rt::{self, AtomicI64, Mutex, Sender, bounded};

/// Resolves host names anew each time, and uses the last known addresses as long as that fails.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    hosts: Mutex<Vec<Host>>,
    known: Mutex<HashMap<Host, Known>>,
    pub(crate) outage: OutageLog,
    pub(crate) replaced_sessions: ReplacedSessions,
    pub(crate) unsupported_operations: Arc<UnsupportedOperations>,
    /// The greatest zxid that any session of these servers has seen.
    last_zxid: AtomicI64,
    /// The least and the greatest session timeout that a server has granted.
    grants: Mutex<Option<(Duration, Duration)>>,
}

#[derive(Debug, Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    asking: bool,
    /// Why the last attempt to resolve the name failed, if it did.
    failure: Option<String>,
}

impl Resolver {
    pub(crate) fn new(hosts: Vec<Host>) -> Arc<Resolver> {
        Arc::new(Resolver { hosts: Mutex::new(hosts), ..Resolver::default() })
    }

    /// Notes the zxid that a session has seen, its `first` one or a later one, and warns if an earlier
    /// session has seen a greater one. To open a session is a change, too, so that means that changes were
    /// lost.
    pub(crate) fn note_zxid(&self, zxid: i64, is_first: bool) {
        let before = self.last_zxid.fetch_max(zxid, Ordering::AcqRel);
        if is_first && zxid < before {
            self.last_zxid.store(zxid, Ordering::Release);
            write_soon(
                Level::Warn,
                format_args!(
                    "the ensemble has lost data, or was made anew: its last change is 0x{zxid:x}, and an earlier \
                 session has seen 0x{before:x}; fencing tokens begin anew, too"
                ),
            );
        }
    }

    /// Notes a session timeout that a server has granted.
    pub(crate) fn note_grant(&self, timeout: Duration) {
        let mut grants = self.grants.lock();
        let (least, greatest) = grants.unwrap_or((timeout, timeout));
        *grants = Some((least.min(timeout), greatest.max(timeout)));
    }

    /// The least session timeout that a server has granted, if others have granted more.
    pub(crate) fn least_grant(&self) -> Option<Duration> {
        let (least, greatest) = (*self.grants.lock())?;
        (least < greatest).then_some(least)
    }

    /// Why the last search found no server, in an outage.
    pub(crate) fn why_no_server(&self) -> Option<String> {
        self.outage.why()
    }

    /// From its next round on, a search uses these hosts.
    pub(crate) fn set_hosts(&self, hosts: Vec<Host>) {
        self.known.lock().retain(|host, _| hosts.contains(host));
        let before = std::mem::replace(&mut *self.hosts.lock(), hosts.clone());
        let are_all_in = |these: &[Host], those: &[Host]| these.iter().all(|it| those.contains(it));
        if !(are_all_in(&before, &hosts) && are_all_in(&hosts, &before)) {
            self.unsupported_operations.forget();
            self.replaced_sessions.forget();
            *self.grants.lock() = None;
        }
    }

    /// The addresses of all hosts with the hosts' names, sorted; waits up to `limit` for name servers.
    pub(super) fn addresses(self: &Arc<Self>, limit: Duration) -> Vec<(SocketAddr, String)> {
        let hosts = self.hosts.lock().clone();
        let (done, answers) = bounded(hosts.len());
        let mut asked = 0;
        let mut found: Vec<(SocketAddr, String)> = Vec::new();
        let mut names = Vec::new();
        for host in hosts {
            if let Some(address) = host.literal() {
                found.push((address, host.name));
            } else if !names.contains(&host) {
                asked += usize::from(self.ask(&host, done.clone()));
                names.push(host);
            }
        }
        let end = rt::now() + limit;
        let _ = (0..asked).all(|_| answers.recv_deadline(end).is_ok());
        let known = self.known.lock();
        for host in &names {
            let addresses = known.get(host).into_iter().flat_map(|known| &known.addresses);
            found.extend(addresses.map(|address| (*address, host.name.clone())));
        }
        drop(known);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn ask(self: &Arc<Self>, host: &Host, done: Sender<()>) -> bool {
        let mut known = self.known.lock();
        if std::mem::replace(&mut known.entry(host.clone()).or_default().asking, true) {
            return false;
        }
        drop(known);
        let (resolver, asked) = (Arc::clone(self), host.clone());
        let started = rt::spawn("zklock-resolve", move || {
            let answer = (asked.name.as_str(), asked.port).to_socket_addrs();
            resolver.learn(&asked, answer.map(Iterator::collect));
            let _ = done.try_send(());
        });
        if started.is_err() {
            self.known.lock().entry(host.clone()).or_default().asking = false;
        }
        started.is_ok()
    }

    fn learn(&self, host: &Host, answer: io::Result<Vec<SocketAddr>>) {
        let mut known = self.known.lock();
        // It may no longer be one of the hosts.
        let Some(entry) = known.get_mut(host) else { return };
        entry.asking = false;
        match answer {
            Ok(addresses) => {
                entry.addresses = addresses;
                entry.failure = None;
            }
            Err(cause) => {
                let is_new = entry.failure.replace(cause.to_string()).is_none();
                drop(known);
                if is_new {
                    write_soon(
                        Level::Warn,
                        format_args!("the host {host} cannot be resolved: {cause}"),
                    );
                }
            }
        }
    }

    /// Why there are no addresses of some hosts, a reason for each.
    pub(super) fn failures(&self) -> Vec<String> {
        let known = self.known.lock();
        let without = |host: &&Host| known.get(host).is_none_or(|known| known.addresses.is_empty());
        let reason = |host: &Host| match known.get(host).and_then(|known| known.failure.as_ref()) {
            Some(failure) => format!("{host}: {failure}"),
            None => format!("{host}: its name is not resolved yet"),
        };
        let hosts = self.hosts.lock();
        hosts.iter().filter(|host| host.literal().is_none()).filter(without).map(reason).collect()
    }
}

impl std::fmt::Display for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hosts: Vec<String> = self.hosts.lock().iter().map(Host::to_string).collect();
        f.write_str(&hosts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::rt::Moment;
    use crate::wire_values::op;

    #[test]
    fn what_was_learned_of_servers_is_forgotten_when_they_are_others() {
        let host = |port| Host { name: "127.0.0.1".to_owned(), port };
        let (now, operation) = (Moment::now(), op::CREATE_CONTAINER);
        let resolver = Resolver::new(vec![host(1), host(2)]);
        let knows_not = || resolver.unsupported_operations.is_unknown(operation, now);
        resolver.unsupported_operations.learn(operation, now);
        resolver.set_hosts(vec![host(2), host(1)]);
        assert!(knows_not(), "they are the same");
        for hosts in [vec![host(1)], vec![host(1), host(3)]] {
            resolver.unsupported_operations.learn(operation, now);
            assert!(!resolver.replaced_sessions.replaced(1));
            resolver.set_hosts(hosts);
            assert!(!knows_not());
            assert!(!resolver.replaced_sessions.replaced(2));
            resolver.replaced_sessions.forget();
        }
    }

    #[test]
    fn the_least_grant_is_known_once_servers_have_granted_different_ones() {
        let resolver = Resolver::new(Vec::new());
        let note = |grant: u64| {
            resolver.note_grant(Duration::from_secs(grant));
            resolver.least_grant().map(|least| least.as_secs())
        };
        assert_eq!([10, 10, 20, 4, 10].map(note), [None, None, Some(10), Some(4), Some(4)]);
        resolver.set_hosts(vec![Host { name: "127.0.0.1".to_owned(), port: 1 }]);
        assert_eq!(note(10), None);
    }

    #[test]
    fn a_late_answer_about_a_former_host_is_not_kept() {
        // No name server is asked for this name.
        let host = Host { name: "no..name".to_owned(), port: 1 };
        let resolver = Resolver::new(vec![host.clone()]);
        resolver.known.lock().entry(host.clone()).or_default().asking = true;
        resolver.set_hosts(vec![Host { name: "127.0.0.1".to_owned(), port: 1 }]);
        resolver.learn(&host, Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 1))]));
        assert!(resolver.known.lock().is_empty());
    }
}
