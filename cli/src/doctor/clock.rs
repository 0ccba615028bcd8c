//! Whether this host's clock and the ensemble's agree.

use std::time::{Duration, SystemTime};

use zklock::znode::{CreateMode, CreateOptions};
use zklock::{Client, Error, ErrorKind};

use super::findings::{Findings, Level};
use crate::args::Global;
use crate::words::{CLOCKS_AGREE, lasting};

/// A server's time is told in milliseconds.
const UNIT: Duration = Duration::from_millis(1);

/// What the ensemble's clock says, by a node that is made and deleted; `None` if that was gone at once.
pub(crate) fn time_of_ensemble(
    global: &Global,
    client: &Client,
    base: &str,
) -> Result<Option<SystemTime>, Error> {
    let name = name_below(base, client);
    let options = CreateOptions::new(CreateMode::Ephemeral).acl(global.acl());
    let node = client.znode(&name).create(options, "")?;
    let stat = node.stat();
    // Otherwise the end of the session deletes it.
    let _ = node.delete();
    Ok(stat?.map(|stat| stat.created_at))
}

/// Compares the clocks. Servers tell their time as that of a node's creation, so this creates one, and
/// deletes it. Returns what the ensemble's clock says now, if that is known.
pub(crate) fn look_at_clock(
    global: &Global,
    client: &Client,
    base: &str,
    findings: &mut Findings,
) -> Option<SystemTime> {
    let before = SystemTime::now();
    let told = time_of_ensemble(global, client, base);
    let after = SystemTime::now();
    let now = told.as_ref().ok().copied().flatten();
    let (level, text) = match told {
        Ok(Some(told)) => compare(before, after, told),
        Ok(None) => {
            (Level::Warning, "not compared: the node that tells the time is gone".to_owned())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            (Level::Ok, format!("not compared with the ensemble's: {base} does not exist"))
        }
        Err(error) if matches!(error.kind(), ErrorKind::QuotaExceeded | ErrorKind::Unsupported) => {
            findings.add(Level::Error, base, &format!("no lock can be taken: {error}"));
            (Level::Warning, "not compared with the ensemble's: no node can be made".to_owned())
        }
        Err(error) => (Level::Warning, format!("not compared with the ensemble's: {error}")),
    };
    findings.add(level, "clock", &text);
    now
}

/// Whether this client can make a node of its session below this one, with these data, and delete it.
pub(crate) fn make_and_delete(
    global: &Global,
    client: &Client,
    base: &str,
    data: impl Into<Vec<u8>>,
) -> Result<(), Error> {
    let options = CreateOptions::new(CreateMode::Ephemeral).acl(global.acl());
    client.znode(name_below(base, client)).create(options, data)?.delete()
}

fn name_below(base: &str, client: &Client) -> String {
    node_name(base, &client.session_id().map(|id| id.to_string()).unwrap_or_default())
}

/// A node of this session's. The base may be a lock's path, so this must be no contender: those have a number
/// at the end.
fn node_name(base: &str, session: &str) -> String {
    format!("{}/zklock-doctor-{session}-time", base.trim_end_matches('/'))
}

/// What it means if the ensemble's clock showed `told` at some time between these two.
fn compare(before: SystemTime, after: SystemTime, told: SystemTime) -> (Level, String) {
    let ahead = before.duration_since(told + UNIT).unwrap_or_default();
    let behind = told.duration_since(after).unwrap_or_default();
    let skew = ahead.max(behind);
    if skew < CLOCKS_AGREE {
        let text = "this host's and the ensemble's agree within a second";
        return (Level::Ok, text.to_owned());
    }
    let (side, ages) =
        if ahead > behind { ("ahead of", "too long") } else { ("behind", "too short") };
    let text = format!(
        "this host's is {} {side} the ensemble's: ages (QUEUED) are shown {ages}; set the clock, by NTP",
        lasting(skew)
    );
    (Level::Warning, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_no_contender_of_a_lock() {
        assert_eq!(node_name("/a", "0x1234567890"), "/a/zklock-doctor-0x1234567890-time");
        assert_eq!(node_name("/", "0x1"), "/zklock-doctor-0x1-time");
    }

    #[test]
    fn a_clock_is_compared_with_the_time_of_the_request() {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(compare(at(100), at(109), at(104)).0, Level::Ok);
        for (told, text) in [
            (40, "this host's is 59 s ahead of the ensemble's: ages (QUEUED) are shown too long"),
            (169, "this host's is 1 min behind the ensemble's: ages (QUEUED) are shown too short"),
        ] {
            let (level, said) = compare(at(100), at(109), at(told));
            assert_eq!(level, Level::Warning);
            assert!(said.starts_with(text), "{said}");
        }
    }
}
