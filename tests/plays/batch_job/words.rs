//! Messages between workers and the process that started them, one per line.

use std::fmt;
use std::str::FromStr;

use crate::ledger::Line;

/// A message to a worker, on its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The next thread that holds the lock must not release it.
    Stay,
    /// The next thread that holds the lock must wait before its last write.
    Wait,
    /// The waiting thread must go on.
    GoOn,
}

impl Order {
    const ALL: [(Order, &str); 3] =
        [(Order::Stay, "stay"), (Order::Wait, "wait"), (Order::GoOn, "go on")];

    pub(crate) fn parse(text: &str) -> Option<Order> {
        Order::ALL.iter().find(|(_, word)| *word == text).map(|(order, _)| *order)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Order::ALL.iter().find(|(order, _)| order == self).map(|(_, word)| *word);
        f.write_str(word.unwrap_or_default())
    }
}

/// A message from a worker, on its standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It holds the lock, has begun this entry, and will not release.
    Staying(Line),
    /// It holds the lock, has called `is_held`, and waits for the order to write this.
    Waiting(Line),
    /// It has tried to write the line that had to wait; and what its guard reports.
    WentOn(WentOn),
    /// The ledger refused this line because of its token.
    Refused(Line),
    /// It ends because of this failure.
    Failed(String),
    /// It has ended. Not a message, but the end of its output.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WentOn {
    /// What `is_held` returned, and when.
    pub(crate) held: bool,
    pub(crate) asked_at: u64,
    /// The reason that `on_lost` reported, and when.
    pub(crate) why: String,
    pub(crate) told_at: u64,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Staying(line) => write!(f, "staying {line}"),
            News::Waiting(line) => write!(f, "waiting {line}"),
            News::WentOn(WentOn { held, asked_at, why, told_at }) => {
                write!(f, "went-on {held} {asked_at} {told_at} {why}")
            }
            News::Refused(line) => write!(f, "refused {line}"),
            News::Failed(why) => f.write_str(why),
            News::Ended => Ok(()),
        }
    }
}

impl News {
    /// An unknown message counts as a failure, and is shown.
    pub(crate) fn parse(text: &str) -> News {
        let understood = text.split_once(' ').and_then(|(word, rest)| match word {
            "staying" => rest.parse().ok().map(News::Staying),
            "waiting" => rest.parse().ok().map(News::Waiting),
            "went-on" => rest.parse().ok().map(News::WentOn),
            "refused" => rest.parse().ok().map(News::Refused),
            _ => None,
        });
        understood.unwrap_or_else(|| News::Failed(text.to_owned()))
    }
}

impl FromStr for WentOn {
    type Err = Box<dyn std::error::Error>;

    fn from_str(text: &str) -> Result<WentOn, Self::Err> {
        let words: Vec<&str> = text.splitn(4, ' ').collect();
        let &[held, asked_at, told_at, why] = words.as_slice() else {
            return Err(format!("{text:?} has not all that a guard reports").into());
        };
        Ok(WentOn {
            held: held.parse()?,
            asked_at: asked_at.parse()?,
            why: why.to_owned(),
            told_at: told_at.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for (order, word) in Order::ALL {
            assert_eq!(Order::parse(word), Some(order));
            assert_eq!(order.to_string(), word);
        }
        let line: Line =
            "end 7 token 00000001000000a7-00000000 worker 1 thread 2 at 3".parse().unwrap();
        let why = "the session expired".to_owned();
        for news in [
            News::Staying(line),
            News::Waiting(line),
            News::WentOn(WentOn { held: false, asked_at: 4, why, told_at: 5 }),
            News::Refused(line),
            News::Failed("thread 1 failed: so it is".to_owned()),
        ] {
            assert_eq!(News::parse(&news.to_string()), news);
        }
    }
}
