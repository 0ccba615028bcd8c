//! Writes to ZooKeeper with a guard's transactions: a former holder of the lock cannot write.
//!
//! ```sh
//! cargo run --example fenced_write
//! ```

#![allow(clippy::print_stdout, reason = "examples talk to people")]

use std::error::Error;

use zklock::znode::CreateMode;
use zklock::{Client, DistributedLock, ErrorKind};

fn main() -> Result<(), Box<dyn Error>> {
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(std::env::args().nth(1))?;
    let hosts = zookeeper.hosts();
    let zk = Client::connect(hosts)?;
    let state = zk.znode("/zklock-example/state");
    match state.create_with_parents(CreateMode::Persistent, "nothing done") {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let lock = DistributedLock::new(&zk, "/zklock-example", "lock");
    let guard = lock.lock()?;

    // The server checks in the same transaction that our node still exists.
    guard.transaction().write(state.path(), "half done").commit()?;
    println!("half done, under {}", guard.path());

    // Another client deletes the guard's node, as the server does when a session expires. The holder
    // need not notice.
    zk.znode(guard.path()).delete()?;
    let next = DistributedLock::new(&Client::connect(hosts)?, "/zklock-example", "lock").lock()?;

    match guard.transaction().write(state.path(), "done by the wrong one").commit() {
        Err(error) if error.kind() == ErrorKind::NodeDeleted => println!("refused: {error}"),
        other => return Err(format!("not refused: {other:?}").into()),
    }
    next.transaction().write(state.path(), "done").commit()?;
    zk.sync()?; // a server may lag behind
    let now = state.read()?.ok_or("the state is gone")?;
    println!("{}", String::from_utf8_lossy(&now.data));
    Ok(())
}
