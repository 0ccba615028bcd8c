//! Servers that send wrong or hostile bytes.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use log::LevelFilter;
use zklock::{Client, ErrorKind, Event, LockGuard, SessionState};

use crate::support::logs::{Logs, logs};
use crate::support::proxy::opcode;
use crate::support::server::free_port;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    alone, eventually, in_background, is_unanswered, mutex, skip_before, skip_without_server,
    skip_without_zookeeper,
};

const LONG: Duration = Duration::from_secs(15);
const WATCH: i32 = -1;
const PING: i32 = -2;
const AUTH: i32 = -4;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ----- warnings and panics of this process

/// Collects warnings, and panics of the library's threads and those of the crate's handle.
struct Witness {
    logs: &'static Logs,
    panics: Mutex<Vec<String>>,
}

/// Starts to collect. If tests share a process, this includes what other tests cause.
fn witness() -> &'static Witness {
    static WITNESS: OnceLock<&'static Witness> = OnceLock::new();
    WITNESS.get_or_init(|| {
        let witness: &'static Witness = Box::leak(Box::new(Witness {
            logs: logs(LevelFilter::Warn),
            panics: Mutex::new(Vec::new()),
        }));
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = thread::current();
            let name = thread.name().unwrap_or_default();
            if name.starts_with("zklock-") || matches!(name, "io" | "event") {
                lock(&witness.panics).push(format!("{name}: {panic}"));
            }
            before(panic);
        }));
        witness
    })
}

impl Witness {
    /// Waits until this was warned of: lines of the link are written by a thread of their own.
    fn wait_for_warning(&self, part: &str) {
        // If tests share a process, another test may have set another logger first.
        eventually(LONG, part, || {
            !alone() || self.logs.warnings().iter().any(|warning| warning.contains(part))
        });
    }

    fn assert_calm(&self) {
        assert_eq!(*lock(&self.panics), Vec::<String>::new());
    }
}

/// The most memory that this process has ever had, in bytes.
fn peak_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("a /proc file system");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number");
    kilobytes * 1024
}

// ----- a server that lies

/// What the server sends instead of one reply or one handshake.
enum Lie {
    /// These bytes; the connection stays open.
    Say(Vec<u8>),
    /// These bytes, and then nothing more; the connection stays open.
    SayAndHush(Vec<u8>),
    /// These bytes; then the connection is closed.
    SayAndClose(Vec<u8>),
    /// The true reply in single bytes, and so on for everything later on the connection.
    Dribble,
    /// These bytes, repeated this often: a frame that never ends.
    Flood(Vec<u8>, usize),
}

/// Makes a lie from a true reply, which is given without its length.
type MakeLie = Box<dyn Fn(&[u8]) -> Lie + Send>;

/// Which reply a lie replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// The first reply on a connection.
    Handshake,
    /// The reply to the next request of this kind.
    Request(i32),
    /// The next event of a watch.
    Event,
}

#[derive(Default)]
struct Lies {
    queue: Mutex<VecDeque<(About, MakeLie)>>,
    connections: AtomicUsize,
    closing: AtomicBool,
}

/// Stands between a client and a real server, and sends the lies it is given, one each time, in
/// order. Without lies it is a proxy.
struct Liar {
    address: SocketAddr,
    lies: Arc<Lies>,
}

impl Liar {
    fn before(target: SocketAddr) -> Liar {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).expect("a port");
        let address = listener.local_addr().expect("an address");
        let lies = Arc::new(Lies::default());
        let told = Arc::clone(&lies);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if told.closing.load(Ordering::SeqCst) {
                    return;
                }
                told.connections.fetch_add(1, Ordering::SeqCst);
                let lies = Arc::clone(&told);
                thread::spawn(move || lies.serve(client, target));
            }
        });
        Liar { address, lies }
    }

    fn hosts(&self) -> String {
        self.address.to_string()
    }

    fn tell(&self, about: About, lie: impl Fn(&[u8]) -> Lie + Send + 'static) {
        lock(&self.lies.queue).push_back((about, Box::new(lie)));
    }

    fn has_told_all(&self) -> bool {
        lock(&self.lies.queue).is_empty()
    }

    /// Forwards everything unchanged from now on; returns how many lies were left.
    fn forget(&self) -> usize {
        std::mem::take(&mut *lock(&self.lies.queue)).len()
    }

    fn connections(&self) -> usize {
        self.lies.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.lies.closing.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

impl Lies {
    fn next(&self, about: About) -> Option<MakeLie> {
        let mut queue = lock(&self.queue);
        if queue.front()?.0 != about {
            return None;
        }
        queue.pop_front().map(|(_, lie)| lie)
    }

    fn serve(&self, client: TcpStream, target: SocketAddr) {
        let Ok(server) = TcpStream::connect(target) else { return };
        let asked = Arc::new(Mutex::new(HashMap::new()));
        let known = Arc::clone(&asked);
        let (Ok(from), Ok(mut to)) = (client.try_clone(), server.try_clone()) else { return };
        let requests = thread::spawn(move || {
            let mut from = from;
            let mut first = true;
            while let Ok(frame) = read_frame(&mut from) {
                if !std::mem::take(&mut first) {
                    lock(&known).insert(int(&frame, 0), int(&frame, 4));
                }
                if to.write_all(&with_length(&frame)).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        self.reply(&client, server, &asked);
        let _ = client.shutdown(Shutdown::Both);
        let _ = requests.join();
    }

    fn reply(
        &self,
        mut client: &TcpStream,
        mut server: TcpStream,
        asked: &Mutex<HashMap<i32, i32>>,
    ) {
        client.set_nodelay(true).expect("a socket");
        let (mut about, mut dribbling, mut hushed) = (Some(About::Handshake), false, false);
        while let Ok(frame) = read_frame(&mut server) {
            let about = about.take().or_else(|| {
                let xid = int(&frame, 0);
                if xid == WATCH {
                    Some(About::Event)
                } else {
                    lock(asked).remove(&xid).map(About::Request)
                }
            });
            let truth = with_length(&frame);
            let lie = about.and_then(|about| self.next(about)).map(|lie| lie(&frame));
            let told = match lie {
                _ if hushed => Ok(Vec::new()),
                None => Ok(truth),
                Some(Lie::Say(bytes)) => Ok(bytes),
                Some(Lie::SayAndHush(bytes)) => {
                    hushed = true;
                    Ok(bytes)
                }
                Some(Lie::SayAndClose(bytes)) => Err(bytes),
                Some(Lie::Dribble) => {
                    dribbling = true;
                    Ok(truth)
                }
                Some(Lie::Flood(bytes, times)) => {
                    for _ in 0..times {
                        if client.write_all(&bytes).is_err() {
                            return;
                        }
                    }
                    Ok(Vec::new())
                }
            };
            let (bytes, last) = match told {
                Ok(bytes) => (bytes, false),
                Err(bytes) => {
                    // What the client says to such an answer concerns the liar alone: the server
                    // would close the session.
                    let _ = server.shutdown(Shutdown::Both);
                    (bytes, true)
                }
            };
            let piece = if dribbling { 1 } else { bytes.len().max(1) };
            if bytes.chunks(piece).any(|piece| client.write_all(piece).is_err()) || last {
                return;
            }
        }
    }
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

fn with_length(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

fn int(frame: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"))
}

/// A reply with its length.
fn reply(xid: i32, zxid: i64, error: i32, body: &[u8]) -> Vec<u8> {
    with_length(&[&xid.to_be_bytes()[..], &zxid.to_be_bytes(), &error.to_be_bytes(), body].concat())
}

fn ints(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

fn event(kind: i32, state: i32, path: &[u8]) -> Vec<u8> {
    reply(WATCH, -1, 0, &[&ints(&[kind, state, path.len() as i32]), path].concat())
}

fn client(liar: &Liar, timeout: Duration) -> Client {
    Client::builder(&liar.hosts()).session_timeout(timeout).connect().expect("a client")
}

/// Holds something in the client's session, which is then kept over requests without an answer.
fn keep(zk: &Client, site: &Site) -> LockGuard {
    let kept = mutex(zk, &site.base, "kept").lock().unwrap();
    let is_watched = || zk.stats().watches_at_server == Some(1);
    eventually(LONG, "the watch of what is kept", is_watched);
    kept
}

// ----- hostile bytes

/// The client drops the connection, logs it, and goes on with the next one in the same session, so
/// that no call fails.
#[test]
fn a_lie_costs_a_connection_and_nothing_else() {
    skip_without_server!();
    let (witness, site) = (witness(), Site::own("lie"));
    let liar = Liar::before(site.server().addr());
    let zk = client(&liar, ms(10_000));
    let session = zk.session_id();
    let held = keep(&zk, &site);
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());

    let create = About::Request(opcode::CREATE);
    let list = About::Request(opcode::GET_CHILDREN);
    let read = About::Request(opcode::GET_DATA);
    type Say = Box<dyn Fn(i32) -> Vec<u8> + Send>;
    let raw = |bytes: Vec<u8>| -> Say { Box::new(move |_| bytes.clone()) };
    let body =
        |error: i32, body: Vec<u8>| -> Say { Box::new(move |xid| reply(xid, 7, error, &body)) };
    let lies: Vec<(&str, About, Say)> = vec![
        ("a length of zero", create, raw(ints(&[0]))),
        ("a length too short", create, raw(ints(&[15, 0, 0, 0, 0]))),
        ("a negative length", list, raw(ints(&[-1]))),
        ("the most negative length", list, raw(ints(&[i32::MIN]))),
        ("2 GiB of arbitrary bytes", create, raw(ints(&[i32::MAX, 0x7777, 0, 7, 0]))),
        ("an unknown number", create, Box::new(|xid| reply(xid + 9, 7, 0, &ints(&[0])))),
        ("an earlier number", list, Box::new(|xid| reply(xid - 1, 7, 0, &ints(&[0])))),
        ("a ping's reply", list, raw(reply(PING, 7, 0, &[]))),
        ("an auth reply", list, raw(reply(AUTH, 0, 0, &[]))),
        ("two billion children", list, body(0, ints(&[i32::MAX]))),
        ("fewer than no children", list, body(0, ints(&[-7]))),
        ("a child beyond the end", list, body(0, ints(&[1, 1000]))),
        ("a child that is no text", list, body(0, [ints(&[1, 2]), vec![0xff, 0xfe]].concat())),
        ("a path that is no text", create, body(0, [ints(&[1]), vec![0xff]].concat())),
        ("a path that is cut short", create, body(0, ints(&[100]))),
        ("a stat that is cut short", read, body(0, ints(&[0, 1, 2, 3]))),
        ("an event without a path", list, raw(reply(WATCH, -1, 0, &ints(&[1])))),
        ("an event of an unknown kind", list, raw(event(99, 3, b"/a"))),
        ("an event in an unknown state", create, raw(event(1, 77, b"/a"))),
        ("an event with a path that is no text", list, raw(event(1, 3, &[0xc0, 0x80]))),
        ("a moved session", create, body(-118, vec![])),
    ];
    for (what, about, say) in lies {
        let before = liar.connections();
        liar.tell(about, move |truth| Lie::Say(say(int(truth, 0))));
        let start = Stopwatch::start();
        let guard = lock.try_lock_for(LONG).unwrap();
        // The guard's own read of its node happens in the background.
        eventually(LONG, what, || liar.has_told_all() && liar.connections() > before);
        eventually(LONG, what, || zk.state() == SessionState::Connected);
        let guard = guard.unwrap_or_else(|| panic!("not acquired: {what}"));
        guard.ensure_held().unwrap_or_else(|error| panic!("{what}: {error}"));
        guard.unlock().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(start.took().within(LONG), "{what}");
        assert_eq!(zk.session_id(), session, "{what}");
        witness.assert_calm();
    }

    // The replies to two requests in flight, in the wrong order.
    let (early, before) = (Arc::new(Mutex::new(Vec::new())), liar.connections());
    let guard = lock.lock().unwrap();
    let kept = Arc::clone(&early);
    liar.tell(About::Request(opcode::SYNC), move |truth| {
        *self::lock(&kept) = with_length(truth);
        Lie::Say(Vec::new())
    });
    liar.tell(About::Request(opcode::EXISTS), move |truth| {
        Lie::Say([with_length(truth), self::lock(&early).clone()].concat())
    });
    guard.ensure_held().unwrap();
    assert!(liar.has_told_all() && liar.connections() > before);
    guard.unlock().unwrap();
    assert_eq!(zk.session_id(), session);
    // Of many short-lived connections in a row only some are logged.
    for why in ["a frame shorter than its header", "lost its connection"] {
        witness.wait_for_warning(why);
    }
    assert_eq!(lock.contenders().unwrap(), []);
    held.unlock().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// Only the silence that follows shows that the reply is wrong.
#[test]
fn a_reply_that_never_ends_is_not_waited_for() {
    skip_without_server!();
    let (witness, site) = (witness(), Site::own("silence"));
    let liar = Liar::before(site.server().addr());
    let zk = client(&liar, ms(6000));
    let session = zk.session_id();
    let held = keep(&zk, &site);
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    let lies: [fn(i32) -> Vec<u8>; 2] = [
        // Half a header, half a body.
        |xid| ints(&[100, xid]),
        |xid| [ints(&[100]), reply(xid, 7, 0, &[0; 20])[4..].to_vec()].concat(),
    ];
    for lie in lies {
        let before = liar.connections();
        // Nothing else may follow: the answer to the list behind it would be taken for the rest.
        let about = About::Request(opcode::CREATE);
        liar.tell(about, move |truth| Lie::SayAndHush(lie(int(truth, 0))));
        let guard = lock.try_lock_for(LONG).unwrap().expect("a lock");
        assert!(liar.connections() > before);
        guard.unlock().unwrap();
    }
    assert_eq!(zk.session_id(), session);
    witness.wait_for_warning("no answer for");
    witness.assert_calm();
    held.unlock().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_connection_that_is_closed_in_the_middle_of_a_reply_is_made_anew() {
    skip_without_server!();
    let (witness, site) = (witness(), Site::own("closed"));
    let liar = Liar::before(site.server().addr());
    let zk = client(&liar, ms(10_000));
    let session = zk.session_id();
    let held = keep(&zk, &site);
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    for kind in [opcode::CREATE, opcode::GET_CHILDREN, opcode::DELETE] {
        for bytes in [0, 1, 4, 15, 19] {
            liar.tell(About::Request(kind), move |truth| {
                Lie::SayAndClose(with_length(truth)[..bytes].to_vec())
            });
            let guard = lock.try_lock_for(LONG).unwrap().expect("a lock");
            guard.unlock().unwrap();
            assert!(liar.has_told_all());
        }
    }
    assert_eq!(lock.contenders().unwrap(), []);
    assert_eq!(zk.session_id(), session);
    witness.assert_calm();
    held.unlock().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_server_that_sends_single_bytes_is_understood() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let (witness, site) = (witness(), Site::own("dribble"));
    let liar = Liar::before(site.server().addr());
    // The handshake comes in single bytes, too.
    liar.tell(About::Handshake, |_| Lie::Dribble);
    let zk = client(&liar, ms(10_000));
    let other = client(&liar, ms(10_000));
    let lock = mutex(&zk, &site.base, "a").data(vec![b'x'; 3000]);
    for _ in 0..10 {
        let guard = lock.lock().unwrap();
        guard.ensure_held().unwrap();
        assert_eq!(lock.contenders().unwrap()[0].data.len(), 3000);
        let rival = mutex(&other, &site.base, "a");
        assert!(rival.try_lock().unwrap().is_none());
        guard.unlock().unwrap();
    }
    assert_eq!(liar.connections(), 2);
    assert!(witness.logs.warnings().is_empty(), "{:?}", witness.logs.warnings());
    witness.assert_calm();
    drop(lock);
    site.finish([zk, other]);
}

#[test]
fn a_reply_beyond_the_limit_fails_its_call_and_not_the_connection() {
    skip_without_server!();
    const LENGTH: usize = 65 << 20;
    let (witness, site) = (witness(), Site::own("large"));
    let liar = Liar::before(site.server().addr());
    let zk = Client::builder(&liar.hosts()).session_timeout(ms(6000)).connect().unwrap();
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    let connections = liar.connections();
    let too_much = |truth: &[u8]| Lie::Say(with_length(&[&truth[..16], &vec![0; LENGTH]].concat()));
    liar.tell(About::Request(opcode::GET_CHILDREN2), too_much);
    let error = lock.contenders().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    // The list behind the create, and the one that is asked for instead.
    for _ in 0..2 {
        liar.tell(About::Request(opcode::GET_CHILDREN), too_much);
    }
    let error = lock.lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_eq!(error.path(), Some(lock.path()));
    eventually(LONG, "the refused contender to be deleted", || site.children("a").is_empty());
    lock.try_lock_for(LONG).unwrap().expect("a lock").unlock().unwrap();
    assert_eq!((liar.connections(), zk.session_id()), (connections, session));
    witness.wait_for_warning("over the limit");
    witness.assert_calm();
    drop(lock);
    site.finish([zk]);
}

/// Gigabytes could follow the beginning of such a frame.
#[test]
fn a_flood_takes_no_memory_and_ends() {
    skip_without_server!();
    const MIB: usize = 1 << 20;
    let (witness, site) = (witness(), Site::own("flood"));
    let liar = Liar::before(site.server().addr());
    let zk = client(&liar, ms(6000));
    let session = zk.session_id();
    let held = keep(&zk, &site);
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    let before = peak_memory();
    let connections = liar.connections();
    liar.tell(About::Request(opcode::GET_CHILDREN2), |truth| {
        let head = [ints(&[i32::MAX]), truth[..16].to_vec(), vec![0; MIB]].concat();
        // The first chunk is the beginning of the frame, the others continue its body: 192 MiB.
        Lie::Flood(head, 192)
    });
    assert_eq!(lock.contenders().unwrap_err().kind(), ErrorKind::TooLarge);
    lock.try_lock_for(LONG).unwrap().expect("a lock").unlock().unwrap();
    assert!(liar.connections() > connections, "it waits for the end of the frame");
    assert_eq!(zk.session_id(), session);
    let grown = peak_memory() - before;
    assert!(!alone() || grown < 48 * MIB, "{grown} bytes");
    witness.assert_calm();
    held.unlock().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// The call retries at once after such an error, but not in a busy loop.
#[test]
fn a_server_that_says_the_connection_is_lost_loses_it() {
    skip_without_server!();
    let (witness, site) = (witness(), Site::own("lost"));
    let liar = Liar::before(site.server().addr());
    let zk = client(&liar, ms(6000));
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    for _ in 0..1000 {
        liar.tell(About::Request(opcode::GET_CHILDREN), |truth| {
            Lie::Say(reply(int(truth, 0), 7, -4, &[]))
        });
    }
    assert!(is_unanswered(lock.try_lock_for(ms(700))));
    let told = 1000 - liar.forget();
    assert!((2..100).contains(&told), "asked {told} times");
    lock.try_lock_for(LONG).unwrap().expect("a lock").unlock().unwrap();
    assert_eq!(zk.session_id(), session);
    witness.assert_calm();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn an_expired_reply_ends_the_session_and_the_next_call_opens_another() {
    skip_without_server!();
    let (witness, site) = (witness(), Site::own("expired"));
    let liar = Liar::before(site.server().addr());
    let zk = client(&liar, ms(3_000));
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    liar.tell(About::Request(opcode::SYNC), |truth| Lie::Say(reply(int(truth, 0), 7, -112, &[])));
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::SessionLost);
    assert!(!guard.is_held());
    drop(guard);
    // The real server has not expired the session, and keeps the old node until it does.
    let guard = lock.try_lock_for(LONG).unwrap().expect("a lock");
    assert!(zk.session_id().is_some() && zk.session_id() != session);
    guard.unlock().unwrap();
    witness.assert_calm();
    drop(lock);
    site.finish([zk]);
}

/// No real server has seen that transaction, so none resumes the session, even to close it.
#[test]
fn a_number_from_the_future_costs_the_session_and_no_more() {
    skip_without_server!();
    let (witness, site) = (witness(), Site::own("future"));
    let liar = Liar::before(site.server().addr());
    let zk = client(&liar, ms(3_000));
    let session = zk.session_id();
    let threads = zk.stats().threads;
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    liar.tell(About::Request(opcode::GET_CHILDREN2), |truth| {
        Lie::SayAndClose(reply(int(truth, 0), i64::MAX, 0, &truth[16..]))
    });
    assert_eq!(lock.contenders().unwrap(), []);
    let guard = lock.try_lock_for(LONG).unwrap().expect("a lock");
    assert!(zk.session_id().is_some() && zk.session_id() != session);
    guard.unlock().unwrap();
    eventually(LONG, "the old session's threads to end", || zk.stats().threads <= threads);
    witness.assert_calm();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn no_handshake_does_harm() {
    skip_without_server!();
    let (witness, site) = (witness(), Site::own("handshake"));
    let liar = Liar::before(site.server().addr());
    // Protocol, timeout, session, password, read-only.
    let response = |timeout: i32, session: i64, password: i32, flag: u8| {
        let head = [&ints(&[0, timeout])[..], &session.to_be_bytes(), &ints(&[password])].concat();
        with_length(&[&head[..], &[1; 16], &[flag]].concat())
    };
    let bad = [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec(),
        ints(&[0]),
        ints(&[-1, -1]),
        ints(&[i32::MIN]),
        ints(&[i32::MAX, 0, 4000]),
        ints(&[5000, 0, 4000]),
        response(0, 0, 16, 0),
        response(-4000, 5, 16, 0),
        response(4000, 5, 16, 1),
        response(4000, 5, i32::MAX, 0),
        response(4000, 5, -9, 0),
        event(1, 3, b"/a"),
    ];
    let count = bad.len();
    for bytes in bad {
        liar.tell(About::Handshake, move |_| Lie::SayAndClose(bytes.clone()));
    }
    for length in (0..41).step_by(3) {
        liar.tell(About::Handshake, move |truth| {
            Lie::SayAndClose(with_length(truth)[..length].to_vec())
        });
    }
    let zk = client(&liar, ms(3_000));
    assert!(liar.has_told_all());
    assert!(liar.connections() > count);

    drop(zk);

    // The same when a session is resumed.
    let zk = client(&liar, ms(10_000));
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let another = response(4000, 0x0bad, 16, 0);
    for bytes in [another, ints(&[-1, -1]), Vec::new()] {
        let again = bytes.clone();
        liar.tell(About::Request(opcode::SYNC), |_| Lie::SayAndClose(Vec::new()));
        liar.tell(About::Handshake, move |_| Lie::SayAndClose(again.clone()));
        guard.ensure_held().unwrap();
        assert!(liar.has_told_all());
    }
    assert_eq!(zk.session_id(), session);
    witness.assert_calm();
    drop((guard, lock));
    site.finish([zk]);
}

/// One host of two does not speak the protocol: only the log shows it.
#[test]
fn one_good_host_among_liars_is_enough() {
    skip_without_zookeeper!();
    let (witness, site) = (witness(), Site::shared("liars"));
    let liar = Liar::before(site.hosts().parse().expect("one address"));
    for _ in 0..1000 {
        liar.tell(About::Handshake, |_| {
            Lie::SayAndClose(b"220 mail.example.org ESMTP\r\n".to_vec())
        });
    }
    for _ in 0..4 {
        let zk = Client::builder(&format!("{},{}", liar.hosts(), site.hosts()))
            .session_timeout(ms(4000))
            .connect()
            .unwrap();
        drop(mutex(&zk, &site.base, "a").lock().unwrap());
    }
    let error = Client::builder(&liar.hosts()).connect_timeout(ms(500)).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    witness.wait_for_warning("does not speak ZooKeeper's protocol");
    witness.assert_calm();
    site.finish([]);
}

// ----- events that come together

/// One transaction deletes the holder's node and the waiter's, and the server tells of both in one
/// breath: the waiter must not take the first event for its turn before it hears the second.
#[test]
fn a_waiter_is_not_granted_by_a_node_that_is_deleted_together_with_the_holder_s() {
    skip_without_server!();
    let site = Site::own("together");
    let liar = Liar::before(site.server().addr());
    let (tell, told) = mpsc::channel();
    let on_event = move |event: &Event| {
        if let Event::Waiting { .. } = event {
            tell.send(()).unwrap();
        }
    };
    let builder = Client::builder(&liar.hosts()).session_timeout(ms(60_000)).on_event(on_event);
    let (zk, holder) = (builder.connect().unwrap(), site.quiet_client());
    for round in 0..50 {
        let held = mutex(&holder, &site.base, "a").lock().unwrap();
        let theirs = mutex(&zk, &site.base, "a");
        let waiter = in_background(move || theirs.lock().unwrap());
        // It watches both nodes.
        told.recv_timeout(LONG).unwrap();
        let mut nodes =
            site.children("a").into_iter().map(|name| format!("{}/a/{name}", site.base));
        let own = nodes.find(|node| node != held.path()).expect("the waiter's node");
        let first = Arc::new(Mutex::new(Vec::new()));
        let both = Arc::clone(&first);
        liar.tell(About::Event, move |event| {
            *lock(&first) = with_length(event);
            Lie::Say(Vec::new())
        });
        liar.tell(About::Event, move |event| {
            Lie::Say([std::mem::take(&mut *lock(&both)), with_length(event)].concat())
        });
        holder.transaction().delete(held.path()).delete(&own).commit().unwrap();
        let guard = waiter.recv_timeout(LONG).unwrap();
        assert_ne!(guard.path(), own, "round {round}");
        guard.unlock().unwrap();
        drop(held);
        assert!(liar.has_told_all());
    }
    site.finish([zk, holder]);
}
