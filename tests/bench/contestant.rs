//! The clients that are measured.

use std::env;
use std::io;
use std::path::Path;
use std::process::Command;

use Contestant::{
    Curator, Kazoo, Raw, RawAlone, RawFixedName, RawOneConnectionLeader, RawOneConnectionReader,
    RawUnwaited, Zklock, ZklockCrate, ZklockKept, ZklockOff, ZklockPatience, ZklockTls,
    ZookeeperClient,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Contestant {
    Zklock,
    ZklockOff,
    ZklockKept,
    ZklockCrate,
    ZklockTls,
    ZklockPatience,
    Curator,
    Kazoo,
    ZookeeperClient,
    Raw,
    RawUnwaited,
    RawAlone,
    RawOneConnectionReader,
    RawOneConnectionLeader,
    RawFixedName,
}

impl Contestant {
    pub(crate) const ALL: [Contestant; 15] = [
        Zklock,
        ZklockOff,
        ZklockKept,
        ZklockCrate,
        ZklockTls,
        ZklockPatience,
        Curator,
        Kazoo,
        ZookeeperClient,
        Raw,
        RawUnwaited,
        RawAlone,
        RawOneConnectionReader,
        RawOneConnectionLeader,
        RawFixedName,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Zklock => "zklock",
            ZklockOff => "zklock-off",
            ZklockKept => "zklock-kept",
            ZklockCrate => "zklock-crate",
            ZklockTls => "zklock-tls",
            ZklockPatience => "zklock-patience",
            Curator => "curator",
            Kazoo => "kazoo",
            ZookeeperClient => "zookeeper-client",
            Raw => "raw",
            RawUnwaited => "raw-unwaited",
            RawAlone => "raw-alone",
            RawOneConnectionReader => "raw-one-connection-reader",
            RawOneConnectionLeader => "raw-one-connection-leader",
            RawFixedName => "raw-fixed-name",
        }
    }

    pub(crate) fn what(self) -> &'static str {
        match self {
            Zklock => "this crate with its defaults",
            ZklockOff => "this crate with a node for each acquisition: `HandOver::Off`",
            ZklockKept => "this crate, acquiring a kept lock again: `keep_for`",
            ZklockCrate => "this crate on a handle of the `zookeeper` crate",
            ZklockTls => "this crate by TLS, with certificates of both sides",
            ZklockPatience => "this crate, with as much `patience` as all others",
            Curator => "Curator 5.4, `InterProcessMutex`, an instance for each thread",
            Kazoo => "kazoo 2.11, `Lock`, an object for each thread",
            ZookeeperClient => {
                "zookeeper-client 0.11 (Rust, async), which does not wait for releases"
            }
            Raw => "only the requests that a lock needs, in frames written directly to one socket",
            RawUnwaited => "the same, without waiting for releases",
            RawAlone => {
                "without the list, too, as if it were known that nobody else contends: an experiment"
            }
            RawOneConnectionReader => {
                "as raw-unwaited, by threads that share their client's connection; one more thread \
                 reads, and wakes them"
            }
            RawOneConnectionLeader => {
                "the same, but one of the threads that wait reads, and hands the reading on when it \
                 has the lock"
            }
            RawFixedName => {
                "another way to let more urgent ones come first: a queue, and a lock node of a fixed name"
            }
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Contestant> {
        Contestant::ALL.into_iter().find(|contestant| contestant.name() == name)
    }

    /// Whether it is a variant of this crate.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Zklock | ZklockOff | ZklockKept | ZklockCrate | ZklockTls | ZklockPatience)
    }

    /// Whether its worker is this program.
    fn is_within(self) -> bool {
        self.is_ours() || self.is_floor()
    }

    pub(crate) fn is_floor(self) -> bool {
        matches!(
            self,
            Raw | RawUnwaited
                | RawAlone
                | RawOneConnectionReader
                | RawOneConnectionLeader
                | RawFixedName
        )
    }

    /// Whether it gets faster for a while, because it is compiled while it runs.
    pub(crate) fn is_compiled_at_work(self) -> bool {
        self == Curator
    }

    /// Whether its worker program exists; `scripts/peers --bench` builds those of other clients.
    pub(crate) fn is_there(self, programs: &Path) -> bool {
        self.is_within() || programs.join(self.program()).is_file()
    }

    fn program(self) -> String {
        format!("{}-bench", self.name())
    }

    pub(crate) fn command(self, programs: &Path) -> io::Result<Command> {
        if !self.is_within() {
            return Ok(Command::new(programs.join(self.program())));
        }
        let mut command = Command::new(env::current_exe()?);
        command.args(["--worker", self.name()]);
        Ok(command)
    }
}
