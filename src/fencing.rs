//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// A number that grows from holder to holder of one lock, so that a store can refuse a former
/// holder's late writes.
///
/// A store remembers the highest token that it has seen, and refuses lower ones. The first part is
/// the `czxid` of the holder's node: the number of the transaction that created it, in the order of
/// the whole ensemble, so it grows even when the lock path is deleted and created again. The second
/// part, the turn, tells apart successive holders that share one node; it is 0 otherwise.
///
/// Tokens grow within the life of one ensemble's data. After a rebuild or a restore, a store that
/// remembers an old token refuses every holder, at first: see `docs/guarantees.md` in the
/// repository.
///
/// Its text form has a fixed width and sorts as the tokens do:
///
/// ```
/// use zklock::FencingToken;
///
/// let token: FencingToken = "00000001000000a7-00000000".parse().unwrap();
/// assert_eq!(token.zxid(), 0x1_0000_00a7);
/// assert_eq!(token.to_string(), "00000001000000a7-00000000");
/// assert_eq!(FencingToken::try_from(u128::from(token)).unwrap(), token);
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

    /// Returns the number of the transaction that created the holder's node.
    ///
    /// This number alone orders holders in different processes.
    pub fn zxid(&self) -> u64 {
        self.zxid
    }

    /// Returns 0 for the first holder of a node, and more for each thread it is handed to.
    pub fn turn(&self) -> u32 {
        self.turn
    }
}

impl From<(u64, u32)> for FencingToken {
    /// Puts a token together from its [`zxid`](FencingToken::zxid) and
    /// [`turn`](FencingToken::turn).
    fn from((zxid, turn): (u64, u32)) -> FencingToken {
        FencingToken { zxid, turn }
    }
}

impl From<FencingToken> for u128 {
    /// Returns the token as one number, which sorts as tokens do.
    ///
    /// Its lowest 32 bits are the turn.
    fn from(token: FencingToken) -> u128 {
        (u128::from(token.zxid) << 32) | u128::from(token.turn)
    }
}

impl TryFrom<u128> for FencingToken {
    type Error = Error;

    /// Turns the number that `u128::from` has made of a token back into the token.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a number of more than 96 bits, which no token has.
    fn try_from(number: u128) -> Result<FencingToken> {
        match u64::try_from(number >> 32) {
            // The mask leaves what fits.
            Ok(zxid) => Ok(FencingToken { zxid, turn: (number & u128::from(u32::MAX)) as u32 }),
            Err(_) => {
                let message = format!("{number} is not a fencing token: it has more than 96 bits");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}", self.zxid, self.turn)
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// Reads the text that `Display` writes.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for any other text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_s_number_grows_as_it_does(one: (u64, u32), other: (u64, u32)) {
            let (one, other) = (FencingToken::from(one), FencingToken::from(other));
            let (number, higher) = (u128::from(one), u128::from(other));
            prop_assert_eq!(number.cmp(&higher), one.cmp(&other));
            prop_assert_eq!(FencingToken::try_from(number).unwrap(), one);
        }
    }

    #[test]
    fn a_number_that_no_token_has_is_refused() {
        assert!(FencingToken::try_from((1 << 96) - 1).is_ok());
        let refused = FencingToken::try_from(1 << 96).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
}
