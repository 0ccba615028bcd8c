//! Two services that both take an order, or both refuse it, even if one of them dies.
//!
//! ```text
//! cargo run --example two_phase_commit
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! every order ended as it should, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::time::Duration;

use support::{Checks, Result, find, say, unique};
use zklock::commit::{Decision, Vote};
use zklock::{Client, TwoPhaseCommit};

const SERVICES: [&str; 2] = ["orders", "stock"];
const LIMIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::connect(zookeeper.hosts())?;
    let order = |name: &str| TwoPhaseCommit::new(&zk, "/zklock-examples", unique(name));
    let mut checks = Checks::default();

    say("1. Both services can take the order");
    let round = order("taken");
    let coordinator = round.begin(&SERVICES)?;
    let (orders, stock) = (round.join("orders")?, round.join("stock")?);
    orders.vote(Vote::Yes)?;
    stock.vote(Vote::Yes)?;
    checks.that(
        "the coordinator commits",
        coordinator.decide_or_abort_within(LIMIT)? == Decision::Commit,
    );
    checks.that("orders learns it", orders.decision_within(LIMIT)? == Some(Decision::Commit));
    checks.that("stock learns it", stock.decision_within(LIMIT)? == Some(Decision::Commit));
    drop((orders, stock));
    checks.that("the finished round can be deleted", round.forget()?);

    say("2. One of them cannot");
    let round = order("refused");
    let coordinator = round.begin(&SERVICES)?;
    let (orders, stock) = (round.join("orders")?, round.join("stock")?);
    orders.vote(Vote::Yes)?;
    stock.vote(Vote::No)?;
    checks.that(
        "the coordinator aborts",
        coordinator.decide_or_abort_within(LIMIT)? == Decision::Abort,
    );
    checks.that("orders learns it", orders.decision_within(LIMIT)? == Some(Decision::Abort));
    drop((orders, stock));
    round.forget()?;

    say("3. One of them dies after its vote, and the coordinator dies, too");
    let round = order("died");
    let coordinator = round.begin(&SERVICES)?;
    let (orders, stock) = (round.join("orders")?, round.join("stock")?);
    orders.vote(Vote::Yes)?;
    stock.vote(Vote::Yes)?;
    drop((stock, coordinator));
    let soon = Duration::from_millis(200);
    checks.that("orders knows nothing yet, and waits", orders.decision_within(soon)?.is_none());
    for one in round.state()?.ok_or("the round is gone")?.participants {
        say(format!("         {}: here {}, vote {:?}", one.name, one.is_here, one.vote));
    }
    let recovered = round.recover()?.decide_or_abort_within(LIMIT)?;
    checks.that("the coordinator that recovers the round aborts it", recovered == Decision::Abort);
    checks.that("orders learns it", orders.decision_within(LIMIT)? == Some(Decision::Abort));
    checks.that(
        "stock learns it after its restart",
        round.state()?.and_then(|round| round.decision) == Some(Decision::Abort),
    );
    let again = round.join("stock")?;
    checks.that("and its vote is kept", again.vote(Vote::No).is_err());
    drop((orders, again));
    round.forget()?;
    Ok(checks.all_passed)
}
