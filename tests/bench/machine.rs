//! What processes use, and other load on the machine.

use std::fs;
use std::io;
use std::time::Instant;

/// Linux reports processor time in hundredths of a second.
const TICKS: f64 = 100.0;
/// The flag of a process that is a thread of the kernel.
const KERNEL: u64 = 0x0020_0000;
/// How much of one processor others may use before a run is spoiled.
const TOLERATED: f64 = 0.15;

/// What the processors have done until now, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    at: Instant,
    busy: u64,
    ours: u64,
}

impl Load {
    /// `processes` and this process are ours. The kernel's threads, which write to the disk for the
    /// server, count as ours, too.
    pub(crate) fn now(processes: &[u32]) -> Load {
        let busy = fs::read_to_string("/proc/stat").map_or(0, |stat| busy(&stat));
        let own = processes.iter().chain([&std::process::id()]).map(|pid| ticks(*pid)).sum::<u64>();
        Load { at: Instant::now(), busy, ours: own + of_kernel() }
    }

    /// What others have used between this and `later`, in processors.
    pub(crate) fn others(&self, later: &Load) -> f64 {
        let busy = later.busy.saturating_sub(self.busy);
        let ours = later.ours.saturating_sub(self.ours);
        others(busy, ours, (later.at - self.at).as_secs_f64())
    }
}

fn others(busy: u64, ours: u64, seconds: f64) -> f64 {
    busy.saturating_sub(ours) as f64 / TICKS / seconds.max(1.0 / TICKS)
}

/// Whether others used so much of one processor that a run does not count.
pub(crate) fn spoils(others: f64) -> bool {
    others > TOLERATED
}

/// The busy ticks of all processors together: what is neither idle nor waiting for a disk. What a
/// hypervisor gave to others counts as busy.
fn busy(stat: &str) -> u64 {
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; user includes guests.
    fields.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, t)| t).sum()
}

/// The processor time that a process has used, in ticks; 0 if it has ended.
pub(crate) fn ticks(pid: u32) -> u64 {
    stat(&pid.to_string()).map_or(0, |stat| stat.ticks)
}

/// The processor time that a process has used, in seconds; 0 if it has ended.
pub(crate) fn processor_seconds(pid: u32) -> f64 {
    ticks(pid) as f64 / TICKS
}

fn of_kernel() -> u64 {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|name| stat(&name))
        .filter(|stat| stat.flags & KERNEL != 0)
        .map(|stat| stat.ticks)
        .sum()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    flags: u64,
    ticks: u64,
}

fn stat(pid: &str) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(line: &str) -> Option<Stat> {
    // The name may contain spaces and parentheses.
    let (_, after_name) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat { flags: number(6)?, ticks: number(11)? + number(12)? })
}

/// Resets the peak of a process's memory, which then counts from now on.
pub(crate) fn forget_peak(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// The peak of a process's memory, in bytes.
pub(crate) fn peak(pid: u32) -> Option<u64> {
    peak_in(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Describes this machine, for the results.
pub(crate) fn describe() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name))
        .unwrap_or("an unknown processor");
    let count = processors.lines().filter(|line| line.starts_with("processor\t")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{count} × {model}, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::support::eventually;
    use super::*;

    #[test]
    fn idle_time_and_waits_for_the_disk_are_not_busy() {
        let stat = "cpu  100 20 30 99999 55555 4 5 6 77 88\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy(stat), 100 + 20 + 30 + 4 + 5 + 6);
        assert_eq!(busy(""), 0);
    }

    #[test]
    fn a_name_does_not_confuse_what_a_process_has_used() {
        let line = "42 (a ) b) S 1 42 42 0 -1 2097152 0 0 0 0 70 30 5 5 20 0 1 0 9 0 0";
        assert_eq!(parse_stat(line), Some(Stat { flags: KERNEL, ticks: 100 }));
        assert_eq!(parse_stat("42 (gone"), None);
    }

    #[test]
    fn others_are_what_is_not_ours() {
        assert!((others(300, 250, 2.0) - 0.25).abs() < 1e-9);
        // Ticks are counted at different moments.
        assert!(others(100, 101, 2.0).abs() < 1e-9);
        assert!(others(0, 0, 0.0).abs() < 1e-9);
    }

    #[test]
    fn a_seventh_of_a_processor_is_too_much() {
        assert!(!spoils(0.0));
        assert!(!spoils(0.15));
        assert!(spoils(0.16));
    }

    #[test]
    fn this_process_uses_processors_and_memory() {
        let begin = Load::now(&[]);
        let own = ticks(std::process::id());
        // The limit is long, because a busy machine may give this process little time.
        eventually(Duration::from_secs(60), "a tick of this process", || {
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(20) {}
            ticks(std::process::id()) > own
        });
        let end = Load::now(&[]);
        assert!(end.busy > begin.busy && end.ours > begin.ours);
        assert!(peak(std::process::id()).unwrap() > 100_000);
        assert_eq!(ticks(u32::MAX), 0);
        assert_eq!(peak_in("VmPeak: 9 kB\nVmHWM:\t  12 kB\n"), Some(12_288));
    }
}
