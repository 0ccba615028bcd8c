//! Connect strings, states, closing, credentials, and what a client costs.

mod connect_strings;
mod costs;
mod credentials;
mod session;

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use zklock::Client;

use crate::support::mutex;
use crate::support::site::Site;

const LONG: Duration = Duration::from_secs(15);
/// How late an answer may be.
const OVERSHOOT: Duration = Duration::from_millis(100);

/// A server that is not ZooKeeper: it runs `serve` on each connection, on a thread of its own.
struct Impostor {
    address: SocketAddr,
    visits: Arc<AtomicUsize>,
    closing: mpsc::Sender<()>,
    acceptor: Option<thread::JoinHandle<()>>,
}

impl Impostor {
    fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Impostor {
        Impostor::at("127.0.0.1:0", serve).expect("a port")
    }

    fn at(
        address: &str,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> std::io::Result<Impostor> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let visits = Arc::new(AtomicUsize::new(0));
        let (closing, closed) = mpsc::channel::<()>();
        let (seen, serve) = (Arc::clone(&visits), Arc::new(serve));
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming() {
                if closed.try_recv().is_ok() {
                    return;
                }
                let Ok(stream) = stream else { continue };
                seen.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                thread::spawn(move || serve(stream));
            }
        });
        Ok(Impostor { address, visits, closing, acceptor: Some(acceptor) })
    }

    /// Passes everything on to a real server.
    fn forwarding(address: &str, target: SocketAddr) -> std::io::Result<Impostor> {
        Impostor::at(address, move |client| {
            let server = TcpStream::connect(target).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pump(back.0, back.1));
            pump(client, server);
        })
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.closing.send(());
        let _ = TcpStream::connect(self.address);
        let _ = self.acceptor.take().unwrap().join();
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Reads until the other side closes the connection.
fn keep_silent(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

fn works(zk: &Client, site: &Site) {
    let guard = mutex(zk, &site.base, "works").lock().unwrap();
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
}

fn sessions(site: &Site) -> u64 {
    site.server().sessions()
}
