//! Tables: aligned on a terminal, lines with tabs for programs.

use std::io::IsTerminal;

use super::standard_streams::print;
use crate::exit::Failure;
use crate::words::visible;

/// The least width that a column is cut to.
const LEAST: usize = 12;

/// Prints rows below their headings. False if nobody reads any more.
///
/// If they are too wide for the terminal, the columns `give_way` are cut in this order, and no others.
pub(crate) fn print_table(
    headings: &[&str],
    rows: &[Vec<String>],
    give_way: &[usize],
) -> Result<bool, Failure> {
    let lines = match std::io::stdout().is_terminal() {
        true => aligned(headings, rows, terminal_size().0, give_way),
        false => rows.iter().map(|row| with_tabs(row)).collect(),
    };
    for line in lines {
        if !print(&line)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn with_tabs(row: &[String]) -> String {
    row.iter().map(|cell| visible(cell)).collect::<Vec<_>>().join("\t")
}

/// The terminal's width and height.
pub(crate) fn terminal_size() -> (usize, usize) {
    let told = terminal_size::terminal_size();
    told.map_or((80, 24), |(width, height)| (usize::from(width.0).max(40), usize::from(height.0)))
}

/// The lines of a table of this width.
pub(crate) fn aligned(
    headings: &[&str],
    rows: &[Vec<String>],
    width: usize,
    give_way: &[usize],
) -> Vec<String> {
    let heading = headings.iter().map(|one| (*one).to_owned()).collect();
    let visible_row = |row: &Vec<String>| row.iter().map(|cell| visible(cell)).collect();
    let all: Vec<Vec<String>> =
        std::iter::once(heading).chain(rows.iter().map(visible_row)).collect();
    let widest = |column: usize| {
        let cells = all.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..headings.len()).map(widest).collect();
    let mut excess =
        (widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)).saturating_sub(width);
    for column in give_way {
        let less = excess.min(widths[*column].saturating_sub(LEAST));
        (widths[*column], excess) = (widths[*column] - less, excess - less);
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{:<width$}", cut(cell, *width)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all.iter().map(line).collect()
}

/// Paths are cut at their beginning, as their ends tell them apart.
fn cut(cell: &str, width: usize) -> String {
    let (length, kept) = (cell.chars().count(), width.saturating_sub(1));
    match cell.starts_with('/') {
        _ if length <= width => cell.to_owned(),
        true => ['\u{2026}'].into_iter().chain(cell.chars().skip(length - kept)).collect(),
        false => cell.chars().take(kept).chain(['\u{2026}']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_cut() {
        let row = ["/locks/nightly", "web1 (pid 4711, a-very-long-name-of-a-program)", "2"];
        let rows = [row.map(str::to_owned).to_vec()];
        let wide = aligned(&["LOCK", "HELD BY", "WAITING"], &rows, 200, &[1]);
        assert_eq!(
            wide[0],
            "LOCK            HELD BY                                         WAITING"
        );
        assert_eq!(wide[1], "/locks/nightly  web1 (pid 4711, a-very-long-name-of-a-program)  2");
        let at_width = |width, give_way: &[usize]| {
            aligned(&["LOCK", "HELD BY", "WAITING"], &rows, width, give_way)[1].clone()
        };
        assert_eq!(at_width(50, &[1, 0]), "/locks/nightly  web1 (pid 4711, a-very-l\u{2026}  2");
        assert_eq!(
            at_width(60, &[0, 1]),
            "\u{2026}cks/nightly  web1 (pid 4711, a-very-long-name-of-\u{2026}  2"
        );
        assert_eq!(at_width(20, &[1]), "/locks/nightly  web1 (pid 4\u{2026}  2");
    }
}
