use std::ops::ControlFlow::{Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use zklock::election::{ElectionPhase, ElectionProgress};
use zklock::{
    Acl, Cancel, Changes, Client, Contender, Error, ErrorKind, FencingToken, LeaderElection,
    Leadership, LossReason, NodeNaming, SessionState,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, Kind};
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, got_nothing, kind, last, skip_without_server, skip_without_zookeeper, strict,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
/// A back-off longer than any test.
const FOR_EVER: Duration = Duration::from_secs(3_600);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn election(zk: &Client, site: &Site) -> LeaderElection {
    LeaderElection::new(zk, &site.base, "a")
}

/// An election whose candidate has this `id`, and whose loop would back off forever after an error.
fn named(zk: &Client, site: &Site, id: &str) -> LeaderElection {
    LeaderElection::new(zk, &site.base, "a").id(id).back_off(FOR_EVER, FOR_EVER)
}

fn ids(candidates: &[Contender]) -> Vec<String> {
    candidates.iter().map(Contender::label).collect()
}

/// The id of the leader, once it has changed.
fn next(observer: &mut Changes<Option<Contender>>) -> Option<String> {
    observer.next_within(SOON).unwrap().expect("a change").map(|leader| leader.label())
}

fn assert_unchanged(observer: &mut Changes<Option<Contender>>) {
    assert_eq!(observer.next_within(BRIEF).unwrap(), None);
}

fn wait_for_phase(election: &LeaderElection, phase: ElectionPhase) -> ElectionProgress {
    eventually(SOON, &format!("{phase:?}"), || election.progress().phase == phase);
    election.progress()
}

/// The kind of the last error, which came from campaigning.
fn last_kind(election: &LeaderElection) -> ErrorKind {
    let error = election.progress().last_error.expect("an error");
    error.downcast_ref::<Error>().expect("one of ours").kind()
}

#[test]
fn s73_over_expiry_there_is_one_leader_and_the_old_one_is_told() {
    skip_without_server!();
    let site = Site::own("s73");
    let (proxy, zk) = site.proxied(ms(3_000));
    let clients = [site.client(), site.client()];
    let first = named(&zk, &site, "first");
    let others = clients.each_ref().map(|zk| election(zk, &site));
    let old = first.campaign().unwrap();
    let (session, calls) = (zk.session_id(), AtomicUsize::new(0));
    let (tell, told) = mpsc::channel();
    old.on_lost(move |why| tell.send(why).unwrap());
    let (leads, leaders) = mpsc::channel();
    thread::scope(|scope| {
        for (number, election) in others.iter().enumerate() {
            let (leads, calls) = (leads.clone(), &calls);
            scope.spawn(move || {
                let leadership = election.campaign().unwrap();
                calls.fetch_add(1, Ordering::SeqCst);
                leads.send(leadership).unwrap();
            });
            site.wait_for_children("a", 2 + number);
        }
        proxy.black_hole();
        let second = leaders.recv_timeout(SOON).expect("the next leader");
        assert!(!old.is_held());
        assert!(second.fencing_token() > old.fencing_token());
        assert_eq!(told.recv_timeout(SOON), Ok(LossReason::LeaseExpired));
        assert!(told.recv().is_err(), "on_lost was called twice");
        assert_eq!(old.lost().reason(), Some(LossReason::LeaseExpired));
        second.ensure_held().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1, "two of the others lead");
        proxy.pass();
        assert_eq!(kind(old.ensure_held()), ErrorKind::SessionLost);
        assert_eq!(kind(old.resign()), ErrorKind::SessionLost);
        // It can campaign again, behind the candidate that waits.
        let again = scope.spawn(|| first.campaign().unwrap());
        site.wait_for_children("a", 3);
        second.resign().unwrap();
        let third = leaders.recv_timeout(SOON).expect("the third leader");
        assert!(!again.is_finished());
        third.resign().unwrap();
        let again = again.join().unwrap();
        assert_ne!(zk.session_id(), session);
        again.ensure_held().unwrap();
        again.resign().unwrap();
    });
    drop((first, others));
    site.finish(clients.into_iter().chain([zk]));
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
fn s73_a_leader_keeps_its_leadership_over_a_restart_of_the_server() {
    skip_without_server!();
    let site = Site::own("s73-restart");
    let clients = [(); 2].map(|()| site.builder().session_timeout(QUIET).connect().unwrap());
    let [ours, theirs] = clients.each_ref().map(|zk| election(zk, &site));
    let leadership = ours.campaign().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.campaign().unwrap());
        site.wait_for_children("a", 2);
        site.server().restart();
        leadership.ensure_held().unwrap();
        assert!(!waiter.is_finished());
        let token = leadership.fencing_token();
        leadership.resign().unwrap();
        assert!(waiter.join().unwrap().fencing_token() > token);
    });
    drop((ours, theirs));
    site.finish(clients);
}

#[test]
fn s74_closed_while_its_create_is_under_way_it_leaves_no_node() {
    skip_without_server!();
    for (number, withheld) in ["reply", "reply", "request", "request"].into_iter().enumerate() {
        let site = Site::own("s74");
        let (proxy, zk) = site.proxied(ms(4_000));
        let election = election(&zk, &site);
        site.raw().create_all(&format!("{}/a", site.base)).unwrap();
        if withheld == "reply" {
            proxy.stall_reply(opcode::CREATE);
        } else {
            proxy.hold();
        }
        thread::scope(|scope| {
            let supervised = number % 2 == 1;
            let election = &election;
            let campaign = scope.spawn(move || {
                if supervised {
                    election.lead::<()>(|_| panic!("it leads")).map(drop)
                } else {
                    election.campaign().map(drop)
                }
            });
            if withheld == "reply" {
                site.wait_for_children("a", 1);
            } else {
                assert!(proxy.wait_for_request(opcode::CREATE, SOON));
            }
            zk.close();
            assert_eq!(kind(campaign.join().unwrap()), ErrorKind::Closed);
            if supervised {
                assert_eq!(last_kind(election), ErrorKind::Closed);
                assert_eq!(election.progress().terms, 0);
            }
        });
        assert_eq!(election.progress().phase, ElectionPhase::Idle);
        proxy.pass();
        eventually(SOON, "the node to go", || {
            site.children("a").is_empty() && site.server().counter("zk_ephemerals_count") == 0
        });
        assert_eq!(kind(election.campaign()), ErrorKind::Closed);
        drop(election);
        site.finish([zk]);
    }
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

#[test]
fn leader_and_candidates_are_told_with_their_ids() {
    skip_without_server!();
    let site = Site::own("candidates");
    let clients = [site.client(), site.client()];
    let (proxy, looking) = site.proxied(QUIET);
    let follower = election(&looking, &site);
    assert_eq!(follower.leader().unwrap(), None);
    assert_eq!(follower.contenders().unwrap(), []);
    let elections = [named(&clients[0], &site, "node-ä"), named(&clients[1], &site, "node-b")];
    let leadership = elections[0].campaign().unwrap();
    let leader = follower.leader().unwrap().expect("a leader");
    assert_eq!((leader.label().as_str(), &*leader.path), ("node-ä", leadership.path()));
    assert_eq!(leader.data, "node-ä".as_bytes());
    assert_eq!(leader.session, clients[0].session_id());
    assert!(leader.path.contains("-lock-") && leader.path.ends_with(&leader.sequence.to_string()));
    assert!(leader.age().unwrap() < 4 * SOON, "{leader:?}");
    thread::scope(|scope| {
        let mut waiters = Vec::new();
        for number in 0..4 {
            waiters.push(scope.spawn(|| elections[1].campaign().unwrap().resign().unwrap()));
            site.wait_for_children("a", 2 + number);
        }
        proxy.reset_counts();
        assert_eq!(follower.leader().unwrap().as_ref(), Some(&leader));
        assert_eq!(proxy.total_requests(), 3, "a sync, a list and a read: {:?}", proxy.requests());
        let candidates = follower.contenders().unwrap();
        assert_eq!(candidates[0], leader);
        assert_eq!(ids(&candidates), ["node-ä", "node-b", "node-b", "node-b", "node-b"]);
        assert!(candidates.is_sorted_by_key(|one| one.sequence), "{candidates:?}");
        assert_eq!(proxy.total_requests(), 10, "{:?}", proxy.requests());
        leadership.resign().unwrap();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    // By default the id consists of host, process and thread.
    let leadership = election(&clients[0], &site).campaign().unwrap();
    let id = follower.leader().unwrap().expect("a leader").label();
    assert!(id.contains("host=") && id.contains("pid="), "{id}");
    drop((leadership, elections, follower));
    site.finish(clients.into_iter().chain([looking]));
}

/// The first candidate is in the list, but gone before it is read.
#[test]
fn when_the_leader_goes_meanwhile_the_next_one_is_told() {
    skip_without_server!();
    let site = Site::own("goes");
    let (proxy, zk) = site.proxied(QUIET);
    let election = election(&zk, &site);
    let (mut raw, node) = (site.raw(), format!("{}/a", site.base));
    raw.create_all(&node).unwrap();
    let prefix = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    for ids in [&["first", "second"][..], &["alone"]] {
        let mut paths: Vec<String> = Vec::new();
        for id in ids {
            let kind = Kind::EphemeralSequential;
            paths.push(raw.create(&prefix, id.as_bytes(), kind).unwrap());
        }
        proxy.reset_counts();
        let sent = site.server().counter("zk_packets_sent");
        proxy.stall_reply(opcode::GET_CHILDREN);
        thread::scope(|scope| {
            let leader = scope.spawn(|| election.leader().unwrap());
            assert!(proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
            eventually(SOON, "the list", || site.server().counter("zk_packets_sent") > sent);
            raw.delete(&paths[0]).unwrap();
            proxy.release();
            let leader = leader.join().unwrap().map(|leader| leader.label());
            assert_eq!(leader.as_deref(), ids.get(1).copied());
        });
        for path in &paths[1..] {
            raw.delete(path).unwrap();
        }
    }
    raw.close().unwrap();
    drop(election);
    site.finish([zk]);
}

/// While the leader stays, waiting candidates that come and go cost an observer nothing.
#[test]
fn changes_of_the_leader_are_observed_without_a_herd() {
    skip_without_server!();
    let site = Site::own("observe-leader");
    let zk = site.client();
    let (proxy, looking) = site.proxied(QUIET);
    let mut observer = election(&looking, &site).observe();
    assert_eq!(next(&mut observer), None);
    assert_unchanged(&mut observer);
    let first = named(&zk, &site, "first").campaign().unwrap();
    assert_eq!(next(&mut observer).as_deref(), Some("first"));
    assert_unchanged(&mut observer);
    proxy.reset_counts();
    let (mut raw, node) = (site.raw(), format!("{}/a", site.base));
    let prefix = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let kind = Kind::EphemeralSequential;
    let waiters: Vec<String> =
        (0..20).map(|_| raw.create(&prefix, b"late", kind).unwrap()).collect();
    raw.delete(&waiters[7]).unwrap();
    assert_unchanged(&mut observer);
    assert_eq!(proxy.requests(), []);
    first.resign().unwrap();
    assert_eq!(next(&mut observer).as_deref(), Some("late"));
    assert_eq!(proxy.total_requests(), 2, "a list and a read: {:?}", proxy.requests());
    // Candidates with the same id are still different candidates.
    raw.delete(&waiters[0]).unwrap();
    assert_eq!(next(&mut observer).as_deref(), Some("late"));
    for waiter in waiters[1..].iter().filter(|waiter| **waiter != waiters[7]) {
        raw.delete(waiter).unwrap();
    }
    while next(&mut observer).is_some() {}
    // The observer's iterator waits for each change.
    let mut changes = election(&looking, &site).observe();
    assert_eq!(changes.next().unwrap().unwrap(), None);
    thread::scope(|scope| {
        let change = scope.spawn(move || changes.next().unwrap().unwrap());
        let leadership = named(&zk, &site, "again").campaign().unwrap();
        let leader = change.join().unwrap().expect("a leader");
        assert_eq!((leader.label().as_str(), &*leader.path), ("again", leadership.path()));
    });
    raw.close().unwrap();
    drop(observer);
    site.finish([zk, looking]);
}

#[test]
fn a_campaign_can_be_bounded_and_cancelled_and_leaves_no_node() {
    skip_without_zookeeper!();
    let site = Site::shared("limits");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| election(zk, &site));
    drop(ours.try_campaign().unwrap().expect("no other candidate"));
    drop(ours.campaign_within(SOON).unwrap().expect("in time"));
    drop(ours.campaign_within(Instant::now() + SOON).unwrap().expect("in time"));
    site.wait_for_children("a", 0);
    let leadership = ours.try_campaign().unwrap().expect("no other candidate");
    assert!(theirs.try_campaign().unwrap().is_none());
    let began = Instant::now();
    assert!(got_nothing(theirs.campaign_within(BRIEF)));
    assert!(began.elapsed() >= BRIEF);
    assert!(theirs.campaign_within(Instant::now()).unwrap().is_none());
    site.wait_for_only("a", leadership.path());
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| kind(theirs.campaign_within(&cancel)));
        site.wait_for_children("a", 2);
        cancel.cancel();
        assert_eq!(waiter.join().unwrap(), ErrorKind::Cancelled);
    });
    assert_eq!(kind(theirs.campaign_within(&cancel)), ErrorKind::Cancelled);
    site.wait_for_only("a", leadership.path());
    drop(leadership);
    site.wait_for_children("a", 0);
    drop((ours, theirs));
    site.finish(clients);
}

/// Nothing is handed over: each campaign waits for its own turn, even several on one value.
#[test]
fn each_campaign_has_a_node_of_its_own() {
    skip_without_zookeeper!();
    let site = Site::shared("own-node");
    let zk = site.client();
    let election = election(&zk, &site);
    let first = election.campaign().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| election.campaign().unwrap());
        site.wait_for_children("a", 2);
        assert!(election.try_campaign().unwrap().is_none());
        let (path, token) = (first.path().to_owned(), first.fencing_token());
        drop(first);
        let second = second.join().unwrap();
        assert_ne!(second.path(), path);
        assert!(second.fencing_token() > token);
        assert_eq!(second.fencing_token().turn(), 0);
        assert!(format!("{second:?}").contains("is_held: true"), "{second:?}");
    });
    drop(election);
    site.finish([zk]);
}

#[test]
fn an_election_is_a_mutex_to_those_who_share_its_path() {
    skip_without_zookeeper!();
    for naming in [NodeNaming::Curator, NodeNaming::Kazoo] {
        let site = Site::shared("shared-path");
        let clients = [site.client(), site.client()];
        let builder = LeaderElection::new(&clients[0], &site.base, "a").naming(naming);
        let election = builder.id("leader");
        let lock = strict(&clients[1], &site.base, "a");
        let guard = lock.lock().unwrap();
        assert!(election.try_campaign().unwrap().is_none());
        drop(guard);
        let leadership = election.campaign().unwrap();
        assert!(lock.try_lock().unwrap().is_none());
        assert_eq!(lock.contenders().unwrap()[0].label(), "leader");
        let (tell, told) = mpsc::channel();
        leadership.on_release_requested(move || tell.send(()).unwrap());
        assert_eq!(lock.request_release().unwrap(), 1);
        told.recv_timeout(SOON).unwrap();
        assert!(leadership.release_requested() && leadership.is_held());
        leadership.resign().unwrap();
        assert!(lock.try_lock().unwrap().is_some());
        drop((election, lock));
        site.finish(clients);
    }
}

#[test]
fn bad_names_are_refused_before_anything_is_asked() {
    skip_without_server!();
    let site = Site::own("election-names");
    let (proxy, zk) = site.proxied(QUIET);
    let long = "n".repeat(1_025);
    for (base, name) in [
        ("", "a"),
        ("locks", "a"),
        ("/lo//cks", "a"),
        ("/locks", ""),
        ("/locks", "a/b"),
        ("/a", &long),
    ] {
        let election = LeaderElection::new(&zk, base, name);
        let kinds = [
            kind(election.campaign()),
            kind(election.campaign_within(&Cancel::new())),
            kind(election.try_campaign()),
            kind(election.campaign_within(SOON)),
            kind(election.campaign_within(Instant::now())),
            kind(election.lead::<()>(|_| panic!("it leads"))),
            kind(election.leader()),
            kind(election.contenders()),
            kind(election.observe().next_within(SOON)),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidName; 9], "{base:?} {name:?}");
        let mut observer = election.observe();
        assert_eq!(kind(observer.next().unwrap()), ErrorKind::InvalidName);
        assert!(observer.next().is_none(), "it goes on after an error");
    }
    for id in ["__REVOKE__", "unlock"] {
        let election = LeaderElection::new(&zk, &site.base, "a").id(id);
        assert_eq!(kind(election.campaign()), ErrorKind::InvalidArgument);
    }
    assert_eq!(proxy.requests(), []);
    site.finish([zk]);
}

#[test]
fn s70_its_acl_covers_the_elections_node_and_the_candidates() {
    skip_without_zookeeper!();
    let site = Site::shared("election-acl");
    let owner = site.builder().auth("digest", b"owner:secret").connect().unwrap();
    let stranger = site.client();
    let mut meddler = site.raw();
    meddler.create_all(&site.base).unwrap();
    let theirs = election(&stranger, &site);
    let builder = LeaderElection::new(&owner, &site.base, "a").id("secret");
    let ours = builder.acl(Acl::creator_only());
    let leadership = ours.campaign().unwrap();
    for path in [&format!("{}/a", site.base), leadership.path()] {
        assert_eq!(meddler.get_data(path).unwrap_err().code(), Some(raw::NO_AUTH), "{path}");
    }
    for refused in [
        kind(theirs.campaign()),
        kind(theirs.lead::<()>(|_| panic!("it leads"))),
        kind(theirs.leader()),
        kind(theirs.contenders()),
        kind(theirs.observe().next_within(SOON)),
    ] {
        assert_eq!(refused, ErrorKind::NotAuthorized);
    }
    assert_eq!(last_kind(&theirs), ErrorKind::NotAuthorized);
    assert_eq!(ours.leader().unwrap().expect("ours").label(), "secret");
    leadership.resign().unwrap();
    meddler.add_auth("digest", b"owner:secret").unwrap();
    meddler.delete_recursive(&site.base).unwrap();
    // A candidate that can be listed, but not read.
    meddler.create_all(&format!("{}/a", site.base)).unwrap();
    let hiding = LeaderElection::new(&owner, &site.base, "a").id("secret");
    let hiding = hiding.acl(Acl::creator_only());
    let leadership = hiding.campaign().unwrap();
    let leader = theirs.leader().unwrap().expect("a leader");
    assert_eq!((leader.label().as_str(), &*leader.path), ("", leadership.path()));
    leadership.resign().unwrap();
    meddler.close().unwrap();
    drop((ours, theirs, hiding));
    site.finish([owner, stranger]);
}

#[test]
fn values_can_be_shared_and_sent_and_a_leadership_cannot_be_cloned() {
    trait CloneOrNot<Answer> {
        fn ask() {}
    }
    struct Clones;
    impl<T> CloneOrNot<()> for T {}
    impl<T: Clone> CloneOrNot<Clones> for T {}
    // Ambiguous, so that it does not compile, for a type that is `Clone`.
    <Leadership as CloneOrNot<_>>::ask();

    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<Leadership>();
    anywhere::<LeaderElection>();
    anywhere::<Contender>();
    anywhere::<ElectionProgress>();
    fn sent<T: Send + 'static>() {}
    sent::<Changes<Option<Contender>>>();
}
