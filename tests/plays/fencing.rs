//! Fencing prevents what no lock can: a holder that is paused at the wrong moment writes late, and
//! a store that checks fencing tokens refuses the write.
//!
//! ```text
//! cargo run --example fencing
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! the late write was refused, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use support::paused::Paused;
use support::{Result, find, say, unique};
use zklock::{Client, DistributedLock, FencingToken};

const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
const BASE: &str = "/zklock-examples";

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<String> = env::args().skip(1).collect();
    support::exit(match arguments.as_slice() {
        [role, hosts, name] if role == "--holder" => holder(hosts, name).map(|()| true),
        _ => story(),
    })
}

/// A store to which lock holders write, such as a database or a file server.
#[derive(Default)]
struct Store {
    value: String,
    /// The highest token seen. A real store has to keep it as safely as the data.
    highest: Option<FencingToken>,
}

impl Store {
    /// Accepts a write unless a later holder has written. A store has to do no more than this.
    fn write(&mut self, token: FencingToken, value: &str) -> Result<(), String> {
        if let Some(highest) = self.highest.filter(|highest| token < *highest) {
            return Err(format!("{token} is older than {highest}"));
        }
        self.highest = Some(token);
        self.value = value.to_owned();
        Ok(())
    }

    /// Accepts every write, as stores without fencing do.
    fn write_unfenced(&mut self, value: &str) {
        self.value = value.to_owned();
    }
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let (mut plain, mut fenced) = (Store::default(), Store::default());
    let name = unique("fencing");

    let mut first = Holder::start(zookeeper.hosts(), &name)?;
    let token: FencingToken = first.hear()?.parse()?;
    say(format!("A  holds the lock, with the token {token}"));
    say(format!("A  asks is_held() before it writes: {}", first.hear()?));
    let paused = Paused::new(&first.child)?;
    say("A  is paused at this very moment (SIGSTOP), as a virtual machine might be");

    let zk = Client::builder(zookeeper.hosts()).session_timeout(SESSION_TIMEOUT).connect()?;
    let lock = DistributedLock::new(&zk, BASE, &name);
    let waiting = Instant::now();
    let guard = lock.lock()?;
    let token = guard.fencing_token();
    say(format!(
        "B  gets the lock after {:.1} s, when the session of A has expired, with {token}",
        waiting.elapsed().as_secs_f64()
    ));
    plain.write_unfenced("by B");
    fenced.write(token, "by B")?;
    say("B  writes; both stores take it");

    drop(paused);
    first.tell("go on")?;
    let token: FencingToken = first.hear()?.parse()?;
    say("A  goes on where it was, and writes");
    plain.write_unfenced("by A");
    say("   the store without tokens takes it");
    let refused = fenced.write(token, "by A");
    match &refused {
        Ok(()) => say("   the store with tokens takes it"),
        Err(why) => say(format!("   the store with tokens refuses it: {why}")),
    }
    let late = first.hear()?;
    say(format!("A  asks is_held() again: {late}; too late, as it has written already"));
    guard.unlock()?;

    println!();
    println!("the store without tokens was last written {}: the work of B is lost", plain.value);
    println!("the store with tokens was last written {}", fenced.value);
    Ok(refused.is_err() && plain.value == "by A" && fenced.value == "by B" && late == "false")
}

/// Holds the lock, in a separate process that can be paused.
fn holder(hosts: &str, name: &str) -> Result<()> {
    let zk = Client::builder(hosts).session_timeout(SESSION_TIMEOUT).connect()?;
    let guard = DistributedLock::new(&zk, BASE, name).lock()?;
    println!("{}", guard.fencing_token());
    println!("{}", guard.is_held());
    let mut order = String::new();
    if io::stdin().read_line(&mut order)? == 0 {
        return Ok(()); // the parent process is gone
    }
    println!("{}", guard.fencing_token());
    println!("{}", guard.is_held());
    Ok(())
}

/// The process that runs [`holder`]. It ends when its standard input does.
struct Holder {
    child: Child,
    orders: ChildStdin,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn start(hosts: &str, name: &str) -> Result<Holder> {
        let mut child = Command::new(env::current_exe()?)
            .args(["--holder", hosts, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In its own process group: if this process ends first, the holder still goes on, and
            // ends.
            .process_group(0)
            .spawn()?;
        let (orders, output) = (child.stdin.take(), child.stdout.take());
        let orders = orders.ok_or("no pipe to the holder")?;
        let output = output.ok_or("no pipe from the holder")?;
        Ok(Holder { child, orders, lines: BufReader::new(output).lines() })
    }

    fn hear(&mut self) -> Result<String> {
        Ok(self.lines.next().ok_or("the holder has ended")??)
    }

    fn tell(&mut self, order: &str) -> Result<()> {
        Ok(writeln!(self.orders, "{order}")?)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
