//! What `run` and `lead` have to do.

use std::time::Duration;

use zklock::Acl;

use crate::connect::Lock;
use crate::options::{HowToWait, Supervision};

/// How it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Mutex,
    Shared,
    Exclusive,
    Permits { of: u32, take: u32 },
    Leader,
}

/// What `run` and `lead` have in common.
pub(super) struct RunSettings {
    /// What it is about, for messages: the lock as it was named.
    pub(super) subject: String,
    /// The servers, and the chroot.
    pub(super) hosts: String,
    pub(super) lock: Lock,
    pub(super) also: Vec<Lock>,
    pub(super) mode: Mode,
    /// Whether its node is named as kazoo names them.
    pub(super) kazoo: bool,
    /// Whether its node is made whatever is beside it.
    pub(super) create: bool,
    pub(super) how_to_wait: HowToWait,
    /// How many more urgent ones may come before it, if it waits for its turn in the lock's room.
    pub(super) patience: Option<u32>,
    /// What the contender's node says.
    pub(super) data: String,
    pub(super) acl: Vec<Acl>,
    pub(super) once: Option<String>,
    pub(super) forget_after: Option<Duration>,
    /// How long it is held though the command ends earlier.
    pub(super) hold_at_least: Option<Duration>,
    /// Whether to say what happens.
    pub(super) is_verbose: bool,
    pub(super) supervision: Supervision,
}

impl RunSettings {
    /// All that are held while the command runs.
    pub(super) fn locks(&self) -> impl Iterator<Item = &Lock> {
        std::iter::once(&self.lock).chain(&self.also)
    }
}
