//! What all locks have in common: path, node data, ACL and naming, and the methods that list and
//! observe contenders.

use std::fmt;
use std::sync::LazyLock;

use crate::acl::Acl;
use crate::contend::acquire::{Contention, Limits, acquire, insist};
use crate::contend::hold::Hold;
use crate::contend::list_contenders::{self, Contender};
use crate::contend::observer::Observer;
use crate::contend::revoke;
use crate::contend::ticket::{Class, Form, NodeNaming};
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;

/// See the module.
#[derive(Clone)]
pub(crate) struct LockConfig {
    pub(crate) client: Client,
    /// The lock node; a bad name is reported by the first call that needs it.
    pub(crate) node: Result<String>,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) acl: Vec<Acl>,
    pub(crate) naming: NodeNaming,
}

impl LockConfig {
    pub(crate) fn new(client: Client, base: &str, name: &str) -> LockConfig {
        LockConfig {
            client,
            node: path::lock_path(base, name),
            data: None,
            acl: vec![Acl::open()],
            naming: NodeNaming::default(),
        }
    }

    pub(crate) fn form(&self, class: Class) -> Form {
        Form::new(self.naming, class)
    }

    pub(crate) fn node(&self) -> Result<&str> {
        self.node.as_deref().map_err(Error::clone)
    }

    /// What this site's contenders say of themselves.
    pub(crate) fn data(&self) -> Vec<u8> {
        self.data.clone().unwrap_or_else(default_data)
    }

    // ----- contending

    /// Until it is held or cancelled.
    pub(crate) fn wait(&self, form: Form, cancel: Option<&Cancel>) -> Result<Hold> {
        let limits = Limits { deadline: Deadline::NEVER, patient: true, cancel };
        insist(|| self.acquire(form, limits))
    }

    /// Only if nobody is in the way.
    pub(crate) fn try_now(&self, form: Form) -> Result<Option<Hold>> {
        let deadline = Deadline::after(self.client.core().connect_timeout());
        self.acquire(form, Limits { deadline, patient: false, cancel: None })
    }

    pub(crate) fn try_until(&self, form: Form, deadline: Deadline) -> Result<Option<Hold>> {
        self.acquire(form, Limits { deadline, patient: true, cancel: None })
    }

    /// What nobody needs to be asked for.
    pub(crate) fn check(&self, form: Form) -> Result<()> {
        let node = self.node()?;
        form.check().map_err(|why| Error::new(ErrorKind::InvalidData, why).on(node))?;
        if self.data.as_deref().is_some_and(revoke::is_request) {
            let message = "these are the words that ask a holder to let go; choose other data";
            return Err(Error::new(ErrorKind::InvalidData, message).on(node));
        }
        Ok(())
    }

    pub(crate) fn acquire(&self, form: Form, limits: Limits<'_>) -> Result<Option<Hold>> {
        self.client.core().check_process()?;
        self.check(form)?;
        acquire(&self.contention(self.node()?, form), limits)
    }

    pub(crate) fn contention(&self, node: &str, form: Form) -> Contention {
        let (client, acl) = (self.client.clone(), self.acl.clone());
        let (node, data) = (node.to_owned(), self.data());
        Contention { client, node, data, acl, form, must_exist: false }
    }

    // ----- looking on

    pub(crate) fn contenders(&self, synced: bool) -> Result<Vec<Contender>> {
        list_contenders::contenders(&self.client, self.node()?, synced)
    }

    /// The first of them.
    pub(crate) fn first_contender(&self, synced: bool) -> Result<Option<Contender>> {
        list_contenders::first(&self.client, self.node()?, synced)
    }

    pub(crate) fn observe(&self, form: Form) -> Observer {
        Observer::new(&self.client, self.node.clone(), form)
    }

    pub(crate) fn request_release(&self) -> Result<usize> {
        revoke::ask_holders(&self.client, self.node()?)
    }

    pub(crate) fn request_release_of(&self, contender: &Contender) -> Result<bool> {
        revoke::ask_contender(&self.client, self.node()?, &contender.path)
    }

    pub(crate) fn break_lock(&self, contender: &Contender) -> Result<bool> {
        revoke::break_off(&self.client, self.node()?, &contender.path)
    }
}

/// Host, process and thread, so that who looks at the node sees whose it is.
pub(crate) fn default_data() -> Vec<u8> {
    static HOST: LazyLock<String> =
        LazyLock::new(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    // A process that was forked has another id.
    format!("host={} pid={} thread={thread}", *HOST, std::process::id()).into_bytes()
}

impl fmt::Debug for LockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site")
            .field("node", &self.node)
            .field("acl", &self.acl)
            .field("naming", &self.naming)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// The settings of a lock, as methods of its builder, which has it in the field `lock`.
macro_rules! settings {
    ($builder:ident, $lock:ident) => {
        impl $builder {
            /// What a contender's node says of it, for people who look. Default: host, process id
            /// and the name of the thread that made it, as text (where threads share a node, another
            /// of them may hold by now); `b""` for nothing. Keep it to UTF-8 and below 1 MiB;
            /// `__REVOKE__` and `unlock` are refused, as they ask a holder to let go.
            pub fn data(mut self, data: impl Into<Vec<u8>>) -> $builder {
                self.lock.config.data = Some(data.into());
                self
            }
        }

        $crate::recipes::lock_config::node_settings!($builder, $lock);
    };
}

/// Those of its nodes alone.
macro_rules! node_settings {
    ($builder:ident, $lock:ident) => {
        impl $builder {
            /// The ACL of every node that this lock makes: missing parents, the lock node, and
            /// contenders. Default [`Acl::open`].
            ///
            /// To delete a contender takes DELETE on the lock node, so an ACL on contenders alone
            /// would protect nothing.
            pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> $builder {
                self.lock.config.acl = acl.into();
                self
            }

            /// In whose style contenders' nodes are named: with which clients in other languages
            /// the lock can be shared. Default [`NodeNaming::Curator`].
            ///
            /// All who share a lock node must use the same.
            pub fn naming(mut self, naming: NodeNaming) -> $builder {
                self.lock.config.naming = naming;
                self
            }

            /// The lock with these settings.
            pub fn build(self) -> $lock {
                self.lock
            }
        }
    };
}

/// Looking at a lock and asking its holders to let go; `$form` says what form its holders have.
macro_rules! looking_on {
    ($lock:ident, $form:expr, $cost:literal) => {
        impl $lock {
            /// All who hold or wait, in the order in which they are granted: those who hold come
            /// first. For people and logs; a decision taken by it is out of date. It is as this
            /// client's server knows it, which may lag behind the others.
            ///
            /// Takes one request, and one more for each contender.
            ///
            /// # Errors
            ///
            /// [`Connect`](crate::ErrorKind::Connect) or
            /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) when the ensemble does not
            /// answer within the [connect time-out](crate::ClientBuilder::connect_timeout); what
            /// waiting cannot mend else.
            pub fn contenders(&self) -> Result<Vec<Contender>> {
                self.config.contenders(false)
            }

            /// As [`contenders`](Self::contenders), of all that had happened before this call: asks
            /// the ensemble's leader first, in one request more.
            ///
            /// # Errors
            ///
            /// As [`contenders`](Self::contenders).
            pub fn latest_contenders(&self) -> Result<Vec<Contender>> {
                self.config.contenders(true)
            }

            /// Who holds, whenever that changes: for dashboards and tests.
            ///
            #[doc = $cost]
            pub fn observe(&self) -> Observer {
                self.config.observe($form(self))
            }

            /// Asks all who hold to let go, and says how many those were. It does not wait: a
            /// holder is free to go on.
            ///
            /// Each learns of it by
            /// [`on_release_requested`](crate::LockGuard::on_release_requested) or
            /// [`release_requested`](crate::LockGuard::release_requested), and consents by dropping
            /// its guard. The request is the text `__REVOKE__`, written over the data of its node,
            /// which revocable locks of Curator understand, too.
            ///
            /// # Errors
            ///
            /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without WRITE on a holder's
            /// node; else as [`contenders`](Self::contenders).
            pub fn request_release(&self) -> Result<usize> {
                self.config.request_release()
            }

            /// Asks one contender to let go; false if it is not there any more. One that waits
            /// learns of it when it comes to hold.
            ///
            /// # Errors
            ///
            /// [`InvalidName`](crate::ErrorKind::InvalidName) for a contender of another lock; else
            /// as [`request_release`](Self::request_release).
            pub fn request_release_of(&self, contender: &Contender) -> Result<bool> {
                self.config.request_release_of(contender)
            }

            /// **Takes the lock away from a contender by force**: deletes its node, and says whether
            /// it was there; also if it may have been there, because a first answer was lost.
            ///
            /// The next contender is let in at once, *while the former holder may still be at
            /// work*: it learns of the loss a moment later, by
            /// [`on_lost`](crate::LockGuard::on_lost), if it is alive and in touch at all. For
            /// operators who know that the holder does nothing any more, and for resources that
            /// check the [fencing token](crate::FencingToken). To ask politely there is
            /// [`request_release`](Self::request_release).
            ///
            /// # Errors
            ///
            /// [`InvalidName`](crate::ErrorKind::InvalidName) for a contender of another lock,
            /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without DELETE on the lock node;
            /// else as [`contenders`](Self::contenders).
            pub fn break_lock(&self, contender: &Contender) -> Result<bool> {
                self.config.break_lock(contender)
            }
        }
    };
}

pub(crate) use {looking_on, node_settings, settings};
