//! What needs no server: tokens, settings in files, the manual, completions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::{env, fs, thread};

fn zklock(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    said(zklock(arguments).output().unwrap())
}

fn said(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn folder(test: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("zklock-cli-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_token_that_is_older_is_refused() {
    let folder = folder("token");
    let file = folder.join("greatest");
    let check = |token: &str| run(&["token", "check", file.to_str().unwrap(), "--token", token]);
    let [first, second, third] =
        ["00000001000000a7-00000000", "00000001000000a7-00000001", "0000000200000000-00000000"];
    assert_eq!(check(second).0, 0);
    assert_eq!(check(second).0, 0);
    let (code, _, err) = check(first);
    assert_eq!(code, 1);
    assert!(err.contains("a later holder has been here"), "{err}");
    assert_eq!(check(third).0, 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{third}\n"));
    assert_eq!(check(second).0, 1);
    assert_eq!(check("nonsense").0, 64);
    let all: Vec<_> = fs::read_dir(&folder).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(all, ["greatest"]);
    // As a disk that was full may have left it.
    for content in ["nonsense", ""] {
        fs::write(&file, content).unwrap();
        let (code, _, err) = check(third);
        let what = format!("zklock: {}: its content is no fencing token", file.display());
        assert!(code == 125 && err.starts_with(&what), "{code} {err}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Whoever is first leaves its token, and nobody sees the file without one.
#[test]
fn many_tokens_are_checked_at_once() {
    let folder = folder("tokens");
    for round in 0..4 {
        let file = folder.join(format!("greatest-{round}"));
        let check = |number: u32| {
            let token = format!("00000001000000a7-{number:08x}");
            run(&["token", "check", file.to_str().unwrap(), "--token", &token])
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|number| scope.spawn(move || check(number))).collect();
            for one in all {
                let (code, _, err) = one.join().unwrap();
                assert!(code <= 1, "{code} {err}");
            }
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), "00000001000000a7-00000007\n");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn who_reads_no_manual_to_its_end_is_no_failure() {
    for arguments in [&["man", "run"][..], &["completions", "zsh"]] {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let mut command = zklock(arguments);
        let output = command.stdout(OwnedFd::from(writer)).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(said(output), (0, String::new(), String::new()));
    }
}

/// As by several processes of one command.
#[test]
fn the_first_token_is_checked_several_times_at_once() {
    let folder = folder("first-token");
    for round in 0..8 {
        let file = folder.join(format!("greatest-{round}"));
        let arguments =
            ["token", "check", file.to_str().unwrap(), "--token", "00000001000000a7-00000000"];
        thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| run(&arguments))).collect();
            for one in all {
                assert_eq!(one.join().unwrap(), (0, String::new(), String::new()));
            }
        });
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 8);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_token_is_kept_by_no_pipe_or_device() {
    let folder = folder("token-pipe");
    let pipe = folder.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for file in [pipe.to_str().unwrap(), "/dev/zero"] {
        let arguments = ["token", "check", file, "--token", "00000001000000a7-00000000"];
        let why = format!("zklock: {file}: it is no file\n");
        assert_eq!(run(&arguments), (125, String::new(), why));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_token_that_cannot_be_kept_is_not_accepted() {
    let folder = folder("token-nowhere");
    let file = folder.join("no/greatest");
    let token = "00000001000000a7-00000000";
    let (code, _, err) = run(&["token", "check", file.to_str().unwrap(), "--token", token]);
    assert_eq!(code, 125);
    assert_eq!(
        err,
        format!("zklock: {}: No such file or directory (os error 2)\n", file.display())
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn settings_come_from_files_below_the_environment() {
    let folder = folder("settings");
    fs::write(folder.join("zklock.toml"), "hosts = \"127.0.0.1:1\"\nconnect-timeout = \"10ms\"\n")
        .unwrap();
    let test = |name: &str, value: &str| {
        let mut command = zklock(&["test", "a"]);
        command.env("XDG_CONFIG_HOME", &folder).env_remove("ZKLOCK_HOSTS").env(name, value);
        said(command.output().unwrap())
    };
    let (code, _, err) = test("UNUSED", "");
    assert!(code == 69 && err.contains("127.0.0.1:1"), "{code} {err}");
    let (code, _, err) = test("ZKLOCK_HOSTS", "127.0.0.1:2");
    assert!(code == 69 && err.contains("127.0.0.1:2"), "{code} {err}");
    fs::write(folder.join("zklock.toml"), "hots = \"x\"").unwrap();
    let (code, _, err) = test("UNUSED", "");
    assert!(code == 64 && err.contains("zklock.toml: \"hots\" is no setting"), "{code} {err}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_tick_is_stated_as_other_settings_are() {
    let folder = folder("tick");
    fs::write(folder.join("zklock.toml"), "tick-time = \"0s\"\n").unwrap();
    let test = |options: &[&str], name: &str, value: &str| {
        let mut command = zklock(&[options, &["test", "a"]].concat());
        command.env_remove("ZKLOCK_TICK_TIME").env("XDG_CONFIG_HOME", "/none").env(name, value);
        said(command.output().unwrap())
    };
    for (code, _, err) in [
        test(&["--tick-time", "0"], "UNUSED", ""),
        test(&[], "ZKLOCK_TICK_TIME", "0"),
        test(&[], "XDG_CONFIG_HOME", folder.to_str().unwrap()),
    ] {
        assert!(code == 64 && err.contains("the tick time must be "), "{code} {err}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    for arguments in [
        &["--tls-ca", "/no/ca.pem"][..],
        &["--auth-file", "/no/auth"],
        &["--sasl-user", "ann", "--sasl-password-file", "/no/password"],
        &["--tls-cert", "/no/cert.pem", "--tls-key", "/no/key.pem"],
    ] {
        let (code, out, err) = run(&[arguments, &["run", "a", "echo", "ran"]].concat());
        assert_eq!((code, out.as_str()), (64, ""), "{err}");
        assert!(err.contains("/no/"), "{err}");
    }
    // One without the other.
    for arguments in [["--tls-cert", "c"], ["--sasl-user", "ann"], ["--hosts", "a:b:c"]] {
        assert_eq!(run(&[&arguments[..], &["test", "a"]].concat()).0, 64);
    }
}

#[test]
fn the_manual_and_completions_are_printed() {
    assert!(run(&["man"]).1.contains(".TH zklock"));
    assert!(run(&["man", "run"]).1.contains("on\\-loss"));
    assert!(run(&["man", "token", "check"]).1.contains(".TH zklock-token-check 1"));
    assert_eq!(run(&["man", "walk"]).0, 64);
    let folder = folder("man");
    assert_eq!(run(&["man", "--all", folder.to_str().unwrap()]).0, 0);
    for subcommand in SUBCOMMANDS {
        let page = folder.join(format!("zklock-{}.1", subcommand.join("-")));
        assert!(fs::read_to_string(&page).is_ok_and(|text| text.starts_with(".ie")), "{page:?}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), SUBCOMMANDS.len() + 1);
    fs::remove_dir_all(&folder).unwrap();
    let (code, _, err) = run(&["man", "--all", "/dev/null/man"]);
    assert!(code == 125 && err.contains("/dev/null/man cannot be written: "), "{code} {err}");
    assert!(run(&["completions", "bash"]).1.contains("_zklock"));
}

/// All subcommands.
const SUBCOMMANDS: [&[&str]; 22] = [
    &["run"],
    &["ls"],
    &["show"],
    &["watch"],
    &["test"],
    &["wait"],
    &["top"],
    &["graph"],
    &["deadlocks"],
    &["check"],
    &["serve"],
    &["ask"],
    &["break"],
    &["hold"],
    &["release"],
    &["doctor"],
    &["lead"],
    &["leader"],
    &["token"],
    &["token", "check"],
    &["completions"],
    &["man"],
];

#[test]
fn help_fits_a_screen() {
    let all = SUBCOMMANDS.iter().copied().chain([&[][..]]);
    for (subcommand, help) in all.flat_map(|one| [(one, "-h"), (one, "--help")]) {
        let (code, out, err) = run(&[subcommand, &[help]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{subcommand:?}");
        let is_long =
            help == "--help" && ["run", "lead", "hold"].iter().any(|one| subcommand == [*one]);
        let most = if is_long { 48 } else { 24 };
        assert!(out.lines().count() <= most, "{} lines:\n{out}", out.lines().count());
        for line in out.lines() {
            assert!(line.chars().count() <= 80, "{subcommand:?}: {line}");
        }
    }
    let commands = run(&["-h"]).1;
    for subcommand in SUBCOMMANDS {
        assert!(commands.contains(&format!("\n  {} ", subcommand[0])), "{subcommand:?}");
    }
}

#[test]
fn help_has_what_is_asked_for() {
    let run_help = |help| run(&["run", help]).1;
    assert!(run_help("-h").contains("--nonblock") && !run_help("-h").contains("--linger"));
    assert!(run_help("--help").contains("--linger") && run_help("--help").contains("123 the lock"));
    assert!(!run_help("--help").contains("--sasl-password-file"));
    let all = run(&["help", "run"]).1;
    assert!(all.contains("--sasl-password-file") && all.contains("\nWaiting:\n"), "{all}");
    assert!(run(&["help"]).1.contains("123  the lock was lost"));
    assert_eq!(run(&["walk"]).0, 64);
    let mut command = zklock(&["run", "a"]);
    let (code, _, err) = said(command.env("ZKLOCK_HOSTS", "127.0.0.1:1").output().unwrap());
    assert!(code == 64 && err.contains("Usage: zklock run [OPTIONS] <LOCK> <COMMAND>..."), "{err}");
    assert_eq!(run(&[]).0, 64);
}

#[test]
fn the_version_has_the_commit_if_that_is_known() {
    let said = run(&["--version"]).1;
    let more = said.strip_prefix(concat!("zklock ", env!("CARGO_PKG_VERSION"))).unwrap().trim_end();
    assert!(more.is_empty() || (more.starts_with(" (") && more.ends_with(')')), "{said:?}");
}

#[test]
fn settings_of_nobody_are_no_settings() {
    let folder = folder("nobody");
    fs::write(folder.join("zklock.toml"), "nonsense").unwrap();
    let run = |variable: &str, value: &str| {
        let mut command = zklock(&["completions", "bash"]);
        command.env_remove("XDG_CONFIG_HOME").env(variable, value).current_dir(&folder);
        said(command.output().unwrap())
    };
    assert_eq!(run("HOME", "/dev/null").0, 0);
    // As the specification of that variable says, only an absolute path counts.
    assert_eq!(run("XDG_CONFIG_HOME", "").0, 0);
    assert_eq!(run("XDG_CONFIG_HOME", ".").0, 0);
    let (code, _, err) = run("XDG_CONFIG_HOME", folder.to_str().unwrap());
    assert!(code == 64 && err.contains("zklock.toml"), "{err}");
    fs::remove_dir_all(folder).unwrap();
}
