//! What became of some nodes, from the servers' transaction logs: each creation and deletion, in the one order that all
//! servers agree on.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::history::{Journal, MILLISECOND, Nanos, nanos, now, word};

/// What asks a holder to release.
const REQUEST: &[u8] = b"__REVOKE__";

const MAGIC: &[u8] = b"ZKLG";
/// The magic number, the version, and the database's number.
const HEADER: usize = 16;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const WRITE: i32 = 5;
const MULTI: i32 = 14;
const CREATE_WITH_STAT: i32 = 15;
const DELETE_CONTAINER: i32 = 20;
const CLOSE_SESSION: i32 = -11;

/// One transaction, as far as it is of interest here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Transaction {
    number: i64,
    session: i64,
    /// In milliseconds since 1970.
    time: u64,
    deeds: Vec<Deed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Deed {
    Created { path: String, data: Vec<u8>, is_ephemeral: bool },
    Deleted { path: String },
    Written { path: String, data: Vec<u8> },
    SessionClosed,
}

/// Writes a history of the children of these nodes: lines with the transaction's number, such as
/// `created PATH DATA`, `deleted PATH`, and `asked PATH` for a request to release.
///
/// `folders`: where each server of the ensemble keeps its logs. What a minority has logged was perhaps never committed.
pub(crate) fn write(folders: &[PathBuf], parents: &[String], out: &Path) -> io::Result<()> {
    let mut found: BTreeMap<i64, (usize, Transaction)> = BTreeMap::new();
    for folder in folders {
        let mut of_server = BTreeMap::new();
        for entry in fs::read_dir(folder)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("log.") {
                let all = read(&fs::read(entry.path())?);
                of_server.extend(all.into_iter().map(|one| (one.number, one)));
            }
        }
        for (number, one) in of_server {
            found.entry(number).or_insert((0, one)).0 += 1;
        }
    }
    let committed = found.into_values().filter(|(servers, _)| servers * 2 > folders.len());
    let journal = Journal::create(out)?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos);
    // Both clocks go on equally fast for as long as a run lasts.
    let behind = since_1970.saturating_sub(now());
    let is_of_interest = |path: &str| {
        path.rsplit_once('/').is_some_and(|(parent, _)| parents.iter().any(|one| one == parent))
    };
    let mut owned: HashMap<i64, Vec<String>> = HashMap::new();
    for (_, Transaction { number, session, time, deeds }) in committed {
        let at: Nanos = (time * MILLISECOND).saturating_sub(behind);
        let note = |what: String| journal.note_at(at, format_args!("{number:x}"), what);
        for deed in deeds {
            match deed {
                Deed::Created { path, data, is_ephemeral } if is_of_interest(&path) => {
                    let first_line = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
                    let data = word(String::from_utf8_lossy(first_line));
                    note(format!("created {path} {data}"));
                    if is_ephemeral {
                        owned.entry(session).or_default().push(path);
                    }
                }
                Deed::Deleted { path } if is_of_interest(&path) => {
                    owned.values_mut().for_each(|all| all.retain(|one| *one != path));
                    note(format!("deleted {path}"));
                }
                Deed::Written { path, data } if is_of_interest(&path) && data == REQUEST => {
                    note(format!("asked {path}"));
                }
                Deed::SessionClosed => {
                    let paths = owned.remove(&session).unwrap_or_default();
                    paths.into_iter().for_each(|path| note(format!("deleted {path}")));
                }
                Deed::Created { .. } | Deed::Deleted { .. } | Deed::Written { .. } => {}
            }
        }
    }
    Ok(())
}

/// The transactions in a log, up to its end, which may be torn.
fn read(log: &[u8]) -> Vec<Transaction> {
    let mut all = Vec::new();
    if !log.starts_with(MAGIC) {
        return all;
    }
    let mut log = Fields(log.get(HEADER..).unwrap_or_default());
    loop {
        // A checksum comes first.
        let Some(bytes) = log.long().and_then(|_| log.bytes()) else { return all };
        let Some(one) = transaction(bytes).filter(|_| log.take(1) == Some(b"B")) else {
            return all;
        };
        all.push(one);
    }
}

fn transaction(bytes: &[u8]) -> Option<Transaction> {
    let mut fields = Fields(bytes);
    let (session, _, number) = (fields.long()?, fields.int()?, fields.long()?);
    let (time, kind) = (u64::try_from(fields.long()?).ok()?, fields.int()?);
    let deeds = deeds(kind, &mut fields)?;
    Some(Transaction { number, session, time, deeds })
}

fn deeds(kind: i32, fields: &mut Fields<'_>) -> Option<Vec<Deed>> {
    Some(match kind {
        CREATE | CREATE_WITH_STAT => {
            let (path, data) = (fields.text()?, fields.bytes()?.to_vec());
            for _ in 0..fields.int()? {
                // Permissions, a scheme, and an identity.
                let _ = (fields.int()?, fields.bytes()?, fields.bytes()?);
            }
            let is_ephemeral = fields.take(1)? != [0];
            vec![Deed::Created { path, data, is_ephemeral }]
        }
        DELETE | DELETE_CONTAINER => vec![Deed::Deleted { path: fields.text()? }],
        WRITE => vec![Deed::Written { path: fields.text()?, data: fields.bytes()?.to_vec() }],
        CLOSE_SESSION => vec![Deed::SessionClosed],
        MULTI => {
            let mut all = Vec::new();
            for _ in 0..fields.int()? {
                let (kind, part) = (fields.int()?, fields.bytes()?);
                all.extend(deeds(kind, &mut Fields(part))?);
            }
            all
        }
        _ => Vec::new(),
    })
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Without any, the length is -1.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}
