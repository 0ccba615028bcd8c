//! Results as SVG pictures: a bar for each client, with its spread. They are legible on light and
//! on dark pages.

use std::fmt::Write;

use super::contestant::Contestant::{self, Curator, Kazoo, ZklockKept, ZookeeperClient};
use super::results::{Results, Run, Spread};
use super::table::{NOT_TO_BE_QUOTED, whole};
use super::workload::{Group, Workload};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 180.0;
/// Room for the figure behind the longest bar.
const RIGHT: f64 = 170.0;
const ROW: f64 = 22.0;
const BAR: f64 = 14.0;

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #1f2328 }
.title { font-weight: bold; font-size: 13px }
.small { font-size: 11px; fill: #59636e }
.page { fill: #ffffff }
.ours { fill: #2f6f4f }
.peer { fill: #8a94a0 }
.floor { fill: #c9b458 }
.spread { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .page { fill: #0d1117 }
  .ours { fill: #4fae7d }
  .peer { fill: #6b7683 }
  .floor { fill: #a8923a }
  .spread { stroke: #e6edf3 }
}
";

/// The names and contents of the pictures of all workloads that were measured.
pub(crate) fn pictures(results: &Results) -> Vec<(String, String)> {
    let groups = [
        (Group::Uncontended, "uncontended.svg"),
        (Group::Contended, "contended.svg"),
        (Group::Processes, "processes.svg"),
        (Group::Network, "network.svg"),
        (Group::Queued, "queued.svg"),
    ];
    let mut pictures: Vec<(String, String)> = groups
        .into_iter()
        .filter_map(|(group, name)| Some((name.to_owned(), of_group(results, group)?)))
        .collect();
    if let Some(picture) = latencies(results) {
        pictures.push(("latency.svg".to_owned(), picture));
    }
    if let Some(picture) = costs(results) {
        pictures.push(("costs.svg".to_owned(), picture));
    }
    pictures
}

fn of_group(results: &Results, group: Group) -> Option<String> {
    let workloads: Vec<&Workload> =
        results.workloads.iter().filter(|workload| workload.group == group).collect();
    let mut picture = Picture::default();
    for workload in &workloads {
        let title = format!("{}: {}", workload.name, workload.what);
        picture.panel(&title, "per second", &bars(results, workload, |run| Some(run.speed)));
        if let Ok(kept) = results.figure(workload.name, ZklockKept, |run| Some(run.speed)) {
            let what = format!("beyond the scale: zklock-kept, {} per second", whole(kept.median));
            picture.note(&what);
        }
    }
    (!workloads.is_empty()).then(|| picture.finish(results.accepted_load))
}

/// What an uncontended acquisition costs the client.
fn costs(results: &Results) -> Option<String> {
    let one = results.workloads.iter().find(|workload| workload.name == "one")?;
    let mut picture = Picture::default();
    let title = "processor time of an uncontended acquisition and release";
    picture.panel(title, "µs", &bars(results, one, |run| Some(run.cost())));
    picture.panel("memory meanwhile", "MB", &bars(results, one, Run::megabytes));
    Some(picture.finish(results.accepted_load))
}

/// How long an acquisition takes, and a hand-over between processes.
fn latencies(results: &Results) -> Option<String> {
    let mut picture = Picture::default();
    let mut is_empty = true;
    for workload in results.workloads.iter().filter(|one| one.shows_latency()) {
        is_empty = false;
        let times = |run: &Run| match workload.processes {
            1 => run.acquired,
            _ => run.handed_over,
        };
        let what = if workload.processes == 1 { "an acquisition" } else { "a hand-over" };
        let title = |part| format!("{}: {what}, {part}", workload.name);
        let median = bars(results, workload, |run| Some(times(run)?.median));
        picture.panel(&title("median"), "µs", &median);
        let most = bars(results, workload, |run| Some(times(run)?.most));
        picture.panel(&title("99 %"), "µs", &most);
    }
    (!is_empty).then(|| picture.finish(results.accepted_load))
}

type Bar = (Contestant, Result<Spread, String>);

/// The bars of all contestants that were measured, or should have been; except for the kept lock,
/// beside which the other bars would be invisible.
fn bars(
    results: &Results,
    workload: &Workload,
    measure: impl Fn(&Run) -> Option<f64> + Copy,
) -> Vec<Bar> {
    let is_missing = |contestant: Contestant| {
        results
            .missing
            .iter()
            .any(|missing| missing.workload == workload.name && missing.contestant == contestant)
    };
    workload
        .contestants
        .iter()
        .copied()
        .filter(|contestant| *contestant != ZklockKept)
        .filter(|one| results.of(workload.name, *one).next().is_some() || is_missing(*one))
        .map(|contestant| (contestant, results.figure(workload.name, contestant, measure)))
        .collect()
}

#[derive(Default)]
struct Picture {
    body: String,
    y: f64,
}

impl Picture {
    fn panel(&mut self, title: &str, unit: &str, bars: &[Bar]) {
        self.y += 30.0;
        self.text(12.0, self.y, "title", "start", &format!("{title} ({unit})"));
        self.y += 8.0;
        let longest = bars
            .iter()
            .filter_map(|(_, figure)| Some(figure.as_ref().ok()?.most))
            .fold(0.0, f64::max);
        for (contestant, figure) in bars {
            self.bar(*contestant, figure, longest);
        }
    }

    fn bar(&mut self, contestant: Contestant, figure: &Result<Spread, String>, longest: f64) {
        let middle = self.y + ROW / 2.0;
        self.text(LEFT - 8.0, middle + 4.0, "", "end", contestant.name());
        match figure {
            Ok(spread) => {
                let x = |value: f64| LEFT + value / longest * (WIDTH - LEFT - RIGHT);
                let class = match contestant {
                    Curator | Kazoo | ZookeeperClient => "peer",
                    _ if contestant.is_floor() => "floor",
                    _ => "ours",
                };
                let (top, width) = (middle - BAR / 2.0, x(spread.median) - LEFT);
                let _ = writeln!(
                    self.body,
                    r#"<rect class="{class}" x="{LEFT}" y="{top:.1}" width="{width:.1}" height="{BAR}"/>"#
                );
                self.whisker(x(spread.least), x(spread.most), middle);
                let text = format!(
                    "{} ({}–{})",
                    short(spread.median),
                    short(spread.least),
                    short(spread.most)
                );
                self.text(x(spread.most) + 8.0, middle + 4.0, "", "start", &text);
            }
            Err(why) => self.text(LEFT + 4.0, middle + 4.0, "small", "start", why),
        }
        self.y += ROW;
    }

    fn whisker(&mut self, from: f64, to: f64, y: f64) {
        let (top, bottom) = (y - 3.5, y + 3.5);
        let _ = writeln!(
            self.body,
            r#"<path class="spread" d="M{from:.1} {y:.1}H{to:.1}M{from:.1} {top:.1}V{bottom:.1}M{to:.1} {top:.1}V{bottom:.1}"/>"#
        );
    }

    fn note(&mut self, text: &str) {
        self.y += 16.0;
        self.text(LEFT, self.y, "small", "start", text);
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    fn finish(mut self, accepted_load: bool) -> String {
        self.note("Bars are medians, lines the least and the greatest of all clean rounds.");
        if accepted_load {
            self.note(NOT_TO_BE_QUOTED);
        }
        let height = self.y + 16.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\">\n\
             <title>zklock beside other clients</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn short(value: f64) -> String {
    if value >= 100.0 { whole(value) } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::super::contestant::Contestant::Zklock;
    use super::super::results::tests::{results, run};
    use super::*;

    #[test]
    fn there_is_a_bar_for_who_was_measured_and_a_word_for_who_was_spoiled() {
        let mut results = results(
            (0..3)
                .flat_map(|round| [run(Zklock, round, 2500.0), run(Curator, round, 1000.0)])
                .collect(),
        );
        results.runs[1].spoiled = true;
        results.workloads.truncate(1);
        let pictures = pictures(&results);
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["uncontended.svg", "latency.svg", "costs.svg"]);
        let picture = &pictures[0].1;
        assert_eq!(picture.matches("<rect class=\"ours\"").count(), 1, "{picture}");
        assert_eq!(picture.matches("<rect class=\"peer\"").count(), 0, "{picture}");
        assert!(
            picture.contains(">spoiled<") && picture.contains("2,500 (2,500–2,500)"),
            "{picture}"
        );
        assert!(picture.contains("prefers-color-scheme: dark"));
    }
}
