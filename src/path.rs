//! Paths: which ones ZooKeeper accepts, and taking them apart.

use crate::error::{Error, ErrorKind, Result};

/// Leaves room for a chroot and the contenders' names within what a server takes in one request.
const MAX_BYTES: usize = 1_024;

/// The path of the lock node `name` under `base`.
pub(crate) fn lock_path(base: &str, name: &str) -> Result<String> {
    check(base).map_err(|reason| refused("base path", base, &reason))?;
    check_component(name).map_err(|reason| refused("name", name, &reason))?;
    let path = join(base, name);
    // The whole can be refused where its parts are not: "/" + "zookeeper", or by its length.
    check(&path).map_err(|reason| refused("lock path", &path, &reason))?;
    Ok(path)
}

/// The same, but ZooKeeper's own nodes pass: they can be read.
pub(crate) fn check_readable(path: &str) -> Result<()> {
    check_form(path).map_err(|reason| refused("path", path, &reason))
}

/// Refuses every absolute path that ZooKeeper would refuse; "/" passes.
pub(crate) fn check_absolute(path: &str) -> Result<()> {
    check(path).map_err(|reason| refused("path", path, &reason))
}

/// The path of `child` under `parent`.
pub(crate) fn join(parent: &str, child: &str) -> String {
    let parent = if parent == "/" { "" } else { parent };
    [parent, "/", child].concat()
}

/// The path one level up; the root is its own parent.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(end) => &path[..end],
    }
}

/// The last component, which is empty for the root.
pub(crate) fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn refused(what: &str, text: &str, reason: &str) -> Error {
    let shown: String = text.chars().take(MAX_BYTES).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    Error::new(ErrorKind::InvalidName, format!("{what} {shown:?}{more} is refused: {reason}"))
}

fn check(path: &str) -> Result<(), String> {
    check_form(path)?;
    if path == "/zookeeper" || path.starts_with("/zookeeper/") {
        return Err("/zookeeper belongs to ZooKeeper itself".into());
    }
    Ok(())
}

/// The rules of ZooKeeper's own `PathUtils.validatePath`, and zklock's limit on the length.
fn check_form(path: &str) -> Result<(), String> {
    check_length(path)?;
    if path.is_empty() {
        return Err("it is empty; the shortest path is \"/\"".into());
    }
    let Some(components) = path.strip_prefix('/') else {
        return Err("it does not start with '/'".into());
    };
    if components.is_empty() {
        return Ok(());
    }
    if components.ends_with('/') {
        return Err("it ends with '/'".into());
    }
    for component in components.split('/') {
        if component.is_empty() {
            return Err("it has two '/' in a row".into());
        }
        check_component(component)?;
    }
    Ok(())
}

fn check_component(component: &str) -> Result<(), String> {
    check_length(component)?;
    if component.is_empty() {
        return Err("it is empty".into());
    }
    if component == "." || component == ".." {
        return Err(format!("{component:?} is not a component that ZooKeeper accepts"));
    }
    if component.contains('/') {
        return Err("it contains '/', and must be one component".into());
    }
    match component.chars().find(|&c| is_refused(c)) {
        Some(c) => {
            let code = u32::from(c);
            Err(format!("it contains U+{code:04X}, a character that ZooKeeper does not accept"))
        }
        None => Ok(()),
    }
}

fn check_length(text: &str) -> Result<(), String> {
    let bytes = text.len();
    if bytes > MAX_BYTES {
        return Err(format!("it has {bytes} bytes; at most {MAX_BYTES} are allowed"));
    }
    Ok(())
}

/// Beyond U+FFFF too, because the server checks UTF-16 units and refuses surrogates.
fn is_refused(c: char) -> bool {
    matches!(
        c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..=char::MAX
    )
}

/// A path of the server's as a client with this chroot names it.
pub(crate) fn shown<'a>(chroot: &str, whole: &'a str) -> &'a str {
    match whole.strip_prefix(chroot) {
        Some("") => "/",
        Some(path) => path,
        None => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(result: Result<impl std::fmt::Debug>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        error.to_string()
    }

    #[test]
    fn a_lock_path_is_base_and_name() {
        assert_eq!(lock_path("/", "a").unwrap(), "/a");
        assert_eq!(lock_path("/locks", "nightly").unwrap(), "/locks/nightly");
        assert_eq!(lock_path("/zookeeper2/ä b", "...").unwrap(), "/zookeeper2/ä b/...");
        assert_eq!(lock_path("/a", "zookeeper").unwrap(), "/a/zookeeper");
    }

    #[test]
    fn a_refusal_names_the_part_and_the_reason() {
        for (base, name, expected) in [
            ("", "n", "base path \"\" is refused: it is empty"),
            ("locks", "n", "base path \"locks\" is refused: it does not start with '/'"),
            ("/a/", "n", "base path \"/a/\" is refused: it ends with '/'"),
            ("//", "n", "base path \"//\" is refused: it ends with '/'"),
            ("//a", "n", "base path \"//a\" is refused: it has two '/' in a row"),
            ("/a//b", "n", "base path \"/a//b\" is refused: it has two '/' in a row"),
            ("/a/./b", "n", "base path \"/a/./b\" is refused: \".\" is not"),
            ("/..", "n", "base path \"/..\" is refused: \"..\" is not"),
            ("/a\0", "n", "base path \"/a\\0\" is refused: it contains U+0000"),
            ("/a", "", "name \"\" is refused: it is empty"),
            ("/a", ".", "name \".\" is refused: \".\" is not"),
            ("/a", "b/c", "name \"b/c\" is refused: it contains '/'"),
            ("/a", "b\n", "name \"b\\n\" is refused: it contains U+000A"),
            ("/a", "\u{7f}", "name \"\\u{7f}\" is refused: it contains U+007F"),
            ("/a", "\u{e000}", "name \"\\u{e000}\" is refused: it contains U+E000"),
            ("/a", "\u{fff0}", "is refused: it contains U+FFF0"),
            ("/a", "😀", "name \"😀\" is refused: it contains U+1F600"),
            ("/", "zookeeper", "lock path \"/zookeeper\" is refused: /zookeeper belongs"),
            ("/zookeeper", "n", "base path \"/zookeeper\" is refused: /zookeeper belongs"),
            ("/zookeeper/a", "n", "base path \"/zookeeper/a\" is refused: /zookeeper belongs"),
        ] {
            let message = message(lock_path(base, name));
            assert!(message.contains(expected), "{message} / {expected}");
        }
    }

    #[test]
    fn the_neighbours_of_the_refused_characters_are_accepted() {
        for c in [' ', '~', '\u{a0}', '\u{d7ff}', '\u{f900}', '\u{ffef}'] {
            assert!(lock_path("/", &c.to_string()).is_ok(), "{c:?}");
        }
    }

    #[test]
    fn the_whole_path_may_have_1024_bytes() {
        let name = "n".repeat(1_022);
        assert_eq!(lock_path("/", &name).unwrap().len(), 1_023);
        assert_eq!(lock_path("/b", &name[1..]).unwrap().len(), 1_024);
        assert!(message(lock_path("/b", &name)).contains("it has 1025 bytes"));
        let endless = message(lock_path("/b", &"n".repeat(1_000_000)));
        assert!(endless.starts_with("name \"nnn") && endless.len() < 2_000);
        assert!(check_absolute(&format!("/{name}")).is_ok());
        assert!(check_absolute(&format!("/{name}ü")).is_err());
    }

    #[test]
    fn paths_come_apart_and_together() {
        assert_eq!((parent("/a/b"), parent("/a"), parent("/")), ("/a", "/", "/"));
        assert_eq!((last("/a/b"), last("/a"), last("/")), ("b", "a", ""));
        assert_eq!((join("/", "a"), join("/a", "b")), ("/a".to_owned(), "/a/b".to_owned()));
        assert!(check_absolute("/").is_ok());
    }

    proptest! {
        #[test]
        fn what_is_accepted_contains_nothing_that_is_refused(
            base in prop_oneof![any::<String>(), "(/[a-c.\u{7e}-\u{a1}]{0,3}){0,4}", "/[/.a]*"],
            name in prop_oneof![any::<String>(), "[a-c./\u{fff0}]{0,4}"],
        ) {
            if let Ok(path) = lock_path(&base, &name) {
                prop_assert!(base.starts_with('/') && !name.is_empty() && !name.contains('/'));
                prop_assert!(path.len() <= 1_024);
                prop_assert!(!path.contains("//") && !path.ends_with('/'));
                prop_assert!(!path[1..].split('/').any(|part| ["", ".", ".."].contains(&part)));
                for unit in path.encode_utf16() {
                    prop_assert!(unit > 0x1f && !(0x7f..=0x9f).contains(&unit));
                    prop_assert!(!(0xd800..=0xf8ff).contains(&unit) && unit < 0xfff0);
                }
                prop_assert!(check_absolute(&path).is_ok() && check_absolute(&base).is_ok());
                prop_assert_eq!(parent(&path), &base);
                prop_assert_eq!(last(&path), &name);
                prop_assert_eq!(join(parent(&path), last(&path)), path.clone());
            }
        }

        #[test]
        fn taking_any_text_apart_never_panics(path: String) {
            let _ = (check_absolute(&path).is_ok(), parent(&path), last(&path));
        }
    }
}
