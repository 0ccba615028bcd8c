//! What the doctor finds of quotas. An answer that one is used up names no path, but ZooKeeper's own nodes
//! tell which quotas there are, and how much of them is used.

use zklock::{Client, ErrorKind};

use super::clock::make_and_delete;
use super::findings::{Findings, Level};
use crate::args::Global;
use crate::exit::Failure;

/// Where ZooKeeper keeps the quota of each path.
const QUOTAS: &str = "/zookeeper/quota";

/// A contender has about so many bytes of data.
const CONTENDER: i64 = 100;

/// Says which quota counts for a path, and whether it is used up; nothing if there is none.
pub(crate) fn look_at_quota(
    global: &Global,
    client: &Client,
    (servers, chroot): (&str, &str),
    path: &str,
    findings: &mut Findings,
) {
    let whole = format!("{chroot}{}", path.trim_end_matches('/'));
    let found = match chroot {
        "" => Ok(None),
        // ZooKeeper's own nodes are outside of the chroot.
        _ => global.builder_for(servers).and_then(|builder| Ok(Some(builder.connect()?))),
    }
    .and_then(|outside| {
        let client = outside.as_ref().unwrap_or(client);
        let quota = quota_of(client, &whole)?;
        Ok(quota.map(|quota| finding(global, client, &quota)))
    });
    match found {
        Ok(None) => {}
        Ok(Some((level, text))) => findings.add(level, path, &text),
        Err(failure) => {
            let text = format!("whether it has a quota cannot be seen: {}", failure.message);
            findings.add(Level::Warning, path, &text);
        }
    }
}

fn finding(global: &Global, client: &Client, quota: &Quota) -> (Level, String) {
    let in_words = format!("the quota of {:?}: {}", quota.of, quota.in_words());
    if !quota.is_used_up() {
        return (Level::Ok, in_words);
    }
    let data = "x".repeat(usize::try_from(CONTENDER).unwrap_or_default());
    match make_and_delete(global, client, &quota.of, data) {
        Ok(()) => (Level::Warning, format!("{in_words}; the servers do not enforce it")),
        Err(error) => {
            let certain = match error.kind() {
                ErrorKind::QuotaExceeded => "",
                _ => " if the servers enforce it",
            };
            let text = format!(
                "{in_words}, so no lock below it can be taken{certain}: delete what is no longer needed, or raise it \
                 (setquota in zkCli.sh)"
            );
            (Level::Error, text)
        }
    }
}

/// How much may be below a path, and how much is; -1 is no limit.
#[derive(Debug, PartialEq)]
struct Quota {
    of: String,
    nodes: i64,
    most_nodes: i64,
    bytes: i64,
    most_bytes: i64,
}

/// The quota that counts for a path: that of its longest prefix that has one.
fn quota_of(client: &Client, path: &str) -> Result<Option<Quota>, Failure> {
    let mut of = path;
    loop {
        let read = |what: &str| {
            let node = format!("{QUOTAS}{of}/{what}");
            let data = client.znode(node).read().map(|found| found.map(|found| found.data));
            data.map(|data| data.map(|data| String::from_utf8_lossy(&data).into_owned()))
        };
        if let Some(limits) = read("zookeeper_limits")? {
            let stats = read("zookeeper_stats")?.unwrap_or_default();
            return Ok(Some(Quota::of(of, &limits, &stats)));
        }
        match of.rfind('/') {
            Some(end) => of = &of[..end],
            None => return Ok(None),
        }
    }
}

impl Quota {
    fn of(path: &str, limits: &str, stats: &str) -> Quota {
        let of = if path.is_empty() { "/" } else { path };
        Quota {
            of: of.to_owned(),
            nodes: number(stats, "count"),
            most_nodes: number(limits, "countHardLimit"),
            bytes: number(stats, "bytes"),
            most_bytes: number(limits, "byteHardLimit"),
        }
    }

    fn is_used_up(&self) -> bool {
        let exceeds =
            |used: i64, more: i64, most: i64| most >= 0 && used.saturating_add(more) > most;
        exceeds(self.nodes, 1, self.most_nodes) || exceeds(self.bytes, CONTENDER, self.most_bytes)
    }

    fn in_words(&self) -> String {
        let of = |used: i64, most: i64, what: &str| match most {
            0.. => format!("{used} of {most} {what}"),
            _ => format!("{used} {what}"),
        };
        let nodes = of(self.nodes, self.most_nodes, "nodes");
        format!("{nodes} and {} are used", of(self.bytes, self.most_bytes, "bytes"))
    }
}

/// The number of this name in such a text: `count=3,bytes=-1=;byteHardLimit=-1;countHardLimit=5`.
fn number(text: &str, name: &str) -> i64 {
    let parts = text.split([',', ';']).filter_map(|part| part.trim().split_once('='));
    let mut found = parts.filter(|(key, _)| *key == name);
    found.next().and_then(|(_, value)| value.trim_end_matches('=').parse().ok()).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_used_up_if_one_more_contender_exceeds_it() {
        let quota = |nodes: i64, bytes: i64, limits: &str| {
            Quota::of("/a", limits, &format!("count={nodes},bytes={bytes}"))
        };
        let both = "count=-1,bytes=-1=;byteHardLimit=1000;countHardLimit=5";
        let full = quota(5, 20, both);
        assert_eq!(full.in_words(), "5 of 5 nodes and 20 of 1000 bytes are used");
        assert!(full.is_used_up());
        assert!(!quota(4, 20, both).is_used_up());
        assert!(quota(4, 950, both).is_used_up());
        // Of soft limits, servers only log that they are exceeded.
        let soft = quota(9, 9, "count=5,bytes=5");
        assert!(!soft.is_used_up());
        assert_eq!(soft.in_words(), "9 nodes and 9 bytes are used");
        assert_eq!(quota(1, 2, "").in_words(), "1 nodes and 2 bytes are used");
    }
}
