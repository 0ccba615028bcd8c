//! Members are seen, come back, and leave nothing.

use std::sync::Arc;

use super::super::stage::{Play, Role, Stage, Tally};
use crate::rt::schedule::current;
use crate::{Client, ErrorKind, Group, Member};

struct Gathering;

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        (actors, Arc::new(Gathering))
    })
}

fn group(client: &Client) -> Group {
    Group::new(client, "/groups", "one")
}

impl Play for Gathering {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let (group, timeout) = (group(role.client), stage.habits.session_timeout);
        for _ in 0..2 {
            schedule.pause(schedule.some(timeout / 4));
            let id = format!("member-{}", role.number);
            let began = schedule.time();
            let joined = group.join(&id, id.as_bytes());
            stage.count(joined.is_ok());
            stage.check_on_time(role.process, began, stage.habits.connect_timeout);
            match joined {
                Ok(membership) => {
                    schedule.pause(schedule.some(timeout));
                    if schedule.chance(50) {
                        drop(membership);
                        continue;
                    }
                    // Once all is calm, and lost sessions have ended, it is there.
                    let settled = stage.calm + timeout * 4;
                    schedule.pause(settled.saturating_sub(schedule.time()) + timeout);
                    stage.eventually(&format!("{id} among the members"), || {
                        let members = group.members().unwrap_or_default();
                        membership.is_member() && members.iter().any(|one: &Member| one.id == id)
                    });
                    if let Err(error) = membership.leave() {
                        stage.accuse(format!("leaving: {error}"));
                    }
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

    fn end(&self, stage: &Stage, client: &Client) {
        match group(client).members() {
            Ok(members) if members.is_empty() => {}
            other => stage.accuse(format!("{other:?} in the end")),
        }
    }
}
