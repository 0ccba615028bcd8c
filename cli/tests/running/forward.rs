//! A network between zklock and its server that falls silent at a certain request.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Passes on what clients and the server say, until a client asks what it waits for; then nothing more.
pub(crate) struct Forward {
    pub(crate) hosts: String,
    silent: Receiver<()>,
}

impl Forward {
    pub(crate) fn start(to: &str, ends: impl Fn(&[u8]) -> bool + Send + 'static) -> Forward {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let hosts = listener.local_addr().unwrap().to_string();
        let (tell, silent) = channel();
        let to = to.to_owned();
        thread::spawn(move || {
            let mut kept = Vec::new();
            for client in listener.incoming().flatten() {
                if pass(&client, &to, &ends, &tell) {
                    // Later ones get no answer, either.
                    let later = listener.incoming().flatten();
                    kept.push(client);
                    kept.extend(later);
                }
            }
        });
        Forward { hosts, silent }
    }

    /// Waits for that request.
    pub(crate) fn until_silent(&self) {
        self.silent.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

/// True if the connection has fallen silent, and false if it has ended.
fn pass(client: &TcpStream, to: &str, ends: &dyn Fn(&[u8]) -> bool, tell: &Sender<()>) -> bool {
    let server = TcpStream::connect(to).unwrap();
    let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let is_silent = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&is_silent);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut back);
        if !is_over.load(Ordering::SeqCst) {
            let _ = back.shutdown(Shutdown::Both);
        }
    });
    let (mut client, mut server, mut bytes) = (client, &server, [0; 4096]);
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        if ends(&bytes[..count]) {
            is_silent.store(true, Ordering::SeqCst);
            let _ = tell.send(());
            return true;
        }
        let _ = server.write_all(&bytes[..count]);
    }
    let _ = server.shutdown(Shutdown::Both);
    false
}

pub(crate) fn has(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|part| part == words)
}
