//! Whole lives of sessions, from before the first connection to after the end, with losses
//! at any point: what must hold at every moment, whatever happens in whatever order.

use super::wire_format::Frame;
use proptest::prelude::*;

use super::tests::*;
use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(i32),
    Oversized,
    /// Answers the oldest request that the server has.
    Reply(i32),
    /// A reply with this xid, whatever was asked.
    Stray(i32),
    Event,
    /// This many milliseconds after the connection was asked for.
    Attach(u64),
    Detach,
    /// The connection is lost in the middle of a frame.
    Break,
    /// Milliseconds.
    Pass(u64),
    /// Milliseconds in which the link's thread does not run.
    Stall(u64),
    /// Time passes until the core wants to be woken, and no further.
    Wait,
    Close,
    Expire,
    RefuseAuth,
    GiveUp,
    Collapse,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let operation = prop::sample::select(vec![
        op::CREATE,
        op::DELETE,
        op::EXISTS,
        op::GET_CHILDREN,
        op::SYNC,
        107,
    ]);
    let error = prop::sample::select(vec![0, 0, 0, code::NO_NODE, code::NO_AUTH, code::NOT_EMPTY]);
    let step = prop_oneof![
        18 => operation.prop_map(Step::Ask),
        1 => Just(Step::Oversized),
        30 => error.prop_map(Step::Reply),
        1 => (-6i32..60).prop_map(Step::Stray),
        2 => Just(Step::Event),
        8 => (0u64..300).prop_map(Step::Attach),
        1 => (0u64..20_000).prop_map(Step::Attach),
        2 => Just(Step::Detach),
        1 => Just(Step::Break),
        2 => (0u64..15_000).prop_map(Step::Stall),
        20 => (0u64..1_500).prop_map(Step::Pass),
        10 => Just(Step::Wait),
        1 => (0u32..40).prop_map(|n| match n {
            0 => Step::Close,
            1 => Step::Expire,
            2 => Step::RefuseAuth,
            3 => Step::GiveUp,
            4 => Step::Collapse,
            _ => Step::Pass(5_000),
        }),
    ];
    prop::collection::vec(step, 0..200)
}

/// A frame that the server has, and when it was sent.
struct Sent {
    xid: i32,
    operation: i32,
    at: Moment,
}

/// A frame that the server has answered.
struct Touch {
    sent: Moment,
    answered: Moment,
    by_leader: bool,
}

struct Life {
    core: Rig,
    now: Moment,
    received: VecDeque<Sent>,
    /// Those of this connection; the first is the answer to connecting.
    touches: Vec<Touch>,
    asked: i32,
    /// The requests that were too large to be sent, and so are answered out of order.
    oversized: Vec<i32>,
    told: Vec<i32>,
    notices: Vec<Notice>,
}

impl Life {
    fn new() -> Life {
        Life {
            core: Rig::new(),
            now: seconds(10.),
            received: VecDeque::new(),
            touches: Vec::new(),
            asked: 0,
            oversized: Vec::new(),
            told: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Ask(operation) => self.ask(operation, &with_flags("/a", 3)),
            Step::Oversized => {
                self.oversized.push(self.asked);
                self.ask(op::SET_DATA, &vec![0; MAX_REQUEST]);
            }
            Step::Reply(error) => self.reply(error),
            Step::Stray(number) => {
                if self.received.front().is_none_or(|due| due.xid != number) {
                    self.hear(&Frame::reply(number, 1, 0).finish());
                }
            }
            Step::Event => self.hear(&event("/a")),
            Step::Attach(age) => {
                if !self.core.is_attached() && !self.core.is_over() {
                    let sent = Moment::ZERO.plus(now.since(Moment::ZERO.plus(ms(age))));
                    self.received.clear();
                    let lapsed = self.has_lapsed();
                    self.touches = vec![Touch { sent, answered: now, by_leader: false }];
                    self.core.attach(granted(sent), now);
                    self.must_have_ended(lapsed);
                }
            }
            Step::Detach => self.core.detach(now),
            Step::Break => {
                self.hear(&event("/a")[..20]);
                self.core.detach(now);
            }
            Step::Pass(milliseconds) => self.pass_to(now.plus(ms(milliseconds))),
            Step::Stall(milliseconds) => self.now = now.plus(ms(milliseconds)),
            Step::Wait => {
                if self.core.next_tick() != Moment::NEVER {
                    self.pass_to(self.core.next_tick().max(now));
                }
            }
            Step::Close => self.core.close(End::Closed, now),
            Step::Expire => self.core.end_at_once(End::Expired),
            Step::RefuseAuth => self.core.end_at_once(End::AuthFailed),
            Step::GiveUp => self.core.end_at_once(End::Closed),
            Step::Collapse => {
                let before = self.core.take_notices();
                self.core.end_at_once(End::Lapsed);
                let said = |what: &Notice| self.notices.iter().chain(&before).any(|n| n == what);
                // A collapse repeats these, in case the first report was lost.
                let again = self.core.take_notices();
                self.notices
                    .extend(again.into_iter().filter(|notice| !said(notice)).collect::<Vec<_>>());
            }
        }
        self.look();
    }

    fn ask(&mut self, operation: i32, body: &[u8]) {
        ask(&mut self.core, self.asked, operation, body, self.now);
        self.asked += 1;
    }

    /// Drops the connection if the bytes break it, as the link's thread does.
    fn hear(&mut self, bytes: &[u8]) {
        if !self.core.is_attached() {
            return;
        }
        let lapsed = self.has_lapsed();
        if self.core.heard_server(bytes, self.now).is_err() {
            self.core.detach(self.now);
        }
        self.must_have_ended(lapsed);
    }

    /// Whether the lease has run out, noticed or not.
    fn has_lapsed(&self) -> bool {
        !self.touches.is_empty() && self.now >= self.core.lease_end()
    }

    /// Checks that a lease that had run out stays so, whatever came later.
    fn must_have_ended(&self, lapsed: bool) {
        assert!(!lapsed || self.core.lease_end() == Moment::ZERO, "trusted after it ran out");
    }

    fn reply(&mut self, error: i32) {
        if !self.core.is_attached() {
            return;
        }
        let Some(sent) = self.received.pop_front() else { return };
        let error = if sent.operation == op::CLOSE_SESSION { 0 } else { error };
        let body = match sent.operation {
            _ if error != 0 => Vec::new(),
            op::CREATE | op::SYNC => text("/a"),
            op::EXISTS => vec![0; 68],
            op::GET_CHILDREN => vec![0; 4],
            _ => Vec::new(),
        };
        let written = [op::CREATE, op::DELETE, op::SYNC].contains(&sent.operation);
        let by_leader = written && error != code::NO_AUTH;
        self.touches.push(Touch { sent: sent.at, answered: self.now, by_leader });
        let reply = Frame::reply(sent.xid, 1, error).raw(&body).finish();
        let lapsed = self.has_lapsed();
        self.core.heard_server(&reply, self.now).expect("this reply is due");
        self.must_have_ended(lapsed);
    }

    fn pass_to(&mut self, then: Moment) {
        self.now = then;
        if self.core.tick(then).is_err() {
            self.core.detach(then);
        }
        let next = self.core.next_tick();
        assert!(next > then, "the core would be woken again at once, for nothing");
    }

    fn look(&mut self) {
        self.notices.extend(self.core.take_notices());
        for seen in sent(&mut self.core) {
            assert!(self.core.is_attached(), "something is to be sent without a connection");
            let Seen { xid, operation, .. } = seen;
            self.received.push_back(Sent { xid, operation, at: self.now });
        }
        self.told.extend(told(&mut self.core).into_iter().map(|told| told.number));
        self.check_notices();
        self.check_lease();
        if !self.core.is_attached() {
            assert_eq!(self.told.len() as i32, self.asked, "unanswered without a connection");
        }
        let in_turn = |number: &&i32| !self.oversized.contains(number);
        assert!(self.told.iter().filter(in_turn).is_sorted(), "out of order");
    }

    fn has_ended(&self) -> bool {
        self.notices.iter().any(|notice| matches!(notice, Notice::Ended(_)))
    }

    /// Checks that attached and suspended alternate; then comes one end, then at most `Over`.
    fn check_notices(&self) {
        let count = self.notices.iter().take_while(|one| !matches!(one, Notice::Ended(_))).count();
        let (life, end) = self.notices.split_at(count);
        for (at, notice) in life.iter().enumerate() {
            let due = if at % 2 == 0 { Notice::Attached } else { Notice::Suspended };
            assert_eq!(*notice, due, "{:?}", self.notices);
        }
        assert!(matches!(end, [] | [_] | [_, Notice::Over]), "{:?}", self.notices);
        assert_eq!(self.core.is_over(), end.len() == 2);
        let attached = count % 2 == 1;
        assert!(!end.is_empty() || attached == self.core.is_attached());
    }

    /// Checks that the lease lasts at most T from the sending of the latest request that the leader
    /// is known to have heard of. That is the request to connect, or one whose answer had arrived
    /// at least half of T before another request was sent that the leader then answered.
    fn check_lease(&self) {
        let Some(connected) = self.touches.first() else { return };
        if self.has_ended() {
            return assert_eq!(self.core.lease_end(), Moment::ZERO, "lease trusted after its end");
        }
        let confirmed = |touch: &&Touch| {
            let settled = touch.answered.plus(T / 2);
            self.touches.iter().any(|later| later.by_leader && settled <= later.sent)
        };
        let latest = self.touches.iter().filter(confirmed).map(|touch| touch.sent).max();
        let from = latest.unwrap_or(connected.sent).max(connected.sent);
        assert!(self.core.lease_end() <= from.plus(T), "lease trusted for too long");
        assert!(self.core.lease_end() >= connected.sent.plus(T));
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

proptest! {
    #[test]
    fn a_life_keeps_its_promises_at_every_moment(steps in steps()) {
        let mut life = Life::new();
        for step in steps {
            life.step(step);
        }
        life.step(Step::Detach);
        life.step(Step::GiveUp);
        life.told.sort_unstable();
        prop_assert_eq!(life.told, (0..life.asked).collect::<Vec<_>>(), "each answered once");
    }
}
