//! Requests of connections that were given up are carried out late, after newer ones of the same session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::harness::{self, Play, Role, Stage};
use super::world::{Operation, RequestStage, Trap};
use crate::DistributedLock;
use crate::LockGuard;
use crate::rt::schedule::current;

/// Has the connection of the process break when its next request of this kind is at the server.
fn lose_next(stage: &Stage, role: Role<'_>, on: Operation, when: RequestStage) {
    let mend = stage.habits.latency * 4 + Duration::from_millis(1);
    let trap = Trap { on, when, mend, times: 1 };
    stage.world.act(|world| world.set_trap(role.process, trap));
}

/// A contender's request is carried out when nobody waits for it any more, perhaps long after all calls of
/// its client have ended. It is found and deleted before it has kept another client waiting for longer than
/// twice the session timeout.
#[test]
fn a_contender_that_is_made_late_is_found_and_deleted() {
    struct Late {
        holds: bool,
        longest: AtomicU64,
    }
    impl Play for Late {
        fn act(&self, stage: &Stage, role: Role<'_>) {
            let Some(schedule) = current() else { return };
            let lock = DistributedLock::new(role.client, "/locks", "one");
            if role.process == 0 {
                let other = DistributedLock::new(role.client, "/locks", "other");
                let kept = self.holds.then(|| other.lock());
                for _ in 0..4 {
                    drop(lock.lock());
                    lose_next(stage, role, Operation::Create, RequestStage::Arrived);
                    stage.count(lock.lock().is_ok());
                }
                // From here on the client asks for nothing by itself.
                schedule.pause(stage.habits.session_timeout * 6);
                if let Some(Ok(kept)) = kept {
                    if !kept.is_held() {
                        stage.accuse("the lock of the idle client is lost".to_owned());
                    }
                }
                return;
            }
            for _ in 0..20 {
                let began = schedule.time();
                let limit = stage.habits.session_timeout * 2 + stage.habits.latency * 20;
                if !matches!(lock.try_lock_for(limit), Ok(Some(_))) {
                    stage.accuse(format!("no lock within {limit:?}, from {began:?} on"));
                }
                let waited = (schedule.time() - began).as_millis() as u64;
                self.longest.fetch_max(waited, Ordering::Relaxed);
                schedule.pause(stage.habits.session_timeout / 3);
            }
        }
    }
    let mut late = 0;
    for seed in 0..150 {
        let play = Arc::new(Late { holds: seed % 2 == 0, longest: AtomicU64::new(0) });
        let run = harness::perform_with_late_requests(seed, vec![1, 1], play);
        late += run.unwrap_or_else(|why| panic!("seed {seed}: {why}")).late;
    }
    assert!(late > 20, "only {late} requests were carried out late");
}

/// A client that opens another session, as it owned nothing in the one before, is not in its own way there: neither
/// by a node whose create had no answer, nor by one whose delete had none.
#[test]
fn what_a_replaced_session_has_left_is_not_in_the_way_of_the_next() {
    // Each of its requests, and what it waits for, takes up to two latencies.
    fn has_time(stage: &Stage) -> bool {
        stage.habits.connect_timeout > stage.habits.latency * 40
    }
    #[derive(Default)]
    struct Alone {
        replaced: AtomicU64,
    }
    impl Play for Alone {
        fn act(&self, stage: &Stage, role: Role<'_>) {
            let Some(schedule) = current() else { return };
            let lock = DistributedLock::new(role.client, "/locks", "one");
            for _ in 0..6 {
                let session = role.client.session_id();
                let lost = [Operation::Create, Operation::Create, Operation::Delete];
                lose_next(stage, role, lost[schedule.below(lost.len())], RequestStage::Done);
                match lock.try_lock() {
                    Ok(Some(guard)) => drop(guard),
                    Ok(None) if has_time(stage) => {
                        stage.accuse("nobody else wants the lock".to_owned());
                    }
                    Err(error) if has_time(stage) => stage.accuse(format!("no lock: {error}")),
                    Ok(None) | Err(_) => {}
                }
                if role.client.session_id() != session {
                    self.replaced.fetch_add(1, Ordering::Relaxed);
                }
                let pause = stage.habits.session_timeout * [0, 3][schedule.below(2)];
                schedule.pause(pause);
            }
        }
    }
    let mut replaced = 0;
    for seed in 0..150 {
        let play = Arc::new(Alone::default());
        let run = harness::perform_in_peace(seed, vec![1], Arc::clone(&play) as Arc<dyn Play>);
        run.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        replaced += play.replaced.load(Ordering::Relaxed);
    }
    assert!(replaced > 150, "only {replaced} sessions were replaced");
}

/// For two hours, a connection is lost with a create under way at least each third of the session timeout. What is
/// remembered of that, and what is asked because of it, does not grow; and nothing is deleted that somebody relies on.
#[test]
fn two_hours_of_lost_creates_grow_nothing_and_cost_no_hold() {
    const HOURS: Duration = Duration::from_secs(2 * 3_600);
    const THREADS: usize = 4;
    #[derive(Default)]
    struct Flapping {
        most_doubts: AtomicU64,
        losses: AtomicU64,
        early: AtomicU64,
        late: AtomicU64,
    }
    impl Flapping {
        fn check(&self, stage: &Stage, guard: &LockGuard) {
            if guard.is_held() && !stage.world.look(|world| world.contains(guard.path())) {
                stage.accuse(format!("{} is gone, and its guard holds", guard.path()));
            }
        }
    }
    impl Play for Flapping {
        fn act(&self, stage: &Stage, role: Role<'_>) {
            let Some(schedule) = current() else { return };
            let timeout = stage.habits.session_timeout;
            if role.number == 0 {
                let kept = DistributedLock::new(role.client, "/locks", "kept").lock();
                let lists =
                    |stage: &Stage| stage.world.look(|world| world.asked(Operation::Children));
                let (mut half, mut at_half) = (0, 0);
                while schedule.time() < HOURS {
                    lose_next(stage, role, Operation::Create, RequestStage::Arrived);
                    self.losses.fetch_add(1, Ordering::Relaxed);
                    schedule.pause(timeout / 3);
                    if let Some(session) = role.client.core().present_session() {
                        self.most_doubts
                            .fetch_max(session.owned().doubts() as u64, Ordering::Relaxed);
                    }
                    if let Ok(kept) = &kept {
                        self.check(stage, kept);
                    }
                    if half == 0 && schedule.time() > HOURS / 2 {
                        (half, at_half) = (lists(stage), lists(stage));
                    }
                }
                self.early.store(at_half, Ordering::Relaxed);
                self.late.store(lists(stage) - at_half, Ordering::Relaxed);
                return;
            }
            let name = ["one", "two"][role.number % 2];
            let lock = DistributedLock::new(role.client, "/locks", name);
            while schedule.time() < HOURS {
                if let Ok(Some(guard)) = lock.try_lock_for(timeout * 2) {
                    stage.count(true);
                    schedule.pause(timeout / 7);
                    self.check(stage, &guard);
                }
                schedule.pause(timeout / 5);
            }
        }
    }
    for seed in 1..2 {
        let play = Arc::new(Flapping::default());
        let acted = Arc::clone(&play) as Arc<dyn Play>;
        let run = harness::perform_for_hours_with_late_requests(seed, vec![THREADS], acted);
        let tally = run.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (early, late) = (count(&play.early), count(&play.late));
        println!(
            "seed {seed}: {} losses, {} requests carried out late, {} holds, at most {} creates in doubt; {early} and \
             {late} lists in the two hours",
            count(&play.losses),
            tally.late,
            tally.deeds,
            count(&play.most_doubts),
        );
        assert!(tally.late > 100, "only {} requests were carried out late", tally.late);
        assert!(count(&play.most_doubts) <= 2_000, "{} creates in doubt", count(&play.most_doubts));
        assert!(
            late < early * 3 / 2 + 100,
            "{early} lists in the first hour, {late} in the second"
        );
    }
}
