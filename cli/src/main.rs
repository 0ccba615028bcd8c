//! `zklock`: runs commands under ZooKeeper locks, and shows who holds and who waits.
//!
//! The map: `args` is what it is told; `run` runs commands, `look` shows locks, `doctor` looks for what is
//! wrong, `top` shows all locks as they change, `serve` serves them by HTTP, and `act` asks holders, breaks,
//! holds and releases locks, and compares fencing tokens. `words` and `output` are what people read, and how
//! they get it without holding anybody up. `connect` is a client with the settings given, `exit` has the exit
//! codes, `lease_budget` says what time a command has to end.

#![forbid(unsafe_code)]
// What only `run` and `lead` use is compiled elsewhere, too.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod act;
mod args;
mod connect;
mod doctor;
mod exit;
mod lease_budget;
mod look;
mod output;
#[cfg(target_os = "linux")]
mod run;
mod serve;
mod top;
mod words;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::args::{Action, Man, Options, Token};
use crate::exit::{Exit, Failure};

fn main() -> ExitCode {
    let definition = match args::definition() {
        Ok(definition) => definition,
        Err(failure) => {
            output::complain("", &failure.message);
            return ExitCode::from(failure.exit.code());
        }
    };
    let parsed = definition.try_get_matches().and_then(|found| Options::from_arg_matches(&found));
    let options = match parsed {
        Ok(options) => options,
        Err(error) => {
            // Help and the version go to standard output. Nobody is left to tell of an error.
            let _ = error.print();
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Success };
            return ExitCode::from(exit.code());
        }
    };
    output::show_log(options.global.verbose);
    if options.global.quiet {
        output::be_quiet();
    }
    let (subject, result) = act(options);
    let exit = result.unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            output::complain(&subject, &failure.message);
        }
        failure.exit
    });
    output::flush();
    exit.end()
}

/// What it is about, for messages, and how it ended.
fn act(options: Options) -> (String, Result<Exit, Failure>) {
    let global = options.global;
    match options.action {
        #[cfg(target_os = "linux")]
        Action::Run(run) => (run.lock.clone(), run::run(&global, run)),
        #[cfg(target_os = "linux")]
        Action::Lead(lead) => (lead.lock.clone(), run::lead(&global, lead)),
        #[cfg(not(target_os = "linux"))]
        Action::Run { .. } => {
            let why =
                "run and lead need Linux, where a guard process can end all that a command starts";
            (String::new(), Err(Failure::usage(why)))
        }
        Action::Ls(ls) => (String::new(), look::ls(&global, &ls)),
        Action::Show(one) => (one.lock.clone(), look::show(&global, &one)),
        Action::Graph(graph) => (String::new(), look::graph(&global, &graph)),
        Action::Deadlocks(options) => (String::new(), look::deadlocks(&global, &options)),
        Action::Check(check) => (String::new(), look::check(&global, &check)),
        Action::Top(top) => (String::new(), top::top(&global, &top)),
        Action::Serve(options) => (String::new(), serve::serve(&global, &options)),
        Action::Watch(one) => (one.lock.clone(), look::watch(&global, &one)),
        Action::Test(one) => (one.lock.clone(), look::test(&global, &one)),
        Action::Wait(one) => (one.lock.clone(), look::wait(&global, &one)),
        Action::Ask(ask) => (ask.lock.clone(), act::ask(&global, &ask)),
        Action::Break(one) => (one.lock.clone(), act::break_lock(&global, &one)),
        Action::Hold(hold) => (hold.lock.clone(), act::hold(&global, &hold)),
        Action::Release(one) => (one.lock.clone(), act::release(&global, &one)),
        Action::Doctor(doctor) => (String::new(), doctor::doctor(&global, &doctor)),
        Action::Token(Token::Check(check)) => (String::new(), act::check(&check)),
        Action::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Options::command(), "zklock", &mut text);
            (String::new(), output::print_text(&text).map(|_| Exit::Success))
        }
        Action::Man(man) => (String::new(), print_manual(&man)),
        Action::Leader(one) => (one.lock.clone(), look::leader(&global, &one)),
    }
}

fn print_manual(options: &Man) -> Result<Exit, Failure> {
    match &options.all {
        Some(folder) => args::write_all(folder).map(|()| Exit::Success),
        None => output::print_text(&args::page_of(&options.subcommand)?).map(|_| Exit::Success),
    }
}
