//! Checks that no two candidates lead at once, each by its own clock; that tokens grow; and that
//! every candidate comes to lead.

use std::cell::RefCell;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::sync::Arc;

use crate::Client;
use crate::ErrorKind;
use crate::FencingToken;
use crate::LeaderElection;
use crate::Leadership;
use crate::election::ElectionPhase;
use crate::rt::Mutex;
use crate::rt::schedule::{Schedule, current};
use crate::sim::harness::{Play, Role, Stage, Tally};

thread_local! {
    /// The leaders of this thread's play, except for those that lead through `lead`.
    static LEADERS: RefCell<Vec<Rc<Leadership>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Electing {
    highest: Mutex<Option<FencingToken>>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    std::mem::forget(LEADERS.take());
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        (actors, Arc::new(Electing::default()))
    })
}

fn election(client: &Client, number: usize) -> LeaderElection {
    LeaderElection::new(client, "/elections", "one").id(format!("candidate-{number}"))
}

/// Returns whether a candidate leads by its own clock. One whose session was ended from outside
/// does not count, as it cannot know.
fn leads(stage: &Stage, one: &Leadership) -> bool {
    one.is_held() && stage.world.look(|world| world.contains(one.path()))
}

impl Electing {
    fn begin(&self, stage: &Stage, leadership: &Leadership) {
        stage.count(true);
        let (token, mut highest) = (leadership.fencing_token(), self.highest.lock());
        // A candidate whose process was stopped may get a leadership that is lost already.
        if leads(stage, leadership) && highest.is_some_and(|highest| highest >= token) {
            stage.accuse(format!("the token {token} comes after {highest:?}"));
        }
        *highest = (*highest).max(Some(token));
    }

    fn work(stage: &Stage, schedule: &Schedule, leadership: &Leadership) {
        let end = schedule.time() + schedule.some(stage.habits.session_timeout / 2);
        while schedule.time() < end && leadership.is_held() {
            schedule.pause(schedule.some(stage.habits.session_timeout / 20));
        }
    }

    fn campaign(&self, stage: &Stage, schedule: &Schedule, role: Role<'_>) {
        let election = election(role.client, role.number);
        let (began, limit) = (schedule.time(), schedule.some(stage.habits.session_timeout * 2));
        let is_limited = schedule.chance(50);
        let leadership = if is_limited {
            let limited = election.campaign_within(limit);
            stage.check_on_time(role.process, began, limit);
            limited
        } else {
            election.campaign().map(Some)
        };
        match leadership {
            Ok(Some(leadership)) => {
                self.begin(stage, &leadership);
                let leadership = Rc::new(leadership);
                LEADERS.with_borrow_mut(|leaders| leaders.push(Rc::clone(&leadership)));
                Electing::work(stage, schedule, &leadership);
                LEADERS.with_borrow_mut(|all| all.retain(|one| !Rc::ptr_eq(one, &leadership)));
            }
            Ok(None) => stage.count(false),
            Err(error) if is_limited && error.kind() == ErrorKind::Connect => stage.count(false),
            Err(error) => stage.accuse(format!("campaigning: {error}")),
        }
    }

    fn lead(&self, stage: &Stage, schedule: &Schedule, role: Role<'_>) {
        let election = election(role.client, role.number);
        let mut terms = 0;
        let led = election.lead(|leadership| {
            self.begin(stage, leadership);
            if election.progress().phase != ElectionPhase::Leading {
                stage.accuse(format!("leads, but progress is {:?}", election.progress()));
            }
            Electing::work(stage, schedule, leadership);
            terms += 1;
            match (terms, schedule.below(3)) {
                (3, _) => Ok(Break(terms)),
                (_, 0) => Err("not today".into()),
                _ => Ok(Continue(())),
            }
        });
        let progress = election.progress();
        if led.is_err() || progress.phase != ElectionPhase::Idle || progress.terms < 3 {
            stage.accuse(format!("lead() returned {led:?}, but progress is {progress:?}"));
        }
    }
}

impl Play for Electing {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        if schedule.chance(30) {
            return self.lead(stage, &schedule, role);
        }
        for _ in 0..2 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 8));
            self.campaign(stage, &schedule, role);
        }
    }

    fn look(&self, stage: &Stage) {
        let leaders = LEADERS.with_borrow(|all| {
            let leading = all.iter().filter(|one| leads(stage, one));
            leading.map(|one| one.path().to_owned()).collect::<Vec<_>>()
        });
        if leaders.len() > 1 {
            stage.accuse(format!("these lead at once: {leaders:?}"));
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        let election = election(client, 99);
        match election.contenders() {
            Ok(candidates) if candidates.is_empty() => {}
            Err(error) if error.kind() == ErrorKind::Connect => {}
            other => stage.accuse(format!("candidates at the end: {other:?}")),
        }
    }
}
