//! A network between clients and a server: a proxy on the loopback that keeps all bytes back for a
//! time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Listens on the loopback, and passes all connections on to `server`, each byte after `one_way`.
/// Returns its address. It lasts as long as this program.
pub(crate) fn between(server: &str, one_way: Duration) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, server) = (listener.local_addr()?.to_string(), server.to_owned());
    thread::spawn(move || {
        for client in listener.incoming().map_while(io::Result::ok) {
            // A client whose connection is closed at once says so.
            let _ = TcpStream::connect(&server).and_then(|server| join(&client, &server, one_way));
        }
    });
    Ok(address)
}

fn join(client: &TcpStream, server: &TcpStream, one_way: Duration) -> io::Result<()> {
    for (from, to) in [(client, server), (server, client)] {
        to.set_nodelay(true)?;
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        let (keep, kept) = mpsc::channel::<(Instant, Vec<u8>)>();
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                let due = Instant::now() + one_way;
                if keep.send((due, buffer[..length].to_vec())).is_err() {
                    break;
                }
            }
        });
        thread::spawn(move || {
            for (due, bytes) in kept {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
