//! `zklock doctor`: the servers, their settings and clock, the session timeout, and a lock or all locks below
//! a path, as findings of one line each.

mod all_locks;
mod clock;
mod findings;
mod four_letter_words;
mod one_lock;
mod quota;
mod server_settings;

pub(crate) use self::clock::time_of_ensemble;

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use zklock::{Client, DistributedLock, ErrorKind};

use self::all_locks::look_at_all;
use self::clock::look_at_clock;
use self::findings::{Findings, Level, joined};
use self::four_letter_words::{Settings, Status};
use self::one_lock::look_at_lock;
use self::quota::look_at_quota;
use self::server_settings::Server;
use crate::args::{Doctor, Global};
use crate::exit::{Exit, Failure};
use crate::lease_budget;
use crate::words::{at_least, lasting, parent};

/// How long a server may take to tell its version and settings, unless `--connect-timeout` is shorter.
const TELL_WITHIN: Duration = Duration::from_secs(3);

/// Of so many requests, the median is shown.
const SAMPLES: usize = 5;

pub(crate) fn doctor(global: &Global, options: &Doctor) -> Result<Exit, Failure> {
    let mut findings = Findings::new(global.json);
    let mut is_unreachable = false;
    let (servers, client) = look_at_servers(global, &mut findings);
    match client {
        Err(failure) if failure.exit == Exit::Unavailable => {
            is_unreachable = true;
            findings.add(Level::Error, "ensemble", &failure.message);
        }
        Err(failure) => return Err(failure),
        Ok(client) => {
            look_at_session(global, &client, &mut findings);
            look_at_settings(global, &client, &servers, &mut findings);
            let path = options.path.as_deref();
            let base = global.base(path.filter(|_| options.all));
            let now = look_at_clock(global, &client, &base, &mut findings);
            let now = now.unwrap_or_else(SystemTime::now);
            let about = match path.filter(|_| !options.all) {
                Some(lock) => global.path(lock)?.path,
                None => base.clone(),
            };
            let hosts = global.hosts.split_at(global.hosts.find('/').unwrap_or(global.hosts.len()));
            look_at_quota(global, &client, hosts, &about, &mut findings);
            match path {
                _ if options.all => look_at_all(global, &client, &base, now, &mut findings)?,
                None => {}
                Some(lock) => {
                    let lock = global.path(lock)?;
                    let room =
                        DistributedLock::new(&client, &lock.base, &lock.name).waiting_room()?;
                    let room = room.first().map(|first| global.path(parent(first))).transpose()?;
                    for one in [Some(lock), room].into_iter().flatten() {
                        for (level, text) in look_at_lock(global, &client, &one, now, |_| false)? {
                            findings.add(level, &one.path, &text);
                        }
                    }
                }
            }
        }
    }
    Ok(match findings.worst()? {
        _ if is_unreachable => Exit::Unavailable,
        Level::Error => Exit::No,
        Level::Warning | Level::Note | Level::Ok => Exit::Success,
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

/// Looks at all servers and connects, at once: three silent servers take the time of one.
fn look_at_servers(
    global: &Global,
    findings: &mut Findings,
) -> (Vec<Server>, Result<Client, Failure>) {
    let (servers, chroot) = servers(&global.hosts);
    let is_alone = servers.len() == 1;
    thread::scope(|scope| {
        let look = |server| scope.spawn(move || look_at_server(global, server, chroot, is_alone));
        let looks: Vec<_> = servers.iter().map(String::as_str).map(look).collect();
        let client = scope.spawn(|| global.connect());
        let mut seen = Vec::new();
        for look in looks {
            let (level, text, server) = joined(look);
            findings.add(level, &server.address, &text);
            seen.push(server);
        }
        (seen, joined(client))
    })
}

fn look_at_server(
    global: &Global,
    server: &str,
    chroot: &str,
    is_alone: bool,
) -> (Level, String, Server) {
    let within = TELL_WITHIN.min(global.connect_timeout);
    let needs = |word: &str| format!("{word} needs a port without TLS");
    let (status, settings, client) = thread::scope(|scope| {
        let status = scope.spawn(|| match global.speaks_tls() {
            true => Status::NotTold(needs("srvr")),
            false => four_letter_words::status(server, within),
        });
        let settings = scope.spawn(|| match global.speaks_tls() {
            true => Err(needs("conf")),
            false => four_letter_words::settings(server, within),
        });
        let client = global
            .builder_for(&format!("{server}{chroot}"))
            .and_then(|builder| Ok(builder.connect_timeout(within).connect()?));
        (joined(status), joined(settings), client)
    });
    let seen = Server {
        address: server.to_owned(),
        granted: client.as_ref().ok().and_then(Client::session_timeout),
        settings: settings.as_ref().ok().copied(),
    };
    let (level, text) = match (status, client.and_then(|client| latencies(&client))) {
        (Status::NotServing, _) => {
            let why = "runs, but serves no clients: it has no quorum, or is starting";
            (Level::Error, why.to_owned())
        }
        (_, Err(failure)) => (Level::Error, failure.message),
        (Status::Serving { version, mode }, Ok(took)) => {
            let is_no_member = mode == "standalone" && !is_alone;
            let (level, fault) = match is_no_member {
                true => (Level::Error, ", so it forms no ensemble with the others"),
                false => (Level::Ok, ""),
            };
            (level, format!("{version}, {mode}{fault}; {}; {took}", in_words(&settings)))
        }
        (Status::NotTold(why), Ok(took)) => {
            (Level::Ok, format!("version not told ({why}); {}; {took}", in_words(&settings)))
        }
    };
    (level, text, seen)
}

fn in_words(settings: &Result<Settings, String>) -> String {
    match settings {
        Ok(Settings { tick, shortest_session, longest_session }) => {
            format!(
                "tickTime {tick:?}, session timeouts of {shortest_session:?} to {longest_session:?}"
            )
        }
        Err(why) => format!("tickTime not told ({why})"),
    }
}

fn latencies(client: &Client) -> Result<String, Failure> {
    let root = client.znode("/");
    let read = median(|| root.stat().map(drop))?;
    let sync = median(|| client.sync().and_then(|()| root.read().map(drop)))?;
    Ok(format!("a read takes {}, a sync with a read {}", milliseconds(read), milliseconds(sync)))
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

fn look_at_session(global: &Global, client: &Client, findings: &mut Findings) {
    let (Some(granted), Some(limit)) = (client.session_timeout(), client.outage_limit()) else {
        return;
    };
    let asked = global.session_timeout;
    let command = match lease_budget::survives(granted, limit) {
        Some(limit) => format!(
            "one of less than {} ends no command of zklock run with its usual grace",
            at_least(limit)
        ),
        None => "zklock run refuses it as too short".to_owned(),
    };
    let text = format!(
        "a session timeout of {} (asked for {}): an outage of less than {} loses no lock of a program that uses the \
         library, and {command}; a host that crashes blocks the others for {}",
        lasting(granted),
        lasting(asked),
        at_least(limit),
        lasting(granted)
    );
    let level = if granted == asked { Level::Ok } else { Level::Warning };
    findings.add(level, "session", &text);
}

/// Compares the servers' settings with what the library reckons with.
fn look_at_settings(global: &Global, client: &Client, servers: &[Server], findings: &mut Findings) {
    let asked = global.session_timeout;
    let Some(reckoned) = client.tick_time() else { return };
    let timeouts = server_settings::session_timeouts(servers, asked);
    for (level, about, text) in
        timeouts.into_iter().chain(server_settings::ticks(servers, reckoned))
    {
        findings.add(level, about, &text);
    }
    let Some(longest) = server_settings::longest_tick(servers).filter(|one| *one <= reckoned)
    else {
        return;
    };
    let text = gain(global, client, longest)
        .unwrap_or_else(|| format!("at most {longest:?}, and {reckoned:?} is reckoned with"));
    findings.add(Level::Ok, "tickTime", &text);
}

/// What it would bring to state this tick; `None` if nothing.
fn gain(global: &Global, client: &Client, tick: Duration) -> Option<String> {
    let stated = global.builder().ok()?.tick_time(tick).connect().ok()?;
    let [before, after] = [client, &stated].map(|one| {
        let (timeout, limit) = (one.session_timeout()?, one.outage_limit()?);
        Some((limit, lease_budget::survives(timeout, limit).unwrap_or_default()))
    });
    let ((before, command_before), (after, command_after)) = (before?, after?);
    (after > before).then(|| {
        format!(
            "at most {tick:?}: if that is stated to a program (ClientBuilder::tick_time), it loses no lock in an \
             outage of less than {}, instead of {}; with --tick-time {tick:?}, zklock run ends no command in one of \
             less than {}, instead of {}",
            at_least(after),
            at_least(before),
            at_least(command_after),
            at_least(command_before)
        )
    })
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
