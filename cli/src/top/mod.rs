//! `zklock top`: the locks below a path, live.
//!
//! The thread of the keys asks nothing of a server and writes nothing: two threads ask, and send what they
//! learn, and one draws. None of them is waited for at the end.

mod key_decoder;
mod view;

use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{InputFlags, LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::{flag, low_level::pipe};
use zklock::{Client, ClientBuilder, LockList};

use self::key_decoder::Decoder;
use self::view::{View, pause};
use crate::args::{Global, Top};
use crate::connect::close_within;
use crate::exit::{Exit, Failure};
use crate::look::Row;
use crate::look::why_unlisted;
use crate::output::terminal_size;

/// How often is checked whether a server answers.
const CHECK: Duration = Duration::from_millis(500);

/// How often the screen is drawn if nothing happens: ages grow.
const REDRAW: u16 = 500;

/// An escape that is no key's begin comes alone; a slow terminal may have room again.
const SOON: u16 = 50;

/// How long the end may wait for the terminal, and then for the end of the session, which the server
/// otherwise notices after the session timeout.
const END_WITHIN: Duration = Duration::from_millis(80);

pub(crate) fn top(global: &Global, options: &Top) -> Result<Exit, Failure> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::usage(
            "this needs a terminal; for programs there is zklock --json ls",
        ));
    }
    let base = global.base(options.path.as_deref());
    let mut events = Events::open()?;
    let (builder, news, every) = (global.builder()?, events.news()?, options.every);
    let mut view = View::new(base.clone(), Instant::now());
    let screen = Screen::open()?;
    start("zklock-lister", move || {
        if let Err(failure) = list(builder, &base, every, &news) {
            news.tell(News::Failed(failure));
        }
    })?;
    let mut client = None;
    let end = serve(&mut view, &screen, &mut events, &mut client);
    drop(screen);
    if let Some(client) = client {
        close_within(END_WITHIN, client);
    }
    end
}

/// Shows the view, and does what the keys say, until one of them, a signal or a failure ends it.
fn serve(
    view: &mut View,
    screen: &Screen,
    events: &mut Events,
    client: &mut Option<Client>,
) -> Result<Exit, Failure> {
    loop {
        let is_shown = screen.show(&view.lines(terminal_size(), Instant::now()));
        match events.next(is_shown)? {
            Event::Nothing => {}
            Event::Signal(number) => return Ok(Exit::Signal(number)),
            Event::TerminalIsGone => return Ok(Exit::Success),
            Event::Keys(keys) => {
                if keys.into_iter().any(|key| view.has_ended_by(key)) {
                    return Ok(Exit::Success);
                }
            }
        }
        while let Ok(one) = events.told.try_recv() {
            match one {
                News::Connected(connected) => *client = Some(connected),
                News::Answered(sent) => view.note_answer(sent),
                News::Listed(Some(list)) => view.note_list(
                    list.locks.iter().map(Row::from).collect(),
                    list.unlisted
                        .iter()
                        .map(|(path, reason)| format!("{path} {}", why_unlisted(*reason)))
                        .collect(),
                    Instant::now(),
                ),
                News::Listed(None) => view.note_missing(),
                News::Trouble(why) => view.note_trouble(why),
                News::Failed(failure) => return Err(failure),
            }
        }
    }
}

/// What the threads learn that ask servers.
enum News {
    Connected(Client),
    /// A request was answered that was sent then.
    Answered(Instant),
    /// `None` if the path does not exist.
    Listed(Option<LockList>),
    /// No server answers.
    Trouble(String),
    Failed(Failure),
}

/// Sends news, and wakes the thread of the keys.
#[derive(Clone)]
struct Teller {
    news: Sender<News>,
    bell: Arc<UnixStream>,
}

impl Teller {
    /// False if nobody listens any more.
    fn tell(&self, news: News) -> bool {
        let is_heard = self.news.send(news).is_ok();
        // If it is full, the thread is about to wake up.
        let _ = (&*self.bell).write(&[0]);
        is_heard
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(())
}

/// Lists the locks again and again.
fn list(builder: ClientBuilder, base: &str, every: Duration, news: &Teller) -> Result<(), Failure> {
    let client = builder.connect()?;
    news.tell(News::Connected(client.clone()));
    let (asked, path, teller) = (client.clone(), base.to_owned(), news.clone());
    start("zklock-checker", move || check(&asked, &path, &teller))?;
    let mut last: Option<LockList> = None;
    loop {
        let listed = match &last {
            Some(list) => list.refresh(&client),
            None => client.locks(base),
        };
        let requests = match listed {
            Ok(list) => {
                last.clone_from(&list);
                let requests = list.as_ref().map_or(0, |list| list.requests);
                if !news.tell(News::Listed(list)) {
                    return Ok(());
                }
                requests
            }
            Err(error) if error.is_outage() => {
                news.tell(News::Trouble(error.to_string()));
                0
            }
            Err(error) => return Err(error.into()),
        };
        thread::sleep(pause(every.max(Duration::from_millis(100)), requests));
    }
}

/// Checks again and again whether a server answers: lists may be rare, and take long.
fn check(client: &Client, base: &str, news: &Teller) {
    let node = client.znode(base);
    loop {
        let sent = Instant::now();
        let is_heard = match node.stat() {
            Err(error) if error.is_outage() => news.tell(News::Trouble(error.to_string())),
            // Whatever else the server says, it has answered.
            _ => news.tell(News::Answered(sent)),
        };
        if !is_heard {
            return;
        }
        thread::sleep(CHECK);
    }
}

enum Event {
    /// There may be news.
    Nothing,
    Keys(Vec<key_decoder::Key>),
    Signal(i32),
    TerminalIsGone,
}

/// What the thread of the keys waits for.
struct Events {
    decoder: Decoder,
    /// Rung by signals and with news.
    bell: UnixStream,
    ringer: UnixStream,
    signal: Arc<AtomicUsize>,
    teller: Sender<News>,
    told: Receiver<News>,
}

impl Events {
    fn open() -> Result<Events, Failure> {
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            let value = usize::try_from(number).unwrap_or_default();
            flag::register_usize(number, Arc::clone(&signal), value)?;
        }
        for number in [SIGINT, SIGTERM, SIGHUP, SIGWINCH] {
            pipe::register(number, ringer.try_clone()?)?;
        }
        let (teller, told) = channel();
        Ok(Events { decoder: Decoder::default(), bell, ringer, signal, teller, told })
    }

    fn news(&self) -> Result<Teller, Failure> {
        Ok(Teller { news: self.teller.clone(), bell: Arc::new(self.ringer.try_clone()?) })
    }

    /// The next event; soon nothing if the screen has to be shown once more.
    fn next(&mut self, is_shown: bool) -> Result<Event, Failure> {
        let input = stdin();
        let mut asked = [
            PollFd::new(input.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
        ];
        let limit = if self.decoder.is_waiting() || !is_shown { SOON } else { REDRAW };
        let count = match poll(&mut asked, PollTimeout::from(limit)) {
            Err(Errno::EINTR) => return Ok(Event::Nothing),
            count => count?,
        };
        let has_input = asked[0].any() == Some(true);
        if asked[1].any() == Some(true) {
            // All of it; an error says that nothing is left.
            let mut bytes = [0; 64];
            while matches!(self.bell.read(&mut bytes), Ok(1..)) {}
        }
        if let number @ 1.. = self.signal.load(Ordering::SeqCst) {
            return Ok(Event::Signal(i32::try_from(number).unwrap_or_default()));
        }
        if count == 0 {
            return Ok(Event::Keys(self.decoder.give_up().into_iter().collect()));
        }
        if !has_input {
            return Ok(Event::Nothing);
        }
        // Not by the standard library, which would read more than it hands out.
        let mut bytes = [0; 64];
        match unistd::read(&input, &mut bytes) {
            Ok(0) | Err(Errno::EIO) => Ok(Event::TerminalIsGone),
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(Event::Nothing),
            read => Ok(Event::Keys(self.decoder.keys(&bytes[..read?]))),
        }
    }
}

/// The terminal as this needs it; as it was, afterwards. A thread of its own draws: nobody may read what it
/// writes.
struct Screen {
    before: Termios,
    frames: Option<SyncSender<String>>,
    restored: Receiver<()>,
}

impl Screen {
    fn open() -> Result<Screen, Failure> {
        let before = tcgetattr(stdin())?;
        let mut now = before.clone();
        now.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        // Ctrl-S would hold up the screen.
        now.input_flags.remove(InputFlags::IXON);
        let (frames, drawn) = sync_channel(1);
        let (tell, restored) = channel();
        start("zklock-screen", move || {
            draw_all(&drawn);
            let _ = tell.send(());
        })?;
        tcsetattr(stdin(), SetArg::TCSANOW, &now)?;
        Ok(Screen { before, frames: Some(frames), restored })
    }

    /// Shows these lines, and nothing else. False if the terminal is too slow for that now.
    fn show(&self, lines: &[String]) -> bool {
        // Home, each line up to its end, and the rest of the screen.
        let frame = format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"));
        self.frames.as_ref().is_some_and(|frames| frames.try_send(frame).is_ok())
    }
}

/// Draws on the other screen, without a cursor, until there is nothing more to draw. If the terminal is gone,
/// the thread of the keys is told so.
fn draw_all(frames: &Receiver<String>) {
    let draw = |text: &str| {
        let mut out = stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    };
    draw("\x1b[?1049h\x1b[?25l");
    frames.iter().for_each(|frame| draw(&frame));
    draw("\x1b[?25h\x1b[?1049l");
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.frames = None;
        let _ = self.restored.recv_timeout(END_WITHIN);
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.before);
    }
}
