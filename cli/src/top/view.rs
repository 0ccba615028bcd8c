//! What `zklock top` shows: without a terminal and without a server.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::key_decoder::Key;
use crate::look::{Row, ages};
use crate::output::aligned;
use crate::words::{lasting, visible};

/// Hand-overs are counted over this time.
const MINUTE: Duration = Duration::from_secs(60);

/// Without an answer for so long, what is shown is not current.
const CURRENT_FOR: Duration = Duration::from_millis(1_500);

/// A list takes no more requests than this in a second, on average.
const REQUESTS_A_SECOND: f64 = 500.0;

/// The lines above the locks: what is shown, the keys, what is missing, the table's headings.
const HEADING: usize = 4;

const KEYS: &str =
    "w waiting, h hand-overs, a longest queued, n name, / filter, arrows scroll, q end";

#[derive(Clone, Copy, Debug)]
enum Order {
    Waiting,
    HandOvers,
    Age,
    Name,
}

/// How long to wait between two lists: as long as is wished, or longer if one takes many requests.
pub(crate) fn pause(every: Duration, requests: usize) -> Duration {
    every.max(Duration::from_secs_f64(requests as f64 / REQUESTS_A_SECOND))
}

/// What was seen so far, and how it is to be shown.
pub(crate) struct View {
    base: String,
    order: Order,
    filter: String,
    /// Whether the keys are the filter's.
    is_typing: bool,
    /// The first of the locks that is shown, and how many fit below it.
    first: usize,
    page: usize,
    state: State,
    locks: Vec<Row>,
    /// What could not be looked at, and why.
    unlisted: Vec<String>,
    /// Of each lock: its first contender, and when another one was seen in its place.
    changes: HashMap<String, (String, VecDeque<Instant>)>,
    /// When the latest request was sent that was answered.
    answered: Instant,
    trouble: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    NotListed,
    Listed,
    /// The base does not exist.
    Missing,
}

impl View {
    pub(crate) fn new(base: String, now: Instant) -> View {
        View {
            base,
            order: Order::Waiting,
            filter: String::new(),
            is_typing: false,
            first: 0,
            page: 1,
            state: State::NotListed,
            locks: Vec::new(),
            unlisted: Vec::new(),
            changes: HashMap::new(),
            answered: now,
            trouble: None,
        }
    }

    /// A request was answered that was sent then.
    pub(crate) fn note_answer(&mut self, sent: Instant) {
        self.answered = self.answered.max(sent);
    }

    /// No server answers, for this reason.
    pub(crate) fn note_trouble(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// The base does not exist.
    pub(crate) fn note_missing(&mut self) {
        (self.state, self.trouble) = (State::Missing, None);
        (self.locks, self.unlisted) = (Vec::new(), Vec::new());
    }

    pub(crate) fn note_list(&mut self, locks: Vec<Row>, unlisted: Vec<String>, now: Instant) {
        let mut changes = HashMap::with_capacity(locks.len());
        for lock in &locks {
            let Some(holder) = &lock.holder else { continue };
            let (before, mut times) = self
                .changes
                .remove(&lock.path)
                .unwrap_or_else(|| (holder.clone(), VecDeque::new()));
            if before != *holder {
                times.push_back(now);
            }
            while times.front().is_some_and(|time| now.duration_since(*time) > MINUTE) {
                times.pop_front();
            }
            changes.insert(lock.path.clone(), (holder.clone(), times));
        }
        (self.state, self.trouble, self.changes) = (State::Listed, None, changes);
        (self.locks, self.unlisted) = (locks, unlisted);
    }

    /// Does what the key says; true if it ends the view.
    pub(crate) fn has_ended_by(&mut self, key: Key) -> bool {
        match key {
            Key::Interrupt => return true,
            Key::Char('q') if !self.is_typing => return true,
            Key::Up => self.first = self.first.saturating_sub(1),
            Key::Down => self.first += 1,
            Key::PageUp => self.first = self.first.saturating_sub(self.page),
            Key::PageDown => self.first += self.page,
            Key::Home => self.first = 0,
            Key::End => self.first = usize::MAX,
            Key::Escape => (self.filter, self.is_typing, self.first) = (String::new(), false, 0),
            Key::Enter => self.is_typing = false,
            Key::Backspace if self.is_typing => drop(self.filter.pop()),
            Key::Char(one) if self.is_typing => {
                self.filter.push(one);
                self.first = 0;
            }
            Key::Char('j') => self.first += 1,
            Key::Char('k') => self.first = self.first.saturating_sub(1),
            Key::Char('/') => self.is_typing = true,
            Key::Char('w') => self.sort(Order::Waiting),
            Key::Char('h') => self.sort(Order::HandOvers),
            Key::Char('a') => self.sort(Order::Age),
            Key::Char('n') => self.sort(Order::Name),
            Key::Backspace | Key::Char(_) => {}
        }
        // Further down there is nothing.
        let last = self.shown().count().saturating_sub(self.page);
        self.first = self.first.min(last);
        false
    }

    fn sort(&mut self, order: Order) {
        (self.order, self.first) = (order, 0);
    }

    /// The locks that the filter names, by their paths or their holders.
    fn shown(&self) -> impl Iterator<Item = &Row> {
        let text = self.filter.to_lowercase();
        let is_meant = move |lock: &&Row| {
            let is_in = |shown: &str| shown.to_lowercase().contains(&text);
            text.is_empty() || is_in(&lock.path) || is_in(&lock.held_by)
        };
        self.locks.iter().filter(is_meant)
    }

    fn hand_overs(&self, lock: &Row) -> usize {
        self.changes.get(&lock.path).map_or(0, |(_, times)| times.len())
    }

    /// The lines of a screen of this size.
    pub(crate) fn lines(&mut self, (width, height): (usize, usize), now: Instant) -> Vec<String> {
        self.page = height.saturating_sub(HEADING).max(1);
        let mut locks: Vec<&Row> = self.shown().collect();
        let ages = ages(&self.locks);
        match self.order {
            Order::Waiting => locks.sort_by_key(|lock| Reverse(lock.waiters)),
            Order::HandOvers => locks.sort_by_key(|lock| Reverse(self.hand_overs(lock))),
            // The unknown ones last.
            Order::Age => locks.sort_by_key(|lock| (lock.since.is_none(), lock.since)),
            Order::Name => {}
        }
        let first = self.first.min(locks.len().saturating_sub(self.page));
        let rows: Vec<Vec<String>> = locks
            .iter()
            .skip(first)
            .take(self.page)
            .map(|lock| [lock.cells(ages), vec![self.hand_overs(lock).to_string()]].concat())
            .collect();
        let mut lines =
            vec![self.heading(first, rows.len(), locks.len()), self.keys(), self.missing(now)];
        let headings = ["LOCK", "KIND", "HELD BY", "QUEUED", "WAITING", "A MINUTE"];
        lines.extend(aligned(&headings, &rows, width, &[2, 0]));
        let cut = |line: &String| visible(line).chars().take(width).collect();
        lines.iter().take(height).map(cut).collect()
    }

    fn heading(&self, first: usize, rows: usize, count: usize) -> String {
        match self.state {
            State::NotListed => return format!("{}: looking", self.base),
            State::Missing => return format!("{} does not exist", self.base),
            State::Listed => {}
        }
        let waiters: usize = self.locks.iter().map(|lock| lock.waiters).sum();
        let order = match self.order {
            Order::Waiting => "waiting",
            Order::HandOvers => "hand-overs",
            Order::Age => "time since the holder queued",
            Order::Name => "name",
        };
        let part = match (rows < count, self.filter.is_empty()) {
            (true, _) => format!("; {} to {} of {count}", first + 1, first + rows),
            (false, false) => format!("; {count} of them"),
            (false, true) => String::new(),
        };
        let (base, all) = (&self.base, self.locks.len());
        format!("{base}: {all} locks, {waiters} contenders wait; by {order}{part}")
    }

    fn keys(&self) -> String {
        match (self.is_typing, self.filter.is_empty()) {
            (true, _) => format!("filter: {}_   Enter keeps it, Esc clears it", self.filter),
            (false, false) => format!("filter: {}   / changes it, Esc clears it", self.filter),
            (false, true) => KEYS.to_owned(),
        }
    }

    /// What is not known.
    fn missing(&self, now: Instant) -> String {
        let silent = now.saturating_duration_since(self.answered);
        if silent >= CURRENT_FOR {
            let why = self.trouble.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            return format!("not current: no server has answered for {}{why}", lasting(silent));
        }
        if let Some(why) = &self.trouble {
            return format!("not current: {why}");
        }
        match &self.unlisted[..] {
            [] => String::new(),
            [one] => one.clone(),
            [one, more @ ..] => format!("{one}; and {} more", more.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    const SCREEN: (usize, usize) = (80, 10);

    fn row(number: usize, waiters: usize) -> Row {
        Row {
            path: format!("/locks/{number:02}"),
            kind: "mutex".to_owned(),
            held_by: format!("web{number} (pid 1, job)"),
            holder: Some(format!("/locks/{number:02}/lock-0000000001")),
            since: Some(SystemTime::UNIX_EPOCH),
            waiters,
        }
    }

    fn view(now: Instant) -> View {
        let mut view = View::new("/locks".to_owned(), now);
        view.note_list((0..20).map(|number| row(number, number)).collect(), Vec::new(), now);
        view
    }

    fn pressed(view: &mut View, keys: &[Key]) {
        for key in keys {
            assert!(!view.has_ended_by(*key), "{key:?}");
        }
    }

    /// The names of the locks that are shown.
    fn shown(view: &mut View, now: Instant) -> Vec<String> {
        let lines = view.lines(SCREEN, now);
        let name = |line: &String| line.split(' ').next().unwrap().replace("/locks/", "");
        lines.iter().skip(HEADING).map(name).collect()
    }

    #[test]
    fn the_keys_scroll_and_neither_end_is_passed() {
        let now = Instant::now();
        let mut view = view(now);
        pressed(&mut view, &[Key::Char('n')]);
        assert_eq!(shown(&mut view, now), ["00", "01", "02", "03", "04", "05"]);
        let cases: [(&[Key], [&str; 2]); 8] = [
            (&[Key::Down, Key::Char('j')], ["02", "07"]),
            (&[Key::PageDown], ["08", "13"]),
            (&[Key::Up, Key::Char('k')], ["06", "11"]),
            (&[Key::PageDown, Key::PageDown, Key::PageDown], ["14", "19"]),
            (&[Key::Up], ["13", "18"]),
            (&[Key::Home, Key::Up, Key::PageUp], ["00", "05"]),
            (&[Key::End, Key::Down], ["14", "19"]),
            (&[Key::PageUp], ["08", "13"]),
        ];
        for (keys, ends) in cases {
            pressed(&mut view, keys);
            let shown = shown(&mut view, now);
            assert_eq!([&*shown[0], &*shown[5]], ends, "{keys:?}");
        }
        let heading = "/locks: 20 locks, 190 contenders wait; by name; 9 to 14 of 20";
        assert_eq!(view.lines(SCREEN, now)[0], heading);
        // Fewer locks than were scrolled past.
        view.note_list(vec![row(1, 0)], Vec::new(), now);
        assert_eq!(shown(&mut view, now), ["01"]);
    }

    #[test]
    fn a_filter_is_typed_kept_changed_and_cleared() {
        let now = Instant::now();
        let mut view = view(now);
        pressed(&mut view, &[Key::End, Key::Char('/')]);
        pressed(&mut view, &"WEB1qx".chars().map(Key::Char).collect::<Vec<_>>());
        assert_eq!(view.lines(SCREEN, now)[1], "filter: WEB1qx_   Enter keeps it, Esc clears it");
        assert!(shown(&mut view, now).is_empty());
        pressed(&mut view, &[Key::Backspace, Key::Backspace, Key::Char('9'), Key::Enter]);
        assert_eq!(shown(&mut view, now), ["19"]);
        let lines = view.lines(SCREEN, now);
        assert!(lines[0].ends_with("by waiting; 1 of them"), "{}", lines[0]);
        assert_eq!(lines[1], "filter: WEB19   / changes it, Esc clears it");
        pressed(&mut view, &[Key::Escape]);
        assert_eq!(shown(&mut view, now), ["19", "18", "17", "16", "15", "14"]);
        assert!(view.has_ended_by(Key::Char('q')));
        pressed(&mut view, &[Key::Char('/'), Key::Char('q')]);
        assert!(view.has_ended_by(Key::Interrupt));
    }

    #[test]
    fn what_is_not_current_is_marked_and_so_is_what_is_missing() {
        let now = Instant::now();
        let mut view = view(now);
        let status = |view: &mut View, seconds| {
            view.lines(SCREEN, now + Duration::from_secs(seconds)).swap_remove(2)
        };
        assert_eq!(status(&mut view, 1), "");
        assert_eq!(status(&mut view, 5), "not current: no server has answered for 5.0 s");
        view.note_trouble("why".to_owned());
        assert_eq!(status(&mut view, 5), "not current: no server has answered for 5.0 s: why");
        view.note_answer(now + Duration::from_secs(4));
        // A server answers, but has not listed the locks yet.
        assert_eq!(status(&mut view, 5), "not current: why");
        let hidden = ["/locks/a cannot be read".to_owned(), "/locks/b".to_owned()];
        view.note_list(vec![row(1, 0)], hidden.to_vec(), now);
        assert_eq!(status(&mut view, 5), "/locks/a cannot be read; and 1 more");
        view.note_missing();
        assert_eq!(view.lines(SCREEN, now)[0], "/locks does not exist");
    }

    #[test]
    fn hand_overs_are_counted_for_a_minute() {
        let now = Instant::now();
        let mut view = view(now);
        let later = now + Duration::from_secs(30);
        let next = Row { holder: Some("/locks/03/lock-0000000002".to_owned()), ..row(3, 0) };
        view.note_list(vec![row(2, 9), next], Vec::new(), later);
        pressed(&mut view, &[Key::Char('h')]);
        let counts = |view: &mut View, at| -> Vec<String> {
            let lines = view.lines(SCREEN, at);
            lines
                .iter()
                .skip(HEADING)
                .map(|line| line.split("  ").last().unwrap().to_owned())
                .collect()
        };
        assert_eq!(shown(&mut view, later), ["03", "02"]);
        assert_eq!(counts(&mut view, later), ["1", "0"]);
        let end = later + Duration::from_secs(61);
        let next = Row { holder: Some("/locks/03/lock-0000000002".to_owned()), ..row(3, 0) };
        view.note_list(vec![row(2, 9), next], Vec::new(), end);
        assert_eq!(counts(&mut view, end), ["0", "0"]);
    }

    #[test]
    fn many_locks_are_listed_less_often() {
        let second = Duration::from_secs(1);
        assert_eq!(pause(second, 10), second);
        assert_eq!(pause(second, 2_500), 5 * second);
    }

    #[test]
    fn it_fits_the_smallest_screen() {
        let now = Instant::now();
        for size in [(40, 0), (40, 1), (40, 4), (40, 5)] {
            let lines = view(now).lines(size, now);
            assert!(lines.len() <= size.1 && lines.iter().all(|line| line.chars().count() <= 40));
        }
    }
}
