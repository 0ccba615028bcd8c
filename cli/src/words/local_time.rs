//! Times of this host's time zone, as people write and read them.

use std::time::SystemTime;

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::exit::Failure;

/// The time that is meant, `06:00`, `2026-11-29 06:00`, or with an offset; `None` if it is not to come.
pub(crate) fn to_come(text: &str, now: SystemTime) -> Result<Option<SystemTime>, Failure> {
    let here = Zoned::now();
    let now = Timestamp::try_from(now).map(|now| now.to_zoned(here.time_zone().clone()));
    to_come_after(&now.unwrap_or(here), text)
}

fn to_come_after(now: &Zoned, text: &str) -> Result<Option<SystemTime>, Failure> {
    let time = match text.parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => local_time(text, now)?.timestamp(),
    };
    Ok((time > now.timestamp()).then(|| time.into()))
}

/// The next time of day like that, or that time of that day.
fn local_time(text: &str, now: &Zoned) -> Result<Zoned, Failure> {
    let zone = now.time_zone();
    if zone.is_unknown() {
        let why = "--until: this host's time zone is not known: set TZ, or give the time with its offset, as \
                   2026-11-29T06:00:00+01:00";
        return Err(Failure::usage(why));
    }
    let is_none = || {
        let why = format!(
            "--until: {text:?} is no time, such as 06:00, \"2026-11-29 06:00\" or 2026-11-29T06:00:00+01:00"
        );
        Failure::usage(why)
    };
    let in_zone = |time: DateTime| time.to_zoned(zone.clone()).map_err(|_| is_none());
    // An offset or a zone that the parser would pass over.
    let is_plain = |one: char| one.is_ascii_digit() || "-: T".contains(one);
    if !text.chars().all(is_plain) || !matches!(text.matches('-').count(), 0 | 2) {
        return Err(is_none());
    }
    // A date alone would be its midnight.
    let Some((_, rest)) = text.split_once(':').filter(|(hours, _)| hours.len() <= 2) else {
        let is_whole = text.contains(':');
        return in_zone(text.parse().ok().filter(|_| is_whole).ok_or_else(is_none)?);
    };
    let is_short = text.find(':') == Some(1);
    let padded = format!("{}{text}", if is_short { "0" } else { "" });
    let time: Time = padded.parse().ok().filter(|_| !rest.is_empty()).ok_or_else(is_none)?;
    let tomorrow = now.date().tomorrow().map_err(|_| is_none())?;
    let [today, tomorrow] = [now.date(), tomorrow].map(|date| date.to_datetime(time));
    // When clocks are set back, an hour comes twice.
    let again = zone.to_ambiguous_zoned(today).later().map_err(|_| is_none())?;
    let each = [in_zone(today)?, again, in_zone(tomorrow)?];
    each.into_iter().find(|time| time > now).ok_or_else(is_none)
}

/// As `06:00`, with the date unless it is today, with seconds if there are any, and with the zone if that is
/// UTC for want of another one.
pub(crate) fn in_words(time: SystemTime) -> String {
    let now = Zoned::now();
    in_words_at(&now, time)
}

fn in_words_at(now: &Zoned, time: SystemTime) -> String {
    let Ok(time) = Timestamp::try_from(time) else { return "a time far ahead".to_owned() };
    let zone = now.time_zone();
    let zone = if zone.is_unknown() { TimeZone::UTC } else { zone.clone() };
    let (time, now_there) = (time.to_zoned(zone), now.timestamp());
    let is_today = time.date() == now_there.to_zoned(time.time_zone().clone()).date();
    let date = if is_today { "" } else { "%F " };
    let hours = if time.second() == 0 { "%H:%M" } else { "%T" };
    let utc = if now.time_zone().is_unknown() { " UTC" } else { "" };
    time.strftime(&format!("{date}{hours}{utc}")).to_string()
}

/// With date, seconds and offset.
pub(crate) fn in_full(time: SystemTime) -> String {
    let shown = Timestamp::try_from(time).map(|time| {
        let zone = TimeZone::try_system().unwrap_or(TimeZone::UTC);
        time.to_zoned(zone).strftime("%F %T %:z").to_string()
    });
    shown.unwrap_or_else(|_| "a time far ahead".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a zone that is ahead by an hour.
    fn now(text: &str) -> Zoned {
        let now: Timestamp = text.parse().unwrap();
        now.to_zoned(TimeZone::fixed(jiff::tz::offset(1)))
    }

    fn at(text: &str) -> Option<String> {
        let time = to_come_after(&now("2026-11-28T21:30:00Z"), text).ok()??;
        Some(Timestamp::try_from(time).unwrap().to_string())
    }

    #[test]
    fn an_end_is_the_next_time_like_that() {
        for (text, time) in [
            ("06:00", "2026-11-29T05:00:00Z"),
            ("6:00", "2026-11-29T05:00:00Z"),
            ("23:00", "2026-11-28T22:00:00Z"),
            ("22:30", "2026-11-29T21:30:00Z"),
            ("6:00:30", "2026-11-29T05:00:30Z"),
            ("06:00:30", "2026-11-29T05:00:30Z"),
            ("2026-11-29 06:00", "2026-11-29T05:00:00Z"),
            ("2026-11-29T06:00", "2026-11-29T05:00:00Z"),
            ("2026-11-29T06:00:00+02:00", "2026-11-29T04:00:00Z"),
            ("2026-11-29T06:00:00Z", "2026-11-29T06:00:00Z"),
        ] {
            assert_eq!(at(text).as_deref(), Some(time), "{text}");
        }
        for wrong in [
            "",
            "6",
            "06",
            ":",
            "25:00",
            "06:60",
            "2026-11-29",
            "tomorrow",
            "1h",
            "06:00+01:00",
            "06:00-05",
            "06:00[Europe/Berlin]",
            "2026-11-29 06:00[Europe/Berlin]",
            "06:00Z",
        ] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
        // These have passed.
        for past in ["2026-11-28 22:30", "2026-11-28T21:30:00Z"] {
            assert_eq!(at(past), None, "{past}");
        }
    }

    #[test]
    fn an_hour_that_comes_twice_is_the_next_of_both() {
        // Clocks there are set back from 03:00 to 02:00 on the last Sunday of October, at 01:00 UTC.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let at = |now: &str, text| {
            let now: Timestamp = now.parse().unwrap();
            let time = to_come_after(&now.to_zoned(zone.clone()), text).unwrap().unwrap();
            Timestamp::try_from(time).unwrap().to_string()
        };
        assert_eq!(at("2026-10-25T00:00:00Z", "02:30"), "2026-10-25T00:30:00Z");
        assert_eq!(at("2026-10-25T00:40:00Z", "02:30"), "2026-10-25T01:30:00Z");
        assert_eq!(at("2026-10-25T01:40:00Z", "02:30"), "2026-10-26T01:30:00Z");
        // And set forward from 02:00 to 03:00 in March.
        assert_eq!(at("2026-03-29T00:30:00Z", "02:30"), "2026-03-29T01:30:00Z");
        assert_eq!(at("2026-03-29T01:40:00Z", "02:30"), "2026-03-30T00:30:00Z");
    }

    #[test]
    fn a_time_is_shown_as_short_as_it_is_clear() {
        let now = now("2026-11-28T21:30:00Z");
        for (time, shown) in [
            ("2026-11-28T22:00:00Z", "23:00"),
            ("2026-11-28T22:00:07.5Z", "23:00:07"),
            ("2026-11-28T23:00:00Z", "2026-11-29 00:00"),
            ("2026-11-27T22:00:00Z", "2026-11-27 23:00"),
        ] {
            let time: Timestamp = time.parse().unwrap();
            assert_eq!(in_words_at(&now, time.into()), shown, "{time}");
        }
        let nowhere = now.timestamp().to_zoned(TimeZone::unknown());
        let time: Timestamp = "2026-11-28T22:00:00Z".parse().unwrap();
        assert_eq!(in_words_at(&nowhere, time.into()), "22:00 UTC");
    }

    #[test]
    fn without_a_time_zone_a_local_time_is_refused() {
        let now = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::unknown());
        assert!(to_come_after(&now, "06:00").is_err());
        assert!(to_come_after(&now, "2026-11-29T06:00:00Z").is_ok());
    }
}
