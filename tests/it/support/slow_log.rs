//! Servers on a slow disk. With `ZKLOCK_TEST_LOG_DELAY_MS=15` every server of the tests takes 15 ms
//! to force its transaction log to the disk, and does so before it answers a write.
//!
//! In the server's process, a small C library replaces the calls that force a file to the disk. It
//! is compiled with the compiler that cargo links with.

use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

const VARIABLE: &str = "ZKLOCK_TEST_LOG_DELAY_MS";

const SOURCE: &str = r#"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

static int take_long(void) {
    long ms = atol(getenv("ZKLOCK_TEST_LOG_DELAY_MS"));
    struct timespec left = { ms / 1000, ms % 1000 * 1000000 };
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
    return 0;
}

int fsync(int file) { (void)file; return take_long(); }
int fdatasync(int file) { (void)file; return take_long(); }
"#;

/// Whether servers should have a slow log.
pub(super) fn is_wanted() -> bool {
    env::var_os(VARIABLE).is_some_and(|milliseconds| !milliseconds.is_empty())
}

/// Checks that servers can have a slow log, if they should.
///
/// # Errors
/// When the compiler is missing or the variable is malformed.
pub(super) fn check() -> io::Result<()> {
    if !is_wanted() {
        return Ok(());
    }
    let text = env::var(VARIABLE).unwrap_or_default();
    if text.parse::<u16>().is_err() {
        let message = format!("{VARIABLE} must be a number of milliseconds, not {text:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Command::new("cc").arg("--version").output().map(drop).map_err(|error| {
        io::Error::new(error.kind(), format!("{VARIABLE} needs a C compiler, cc: {error}"))
    })
}

/// The beginning of a server's command line that gives it a slow log; empty if it should have none.
/// The library is made in the server's directory, and deleted with it.
pub(super) fn command(directory: &Path) -> io::Result<Vec<String>> {
    if !is_wanted() {
        return Ok(Vec::new());
    }
    check()?;
    let (source, library) = (directory.join("slow_log.c"), directory.join("slow_log.so"));
    fs::write(&source, SOURCE)?;
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output()?;
    if !made.status.success() {
        let errors = String::from_utf8_lossy(&made.stderr);
        return Err(io::Error::other(format!("cc cannot make {}: {errors}", library.display())));
    }
    Ok(vec!["env".to_owned(), format!("LD_PRELOAD={}", library.display())])
}
