//! How holds for maintenance read, wherever locks are shown.

use std::time::SystemTime;

use zklock::maintenance::MaintenanceHold;

use super::local_time;

/// `maintenance: disk replacement, by ops@db1`, whatever has become of it.
pub(crate) fn reason(hold: &MaintenanceHold) -> String {
    told(hold, "maintenance")
}

/// `maintenance: disk replacement, by ops@db1, until 06:00`, or that it is only asked for.
pub(crate) fn whole(hold: &MaintenanceHold) -> String {
    match hold.is_asked_for {
        true => told(hold, "maintenance, asked for"),
        false => format!("{}, {}", reason(hold), until(hold.ends)),
    }
}

fn told(hold: &MaintenanceHold, what: &str) -> String {
    match (&*hold.reason, &*hold.made_by) {
        ("", _) => format!("{what}, whose reason was overwritten or is hidden"),
        (reason, "") => format!("{what}: {reason}"),
        (reason, by) => format!("{what}: {reason}, by {by}"),
    }
}

fn until(ends: Option<SystemTime>) -> String {
    match ends {
        Some(ends) => format!("until {}", local_time::in_words(ends)),
        None => "until it is released".to_owned(),
    }
}
