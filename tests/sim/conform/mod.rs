//! Checks that the ensemble in memory answers as a real one does: the same code plays the same
//! scripts on both, and compares the outcome of each step.

mod event_order;
mod player;
mod scripts;
mod servers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use zklock_testing::core::Rules;

use crate::rt::Mutex;

use self::player::Outcome;
use self::scripts::Script;
use self::servers::{Rig, SimulatedServer};

/// How many scripts are played at once.
const THREADS: usize = 4;

/// Plays a script on a real server and on the simulated one.
fn compare(rig: &Rig, script: &Script) -> Result<(), String> {
    let simulated = SimulatedServer::play(script, rig);
    let real = rig.play(script);
    assert_eq!(simulated.len(), script.steps.len(), "{}: simulated run cut short", script.name);
    assert_eq!(real.len(), script.steps.len(), "{}: real run cut short", script.name);
    for (place, step) in script.steps.iter().enumerate() {
        if simulated[place] != real[place] {
            let told = |line: (&String, &Outcome)| format!("  {:40} {}\n", line.0, line.1);
            let before: String = script.steps.iter().zip(&real).take(place).map(told).collect();
            return Err(format!(
                "{}\n{before}step {}: {step}\n  simulated: {}\n  real:      {}",
                script.name,
                place + 1,
                simulated[place],
                real[place],
            ));
        }
    }
    Ok(())
}

fn compare_all(rig: Option<Rig>, scripts: &[Script]) {
    let Some(rig) = rig else { return };
    // Threads help because most of the time is spent on waiting for new connections.
    let (next, differ) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(script) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(difference) = compare(&rig, script) {
                        differ.lock().push(difference);
                    }
                }
            });
        }
    });
    let differ = differ.into_inner().join("\n\n");
    assert!(differ.is_empty(), "the simulation and the real server differ:\n{differ}");
}

#[test]
fn the_simulated_ensemble_answers_as_a_real_one() {
    let (rig, mut scripts) = (Rig::start(), scripts::fixed());
    if rig.as_ref().is_some_and(|rig| rig.is_old) {
        // Servers before 3.5 end a connection that asks for it.
        let is_known =
            |step: &String| !step.split(' ').any(|word| ["container", "unwatch"].contains(&word));
        scripts.iter_mut().for_each(|one| one.steps.retain(is_known));
    }
    compare_all(rig, &scripts);
}

/// Here the real server looks for empty containers all the time.
#[test]
fn the_simulated_ensemble_removes_containers_as_a_real_one() {
    compare_all(Rig::tidying().and_then(not_old), &scripts::containers());
}

/// The server in memory has the same decisions, but sessions, connections and bytes of its own.
#[test]
fn the_server_in_memory_answers_as_the_simulated_ensemble() {
    let hour = Duration::from_secs(3600);
    compare_all(Some(Rig::in_memory(Rules::default(), hour)), &scripts::fixed());
    let newer = Rules { hides_stat: true, hides_events: true, ..Rules::default() };
    let rig = Rig::in_memory(newer, hour);
    assert!(rig.hides_stat && rig.discreet);
    compare_all(Some(rig), &[scripts::hidden()]);
    let seeds = 0..super::setting("ZKLOCK_SCRIPTS").unwrap_or(20);
    let random = seeds.map(scripts::random).collect::<Vec<_>>();
    compare_all(Some(Rig::in_memory(Rules::default(), hour)), &random);
    let tidying = Rig::in_memory(Rules::default(), Duration::from_millis(20));
    compare_all(Some(tidying), &scripts::containers());
}

/// Skips servers before 3.5: they close the connection of every new session that asks for a
/// container.
fn not_old(rig: Rig) -> Option<Rig> {
    if rig.is_old {
        eprintln!("SKIPPED: the server is older than 3.5 and knows no containers");
    }
    (!rig.is_old).then_some(rig)
}

/// `ZKLOCK_SCRIPT` sets the seed of one script to play; `ZKLOCK_SCRIPTS` how many scripts to play.
#[test]
fn the_simulated_ensemble_answers_as_a_real_one_whatever_is_asked() {
    let seeds = match super::setting("ZKLOCK_SCRIPT") {
        Some(seed) => seed..seed + 1,
        None => 0..super::setting("ZKLOCK_SCRIPTS").unwrap_or(20),
    };
    compare_all(Rig::start().and_then(not_old), &seeds.map(scripts::random).collect::<Vec<_>>());
}
