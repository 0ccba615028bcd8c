//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// A number that grows from holder to holder of one lock, for stores to refuse what a
/// former holder sends late.
///
/// It is the `czxid` of the holder's node: the number of the transaction that made it, in
/// the order of the whole ensemble. So it goes on growing when the lock node is deleted
/// and made anew, where sequence numbers start again. The second part, the turn, tells
/// apart successive holders that share one node; it is 0 otherwise.
///
/// Its text form is of fixed width and sorts as the tokens do:
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

    /// The transaction that made the holder's node. Between processes it alone is enough.
    pub fn zxid(&self) -> u64 {
        self.zxid
    }

    /// Which of the successive holders that share the node this is, from 0.
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
    /// [`InvalidData`](ErrorKind::InvalidData) for anything that `Display` does not write.
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
            Error::new(ErrorKind::InvalidData, format!("{text:?} is not a fencing token"))
        })
    }
}
