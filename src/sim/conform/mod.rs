//! The ensemble in memory answers as a real one does: the same scripts are played on both,
//! by the same code, and what each step brings is compared.

mod event_order;
mod player;
mod scripts;
mod servers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::rt::Mutex;

use self::player::Outcome;
use self::scripts::Script;
use self::servers::{Rig, Simulated};

/// How many scripts are played at once.
const THREADS: usize = 4;

/// Plays a script on a real server and on the simulated one.
fn compare(rig: &Rig, script: &Script) -> Result<(), String> {
    let simulated = Simulated::play(script, rig);
    let real = rig.play(script);
    assert_eq!(simulated.len(), script.steps.len(), "{}: not played to its end", script.name);
    assert_eq!(real.len(), script.steps.len(), "{}: not played to its end", script.name);
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
    // Most of the time goes by while connections are made again.
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
    assert!(differ.is_empty(), "the simulation is not as the server is:\n{differ}");
}

#[test]
fn the_simulated_ensemble_answers_as_a_real_one() {
    compare_all(Rig::start(), &scripts::fixed());
}

/// On a server that looks for them all the time.
#[test]
fn the_simulated_ensemble_removes_containers_as_a_real_one() {
    compare_all(Rig::tidying().and_then(not_old), &scripts::containers());
}

/// A server that closes connections over containers does so whenever a new session asks for one.
fn not_old(rig: Rig) -> Option<Rig> {
    if rig.is_old {
        eprintln!("SKIPPED: the server is older than 3.5 and knows no containers");
    }
    (!rig.is_old).then_some(rig)
}

/// `ZKLOCK_SCRIPT` is the seed of one to play; `ZKLOCK_SCRIPTS` how many to play.
#[test]
fn the_simulated_ensemble_answers_as_a_real_one_whatever_is_asked() {
    let seeds = match super::setting("ZKLOCK_SCRIPT") {
        Some(seed) => seed..seed + 1,
        None => 0..super::setting("ZKLOCK_SCRIPTS").unwrap_or(20),
    };
    compare_all(Rig::start().and_then(not_old), &seeds.map(scripts::random).collect::<Vec<_>>());
}
