//! What servers do that are not ZooKeeper's: they close sessions in silence, end them by a reply to no
//! request, and do not know every operation.

use super::tests::{
    T, answer, ask, attached, codes, event, events, granted, seconds, sent, text, with_flags,
};
use super::wire_format::Frame;
use super::*;
use crate::wire_values::FLAG_CONTAINER;

const CONTAINER: i32 = op::CREATE_CONTAINER;

/// A core on a session that ends with its connection.
fn attached_elsewhere() -> LinkCore {
    let mut core = LinkCore::new(1 << 20, Arc::default());
    core.attach(Granted { password: vec![0; 16], ..granted(seconds(10.)) }, seconds(10.));
    core.take_notices();
    core
}

#[test]
fn a_reply_of_any_number_that_says_expired_ends_the_session() {
    for is_asked in [true, false] {
        for xid in [0, 1, 9, xid::WATCH, xid::AUTH] {
            let mut core = attached();
            if is_asked {
                ask(&mut core, 1, op::EXISTS, &text("/a"), seconds(10.));
            }
            answer(&mut core, xid, 0, code::SESSION_EXPIRED, &[], seconds(11.)).unwrap();
            assert_eq!(core.take_notices(), [Notice::Ended(End::Expired), Notice::Over], "{xid}");
        }
    }
}

// ----- closing a session

#[test]
fn a_connection_that_ends_behind_close_says_that_a_session_is_closed_that_ends_with_it() {
    let mut core = attached_elsewhere();
    core.close(End::Closed, seconds(11.));
    sent(&mut core);
    core.server_has_hung_up(seconds(11.));
    assert_eq!(core.take_notices(), [Notice::Ended(End::Closed), Notice::Over]);
}

#[test]
fn any_other_end_of_a_connection_does_not_say_that_the_session_is_closed() {
    let mut at_zookeeper = attached();
    at_zookeeper.close(End::Closed, seconds(11.));
    sent(&mut at_zookeeper);
    at_zookeeper.server_has_hung_up(seconds(11.));
    assert!(!at_zookeeper.is_over());
    let mut unsent = attached_elsewhere();
    unsent.close(End::Closed, seconds(11.));
    unsent.server_has_hung_up(seconds(11.));
    assert!(!unsent.is_over(), "the request was never sent");
    let mut live = attached_elsewhere();
    live.server_has_hung_up(seconds(11.));
    assert!(!live.is_over() && live.ended().is_none());
    let mut broken = attached_elsewhere();
    broken.close(End::Closed, seconds(11.));
    sent(&mut broken);
    broken.server_has_closed(seconds(11.));
    assert!(!broken.is_over(), "not in good order");
}

// ----- unknown operations

/// A connection on which the server has answered one request, or none.
fn connected(unknown: &Arc<UnsupportedOperations>, has_answered: bool, now: Moment) -> LinkCore {
    let mut core = LinkCore::new(1 << 20, Arc::clone(unknown));
    core.attach(granted(now), now);
    if has_answered {
        submit(&mut core, op::SYNC, &text("/"), now);
        let sync = sent(&mut core)[0].xid;
        answer(&mut core, sync, 5, 0, &text("/"), now).unwrap();
    }
    core
}

fn submit(core: &mut LinkCore, operation: i32, body: &[u8], now: Moment) {
    core.verb(operation, body, Box::new(drop), now);
}

/// The server closes a connection right behind the creation of a container.
fn closes(unknown: &Arc<UnsupportedOperations>, has_answered: bool, now: Moment) {
    let mut core = connected(unknown, has_answered, now);
    submit(&mut core, CONTAINER, &with_flags("/a", FLAG_CONTAINER), now);
    core.server_has_closed(now);
}

type Ending<'a> = &'a dyn Fn(&Arc<UnsupportedOperations>, Moment);

/// Whether two such ends, by these functions, and an answer on a third connection show that containers
/// are unknown.
fn is_shown(ends: [Ending<'_>; 2]) -> bool {
    let unknown = Arc::default();
    for (end, now) in ends.into_iter().zip([seconds(10.), seconds(10.).plus(T / 3)]) {
        end(&unknown, now);
    }
    let now = seconds(20.);
    assert!(!unknown.is_unknown(CONTAINER, now));
    connected(&unknown, true, now);
    unknown.is_unknown(CONTAINER, now)
}

#[test]
fn containers_are_unknown_where_two_connections_end_on_one_and_the_next_one_works() {
    let end = |unknown: &Arc<UnsupportedOperations>, now| closes(unknown, true, now);
    assert!(is_shown([&end, &end]));
    let fresh = |unknown: &Arc<UnsupportedOperations>, now| closes(unknown, false, now);
    assert!(!is_shown([&end, &fresh]), "the second server has answered nothing");
    let behind = |unknown: &Arc<UnsupportedOperations>, now| {
        let mut core = connected(unknown, true, now);
        submit(&mut core, op::EXISTS, &text("/a"), now);
        submit(&mut core, CONTAINER, &with_flags("/a", FLAG_CONTAINER), now);
        core.server_has_closed(now);
    };
    assert!(!is_shown([&end, &behind]), "another request is older");
    let large = |unknown: &Arc<UnsupportedOperations>, now| {
        let mut core = connected(unknown, true, now);
        submit(&mut core, CONTAINER, &with_flags("/a", FLAG_CONTAINER), now);
        submit(&mut core, op::SET_DATA, &vec![0; 70_000], now);
        core.server_has_closed(now);
    };
    assert!(!is_shown([&end, &large]), "the other request may be too large");
    let made = |unknown: &Arc<UnsupportedOperations>, now| {
        closes(unknown, true, now);
        let mut core = connected(unknown, true, now);
        submit(&mut core, CONTAINER, &with_flags("/a", FLAG_CONTAINER), now);
        let request = sent(&mut core).remove(0);
        answer(&mut core, request.xid, 6, code::NODE_EXISTS, &[], now).unwrap();
    };
    assert!(!is_shown([&made, &end]), "a server knew it in between");
}

#[test]
fn an_operation_is_unknown_where_the_server_says_so_or_answers_a_later_request() {
    for operation in [CONTAINER, op::REMOVE_WATCHES] {
        let (mut core, now) = (attached(), seconds(10.));
        let unknown = Arc::clone(&core.unsupported_operations);
        ask(&mut core, 1, operation, &text("/a"), now);
        let request = sent(&mut core)[0].xid;
        answer(&mut core, request, 5, code::UNIMPLEMENTED, &[], now).unwrap();
        assert!(unknown.is_unknown(operation, now));

        let (mut core, now) = (attached(), seconds(10.));
        let unknown = Arc::clone(&core.unsupported_operations);
        for (number, operation) in [(1, operation), (2, operation), (3, op::EXISTS), (4, operation)]
        {
            ask(&mut core, number, operation, &text("/a"), now);
        }
        let third = sent(&mut core)[2].xid;
        core.heard_server(&event("/b"), now).unwrap();
        assert!(!unknown.is_unknown(operation, now), "an event answers nothing");
        answer(&mut core, third, 5, code::NO_NODE, &[], now).unwrap();
        assert!(unknown.is_unknown(operation, now));
        let left_out = code::UNIMPLEMENTED;
        assert_eq!(codes(&mut core), [(1, left_out), (2, left_out), (3, code::NO_NODE)]);
        assert_eq!(events(&mut core), ["/b"]);
    }
}

#[test]
fn no_other_request_is_passed_over_and_silence_shows_nothing() {
    let (mut core, now) = (attached(), seconds(10.));
    for (number, operation) in [(1, CONTAINER), (2, op::EXISTS), (3, op::EXISTS)] {
        ask(&mut core, number, operation, &text("/a"), now);
    }
    let third = sent(&mut core)[2].xid;
    answer(&mut core, third, 5, code::NO_NODE, &[], now).unwrap_err();
    assert!(!core.unsupported_operations.is_unknown(CONTAINER, now));
    let mut silent = attached();
    ask(&mut silent, 1, CONTAINER, &text("/a"), now);
    silent.tick(seconds(14.)).unwrap_err();
    assert!(!silent.unsupported_operations.is_unknown(CONTAINER, seconds(14.)));
}

// ----- a session that has moved

/// Servers before 3.4.11 and 3.5.4 tell so inside of the reply.
#[test]
fn a_transaction_that_failed_as_the_session_has_moved_is_a_lost_connection() {
    let step = |frame: Frame, error| frame.int(-1).flag(false).int(error).int(error);
    let failed = |errors: [i32; 2]| {
        errors.into_iter().fold(Frame::new(), step).int(-1).flag(true).int(-1).body()
    };
    let moved = [0, code::SESSION_MOVED];
    for (errors, is_lost) in [(moved, true), ([0, code::NODE_EXISTS], false)] {
        let (mut core, now) = (attached(), seconds(10.));
        ask(&mut core, 1, op::MULTI, &[], now);
        let request = sent(&mut core)[0].xid;
        let heard = answer(&mut core, request, 5, 0, &failed(errors), now);
        assert_eq!(heard.is_err(), is_lost);
        core.detach(now);
        let due = if is_lost { code::CONNECTION_LOSS } else { code::OK };
        assert_eq!(codes(&mut core), [(1, due)]);
    }
}
