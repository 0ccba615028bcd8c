//! What a server says of itself, asked by ZooKeeper's four-letter commands `srvr` and `conf`.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The answer to `srvr`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Serving {
        version: String,
        mode: String,
    },
    NotServing,
    /// Nothing was told, and why.
    NotTold(String),
}

/// What the answer to `conf` says of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    pub(crate) shortest_session: Duration,
    pub(crate) longest_session: Duration,
}

pub(crate) fn status(server: &str, within: Duration) -> Status {
    match ask(server, "srvr", within) {
        Ok(said) => status_in(&said),
        Err(error) => Status::NotTold(error.to_string()),
    }
}

/// The settings, or why they are not told.
pub(crate) fn settings(server: &str, within: Duration) -> Result<Settings, String> {
    let said = ask(server, "conf", within).map_err(|error| error.to_string())?;
    settings_in(&said).ok_or_else(|| match said.contains('=') {
        true => "conf tells none".to_owned(),
        false => refusal("conf", &said),
    })
}

fn status_in(said: &str) -> Status {
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    // As "Zookeeper version: 3.8.0-5a02a05, built on ...": of other servers, their name is shown, too.
    let version = said.lines().find_map(|line| line.split_once(" version:"));
    match (version, value("Mode:")) {
        (Some((name, version)), Some(mode)) => {
            let number = version.split(['-', ',']).next().unwrap_or_default().trim();
            let version = match name {
                "Zookeeper" => format!("version {number}"),
                _ => format!("{name} {number}"),
            };
            Status::Serving { version, mode: mode.to_owned() }
        }
        _ if said.contains("not currently serving") => Status::NotServing,
        _ => Status::NotTold(refusal("srvr", said)),
    }
}

fn settings_in(said: &str) -> Option<Settings> {
    let value = |name: &str| {
        let text = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        text.trim().parse().ok().map(Duration::from_millis)
    };
    Some(Settings {
        tick: value("tickTime")?,
        shortest_session: value("minSessionTimeout")?,
        longest_session: value("maxSessionTimeout")?,
    })
}

fn refusal(word: &str, said: &str) -> String {
    match said.contains("whitelist") {
        true => format!("{word} is not in 4lw.commands.whitelist"),
        false => format!("{word} was not answered"),
    }
}

fn ask(server: &str, word: &str, within: Duration) -> io::Result<String> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, within) {
            Err(error) => last = error,
            Ok(mut stream) => {
                stream.set_read_timeout(Some(within))?;
                stream.set_write_timeout(Some(within))?;
                stream.write_all(word.as_bytes())?;
                let mut said = Vec::new();
                // A server says a few hundred bytes.
                stream.take(1 << 16).read_to_end(&mut said)?;
                return Ok(String::from_utf8_lossy(&said).into_owned());
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving(version: &str, mode: &str) -> Status {
        Status::Serving { version: version.to_owned(), mode: mode.to_owned() }
    }

    #[test]
    fn a_server_is_told_by_its_name_and_version() {
        let rest =
            "Latency min/avg/max: 0/0.0/0\nReceived: 1\nZxid: 0x0\nMode: follower\nNode count: 5\n";
        for (first, version) in [
            ("Zookeeper version: 3.8.0-5a02a05, built on 2022-02-25", "version 3.8.0"),
            ("Zookeeper version: 3.4.14-4c25d480e66a, built on 03/06/2019", "version 3.4.14"),
            ("ClickHouse Keeper version: v25.8.1.1-testing-7a4a0b0", "ClickHouse Keeper v25.8.1.1"),
            ("ClickHouse Keeper version: v26.7.5.10", "ClickHouse Keeper v26.7.5.10"),
        ] {
            let said = format!("{first}\n{rest}");
            assert_eq!(status_in(&said), serving(version, "follower"), "{first}");
        }
    }

    #[test]
    fn a_server_that_tells_nothing_says_why() {
        let not_serving = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(status_in(not_serving), Status::NotServing);
        let refused = "srvr is not executed because it is not in the whitelist.\n";
        let why = "srvr is not in 4lw.commands.whitelist".to_owned();
        assert_eq!(status_in(refused), Status::NotTold(why));
        assert_eq!(status_in(""), Status::NotTold("srvr was not answered".to_owned()));
        assert_eq!(
            refusal("conf", "conf is not executed because it is not in the whitelist.\n"),
            { "conf is not in 4lw.commands.whitelist" }
        );
    }

    #[test]
    fn the_settings_of_sessions_are_found() {
        let said = "clientPort=2181\ndataDir=/d\ntickTime=2000\nmaxClientCnxns=60\n\
                    minSessionTimeout=4000\nmaxSessionTimeout=40000\nserverId=1\n";
        let [tick, shortest_session, longest_session] = [2, 4, 40].map(Duration::from_secs);
        let settings = Settings { tick, shortest_session, longest_session };
        assert_eq!(settings_in(said), Some(settings));
        // ClickHouse Keeper's has no tick.
        assert_eq!(settings_in("server_id=1\ntcp_port=2181\nmin_session_timeout_ms=10000\n"), None);
    }
}
