//! Tells `zklock --version` the commit that it is built from, if that is known.

#![allow(clippy::print_stdout, reason = "so cargo is told")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// What the command is made of, from this folder.
const SOURCES: [&str; 5] = ["src", "Cargo.toml", "../src", "../Cargo.toml", "../Cargo.lock"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=ZKLOCK_COMMIT");
    let number = env!("CARGO_PKG_VERSION");
    let version = match commit() {
        Some(commit) => format!("{number} ({commit})"),
        None => number.to_owned(),
    };
    println!("cargo::rustc-env=ZKLOCK_VERSION={version}");
}

fn commit() -> Option<String> {
    if let Ok(stated) = env::var("ZKLOCK_COMMIT") {
        return Some(stated).filter(|text| !text.is_empty());
    }
    // In a debug build, each commit would be a reason to build and to link all tests again.
    if env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        return None;
    }
    of_package().or_else(of_repository)
}

/// As `cargo package` has written it down.
fn of_package() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    let is_changed = text.contains("\"dirty\": true");
    rest.get(..12).map(|commit| said(commit, is_changed))
}

fn of_repository() -> Option<String> {
    // Otherwise this folder is only somewhere in a repository of something else.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    for file in SOURCES.iter().chain([&log.as_str()]).filter(|file| Path::new(file).exists()) {
        println!("cargo::rerun-if-changed={file}");
    }
    let changes = git(&[&["status", "--porcelain", "--"], &SOURCES[..]].concat())?;
    Some(said(&commit, !changes.is_empty()))
}

fn said(commit: &str, is_changed: bool) -> String {
    if is_changed { format!("{commit}, changed") } else { commit.to_owned() }
}

/// What git says; `None` if there is no git, or no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim().to_owned())
}
