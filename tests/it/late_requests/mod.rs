//! Requests of a connection that was given up, which are carried out later, after newer ones of the same
//! session.
//!
//! All clients have one address, in front of all servers. It leads to a follower whose packets to the
//! leader are held up. The clients give their connections up, and ask the follower once more to
//! continue their sessions. Then the address leads to another follower, where they go on. When the
//! first follower's packets arrive, the leader takes the sessions to be there again, at once, while
//! the old requests are still on their way through its processors: so they are carried out.

mod kinds;

use std::thread;
use std::time::Duration;

use zklock::{Client, LockGuard, SessionId};

use self::kinds::{Gate, KINDS, Kind, Spot, Wrong};
use crate::support::ensemble::{Ensemble, Options};
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{Kind as NodeKind, Raw};
use crate::support::stopwatch::Stopwatch;
use crate::support::{connecting, eventually, skip_before, skip_without_server, unique_base};

/// Ample time for steps whose duration a test does not check.
const AMPLE: Duration = Duration::from_secs(60);
/// The session timeout.
const T: Duration = Duration::from_secs(6);
const TICK: Duration = Duration::from_millis(500);
/// How many clients do each kind of thing: not all late requests are carried out.
const COPIES: usize = 3;
/// How many sessions of another client are left with a node that comes late, unless the scene proves nothing.
const OTHERS: usize = 6;
/// How often to try until late requests are carried out.
const ROUNDS: usize = 3;
/// What a look and a delete may take.
const MARGIN: Duration = Duration::from_secs(1);
/// The requests that change something.
const WRITES: [i32; 6] = [
    opcode::CREATE,
    opcode::CREATE2,
    opcode::CREATE_CONTAINER,
    opcode::DELETE,
    opcode::SET_DATA,
    opcode::MULTI,
];

/// A client and what it does.
struct Player {
    kind: &'static Kind,
    spot: Spot,
    nodes: Vec<String>,
    session: Option<SessionId>,
    kept: Option<LockGuard>,
}

impl Player {
    fn what_is_wrong(&self, raw: &mut Raw) -> Option<Wrong> {
        self.nodes.iter().find_map(|node| self.kind.right.what_is_wrong(raw, node))
    }

    /// Changes when a request that comes late is carried out.
    fn versions(&self, raw: &mut Raw) -> Vec<Option<(i32, i32)>> {
        let nodes = self.nodes.iter().flat_map(|node| [node.clone(), format!("{node}/x")]);
        let stats = nodes.map(|node| raw.exists(&node).unwrap());
        stats.map(|stat| Some((stat?.version, stat?.cversion))).collect()
    }

    /// What of the guard or session that it keeps is gone.
    fn what_was_lost(&self, raw: &mut Raw) -> Option<&'static str> {
        let kept = self.kept.as_ref()?;
        if !kept.is_held() {
            return Some("the guard is lost");
        }
        if self.spot.zk.session_id() != self.session {
            return Some("the session is another one");
        }
        raw.exists(kept.path()).unwrap().is_none().then_some("the node of the guard is deleted")
    }
}

/// What became of a client.
struct Outcome {
    kind: &'static str,
    /// Whether a request of it was carried out late.
    late: bool,
    wrong: Option<String>,
}

struct Scene {
    servers: Ensemble,
    front: Proxy,
    base: String,
    holds: bool,
    /// Of which kind the requests are that come late: the first one of each client.
    late: &'static [i32],
    kinds: Vec<&'static Kind>,
}

impl Scene {
    /// With clients that hold a lock all the time, or that hold nothing.
    fn start(holds: bool, late: &'static [i32], kinds: Vec<&'static Kind>) -> Scene {
        let tick = u32::try_from(TICK.as_millis()).unwrap();
        let ticks = u32::try_from(AMPLE.as_millis()).unwrap() / tick;
        let options = Options { tick, sync_limit: ticks, init_limit: ticks, ..Options::default() };
        let servers = Ensemble::start(3, &options).expect("an ensemble");
        let front = Proxy::start(servers.node(servers.all_followers()[0]).addr());
        Scene { servers, front, base: unique_base("late"), holds, late, kinds }
    }

    fn direct(&self) -> Raw {
        Raw::connect(&self.servers.node(self.servers.leader()).hosts(), AMPLE).unwrap()
    }

    fn players(&self, round: usize) -> Vec<Player> {
        let all =
            self.kinds.iter().copied().flat_map(|kind| (0..COPIES).map(move |copy| (kind, copy)));
        // What has to be there before is made by a client that loses no connection.
        let maker = &connecting(&self.servers.node(self.servers.leader()).hosts())
            .session_timeout(AMPLE)
            .connect()
            .unwrap();
        let players = thread::scope(|scope| {
            let enter = |(kind, copy): (&'static Kind, usize)| {
                scope.spawn(move || self.player(maker, kind, &format!("{round}-{copy}")))
            };
            let entering: Vec<_> = all.map(enter).collect();
            entering.into_iter().map(|one| one.join().unwrap()).collect()
        });
        eventually(AMPLE, "the last delete", || maker.stats().pending_deletes == 0);
        players
    }

    fn player(&self, maker: &Client, kind: &'static Kind, copy: &str) -> Player {
        let base = format!("{}/{}-{copy}", self.base, kind.name.replace(' ', "-"));
        let nodes = (kind.prepare)(&Spot { zk: maker.clone(), base: base.clone() }).unwrap();
        let zk = connecting(&self.front.hosts())
            .session_timeout(T)
            .tick_time(TICK)
            .connect_timeout(AMPLE)
            .connect()
            .unwrap();
        let spot = Spot { zk, base };
        let kept = self.holds.then(|| spot.keep());
        let session = spot.zk.session_id();
        Player { kind, spot, nodes, session, kept }
    }

    /// Has requests come late, after the link was held up for so long at least, and returns what became
    /// of the clients.
    fn play(&self, held_up: Duration) -> Vec<Outcome> {
        for round in 0..ROUNDS {
            if let Some(outcomes) = self.round(round, held_up) {
                return outcomes;
            }
        }
        panic!(
            "this proves nothing: in {ROUNDS} rounds no late request was carried out, or guards were \
             lost before"
        );
    }

    /// Returns nothing if it proves nothing.
    fn round(&self, round: usize, held_up: Duration) -> Option<Vec<Outcome>> {
        let [from, to] = self.servers.all_followers()[..] else { panic!("three servers") };
        self.front.set_target(self.servers.node(from).addr());
        let players = self.players(round);
        let node = format!("{}/others-{round}", self.base);
        let mut direct = self.direct();
        direct.create_all(&node).unwrap();
        let watch = Stopwatch::start();
        let others = self.act_and_move(&players, &node, from, to);
        eventually(AMPLE, "all to be right before anything comes late", || {
            players.iter().all(|player| player.what_is_wrong(&mut direct).is_none())
        });
        assert_eq!(direct.get_children(&node).unwrap().len(), 0, "it came before its time");
        let versions: Vec<_> = players.iter().map(|player| player.versions(&mut direct)).collect();
        thread::sleep(held_up.saturating_sub(watch.elapsed()));
        let lost = players.iter().filter_map(|player| player.what_was_lost(&mut direct)).count();
        let watch = Stopwatch::start();
        self.servers.heal(from);
        self.wait_for_all_that_was_held_up(from);
        let late_others = direct.get_children(&node).unwrap().len();
        let late = |(player, before): (&Player, _)| player.versions(&mut direct) != before;
        let late: Vec<bool> = players.iter().zip(versions).map(late).collect();
        let wrong = what_stays_wrong(&players, &mut direct, &watch);
        let is_replaced = |player: &&Player| player.spot.zk.session_id() != player.session;
        let replaced = players.iter().filter(is_replaced).count();
        // Their sessions may have ended meanwhile.
        others.into_iter().chain([direct]).for_each(|raw| drop(raw.close()));
        let many = late.iter().filter(|late| **late).count();
        println!(
            "{} clients: {many} requests carried out late, {replaced} sessions replaced, {lost} guards \
             lost before; of {OTHERS} others: {late_others} carried out late",
            players.len()
        );
        // Nothing of a session that was closed is carried out, and no transaction that comes late
        // changes anything.
        let is_harmless = !self.holds && replaced > 0 || self.late == [opcode::MULTI];
        let is_tested = lost == 0 && (many > 0 || is_harmless);
        let all = players.iter().zip(late).zip(wrong).map(|((player, late), wrong)| Outcome {
            kind: player.kind.name,
            late,
            wrong,
        });
        (is_tested && late_others > 0).then(|| all.collect())
    }

    /// Has the clients act while the link is held up, and go on at another server. Returns the sessions
    /// of the other client, with a request on its way from each.
    fn act_and_move(&self, players: &[Player], node: &str, from: usize, to: usize) -> Vec<Raw> {
        let connect = |_| Raw::connect(&self.front.hosts(), AMPLE).unwrap();
        let others: Vec<Raw> = (0..OTHERS).map(connect).collect();
        let gate = &Gate::of(players.len());
        thread::scope(|scope| {
            let act = |player: &Player| (player.kind.act)(&player.spot, gate);
            let acting: Vec<_> =
                players.iter().map(|player| scope.spawn(move || act(player))).collect();
            self.hold_up(gate, players, from);
            let go_on = |raw| scope.spawn(move || self.create_and_go_on(raw, node));
            let others: Vec<_> = others.into_iter().map(go_on).collect();
            self.wait_for_sessions_that_continue(from, players.len() + OTHERS);
            self.front.set_target(self.servers.node(to).addr());
            self.front.cut();
            for (player, acting) in players.iter().zip(acting) {
                acting
                    .join()
                    .unwrap()
                    .unwrap_or_else(|error| panic!("{}: {error}", player.spot.base));
            }
            others.into_iter().map(|one| one.join().unwrap()).collect()
        })
    }

    /// Holds the link up when a request of each client is about to come to it.
    fn hold_up(&self, gate: &Gate, players: &[Player], from: usize) {
        let connections = gate.open(|| {
            self.front.reset_counts();
            self.late.iter().for_each(|write| self.front.stall_request(*write));
            self.front.connections()
        });
        eventually(AMPLE, "a request of each client", || {
            let seen = self.front.requests();
            let writes = seen.iter().filter(|one| self.late.contains(&one.opcode));
            let (paths, others): (Vec<_>, Vec<_>) =
                writes.map(|one| one.path.as_deref()).partition(Option::is_some);
            let has_asked = |player: &&Player| {
                paths.iter().flatten().any(|path| path.starts_with(&player.spot.base))
            };
            players.iter().filter(has_asked).count() + others.len() >= players.len()
        });
        self.servers.hold_up_from_leader(from);
        self.front.release();
        eventually(AMPLE, "the clients to connect again", || {
            self.front.connections() >= connections + players.len()
        });
    }

    /// Another client asks for a node, gives its connection up and continues its session, as ours do.
    fn create_and_go_on(&self, mut raw: Raw, node: &str) -> Raw {
        raw.begin_create(&format!("{node}/n-")).unwrap();
        let (session, password) = (raw.session(), raw.password().to_vec());
        drop(raw);
        loop {
            // Fails when the front cuts it off from the first server.
            match Raw::resume(&self.front.hosts(), AMPLE, session, &password) {
                Ok(raw) => return raw,
                Err(failure) => assert_eq!(failure.code(), None, "the session is over"),
            }
        }
    }

    /// Waits until the server has asked the leader for this many sessions.
    fn wait_for_sessions_that_continue(&self, server: usize, count: usize) {
        eventually(AMPLE, "sessions that are to be continued", || {
            let all = self.servers.node(server).four_letter("cons").unwrap_or_default();
            all.lines().filter(|line| line.contains("sent=0,sid=0x")).count() >= count
        });
    }

    /// Packets of a server arrive in their order, so they are there before a new request.
    fn wait_for_all_that_was_held_up(&self, server: usize) {
        let mut raw = Raw::connect(&self.servers.node(server).hosts(), AMPLE).unwrap();
        raw.create(&format!("{}/all", self.base), b"", NodeKind::Ephemeral).unwrap();
        raw.close().unwrap();
    }
}

/// What is wrong of each client: for a moment if it must never be, otherwise longer than promised.
fn what_stays_wrong(players: &[Player], raw: &mut Raw, since: &Stopwatch) -> Vec<Option<String>> {
    let mut wrong: Vec<_> = players.iter().map(|player| player.what_is_wrong(raw)).collect();
    let may_be_mended =
        |wrong: &Option<Wrong>| wrong.as_ref().is_some_and(|wrong| wrong.may_be_mended);
    let limit = 2 * T + MARGIN;
    let is_in_time = || {
        // The wait must end even on a machine that is always busy.
        since.elapsed() < limit || since.elapsed() < 4 * limit && since.took().within(limit)
    };
    while wrong.iter().any(may_be_mended) && is_in_time() {
        for (player, wrong) in players.iter().zip(&mut wrong) {
            if may_be_mended(wrong) {
                *wrong = player.what_is_wrong(raw);
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
    let at_the_end = |(player, wrong): (&Player, Option<Wrong>)| {
        let wrong = wrong.or_else(|| player.what_is_wrong(raw)).map(|wrong| wrong.what);
        wrong.or_else(|| {
            player.what_was_lost(raw).map(|what| format!("{}: {what}", player.spot.base))
        })
    };
    players.iter().zip(wrong).map(at_the_end).collect()
}

fn nothing_is_wrong_afterwards(scene: &Scene, held_up: Duration) {
    let outcomes = scene.play(held_up);
    for kind in &scene.kinds {
        let of_kind = || outcomes.iter().filter(|one| one.kind == kind.name);
        let count = |which: fn(&&Outcome) -> bool| of_kind().filter(which).count();
        let (late, wrong) = (count(|one| one.late), count(|one| one.wrong.is_some()));
        println!("{:<16}{late:>3} late{wrong:>3} wrong of {COPIES}", kind.name);
    }
    let wrong: Vec<_> = outcomes.iter().filter_map(|one| one.wrong.as_deref()).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), outcomes.len(), wrong.join("\n"));
}

#[test]
fn of_clients_that_hold_nothing() {
    skip_without_server!();
    skip_before!(3, 5, "drop the first connections of a session, as they know no containers");
    let scene = Scene::start(false, &WRITES, KINDS.iter().collect());
    nothing_is_wrong_afterwards(&scene, Duration::ZERO);
}

#[test]
fn of_clients_that_hold_a_lock() {
    skip_without_server!();
    skip_before!(3, 5, "drop the first connections of a session, as they know no containers");
    let scene = Scene::start(true, &WRITES, KINDS.iter().collect());
    nothing_is_wrong_afterwards(&scene, Duration::ZERO);
}

#[test]
fn that_come_long_after_their_connection_was_given_up() {
    skip_without_server!();
    skip_before!(3, 5, "drop the first connections of a session, as they know no containers");
    let scene = Scene::start(true, &WRITES, KINDS.iter().collect());
    nothing_is_wrong_afterwards(&scene, 2 * T);
}

/// The request before it, if there is one, is not late.
#[test]
fn that_are_transactions() {
    skip_without_server!();
    let kinds = KINDS.iter().filter(|kind| kind.has_transaction).collect();
    let scene = Scene::start(true, &[opcode::MULTI], kinds);
    nothing_is_wrong_afterwards(&scene, Duration::ZERO);
}
