//! An ensemble of real ZooKeeper servers.
//!
//! On loopback, each member reaches the quorum port of each other one through a proxy of its own,
//! so that a follower can be cut off from its leader while both go on serving clients.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::proxy::Proxy;
use super::server::{Builder, Place, Server, free_port};
use super::transport::Transport;

/// How long an election, or the start of all members, may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a new leader may take to open its quorum port. A follower whose connection is closed at
/// once begins another election, and the leader then waits for it until `initLimit` has passed.
const LEADER_LISTENS: Duration = Duration::from_secs(2);

/// The timing of an ensemble.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Milliseconds.
    pub(crate) tick: u32,
    /// After how many ticks without contact a follower and its leader part.
    pub(crate) sync_limit: u32,
    /// How many ticks a follower may take to catch up with its leader.
    pub(crate) init_limit: u32,
    /// The shortest session timeout granted, in milliseconds.
    pub(crate) min_session: u32,
    /// Members that grant other session timeouts than the others.
    pub(crate) unequal: Vec<Unequal>,
    /// Whether the last member only observes: it follows the leader without a vote.
    pub(crate) observer: bool,
    /// Whether the observer reaches the leader only through a follower, its observer master.
    pub(crate) observer_master: bool,
    /// Whether members reach each other through proxies for elections, too, so that the leader can be
    /// cut off. Those of lower numbers cannot be started again: only higher ones connect to them.
    pub(crate) election_proxies: bool,
    /// Whether members that are cut off from the others go on, for readers that ask for that.
    pub(crate) read_only: bool,
    /// Where the jars of each member are, if they differ.
    pub(crate) jars: Vec<PathBuf>,
}

/// A member with its own limits of the session timeout, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unequal {
    pub(crate) member: usize,
    pub(crate) min_session: u32,
    pub(crate) max_session: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tick: 200,
            sync_limit: 10,
            init_limit: 50,
            min_session: 200,
            unequal: Vec::new(),
            observer: false,
            observer_master: false,
            election_proxies: false,
            read_only: false,
            jars: Vec::new(),
        }
    }
}

impl Options {
    fn member(&self, id: usize, port: u16) -> Builder {
        let builder = Server::builder().member(id, port).min_session(self.min_session);
        let unequal = self.unequal.iter().find(|unequal| unequal.member == id);
        let builder = match unequal {
            None => builder,
            Some(own) => builder.min_session(own.min_session).max_session(own.max_session),
        };
        builder
            .tick(self.tick)
            .extra(format!("initLimit={}", self.init_limit))
            .extra(format!("syncLimit={}", self.sync_limit))
    }
}

/// A running ensemble. Its members are numbered from 0.
#[derive(Debug)]
pub(crate) struct Ensemble {
    nodes: Vec<Server>,
    /// The proxies, keyed by the member that connects and the member it connects to.
    quorum: BTreeMap<(usize, usize), Proxy>,
    /// Those for elections, if there are any: only the higher member connects.
    elections: BTreeMap<(usize, usize), Proxy>,
}

impl Ensemble {
    /// Starts `count` members, and waits until they serve clients.
    ///
    /// # Errors
    /// Those of [`Builder::start`](super::server::Builder::start).
    pub(crate) fn start(count: usize, options: &Options) -> io::Result<Ensemble> {
        let quorum_ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let election_ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let proxy = |port: u16, patience| {
            Proxy::raw(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), patience)
        };
        let (mut quorum, mut elections) = (BTreeMap::new(), BTreeMap::new());
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                quorum.insert((from, to), proxy(quorum_ports[to], LEADER_LISTENS));
                if options.election_proxies && from > to {
                    elections.insert((from, to), proxy(election_ports[to], Duration::ZERO));
                }
            }
        }
        let master_ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let mut ensemble = Ensemble { nodes: Vec::new(), quorum, elections };
        for node in 0..count {
            let mut builder = options.member(node, free_port());
            for other in 0..count {
                let port = match ensemble.quorum.get(&(node, other)) {
                    Some(proxy) => proxy.addr().port(),
                    None => quorum_ports[other],
                };
                let election = match ensemble.elections.get(&(node, other)) {
                    Some(proxy) => proxy.addr().port(),
                    // The higher one, told of a lower one, would connect to that without a proxy.
                    None if options.election_proxies && node < other => free_port(),
                    None => election_ports[other],
                };
                let is_observer = options.observer && other + 1 == count;
                let kind = if is_observer { ":observer" } else { "" };
                builder =
                    builder.extra(format!("server.{other}=127.0.0.1:{port}:{election}{kind}"));
                if is_observer && other == node {
                    builder = builder.extra("peerType=observer");
                }
            }
            if let Some(jars) = options.jars.get(node) {
                builder = builder.jars(jars);
            }
            if options.observer_master {
                let observes = node + 1 == count;
                let port = if observes {
                    ensemble.to_master(node, &master_ports)
                } else {
                    master_ports[node]
                };
                builder = builder.extra(format!("observerMasterPort={port}"));
            }
            if options.election_proxies {
                // By default a member that was alone for long asks the others once in a minute.
                builder = builder.property("zookeeper.fastleader.maxNotificationInterval=1000");
            }
            if options.read_only {
                builder = builder.property("readonlymode.enabled=true");
            }
            ensemble.nodes.push(Transport::wanted().server(builder).launch()?);
        }
        ensemble.started()
    }

    /// Leads the observer's link with the first follower to that follower's port for observers, and
    /// returns where the observer finds it: it looks for masters at one port of all members.
    fn to_master(&self, observer: usize, ports: &[u16]) -> u16 {
        let master = self.wait_for("an observer master", |modes| {
            modes.followers.first().copied().filter(|_| modes.followers.len() + 1 == observer)
        });
        let link = &self.quorum[&(observer, master)];
        link.set_target(SocketAddr::from((Ipv4Addr::LOCALHOST, ports[master])));
        link.addr().port()
    }

    /// Starts a member at each of these places, which have addresses of their own, without proxies
    /// between the members.
    ///
    /// # Errors
    /// Those of [`Builder::start`](super::server::Builder::start).
    pub(crate) fn start_at(places: &[Place], options: &Options) -> io::Result<Ensemble> {
        let mut nodes = Vec::new();
        for (node, place) in places.iter().enumerate() {
            let mut builder = options.member(node, 2181).place(place.clone());
            for (other, place) in places.iter().enumerate() {
                builder = builder.extra(format!("server.{other}={}:2888:3888", place.address));
            }
            nodes.push(Transport::wanted().server(builder).launch()?);
        }
        Ensemble { nodes, quorum: BTreeMap::new(), elections: BTreeMap::new() }.started()
    }

    fn started(self) -> io::Result<Ensemble> {
        for node in &self.nodes {
            node.wait_ready()?;
        }
        self.wait_ready();
        Ok(self)
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The connect string of all members, in their order.
    pub(crate) fn hosts(&self) -> String {
        self.nodes.iter().map(Server::hosts).collect::<Vec<_>>().join(",")
    }

    /// A member, to ask, pause, resume, kill or restart it.
    pub(crate) fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The leader, once exactly one member says that it is.
    pub(crate) fn leader(&self) -> usize {
        self.wait_for("a single leader", |modes| match modes.leaders[..] {
            [leader] => Some(leader),
            _ => None,
        })
    }

    /// The current followers, without any that is too slow to answer.
    pub(crate) fn followers(&self) -> Vec<usize> {
        self.modes().followers
    }

    /// Waits until one member leads and all others follow it.
    pub(crate) fn wait_ready(&self) {
        self.all_followers();
    }

    /// The followers, once one member leads and all others follow it.
    pub(crate) fn all_followers(&self) -> Vec<usize> {
        self.wait_for("one leader and its followers", |modes| {
            let ready = modes.leaders.len() == 1 && modes.followers.len() + 1 == self.nodes.len();
            ready.then(|| modes.followers.clone())
        })
    }

    /// Cuts a follower off from the other members, silently, while all of them go on serving
    /// clients. After `syncLimit` ticks the follower notices, and then serves no client until
    /// [`heal`](Ensemble::heal).
    ///
    /// # Panics
    /// When the member is the leader.
    pub(crate) fn cut_from_leader(&self, follower: usize) {
        assert!(self.leader() != follower, "member {follower} is the leader");
        self.links_of(follower).for_each(Proxy::black_hole);
    }

    /// Cuts the leader off from its followers, silently, and returns which member it is. It goes on
    /// serving clients until it notices, after `syncLimit` ticks, when the others choose a new leader.
    ///
    /// # Panics
    /// Without [`election_proxies`](Options::election_proxies): a follower might follow it again.
    pub(crate) fn cut_off_the_leader(&self) -> usize {
        assert!(!self.elections.is_empty(), "members reach each other for elections");
        let leader = self.leader();
        let is_its = |(from, to): &(usize, usize)| *from == leader || *to == leader;
        let links = self.quorum.iter().filter(|(ends, _)| is_its(ends));
        links.for_each(|(_, proxy)| proxy.black_hole());
        // Held back instead: if these connections were lost, not all members could make new ones.
        let links = self.elections.iter().filter(|(ends, _)| is_its(ends));
        links.for_each(|(_, proxy)| proxy.hold());
        leader
    }

    /// Like [`cut_from_leader`](Ensemble::cut_from_leader), but what was sent meanwhile arrives after
    /// [`heal`](Ensemble::heal).
    pub(crate) fn hold_up_from_leader(&self, follower: usize) {
        self.links_of(follower).for_each(Proxy::hold);
    }

    /// Ends [`cut_from_leader`](Ensemble::cut_from_leader) and
    /// [`hold_up_from_leader`](Ensemble::hold_up_from_leader), without waiting for the effect.
    pub(crate) fn heal(&self, follower: usize) {
        self.links_of(follower).for_each(Proxy::pass);
    }

    /// Lets all members reach each other again, without waiting for the effect.
    pub(crate) fn heal_all(&self) {
        self.quorum.values().chain(self.elections.values()).for_each(Proxy::pass);
    }

    /// The proxies from a member to the quorum ports of the others.
    fn links_of(&self, node: usize) -> impl Iterator<Item = &Proxy> {
        self.quorum.iter().filter(move |((from, _), _)| *from == node).map(|(_, proxy)| proxy)
    }

    fn modes(&self) -> Modes {
        let mut modes = Modes::default();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
            match node.mode().as_deref() {
                // A server that is alone reports "standalone".
                Some("leader" | "standalone") => modes.leaders.push(index),
                Some("follower" | "observer") => modes.followers.push(index),
                _ => {}
            }
        }
        modes
    }

    fn wait_for<T>(&self, what: &str, condition: impl Fn(&Modes) -> Option<T>) -> T {
        let limit = Instant::now() + LIMIT;
        loop {
            let modes = self.modes();
            if let Some(found) = condition(&modes) {
                return found;
            }
            assert!(Instant::now() < limit, "timed out waiting for {what}: {modes:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[derive(Debug, Default)]
struct Modes {
    leaders: Vec<usize>,
    followers: Vec<usize>,
}
