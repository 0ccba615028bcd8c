//! The token in its file, and where one is needed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::exit::Failure;

const SHORTEST: usize = 16;
const LONGEST: usize = 4_096;

/// Who can connect, and so read what it serves without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this user, by a socket with mode 0600.
    ThisUser,
    /// All users of this host.
    ThisHost,
    Network,
}

/// Whether it may start so.
pub(crate) fn check_reach(
    reach: Reach,
    has_credentials: bool,
    has_token: bool,
    no_token: bool,
) -> Result<(), Failure> {
    let why = match reach {
        _ if has_token => return Ok(()),
        Reach::ThisUser => return Ok(()),
        Reach::ThisHost | Reach::Network if has_credentials => {
            "with credentials for ZooKeeper, it would show others what only this user may read: \
             use --token-file FILE or --listen unix:PATH"
        }
        Reach::Network if !no_token => {
            "that is no loopback address, so all who reach it could read: use --token-file FILE, \
             or --no-token if they may"
        }
        Reach::ThisHost | Reach::Network => return Ok(()),
    };
    Err(Failure::usage(why))
}

/// Reads the token from its file, which others must not be able to read or to change.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    let name = file.display();
    let unusable = |why: io::Error| Failure::usage(format!("{name} cannot be read: {why}"));
    let opened = File::open(file).map_err(unusable)?;
    let mode = opened.metadata().map_err(unusable)?.mode() & 0o777;
    if mode & 0o026 != 0 {
        let why = format!("others than its owner may read or change {name} (mode {mode:o})");
        return Err(Failure::usage(format!("{why}: chmod g-w,o-rw {name}")));
    }
    let mut text = String::new();
    opened.take(LONGEST as u64 + 3).read_to_string(&mut text).map_err(unusable)?;
    match in_text(&text) {
        Ok(token) => Ok(token.to_owned()),
        Err(why) => Err(Failure::usage(format!("{name}: {why}"))),
    }
}

fn in_text(text: &str) -> Result<&str, String> {
    let token = text.trim_end_matches(['\r', '\n']);
    // As RFC 6750 has it: it can be a part of a header, a cookie and a link.
    let is_right = |one: char| one.is_ascii_alphanumeric() || "-._~+/=".contains(one);
    match token.len() {
        length if length < SHORTEST => {
            Err(format!("a token needs at least {SHORTEST} characters, and this has {length}"))
        }
        length if length > LONGEST => Err(format!("a token has at most {LONGEST} characters")),
        _ if !token.chars().all(is_right) => {
            Err("a token consists of letters, digits and -._~+/=, on one line".to_owned())
        }
        _ => Ok(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reaches_more_than_this_user_needs_a_token() {
        let check = |reach, has_credentials, has_token, no_token| {
            check_reach(reach, has_credentials, has_token, no_token).is_ok()
        };
        use Reach::{Network, ThisHost, ThisUser};
        for (reach, has_credentials, no_token, may_start) in [
            (ThisUser, false, false, true),
            (ThisUser, true, false, true),
            (ThisHost, false, false, true),
            (ThisHost, true, false, false),
            (ThisHost, true, true, false),
            (Network, false, false, false),
            (Network, false, true, true),
            (Network, true, false, false),
            (Network, true, true, false),
        ] {
            let case = format!("{reach:?}, {has_credentials}, {no_token}");
            assert_eq!(check(reach, has_credentials, false, no_token), may_start, "{case}");
            assert!(check(reach, has_credentials, true, false), "{case}");
        }
    }

    #[test]
    fn a_token_is_long_and_needs_no_escapes() {
        assert_eq!(in_text("0123456789abcdeF\n"), Ok("0123456789abcdeF"));
        assert_eq!(in_text("-._~+/=-._~+/=-._~+/=\r\n"), Ok("-._~+/=-._~+/=-._~+/="));
        let long = "a".repeat(LONGEST + 1);
        for (text, why) in [
            ("", "at least 16 characters, and this has 0"),
            ("0123456789abcde\n", "and this has 15"),
            ("0123456789 abcdef", "letters, digits"),
            ("0123456789\nabcdef", "on one line"),
            ("0123456789abcdeä", "letters, digits"),
            (&long, "at most 4096"),
        ] {
            assert!(in_text(text).unwrap_err().contains(why), "{text}");
        }
    }
}
