//! The link's thread: finds a server, reads what comes in, and keeps the lease.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::Level;
use parking_lot::MutexGuard;
use rustix::event::{PollFd, PollFlags};

use super::commands::{Command, NAP, OnNotice, Outgoing};
use super::locked_connection::{Broken, LAPSED, LinkShared, LockedConnection, poll, survive};
use crate::connection_notice::{End, Info, Notice};
use crate::link::log_thread::write_soon;
use crate::link::protocol::warn_of_granted;
use crate::link::search::{Attempts, Dialed, LinkConfig, News, Search, start_search};
use crate::link::transport::Access;
use crate::rt::{Moment, Receiver, Sender};
use crate::wire_values::RawReply;
use crate::wire_values::code::SESSION_EXPIRED;

/// How long closing a session may take when no caller says how long.
const ORPHAN_CLOSE_LIMIT: Duration = Duration::from_secs(1);

pub(super) struct Runner {
    config: LinkConfig,
    shared: Arc<LinkShared>,
    on_notice: OnNotice,
    commands: Receiver<Command>,
    woken: UnixStream,
    /// A search for a server, which ends when this is dropped.
    dial: Option<Sender<()>>,
    dials: u64,
    /// The zxid that the servers being dialled must have seen.
    dialled_zxid: i64,
    redial_at: Moment,
    attempts: Arc<Attempts>,
    futile: u32,
    attached_at: Moment,
    /// When it was last reported that the connection serves the session.
    alive_at: Moment,
    avoid: Option<SocketAddr>,
    /// The last zxid that was noted for the sessions that follow.
    noted_zxid: i64,
    give_up_at: Moment,
    /// Until when callers that were just told something may defer a request without a wake-up.
    nap_until: Moment,
    /// How the session has ended, until that is logged.
    ended: Option<End>,
    dropped: bool,
}

impl Runner {
    pub(super) fn new(
        config: LinkConfig,
        shared: &Arc<LinkShared>,
        on_notice: OnNotice,
        commands: Receiver<Command>,
        woken: UnixStream,
    ) -> Runner {
        let to_self = Arc::clone(shared);
        let attempts = Attempts::new(move |news| to_self.tell(Command::News(news)));
        Runner {
            config,
            shared: Arc::clone(shared),
            on_notice,
            commands,
            woken,
            dial: None,
            dials: 0,
            dialled_zxid: 0,
            redial_at: Moment::ZERO,
            attempts: Arc::new(attempts),
            futile: 0,
            attached_at: Moment::ZERO,
            alive_at: Moment::ZERO,
            avoid: None,
            noted_zxid: 0,
            give_up_at: Moment::NEVER,
            nap_until: Moment::ZERO,
            ended: None,
            dropped: false,
        }
    }

    pub(super) fn run(mut self) {
        // Nothing here panics, but what is called might, such as a callback. After a panic the
        // session is over, and requests are still answered; after a second one, by as little code
        // as possible.
        for _ in 0..2 {
            if catch_unwind(AssertUnwindSafe(|| self.serve())).is_ok() {
                return;
            }
            self.shared.end_after_panic();
        }
        self.answer_the_rest();
    }

    /// Answers every request with an expired session, until the link is dropped. Nothing in here
    /// can panic, and it only runs when a command arrives.
    fn answer_the_rest(mut self) {
        let shared = Arc::clone(&self.shared);
        shared.lease_end.store(LAPSED, Ordering::Release);
        shared.stopped.store(true, Ordering::SeqCst);
        let mut connection = shared.connection.lock();
        self.hang_up(&mut connection);
        self.dial = None;
        connection.core.pass_marks();
        // A caller may tell just now.
        while connection.core.has_news() {
            self.tell_all(&mut connection);
            MutexGuard::unlocked(&mut connection, std::thread::yield_now);
        }
        drop(connection);
        let deferred = std::mem::take(&mut shared.deferred.lock().all);
        let expired = |verb: Outgoing| {
            let answer = RawReply { zxid: 0, error: SESSION_EXPIRED, body: Vec::new() };
            survive(|| (verb.on_answer)(answer));
        };
        deferred.into_iter().for_each(|(_, later)| expired(later.verb));
        for command in &self.commands {
            match command {
                Command::Verbs(verbs) => verbs.into_iter().for_each(expired),
                Command::Dropped => return,
                _ => {}
            }
        }
    }

    fn serve(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut connection = shared.connection.lock();
        loop {
            self.keep_connected(&mut connection);
            self.publish(&mut connection);
            self.remind(&mut connection);
            self.catch_up(&mut connection);
            connection.write();
            self.check_broken(&mut connection);
            self.publish(&mut connection);
            if self.dropped && connection.core.is_over() {
                return;
            }
            let [woken, from_server] = self.wait(&mut connection);
            if woken {
                self.obey(&mut connection);
            }
            let now = Moment::now();
            // What it has said while nobody read counts before it is judged.
            let may_read = from_server || now >= connection.core.next_tick();
            if may_read && connection.broken.is_none() {
                self.read_server(&mut connection);
            }
            self.check_broken(&mut connection);
            self.shared.note_trouble(&mut connection);
            if let Err(broken) = connection.core.tick(now) {
                self.lose_server(&mut connection, &broken);
            }
            if now >= self.give_up_at && !connection.core.is_over() {
                write_soon(
                    Level::Debug,
                    format_args!("no server closed the session in time, it will expire"),
                );
                connection.core.end_at_once(End::Closed);
            }
        }
    }

    fn keep_connected(&mut self, connection: &mut LockedConnection) {
        if connection.core.is_over() {
            self.dial = None;
            self.hang_up(connection);
            return;
        }
        let (now, last_zxid) = (Moment::now(), connection.core.last_zxid());
        if self.dialled_zxid != last_zxid {
            // The session has ended meanwhile: from now on, any server will do.
            self.dial = None;
        }
        if connection.core.is_attached() || self.dial.is_some() || now < self.redial_at {
            return;
        }
        let search = Search {
            config: self.config.clone(),
            session: connection.core.granted().cloned(),
            last_zxid,
            attempts: Arc::clone(&self.attempts),
            avoid: self.avoid,
            round_trip: connection.core.round_trip(),
            futile: self.futile,
        };
        self.dials += 1;
        self.dialled_zxid = last_zxid;
        let (id, shared) = (self.dials, Arc::clone(&self.shared));
        let to_self = Arc::clone(&shared);
        let started = start_search(
            search,
            move |found| to_self.tell(Command::Dialed(id, found)),
            move |why| shared.info.lock().trouble = Some(why.to_owned()),
        );
        match started {
            Ok(dial) => self.dial = Some(dial),
            Err(error) => {
                write_soon(Level::Error, format_args!("cannot search servers, retrying: {error}"));
                self.redial_at = now.plus(Duration::from_millis(500));
            }
        }
    }

    /// Publishes the core's news in an order that misleads no caller: the lease, and only then the
    /// notices, answers and events, in the order in which they came about.
    fn publish(&mut self, connection: &mut MutexGuard<'_, LockedConnection>) {
        self.note_zxid(connection);
        self.shared.publish_lease(connection);
        if connection.core.has_news() {
            self.nap_until = Moment::now().plus(NAP);
            self.tell_all(connection);
        }
    }

    fn tell_all(&mut self, connection: &mut MutexGuard<'_, LockedConnection>) {
        let shared = Arc::clone(&self.shared);
        shared.tell_all(connection, Some(&mut |notice| self.tell(notice)));
        if let Some(why) = self.ended.take() {
            self.session_ended(connection, why);
        }
    }

    fn tell(&mut self, notice: Notice) {
        match notice {
            Notice::Attached => self.alive_at = Moment::now(),
            Notice::Ended(why) => self.ended = Some(why),
            Notice::Suspended | Notice::Over | Notice::Alive | Notice::Paused(_) => {}
        }
        (self.on_notice)(notice);
    }

    fn session_ended(&mut self, connection: &LockedConnection, why: End) {
        let trouble = self.shared.info.lock().trouble.clone();
        let session = self.session(connection);
        let lapse = connection.core.why_lapsed().map(str::to_owned);
        if let Some(timeout) = connection.core.granted().map(|granted| granted.timeout) {
            // By then, the server has ended the session itself.
            self.give_up_after(timeout * 2);
        }
        let (level, what, because) = match why {
            End::Expired => (Level::Warn, "is lost: the server says that it has expired", None),
            End::Lapsed => (Level::Warn, "is lost: its lease has run out", lapse),
            End::AuthFailed => {
                (Level::Warn, "is over: the client is not let in", trouble.or(lapse))
            }
            End::Closed => (Level::Debug, "is over: the client closed it", None),
            End::Replaced => (Level::Debug, "is over: another one takes its place", None),
        };
        let because = because.map_or_else(String::new, |because| format!(": {because}"));
        write_soon(level, format_args!("session 0x{session:x} {what}{because}"));
    }

    fn give_up_after(&mut self, time: Duration) {
        self.give_up_at = self.give_up_at.min(Moment::now().plus(time));
    }

    /// Sends the deferred requests that are due. What is no longer wanted goes first, so that the
    /// thread need not wake for it.
    fn catch_up(&mut self, connection: &mut LockedConnection) {
        loop {
            let Some((due, later)) = self.shared.deferred.lock().all.pop_front() else { return };
            let now = Moment::now();
            let is_due = due <= now;
            if is_due && !self.commands.is_empty() {
                // Earlier requests go first: one may remove the watch that is set here.
                self.obey(connection);
            }
            if !(later.is_wanted)() {
                continue;
            }
            if !is_due {
                return self.shared.deferred.lock().all.push_front((due, later));
            }
            let Outgoing { operation, body, on_answer } = later.verb;
            connection.core.verb(operation, &body, on_answer, now);
        }
    }

    /// Reports now and then that the connection works, which reminds waiters of unfinished work.
    fn remind(&mut self, connection: &mut MutexGuard<'_, LockedConnection>) {
        let timeout = connection.core.granted().map_or(Duration::MAX, |granted| granted.timeout);
        let now = Moment::now();
        if connection.core.is_attached() && now.since(self.alive_at) >= timeout / 3 {
            self.alive_at = now;
            MutexGuard::unlocked(connection, || (self.on_notice)(Notice::Alive));
        }
    }

    fn session(&self, connection: &LockedConnection) -> i64 {
        connection.core.granted().map_or(0, |granted| granted.session)
    }

    fn wait(&mut self, connection: &mut MutexGuard<'_, LockedConnection>) -> [bool; 2] {
        let now = Moment::now();
        let mut next = connection.core.next_tick();
        if !connection.core.is_over() {
            next = next.min(self.give_up_at);
            if !connection.core.is_attached() && self.dial.is_none() {
                // It may be long past: that is no pause.
                next = next.min(self.redial_at.max(now));
            }
        }
        let rests = self.shared.turn.rest(now, self.nap_until);
        next = next.min(rests.unwrap_or(Moment::NEVER));
        let mut deferred = self.shared.deferred.lock();
        if let Some((due, _)) = deferred.all.front() {
            next = next.min(*due);
        } else if now < self.nap_until {
            next = next.min(self.nap_until);
        }
        deferred.asleep_until = next.as_nanos();
        drop(deferred);
        let limit = (next != Moment::NEVER).then(|| next.since(now));
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, rests.is_none());
        interest.set(PollFlags::OUT, connection.wants_to_send());
        let server = connection.server.as_ref().filter(|_| !interest.is_empty());
        let server = server.map(|server| Arc::clone(server.tcp()));
        let from_server = server.iter().map(|server| PollFd::new(server, interest));
        let woken = PollFd::new(&self.woken, PollFlags::IN);
        let mut sockets: Vec<_> = [woken].into_iter().chain(from_server).collect();
        connection.asleep_until = next;
        let polled = MutexGuard::unlocked(connection, || poll(&mut sockets, limit));
        connection.note_pause(Moment::now());
        if let Err(error) = polled {
            // Nothing can be done about it here; the pause avoids a busy loop.
            write_soon(Level::Error, format_args!("could not wait for data, retrying: {error}"));
            std::thread::sleep(Duration::from_millis(50));
        }
        let is_readable = |at: usize| {
            sockets.get(at).is_some_and(|socket| {
                socket.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            })
        };
        [is_readable(0), is_readable(1)]
    }

    fn obey(&mut self, connection: &mut LockedConnection) {
        let mut sink = [0; 64];
        while matches!((&self.woken).read(&mut sink), Ok(64)) {}
        self.shared.is_woken.swap(false, Ordering::AcqRel);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Verbs(verbs) => connection.ask(verbs),
                Command::FlushMark(mark) => connection.core.mark(mark),
                Command::News(News::Granted(granted)) => {
                    connection.core.renewed(granted, Moment::now())
                }
                Command::News(News::Heard(sent, by_server)) => {
                    self.config.resolver.note_grant(by_server);
                    connection.core.attempted(sent, by_server);
                }
                Command::News(News::Sending(sent)) => {
                    if let Some(least) = self.config.resolver.least_grant() {
                        connection.core.attempted(sent, least);
                    }
                }
                Command::Dialed(dial, found) => {
                    let is_awaited = dial == self.dials && self.dial.take().is_some();
                    if is_awaited && !connection.core.is_over() {
                        self.found(connection, found);
                    } else if connection.core.granted().is_none() {
                        found.abandon();
                    }
                }
                Command::Reconnect => self.reconnect(connection),
                Command::Close(why, give_up_after) => self.part(connection, why, give_up_after),
                Command::Dropped => {
                    self.dropped = true;
                    self.part(connection, End::Closed, ORPHAN_CLOSE_LIMIT);
                }
            }
        }
    }

    fn reconnect(&mut self, connection: &mut LockedConnection) {
        if !connection.core.is_attached() || !connection.core.is_idle() {
            return;
        }
        write_soon(
            Level::Info,
            format_args!(
                "session 0x{:x} gets another connection, which has no unused watches",
                self.session(connection)
            ),
        );
        self.hang_up(connection);
        connection.core.detach(Moment::now());
    }

    fn part(&mut self, connection: &mut LockedConnection, why: End, give_up_after: Duration) {
        self.give_up_after(give_up_after);
        connection.core.close(why, Moment::now());
    }

    fn found(&mut self, connection: &mut LockedConnection, found: Dialed) {
        match found {
            Dialed::Server(stream, granted) => {
                let address = granted.server;
                if let Err(cause) = stream.tcp().set_nonblocking(true) {
                    write_soon(
                        Level::Warn,
                        format_args!(
                            "the connection to {address} is unusable, trying again: {cause}"
                        ),
                    );
                    return;
                }
                let now = Moment::now();
                let before = connection.core.granted().map(|before| before.by_server);
                (connection.server, connection.broken) = (Some(stream), None);
                self.attached_at = now;
                self.config.resolver.outage.over(now);
                let by_server = granted.by_server;
                self.config.resolver.note_grant(by_server);
                let least = self.config.resolver.least_grant();
                let granted = match least.filter(|_| self.attempts.are_in_doubt()) {
                    Some(least) => granted.at_most(least),
                    None => granted,
                };
                connection.core.attach(granted, now);
                let Some(granted) = connection.core.granted() else { return };
                *self.shared.info.lock() = Info {
                    session: granted.session,
                    timeout: granted.by_server,
                    tick: granted.terms().tick,
                    outage_limit: granted.terms().outage_limit(),
                    server: Some(address),
                    trouble: None,
                };
                let (asked, timeout) = (self.config.session_timeout, granted.timeout);
                let what = match (before, connection.core.ended()) {
                    (None, _) => {
                        format!("opened at {address}, timeout {timeout:?} (asked for {asked:?})")
                    }
                    (Some(_), None) => format!("is served again, by {address}"),
                    (Some(_), Some(_)) => format!("is over and is being closed at {address}"),
                };
                write_soon(Level::Info, format_args!("session 0x{:x} {what}", granted.session));
                warn_of_granted(granted, (before, by_server), asked);
                self.config.resolver.replaced_sessions.warn(&granted.password);
                // Of what TLS has decrypted in the handshakes, the socket does not tell.
                self.read_server(connection);
            }
            Dialed::Expired => connection.core.end_at_once(End::Expired),
            Dialed::AuthFailed(why) => {
                self.shared.info.lock().trouble = Some(why);
                // Closing a session needs no credentials.
                let Access { sasl, auth, .. } = &mut self.config.access;
                (*sasl, *auth) = (None, Vec::new());
                // The session must still be closed, but that may need them, too.
                let patience =
                    connection.core.granted().map_or(ORPHAN_CLOSE_LIMIT, |granted| granted.timeout);
                self.give_up_after(patience);
                connection.core.close(End::AuthFailed, Moment::now());
            }
        }
    }

    /// Says whether there was a connection.
    fn hang_up(&self, connection: &mut LockedConnection) -> bool {
        self.shared.info.lock().server = None;
        connection.hang_up()
    }

    fn lose_server(&mut self, connection: &mut LockedConnection, why: &str) {
        let (true, Some(granted)) = (self.hang_up(connection), connection.core.granted()) else {
            return;
        };
        let (now, address) = (Moment::now(), granted.server);
        let lived = now.since(self.attached_at);
        self.futile =
            if lived < Duration::from_secs(1) { self.futile.saturating_add(1) } else { 0 };
        self.avoid = Some(address);
        if self.futile == 0 || self.futile.is_power_of_two() {
            write_soon(
                Level::Warn,
                format_args!(
                    "session 0x{:x} lost its connection to {address}: {why}",
                    granted.session
                ),
            );
        }
        connection.core.detach(now);
    }

    /// Reads once, and says whether there may be more to read.
    fn read_server(&mut self, connection: &mut LockedConnection) -> bool {
        connection.read().unwrap_or_else(|why| {
            self.lose_server(connection, &why);
            false
        })
    }

    /// Notes for later sessions what this one has seen, also what a caller has read.
    fn note_zxid(&mut self, connection: &LockedConnection) {
        let zxid = connection.core.greatest_zxid();
        if zxid > self.noted_zxid {
            self.config.resolver.note_zxid(zxid, self.noted_zxid == 0);
            self.noted_zxid = zxid;
        }
    }

    /// Gives up the connection if a caller has found out that it no longer works. What the server said
    /// before it closed the connection counts: no request that it answered is in doubt.
    fn check_broken(&mut self, connection: &mut LockedConnection) {
        let Some(Broken { why, is_read }) = connection.broken.take() else { return };
        if !is_read {
            // Bounded, as nothing else is done meanwhile.
            let _ = (0..16).all(|_| self.read_server(connection));
            if connection.server.is_some() {
                connection.core.server_has_closed(Moment::now());
            }
        }
        self.lose_server(connection, &why);
    }
}
