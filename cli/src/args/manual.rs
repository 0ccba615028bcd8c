//! The manual pages: each option is a part, also those that `-h` leaves out, and what `pages` says of the
//! rest.

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::options::Options;
use crate::exit::{Exit, Failure};

/// What pages say beside their options, by their names. A heading begins with `#`, an item of a list with
/// `-`; lines that begin with four spaces are not joined.
const MORE: [(&str, &str); 7] = [
    ("zklock", include_str!("pages/zklock.txt")),
    ("zklock-run", include_str!("pages/run.txt")),
    ("zklock-show", include_str!("pages/show.txt")),
    ("zklock-deadlocks", include_str!("pages/deadlocks.txt")),
    ("zklock-serve", include_str!("pages/serve.txt")),
    ("zklock-hold", include_str!("pages/hold.txt")),
    ("zklock-doctor", include_str!("pages/doctor.txt")),
];

/// The page of the command, or of the subcommand of these names.
pub(crate) fn page_of(names: &[String]) -> Result<Vec<u8>, Failure> {
    let definition = definition();
    let mut found = &definition;
    for name in names {
        found = found
            .find_subcommand(name)
            .ok_or_else(|| Failure::usage(format!("{:?} is no subcommand", names.join(" "))))?;
    }
    page(found.clone())
}

/// Writes a file for each page into a folder: `zklock.1`, `zklock-run.1`, …
pub(crate) fn write_all(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|why| unusable(folder, &why))?;
    let mut left = vec![definition()];
    while let Some(one) = left.pop() {
        left.extend(one.get_subcommands().filter(|one| !one.is_hide_set()).cloned());
        let file = folder.join(Man::new(one.clone()).get_filename());
        fs::write(&file, page(one)?).map_err(|why| unusable(&file, &why))?;
    }
    Ok(())
}

fn unusable(file: &Path, why: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{} cannot be written: {why}", file.display()))
}

/// The command line's definition, without what makes its help short.
fn definition() -> Command {
    let mut definition = shown(Options::command().disable_help_subcommand(true));
    // Gives each subcommand the options of all commands.
    definition.build();
    definition
}

fn shown(definition: Command) -> Command {
    definition.mut_args(|one| one.hide_short_help(false)).mut_subcommands(shown)
}

/// As clap_mangen does it, with what it does not: values in the synopsis, and tables.
fn page(mut definition: Command) -> Result<Vec<u8>, Failure> {
    let usage = definition.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let after = definition.get_after_long_help().or(definition.get_after_help());
    let after = after.map(ToString::to_string);
    let name = definition.get_display_name().unwrap_or(definition.get_name());
    let more = MORE.iter().find(|(page, _)| *page == name).map(|(_, text)| sections(text));
    let has_version = definition.get_version().is_some();
    let has_subcommands = definition.has_subcommands();
    let man = Man::new(definition).source(concat!("zklock ", env!("ZKLOCK_VERSION")));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    text.extend(as_it_is("SYNOPSIS", usage));
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    text.extend(more.unwrap_or_default().into_bytes());
    if let Some(after) = after {
        text.extend(as_it_is("EXIT CODES AND MORE", &after));
    }
    if has_version {
        man.render_version_section(&mut text)?;
    }
    Ok(text)
}

/// A section whose lines are not joined.
fn as_it_is(heading: &str, lines: &str) -> Vec<u8> {
    format!(".SH {heading:?}\n.nf\n{}.fi\n", plain(lines)).into_bytes()
}

fn sections(text: &str) -> String {
    let mut roff = String::new();
    for block in text.trim_end().split("\n\n") {
        if let Some(heading) = block.strip_prefix("# ") {
            roff += &format!(".SH {heading:?}\n");
        } else if block.starts_with("    ") {
            roff += &format!(".PP\n.nf\n{}.fi\n", plain(block));
        } else {
            roff += ".PP\n";
            for line in block.lines() {
                let item = line.strip_prefix("- ");
                roff += item.map_or("", |_| ".IP \\(bu 2\n");
                roff += &plain(item.unwrap_or(line.trim_start()));
            }
        }
    }
    roff
}

/// Lines in which nothing is an order to roff.
fn plain(lines: &str) -> String {
    let lines = lines.lines().map(|line| line.replace('\\', "\\e").replace('-', "\\-"));
    lines.map(|line| format!("\\&{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition and those of all subcommands.
    fn all() -> Vec<Command> {
        let mut all = vec![definition()];
        let mut next = 0;
        while let Some(one) = all.get(next) {
            let below: Vec<Command> = one.get_subcommands().cloned().collect();
            all.extend(below);
            next += 1;
        }
        all
    }

    /// A page without roff's escapes.
    fn text(of: Command) -> String {
        let mut text = String::from_utf8(page(of).unwrap()).unwrap();
        for (escape, plain) in [
            ("\\-", "-"),
            ("\\*(Aq", "'"),
            ("\\fB", ""),
            ("\\fI", ""),
            ("\\fR", ""),
            ("\\&", ""),
            ("\\e", "\\"),
            ("\\\\", "\\"),
        ] {
            text = text.replace(escape, plain);
        }
        text
    }

    #[test]
    fn each_page_has_each_option_with_its_text() {
        let all = all();
        assert!(all.iter().any(|one| one.get_name() == "check"), "those below token, too");
        for one in all {
            let page = text(one.clone());
            for argument in one.get_arguments() {
                let (page_name, id) = (one.get_bin_name(), argument.get_id());
                let name = argument.get_long().map(|long| format!("--{long}"));
                assert!(page.contains(&name.unwrap_or_default()), "{page_name:?} {id}:\n{page}");
                let help = argument.get_long_help().or(argument.get_help());
                let help = help.map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty() || argument.is_positional(), "{page_name:?} {id}");
                for line in help.lines() {
                    assert!(page.contains(line), "{page_name:?} {id}: {line}\n{page}");
                }
            }
        }
    }

    #[test]
    fn a_page_says_what_is_beside_its_options() {
        for (name, more) in MORE {
            let page = all()
                .into_iter()
                .find(|one| one.get_display_name().unwrap_or(one.get_name()) == name);
            let page = text(page.unwrap_or_else(|| panic!("no page {name}")));
            for line in more.lines().filter(|line| !line.is_empty()) {
                let line = line.trim_start_matches("# ").trim_start_matches("- ").trim_start();
                assert!(page.contains(line), "{name}: {line}\n{page}");
            }
        }
        let run = text(all().into_iter().find(|one| one.get_name() == "run").unwrap());
        for part in [
            "\n.SH \"FROM CRON\"\n.PP\n.IP \\(bu 2\nWith -w and",
            "\n.PP\n.nf\n    zklock run -w 6h",
        ] {
            assert!(run.contains(part), "{part}\n{run}");
        }
    }

    #[test]
    fn a_page_says_how_to_call_it_and_what_it_exits_with() {
        let run = text(all().into_iter().find(|one| one.get_name() == "run").unwrap());
        assert!(
            run.contains(".SH \"SYNOPSIS\"\n.nf\nzklock run [OPTIONS] <LOCK> <COMMAND>..."),
            "{run}"
        );
        assert!(
            run.contains(
                "\n124 others hold it, 69 no server (not run), 77 not permitted, 64 wrong usage,"
            ),
            "{run}"
        );
    }
}
