//! The link's protocol without its sockets: bytes and time in, bytes and notices out.

mod granted;
mod heartbeats;
mod lease;
mod recent;
mod replaced_sessions;
mod sizes;
mod unsupported_operations;
mod wire_format;

#[cfg(test)]
pub(crate) use granted::tests::granted_at;
pub(crate) use granted::{Granted, tick_shown, warn_of_granted};
pub(crate) use replaced_sessions::{ReplacedSessions, ends_with_its_connection};
pub(crate) use sizes::Sizes;
pub(crate) use unsupported_operations::UnsupportedOperations;
pub(crate) use wire_format::{
    ConnectRequest, ConnectResponse, Fields, Frame, Malformed, ReplyHeader,
};

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use log::Level;

use crate::connection_notice::{End, Notice};
use crate::link::log_thread::write_soon;
use crate::rt::{Moment, Sender};
use crate::wire_values::{
    MAX_REQUEST, NodeEvent, REPLY_HEADER, REQUEST_HEADER, RawReply, SYNC_ROOT, code, op, xid,
};
use heartbeats::Heartbeats;
use lease::Lease;
#[cfg(test)]
use lease::Terms;
use recent::Recent;
use sizes::SMALLEST;
use unsupported_operations::is_newer;
use wire_format::{Piece, Splitter, add_request, check_reply, has_failed_with, read_event};

/// How many requests may wait for their answers; more are refused with [`code::THROTTLED`]. A server
/// that answers nothing is given up before long, but until then must not fill the memory.
const MOST_OUTSTANDING: usize = 1 << 16;
/// For how much to tell there is memory at all times.
const MOST_KEPT: usize = 32;
/// How many bytes may wait for the server to read them.
const MOST_UNSENT: usize = 64 << 20;

/// What the error −124 means.
pub(super) const DEMANDS_SASL: &str =
    "the server demands that clients authenticate by SASL (error -124)";

/// Called with the reply, on the link's thread or that of any caller; it may only signal.
pub(crate) type OnReply = Box<dyn FnOnce(RawReply) + Send>;

/// What is to be told, in the order in which it came about.
pub(crate) enum ToTell {
    Notice(Notice),
    Answer(OnReply, RawReply),
    /// A watch on the node at this path has fired.
    Event(NodeEvent, String),
}

impl From<Malformed> for String {
    fn from(malformed: Malformed) -> String {
        format!("the server sent {malformed}")
    }
}

struct Outstanding {
    xid: i32,
    operation: i32,
    /// In bytes, as the server counts them.
    size: usize,
    sent: Moment,
    to: Recipient,
}

enum Recipient {
    Outgoing(OnReply),
    Heartbeat,
    Closing,
    /// The caller has already had an answer.
    Nobody,
}

/// See the module.
#[derive(Default)]
pub(crate) struct LinkCore {
    granted: Option<Granted>,
    attached: bool,
    ended: Option<End>,
    over: bool,
    last_zxid: i64,
    next_xid: i32,
    lease: Lease,
    heartbeats: Heartbeats,
    recent: Recent,
    /// Why the lease has run out, if it has.
    lapse: Option<String>,
    round_trip: Duration,
    heard: Moment,
    from_server: Splitter,
    max_reply: usize,
    outstanding: VecDeque<Outstanding>,
    has_warned_of_refusal: bool,
    sizes: Sizes,
    unsupported_operations: Arc<UnsupportedOperations>,
    /// Whether the server has answered a request on this connection.
    has_answered: bool,
    to_server: Vec<u8>,
    /// How many bytes have ever been put into `to_server`.
    queued: u64,
    /// Each mark is dropped when that many of the queued bytes are written, or never will be.
    marks: VecDeque<(u64, Sender<()>)>,
    to_tell: VecDeque<ToTell>,
}

impl LinkCore {
    pub(crate) fn new(
        max_reply: usize,
        unsupported_operations: Arc<UnsupportedOperations>,
    ) -> LinkCore {
        LinkCore {
            next_xid: 1,
            from_server: Splitter::new(max_reply, REPLY_HEADER),
            max_reply,
            unsupported_operations,
            ..LinkCore::default()
        }
    }

    // ----- what the link's thread asks

    pub(crate) fn is_attached(&self) -> bool {
        self.attached
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub(crate) fn granted(&self) -> Option<&Granted> {
        self.granted.as_ref()
    }

    /// The zxid that a server must have seen to serve the session; 0 if it only has to close it:
    /// otherwise a server that lost its data would never say that it does not know the session.
    pub(crate) fn last_zxid(&self) -> i64 {
        if self.ended.is_some() { 0 } else { self.last_zxid }
    }

    /// The greatest zxid of which servers have told, also after the end.
    pub(crate) fn greatest_zxid(&self) -> i64 {
        self.last_zxid
    }

    /// Why the session is over for the client, if it is.
    pub(crate) fn ended(&self) -> Option<End> {
        self.ended
    }

    /// Zero once the session is over for the client.
    pub(crate) fn lease_end(&self) -> Moment {
        if self.ended.is_some() { Moment::ZERO } else { self.lease.end() }
    }

    pub(crate) fn for_server(&mut self) -> &mut Vec<u8> {
        &mut self.to_server
    }

    /// The process was not running for so long.
    pub(crate) fn paused(&mut self, gap: Duration, now: Moment) {
        self.recent.paused(gap, now);
        if self.ended.is_none() && self.granted.is_some() {
            self.to_tell.push_back(ToTell::Notice(Notice::Paused(gap)));
        }
    }

    /// Why the search for a server has found none yet, while there is no connection.
    pub(crate) fn no_server(&mut self, why: Option<String>) {
        self.recent.no_server(why);
    }

    /// Why the lease has run out, or why the server does not let the client in: what has happened in the last
    /// session timeout.
    pub(crate) fn why_lapsed(&self) -> Option<&str> {
        self.lapse.as_deref()
    }

    /// Takes all that is to be told.
    pub(crate) fn take_all(&mut self) -> VecDeque<ToTell> {
        std::mem::take(&mut self.to_tell)
    }

    /// Gets back what was taken, once it was told, to need no new memory for what comes next.
    pub(crate) fn use_again(&mut self, told: VecDeque<ToTell>) {
        if self.to_tell.capacity() == 0 && told.capacity() <= MOST_KEPT {
            self.to_tell = told;
        }
    }

    /// Takes the answers and events that are to be told before the next notice.
    pub(crate) fn take_until_notice(&mut self) -> VecDeque<ToTell> {
        let end = self.to_tell.iter().position(|one| matches!(one, ToTell::Notice(_)));
        let rest = end.map(|end| self.to_tell.split_off(end));
        std::mem::replace(&mut self.to_tell, rest.unwrap_or_default())
    }

    // ----- the connection

    /// A connection has been made and serves the session.
    pub(crate) fn attach(&mut self, mut granted: Granted, now: Moment) {
        self.detach(now);
        let session = granted.session;
        if let Some(before) = self.granted.as_ref().filter(|before| before.session == session) {
            granted = granted.since(before);
            self.look_at_the_lease(now);
        }
        let terms = granted.terms();
        self.lease.restart(terms, granted.sent, now);
        self.recent.attached(&granted, now);
        self.heartbeats.restart(terms, granted.sent, now);
        self.round_trip = now.since(granted.sent);
        self.heard = now;
        self.granted = Some(granted);
        self.look_at_the_lease(now);
        self.attached = true;
        self.has_answered = false;
        self.from_server = Splitter::new(self.max_reply, REPLY_HEADER);
        match self.ended {
            None => self.to_tell.push_back(ToTell::Notice(Notice::Attached)),
            Some(_) => self.send_close(now),
        }
    }

    /// A server has granted the session anew, on a connection that will not be used.
    pub(crate) fn renewed(&mut self, granted: Granted, now: Moment) {
        let is_in_time = self.ended.is_none() && now < self.lease.end();
        let before = self.granted.as_ref().filter(|before| before.session == granted.session);
        if let Some(before) = before.filter(|_| is_in_time && !self.attached) {
            // Grants are compared when a connection is used.
            let granted = Granted { by_server: before.by_server, ..granted.since(before) };
            self.lease.restart(granted.terms(), granted.sent, now);
            self.granted = Some(granted);
        }
    }

    /// A server is asked to continue the session, at that time. Servers grant different session timeouts,
    /// of which the `least` counts until the answer says more.
    pub(crate) fn attempted(&mut self, sent: Moment, least: Duration) {
        if !self.attached {
            self.lease.end_by(sent.plus(least));
        }
    }

    /// The server has closed the connection, which is about to be given up.
    pub(crate) fn server_has_closed(&mut self, now: Moment) {
        let unanswered = self.outstanding.iter().map(|sent| (sent.size, sent.sent));
        self.sizes.closed(unanswered, now);
        if !self.has_answered {
            self.unsupported_operations.closed_without_an_answer();
        }
        let are_small = self.outstanding.iter().all(|sent| sent.size <= SMALLEST);
        if let Some(oldest) = self.outstanding.front().filter(|_| are_small) {
            let timeout = self.lease.terms().timeout;
            self.unsupported_operations.closed(oldest.operation, self.has_answered, timeout, now);
        }
    }

    /// The server has ended the connection in good order. Where sessions end with their connections,
    /// that is the only answer to the request to close one, and nobody could close it later.
    pub(crate) fn server_has_hung_up(&mut self, now: Moment) {
        let is_closing = self.outstanding.iter().any(|sent| matches!(sent.to, Recipient::Closing));
        let is_sent = is_closing && self.to_server.is_empty();
        if is_sent && self.granted.as_ref().is_some_and(|it| ends_with_its_connection(&it.password))
        {
            self.finish();
        } else {
            self.server_has_closed(now);
        }
    }

    /// Whether no request waits for its answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// The connection is gone: every outstanding request is answered now.
    pub(crate) fn detach(&mut self, now: Moment) {
        if !self.attached {
            return;
        }
        self.attached = false;
        self.recent.cut(now);
        self.to_server.clear();
        if self.ended.is_none() {
            self.to_tell.push_back(ToTell::Notice(Notice::Suspended));
        }
        self.abandon(code::CONNECTION_LOSS);
        self.outstanding.clear();
    }

    /// Ends the session for the client, and has the server close it, if there is one, even later.
    pub(crate) fn close(&mut self, why: End, now: Moment) {
        self.end(why);
        if self.granted.is_none() {
            self.finish();
        } else if self.attached {
            self.send_close(now);
        }
    }

    /// Ends the session without a word of the server, or after its last one.
    pub(crate) fn end_at_once(&mut self, why: End) {
        self.end(why);
        self.finish();
    }

    fn finish(&mut self) {
        if !self.over {
            self.over = true;
            self.to_tell.push_back(ToTell::Notice(Notice::Over));
        }
        self.attached = false;
        self.to_server.clear();
        self.outstanding.clear();
    }

    fn end(&mut self, why: End) {
        if self.ended.is_none() {
            self.ended = Some(why);
            self.to_tell.push_back(ToTell::Notice(Notice::Ended(why)));
            self.abandon(code::SESSION_EXPIRED);
        }
    }

    fn send_close(&mut self, now: Moment) {
        if !self.outstanding.iter().any(|sent| matches!(sent.to, Recipient::Closing)) {
            self.send(op::CLOSE_SESSION, &[], Recipient::Closing, now);
        }
    }

    /// Answers all outstanding requests with `error`; the server's own replies will be discarded.
    fn abandon(&mut self, error: i32) {
        for sent in &mut self.outstanding {
            if let Recipient::Outgoing(on_answer) =
                std::mem::replace(&mut sent.to, Recipient::Nobody)
            {
                let answer = RawReply { zxid: 0, error, body: Vec::new() };
                self.to_tell.push_back(ToTell::Answer(on_answer, answer));
            }
        }
    }

    fn send(&mut self, operation: i32, body: &[u8], to: Recipient, now: Moment) {
        let xid = self.next_xid;
        self.next_xid = self.next_xid.checked_add(1).unwrap_or(1);
        self.queued += add_request(&mut self.to_server, xid, operation, body) as u64;
        if matches!(to, Recipient::Heartbeat) {
            self.lease.pledge(now);
            self.heartbeats.sent(now);
        }
        let size = REQUEST_HEADER + body.len();
        self.outstanding.push_back(Outstanding { xid, operation, size, sent: now, to });
    }

    // ----- requests

    /// Sends a request, or answers it at once if it cannot be sent.
    pub(crate) fn verb(&mut self, operation: i32, body: &[u8], on_answer: OnReply, now: Moment) {
        let (error, body) = if self.ended.is_some() {
            (code::SESSION_EXPIRED, Vec::new())
        } else if !self.attached {
            (code::CONNECTION_LOSS, Vec::new())
        } else if let Some(why) = self.too_large(body, now) {
            (code::MARSHALLING, why.into_bytes())
        } else if self.outstanding.len() >= MOST_OUTSTANDING
            || self.to_server.len() + body.len() > MOST_UNSENT
        {
            // Not sent, and may be retried: the code that an overloaded server gives.
            (code::THROTTLED, Vec::new())
        } else {
            return self.send(operation, body, Recipient::Outgoing(on_answer), now);
        };
        let answer = RawReply { zxid: 0, error, body };
        self.to_tell.push_back(ToTell::Answer(on_answer, answer));
    }

    /// The reason not to send a request with this body, if there is one.
    fn too_large(&self, body: &[u8], now: Moment) -> Option<String> {
        let size = REQUEST_HEADER + body.len();
        if size > MAX_REQUEST {
            return Some(format!(
                "the request has {size} bytes, and servers take at most {MAX_REQUEST}"
            ));
        }
        self.sizes.refusal(size, now)
    }

    /// Whether there is something to tell.
    pub(crate) fn has_news(&self) -> bool {
        !self.to_tell.is_empty()
    }

    /// Adds a mark that is dropped when every request so far is written.
    pub(crate) fn mark(&mut self, mark: Sender<()>) {
        self.marks.push_back((self.queued, mark));
    }

    /// Drops the marks that are due.
    pub(crate) fn pass_marks(&mut self) {
        // What a lost connection left unwritten was cleared, so it counts as written.
        let written = self.queued - self.to_server.len() as u64;
        while self.marks.front().is_some_and(|(at, _)| *at <= written) {
            self.marks.pop_front();
        }
    }

    // ----- replies

    /// Bytes from the server. An error means that the connection must be dropped.
    pub(crate) fn heard_server(&mut self, bytes: &[u8], now: Moment) -> Result<(), String> {
        self.look_at_the_lease(now);
        self.heard = now;
        let mut splitter = std::mem::take(&mut self.from_server);
        splitter.push(bytes);
        let result = self.read_replies(&mut splitter, now);
        self.from_server = splitter;
        result
    }

    fn read_replies(&mut self, splitter: &mut Splitter, now: Moment) -> Result<(), String> {
        while let Some(piece) = splitter.next()? {
            self.reply(piece, now)?;
            if self.over {
                break;
            }
        }
        Ok(())
    }

    /// A reply, or what the server says without a request.
    fn reply(&mut self, piece: Piece<'_>, now: Moment) -> Result<(), String> {
        let mut fields = Fields(piece.bytes);
        let header = ReplyHeader::read(&mut fields)?;
        let body = Piece { bytes: fields.0, ..piece };
        match (header.xid, header.error) {
            // Servers other than ZooKeeper's end a session by a reply to no request.
            (_, code::SESSION_EXPIRED) => self.end_at_once(End::Expired),
            (xid::WATCH, code::OK) => {
                self.event(body)?;
                self.last_zxid = self.last_zxid.max(header.zxid);
            }
            (xid::WATCH, _) => {
                return Err("the server sent an event with an error".into());
            }
            // A server that demands SASL ends the session after such a reply.
            (xid::AUTH, code::AUTH_FAILED) => self.end_at_once(End::AuthFailed),
            (_, code::SASL_REQUIRED) => {
                self.lapse = Some(DEMANDS_SASL.to_owned());
                self.end_at_once(End::AuthFailed);
            }
            _ => self.answered(header, body, now)?,
        }
        Ok(())
    }

    /// The server has answered the oldest request, or the first one behind requests that it does not know.
    fn answered(
        &mut self,
        header: ReplyHeader,
        body: Piece<'_>,
        now: Moment,
    ) -> Result<(), String> {
        self.pass_over_unknown(header.xid, now);
        let (error, body) = self.checked(header, body)?;
        let Some(sent) = self.outstanding.pop_front() else { return Ok(()) };
        // Only after the checks: no server accepts a session with a zxid made up from garbage.
        self.last_zxid = self.last_zxid.max(header.zxid);
        self.sizes.answered(sent.size);
        self.has_answered = true;
        if error == code::UNIMPLEMENTED && is_newer(sent.operation) {
            self.unsupported_operations.learn(sent.operation, now);
        } else {
            self.unsupported_operations.answered(sent.operation, now);
        }
        self.round_trip = now.since(sent.sent);
        self.recent.answered(sent.sent, now, self.lease.terms().timeout);
        if self.ended.is_none() {
            let by_leader = goes_to_the_leader(sent.operation) && is_from_the_leader(error);
            let is_heartbeat = matches!(sent.to, Recipient::Heartbeat);
            self.lease.answered(sent.sent, now, by_leader, is_heartbeat);
            if is_heartbeat {
                self.heartbeat_answered(by_leader, error, now);
            }
        }
        match sent.to {
            Recipient::Outgoing(on_answer) => {
                let answer = RawReply { zxid: header.zxid, error, body: body.to_vec() };
                self.to_tell.push_back(ToTell::Answer(on_answer, answer));
            }
            Recipient::Closing => self.finish(),
            Recipient::Heartbeat | Recipient::Nobody => {}
        }
        Ok(())
    }

    /// The error code and body with which to answer the oldest request, if this reply is one to it.
    fn checked<'a>(
        &self,
        header: ReplyHeader,
        Piece { bytes: body, oversized }: Piece<'a>,
    ) -> Result<(i32, &'a [u8]), String> {
        let ReplyHeader { xid, error, .. } = header;
        let Some(sent) = self.outstanding.front() else {
            return Err(format!("the server replied to no request: xid {xid}"));
        };
        if sent.xid != xid {
            let due = sent.xid;
            return Err(format!("the server answered xid {xid} where {due} was due"));
        }
        // Callers retry at once after a lost connection, so they hear of one only if it is lost.
        if matches!(
            error,
            code::SESSION_MOVED
                | code::CONNECTION_LOSS
                | code::OPERATION_TIMEOUT
                | code::REQUEST_TIMEOUT
        ) {
            return Err(format!("the server cannot serve the session: error {error}"));
        }
        if let Some(length) = oversized {
            write_soon(
                Level::Warn,
                format_args!(
                    "a reply of {length} bytes is over the limit of {}; its request fails",
                    self.max_reply
                ),
            );
            return Ok((code::MARSHALLING, &[]));
        }
        if error == code::OK {
            check_reply(sent.operation, body)?;
            if sent.operation == op::MULTI && has_failed_with(code::SESSION_MOVED, body) {
                return Err("the session has moved, says a transaction".into());
            }
        }
        Ok((error, body))
    }

    fn heartbeat_answered(&mut self, by_leader: bool, error: i32, now: Moment) {
        if by_leader {
            self.recent.confirmed();
            self.heartbeats.pace(self.lease.terms(), self.round_trip);
            return;
        }
        self.recent.refused(error, now);
        self.lease.withdraw_pledges();
        // Differs from client to client, and from request to request.
        let session = self.granted.as_ref().map_or(0, |granted| granted.session) as u64;
        let mixed = session ^ u64::from(self.next_xid.unsigned_abs());
        let chance = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.heartbeats.refused(&self.lease, now, chance as u32);
        if !std::mem::replace(&mut self.has_warned_of_refusal, true) {
            write_soon(
                Level::Warn,
                format_args!(
                    "the server refuses to pass heartbeats on to the leader (error {error}; {} means that it is \
                 overloaded): asking again until the lease ends",
                    code::THROTTLED
                ),
            );
        }
    }

    /// Servers answer in order: one that answers a later request has left out those that it does not
    /// know.
    fn pass_over_unknown(&mut self, xid: i32, now: Moment) {
        let Some(place) = self.outstanding.iter().position(|sent| sent.xid == xid) else { return };
        if !self.outstanding.iter().take(place).all(|sent| is_newer(sent.operation)) {
            return;
        }
        for sent in self.outstanding.drain(..place) {
            self.unsupported_operations.learn(sent.operation, now);
            if let Recipient::Outgoing(on_answer) = sent.to {
                let error = code::UNIMPLEMENTED;
                let answer = RawReply { zxid: 0, error, body: Vec::new() };
                self.to_tell.push_back(ToTell::Answer(on_answer, answer));
            }
        }
    }

    fn event(&mut self, body: Piece<'_>) -> Result<(), String> {
        if body.oversized.is_some() {
            return Err("the server sent an event over the size limit".into());
        }
        let (event, path) = read_event(body.bytes)?;
        self.to_tell.push_back(ToTell::Event(event, path.to_owned()));
        Ok(())
    }

    // ----- time

    /// When the oldest unanswered request will have waited too long: after a third of the
    /// session timeout, or sooner if the lease would leave no time to try another server.
    fn silence_limit(&self) -> Option<Moment> {
        let oldest = self.outstanding.front()?.sent;
        let timeout = self.lease.terms().timeout;
        if self.ended.is_some() {
            return Some(oldest.plus(timeout / 3));
        }
        // A large reply that is still coming in is not silence.
        let since = if self.from_server.in_the_middle() { oldest.max(self.heard) } else { oldest };
        // A server that takes no longer than for its last answer is not silent.
        let hurry = (timeout / 12).max(self.round_trip * 2);
        let hasty = Moment::ZERO.plus(self.lease.end().since(Moment::ZERO.plus(timeout / 6)));
        Some(since.plus(timeout / 3).min(hasty.max(oldest.plus(hurry))))
    }

    /// When [`tick`](LinkCore::tick) has something to do.
    pub(crate) fn next_tick(&self) -> Moment {
        let lives = self.granted.is_some() && self.ended.is_none();
        let due = [
            lives.then(|| self.lease.end()),
            (lives && self.attached).then(|| self.heartbeats.due(&self.lease)),
            self.silence_limit(),
        ];
        due.into_iter().flatten().min().unwrap_or(Moment::NEVER)
    }

    /// Lets time pass. An error means that the connection must be dropped.
    pub(crate) fn tick(&mut self, now: Moment) -> Result<(), String> {
        self.look_at_the_lease(now);
        if self.silence_limit().is_some_and(|limit| now >= limit) {
            let waited = self.outstanding.front().map(|sent| now.since(sent.sent));
            return Err(format!("no answer for {:.1?}", waited.unwrap_or_default()));
        }
        let lives = self.attached && self.ended.is_none();
        if lives && now >= self.heartbeats.due(&self.lease) {
            self.send(op::SYNC, SYNC_ROOT, Recipient::Heartbeat, now);
        }
        Ok(())
    }

    /// Ends the session for the client if its lease has run out.
    fn look_at_the_lease(&mut self, now: Moment) {
        if now >= self.lease.end() {
            self.lapse(now);
        }
    }

    /// The lease has run out, as a caller may have found before.
    pub(crate) fn lapse(&mut self, now: Moment) {
        if self.granted.is_some() && self.ended.is_none() {
            let unanswered = self.outstanding.front().map(|sent| sent.sent);
            let timeout = self.lease.terms().timeout;
            self.lapse = Some(self.recent.why_lapsed(timeout, unanswered, now));
            self.close(End::Lapsed, now);
        }
    }
}

/// Whether a reply with this code comes from the leader. A follower may give other errors by
/// itself, for example because of an ACL or of too many requests.
fn is_from_the_leader(error: i32) -> bool {
    matches!(error, code::OK | code::NO_NODE | code::NODE_EXISTS | code::NOT_EMPTY)
}

/// Whether the server's answer to this operation has to come through the leader.
fn goes_to_the_leader(operation: i32) -> bool {
    matches!(
        operation,
        op::SYNC
            | op::CREATE
            | op::CREATE_CONTAINER
            | op::DELETE
            | op::SET_DATA
            | op::SET_ACL
            | op::MULTI
            | op::CLOSE_SESSION
    )
}

#[cfg(test)]
#[path = "../../../tests/link/core_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "../../../tests/link/not_zookeeper_tests.rs"]
mod not_zookeeper_tests;

#[cfg(test)]
#[path = "../../../tests/link/mangled_stream_properties.rs"]
mod properties;

#[cfg(test)]
#[path = "../../../tests/link/core_session_properties.rs"]
mod lives;

#[cfg(test)]
#[path = "../../../tests/link/lease_properties.rs"]
mod lease_properties;

#[cfg(test)]
#[path = "../../../tests/link/moved_lease_properties.rs"]
mod moved_lease_properties;
