//! A picture of a run, as SVG: which threads held locks, and what was broken.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::history::{Nanos, seconds};
use super::model::{Run, Span};
use super::worker::CLIENTS;

const LEFT: f64 = 150.0;
const WIDTH: f64 = 1650.0;
const ROW: f64 = 14.0;
/// The shortest visible length: shorter bars are drawn as long as this, shorter gaps are filled.
const PIXEL: f64 = 1.0;

pub(crate) fn timeline(run: &Run) -> String {
    let mut picture = Picture::new(run);
    picture.axis();
    picture.healthy(run);
    let mut threads: BTreeMap<(usize, usize), Vec<(Span, bool)>> = BTreeMap::new();
    for (attempt, hold) in run.holds() {
        let until = hold.claimed.unwrap_or(hold.got).max(hold.got);
        let second = attempt.lock == super::worker::LOCKS[1];
        let row = threads.entry((attempt.who.slot, attempt.who.thread)).or_default();
        row.push(((hold.got, until), second));
    }
    let mut worker = None;
    for ((slot, thread), mut spans) in threads {
        if worker.replace(slot) != Some(slot) {
            picture.title(&format!("worker {slot}"));
        }
        spans.sort_unstable();
        let color = if spans.iter().any(|(_, second)| *second) { "#4a90c2" } else { "#2e7d4f" };
        picture.row(&format!("thread {thread}"), spans.into_iter().map(|(span, _)| span), color);
        let process = |at: &Nanos| format!("a worker killed at {:.1} s", picture.since(*at));
        let killed: Vec<(Nanos, String)> = run
            .killed
            .iter()
            .filter(|((killed, _), _)| *killed == slot)
            .map(|(_, at)| (*at, process(at)))
            .collect();
        let threads = run.setting("threads").parse().unwrap_or(usize::MAX);
        let its_client = if thread > threads { CLIENTS } else { thread % CLIENTS };
        let lost: Vec<(Nanos, String)> = run
            .states
            .iter()
            .filter(|(_, who, client, state)| {
                who.slot == slot && *client == its_client && state == "lost"
            })
            .map(|(at, ..)| (*at, format!("session lost at {:.1} s", picture.since(*at))))
            .collect();
        killed.iter().for_each(|(at, text)| picture.mark(*at, "#000000", text));
        lost.iter().for_each(|(at, text)| picture.mark(*at, "#d62728", text));
    }
    picture.title("faults");
    let mut kinds: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for fault in &run.faults {
        let span = (fault.from, fault.to.unwrap_or(run.end));
        kinds.entry(&fault.kind).or_default().push(span);
    }
    for (kind, spans) in kinds {
        picture.row(kind, spans.into_iter(), "#c2703a");
    }
    picture.legend();
    picture.finish()
}

struct Picture {
    start: Nanos,
    end: Nanos,
    body: String,
    y: f64,
}

impl Picture {
    fn new(run: &Run) -> Picture {
        let end = run.end.max(run.start + 1);
        Picture { start: run.start, end, body: String::new(), y: 34.0 }
    }

    fn since(&self, at: Nanos) -> f64 {
        seconds(at.saturating_sub(self.start))
    }

    fn x(&self, at: Nanos) -> f64 {
        let at = at.clamp(self.start, self.end) - self.start;
        LEFT + at as f64 / (self.end - self.start) as f64 * WIDTH
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.0}" y="{y:.0}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    fn rectangle(&mut self, x: f64, width: f64, y: f64, height: f64, color: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.0}" width="{width:.1}" height="{height:.0}" fill="{color}"/>"#
        );
    }

    fn axis(&mut self) {
        let length = self.since(self.end);
        let step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600]
            .into_iter()
            .find(|step| length / f64::from(*step) <= 16.0)
            .unwrap_or(7200);
        for mark in (0..=length as u64).step_by(step as usize) {
            let x = LEFT + mark as f64 / length * WIDTH;
            self.text(x, 14.0, "middle", &format!("{}:{:02}", mark / 60, mark % 60));
            let _ = writeln!(
                self.body,
                r##"<line x1="{x:.1}" x2="{x:.1}" y1="18" y2="100%" stroke="#e4e4e4"/>"##
            );
        }
    }

    /// Draws a strip on top that is green while nothing was broken.
    fn healthy(&mut self, run: &Run) {
        self.rectangle(LEFT, WIDTH, 22.0, 6.0, "#eec9b0");
        for (from, to) in &run.healthy {
            let (x, end) = (self.x(*from), self.x(*to));
            self.rectangle(x, (end - x).max(0.3), 22.0, 6.0, "#a9d8b8");
        }
    }

    fn title(&mut self, text: &str) {
        self.y += ROW + 4.0;
        let y = self.y;
        let _ =
            writeln!(self.body, r#"<text class="title" x="4" y="{:.0}">{text}</text>"#, y - 2.0);
    }

    fn row(&mut self, label: &str, spans: impl Iterator<Item = Span>, color: &str) {
        self.y += ROW;
        let y = self.y;
        self.rectangle(LEFT, WIDTH, y - ROW + 2.0, ROW - 2.0, "#f6f6f6");
        self.text(LEFT - 8.0, y - 3.0, "end", label);
        let mut open: Option<(f64, f64)> = None;
        for (from, to) in spans {
            let (from, to) = (self.x(from), self.x(to));
            match &mut open {
                Some((_, end)) if from - *end < PIXEL => *end = end.max(to),
                _ => {
                    if let Some((from, to)) = open.replace((from, to)) {
                        self.rectangle(
                            from,
                            (to - from).max(PIXEL),
                            y - ROW + 3.0,
                            ROW - 4.0,
                            color,
                        );
                    }
                }
            }
        }
        if let Some((from, to)) = open {
            self.rectangle(from, (to - from).max(PIXEL), y - ROW + 3.0, ROW - 4.0, color);
        }
    }

    /// Draws a mark in the row that was drawn last.
    fn mark(&mut self, at: Nanos, color: &str, what: &str) {
        let (x, y) = (self.x(at), self.y);
        let _ = writeln!(
            self.body,
            r#"<rect x="{:.1}" y="{:.0}" width="2" height="{ROW}" fill="{color}"><title>{what}</title></rect>"#,
            x - 1.0,
            y - ROW + 1.0
        );
    }

    fn legend(&mut self) {
        self.y += 2.0 * ROW;
        let text = "bars: a guard reports that it is held (green: lock a, blue: lock b); red marks: session \
                    lost; black marks: worker killed; strip on top: green while nothing was broken";
        let y = self.y;
        self.text(LEFT, y, "start", text);
    }

    fn finish(self) -> String {
        let (width, height) = (LEFT + WIDTH + 20.0, self.y + ROW);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             font-family=\"sans-serif\" font-size=\"10\">\n\
             <style>.title {{ font-weight: bold }}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}
