//! `zklock doctor`: the servers, the session timeout, and a lock, as findings of one line each.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde_json::json;
use zklock::{Client, DistributedLock, ErrorKind, Permissions};

use crate::connect::Lock;
use crate::exit::{Exit, Failure};
use crate::options::{Doctor, Global};
use crate::words::{lasting, node, print, print_raw, who};

/// How long a server may take to tell its version.
const TELL_WITHIN: Duration = Duration::from_secs(3);

/// Of so many requests, the median is shown.
const SAMPLES: usize = 5;

/// Above this number, new contenders of a path will soon find no sequence number.
const NEARLY_EXHAUSTED: i32 = i32::MAX / 10 * 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warning,
    Error,
}

/// What was found, printed at once: a look at a server that is silent takes its time.
struct Findings {
    is_json: bool,
    worst: Level,
    is_unreachable: bool,
}

impl Findings {
    fn add(&mut self, level: Level, about: &str, text: &str) {
        self.worst = self.worst.max(level);
        let word = match level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        // If nobody reads any more, the exit code still tells.
        let _ = match self.is_json {
            true => print_raw(&json!({ "level": word, "about": about, "text": text }).to_string()),
            false => print(&format!("{word:<8} {about}: {text}")),
        };
    }
}

pub(crate) fn doctor(global: &Global, options: &Doctor) -> Result<Exit, Failure> {
    let mut findings = Findings { is_json: global.json, worst: Level::Ok, is_unreachable: false };
    let (servers, chroot) = servers(&global.hosts);
    for server in &servers {
        look_at_server(global, server, chroot, &mut findings);
    }
    match global.connect() {
        Err(failure) if failure.exit == Exit::Unavailable => {
            findings.is_unreachable = true;
            findings.add(Level::Error, "ensemble", &failure.message);
        }
        Err(failure) => return Err(failure),
        Ok(client) => {
            look_at_session(global, &client, &mut findings);
            if let Some(lock) = &options.lock {
                let lock = global.path(lock)?;
                look_at_lock(&client, &lock, &mut findings)?;
            }
        }
    }
    Ok(match findings.worst {
        _ if findings.is_unreachable => Exit::Unavailable,
        Level::Error => Exit::No,
        Level::Warning | Level::Ok => Exit::Success,
    })
}

/// The servers of a connect string, and its chroot.
fn servers(hosts: &str) -> (Vec<String>, &str) {
    let (hosts, chroot) = hosts.split_at(hosts.find('/').unwrap_or(hosts.len()));
    let all = hosts.split(',').map(str::trim).filter(|one| !one.is_empty());
    let with_port = |one: &str| match one.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => one.to_owned(),
        _ => format!("{one}:2181"),
    };
    (all.map(with_port).collect(), chroot)
}

fn look_at_server(global: &Global, server: &str, chroot: &str, findings: &mut Findings) {
    let client = global
        .builder_for(&format!("{server}{chroot}"))
        .and_then(|builder| Ok(builder.connect_timeout(TELL_WITHIN).connect()?));
    let client = match client {
        Ok(client) => client,
        Err(failure) => {
            findings.add(Level::Error, server, &failure.message);
            return;
        }
    };
    let told = if global.speaks_tls() {
        "version not told (srvr needs a port without TLS)".to_owned()
    } else {
        srvr(server).unwrap_or_else(|why| format!("version not told ({why})"))
    };
    let root = client.znode("/");
    let read = median(|| root.stat().map(drop));
    let sync = median(|| root.read_latest().map(drop));
    match (read, sync) {
        (Ok(read), Ok(sync)) => {
            let text = format!(
                "{told}; a read takes {}, a sync with a read {}",
                milliseconds(read),
                milliseconds(sync)
            );
            findings.add(Level::Ok, server, &text);
        }
        (Err(error), _) | (_, Err(error)) => {
            findings.add(Level::Error, server, &format!("{told}; {error}"));
        }
    }
}

fn median(request: impl Fn() -> zklock::Result<()>) -> zklock::Result<Duration> {
    let mut all = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        match request() {
            // A chroot that does not exist yet is no fault, and takes a round trip, too.
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotAuthorized) =>
            {
                return Err(error);
            }
            _ => all.push(begun.elapsed()),
        }
    }
    all.sort_unstable();
    Ok(all[SAMPLES / 2])
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// What a server says about itself: its version, and its part in the ensemble.
fn srvr(server: &str) -> Result<String, String> {
    let said = ask(server).map_err(|error| error.to_string())?;
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    match (value("Zookeeper version:"), value("Mode:")) {
        (Some(version), Some(mode)) => {
            let number = version.split(['-', ',']).next().unwrap_or_default();
            Ok(format!("version {number}, {mode}"))
        }
        _ => Err("srvr is not in 4lw.commands.whitelist".to_owned()),
    }
}

fn ask(server: &str) -> std::io::Result<String> {
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TELL_WITHIN) {
            Err(error) => last = error,
            Ok(mut stream) => {
                stream.set_read_timeout(Some(TELL_WITHIN))?;
                stream.set_write_timeout(Some(TELL_WITHIN))?;
                stream.write_all(b"srvr")?;
                let mut said = Vec::new();
                // A server says a few hundred bytes.
                stream.take(1 << 16).read_to_end(&mut said)?;
                return Ok(String::from_utf8_lossy(&said).into_owned());
            }
        }
    }
    Err(last)
}

fn look_at_session(global: &Global, client: &Client, findings: &mut Findings) {
    let Some(granted) = client.session_timeout() else { return };
    let asked = global.session_timeout;
    let text = format!(
        "a session timeout of {} (asked for {}): an outage of less than {} loses no lock, and a host that crashes \
         blocks the others for {}",
        lasting(granted),
        lasting(asked),
        lasting(granted / 3),
        lasting(granted)
    );
    let level = if granted == asked { Level::Ok } else { Level::Warning };
    findings.add(level, "session", &text);
}

fn look_at_lock(client: &Client, lock: &Lock, findings: &mut Findings) -> Result<(), Failure> {
    let (about, znode) = (lock.path.as_str(), client.znode(&lock.path));
    let Some(names) = znode.children()? else {
        findings.add(
            Level::Ok,
            about,
            "its node does not exist: nobody has used it, or it was removed when idle",
        );
        return Ok(());
    };
    let all = DistributedLock::new(client, &lock.base, &lock.name).latest_contenders()?;
    let holders = all.iter().filter(|one| one.holds).count();
    let text = format!("{holders} hold it, {} wait", all.len() - holders);
    findings.add(Level::Ok, about, &text);
    match znode.acl() {
        Ok(acl) => {
            let parts: Vec<String> = acl
                .unwrap_or_default()
                .iter()
                .map(|one| format!("{}:{} {}", one.scheme(), one.id(), letters(one.permissions())))
                .collect();
            findings.add(Level::Ok, about, &format!("ACL {}", parts.join(", ")));
        }
        Err(error) => {
            findings.add(Level::Warning, about, &format!("its ACL cannot be read: {error}"))
        }
    }
    for one in all.iter().filter(|one| one.session.is_none() && one.since.is_some()) {
        let text = format!(
            "{} ({}) belongs to no session, so nothing will remove it",
            node(one),
            who(one)
        );
        findings.add(Level::Error, about, &text);
    }
    let known: HashSet<&str> = all.iter().map(node).collect();
    // Contenders come and go between the two lists: those that came look like contenders.
    let foreign: Vec<&String> = names
        .iter()
        .filter(|name| !known.contains(name.as_str()) && !ends_with_sequence(name))
        .collect();
    if let Some(first) = foreign.first() {
        let text = format!(
            "{} children are no contenders, such as {first:?}; they are ignored",
            foreign.len()
        );
        findings.add(Level::Warning, about, &text);
    }
    if let Some(last) =
        all.iter().map(|one| one.sequence).max().filter(|last| *last > NEARLY_EXHAUSTED)
    {
        let text = format!(
            "sequence number {last} of at most {}: use another name before they are used up, or delete the idle node",
            i32::MAX
        );
        findings.add(Level::Error, about, &text);
    }
    Ok(())
}

fn ends_with_sequence(name: &str) -> bool {
    name.len() > 10 && name.bytes().rev().take(10).all(|byte| byte.is_ascii_digit())
}

/// As zkCli.sh writes them.
fn letters(of: Permissions) -> String {
    let all = [
        (Permissions::CREATE, 'c'),
        (Permissions::DELETE, 'd'),
        (Permissions::READ, 'r'),
        (Permissions::WRITE, 'w'),
        (Permissions::ADMIN, 'a'),
    ];
    all.iter().filter(|(one, _)| of.contains(*one)).map(|(_, letter)| letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_port() {
        let all = |hosts: &'static str| servers(hosts);
        assert_eq!(all("a,b:1/x/y"), (vec!["a:2181".to_owned(), "b:1".to_owned()], "/x/y"));
        assert_eq!(all("[::1]:9"), (vec!["[::1]:9".to_owned()], ""));
        assert_eq!(all("[::1]"), (vec!["[::1]:2181".to_owned()], ""));
    }
}
