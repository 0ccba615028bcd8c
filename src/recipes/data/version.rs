//! A node's data with its version, and what else the server knows about a node.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, Result};
use crate::session_id::SessionId;
use crate::wire_values::Stat;

/// A node's data with its version.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versioned {
    /// The node's data.
    pub data: Vec<u8>,
    /// The version, to write only if no other client has written since.
    pub version: Version,
}

impl Versioned {
    pub(crate) fn new(data: Vec<u8>, stat: &Stat) -> Versioned {
        Versioned { data, version: Version::of(stat) }
    }
}

impl fmt::Debug for Versioned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versioned")
            .field("data", &String::from_utf8_lossy(&self.data))
            .field("version", &self.version)
            .finish()
    }
}

/// The version of a node's data: each change makes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The transaction that created the node. In a node that is created again, the numbers start
    /// again.
    node: i64,
    /// ZooKeeper's number of the version: how many times the data was written since the node was created.
    pub number: i32,
}

impl Version {
    pub(crate) fn of(stat: &Stat) -> Version {
        Version { node: stat.czxid, number: stat.version }
    }

    /// The version of a node's first data.
    pub(crate) fn first(czxid: i64) -> Version {
        Version { node: czxid, number: 0 }
    }

    /// The number to send to the server. Fails for −1, which the server takes for any version.
    pub(crate) fn checked(self) -> Result<i32> {
        if self.number != -1 {
            return Ok(self.number);
        }
        let message =
            "the server takes version -1 for any version: write without a version instead";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    pub(crate) fn next(self) -> Version {
        Version { number: self.number.wrapping_add(1), ..self }
    }
}

/// What the server knows about a node besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZnodeStat {
    /// The version of the node's data.
    pub version: Version,
    /// When the node was created, by the clock of the ensemble's leader.
    pub created_at: SystemTime,
    /// When the node's data was last written, by the clock of the ensemble's leader.
    pub written_at: SystemTime,
    /// The transaction that created the node.
    pub created_zxid: i64,
    /// The transaction that last wrote the node's data.
    pub written_zxid: i64,
    /// How many children the node has.
    pub child_count: usize,
    /// The length of the node's data, in bytes.
    pub data_length: usize,
    /// The session at whose end the server deletes the node; `None` if the node is not ephemeral.
    pub owner: Option<SessionId>,
}

impl ZnodeStat {
    pub(crate) fn new(stat: Stat) -> ZnodeStat {
        ZnodeStat {
            version: Version::of(&stat),
            created_at: time(stat.ctime),
            written_at: time(stat.mtime),
            created_zxid: stat.czxid,
            written_zxid: stat.mzxid,
            child_count: usize::try_from(stat.children).unwrap_or_default(),
            data_length: usize::try_from(stat.data_length).unwrap_or_default(),
            owner: SessionId::of_owner(stat.ephemeral_owner),
        }
    }
}

fn time(milliseconds: i64) -> SystemTime {
    let since = Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default());
    SystemTime::UNIX_EPOCH + since
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_would_match_any_is_refused() {
        let last = Version { node: 7, number: -2 };
        assert!(last.checked().is_ok() && last.next().checked().is_err());
        assert!(last.next().next().checked().is_ok());
        let most = Version { node: 7, number: i32::MAX };
        assert_eq!(most.next().number, i32::MIN);
    }
}
