//! What a contender's node tells on the second line of its data: `v=1 held_for=83000`.
//!
//! The first line says whose node it is. The second consists of facts for programs, each of them a key, `=` and
//! a value without spaces; keys that are not known are passed over. Data without such a line tell no facts.

use std::time::Duration;

/// Begins the line, and says how the rest is to be read.
const VERSION: &str = "v=1";
const HELD_FOR: &str = "held_for=";

/// What is told by a contender's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// How long the lock had been held when the data were written, if its holder had waited for it.
    pub(crate) held_for: Option<Duration>,
}

/// This text as the first line, and no facts yet.
pub(crate) fn with_facts(first_line: &str) -> Vec<u8> {
    format!("{first_line}\n{VERSION}").into_bytes()
}

/// The facts; `None` if the data tell none.
pub(crate) fn facts(data: &[u8]) -> Option<Facts> {
    let mut words = fact_line(data)?.split(' ').skip(1);
    let held_for = words.find_map(|word| word.strip_prefix(HELD_FOR)?.parse().ok());
    Some(Facts { held_for: held_for.map(Duration::from_millis) })
}

/// The same data with this fact; `None` if they tell no facts.
pub(crate) fn with_held_for(data: &[u8], held_for: Duration) -> Option<Vec<u8>> {
    let line = fact_line(data)?;
    let others = line.split(' ').filter(|word| !word.starts_with(HELD_FOR));
    let mut new: Vec<String> = others.map(str::to_owned).collect();
    new.push(format!("{HELD_FOR}{}", held_for.as_millis()));
    let text = std::str::from_utf8(data).ok()?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    let new = new.join(" ");
    *lines.get_mut(1)? = &new;
    Some(lines.join("\n").into_bytes())
}

fn fact_line(data: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(data).ok()?.split('\n').nth(1)?;
    (line.split(' ').next() == Some(VERSION)).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_on_the_second_line_and_the_others_stay_as_they_are() {
        let data = with_facts("host=a pid=1 program=b thread=c");
        assert_eq!(facts(&data), Some(Facts::default()));
        let seconds = |held_for| Some(Facts { held_for: Some(Duration::from_secs(held_for)) });
        let told = with_held_for(&data, Duration::from_secs(83)).unwrap();
        assert_eq!(told, b"host=a pid=1 program=b thread=c\nv=1 held_for=83000");
        assert_eq!(facts(&told), seconds(83));
        let told = with_held_for(b"x\nv=1 held_for=1 more=2\nlabel=y", Duration::from_secs(5));
        assert_eq!(told.as_deref(), Some(&b"x\nv=1 more=2 held_for=5000\nlabel=y"[..]));
        assert_eq!(facts(&told.unwrap()), seconds(5));
    }

    #[test]
    fn data_of_other_programs_tell_no_facts() {
        for data in [
            &b""[..],
            b"v=1",
            b"v=1 held_for=5",
            b"host=a\nlabel=v=1",
            b"host=a\nv=12 held_for=5",
            b"host=a\n\nv=1",
            b"\xff\nv=1",
        ] {
            assert_eq!(facts(data), None, "{data:?}");
            assert_eq!(with_held_for(data, Duration::ZERO), None, "{data:?}");
        }
        for odd in ["held_for=", "held_for=-1", "held_for=1e9", "held_for=99999999999999999999"] {
            assert_eq!(facts(format!("a\nv=1 {odd}").as_bytes()), Some(Facts::default()));
        }
    }
}
