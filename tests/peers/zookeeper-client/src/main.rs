//! Acquires locks as zookeeper-client does. ../README.md lists the orders.

use std::error::Error;
use std::time::Duration;
use std::{env, fs, io};

use tokio::runtime::Runtime;
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let hosts = env::args().nth(1).ok_or("no connect string")?;
    // The runtime's threads keep the session alive while this thread waits for orders.
    let runtime = Runtime::new()?;
    let client = runtime.block_on(
        Client::connector().with_session_timeout(Duration::from_secs(10)).connect(&hosts),
    )?;
    let mut peer = Peer { client, held: None };
    println!("peer: ready");
    for order in io::stdin().lines() {
        let order = order?;
        let words: Vec<&str> = order.split(' ').collect();
        println!("peer: {}", runtime.block_on(peer.obey(&words))?);
    }
    Ok(())
}

struct Peer {
    client: Client,
    held: Option<OwnedLockClient>,
}

impl Peer {
    async fn obey(&mut self, words: &[&str]) -> Result<String> {
        match *words {
            ["lock", path, "mutex"] => {
                self.held = Some(self.lock(path).await?);
                Ok("held".to_owned())
            }
            ["try", path, "mutex", millis] => {
                let limit = Duration::from_millis(millis.parse()?);
                // Dropping the call deletes its node.
                self.held = timeout(limit, self.lock(path)).await.ok().transpose()?;
                Ok(if self.held.is_some() { "held" } else { "not" }.to_owned())
            }
            ["release"] => {
                self.held = None;
                Ok("released".to_owned())
            }
            ["work", path, "mutex", rounds, counter] => {
                self.work(path, rounds.parse()?, counter).await
            }
            _ => Err(format!("unknown order: {words:?}").into()),
        }
    }

    async fn lock(&self, path: &str) -> Result<OwnedLockClient> {
        let prefix = LockPrefix::new_curator(path, "lock-")?;
        let ancestors = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(ancestors)?;
        Ok(self.client.lock(prefix, b"zookeeper-client", options).await?.into_owned())
    }

    async fn work(&self, path: &str, rounds: u32, counter: &str) -> Result<String> {
        let mut taken = 0;
        for _ in 0..rounds {
            let held = self.lock(path).await?;
            let before = fs::read_to_string(counter)?;
            let (count, last) = before.split_once(' ').ok_or("no number and name")?;
            taken += u32::from(last != "zookeeper-client");
            fs::write(counter, format!("{} zookeeper-client", count.parse::<u64>()? + 1))?;
            drop(held);
        }
        Ok(format!("done {taken}"))
    }
}
