//! From a request to its reply.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use http_body::{Frame, SizeHint};
use hyper::body::{Body, Bytes};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};

use super::access::{Access, Verdict};
use crate::serve::metrics::Format;
use crate::serve::prepared_replies::Board;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// A browser that came here by a link of another site shows the cookie only from the next click on.
const NO_TOKEN: &str = "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>zklock</title>\
<p>This needs a token: as \"Authorization: Bearer TOKEN\", or once as the link /?token=TOKEN. \
If you have just opened that link, <a href=\"/\">go on</a>.";

/// What every reply has.
const GUARDS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
         img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// A body in parts that others have, too.
#[derive(Debug)]
pub(crate) struct Pieces(VecDeque<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

/// The reply to this request, while so many readers are connected.
pub(crate) fn reply(
    request: &Parts,
    access: &Access,
    board: &Board,
    connections: usize,
) -> Response<Pieces> {
    let path = request.uri.path();
    match access.judge(request, path == "/healthz") {
        Verdict::Allowed => {}
        Verdict::AllowedByLink { cookie } => return to_the_page(&cookie),
        Verdict::NotOurName => {
            let why = "this is not served under that name: see --host\n";
            return said(StatusCode::MISDIRECTED_REQUEST, TEXT, why);
        }
        Verdict::NotRead => {
            let mut reply = said(StatusCode::METHOD_NOT_ALLOWED, TEXT, "this only serves reads\n");
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return reply;
        }
        Verdict::NoToken => {
            let mut reply = said(StatusCode::UNAUTHORIZED, HTML, NO_TOKEN);
            let bearer = HeaderValue::from_static("Bearer");
            reply.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
            return reply;
        }
    }
    match path {
        "/" => said(StatusCode::OK, HTML, PAGE),
        "/page.css" => said(StatusCode::OK, "text/css; charset=utf-8", STYLE),
        "/page.js" => said(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT),
        "/locks.json" => made(StatusCode::OK, JSON, board.locks(SystemTime::now())),
        "/healthz" => made(StatusCode::OK, JSON, vec![board.health()]),
        "/metrics" => {
            let accept = request.headers.get_all(header::ACCEPT).iter();
            let accept: Vec<&str> = accept.filter_map(|one| one.to_str().ok()).collect();
            let format = Format::accepted(&accept.join(","));
            let mut reply =
                made(StatusCode::OK, format.content_type(), board.metrics(format, connections));
            reply.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
            reply
        }
        _ => said(StatusCode::NOT_FOUND, TEXT, "there is nothing of this name\n"),
    }
}

/// To the page, without the token in the link.
fn to_the_page(cookie: &str) -> Response<Pieces> {
    let mut reply = said(StatusCode::SEE_OTHER, TEXT, "");
    reply.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/"));
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        reply.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    reply
}

fn said(status: StatusCode, kind: &'static str, text: &'static str) -> Response<Pieces> {
    made(status, kind, vec![Bytes::from_static(text.as_bytes())])
}

fn made(status: StatusCode, kind: &'static str, pieces: Vec<Bytes>) -> Response<Pieces> {
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
    let mut reply = Response::new(Pieces(pieces));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in GUARDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    reply
}

/// What is said, at once, to a reader for whom there is no room.
pub(crate) fn no_room() -> String {
    let guards: String =
        GUARDS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\n{guards}connection: close\r\n\r\n"
    )
}
