//! Checks the layout of `src`: a module uses only modules on its own floor or below; no two modules, and no two
//! folders, use each other, directly or through others, nor in the command; what a folder shows is in the list of
//! its `mod.rs`, its façade. `src/README.md` has the drawing. Also checks the links of the pages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The floors, from the top. Modules beside the floors, such as tests, may use everything.
const FLOORS: [&[&str]; 5] = [
    &["recipes"],
    &["contend"],
    &["session"],
    &["link"],
    &[
        "wire_values",
        "connection_notice",
        "session_id",
        "event",
        "fencing",
        "loss_reason",
        "error",
        "path",
        "connect_string",
        "acl",
        "foreign_contenders",
        "logging",
        "rt",
    ],
];

/// The modules beside the floors. Modules on the floors must not use them.
const BESIDE: [&str; 3] = ["guide", "sim", "models"];

type Module = Vec<String>;

/// Which names each module uses of which others, by their paths from the crate's root. A name that a façade shows is
/// used of the module that has it.
struct Uses(BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>);

/// What façades show: in which module of its folder each name is.
struct Facades(BTreeMap<(Module, String), Module>);

/// All modules on the floors, with their source text without comments and tests.
fn modules() -> BTreeMap<Module, String> {
    let mut all = modules_in("src");
    all.retain(|name, _| name.first().is_some_and(|first| floor(first).is_some()));
    all
}

fn modules_in(folder: &str) -> BTreeMap<Module, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all = BTreeMap::new();
    for path in sources(folder) {
        let inside = path.strip_prefix(&root).unwrap().with_extension("");
        let mut name: Module =
            inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        let stem = name.last().unwrap();
        if ["tests", "properties"].iter().any(|end| stem.ends_with(end)) {
            continue;
        }
        if stem == "mod" {
            name.pop();
        }
        all.insert(name, code(&fs::read_to_string(&path).unwrap()));
    }
    all
}

/// The Rust files in a folder and in those below.
fn sources(folder: &str) -> Vec<PathBuf> {
    fn visit(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, into);
            } else if path.extension().is_some_and(|end| end == "rs") {
                into.push(path);
            }
        }
    }
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
    found
}

fn code(text: &str) -> String {
    let is_of_tests = |line: &str| {
        let words = line.strip_prefix("pub(super) ").unwrap_or(line);
        words.starts_with("mod tests")
    };
    let production: Vec<_> = text.lines().take_while(|line| !is_of_tests(line)).collect();
    let lines = production.iter().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

fn floor(first: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&first))
}

/// `a::{b, c::{d}}` as `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let body = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in body.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(letter);
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(|part| expand(&format!("{}{part}", head.trim()))).collect()
}

/// The paths in a source text.
fn mentioned(text: &str) -> Vec<String> {
    let items = text.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
    let mut all: Vec<String> = items.flat_map(expand).collect();
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = text.split(|letter| !is_path(letter));
    all.extend(words.filter(|word| word.contains("::")).map(str::to_owned));
    all
}

fn inner(module: &Module, part: &str) -> Module {
    module.iter().cloned().chain([part.to_owned()]).collect()
}

/// The items of a module that show names of the modules in its folder, and the rest of its text.
fn facade(all: &BTreeMap<Module, String>, module: &Module, text: &str) -> (Vec<String>, String) {
    let (mut shown, mut rest) = (Vec::new(), String::new());
    for statement in text.split_inclusive(';') {
        let item = ["pub use ", "pub(crate) use ", "pub(super) use "]
            .iter()
            .find_map(|begin| Some(statement.split_once(begin)?.1));
        match item.and_then(|item| item.split("::").next()) {
            Some(first) if all.contains_key(&inner(module, first)) => {
                shown.extend(expand(item.unwrap().trim_end_matches(';')));
            }
            _ => rest.push_str(statement),
        }
    }
    (shown, rest)
}

impl Facades {
    fn find(all: &BTreeMap<Module, String>) -> Facades {
        let mut shown = BTreeMap::new();
        for (module, text) in all {
            for path in facade(all, module, text).0 {
                let (within, name) = path.rsplit_once("::").unwrap();
                let at = within.split("::").fold(module.clone(), |at, part| inner(&at, part));
                shown.insert((module.clone(), name.to_owned()), at);
            }
        }
        Facades(shown)
    }

    /// The module that has the name.
    fn resolve(&self, mut at: Module, name: &str) -> Module {
        while let Some(next) = self.0.get(&(at.clone(), name.to_owned())) {
            at.clone_from(next);
        }
        at
    }
}

impl Uses {
    fn find(all: &BTreeMap<Module, String>) -> Uses {
        let facades = Facades::find(all);
        let mut uses = BTreeMap::new();
        for (module, text) in all {
            let of_module: &mut BTreeMap<_, BTreeSet<_>> = uses.entry(module.clone()).or_default();
            for path in mentioned(&facade(all, module, text).1) {
                let path = path.split(" as ").next().unwrap().to_owned();
                let mut rest =
                    path.split("::").map(str::trim).filter(|part| !part.is_empty()).peekable();
                let mut at = match rest.peek() {
                    Some(&"crate") => Vec::new(),
                    Some(&("self" | "super")) => module.clone(),
                    Some(first) if all.contains_key(&inner(module, first)) => module.clone(),
                    _ => continue,
                };
                while let Some(step) =
                    rest.next_if(|step| ["crate", "self", "super"].contains(step))
                {
                    if step == "super" {
                        at.pop();
                    }
                }
                let mut name = "";
                for part in rest {
                    name = part;
                    let next = inner(&at, part);
                    if !all.keys().any(|known| known.starts_with(&next)) {
                        break;
                    }
                    at = next;
                }
                let at = facades.resolve(at, name);
                // A public item is named by its module there, not as `crate::Item`, except in the
                // macros of the top floor.
                let is_public = at.is_empty() && name.starts_with(char::is_uppercase);
                let has_floors = floor(&module[0]).is_some();
                assert!(
                    !is_public || !has_floors || module[0] == "recipes",
                    "{module:?} uses {path}"
                );
                let is_beside = has_floors && at.is_empty() && BESIDE.contains(&name);
                assert!(!is_beside, "{module:?} uses {name}, which is beside the floors");
                // `rt` re-exports its inner modules, which use its deadlines.
                let is_own = at.starts_with(module) && module[0] == "rt";
                if at != *module && all.contains_key(&at) && !is_own {
                    of_module.entry(at).or_default().insert(name.to_owned());
                }
            }
        }
        Uses(uses)
    }

    /// A path from a module back to itself, if there is one.
    fn circle(&self) -> Option<Vec<Module>> {
        fn walk(uses: &Uses, way: &mut Vec<Module>, done: &mut BTreeSet<Module>) -> bool {
            let last = way.last().unwrap().clone();
            for next in uses.0.get(&last).into_iter().flat_map(BTreeMap::keys) {
                if let Some(begin) = way.iter().position(|module| module == next) {
                    way.drain(..begin);
                    return true;
                }
                if !done.contains(next) {
                    way.push(next.clone());
                    if walk(uses, way, done) {
                        return true;
                    }
                    way.pop();
                }
            }
            done.insert(last);
            false
        }
        let mut done = BTreeSet::new();
        self.0.keys().find_map(|module| {
            let mut way = vec![module.clone()];
            walk(self, &mut way, &mut done).then_some(way)
        })
    }
}

#[test]
fn every_module_uses_only_its_own_floor_and_those_below() {
    for (module, used) in Uses::find(&modules()).0 {
        for (other, names) in used {
            assert!(
                floor(&module[0]) <= floor(&other[0]),
                "{} is on a floor below {}, but uses its {names:?}",
                module.join("::"),
                other.join("::")
            );
        }
    }
}

#[test]
fn every_module_of_the_root_is_on_a_floor_or_beside_them() {
    let root = include_str!("../src/lib.rs");
    let names = root.lines().filter_map(|line| {
        let line = line.trim_start_matches("pub ").strip_prefix("mod ")?;
        line.strip_suffix(';')
    });
    let (placed, lost): (Vec<_>, Vec<_>) =
        names.partition(|name| floor(name).is_some() || BESIDE.contains(name));
    assert!(lost.is_empty(), "not in FLOORS or BESIDE: {lost:?}");
    assert_eq!(placed.len(), FLOORS.iter().map(|floor| floor.len()).sum::<usize>() + BESIDE.len());
}

/// So that the simulation and the models of threads can replace it.
#[test]
fn what_blocks_and_what_tells_the_time_comes_from_rt() {
    const NAMES: [&str; 7] = [
        "parking_lot::",
        "std::sync::atomic::Atomic",
        "std::sync::Mutex",
        "std::sync::RwLock",
        "std::sync::Condvar",
        "std::sync::Barrier",
        "std::thread::Builder",
    ];
    const CALLS: [&str; 4] = ["thread::spawn(", "thread::sleep(", "thread::park", "Instant::now()"];
    let found = |text: &str| {
        let named = mentioned(text)
            .into_iter()
            .filter(|path| NAMES.iter().any(|name| path.starts_with(name)));
        let called =
            CALLS.iter().filter(|call| text.contains(**call)).map(|call| (*call).to_owned());
        named.chain(called).collect::<Vec<_>>()
    };
    // The lock of the socket, which the link's thread gives up while it waits for the socket; and its pause
    // after a wait that failed. No model and no simulation has a socket.
    let is_of_the_socket = |module: &str, path: &str| {
        module.starts_with("link::")
            && (path.starts_with("parking_lot::") || path == "thread::sleep(")
    };
    for (module, text) in modules().iter().filter(|(module, _)| module[0] != "rt") {
        let mut found = found(text);
        let module = module.join("::");
        found.retain(|path| !is_of_the_socket(&module, path));
        assert_eq!(found, Vec::<String>::new(), "{module}");
    }
    for text in [
        "use std::sync::atomic::{AtomicBool, Ordering};",
        "use std::sync::{Arc, Mutex};",
        "use parking_lot::MutexGuard;",
        "    std::thread::sleep(PAUSE);",
    ] {
        assert!(!found(text).is_empty(), "{text}");
    }
    assert_eq!(found("use std::sync::atomic::Ordering;"), Vec::<String>::new());
}

#[test]
fn no_modules_use_each_other() {
    for modules in [modules(), modules_in("cli/src"), modules_in("metrics/src")] {
        let circle = Uses::find(&modules).circle();
        let shown = circle.map(|way| way.iter().map(|one| one.join("::")).collect::<Vec<_>>());
        assert_eq!(shown, None, "these modules use each other");
    }
}

/// A circle between folders, where a module's folder is the first `depth` parts of its name.
fn circle_of_folders(modules: &BTreeMap<Module, String>, depth: usize) -> Option<Vec<String>> {
    let folder = |module: &Module| module.iter().take(depth).cloned().collect::<Module>();
    let mut between: BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>> = BTreeMap::new();
    for (module, used) in Uses::find(modules).0 {
        for (other, names) in used {
            let is_beside = module.iter().take(depth - 1).eq(other.iter().take(depth - 1))
                && folder(&module) != folder(&other);
            if is_beside && module.len() >= depth && other.len() >= depth {
                let of_folder = between.entry(folder(&module)).or_default();
                of_folder.entry(folder(&other)).or_default().extend(names);
            }
        }
    }
    Uses(between).circle().map(|way| way.iter().map(|one| one.join("::")).collect())
}

#[test]
fn no_folders_use_each_other() {
    assert_eq!(circle_of_folders(&modules(), 2), None, "these folders use each other");
    assert_eq!(circle_of_folders(&modules_in("cli/src"), 1), None, "these folders use each other");
}

/// A folder shows names one by one; its modules are private. So the compiler holds the walls, and a file moves without its
/// users noticing.
#[test]
fn every_folder_has_a_facade_and_is_neither_empty_nor_too_full() {
    let mut wrong = Vec::new();
    for (all, module, text) in [modules(), modules_in("cli/src")]
        .iter()
        .flat_map(|all| all.iter().map(move |(module, text)| (all, module, text)))
    {
        let files =
            all.keys().filter(|one| one.len() == module.len() + 1 && one.starts_with(module));
        let count = files.count();
        // With its own `mod.rs`.
        if count == 0 || module[0] == "rt" {
            continue;
        }
        let name = module.join("::");
        if count > 11 {
            wrong.push(format!("{name} has {} files", count + 1));
        }
        for line in text.lines() {
            if line.starts_with("pub") && line.contains(" mod ") {
                wrong.push(format!("{name}: {line}"));
            }
        }
        wrong
            .extend(facade(all, module, text).0.iter().filter(|path| path.ends_with('*')).cloned());
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Properties that have failed once are tried again with what made them fail.
#[test]
fn each_saved_counterexample_has_its_source() {
    let saved = fs::read_dir("tests/link/saved").unwrap().map(|entry| entry.unwrap().path());
    let lost: Vec<PathBuf> = saved
        .filter(|saved| {
            let name = saved.file_stem().unwrap().to_str().unwrap();
            let source = fs::read_to_string(format!("tests/link/{name}.rs")).unwrap_or_default();
            !source.contains(&format!("\"{}\"", saved.display()))
        })
        .collect();
    assert_eq!(lost, Vec::<PathBuf>::new());
}

#[test]
fn what_is_looked_for_would_be_found() {
    let all = [
        ("session::a", "use super::b::{C, D};"),
        ("session::b", "let x = crate::session::a::f();"),
    ];
    let all =
        all.map(|(name, text)| (name.split("::").map(str::to_owned).collect(), text.to_owned()));
    let uses = Uses::find(&BTreeMap::from(all));
    assert_eq!(uses.circle().expect("a circle").len(), 2);
    let through_a_facade = [
        ("session::room", "mod one;\npub(crate) use one::{A, B};\nuse one::A;"),
        ("session::room::one", "use crate::session::other::C;"),
        ("session::other", "use crate::session::room::A;"),
    ];
    let all = through_a_facade
        .map(|(name, text)| (name.split("::").map(str::to_owned).collect(), text.to_owned()));
    let circle = Uses::find(&BTreeMap::from(all)).circle().expect("a circle");
    assert_eq!(circle, [["session", "other"].as_slice(), &["session", "room", "one"]]);
    assert_eq!(expand("a::{b, c::{d, e}}"), ["a::b", "a::c::d", "a::c::e"]);
}

/// The pages of the repository, by their paths.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let folders = [
        ".",
        "docs",
        "benches",
        "benches/results",
        "cli",
        "examples",
        "metrics",
        "src",
        "tests",
        "tests/mutations",
        "tests/peers",
    ];
    for folder in folders {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    pages
}

/// A page without its blocks of code.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// What a page's links point to.
fn links(page: &str) -> Vec<String> {
    let text = prose(page);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.trim().to_owned()).collect()
}

/// The names by which links reach a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let name = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(name).collect()
}

#[test]
fn every_link_of_a_page_leads_to_a_file_or_a_heading_of_this_checkout() {
    let mut dead = Vec::new();
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for link in links(&page) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let leads = match fs::read_to_string(&target) {
                Ok(target) => heading.is_empty() || anchors(&target).contains(heading),
                Err(_) => heading.is_empty() && target.exists(),
            };
            if !leads {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// There is none yet that is ours to give: CONTRIBUTING.md, "The address".
#[test]
fn no_page_names_an_address_of_this_project() {
    let manifests = ["Cargo.toml", "cli/Cargo.toml", "examples/Cargo.toml", "metrics/Cargo.toml"]
        .map(PathBuf::from);
    let folders = ["src", "cli/src", "metrics/src", "examples"];
    let sources = folders.into_iter().flat_map(sources);
    for path in pages().into_iter().chain(manifests).chain(sources) {
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        for address in ["github.com/zklock", "docs.rs/zklock", "crates.io/crates/zklock"] {
            assert!(!text.contains(address), "{} names {address}", path.display());
        }
    }
}
