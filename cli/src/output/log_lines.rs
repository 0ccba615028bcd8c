//! What the library logs, on standard error.

use log::{LevelFilter, Log, Metadata, Record};

use super::standard_streams;

struct Lines;

/// Shows what the library logs: nothing, what happens, or everything.
pub(crate) fn show(verbosity: u8) {
    let level = match verbosity {
        0 => return,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    if log::set_logger(&Lines).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        standard_streams::log(&record.args().to_string());
    }

    fn flush(&self) {}
}
