//! The checks reject what recipes that are not locks must not do.

use super::check_tests::{W0, W2, accepted, doctored, judge, rejected};
use super::parse::{FINISH, Files, NEMESIS};

/// The good run, with further calls of two workers from 7 s on, and of the finisher at the end.
fn with(first: &str, second: &str, found: &str) -> Files {
    let before_end = |lines: &str, end: &str| match lines {
        "" => end.to_owned(),
        lines => format!("{lines}\n{end}"),
    };
    let mut files = doctored(&[
        (W0, "20000 0.0.99 end", &before_end(first, "20000 0.0.99 end")),
        (W2, "20000 1.1.99 end", &before_end(second, "20000 1.1.99 end")),
    ]);
    files.entry(FINISH.to_owned()).or_default().push_str(found);
    files
}

fn by(who: &str, deeds: &[(u64, u64, &str, &str)]) -> String {
    let lines = deeds.iter().map(|(from, to, what, came)| {
        let (recipe, what) = what.split_once(' ').unwrap();
        let (deed, about) = what
            .split_once(' ')
            .map_or((what, String::new()), |(deed, about)| (deed, format!(" {about}")));
        format!("{from} {who} do {recipe} {deed} 100000000{about}\n{to} {who} did {came}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

type Deeds<'a> = &'a [(u64, u64, &'a str, &'a str)];

/// The same, with further calls of one thread of each worker.
fn two(first: Deeds<'_>, second: Deeds<'_>) -> Files {
    with(&by("0.0.4", first), &by("1.1.4", second), "")
}

fn finishing(first: Deeds<'_>, second: Deeds<'_>, end: Deeds<'_>) -> Files {
    with(&by("0.0.4", first), &by("1.1.4", second), &(by("999.0.0", end) + "\n"))
}

/// The same run, whose calls have all the time they want.
fn patient(mut files: Files) -> Files {
    for text in files.values_mut() {
        *text = text.replace("queue take 100000000", "queue take 5000000000");
    }
    files
}

/// The same run with a fault.
fn broken(mut files: Files, from: u64, to: u64) -> Files {
    let fault = format!("{from} - round 1\n{to} - healthy 1\n15000 - ending");
    let nemesis = files[NEMESIS].replace("15000 - ending", &fault);
    files.insert(NEMESIS.to_owned(), nemesis);
    files
}

fn closed(mut files: Files, at: u64) -> Files {
    let closing = format!("{at} - closing c1\n{at} - closed c1\n15000 - ending");
    let nemesis = files[NEMESIS].replace("15000 - ending", &closing);
    files.insert(NEMESIS.to_owned(), nemesis);
    files
}

#[test]
fn counts_that_are_lost_or_made_twice() {
    // In the good run this counter is at 1.
    let add = |from, to, came| (from, to, "counter add one", came);
    let get = |from, to, came| (from, to, "counter get one", came);
    let files = |came| two(&[add(7000, 7010, "ok 2")], &[add(7020, 7030, came)]);
    accepted(&files("ok 3"));
    for wrong in ["ok 4", "ok 2", "ok 1"] {
        rejected(&files(wrong), "the calls on counter one fit no order");
    }
    rejected(&two(&[add(7000, 7010, "ok 2")], &[get(7020, 7030, "ok 1")]), "fit no order");
    // Other counters are other objects.
    accepted(&two(&[add(7000, 7010, "ok 2")], &[(7020, 7030, "counter add two", "ok 1")]));
    // An addition without a result is made once or not at all.
    let unsure = add(7000, 7010, "failed ConnectionLoss x");
    for (came, fits) in [("ok 1", true), ("ok 2", true), ("ok 3", false)] {
        let files = broken(two(&[unsure, get(19000, 19010, came)], &[]), 6900, 7100);
        if fits { accepted(&files) } else { rejected(&files, "fit no order") }
    }
    // One that reached no server is not made.
    let in_vain = add(7000, 7010, "failed Connect x");
    let files = broken(two(&[in_vain, get(19000, 19010, "ok 2")], &[]), 6900, 7100);
    rejected(&files, "fit no order");
    // Overlapping additions may take effect in any order.
    accepted(&two(&[add(7000, 7030, "ok 3")], &[add(7005, 7040, "ok 2")]));
}

#[test]
fn values_that_come_back_or_are_changed_twice() {
    let wrong = "the calls on value v fit no order";
    let create = (7000, 7010, "value create v a", "ok made");
    let get = |from, to, came| (from, to, "value get v", came);
    let delete = |from, to, came| (from, to, "value delete v", came);
    accepted(&two(&[create, get(7020, 7030, "ok 0:a"), delete(7040, 7050, "ok deleted")], &[]));
    rejected(&two(&[create], &[get(7020, 7030, "ok 0:b")]), wrong);
    rejected(&two(&[create], &[get(7020, 7030, "ok none")]), wrong);
    rejected(&two(&[create], &[(7020, 7030, "value create v b", "ok made")]), wrong);
    accepted(&two(&[create], &[(7020, 7030, "value create v b", "ok exists")]));
    rejected(&two(&[create], &[delete(7020, 7030, "ok none")]), wrong);
    // A creation that took long, and was made a second time after others had deleted the node.
    let long = (7000, 7300, "value create v a", "ok made");
    let others = [get(7100, 7110, "ok 0:a"), delete(7120, 7130, "ok deleted")];
    accepted(&two(&[long], &others));
    rejected(&two(&[long, get(8000, 8010, "ok 0:a")], &others), wrong);
    // A write of a version that the node has in another life.
    let write = |to, came| (7020, to, "value write v b 0", came);
    accepted(&two(&[create, write(7030, "ok 1")], &[get(7040, 7050, "ok 1:b")]));
    accepted(&two(&[create, write(7030, "ok other")], &[(7015, 7018, "value set v c", "ok 1")]));
    rejected(&two(&[create, write(7030, "ok other")], &[]), wrong);
    let others = [
        get(7100, 7110, "ok 1:b"),
        delete(7120, 7130, "ok deleted"),
        (7140, 7150, "value create v c", "ok made"),
    ];
    accepted(&two(&[create, write(7300, "ok 1")], &others));
    rejected(&two(&[create, write(7300, "ok 1"), get(8000, 8010, "ok 1:b")], &others), wrong);
    // A set that takes long may be sent again, over what others have set.
    let set = |to, came| (7020, to, "value set v b", came);
    let others = [get(7025, 7026, "ok 1:b"), (7027, 7028, "value write v c 1", "ok 2")];
    accepted(&two(&[create, set(7300, "ok 3"), get(7600, 7610, "ok 3:b")], &others));
    // It made the node, and wrote it again.
    accepted(&two(&[set(7027, "ok 1"), get(7600, 7610, "ok 1:b")], &[]));
    rejected(&two(&[set(7022, "ok 1"), get(7600, 7610, "ok 1:b")], &[]), wrong);
}

#[test]
fn a_queue_that_is_said_to_be_empty() {
    let offer = (7000, 7010, "queue offer x", "ok done");
    let take = |from, to, came| (from, to, "queue take", came);
    let wrong = "the calls on queue x fit no order";
    let seen = |miss| two(&[offer, take(7100, 7110, "ok x")], &[miss]);
    accepted(&patient(seen(take(7005, 7006, "nothing"))));
    rejected(&patient(seen(take(7020, 7030, "nothing"))), wrong);
    accepted(&patient(seen(take(7020, 7105, "nothing"))));
    // With little time, a call may miss what is there.
    accepted(&seen(take(7020, 7030, "nothing")));
    // Another call may have been taking it, or have taken it already.
    let unsure = [offer, take(7015, 7025, "failed ConnectionLoss x"), take(7100, 7110, "ok x")];
    accepted(&patient(broken(two(&unsure, &[take(7027, 7030, "nothing")]), 6900, 7120)));
}

#[test]
fn a_leader_who_goes_on_after_the_next_one_has_begun() {
    let term = |want, got, token: &str, claimed: u64| {
        let asked = claimed + 1;
        format!(
            "{want} 0.0.0 want election lock -\n{got} 0.0.0 got {token} a1 /election/{token}\n\
             {asked} 0.0.0 held {claimed}\n{asked} 0.0.0 release drop\n{asked} 0.0.0 released ok"
        )
    };
    let led = |first: &str, second: &str| {
        with(first, &second.replace(" 0.0.0 ", " 1.1.0 ").replace(" a1 ", " b2 "), "")
    };
    let first = term(7000, 7010, "T7", 7100);
    accepted(&led(&first, &term(7020, 7200, "T8", 7300)));
    rejected(&led(&first, &term(7020, 7050, "T8", 7300)), "the calls on election terms");
    rejected(&led(&first, &term(7120, 7130, "T6", 7300)), "the calls on election terms");
}

#[test]
fn a_deed_that_fails_or_is_late_or_has_no_end() {
    let look = |to, came| two(&[(7000, to, "group look 0-0", came)], &[]);
    accepted(&look(7050, "ok seen"));
    rejected(&look(7050, "ok unseen"), "0.0.4 is a member, but was not seen");
    let late = "group look of 0.0.4 with a limit of 0.100 s returned 0.400 s too late";
    rejected(&look(7500, "ok seen"), late);
    let long_after = (9000, 9050, "group look 0-0", "failed ConnectionLoss x");
    rejected(&two(&[long_after], &[]), "group look of 0.0.4 failed");
    accepted(&broken(look(7050, "failed ConnectionLoss x"), 6900, 7100));
    rejected(&broken(look(7050, "failed Server x"), 6900, 7100), "failed: Server");
    rejected(&look(7050, "failed NodeDeleted x"), "failed: NodeDeleted");
    accepted(&closed(look(7050, "failed NodeDeleted x"), 6990));
    let pending = with("7000 0.0.4 do counter get 1000", "", "");
    rejected(&pending, "0.0.4 is stuck in counter get");
}

#[test]
fn items_that_are_taken() {
    let offer = (7000, 7010, "queue offer 0.0.1", "ok done");
    let take = |from, to, came| (from, to, "queue take", came);
    accepted(&two(&[offer], &[take(7020, 7030, "ok 0.0.1")]));
    let twice = [take(7020, 7030, "ok 0.0.1"), take(7040, 7050, "ok 0.0.1")];
    rejected(&two(&[offer], &twice), "queue has delivered 0.0.1 twice");
    let at_the_end = finishing(&[offer], &twice[..1], &[take(16000, 16010, "ok 0.0.1")]);
    rejected(&at_the_end, "queue has delivered 0.0.1 twice");
    rejected(&two(&[], &twice[..1]), "0.0.1, which was never offered");
    let in_vain = (7000, 7010, "queue offer 0.0.1", "failed Connect x");
    let files = broken(two(&[in_vain], &twice[..1]), 6900, 7100);
    rejected(&files, "0.0.1, which was never offered");
    let unsure = (7000, 7010, "queue offer 0.0.1", "failed ConnectionLoss x");
    accepted(&broken(two(&[unsure], &twice[..1]), 6900, 7100));
    rejected(&two(&[offer], &[]), "queue has lost 0.0.1");
    let other = (7011, 7015, "queue offer 0.0.2", "ok done");
    let lost = (7020, 7030, "queue take", "failed ConnectionLoss x");
    accepted(&broken(two(&[offer, other], &[lost]), 6900, 7100));
}

#[test]
fn items_that_come_in_order() {
    for (recipe, take) in [("queue", "take"), ("priority", "take"), ("leased", "lease")] {
        let word = |text: String| -> &'static str { text.leak() };
        let by_priority = recipe == "priority";
        // In a priority queue, the last item has a higher priority.
        let [a, b, c] = if by_priority { ["1/a", "1/b", "0/c"] } else { ["a", "b", "c"] };
        let offer =
            |from, to, item: &str| (from, to, word(format!("{recipe} offer {item}")), "ok done");
        let (first, last) = ([offer(7000, 7010, a), offer(7020, 7030, b)], offer(7032, 7034, c));
        let takes = |items: [&str; 3]| {
            let mut all = Vec::new();
            for (at, item) in [16010, 16020, 16030].into_iter().zip(items) {
                let came = word(format!("ok {item}"));
                all.push((at, at + 1, word(format!("{recipe} {take}")), came));
                if recipe == "leased" {
                    all.push((at + 2, at + 3, word(format!("leased ack {item} -")), "ok done"));
                }
            }
            all
        };
        let (right, wrong) = match by_priority {
            true => ([c, a, b], [a, b, c]),
            false => ([a, b, c], [c, a, b]),
        };
        let why = format!("{recipe} delivered {} too late", if by_priority { c } else { a });
        accepted(&finishing(&first, &[last], &takes(right)));
        rejected(&finishing(&first, &[last], &takes(wrong)), &why);
        rejected(&finishing(&first, &[last], &takes([right[0], right[2], right[1]])), "too late");
        // Items that were offered at the same time may come in any order.
        let second = [offer(7005, 7020, b), last];
        let any = if by_priority { [c, b, a] } else { [b, a, c] };
        accepted(&finishing(&first[..1], &second, &takes(any)));
    }
}

/// ZooKeeper may forget what it acknowledges just when a server is lost.
#[test]
fn what_a_server_that_goes_has_acknowledged() {
    let goes = |mut files: Files| {
        let fault = "6900 - round 1\n6900 - fault isolate-leader server 0\n7100 - heal \
                     isolate-leader\n7100 - healthy 1\n15000 - ending";
        let nemesis = files[NEMESIS].replace("15000 - ending", fault);
        files.insert(NEMESIS.to_owned(), nemesis);
        files
    };
    let counted =
        [(7000, 7010, "counter add one", "ok 2"), (7600, 7610, "counter get one", "ok 1")];
    let offered = [(7000, 7010, "leased offer 0.0.1", "ok done")];
    for forgotten in [two(&counted, &[]), two(&offered, &[])] {
        assert!(!judge(&forgotten).violations.is_empty());
        accepted(&goes(forgotten));
    }
    let up = (7000, 7010, "barrier raise", "ok true");
    accepted(&goes(two(&[up], &[(7050, 7060, "barrier wait", "ok passed")])));
    let take = |from, to| (from, to, "queue take", "ok 0.0.1");
    let offer = (6800, 6810, "queue offer 0.0.1", "ok done");
    accepted(&goes(two(&[offer, take(7020, 7030)], &[take(7600, 7610)])));
    rejected(&goes(two(&[offer, take(7420, 7430)], &[take(7600, 7610)])), "0.0.1 twice");
    let decide = |from, said| (from, from + 10, "commit decide r", said);
    accepted(&goes(two(&[decide(7000, "ok abort")], &[decide(7700, "ok abort")])));
}

#[test]
fn items_that_are_leased() {
    let offer = (7000, 7010, "leased offer 0.0.1", "ok done");
    let lease = |from, to| (from, to, "leased lease", "ok 0.0.1");
    let returned = (7040, 7050, "leased return 0.0.1 7040000000", "ok done");
    let ack = |from, to, came| (from, to, "leased ack 0.0.1 7070000000", came);
    let first = [offer, lease(7020, 7030), returned];
    accepted(&two(&first, &[lease(7045, 7060), ack(7070, 7080, "ok done")]));
    let at_once = two(&first, &[lease(7025, 7035), ack(7070, 7080, "ok done")]);
    rejected(&at_once, "0.0.1 was leased by 0.0.4 and 1.1.4");
    accepted(&closed(at_once, 6999));
    rejected(&two(&first, &[]), "leased has lost 0.0.1");
    let lost = two(&first, &[lease(7045, 7060), ack(7070, 7080, "failed NodeDeleted x")]);
    rejected(&closed(lost, 7065), "leased has lost 0.0.1");
    let unsure = two(&first, &[lease(7045, 7060), ack(7070, 7080, "failed SessionLost x")]);
    accepted(&broken(unsure, 7065, 7100));
    let again = [lease(7045, 7060), ack(7070, 7080, "ok done"), lease(7081, 7082)];
    rejected(&two(&first, &again), "0.0.1 was leased after it was acknowledged");
    let twice = [lease(7045, 7060), ack(7070, 7080, "ok done"), ack(7081, 7082, "ok done")];
    rejected(&two(&first, &twice), "0.0.1 was acknowledged twice");
    rejected(&two(&[lease(7020, 7030)], &[]), "0.0.1, which was never offered");
}

#[test]
fn a_barrier_that_lets_somebody_through() {
    let raise = |from, to, came| (from, to, "barrier raise", came);
    let lift = |from, to, came| (from, to, "barrier lift", came);
    let wait = |from, to, came| (from, to, "barrier wait", came);
    let passes = wait(7050, 7060, "ok passed");
    // With so little time, no answer may come; but no other error.
    accepted(&two(&[], &[wait(7050, 7100, "failed Connect x")]));
    rejected(&two(&[], &[wait(7050, 7100, "failed Server x")]), "failed: Server");
    for did in ["ok true", "ok false"] {
        let up = raise(7000, 7010, did);
        rejected(&two(&[up], &[passes]), "1.1.4 passed a barrier that was up");
        accepted(&two(&[up], &[wait(7050, 7060, "nothing")]));
        accepted(&two(&[up], &[wait(7009, 7060, "ok passed")]));
        accepted(&two(&[up, lift(7055, 7070, "ok true")], &[passes]));
        accepted(&two(&[up, lift(7015, 7020, "ok true")], &[passes]));
        rejected(&two(&[up, lift(7061, 7070, "ok true")], &[passes]), "passed a barrier");
        let before = [lift(6990, 6995, "ok true"), up];
        rejected(&two(&before, &[passes]), "passed a barrier");
        let unsure = [lift(6990, 6995, "failed ConnectionLoss x"), up];
        accepted(&broken(two(&unsure, &[passes]), 6900, 6996));
        let again = raise(7020, 7030, "ok true");
        rejected(&two(&[up], &[again]), "1.1.4 raised a barrier that was up");
        accepted(&two(&[up, lift(7015, 7020, "ok true")], &[again]));
    }
}

#[test]
fn a_double_barrier_that_is_entered_alone() {
    let enter = |from, to, came| (from, to, "double enter", came);
    let together = enter(7000, 7050, "ok all");
    rejected(&two(&[together], &[]), "0.0.4 entered a double barrier alone");
    accepted(&two(&[together], &[enter(7040, 7052, "ok all")]));
    rejected(&two(&[together], &[enter(7051, 7060, "ok all")]), "alone");
    // A call that gave up does not count if it knew that; otherwise it may count.
    rejected(&two(&[together], &[enter(6940, 7041, "nothing")]), "alone");
    accepted(&two(&[together], &[enter(6900, 7049, "nothing")]));
    accepted(&broken(two(&[together], &[enter(6940, 7041, "nothing")]), 6950, 7000));
    let failed = two(&[together], &[enter(6940, 6990, "failed ConnectionLoss x")]);
    accepted(&broken(failed, 6900, 7000));
    // No session ends while no server runs.
    let failed = || two(&[together], &[enter(1940, 1990, "failed ConnectionLoss x")]);
    accepted(&broken(failed(), 1900, 6990));
    rejected(&broken(failed(), 1900, 1995), "alone");
    // The call that gave up may be the same thread's.
    rejected(&two(&[enter(6940, 6990, "nothing"), together], &[]), "alone");
    accepted(&broken(two(&[enter(6940, 6990, "nothing"), together], &[]), 6950, 6995));
    rejected(
        &two(&[enter(6900, 6990, "ok all"), together], &[enter(6900, 6990, "ok all")]),
        "alone",
    );
}

#[test]
fn a_double_barrier_that_is_left() {
    let enter = |from, to| (from, to, "double enter", "ok all");
    let leave = |from, to, until: u64, came| -> (u64, u64, &'static str, &'static str) {
        (from, to, format!("double leave {until}000000").leak(), came)
    };
    let first = |came| [enter(7000, 7050), leave(7060, 7070, 7060, came)];
    let second = [enter(7000, 7050), leave(7080, 7090, 7080, "ok all")];
    accepted(&two(&first("nothing"), &second));
    rejected(&two(&first("ok all"), &second), "0.0.4 left while 1.1.4 was inside");
    accepted(&closed(two(&first("ok all"), &second), 6999));
    let third = by("0.0.5", &[enter(7030, 7055), leave(7058, 7100, 7058, "nothing")]);
    let files = with(&(by("0.0.4", &first("nothing")) + "\n" + &third), &by("1.1.4", &second), "");
    rejected(&files, "more than two are inside");
    accepted(&closed(files, 6999));
}

#[test]
fn a_round_that_is_decided_twice_or_wrongly() {
    let vote = |who: &str, vote: &str| -> (u64, u64, &'static str, &'static str) {
        (7000, 7010, format!("commit vote r {who} {vote}").leak(), "ok true")
    };
    let learn = |said| (7020, 7030, "commit learn r", said);
    let decide = |said| (7020, 7030, "commit decide r", said);
    let in_peace = |came| two(&[(9000, 9050, "commit decide r", came)], &[]);
    accepted(&in_peace("failed ConnectionLoss x"));
    rejected(&in_peace("failed Connect x"), "commit decide of 0.0.4 failed");
    let first = [vote("0", "yes"), decide("ok commit")];
    accepted(&two(&first, &[vote("1", "yes"), learn("ok commit")]));
    rejected(&two(&first, &[vote("1", "yes"), learn("ok abort")]), "r has two decisions");
    rejected(&two(&first, &[vote("1", "no"), learn("ok commit")]), "r was committed");
    rejected(&two(&first, &[learn("ok commit")]), "r was committed");
    let end = [(16000, 16010, "commit decide r", "ok abort")];
    rejected(&finishing(&first, &[vote("1", "yes")], &end), "r has two decisions");
    accepted(&finishing(&[vote("0", "yes")], &[], &end));
}

#[test]
fn a_run_in_which_nothing_was_done() {
    let (line, nothing) = ("52 0.0.4 did ok 1", "52 0.0.4 did nothing");
    rejected(&doctored(&[(W0, line, nothing)]), "no call of a recipe succeeded");
}
