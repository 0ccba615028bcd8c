//! Which ZooKeeper the examples use. A program of yours has its servers' addresses from its configuration.

use std::env;

use zklock_testing::ZooKeeper;

/// Servers to try things with.
#[derive(Debug)]
pub enum Ensemble {
    /// Those that somebody has named, as a connect string.
    Named(String),
    /// One in this process, which ends with it.
    InMemory(ZooKeeper),
}

/// The servers that the argument names, or `ZKLOCK_HOSTS`; if neither does, one in memory, for trying.
///
/// # Errors
///
/// If this machine has no port or no thread for a server in memory.
#[allow(clippy::print_stderr, reason = "examples talk to people")]
pub fn ensemble(argument: Option<String>) -> zklock_testing::Result<Ensemble> {
    let named = argument.or_else(|| env::var("ZKLOCK_HOSTS").ok());
    if let Some(hosts) = named.filter(|hosts| !hosts.is_empty()) {
        return Ok(Ensemble::Named(hosts));
    }
    let server = ZooKeeper::in_memory()?;
    eprintln!(
        "started a ZooKeeper at {}, in memory, for trying: it ends with this program",
        server.hosts()
    );
    Ok(Ensemble::InMemory(server))
}

impl Ensemble {
    /// The connect string.
    pub fn hosts(&self) -> &str {
        match self {
            Ensemble::Named(hosts) => hosts,
            Ensemble::InMemory(server) => server.hosts(),
        }
    }
}
