//! A server for tests, and the faults that it can be told to have.

use std::time::Duration;

use crate::core::Rules;
use crate::error::{Error, Result};
use crate::memory::{MemoryServer, Settings};

/// A ZooKeeper server for tests, which ends when it is dropped.
///
/// It listens on a port of 127.0.0.1. Any client of ZooKeeper can use it.
#[derive(Debug)]
pub struct ZooKeeper {
    hosts: String,
    server: MemoryServer,
}

/// The settings of a server in memory.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `start`"]
pub struct InMemoryBuilder {
    settings: Settings,
    port: u16,
}

impl ZooKeeper {
    /// Starts a server in this process, without Java and Docker.
    ///
    /// It has the behaviour of ZooKeeper 3.8 with its default settings, and no disk: what it holds ends with it. It is for
    /// tests, not for production.
    ///
    /// # Errors
    /// If this machine has no port or no thread for it.
    pub fn in_memory() -> Result<ZooKeeper> {
        ZooKeeper::in_memory_builder().start()
    }

    /// Returns a builder, for a server in memory with other settings.
    pub fn in_memory_builder() -> InMemoryBuilder {
        InMemoryBuilder::default()
    }

    /// Returns the connect string, `127.0.0.1:port`. It never changes.
    pub fn hosts(&self) -> &str {
        &self.hosts
    }

    fn order<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut crate::memory::Loop) -> T + Send + 'static,
    ) -> Result<T> {
        self.server
            .order(act)
            .ok_or_else(|| Error::new(format!("the ZooKeeper server at {} has ended", self.hosts)))
    }

    /// Returns the ids of all sessions.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn sessions(&self) -> Result<Vec<i64>> {
        self.order(|server| server.engine.sessions())
    }

    /// Expires a session: its ephemeral nodes are gone when this returns, and its connection is closed. When its client
    /// connects again, it is told that the session has expired.
    ///
    /// # Errors
    /// If there is no such session, or the server has ended.
    pub fn expire(&self, session: i64) -> Result<()> {
        match self.order(move |server| server.engine.expire(session))? {
            true => Ok(()),
            false => Err(Error::new(format!(
                "the ZooKeeper server at {} has no session {session:#x}",
                self.hosts
            ))),
        }
    }

    /// Lets so much time pass for the server: sessions whose clients were not heard expire, and containers and nodes whose
    /// time is over go.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn advance(&self, by: Duration) -> Result<()> {
        self.order(move |server| server.advance(by))
    }

    /// Pauses the server: its connections stay, new ones are not accepted, and it answers nothing.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn pause(&self) -> Result<()> {
        self.order(|server| server.pause())
    }

    /// Lets a paused server go on. The time that has passed counts.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn resume(&self) -> Result<()> {
        self.order(|server| server.resume())
    }

    /// Closes all connections and, until [`restart`](ZooKeeper::restart), each new one at once. Sessions go on, and expire if
    /// that lasts too long.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn refuse(&self) -> Result<()> {
        self.order(|server| {
            server.engine.end_all();
            server.refuses = true;
        })
    }

    /// Closes all connections, as a restart does. Nodes and sessions stay; each session has its whole timeout again. A
    /// server that was paused, or refused connections, serves again.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn restart(&self) -> Result<()> {
        self.order(|server| server.restart())
    }

    /// Has the next `count` requests carried out without an answer: their connections are closed instead.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn drop_replies(&self, count: u32) -> Result<()> {
        self.order(move |server| server.engine.faults.drop_replies = count)
    }

    /// Closes the connections of the next `count` requests, and carries these out only after `delay`: also after newer
    /// ones of the same session, as a server does whose connection was given up.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn carry_out_late(&self, count: u32, delay: Duration) -> Result<()> {
        self.order(move |server| server.engine.faults.delay = Some((count, delay)))
    }

    /// Refuses this share of the requests, from 0 to 1, as a server does that is too busy: they are not carried out.
    ///
    /// # Errors
    /// If `share` is not from 0 to 1, or the server has ended.
    pub fn throttle(&self, share: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::new(format!(
                "the share of throttled requests has to be from 0 to 1, not {share}"
            )));
        }
        self.order(move |server| server.engine.faults.throttle = share)
    }
}

impl InMemoryBuilder {
    /// Sets the server's tick, 2 s by default: session timeouts are at least two and at most twenty ticks.
    pub fn tick_time(mut self, tick: Duration) -> InMemoryBuilder {
        self.settings.tick = tick;
        self
    }

    /// Sets how often the server looks for containers to remove, and nodes whose time is over: by default each 60 s.
    pub fn check_interval(mut self, interval: Duration) -> InMemoryBuilder {
        self.settings.check_interval = interval;
        self
    }

    /// Allows nodes with a time to live, as `zookeeper.extendedTypesEnabled` does.
    pub fn time_to_live(mut self) -> InMemoryBuilder {
        self.settings.rules.has_ttl = true;
        self
    }

    /// Sets where the behaviour differs from that of 3.8.
    #[doc(hidden)]
    pub fn rules(mut self, rules: Rules) -> InMemoryBuilder {
        self.settings.rules = rules;
        self
    }

    /// Makes a node, below which numbers begin with `next`.
    #[doc(hidden)]
    pub fn sequence(mut self, path: impl Into<String>, next: i32) -> InMemoryBuilder {
        self.settings.nodes.push((path.into(), next));
        self
    }

    /// Sets the port; by default any that is free.
    pub fn port(mut self, port: u16) -> InMemoryBuilder {
        self.port = port;
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    /// If the port is taken, or this machine has no port or no thread for it, or the tick is zero.
    pub fn start(self) -> Result<ZooKeeper> {
        if self.settings.tick < Duration::from_millis(1) || self.settings.check_interval.is_zero() {
            return Err(Error::new(
                "a tick takes at least a millisecond, and there is time between two checks",
            ));
        }
        let server = MemoryServer::start(self.settings, self.port)
            .map_err(|error| Error::new(format!("cannot start a ZooKeeper in memory: {error}")))?;
        Ok(ZooKeeper { hosts: server.address().to_string(), server })
    }
}
