//! Acquires locks as often as zookeeper-client can. ../README.md lists the orders.

use std::error::Error;
use std::io;
use std::process::exit;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use tokio::runtime::Runtime;
use tokio::time::sleep;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

const WAITS: usize = 2_000;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    if let Some(argument) = env::args().nth(1) {
        return Err(format!("unexpected argument: {argument}").into());
    }
    let (tell, orders) = mpsc::channel();
    thread::spawn(move || {
        for order in io::stdin().lines().map_while(io::Result::ok) {
            let _ = tell.send(order);
        }
        // Ends at the end of the input, even while an order is carried out.
        exit(0);
    });
    let runtime = Runtime::new()?;
    let mut bench = Bench { clients: Vec::new() };
    println!("peer: ready");
    for order in orders {
        let words: Vec<&str> = order.split(' ').collect();
        println!("peer: {}", runtime.block_on(bench.obey(&words))?);
    }
    Ok(())
}

struct Bench {
    clients: Vec<Client>,
}

impl Bench {
    async fn obey(&mut self, words: &[&str]) -> Result<String> {
        match *words {
            ["connect", hosts, count] => {
                self.clients.clear();
                for _ in 0..count.parse()? {
                    let connector =
                        Client::connector().with_session_timeout(Duration::from_secs(30));
                    self.clients.push(connector.connect(hosts).await?);
                }
                Ok("{}".to_owned())
            }
            ["close"] => {
                self.clients.clear();
                Ok("{}".to_owned())
            }
            ["loop", path, locks, tasks, millis] => {
                let length = Duration::from_millis(millis.parse()?);
                self.run(path, locks.parse()?, tasks.parse()?, length).await
            }
            ["queue", path, waiters, repeats] => {
                self.queue(path, waiters.parse()?, repeats.parse()?).await
            }
            _ => Err(format!("unknown order: {words:?}").into()),
        }
    }

    async fn run(
        &self,
        path: &str,
        locks: usize,
        tasks: usize,
        length: Duration,
    ) -> Result<String> {
        let begin = Instant::now();
        let working: Vec<_> = (0..tasks)
            .map(|own| {
                let (client, path) = (self.clients[0].clone(), format!("{path}/{}", own % locks));
                tokio::spawn(async move {
                    let (mut count, mut waits) = (0, Vec::new());
                    while begin.elapsed() < length {
                        let asked = now();
                        let held = lock(&client, &path).await?;
                        if waits.len() < WAITS / tasks {
                            waits.push(format!("[{asked}, {}]", now()));
                        }
                        drop(held);
                        count += 1;
                    }
                    Result::Ok((count, waits))
                })
            })
            .collect();
        let (mut operations, mut waits) = (0, Vec::new());
        for task in working {
            let (count, of_task): (u64, Vec<String>) = task.await??;
            operations += count;
            waits.extend(of_task);
        }
        let said = said(operations, begin.elapsed());
        Ok(format!("{}, \"waits\": [{}]}}", said.trim_end_matches('}'), waits.join(", ")))
    }

    async fn queue(&self, path: &str, waiters: usize, repeats: u64) -> Result<String> {
        let mut time = Duration::ZERO;
        for _ in 0..repeats {
            let gate = lock(&self.clients[0], path).await?;
            let working: Vec<_> = (0..waiters)
                .map(|own| {
                    let client = self.clients[own % self.clients.len()].clone();
                    let path = path.to_owned();
                    tokio::spawn(async move { lock(&client, &path).await.map(drop) })
                })
                .collect();
            while self.clients[0].list_children(path).await?.len() <= waiters {
                sleep(Duration::from_millis(50)).await;
            }
            // The last waiters may not have set their watches yet.
            sleep(Duration::from_millis(300)).await;
            let begin = Instant::now();
            drop(gate);
            for task in working {
                task.await??;
            }
            time += begin.elapsed();
        }
        Ok(said(waiters as u64 * repeats, time))
    }
}

async fn lock(client: &Client, path: &str) -> Result<OwnedLockClient> {
    let prefix = LockPrefix::new_curator(path, "lock-")?;
    let ancestors = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(ancestors)?;
    Ok(client.lock(prefix, b"", options).await?.into_owned())
}

/// Nanoseconds since 1970.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

fn said(operations: u64, time: Duration) -> String {
    format!("{{\"operations\": {operations}, \"seconds\": {}}}", time.as_secs_f64())
}
