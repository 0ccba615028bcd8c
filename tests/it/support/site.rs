//! A server and a base path for one test, and the check that the test leaves nothing behind.

use std::time::Duration;

use zklock::{Client, ClientBuilder};

use super::proxy::Proxy;
use super::raw::{Raw, SESSION_EXPIRED};
use super::server::{Builder, Server};
use super::transport::Transport;
use super::{QUIET, alone, connecting, eventually, last, shared_hosts, threads_named, unique_base};

const SOON: Duration = Duration::from_secs(15);

/// A server, shared or the test's own, and a base path of the test's own.
pub(crate) struct Site {
    server: Option<Server>,
    hosts: String,
    pub(crate) base: String,
}

impl Site {
    /// On the server that tests share and do not disturb.
    pub(crate) fn shared(test: &str) -> Site {
        Site { server: None, hosts: shared_hosts().to_owned(), base: unique_base(test) }
    }

    /// On a server of its own.
    pub(crate) fn own(test: &str) -> Site {
        Site::with(test, &Server::builder())
    }

    /// On a server of its own, with the builder's settings.
    pub(crate) fn with(test: &str, builder: &Builder) -> Site {
        let server = Site::start(builder);
        Site { hosts: server.hosts(), server: Some(server), base: unique_base(test) }
    }

    /// A server that speaks what the environment asks for.
    pub(crate) fn start(builder: &Builder) -> Server {
        Transport::wanted().server(builder.clone()).start().expect("a server")
    }

    pub(crate) fn hosts(&self) -> &str {
        &self.hosts
    }

    /// The test's own server.
    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("a server of the test's own")
    }

    /// A client with the default settings, except for [`Site::builder`]'s session timeout.
    pub(crate) fn client(&self) -> Client {
        self.builder().connect().expect("a client")
    }

    /// A client of the test's own server, behind a proxy that can misbehave.
    pub(crate) fn proxied(&self, session_timeout: Duration) -> (Proxy, Client) {
        let proxy = Proxy::start(self.server().addr());
        let builder = connecting(&proxy.hosts()).session_timeout(session_timeout);
        let client = builder.connect().expect("a client");
        (proxy, client)
    }

    /// A client whose session survives any delay on a busy machine.
    pub(crate) fn quiet_client(&self) -> Client {
        self.builder().session_timeout(QUIET).connect().expect("a client")
    }

    /// Ends the session of the proxy's only client at the server, and lets the client find out.
    pub(crate) fn expire(&self, proxy: &Proxy) {
        proxy.refuse();
        let (session, password) = proxy.session();
        let ended = Raw::resume(&self.hosts, QUIET, session, &password).and_then(Raw::close);
        // If the machine stalled, the session may have expired already.
        let expired = Some(SESSION_EXPIRED);
        assert!(ended.as_ref().err().is_none_or(|why| why.code() == expired), "{ended:?}");
        proxy.release();
    }

    /// A builder whose session survives the stalls of a busy machine, and still has frequent
    /// heartbeats.
    pub(crate) fn builder(&self) -> ClientBuilder {
        connecting(&self.hosts).session_timeout(Duration::from_secs(10))
    }

    /// A connection of an independent client, to inspect and change nodes.
    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(&self.hosts, Duration::from_secs(60)).expect("a raw connection")
    }

    /// The names of the children of `base/name`; none if it does not exist.
    pub(crate) fn children(&self, name: &str) -> Vec<String> {
        let mut raw = self.raw();
        raw.get_children(&format!("{}/{name}", self.base)).unwrap_or_default()
    }

    /// Waits until `base/name` has exactly `count` children.
    pub(crate) fn wait_for_children(&self, name: &str, count: usize) {
        let (mut raw, node) = (self.raw(), format!("{}/{name}", self.base));
        eventually(SOON, "the number of contenders", || {
            raw.get_children(&node).unwrap_or_default().len() == count
        });
        let _ = raw.close();
    }

    /// Waits until `base/name` has no child except this one. A call that ends at its deadline
    /// returns then, whether its node is deleted yet or not.
    pub(crate) fn wait_for_only(&self, name: &str, child: &str) {
        let mut raw = self.raw();
        let node = format!("{}/{name}", self.base);
        eventually(SOON, "all other contenders to go", || {
            raw.get_children(&node).unwrap_or_default() == [last(child)]
        });
        let _ = raw.close();
    }

    /// Ends the test: checks that its clients have no work left and have left no contender,
    /// and, once they are dropped, no thread and nothing in their server's counters.
    /// Locks and guards keep a client too, so the test must have dropped them.
    pub(crate) fn finish(self, clients: impl IntoIterator<Item = Client>) {
        let clients: Vec<Client> = clients.into_iter().collect();
        for client in &clients {
            eventually(SOON, "an empty table of watches", || client.stats().watches == 0);
            eventually(SOON, "the last delete", || client.stats().pending_deletes == 0);
        }
        let mut raw = self.raw();
        eventually(SOON, "the last contender to go", || {
            contenders_below(&mut raw, &self.base) == 0
        });
        let _ = raw.delete_recursive(&self.base);
        let _ = raw.close();
        drop(clients);
        // Tests that share a process cannot tell which threads are their own.
        if alone() {
            for prefix in ["zklock-", "io", "event"] {
                eventually(SOON, "the last thread to end", || threads_named(prefix).is_empty());
            }
        }
        if let Some(server) = &self.server
            && server.is_running()
        {
            for counter in ["zk_ephemerals_count", "zk_watch_count"] {
                eventually(SOON, counter, || server.counter(counter) == 0);
            }
        }
    }
}

fn contenders_below(raw: &mut Raw, path: &str) -> usize {
    let children = raw.get_children(path).unwrap_or_default();
    let mut count = 0;
    for child in children {
        let path = format!("{path}/{child}");
        let owner = raw.exists(&path).ok().flatten().map_or(0, |stat| stat.ephemeral_owner);
        count += usize::from(owner != 0) + contenders_below(raw, &path);
    }
    count
}
