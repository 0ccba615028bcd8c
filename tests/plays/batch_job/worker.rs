//! A worker process: threads that write entries, and one that reads orders.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::exit;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use zklock::{Client, DistributedLock, LockGuard};

use crate::ledger::{Kind, Ledger, Line, Outcome, Writer, now};
use crate::options::Options;
use crate::support::Result;
use crate::words::{News, Order, WentOn};
use crate::{BASE, SESSION_TIMEOUT, WORK};

/// The orders to the threads of a worker.
struct Orders {
    stay: AtomicBool,
    wait: AtomicBool,
    /// The waiting thread and the one that reads orders meet here.
    go_on: Barrier,
    /// The parent process is gone.
    leave: AtomicBool,
}

pub(crate) fn work(worker: usize, options: &Options) -> Result<bool> {
    let path = options.ledger.as_deref().ok_or("--worker needs --ledger")?;
    let zk = Client::builder(&options.hosts).session_timeout(SESSION_TIMEOUT).connect()?;
    let orders = Orders {
        stay: AtomicBool::new(false),
        wait: AtomicBool::new(false),
        go_on: Barrier::new(2),
        leave: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=options.threads)
            .map(|thread| {
                let (writer, zk, orders) = (Writer { worker, thread }, &zk, &orders);
                scope.spawn(move || {
                    if let Err(error) = write_entries(writer, zk, path, options, orders)
                        && !orders.leave.load(Ordering::SeqCst)
                    {
                        // The whole process stops, because it cannot be sure of its work.
                        tell(&News::Failed(format!("thread {thread} failed: {error}")));
                        exit(1);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            take_orders(&orders);
            // At the end of the input, or after an unknown order.
            orders.leave.store(true, Ordering::SeqCst);
            if options.temporary {
                let _ = fs::remove_file(path);
            }
            zk.close();
            exit(1);
        });
        for writer in writers {
            let _ = writer.join();
        }
        if orders.leave.load(Ordering::SeqCst) {
            park();
        }
        zk.close();
        exit(0);
    })
}

/// Reads orders until the input ends.
fn take_orders(orders: &Orders) {
    for line in io::stdin().lines().map_while(Result::ok) {
        match Order::parse(&line) {
            Some(Order::Stay) => orders.stay.store(true, Ordering::SeqCst),
            Some(Order::Wait) => orders.wait.store(true, Ordering::SeqCst),
            Some(Order::GoOn) => drop(orders.go_on.wait()),
            None => return,
        }
    }
}

/// Sends a message to the parent process, if that still exists.
fn tell(news: &News) {
    let _ = writeln!(io::stdout(), "{news}");
}

fn park() -> ! {
    loop {
        thread::park();
    }
}

fn write_entries(
    writer: Writer,
    zk: &Client,
    path: &Path,
    options: &Options,
    orders: &Orders,
) -> Result<()> {
    let name = match options.break_it {
        true => format!("{}-{}", options.lock, writer.worker),
        false => options.lock.clone(),
    };
    let lock = DistributedLock::new(zk, BASE, name).data(writer.to_string());
    let mut ledger = Ledger::open(path, options.fenced())?;
    loop {
        let guard = lock.lock()?;
        let last = ledger.last()?;
        let round = match last {
            None => 1,
            Some(Line { kind: Kind::End, round, .. }) => round + 1,
            Some(Line { round, .. }) => round,
        };
        if round > options.rounds {
            return Ok(());
        }
        write_entry(writer, &guard, &mut ledger, round, last, orders)?;
        drop(guard);
    }
}

/// Writes the entry, unless the ledger refuses a line: then another worker has to write it.
fn write_entry(
    writer: Writer,
    guard: &LockGuard,
    ledger: &mut Ledger,
    round: u64,
    last: Option<Line>,
    orders: &Orders,
) -> Result<()> {
    let token = guard.fencing_token();
    let line = |kind| Line { kind, round, token, writer, at: now() };
    let nothing = || {};
    // This thread holds the lock, so the writer that began this entry has died or lost the lock.
    let torn = last.is_some_and(|last| last.kind == Kind::Begin);
    if torn && !write(ledger, guard, line(Kind::Clear), nothing)? {
        return Ok(());
    }
    let begin = line(Kind::Begin);
    if !write(ledger, guard, begin, nothing)? {
        return Ok(());
    }
    if orders.stay.swap(false, Ordering::SeqCst) {
        tell(&News::Staying(begin));
        park();
    }
    thread::sleep(WORK);
    if orders.wait.swap(false, Ordering::SeqCst) {
        return write_late(ledger, guard, line(Kind::End), &orders.go_on);
    }
    write(ledger, guard, line(Kind::End), nothing)?;
    Ok(())
}

/// Writes a line after a check of the guard. If the lock is lost between the two, only the ledger
/// can notice. Returns whether it has accepted the line.
fn write(
    ledger: &mut Ledger,
    guard: &LockGuard,
    line: Line,
    between: impl FnOnce(),
) -> Result<bool> {
    if !guard.is_held() {
        let why = guard.lost().reason().map_or("not held".to_owned(), |why| why.to_string());
        return Err(format!("the lock is lost ({why}), so this thread stops writing").into());
    }
    between();
    let outcome = ledger.append(line)?;
    if outcome == Outcome::Refused {
        tell(&News::Refused(line));
    }
    Ok(outcome == Outcome::Written)
}

/// Waits between check and write: there this process is paused until another one holds the lock.
fn write_late(ledger: &mut Ledger, guard: &LockGuard, line: Line, go_on: &Barrier) -> Result<()> {
    const ON_LOST: Duration = Duration::from_secs(10);
    let (tell_loss, loss) = channel();
    guard.on_lost(move |why| {
        let _ = tell_loss.send((why, now()));
    });
    write(ledger, guard, line, || {
        tell(&News::Waiting(line));
        go_on.wait();
    })?;
    let (held, asked_at) = (guard.is_held(), now());
    let (why, told_at) = loss.recv_timeout(ON_LOST).map_err(|_| "on_lost was not called")?;
    tell(&News::WentOn(WentOn { held, asked_at, why: why.to_string(), told_at }));
    Ok(())
}
