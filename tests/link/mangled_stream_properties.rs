//! The core against a second, simpler reading of the protocol: whatever a server sends, in
//! whatever pieces, callers get what that reading says.

use super::wire_format::Frame;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::tests::*;
use super::*;

/// Operations that the library uses, and some that no server knows.
fn operations() -> impl Strategy<Value = i32> {
    prop_oneof![
        4 => prop::sample::select(vec![op::CREATE, op::DELETE, op::EXISTS, op::GET_DATA]),
        4 => prop::sample::select(vec![op::GET_ACL, op::SET_ACL, op::SET_DATA, op::GET_CHILDREN]),
        1 => prop::sample::select(vec![op::SYNC, 14, 18, 101, 107, -10, i32::MAX, i32::MIN]),
    ]
}

fn asked() -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(operations(), 1..12)
}

/// One frame from the server, without its length.
#[derive(Clone, Copy, Debug)]
enum Say {
    Reply { error: i32 },
    Event { kind: i32, state: i32 },
}

fn says() -> impl Strategy<Value = Vec<Say>> {
    let error = prop_oneof![
        6 => Just(0),
        3 => prop::sample::select(vec![code::NO_NODE, code::NODE_EXISTS, code::NO_AUTH, -9999]),
        1 => -120i32..3,
    ];
    let odd = prop_oneof![6 => 1i32..5, 1 => -3i32..9, 1 => any::<i32>()];
    let say = prop_oneof![
        4 => error.prop_map(|error| Say::Reply { error }),
        1 => (odd, prop_oneof![9 => Just(3), 1 => -2i32..8])
            .prop_map(|(kind, state)| Say::Event { kind, state }),
    ];
    prop::collection::vec(say, 0..16)
}

/// What goes wrong with a stream, or with the frames that it is made of.
#[derive(Clone, Debug)]
enum Harm {
    Flip(prop::sample::Index, u8),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    CutOff(prop::sample::Index),
    Overwrite(prop::sample::Index, i32),
    Swap(prop::sample::Index, prop::sample::Index),
    Repeat(prop::sample::Index),
    Renumber(prop::sample::Index, i32),
    Lose(prop::sample::Index),
    Append(Vec<u8>),
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = any::<prop::sample::Index>;
    let length =
        prop::sample::select(vec![0, -1, 15, 16, i32::MIN, i32::MAX, MAX_REPLY as i32 + 1]);
    prop_oneof![
        (at(), 0u8..8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        (at(), 1usize..30).prop_map(|(at, count)| Harm::Remove(at, count)),
        (at(), prop::collection::vec(any::<u8>(), 1..30))
            .prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        at().prop_map(Harm::CutOff),
        (at(), length).prop_map(|(at, number)| Harm::Overwrite(at, number)),
        (at(), at()).prop_map(|(one, other)| Harm::Swap(one, other)),
        at().prop_map(Harm::Repeat),
        (at(), -5i32..15).prop_map(|(at, number)| Harm::Renumber(at, number)),
        at().prop_map(Harm::Lose),
        prop::collection::vec(any::<u8>(), 0..60).prop_map(Harm::Append),
    ]
}

fn harmed(mut frames: Vec<Vec<u8>>, harms: &[Harm]) -> Vec<u8> {
    for harm in harms {
        let count = frames.len();
        match harm {
            _ if count == 0 => {}
            Harm::Swap(one, other) => frames.swap(one.index(count), other.index(count)),
            Harm::Repeat(at) => frames.insert(at.index(count), frames[at.index(count)].clone()),
            Harm::Lose(at) => drop(frames.remove(at.index(count))),
            Harm::Overwrite(at, number) => {
                frames[at.index(count)][..4].copy_from_slice(&number.to_be_bytes());
            }
            Harm::Renumber(at, number) => {
                frames[at.index(count)][4..8].copy_from_slice(&number.to_be_bytes());
            }
            _ => {}
        }
    }
    let mut stream = frames.concat();
    for harm in harms {
        let length = stream.len();
        match harm {
            Harm::Append(bytes) => stream.extend(bytes),
            _ if length == 0 => {}
            Harm::Flip(at, bit) => stream[at.index(length)] ^= 1 << bit,
            Harm::CutOff(at) => stream.truncate(at.index(length)),
            Harm::Insert(at, bytes) => {
                let at = at.index(length);
                stream.splice(at..at, bytes.iter().copied());
            }
            Harm::Remove(at, count) => {
                let at = at.index(length);
                stream.drain(at..(at + count).min(length));
            }
            _ => {}
        }
    }
    stream
}

/// All that can be seen of a core from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    told: Vec<Told>,
    events: Vec<String>,
    notices: Vec<Notice>,
    broken: bool,
    last_zxid: i64,
    renewed: bool,
}

/// A connection on which an answer from the leader would renew the lease.
fn connection() -> (Rig, Moment) {
    let mut core = attached();
    ask(&mut core, 0, op::EXISTS, &text("/"), seconds(12.));
    let used = sent(&mut core)[0].xid;
    answer(&mut core, used, 0, code::NO_NODE, &[], seconds(12.)).unwrap();
    told(&mut core);
    // The leader knows of that read by now.
    (core, seconds(19.))
}

/// Sends the requests, and returns them as they are on the wire, with their numbers.
fn ask_all(core: &mut Rig, requests: &[i32], now: Moment) -> Vec<(Seen, i32)> {
    for (number, operation) in (0..).zip(requests) {
        ask(core, number, *operation, &with_flags(&format!("/{number}"), 3), now);
    }
    sent(core).into_iter().zip(0..).collect()
}

fn body_of(operation: i32, number: usize) -> Vec<u8> {
    match operation {
        op::CREATE | op::CREATE_CONTAINER | op::SYNC => text(&format!("/{number}")),
        op::EXISTS | op::SET_DATA | op::SET_ACL => vec![number as u8; 68],
        op::GET_DATA => [text("data"), vec![number as u8; 68]].concat(),
        op::GET_ACL => {
            let one = Frame::new().int(1).int(31).buffer(b"world").buffer(b"anyone").body();
            [one, vec![0; 68]].concat()
        }
        op::GET_CHILDREN => Frame::new().int(2).buffer(b"a").buffer(b"b").body(),
        _ => Vec::new(),
    }
}

/// The frames of a correct server: events, and replies as long as there are requests.
fn spoken(wire: &[(Seen, i32)], says: &[Say]) -> Vec<Vec<u8>> {
    let mut due = wire.iter().enumerate();
    let frame = |(at, say): (usize, &Say)| match *say {
        Say::Event { kind, state } => {
            let event = Frame::reply(xid::WATCH, -1, 0).int(kind).int(state);
            Some(event.buffer(format!("/{at}").as_bytes()).finish())
        }
        Say::Reply { error } => due.next().map(|(number, (seen, _))| {
            let body = if error == 0 { body_of(seen.operation, number) } else { Vec::new() };
            Frame::reply(seen.xid, 100 + at as i64, error).raw(&body).finish()
        }),
    };
    says.iter().enumerate().filter_map(frame).collect()
}

/// What the core makes of the requests when it receives `stream`.
fn heard(requests: &[i32], stream: &[u8], cuts: &[usize]) -> Outcome {
    let (mut core, now) = connection();
    ask_all(&mut core, requests, now);
    let (lease, mut outcome, mut given) = (core.lease_end(), Outcome::default(), 0);
    in_pieces(stream, cuts, |piece| {
        given += piece.len();
        outcome.broken = core.heard_server(piece, now).is_err();
        assert!(core.from_server.held() <= 64 + 2 * given);
        !outcome.broken && !core.is_over()
    });
    outcome.renewed = core.lease_end() > lease;
    outcome.last_zxid = core.last_zxid;
    core.detach(now);
    outcome.notices = core.take_notices();
    outcome.told = told(&mut core);
    outcome.events = events(&mut core);
    outcome
}

/// The simpler reading: frame by frame, on the whole stream at once.
fn expected(wire: &[(Seen, i32)], stream: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut rest, mut due, mut ended) = (stream, VecDeque::from(wire.to_vec()), None);
    while let Some((prefix, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*prefix);
        let short = length < 16;
        let whole = usize::try_from(length).ok().filter(|length| *length <= MAX_REPLY);
        if !short && after.len() < whole.unwrap_or(16) {
            break;
        }
        let verdict = if short { Err(None) } else { judge(&mut outcome, &mut due, after, whole) };
        if let Err(why) = verdict {
            (outcome.broken, ended) = (why.is_none(), why);
            break;
        }
        rest = &after[(length as usize).min(after.len())..];
    }
    outcome.renewed &= ended.is_none();
    let error = if ended.is_some() { code::SESSION_EXPIRED } else { code::CONNECTION_LOSS };
    let lost = due.into_iter().map(|(_, number)| Told { number, zxid: 0, error, body: Vec::new() });
    outcome.told.extend(lost);
    outcome.notices = match ended {
        Some(why) => vec![Notice::Ended(why), Notice::Over],
        None => vec![Notice::Suspended],
    };
    outcome
}

/// Reads one frame; an error says that the connection is broken (`None`) or the session is over.
fn judge(
    outcome: &mut Outcome,
    due: &mut VecDeque<(Seen, i32)>,
    after: &[u8],
    whole: Option<usize>,
) -> Result<(), Option<End>> {
    let long = |at: usize| i64::from_be_bytes(after[at..at + 8].try_into().unwrap());
    let int = |at: usize| i32::from_be_bytes(after[at..at + 4].try_into().unwrap());
    let (number, zxid, mut error) = (int(0), long(4), int(12));
    let mut body = whole.map_or(&[][..], |length| &after[16..length]);
    if error == -112 {
        return Err(Some(End::Expired));
    }
    if number == -1 {
        if error != 0 || whole.is_none() {
            return Err(None);
        }
        outcome.events.push(read_event(body).map_err(|_| None)?.1.to_owned());
        outcome.last_zxid = outcome.last_zxid.max(zxid);
        return Ok(());
    }
    // The server takes only clients that authenticate by SASL: it ends the session.
    if number == -4 && error == -115 || error == -124 {
        return Err(Some(End::AuthFailed));
    }
    // Servers answer in order, except that some leave out what they do not know: to remove a watch, to create a container.
    let place = due.iter().position(|(seen, _)| seen.xid == number).unwrap_or(0);
    if due.iter().take(place).all(|(seen, _)| [18, 19].contains(&seen.operation)) {
        let unknown = |(_, number)| Told { number, zxid: 0, error: -6, body: Vec::new() };
        outcome.told.extend(due.drain(..place).map(unknown));
    }
    let (seen, asked) = due.front().filter(|(seen, _)| seen.xid == number).cloned().ok_or(None)?;
    match error {
        -118 | -122 | -4 | -7 => return Err(None),
        _ if whole.is_none() => (error, body) = (-5, &[]),
        0 if check_reply(seen.operation, body).is_err() => return Err(None),
        _ => {}
    }
    due.pop_front();
    outcome.last_zxid = outcome.last_zxid.max(zxid);
    // Create, delete, set data, set ACL, sync, a transaction, create a container.
    let written = [1, 2, 5, 7, 9, 14, 19].contains(&seen.operation);
    outcome.renewed |= written && [0, -101, -110, -111].contains(&error);
    outcome.told.push(Told { number: asked, zxid, error, body: body.to_vec() });
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/link/saved/mangled_stream_properties.txt",
        ))),
        ..ProptestConfig::default()
    })]

    /// A mismatched, repeated, mangled or unrequested reply answers no request; what came before
    /// it counts, what comes after it is ignored, and the reply does not renew the lease.
    #[test]
    fn a_mangled_stream_is_read_as_far_as_it_is_sound(
        requests in asked(),
        says in says(),
        harms in prop::collection::vec(harm(), 0..4),
        cuts in prop::collection::vec(1usize..80, 1..12),
    ) {
        let (mut core, now) = connection();
        let wire = ask_all(&mut core, &requests, now);
        let stream = harmed(spoken(&wire, &says), &harms);
        let reading = expected(&wire, &stream);
        prop_assert_eq!(heard(&requests, &stream, &cuts), reading.clone());
        prop_assert_eq!(heard(&requests, &stream, &[stream.len().max(1)]), reading);
    }
}
