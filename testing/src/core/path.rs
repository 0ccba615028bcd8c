//! Paths of nodes.

/// The path of the node above; of the root, the root.
pub fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// The last name in the path.
pub fn last(path: &str) -> &str {
    &path[path.rfind('/').map_or(0, |at| at + 1)..]
}

/// The path of a child.
pub fn join(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

/// Whether servers accept it: absolute, without empty names, `.`, `..`, a slash at the end and characters that the protocol
/// forbids.
pub(super) fn is_valid(path: &str) -> bool {
    // Java sees a character above U+FFFF as two halves, which servers take for characters that mean nothing.
    let is_control = |c| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}');
    let is_private_or_special = |c| matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..);
    let forbidden = |c| is_control(c) || is_private_or_special(c);
    match path.strip_prefix('/') {
        None => false,
        Some("") => true,
        Some(names) => {
            !path.contains(forbidden)
                && names.split('/').all(|name| !matches!(name, "" | "." | ".."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        for (path, above, name) in [("/a", "/", "a"), ("/a/b", "/a", "b"), ("/a/b/c", "/a/b", "c")]
        {
            assert_eq!((parent(path), last(path)), (above, name));
            assert_eq!(join(above, name), path);
        }
        assert_eq!(parent("/"), "/");
    }

    #[test]
    fn what_servers_refuse_is_not_valid() {
        for path in ["/", "/a", "/a/b.c", "/a/...", "/ü", "/a\u{d7ff}", "/a\u{f900}", "/a\u{ffef}"]
        {
            assert!(is_valid(path), "{path:?}");
        }
        for path in ["", "a", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\0", "/a\u{1}", "/a\u{7f}"]
            .into_iter()
            .chain(["/a\u{e000}", "/a\u{f8ff}", "/a\u{fffd}", "/a\u{1f600}"])
        {
            assert!(!is_valid(path), "{path:?}");
        }
    }
}
