use std::sync::Arc;
use std::time::Duration;

use super::connection::Servers;
use super::ensemble::{Troubles, World};
use super::{explore, join, threads, until};
use crate::rt::shuttled::set_poverty;
use crate::session::{Reaper, Session, Waiter};

/// Makes a reaper and a session that reminds it of work without a thread, as a client's does.
fn with_nodes(paths: &[&str]) -> (Arc<World>, Arc<Reaper>, Arc<Session>) {
    let (world, reaper) = (World::new(Troubles::default()), Reaper::new("reaper", |_, _| ()));
    world.make("/lock");
    for path in paths {
        world.make(path);
    }
    let reminded = reaper.clone();
    let on_notice = move |_| drop(reminded.retry());
    let servers = Servers(Arc::clone(&world));
    let session =
        Session::open(&servers, (usize::MAX, false), &Waiter::new(), || false, on_notice).unwrap();
    (world, reaper, Arc::new(session))
}

/// Two threads have nodes deleted; the sweep's node is created at the last moment.
fn reap(world: &Arc<World>, reaper: &Arc<Reaper>, session: &Arc<Session>) {
    let (reaper, session) = (reaper.clone(), Arc::clone(session));
    let world = Arc::clone(world);
    join(threads(2, move |number| {
        if number == 0 {
            reaper.delete(&session, "/lock/a".to_owned());
            reaper.delete(&session, "/lock/gone".to_owned());
        } else {
            world.make("/lock/doubtful-7");
            reaper.sweep(&session, "/lock".to_owned(), vec!["doubtful".to_owned()]);
        }
    }));
}

fn finish(world: &World, reaper: &Arc<Reaper>, session: &Session) {
    until(|| reaper.backlog() == 0);
    assert_eq!(world.nodes(), ["/", "/lock", "/lock/other"]);
    session.close(crate::connection_notice::End::Closed, Duration::ZERO);
}

#[test]
fn nothing_is_forgotten_while_the_thread_comes_and_goes() {
    explore(|| {
        let (world, reaper, session) = with_nodes(&["/lock/a", "/lock/other"]);
        reap(&world, &reaper, &session);
        finish(&world, &reaper, &session);
        || ()
    });
}

#[test]
fn nothing_is_forgotten_over_reconnections() {
    explore(|| {
        let (world, reaper, session) = with_nodes(&["/lock/a", "/lock/other"]);
        world.reconnect();
        reap(&world, &reaper, &session);
        world.reconnect();
        finish(&world, &reaper, &session);
        || ()
    });
}

#[test]
fn the_end_of_the_session_is_the_end_of_its_tasks_and_of_the_thread() {
    explore(|| {
        let (world, reaper, session) = with_nodes(&["/lock/a"]);
        world.disconnect();
        world.expire();
        reap(&world, &reaper, &session);
        drop(session);
        move || assert_eq!(reaper.backlog(), 0)
    });
}

/// Without a thread the reaper still requests deletes, before any reminder. Once it is reminded and
/// gets a thread, it does the rest.
#[test]
fn without_threads_deletes_are_asked_for_and_sweeps_wait_for_a_reminder() {
    explore(|| {
        let (world, reaper, session) = with_nodes(&["/lock/a", "/lock/b", "/lock/other"]);
        set_poverty(60);
        let (adding, owner) = (reaper.clone(), Arc::clone(&session));
        join(threads(3, move |number| match number {
            0 => adding.delete(&owner, "/lock/a".to_owned()),
            1 => adding.delete(&owner, "/lock/b".to_owned()),
            _ => adding.sweep(&owner, "/lock".to_owned(), vec!["doubtful".to_owned()]),
        }));
        until(|| !["/lock/a", "/lock/b"].iter().any(|path| world.contains(path)));
        set_poverty(0);
        world.reconnect();
        finish(&world, &reaper, &session);
        || ()
    });
}
