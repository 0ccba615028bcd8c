//! What `run` and `lead` have to do.

use std::time::Duration;

use zklock::Acl;

use crate::args::{HowToWait, Supervision};
use crate::connect::Lock;

/// How it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Mutex,
    Shared,
    Exclusive,
    Permits { of: u32, take: u32 },
    Leader,
}

/// What `run` and `lead` have in common.
pub(crate) struct RunSettings {
    /// What it is about, for messages: the lock as it was named.
    pub(crate) subject: String,
    /// The servers, and the chroot.
    pub(crate) hosts: String,
    pub(crate) lock: Lock,
    pub(crate) also: Vec<Lock>,
    pub(crate) mode: Mode,
    /// Whether its node is named as kazoo names them.
    pub(crate) kazoo: bool,
    /// Whether its node is made whatever is beside it.
    pub(crate) create: bool,
    pub(crate) how_to_wait: HowToWait,
    /// How many more urgent ones may come before it, if it waits for its turn in the lock's room.
    pub(crate) patience: Option<u32>,
    /// What the contender's node says.
    pub(crate) data: String,
    pub(crate) acl: Vec<Acl>,
    pub(crate) once: Option<String>,
    pub(crate) forget_after: Option<Duration>,
    /// How long it is held though the command ends earlier.
    pub(crate) hold_at_least: Option<Duration>,
    /// Whether to say what happens.
    pub(crate) is_verbose: bool,
    pub(crate) supervision: Supervision,
}

impl RunSettings {
    /// All that are held while the command runs.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &Lock> {
        std::iter::once(&self.lock).chain(&self.also)
    }
}
