//! A program on tokio: a task waits for a lock, and holds it while it awaits.
//!
//! ```sh
//! cargo run --example async_tasks -- localhost:2181
//! ```
//!
//! `blocking` and `Section` are for any such program: why each line is there is said in docs/async.md.
//! Needs `cargo add tokio --features macros,rt-multi-thread,sync,time`.

#![allow(clippy::print_stdout, reason = "examples talk to people")]
#![allow(clippy::expect_used, reason = "a panic of the call goes on in the task")]

use std::error::Error;
use std::future::pending;
use std::thread;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use zklock::{Cancel, Client, DistributedLock, LockGuard, LossReason};

/// Makes a call that blocks, on a thread of its own. If this future is dropped, the call is cancelled.
pub async fn blocking<T: Send + 'static>(call: impl FnOnce(&Cancel) -> T + Send + 'static) -> T {
    struct CancelOnDrop(Cancel);
    impl Drop for CancelOnDrop {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }

    let cancel = CancelOnDrop(Cancel::new());
    let token = cancel.0.clone();
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || sender.send(call(&token)));
    receiver.await.expect("the call has panicked")
}

/// A lock that a task holds. Dropping it releases the lock and does not wait for the server.
#[derive(Debug)]
pub struct Section {
    guard: Option<LockGuard>,
    lost: watch::Receiver<Option<LossReason>>,
}

impl Section {
    /// Waits for the lock, at most this long: `None` if others have it.
    pub async fn enter(lock: &DistributedLock, limit: Duration) -> zklock::Result<Option<Section>> {
        let lock = lock.clone();
        blocking(move |cancel| {
            let Some(guard) = lock.lock_within((limit, cancel))? else { return Ok(None) };
            let (sender, lost) = watch::channel(None);
            guard.on_lost(move |why| {
                sender.send_replace(Some(why));
            });
            Ok(Some(Section { guard: Some(guard), lost }))
        })
        .await
    }

    /// Ends when the lock is lost, and otherwise never.
    pub async fn lost(&self) -> LossReason {
        let why = self.lost.clone().wait_for(Option::is_some).await.ok().and_then(|why| *why);
        match why {
            Some(why) => why,
            None => pending().await, // released
        }
    }

    /// Releases the lock, and ends when the server has confirmed that.
    pub async fn leave(mut self) -> zklock::Result<()> {
        match self.guard.take() {
            Some(guard) => blocking(move |_| guard.unlock()).await,
            None => Ok(()),
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        // The background does it: a task must not wait on a thread of the runtime. If it was lost, that
        // has been said.
        let _ = self.guard.take().map(|guard| guard.unlock_within(Duration::ZERO));
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let hosts = std::env::args().nth(1).unwrap_or_else(|| "localhost:2181".to_owned());
    let zk = blocking(move |cancel| Client::builder(&hosts).connect_within(cancel)).await?;
    let ended = run(&zk).await;
    // Also releases what is not released yet: a call that still ends could otherwise leave its node behind.
    blocking(move |_| zk.close()).await;
    ended
}

async fn run(zk: &Client) -> Result<(), Box<dyn Error>> {
    let lock = DistributedLock::new(zk, "/zklock-example", "async");
    let tasks: Vec<_> = (1..=3).map(|number| tokio::spawn(work(lock.clone(), number))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn work(lock: DistributedLock, number: u32) -> zklock::Result<()> {
    let Some(section) = Section::enter(&lock, Duration::from_secs(10)).await? else {
        println!("task {number}: others had the lock for 10 s");
        return Ok(());
    };
    tokio::select! {
        () = sleep(Duration::from_millis(100)) => println!("task {number} has done its work"),
        why = section.lost() => println!("task {number} has stopped: {why}"),
    }
    section.leave().await
}
