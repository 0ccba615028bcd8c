//! Settings in files: below the environment, which is below the command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap::{Arg, Command, CommandFactory};

use super::options::Options;
use crate::exit::Failure;

/// The command line's definition, with defaults from the files.
pub(crate) fn definition() -> Result<Command, Failure> {
    let of_machine = PathBuf::from("/etc/zklock.toml");
    let folder = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|one| one.is_absolute());
    let folder = folder.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".config")));
    let mut definition = Options::command();
    for file in [Some(of_machine), folder.map(|folder| folder.join("zklock.toml"))] {
        let Some(file) = file.filter(|file| file.is_absolute()) else { continue };
        match fs::read_to_string(&file) {
            Ok(text) => definition = with_defaults(definition, &file, &text)?,
            Err(error) if is_out_of_reach(&error, &file) => {}
            Err(error) => return Err(unusable(&file, &error.to_string())),
        }
    }
    definition.build();
    // A line above the list of commands says what it does.
    let definition = definition.mut_subcommand("help", |one| one.hide(true));
    Ok(with_whole_usage(definition))
}

/// In an error, clap's own usage line names the options that the environment has set, and no others.
fn with_whole_usage(mut definition: Command) -> Command {
    let names: Vec<_> = definition.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    for name in names {
        definition = definition.mut_subcommand(name, with_whole_usage);
    }
    let usage = definition.render_usage().to_string();
    match usage.strip_prefix("Usage: ") {
        Some(usage) => definition.override_usage(usage.to_owned()),
        None => definition,
    }
}

/// Whether that is no file of this user's: daemons often have the home of another one, or none.
fn is_out_of_reach(error: &io::Error, file: &Path) -> bool {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => true,
        io::ErrorKind::PermissionDenied => {
            file.parent().is_some_and(|one| fs::read_dir(one).is_err())
        }
        _ => false,
    }
}

fn with_defaults(mut definition: Command, file: &Path, text: &str) -> Result<Command, Failure> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| unusable(file, error.message()))?;
    for (key, value) in table {
        // Options that the environment sets can be set by a file, too.
        let settings = definition.get_arguments().filter(|one| one.get_env().is_some());
        let known: Vec<&str> = settings.filter_map(Arg::get_long).collect();
        if !known.contains(&key.as_str()) {
            let text = format!("{key:?} is no setting; these are: {}", known.join(", "));
            return Err(unusable(file, &text));
        }
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Boolean(value) => value.to_string(),
            other => {
                let message = format!("{key} is {}, and not a text in quotes", other.type_str());
                return Err(unusable(file, &message));
            }
        };
        definition = definition
            .mut_arg(key.replace('-', "_"), |one| one.default_value(OsString::from(value)));
    }
    Ok(definition)
}

fn unusable(file: &Path, why: &str) -> Failure {
    Failure::usage(format!("{}: {why}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use clap::FromArgMatches;

    fn parsed(text: &str, arguments: &[&str]) -> Options {
        let definition = with_defaults(Options::command(), Path::new("f"), text).unwrap();
        let matches = definition.get_matches_from([&["zklock"], arguments].concat());
        Options::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn a_file_sets_what_the_command_line_does_not() {
        let text = "hosts = \"zk9:1\"\nsession-timeout = \"7s\"\ntick-time = \"2s\"\ntls = true\n";
        let options = parsed(text, &["ls"]);
        assert_eq!(options.global.session_timeout.as_secs(), 7);
        assert_eq!(options.global.tick_time, Some(Duration::from_secs(2)));
        assert!(options.global.tls);
        assert_eq!(
            parsed(text, &["ls", "--session-timeout", "9s"]).global.session_timeout.as_secs(),
            9
        );
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, named) in [("hots = \"x\"", "hots"), ("hosts = 3", "hosts"), ("=", "f: ")] {
            let failure = with_defaults(Options::command(), Path::new("f"), text).unwrap_err();
            assert!(failure.message.contains(named), "{}", failure.message);
        }
    }
}
