//! The four-letter words, which are answered on a connection of their own.

use std::fmt::Write as _;
use std::time::Duration;

/// The version whose behaviour the server has.
const VERSION: &str = "3.8.0-in-memory, built on 1970-01-01 00:00 UTC";

/// The word that sets to zero what was counted.
pub(super) const RESET: &[u8; 4] = b"srst";

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// What the answers say.
pub(super) struct Facts<'a> {
    pub(super) counts: &'a Counts,
    pub(super) connections: usize,
    pub(super) sessions: usize,
    pub(super) zxid: i64,
    pub(super) nodes: usize,
    pub(super) bytes: usize,
    pub(super) ephemerals: usize,
    pub(super) watches: usize,
    /// Of the watches on nodes: how many, at how many paths, of how many connections.
    pub(super) on_nodes: [usize; 3],
    pub(super) up: Duration,
}

/// Whether this server knows the word.
pub(super) fn is_known(word: [u8; 4]) -> bool {
    matches!(&word, b"ruok" | b"srvr" | b"stat" | b"envi" | b"mntr" | b"isro" | b"wchs" | RESET)
        || &word == b"crst"
}

/// The answer, if it is a word that this server knows.
pub(super) fn answer(word: [u8; 4], facts: &Facts<'_>) -> Option<String> {
    match &word {
        b"ruok" => Some("imok".to_owned()),
        b"srvr" => Some(format!("Zookeeper version: {VERSION}\n{}", server(facts))),
        b"stat" => Some(format!("Zookeeper version: {VERSION}\nClients:\n\n{}", server(facts))),
        b"envi" => {
            Some(format!("Environment:\nzookeeper.version={VERSION}\nhost.name=localhost\n"))
        }
        b"mntr" => Some(monitoring(facts)),
        b"isro" => Some("rw".to_owned()),
        b"wchs" => Some(watching(facts)),
        RESET => Some("Server stats reset.\n".to_owned()),
        // Of a connection, nothing is counted.
        b"crst" => Some("Connection stats reset.\n".to_owned()),
        _ => None,
    }
}

fn watching(facts: &Facts<'_>) -> String {
    let [watches, paths, connections] = facts.on_nodes;
    format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
}

fn server(facts: &Facts<'_>) -> String {
    format!(
        "Latency min/avg/max: 0/0.0/0\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: 0\nZxid: {:#x}\n\
         Mode: standalone\nNode count: {}\n",
        facts.counts.received, facts.counts.sent, facts.connections, facts.zxid, facts.nodes,
    )
}

fn monitoring(facts: &Facts<'_>) -> String {
    let mut text = format!("zk_version\t{VERSION}\nzk_server_state\tstandalone\n");
    for (name, value) in [
        ("ephemerals_count", facts.ephemerals as u64),
        ("num_alive_connections", facts.connections as u64),
        ("outstanding_requests", 0),
        ("znode_count", facts.nodes as u64),
        ("global_sessions", facts.sessions as u64),
        ("watch_count", facts.watches as u64),
        ("approximate_data_size", facts.bytes as u64),
        ("packets_received", facts.counts.received),
        ("packets_sent", facts.counts.sent),
        ("uptime", u64::try_from(facts.up.as_millis()).unwrap_or(u64::MAX)),
    ] {
        let _ = writeln!(text, "zk_{name}\t{value}");
    }
    text
}
