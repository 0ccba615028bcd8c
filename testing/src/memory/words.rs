//! The four-letter words, which are answered on a connection of their own.

use std::fmt::Write as _;
use std::time::Duration;

/// The version whose behaviour the server has.
const VERSION: &str = "3.8.0-in-memory, built on 1970-01-01 00:00 UTC";

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
    pub(super) up: Duration,
}

/// Whether this server knows the word.
pub(super) fn is_known(word: [u8; 4]) -> bool {
    matches!(&word, b"ruok" | b"srvr" | b"stat" | b"envi" | b"mntr")
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
        _ => None,
    }
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
