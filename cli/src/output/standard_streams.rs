//! What zklock writes on standard output and standard error: results, messages and JSON.

use std::io::{ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::background_writer::BackgroundWriter;
use crate::exit::{Exit, Failure};
use crate::words::visible;

static QUIET: AtomicBool = AtomicBool::new(false);

static BACKGROUND: OnceLock<BackgroundWriter> = OnceLock::new();

/// From now on, nobody waits for a reader of standard error.
pub(crate) fn write_in_background() -> std::io::Result<()> {
    let writer = BackgroundWriter::start("zklock-output", std::io::stderr())?;
    let _ = BACKGROUND.set(writer);
    Ok(())
}

/// Waits until everything is written, if somebody reads it.
pub(crate) fn flush() {
    if let Some(writer) = BACKGROUND.get() {
        writer.flush();
    }
}

/// From now on, only failures are said.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Says something on standard error.
pub(crate) fn say(subject: &str, message: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        complain(subject, message);
    }
}

/// Says on standard error what went wrong.
pub(crate) fn complain(subject: &str, message: &str) {
    let line = match subject {
        "" => format!("zklock: {message}\n"),
        _ => format!("zklock: {subject}: {message}\n"),
    };
    write(line, BackgroundWriter::write);
}

/// Says what the library logs.
pub(crate) fn log(message: &str) {
    write(format!("zklock: {message}\n"), BackgroundWriter::write_minor);
}

fn write(line: String, in_background: impl Fn(&BackgroundWriter, String)) {
    match BACKGROUND.get() {
        Some(writer) => in_background(writer, line),
        // One write, so that lines of several processes do not mix. Nobody is left to tell of an error.
        None => drop(std::io::stderr().lock().write_all(line.as_bytes())),
    }
}

/// Prints a result. False if nobody reads any more, as in `zklock watch x | head`; an error if it cannot be
/// written, as on a full disk.
pub(crate) fn print(line: &str) -> Result<bool, Failure> {
    let cells: Vec<String> = line.split('\t').map(visible).collect();
    print_text(format!("{}\n", cells.join("\t")).as_bytes())
}

/// Prints a result for programs, as `print` does.
pub(crate) fn print_json(result: &Value) -> Result<bool, Failure> {
    print_text(format!("{result}\n").as_bytes())
}

/// Prints this text as it is, as `print` does.
pub(crate) fn print_text(text: &[u8]) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(Exit::Failed, format!("standard output: {error}"))),
    }
}
