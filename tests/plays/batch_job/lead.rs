//! The process that starts the workers, and checks their work at the end.

use std::env;
use std::fs::{self, File};

use zklock::Client;

use crate::audit::{Audit, audit};
use crate::options::Options;
use crate::report;
use crate::story::{Director, Story};
use crate::support::{Result, find, unique};
use crate::{BASE, SESSION_TIMEOUT};

pub(crate) fn lead(options: Options) -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::builder(zookeeper.hosts()).session_timeout(SESSION_TIMEOUT).connect()?;
    let name = unique("ledger");
    let temporary = options.ledger.is_none();
    let path =
        options.ledger.clone().unwrap_or_else(|| env::temp_dir().join(format!("zklock-{name}")));
    File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let options = Options {
        ledger: Some(path.clone()),
        hosts: zookeeper.hosts().to_owned(),
        lock: name,
        temporary,
        ..options
    };
    println!(
        "{} workers of {} threads each write {} rounds to {}",
        options.workers,
        options.threads,
        options.rounds,
        path.display()
    );
    if options.break_it {
        println!("each worker has its own lock, and tokens are not checked (--break-it)");
    } else if options.no_fencing {
        println!("under the lock {BASE}/{}; tokens are not checked (--no-fencing)", options.lock);
    } else {
        println!("under the lock {BASE}/{}; the file refuses old tokens", options.lock);
    }
    let watch = format!(
        "cargo run -q -p zklock-cli -- --hosts {} watch {BASE}/{}",
        options.hosts, options.lock
    );
    println!("who holds it, live, in another terminal: {watch}");

    let story = Director::new(&options, &zk, &path)?.play()?;

    let mut found = audit(&fs::read_to_string(&path)?);
    compare(&story, &mut found);
    report::summarize(&options, &found, &story, zk.session_timeout().unwrap_or_default());
    let mut fine = report::faults(&found);
    if found.rounds < options.rounds {
        println!("FAILED: all workers ended after {} rounds", found.rounds);
        fine = false;
    }
    if fine && temporary {
        fs::remove_file(&path)?;
    } else {
        println!("the ledger is in {}", path.display());
    }
    println!("live         while such a run lasts: {watch}");
    Ok(fine)
}

/// Adds faults that a fenced ledger hides: a holder may lose its lock only if it was paused or
/// killed, or failed.
fn compare(story: &Story, found: &mut Audit) {
    let paused = story.paused.as_ref().map(|pause| pause.line.token);
    let killed = story.killed.as_ref().map(|kill| kill.line.token);
    let failed = |worker| story.failed.contains(&worker);
    for (torn, _) in &found.cleared {
        let known = [paused, killed].contains(&Some(torn.token));
        if !known && !failed(torn.writer.worker) {
            found.faults.push(format!("{} lost its lock without a cause", torn.writer));
        }
    }
    for line in &story.refused {
        if paused != Some(line.token) && !failed(line.writer.worker) {
            found.faults.push(format!("{} wrote late, but was not paused", line.writer));
        }
    }
    if let Some(pause) = &story.paused {
        let writer = pause.line.writer;
        match &pause.went_on {
            Some(went_on) if went_on.held => {
                found.faults.push(format!("is_held() of {writer} was true after it lost the lock"));
            }
            Some(_) => {}
            None => found.faults.push(format!("{writer} did not go on after its pause")),
        }
    }
}
