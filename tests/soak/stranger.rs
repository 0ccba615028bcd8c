//! Another client, Curator, that takes the same locks. It is killed and stopped now and then, and started again.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::history::Journal;
use super::rng::Rng;
use super::work::PATIENT;
use super::worker::BASE;
use super::workers::send;

/// Its sessions' timeout.
pub(crate) const SESSION: Duration = Duration::from_secs(10);
/// How often it takes each lock before it is told anew.
const ROUNDS: u32 = 20;
/// How long it may take to end.
const FINISH: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// Takes locks until `over`.
pub(crate) fn contend(hosts: &str, out: &Path, seed: u64, over: &AtomicBool, journal: &Journal) {
    let (mut rng, mut turns) = (Rng::new(seed), 0);
    while !over.load(Ordering::SeqCst) {
        match Stranger::start(hosts, out) {
            Ok(mut stranger) => turns += stranger.live(&mut rng, over, journal),
            Err(error) => {
                // Then the run shows less than it was to show, which is a violation.
                journal.note("-", format_args!("left undone: no other client: {error}"));
                break;
            }
        }
    }
    journal.note("-", format_args!("stranger {turns}"));
}

/// The running program.
struct Stranger {
    child: Child,
    answers: Receiver<String>,
    counter: String,
}

impl Stranger {
    fn start(hosts: &str, out: &Path) -> io::Result<Stranger> {
        // Of another client that was killed while it wrote, a torn number may be left.
        let counter = out.join("counter");
        fs::write(&counter, "0 none")?;
        // Beside the programs, where `scripts/peers` puts it.
        let own = std::env::current_exe()?;
        let target = own.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
        let log = File::options().create(true).append(true).open(out.join("stranger.err"))?;
        let mut child = Command::new(target.join("tmp/peers/curator"))
            .arg(hosts)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        let (tell, answers) = channel();
        thread::spawn(move || {
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Ok(Stranger { child, answers, counter: counter.display().to_string() })
    }

    /// Takes locks until something happens to it, and returns how often it did.
    fn live(&mut self, rng: &mut Rng, over: &AtomicBool, journal: &Journal) -> u32 {
        let (mut until, mut turns) = (Instant::now() + rng.milliseconds(5_000, 40_000), 0);
        let orders = PATIENT.into_iter().zip(["mutex", "mixed"]).cycle();
        for (lock, kind) in orders {
            // The first answer says that it is ready.
            loop {
                match self.answers.recv_timeout(PAUSE) {
                    Ok(answer) => {
                        turns += if answer.contains("done") { ROUNDS } else { 0 };
                        break;
                    }
                    // It ends after any failure, such as a lost connection.
                    Err(RecvTimeoutError::Disconnected) => return turns,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if Instant::now() > until {
                    until += rng.milliseconds(5_000, 40_000);
                    if rng.per_mille(500) {
                        journal.note("-", "fault kill-stranger");
                        let _ = self.child.kill();
                        journal.note("-", "heal kill-stranger");
                        return turns;
                    }
                    journal.note("-", "fault stop-stranger");
                    send(&self.child, Signal::STOP);
                    thread::sleep(rng.milliseconds(100, 3_000));
                    send(&self.child, Signal::CONT);
                    journal.note("-", "heal stop-stranger");
                }
            }
            if over.load(Ordering::SeqCst) {
                // At the end of its input it closes its session.
                drop(self.child.stdin.take());
                return turns;
            }
            let order = format!("work {BASE}/{lock} {kind} {ROUNDS} {}", self.counter);
            let _ = self.child.stdin.as_mut().map(|input| writeln!(input, "{order}"));
        }
        turns
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let limit = Instant::now() + FINISH;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < limit {
            thread::sleep(PAUSE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
