//! The command's descendants, as the kernel shows them: adopts, ends and reaps them.

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, gettid};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

use crate::run::boot_clock::{after, now};

/// Descendants that lose their parent become this process's children, wherever they have gone. Fails if it
/// could not find them.
pub(crate) fn adopt_descendants() -> io::Result<()> {
    set_child_subreaper(true)?;
    let list = format!("/proc/self/task/{}/children", gettid());
    fs::read(&list).map(drop).map_err(|why| io::Error::new(why.kind(), format!("{list}: {why}")))
}

/// The children of this process, which must have one thread that has any.
pub(crate) fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let text: String = texts.collect();
    text.split_whitespace().filter_map(|one| one.parse().ok()).map(Pid::from_raw).collect()
}

/// Kills the command, its group and all children of this process except for `spared`, and their descendants,
/// until none is left or `limit` has passed. Returns how the command ended, if it was reaped here.
pub(crate) fn end_all(
    command: Option<Pid>,
    spared: &[Pid],
    limit: Option<Duration>,
) -> Option<WaitIdStatus> {
    let (mut group, mut ended) = (command, None);
    let until = limit.map(|limit| after(now(), limit));
    loop {
        if let Some(group) = group {
            let _ = killpg(group, Signal::SIGKILL);
        }
        let mut some_left = false;
        for child in children() {
            if spared.contains(&child) {
                continue;
            }
            let _ = kill(child, Signal::SIGKILL);
            match look(child, WaitIdOptions::EXITED) {
                Ok(None) => some_left = true,
                other if Some(child) == command => {
                    // From now on, others may get the number of its group.
                    group = None;
                    ended = other.ok().flatten();
                }
                _ => {}
            }
        }
        let is_late = until.is_some_and(|until| now() >= until);
        if is_late || (!some_left && !some_are_left(spared)) {
            return ended;
        }
        // They were killed, and there is no descriptor to wait for their end.
        thread::sleep(Duration::from_millis(2));
    }
}

/// What has become of this child, if there is news of that kind; also of its end by a signal that has no
/// name.
pub(crate) fn look(child: Pid, options: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
    let child =
        rustix::process::Pid::from_raw(child.as_raw()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(waitid(WaitId::Pid(child), options | WaitIdOptions::NOHANG)?)
}

/// Whether this child has not ended.
pub(crate) fn runs(child: Pid) -> bool {
    look(child, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok_and(|news| news.is_none())
}

/// Whether this process has children except for `spared`.
pub(crate) fn some_are_left(spared: &[Pid]) -> bool {
    let any = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    match spared {
        [] => !waitid(WaitId::All, any).is_err_and(|why| why == rustix::io::Errno::CHILD),
        _ => children().iter().any(|child| !spared.contains(child)),
    }
}

/// Reaps children that have ended, except for `spared`.
pub(crate) fn reap(spared: &[Pid]) {
    for child in children() {
        if !spared.contains(&child) {
            let _ = look(child, WaitIdOptions::EXITED);
        }
    }
}
