//! Elections: scenarios 73 to 75.

mod campaigns;
mod loops;
mod observers;

use std::time::Duration;

use zklock::{Client, Error, ErrorKind, LeaderElection};

use crate::support::site::Site;

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
/// A back-off longer than any test.
const FOR_EVER: Duration = Duration::from_secs(3_600);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn election(zk: &Client, site: &Site) -> LeaderElection {
    LeaderElection::new(zk, &site.base, "a")
}

/// An election whose candidate has this `id`, and whose loop would back off forever after an error.
fn named(zk: &Client, site: &Site, id: &str) -> LeaderElection {
    LeaderElection::new(zk, &site.base, "a").id(id).back_off(FOR_EVER, FOR_EVER)
}

/// The kind of the last error, which came from campaigning.
fn last_kind(election: &LeaderElection) -> ErrorKind {
    let error = election.progress().last_error.expect("an error");
    error.downcast_ref::<Error>().expect("one of ours").kind()
}
