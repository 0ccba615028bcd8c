//! Whether the servers let a session go on over another connection. ZooKeeper does; other servers that
//! speak its protocol answer each connection with a new session, and nobody can use or close the one
//! before: it stays until its timeout.

use std::sync::atomic::Ordering;

use log::Level;

use crate::link::log_thread::write_soon;
use crate::rt::{AtomicBool, Mutex};

/// Whether a session with this password ends with its connection. ZooKeeper's passwords have 16 random
/// bytes; such servers have none to check.
pub(crate) fn ends_with_its_connection(password: &[u8]) -> bool {
    password.len() != 16 || password.iter().all(|byte| *byte == 0)
}

/// What all sessions of a client have seen of it, where the passwords do not tell.
#[derive(Debug, Default)]
pub(crate) struct ReplacedSessions {
    /// The session that was last answered with another one, if none has gone on since.
    replaced: Mutex<Option<i64>>,
    warned: AtomicBool,
}

impl ReplacedSessions {
    /// All servers have answered with other sessions; returns whether this one has ended. The first
    /// session to which that happens may be asked for at wrong addresses, so it is searched for until its
    /// lease ends. If it happens to the next one, too, no server lets a session go on.
    pub(crate) fn replaced(&self, session: i64) -> bool {
        let mut replaced = self.replaced.lock();
        *replaced.get_or_insert(session) != session
    }

    /// A server has let a session go on.
    pub(crate) fn went_on(&self) {
        *self.replaced.lock() = None;
    }

    /// The servers are others now.
    pub(crate) fn forget(&self) {
        self.went_on();
        self.warned.store(false, Ordering::Relaxed);
    }

    /// Warns once of servers at which sessions end with their connections.
    pub(crate) fn warn(&self, password: &[u8]) {
        if ends_with_its_connection(password) && !self.warned.swap(true, Ordering::Relaxed) {
            write_soon(
                Level::Warn,
                format_args!(
                    "the servers are not ZooKeeper's: with a lost connection, its session and locks may be lost"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passwords_that_zookeeper_never_gives_tell_that_a_session_ends_with_its_connection() {
        assert!(!ends_with_its_connection(&[7; 16]));
        let mut nearly_zero = [0; 16];
        nearly_zero[15] = 1;
        assert!(!ends_with_its_connection(&nearly_zero));
        for password in [&[0; 16][..], &[7; 14], &[7; 17], &[]] {
            assert!(ends_with_its_connection(password), "{password:?}");
        }
    }

    #[test]
    fn only_the_second_session_in_a_row_that_is_replaced_everywhere_has_ended() {
        let seen = ReplacedSessions::default();
        assert!(!seen.replaced(1));
        assert!(!seen.replaced(1), "once more in the same search");
        assert!(seen.replaced(2));
        seen.went_on();
        assert!(!seen.replaced(3));
        seen.forget();
        assert!(!seen.replaced(4));
    }
}
