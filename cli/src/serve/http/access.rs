//! Who may read: by the name under which a browser reaches it, and by the token.

use hyper::header::{AUTHORIZATION, COOKIE, HOST};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method};
use subtle::ConstantTimeEq;

use crate::exit::Failure;

/// Checks the further names by which browsers are to reach it.
pub(crate) fn check_names(names: &[String]) -> Result<(), Failure> {
    for name in names {
        let authority = name.parse::<Authority>().ok();
        let is_host = |one: &Authority| {
            let port = one.as_str().strip_prefix(one.host());
            let has_port = port.is_some_and(|port| port.is_empty() || one.port_u16().is_some());
            has_port && !one.host().is_empty() && !one.host().contains(['*', ','])
        };
        if !authority.as_ref().is_some_and(is_host) {
            let why = "is no name of a host, such as locks.example or locks.example:8443";
            return Err(Failure::usage(format!("--host {name:?} {why}")));
        }
    }
    Ok(())
}

/// What to answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// The token was in the link: from now on, the browser shows this cookie.
    AllowedByLink {
        cookie: String,
    },
    /// It was asked for by a name that is not its own, as a foreign page does whose name leads to this
    /// address.
    NotOurName,
    NotRead,
    NoToken,
}

#[derive(Debug)]
pub(crate) struct Access {
    names: Vec<String>,
    token: Option<String>,
    cookie: String,
}

impl Access {
    /// On this port, if it has one, under these further names.
    pub(crate) fn new(port: Option<u16>, hosts: &[String], token: Option<String>) -> Access {
        let own = ["127.0.0.1", "localhost", "[::1]"].map(str::to_owned);
        let mut names = Vec::new();
        for name in hosts.iter().map(|one| one.to_ascii_lowercase()) {
            names.extend(port.map(|port| format!("{name}:{port}")));
            names.push(name);
        }
        match port {
            Some(port) => names.extend(own.iter().map(|name| format!("{name}:{port}"))),
            None => names.extend(own.iter().cloned()),
        }
        if port == Some(80) {
            // Browsers leave it out.
            names.extend(own);
        }
        // Browsers keep one jar for all ports of a host.
        let cookie = port.map_or("zklock".to_owned(), |port| format!("zklock_{port}"));
        Access { names, token, cookie }
    }

    /// Judges a request; `is_public` is what nobody needs a token for.
    pub(crate) fn judge(&self, request: &Parts, is_public: bool) -> Verdict {
        if !self.is_named(request) {
            return Verdict::NotOurName;
        }
        if ![Method::GET, Method::HEAD].contains(&request.method) {
            return Verdict::NotRead;
        }
        let Some(token) = &self.token else { return Verdict::Allowed };
        if in_link(request).is_some_and(|shown| is_same(&shown, token)) {
            let cookie = format!("{}={token}; Path=/; HttpOnly; SameSite=Strict", self.cookie);
            return Verdict::AllowedByLink { cookie };
        }
        match is_public || self.has_token(token, &request.headers) {
            true => Verdict::Allowed,
            false => Verdict::NoToken,
        }
    }

    fn is_named(&self, request: &Parts) -> bool {
        let mut hosts = request.headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let is_own = |name: &str| self.names.contains(&name.to_ascii_lowercase());
        let in_uri = request.uri.authority().map(|authority| authority.as_str());
        host.to_str().is_ok_and(is_own) && in_uri.is_none_or(is_own)
    }

    fn has_token(&self, token: &str, headers: &HeaderMap) -> bool {
        let by_header = headers.get_all(AUTHORIZATION).iter().any(|one| {
            let (scheme, shown) = one.to_str().ok().and_then(|one| one.split_once(' ')).unzip();
            scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer"))
                && shown.is_some_and(|shown| is_same(shown.trim(), token))
        });
        let cookies = headers.get_all(COOKIE).iter().filter_map(|one| one.to_str().ok());
        let mut cookies = cookies.flat_map(|all| all.split(';'));
        by_header
            || cookies.any(|one| {
                let (name, shown) = one.trim().split_once('=').unzip();
                name == Some(&self.cookie) && shown.is_some_and(|shown| is_same(shown, token))
            })
    }
}

/// In constant time, but for their lengths.
fn is_same(shown: &str, token: &str) -> bool {
    shown.as_bytes().ct_eq(token.as_bytes()).into()
}

/// The token in a link to the page.
fn in_link(request: &Parts) -> Option<String> {
    let query = request.uri.query().filter(|_| request.uri.path() == "/")?;
    let shown = query.split('&').find_map(|one| one.strip_prefix("token="))?;
    decoded(shown)
}

/// A part of a query; `None` if it is malformed.
fn decoded(part: &str) -> Option<String> {
    let mut pieces = part.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    const TOKEN: &str = "correct-horse-battery";

    fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn judged(access: &Access, uri: &str, headers: &[(&str, &str)]) -> Verdict {
        let headers = [&[("Host", "localhost:9142")], headers].concat();
        access.judge(&request("GET", uri, &headers), false)
    }

    #[test]
    fn a_name_that_no_browser_sends_is_refused() {
        let check = |name: &str| check_names(&[name.to_owned()]);
        for right in ["locks.example", "proxy:8443", "192.0.2.1", "[2001:db8::1]", "[::1]:80"] {
            assert!(check(right).is_ok(), "{right}");
        }
        for wrong in
            ["", "*", "http://foo/", "foo bar", "foo:99999", "foo:", "foo,bar", "Fóo", "u@foo", "/"]
        {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_its_own_names_lead_to_it() {
        let hosts = ["Locks.example".to_owned(), "proxy:8443".to_owned()];
        let access = Access::new(Some(9142), &hosts, None);
        let judge =
            |uri: &str, headers: &[(&str, &str)]| access.judge(&request("GET", uri, headers), true);
        for own in [
            "127.0.0.1:9142",
            "localhost:9142",
            "LOCALHOST:9142",
            "[::1]:9142",
            "locks.example",
            "locks.example:9142",
            "proxy:8443",
        ] {
            assert_eq!(judge("/", &[("Host", own)]), Verdict::Allowed, "{own}");
        }
        for foreign in ["evil.example:9142", "localhost", "localhost:80", "127.0.0.1", "proxy", ""]
        {
            assert_eq!(judge("/", &[("Host", foreign)]), Verdict::NotOurName, "{foreign}");
        }
        assert_eq!(judge("/", &[]), Verdict::NotOurName);
        let own = ("Host", "localhost:9142");
        assert_eq!(judge("/", &[own, own]), Verdict::NotOurName);
        assert_eq!(judge("http://evil.example/", &[own]), Verdict::NotOurName);
        assert_eq!(judge("http://localhost:9142/", &[own]), Verdict::Allowed);
        let judge = |access: Access, host: &str| {
            access.judge(&request("GET", "/", &[("Host", host)]), true)
        };
        assert_eq!(judge(Access::new(Some(80), &[], None), "localhost"), Verdict::Allowed);
        assert_eq!(judge(Access::new(None, &[], None), "localhost"), Verdict::Allowed);
        assert_eq!(judge(Access::new(None, &[], None), "localhost:9142"), Verdict::NotOurName);
    }

    #[test]
    fn a_token_is_shown_in_one_of_three_places() {
        let access = Access::new(Some(9142), &[], Some(TOKEN.to_owned()));
        let bearer = format!("Bearer {TOKEN}");
        let cookie = format!("other=1; zklock_9142={TOKEN}");
        for (name, value) in
            [("Authorization", &*bearer), ("Authorization", &bearer.replace('B', "b"))]
        {
            assert_eq!(judged(&access, "/metrics", &[(name, value)]), Verdict::Allowed, "{value}");
        }
        assert_eq!(judged(&access, "/locks.json", &[("Cookie", &cookie)]), Verdict::Allowed);
        assert_eq!(judged(&access, "/?token=wrong", &[("Cookie", &cookie)]), Verdict::Allowed);
        let cookie = format!("zklock_9142={TOKEN}; Path=/; HttpOnly; SameSite=Strict");
        let link = format!("/?token={TOKEN}");
        assert_eq!(judged(&access, &link, &[]), Verdict::AllowedByLink { cookie: cookie.clone() });
        let encoded = "/?a=b&token=correct%2dhorse%2Dbattery";
        assert_eq!(
            judged(&access, encoded, &[]),
            Verdict::AllowedByLink { cookie: cookie.clone() }
        );
        // It does not stay in the address, even if the browser has the cookie already.
        let again = judged(&access, &link, &[("Cookie", &cookie)]);
        assert_eq!(again, Verdict::AllowedByLink { cookie });
        for (uri, name, value) in [
            ("/", "X", ""),
            ("/?token=", "X", ""),
            ("/?token=wrong", "X", ""),
            ("/?token=%2", "X", ""),
            ("/?token=%zz", "X", ""),
            ("/?token=%ff", "X", ""),
            ("/metrics?token=correct-horse-battery", "X", ""),
            ("/", "Authorization", "Bearer"),
            ("/", "Authorization", "Bearer "),
            ("/", "Authorization", "Bearer correct-horse-batter"),
            ("/", "Authorization", "Basic correct-horse-battery"),
            ("/", "Cookie", "zklock_9142"),
            ("/", "Cookie", "zklock_9143=correct-horse-battery"),
            ("/", "Cookie", "zklock_9142=correct-horse-batterx"),
        ] {
            assert_eq!(judged(&access, uri, &[(name, value)]), Verdict::NoToken, "{uri} {value}");
        }
        let host = [("Host", "localhost:9142")];
        let judge = |method: &str, is_public| access.judge(&request(method, "/", &host), is_public);
        assert_eq!(judge("GET", true), Verdict::Allowed);
        assert_eq!(judge("HEAD", false), Verdict::NoToken);
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"] {
            assert_eq!(judge(method, true), Verdict::NotRead, "{method}");
        }
    }
}
