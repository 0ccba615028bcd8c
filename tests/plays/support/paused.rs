//! Pausing another process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::Result;

/// The shell continues the process when its standard input ends, however this program ends.
/// Otherwise a paused process could stay for ever.
const SHELL: &str = r#"
trap '' HUP INT TERM
kill -STOP "$1" && echo paused
read -r _
kill -CONT "$1"
"#;

/// A child process that is paused (`SIGSTOP`) until this is dropped (`SIGCONT`).
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
            _ => Err(format!("cannot pause process {}", process.id()).into()),
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // This closes the shell's input first, at which the shell continues the process.
        let _ = self.shell.wait();
    }
}
