//! What is written to standard output and standard error, and what becomes of it when nobody reads.

mod background_writer;
mod log_lines;
mod standard_streams;
mod table;

#[cfg(target_os = "linux")]
pub(crate) use self::background_writer::BackgroundWriter;
pub(crate) use self::log_lines::show as show_log;
#[cfg(target_os = "linux")]
pub(crate) use self::standard_streams::write_in_background;
pub(crate) use self::standard_streams::{
    be_quiet, complain, flush, print, print_json, print_text, say,
};
pub(crate) use self::table::{aligned, print_table, terminal_size};
