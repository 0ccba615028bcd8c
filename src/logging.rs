//! The only way to the program's log. A logger may panic, for example when it prints to a pipe that
//! is no longer read; that must end neither a session nor a call.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Writes a line, and survives a panic of the logger.
pub(crate) fn write(line: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(line));
}

/// Whether the program wants such lines. Costs next to nothing if no target has this level.
pub(crate) fn is_on(level: log::Level, target: &str) -> bool {
    let asks = || log::log_enabled!(target: target, level);
    level <= log::max_level() && catch_unwind(AssertUnwindSafe(asks)).unwrap_or(false)
}

macro_rules! line {
    ($level:expr, target: $target:expr, $($text:tt)+) => {
        $crate::logging::write(|| ::log::log!(target: $target, $level, $($text)+))
    };
}

macro_rules! error {
    ($($line:tt)+) => { $crate::logging::line!(::log::Level::Error, $($line)+) };
}

macro_rules! warning {
    ($($line:tt)+) => { $crate::logging::line!(::log::Level::Warn, $($line)+) };
}

macro_rules! info {
    ($($line:tt)+) => { $crate::logging::line!(::log::Level::Info, $($line)+) };
}

pub(crate) use {error, info, line, warning};
