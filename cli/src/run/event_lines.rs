//! The events of a run, as lines of JSON for programs: `--events`.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use filedescriptor::FileDescriptor;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::{Value, json};
use zklock::Event;

use crate::exit::Failure;
use crate::output::BackgroundWriter;

/// Where the events go; nowhere by default.
#[derive(Clone)]
pub(crate) struct Events {
    writer: Option<BackgroundWriter>,
    lock: Arc<str>,
}

impl Events {
    pub(crate) fn to(target: Option<File>, lock: &str) -> io::Result<Events> {
        let writer =
            target.map(|file| BackgroundWriter::start("zklock-events", file)).transpose()?;
        Ok(Events { writer, lock: lock.into() })
    }

    /// Writes an event with these fields.
    pub(crate) fn write(&self, event: &str, fields: &Value) {
        let Some(writer) = &self.writer else { return };
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let mut line = json!({ "time": time, "event": event, "lock": &*self.lock });
        if let (Some(line), Some(fields)) = (line.as_object_mut(), fields.as_object()) {
            line.extend(fields.clone());
        }
        writer.write(format!("{line}\n"));
    }

    /// Waits until everything is written, if somebody reads it.
    pub(crate) fn flush(&self) {
        if let Some(writer) = &self.writer {
            writer.flush();
        }
    }

    /// Writes what the library reports, as far as it is about the session and this wait.
    pub(crate) fn library(&self, event: &Event) {
        let milliseconds =
            |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match event {
            Event::Connected { session, timeout, server, .. } => self.write(
                "connected",
                &json!({
                    "session": session.map(|id| id.to_string()),
                    "session_timeout_ms": timeout.map(milliseconds),
                    "server": server.map(|server| server.to_string()),
                }),
            ),
            Event::Suspended { lease_left, .. } => {
                self.write("suspended", &json!({ "lease_left_ms": lease_left.map(milliseconds) }));
            }
            Event::Resumed { outage, .. } => {
                self.write("resumed", &json!({ "outage_ms": milliseconds(*outage) }));
            }
            Event::Waiting { ahead, holder, .. } => {
                self.write("waiting", &json!({ "ahead": ahead, "holder": holder }));
            }
            Event::WaitingForForeign { node, session, age, data, .. } => self.write(
                "waiting_for_foreign",
                &json!({
                    "node": node,
                    "session": session.map(|id| id.to_string()),
                    "age_ms": age.map(milliseconds),
                    "data": data,
                }),
            ),
            Event::Acquired { waited, token, .. } => self.write(
                "acquired",
                &json!({ "waited_ms": milliseconds(*waited), "token": token.to_string() }),
            ),
            Event::HoldLost { reason, details, .. } => {
                self.write("lost", &json!({ "reason": reason.to_string(), "details": details }));
            }
            Event::Released { held, .. } => {
                self.write("released", &json!({ "held_ms": milliseconds(*held) }));
            }
            _ => {}
        }
    }
}

/// A file, or a descriptor that zklock was given: that one itself, and not its file once more, which would
/// have another position, and which a socket has not.
pub(crate) fn open(target: &Path) -> Result<File, Failure> {
    let number = target.to_str().and_then(|text| text.parse::<u16>().ok());
    let opened = match number {
        Some(number) => descriptor(number.into()),
        None => file(target),
    };
    opened.map_err(|why| Failure::usage(format!("--events {}: {why}", target.display())))
}

fn descriptor(number: RawFd) -> io::Result<File> {
    let cannot = |why: filedescriptor::Error| match why.source() {
        Some(why) => io::Error::other(why.to_string()),
        None => io::Error::other(why),
    };
    let file = FileDescriptor::dup(&number).and_then(|one| one.as_file()).map_err(cannot)?;
    let flags = OFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GETFL)?);
    match flags & OFlag::O_ACCMODE {
        OFlag::O_RDONLY => Err(io::Error::other("that descriptor is only open for reading")),
        _ => Ok(file),
    }
}

/// A named pipe that nobody reads is an error: nobody waits for a reader.
fn file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).map_err(|why| match why.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENXIO) => io::Error::other("nobody reads it"),
        _ => why,
    })?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}
