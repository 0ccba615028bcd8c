//! The page of `zklock serve`, in a real browser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod browser;
mod real;
mod replies;
mod served;

use serde_json::{Value, json};

use crate::browser::{Browser, DOWN, END, ENTER, ESCAPE, HOME, TAB, UP};
use crate::replies::{
    a_big_graph, a_deadlock, a_free_lock, holder, in_outage, lock, long_names, many_locks,
    nothing_seen, seen, three_locks, waiter,
};
use crate::served::{Answer, Served};

/// Keeps every text that the page shows or reads aloud, at each change.
const KEEP_TEXTS: &str = "
    window.texts = [];
    new MutationObserver(() => document.body && window.texts.push(document.body.innerText))
      .observe(document, { subtree: true, childList: true, characterData: true, attributes: true });";

struct Site {
    served: Served,
    browser: Browser,
}

impl Site {
    /// `None` if there is no browser.
    fn new(answer: Answer) -> Option<Site> {
        let browser = Browser::start()?;
        browser.run_first(KEEP_TEXTS);
        browser.view(1_600, 1_000, "light");
        Some(Site { served: Served::start(answer), browser })
    }

    fn open(&self, hash: &str) {
        let url = format!("{}{hash}", self.served.url());
        // An address that differs only behind the # would not load the page again.
        if self.browser.value("location.origin") == self.served.url().trim_end_matches('/') {
            self.browser.script(&format!("history.replaceState(null, '', {url:?});"));
            self.browser.load_again();
        } else {
            self.browser.open(&url);
        }
    }

    fn reply(&self, reply: Value) {
        self.served.answer(Answer::Reply(reply));
    }

    /// Waits until the page has drawn the next reply that is sent from now on.
    fn pass_a_reply(&self) {
        // The one that is under way may be older.
        for _ in 0..2 {
            self.browser
                .script("window.repliesBefore = known.received ? known.received.steady : -1;");
            self.browser.until("known.received && known.received.steady > window.repliesBefore");
        }
    }

    /// Whether the page has shown a text since it was opened.
    fn has_shown(&self, text: &str) -> bool {
        self.browser.value(&format!("window.texts.some((one) => one.includes({text:?}))")) == true
    }

    /// Nothing was asked for elsewhere, and the browser has nothing to complain about, except for this.
    fn finish_except(self, complaint: Option<&str>) {
        let complaints = self.browser.complaints(complaint);
        assert!(complaints.is_empty(), "{complaints:#?}");
        let known = ["/", "/page.css", "/page.js", "/locks.json", "/healthz"];
        for path in self.served.paths() {
            assert!(known.contains(&path.as_str()), "{path}");
        }
        let asked = self.browser.asked_for();
        assert!(asked.iter().any(|address| address.ends_with("/locks.json")), "{asked:?}");
        for address in asked {
            let is_here = address.starts_with(&self.served.url());
            assert!(is_here, "{address}");
        }
    }

    fn finish(self) {
        self.finish_except(None);
    }
}

macro_rules! site {
    ($answer:expr) => {
        match Site::new($answer) {
            Some(site) => site,
            None => return,
        }
    };
}

#[test]
fn before_the_first_snapshot_nothing_is_said_about_locks() {
    let site = site!(Answer::Reply(nothing_seen("connecting", None)));
    let browser = &site.browser;
    site.open("");
    browser.until_shown("Connecting to ZooKeeper");
    browser.picture("connecting-1600-light");
    site.reply(nothing_seen("connected", None));
    browser.until_shown("The first look is under way");
    assert_eq!(browser.text("#age"), "Nothing seen yet");
    browser.picture("first-look-1600-light");
    site.reply(nothing_seen("connecting", Some(20)));
    browser.until_shown("ZooKeeper cannot be reached");
    assert!(browser.text("#situation-detail").contains("it is not known what is held"));
    browser.picture("outage-nothing-seen-1600-light");
    for text in ["Nothing is held", "Nothing was held", "does not answer", "lock:", "locks:"] {
        assert!(!site.has_shown(text), "{text}: {}", browser.value("window.texts"));
    }
    site.reply(seen(&[]));
    browser.until_shown("Nothing is held");
    assert_eq!(browser.text("#situation"), "");
    assert!(browser.text("#more").contains("No lock at or below /locks has a holder or a waiter."));
    browser.picture("no-locks-1600-light");
    site.finish();
}

#[test]
fn an_outage_begins_and_ends_and_no_other_state_is_shown_between() {
    let site = site!(Answer::Reply(three_locks()));
    let browser = &site.browser;
    site.open("#/locks/nightly");
    browser.until_shown("3 locks: 1 waited for, 2 held");
    site.reply(in_outage(three_locks(), 40));
    browser.until_shown("ZooKeeper cannot be reached");
    // The last snapshot stays, and is marked.
    assert!(browser.text("#summary").starts_with("3 locks at "), "{}", browser.text("#summary"));
    assert!(browser.text("#age").starts_with("Old: seen 4"), "{}", browser.text("#age"));
    assert!(browser.text("#lock-state").starts_with("At "));
    assert_eq!(browser.value("document.querySelectorAll('#rows tr').length"), 3);
    assert_eq!(browser.value("document.title"), "ZooKeeper cannot be reached – zklock");
    browser.until("at('announced').textContent === 'ZooKeeper cannot be reached'");
    browser.picture("outage-1600-light");
    site.reply(three_locks());
    browser.until("at('situation').hidden");
    assert_eq!(browser.value("at('announced').textContent"), "ZooKeeper and zklock serve answer.");
    assert!(browser.text("#age").starts_with("Seen "));

    // With no lock held before: "nothing is held" is not said in the outage.
    site.reply(seen(&[]));
    browser.until_shown("Nothing is held");
    browser.script("window.texts = [];");
    site.reply(in_outage(seen(&[]), 3));
    browser.until_shown("ZooKeeper cannot be reached");
    assert!(browser.text("#summary").starts_with("Nothing was held at "));
    site.pass_a_reply();
    site.reply(seen(&[]));
    browser.until_shown("Nothing is held");
    let mixed = "window.texts.filter((one) => one.includes('cannot be reached') && one.includes('Nothing is held'))";
    assert_eq!(browser.value(mixed), json!([]));
    for text in ["does not answer", "first look", "Asking", "Connecting"] {
        assert!(!site.has_shown(text), "{text}");
    }
    site.finish();
}

#[test]
fn a_serve_that_does_not_answer_is_told_from_an_outage() {
    let site = site!(Answer::Reply(three_locks()));
    let browser = &site.browser;
    site.open("");
    browser.until_shown("3 locks: ");
    site.served.answer(Answer::Nothing);
    browser.until_shown("zklock serve itself does not answer");
    assert!(
        browser.text("#situation-detail").contains("So it is not known whether ZooKeeper works.")
    );
    assert_eq!(browser.value("document.querySelectorAll('#rows tr').length"), 3);
    // The age grows without replies.
    browser.until("at('age').className === 'is-old'");
    browser.picture("no-answer-1600-light");
    browser.view(360, 740, "dark");
    browser.picture("no-answer-360-dark");
    assert!(!site.has_shown("cannot be reached"));
    for scheme in ["light", "dark"] {
        browser.view(360, 740, scheme);
        assert_eq!((fits(browser), pale(browser)), (Value::Null, json!([])));
    }
    site.served.answer(Answer::Silence);
    browser.until_shown("no answer within 10 s");
    site.served.answer(Answer::Status(401));
    browser.until_shown("zklock serve refuses this browser");
    site.served.answer(Answer::Text("<html>"));
    browser.until_shown("zklock serve sends what this page does not understand");
    let mut later = three_locks();
    later["schema"] = json!(2);
    site.reply(later);
    browser.until_shown("schema 2, and this page knows 1. Reload the page.");
    // One that has begun again has seen nothing so far; what was seen before stays, as old.
    site.reply(nothing_seen("connected", None));
    browser.until_shown("The first look is under way");
    assert_eq!(browser.value("document.querySelectorAll('#rows tr').length"), 3);
    assert!(browser.text("#age").starts_with("Old: "));
    site.reply(three_locks());
    browser.until("at('situation').hidden && at('age').className === 'is-current'");
    site.finish_except(Some("Failed to load resource"));
}

#[test]
fn a_snapshot_older_than_five_seconds_is_marked() {
    let site = site!(Answer::Reply(three_locks()));
    let browser = &site.browser;
    site.open("");
    browser.until_shown("3 locks: ");
    let mut old = three_locks();
    old["snapshot"]["taken_at"] = json!(replies::seconds_ago(7));
    site.reply(old);
    browser.until("at('age').className === 'is-old'");
    assert!(browser.text("#summary").starts_with("3 locks at "));
    assert_eq!(browser.text("#situation"), "");
    let mut failed = three_locks();
    failed["ensemble"]["error"] = json!("/locks: not authorized to list");
    failed["not_seen"] = json!([{ "path": "/locks/secret", "why": "not authorized" }]);
    site.reply(failed);
    browser.until_shown("The last look at the locks failed");
    assert!(browser.text("#unseen").contains("/locks/secret: not authorized"));
    browser.picture("look-failed-1600-light");
    site.finish();
}

#[test]
fn a_name_that_is_html_is_text() {
    let name = "<img src=x onerror=\"window.ran = true\"><script>window.ran = true</script>";
    let path = format!("/locks/{name}");
    let mut first = holder(&path, 1, 10, &[&path]);
    first["who"] = json!(format!("\u{202e}{name}"));
    let mut reply = seen(&[lock(&path, "deadlock", &[first], &[waiter(&path, 2, 5)])]);
    reply["edges"] =
        json!([{ "holder": replies::node(&path, 1), "waits_by": replies::node(&path, 2) }]);
    reply["deadlocks"] = json!([{
        "is_certain": true, "text": format!("deadlock: {name}"), "locks": [path], "nodes": [replies::node(&path, 1)],
        "commands": [format!("zklock ask '{path}' --node 0000000001")],
    }]);
    reply["not_seen"] = json!([{ "path": path, "why": name }]);
    reply["bases"] = json!([format!("/{name}")]);
    reply["ensemble"]["hosts"] = json!(name);
    let site = site!(Answer::Reply(reply.clone()));
    let browser = &site.browser;
    site.open("");
    browser.until_shown("1 deadlock");
    browser.click("#rows a");
    browser.until("!at('lock').hidden");
    assert_eq!(browser.text("#lock-name"), path);
    assert_eq!(browser.text("#rows a"), path);
    assert_eq!(browser.text("#holders td span"), format!("\u{fffd}{name}"));
    site.reply(in_outage(reply, 10));
    browser.until_shown("ZooKeeper cannot be reached");
    browser.view(360, 740, "light");
    browser.picture("html-name-360-light");
    assert_eq!(
        browser.value("[typeof window.ran, document.images.length, document.scripts.length]"),
        json!(["undefined", 0, 1])
    );
    assert_eq!(fits(browser), Value::Null);
    // As an address has it.
    site.open("#/locks/%3Cimg%20x");
    browser.until("at('lock-name').textContent === '/locks/<img x'");
    site.finish();
}

#[test]
fn two_thousand_locks_keep_scroll_focus_and_selection() {
    let site = site!(Answer::Reply(many_locks(2_000)));
    let browser = &site.browser;
    site.open("");
    browser.until_shown("2,000 locks: 40 waited for, 1,960 held");
    assert_eq!(browser.value("document.querySelectorAll('#rows tr').length"), 200);
    assert_eq!(browser.text("#more"), "And 1,800 more, which are less stuck. Filter to see them.");
    browser.picture("2000-locks-1600-light");
    // What has not changed is not touched.
    browser.script(
        "window.changes = 0;
         new MutationObserver((all) => { window.changes += all.length; })
           .observe(at('rows'), { subtree: true, childList: true, characterData: true });
         rowLinks()[150].focus();
         scrollTo(0, 5000);
         window.focused = document.activeElement;
         const text = document.querySelectorAll('#rows tr')[120].children[2].firstChild;
         getSelection().setBaseAndExtent(text, 0, text, 5);",
    );
    // Times go on; the order of rows is another one: the focused one comes first, others are gone.
    let kept = || {
        browser.value(
            "[document.activeElement === window.focused, Math.round(window.focused.getBoundingClientRect().top),
              String(getSelection())]",
        )
    };
    let before = kept();
    site.pass_a_reply();
    assert_eq!(kept(), before);
    // More above it, and less again.
    let mut stuck = many_locks(2_000);
    stuck["deadlocks"] = a_deadlock()["deadlocks"].take();
    site.reply(stuck);
    browser.until("!at('deadlocks').hidden");
    assert_eq!(kept(), before);
    let mut other = many_locks(2_000);
    let all = other["locks"].as_array_mut().unwrap();
    all[140..160].reverse();
    site.reply(other.clone());
    browser
        .until("document.querySelectorAll('#rows tr')[149].querySelector('a') === window.focused");
    assert_eq!(kept(), before);
    let all = other["locks"].as_array_mut().unwrap();
    let focused = all.remove(149);
    all.insert(0, focused);
    all.remove(30);
    site.reply(other.clone());
    browser.until("document.querySelector('#rows a') === window.focused");
    assert_eq!(browser.value("document.activeElement === window.focused"), true);
    let order: Vec<&str> = other["locks"].as_array().unwrap()[..200]
        .iter()
        .map(|lock| lock["path"].as_str().unwrap())
        .collect();
    assert_eq!(browser.value("rowLinks().map((link) => link.dataset.path)"), json!(order));
    // A reply with the same facts, by the same clock, changes nothing.
    let taken = json!(replies::seconds_ago(0));
    other["snapshot"]["taken_at"] = taken;
    site.reply(other);
    site.pass_a_reply();
    browser.script("window.changes = 0;");
    site.pass_a_reply();
    assert_eq!(browser.value("window.changes"), 0);
    // Without a focus, the list stays where it is.
    browser.script("document.activeElement.blur(); getSelection().empty(); scrollTo(0, 3000);");
    let place = "Math.round(at('rows').getBoundingClientRect().top)";
    let before = browser.value(place);
    let mut stuck = many_locks(1_999);
    stuck["deadlocks"] = a_deadlock()["deadlocks"].take();
    stuck["locks"].as_array_mut().unwrap()[50..150].reverse();
    site.reply(stuck);
    browser.until("!at('deadlocks').hidden");
    assert_eq!(browser.value(place), before);
    // Filtered, any of them is found.
    browser.press(&["/", "1", "9", "9", "8"]);
    assert_eq!(browser.text("#matches"), "1 of 1,999 locks");
    assert_eq!(browser.text("#rows a"), "/locks/customers/01998");
    browser.picture("2000-locks-filtered-1600-light");
    browser.press(&["x"]);
    assert_eq!(browser.text("#more"), "No lock fits the filter. Esc in the field clears it.");
    browser.press(&[ESCAPE]);
    assert_eq!(browser.value("document.querySelectorAll('#rows tr').length"), 200);
    site.finish();
}

#[test]
fn a_deadlock_is_on_top_in_red_with_a_command_to_copy() {
    let site = site!(Answer::Reply(three_locks()));
    let browser = &site.browser;
    site.open("");
    browser.until_shown("3 locks: ");
    site.reply(a_deadlock());
    browser.until_shown("1 deadlock");
    assert!(browser.text(".sentence").starts_with("web3 (pid 4011, billing) holds /locks/orders"));
    assert_eq!(browser.value("at('announced').textContent"), "1 deadlock.");
    assert_eq!(
        browser.value(
            "at('deadlocks').getBoundingClientRect().top < at('list').getBoundingClientRect().top"
        ),
        true
    );
    assert_eq!(
        browser
            .value("getComputedStyle(document.querySelector('#deadlock-list li')).borderLeftColor"),
        "rgb(192, 32, 44)"
    );
    let command = "zklock ask /locks/billing --node 0000000011";
    assert_eq!(browser.text(".commands code"), command);
    browser.command(
        "Browser.grantPermissions",
        &json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] }),
    );
    browser.click(".commands button");
    browser.until("document.querySelector('.commands button').textContent === 'Copied'");
    browser.script("window.pasted = null; navigator.clipboard.readText().then((text) => { window.pasted = text; });");
    browser.until("window.pasted !== null");
    assert_eq!(browser.value("window.pasted"), command);
    // A click selects the whole command, for where there is no clipboard.
    browser.click(".commands code");
    assert_eq!(browser.value("String(getSelection())"), command);
    site.pass_a_reply();
    assert_eq!(browser.value("String(getSelection())"), command);

    browser.click("#rows tr:first-child a");
    browser.until("document.querySelectorAll('#graph a.deadlock').length === 3");
    assert_eq!(browser.value("document.querySelectorAll('.arrow.is-stuck').length"), 3);
    let box_text =
        "document.querySelector('#graph a[href=\"#/locks/billing\"]').getAttribute('aria-label')";
    assert_eq!(
        browser.value(box_text),
        "/locks/billing, held by web3 (pid 4011, billing), 1 waits, waits for /locks/orders"
    );
    browser.picture("deadlock-1600-light");
    browser.click("#graph a[href=\"#/locks/stock\"]");
    browser.until("at('lock-name').textContent === '/locks/stock'");

    let mut suspected = a_deadlock();
    suspected["deadlocks"][0]["is_certain"] = json!(false);
    suspected["deadlocks"][0]["commands"] = json!([]);
    site.reply(suspected);
    browser.until_shown("1 suspected deadlock");
    assert_eq!(browser.text("#deadlocks code"), "");
    browser.picture("suspected-1600-light");
    site.reply(three_locks());
    browser.until("at('deadlocks').hidden");
    browser.until("at('announced').textContent === 'No deadlock is seen any more.'");
    assert!(browser.text("#lock-state").starts_with("Not listed: no contender is seen there"));
    site.finish();
}

#[test]
fn everything_can_be_done_by_keyboard() {
    let site = site!(Answer::Reply(a_deadlock()));
    let browser = &site.browser;
    site.open("");
    browser.until_shown("1 deadlock");
    let focused = || {
        let text = browser.value("document.activeElement.id || document.activeElement.textContent");
        let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, "solid", "{text} has the focus, and does not show it");
        text.as_str().unwrap().to_owned()
    };
    let mut order = Vec::new();
    for _ in 0..7 {
        browser.press(&[TAB]);
        order.push(focused());
    }
    let expected = [
        "/locks/orders",
        "/locks/stock",
        "/locks/billing",
        "Copy",
        "Copy",
        "filter",
        "/locks/orders",
    ];
    assert_eq!(order, expected);
    let moved = |keys: &[&str]| {
        browser.press(keys);
        focused()
    };
    assert_eq!(moved(&[DOWN, DOWN]), "/locks/billing");
    assert_eq!(moved(&[UP]), "/locks/stock");
    assert_eq!(moved(&[END]), "/locks/quiet");
    assert_eq!(moved(&[HOME]), "/locks/orders");
    assert_eq!(moved(&[UP]), "filter");
    assert_eq!(moved(&[DOWN, DOWN]), "/locks/stock");
    assert_eq!(moved(&[ENTER]), "lock-name");
    assert_eq!(browser.value("location.hash"), "#/locks/stock");
    browser.picture("keyboard-1600-light");
    // It stays where it is.
    site.pass_a_reply();
    assert_eq!(focused(), "lock-name");
    assert_eq!(moved(&[TAB]), "to-list");
    assert_eq!(moved(&[ESCAPE]), "/locks/stock");
    assert_eq!(browser.value("location.hash"), "");
    assert_eq!(moved(&["/", "q", "u", "i", "e", "t", ENTER]), "/locks/quiet");
    assert_eq!(moved(&[ENTER]), "lock-name");
    // Back and forward as anywhere.
    browser.script("history.back();");
    browser.until("at('lock').hidden");
    browser.script("history.forward();");
    browser.until("at('lock-name').textContent === '/locks/quiet' && !at('lock').hidden");

    // Where the list and the lock are not beside each other, too.
    browser.view(360, 740, "light");
    site.open("#/locks/orders");
    browser.until("!at('lock').hidden");
    assert_eq!(browser.text("#list"), "");
    assert_eq!(moved(&[TAB, TAB, TAB, TAB, TAB, TAB]), "to-list");
    assert_eq!(moved(&[ENTER]), "/locks/orders");
    assert_eq!(browser.text("#lock"), "");
    site.finish();
}

/// The pictures for people, and what a program can say about them.
#[test]
fn it_fits_narrow_and_wide_windows_light_and_dark() {
    let site = site!(Answer::Reply(seen(&[])));
    let browser = &site.browser;
    let long = format!("#{}", long_names()["locks"][0]["path"].as_str().unwrap());
    let states = [
        ("no-locks", seen(&[]), "", "Nothing is held"),
        ("free", a_free_lock(), "#/locks/nightly", "Last holders"),
        ("3-locks", three_locks(), "", "3 locks: "),
        ("one-lock", three_locks(), "#/locks/nightly", "Last holders"),
        ("deadlock", a_deadlock(), "#/locks/orders", "1 deadlock"),
        ("deadlock-list", a_deadlock(), "", "1 deadlock"),
        ("outage", in_outage(three_locks(), 75), "", "ZooKeeper cannot be reached"),
        ("long-names", long_names(), "", "1 deadlock"),
        ("long-names-lock", long_names(), &long, "Queue"),
        ("2000-locks", many_locks(2_000), "", "2,000 locks: "),
        ("big-graph", a_big_graph(40, 20), "#/locks/middle", "Left out"),
        ("first-look", nothing_seen("connected", None), "", "The first look is under way"),
    ];
    for (name, reply, hash, text) in states {
        site.reply(reply);
        for (width, height) in [(360, 740), (800, 900), (1_400, 900), (1_600, 1_000)] {
            browser.view(width, height, "light");
            site.open(hash);
            for scheme in ["light", "dark"] {
                // What it is shown in may change while it is open.
                browser.view(width, height, scheme);
                browser.until_shown(text);
                browser.picture(&format!("{name}-{width}-{scheme}"));
                let where_ = format!("{name}, {width}, {scheme}");
                assert_eq!(fits(browser), Value::Null, "{where_}");
                assert_eq!(pale(browser), json!([]), "{where_}");
                assert_eq!(browser.value("document.getAnimations().length"), 0);
                let is_dark = browser.value("getComputedStyle(document.body).backgroundColor")
                    == "rgb(15, 19, 24)";
                assert_eq!(is_dark, scheme == "dark");
                if width == 360 && !hash.is_empty() {
                    let whole =
                        browser.value("document.documentElement.scrollHeight").as_u64().unwrap();
                    browser.view(width, u32::try_from(whole).unwrap(), scheme);
                    browser.picture(&format!("{name}-{width}-{scheme}-whole"));
                }
            }
        }
    }
    site.finish();
}

/// What a person who does not see the page is told is there.
#[test]
fn the_tables_are_tables_in_narrow_windows_too() {
    let site = site!(Answer::Reply(three_locks()));
    let browser = &site.browser;
    for width in [360, 1_600] {
        browser.view(width, 740, "light");
        for (hash, rows) in [("", 4), ("#/locks/nightly", if width == 360 { 18 } else { 22 })] {
            site.open(hash);
            browser.until_shown("Seen ");
            let without = "[...document.querySelectorAll('table, tr, th, td')].filter((one) => !one.role).length";
            assert_eq!(browser.value(without), 0);
            let tree = browser.command("Accessibility.getFullAXTree", &json!({}));
            let nodes = tree["nodes"].as_array().unwrap();
            let count = |role: &str| {
                nodes
                    .iter()
                    .filter(|one| one["ignored"] != true && one["role"]["value"] == role)
                    .count()
            };
            assert_eq!(
                (count("row"), count("main"), count("banner"), count("status")),
                (rows, 1, 1, 1),
                "{width} {hash}"
            );
        }
    }
    site.finish();
}

#[test]
fn what_the_page_decides_without_a_window() {
    let site = site!(Answer::Reply(a_big_graph(40, 20)));
    let browser = &site.browser;
    site.open("#/locks/middle");
    browser.until_shown("61 locks: ");
    assert_eq!(browser.value("document.querySelectorAll('#waiters tbody tr').length"), 10);
    browser.click("#whole-queue");
    assert_eq!(browser.value("document.querySelectorAll('#waiters tbody tr').length"), 40);
    assert_eq!(browser.value("document.activeElement.id"), "waiters-title");
    assert!(
        browser
            .text("#graph-note")
            .ends_with("Left out: 9 locks that the holders of these wait for.")
    );
    let cases = [
        (
            "[200, 41e3, 134e3, 120e3, 11100e3, 1047600e3].map(lasting)",
            json!(["0.2 s", "41 s", "2 min 14 s", "2 min", "3 h 5 min", "12 d 3 h"]),
        ),
        ("lastingInSeconds(1999)", json!("1 s")),
        ("[pause(false), pause(true)]", json!([2_000, 30_000])),
        ("[shortened('abcdefghij', 5), shortened('abcdefghij', 6, 2)]", json!(["abcd…", "abc…ij"])),
        ("visible('a\\u001b[2Jb\\u202e')", json!("a\u{fffd}[2Jb\u{fffd}")),
        ("linkTo('/locks/a b#%')", json!("#/locks/a%20b%23%25")),
        ("elapsed({ steady: 5, wall: 100 }, { steady: 9, wall: 50 })", json!(4)),
        // At the age of five seconds, and a millisecond later.
        ("[0, 1].map((more) => situation({ ...known, reply: { ...known.reply, now: known.seen.snapshot.taken_at },
           received: { steady: 0, wall: 0 } }, { steady: 5_000 + more, wall: 0 }).isCurrent)",
            json!([true, false])),
        // At most so many boxes: the nearest, and half of them ahead; all others are counted.
        ("graph(known.seen, '/locks/middle').boxes.length", json!(18)),
        ("graph(known.seen, '/locks/middle').leftOut", json!([9, 34])),
        (
            "graph(known.seen, '/locks/ahead-19').boxes.map((one) => one.layer)",
            json!((0..24).map(|layer: i32| -layer.min(21)).collect::<Vec<_>>()),
        ),
        // Holds for maintenance.
        (
            "[{ ends: null }, { ends: '2999-01-01T12:00:00Z' }, { asked_for: true }]
               .map((maintenance) => called({ who: 'maintenance: disk', maintenance }).replace(/ 2999-01-0.*/, ' then'))",
            json!([
                "maintenance: disk, until it is released",
                "maintenance: disk, until then",
                "maintenance: disk (asked for)",
            ]),
        ),
        (
            "inWords({ ...known.seen.locks[0], state: 'held', holders_total: 1,
               holders: [{ who: 'maintenance: disk', maintenance: { ends: null } }] }).split(', waited')[0]",
            json!("Mutex: held for maintenance: disk, until it is released"),
        ),
        // A holder that waits for the same lock.
        (
            "graph({ ...known.seen, edges: [{ holder: '/a/1', waits_by: '/a/2' }] }, '/a').arrows.length",
            json!(1),
        ),
    ];
    for (expression, expected) in cases {
        assert_eq!(browser.value(expression), expected, "{expression}");
    }
    site.finish();
}

/// What is wider than the window, or null.
fn fits(browser: &Browser) -> Value {
    browser.script(
        "const width = document.documentElement.clientWidth;
         if (document.documentElement.scrollWidth <= width) return null;
         return [...document.body.querySelectorAll('*')].filter((one) => one.getBoundingClientRect().right > width)
           .map((one) => one.outerHTML.slice(0, 80));",
    )
}

/// Texts whose contrast is below 4.5.
fn pale(browser: &Browser) -> Value {
    browser.script(
        "const channels = (text) => text.match(/[\\d.]+/g).map(Number);
         const light = (color) => {
           const [r, g, b] = color.map((one) => one / 255)
             .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
           return 0.2126 * r + 0.7152 * g + 0.0722 * b;
         };
         const ground = (element) => {
           const rect = element.matches('svg text') && element.parentNode.querySelector('rect');
           if (rect && getComputedStyle(rect).fill !== 'none') return channels(getComputedStyle(rect).fill);
           for (let one = element; one; one = one.parentElement) {
             const found = channels(getComputedStyle(one).backgroundColor);
             if (found.length === 3 || found[3] === 1) return found;
           }
           return [255, 255, 255];
         };
         const pale = [];
         for (const element of document.body.querySelectorAll('*')) {
           const hasText = [...element.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
           if (!hasText || !element.checkVisibility() || element.tagName === 'title') continue;
           const style = getComputedStyle(element);
           const [text, behind] = [channels(element.matches('svg text') ? style.fill : style.color), ground(element)].map(light);
           const contrast = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
           if (contrast < 4.5) pale.push(`${contrast.toFixed(2)}: ${element.textContent}`);
         }
         return pale;",
    )
}
