//! Checks that members of a group are listed, come back, and leave nothing.

use std::sync::Arc;

use crate::Client;
use crate::ErrorKind;
use crate::Group;
use crate::group::Member;
use crate::group::Membership;
use crate::path;
use crate::rt::Mutex;
use crate::rt::schedule::{Process, current};
use crate::sim::harness::{Play, Role, Stage, Tally};
use crate::sim::world::Inner;

#[derive(Default)]
struct Gathering {
    /// The memberships, each with its process.
    memberships: Mutex<Vec<(Process, Arc<Membership>)>>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        (actors, Arc::new(Gathering::default()))
    })
}

fn group(client: &Client) -> Group {
    Group::new(client, "/groups", "one")
}

impl Gathering {
    /// Takes a membership off the list; the caller then has the only reference.
    fn end_of(&self, membership: &Arc<Membership>) {
        self.memberships.lock().retain(|(_, one)| !Arc::ptr_eq(one, membership));
    }

    fn leave(&self, stage: &Stage, role: Role<'_>, membership: Arc<Membership>) {
        let path = membership.path().to_owned();
        let id = path::last(&path).to_owned();
        self.end_of(&membership);
        let Some(membership) = Arc::into_inner(membership) else { return };
        let left = membership.leave();
        if let Err(error) = &left
            && error.kind() != ErrorKind::SessionLost
        {
            stage.accuse(format!("leaving: {error}"));
        }
        // After an error, a node whose session has ended for the client may still exist for a while.
        let is_left = |owner| {
            let is_left = |world: &Inner| {
                world.has_ended(owner) || (left.is_err() && world.has_lapsed(owner))
            };
            stage.world.look(is_left)
        };
        let owner = stage.world.look(|world| world.contains(&path).then(|| world.owner(&path)));
        if let Some(Some(owner)) = owner
            && id == own_id(role)
            && !is_left(owner)
        {
            stage.accuse(format!("{id} has left, but its node exists"));
        }
    }
}

fn own_id(role: Role<'_>) -> String {
    format!("member-{}", role.number)
}

impl Play for Gathering {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let (group, timeout) = (group(role.client), stage.habits.session_timeout);
        // Some observe the members all the time, and remember those that they have seen.
        let mut changes = schedule.chance(50).then(|| group.observe());
        for _ in 0..2 {
            schedule.pause(schedule.some(timeout / 4));
            if let Some(changes) = &mut changes {
                let _ = changes.next_within(schedule.some(timeout / 4));
            }
            // Some use an id that others want, too.
            let id = if schedule.chance(25) { "any".to_owned() } else { own_id(role) };
            let began = schedule.time();
            let joined = group.join(&id, id.as_bytes());
            stage.count(joined.is_ok());
            stage.check_on_time(role.process, began, stage.habits.connect_timeout);
            match joined {
                Ok(membership) => {
                    let membership = Arc::new(membership);
                    self.memberships.lock().push((role.process, Arc::clone(&membership)));
                    schedule.pause(schedule.some(timeout));
                    if let Some(changes) = &mut changes {
                        let _ = changes.next_within(schedule.some(timeout / 4));
                    }
                    if schedule.chance(50) {
                        self.end_of(&membership);
                        drop(membership);
                        continue;
                    }
                    if schedule.chance(50) {
                        self.leave(stage, role, membership);
                        continue;
                    }
                    // Once all faults are over and lost sessions have ended, the member is listed.
                    let settled = stage.calm + timeout * 4;
                    schedule.pause(settled.saturating_sub(schedule.time()) + timeout);
                    if id == own_id(role) {
                        stage.eventually(&format!("{id} among the members"), || {
                            let members = group.members().unwrap_or_default();
                            let is_there = members.iter().any(|one: &Member| one.id == id);
                            membership.is_member() && is_there
                        });
                    }
                    if let Some(changes) = &mut changes {
                        stage.eventually("an observer that sees the members", || {
                            let members = group.members().unwrap_or_default();
                            changes.latest().is_ok_and(|seen| *seen == members)
                        });
                    }
                    self.leave(stage, role, membership);
                }
                Err(error) => {
                    let kinds = [ErrorKind::ConnectionLoss, ErrorKind::Connect, ErrorKind::Taken];
                    if !kinds.contains(&error.kind()) {
                        stage.accuse(format!("joining: {error}"));
                    }
                }
            }
        }
    }

    /// Checks that a client has each id at most once.
    fn look(&self, stage: &Stage) {
        let memberships = self.memberships.lock();
        for (place, (process, one)) in memberships.iter().enumerate() {
            let is_twin = |(other, two): &(Process, Arc<Membership>)| {
                other == process && two.path() == one.path() && two.is_member()
            };
            if one.is_member() && memberships[..place].iter().any(is_twin) {
                stage.accuse(format!("two members of one client have the node {:?}", one.path()));
            }
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        match group(client).members() {
            Ok(members) if members.is_empty() => {}
            other => stage.accuse(format!("members at the end: {other:?}")),
        }
    }
}
