//! A program that takes locks by order, with our library or another client; see
//! tests/peers/README.md.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::ours;

/// How long a program may take to start, or to answer when it does not have to wait for a lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// The client library whose locks a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Zklock,
    Curator,
    /// Curator's queue, not its locks.
    CuratorQueue,
    Kazoo,
    ZookeeperClient,
    Aiozk,
    /// ZooKeeper's own.
    WriteLock,
    Go,
    /// An earlier version of zklock: see `scripts/peers --before`.
    Before,
}

impl Whose {
    fn name(self) -> &'static str {
        match self {
            Whose::Zklock => "zklock",
            Whose::Curator => "curator",
            Whose::CuratorQueue => "curator-queue",
            Whose::Kazoo => "kazoo",
            Whose::ZookeeperClient => "zookeeper-client",
            Whose::Aiozk => "aiozk",
            Whose::WriteLock => "write-lock",
            Whose::Go => "go",
            Whose::Before => "before",
        }
    }

    /// Where `scripts/peers` puts the program.
    fn program(self) -> PathBuf {
        programs().join(self.name())
    }

    pub(super) fn is_there(self) -> bool {
        self == Whose::Zklock || self.program().is_file()
    }

    fn command(self, hosts: &str) -> Command {
        if self == Whose::Zklock {
            return ours::command(hosts);
        }
        let mut command = Command::new(self.program());
        command.arg(hosts);
        command
    }
}

pub(super) fn programs() -> &'static Path {
    Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/peers"))
}

/// Returns from the test, and prints a line about it, if one of the programs is missing.
macro_rules! skip_without {
    ($($whose:expr),+) => {
        for whose in [$($whose),+] {
            if !whose.is_there() {
                eprintln!("SKIPPED: the program for {whose} is missing; scripts/peers builds it");
                return;
            }
        }
    };
}

pub(super) use skip_without;

/// A running program.
#[derive(Debug)]
pub(super) struct Peer {
    whose: Whose,
    child: Child,
    /// Taken in `end` only.
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Peer {
    pub(super) fn start(whose: Whose, hosts: &str) -> Peer {
        let mut child = whose
            .command(hosts)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{whose} could not be started: {error}"));
        let orders = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (tell, answers) = mpsc::channel();
        thread::spawn(move || {
            let answers = lines.map_while(io::Result::ok).filter_map(|line| {
                // The test harness prints lines of its own.
                Some(line.split_once("peer: ")?.1.to_owned())
            });
            // The receiver is gone once the program was ended.
            let _ = { answers }.try_for_each(|answer| tell.send(answer));
        });
        let peer = Peer { whose, child, orders, answers };
        assert_eq!(peer.answer(PATIENCE), "ready");
        peer
    }

    pub(super) fn whose(&self) -> Whose {
        self.whose
    }

    /// Sends an order, without waiting for the answer.
    pub(super) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("its input");
        writeln!(orders, "{order}").unwrap_or_else(|error| {
            panic!("{} does not accept orders: {error}", self.whose);
        });
    }

    pub(super) fn answer(&self, limit: Duration) -> String {
        self.answers.recv_timeout(limit).unwrap_or_else(|why| {
            let what = match why {
                RecvTimeoutError::Timeout => "does not answer",
                RecvTimeoutError::Disconnected => "has ended",
            };
            panic!("{} {what}", self.whose)
        })
    }

    /// The next answer, if it has arrived.
    pub(super) fn said(&self) -> Option<String> {
        self.answers.try_recv().ok()
    }

    pub(super) fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer(PATIENCE)
    }

    pub(super) fn lock(&mut self, path: &str, kind: &str) {
        assert_eq!(self.ask(&format!("lock {path} {kind}")), "held");
    }

    /// Whether it gets the lock within `limit`.
    pub(super) fn tries(&mut self, path: &str, kind: &str, limit: Duration) -> bool {
        match self.ask(&format!("try {path} {kind} {}", limit.as_millis())).as_str() {
            "held" => true,
            "not" => false,
            other => panic!("{}: {other}", self.whose),
        }
    }

    pub(super) fn release(&mut self) {
        assert_eq!(self.ask("release"), "released");
    }

    /// Waits until it has the lock that it was waiting for.
    pub(super) fn is_granted(&self) {
        assert_eq!(self.answer(PATIENCE), "held");
    }

    /// Ends the program and its session. If it is only dropped, its session has to expire.
    pub(super) fn end(mut self) {
        drop(self.orders.take());
        assert_eq!(self.answers.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        let status = self.child.wait().expect("its exit code");
        assert!(status.success(), "{} ended with {status}", self.whose);
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.whose.fmt(f)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
