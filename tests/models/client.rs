use std::sync::Arc;
use std::time::Duration;

use super::connection::Servers;
use super::ensemble::{Troubles, World};
use super::{explore, join, threads};
use crate::error::ErrorKind;
use crate::rt::shuttled::set_poverty;
use crate::rt::{Deadline, Mutex};
use crate::session::{Client, Patience, SessionState, Waiter};

fn client(world: &Arc<World>) -> Client {
    Client::with(Box::new(Servers(Arc::clone(world))), "test".to_owned(), String::new())
}

/// Asks for a session and returns the outcome.
fn ask(client: &Client, until: Deadline, patience: Patience) -> Result<i64, Option<ErrorKind>> {
    match client.core().session(&Waiter::new(), until, || false, patience) {
        Ok(Some(session)) => Ok(session.id()),
        Ok(None) => Err(None),
        Err(error) => Err(Some(error.kind())),
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(1))
}

/// Checks that all sessions that were opened have been closed.
fn assert_none_is_left(world: &World) {
    assert_eq!(world.sessions().1, 0, "a session was left open");
}

#[test]
fn many_who_want_a_session_share_one() {
    explore(|| {
        let world = World::new(Troubles::default());
        let client = client(&world);
        let asking = client.clone();
        let sessions = join(threads(3, move |_| {
            ask(&asking, Deadline::NEVER, Patience::UntilDeadline).unwrap()
        }));
        assert_eq!(sessions, [sessions[0]; 3]);
        assert_eq!(world.sessions().0, 1, "more were opened than needed");
        drop(client);
        move || assert_none_is_left(&world)
    });
}

/// Checks that no caller waits for ever, whatever goes wrong with opening: each gets a session or
/// an error.
fn openings(troubles: Troubles, poverty: u32) -> impl FnOnce() {
    let world = World::new(troubles);
    let client = client(&world);
    let asking = client.clone();
    set_poverty(poverty);
    join(threads(4, move |number| {
        let (until, patience) = match number {
            0 | 1 => (Deadline::NEVER, Patience::UntilDeadline),
            2 => (Deadline::NEVER, Patience::OneAttempt),
            _ => (soon(), Patience::UntilDeadline),
        };
        match (number, ask(&asking, until, patience)) {
            (_, Ok(_)) | (3, Err(None)) => {}
            (2, Err(Some(ErrorKind::Connect))) => assert!(troubles.unreachable > 0),
            (_, Err(Some(ErrorKind::AuthFailed))) => assert!(troubles.rejected > 0),
            (_, Err(Some(ErrorKind::System))) => assert!(poverty > 0),
            (number, other) => panic!("{number}: {other:?}"),
        }
    }));
    set_poverty(0);
    drop(client);
    move || assert_none_is_left(&world)
}

#[test]
fn openings_that_fail_leave_nobody_waiting() {
    explore(|| openings(Troubles { unreachable: 2, until: 4, ..Troubles::default() }, 0));
}

#[test]
fn openings_that_are_rejected_leave_nobody_waiting() {
    explore(|| openings(Troubles { rejected: 2, until: 4, ..Troubles::default() }, 0));
}

#[test]
fn without_threads_nobody_waits_for_an_opening_that_is_none() {
    explore(|| openings(Troubles::default(), 60));
}

/// The thread that opens panics; another caller opens instead.
#[test]
fn openings_that_panic_leave_nobody_waiting() {
    explore(|| openings(Troubles { panics: 2, until: 4, ..Troubles::default() }, 0));
}

#[test]
fn a_close_at_any_moment_leaves_nobody_waiting_and_no_session() {
    explore(|| {
        let world = World::new(Troubles { unreachable: 3, until: 3, ..Troubles::default() });
        let client = client(&world);
        let asking = client.clone();
        let waits = threads(4, move |number| {
            if number == 3 {
                asking.close();
                assert_eq!(asking.state(), SessionState::Closed);
                return;
            }
            for _ in 0..2 {
                match ask(&asking, Deadline::NEVER, Patience::UntilDeadline) {
                    Ok(_) | Err(Some(ErrorKind::Closed)) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        join(waits);
        let closed = ask(&client, Deadline::NEVER, Patience::UntilDeadline);
        assert_eq!(closed, Err(Some(ErrorKind::Closed)));
        // As dropping the last client does; it has no effect here, as the client is closed.
        client.close();
        move || {
            assert_none_is_left(&world);
            drop(client);
        }
    });
}

/// The clients are dropped while a session is being opened.
#[test]
fn a_session_that_nobody_wants_any_more_is_closed() {
    explore(|| {
        let world = World::new(Troubles::default());
        let client = client(&world);
        join(threads(2, move |_| ask(&client, soon(), Patience::UntilDeadline)));
        move || assert_none_is_left(&world)
    });
}

/// Listeners get all changes in order, and the close last.
#[test]
fn states_are_told_in_their_order_until_closed() {
    explore(|| {
        let world = World::new(Troubles::default());
        let client = client(&world);
        let first = ask(&client, Deadline::NEVER, Patience::UntilDeadline).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&told);
        client.on_state_change(move |state| note.lock().push(state)).detach();
        world.reconnect();
        world.expire();
        let asking = client.clone();
        let second = join(threads(2, move |_| {
            ask(&asking, Deadline::NEVER, Patience::UntilDeadline).unwrap()
        }));
        assert!(second.iter().all(|one| *one == first || *one == first + 1));
        client.close();
        move || {
            assert_none_is_left(&world);
            let told = told.lock().clone();
            let pairs = told.windows(2);
            assert!(pairs.clone().all(|pair| pair[0] != pair[1]), "a state came twice: {told:?}");
            assert_eq!(told.last(), Some(&SessionState::Closed), "{told:?}");
            drop(client);
        }
    });
}

/// A listener registered right after the first session hears of the close, too.
#[test]
fn a_close_right_after_the_first_session_is_told() {
    explore(|| {
        let world = World::new(Troubles::default());
        let client = client(&world);
        ask(&client, Deadline::NEVER, Patience::UntilDeadline).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&told);
        client.on_state_change(move |state| note.lock().push(state)).detach();
        client.close();
        move || {
            assert_eq!(*told.lock().clone(), [SessionState::Closed]);
            drop(client);
        }
    });
}
