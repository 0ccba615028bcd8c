//! Lines for somebody who may not read them: a thread of their own writes them, so that nobody else waits.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// More lines than this, unwritten, are dropped.
const MOST_LINES: usize = 1024;

/// There is more room for what matters: less than that is taken by the rest.
const MOST_MINOR_LINES: usize = 512;

/// How long a reader who does not read may hold up the end of zklock.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Writes lines in the background.
#[derive(Clone, Debug)]
pub(crate) struct BackgroundWriter {
    pieces: SyncSender<Piece>,
    unwritten: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Piece {
    Line(Vec<u8>),
    /// Told when everything before it is written.
    Mark(SyncSender<()>),
}

impl BackgroundWriter {
    /// Starts the thread, with this name; it ends with the last clone of this.
    pub(crate) fn start(
        name: &str,
        mut to: impl Write + Send + 'static,
    ) -> io::Result<BackgroundWriter> {
        let (sender, pieces) = sync_channel(MOST_LINES);
        let unwritten = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&unwritten);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            for piece in pieces {
                match piece {
                    // One write, so that lines of several processes do not mix. A full disk, or a reader that
                    // has gone, must not disturb the command.
                    Piece::Line(line) => drop(to.write_all(&line)),
                    Piece::Mark(mark) => drop(mark.try_send(())),
                }
                written.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(BackgroundWriter { pieces: sender, unwritten })
    }

    /// Writes a line, without waiting.
    pub(crate) fn write(&self, line: String) {
        self.send(Piece::Line(line.into_bytes()));
    }

    /// Writes a line that matters less than others.
    pub(crate) fn write_minor(&self, line: String) {
        if self.unwritten.load(Ordering::Relaxed) < MOST_MINOR_LINES {
            self.write(line);
        }
    }

    /// Waits until all is written, if somebody reads it.
    pub(crate) fn flush(&self) {
        let (mark, written) = sync_channel(1);
        if self.send(Piece::Mark(mark)) {
            let _ = written.recv_timeout(FLUSH_LIMIT);
        }
    }

    fn send(&self, piece: Piece) -> bool {
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        let is_sent = self.pieces.try_send(piece).is_ok();
        if !is_sent {
            self.unwritten.fetch_sub(1, Ordering::Relaxed);
        }
        is_sent
    }
}
