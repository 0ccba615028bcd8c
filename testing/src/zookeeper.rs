//! A server for tests, wherever it runs, and the faults that it can be told to have.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::builder::ZooKeeperBuilder;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Loop, MemoryServer};

/// A ZooKeeper server for tests, which any client of ZooKeeper can use.
///
/// It is gone when this is dropped: at once in memory, in some milliseconds for a local server, in about a second for a
/// container, and never more than a minute. Several threads can call its methods; each call waits for the one before.
pub struct ZooKeeper {
    hosts: String,
    controlled: Mutex<Controlled>,
}

struct Controlled {
    condition: Condition,
    server: Box<dyn Backend>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Running,
    Paused,
    Stopped,
}

/// By how much a clock can be advanced at once.
const LONGEST_ADVANCE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A server of one kind. It ends when dropped.
pub(crate) trait Backend: Send {
    /// What it is, for messages.
    fn what(&self) -> &'static str;
    fn hosts(&self) -> String;
    fn stop(&mut self) -> Result<()>;
    /// Starts a stopped server, which stays stopped if this fails.
    fn start_again(&mut self) -> Result<()>;
    fn pause(&mut self) -> Result<()>;
    fn resume(&mut self) -> Result<()>;
    fn expire(&mut self, session: i64) -> Result<()>;
    /// The server, if it is in memory: only there all faults are possible.
    fn memory(&self) -> Option<&MemoryServer> {
        None
    }
}

impl Backend for MemoryServer {
    fn what(&self) -> &'static str {
        "in memory"
    }

    fn hosts(&self) -> String {
        self.address().to_string()
    }

    fn stop(&mut self) -> Result<()> {
        self.order(Loop::stop).ok_or_else(ended)
    }

    fn start_again(&mut self) -> Result<()> {
        self.order(Loop::start_again).ok_or_else(ended)
    }

    fn pause(&mut self) -> Result<()> {
        self.order(Loop::pause).ok_or_else(ended)
    }

    fn resume(&mut self) -> Result<()> {
        self.order(Loop::resume).ok_or_else(ended)
    }

    fn expire(&mut self, session: i64) -> Result<()> {
        match self.order(move |server| server.engine.expire(session)).ok_or_else(ended)? {
            true => Ok(()),
            false => Err(no_session(&self.hosts(), session)),
        }
    }

    fn memory(&self) -> Option<&MemoryServer> {
        Some(self)
    }
}

fn ended() -> Error {
    Error::system("the thread of the ZooKeeper server in memory has ended")
}

pub(crate) fn no_session(hosts: &str, session: i64) -> Error {
    let text = format!(
        "the ZooKeeper server at {hosts} has no session 0x{session:x}: it has ended already, or is another server's"
    );
    Error::new(ErrorKind::NotFound, text)
}

impl ZooKeeper {
    /// Starts a server in this process, without Java and Docker, in less than a millisecond.
    ///
    /// It has the behaviour of ZooKeeper 3.8, and no disk: what it holds ends with it. It is for tests, not for production.
    ///
    /// # Errors
    ///
    /// [`System`](ErrorKind::System) if this machine has no port or no thread for it.
    pub fn in_memory() -> Result<ZooKeeper> {
        ZooKeeper::builder().in_memory().start()
    }

    /// Starts a server of the kind that the environment variable `ZKLOCK_TESTING_SERVER` names: `memory`, which is the
    /// default, `local` or `docker`. A local one or a container has the settings of your package's `testcontainers.toml`.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a setting that cannot be accepted,
    /// [`Unsupported`](ErrorKind::Unsupported) for a kind that this crate was built without, [`System`](ErrorKind::System) if
    /// this machine lacks what it needs, or if the server did not start; then the message contains the end of its log.
    pub fn start() -> Result<ZooKeeper> {
        ZooKeeper::builder().start()
    }

    /// Returns a builder, for a server with settings of the test's own.
    pub fn builder() -> ZooKeeperBuilder {
        ZooKeeperBuilder::new()
    }

    pub(crate) fn new(server: Box<dyn Backend>) -> ZooKeeper {
        let hosts = server.hosts();
        ZooKeeper {
            hosts,
            controlled: Mutex::new(Controlled { condition: Condition::Running, server }),
        }
    }

    fn controlled(&self) -> MutexGuard<'_, Controlled> {
        self.controlled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connect string, `host:port`. It never changes.
    pub fn hosts(&self) -> &str {
        &self.hosts
    }

    /// Stops the server at once, as a crash does. Its data, its sessions and its port are kept.
    ///
    /// Nothing that it has acknowledged is lost. A paused server can be stopped, too. Does nothing if the server is stopped
    /// already. Connections to a stopped server are refused, or in memory closed at once.
    ///
    /// # Errors
    ///
    /// [`System`](ErrorKind::System) if the server has not ended within 30 s.
    pub fn stop(&self) -> Result<()> {
        let mut controlled = self.controlled();
        if controlled.condition != Condition::Stopped {
            controlled.server.stop()?;
            controlled.condition = Condition::Stopped;
        }
        Ok(())
    }

    /// Starts a stopped server with the same port and data, and waits until it serves clients.
    ///
    /// Sessions continue if their clients connect again within the session timeout, which begins anew with the start. Does
    /// nothing if the server is running.
    ///
    /// # Errors
    ///
    /// [`System`](ErrorKind::System) if the server did not serve clients within the start-up timeout; then the message
    /// contains the end of its log, the server is stopped, and the call can be repeated. Also if the server is paused.
    pub fn start_again(&self) -> Result<()> {
        let mut controlled = self.controlled();
        match controlled.condition {
            Condition::Running => Ok(()),
            Condition::Paused => Err(self.refusal("start", "is paused; call `resume`")),
            Condition::Stopped => {
                controlled.server.start_again()?;
                controlled.condition = Condition::Running;
                Ok(())
            }
        }
    }

    /// Stops the server, and starts it again.
    ///
    /// # Errors
    ///
    /// As [`stop`](ZooKeeper::stop) and [`start_again`](ZooKeeper::start_again).
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    /// Pauses the server: connections to it stay open, and it answers nothing.
    ///
    /// A local server gets `SIGSTOP`, and a container is frozen; the kernel accepts new connections, but nothing serves them.
    /// Does nothing if the server is paused already.
    ///
    /// # Errors
    ///
    /// [`System`](ErrorKind::System) if the server is stopped or has ended by itself, or did not pause in time.
    pub fn pause(&self) -> Result<()> {
        let mut controlled = self.controlled();
        match controlled.condition {
            Condition::Paused => Ok(()),
            Condition::Stopped => Err(self.refusal("pause", "is stopped; call `start_again`")),
            Condition::Running => {
                // If it fails half-way, `resume` and `stop` are still possible.
                controlled.condition = Condition::Paused;
                controlled.server.pause()
            }
        }
    }

    /// Lets a [paused](Self::pause) server go on.
    ///
    /// The time that has passed counts: the server expires the sessions whose timeout is over, except, with Java, for those
    /// whose clients it hears first. Does nothing if the server is running.
    ///
    /// # Errors
    ///
    /// [`System`](ErrorKind::System) if the server is stopped or has ended by itself, or did not resume in time.
    pub fn resume(&self) -> Result<()> {
        let mut controlled = self.controlled();
        match controlled.condition {
            Condition::Running => Ok(()),
            Condition::Stopped => Err(self.refusal("resume", "is stopped; call `start_again`")),
            Condition::Paused => {
                controlled.server.resume()?;
                controlled.condition = Condition::Running;
                Ok(())
            }
        }
    }

    /// Expires a session, by its id as clients and the server's log tell it.
    ///
    /// When this returns, the session's ephemeral nodes are gone. Its client learns of it as after an expiry in production:
    /// its connection breaks, and when it connects again, the server answers that the session has expired.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the server has no such session, [`System`](ErrorKind::System) if it is stopped or
    /// paused, or did not end the session within 10 s.
    pub fn expire(&self, session: i64) -> Result<()> {
        let mut controlled = self.controlled();
        let refusal = |why| Err(self.refusal("expire a session of", why));
        match controlled.condition {
            Condition::Running => controlled.server.expire(session),
            Condition::Paused => refusal("is paused; call `resume`"),
            Condition::Stopped => refusal("is stopped; call `start_again`"),
        }
    }

    fn refusal(&self, what: &str, why: &str) -> Error {
        Error::system(format!(
            "cannot {what} the ZooKeeper server at {}: it {why} first",
            self.hosts
        ))
    }

    // ----- what only a server in memory can do

    fn in_memory_only<T: Send + 'static>(
        &self,
        what: &str,
        act: impl FnOnce(&mut Loop) -> T + Send + 'static,
    ) -> Result<T> {
        let controlled = self.controlled();
        let Some(memory) = controlled.server.memory() else {
            let text = format!(
                "the ZooKeeper server at {} is {}, and cannot {what}: only a server in memory can",
                self.hosts,
                controlled.server.what(),
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        memory.order(act).ok_or_else(ended)
    }

    /// Returns the ids of all sessions. In memory only.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for other servers.
    pub fn sessions(&self) -> Result<Vec<i64>> {
        self.in_memory_only("tell its sessions", |server| server.engine.sessions())
    }

    /// Lets so much time pass for the server: sessions whose clients were not heard expire, and containers and nodes whose
    /// time is over go. At most ten years. In memory only.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for more than ten years, [`Unsupported`](ErrorKind::Unsupported) for other servers.
    pub fn advance(&self, by: Duration) -> Result<()> {
        if by > LONGEST_ADVANCE {
            let text = format!("the clock can be advanced by ten years at most, not by {by:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.in_memory_only("advance its clock", move |server| server.advance(by))
    }

    /// Closes all connections and, until [`accept`](ZooKeeper::accept) or a restart, each new one at once. Sessions go on, and expire if
    /// that lasts too long. In memory only.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for other servers.
    pub fn refuse(&self) -> Result<()> {
        self.in_memory_only("refuse connections", Loop::refuse)
    }

    /// Accepts connections again. In memory only.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for other servers.
    pub fn accept(&self) -> Result<()> {
        self.in_memory_only("accept connections", Loop::accept_again)
    }

    /// Has the next `count` requests, reads and writes of nodes, carried out without an answer: their connections are closed
    /// instead. In memory only.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for other servers.
    pub fn drop_replies(&self, count: u32) -> Result<()> {
        self.in_memory_only("drop replies", move |server| server.engine.faults.drop_replies = count)
    }

    /// Closes the connections of the next `count` requests, reads and writes of nodes, and carries these out only after
    /// `delay`: also after newer ones of the same session, as a server does whose connection was given up; not if the
    /// session has ended by then. In memory only.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for other servers.
    pub fn carry_out_late(&self, count: u32, delay: Duration) -> Result<()> {
        self.in_memory_only("carry requests out late", move |server| {
            server.engine.faults.delay = Some((count, delay));
        })
    }

    /// Refuses this share of the requests, from 0 to 1, as a server does that is too busy: they are not carried out.
    /// Heartbeats, credentials and the end of a session are never refused. In memory only.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if `share` is not from 0 to 1,
    /// [`Unsupported`](ErrorKind::Unsupported) for other servers.
    pub fn throttle(&self, share: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&share) {
            let text =
                format!("the share of throttled requests has to be from 0 to 1, not {share}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.in_memory_only("throttle requests", move |server| server.engine.faults.throttle(share))
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.controlled().server.what();
        f.debug_struct("ZooKeeper")
            .field("hosts", &self.hosts)
            .field("is", &what)
            .finish_non_exhaustive()
    }
}
