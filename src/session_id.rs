//! The id of a session.

use std::fmt;

/// The id of a session, printed as servers print it in their logs: `0x1000012ab340000`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(i64);

impl SessionId {
    /// The session at whose end a node is deleted; `None` if there is none, or it is not known.
    pub(crate) fn of_owner(owner: i64) -> Option<SessionId> {
        // The same field marks containers and nodes with a time to live.
        let is_mark = owner == i64::MIN || (owner >> 56) == -1;
        (owner != 0 && !is_mark).then_some(SessionId(owner))
    }
}

impl From<SessionId> for i64 {
    fn from(id: SessionId) -> i64 {
        id.0
    }
}

impl From<i64> for SessionId {
    fn from(id: i64) -> SessionId {
        SessionId(id)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_printed_as_servers_print_it() {
        assert_eq!(SessionId(0x0100_0012_ab34_0000).to_string(), "0x1000012ab340000");
        assert_eq!(format!("{:?}", SessionId(-1)), "0xffffffffffffffff");
    }
}
