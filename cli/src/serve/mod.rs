//! `zklock serve`: a page, JSON and metrics of the locks, for readers by HTTP.
//!
//! One thread, in `look_thread`, asks the ensemble. What its `looks` say of the locks is written as `json`
//! and `metrics`, and with the `status` of the session into the `prepared_replies`. Another thread, in
//! `http`, serves readers from there, if need be with the token in the `token_file`.

mod http;
mod json;
mod look_thread;
mod looks;
mod metrics;
mod prepared_replies;
mod status;
mod token_file;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use self::http::Access;
use self::http::Address;
use self::json::Place;
use self::prepared_replies::Board;
use crate::args::{Global, Serve};
use crate::connect::close_within;
use crate::exit::{Exit, Failure};
use crate::output::print;

/// How long the end may wait for the end of the session, which the servers otherwise notice after its
/// timeout.
const END_WITHIN: Duration = Duration::from_millis(300);

pub(crate) fn serve(global: &Global, options: &Serve) -> Result<Exit, Failure> {
    let address = Address::parse(&options.listen)?;
    let token = options.token_file.as_deref().map(token_file::read).transpose()?;
    let has_credentials = global.has_credentials();
    token_file::check_reach(address.reach(), has_credentials, token.is_some(), options.no_token)?;
    let bases = bases(global, &options.paths);
    http::check_names(&options.host)?;
    let client = global.builder()?.lazy()?;
    let listener = address.listen()?;
    let place = Place { hosts: global.hosts.clone(), bases: bases.clone() };
    let board = Arc::new(Board::new(place, SystemTime::now()));
    let status = Arc::downgrade(&board);
    let _changes = client.on_state_change(move |state| {
        if let Some(board) = status.upgrade() {
            board.status.note_session(state, SystemTime::now());
        }
    });
    let access = Access::new(listener.port(), &options.host, token);
    let shown = listener.shown();
    look_thread::start(client.clone(), bases, Arc::clone(&board))?;
    let tell = || print(&format!("listening on {shown}")).map(drop);
    let end = http::serve(listener, access, &board, tell);
    close_within(END_WITHIN, client);
    end.map(|()| Exit::Success)
}

/// The paths to look at and below: those given, or that of `--base`.
fn bases(global: &Global, paths: &[String]) -> Vec<String> {
    match paths {
        [] => vec![global.base(None)],
        paths => outermost(paths.iter().map(|path| global.base(Some(path))).collect()),
    }
}

/// These paths without those that are below another one, as what is there is seen already.
fn outermost(mut paths: Vec<String>) -> Vec<String> {
    paths.sort();
    paths.dedup();
    let is_below = |path: &String, base: &String| {
        let rest = path.strip_prefix(base.trim_end_matches('/'));
        path != base && rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let is_outer = |path: &&String| !paths.iter().any(|base| is_below(path, base));
    paths.iter().filter(is_outer).cloned().collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_looked_at_twice() {
        let outermost = |paths: &[&str]| -> Vec<String> {
            super::outermost(paths.iter().map(|path| (*path).to_owned()).collect())
        };
        assert_eq!(outermost(&["/a", "/b/c", "/a/x", "/b/cd", "/a"]), ["/a", "/b/c", "/b/cd"]);
        assert_eq!(outermost(&["/a/b", "/", "/c"]), ["/"]);
    }
}
