//! What the servers' settings mean for sessions: whether the lease of a lock may be too long, and whether it
//! is shorter than it need be.

use std::time::Duration;

use super::findings::Level;
use super::four_letter_words::Settings;

/// What was seen of a server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: String,
    /// The session timeout that it has granted; `None` if it could not be connected to.
    pub(crate) granted: Option<Duration>,
    /// `None` if they are not known.
    pub(crate) settings: Option<Settings>,
}

pub(crate) type Finding = (Level, &'static str, String);

/// The longest tick, if all servers have told theirs.
pub(crate) fn longest_tick(servers: &[Server]) -> Option<Duration> {
    let ticks: Option<Vec<Duration>> = servers.iter().map(tick).collect();
    ticks?.into_iter().max()
}

/// What is wrong with the ticks, and what is not known of them.
pub(crate) fn ticks(servers: &[Server], reckoned: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |level, text| findings.push((level, "tickTime", text));
    if let Some(longest) = servers.iter().filter_map(tick).max().filter(|one| *one > reckoned) {
        let text = format!(
            "{}, and {reckoned:?} is reckoned with: two clients may hold a lock at once. State it to all clients \
             (--tick-time {longest:?}, ClientBuilder::tick_time), or set tickTime={} at all servers",
            listed(servers, tick),
            reckoned.as_millis()
        );
        add(Level::Error, text);
    }
    if differ(servers, tick) {
        let text = format!(
            "not all servers have the same: {}. The longest counts; give all the same",
            listed(servers, tick)
        );
        add(Level::Warning, text);
    }
    let unknown: Vec<&str> = addresses(servers, |one| one.settings.is_none());
    if !unknown.is_empty() {
        let text = format!(
            "not known of {}: if it is longer than the {reckoned:?} that are reckoned with, two clients may hold a \
             lock at once. With 4lw.commands.whitelist=srvr,conf in zoo.cfg, and no TLS on the port, the doctor can \
             ask for it",
            unknown.join(", ")
        );
        add(Level::Warning, text);
    }
    findings
}

/// What is wrong with the session timeouts that the servers grant.
pub(crate) fn session_timeouts(servers: &[Server], asked: Duration) -> Option<Finding> {
    let limits = |one: &Server| one.settings.map(|all| (all.shortest_session, all.longest_session));
    let would_grant =
        |one: &Server| limits(one).map(|(shortest, longest)| asked.max(shortest).min(longest));
    let granted = |one: &Server| one.granted.or_else(|| would_grant(one));
    let equal = "give all servers the same tickTime, minSessionTimeout and maxSessionTimeout (the latter two are 2 and \
                 20 ticks by default)";
    let advice = advice(servers);
    let other = servers.iter().find_map(granted).filter(|granted| *granted != asked);
    let (level, text) = if differ(servers, granted) {
        let text = format!(
            "not all servers grant the same for {asked:?}: {}. So two clients may hold a lock at once: {}{equal}",
            listed(servers, granted),
            advice.map(|what| format!("{what}, or ")).unwrap_or_default()
        );
        (Level::Error, text)
    } else if let Some(other) = other {
        let text = format!(
            "{asked:?} was asked for, and {other:?} is granted: {}, or change minSessionTimeout or maxSessionTimeout \
             of all servers",
            advice.unwrap_or_else(|| format!("ask for {other:?} (--session-timeout)"))
        );
        (Level::Warning, text)
    } else if differ(servers, limits) {
        let in_words = |(shortest, longest)| format!("{shortest:?} to {longest:?}");
        let all = listed_as(servers, limits, in_words);
        (Level::Warning, format!("not all servers have the same limits: {all}: {equal}"))
    } else {
        return None;
    };
    Some((level, "session timeout", text))
}

/// What to ask for so that all servers grant it, as far as that is known.
fn advice(servers: &[Server]) -> Option<String> {
    let settings: Option<Vec<Settings>> = servers.iter().map(|one| one.settings).collect();
    let settings = settings?;
    let shortest = settings.iter().map(|one| one.shortest_session).max()?;
    let longest = settings.iter().map(|one| one.longest_session).min()?;
    (shortest <= longest)
        .then(|| format!("ask for {shortest:?} to {longest:?} (--session-timeout)"))
}

fn tick(server: &Server) -> Option<Duration> {
    server.settings.map(|settings| settings.tick)
}

/// Whether those who have such a value have different ones.
fn differ<T: PartialEq>(servers: &[Server], value: impl Fn(&Server) -> Option<T>) -> bool {
    let mut all = servers.iter().filter_map(value);
    all.next().is_some_and(|first| all.any(|one| one != first))
}

fn addresses(servers: &[Server], which: impl Fn(&Server) -> bool) -> Vec<&str> {
    servers.iter().filter(|one| which(one)).map(|one| one.address.as_str()).collect()
}

/// Each value and who has it: `2s at zk1:2181, zk2:2181; 3s at zk3:2181`.
fn listed(servers: &[Server], value: impl Fn(&Server) -> Option<Duration>) -> String {
    listed_as(servers, value, |time| format!("{time:?}"))
}

fn listed_as<T: PartialEq + Copy>(
    servers: &[Server],
    value: impl Fn(&Server) -> Option<T>,
    words: impl Fn(T) -> String,
) -> String {
    let mut values: Vec<T> = Vec::new();
    for one in servers.iter().filter_map(&value) {
        if !values.contains(&one) {
            values.push(one);
        }
    }
    let part = |one: &T| {
        let at = addresses(servers, |server| value(server) == Some(*one));
        format!("{} at {}", words(*one), at.join(", "))
    };
    values.iter().map(part).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(all: f64) -> Duration {
        Duration::from_secs_f64(all)
    }

    /// A server that grants what is asked for within its limits; all in seconds.
    fn server(number: usize, settings: Option<[f64; 3]>, granted: f64) -> Server {
        let settings = settings.map(|[tick, shortest, longest]| Settings {
            tick: seconds(tick),
            shortest_session: seconds(shortest),
            longest_session: seconds(longest),
        });
        Server { address: format!("zk{number}"), granted: Some(seconds(granted)), settings }
    }

    fn three(first: [f64; 4], others: [f64; 4]) -> Vec<Server> {
        let server = |number, [tick, shortest, longest, granted]: [f64; 4]| {
            server(number, Some([tick, shortest, longest]), granted)
        };
        vec![server(1, first), server(2, others), server(3, others)]
    }

    #[test]
    fn equal_servers_whose_tick_is_reckoned_with_are_well() {
        let servers = three([2.0, 4.0, 40.0, 30.0], [2.0, 4.0, 40.0, 30.0]);
        assert_eq!(ticks(&servers, seconds(3.0)), []);
        assert_eq!(session_timeouts(&servers, seconds(30.0)), None);
        assert_eq!(longest_tick(&servers), Some(seconds(2.0)));
    }

    #[test]
    fn a_longer_tick_is_an_error() {
        let servers = three([4.0, 4.0, 40.0, 30.0], [2.0, 4.0, 40.0, 30.0]);
        let found = ticks(&servers, seconds(3.0));
        assert_eq!(
            found[0],
            (
                Level::Error,
                "tickTime",
                "4s at zk1; 2s at zk2, zk3, and 3s is reckoned with: two clients may hold a lock at once. State it \
                 to all clients (--tick-time 4s, ClientBuilder::tick_time), or set tickTime=3000 at all servers"
                    .to_owned()
            )
        );
        assert_eq!(found[1].0, Level::Warning);
        assert!(
            found[1].2.starts_with("not all servers have the same: 4s at zk1; 2s at zk2, zk3.")
        );
    }

    #[test]
    fn a_tick_that_is_not_told_is_not_known() {
        let servers =
            [server(1, Some([2.0, 4.0, 40.0]), 30.0), server(2, None, 30.0), server(3, None, 30.0)];
        let found = ticks(&servers, seconds(3.0));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].2.starts_with("not known of zk2, zk3: if it is longer than the 3s that"));
        assert_eq!(longest_tick(&servers), None);
    }

    #[test]
    fn unequal_grants_are_an_error() {
        let found = |servers: &[Server]| {
            let (level, _, text) = session_timeouts(servers, seconds(30.0)).unwrap();
            assert_eq!(level, Level::Error);
            text
        };
        let mut servers = three([1.0, 2.0, 20.0, 20.0], [2.0, 4.0, 40.0, 30.0]);
        let text = found(&servers);
        assert!(text.contains("for 30s: 20s at zk1; 30s at zk2, zk3. So two"), "{text}");
        assert!(text.contains("ask for 4s to 20s (--session-timeout), or give all "), "{text}");
        // What it would grant if it could be connected to.
        servers[0].granted = None;
        assert_eq!(found(&servers), text);
        // Without limits, there is less to say; and where there is no common one.
        let servers = [server(1, None, 20.0), server(2, None, 30.0)];
        assert!(found(&servers).contains("hold a lock at once: give all servers the same "));
        let servers = three([0.1, 0.2, 2.0, 2.0], [2.0, 4.0, 40.0, 30.0]);
        assert!(found(&servers).contains("hold a lock at once: give all servers the same "));
    }

    #[test]
    fn another_session_timeout_that_all_servers_grant_is_a_warning() {
        let found = |servers: &[Server]| session_timeouts(servers, seconds(60.0)).unwrap();
        let servers = three([2.0, 4.0, 40.0, 40.0], [2.0, 4.0, 40.0, 40.0]);
        let text = "60s was asked for, and 40s is granted: ask for 4s to 40s (--session-timeout), or change \
                    minSessionTimeout or maxSessionTimeout of all servers";
        assert_eq!(found(&servers), (Level::Warning, "session timeout", text.to_owned()));
        let (_, _, text) = found(&[server(1, None, 40.0), server(2, None, 40.0)]);
        assert!(text.contains("40s is granted: ask for 40s (--session-timeout), or "), "{text}");
    }

    #[test]
    fn unequal_limits_are_a_warning() {
        let servers = three([2.0, 4.0, 60.0, 30.0], [2.0, 4.0, 40.0, 30.0]);
        let (level, _, text) = session_timeouts(&servers, seconds(30.0)).unwrap();
        assert_eq!(level, Level::Warning);
        assert!(
            text.contains("limits: 4s to 60s at zk1; 4s to 40s at zk2, zk3: give all"),
            "{text}"
        );
    }
}
