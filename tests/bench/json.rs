//! Results for other programs: all measurements, and what follows from them.

use serde_json::{Value, json};

use super::contestant::Contestant::Curator;
use super::goals::Verdict;
use super::results::{Latency, Results, Run, Spread};
use super::workload::{ServerKind, Workload};

pub(crate) fn json(results: &Results, verdicts: &[Verdict]) -> Value {
    json!({
        "to_be_quoted": !results.accepted_load,
        "machine": results.machine,
        "server": results.server,
        "rounds": results.rounds,
        "seconds": results.seconds,
        "goals": verdicts.iter().map(verdict).collect::<Vec<_>>(),
        "workloads": results.workloads.iter().map(|one| workload(results, one)).collect::<Vec<_>>(),
        "runs": results.runs.iter().map(run).collect::<Vec<_>>(),
        "missing": results.missing.iter().map(|missing| json!({
            "workload": missing.workload,
            "client": missing.contestant.name(),
            "why": missing.why,
        })).collect::<Vec<_>>(),
    })
}

fn verdict(verdict: &Verdict) -> Value {
    json!({
        "workload": verdict.workload,
        "goal": verdict.goal,
        "seen": verdict.seen.as_ref().ok().map(spread),
        "why_not": verdict.seen.as_ref().err(),
        "met": verdict.met,
    })
}

fn workload(results: &Results, workload: &Workload) -> Value {
    let clients = workload.contestants.iter().map(|contestant| {
        let figure = results.figure(workload.name, *contestant, |run| Some(run.speed));
        let ratio = results.ratio(workload.name, (*contestant, Curator), |run| Some(run.speed));
        json!({
            "client": contestant.name(),
            "per_second": figure.ok().as_ref().map(spread),
            "by_curator": ratio.ok().as_ref().map(spread),
        })
    });
    json!({
        "name": workload.name,
        "what": workload.what,
        "fsync": workload.server != ServerKind::WithoutFsync,
        "network_milliseconds": workload.network.map(|one_way| one_way.as_secs_f64() * 2e3),
        "processes": workload.processes,
        "clients": clients.collect::<Vec<_>>(),
    })
}

fn spread(spread: &Spread) -> Value {
    json!({ "median": spread.median, "least": spread.least, "most": spread.most })
}

fn latency(latency: &Latency) -> Value {
    json!({ "median": latency.median, "percent_99": latency.most })
}

fn run(run: &Run) -> Value {
    json!({
        "workload": run.workload,
        "client": run.contestant.name(),
        "round": run.round,
        "operations": run.operations,
        "per_second": run.speed,
        "processor_seconds": run.processor,
        "context_switches": run.switches,
        "peak_bytes": run.peak,
        "requests": run.requests,
        "fsyncs": run.fsyncs,
        "shares": run.shares,
        "acquired_microseconds": run.acquired.as_ref().map(latency),
        "handed_over_microseconds": run.handed_over.as_ref().map(latency),
        "others_processors": run.others,
        "spoiled": run.spoiled,
    })
}
