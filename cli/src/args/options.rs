//! The command line, from which the help, completions and the man page come, too.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

const ALL: &str = "\
Exit codes:
  0-121  that of the command (run, lead)
  0, 1   yes, no (test: held, free; leader: there is one, none)
  64     wrong usage            69   ZooKeeper cannot be reached; nothing was run
  77     credentials or ACL     123  the lock was lost while the command ran
  122    the command ran for longer than --max-run
  124    others hold the lock   125  zklock failed
  126    the command cannot be run, 127 it was not found
  128+n  ended by signal n

All options of a command, those for TLS, SASL and credentials, and the
variables that set them: zklock help COMMAND";

const EXIT_CODES: &str = "\
Exit codes: the command's own; 122 ended after --max-run, 123 the lock was lost,
124 others hold it, 69 no server (not run), 77 not permitted, 64 wrong usage,
125 zklock failed, 126 the command cannot be run, 127 it was not found,
128+n ended by signal n";

/// All but the options, which each subcommand shows.
const TEMPLATE: &str = "\
{about-with-newline}\
{usage-heading} {usage}
Commands (their options: zklock COMMAND -h, --help; all: zklock help COMMAND):
{subcommands}{after-help}";

/// Help fits a terminal of this width.
const WIDTH: usize = 80;

/// Whether help has to fit a screen: `-h` leaves out what is rarely needed, `--help` has all options of a
/// subcommand's own, and `zklock help` has all.
fn is_brief() -> bool {
    std::env::args_os().any(|one| one == "-h")
}

/// The heading of some options; in brief, there is one for all.
fn group(heading: &'static str) -> Option<&'static str> {
    (!is_brief()).then_some(heading)
}

fn exit_codes() -> Option<&'static str> {
    (!is_brief()).then_some(EXIT_CODES)
}

const WAITING: &str = "Waiting";
const HELD: &str = "What is held";
const COMMAND: &str = "The command";

/// Runs commands under ZooKeeper locks, and shows who holds and who waits.
#[derive(Debug, Parser)]
#[command(
    name = "zklock",
    version = env!("ZKLOCK_VERSION"),
    disable_help_flag = true,
    args_override_self = true,
    infer_subcommands = false
)]
#[command(help_template = TEMPLATE, after_long_help = ALL, max_term_width = WIDTH)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What all subcommands need: where the ensemble is, and how to talk about it.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct Global {
    /// Servers
    ///
    /// As host:port,host:port/chroot
    #[arg(short = 'z', long, global = true, env = "ZKLOCK_HOSTS", hide_env_values = true)]
    #[arg(default_value = "localhost:2181")]
    pub(crate) hosts: String,
    /// Parent of LOCK
    ///
    /// Path that a LOCK without a leading slash is below
    #[arg(long, global = true, env = "ZKLOCK_BASE", default_value = "/locks", value_name = "PATH")]
    #[arg(hide_env_values = true, hide_short_help = is_brief())]
    pub(crate) base: String,
    /// How long a crashed holder blocks the others
    #[arg(long, global = true, env = "ZKLOCK_SESSION_TIMEOUT", default_value = "30s")]
    #[arg(value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub(crate) session_timeout: Duration,
    /// The servers' tickTime; of several, the longest
    ///
    /// As in their zoo.cfg, where 2000 is 2s. Unstated, 3 s are reckoned with, or half of the session timeout
    /// if that is less; a shorter one lets locks survive longer outages. If a server's is longer than what is
    /// stated, two clients may hold a lock at once. `zklock doctor` says what to state
    #[arg(long, global = true, env = "ZKLOCK_TICK_TIME", value_name = "DURATION")]
    #[arg(value_parser = duration, hide_short_help = true)]
    pub(crate) tick_time: Option<Duration>,
    /// How long to look for a server
    #[arg(long, global = true, env = "ZKLOCK_CONNECT_TIMEOUT", default_value = "15s")]
    #[arg(value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub(crate) connect_timeout: Duration,
    /// File with a line "scheme credentials" for each of ZooKeeper's addauth, as "digest ann:secret"
    #[arg(long, global = true, env = "ZKLOCK_AUTH_FILE", value_name = "FILE")]
    #[arg(hide_short_help = true)]
    pub(crate) auth_file: Option<PathBuf>,
    /// Create nodes that only clients with the same credentials may use
    #[arg(long, global = true, env = "ZKLOCK_CREATOR_ONLY", hide_short_help = true)]
    #[arg(value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub(crate) creator_only: bool,
    /// Connect by TLS, and trust the authorities that the operating system trusts
    #[arg(long, global = true, env = "ZKLOCK_TLS", hide_short_help = true)]
    #[arg(value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub(crate) tls: bool,
    /// Connect by TLS, and trust the authorities in this file (PEM)
    #[arg(long, global = true, env = "ZKLOCK_TLS_CA", value_name = "FILE", hide_short_help = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Certificate to show the servers, with its chain (PEM)
    #[arg(long, global = true, env = "ZKLOCK_TLS_CERT", value_name = "FILE")]
    #[arg(requires = "tls_key", hide_short_help = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, global = true, env = "ZKLOCK_TLS_KEY", value_name = "FILE")]
    #[arg(requires = "tls_cert", hide_short_help = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authenticate by SASL DIGEST-MD5 as this user
    #[arg(long, global = true, env = "ZKLOCK_SASL_USER", value_name = "USER")]
    #[arg(requires = "sasl_password_file", hide_short_help = true)]
    pub(crate) sasl_user: Option<String>,
    /// File with that user's password
    #[arg(long, global = true, env = "ZKLOCK_SASL_PASSWORD_FILE", value_name = "FILE")]
    #[arg(requires = "sasl_user", hide_short_help = true)]
    pub(crate) sasl_password_file: Option<PathBuf>,
    /// Print help: -h in short, --help more
    #[arg(short, long, global = true, action = clap::ArgAction::HelpShort)]
    pub(crate) help: Option<bool>,
    /// Print results as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say only what went wrong
    #[arg(short, long, global = true, conflicts_with = "verbose", hide_short_help = is_brief())]
    pub(crate) quiet: bool,
    /// Say what happens; twice: all that is logged
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    #[arg(hide_short_help = is_brief())]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run a command while holding a lock
    #[cfg(target_os = "linux")]
    #[command(after_help = exit_codes())]
    Run(Run),
    /// List the locks below a path, who holds, and how many wait
    ///
    /// At any depth. QUEUED is how long ago the first contender queued; the other columns are those of
    /// `show`. What an ACL hides, and what is beyond 20,000 nodes, is named on standard error; with --json,
    /// as an object with `unlisted` and `why`
    Ls(Ls),
    /// Show who holds a lock and who waits for it
    Show(OneLock),
    /// Print each change of a lock's holders
    Watch(Watch),
    /// Exit with 0 if a lock is held, 1 if it is free, 69 if not known
    Test(Test),
    /// Wait until a lock is free, without taking it
    Wait(WaitFor),
    /// Show the locks at and below a path, live
    ///
    /// Sorted by waiters (w), hand-overs seen in a minute (h), time in the queue (a) or name (n). Arrows, j,
    /// k, PgUp, PgDn, Home and End scroll, / filters, q ends. It answers keys in an outage, too, and says
    /// `not current`
    Top(Top),
    /// Show who waits for whom
    ///
    /// Each lock that is waited for, its holder and what that waits for in turn, its waiters and what they
    /// hold
    Graph(Graph),
    /// Look for holders that wait for each other
    ///
    /// Exits with 0 if there are none, 1 if there is a deadlock, 2 if one is only suspected, 3 if none was
    /// found and not all could be read. A deadlock is what two looks show, three seconds apart, of waits
    /// without a limit
    Deadlocks(Deadlocks),
    /// Check locks in one line, as a monitoring plugin
    ///
    /// Exits with 0 if all is well, 1 for a warning (a suspected deadlock, a holder that does not tell since
    /// when, or another program's contender that may hold the lock, too), 2 if a limit is exceeded or there
    /// is a deadlock, 3 if that is not known
    Check(Check),
    /// Serve a page, JSON and metrics of the locks, by HTTP
    ///
    /// Goes on in an outage, too, and says so. Readers cause no requests: all are served from one look, of at
    /// most 500 requests a second
    Serve(Serve),
    /// Ask the holders of a lock to release it
    ///
    /// Those that use the library learn of it, as do Curator's revocable locks. `zklock run` ends its
    /// command, unless it was started with --on-ask ignore
    Ask(Ask),
    /// Take a lock away from a holder, by force
    ///
    /// The holder may still be at work. One that waits may queue again, as `zklock run` does
    Break(Break),
    /// Keep everybody from a lock for maintenance, without a process
    ///
    /// Waits until nobody holds it, then returns; neither this command nor its host has to live on. The hold
    /// ends at its time, by the ensemble's clock, if a client of zklock waits then or comes later; or by
    /// `zklock release`
    Hold(Hold),
    /// End what `hold` holds
    Release(Release),
    /// Check the servers, the session timeout, the clock, and locks
    Doctor(Doctor),
    /// Run a command while leading an election
    ///
    /// All that zklock-run(1) says of a lock and its command is so here
    #[cfg(target_os = "linux")]
    #[command(after_help = exit_codes())]
    Lead(Lead),
    /// Print the id of an election's leader
    Leader(OneLock),
    /// Check fencing tokens in shell scripts
    #[command(subcommand)]
    Token(Token),
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, or that of a subcommand
    Man(Man),
    /// Needs Linux
    #[cfg(not(target_os = "linux"))]
    #[command(hide = true, alias = "lead")]
    Run {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Exit with 1 if a later holder was here, by the file; else store the token
    ///
    /// As `zklock token check FILE || exit`, before a script writes to the storage on which FILE is. That is
    /// a plain file, where there are hard links. One that is empty, or cannot be written, is no token's: the
    /// check fails with 125, as it does if another process has the file locked for 30 s
    Check(TokenCheck),
}

#[derive(Args, Debug)]
pub(crate) struct TokenCheck {
    /// File with the greatest token so far, on the storage that is to be protected
    pub(crate) file: PathBuf,
    /// The token
    #[arg(long, env = "ZKLOCK_TOKEN")]
    pub(crate) token: String,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// As `run`, or `token check`
    pub(crate) subcommand: Vec<String>,
    /// Write all pages into this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "subcommand")]
    pub(crate) all: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct OneLock {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
}

#[derive(Args, Debug)]
pub(crate) struct Test {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    /// Exit with 125 if there is no such node, as after a typing error
    #[arg(long)]
    pub(crate) must_exist: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    /// End after so long, and say how often and how long each client held it
    ///
    /// A client is what has one host, program and label, whatever its process. Threads that pass the lock on
    /// count as one hold, holders that follow each other faster than a list is read are not all counted, and
    /// an outage counts from when it is noticed. Without this option it goes on until it is interrupted
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(crate) span: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Path to list [default: that of --base]
    pub(crate) path: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Path to show [default: that of --base]
    pub(crate) path: Option<String>,
    /// How often to look
    ///
    /// If there are many locks, as often as takes 500 requests a second
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Graph {
    /// Path to show [default: that of --base]
    pub(crate) path: Option<String>,
    /// Print it for Graphviz
    #[arg(long, conflicts_with_all = ["mermaid", "json"])]
    pub(crate) dot: bool,
    /// Print it for Mermaid
    #[arg(long, conflicts_with = "json")]
    pub(crate) mermaid: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Deadlocks {
    /// Path to look at and below [default: that of --base]
    pub(crate) path: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Names below --base, or absolute paths
    #[arg(required = true, value_name = "LOCK")]
    pub(crate) locks: Vec<String>,
    /// Longest time that a lock may be held
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_held: Option<Duration>,
    /// Longest time that anybody may wait
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_waiting: Option<Duration>,
    /// So many may wait for a lock at once
    #[arg(long, value_name = "N")]
    pub(crate) max_waiters: Option<usize>,
    /// No deadlock below the locks' base paths
    #[arg(long)]
    pub(crate) no_deadlock: bool,
    /// It is critical if a lock's node does not exist
    #[arg(long)]
    pub(crate) must_exist: bool,
    /// Kazoo's locks have no extra_lock_patterns
    ///
    /// So one that may hold beside other programs' holders is critical, not a warning
    #[arg(long)]
    pub(crate) kazoo_as_it_comes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Paths to look at and below [default: that of --base]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    /// IP:PORT, or unix:PATH for a socket that only this user can open
    #[arg(long, default_value = "127.0.0.1:9142", value_name = "ADDRESS")]
    pub(crate) listen: String,
    /// File with the token that readers have to show
    ///
    /// As "Authorization: Bearer TOKEN", or once in a browser as /?token=TOKEN. Needed with credentials for
    /// ZooKeeper, and if ADDRESS is not loopback. At least 16 letters, digits or -._~+/=
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Let everybody read who can reach ADDRESS
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) no_token: bool,
    /// Another name by which browsers reach it (NAME or NAME:PORT)
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct WaitFor {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    /// Wait at most this long, then exit with 124
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Exit with 125 if there is no such node, as after a typing error
    #[arg(long)]
    pub(crate) must_exist: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Ask {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    /// Only the holder with this node
    ///
    /// By its number, as `show` prints it, its name or its path
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Wait for their releases at most this long, then exit with 124
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("end").required(true))]
pub(crate) struct Hold {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    /// Why, for all who look at the lock
    #[arg(short, long, value_name = "TEXT", required_unless_present = "change")]
    #[arg(conflicts_with = "change")]
    pub(crate) reason: Option<String>,
    /// When it ends, as 06:00 or "2026-11-29 06:00"
    ///
    /// By this host's time zone, or with an offset, as 2026-11-29T06:00:00+01:00
    #[arg(long, value_name = "TIME", group = "end")]
    pub(crate) until: Option<String>,
    /// How long it lasts, from when it is held
    ///
    /// With --no-wait and --change, from now
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, group = "end")]
    pub(crate) lasts: Option<Duration>,
    /// It ends only by `zklock release`
    #[arg(long, group = "end")]
    pub(crate) no_end: bool,
    /// Wait at most this long, then exit with 124
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: those who are there come first
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// For a path of read/write locks on which nobody is
    #[arg(long, hide_short_help = true)]
    pub(crate) rw: bool,
    /// For a path of kazoo's locks on which nobody is
    #[arg(long)]
    pub(crate) kazoo: bool,
    /// Make the lock's node, whatever is beside it
    ///
    /// As with `zklock run`
    #[arg(long, hide_short_help = true)]
    pub(crate) create: bool,
    /// Move the end of the hold that is there
    #[arg(long, conflicts_with_all = ["wait", "no_wait", "rw", "kazoo", "create"])]
    pub(crate) change: bool,
    /// With --change: that of this node, if there are several
    #[arg(long, value_name = "NODE", hide_short_help = true)]
    pub(crate) node: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Release {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    /// Only the hold with this node, if there are several
    ///
    /// By its number, as `show` prints it, its name or its path
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Break {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    /// The contender of this session
    ///
    /// As `show` prints it
    #[arg(long, value_name = "ID", conflicts_with = "node", required_unless_present = "node")]
    pub(crate) session: Option<String>,
    /// The contender with this node
    ///
    /// By its number, as `show` prints it, its name or its path
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Do not ask for the lock's name on the terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// With --node: also a node with a number that contends for nothing
    ///
    /// It belongs to no session, and has no recipe's name, so it may be anything
    #[arg(long, requires = "node")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Look at all locks at and below PATH, and say what is wrong
    #[arg(long)]
    pub(crate) all: bool,
    /// Lock to look at, too; with --all, a path [default: that of --base]
    pub(crate) path: Option<String>,
}

/// How a command is run under a lock.
#[cfg(target_os = "linux")]
#[derive(Args, Debug)]
pub(crate) struct Supervision {
    /// term, kill, warn or a SIGNAL
    ///
    /// When the lock is about to be lost: TERM and then KILL; KILL; only a warning; or this signal and then
    /// KILL
    #[arg(long, default_value = "term", value_name = "HOW")]
    #[arg(help_heading = group(COMMAND), hide_short_help = is_brief())]
    pub(crate) on_loss: super::on_loss_and_on_ask::OnLoss,
    /// Time from TERM to KILL
    ///
    /// How long the command has between the signal of --on-loss and KILL, which is sent before the lock ends
    /// [default: 2s, or half of what a short session timeout leaves]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(help_heading = group(COMMAND), hide_short_help = is_brief())]
    pub(crate) grace: Option<Duration>,
    /// If asked: term, ignore or a SIGNAL
    ///
    /// When somebody asks for the release, as `zklock ask` does: TERM, or this signal, to the command, which
    /// may take its time, and keeps the lock until it has ended; or nothing
    #[arg(long, default_value = "term", value_name = "HOW")]
    #[arg(help_heading = group(COMMAND), hide_short_help = is_brief())]
    pub(crate) on_ask: super::on_loss_and_on_ask::OnAsk,
    /// End it after this time
    ///
    /// A command that still runs after this time is sent TERM, and KILL after --grace; then the exit code
    /// is 122. The time counts from when the program was loaded; if that is not known, because the guard
    /// process is stopped, from when it was due, plus five seconds
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(help_heading = group(COMMAND), hide_short_help = is_brief())]
    pub(crate) max_run: Option<Duration>,
    /// What it leaves: kill or wait
    ///
    /// What to do with processes that the command leaves running: end them (TERM, and KILL after --grace), or
    /// hold the lock until they have ended
    #[arg(long, value_enum, default_value_t = Linger::Kill, value_name = "HOW", hide_possible_values = true)]
    #[arg(help_heading = group(COMMAND), hide_short_help = is_brief())]
    pub(crate) linger: Linger,
    /// If no server: fail, skip or run
    ///
    /// If ZooKeeper cannot be reached: exit with 69, exit with 0, or run without the lock
    #[arg(long, value_enum, default_value_t = IfUnavailable::Fail, value_name = "HOW")]
    #[arg(help_heading = group(WAITING), hide_possible_values = true, hide_default_value = true)]
    pub(crate) if_unavailable: IfUnavailable,
    /// Tell systemd when the command runs
    ///
    /// As a unit of Type=notify does
    #[arg(long, help_heading = group(COMMAND))]
    pub(crate) notify: bool,
    /// Write events as lines of JSON
    ///
    /// To a file, or to an open descriptor by its number, beside what the command writes there. Lines are
    /// dropped rather than waited for
    #[arg(long, value_name = "FILE|FD")]
    #[arg(help_heading = group(COMMAND), hide_short_help = is_brief())]
    pub(crate) events: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// How long to wait for a lock.
#[derive(Args, Debug)]
pub(crate) struct HowToWait {
    /// Do not wait
    #[arg(short, long, conflicts_with = "wait", help_heading = group(WAITING))]
    pub(crate) nonblock: bool,
    /// Wait at most this long (30, 1.5s)
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    #[arg(help_heading = group(WAITING))]
    pub(crate) wait: Option<Duration>,
    /// Do not wait for nodes of unknown recipes whose names begin so
    ///
    /// May be repeated. For nodes with numbers that are no contenders, such as registrations. All who use the
    /// lock need the same; those of recipes that zklock knows are waited for all the same
    #[arg(long, value_name = "PREFIX", help_heading = group(WAITING), hide_short_help = true)]
    pub(crate) ignore: Vec<String>,
    /// Exit with this, not 124, if held
    ///
    /// The exit code if others hold it; with 0 nothing is said
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 124)]
    #[arg(help_heading = group(WAITING), hide_default_value = true)]
    pub(crate) conflict_exit_code: u8,
}

#[cfg(target_os = "linux")]
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Name below --base, or absolute path
    pub(crate) lock: String,
    #[command(flatten)]
    pub(crate) how_to_wait: HowToWait,
    /// Share it with others that use -s
    #[arg(short, long, conflicts_with_all = ["exclusive", "permits", "lead", "once"])]
    #[arg(help_heading = group(HELD))]
    pub(crate) shared: bool,
    /// Exclude those that use -s, too
    ///
    /// Share it with nobody: the default, but for clients that use read/write locks
    #[arg(short = 'x', long, conflicts_with_all = ["permits", "lead", "once"])]
    #[arg(help_heading = group(HELD), hide_short_help = is_brief())]
    pub(crate) exclusive: bool,
    /// Let N hold it at once
    ///
    /// As a semaphore; all who use the lock have to agree
    #[arg(long, value_name = "N", conflicts_with_all = ["lead", "once"])]
    #[arg(help_heading = group(HELD))]
    pub(crate) permits: Option<u32>,
    /// Take K of the permits
    #[arg(long, value_name = "K", requires = "permits", default_value_t = 1)]
    #[arg(help_heading = group(HELD), hide_short_help = true)]
    pub(crate) take: u32,
    /// Let more urgent ones pass, at most N
    ///
    /// At most N that come later and are more urgent pass; 0 is the most urgent. All who give a number wait
    /// for each other in a room beside the lock, and one of them at a time for the lock itself, of each
    /// number at most one. Those that give none wait for nobody in the room, and nobody overtakes them: give
    /// all of them a number. `show`, `ls`, `graph` and `doctor` show the room, too, and who is the first in
    /// it
    #[arg(long, value_name = "N", conflicts_with_all = ["permits", "lead", "once"])]
    #[arg(help_heading = group(WAITING), hide_short_help = is_brief())]
    pub(crate) patience: Option<u32>,
    /// Hold this lock, too: all or none
    #[arg(long, value_name = "LOCK", conflicts_with_all = ["lead", "once"])]
    #[arg(help_heading = group(HELD), hide_short_help = is_brief())]
    pub(crate) also: Vec<String>,
    /// Hold it as an election's leader
    ///
    /// For programs that look for one
    #[arg(long, conflicts_with = "once")]
    #[arg(help_heading = group(HELD), hide_short_help = is_brief())]
    pub(crate) lead: bool,
    /// Name its node as kazoo does
    ///
    /// For locks of kazoo, tooz and django-zookeeper-locks, which ignore nodes with other names. Without this
    /// option, it is done, and said, if all who are at the lock have such names when it begins to wait; where
    /// nobody is, it cannot know
    #[arg(long, conflicts_with_all = ["permits", "lead"])]
    #[arg(help_heading = group(HELD), hide_short_help = is_brief())]
    pub(crate) kazoo: bool,
    /// Make the lock's node, whatever is beside it
    ///
    /// Needed if the node does not exist, and its parent has children of which none is a lock, may be one
    /// that is idle, or has one below it, as with Patroni's /service/x/leader while nobody leads: then the
    /// path may be another program's. If that program's leader is there, by one ephemeral node, others hold
    /// the lock
    #[arg(long, help_heading = group(HELD), hide_short_help = true)]
    pub(crate) create: bool,
    /// Keep it this long if COMMAND ends earlier
    ///
    /// At least for this time from when it was acquired, whatever the command's exit code, which is kept;
    /// unless the command was not started, or INT, TERM, HUP or QUIT comes, or somebody asks for the release
    /// (but for --on-ask ignore). If the lock is lost in that time, zklock says so, and the exit code is
    /// still the command's. For hosts whose clocks differ
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(conflicts_with_all = ["lead", "once"])]
    #[arg(help_heading = group(HELD), hide_short_help = is_brief())]
    pub(crate) hold_at_least: Option<Duration>,
    /// Run once for KEY on all hosts
    ///
    /// If it has succeeded before for this key, exit with 0
    #[arg(long, value_name = "KEY", help_heading = group(COMMAND))]
    pub(crate) once: Option<String>,
    /// Forget keys of --once after this
    ///
    /// After success, keys of --once that are by this older than the newest one are forgotten, by the
    /// servers' clock
    #[arg(long, value_name = "AGE", requires = "once", value_parser = duration)]
    #[arg(help_heading = group(COMMAND), hide_short_help = is_brief())]
    pub(crate) forget_after: Option<Duration>,
    /// Text for `show` beside the host
    ///
    /// What `show` says of this holder, beside its host, process and command
    #[arg(long, value_name = "TEXT", help_heading = group(COMMAND))]
    pub(crate) label: Option<String>,
    #[command(flatten)]
    pub(crate) supervision: Supervision,
}

#[cfg(target_os = "linux")]
#[derive(Args, Debug)]
pub(crate) struct Lead {
    /// The election: name below --base, or absolute path
    #[arg(value_name = "ELECTION")]
    pub(crate) lock: String,
    /// The leader's id for others
    ///
    /// Such as an address [default: host and process]
    #[arg(long, value_name = "ID", help_heading = group(HELD))]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) how_to_wait: HowToWait,
    #[command(flatten)]
    pub(crate) supervision: Supervision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Linger {
    /// End them: TERM, and KILL after --grace
    Kill,
    /// Hold the lock until they have ended
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfUnavailable {
    Fail,
    Skip,
    Run,
}

/// Reads a duration: a number of seconds, or with one of the units ms, s, m, h, d.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        other => return Err(format!("{other:?} is no unit; these are: ms, s, m, h, d")),
    };
    let number: f64 = match digits.bytes().all(|one| one.is_ascii_digit() || one == b'.') {
        true => digits.parse().map_err(|_| "not a number".to_owned())?,
        false => return Err("not a number".to_owned()),
    };
    Duration::try_from_secs_f64(number * unit).map_err(|_| "too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_has_no_contradiction() {
        Options::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        let all =
            [("30", 30_000), ("1.5s", 1_500), ("10m", 600_000), ("250ms", 250), ("2h", 7_200_000)];
        for (text, milliseconds) in all {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "s", "-1", "1w", "1.2.3", "inf", "1e9", "99999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
