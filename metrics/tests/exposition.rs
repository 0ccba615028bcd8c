//! What an exporter shows for a real server, read as a Prometheus reads it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use prometheus_parse::{Sample, Scrape, Value};
use zklock::{Cancel, Client, DistributedLock, DistributedSemaphore};
use zklock_metrics::LockMetrics;
use zklock_testing::ZooKeeper;

const SOON: Duration = Duration::from_secs(20);

/// One for the process, as an exporter is.
static EXPORTER: LazyLock<PrometheusHandle> = LazyLock::new(|| {
    let builder = PrometheusBuilder::new().set_buckets(&[0.001, 1.0]).unwrap();
    builder.install_recorder().unwrap()
});

/// Not all metrics have a label by which tests could tell them apart.
fn one_test_at_a_time() -> MutexGuard<'static, ()> {
    static TEST: Mutex<()> = Mutex::new(());
    TEST.lock().unwrap_or_else(PoisonError::into_inner)
}

type Label = (&'static str, &'static str);

fn scrape() -> Vec<Sample> {
    let text = EXPORTER.render();
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap().samples
}

fn number(samples: &[Sample], name: &str, labels: &[Label]) -> f64 {
    let matching = samples.iter().filter(|sample| {
        sample.metric == name
            && labels.iter().all(|(label, value)| sample.labels.get(label) == Some(value))
    });
    matching
        .map(|sample| match &sample.value {
            Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => *value,
            // How many there were: the last bucket has no bound.
            Value::Histogram(buckets) => buckets.last().unwrap().count,
            Value::Summary(_) => panic!("{name} is no summary"),
        })
        .sum()
}

/// Waits until these are the numbers.
fn expect(wanted: &[(&str, &[Label], f64)]) {
    let end = Instant::now() + SOON;
    loop {
        let samples = scrape();
        let wrong =
            wanted.iter().find(|(name, labels, value)| number(&samples, name, labels) != *value);
        let Some((name, labels, value)) = wrong else { return };
        assert!(Instant::now() < end, "{name} {labels:?} is not {value}:\n{}", EXPORTER.render());
        thread::yield_now();
    }
}

fn client(server: &ZooKeeper, metrics: &LockMetrics) -> Client {
    LazyLock::force(&EXPORTER);
    let builder = Client::builder(server.hosts()).session_timeout(Duration::from_secs(4));
    builder.on_event(metrics.recorder()).connect().unwrap()
}

/// Has Prometheus' own tool read the metrics, and judge their names.
fn check_with_promtool() {
    let Some(promtool) = std::env::var_os("ZKLOCK_PROMTOOL") else {
        println!("skipped: promtool (ZKLOCK_PROMTOOL is not set; scripts/test sets it)");
        return;
    };
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut checking = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    checking.stdin.take().unwrap().write_all(EXPORTER.render().as_bytes()).unwrap();
    let said = checking.wait_with_output().unwrap();
    let text = String::from_utf8([said.stderr, said.stdout].concat()).unwrap();
    assert!(said.status.success() && text.is_empty(), "{text}");
}

#[test]
fn waits_holds_and_losses_are_counted_and_the_gauges_return_to_zero() {
    let _alone = one_test_at_a_time();
    let server = ZooKeeper::builder().local().start().expect("a ZooKeeper server");
    let metrics = LockMetrics::new();
    let (zk, other) = (client(&server, &metrics), Client::connect(server.hosts()).unwrap());
    let (base, label) = ("/counted", ("lock", "/counted"));
    let lock = DistributedLock::new(&zk, base, "a");
    let theirs = DistributedLock::new(&other, base, "a");
    let what = ("what", "lock");

    let guard = lock.lock().unwrap();
    expect(&[
        ("zklock_acquired_total", &[label, what], 1.0),
        ("zklock_held", &[label, what], 1.0),
        ("zklock_wait_seconds", &[label, what, ("outcome", "acquired")], 1.0),
        ("zklock_session_state", &[("state", "connected")], 1.0),
    ]);
    // Broken by another client: lost, and not released once more.
    theirs.break_lock(&theirs.holder().unwrap().unwrap()).unwrap();
    expect(&[
        ("zklock_lost_total", &[label, what, ("reason", "node_deleted")], 1.0),
        ("zklock_held", &[label, what], 0.0),
        ("zklock_hold_seconds", &[label, what], 1.0),
    ]);
    drop(guard);

    let held = theirs.lock().unwrap();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock_within(&cancel).map(drop));
        expect(&[("zklock_waiting", &[label], 1.0)]);
        cancel.cancel();
        waiter.join().unwrap().unwrap_err();
    });
    assert!(lock.try_lock().unwrap().is_none());
    expect(&[
        ("zklock_waiting", &[label], 0.0),
        ("zklock_not_acquired_total", &[label, what, ("reason", "cancelled")], 1.0),
        ("zklock_not_acquired_total", &[label, what, ("reason", "held_by_others")], 1.0),
        ("zklock_wait_seconds", &[label, what, ("outcome", "not_acquired")], 2.0),
    ]);
    drop(held);

    drop(DistributedSemaphore::new(&zk, base, "permits", 2).acquire().unwrap());
    expect(&[
        ("zklock_acquired_total", &[label, ("what", "permit")], 1.0),
        ("zklock_hold_seconds", &[label, ("what", "permit")], 1.0),
    ]);
    check_with_promtool();
    drop(lock);
    zk.close();
    expect(&[("zklock_session_state", &[], 0.0), ("zklock_held", &[], 0.0)]);
}

#[test]
fn an_outage_shows_and_what_it_leaves_is_taken_off_when_the_client_is_dropped() {
    let _alone = one_test_at_a_time();
    let server = ZooKeeper::builder().local().start().expect("a ZooKeeper server");
    let metrics = LockMetrics::labelled_by(|path| format!("outage of {path}"));
    let zk = client(&server, &metrics);
    let guard = DistributedLock::new(&zk, "/locks", "a").lock().unwrap();
    let label = ("lock", "outage of /locks/a");
    server.stop().unwrap();
    expect(&[
        ("zklock_session_state", &[("state", "suspended")], 1.0),
        ("zklock_session_state", &[("state", "connected")], 0.0),
        ("zklock_held", &[label], 1.0),
    ]);
    // Its deletion has to wait for a server.
    drop(guard);
    expect(&[("zklock_held", &[label], 0.0), ("zklock_cleanups_pending", &[], 1.0)]);
    expect(&[
        ("zklock_session_state", &[("state", "lost")], 1.0),
        ("zklock_cleanups_pending", &[], 0.0),
    ]);
    assert!(number(&scrape(), "zklock_suspended_seconds_total", &[]) >= 1.0);
    check_with_promtool();
    drop(zk);
    expect(&[("zklock_session_state", &[], 0.0)]);
}
