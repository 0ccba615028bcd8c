//! A whole run: starts servers, workers and nemesis, and checks what is left when they have ended.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::history::Journal;
use super::leftovers;
use super::nemesis::Nemesis;
use super::network::{self, Ground};
use super::options::{Locks, Options, Plan};
use super::parse::{NEMESIS, REGISTER, SAMPLES, SERVERS, SETTINGS};
use super::plan;
use super::register;
use super::stranger;
use super::support::proxy::Proxy;
use super::support::raw::{self, Raw};
use super::support::server::Server;
use super::support::transport::Transport;
use super::transactions;
use super::views;
use super::work::{NODES, PATIENT, room};
use super::worker::{BASE, SOCKET};
use super::workers::Crew;

/// How long the workers may take to finish.
const FINISH: Duration = Duration::from_secs(60);
/// How long the servers may take to delete the workers' nodes, watches and sessions.
const FORGET: Duration = Duration::from_secs(30);
/// Quiet time before the end, long enough to see whether the locks change hands.
const LAST_QUIET: Duration = Duration::from_secs(8);
const SAMPLE: Duration = Duration::from_secs(2);

/// Runs the soak, and returns the directory of the histories.
pub(crate) fn whole(options: &Options, stop: &Arc<AtomicBool>) -> Result<PathBuf, Box<dyn Error>> {
    let out = directory(options)?;
    println!("seed {}; histories in {}", options.seed, out.display());
    // Before any thread is started, because it may move the process into a namespace.
    let ground = Ground::start(options)?;
    let tls =
        if Transport::wanted().is_tls() { ", TLS with certificates of both sides" } else { "" };
    let network = format!("{}{tls}", ground.describe());
    println!("{} servers; network: {network}", options.nodes);
    fs::write(out.join(SETTINGS), settings(options, &network))?;
    register::start(&out.join(SOCKET), &out.join(REGISTER))?;
    let journal = Journal::create(&out.join(NEMESIS))?;
    {
        let servers = ground.ensemble.nodes();
        let proxies: Vec<Vec<Proxy>> = (0..options.workers)
            .map(|slot| {
                let ways = if options.has_front(slot) { 1 } else { servers.len() };
                servers.iter().take(ways).map(|server| Proxy::start(server.addr())).collect()
            })
            .collect();
        let hosts = proxies
            .iter()
            .map(|ways| ways.iter().map(Proxy::hosts).collect::<Vec<_>>().join(","))
            .collect();
        journal.note("-", "begin");
        let crew = Crew::start(hosts, out.clone(), options)?;
        let nemesis = Nemesis {
            ground: &ground,
            proxies: &proxies,
            crew: &crew,
            options,
            journal: &journal,
            stop,
            end: Instant::now() + options.length.saturating_sub(LAST_QUIET),
        };
        run(&nemesis, options, &out)?;
    }
    for what in forgotten(&ground) {
        journal.note("-", format_args!("left {what}"));
    }
    for what in leftovers::collect(&ground.ensemble.hosts(), &out)? {
        journal.note("-", format_args!("left {what}"));
    }
    for what in forgotten(&ground) {
        journal.note("-", format_args!("left {what}"));
    }
    if options.locks != Locks::All {
        let folders: Vec<_> = ground.ensemble.nodes().iter().map(Server::data).collect();
        let parents = PATIENT.into_iter().map(str::to_owned).chain(PATIENT.map(room));
        let parents: Vec<String> = parents.map(|name| format!("{BASE}/{name}")).collect();
        transactions::write(&folders, &parents, &out.join(SERVERS))?;
    }
    drop(ground);
    for what in network::leftovers().into_iter().chain(servers_left()) {
        journal.note("-", format_args!("left {what}"));
    }
    let _ = fs::remove_file(out.join(SOCKET));
    Ok(out)
}

fn directory(options: &Options) -> Result<PathBuf, Box<dyn Error>> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => Path::new("target/soak").join(format!("{}-{}", options.seed, std::process::id())),
    };
    fs::create_dir_all(&out)?;
    if out.join(SETTINGS).exists() {
        return Err(format!("{} has an earlier run: use another --out", out.display()).into());
    }
    Ok(fs::canonicalize(out)?)
}

fn settings(options: &Options, network: &str) -> String {
    let Options { seed, nodes, workers, threads, session, .. } = options;
    let (least, most) = options.granted();
    format!(
        "seed={seed}\nplan={}\nlocks={}\nnodes={nodes}\nnetwork={network}\nworkers={workers}\n\
         threads={threads}\nsession_ms={}\nleast_session_ms={}\nmost_session_ms={}\ntick={}\n",
        options.plan.name(),
        options.locks.name(),
        session.as_millis(),
        least.as_millis(),
        most.as_millis(),
        options.stated().name()
    )
}

fn run(nemesis: &Nemesis<'_>, options: &Options, out: &Path) -> Result<(), Box<dyn Error>> {
    let Nemesis { crew, journal, ground, stop, .. } = *nemesis;
    let samples = Journal::create(&out.join(SAMPLES))?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                crew.sample(&samples);
                thread::park_timeout(SAMPLE);
            }
        });
        for (index, server) in ground.ensemble.nodes().iter().enumerate() {
            let (over, samples, host) = (&over, &samples, server.hosts());
            scope.spawn(move || views::look(index, &host, over, samples));
        }
        if options.locks == Locks::Beside {
            scope.spawn(|| {
                stranger::contend(&ground.ensemble.hosts(), out, options.seed, &over, journal)
            });
        }
        // Ends the samples, also after a panic.
        let _end = Raise(&over);
        let (seed, least) = (options.seed, options.granted().0);
        match options.plan {
            Plan::All => {
                let namespaces = ground.has_namespaces();
                nemesis.rage(plan::Plan::new(seed, options.nodes, namespaces, least));
            }
            Plan::Lease => nemesis.rage(plan::Plan::mild(seed, least)),
            Plan::Late => nemesis.rage(plan::Plan::late(seed, options.nodes, least)),
            Plan::Rolling => nemesis.roll(),
        }
        let quiet = Instant::now() + LAST_QUIET;
        while Instant::now() < quiet && !stop.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(20));
        }
        journal.note("-", "ending");
        crew.end(FINISH, journal);
    });
    Ok(())
}

struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What the servers still have of the workers after `FORGET`.
fn forgotten(ground: &Ground) -> Vec<String> {
    let limit = Instant::now() + FORGET;
    loop {
        let left = remembered(ground);
        if left.is_empty() || Instant::now() > limit {
            return left;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn remembered(ground: &Ground) -> Vec<String> {
    let mut left = Vec::new();
    let hosts = ground.ensemble.hosts();
    match Raw::connect(&hosts, Duration::from_secs(5)) {
        Ok(mut raw) => {
            let rooms = PATIENT.map(room);
            for lock in NODES.into_iter().chain(rooms.iter().map(String::as_str)) {
                let node = format!("{BASE}/{lock}");
                left.extend(children_left("contender", &node, raw.get_children(&node)));
            }
            if let Err(failure) = raw.close() {
                left.push(format!("unknown: closing a session failed: {failure}"));
            }
        }
        Err(failure) => left.push(format!("unknown: no server answers: {failure}")),
    }
    for (index, server) in ground.ensemble.nodes().iter().enumerate() {
        for counter in ["zk_ephemerals_count", "zk_watch_count"] {
            match server.counter(counter) {
                0 => {}
                count => left.push(format!("server {index} has {counter} {count}")),
            }
        }
        // The connection with sid=0x0 is the one that asks.
        match server.four_letter("cons") {
            Ok(answer) => left.extend(
                answer
                    .lines()
                    .filter(|line| line.contains("sid=0x") && !line.contains("sid=0x0,"))
                    .map(|line| format!("connection at server {index}: {}", line.trim())),
            ),
            Err(error) => left.push(format!("unknown: server {index} does not answer: {error}")),
        }
    }
    if let Ok(dump) = ground.ensemble.node(ground.ensemble.leader()).four_letter("dump") {
        left.extend(
            dump.lines()
                .map(str::trim)
                .filter(|line| line.starts_with("0x"))
                .map(|line| format!("session {line}")),
        );
    }
    left
}

/// The children of a node, in words. `what` they are, in one word.
pub(crate) fn children_left(
    what: &str,
    node: &str,
    answer: raw::Result<Vec<String>>,
) -> Vec<String> {
    match answer {
        Ok(names) => names.iter().map(|name| format!("{what} {node}/{name}")).collect(),
        // ZooKeeper deletes a container that is empty.
        Err(failure) if failure.code() == Some(raw::NO_NODE) => Vec::new(),
        Err(failure) => vec![format!("unknown: cannot list {node}: {failure}")],
    }
}

/// Server processes that this process started, recognised by the names of their directories.
fn servers_left() -> Vec<String> {
    let own = format!("zklock-server-{}-", std::process::id());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok())
        .filter(|command| command.contains(&own))
        .map(|command| format!("process {}", command.replace('\0', " ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lock_node_that_is_gone_is_known_to_be_empty() {
        let left = |answer| children_left("contender", "/a", answer);
        let failed = |code| left(Err(raw::Failure::Server(code)));
        assert!(failed(raw::NO_NODE).is_empty());
        assert!(left(Ok(Vec::new())).is_empty());
        assert_eq!(left(Ok(vec!["x".to_owned()])), ["contender /a/x"]);
        assert_eq!(failed(-4).len(), 1);
    }
}
