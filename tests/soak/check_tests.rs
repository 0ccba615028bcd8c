//! The checks accept a good run, and reject the same run with something wrong in it.

use super::check::{Verdict, check};
use super::history::SECOND;
use super::model::Run;
use super::parse::{FINISH, Files, NEMESIS, REGISTER, SAMPLES, SETTINGS};
use super::summary::summary;
use super::timeline::timeline;

pub(crate) const W0: &str = "worker-0-0.log";
const W1: &str = "worker-1-0.log";
pub(crate) const W2: &str = "worker-1-1.log";

/// Two workers. The lock goes from 0.0.0 to 1.0.0, back to 0.0.0, and, after worker 1 was killed
/// and replaced, to 1.1.0. Times are in milliseconds; `T1` stands for the token with number 1.
const SETTINGS_TEXT: &str = "plan=all\nworkers=2\nsession_ms=2000\n";

const WORKER_0: &str = "\
0 0.0.99 begin 17
50 0.0.4 do counter add 1000000000 one
52 0.0.4 did ok 1
100 0.0.0 want a lock -
110 0.0.0 got T1 a1 /a/one
120 0.0.0 held 119
130 0.0.0 wrote 129 accepted
140 0.0.0 held 139
150 0.0.0 release drop
155 0.0.0 released ok
160 0.0.0 want a try_lock_for 500000000
310 0.0.0 got T3 a1 /a/three
320 0.0.0 held 319
330 0.0.0 wrote 329 accepted
340 0.0.0 held 339
350 0.0.0 ensured 345 ok
360 0.0.0 release unlock
370 0.0.0 released ok
380 0.0.0 want a try_lock_for 100000000
481 0.0.0 nothing
20000 0.0.99 end
";

const WORKER_1: &str = "\
0 1.0.99 begin 18
105 1.0.0 want a lock_within 1000000000
156 1.0.0 got T2 b1 /a/two
160 1.0.0 held 159
170 1.0.0 wrote 169 accepted
300 1.0.0 held 299
301 1.0.0 release drop
302 1.0.0 released ok
303 1.0.0 want a lock -
";

const WORKER_1_1: &str = "\
6000 1.1.99 begin 19
6100 1.1.0 want a lock -
6110 1.1.0 got T5 b2 /a/five
6120 1.1.0 held 6115
6130 1.1.0 release drop
6135 1.1.0 released ok
20000 1.1.99 end
";

const NEMESIS_TEXT: &str = "\
0 - begin
1000 - round 0
1000 - fault kill-worker worker 1
1001 - kill 1 0
5000 - heal kill-worker
5001 - healthy 0
15000 - ending
";

const FINISH_TEXT: &str = "\
16000 999.0.0 do barrier lift 1000000000
16001 999.0.0 did ok false
";

const REGISTER_TEXT: &str = "\
129 0.0.0 accepted a T1
169 1.0.0 accepted a T2
329 0.0.0 accepted a T3
";

fn good() -> Files {
    Files::from([
        (SETTINGS.to_owned(), SETTINGS_TEXT.to_owned()),
        (NEMESIS.to_owned(), NEMESIS_TEXT.to_owned()),
        (REGISTER.to_owned(), REGISTER_TEXT.to_owned()),
        (SAMPLES.to_owned(), String::new()),
        (FINISH.to_owned(), FINISH_TEXT.to_owned()),
        (W0.to_owned(), WORKER_0.to_owned()),
        (W1.to_owned(), WORKER_1.to_owned()),
        (W2.to_owned(), WORKER_1_1.to_owned()),
    ])
}

/// The good run with some words of its histories replaced, and the lines sorted again.
pub(crate) fn doctored(changes: &[(&str, &str, &str)]) -> Files {
    let mut files = good();
    for (file, old, new) in changes {
        let text = files.get_mut(*file).unwrap();
        assert!(text.contains(old), "{old:?} is not in {file}");
        *text = text.replace(old, new);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_by_key(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap_or(0));
        *text = lines.join("\n") + "\n";
    }
    files
}

/// Parses histories, after making times nanoseconds and tokens whole, as real histories have them.
fn run(files: &Files) -> Run {
    let line = |line: &str| -> String {
        let words: Vec<String> = line
            .split(' ')
            .enumerate()
            .map(|(index, word)| match word.strip_prefix('T') {
                Some(token) => format!("{token:0>16}-00000000"),
                None if index == 0 => format!("{word}000000"),
                None => word.to_owned(),
            })
            .collect();
        let times = ["held", "unheld", "wrote", "ensured", "deleted", "starved"];
        let at = words.iter().position(|word| times.contains(&word.as_str()));
        let time = at.map(|at| if words[at] == "deleted" { at + 2 } else { at + 1 });
        let zeros = |(index, word): (usize, &String)| match time {
            Some(time) if time == index => format!("{word}000000"),
            _ => word.clone(),
        };
        words.iter().enumerate().map(zeros).collect::<Vec<_>>().join(" ")
    };
    let whole = |(name, text): (&String, &String)| {
        let text = match name.as_str() {
            SETTINGS => text.clone(),
            _ => text.lines().map(|text| line(text) + "\n").collect(),
        };
        (name.clone(), text)
    };
    Run::read(&files.iter().map(whole).collect()).unwrap()
}

pub(crate) fn judge(files: &Files) -> Verdict {
    check(&run(files))
}

#[track_caller]
pub(crate) fn rejected(files: &Files, why: &str) {
    let found = judge(files).violations;
    assert!(found.iter().any(|violation| violation.contains(why)), "not {why:?}: {found:#?}");
}

#[track_caller]
pub(crate) fn accepted(files: &Files) {
    let found = judge(files).violations;
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_good_run_is_accepted() {
    accepted(&good());
    let run = run(&good());
    let verdict = check(&run);
    let text = summary(&run, &verdict);
    assert!(text.contains("acquisitions 4, ") && text.contains("nothing was wrong"), "{text}");
    let picture = timeline(&run);
    assert!(picture.contains("kill-worker") && picture.trim_end().ends_with("</svg>"));
}

type Change<'a> = (&'a str, &'a str, &'a str);

/// 1.0.0 holds /a/two until 334, 0.0.0 has /a/three from 310.
fn overlapping(changes: &[Change<'_>]) -> Files {
    let late = [
        (W1, "303 1.0.0 want", "337 1.0.0 want"),
        (W1, "302 1.0.0 released", "336 1.0.0 released"),
        (W1, "301 1.0.0 release", "335 1.0.0 held 334\n335 1.0.0 release"),
    ];
    doctored(&[&late, changes].concat())
}

/// The nemesis deletes a contender.
fn deleted(path: &str, at: u64) -> Change<'static> {
    let done = at + 1;
    let lines = format!("{at} - deleting {path}\n{done} - deleted {path} {at}\n1000 - round");
    (NEMESIS, "1000 - round", lines.leak())
}

#[test]
fn two_holders_at_once() {
    // The former holder still claims to hold while the next one holds.
    rejected(
        &doctored(&[
            (W0, "155 0.0.0 released", "159 0.0.0 released"),
            (W0, "150 0.0.0 release", "158 0.0.0 held 157\n158 0.0.0 release"),
        ]),
        "two holders of a for 1.000 ms",
    );
}

#[test]
fn a_claim_counts_from_when_it_was_asked_for() {
    // Asked before the next one held the lock, answered after that.
    accepted(&doctored(&[
        (W0, "155 0.0.0 released", "159 0.0.0 released"),
        (W0, "150 0.0.0 release", "158 0.0.0 held 155\n158 0.0.0 release"),
    ]));
}

#[test]
fn two_holders_for_a_moment_after_a_stranger_deleted_a_node() {
    rejected(&overlapping(&[]), "two holders of a for 24.000 ms");
    let excused = overlapping(&[deleted("/a/two", 305)]);
    accepted(&excused);
    assert_eq!(judge(&excused).excused, 1);
}

#[test]
fn two_holders_long_after_a_session_was_perhaps_ended() {
    let perhaps = |at: u64| {
        let closing = format!("{at} - closing b2\n15000 - ending");
        let lines = "8900 0.0.0 want a lock -\n8990 0.0.0 got T6 a1 /a/six\n8995 0.0.0 held 8994\n\
                     8996 0.0.0 release drop\n8997 0.0.0 released ok\n20000 0.0.99 end";
        doctored(&[
            (W0, "20000 0.0.99 end", lines),
            (W2, "6130 1.1.0 release", "9000 1.1.0 held 8999\n9001 1.1.0 release"),
            (W2, "6135 1.1.0 released", "9002 1.1.0 released"),
            (NEMESIS, "15000 - ending", &closing),
        ])
    };
    accepted(&perhaps(6200));
    rejected(&perhaps(5992), "two holders of a for 2.000 ms");
    rejected(&perhaps(5500), "two holders of a for 4.000 ms");
}

#[test]
fn two_holders_before_a_stranger_deleted_a_node() {
    rejected(&overlapping(&[deleted("/a/two", 320)]), "two holders of a for 10.000 ms");
    rejected(&overlapping(&[deleted("/a/three", 336)]), "two holders of a for 24.000 ms");
}

#[test]
fn a_guard_that_never_learns_that_its_node_was_deleted() {
    let deletion = "6200 - deleting /a/five\n6201 - deleted /a/five 6200\n15000 - ending";
    rejected(
        &doctored(&[
            (W2, "6135 1.1.0 released ok", "9502 1.1.0 released NodeDeleted"),
            (W2, "6130 1.1.0 release", "9500 1.1.0 held 9499\n9501 1.1.0 release"),
            (NEMESIS, "15000 - ending", deletion),
        ]),
        "held on for 3.3 s after its node was deleted",
    );
}

#[test]
fn tokens_that_do_not_grow() {
    rejected(&doctored(&[(W0, "got T3", "got T0")]), "comes after");
}

#[test]
fn an_older_token_comes_later_only_if_its_own_node_was_taken() {
    let older = (W0, "got T3", "got T0");
    accepted(&doctored(&[older, deleted("/a/three", 150)]));
    // A deletion that comes too late, or of the earlier holder's node, does not explain it.
    rejected(&doctored(&[older, deleted("/a/three", 200)]), "comes after");
    rejected(&doctored(&[older, deleted("/a/two", 150)]), "comes after");
}

#[test]
fn two_holders_though_the_newer_ones_node_was_deleted() {
    rejected(&overlapping(&[deleted("/a/three", 305)]), "two holders of a for 24.000 ms");
}

#[test]
fn an_old_token_accepted() {
    let files = doctored(&[(REGISTER, "accepted a T3", "accepted a T1")]);
    rejected(&files, "accepted 0000000000000001-00000000 after a newer one");
}

#[test]
fn a_new_token_refused() {
    let files = doctored(&[(REGISTER, "accepted a T3", "refused a T3")]);
    rejected(&files, "which was not stale");
}

#[test]
fn a_holder_whose_write_is_refused() {
    let files = doctored(&[(W0, "wrote 129 accepted", "wrote 129 refused")]);
    rejected(&files, "held the lock, and its write was refused");
}

#[test]
fn a_late_writer_is_refused_rightly() {
    let late = "145 0.0.0 unheld 144\n149 0.0.0 wrote 148 refused\n150 0.0.0 release";
    let fault = (NEMESIS, "1000 - round", "50 - round 9\n60 - healthy 9\n1000 - round");
    accepted(&doctored(&[(W0, "150 0.0.0 release", late), fault]));
}

#[test]
fn a_waiter_that_is_stuck() {
    rejected(&doctored(&[(W0, "481 0.0.0 nothing\n", "")]), "is stuck in try_lock_for");
}

#[test]
fn a_guard_that_was_never_released() {
    rejected(&doctored(&[(W2, "6135 1.1.0 released ok\n", "")]), "never released");
}

#[test]
fn a_lock_that_nobody_gets_though_it_is_free() {
    let waited = |until: &str| {
        doctored(&[
            (W2, "6120 1.1.0 held 6115\n", ""),
            (W2, "6135 1.1.0 released", "12001 1.1.0 released"),
            (W2, "6130 1.1.0 release", "12000 1.1.0 release"),
            (W2, "6110 1.1.0 got", &format!("{until} 1.1.0 got")),
        ])
    };
    accepted(&waited("11000"));
    rejected(&waited("11200"), "a was free for 5.1 s with waiters");
    // Twice the session timeout, if that is shorter.
    let brief = |until: &str| {
        let mut run = waited(until);
        run.insert(SETTINGS.to_owned(), SETTINGS_TEXT.replace("=2000", "=1000"));
        run
    };
    accepted(&brief("9000"));
    rejected(&brief("9200"), "a was free for 3.1 s with waiters");
    // The servers tell who is ahead.
    let mut seen = waited("11200");
    let view = "10000 server-1 shows a x-7 77 7000000000 3\n";
    seen.entry(SAMPLES.to_owned()).or_default().push_str(view);
    rejected(&seen, "; server-1 showed x-7 of session 77 as the first of 3 from 7.0 to 10.0 s");
}

#[test]
fn a_limit_that_is_not_kept() {
    let late = (W0, "481 0.0.0 nothing", "1100 0.0.0 nothing");
    rejected(&doctored(&[late]), "0.620 s too late");
    // A process that is stopped cannot come back in time.
    let stop = (NEMESIS, "1001 - kill", "1001 - stop 0\n1002 - cont 0\n1003 - kill");
    accepted(&doctored(&[late, stop]));
    // Neither can a process that gets no processor.
    accepted(&doctored(&[late, (W0, "1100 0.0.0", "1000 0.0.99 starved 500\n1100 0.0.0")]));
}

#[test]
fn an_error_without_need() {
    let files = doctored(&[(W0, "481 0.0.0 nothing", "481 0.0.0 failed Server odd")]);
    rejected(&files, "failed: Server");
}

#[test]
fn a_node_that_was_lost_though_nobody_deleted_it() {
    let files = doctored(&[(W0, "370 0.0.0 released ok", "370 0.0.0 released NodeDeleted")]);
    rejected(&files, "was told NodeDeleted");
}

#[test]
fn a_lock_that_is_lost_though_nothing_is_broken() {
    let lost = "341 0.0.0 lost T3 the_session_expired\n342 0.0.0 unheld 341\n\
                350 0.0.0 ensured 345 SessionLost";
    let lost = (W0, "350 0.0.0 ensured 345 ok", lost);
    rejected(&doctored(&[lost]), "lost /a/three though nothing was broken");
    let silent = (W0, "360 0.0.0 release unlock", "359 0.0.0 unheld 358\n360 0.0.0 release unlock");
    rejected(&doctored(&[silent]), "lost /a/three though nothing was broken");
    let late = (W0, "370 0.0.0 released ok", "370 0.0.0 released SessionLost");
    rejected(&doctored(&[late]), "lost /a/three though nothing was broken");
    // A fault, an ended session, or a process that sends no heartbeats explains the loss.
    accepted(&doctored(&[
        lost,
        (NEMESIS, "1000 - round", "50 - round 9\n60 - healthy 9\n1000 - round"),
    ]));
    accepted(&doctored(&[lost, (NEMESIS, "1000 - round", "330 - round 9\n1000 - round")]));
    accepted(&doctored(&[lost, (NEMESIS, "1000 - round", "330 - closing a1\n1000 - round")]));
    let session = (SETTINGS, "session_ms=2000", "session_ms=300");
    accepted(&doctored(&[lost, session, (W0, "100 0.0.0", "105 0.0.99 starved 1\n100 0.0.0")]));
    rejected(
        &doctored(&[lost, session, (W0, "100 0.0.0", "95 0.0.99 starved 1\n100 0.0.0")]),
        "lost /a/three though nothing was broken",
    );
}

#[test]
fn what_is_lost_to_a_fault_that_must_cost_nothing() {
    let lost = "341 0.0.0 lost T3 the_session_expired\n342 0.0.0 unheld 341\n\
                350 0.0.0 ensured 345 SessionLost";
    let lost = (W0, "350 0.0.0 ensured 345 ok", lost);
    let session = (W0, "481 0.0.0", "341 0.0.99 state 0 lost\n481 0.0.0");
    let lease = (SETTINGS, "plan=all", "plan=lease");
    let fault = |kind: &str| {
        format!(
            "200 - round 9\n201 - fault {kind} all\n250 - heal {kind}\n260 - healthy 9\n1000 - round"
        )
    };
    let [mild, hard] = ["throttle", "cut"].map(fault);
    let [mild, hard] = [mild, hard].map(|rounds| (NEMESIS, "1000 - round", rounds));
    for (change, what) in
        [(lost, "lost /a/three"), (session, "client 0 of 0.0.99 lost its session")]
    {
        let mild = (mild.0, mild.1, mild.2.as_str());
        let hard = (hard.0, hard.1, hard.2.as_str());
        let why = format!("{what} though no fault explains that");
        rejected(&doctored(&[lease, change, mild]), &why);
        accepted(&doctored(&[lease, change, hard]));
        // Among other faults it may cost something.
        accepted(&doctored(&[change, mild]));
        // A tenth of the session timeout without a processor explains it.
        let starved = (W0, "100 0.0.0", "300 0.0.99 starved 99\n100 0.0.0");
        accepted(&doctored(&[lease, change, mild, starved]));
    }
}

#[test]
fn the_session_timeout_of_a_run_is_the_longest_that_a_server_grants() {
    let longer = (
        SETTINGS,
        "session_ms=2000",
        "session_ms=2000\nmost_session_ms=4000\nleast_session_ms=1000",
    );
    let run = run(&doctored(&[longer]));
    assert_eq!(run.session_timeout(), 4 * SECOND);
    assert_eq!(run.least_session_timeout(), SECOND);
}

#[test]
fn what_is_left_behind() {
    let threads = "19999 0.0.99 left threads [x]\n20000 0.0.99 end";
    rejected(&doctored(&[(W0, "20000 0.0.99 end", threads)]), "left behind");
    let session = "15000 - ending\n16000 - left session 0x1";
    rejected(&doctored(&[(NEMESIS, "15000 - ending", session)]), "left behind");
}

#[test]
fn a_worker_that_ended_by_itself() {
    rejected(&doctored(&[(W2, "20000 1.1.99 end\n", "")]), "history of worker 1.1 has no end");
}

#[test]
fn a_history_that_is_missing() {
    for (name, who) in [(W0, "0.0"), (W1, "1.0"), (W2, "1.1")] {
        let why = format!("the history of worker {who} is missing");
        let mut files = good();
        files.insert(name.to_owned(), String::new());
        rejected(&files, &why);
        files.remove(name);
        rejected(&files, &why);
    }
    rejected(&doctored(&[(SETTINGS, "workers=2\n", "")]), "no number of workers");
}

#[test]
fn growth_over_a_long_run() {
    let grown = |kilobytes: u64| {
        let mut files = doctored(&[(NEMESIS, "15000 - ending", "1200000 - ending")]);
        let sample = |at: u64| {
            let size = if at < 900_000 { 10_000 } else { kilobytes };
            format!("{at} - sample 0 0 {size} 20\n")
        };
        files.insert(SAMPLES.to_owned(), (1..1200).map(|second| sample(second * 1000)).collect());
        files
    };
    accepted(&grown(11_000));
    rejected(&grown(20_000), "grew");
}

#[test]
fn a_session_lost_in_a_rolling_restart() {
    let lost = (W0, "481 0.0.0", "450 0.0.99 state 0 lost\n481 0.0.0");
    accepted(&doctored(&[lost]));
    let files = doctored(&[lost, (SETTINGS, "plan=all", "plan=rolling")]);
    rejected(&files, "lost its session");
}

#[test]
fn a_torn_last_line_is_that_of_a_killed_writer() {
    let read = super::history::lines("", "1 1.0.99 begin 1\n310 1.0.0 wa").unwrap();
    assert_eq!(read.len(), 1);
}

/// The good run, in which worker 0 (`first`) and worker 1 (`second`) also use another lock.
fn beside(first: &str, second: &str) -> Files {
    doctored(&[
        (W0, "20000 0.0.99 end", &format!("{first}\n20000 0.0.99 end")),
        (W2, "20000 1.1.99 end", &format!("{second}\n20000 1.1.99 end")),
    ])
}

/// The history of a thread that holds a lock for a time, in its own session.
fn held(who: &str, want: &str, got: &str, from: u64, to: u64) -> String {
    let (claim, release, released) = (to, to + 1, to + 2);
    format!(
        "{from} {who} want {want}\n{from} {who} got {got}\n{to} {who} held {claim}\n\
         {release} {who} release drop\n{released} {who} released ok"
    )
}

#[test]
fn readers_share_and_nobody_shares_with_a_writer() {
    let reader = held("0.0.1", "rw lock - read", "T20 c1 /rw/a", 7000, 7100);
    let other = held("1.1.1", "rw try_lock 5000000000 read", "T21 c2 /rw/b", 7050, 7150);
    accepted(&beside(&reader, &other));
    let writer = held("1.1.1", "rw lock - alone", "T21 c2 /rw/b", 7050, 7150);
    rejected(&beside(&reader, &writer), "two holders of rw for 50.000 ms");
    let writer_before = held("0.0.1", "rw lock - alone", "T20 c1 /rw/a", 7000, 7100);
    rejected(&beside(&writer_before, &other), "two holders of rw for 50.000 ms");
}

#[test]
fn tokens_of_readers_and_writers() {
    let reader = |token: &str| format!("{token} c1 /rw/a");
    let first = held("0.0.1", "rw lock - alone", "T20 c1 /rw/a", 7000, 7010);
    for (share, token, fits) in
        [("read", "T21", true), ("read", "T19", false), ("alone", "T19", false)]
    {
        let second = held("1.1.1", &format!("rw lock - {share}"), &reader(token), 7050, 7060);
        match fits {
            true => accepted(&beside(&first, &second)),
            false => rejected(&beside(&first, &second), "comes after"),
        }
    }
    // Readers in any order; a writer's token is above those before it.
    let first = held("0.0.1", "rw lock - read", "T20 c1 /rw/a", 7000, 7010);
    let second = held("1.1.1", "rw lock - read", "T19 c2 /rw/b", 7050, 7060);
    accepted(&beside(&first, &second));
    let second = held("1.1.1", "rw lock - alone", "T19 c2 /rw/b", 7050, 7060);
    rejected(&beside(&first, &second), "comes after");
}

#[test]
fn a_writer_that_came_in_before_a_downgraded_reader() {
    let writer = held("0.0.1", "rw lock - alone", "T20 c1 /rw/a", 7000, 7010);
    let reader = held("0.0.1", "rw downgrade - read", "T20 c1 /rw/b", 7030, 7050);
    let later = held("1.1.1", "rw lock - alone", "T21 c2 /rw/c", 7060, 7070);
    accepted(&beside(&format!("{writer}\n{reader}"), &later));
    let between = held("1.1.1", "rw lock - alone", "T21 c2 /rw/c", 7015, 7020);
    rejected(&beside(&format!("{writer}\n{reader}"), &between), "comes after");
    // Only the writer itself may keep its token.
    let stranger = held("1.1.1", "rw downgrade - read", "T20 c2 /rw/b", 7030, 7050);
    rejected(&beside(&writer, &stranger), "comes after");
}

#[test]
fn more_permits_than_there_are() {
    let first = held("0.0.1", "sem lock - 2/3", "T1 c1 /sem/a", 7000, 7100);
    let light = held("1.1.1", "sem lock - 1/3", "T2 c2 /sem/b", 7050, 7150);
    accepted(&beside(&first, &light));
    let heavy = held("1.1.1", "sem lock - 2/3", "T2 c2 /sem/b", 7050, 7150);
    rejected(&beside(&first, &heavy), "4 of 3 permits of sem are held");
    // One after the other.
    let later = held("1.1.1", "sem lock - 3/3", "T0 c2 /sem/b", 7100, 7150);
    accepted(&beside(&first, &later));
    // The nemesis has deleted the first one's node.
    let mut taken = beside(&first, &heavy);
    let deletion = "7040 - deleting /sem/a\n7041 - deleted /sem/a 7040\n15000 - ending";
    let nemesis = taken[NEMESIS].replace("15000 - ending", deletion);
    taken.insert(NEMESIS.to_owned(), nemesis);
    accepted(&taken);
    // Clients with a different number of permits exclude each other.
    let odd = held("1.1.1", "sem lock - 1/4", "T2 c2 /sem/b", 7050, 7150);
    rejected(&beside(&first, &odd), "two holders of sem");
}

#[test]
fn each_lock_of_several_is_held_alone() {
    let first = held("0.0.1", "one+two lock - alone", "T20 c1 /one/a T21 /two/a", 7000, 7100);
    let second = |from| held("1.1.1", "two lock - alone", "T22 c2 /two/b", from, 7150);
    accepted(&beside(&first, &second(7101)));
    rejected(&beside(&first, &second(7050)), "two holders of two for 50.000 ms");
    let older = held("1.1.1", "two lock - alone", "T19 c2 /two/b", 7120, 7150);
    rejected(&beside(&first, &older), "comes after");
    let taken = "7040 - deleting /two/a\n7041 - deleted /two/a 7040\n15000 - ending";
    let mut files = beside(&first, &second(7050));
    let nemesis = files[NEMESIS].replace("15000 - ending", taken);
    files.insert(NEMESIS.to_owned(), nemesis);
    accepted(&files);
}
