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
use zklock::election::Candidate;
use zklock::{Cancel, Changes, Client, ErrorKind, LeaderElection};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let hosts = arguments.next().unwrap_or_else(|| "localhost:2181".to_owned());
    let address = arguments.next().unwrap_or_else(|| "host-a:8080".to_owned());
    let stop = Cancel::new();
    let on_signal = stop.clone();
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || signals.forever().for_each(|_| on_signal.cancel()));

    let zk = Client::connect(&hosts)?;
    let election = LeaderElection::new(&zk, "/zklock-example", "service").id(&address);
    let leaders = election.observe();
    thread::spawn(|| follow(leaders));

    // Campaigns again after each term, also after an outage, until `stop` ends that. `()`: no term ends
    // the campaigning with a value of its own.
    let led = election.lead_within::<()>(&stop, |leadership| {
        println!("{address} leads, with fencing token {}", leadership.fencing_token());
        while leadership.is_held() && !stop.is_cancelled() {
            thread::sleep(Duration::from_millis(100)); // one step of the leader's work
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

/// Every instance sends requests to the leader's address.
fn follow(leaders: Changes<Option<Candidate>>) {
    for leader in leaders {
        match leader {
            Ok(Some(leader)) => println!("requests go to {}", leader.id()),
            Ok(None) => println!("requests wait: nobody leads"),
            Err(error) if error.kind() == ErrorKind::Closed => {} // the program ends
            Err(error) => eprintln!("cannot follow the leader: {error}"),
        }
    }
}
