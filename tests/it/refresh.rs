//! `Waits::refresh`: looks again in few requests, of which no second has too many.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, ErrorKind, SessionState, Waits};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{ALL, Acl, Kind, Raw};
use crate::support::site::Site;
use crate::support::{QUIET, eventually, kind, last, skip_without_server, strict, waiting};

const SOON: Duration = Duration::from_secs(60);

/// As many as make no look wait.
const ANY: u32 = 100_000;

/// Data that tell nothing, such as those of another library.
const SILENT: &[u8] = b"somebody";

/// A contender that the raw session owns.
fn contend(raw: &mut Raw, lock: &str) -> String {
    let prefix = format!("{lock}/_c_11111111-2222-3333-4444-555555555555-lock-");
    raw.create(&prefix, SILENT, Kind::EphemeralSequential).unwrap()
}

/// So many locks, each with a holder.
fn locks(site: &Site, raw: &mut Raw, count: usize) -> Vec<String> {
    let lock = |number| format!("{}/l{number:03}", site.base);
    raw.create_all(&site.base).unwrap();
    let all: Vec<String> = (0..count).map(lock).collect();
    for lock in &all {
        raw.create(lock, b"", Kind::Persistent).unwrap();
        contend(raw, lock);
    }
    all
}

fn refresh(waits: &Waits, client: &Client) -> Waits {
    waits.refresh(client, ANY).unwrap().expect("a base node")
}

/// How many nodes were listed, and which contenders were read, since the last time.
fn asked(proxy: &Proxy) -> (u64, Vec<String>) {
    let all = proxy.requests();
    proxy.reset_counts();
    let lists = all.iter().filter(|one| one.opcode == opcode::GET_CHILDREN2).count();
    let reads = all.into_iter().filter(|one| one.opcode == opcode::GET_DATA);
    (lists as u64, reads.filter_map(|one| one.path).collect())
}

/// What a look shows, to be compared.
fn shown(waits: &Waits) -> Vec<(String, usize, bool, Vec<u8>)> {
    let all = waits.contenders.iter().cloned();
    all.map(|one| (one.path, one.position, one.holds, one.data)).collect()
}

#[test]
fn a_look_again_costs_what_has_changed_and_a_tenth() {
    skip_without_server!();
    let site = Site::own("refresh-costs");
    let (proxy, zk) = site.proxied(QUIET);
    let mut raw = site.raw();
    let locks = locks(&site, &mut raw, 12);
    let mut contenders: BTreeSet<String> = (0..8).map(|_| contend(&mut raw, &locks[3])).collect();
    proxy.reset_counts();
    let mut look = refresh(&Waits::empty(&*site.base), &zk);
    let (lists, reads) = asked(&proxy);
    assert_eq!((lists, reads.len(), look.requests), (13, 20, 33));
    contenders.extend(reads);
    assert_eq!(contenders.len(), 20);
    // Nothing has changed: only the base is listed, and others are read each time, until all have been.
    let mut read_again = BTreeSet::new();
    for _ in 0..10 {
        let later = refresh(&look, &zk);
        let (lists, reads) = asked(&proxy);
        assert_eq!((lists, reads.len(), later.requests), (1, 2, 3));
        assert_eq!(shown(&later), shown(&look));
        read_again.extend(reads);
        look = later;
    }
    assert_eq!(read_again, contenders);
    assert_eq!(look.contenders, zk.waits(&site.base).unwrap().unwrap().contenders);
    proxy.reset_counts();
    // A new one is one more, and one that goes is none.
    let (new, gone) = (contend(&mut raw, &locks[3]), contenders.pop_last().unwrap());
    raw.delete(&gone).unwrap();
    look = refresh(&look, &zk);
    let (lists, reads) = asked(&proxy);
    assert_eq!((lists, reads.len(), look.requests), (3, 3, 6));
    assert_eq!(reads.iter().filter(|path| **path == new).count(), 1);
    assert!(look.contenders.iter().any(|one| one.path == new && one.data == SILENT));
    assert!(look.contenders.iter().all(|one| one.path != gone));
    raw.close().unwrap();
    drop(look);
    site.finish([zk]);
}

#[test]
fn a_new_holder_is_shown_with_the_time_since_when_it_holds() {
    skip_without_server!();
    let site = Site::own("refresh-holder");
    let (proxy, zk) = site.proxied(QUIET);
    let (one, other) = (site.quiet_client(), site.quiet_client());
    let mut raw = site.raw();
    // So that it would be the turn of the holder's own node only in a later look.
    let crowd = format!("{}/crowd", site.base);
    raw.create_all(&crowd).unwrap();
    (0..60).for_each(|_| drop(contend(&mut raw, &crowd)));
    let held = strict(&one, &site.base, "a").lock().unwrap();
    let lock = strict(&other, &site.base, "a");
    let waiter = waiting(move || lock.lock().unwrap());
    site.wait_for_children("a", 2);
    let mut look = refresh(&Waits::empty(&*site.base), &zk);
    let of_a = |look: &Waits| {
        let all =
            look.contenders.iter().filter(|one| one.path.starts_with(&format!("{}/a/", site.base)));
        all.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_a(&look).len(), 2);
    // Only who has waited for more than a second tells anything.
    let begun = Instant::now();
    eventually(SOON, "a while", || begun.elapsed() > Duration::from_millis(1_500));
    held.unlock().unwrap();
    let guard = waiter.join().unwrap();
    look = refresh(&look, &zk);
    let [holder] = &of_a(&look)[..] else { panic!("{look:?}") };
    let holder = holder.clone();
    assert!(holder.holds && holder.path == guard.path());
    let has_told = || {
        let first = zk.waits(&site.base).unwrap().unwrap();
        of_a(&first)[0].held_since() > holder.since
    };
    eventually(SOON, "what the holder tells", has_told);
    eventually(SOON, "a look with what it tells", || {
        look = refresh(&look, &zk);
        of_a(&look)[0].held_since() > holder.since
    });
    proxy.reset_counts();
    // It has told all.
    look = refresh(&look, &zk);
    let (lists, reads) = asked(&proxy);
    assert_eq!((lists, reads.len()), (1, 1));
    assert!(last(&reads[0]) != last(guard.path()));
    assert!(of_a(&look)[0].held_since() > holder.since, "{look:?}");
    guard.unlock().unwrap();
    raw.close().unwrap();
    drop(look);
    site.finish([zk, one, other]);
}

/// The most requests that the server got in any one second.
fn most_in_a_second(proxy: &Proxy) -> usize {
    let of_looks = [opcode::GET_CHILDREN2, opcode::GET_DATA, opcode::EXISTS];
    let all = proxy.requests().into_iter().filter(|one| of_looks.contains(&one.opcode));
    let at: Vec<Instant> = all.map(|one| one.at).collect();
    let until = |first: &Instant| *first + Duration::from_secs(1);
    let from =
        |place: usize| at[place..].iter().take_while(|one| **one < until(&at[place])).count();
    (0..at.len()).map(from).max().unwrap_or_default()
}

#[test]
fn no_second_has_more_requests_than_allowed() {
    skip_without_server!();
    const MOST: u32 = 200;
    let site = Site::own("refresh-pace");
    let (proxy, zk) = site.proxied(QUIET);
    let mut raw = site.raw();
    locks(&site, &mut raw, 300);
    // Of what an ACL hides, the stat is asked for as well, which counts as another request.
    let (lock, nobody) =
        (format!("{}/hidden", site.base), [Acl::new(ALL, "digest", "nobody:nothing")]);
    raw.create(&lock, b"", Kind::Persistent).unwrap();
    for number in 0..60 {
        let node = format!("{lock}/lock-{number:010}");
        raw.create_with_acl(&node, b"", Kind::Ephemeral, &nobody).unwrap();
    }
    proxy.reset_counts();
    let first = Waits::empty(&*site.base).refresh(&zk, MOST).unwrap().unwrap();
    assert_eq!((first.requests, first.contenders.len()), (302 + 360, 360));
    let second = first.refresh(&zk, MOST).unwrap().unwrap();
    // The base, what is hidden, and a tenth of a second's requests.
    assert_eq!((second.requests, second.contenders.len()), (1 + 60 + 20, 360));
    assert_eq!((first.unlisted.len(), second.unlisted.len()), (60, 60));
    // Those of another base count, too.
    let other = Waits::empty(&*lock).refresh(&zk, MOST).unwrap().unwrap();
    assert_eq!(other.requests, 61);
    assert_eq!(proxy.count(opcode::EXISTS), 180);
    let most = most_in_a_second(&proxy);
    assert!(most <= MOST as usize, "{most} requests in a second");
    assert_eq!(shown(&first), shown(&zk.waits(&site.base).unwrap().unwrap()));
    assert_eq!(shown(&first), shown(&second));
    raw.close().unwrap();
    drop((first, second, other));
    site.finish([zk]);
}

#[test]
fn a_lost_connection_repeats_one_step_and_an_outage_or_the_end_of_the_client_ends_a_look() {
    skip_without_server!();
    let site = Site::own("refresh-outage");
    let proxy = Proxy::start(site.server().addr());
    let builder = Client::builder(&proxy.hosts()).session_timeout(QUIET);
    let zk = builder.connect_timeout(SOON).connect().unwrap();
    let mut raw = site.raw();
    locks(&site, &mut raw, 30);
    let look_in_background = |zk: &Client, most| {
        let (zk, base) = (zk.clone(), site.base.clone());
        thread::spawn(move || Waits::empty(base).refresh(&zk, most))
    };
    proxy.reset_counts();
    proxy.drop_reply(opcode::GET_DATA, 2);
    let look = look_in_background(&zk, 100).join().unwrap().unwrap().unwrap();
    assert_eq!((look.requests, look.contenders.len()), (61, 30));
    let (lists, reads) = asked(&proxy);
    assert!(lists == 31 && reads.len() > 30, "{lists} lists, {} reads", reads.len());
    // With one request in a second, it would take a minute.
    let look = look_in_background(&zk, 1);
    assert!(proxy.wait_for_request(opcode::GET_CHILDREN2, SOON));
    zk.close();
    assert_eq!(kind(look.join().unwrap()), ErrorKind::Closed);
    drop(zk);
    let builder = Client::builder(&proxy.hosts()).session_timeout(QUIET);
    let zk = builder.connect_timeout(Duration::from_secs(2)).connect().unwrap();
    proxy.reset_counts();
    let look = look_in_background(&zk, 1);
    assert!(proxy.wait_for_request(opcode::GET_CHILDREN2, SOON));
    proxy.refuse();
    assert_eq!(kind(look.join().unwrap()), kind(zk.waits(&site.base)));
    proxy.release();
    raw.close().unwrap();
    site.finish([zk]);
}

/// Watches end with their connection: what changes before the next one is seen all the same.
#[test]
fn changes_during_an_outage_are_seen() {
    skip_without_server!();
    let site = Site::own("refresh-blip");
    let (proxy, zk) = site.proxied(QUIET);
    let mut raw = site.raw();
    let locks = locks(&site, &mut raw, 3);
    let look = refresh(&Waits::empty(&*site.base), &zk);
    proxy.refuse();
    eventually(SOON, "the loss of the connection", || zk.state() != SessionState::Connected);
    let new = contend(&mut raw, &locks[1]);
    proxy.release();
    eventually(SOON, "another connection", || zk.state() == SessionState::Connected);
    let later = refresh(&look, &zk);
    assert_eq!(later.contenders.len(), 4);
    assert!(later.contenders.iter().any(|one| one.path == new), "{later:?}");
    assert_eq!(later.requests, 4 + 1 + 1);
    raw.close().unwrap();
    drop((look, later));
    site.finish([zk]);
}

#[test]
fn what_cannot_be_looked_at() {
    skip_without_server!();
    let site = Site::shared("refresh-errors");
    let zk = site.client();
    assert_eq!(kind(Waits::empty(&*site.base).refresh(&zk, 0)), ErrorKind::InvalidArgument);
    assert_eq!(kind(Waits::empty("locks").refresh(&zk, 1)), ErrorKind::InvalidName);
    let nowhere = format!("{}/nowhere", site.base);
    assert!(Waits::empty(nowhere).refresh(&zk, ANY).unwrap().is_none());
    site.finish([zk]);
}
