//! Candidates that stand again by themselves.

use std::ops::ControlFlow::{Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use zklock::election::{ElectionPhase, ElectionProgress};
use zklock::{
    Acl, Cancel, Client, ErrorKind, FencingToken, LeaderElection, Leadership, SessionState,
};

use super::{SOON, election, last_kind, ms, named};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{eventually, kind, last, skip_without_server, skip_without_zookeeper};

fn wait_for_phase(election: &LeaderElection, phase: ElectionPhase) -> ElectionProgress {
    eventually(SOON, &format!("{phase:?}"), || election.progress().phase == phase);
    election.progress()
}

/// Loops of three clients, through an expired session, an ended lease, a deleted node and a server
/// restart. Whichever loop leads, by its own clock, has the highest token of all leaders so far.
#[test]
fn s73_of_supervised_loops_never_are_two_leaders() {
    skip_without_server!();
    let site = Site::own("s73-loops");
    let rigs: Vec<(Proxy, Client)> = (0..3).map(|_| site.proxied(ms(2_000))).collect();
    let elections: Vec<LeaderElection> = (0..3)
        .map(|number| {
            let builder = LeaderElection::new(&rigs[number].1, &site.base, "a");
            builder.id(number.to_string()).back_off(ms(1), ms(20))
        })
        .collect();
    let (cancel, highest) = (Cancel::new(), Mutex::new(None::<FencingToken>));
    // Set while another client ends a leader's session or deletes its node: the leader may learn of
    // that only when the next one leads already.
    let stranger = AtomicBool::new(false);
    let terms = || elections.iter().map(|one| one.progress().terms).collect::<Vec<_>>();
    thread::scope(|scope| {
        for election in &elections {
            let (cancel, highest, stranger) = (&cancel, &highest, &stranger);
            scope.spawn(move || {
                let term = |leadership: &Leadership| {
                    for step in 0.. {
                        let mut highest = highest.lock().unwrap();
                        if !leadership.is_held() || cancel.is_cancelled() || step == 20 {
                            break;
                        }
                        let token = Some(leadership.fencing_token());
                        let is_newest = token >= *highest;
                        assert!(is_newest || stranger.load(Ordering::SeqCst), "two leaders");
                        *highest = token.max(*highest);
                        drop(highest);
                        thread::sleep(ms(1));
                    }
                    if leadership.fencing_token().zxid().is_multiple_of(2) {
                        leadership.ensure_held()?;
                    }
                    Ok(Continue::<()>(()))
                };
                assert_eq!(kind(election.lead_within(cancel, term)), ErrorKind::Cancelled);
            });
        }
        let all_lead_again = |what: &str| {
            let before = terms();
            eventually(3 * SOON, what, || {
                terms().iter().zip(&before).all(|(now, before)| *now >= before + 2)
            });
        };
        all_lead_again("all to lead in turn");
        stranger.store(true, Ordering::SeqCst);
        site.expire(&rigs[0].0);
        all_lead_again("all to lead after a session's end");
        stranger.store(false, Ordering::SeqCst);
        rigs[1].0.black_hole();
        eventually(SOON, "the end of the lease", || rigs[1].1.state() == SessionState::Lost);
        rigs[1].0.pass();
        all_lead_again("all to lead after the end of a lease");
        let mut raw = site.raw();
        let leader = elections[0].leader().unwrap();
        stranger.store(true, Ordering::SeqCst);
        leader.into_iter().for_each(|leader| drop(raw.delete(&leader.path)));
        raw.close().unwrap();
        all_lead_again("all to lead after a deletion");
        stranger.store(false, Ordering::SeqCst);
        site.server().restart();
        all_lead_again("all to lead after a restart");
        cancel.cancel();
    });
    for election in &elections {
        assert_eq!(election.progress().phase, ElectionPhase::Idle);
    }
    drop(elections);
    site.finish(rigs.into_iter().map(|(_, zk)| zk));
}

#[test]
fn s75_after_an_error_a_leader_rests_and_stands_again() {
    skip_without_zookeeper!();
    let site = Site::shared("s75");
    let zk = site.client();
    let election = LeaderElection::new(&zk, &site.base, "a").back_off(ms(1), ms(10));
    let (seen, mut tokens) = (election.clone(), Vec::new());
    assert_eq!(seen.progress().phase, ElectionPhase::Idle);
    assert!(seen.progress().last_error.is_none());
    let value = election
        .lead(|leadership| {
            let progress = seen.progress();
            assert_eq!(progress.phase, ElectionPhase::Leading);
            assert_eq!(progress.terms, tokens.len() as u64 + 1);
            let last = progress.last_error.map(|error| error.to_string());
            leadership.ensure_held()?;
            tokens.push(leadership.fencing_token());
            match tokens.len() {
                1 => assert_eq!(last, None),
                number => assert_eq!(last, Some(format!("error {}", number - 1))),
            }
            match tokens.len() {
                7 => Ok(Break("enough")),
                number => Err(format!("error {number}").into()),
            }
        })
        .unwrap();
    assert_eq!(value, "enough");
    assert!(tokens.is_sorted() && tokens[0] < tokens[6], "{tokens:?}");
    let progress = seen.progress();
    assert_eq!((progress.phase, progress.terms), (ElectionPhase::Idle, 7));
    assert_eq!(progress.last_error.unwrap().to_string(), "error 6");
    // Once more: the count of terms continues.
    assert_eq!(seen.lead(|_| Ok(Break(1))).unwrap(), 1);
    assert_eq!(election.progress().terms, 8);
    site.wait_for_children("a", 0);
    drop((election, seen));
    site.finish([zk]);
}

#[test]
fn s75_while_one_rests_another_leads_and_a_rest_can_be_ended() {
    skip_without_zookeeper!();
    for end in ["cancel", "close"] {
        let site = Site::shared("s75-rest");
        let clients = [site.client(), site.client()];
        let [ours, theirs] = clients.each_ref().map(|zk| named(zk, &site, "one"));
        let (cancel, both) = (Cancel::new(), Barrier::new(2));
        thread::scope(|scope| {
            let failing = scope.spawn(|| {
                ours.lead_within::<()>(&cancel, |_| {
                    both.wait();
                    Err("it does not work".into())
                })
            });
            wait_for_phase(&ours, ElectionPhase::Leading);
            let waiter = scope.spawn(|| theirs.campaign_within(SOON).unwrap());
            site.wait_for_children("a", 2);
            both.wait();
            let leadership = waiter.join().unwrap();
            if leadership.is_none() {
                cancel.cancel();
            }
            let leadership = leadership.expect("it resigns before it backs off");
            let progress = wait_for_phase(&ours, ElectionPhase::Resting);
            assert_eq!(progress.terms, 1);
            assert_eq!(progress.last_error.unwrap().to_string(), "it does not work");
            assert_eq!(site.children("a"), [last(leadership.path())]);
            assert!(!failing.is_finished());
            if end == "cancel" {
                cancel.cancel();
                assert_eq!(kind(failing.join().unwrap()), ErrorKind::Cancelled);
                assert_eq!(ours.progress().last_error.unwrap().to_string(), "it does not work");
            } else {
                clients[0].close();
                assert_eq!(kind(failing.join().unwrap()), ErrorKind::Closed);
                assert_eq!(last_kind(&ours), ErrorKind::Closed);
            }
            assert_eq!(ours.progress().phase, ElectionPhase::Idle);
        });
        drop((ours, theirs));
        site.finish(clients);
    }
}

/// After anything that counts as an error, the loop would back off forever.
#[test]
fn s75_after_a_loss_it_stands_again_at_once() {
    skip_without_server!();
    let site = Site::own("s75-loss");
    let (proxy, zk) = site.proxied(ms(2_000));
    let election = named(&zk, &site, "one");
    let mut paths: Vec<String> = Vec::new();
    let mut raw = site.raw();
    let cancel = Cancel::new();
    let terms = thread::scope(|scope| {
        // If the loop backs off, it is cancelled.
        scope.spawn(|| {
            let end = Instant::now() + 6 * SOON;
            eventually(7 * SOON, "the terms", || {
                let phase = election.progress().phase;
                if phase == ElectionPhase::Resting || Instant::now() > end {
                    cancel.cancel();
                }
                phase == ElectionPhase::Idle && election.progress().terms > 0
            });
        });
        election.lead_within(&cancel, |leadership| {
            paths.push(leadership.path().to_owned());
            match paths.len() {
                1 | 2 => raw.delete(leadership.path())?,
                3 => site.expire(&proxy),
                4 => proxy.black_hole(),
                _ => return Ok(Break(paths.len())),
            }
            assert!(
                matches!(leadership.lost().wait_within(SOON), Some(Err(_))),
                "term {}",
                paths.len()
            );
            proxy.release();
            assert!(!leadership.is_held());
            if paths.len() > 1 {
                leadership.ensure_held()?;
            }
            Ok(Continue(()))
        })
    });
    assert_eq!(terms.unwrap(), Some(5));
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 5, "a node was used twice");
    assert_eq!(last_kind(&election), ErrorKind::SessionLost);
    raw.close().unwrap();
    drop(election);
    site.finish([zk]);
}

#[test]
fn s75_a_panic_resigns_and_goes_on_to_the_caller() {
    skip_without_zookeeper!();
    let site = Site::shared("s75-panic");
    let zk = site.client();
    let election = election(&zk, &site);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        election.lead::<()>(|_| {
            assert_eq!(election.progress().phase, ElectionPhase::Leading);
            std::panic::resume_unwind(Box::new("a panic"))
        })
    }));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"a panic"));
    assert_eq!(election.progress().phase, ElectionPhase::Idle);
    site.wait_for_children("a", 0);
    assert_eq!(election.lead(|_| Ok(Break(election.progress().terms))).unwrap(), 2);
    drop(election);
    site.finish([zk]);
}

#[test]
fn s75_what_trying_again_may_mend_does_not_end_it() {
    skip_without_server!();
    let base = "/zklock-test/at-the-end";
    // The first number is too close to the last one. The lock node is then deleted, and numbers begin anew.
    let server = Server::builder().sequence(format!("{base}/a"), i32::MAX - 1);
    let mut site = Site::with("s75-retryable", &server);
    base.clone_into(&mut site.base);
    let zk = site.client();
    let election = election(&zk, &site).back_off(ms(1), ms(10));
    let terms = election.lead(|_| Ok(Break(election.progress().terms))).unwrap();
    assert_eq!(terms, 1);
    assert_eq!(last_kind(&election), ErrorKind::SequenceExhausted);
    drop(election);
    site.finish([zk]);
}

#[test]
fn s75_what_waiting_cannot_mend_ends_it() {
    skip_without_zookeeper!();
    let site = Site::shared("s75-ends");
    let zk = site.client();
    let refused = [
        (LeaderElection::new(&zk, "locks", "a"), ErrorKind::InvalidName),
        (
            LeaderElection::new(&zk, &site.base, "a").acl(Acl::creator_only()),
            ErrorKind::InvalidArgument,
        ),
        (LeaderElection::new(&zk, &site.base, "a").id("unlock"), ErrorKind::InvalidArgument),
    ];
    for (election, why) in refused {
        assert_eq!(kind(election.lead::<()>(|_| panic!("it leads"))), why);
        assert_eq!(last_kind(&election), why);
        let progress = election.progress();
        assert_eq!((progress.phase, progress.terms), (ElectionPhase::Idle, 0));
    }
    site.finish([zk]);
}

#[test]
fn who_goes_on_stands_behind_the_others() {
    skip_without_zookeeper!();
    let site = Site::shared("behind");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| named(zk, &site, "one"));
    let (cancel, order) = (Cancel::new(), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        // A term lasts until the other candidate waits behind it.
        let lead = |election: &LeaderElection, who: &'static str| {
            let ended = election.lead_within(&cancel, |leadership| {
                eventually(SOON, "the other candidate", || {
                    cancel.is_cancelled() || site.children("a").len() == 2
                });
                assert!(leadership.is_held());
                let mut order = order.lock().unwrap();
                order.push(who);
                if order.len() == 9 {
                    cancel.cancel();
                }
                Ok(Continue::<()>(()))
            });
            assert_eq!(kind(ended), ErrorKind::Cancelled);
        };
        scope.spawn(move || lead(&ours, "ours"));
        scope.spawn(move || lead(&theirs, "theirs"));
    });
    let order = order.into_inner().unwrap();
    assert!(order.windows(2).all(|two| two[0] != two[1]), "{order:?}");
    site.finish(clients);
}

#[test]
fn cancelling_ends_a_campaign_of_the_loop_at_once_and_leaves_no_node() {
    skip_without_zookeeper!();
    let site = Site::shared("lead-cancel");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| election(zk, &site));
    let leadership = ours.campaign().unwrap();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let loops: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| theirs.lead_within::<()>(&cancel, |_| panic!("it leads"))))
            .collect();
        site.wait_for_children("a", 3);
        assert_eq!(theirs.progress().phase, ElectionPhase::Campaigning);
        cancel.cancel();
        for one in loops {
            assert_eq!(kind(one.join().unwrap()), ErrorKind::Cancelled);
        }
    });
    assert_eq!(theirs.progress().phase, ElectionPhase::Idle);
    assert!(theirs.progress().last_error.is_none());
    assert_eq!(site.children("a"), [last(leadership.path())]);
    // The `Cancel` is tripped already.
    assert_eq!(
        kind(theirs.lead_within::<()>(&cancel, |_| panic!("it leads"))),
        ErrorKind::Cancelled
    );
    drop((leadership, ours, theirs));
    site.finish(clients);
}

/// Of several loops on one value, `progress` reports the one that has come furthest.
#[test]
fn progress_tells_of_all_who_share_a_value() {
    skip_without_zookeeper!();
    let site = Site::shared("progress");
    let zk = site.client();
    let (election, cancel) = (named(&zk, &site, "one"), Cancel::new());
    thread::scope(|scope| {
        let (end, until) = mpsc::channel::<()>();
        let other = election.clone();
        let leading = scope.spawn(move || {
            other.lead(|_| {
                let _ = until.recv();
                Ok(Break(()))
            })
        });
        wait_for_phase(&election, ElectionPhase::Leading);
        let failing = scope.spawn(|| election.lead_within::<()>(&cancel, |_| Err("no".into())));
        site.wait_for_children("a", 2);
        assert_eq!(election.progress().phase, ElectionPhase::Leading);
        drop(end);
        leading.join().unwrap().unwrap();
        assert_eq!(wait_for_phase(&election, ElectionPhase::Resting).terms, 2);
        cancel.cancel();
        assert_eq!(kind(failing.join().unwrap()), ErrorKind::Cancelled);
    });
    assert_eq!(election.progress().phase, ElectionPhase::Idle);
    drop(election);
    site.finish([zk]);
}
