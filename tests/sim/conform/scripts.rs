//! The scripts: [`player`](super::player) explains their language.

use std::time::Duration;

use super::player::CLIENTS;

/// One script.
pub(super) struct Script {
    pub(super) name: String,
    pub(super) timeout: Duration,
    /// Whether the server removes containers.
    pub(super) tidied: bool,
    pub(super) steps: Vec<String>,
}

impl Script {
    /// Returns the node below which the script works.
    pub(super) fn base(&self) -> String {
        format!("/{}", self.name.replace(' ', "-"))
    }
}

/// Nodes that exist before the scripts begin, with the next sequence numbers of their children.
pub(super) const SEQUENCES: &[(&str, i32)] = &[
    ("/at-the-end-of-the-numbers/end", i32::MAX - 2),
    ("/at-the-end-of-the-numbers/negative", i32::MIN + 5),
    ("/at-the-end-of-the-numbers/minus-one", -1),
];

const LONG: Duration = Duration::from_secs(20);

fn script(name: &str, timeout: Duration, text: &str) -> Script {
    let steps = text.lines().map(|line| line.trim().to_owned()).collect();
    Script { name: name.to_owned(), timeout, tidied: false, steps }
}

/// Shows whether the server sends events of a node that may not be read.
pub(super) fn hidden() -> Script {
    script(
        "what is hidden",
        LONG,
        "1 create /a nobody
         2 await_making /a
         1 delete /a",
    )
}

pub(super) fn fixed() -> Vec<Script> {
    vec![
        script(
            "creating",
            LONG,
            "1 create /a
             1 create /a
             1 create /a/b container
             2 create /a/b container
             1 create /none/a
             1 create /none/a sequential
             1 create /none/a container
             1 create /a/n- sequential
             2 create /a/n- sequential
             2 create /a/b/n- sequential
             1 create %1/child
             1 create %1/child sequential
             1 read /a
             2 read /a/b
             1 read %1
             2 read %2
             3 read %3
             1 children /a
             2 children /
             3 children /none",
        ),
        script(
            "deleting",
            LONG,
            "1 create /a
             1 create /a/b
             1 create /a/n- sequential
             2 delete /none
             2 delete /none/a
             2 delete /a
             2 delete /a/b
             1 delete /a/b
             2 delete %1
             2 delete %1
             2 delete /a
             1 read /a
             1 delete_soon /a
             1 create /a
             1 delete_soon /a
             2 read /a",
        ),
        script(
            "what has children is not deleted",
            LONG,
            "1 create /a
             1 create /a/b
             1 create /a/b/c
             1 create /a/box container
             1 create /a/box/n- sequential
             2 delete /a/b
             2 delete /a/box
             2 delete_soon /a/b
             2 let_go /a/b
             2 delete_all /a/b /a
             2 delete_all /a/b/c /a
             2 delete_all /a/b/c /a/none /a/b
             2 delete_all /a/b /a/b/c
             2 children /a
             3 read /a/b watch
             3 children /a watch
             2 delete_all /a/b/c /a/b
             2 delete_all %1 /a/box /a
             2 children /a
             2 create /a",
        ),
        script(
            "numbers",
            LONG,
            "1 create /a
             1 create /a/n- sequential
             1 create /a/plain
             1 create /a/box container
             1 create /a/n- sequential
             2 create /a/m- sequential
             1 delete /a/plain
             1 delete %1
             1 create /a/n- sequential
             1 create /a/plain
             1 create /a/plain
             1 create /a/n- sequential
             1 create /a/box/n- sequential
             1 delete %1
             1 delete /a/box
             1 create /a/box container
             1 create /a/box/n- sequential
             1 create /a/n-0000000010
             1 create /a/n- sequential
             1 create /a/n-0000000012
             1 create /a/n- sequential
             2 children /a",
        ),
        script(
            "writing",
            LONG,
            "1 create /a
             2 read /a watch
             3 watch_soon /a
             2 children /a watch
             1 write /a
             3 read /a
             1 write /a
             1 watch_soon /a
             1 write /a
             2 watch_soon /a
             2 write /a
             2 watch_soon /a
             1 write /none
             1 write /none/a
             1 create /a/n- sequential
             2 read %1 watch
             2 write %1
             1 write %1
             1 read %1
             1 write /
             1 create /kept no-write
             1 watch_soon /kept
             2 write /kept
             1 create /closed nobody
             2 write /closed
             2 await_making /kept
             1 delete /kept
             2 write /kept",
        ),
        script(
            "versions",
            LONG,
            "1 create /a
             2 read /a watch
             1 check /a 0
             1 check /a 1
             1 write_at /a 1
             1 write_at /a 0
             1 write_at /a 0
             2 read /a watch
             2 write /a
             1 write_at /a 2
             1 read /a
             1 check /none 0
             1 write_at /none 0
             1 delete /a
             1 create /a
             1 check /a 0
             1 create /kept no-write
             2 write_at /kept 0
             2 write_at /kept 1
             1 create /closed nobody
             2 check /closed 0
             2 check /closed 1
             1 lose-request write_at /a 0
             1 lose-reply write_at /a 0
             1 read /a",
        ),
        script(
            "versions without a transaction",
            LONG,
            "1 create /a
             2 read /a watch
             1 write_if /a 1
             1 write_if /a 0
             1 write_if /a 0
             2 read /a watch
             1 write_if /none 0
             1 create /a/b
             1 delete_if /a 0
             1 delete_if /a 1
             1 delete /a/b
             1 delete_if /a 0
             1 delete_if /a 1
             1 delete_if /a 1
             1 create /kept no-write
             2 write_if /kept 0
             2 write_if /kept 1",
        ),
        script(
            "which step was refused",
            LONG,
            "1 create /a
             1 create /b
             1 fenced /none /b /c
             1 fenced /a /none /c
             1 fenced /a /b /none/c
             1 fenced /a /b /a
             2 read /b watch
             1 fenced /a /b /c
             2 read /b
             2 children /
             1 create /kept no-write
             1 fenced /a /kept /c
             1 create /closed nobody
             1 fenced /closed /b /c",
        ),
        script(
            "ACLs",
            LONG,
            "1 create /a
             2 read /a watch
             1 acl /a
             1 set_acl /a no-write
             1 acl /a
             2 write /a
             1 set_acl /a no-write
             1 acl /none
             1 set_acl /none
             1 set_acl /none empty
             1 set_acl /none unknown-scheme
             1 create /closed nobody
             1 acl /closed
             1 set_acl /closed
             1 create /hidden hidden
             1 acl /hidden",
        ),
        script(
            "lists with their stat",
            LONG,
            "1 create /a
             1 list /a
             2 list /a watch
             3 children /a watch
             1 create /a/b
             2 list /a
             1 create /a/n- sequential
             2 list /a watch
             1 create /a/b/c
             1 delete /a/b/c
             2 list /a/b watch
             1 write /a
             2 list /a watch
             1 delete /a/b
             1 list /a
             2 list %1 watch
             1 list /none watch
             1 create /none
             1 create /closed nobody
             2 list /closed watch
             1 create /hidden hidden
             2 list /hidden
             1 close
             2 list /a watch
             3 delete /a
             2 lose-request list /a
             2 lose-reply list / watch
             3 create /z",
        ),
        script(
            "watches on a contender's children",
            LONG,
            "1 create /a
             1 create /a/n- sequential
             2 list %1 watch
             3 list %1 watch
             3 watch_soon %1
             1 write %1
             1 write %1
             3 watch_soon %1
             1 delete %1
             1 create /a/n- sequential
             2 list %2 watch
             2 unwatch %2
             1 write %2
             2 watch_soon %2
             2 list %2 watch
             1 write %2
             2 lose-reply list %2 watch
             1 create /a/late
             1 close
             2 list %2 watch",
        ),
        script(
            "watches are removed",
            LONG,
            "1 create /a
             2 read /a watch
             2 unwatch /a
             1 write /a
             2 children /a watch
             2 unwatch /a
             1 create /a/b
             2 read /a watch
             2 children /a watch
             3 read /a watch
             3 children /a watch
             2 unwatch /a
             1 write /a
             1 create /a/c
             2 await_making /none
             2 unwatch /none
             1 create /none
             2 read /a watch
             2 unwatch /none
             2 unwatch /a/b
             1 write /a
             2 unwatch /a
             2 read /a watch
             1 write /a
             3 read /a watch
             3 cut
             3 unwatch /a
             1 write /a
             3 read /a watch
             3 refuse
             3 unwatch /a
             3 mend
             1 write /a",
        ),
        script(
            "waiting for a node to be made",
            LONG,
            "1 await_making /a
             2 await_making /a
             3 await_making /a/b
             1 create /a
             1 create /a/b
             2 await_making /a
             1 write /a
             1 await_making /none
             1 await_making /none
             2 read /none watch
             2 create /none
             2 write /none
             2 delete /none
             3 await_making /later
             3 cut
             1 create /later
             1 create /closed nobody
             2 await_making /closed
             1 delete /closed
             2 await_making /closed
             1 create /closed nobody
             1 delete /closed",
        ),
        script(
            "ephemeral nodes without a number",
            LONG,
            "1 create /a
             2 children /a watch
             1 await_making /a/own
             1 create /a/own ephemeral
             1 create /a/own ephemeral
             2 create /a/own ephemeral
             2 create /a/own
             1 create /a/own/child ephemeral
             1 create /none/own ephemeral
             2 read /a/own watch
             1 create /a/n- sequential
             2 create /a/n-0000000003 ephemeral
             1 create /a/n- sequential
             1 create /a/n- sequential
             2 children /a
             1 write /a/own
             2 write /a/own
             1 confirm /a/own
             2 watch_soon /a/own
             1 delete /a/own
             1 create /a/own ephemeral
             2 create /full no-create
             2 create /full/own ephemeral
             2 create /a/closed ephemeral nobody
             1 read /a/closed watch
             2 close
             1 children /a
             1 read /a/own
             1 expire
             3 children /a
             1 open
             1 create /a/own ephemeral
             3 read /a/own",
        ),
        script(
            "at the end of the numbers",
            LONG,
            "1 create /end/n- sequential
             1 create /end/n- sequential
             1 create /end/n- sequential
             1 create /end/n- sequential
             1 create /end/m- sequential
             1 delete %1
             1 create /end/m- sequential
             1 create /end/plain
             1 create /end/m- sequential
             2 children /end
             1 create /negative/n- sequential
             1 create /negative/n- sequential
             2 children /negative
             1 create /minus-one/n- sequential
             1 create /minus-one/n- sequential
             2 children /minus-one",
        ),
        script(
            "rights",
            LONG,
            "1 create /open
             1 create /kept no-delete
             1 create /full no-create
             1 create /hidden hidden
             1 create /closed nobody
             1 create /e empty
             1 create /e unknown-scheme
             1 create /e unknown-id
             1 create /e creator
             1 create /e ephemeral creator
             1 create /none/e empty
             1 create /open empty
             1 create /full/e empty
             1 create /kept/a
             1 create /full/a
             1 create /full/a sequential
             1 create /closed/a
             1 create /hidden/a
             1 create /hidden/n- sequential
             2 delete /kept/a
             2 delete /kept/none
             2 delete /full/a
             2 delete /closed/none
             2 delete /kept
             2 delete_soon /kept/a
             2 read /kept/a
             2 read /hidden
             2 read /hidden watch
             2 read /closed watch
             2 children /hidden watch
             2 children /closed
             2 confirm /hidden
             2 confirm /closed
             2 watch_soon /closed
             2 read /hidden/a
             2 delete /hidden/a
             1 delete %1
             1 delete /hidden
             1 delete /closed
             1 create /kept/n- sequential
             1 delete %1
             1 close
             2 children /kept",
        ),
        script(
            "watches",
            LONG,
            "1 create /a
             2 read /a watch
             2 children /a watch
             3 read /a watch
             1 create /a/b
             1 create /a/c
             2 children /a watch
             2 children /a watch
             1 delete /a/b
             1 delete /a/c
             2 children /a watch
             1 delete /a
             1 create /a
             1 delete /a
             2 read /a watch
             2 children /a watch
             1 create /a
             1 delete /a
             1 create /a
             2 watch_soon /a
             2 watch_soon /none
             1 create /none
             1 create /a/n- sequential
             2 read %1 watch
             3 children %1 watch
             3 watch_soon %1
             2 children /a watch
             1 delete %1
             2 read %1 watch
             2 children /a watch
             2 create /a/own
             2 delete /a/own
             2 read /a watch
             2 delete /a",
        ),
        script(
            "a session is closed",
            LONG,
            "1 create /a
             1 create /a/n- sequential
             1 create /a/n- sequential
             2 create /a/n- sequential
             2 read %3 watch
             2 watch_soon %2
             2 children /a watch
             3 children %3 watch
             1 read %1 watch
             1 close
             1 read /a
             1 create /a/n- sequential
             1 delete %3
             1 delete_soon %3
             1 children /a watch
             1 sync
             1 confirm /a
             1 watch_soon /a
             1 write /a
             1 await_making /none
             1 create /a/own ephemeral
             2 children /a
             1 close
             1 open
             1 create /a/n- sequential
             1 read %1
             2 read %1
             3 children /a",
        ),
        script(
            "a session is ended by somebody else",
            LONG,
            "1 create /a
             1 create /a/n- sequential
             2 create /a/n- sequential
             2 read %2 watch
             2 children /a watch
             3 children /a watch
             1 expire
             1 read /a
             1 create /a/n- sequential
             1 delete %1
             1 sync
             1 confirm %1
             1 watch_soon %1
             3 children /a watch
             1 open
             1 create /a/n- sequential
             2 expire
             3 children /a
             3 read %1",
        ),
        script(
            "a lease runs out",
            Duration::from_secs(4),
            "1 create /a
             1 create /a/n- sequential
             2 read %1 watch
             2 children /a watch
             1 lapse
             1 read /a
             1 sync
             2 children /a
             1 open
             1 create /a/n- sequential
             2 read %1",
        ),
        script(
            "a connection is lost",
            LONG,
            "1 create /a
             1 create /a/n- sequential
             2 create /a/n- sequential
             1 read %1 watch
             1 children /a watch
             2 read %2 watch
             1 cut
             2 delete %1
             1 children /a
             1 create /a/n- sequential
             1 read %1
             1 refuse
             1 read /a
             1 create /a/b
             1 delete /a
             1 delete_soon %1
             1 children /a watch
             1 sync
             1 confirm /a
             1 watch_soon /a
             2 children /a
             2 read %1
             1 mend
             1 children /a watch
             2 create /a/b
             1 refuse
             2 delete /a/b
             1 mend
             2 create /a/c
             1 confirm %1",
        ),
        script(
            "a session is closed without a connection",
            Duration::from_secs(4),
            "1 create /a
             1 create /a/n- sequential
             1 refuse
             1 close
             1 read /a
             2 read %1
             1 mend
             1 open
             1 create /a/n- sequential
             2 read %1",
        ),
        script(
            "answers are lost",
            LONG,
            "1 create /a
             1 lose-request create /a/b
             1 read /a/b
             1 lose-reply create /a/b
             1 read /a/b
             1 create /a/b
             1 lose-request create /a/c container
             1 lose-reply create /a/c container
             2 read /a/c
             1 lose-request create /a/n- sequential
             2 children /a
             1 lose-reply create /a/n- sequential
             2 children /a
             1 enter /a/n-
             1 lose-request enter /a/n-
             2 children /a
             1 lose-reply enter /a/n-
             2 children /a
             1 enter /none/n-
             1 lose-request let_go %1
             2 children /a
             1 lose-reply let_go %1
             1 let_go %1
             1 let_go %2
             1 lose-request delete /a/b
             2 read /a/b
             2 read /a/b watch
             1 lose-reply delete /a/b
             1 delete /a/b
             2 children /a watch
             2 lose-reply children /a watch
             1 create /a/d
             2 lose-request read /a/d watch
             2 lose-reply read /a/d watch
             1 delete /a/d
             1 lose-reply read /none watch
             1 lose-request sync
             1 lose-reply sync
             1 lose-request confirm /a
             1 lose-reply confirm /a
             1 lose-request watch_soon /a
             1 lose-reply watch_soon /a
             2 delete /a/c
             1 lose-reply delete /none
             1 lose-request write /a
             2 read /a
             1 lose-reply write /a
             2 read /a watch
             3 watch_soon /a
             1 lose-reply write /a
             1 lose-reply write /none
             1 lose-request await_making /none
             1 lose-reply await_making /none
             2 create /none
             1 lose-reply await_making /none
             1 lose-request create /a/own ephemeral
             2 children /a
             1 lose-reply create /a/own ephemeral
             1 create /a/own ephemeral
             2 read /a/own
             1 lose-reply delete /a/own
             2 children /a",
        ),
    ]
}

/// Scripts for a server that removes containers.
pub(super) fn containers() -> Vec<Script> {
    let all = [
        script(
            "a container outlives its child",
            LONG,
            "1 create /a
             1 create /a/new container
             1 create /a/box container
             1 create /a/box/n- sequential
             1 create /a/box/n- sequential
             1 read /a/box
             2 children /a watch
             2 children /a/box watch
             2 read /a/box watch
             3 read /a/box watch
             3 watch_soon %1
             1 delete %2
             2 children /a/box watch
             1 outlive %1 /a/box
             2 read /a/box
             2 children /a/box watch
             1 children /a
             1 create /a/box/n- sequential
             3 await_making /a/box
             1 create /a/box container
             1 read /a/box
             1 create /a/box/n- sequential
             2 enter /a/box/n-
             2 children /a/box
             1 read %1
             1 delete %2
             3 children /a watch
             2 outlive %1 /a/box
             1 children /a
             1 read /a/new",
        ),
        script(
            "a container in a container",
            LONG,
            "1 create /a container
             1 create /a/in container
             1 create /a/in/b
             1 create /a/in/b/c
             2 read /a watch
             2 read /a/in watch
             3 children /a watch
             3 children /a/in watch
             1 delete /a/in/b
             1 delete /a/in/b/c
             1 outlive /a/in/b /a
             1 read /a
             1 create /a/in container
             1 create /a container
             1 create /a/in container
             1 children /a",
        ),
        script(
            "the last child goes with its session",
            LONG,
            "1 create /a
             1 create /a/box container
             1 create /a/box/own ephemeral
             2 create /a/box/n- sequential
             2 children /a/box watch
             3 read /a/box watch
             1 close
             3 children /a/box
             2 outlive %1 /a/box
             3 create /a/box container
             3 read /a/box",
        ),
    ];
    all.into_iter().map(|script| Script { tidied: true, ..script }).collect()
}

// ----- at random

/// A Splitmix64 generator.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn path(&mut self) -> &'static str {
        self.pick(&[
            "/a", "/a", "/b", "/a/c", "/a/d", "/a/c/e", "%1", "%2", "%3", "%5", "%2/x", "/",
        ])
    }

    /// Draws a path other than the base of the script.
    fn deleted(&mut self) -> &'static str {
        Some(self.path()).filter(|path| *path != "/").unwrap_or("/b")
    }

    fn request(&mut self) -> String {
        let watch = self.pick(&["", " watch", " watch"]);
        match self.below(25) {
            0..=2 => {
                let kind = self.pick(&["", "", " container", " ephemeral", " ephemeral"]);
                let path = self.pick(&["/a", "/b", "/a/c", "/a/d", "/a/c/e", "%1/x"]);
                format!("create {path}{kind}{}", self.acl())
            }
            3..=5 => {
                let path = self.pick(&["/a/n-", "/a/n-", "/b/n-", "/a/c/n-", "/n-", "%1/n-"]);
                match self.below(2) {
                    0 => format!("create {path} sequential{}", self.acl()),
                    _ => format!("enter {path}{}", self.acl()),
                }
            }
            6 | 7 => format!("delete {}", self.deleted()),
            8 => format!("let_go {}", self.deleted()),
            9 | 10 => format!("read {}{watch}", self.path()),
            11 | 12 => format!("children {}{watch}", self.path()),
            13 => format!("confirm {}", self.path()),
            14 => format!("watch_soon {}", self.path()),
            15 => format!("delete_soon {}", self.deleted()),
            16..=18 => format!("write {}", self.path()),
            19 => format!("await_making {}", self.path()),
            20 => format!("list {}{watch}", self.path()),
            21 => format!("unwatch {}", self.path()),
            22 => format!("check {} {}", self.path(), self.below(3)),
            23 => format!("write_at {} {}", self.path(), self.below(3)),
            _ => "sync".to_owned(),
        }
    }

    fn acl(&mut self) -> &'static str {
        match self.below(8) {
            0 => self.pick(&[
                " no-delete",
                " no-create",
                " no-write",
                " hidden",
                " nobody",
                " empty",
                " unknown-scheme",
                " creator",
            ]),
            _ => "",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Refused,
    Ended,
}

/// Draws a script of two hundred steps.
pub(super) fn random(seed: u64) -> Script {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut states = [State::Up; CLIENTS];
    let steps = (0..200).map(|_| {
        let who = chance.below(CLIENTS);
        let (step, state) = match (states[who], chance.below(60)) {
            (State::Ended, 0..=20) => ("open".to_owned(), State::Up),
            (State::Refused, 0..=20) => ("mend".to_owned(), State::Up),
            (State::Up, 0) => ("close".to_owned(), State::Ended),
            (State::Up, 1) => ("expire".to_owned(), State::Ended),
            (State::Up, 2) => ("cut".to_owned(), State::Up),
            (State::Up, 3) => ("refuse".to_owned(), State::Refused),
            (State::Up, 4 | 5) => loop {
                let request = chance.request();
                // The outcome of these two is not reported.
                if !request.starts_with("delete_soon") && !request.starts_with("unwatch") {
                    let fate = chance.pick(&["lose-request", "lose-reply"]);
                    break (format!("{fate} {request}"), State::Up);
                }
            },
            (state, _) => (chance.request(), state),
        };
        states[who] = state;
        format!("{} {step}", who + 1)
    });
    Script { name: format!("seed {seed}"), timeout: LONG, tidied: false, steps: steps.collect() }
}
