//! Pausing another process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::Result;

/// The process goes on when the shell's standard input ends, in whatever way we end: a paused
/// process that nobody knows of any more would stay for ever.
const SHELL: &str = r#"
trap '' HUP INT TERM
kill -STOP "$1" && echo paused
read -r _
kill -CONT "$1"
"#;

/// A child process that stands still (`SIGSTOP`); dropped, it lets it go on (`SIGCONT`).
#[derive(Debug)]
#[must_use = "if unused the process goes on at once"]
pub(crate) struct Paused {
    shell: Child,
}

impl Paused {
    pub(crate) fn new(process: &Child) -> Result<Paused> {
        let shell = Command::new("sh")
            .args(["-c", SHELL, "pause", &process.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut paused = Paused { shell };
        let output = paused.shell.stdout.take().ok_or("no pipe from the shell")?;
        match BufReader::new(output).lines().next().transpose()?.as_deref() {
            Some("paused") => Ok(paused),
            _ => Err(format!("process {} could not be paused", process.id()).into()),
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // It closes the shell's input first.
        let _ = self.shell.wait();
    }
}
