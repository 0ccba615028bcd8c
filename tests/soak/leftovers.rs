//! What is left in the nodes of the recipes at the end, when everything is healed and the workers
//! have ended. It is taken out through the recipes themselves, and written to a history; after that
//! the nodes must be empty.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zklock::queue::LeasedItem;

use super::history::{Journal, Who};
use super::parse::FINISH;
use super::recipes::{
    BARRIER, COMMIT, COUNTER, DOUBLE, GROUP, LEASED, PRIORITY, QUEUE, Recipes, Scribe, VALUE, base,
    done, taken, text,
};
use super::run::children_left;
use super::support::connecting;
use super::support::raw::Raw;
use super::worker::CONNECT;

/// The writer of this history, which is none of the workers.
pub(crate) const FINISHER: Who = Who { slot: 999, generation: 0, thread: 0 };

/// How long each step may take.
const STEP: Duration = CONNECT;
const SESSION: Duration = Duration::from_secs(10);

/// Takes everything out, and reports what is there after that.
pub(crate) fn collect(hosts: &str, out: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let journal = Arc::new(Journal::create(&out.join(FINISH))?);
    let mut raw = Raw::connect(hosts, SESSION).map_err(|failure| failure.to_string())?;
    let rounds = format!("{}/{COMMIT}", base());
    let rounds = raw.get_children(&rounds).unwrap_or_default();
    {
        let zk = connecting(hosts).session_timeout(SESSION).connect()?;
        take_out(&Recipes::new(&zk), &Scribe { who: FINISHER, journal }, &rounds);
    }
    // Values and counters stay until somebody deletes them.
    for folder in [VALUE, COUNTER].map(|recipe| format!("{}/{recipe}", base())) {
        for name in raw.get_children(&folder).unwrap_or_default() {
            raw.delete(&format!("{folder}/{name}")).map_err(|failure| failure.to_string())?;
        }
    }
    let mut left = Vec::new();
    for recipe in [GROUP, QUEUE, LEASED, PRIORITY, DOUBLE, COMMIT, BARRIER] {
        let node = format!("{}/{recipe}", base());
        left.extend(children_left("item", &node, raw.get_children(&node)));
    }
    raw.close().map_err(|failure| failure.to_string())?;
    Ok(left)
}

fn take_out(on: &Recipes, scribe: &Scribe, rounds: &[String]) {
    while let Some(Some(_)) = scribe.deed("queue take", STEP, "", || on.queue.try_take(), taken) {}
    while let Some(Some(_)) =
        scribe.deed("priority take", STEP, "", || on.priority.try_take(), taken)
    {}
    let item = |found: &Option<LeasedItem>| text(found.as_ref().map(LeasedItem::data));
    while let Some(Some(leased)) =
        scribe.deed("leased lease", STEP, "", || on.leased.try_lease(), item)
    {
        let about = format!("{} -", String::from_utf8_lossy(leased.data()));
        scribe.deed("leased ack", STEP, &about, || leased.ack(), done);
    }
    scribe.deed("barrier lift", STEP, "", || on.barrier.lift(), |did| Some(did.to_string()));
    for name in rounds {
        let round = on.round(name);
        let decide = || round.recover()?.abort();
        scribe.deed("commit decide", STEP * 2, name, decide, |said| Some(said.to_string()));
        scribe.deed("commit forget", STEP, name, || round.forget(), |did| Some(did.to_string()));
    }
}
