use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::wire_format::Frame;
use super::*;
use crate::link::protocol::granted_at;
use crate::rt::Mutex;

pub(super) const T: Duration = Duration::from_secs(12);
pub(super) const MAX_REPLY: usize = 1 << 20;

pub(super) fn seconds(seconds: f64) -> Moment {
    Moment::ZERO.plus(Duration::from_secs_f64(seconds))
}

pub(super) fn granted(sent: Moment) -> Granted {
    granted_at(sent)
}

/// A frame without its length, as one side or the other sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) xid: i32,
    pub(super) operation: i32,
    pub(super) body: Vec<u8>,
}

/// What the request of this number was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) number: i32,
    pub(super) zxid: i64,
    pub(super) error: i32,
    pub(super) body: Vec<u8>,
}

pub(super) fn frames(bytes: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut rest = &std::mem::take(bytes)[..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        frames.push(rest[4..4 + length].to_vec());
        rest = &rest[4 + length..];
    }
    frames
}

/// What the core has sent to the server since the last look.
pub(super) fn sent(core: &mut LinkCore) -> Vec<Seen> {
    let seen = |frame: Vec<u8>| {
        let mut fields = Fields(&frame);
        let (xid, operation) = (fields.int().unwrap(), fields.int().unwrap());
        Seen { xid, operation, body: fields.0.to_vec() }
    };
    frames(core.for_server()).into_iter().map(seen).collect()
}

/// A core, and the answers and events that it has given.
pub(super) struct Rig {
    core: LinkCore,
    told: Arc<Mutex<Vec<Told>>>,
    events: Vec<String>,
}

impl Rig {
    pub(super) fn new() -> Rig {
        Rig {
            core: LinkCore::new(MAX_REPLY, Arc::default()),
            told: Arc::default(),
            events: Vec::new(),
        }
    }

    fn listen(&mut self) {
        for said in self.core.take_said() {
            match said {
                ToTell::Answer(on_answer, answer) => on_answer(answer),
                ToTell::Event(_, path) => self.events.push(path),
                ToTell::Notice(_) => {}
            }
        }
    }
}

impl LinkCore {
    /// Takes the notices, wherever they stand.
    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        let (mut notices, mut others) = (Vec::new(), VecDeque::new());
        for one in self.take_all() {
            match one {
                ToTell::Notice(notice) => notices.push(notice),
                other => others.push_back(other),
            }
        }
        self.to_tell = others;
        notices
    }

    /// Takes the answers and events, wherever they stand.
    pub(super) fn take_said(&mut self) -> VecDeque<ToTell> {
        let notices = self.take_notices();
        let notices = notices.into_iter().map(ToTell::Notice).collect();
        std::mem::replace(&mut self.to_tell, notices)
    }
}

impl Deref for Rig {
    type Target = LinkCore;

    fn deref(&self) -> &LinkCore {
        &self.core
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut LinkCore {
        &mut self.core
    }
}

/// The answers since the last look.
pub(super) fn told(rig: &mut Rig) -> Vec<Told> {
    rig.listen();
    std::mem::take(&mut *rig.told.lock())
}

/// The nodes with events since the last look.
pub(super) fn events(rig: &mut Rig) -> Vec<String> {
    rig.listen();
    std::mem::take(&mut rig.events)
}

pub(super) fn codes(rig: &mut Rig) -> Vec<(i32, i32)> {
    told(rig).into_iter().map(|told| (told.number, told.error)).collect()
}

pub(super) fn text(text: &str) -> Vec<u8> {
    Frame::new().buffer(text.as_bytes()).body()
}

pub(super) fn ask(rig: &mut Rig, number: i32, operation: i32, body: &[u8], now: Moment) {
    let log = Arc::clone(&rig.told);
    let on_answer = move |RawReply { zxid, error, body }| {
        log.lock().push(Told { number, zxid, error, body });
    };
    rig.core.verb(operation, body, Box::new(on_answer), now);
}

pub(super) fn answer(
    core: &mut LinkCore,
    xid: i32,
    zxid: i64,
    error: i32,
    body: &[u8],
    now: Moment,
) -> Result<(), String> {
    core.heard_server(&Frame::reply(xid, zxid, error).raw(body).finish(), now)
}

pub(super) fn event(path: &str) -> Vec<u8> {
    Frame::reply(xid::WATCH, -1, 0).int(2).int(3).buffer(path.as_bytes()).finish()
}

/// A core that was attached at 10 s to a session asked for at that moment, without notices.
pub(super) fn attached() -> Rig {
    let mut core = Rig::new();
    core.attach(granted(seconds(10.)), seconds(10.));
    assert_eq!(core.take_notices(), [Notice::Attached]);
    core
}

pub(super) fn with_flags(path: &str, flags: i32) -> Vec<u8> {
    let mut body = text(path);
    body.extend(text("data"));
    body.extend(0i32.to_be_bytes());
    body.extend(flags.to_be_bytes());
    body
}

// ----- one answer to each request

#[test]
fn what_is_in_flight_is_lost_with_the_connection_and_so_is_what_is_asked_without_one() {
    let (mut core, now) = (attached(), seconds(10.));
    for xid in 1..=3 {
        ask(&mut core, xid, op::EXISTS, &text("/a"), now);
    }
    let first = sent(&mut core)[0].xid;
    answer(&mut core, first, 5, code::NO_NODE, &[], now).unwrap();
    core.detach(now);
    ask(&mut core, 4, op::DELETE, &text("/a"), now);
    let lost = code::CONNECTION_LOSS;
    assert_eq!(codes(&mut core), [(1, code::NO_NODE), (2, lost), (3, lost), (4, lost)]);
    assert_eq!(sent(&mut core), []);
}

#[test]
fn the_suspension_is_noticed_before_the_replies_that_it_causes() {
    let (mut core, now) = (attached(), seconds(10.));
    ask(&mut core, 1, op::EXISTS, &text("/a"), now);
    let first = sent(&mut core)[0].xid;
    ask(&mut core, 2, op::EXISTS, &text("/b"), now);
    answer(&mut core, first, 5, code::NO_NODE, &[], now).unwrap();
    core.detach(now);
    assert_eq!(core.take_until_notice().len(), 1, "the answer that came before");
    let told = Vec::from(core.take_all());
    assert!(matches!(told[..], [ToTell::Notice(Notice::Suspended), ToTell::Answer(..)]));
    core.detach(now);
    assert!(core.take_all().is_empty(), "reported twice");
}

#[test]
fn after_the_end_everything_is_answered_with_expired() {
    type MakeEnd = fn(&mut LinkCore);
    let ends: [(MakeEnd, End); 4] = [
        (|core| core.end_at_once(End::Expired), End::Expired),
        (|core| core.end_at_once(End::AuthFailed), End::AuthFailed),
        (|core| core.close(End::Closed, seconds(10.)), End::Closed),
        (|core| core.tick(seconds(22.)).unwrap_or(()), End::Lapsed),
    ];
    for (end, why) in ends {
        let mut core = attached();
        ask(&mut core, 1, op::EXISTS, &text("/a"), seconds(10.));
        end(&mut core);
        ask(&mut core, 2, op::CREATE, &with_flags("/a", 0), seconds(23.));
        let expired = code::SESSION_EXPIRED;
        assert_eq!(codes(&mut core), [(1, expired), (2, expired)], "{why:?}");
        assert_eq!(core.take_notices()[0], Notice::Ended(why));
        assert_eq!(core.lease_end(), Moment::ZERO);
        core.end_at_once(End::Expired);
        core.detach(seconds(24.));
        let late = core.take_notices();
        assert!(!late.iter().any(|late| matches!(late, Notice::Ended(_))), "again: {late:?}");
        assert_eq!(told(&mut core), []);
    }
}

#[test]
fn request_numbers_go_round() {
    let (mut core, now) = (attached(), seconds(10.));
    core.next_xid = i32::MAX - 1;
    for xid in 1..=4 {
        ask(&mut core, xid, op::DELETE, &text("/a"), now);
    }
    let used: Vec<i32> = sent(&mut core).into_iter().map(|seen| seen.xid).collect();
    assert_eq!(used, [i32::MAX - 1, i32::MAX, 1, 2]);
    for xid in used {
        answer(&mut core, xid, 5, 0, &[], now).unwrap();
    }
    assert_eq!(codes(&mut core), [(1, 0), (2, 0), (3, 0), (4, 0)]);
}

#[test]
fn watch_events_keep_their_place_between_answers() {
    let (mut core, now) = (attached(), seconds(10.));
    ask(&mut core, 1, op::EXISTS, &text("/a"), now);
    ask(&mut core, 2, op::EXISTS, &text("/b"), now);
    let used = sent(&mut core);
    let mut stream = Frame::reply(used[0].xid, 5, code::NO_NODE).finish();
    stream.extend(event("/a"));
    stream.extend(Frame::reply(used[1].xid, 6, code::NO_NODE).finish());
    stream.extend(event("/b"));
    core.heard_server(&stream, now).unwrap();
    let order: Vec<String> = core
        .take_said()
        .into_iter()
        .map(|said| match said {
            ToTell::Answer(on_answer, answer) => {
                on_answer(answer);
                "answer".to_owned()
            }
            ToTell::Event(event, path) => format!("{event:?} {path}"),
            ToTell::Notice(notice) => format!("{notice:?}"),
        })
        .collect();
    assert_eq!(order, ["answer", "Deleted /a", "answer", "Deleted /b"]);
    assert_eq!(codes(&mut core), [(1, code::NO_NODE), (2, code::NO_NODE)]);
    assert_eq!(core.last_zxid(), 6);
}

// ----- what is too large

#[test]
fn an_oversized_request_fails_alone_and_at_once() {
    let (mut core, now) = (attached(), seconds(10.));
    let (largest, too_large) =
        (vec![1; MAX_REQUEST - REQUEST_HEADER], vec![1; MAX_REQUEST - REQUEST_HEADER + 1]);
    ask(&mut core, 1, op::SET_DATA, &largest, now);
    ask(&mut core, 2, op::SET_DATA, &too_large, now);
    ask(&mut core, 3, op::EXISTS, &text("/a"), now);
    let used = sent(&mut core);
    assert_eq!(
        used.iter().map(|seen| seen.operation).collect::<Vec<_>>(),
        [op::SET_DATA, op::EXISTS]
    );
    assert_eq!(codes(&mut core), [(2, code::MARSHALLING)]);
    answer(&mut core, used[0].xid, 5, code::NO_NODE, &[], now).unwrap();
    answer(&mut core, used[1].xid, 5, code::NO_NODE, &[], now).unwrap();
    assert_eq!(codes(&mut core), [(1, code::NO_NODE), (3, code::NO_NODE)]);
}

#[test]
fn an_oversized_reply_fails_its_request_and_not_the_connection() {
    let (mut core, now) = (attached(), seconds(10.));
    ask(&mut core, 1, op::GET_CHILDREN, &text("/a"), now);
    ask(&mut core, 2, op::DELETE, &text("/a"), now);
    let used = sent(&mut core);
    let huge = Frame::reply(used[0].xid, 5, 0).raw(&vec![0; MAX_REPLY]).finish();
    for piece in huge.chunks(50_000) {
        core.heard_server(piece, now).unwrap();
        assert!(core.from_server.held() < 200_000, "the splitter keeps what it should discard");
    }
    answer(&mut core, used[1].xid, 6, 0, &[], now).unwrap();
    assert_eq!(codes(&mut core), [(1, code::MARSHALLING), (2, 0)]);
    assert!(core.is_attached());

    let huge = Frame::reply(xid::WATCH, -1, 0).raw(&vec![0; MAX_REPLY]).finish();
    assert!(core.heard_server(&huge, now).is_err(), "an event over the limit is refused");
}

#[test]
fn what_one_connection_left_half_said_is_not_continued_by_the_next() {
    let (mut core, now) = (attached(), seconds(10.));
    core.heard_server(&event("/a")[..20], now).unwrap();
    core.detach(now);
    core.attach(granted(now), now);
    core.heard_server(&event("/b"), now).unwrap();
    assert_eq!(events(&mut core), ["/b"]);
}

// ----- what the server must not say

#[test]
fn what_breaks_the_protocol_breaks_the_connection_and_reaches_nobody() {
    let stat = [0; 68];
    let reply = |xid, error, body: &[u8]| Frame::reply(xid, 5, error).raw(body).finish();
    let raw = |bytes: &[u8]| bytes.to_vec();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("another request's number", reply(2, 0, &stat)),
        ("a reply to a ping that was not sent", reply(-2, 0, &[])),
        ("an auth reply that was not asked for", reply(xid::AUTH, 0, &[])),
        ("a moved session", reply(1, code::SESSION_MOVED, &[])),
        ("a lost connection", reply(1, code::CONNECTION_LOSS, &[])),
        ("a stat that is cut short", reply(1, 0, &stat[..67])),
        ("a negative length", raw(&(-1i32).to_be_bytes())),
        ("a length of zero", raw(&0i32.to_be_bytes())),
        ("a frame shorter than its header", raw(&15i32.to_be_bytes())),
        ("an event without a path", Frame::reply(xid::WATCH, -1, 0).int(1).int(3).finish()),
        ("an event of an unknown kind", {
            Frame::reply(xid::WATCH, -1, 0).int(99).int(3).buffer(b"/a").finish()
        }),
        ("an event in an unknown state", {
            Frame::reply(xid::WATCH, -1, 0).int(1).int(99).buffer(b"/a").finish()
        }),
        ("an event that is an error", {
            Frame::reply(xid::WATCH, -1, -4).int(1).int(3).buffer(b"/a").finish()
        }),
        ("an event with a path that is no text", {
            Frame::reply(xid::WATCH, -1, 0).int(1).int(3).buffer(&[0xff]).finish()
        }),
    ];
    for (what, bytes) in cases {
        let (mut core, now) = (attached(), seconds(10.));
        ask(&mut core, 1, op::EXISTS, &text("/a"), now);
        assert!(core.heard_server(&bytes, now).is_err(), "{what}");
        assert!(core.take_said().is_empty(), "{what}");
        core.detach(now);
        assert_eq!(codes(&mut core), [(1, code::CONNECTION_LOSS)], "{what}");
        assert_eq!(core.take_notices(), [Notice::Suspended], "{what}");
    }
}

/// Any server answers pings, also one that is cut off from its leader.
#[test]
fn the_reply_to_a_ping_is_no_answer_to_a_heartbeat() {
    let mut core = attached();
    core.tick(seconds(14.)).unwrap();
    assert_eq!(sent(&mut core)[0].operation, op::SYNC);
    assert!(answer(&mut core, -2, 5, 0, &text("/"), seconds(14.)).is_err());
}

#[test]
fn an_expired_reply_ends_the_session_and_a_rejected_auth_too() {
    const SASL: &str = "the server demands that clients authenticate by SASL (error -124)";
    for (bytes, why, reason) in [
        (Frame::reply(1, 5, code::SESSION_EXPIRED).finish(), End::Expired, None),
        (Frame::reply(xid::AUTH, 0, code::AUTH_FAILED).finish(), End::AuthFailed, None),
        (Frame::reply(1, 5, code::SASL_REQUIRED).finish(), End::AuthFailed, Some(SASL)),
    ] {
        let (mut core, now) = (attached(), seconds(10.));
        ask(&mut core, 1, op::EXISTS, &text("/a"), now);
        core.heard_server(&bytes, now).unwrap();
        assert_eq!(core.take_notices(), [Notice::Ended(why), Notice::Over]);
        assert_eq!(core.why_lapsed(), reason);
        assert_eq!(codes(&mut core), [(1, code::SESSION_EXPIRED)]);
        assert!(core.is_over());
    }
}

// ----- time

#[test]
fn the_lease_ends_at_its_tick_and_nothing_renews_it_after() {
    let (mut core, end) = (attached(), seconds(22.));
    let before = Moment::from_nanos(end.as_nanos() - 1);
    ask(&mut core, 1, op::EXISTS, &text("/a"), seconds(21.5));
    assert_eq!(core.lease_end(), end);
    core.tick(before).unwrap();
    assert_eq!(core.take_notices(), []);
    assert_eq!(core.next_tick(), end);
    core.tick(end).unwrap();
    assert_eq!(core.take_notices(), [Notice::Ended(End::Lapsed)]);
    assert_eq!(codes(&mut core), [(1, code::SESSION_EXPIRED)]);

    // The server's answers come late, a connection is found again: all too late.
    for seen in sent(&mut core) {
        let body = if seen.operation == op::SYNC { text("/") } else { vec![0; 68] };
        if seen.operation != op::CLOSE_SESSION {
            answer(&mut core, seen.xid, 5, 0, &body, seconds(22.1)).unwrap();
        }
    }
    assert_eq!(core.lease_end(), Moment::ZERO);
    core.detach(seconds(23.));
    core.attach(granted(seconds(24.)), seconds(24.));
    assert_eq!(core.lease_end(), Moment::ZERO);
    assert_eq!(core.take_notices(), []);
    assert_eq!(told(&mut core), []);
    let [close] = &sent(&mut core)[..] else { panic!("expected one close request") };
    assert_eq!(close.operation, op::CLOSE_SESSION);
    answer(&mut core, close.xid, 9, 0, &[], seconds(24.)).unwrap();
    assert_eq!(core.take_notices(), [Notice::Over]);
}

#[test]
fn an_answer_that_comes_after_the_lease_s_end_does_not_outrun_the_tick() {
    let mut core = attached();
    ask(&mut core, 1, op::CREATE, &with_flags("/a", 0), seconds(21.9));
    let used = sent(&mut core)[0].xid;
    answer(&mut core, used, 5, 0, &text("/a"), seconds(22.)).unwrap();
    assert_eq!(codes(&mut core), [(1, code::SESSION_EXPIRED)]);
    assert_eq!(core.take_notices(), [Notice::Ended(End::Lapsed)]);
}

#[test]
fn a_connection_that_comes_too_late_is_only_used_to_say_goodbye() {
    let mut core = attached();
    core.detach(seconds(15.));
    assert_eq!(core.take_notices(), [Notice::Suspended]);
    core.attach(granted(seconds(21.)), seconds(22.5));
    assert_eq!(core.take_notices(), [Notice::Ended(End::Lapsed)]);
    assert_eq!(sent(&mut core).last().map(|seen| seen.operation), Some(op::CLOSE_SESSION));
}

#[test]
fn a_connection_in_time_gives_a_whole_lease_from_its_own_send() {
    let mut core = attached();
    core.detach(seconds(15.));
    core.attach(granted(seconds(20.)), seconds(21.));
    assert_eq!(core.take_notices(), [Notice::Suspended, Notice::Attached]);
    assert_eq!(core.lease_end(), seconds(32.));
}

/// Lets time pass up to `end`, answering everything `delay` after it was sent; returns when
/// heartbeats were sent.
fn heartbeats(core: &mut Rig, from: f64, end: f64, delay: f64) -> Vec<f64> {
    let (mut beats, mut due, mut now) = (Vec::new(), VecDeque::new(), from);
    loop {
        for seen in sent(core) {
            assert_eq!(seen.operation, op::SYNC);
            beats.push(now);
            due.push_back((now + delay, seen.xid));
        }
        let tick = core.next_tick().as_nanos() as f64 / 1e9;
        match due.front().copied() {
            Some((at, xid)) if at <= tick => {
                now = at;
                due.pop_front();
                answer(core, xid, 5, 0, &text("/"), seconds(now)).unwrap();
            }
            _ => {
                now = tick;
                if now <= end {
                    let then = core.next_tick();
                    core.tick(then).unwrap();
                }
            }
        }
        if now > end {
            assert_eq!(core.take_notices(), []);
            return beats;
        }
    }
}

fn gaps(beats: &[f64]) -> Vec<f64> {
    beats.windows(2).map(|pair| ((pair[1] - pair[0]) * 100.).round() / 100.).collect()
}

#[test]
fn a_heartbeat_goes_out_nine_times_in_a_session_timeout() {
    let mut core = attached();
    let beats = heartbeats(&mut core, 10., 60., 0.01);
    assert!(beats.len() > 30 && gaps(&beats)[8..].iter().all(|gap| *gap == 1.33), "{beats:?}");
}

#[test]
fn a_slow_connection_has_an_interval_after_which_its_heartbeats_count() {
    let mut core = attached();
    let beats = heartbeats(&mut core, 10., 60., 1.);
    // After five of them, which take a second each: (6.375 + 1 + 0.047) / 5.
    assert!(gaps(&beats)[8..].iter().all(|gap| *gap == 1.48), "{beats:?}");
}

/// Another server may have granted less, whose answer was lost: the leader then counts with that.
#[test]
fn an_attempt_at_servers_that_grant_less_ends_the_lease_sooner_unless_its_answer_comes() {
    for is_answered in [true, false] {
        let mut core = attached();
        core.detach(seconds(12.));
        let lease_end = core.lease_end();
        core.attempted(seconds(13.), Duration::from_secs(20));
        assert_eq!(core.lease_end(), lease_end, "no server grants less than what is in use");
        core.attempted(seconds(13.), Duration::from_secs(4));
        assert_eq!(core.lease_end(), seconds(17.));
        if is_answered {
            core.attach(granted(seconds(13.)), seconds(14.));
            assert_eq!(core.lease_end(), seconds(13.).plus(T));
            core.attempted(seconds(13.5), Duration::from_secs(4));
            assert_eq!(core.lease_end(), seconds(13.).plus(T), "told late");
        } else {
            core.tick(seconds(17.)).unwrap();
            assert_eq!(core.ended(), Some(End::Lapsed));
        }
    }
}

/// A slow opening is asked for again, and that may be slow, too.
#[test]
fn a_grant_renews_the_lease_though_its_connection_is_not_used() {
    let grant = |sent| Granted { timeout: T / 2, by_server: T / 2, ..granted(sent) };
    let mut core = attached();
    core.detach(seconds(18.));
    core.renewed(grant(seconds(18.)), seconds(21.));
    assert_eq!((core.lease_end(), core.is_attached()), (seconds(24.), false));
    core.renewed(granted(seconds(19.)), seconds(23.));
    assert_eq!(core.lease_end(), seconds(25.), "the least grant counts");
    core.attempted(seconds(20.), Duration::from_secs(4));
    assert_eq!(core.lease_end(), seconds(24.));
    core.tick(seconds(24.)).unwrap();
    assert_eq!(core.ended(), Some(End::Lapsed));
    // Too late, and of another session.
    for (session, now) in [(0x77, 22.), (0x78, 21.)] {
        let mut core = attached();
        core.detach(seconds(18.));
        core.renewed(Granted { session, ..granted(seconds(18.)) }, seconds(now));
        assert_eq!(core.lease_end(), seconds(22.));
        core.tick(seconds(22.)).unwrap();
        assert_eq!(core.ended(), Some(End::Lapsed));
    }
}

/// Lets some session timeouts pass; of each hundred heartbeats, so many are refused. Returns how many were
/// sent, and whether the lease has lasted.
fn with_refusals(percent: u64, timeouts: u32, seed: u64) -> (u32, bool) {
    let mut core = attached();
    let (mut random, mut count) = (seed, 0);
    let end = seconds(10.).plus(T * timeouts);
    while core.ended().is_none() && core.next_tick() < end && count < 100 * timeouts {
        let now = core.next_tick();
        core.tick(now).unwrap();
        for seen in sent(&mut core) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let is_refused = (random >> 33) % 100 < percent;
            let error = if is_refused { code::THROTTLED } else { code::OK };
            count += 1;
            answer(&mut core, seen.xid, 5, error, &text("/"), now).unwrap();
        }
    }
    (count, core.ended().is_none())
}

#[test]
fn refused_heartbeats_are_sent_again_before_the_lease_ends() {
    for seed in 0..20 {
        for percent in [0, 25, 50, 75] {
            let (count, has_lasted) = with_refusals(percent, 100, seed);
            assert!(has_lasted, "{percent} % refused, seed {seed}");
            let ordinary = 9 * 100;
            let expected = if percent == 0 { ordinary } else { 5 * ordinary };
            assert!(count <= expected, "{percent} % refused: {count}");
        }
    }
    let (count, has_lasted) = with_refusals(100, 100, 0);
    assert!(!has_lasted && count < 100, "{count}");
}

#[test]
fn no_traffic_puts_off_a_heartbeat() {
    let mut core = attached();
    let due = core.next_tick();
    core.heard_server(&event("/a"), seconds(10.5)).unwrap();
    ask(&mut core, 1, op::EXISTS, &text("/a"), seconds(10.5));
    let used = sent(&mut core)[0].xid;
    answer(&mut core, used, 5, code::NO_NODE, &[], seconds(10.5)).unwrap();
    assert_eq!(core.next_tick(), due);
    ask(&mut core, 2, op::DELETE, &text("/a"), seconds(11.));
    let used = sent(&mut core)[0].xid;
    answer(&mut core, used, 6, 0, &[], seconds(11.)).unwrap();
    assert_eq!(core.next_tick(), due);
}

#[test]
fn silence_on_the_oldest_request_breaks_the_connection_after_a_third() {
    let mut core = attached();
    ask(&mut core, 1, op::EXISTS, &text("/a"), seconds(11.));
    ask(&mut core, 2, op::EXISTS, &text("/a"), seconds(12.));
    core.tick(seconds(14.)).unwrap();
    // Events are no answer.
    core.heard_server(&event("/a"), seconds(14.9)).unwrap();
    assert_eq!(core.next_tick(), seconds(15.));
    core.tick(seconds(14.99)).unwrap();
    assert!(core.tick(seconds(15.)).is_err());
}

#[test]
fn a_reply_that_is_still_coming_in_is_not_silence_but_the_lease_bounds_it() {
    let mut core = attached();
    ask(&mut core, 1, op::GET_DATA, &text("/a"), seconds(11.));
    let used = sent(&mut core)[0].xid;
    let reply = Frame::reply(used, 5, 0).buffer(&[0; 1000]).raw(&[0; 68]).finish();
    let (mut broken, mut at) = (None, 11.);
    for byte in &reply {
        at += 0.25;
        core.heard_server(&[*byte], seconds(at)).unwrap();
        if core.tick(seconds(at)).is_err() {
            broken = Some(at);
            break;
        }
    }
    let broken = broken.expect("a server that answers byte by byte is given up");
    assert!((15.5..22.).contains(&broken), "{broken}");
}

/// The requests may come from callers that do not wait for answers.
#[test]
fn a_server_that_answers_nothing_does_not_fill_the_memory() {
    let (mut core, now) = (attached(), seconds(10.));
    let refused = |core: &mut Rig| {
        core.listen();
        assert!(core.told.lock().iter().all(|told| told.error == code::THROTTLED));
        core.told.lock().len()
    };
    for number in 0..MOST_OUTSTANDING as i32 + 10 {
        ask(&mut core, number, op::DELETE, &text("/a"), now);
    }
    assert_eq!((core.outstanding.len(), refused(&mut core)), (MOST_OUTSTANDING, 10));
    // The server reads all requests and answers one of them: so one more may be sent.
    let used = sent(&mut core)[0].xid;
    answer(&mut core, used, 5, code::THROTTLED, &[], now).unwrap();
    for number in 0..2 {
        ask(&mut core, number, op::DELETE, &text("/a"), now);
    }
    assert_eq!((core.outstanding.len(), refused(&mut core)), (MOST_OUTSTANDING, 12));
    // The link's own requests are not refused, and all are answered when the server is given up.
    core.tick(seconds(12.)).unwrap();
    assert!(sent(&mut core).iter().any(|seen| seen.operation == op::SYNC));
    assert!(core.tick(seconds(14.)).is_err());
    core.detach(seconds(14.));
    assert_eq!(told(&mut core).len(), MOST_OUTSTANDING + 12);
}

#[test]
fn a_server_that_reads_nothing_does_not_fill_the_memory() {
    let (mut core, now) = (attached(), seconds(10.));
    let large = vec![0; 1_000_000];
    for number in 0..200 {
        ask(&mut core, number, op::SET_DATA, &large, now);
        assert!(core.for_server().len() <= MOST_UNSENT + 1000);
    }
    let refused = codes(&mut core);
    assert!((130..150).contains(&refused.len()), "{}", refused.len());
    assert!(refused.iter().all(|(_, error)| *error == code::THROTTLED));
}

// ----- closing a session

#[test]
fn closing_waits_for_the_server_s_word() {
    let mut core = attached();
    core.close(End::Closed, seconds(11.));
    core.close(End::Closed, seconds(11.));
    assert_eq!(core.take_notices(), [Notice::Ended(End::Closed)]);
    let [close] = &sent(&mut core)[..] else { panic!("expected one close request") };
    assert_eq!(close.operation, op::CLOSE_SESSION);
    answer(&mut core, close.xid, 5, 0, &[], seconds(11.)).unwrap();
    assert_eq!(core.take_notices(), [Notice::Over]);
    assert_eq!(core.next_tick(), Moment::NEVER);
    core.end_at_once(End::Closed);
    assert_eq!(core.take_notices(), [], "reported twice");
}

#[test]
fn closing_without_a_connection_goes_on_with_the_next_one() {
    let mut core = attached();
    core.detach(seconds(11.));
    core.close(End::Closed, seconds(11.));
    assert_eq!(core.take_notices(), [Notice::Suspended, Notice::Ended(End::Closed)]);
    core.attach(granted(seconds(12.)), seconds(12.));
    let goodbye = sent(&mut core);
    core.detach(seconds(13.));
    assert_eq!(goodbye.len(), 1);
    core.attach(granted(seconds(14.)), seconds(14.));
    let [again] = &sent(&mut core)[..] else { panic!("expected the close request again") };
    assert_eq!(core.take_notices(), []);
    answer(&mut core, again.xid, 5, 0, &[], seconds(14.)).unwrap();
    assert_eq!(core.take_notices(), [Notice::Over]);
}

#[test]
fn closing_ends_also_when_the_server_knows_the_session_no_more_or_nobody_waits() {
    for why in [End::Expired, End::Closed] {
        let mut core = attached();
        core.detach(seconds(11.));
        core.close(End::Closed, seconds(11.));
        core.take_notices();
        core.end_at_once(why);
        assert_eq!(core.take_notices(), [Notice::Over]);
    }
    let mut unborn = LinkCore::new(MAX_REPLY, Arc::default());
    unborn.close(End::Closed, seconds(1.));
    assert_eq!(unborn.take_notices(), [Notice::Ended(End::Closed), Notice::Over]);
}

#[test]
fn a_session_whose_credentials_are_rejected_later_is_still_closed() {
    let mut core = attached();
    core.detach(seconds(11.));
    core.close(End::AuthFailed, seconds(11.));
    assert_eq!(core.take_notices(), [Notice::Suspended, Notice::Ended(End::AuthFailed)]);
    core.attach(granted(seconds(12.)), seconds(12.));
    let [close] = &sent(&mut core)[..] else { panic!("expected one close request") };
    assert_eq!(close.operation, op::CLOSE_SESSION);
    answer(&mut core, close.xid, 5, 0, &[], seconds(12.)).unwrap();
    assert_eq!(core.take_notices(), [Notice::Over]);

    let mut unborn = LinkCore::new(MAX_REPLY, Arc::default());
    unborn.close(End::AuthFailed, seconds(11.));
    assert_eq!(unborn.take_notices(), [Notice::Ended(End::AuthFailed), Notice::Over]);
}

/// A session that is over is continued only to close it, which any server may do, even one
/// that has seen less, such as one that lost its data.
#[test]
fn an_ended_session_asks_for_no_server_that_has_seen_as_much() {
    let (mut core, now) = (attached(), seconds(10.));
    ask(&mut core, 1, op::DELETE, &text("/a"), now);
    let used = sent(&mut core)[0].xid;
    answer(&mut core, used, i64::MAX, 0, &[], now).unwrap();
    core.detach(now);
    assert_eq!(core.last_zxid(), i64::MAX);
    core.tick(seconds(22.)).unwrap();
    assert_eq!(core.last_zxid(), 0);
}

/// After a pause of the process, nobody has looked at it before.
#[test]
fn a_lease_that_is_over_when_a_server_is_found_is_told_with_its_session_timeout() {
    let mut cut = attached();
    cut.detach(seconds(20.));
    cut.attach(granted(seconds(30.)), seconds(30.));
    let why = cut.why_lapsed().unwrap();
    assert!(why.contains("was lost 10.0s ago"), "{why}");
    assert!(why.ends_with("the session timeout is 12s"), "{why}");
    let mut opened_slowly = LinkCore::new(MAX_REPLY, Arc::default());
    opened_slowly.attach(granted(seconds(10.)), seconds(30.));
    let why = opened_slowly.why_lapsed().unwrap();
    assert!(why.contains("took 20.0s to open the connection"), "{why}");
    assert!(why.ends_with("the session timeout is 12s"), "{why}");
}

#[test]
fn a_collapse_loses_no_request() {
    let (mut core, now) = (attached(), seconds(10.));
    ask(&mut core, 1, op::EXISTS, &text("/a"), now);
    core.end_at_once(End::Lapsed);
    ask(&mut core, 2, op::DELETE, &text("/a"), now);
    let expired = code::SESSION_EXPIRED;
    assert_eq!(codes(&mut core), [(1, expired), (2, expired)]);
    assert_eq!(core.take_notices(), [Notice::Ended(End::Lapsed), Notice::Over]);
}

/// A server that has not seen the last zxid refuses the session, so that zxid must come from a
/// sound reply.
#[test]
fn bytes_that_are_no_answer_do_not_say_what_servers_must_have_seen() {
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    let header = |xid: i32, error: i32| Frame::reply(xid, i64::MAX, error);
    for bytes in [
        http,
        header(9, 0).finish(),
        header(xid::AUTH, 0).finish(),
        header(1, 0).raw(&[0; 67]).finish(),
        header(1, code::CONNECTION_LOSS).finish(),
        header(xid::WATCH, 0).int(99).int(3).buffer(b"/a").finish(),
        header(xid::WATCH, code::NO_NODE).int(1).int(3).buffer(b"/a").finish(),
    ] {
        let (mut core, now) = (attached(), seconds(10.));
        ask(&mut core, 1, op::EXISTS, &text("/a"), now);
        assert!(core.heard_server(&bytes, now).is_err());
        assert_eq!(core.last_zxid(), 0, "{bytes:?}");
    }
}

// ----- anything at all

#[derive(Clone, Debug)]
enum Step {
    Ask(i32),
    /// The server answers the oldest request that it has seen.
    Reply {
        error: bool,
    },
    Event,
    Detach,
    Attach,
    /// Milliseconds.
    Pass(u64),
    Close,
    Expire,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let operation = prop::sample::select(vec![
        op::CREATE,
        op::DELETE,
        op::EXISTS,
        op::GET_DATA,
        op::GET_CHILDREN,
        op::SYNC,
    ]);
    let step = prop_oneof![
        11 => operation.prop_map(Step::Ask),
        10 => any::<bool>().prop_map(|error| Step::Reply { error }),
        2 => Just(Step::Event),
        1 => Just(Step::Detach),
        2 => Just(Step::Attach),
        3 => (0u64..2_000).prop_map(Step::Pass),
        1 => (0u32..30).prop_map(|n| match n {
            0 => Step::Expire,
            1 => Step::Close,
            _ => Step::Pass(5_000),
        }),
    ];
    prop::collection::vec(step, 0..150)
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    /// The server's reply has this zxid.
    Served(i64),
    Failed(i32),
}

/// The core, the server's end of the connection, and the expected results.
struct Model {
    core: Rig,
    now: Moment,
    received: VecDeque<Seen>,
    zxid: i64,
    /// By the request's number, which is in its path.
    requests: BTreeMap<usize, Fate>,
    /// The zxids of the replies that must be passed on, in order.
    said: Vec<i64>,
    events: usize,
    heard: Vec<String>,
    told: Vec<Told>,
    ended: bool,
}

impl Model {
    fn new() -> Model {
        Model {
            core: attached(),
            now: seconds(10.),
            received: VecDeque::new(),
            zxid: 100,
            requests: BTreeMap::new(),
            said: Vec::new(),
            events: 0,
            heard: Vec::new(),
            told: Vec::new(),
            ended: false,
        }
    }

    fn fate_of_new(&self) -> Fate {
        if self.ended {
            Fate::Failed(code::SESSION_EXPIRED)
        } else if !self.core.is_attached() {
            Fate::Failed(code::CONNECTION_LOSS)
        } else {
            Fate::InFlight
        }
    }

    fn fail_all(&mut self, error: i32) {
        for fate in self.requests.values_mut() {
            if *fate == Fate::InFlight {
                *fate = Fate::Failed(error);
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Ask(operation) => {
                let number = self.requests.len();
                self.requests.insert(number, self.fate_of_new());
                let path = format!("/{number}");
                let body = if operation == op::CREATE { with_flags(&path, 3) } else { text(&path) };
                ask(&mut self.core, number as i32, operation, &body, now);
            }
            Step::Reply { error } => self.reply(error),
            Step::Event => {
                if self.core.is_attached() {
                    self.events += 1;
                    self.core.heard_server(&event(&format!("/{}", self.events)), now).unwrap();
                }
            }
            Step::Detach => self.detach(),
            Step::Attach => {
                if !self.core.is_attached() && !self.core.is_over() {
                    self.received.clear();
                    self.core.attach(granted(now), now);
                }
            }
            Step::Pass(milliseconds) => {
                self.now = now.plus(Duration::from_millis(milliseconds));
                if self.core.tick(self.now).is_err() {
                    self.detach();
                }
            }
            Step::Close => self.core.close(End::Closed, now),
            Step::Expire => self.core.end_at_once(End::Expired),
        }
        self.look();
    }

    fn detach(&mut self) {
        self.core.detach(self.now);
        self.received.clear();
        self.look();
        self.fail_all(code::CONNECTION_LOSS);
    }

    /// Takes the notices before the replies, as the link's thread does.
    fn look(&mut self) {
        for notice in self.core.take_notices() {
            match notice {
                Notice::Ended(_) => {
                    assert!(!self.ended, "the end was reported twice");
                    self.ended = true;
                    self.fail_all(code::SESSION_EXPIRED);
                }
                Notice::Suspended => self.fail_all(code::CONNECTION_LOSS),
                Notice::Alive | Notice::Paused(_) => {}
                Notice::Attached => assert!(!self.ended),
                Notice::Over => assert!(self.ended),
            }
        }
        let seen = sent(&mut self.core);
        assert!(seen.is_empty() || self.core.is_attached());
        self.received.extend(seen);
        self.told.extend(told(&mut self.core));
        self.heard.extend(events(&mut self.core));
    }

    fn reply(&mut self, error: bool) {
        if !self.core.is_attached() {
            return;
        }
        // The core checks the lease before it accepts an answer.
        self.core.heard_server(&[], self.now).unwrap();
        self.look();
        let Some(seen) = self.received.pop_front() else { return };
        self.zxid += 1;
        let path = Fields(&seen.body).string().unwrap_or_default().to_owned();
        let error = if error && seen.operation != op::CLOSE_SESSION { code::NO_NODE } else { 0 };
        let body = match seen.operation {
            _ if error != 0 => Vec::new(),
            op::EXISTS => vec![0; 68],
            op::GET_DATA => [text(""), vec![0; 68]].concat(),
            op::GET_CHILDREN => vec![0; 4],
            op::CREATE | op::SYNC => text(&format!("/{path}")),
            _ => Vec::new(),
        };
        answer(&mut self.core, seen.xid, self.zxid, error, &body, self.now).unwrap();
        // The heartbeat's path has no number.
        let Ok(number) = path.trim_start_matches('/').parse::<usize>() else { return };
        let fate = self.requests.get_mut(&number).expect("only what was asked is sent");
        if *fate == Fate::InFlight {
            *fate = Fate::Served(self.zxid);
            self.said.push(self.zxid);
        }
    }

    fn finish(mut self) {
        self.detach();
        let replies = &self.told;
        assert_eq!(replies.len(), self.requests.len(), "one reply for each request");
        for (reply, (number, fate)) in replies.iter().zip(&self.requests) {
            assert_eq!(reply.number, *number as i32, "replies come in the order of the requests");
            match fate {
                Fate::Served(zxid) => {
                    assert_eq!(reply.zxid, *zxid, "the reply of another request");
                    assert!(matches!(reply.error, code::OK | code::NO_NODE));
                }
                Fate::Failed(error) => assert_eq!(reply.error, *error, "request {number}"),
                Fate::InFlight => panic!("request {number} is still in flight"),
            }
        }
        let served = self.told.iter().map(|told| told.zxid).filter(|zxid| *zxid > 0);
        let events = (1..=self.events).map(|number| format!("/{number}"));
        assert_eq!(
            self.heard,
            events.collect::<Vec<_>>(),
            "each event once, in the server's order"
        );
        assert_eq!(served.collect::<Vec<_>>(), self.said, "replies in the server's order");
    }
}

pub(super) fn in_pieces(bytes: &[u8], cuts: &[usize], mut hear: impl FnMut(&[u8]) -> bool) {
    let mut rest = bytes;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let (piece, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
        rest = later;
        if !hear(piece) {
            return;
        }
    }
}

/// Bytes that look like frames more often than random bytes do.
fn nearly_frames() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        4 => -5i32..40,
        1 => prop::sample::select(vec![i32::MAX, i32::MIN, MAX_REPLY as i32 + 1, 0x10_0000]),
        1 => any::<i32>(),
    ];
    let piece = prop_oneof![
        3 => number.prop_map(|number| number.to_be_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (-5i32..8, -120i32..5, prop::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(xid, error, body)| Frame::reply(xid, 7, error).raw(&body).finish()),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/link/saved/core_tests.txt",
        ))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_gets_its_own_reply_once_and_in_order(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        model.finish();
    }

    #[test]
    fn no_bytes_of_a_server_do_harm(
        bytes in nearly_frames(),
        cuts in prop::collection::vec(1usize..60, 1..10),
        operations in prop::collection::vec(
            prop::sample::select(vec![op::CREATE, op::EXISTS, op::GET_DATA, op::GET_ACL, op::GET_CHILDREN]),
            0..6,
        ),
    ) {
        let (mut core, now) = (attached(), seconds(10.));
        for (number, operation) in operations.iter().enumerate() {
            ask(&mut core, number as i32, *operation, &with_flags("/a", 3), now);
        }
        let mut given = 0;
        in_pieces(&bytes, &cuts, |piece| {
            given += piece.len();
            let fine = core.heard_server(piece, now).is_ok();
            assert!(core.from_server.held() <= 64 + 2 * given);
            fine
        });
        core.detach(now);
        let replies = told(&mut core);
        let answered: Vec<i32> = replies.iter().map(|told| told.number).collect();
        prop_assert_eq!(answered, (0..operations.len() as i32).collect::<Vec<_>>());
        for (told, operation) in replies.iter().zip(&operations) {
            let sound = told.error != 0 || check_reply(*operation, &told.body).is_ok();
            prop_assert!(sound, "the caller got {:?}", told);
        }
    }

    #[test]
    fn replies_survive_any_split(cuts in prop::collection::vec(1usize..40, 1..20)) {
        let (mut core, now) = (attached(), seconds(10.));
        let mut stream = Vec::new();
        for number in 0..10 {
            ask(&mut core, number, op::GET_DATA, &text("/a"), now);
            let used = sent(&mut core)[0].xid;
            let data = vec![number as u8; number as usize * 13];
            stream.extend(Frame::reply(used, 5, 0).buffer(&data).raw(&[0; 68]).finish());
            stream.extend(event("/a"));
        }
        in_pieces(&stream, &cuts, |piece| core.heard_server(piece, now).is_ok());
        let order: Vec<i32> = told(&mut core).into_iter().map(|told| told.number).collect();
        prop_assert_eq!(order, (0..10).collect::<Vec<_>>());
        prop_assert_eq!(events(&mut core), ["/a"; 10]);
    }
}

#[test]
fn a_write_that_is_refused_renews_nothing() {
    let mut core = attached();
    ask(&mut core, 0, op::DELETE, &[], seconds(11.));
    let xid = sent(&mut core)[0].xid;
    answer(&mut core, xid, 1, code::OK, &[], seconds(11.)).unwrap();
    let lease_end = core.lease_end();
    for (number, error, renews) in [(1, code::NO_AUTH, false), (2, code::OK, true)] {
        let now = seconds(18.);
        ask(&mut core, number, op::DELETE, &[], now);
        let xid = sent(&mut core)[0].xid;
        answer(&mut core, xid, 1, error, &[], now).unwrap();
        assert_eq!(core.lease_end() > lease_end, renews, "error {error}");
    }
}
