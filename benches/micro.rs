//! Benches that need no server: parsing contenders' names, and the rule over many of them.
//!
//! ```text
//! cargo bench --bench micro
//! ```

#![allow(missing_docs, reason = "a program")]

use std::hint::black_box;

use divan::Bencher;
use name::rule::{Rule, Verdict};
use name::ticket::{ContenderKind, Form, NodeNaming, Ticket};
use uuid::Uuid;

// Private to the library: compiled here again, so that these modules need not become public.
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a part is used here")]
#[path = "../src/contend/name"]
mod name {
    pub(crate) mod rule;
    pub(crate) mod ticket;
}

const CONTENDERS: usize = 10_000;
const PERMITS: u32 = 16;

fn main() {
    divan::main();
}

/// Names of contenders as the library makes them, in no order, as a server lists them; and the name
/// of the last contender.
fn contenders(form: Form) -> (Vec<String>, String) {
    let name = |number: usize| {
        let guid = Uuid::from_u128(
            (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
        );
        format!("{}{number:010}", form.prefix(guid))
    };
    // The multiples of a prime, modulo the count, reach all places.
    let names = (0..CONTENDERS).map(|place| name(place * 7919 % CONTENDERS)).collect();
    (names, name(CONTENDERS - 1))
}

fn mutex() -> Form {
    Form::new(NodeNaming::Curator, ContenderKind::Mutex)
}

fn semaphore() -> Form {
    Form::of_permits(NodeNaming::Curator, 1, PERMITS)
}

#[divan::bench(args = [
    "_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-0000000007",
    "0f8fad5bd9cb469fa16570867728950e__lock__0000000007",
    "_c_0f8fad5b-d9cb-469f-a165-70867728950e-lease-1-of-16-0000000007",
    "not-a-contender",
])]
fn read_a_name(name: &str) -> Option<Ticket<'_>> {
    Ticket::parse(black_box(name))
}

#[divan::bench]
fn who_blocks_the_last_of_10_000(bencher: Bencher<'_, '_>) {
    let (names, last) = contenders(mutex());
    bencher.bench_local(|| {
        Rule::permits(1).decide_but_for(black_box(&last), black_box(&names), |_| false)
    });
}

#[divan::bench]
fn who_blocks_the_last_of_10_000_for_16_permits(bencher: Bencher<'_, '_>) {
    let (names, last) = contenders(semaphore());
    let rule = Rule::permits(PERMITS);
    bencher.bench_local(|| rule.decide_but_for(black_box(&last), black_box(&names), |_| false));
}

#[divan::bench]
fn whether_the_first_of_10_000_holds(bencher: Bencher<'_, '_>) {
    let (mut names, _) = contenders(mutex());
    names.sort_by_key(|name| name[name.len() - 10..].to_owned());
    let first = names[0].clone();
    assert_eq!(Rule::permits(1).decide_but_for(&first, &names, |_| false), Verdict::Admitted);
    bencher.bench_local(|| {
        Rule::permits(1).decide_but_for(black_box(&first), black_box(&names), |_| false)
    });
}
