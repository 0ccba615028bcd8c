//! The servers' network: each in its own network namespace, or all on loopback.
//!
//! With namespaces, this process moves into one, the hub, which has only a bridge; a pair of
//! virtual interfaces connects it to each server's namespace. So the machine's own network is not
//! changed, and everything is gone with the namespaces. To cut two servers off from each other,
//! each gets a wrong hardware address for the other: what they send is lost silently, while both go
//! on serving clients.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::options as soak;
use super::support::ensemble::{Ensemble, Options, Unequal};
use super::support::server::Place;

const PREFIX: &str = "zksoak-";
/// Where `ip netns` keeps the namespaces' names.
const NAMES: &str = "/run/netns";

/// The servers, and the network between them.
#[derive(Debug)]
pub(crate) struct Ground {
    // Dropped before the namespaces.
    pub(crate) ensemble: Ensemble,
    namespaces: Option<Namespaces>,
}

impl Ground {
    /// To be called before any thread is started.
    pub(crate) fn start(soak: &soak::Options) -> io::Result<Ground> {
        let nodes = soak.nodes;
        let namespaces = match soak.namespaces {
            Some(false) => None,
            Some(true) => Some(Namespaces::enter(nodes)?),
            None => match Namespaces::enter(nodes) {
                Ok(namespaces) => Some(namespaces),
                Err(error) => {
                    println!("using loopback, because network namespaces failed: {error}");
                    None
                }
            },
        };
        let options = settings(soak);
        let ensemble = match &namespaces {
            Some(namespaces) => Ensemble::start_at(&namespaces.places(), &options)?,
            None => Ensemble::start(nodes, &options)?,
        };
        Ok(Ground { ensemble, namespaces })
    }

    pub(crate) fn has_namespaces(&self) -> bool {
        self.namespaces.is_some()
    }

    pub(crate) fn describe(&self) -> &'static str {
        match self.namespaces {
            Some(_) => "namespaces",
            None => "loopback",
        }
    }

    /// Cuts a server off from all others, silently; clients can still reach all of them.
    pub(crate) fn isolate(&self, node: usize) {
        let count = self.ensemble.nodes().len();
        match &self.namespaces {
            Some(namespaces) => {
                for other in (0..count).filter(|other| *other != node) {
                    namespaces.lose(node, other);
                    namespaces.lose(other, node);
                }
            }
            None if self.ensemble.leader() == node => {
                self.ensemble
                    .followers()
                    .iter()
                    .for_each(|one| self.ensemble.cut_from_leader(*one));
            }
            None => self.ensemble.cut_from_leader(node),
        }
    }

    /// Holds up what a follower and the leader send each other, while clients can reach both: it
    /// arrives late, after [`heal`](Ground::heal). With namespaces only what the follower sends, which TCP
    /// sends again.
    pub(crate) fn stall(&self, follower: usize) {
        match &self.namespaces {
            Some(namespaces) => namespaces.lose(follower, self.ensemble.leader()),
            None => self.ensemble.hold_up_from_leader(follower),
        }
    }

    /// Loses what the server sends to the others, and not what they send.
    ///
    /// Only with namespaces.
    pub(crate) fn mute(&self, node: usize) {
        if let Some(namespaces) = &self.namespaces {
            let count = self.ensemble.nodes().len();
            (0..count)
                .filter(|other| *other != node)
                .for_each(|other| namespaces.lose(node, other));
        }
    }

    /// Cuts a server off from all others and all clients.
    ///
    /// Only with namespaces.
    pub(crate) fn unplug(&self, node: usize) {
        if let Some(namespaces) = &self.namespaces {
            namespaces.plug(node, "down");
        }
    }

    /// Ends `isolate`, `stall`, `mute` and `unplug` for one server.
    pub(crate) fn heal(&self, node: usize) {
        let count = self.ensemble.nodes().len();
        match &self.namespaces {
            Some(namespaces) => {
                namespaces.plug(node, "up");
                for other in (0..count).filter(|other| *other != node) {
                    namespaces.find(node, other);
                    namespaces.find(other, node);
                }
            }
            None => self.ensemble.heal_all(),
        }
    }
}

/// The settings of the servers.
fn settings(soak: &soak::Options) -> Options {
    let milliseconds = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let options = Options { tick: milliseconds(soak::TICK), ..Options::default() };
    // Servers do not part while one of them pauses for less than a connection may be silent.
    let patience = milliseconds(soak.session / 2).div_ceil(options.tick);
    let (more, less) = soak.unequal;
    let (least, most) = soak.granted();
    let min_session = options.min_session;
    let mut unequal = Vec::new();
    if more {
        unequal.push(Unequal { member: 0, min_session: milliseconds(most), max_session: 600_000 });
    }
    if less {
        unequal.push(Unequal { member: 1, min_session, max_session: milliseconds(least) });
    }
    let sync_limit = match soak.plan {
        soak::Plan::Lease => patience,
        // No follower parts from the leader while its link is stalled.
        soak::Plan::Late => patience * 4,
        soak::Plan::All | soak::Plan::Rolling => options.sync_limit,
    };
    Options { sync_limit, unequal, ..options }
}

/// Namespaces of this process, removed when dropped. If the process is killed, the next one removes
/// them.
#[derive(Debug)]
struct Namespaces {
    prefix: String,
    nodes: usize,
}

impl Namespaces {
    fn enter(nodes: usize) -> io::Result<Namespaces> {
        remove_leftovers();
        let prefix = format!("{PREFIX}{}", std::process::id());
        let namespaces = Namespaces { prefix, nodes };
        namespaces.make()?;
        Ok(namespaces)
    }

    fn make(&self) -> io::Result<()> {
        let hub = format!("{}-hub", self.prefix);
        ip(&format!("netns add {hub}"))?;
        let namespace = File::open(Path::new(NAMES).join(&hub))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        ip("link set lo up")?;
        ip("link add hub type bridge")?;
        ip(&format!("addr add {}/24 dev hub", address(253)))?;
        ip("link set hub up")?;
        for node in 0..self.nodes {
            let name = self.name(node);
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add port{node} type veth peer name eth0 netns {name}"))?;
            ip(&format!("link set port{node} master hub up"))?;
            self.inside(node, "link set lo up")?;
            self.inside(node, &format!("addr add {}/24 dev eth0", address(node)))?;
            self.inside(node, "link set eth0 up")?;
        }
        Ok(())
    }

    fn name(&self, node: usize) -> String {
        format!("{}-{node}", self.prefix)
    }

    fn inside(&self, node: usize, what: &str) -> io::Result<()> {
        ip(&format!("-n {} {what}", self.name(node)))
    }

    fn places(&self) -> Vec<Place> {
        let place = |node| Place {
            address: address(node),
            command: ["ip", "netns", "exec", &self.name(node)].map(str::to_owned).into(),
        };
        (0..self.nodes).map(place).collect()
    }

    /// Loses what `from` sends to `to`.
    fn lose(&self, from: usize, to: usize) {
        let nobody = "lladdr 02:00:00:00:00:99 nud permanent";
        let to = address(to);
        self.inside(from, &format!("neigh replace {to} {nobody} dev eth0")).expect("ip neigh");
    }

    fn find(&self, from: usize, to: usize) {
        // Fails if there is no such entry, which is fine.
        let _ = self.inside(from, &format!("neigh del {} dev eth0", address(to)));
    }

    fn plug(&self, node: usize, way: &str) {
        ip(&format!("link set port{node} {way}")).expect("ip link");
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        remove(|name| name.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('-')));
    }
}

/// The namespaces of this process that are left.
pub(crate) fn leftovers() -> Vec<String> {
    let own = format!("{PREFIX}{}-", std::process::id());
    names().into_iter().filter(|name| name.starts_with(&own)).collect()
}

fn remove_leftovers() {
    remove(|name| {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    });
}

fn remove(which: impl Fn(&str) -> bool) {
    for name in names().iter().filter(|name| which(name)) {
        if let Err(error) = ip(&format!("netns del {name}")) {
            println!("cannot remove the network namespace {name}: {error}");
        }
    }
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(NAMES).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, node as u8 + 1)
}

fn ip(arguments: &str) -> io::Result<()> {
    let mut command = Command::new("ip");
    // In its own process group: Ctrl-C must not end it, because cleaning up needs it.
    let output = command.args(arguments.split(' ')).process_group(0).output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {arguments}: {}", why.trim())))
}
