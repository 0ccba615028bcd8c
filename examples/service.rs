//! A service of which one instance leads. All instances know the leader's address.
//!
//! ```sh
//! cargo run --example service -- localhost:2181 host-a:8080
//! ```
//!
//! Start it again with `host-b:8080`, and stop the first instance with Ctrl-C: the other one leads.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

use std::error::Error;
use std::ops::ControlFlow::Continue;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zklock::{Cancel, Changes, Client, Contender, ErrorKind, LeaderElection};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(arguments.next())?;
    let hosts = zookeeper.hosts();
    let address = arguments.next().unwrap_or_else(|| "host-a:8080".to_owned());
    let stop = Cancel::new();
    let on_signal = stop.clone();
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || signals.forever().for_each(|_| on_signal.cancel()));

    let zk = Client::connect(hosts)?;
    let election = LeaderElection::new(&zk, "/zklock-example", "service").id(&address);
    let leaders = election.observe();
    thread::spawn(|| follow(leaders));

    // Campaigns again after each term, also after an outage, until `stop` ends that. `()`: no term ends
    // the campaigning with a value of its own.
    let led = election.lead_within::<()>(&stop, |leadership| {
        println!("{address} leads, with fencing token {}", leadership.fencing_token());
        let pause = Duration::from_millis(100);
        // Until the leadership is lost, or `stop` is tripped.
        while leadership.lost().wait_within((pause, &stop)).is_none() && !stop.is_cancelled() {
            // one step of the leader's work
        }
        println!("{address} no longer leads");
        Ok(Continue(()))
    });
    zk.close(); // the observer uses the client, too: dropping `zk` would not end the session
    match led {
        Err(error) if error.kind() != ErrorKind::Cancelled => Err(error.into()),
        _ => Ok(()),
    }
}

/// Every instance sends requests to the leader's address, while it knows who leads.
fn follow(mut leaders: Changes<Option<Contender>>) {
    let mut is_known = false;
    loop {
        match leaders.next_within(Duration::from_secs(1)) {
            Ok(Some(Some(leader))) => println!("requests go to {}", leader.label()),
            Ok(Some(None)) => println!("requests wait: nobody leads"),
            Ok(None) if is_known && !leaders.is_current() => {
                println!("requests wait: ZooKeeper does not say who leads");
            }
            Ok(None) if !is_known && leaders.is_current() => {
                println!("requests go on: the leader is the same")
            }
            Ok(None) => {}
            Err(error) => return println!("the leader is not followed any more: {error}"),
        }
        is_known = leaders.is_current();
    }
}
