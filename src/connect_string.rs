//! The connect string: the servers of the ensemble, and the chroot.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::path;

const DEFAULT_PORT: u16 = 2181;

/// The longest name that the domain name system can hold, as text.
const MAX_NAME_BYTES: usize = 253;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectString {
    pub(crate) hosts: Vec<Host>,
    /// Put in front of every path as it is, and therefore empty instead of "/".
    pub(crate) chroot: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    /// An IPv6 address stands here without its brackets.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Host {
    /// The host's address, if it is written as one and needs no name resolution.
    pub(crate) fn literal(&self) -> Option<SocketAddr> {
        let address: IpAddr = self.name.parse().ok()?;
        Some(SocketAddr::new(address, self.port))
    }
}

impl FromStr for ConnectString {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        for host in text.split(',').map(str::trim) {
            let is_named = |scheme: &&str| {
                let mut bytes = scheme.bytes();
                !scheme.is_empty()
                    && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
            };
            let scheme = host.split_once("://").map(|(scheme, _)| scheme);
            if let Some(scheme) = scheme.filter(is_named) {
                let scheme = format!("{scheme}://");
                return Err(malformed(host, format!("write host:port, without {scheme:?}")));
            }
        }
        let (hosts, chroot) = text.split_at(text.find('/').unwrap_or(text.len()));
        if hosts.trim().is_empty() {
            return Err(malformed(text, "no host is named"));
        }
        let hosts = hosts.split(',').map(|host| host.trim().parse()).collect::<Result<_>>()?;
        let chroot = if chroot == "/" { "" } else { chroot };
        // Legal, but hardly intended: the hosts after the comma would become part of the chroot.
        if chroot.contains(',') {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!(
                    "the connect string's chroot {chroot:?} has a comma; write the chroot only \
                     once, after the last host"
                ),
            ));
        }
        if !chroot.is_empty() {
            path::check_absolute(chroot).map_err(|error| {
                Error::new(ErrorKind::InvalidName, format!("the connect string's chroot: {error}"))
            })?;
        }
        Ok(ConnectString { hosts, chroot: chroot.to_owned() })
    }
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, port) = if let Some(bracketed) = text.strip_prefix('[') {
            split_bracketed(text, bracketed)?
        } else {
            split_plain(text)?
        };
        let port = match port {
            Some(port) => parse_port(text, port)?,
            None => DEFAULT_PORT,
        };
        Ok(Host { name, port })
    }
}

fn split_bracketed<'a>(text: &str, bracketed: &'a str) -> Result<(String, Option<&'a str>)> {
    let Some((address, rest)) = bracketed.split_once(']') else {
        return Err(malformed(text, "the closing ']' is missing"));
    };
    if address.contains('%') {
        return Err(malformed(text, "an IPv6 zone is not supported"));
    }
    let Ok(address) = address.parse::<Ipv6Addr>() else {
        return Err(malformed(text, format!("{address:?} is not an IPv6 address")));
    };
    let port = rest.strip_prefix(':');
    if port.is_none() && !rest.is_empty() {
        return Err(malformed(text, format!("{rest:?} after ']' is not a port; write ']:2181'")));
    }
    Ok((address.to_string(), port))
}

fn split_plain(text: &str) -> Result<(String, Option<&str>)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    if port.is_some_and(|port| port.contains(':')) {
        let reason = "more than one ':'; separate hosts by commas, and write an IPv6 address in \
                      brackets, as in [::1]:2181";
        return Err(malformed(text, reason));
    }
    if name.is_empty() {
        let reason = if port.is_some() {
            "the host before ':' is missing"
        } else {
            "a host between commas is missing"
        };
        return Err(malformed(text, reason));
    }
    if name.len() > MAX_NAME_BYTES {
        let bytes = name.len();
        let reason = format!("the name has {bytes} bytes; at most {MAX_NAME_BYTES} are allowed");
        return Err(malformed(text, reason));
    }
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if let Some(c) = name.chars().find(|&c| !is_legal(c)) {
        let reason = format!("{c:?} is not allowed in a host name; separate hosts by commas");
        return Err(malformed(text, reason));
    }
    // One dot at the end is how a fully qualified name is written.
    if name.strip_suffix('.').unwrap_or(name).split('.').any(str::is_empty) {
        return Err(malformed(text, "the host name has an empty part before or after a '.'"));
    }
    Ok((name.to_owned(), port))
}

fn parse_port(host: &str, port: &str) -> Result<u16> {
    // `u16::from_str` would take "+2181" too.
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse() {
        Ok(number @ 1..) if digits => Ok(number),
        _ => Err(malformed(host, format!("the port {port:?} is not a number from 1 to 65535"))),
    }
}

fn malformed(part: &str, reason: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidName, format!("{part:?} in the connect string: {reason}"))
}

impl fmt::Display for ConnectString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, host) in self.hosts.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{host}")?;
        }
        f.write_str(&self.chroot)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> ConnectString {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_ports_and_chroot_are_told_apart() {
        let parsed = parse(" zk1:2182 ,zk_2.example.org.,\t[0:0::1]:65535, [::1] ,10.0.0.1/app/x");
        let hosts: Vec<_> =
            parsed.hosts.iter().map(|host| (host.name.as_str(), host.port)).collect();
        let expected = [
            ("zk1", 2182),
            ("zk_2.example.org.", 2181),
            ("::1", 65535),
            ("::1", 2181),
            ("10.0.0.1", 2181),
        ];
        assert_eq!(hosts, expected);
        assert_eq!(parsed.chroot, "/app/x");
        assert_eq!(
            parsed.to_string(),
            "zk1:2182,zk_2.example.org.:2181,[::1]:65535,[::1]:2181,10.0.0.1:2181/app/x"
        );
    }

    #[test]
    fn the_root_as_chroot_means_none() {
        assert_eq!(parse("zk1/"), parse("zk1"));
        assert_eq!(parse("zk1/").chroot, "");
    }

    #[test]
    fn only_addresses_are_literals() {
        let literals: Vec<_> =
            parse("zk1,[::1]:7,127.0.0.1").hosts.iter().map(Host::literal).collect();
        let expected =
            [None, Some("[::1]:7".parse().unwrap()), Some("127.0.0.1:2181".parse().unwrap())];
        assert_eq!(literals, expected);
    }

    #[test]
    fn a_malformed_part_is_named_with_the_reason() {
        let long = "a".repeat(254);
        for (text, part, reason) in [
            ("", "", "no host is named"),
            (" \t", " \t", "no host is named"),
            ("/app", "/app", "no host is named"),
            ("zk1,,zk2", "", "a host between commas is missing"),
            ("zk1, ", "", "a host between commas is missing"),
            (",", "", "a host between commas is missing"),
            ("zk1,:2181", ":2181", "the host before ':' is missing"),
            ("zk1:", "zk1:", "the port \"\" is not"),
            ("zk1:0", "zk1:0", "the port \"0\" is not"),
            ("zk1:65536", "zk1:65536", "the port \"65536\" is not"),
            ("zk1:+1", "zk1:+1", "the port \"+1\" is not"),
            ("zk1: 1", "zk1: 1", "the port \" 1\" is not"),
            ("zk1:x", "zk1:x", "the port \"x\" is not"),
            ("zk1:１", "zk1:１", "the port \"１\" is not"),
            ("[::1]:0", "[::1]:0", "the port \"0\" is not"),
            ("[::1]:", "[::1]:", "the port \"\" is not"),
            ("zk1,::1", "::1", "in brackets"),
            ("fe80::1:2181", "fe80::1:2181", "in brackets"),
            ("[::1", "[::1", "the closing ']' is missing"),
            ("[::1]2181", "[::1]2181", "\"2181\" after ']'"),
            ("[::1]x:2181", "[::1]x:2181", "\"x:2181\" after ']'"),
            ("[fe80::1%eth0]:1", "[fe80::1%eth0]:1", "zone"),
            ("[]", "[]", "\"\" is not an IPv6 address"),
            ("[127.0.0.1]", "[127.0.0.1]", "\"127.0.0.1\" is not an IPv6 address"),
            ("zk 1", "zk 1", "' ' is not allowed"),
            ("zk1;zk2", "zk1;zk2", "';' is not allowed"),
            ("zü:1", "zü:1", "'ü' is not allowed"),
            ("zk1\0", "zk1\0", "'\\0' is not allowed"),
            ("a..b", "a..b", "an empty part"),
            (".", ".", "an empty part"),
            (&long, &long, "the name has 254 bytes"),
            ("http://zk1:2181/app", "http://zk1:2181/app", "write host:port, without \"http://\""),
            ("zk1, zk+tls://zk2", "zk+tls://zk2", "write host:port, without \"zk+tls://\""),
        ] {
            let error = text.parse::<ConnectString>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName);
            let message = error.to_string();
            let named = format!("{part:?} in the connect string: ");
            assert!(message.starts_with(&named) && message.contains(reason), "{message}");
        }
        assert!("a".repeat(253).parse::<ConnectString>().is_ok());
    }

    #[test]
    fn a_bad_chroot_is_named() {
        for text in ["zk1//app", "zk1/app/", "zk1/a/../b", "zk1/zookeeper", "zk1/app\n"] {
            let error = text.parse::<ConnectString>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName);
            let chroot = format!("the connect string's chroot: path {:?} is refused", &text[3..]);
            assert!(error.to_string().starts_with(&chroot), "{error}");
        }
    }

    fn host() -> impl Strategy<Value = Host> {
        let name = prop_oneof![
            "[A-Za-z0-9_-]{1,9}(\\.[A-Za-z0-9_-]{1,9}){0,3}\\.?",
            any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
            any::<Ipv6Addr>().prop_map(|address| address.to_string()),
        ];
        (name, 1..=u16::MAX).prop_map(|(name, port)| Host { name, port })
    }

    proptest! {
        #[test]
        fn what_is_displayed_parses_to_the_same(
            hosts in prop::collection::vec(host(), 1..4),
            chroot in "(/[a-y :]{1,5}){0,3}",
        ) {
            let given = ConnectString { hosts, chroot };
            prop_assert_eq!(given.to_string().parse::<ConnectString>().unwrap(), given);
        }

        #[test]
        fn no_text_makes_the_parser_panic(
            text in prop_oneof![any::<String>(), "[]a1:,./ \\[%ü-]{0,12}"],
        ) {
            if let Ok(parsed) = text.parse::<ConnectString>() {
                prop_assert!(!parsed.hosts.is_empty() && parsed.chroot != "/");
                prop_assert_eq!(parsed.to_string().parse::<ConnectString>().unwrap(), parsed);
            }
        }
    }
}
