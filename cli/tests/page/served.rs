//! The page, served with a `/locks.json` that a test sets.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::replies::written;

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
                      frame-ancestors 'none'";

/// What `/locks.json` is answered with.
pub(crate) enum Answer {
    /// A reply, whose `now` is then; and so are its snapshot's `taken_at` and its session's `since`, if they are null.
    Reply(Value),
    Status(u16),
    Text(&'static str),
    /// The connection is closed without an answer.
    Nothing,
    /// The connection stays open without an answer.
    Silence,
}

struct Shared {
    answer: Mutex<Answer>,
    paths: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

pub(crate) struct Served {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

impl Served {
    pub(crate) fn start(answer: Answer) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answer: Mutex::new(answer),
            paths: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let of_server = Arc::clone(&shared);
        let server = thread::spawn(move || {
            for connection in listener.incoming() {
                if of_server.is_over.load(Ordering::SeqCst) {
                    break;
                }
                let of_connection = Arc::clone(&of_server);
                // A browser opens connections in advance, and sends nothing by some of them.
                thread::spawn(move || connection.map(|open| of_connection.serve(&open)));
            }
        });
        Served { address, shared, server: Some(server) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.shared.answer.lock().unwrap() = answer;
    }

    /// The paths that were asked for.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.shared.paths.lock().unwrap().clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

impl Shared {
    fn serve(&self, connection: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
        let request = lines.next()?;
        lines.find(String::is_empty)?;
        let path = request.split(' ').nth(1)?.to_owned();
        self.paths.lock().unwrap().push(path.clone());
        let (status, kind, body) = match path.as_str() {
            "/" => (
                200,
                "text/html; charset=utf-8",
                include_str!("../../src/serve/http/page.html").to_owned(),
            ),
            "/page.css" => (
                200,
                "text/css; charset=utf-8",
                include_str!("../../src/serve/http/page.css").to_owned(),
            ),
            "/page.js" => (
                200,
                "text/javascript; charset=utf-8",
                include_str!("../../src/serve/http/page.js").to_owned(),
            ),
            "/healthz" => (200, "application/json", "{}".to_owned()),
            "/locks.json" => match &*self.answer.lock().unwrap() {
                Answer::Reply(reply) => {
                    (200, "application/json", stamped(reply.clone()).to_string())
                }
                Answer::Status(status) => (*status, "text/plain", String::new()),
                Answer::Text(text) => (200, "application/json", (*text).to_owned()),
                Answer::Nothing => return None,
                Answer::Silence => (0, "", String::new()),
            },
            _ => (404, "text/plain", String::new()),
        };
        if status == 0 {
            // Until the browser gives up.
            return lines.next().map(drop);
        }
        let head = format!(
            "HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Content-Security-Policy: {POLICY}\r\n\r\n",
            body.len()
        );
        let mut connection = connection;
        connection.write_all(head.as_bytes()).ok()?;
        connection.write_all(body.as_bytes()).ok()
    }
}

fn stamped(mut reply: Value) -> Value {
    let now = written(SystemTime::now());
    if reply["snapshot"].is_object() && reply["snapshot"]["taken_at"].is_null() {
        reply["snapshot"]["taken_at"] = json!(now);
    }
    if reply["ensemble"]["since"].is_null() {
        reply["ensemble"]["since"] = json!(now);
    }
    reply["now"] = json!(now);
    reply
}
