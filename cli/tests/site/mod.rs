//! A server, a client of it, and the command asking it.

use std::process::{Command, Output, Stdio};

use zklock::Client;
use zklock_testing::ZooKeeper;

pub(crate) struct Site {
    pub(crate) server: ZooKeeper,
    pub(crate) zk: Client,
}

/// Exit code, standard output, standard error.
pub(crate) type Said = (i32, String, String);

impl Site {
    pub(crate) fn new() -> Site {
        let server = ZooKeeper::builder().local().start().expect("a ZooKeeper server");
        let zk = Client::connect(server.hosts()).unwrap();
        Site { server, zk }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
        command.env("ZKLOCK_HOSTS", self.server.hosts()).args(arguments).stdin(Stdio::null());
        command
    }

    pub(crate) fn zklock(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments).output().unwrap())
    }
}

pub(crate) fn said(output: Output) -> Said {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}
