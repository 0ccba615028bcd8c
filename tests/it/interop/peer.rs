//! A program that takes locks as it is told, of ours or another client's; see tests/peers/README.md.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::ours;

/// How long a program may take to start, or an answer that nothing stands in the way of.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whose lock it is that a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Zklock,
    Curator,
    /// Not its locks, but its queue.
    CuratorQueue,
    Kazoo,
    ZookeeperClient,
}

impl Whose {
    fn name(self) -> &'static str {
        match self {
            Whose::Zklock => "zklock",
            Whose::Curator => "curator",
            Whose::CuratorQueue => "curator-queue",
            Whose::Kazoo => "kazoo",
            Whose::ZookeeperClient => "zookeeper-client",
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

/// Returns from the test, with a line that says so, when one of the programs is not there.
macro_rules! skip_without {
    ($($whose:expr),+) => {
        for whose in [$($whose),+] {
            if !whose.is_there() {
                eprintln!("SKIPPED: there is no program for {whose}; scripts/peers builds it");
                return;
            }
        }
    };
}

pub(super) use skip_without;

/// A program that runs.
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
            .unwrap_or_else(|error| panic!("{whose} does not start: {error}"));
        let orders = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (tell, answers) = mpsc::channel();
        thread::spawn(move || {
            let answers = lines.map_while(io::Result::ok).filter_map(|line| {
                // What runs tests says things too.
                Some(line.split_once("peer: ")?.1.to_owned())
            });
            // Who no longer listens has ended it.
            let _ = { answers }.try_for_each(|answer| tell.send(answer));
        });
        let peer = Peer { whose, child, orders, answers };
        assert_eq!(peer.answer(PATIENCE), "ready");
        peer
    }

    pub(super) fn whose(&self) -> Whose {
        self.whose
    }

    /// Tells it to do something, and does not wait for the answer.
    pub(super) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("its input");
        writeln!(orders, "{order}").unwrap_or_else(|error| {
            panic!("{} does not listen: {error}", self.whose);
        });
    }

    pub(super) fn answer(&self, limit: Duration) -> String {
        self.answers.recv_timeout(limit).unwrap_or_else(|why| {
            let what = match why {
                RecvTimeoutError::Timeout => "gives no answer",
                RecvTimeoutError::Disconnected => "has ended",
            };
            panic!("{} {what}", self.whose)
        })
    }

    /// What it has answered by now, if anything.
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

    /// Whether it gets the lock within the time.
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

    /// What it has been waiting for has come.
    pub(super) fn is_granted(&self) {
        assert_eq!(self.answer(PATIENCE), "held");
    }

    /// Has it end its session. One that is only dropped leaves its session to expire.
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
