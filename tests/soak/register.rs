//! The fenced register: the resource that the locks protect. It refuses what a former holder sends
//! late.
//!
//! For each lock it remembers the highest token and refuses lower ones. It writes its own history,
//! in the order of its decisions.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use zklock::FencingToken;

use super::history::Journal;

/// Starts the register, which ends with the process.
pub(crate) fn start(socket: &Path, history: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let register =
        Arc::new(Register { highest: Mutex::default(), journal: Journal::create(history)? });
    thread::Builder::new().name("register".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let register = Arc::clone(&register);
            thread::spawn(move || register.serve(&stream));
        }
    })?;
    Ok(())
}

struct Register {
    highest: Mutex<HashMap<String, FencingToken>>,
    journal: Journal,
}

impl Register {
    /// Answers a worker's thread until that disconnects.
    fn serve(&self, stream: &UnixStream) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let [lock, token, who] = line.split(' ').collect::<Vec<_>>()[..] else { return };
            let Ok(token) = token.parse() else { return };
            let answer = if self.accept(lock, token, who) { "accepted\n" } else { "refused\n" };
            let mut stream = stream;
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn accept(&self, lock: &str, token: FencingToken, who: &str) -> bool {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = highest.get(lock).is_none_or(|highest| token >= *highest);
        if accepted {
            highest.insert(lock.to_owned(), token);
        }
        let verdict = if accepted { "accepted" } else { "refused" };
        // Under the mutex, so that the lines are in the order of the decisions.
        self.journal.note(who, format_args!("{verdict} {lock} {token}"));
        accepted
    }
}

/// A worker thread's connection to the register.
pub(crate) struct Writer {
    stream: BufReader<UnixStream>,
}

impl Writer {
    pub(crate) fn connect(socket: &Path) -> io::Result<Writer> {
        Ok(Writer { stream: BufReader::new(UnixStream::connect(socket)?) })
    }

    /// Writes with a token, and returns whether the register accepted it.
    pub(crate) fn write(
        &mut self,
        lock: &str,
        token: FencingToken,
        who: impl std::fmt::Display,
    ) -> io::Result<bool> {
        let request = format!("{lock} {token} {who}\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer)?;
        match answer.as_str() {
            "accepted\n" => Ok(true),
            "refused\n" => Ok(false),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
