//! What happens meanwhile: a worker is paused for longer than its session lasts, another is killed.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use zklock::{Client, DistributedLock};

use crate::BASE;
use crate::crew::Crew;
use crate::ledger::{Line, now, seconds};
use crate::options::Options;
use crate::progress::{Display, Progress};
use crate::support::Result;
use crate::words::{News, Order, WentOn};

/// What happened to the workers.
#[derive(Default)]
pub(crate) struct Story {
    pub(crate) paused: Option<Pause>,
    pub(crate) killed: Option<Kill>,
    /// Lines that the ledger refused.
    pub(crate) refused: Vec<Line>,
    /// Workers that failed.
    pub(crate) failed: BTreeSet<usize>,
}

/// Times are in microseconds since 1970.
pub(crate) struct Pause {
    /// The line that the worker was about to write.
    pub(crate) line: Line,
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
    pub(crate) went_on: Option<WentOn>,
}

pub(crate) struct Kill {
    /// The entry that the worker had begun.
    pub(crate) line: Line,
    pub(crate) at: u64,
}

/// Sends orders to the workers, and shows the progress.
pub(crate) struct Director<'a> {
    crew: Crew,
    options: &'a Options,
    zk: &'a Client,
    progress: Progress,
    display: Display,
    story: Story,
    at_work: BTreeSet<usize>,
    /// Orders to come: at which round, to which worker.
    orders: VecDeque<(u64, usize, Order)>,
    /// Whether an order was sent, and its effects have not ended.
    busy: bool,
    /// The line of the worker whose session has to end, and since when.
    outlast: Option<(Line, u64)>,
}

impl<'a> Director<'a> {
    pub(crate) fn new(options: &'a Options, zk: &'a Client, path: &Path) -> Result<Director<'a>> {
        let mut orders = VecDeque::new();
        if options.workers > 1 && !options.break_it {
            orders.push_back((options.rounds / 3, 2, Order::Wait));
            orders.push_back((options.rounds / 3 * 2, 1, Order::Stay));
        }
        Ok(Director {
            crew: Crew::start(options)?,
            options,
            zk,
            progress: Progress::follow(path)?,
            display: Display::new(),
            story: Story::default(),
            at_work: (1..=options.workers).collect(),
            orders,
            busy: false,
            outlast: None,
        })
    }

    /// Returns when all workers have ended.
    pub(crate) fn play(mut self) -> Result<Story> {
        while !self.at_work.is_empty() {
            let news = self.crew.hear(Duration::from_millis(100))?;
            self.progress.read()?;
            if let Some((worker, news)) = news {
                self.note(worker, news)?;
            }
            self.direct()?;
            self.show();
        }
        self.progress.read()?;
        self.show();
        self.display.end();
        Ok(self.story)
    }

    fn note(&mut self, worker: usize, news: News) -> Result<()> {
        match news {
            News::Waiting(line) => {
                self.crew.pause(worker)?;
                let from = now();
                self.story.paused = Some(Pause { line, from, to: None, went_on: None });
                self.outlast = Some((line, from));
                self.display.line(&format!(
                    "paused worker {worker} (SIGSTOP) in round {}, while it held the lock, between \
                     its is_held() and a write",
                    line.round
                ));
            }
            News::Staying(line) => {
                self.crew.kill(worker)?;
                let at = now();
                self.story.killed = Some(Kill { line, at });
                self.outlast = Some((line, at));
                self.display.line(&format!(
                    "killed worker {worker} (SIGKILL) in round {}, while it held the lock",
                    line.round
                ));
                self.display.line(&format!("the queue: {}", self.queue()?));
            }
            News::Refused(line) => {
                self.display.line(&format!(
                    "the ledger refused a write of {} in round {}, because its token is old",
                    line.writer, line.round
                ));
                self.story.refused.push(line);
            }
            News::WentOn(went_on) => {
                self.busy = false;
                if let Some(pause) = &mut self.story.paused {
                    pause.went_on = Some(went_on);
                }
            }
            News::Failed(why) => {
                self.story.failed.insert(worker);
                self.display.line(&format!("worker {worker}: {why}"));
            }
            News::Ended => drop(self.at_work.remove(&worker)),
        }
        Ok(())
    }

    fn direct(&mut self) -> Result<()> {
        if let Some((torn, since)) = self.outlast {
            let next = self.progress.cleared.filter(|next| next.token > torn.token);
            if let Some(next) = next.filter(|next| self.progress.rounds >= next.round) {
                let waited = seconds(since, next.at);
                let whose = next.writer;
                self.display
                    .line(&format!("after {waited:.1} s {whose} has the lock; work goes on"));
            } else if self.at_work.iter().any(|worker| *worker != torn.writer.worker) {
                return Ok(());
            }
            self.outlast = None;
            self.busy = false;
            self.resume()?;
        }
        if let Some(&(round, worker, order)) = self.orders.front()
            && self.progress.rounds >= round
            && !self.busy
        {
            self.orders.pop_front();
            self.busy = true;
            self.crew.tell(worker, order)?;
        }
        Ok(())
    }

    /// Continues the paused worker.
    fn resume(&mut self) -> Result<()> {
        let Some(pause) = self.story.paused.as_mut().filter(|pause| pause.to.is_none()) else {
            return Ok(());
        };
        let worker = pause.line.writer.worker;
        self.busy = true;
        // Sent before the signal, so that the worker writes as soon as it goes on.
        self.crew.tell(worker, Order::GoOn)?;
        pause.to = Some(now());
        self.crew.resume(worker);
        self.display.line(&format!("worker {worker} goes on (SIGCONT) where it was, and writes"));
        Ok(())
    }

    fn show(&mut self) {
        match self.outlast {
            Some((torn, since)) => self.display.status(&format!(
                "waiting for the session of worker {} to end: {:.1} s of {:.1} s",
                torn.writer.worker,
                seconds(since, now()),
                self.zk.session_timeout().unwrap_or_default().as_secs_f64()
            )),
            None => self.display.progress(self.options.rounds, &self.progress),
        }
    }

    /// The holder of the lock and the waiters, as ZooKeeper lists them.
    fn queue(&self) -> Result<String> {
        let all = DistributedLock::new(self.zk, BASE, &self.options.lock).contenders()?;
        let first: Vec<String> = all.iter().take(3).map(|contender| contender.label()).collect();
        let more = all.len() - first.len();
        Ok(format!("{}, {more} more", first.join(", ")))
    }
}
