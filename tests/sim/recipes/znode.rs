//! Checks that no change of a node takes effect twice, and that each result is true.

use std::sync::Arc;

use crate::Client;
use crate::ErrorKind;
use crate::Result;
use crate::Znode;
use crate::rt::Mutex;
use crate::rt::schedule::current;
use crate::sim::harness::{Play, Role, Stage, Tally};
use crate::znode::CreateMode;

/// Two nodes below one parent: what happens to one must not be taken for the other.
const NODES: [&str; 2] = ["/nodes/a", "/nodes/b"];

#[derive(Default)]
struct Changing {
    /// Data that no later transaction may write: calls with them have ended without effect.
    in_vain: Mutex<Vec<Vec<u8>>>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        (actors, Arc::new(Changing::default()))
    })
}

impl Changing {
    /// Compares what a call says, whether its change was made, with what the ensemble has done.
    fn judge(&self, stage: &Stage, data: &[u8], result: Result<bool>) {
        stage.count(result.is_ok());
        let times = stage.world.look(|world| world.times_written(data));
        let text = String::from_utf8_lossy(data);
        if times > 1 {
            stage.accuse(format!("{text} has taken effect {times} times"));
        }
        let was_made = match result {
            Ok(was_made) => was_made,
            Err(error) if error.kind() == ErrorKind::ConnectionLoss => return,
            Err(error) => {
                use ErrorKind::{Connect, NotFound};
                if !matches!(error.kind(), Connect | NotFound) {
                    stage.accuse(format!("unexpected error: {error}"));
                }
                false
            }
        };
        if was_made != (times == 1) {
            stage.accuse(format!("{text} has taken effect {times} times, said {was_made}"));
        }
        if !was_made {
            self.in_vain.lock().push(data.to_vec());
        }
    }
}

fn create(node: &Znode, data: &[u8], parents: bool) -> Result<bool> {
    let made = match parents {
        true => node.create_with_parents(CreateMode::Persistent, data),
        false => node.create(CreateMode::Persistent, data),
    };
    match made {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

impl Play for Changing {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let name = |deed: usize| format!("actor {} deed {deed}", role.number).into_bytes();
        for deed in 0..8 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 8));
            let node = role.client.znode(NODES[schedule.below(2)]);
            let data = name(deed);
            match schedule.below(4) {
                0 => {
                    // A stranger's node below it, or a lost reply.
                    stage.count(node.delete().is_ok());
                }
                1 => {
                    let Ok(Some(found)) = node.read() else { continue };
                    schedule.pause(schedule.some(stage.habits.session_timeout / 8));
                    let written = node.write_if_unchanged(found.version, &*data);
                    self.judge(stage, &data, written.map(|version| version.is_some()));
                }
                way => self.judge(stage, &data, create(&node, &data, way == 2)),
            }
        }
    }

    fn end(&self, stage: &Stage, _client: &Client) {
        // A request that was given up may arrive late, but not if the call said that it had no effect.
        for data in self.in_vain.lock().iter() {
            if stage.world.look(|world| world.times_written(data)) > 0 {
                stage.accuse(format!("{} has taken effect later", String::from_utf8_lossy(data)));
            }
        }
    }
}
