//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// A number that grows from holder to holder of one lock, so that a store can refuse what a
/// former holder sends late.
///
/// Its first part is the `czxid` of the holder's node: the number of the transaction that created
/// the node, in the order of the whole ensemble. So it goes on growing when the lock path is
/// deleted and created again, where sequence numbers restart. The second part, the turn, tells
/// apart successive holders that share one node; it is 0 otherwise.
///
/// Tokens grow within the life of one ensemble's data. After a rebuild or a restore, transaction
/// numbers begin anew, and a store that remembers a token of the old ensemble refuses every holder
/// until its remembered token is reset by hand: see `docs/guarantees.md` in the repository.
///
/// Its text form has a fixed width and sorts as the tokens do:
///
/// ```
/// use zklock::FencingToken;
///
/// let token: FencingToken = "00000001000000a7-00000000".parse().unwrap();
/// assert_eq!(token.zxid(), 0x1_0000_00a7);
/// assert_eq!(token.to_string(), "00000001000000a7-00000000");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    zxid: u64,
    turn: u32,
}

impl FencingToken {
    pub(crate) fn new(zxid: u64, turn: u32) -> FencingToken {
        FencingToken { zxid, turn }
    }

    /// The transaction that created the holder's node. It alone orders holders in different
    /// processes.
    pub fn zxid(&self) -> u64 {
        self.zxid
    }

    /// The number of this holder, from 0, among those that share the node one after another.
    pub fn turn(&self) -> u32 {
        self.turn
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}", self.zxid, self.turn)
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for anything that `Display` does not write.
    fn from_str(text: &str) -> Result<FencingToken> {
        let parse = || {
            let (zxid, turn) = text.split_once('-')?;
            let hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if zxid.len() != 16 || turn.len() != 8 || !hex(zxid) || !hex(turn) {
                return None;
            }
            let zxid = u64::from_str_radix(zxid, 16).ok()?;
            Some(FencingToken { zxid, turn: u32::from_str_radix(turn, 16).ok()? })
        };
        parse().ok_or_else(|| {
            let message = format!(
                "{text:?} is not a fencing token: expected 16 and 8 lowercase hexadecimal digits, \
                 as in 00000001000000a7-00000000"
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}
