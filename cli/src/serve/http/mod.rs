//! Readers, on one thread: not too many, none of them for long, and one request from each connection.

mod access;
mod connections;
mod listen;
mod replies;

pub(crate) use self::access::{Access, check_names};
pub(crate) use self::listen::Address;

use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use self::connections::{Connections, Seat};
use self::listen::Listener;
use self::replies::{no_room, reply};
use crate::exit::Failure;
use crate::serve::prepared_replies::Board;

const MOST_CONNECTIONS: usize = 128;
const MOST_REFUSED: usize = 32;

/// How long a request's head may take, and then its reply.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
const REPLY_WITHIN: Duration = Duration::from_secs(30);

/// How large a request's head may be.
const LARGEST_HEAD: usize = 8 * 1024;

/// What a reader still sends after its reply is thrown away: otherwise the reply may be lost on its way.
const REST_WITHIN: Duration = Duration::from_secs(1);
const LARGEST_REST: usize = 256 * 1024;

/// When there are no descriptors left, some are free again soon.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves readers until a signal ends it; `tell` is called when it has begun.
pub(crate) fn serve(
    listener: Listener,
    access: Access,
    board: &Arc<Board>,
    tell: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut ends = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let connections = Connections::new(MOST_CONNECTIONS);
        let refused = Connections::new(MOST_REFUSED);
        let site = Arc::new(Site { access, board: Arc::clone(board), connections, refused });
        // The file is there as long as somebody listens.
        let _file = match listener {
            Listener::Net(listener) => {
                listener.set_nonblocking(true)?;
                let listener = TcpListener::from_std(listener)?;
                tokio::spawn(async move {
                    loop {
                        site.take(listener.accept().await.map(|(stream, _)| stream)).await;
                    }
                });
                None
            }
            Listener::Unix(listener, file) => {
                listener.set_nonblocking(true)?;
                let listener = UnixListener::from_std(listener)?;
                tokio::spawn(async move {
                    loop {
                        site.take(listener.accept().await.map(|(stream, _)| stream)).await;
                    }
                });
                Some(file)
            }
        };
        tell()?;
        poll_fn(|context| {
            let has_ended = ends.iter_mut().any(|one| one.poll_recv(context).is_ready());
            if has_ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok(())
    })
}

struct Site {
    access: Access,
    board: Arc<Board>,
    connections: Connections,
    /// Those for which there is no room, while they are told.
    refused: Connections,
}

impl Site {
    /// Takes a reader, if there is room.
    async fn take<S>(self: &Arc<Site>, stream: io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Ok(stream) = stream else {
            self.connections.make_room();
            return sleep(PAUSE).await;
        };
        let Some(seat) = self.connections.seat() else {
            let Some(seat) = self.refused.seat() else { return };
            let number = seat.number();
            let task = tokio::spawn(async move {
                let _ = timeout(REST_WITHIN, refuse(stream)).await;
                drop(seat);
            });
            return self.refused.note_task(number, task.abort_handle());
        };
        let number = seat.number();
        let site = Arc::clone(self);
        let task = tokio::spawn(async move { site.talk(stream, seat).await });
        self.connections.note_task(number, task.abort_handle());
    }

    /// Reads a request and replies.
    async fn talk<S>(&self, mut stream: S, seat: Seat)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if self.is_served(&mut stream, &seat).await {
            seat.set_asked(false);
            let _ = timeout(REST_WITHIN, throw_away_the_rest(&mut stream)).await;
        }
    }

    /// False if the reader takes too long.
    async fn is_served<S>(&self, stream: &mut S, seat: &Seat) -> bool
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let answer = |request: Request<Incoming>| {
            seat.set_asked(true);
            let (request, _) = request.into_parts();
            let connections = self.connections.count();
            let reply = reply(&request, &self.access, &self.board, connections);
            ready(Ok::<_, Infallible>(reply))
        };
        let mut settings = http1::Builder::new();
        settings.keep_alive(false).max_buf_size(LARGEST_HEAD).header_read_timeout(None);
        let mut connection =
            pin!(settings.serve_connection(TokioIo::new(stream), service_fn(answer)));
        let mut has_ended = false;
        let until_asked = poll_fn(|context| {
            // Whatever ends it, there is nobody to tell of an error.
            has_ended = connection.as_mut().poll(context).is_ready();
            if has_ended || seat.has_asked() { Poll::Ready(()) } else { Poll::Pending }
        });
        if timeout(HEAD_WITHIN, until_asked).await.is_err() {
            return false;
        }
        has_ended || timeout(REPLY_WITHIN, connection).await.is_ok()
    }
}

async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    if stream.write_all(no_room().as_bytes()).await.is_ok() {
        throw_away_the_rest(&mut stream).await;
    }
}

async fn throw_away_the_rest<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let (mut bytes, mut left) = ([0; 4096], LARGEST_REST);
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        left = left.saturating_sub(count);
        if left == 0 {
            return;
        }
    }
}
