//! `zklock top`: the locks below a path, live.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use zklock::ListedLock;

use super::ls::row;
use crate::exit::{Exit, Failure};
use crate::options::{Global, Top};
use crate::table::{aligned, terminal_size};

/// Hand-overs are counted over this time.
const MINUTE: Duration = Duration::from_secs(60);

const CTRL_C: u8 = 3;

pub(crate) fn top(global: &Global, options: &Top) -> Result<Exit, Failure> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::usage(
            "this needs a terminal; for programs there is zklock --json ls",
        ));
    }
    // Before there are threads: these signals must find the terminal in order.
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGHUP);
    set.thread_block()?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?;
    let base = global.base(options.path.as_deref());
    let client = global.connect()?;
    let mut seen =
        Seen { order: Order::Waiting, changes: HashMap::new(), locks: Vec::new(), trouble: None };
    let screen = Screen::open()?;
    loop {
        match client.locks(&base) {
            Ok(locks) => seen.look(locks),
            Err(error) if error.is_outage() => seen.trouble = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        seen.show(&base)?;
        let until = Instant::now() + options.every.max(Duration::from_millis(100));
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match next_key(&signals, left)? {
                Key::None => {}
                Key::End(exit) => {
                    drop(screen);
                    return Ok(exit);
                }
                Key::Sort(order) => {
                    seen.order = order;
                    seen.show(&base)?;
                }
            }
        }
    }
}

enum Key {
    None,
    Sort(Order),
    End(Exit),
}

/// Waits for a key or a signal.
fn next_key(signals: &SignalFd, within: Duration) -> Result<Key, Failure> {
    let input = stdin();
    let mut asked = [
        PollFd::new(input.as_fd(), PollFlags::POLLIN),
        PollFd::new(signals.as_fd(), PollFlags::POLLIN),
    ];
    let limit = u16::try_from(within.as_millis() + 1).unwrap_or(u16::MAX);
    match poll(&mut asked, PollTimeout::from(limit)) {
        Err(Errno::EINTR) => return Ok(Key::None),
        result => result?,
    };
    if asked[1].any() == Some(true) {
        let signal = signals.read_signal()?.and_then(|one| i32::try_from(one.ssi_signo).ok());
        return Ok(signal.map_or(Key::None, |number| Key::End(Exit::Signal(number))));
    }
    if asked[0].any() != Some(true) {
        return Ok(Key::None);
    }
    let mut byte = [0];
    Ok(match (input.lock().read(&mut byte)?, byte[0]) {
        // The terminal is gone.
        (0, _) | (_, b'q' | CTRL_C) => Key::End(Exit::Success),
        (_, b'w') => Key::Sort(Order::Waiting),
        (_, b'h') => Key::Sort(Order::HandOvers),
        (_, b'a') => Key::Sort(Order::Age),
        (_, b'n') => Key::Sort(Order::Name),
        _ => Key::None,
    })
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Waiting,
    HandOvers,
    Age,
    Name,
}

/// What was seen so far.
struct Seen {
    order: Order,
    /// Of each lock: its first contender, and when another one was seen in its place.
    changes: HashMap<String, (String, VecDeque<Instant>)>,
    locks: Vec<ListedLock>,
    trouble: Option<String>,
}

impl Seen {
    fn look(&mut self, locks: Vec<ListedLock>) {
        let now = Instant::now();
        let mut changes = HashMap::with_capacity(locks.len());
        for lock in &locks {
            let Some(first) = lock.first.as_ref().filter(|first| first.holds) else { continue };
            let (before, mut times) = self
                .changes
                .remove(&lock.path)
                .unwrap_or_else(|| (first.path.clone(), VecDeque::new()));
            if before != first.path {
                times.push_back(now);
            }
            while times.front().is_some_and(|time| now.duration_since(*time) > MINUTE) {
                times.pop_front();
            }
            changes.insert(lock.path.clone(), (first.path.clone(), times));
        }
        (self.locks, self.changes, self.trouble) = (locks, changes, None);
    }

    fn hand_overs(&self, lock: &ListedLock) -> usize {
        self.changes.get(&lock.path).map_or(0, |(_, times)| times.len())
    }

    fn show(&mut self, base: &str) -> Result<(), Failure> {
        let (width, height) = terminal_size();
        let mut locks: Vec<&ListedLock> = self.locks.iter().collect();
        let age = |lock: &ListedLock| lock.first.as_ref().and_then(|first| first.age());
        match self.order {
            Order::Waiting => locks.sort_by_key(|lock| Reverse(lock.waiters)),
            Order::HandOvers => locks.sort_by_key(|lock| Reverse(self.hand_overs(lock))),
            Order::Age => locks.sort_by_key(|lock| Reverse(age(lock))),
            Order::Name => {}
        }
        let shown = height.saturating_sub(4);
        let rows: Vec<Vec<String>> = locks
            .iter()
            .take(shown)
            .map(|lock| [row(lock), vec![self.hand_overs(lock).to_string()]].concat())
            .collect();
        let waiters: usize = locks.iter().map(|lock| lock.waiters).sum();
        let order = match self.order {
            Order::Waiting => "waiting",
            Order::HandOvers => "hand-overs",
            Order::Age => "time since the holder queued",
            Order::Name => "name",
        };
        let heading =
            format!("{base}: {} locks, {waiters} contenders wait; by {order}", locks.len());
        let keys = "w waiting, h hand-overs seen in a minute, a longest queued, n name, q end";
        let trouble = self.trouble.as_ref().map(|why| format!("not current: {why}"));
        let mut lines = vec![heading, trouble.unwrap_or_else(|| keys.to_owned()), String::new()];
        let headings = ["LOCK", "KIND", "HELD BY", "QUEUED", "WAITING", "A MINUTE"];
        lines.extend(aligned(&headings, &rows, width, &[2, 0]));
        let cut = |line: &String| line.chars().take(width).collect::<String>();
        let text: Vec<String> = lines.iter().take(height).map(cut).collect();
        // Home, each line up to its end, and the rest of the screen.
        let mut out = stdout().lock();
        write!(out, "\x1b[H{}\x1b[K\x1b[J", text.join("\x1b[K\r\n"))?;
        Ok(out.flush()?)
    }
}

/// The terminal as this needs it; as it was, afterwards.
struct Screen(Termios);

impl Screen {
    fn open() -> Result<Screen, Failure> {
        let before = tcgetattr(stdin())?;
        let mut now = before.clone();
        now.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        tcsetattr(stdin(), SetArg::TCSANOW, &now)?;
        let screen = Screen(before);
        // The other screen, without a cursor.
        write!(stdout(), "\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = write!(stdout(), "\x1b[?25h\x1b[?1049l").and_then(|()| stdout().flush());
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.0);
    }
}
