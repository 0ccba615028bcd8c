//! Authentication by SASL: DIGEST-MD5, as RFC 2831 describes it, in ZooKeeper's requests.

use std::collections::HashMap;
use std::{fmt, io};

use md5::{Digest, Md5};

use super::address_failure::Failure;
use crate::error::{Error, ErrorKind, Result};
use crate::link::protocol::Fields;
use crate::wire_values::code;

/// The credentials of a client for SASL: see [`ClientBuilder::sasl`](crate::ClientBuilder::sasl).
///
/// The password never appears in `Debug`, errors or logs. Kerberos (GSSAPI) is not supported.
#[derive(Clone)]
pub struct Sasl {
    user: String,
    password: String,
}

impl Sasl {
    /// Authenticates with a name and a password by the mechanism DIGEST-MD5.
    ///
    /// The servers' JAAS configuration has them in its section `Server`, in a line
    /// `user_NAME="PASSWORD"`. The password itself is not sent, and the server has to prove that it
    /// knows it, too. But the mechanism is old and weak (RFC 6331): without TLS, an eavesdropper
    /// can try out passwords, so take a long random one.
    pub fn digest_md5(user: impl Into<String>, password: impl Into<String>) -> Sasl {
        Sasl { user: user.into(), password: password.into() }
    }

    /// # Errors
    ///
    /// Fails with `InvalidArgument` if no server can accept the name or the password.
    pub(crate) fn check(&self) -> Result<()> {
        let all = [&self.user, &self.password];
        let why = if all.iter().any(|part| part.is_empty()) {
            "the name and the password for SASL must not be empty"
        } else if all.iter().any(|part| part.len() > 1024) {
            "the name and the password for SASL must be at most 1 KiB each"
        } else if all.iter().any(|part| part.chars().any(char::is_control)) {
            "the name and the password for SASL must not have control characters"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }

    /// Authenticates; `ask` sends a token, and returns the error code of the server's reply and its body. The
    /// client is rejected by the server, or rejects one that does not know the password.
    pub(crate) fn authenticate(
        &self,
        mut ask: impl FnMut(&[u8]) -> io::Result<(i32, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let rejected = |why: &str| Failure::Rejected(why.to_owned());
        let mut token = |sent: &[u8]| -> Result<Vec<u8>, Failure> {
            match ask(sent).map_err(|cause| self.unanswered(cause))? {
                (code::OK, reply) => Ok(Fields(&reply).buffer()?.to_vec()),
                (code::AUTH_FAILED | code::SASL_REQUIRED, _) => Err(Failure::Rejected(format!(
                    "the server rejected SASL's user {:?} or the password",
                    self.user
                ))),
                (error, _) => {
                    Err(io::Error::other(format!("SASL failed with error {error}")).into())
                }
            }
        };
        let challenge = token(&[])?;
        if challenge.is_empty() {
            return Err(rejected(
                "the server is not configured for SASL, or lets clients in whose SASL fails \
                 (allowSaslFailedClients)",
            ));
        }
        let answer = Answer::to(&challenge).map_err(rejected)?;
        let proof = token(&answer.token(self))?;
        let proven = directives(&proof).ok().and_then(|mut all| all.remove("rspauth"));
        if proven.is_some_and(|proven| proven == answer.digest(self, "").as_bytes()) {
            return Ok(());
        }
        Err(rejected("the server does not prove that it knows SASL's password"))
    }

    /// What it may mean that the connection is closed: servers before 3.5 reject a client by that.
    fn unanswered(&self, cause: io::Error) -> io::Error {
        if !matches!(cause.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) {
            return cause;
        }
        let why = format!(
            "the server closed the connection instead of an answer to SASL: it may have rejected the user \
             {:?} or the password",
            self.user
        );
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    }
}

impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sasl").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The service and the server's name in it, as all of ZooKeeper's clients and servers write them.
const URI: &str = "zookeeper/zk-sasl-md5";

/// What the answer to a server's challenge is made of.
struct Answer {
    realm: Vec<u8>,
    nonce: Vec<u8>,
    /// Whether the server reads UTF-8 instead of ISO 8859-1.
    is_utf8: bool,
    own_nonce: String,
    uri: &'static str,
}

impl Answer {
    fn to(challenge: &[u8]) -> Result<Answer, &'static str> {
        let mut said = directives(challenge)?;
        if said.get("algorithm").is_none_or(|name| !name.eq_ignore_ascii_case(b"md5-sess")) {
            return Err("the server's SASL challenge is not one of DIGEST-MD5");
        }
        let offers_auth = |kinds: &Vec<u8>| {
            kinds.split(|byte| *byte == b',').any(|one| one.trim_ascii() == b"auth")
        };
        if !said.get("qop").is_none_or(offers_auth) {
            return Err(
                "the server's SASL demands to encrypt or sign the connection, which ZooKeeper cannot",
            );
        }
        Ok(Answer {
            nonce: said.remove("nonce").ok_or("the server's SASL challenge has no nonce")?,
            realm: said.remove("realm").unwrap_or_default(),
            is_utf8: said.get("charset").is_some_and(|name| name.eq_ignore_ascii_case(b"utf-8")),
            own_nonce: uuid::Uuid::new_v4().simple().to_string(),
            uri: URI,
        })
    }

    fn token(&self, who: &Sasl) -> Vec<u8> {
        let charset: &[u8] = if self.is_utf8 { b"charset=utf-8," } else { b"" };
        let user = if self.is_utf8 { who.user.clone().into_bytes() } else { latin(&who.user) };
        let rest = format!(
            "nc=00000001,cnonce=\"{}\",digest-uri=\"{}\",maxbuf=65536,response={},qop=auth",
            self.own_nonce,
            self.uri,
            self.digest(who, "AUTHENTICATE")
        );
        let values = [("username", &user), ("realm", &self.realm), ("nonce", &self.nonce)];
        let quoted =
            values.map(|(name, value)| [name.as_bytes(), b"=", &quoted(value), b","].concat());
        [charset, &quoted.concat(), rest.as_bytes()].concat()
    }

    /// The proof of the client, for the word `AUTHENTICATE`, or that of the server, for no word.
    fn digest(&self, who: &Sasl, word: &str) -> String {
        // What can be written in ISO 8859-1 is hashed as that, even if UTF-8 is sent.
        let secret =
            [&latin(&who.user), b":" as &[u8], &self.realm_to_hash(), b":", &latin(&who.password)];
        let own = self.own_nonce.as_bytes();
        let first = hashed(&[&hashed(&secret), b":", &self.nonce, b":", own]);
        let second = hashed(&[word.as_bytes(), b":", self.uri.as_bytes()]);
        let (first, second) = (hex(&first), hex(&second));
        let all: [&[u8]; 7] =
            [first.as_bytes(), b":", &self.nonce, b":00000001:", own, b":auth:", second.as_bytes()];
        hex(&hashed(&all))
    }

    fn realm_to_hash(&self) -> Vec<u8> {
        match std::str::from_utf8(&self.realm) {
            Ok(realm) if self.is_utf8 => latin(realm),
            _ => self.realm.clone(),
        }
    }
}

fn hashed(parts: &[&[u8]]) -> [u8; 16] {
    parts.iter().fold(Md5::new(), |hash, part| hash.chain_update(part)).finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text in ISO 8859-1; in UTF-8 if it has other letters.
fn latin(text: &str) -> Vec<u8> {
    let letters: Option<Vec<u8>> = text.chars().map(|letter| u8::try_from(letter).ok()).collect();
    letters.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn quoted(value: &[u8]) -> Vec<u8> {
    let escaped = value.iter().flat_map(|byte| {
        let is_special = matches!(byte, b'"' | b'\\');
        is_special.then_some(b'\\').into_iter().chain([*byte])
    });
    [b'"'].into_iter().chain(escaped).chain([b'"']).collect()
}

/// Reads `name=value,name="value"`; of several with one name, the first.
fn directives(text: &[u8]) -> Result<HashMap<String, Vec<u8>>, &'static str> {
    const MALFORMED: &str = "the server's SASL challenge cannot be read";
    let (mut all, mut rest) = (HashMap::new(), text);
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(b",") {
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return Ok(all);
        }
        let at = rest.iter().position(|byte| *byte == b'=').ok_or(MALFORMED)?;
        let name = rest[..at].trim_ascii().to_ascii_lowercase();
        let name = String::from_utf8(name).map_err(|_| MALFORMED)?;
        rest = rest[at + 1..].trim_ascii_start();
        let mut value = Vec::new();
        if let Some(mut inner) = rest.strip_prefix(b"\"") {
            loop {
                match inner {
                    [b'"', after @ ..] => break rest = after,
                    [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                        value.push(*byte);
                        inner = after;
                    }
                    [] => return Err(MALFORMED),
                }
            }
        } else {
            let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
            value.extend(rest[..end].trim_ascii_end());
            rest = &rest[end..];
        }
        all.entry(name).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::protocol::Frame;
    use proptest::prelude::*;

    /// The example of RFC 2831, section 4.
    fn example() -> Answer {
        let challenge = b"realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",qop=\"auth\",\
                          algorithm=md5-sess,charset=utf-8";
        let mut answer = Answer::to(challenge).unwrap();
        answer.own_nonce = "OA6MHXh6VqTrRk".to_owned();
        answer.uri = "imap/elwood.innosoft.com";
        answer
    }

    #[test]
    fn the_standard_s_example_is_computed() {
        let (answer, chris) = (example(), Sasl::digest_md5("chris", "secret"));
        assert_eq!(answer.digest(&chris, "AUTHENTICATE"), "d388dad90d4bbd760a152321f2143af7");
        assert_eq!(answer.digest(&chris, ""), "ea40f60335c427b5527b84dbabcdfffd");
        let token = String::from_utf8(answer.token(&chris)).unwrap();
        let start = "charset=utf-8,username=\"chris\",realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\"";
        assert!(token.starts_with(start), "{token}");
    }

    #[test]
    fn letters_beyond_ascii_and_quotes_are_sent_as_the_server_reads_them() {
        let mut answer = example();
        let who = Sasl::digest_md5("zoë\"\\", "ü");
        let token = answer.token(&who);
        assert!(token.starts_with("charset=utf-8,username=\"zoë\\\"\\\\\"".as_bytes()));
        answer.is_utf8 = false;
        assert!(answer.token(&who).starts_with(b"username=\"zo\xeb\\\"\\\\\""));
        assert_eq!(latin("ü"), [0xfc]);
        assert_eq!(latin("ü€"), "ü€".as_bytes());
    }

    #[test]
    fn other_challenges_are_refused() {
        for (challenge, why) in [
            ("", "not one of DIGEST-MD5"),
            ("nonce=\"x\"", "not one of DIGEST-MD5"),
            ("algorithm=md5-sess", "no nonce"),
            ("algorithm=md5-sess,nonce=\"x\",qop=\"auth-conf, auth-int\"", "sign"),
            ("algorithm=md5-sess,nonce=\"x", "cannot be read"),
            ("x", "cannot be read"),
        ] {
            let error = Answer::to(challenge.as_bytes()).err().unwrap();
            assert!(error.contains(why), "{challenge}: {error}");
        }
        assert!(Answer::to(b" , algorithm = MD5-sess , nonce=x,qop=\"auth-int, auth\"").is_ok());
    }

    fn reply(error: i32, token: &[u8]) -> (i32, Vec<u8>) {
        (error, if error == 0 { Frame::new().buffer(token).body() } else { Vec::new() })
    }

    /// What the client says of a server that it does not accept, or that does not accept it.
    fn rejected(result: Result<(), Failure>) -> String {
        let Err(Failure::Rejected(why)) = result else { panic!("{result:?}") };
        why
    }

    fn kind(result: Result<(), Failure>) -> io::ErrorKind {
        let Err(Failure::Other(cause)) = result else { panic!("{result:?}") };
        cause.kind()
    }

    #[test]
    fn whoever_does_not_know_the_password_is_told_from_whoever_does() {
        let who = Sasl::digest_md5("ann", "secret");
        let challenge = b"realm=\"zk-sasl-md5\",nonce=\"abc\",algorithm=md5-sess";
        // As a server: it computes the proof from what the client sent.
        let serve = |password: &str, last: Option<i32>| {
            let known = Sasl::digest_md5("ann", password);
            let ask = |token: &[u8]| {
                if token.is_empty() {
                    return Ok(reply(0, challenge));
                }
                let said = directives(token).unwrap();
                let mut answer = Answer::to(challenge).unwrap();
                answer.own_nonce = String::from_utf8(said["cnonce"].clone()).unwrap();
                assert_eq!(said["digest-uri"], URI.as_bytes());
                let proof = format!("rspauth={}", answer.digest(&known, ""));
                Ok(reply(last.unwrap_or(0), proof.as_bytes()))
            };
            who.authenticate(ask)
        };
        assert!(serve("secret", None).is_ok());
        assert!(rejected(serve("other", None)).contains("does not prove"));
        let why = rejected(serve("other", Some(code::AUTH_FAILED)));
        assert!(why.contains("\"ann\"") && !why.contains("secret"), "{why}");
        let unknown = rejected(who.authenticate(|_| Ok(reply(0, b""))));
        assert!(unknown.contains("not configured"), "{unknown}");
        assert_eq!(kind(who.authenticate(|_| Ok(reply(-6, b"")))), io::ErrorKind::Other);
        let other = rejected(who.authenticate(|_| Ok(reply(0, b"algorithm=other"))));
        assert!(other.contains("not one of DIGEST-MD5"));
        // As servers before 3.5 do.
        for closed in [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset] {
            for mut answers in [vec![], vec![Ok(reply(0, challenge))]] {
                let ask = |_: &[u8]| answers.pop().unwrap_or_else(|| Err(closed.into()));
                assert_eq!(kind(who.authenticate(ask)), io::ErrorKind::PermissionDenied);
            }
        }
        let slow = who.authenticate(|_| Err(io::ErrorKind::TimedOut.into()));
        assert_eq!(kind(slow), io::ErrorKind::TimedOut);
        assert_eq!(format!("{who:?}"), "Sasl { user: \"ann\", .. }");
    }

    proptest! {
        #[test]
        fn no_challenge_makes_it_panic(bytes: Vec<u8>, text in "[a-z=\",\\\\ ]{0,40}") {
            let _ = Answer::to(&bytes);
            let _ = Answer::to(&[b"algorithm=md5-sess,nonce=a," as &[u8], text.as_bytes()].concat());
        }

        #[test]
        fn what_is_quoted_reads_the_same(value: Vec<u8>) {
            let text = [b"a=" as &[u8], &quoted(&value), b", b=c"].concat();
            let all = directives(&text).unwrap();
            prop_assert_eq!(&all["a"], &value);
            prop_assert_eq!(&all["b"], b"c");
        }
    }
}
