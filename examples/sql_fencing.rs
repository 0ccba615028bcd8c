//! An SQL database refuses what a former holder of the lock writes late.
//!
//! ```sh
//! cargo run --example sql_fencing
//! ```
//!
//! There is no database in this example: `Database` prints the statement, and compares the tokens as
//! the statement would do. Use your database driver in its place.

#![allow(clippy::print_stdout, reason = "examples talk to people")]

use std::error::Error;

use zklock::{Client, DistributedLock, FencingToken};

/// A token's text has a fixed width, and sorts as tokens do: SQL can compare it with `<=`. The table:
/// `CREATE TABLE report (id INT PRIMARY KEY, body TEXT, token CHAR(25) NOT NULL)`. Its row has the
/// token `0000000000000000-00000000` before the first write.
const UPDATE: &str = "UPDATE report SET body = ?1, token = ?2 WHERE id = 1 AND token <= ?2";

fn write(database: &mut Database, token: FencingToken, body: &str) -> Result<(), String> {
    match database.execute(UPDATE, body, &token.to_string()) {
        0 => Err(format!("no row changed: a later holder than {token} has written")),
        _ => Ok(()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(std::env::args().nth(1))?;
    let hosts = zookeeper.hosts();
    let mut database = Database { token: "0000000000000000-00000000".to_owned() };

    let first = Client::connect(hosts)?;
    let guard = DistributedLock::new(&first, "/zklock-example", "report").lock()?;
    write(&mut database, guard.fencing_token(), "by the first holder")?;

    // The first holder is paused before its next write, and its session ends, here with `close`.
    first.close();
    let next = DistributedLock::new(Client::connect(hosts)?, "/zklock-example", "report").lock()?;
    write(&mut database, next.fencing_token(), "by the second holder")?;

    // The first holder runs again, and writes before it looks at its guard.
    match write(&mut database, guard.fencing_token(), "late, by the first holder") {
        Err(refused) => println!("refused: {refused}"),
        Ok(()) => return Err("the late write was not refused".into()),
    }
    Ok(())
}

/// Stands for the database: the token in its only row.
struct Database {
    token: String,
}

impl Database {
    /// Here your driver runs the statement. Returns how many rows it changed.
    fn execute(&mut self, statement: &str, body: &str, token: &str) -> usize {
        println!("{statement}; -- {body:?}, {token:?}");
        if self.token.as_str() > token {
            return 0;
        }
        token.clone_into(&mut self.token);
        1
    }
}
