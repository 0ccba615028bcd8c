//! What all locks have in common: path, node data, ACL and naming, and the methods that list and
//! observe contenders.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::contend::{
    Contender, ContenderKind, Contention, Form, Hold, Limits, MOST_PATIENCE, MaintenanceEnd,
    NodeNaming, OthersSeen, SHORTEST, Terms, acquire_after, acquire_in_turn, ask_contender,
    ask_holders, break_off, change_maintenance, contenders, facts, first_contender,
    hold_for_maintenance, insist, insist_within, is_request, is_room, observe, queue_maintenance,
    release_maintenance, report_end, room_of, with_facts, with_patience,
};
use crate::error::{Error, ErrorKind, Result};
use crate::recipes::data::NodeConfig;
use crate::rt;
use crate::session::{Changes, Client, Wait};

/// The node of a lock: shows who holds the lock and who waits for it, and can ask for its release.
///
/// [`LeaderElection`](crate::LeaderElection) and every lock except [`MultiLock`](crate::MultiLock)
/// dereference to this type: a function that looks at locks of any kind takes a `&LockNode`.
///
/// ```no_run
/// fn show(lock: &zklock::LockNode) -> zklock::Result<()> {
///     match lock.holder()? {
///         Some(holder) => println!("{} is held by {}", lock.path(), holder.label()),
///         None => println!("{} is free", lock.path()),
///     }
///     Ok(())
/// }
/// ```
///
/// # Settings
///
/// - The data of a contender's node tell people whose it is. Default: host, process id, program,
///   and the thread that created the node, as text (if threads share a node, another may hold the
///   lock); and, on a second line, facts such as the nodes that a waiter's thread holds. `b""` for
///   no data. Keep data to UTF-8 and below 1 MiB. `__REVOKE__` and `unlock` are refused: they ask a
///   holder to release.
/// - The ACL is that of every node that is created, also of missing parents. Deleting a contender
///   requires DELETE on the lock node: an ACL on contenders alone would protect nothing.
/// - The naming must be the same for all clients of a lock path.
#[derive(Clone)]
pub struct LockNode {
    /// Client, path, and the ACL of what is created.
    pub(crate) node: NodeConfig,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) naming: NodeNaming,
    /// What those who hold it contend for.
    kind: ContenderKind,
    /// What is held, for messages.
    pub(super) noun: &'static str,
    /// Whether the default data have facts for programs, as those of an election's candidates have not.
    pub(crate) tells_facts: bool,
    /// For how long it may be held at a time.
    pub(crate) hold_at_most: Option<Duration>,
    /// How many later ones may come before it, if there is an order of patience.
    pub(crate) patience: Option<u32>,
    /// Whether calls that acquire it fail instead of making its node.
    pub(crate) must_exist: bool,
    /// Whether it asks holders with more patience to release the lock.
    pub(crate) asks_worse: bool,
}

impl LockNode {
    pub(crate) fn new(
        client: Client,
        (base, name): (&str, &str),
        kind: ContenderKind,
        noun: &'static str,
    ) -> LockNode {
        let node = NodeConfig::new(client, base, name);
        LockNode {
            node,
            data: None,
            naming: NodeNaming::default(),
            kind,
            noun,
            tells_facts: true,
            hold_at_most: None,
            patience: None,
            must_exist: false,
            asks_worse: false,
        }
    }

    pub(crate) fn form(&self, kind: ContenderKind) -> Form {
        Form::new(self.naming, kind)
    }

    /// The path, unless ZooKeeper does not allow it.
    pub(crate) fn node(&self) -> Result<&str> {
        self.node.node()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.node.client
    }

    /// The data of this lock's contenders.
    pub(crate) fn data(&self) -> Vec<u8> {
        let data = match (&self.data, self.naming) {
            (Some(data), _) => data.clone(),
            (None, NodeNaming::Curator) if self.tells_facts => with_facts(self.default_data()),
            (None, _) => self.default_data(),
        };
        let told = self.patience.and_then(|patience| with_patience(&data, patience));
        told.unwrap_or(data)
    }

    fn default_data(&self) -> Vec<u8> {
        // No other process contends by this client.
        data_of(self.client().core().process())
    }

    // ----- contending

    /// Waits until the lock is held.
    pub(crate) fn wait(&self, form: Form) -> Result<Hold> {
        insist(|| self.acquire(form, Limits::patient(&Wait::FOREVER)))
    }

    /// Acquires the lock only if no other contender blocks it.
    pub(crate) fn try_now(&self, form: Form) -> Result<Option<Hold>> {
        let wait = self.client().core().connect_timeout().into();
        self.acquire(form, Limits::impatient(&wait))
    }

    pub(crate) fn within(&self, form: Form, wait: &Wait) -> Result<Option<Hold>> {
        insist_within(wait, || self.acquire(form, Limits::patient(wait)))
    }

    /// Checks everything that needs no server.
    pub(crate) fn check(&self, form: Form) -> Result<()> {
        let node = self.node()?;
        check_is_no_room(node)?;
        form.check().map_err(|why| Error::new(ErrorKind::InvalidArgument, why).on(node))?;
        if self.data.as_deref().is_some_and(is_request) {
            let message = "this data asks a holder to release the lock; choose other data";
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(node));
        }
        if let Some(limit) = self.hold_at_most.filter(|limit| *limit < SHORTEST) {
            let message = format!("hold_at_most({limit:?}) is too short: at least {SHORTEST:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(node));
        }
        if let Some(patience) = self.patience.filter(|patience| *patience > MOST_PATIENCE) {
            let message = format!("patience({patience}) is too great: at most {MOST_PATIENCE}");
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(node));
        }
        if self.asks_worse && self.patience.is_none() {
            let message = "ask_worse() needs patience(): without it, no holder is worse";
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(node));
        }
        Ok(())
    }

    pub(crate) fn acquire(&self, form: Form, limits: Limits<'_>) -> Result<Option<Hold>> {
        self.acquire_after(form, limits, &OthersSeen::default(), rt::now())
    }

    /// Acquires like `acquire`, but returns `None` also if others were ahead at an earlier lock of
    /// the same call.
    pub(crate) fn acquire_after(
        &self,
        form: Form,
        limits: Limits<'_>,
        others: &OthersSeen,
        begin: Instant,
    ) -> Result<Option<Hold>> {
        self.client().core().check_process()?;
        self.check(form)?;
        let started = self.client().core().time_for_report();
        let lock = self.contention(self.node()?, form);
        let got = match self.patience {
            None => acquire_after(&lock, limits, others, begin),
            Some(patience) => {
                let node = room_of(lock.node);
                let form = Form::of_patience(form.kind, patience);
                let noun = "place in the waiting room";
                let room = Contention {
                    noun,
                    reported_as: lock.node,
                    hold_at_most: None,
                    asks_worse_than: None,
                    must_exist: false,
                    ..self.contention(&node, form)
                };
                acquire_in_turn(&room, &lock, limits, others, begin)
            }
        };
        report_end(self.client(), (self.path(), self.noun), limits, started, got)
    }

    pub(crate) fn contention<'a>(&'a self, node: &'a str, form: Form) -> Contention<'a> {
        let NodeConfig { client, acl, .. } = &self.node;
        let (data, noun) = (self.data(), self.noun);
        // The default data are made so that they can.
        let tells_facts = self.tells_facts
            && (self.data.is_none() && self.naming == NodeNaming::Curator
                || facts(&data).is_some());
        let (must_exist, hold_at_most) = (self.must_exist, self.hold_at_most);
        let asks_worse_than = self.patience.filter(|_| self.asks_worse);
        Contention {
            client,
            node,
            reported_as: node,
            noun,
            data,
            acl,
            form,
            tells_facts,
            must_exist,
            hold_at_most,
            asks_worse_than,
        }
    }
}

impl LockNode {
    /// Returns the lock path, `base/name`, even if ZooKeeper does not allow such a path.
    pub fn path(&self) -> &str {
        self.node.path()
    }

    /// Lists the holders, then the waiting contenders, in the order in which they are granted.
    ///
    /// The list includes everything that happened before this call: it asks the ensemble's leader
    /// first. It may be out of date when it is returned, so do not base decisions on it.
    ///
    /// Takes two requests, and one more for each contender.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) if the ensemble does not answer within the [connect
    /// timeout](crate::ClientBuilder::connect_timeout); others that [end every
    /// wait](crate::guide#what-ends-every-wait).
    pub fn contenders(&self) -> Result<Vec<Contender>> {
        contenders(self.client(), self.node()?)
    }

    /// Lists those who wait for their turn to contend, the first to contend first: see
    /// [`patience`](crate::DistributedLock::patience).
    ///
    /// Those that [hold](Contender::holds) a place of it may contend for the lock; so do those that once were
    /// the first, until they hold it. Empty if nobody has patience.
    ///
    /// # Errors
    ///
    /// As [`contenders`](Self::contenders).
    pub fn waiting_room(&self) -> Result<Vec<Contender>> {
        contenders(self.client(), &room_of(self.node()?))
    }

    /// Returns the holder, or the first of several; `None` if nobody holds the lock.
    ///
    /// As fresh as [`contenders`](Self::contenders), in three requests.
    ///
    /// # Errors
    ///
    /// As [`contenders`](Self::contenders).
    pub fn holder(&self) -> Result<Option<Contender>> {
        Ok(first_contender(self.client(), self.node()?)?.filter(|first| first.holds))
    }

    /// Observes the holders: first the present ones, in the order of their sequence numbers, then
    /// those after each change.
    ///
    /// While a mutex is held, only a change of the holder costs each observer requests: a list and
    /// a read; the same once more if that holder tells later [since when](Contender::held_since) it
    /// holds. Otherwise each contender that comes or goes costs a list, and a read for each
    /// holder.
    pub fn observe(&self) -> Changes<Vec<Contender>> {
        observe(self.client(), self.node().map(str::to_owned), self.kind, |holders| holders)
    }

    /// Asks all holders to release the lock, and returns how many it asked, without waiting.
    ///
    /// A holder learns of it by [`on_release_requested`](crate::Hold::on_release_requested) or
    /// [`release_requested`](crate::Hold::release_requested), and consents by dropping its guard,
    /// or keeps the lock.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without WRITE on a holder's node;
    /// otherwise as [`contenders`](Self::contenders).
    pub fn request_release(&self) -> Result<usize> {
        ask_holders(self.client(), self.node()?)
    }

    /// Asks one contender to release the lock; returns false if its node no longer exists.
    ///
    /// A waiting contender learns of it when it acquires the lock.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a contender of another lock;
    /// otherwise as [`request_release`](Self::request_release).
    pub fn request_release_of(&self, contender: &Contender) -> Result<bool> {
        ask_contender(self.client(), self.node()?, &contender.path)
    }

    /// **Takes the lock away from a contender by force**: deletes its node, and returns whether the
    /// node existed.
    ///
    /// Returns true also if it only may have existed, because a first reply was lost.
    ///
    /// The next contender gets the lock at once, *while the former holder may still be at work*: it
    /// learns of the loss a moment later, by [`on_lost`](crate::Hold::on_lost), if it is alive and
    /// connected at all. For operators who know that the holder does nothing any more, and for
    /// resources that check the [fencing token](crate::FencingToken).
    /// [`request_release`](Self::request_release) asks instead.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a contender of another lock,
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without DELETE on the lock node;
    /// otherwise as [`contenders`](Self::contenders).
    pub fn break_lock(&self, contender: &Contender) -> Result<bool> {
        break_off(self.client(), self.node()?, &contender.path)
    }
}

impl LockNode {
    /// Keeps everybody from the lock for maintenance, with no process that stays: waits until the lock is
    /// free, and returns the hold; `None` if others still have the lock when the wait, or the hold's own
    /// time, is over.
    ///
    /// The hold is a contender's node that belongs to no session. While it is the first, no client in any
    /// language that respects this lock gets it, and everybody sees the reason: [`Contender::maintenance`]
    /// tells it. It ends when it is [released](Self::release_maintenance), or at `end` by the ensemble's
    /// clock: then the first waiters of this library delete it, or, if nobody waits, its next call that wants
    /// the lock, also one that does not wait. **Other libraries' waiters do not end it.**
    ///
    /// The node's name is one that the present contenders respect; if there are none, one as this lock's own
    /// contenders have. So, for a path that Curator's read/write locks use, call this on a
    /// [`DistributedRwLock`](crate::DistributedRwLock), and for one that kazoo uses set
    /// [`NodeNaming::Kazoo`].
    ///
    /// The first line of the lock's [data](Self#settings) says who has made the hold.
    ///
    /// While it waits, the hold [is asked for](crate::maintenance::MaintenanceHold::is_asked_for): contenders
    /// that come later wait behind it. If the call ends without the lock, it deletes the node, or the
    /// background does when there is a connection again; if the process dies, the waiters of this library do
    /// half a minute later. If it dies in the moment in which the hold begins, the hold stays.
    ///
    /// Not for a job's own work: nothing notices if the job dies.
    ///
    /// # Errors
    ///
    /// - [`InvalidArgument`](ErrorKind::InvalidArgument) for a reason that is empty, longer than 1,000 bytes,
    ///   or has control characters, and for a hold that lasts less than a millisecond, or whose time has
    ///   passed;
    /// - [`NodeDeleted`](ErrorKind::NodeDeleted) if another client released the hold meanwhile;
    /// - [`NotAuthorized`](ErrorKind::NotAuthorized) without READ and WRITE on the contenders' nodes, which a
    ///   waiting lock does not need;
    /// - [`Cancelled`](ErrorKind::Cancelled), which [may have taken effect](Error::may_have_taken_effect) if
    ///   the node could not be deleted at once; [`SequenceExhausted`](ErrorKind::SequenceExhausted);
    /// - [`ConnectionLoss`](ErrorKind::ConnectionLoss) if the wait ends, or is cancelled, during an outage as
    ///   the hold begins, and the node cannot be deleted again within the [connect
    ///   timeout](crate::ClientBuilder::connect_timeout): the lock may be held, by the node that the error
    ///   names;
    /// - others that [end every wait](crate::guide#what-ends-every-wait).
    pub fn hold_for_maintenance(
        &self,
        reason: &str,
        end: MaintenanceEnd,
        wait: impl Into<Wait>,
    ) -> Result<Option<Contender>> {
        let terms = Terms { reason, end };
        hold_for_maintenance(&self.maintenance_contention()?, terms, &wait.into())
    }

    /// As [`hold_for_maintenance`](Self::hold_for_maintenance), without waiting: the hold begins when those
    /// who have the lock, and those who wait already, have left it.
    ///
    /// An `end` [after](MaintenanceEnd::After) some time counts from now.
    ///
    /// # Errors
    ///
    /// As [`hold_for_maintenance`](Self::hold_for_maintenance), with the [connect
    /// timeout](crate::ClientBuilder::connect_timeout) as the wait.
    pub fn queue_for_maintenance(&self, reason: &str, end: MaintenanceEnd) -> Result<Contender> {
        queue_maintenance(&self.maintenance_contention()?, Terms { reason, end })
    }

    /// Moves the end of a hold, and returns whether the hold was still there.
    ///
    /// An `end` [after](MaintenanceEnd::After) some time counts from now; a time that has passed ends the
    /// hold. If a waiter deletes the hold in the same moment, either that happens, and this returns false, or
    /// the hold stays.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for what is no maintenance hold of this lock, and for
    /// one that is only [asked for](crate::maintenance::MaintenanceHold::is_asked_for);
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ and WRITE on its node; otherwise as
    /// [`contenders`](Self::contenders).
    pub fn change_maintenance(&self, hold: &Contender, end: MaintenanceEnd) -> Result<bool> {
        change_maintenance(self.client(), self.node()?, hold, end)
    }

    /// Ends a hold, and returns whether it was still there.
    ///
    /// Returns true also if it only may have been there, because a first reply was lost.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for what is no maintenance hold of this lock;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without DELETE on the lock node; otherwise as
    /// [`contenders`](Self::contenders).
    pub fn release_maintenance(&self, hold: &Contender) -> Result<bool> {
        release_maintenance(self.client(), self.node()?, hold)
    }

    fn maintenance_contention(&self) -> Result<Contention<'_>> {
        self.client().core().check_process()?;
        check_is_no_room(self.node()?)?;
        let kind = match self.kind {
            ContenderKind::Read | ContenderKind::Write => ContenderKind::Write,
            _ => ContenderKind::Mutex,
        };
        Ok(self.contention(self.node()?, self.form(kind)))
    }
}

fn check_is_no_room(node: &str) -> Result<()> {
    if !is_room(node) {
        return Ok(());
    }
    let message =
        "names that begin with _zklock_room_ are those of waiting rooms: choose another name";
    Err(Error::new(ErrorKind::InvalidArgument, message).on(node))
}

/// Host, process, program and thread, so that people who look at the node see whose it is.
pub(crate) fn default_data() -> Vec<u8> {
    // Read each time: a forked process has another id.
    data_of(std::process::id())
}

fn data_of(process: u32) -> Vec<u8> {
    static HOST: LazyLock<String> =
        LazyLock::new(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let thread = std::thread::current();
    // What follows on further lines is facts.
    let thread =
        thread.name().map_or("unnamed", |name| name.split('\n').next().unwrap_or_default());
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let path = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&path).file_name().unwrap_or(&path).to_string_lossy().into_owned();
        name.replace('\n', " ")
    });
    // With room for some facts.
    let mut data = Vec::with_capacity(64 + HOST.len() + PROGRAM.len() + thread.len());
    // Writing to memory cannot fail.
    let _ = write!(data, "host={} pid={process} program={} thread={thread}", *HOST, *PROGRAM);
    data
}

impl fmt::Debug for LockNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockNode")
            .field("node", &self.node)
            .field("naming", &self.naming)
            .finish_non_exhaustive()
    }
}

/// The settings of a lock, whose field `lock_node` has them. What they decide about, and is kept in the field
/// `$kept`, is found anew.
macro_rules! settings {
    ($lock:ident $(, $kept:ident)?) => {
        impl $lock {
            /// Sets the [data](crate::LockNode#settings) of the nodes that this lock creates, which
            /// tell people whose they are.
            #[must_use = "the value is changed, and returned"]
            pub fn data(mut self, data: impl Into<Vec<u8>>) -> $lock {
                self.lock_node.data = Some(data.into());
                $(self.$kept = Default::default();)?
                self
            }
        }

        $crate::recipes::locks::node_settings!($lock $(, $kept)?);
    };
}

/// The setting of locks whose contenders may have patience.
macro_rules! patience_setting {
    ($lock:ident $(, $kept:ident)?) => {
        impl $lock {
            /// Lets more urgent contenders come before this one: at most `patience` of those that come later.
            /// 0 is the most urgent. Default: no patience, and no waiting room.
            ///
            /// All who have patience wait in a room beside the lock, at `<base>/_zklock_room_<name>`, in the
            /// order of their number there plus their patience. The first contends for the lock, as all
            /// others do, and stays there. So:
            ///
            /// - **At most `patience` later ones come before it**, among those who have patience; with equal
            ///   patience, first come, first served. Of two with the same place the earlier one comes first,
            ///   so nobody passes a patience of 1, and 19 pass one of 20.
            /// - **The most urgent one is next, but for the holder, those who contend already, and those who
            ///   have been passed so often.** Of mutexes and writers, at most one of each greater patience
            ///   contends already; of readers any number, as they wait for no readers.
            /// - There is one holder at a time whatever stands in the room. Contenders without patience, and
            ///   those of other libraries, contend at once: they wait for nobody in the room, and nobody
            ///   overtakes them.
            ///
            /// Threads do not hand the lock over to each other, and it cannot be kept
            /// ([`InvalidArgument`](crate::ErrorKind::InvalidArgument)). An acquisition without others costs
            /// twice as much as one without patience.
            ///
            /// At most 1,000,000.
            #[must_use = "the value is changed, and returned"]
            pub fn patience(mut self, patience: u32) -> $lock {
                self.lock_node.patience = Some(patience);
                $(self.$kept = Default::default();)?
                self
            }

            /// Has a waiter ask each holder that has more [patience](Self::patience) to
            /// [release](crate::Hold::on_release_requested) the lock. Default: false.
            ///
            /// Nobody else is asked: no waiter, and no holder with less or equal patience. A contender tells
            /// its patience by its node's data, so holders without patience are not asked, and neither are
            /// those that have [`data`](Self::data) of their own, and those that this client may not read or
            /// write (WRITE on a contender; a warning is logged).
            ///
            /// Only calls that wait ask, and only from the moment when they contend for the lock. Takes three
            /// requests for each holder, and one when others hold.
            ///
            /// # Errors
            ///
            /// Calls fail with [`InvalidArgument`](crate::ErrorKind::InvalidArgument) without patience.
            #[must_use = "the value is changed, and returned"]
            pub fn ask_worse(mut self, ask: bool) -> $lock {
                self.lock_node.asks_worse = ask;
                $(self.$kept = Default::default();)?
                self
            }
        }
    };
}

/// Has a lock dereference to its node; and the settings of its nodes except for their data.
macro_rules! node_settings {
    ($lock:ident $(, $kept:ident)?) => {
        impl std::ops::Deref for $lock {
            type Target = crate::recipes::locks::LockNode;

            fn deref(&self) -> &crate::recipes::locks::LockNode {
                &self.lock_node
            }
        }

        impl $lock {
            /// Sets the [ACL](crate::LockNode#settings) of every new node, including missing
            /// parents. Default [`Acl::open`].
            #[must_use = "the value is changed, and returned"]
            pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> $lock {
                self.lock_node.node.acl = acl.into();
                $(self.$kept = Default::default();)?
                self
            }

            /// Sets for how long the lock may be held at a time, from when it is granted. Default:
            /// without a limit.
            ///
            /// When the time is over, the hold is lost, for the reason
            /// [`HeldTooLong`](crate::LossReason::HeldTooLong): the guard says so, by
            /// [`is_held`](crate::Hold::is_held), [`on_lost`](crate::Hold::on_lost) and
            /// [`lost`](crate::Hold::lost), as after any loss. *Then* its node is deleted, until the
            /// server has confirmed that, and the next contender holds. So a holder that hangs
            /// blocks the others for `limit` at most, as long as its process runs and is connected.
            ///
            /// - Nobody else holds before the program was told: each callback of `on_lost` has begun
            ///   by then, and has ended or had half a second. Except if the session ends meanwhile:
            ///   a process that was stopped until then is told when it goes on.
            /// - From the end of the time on, no call says that it is held: guards look at the clock,
            ///   which counts the time that the machine or the process slept. The timer, which tells
            ///   callbacks and deletes the node, may be late on a busy machine, and after the machine slept.
            ///   [`lease_left`](crate::Hold::lease_left) is never more than what is left.
            /// - Without a connection the loss is told all the same. The node is deleted when there
            ///   is one again, or with the session.
            /// - Each guard has its own time: a thread that is handed the lock by another one, or
            ///   takes a kept lock, has all of it. The guard of
            ///   [`downgrade`](crate::WriteGuard::downgrade) has what was left to the writer, and that of a
            ///   [`ReentrantLock`](crate::ReentrantLock) what is left to the thread's first guard. In a
            ///   [`MultiLock`](crate::MultiLock) the time of each lock begins when that one is
            ///   granted, also while the call still waits for others; if it ends before, the call begins
            ///   anew.
            ///
            /// **Told does not mean stopped.** The holder may go on to write; only its [fencing
            /// token](crate::FencingToken) protects against that. Choose a `limit` much longer than
            /// the work takes.
            ///
            /// A limit of less than 10 ms is refused: the calls that acquire the lock fail with
            /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument). One too long for the clock is
            /// no limit.
            ///
            /// There is no opposite, to hold a lock for some time at least: a program that exits ends
            /// its session, and with it what it holds. To do something once in a period, use
            /// [`Once`](crate::Once).
            #[must_use = "the value is changed, and returned"]
            pub fn hold_at_most(mut self, limit: std::time::Duration) -> $lock {
                self.lock_node.hold_at_most = Some(limit);
                $(self.$kept = Default::default();)?
                self
            }

            /// Requires the lock node to exist: calls that acquire the lock fail with
            /// [`NotFound`](crate::ErrorKind::NotFound) instead of making it. Default: it is made.
            ///
            /// It costs no request. For paths that people type: a lock node in the wrong place may be in
            /// another program's way. Idle lock nodes are removed by the servers, except for those of kazoo's
            /// naming, so that a lock that is used may have no node for a while.
            #[must_use = "the value is changed, and returned"]
            pub fn must_exist(mut self) -> $lock {
                self.lock_node.must_exist = true;
                $(self.$kept = Default::default();)?
                self
            }
        }
    };
}

/// The setting of locks that can share a path with those of other libraries.
macro_rules! naming_setting {
    ($lock:ident $(, $kept:ident)?) => {
        impl $lock {
            /// Sets how the contenders' nodes are [named](crate::LockNode#settings). Default
            /// [`NodeNaming::Curator`].
            #[must_use = "the value is changed, and returned"]
            pub fn naming(mut self, naming: NodeNaming) -> $lock {
                self.lock_node.naming = naming;
                $(self.$kept = Default::default();)?
                self
            }
        }
    };
}

/// Makes a guard of a struct that has a `hold`: it dereferences to it, and prints itself. With names and
/// what they do, also the two methods that release it.
macro_rules! guard {
    ($guard:ident) => {
        impl std::ops::Deref for $guard {
            type Target = crate::contend::Hold;

            fn deref(&self) -> &crate::contend::Hold {
                &self.hold
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.hold.fmt_as(stringify!($guard), f)
            }
        }
    };
    ($guard:ident, $release:ident, $within:ident, $what:literal) => {
        guard!($guard);

        impl $guard {
            #[doc = concat!($what, ", waits until the server has confirmed it, and returns an error if that fails.")]
            ///
            /// # Errors
            ///
            /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
            pub fn $release(self) -> crate::error::Result<()> {
                self.hold.release()
            }

            #[doc = concat!($what, ", waiting at most `wait` for the server to confirm it.")]
            ///
            /// # Errors
            ///
            /// As [`LockGuard::unlock_within`](crate::LockGuard::unlock_within).
            pub fn $within(
                self,
                wait: impl Into<crate::session::Wait>,
            ) -> crate::error::Result<bool> {
                self.hold.release_within(&wait.into())
            }
        }
    };
}

pub(crate) use {guard, naming_setting, node_settings, patience_setting, settings};
