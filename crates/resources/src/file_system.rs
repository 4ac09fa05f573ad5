//! File names and patterns in TensorFlow's notation, and file system errors with its codes.

use ferroflow_base::{Code, Result, Status, unimplemented_error};

pub use ferroflow_model::files::{self, local_path};

/// As [`local_path`], for files that no other file system can have.
///
/// # Errors
/// UNIMPLEMENTED if `name` is a URI of another file system.
pub fn local_only(name: &str) -> Result<&str> {
    match files::file_system_of(name)? {
        None => Ok(local_path(name)),
        Some(_) => Err(unimplemented_error!(
            "{name}: caches and snapshots of datasets are local files"
        )),
    }
}

/// Returns the error of an operation on a file, with TensorFlow's code.
#[cold]
pub fn io_error(path: &str, error: &std::io::Error) -> Status {
    if let Some(error) = files::file_system_error(error) {
        return error;
    }
    use std::io::ErrorKind as Kind;
    let code = match error.kind() {
        Kind::NotFound => Code::NotFound,
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Code::PermissionDenied,
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Code::ResourceExhausted,
        Kind::IsADirectory | Kind::NotADirectory => Code::FailedPrecondition,
        _ => Code::Unknown,
    };
    // Rust appends the system's error number.
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    Status::new(code, format!("{path}; {text}"))
}

/// Returns the files and folders that match a pattern.
///
/// # Errors
/// UNIMPLEMENTED for unknown schemes; those of the file system.
pub fn glob(pattern: &str) -> Result<Vec<String>> {
    let Some(system) = files::file_system_of(pattern)? else {
        let path = local_path(pattern);
        // `file://`, if the pattern has it.
        let (scheme, _) = pattern.split_at(pattern.len() - path.len());
        let found = match_parts(path).into_iter();
        return Ok(found.map(|path| format!("{scheme}{path}")).collect());
    };
    match system.matching(pattern) {
        Err(e) if e.code() == Code::Unimplemented => Ok(match_parts(pattern)),
        found => found,
    }
}

/// Matches a pattern path component by path component.
fn match_parts(pattern: &str) -> Vec<String> {
    let host = pattern.find("://").map_or(0, |at| at + "://".len());
    let (root, rest) = match pattern[host..].find('/') {
        Some(0) if host == 0 => ("/", &pattern[1..]),
        // Without a host, the path begins with the third slash.
        Some(at) if host > 0 => pattern.split_at(host + at.max(1)),
        _ => ("", pattern),
    };
    let mut paths = vec![root.to_string()];
    for part in rest.split('/').filter(|p| !p.is_empty()) {
        let is_plain = !part.contains(['*', '?', '[', '\\']);
        let letters: Vec<char> = part.chars().collect();
        let step = |path: &String| -> Vec<String> {
            if is_plain {
                let next = files::join(path, part);
                let exists = files::exists(&next);
                return exists.then_some(next).into_iter().collect();
            }
            let folder = match path.is_empty() {
                true => ".",
                false => path,
            };
            let names = files::children(folder).unwrap_or_default();
            let fits = |name: &&String| fits(&letters, &name.chars().collect::<Vec<_>>());
            let fitting = names.iter().filter(fits);
            fitting.map(|name| files::join(path, name)).collect()
        };
        paths = paths.iter().flat_map(step).collect();
    }
    paths.retain(|path| !path.is_empty());
    paths
}

/// Returns whether a name matches a pattern of `*`, `?`, `[a-z]`, `[^a-z]` and `\x`.
fn fits(mut pattern: &[char], mut name: &[char]) -> bool {
    // Position of the last star, for backtracking.
    let mut star: Option<(&[char], &[char])> = None;
    loop {
        if let [first, rest @ ..] = name {
            match one(pattern, *first) {
                One::Fits(after) => {
                    (pattern, name) = (after, rest);
                    continue;
                }
                One::Star(after) => {
                    star = Some((after, name));
                    pattern = after;
                    continue;
                }
                One::Differs => {}
            }
        } else if pattern.iter().all(|&c| c == '*') {
            return true;
        }
        match star {
            Some((after, [_, rest @ ..])) => {
                star = Some((after, rest));
                (pattern, name) = (after, rest);
            }
            _ => return false,
        }
    }
}

enum One<'a> {
    Fits(&'a [char]),
    Star(&'a [char]),
    Differs,
}

/// Matches a character with the beginning of a pattern.
fn one(pattern: &[char], letter: char) -> One<'_> {
    let (fits, rest) = match pattern {
        ['*', rest @ ..] => return One::Star(rest),
        ['?', rest @ ..] => (true, rest),
        ['\\', escaped, rest @ ..] => (*escaped == letter, rest),
        ['[', set @ ..] if set.iter().skip(1).any(|&c| c == ']') => {
            let end = 1 + set.iter().skip(1).position(|&c| c == ']').unwrap_or(0);
            let (set, rest) = set.split_at(end);
            let (negated, set) = match set {
                ['^' | '!', set @ ..] => (true, set),
                set => (false, set),
            };
            let mut found = false;
            let mut at = set;
            while let [first, more @ ..] = at {
                at = match more {
                    ['-', last, more @ ..] => {
                        found |= (*first..=*last).contains(&letter);
                        more
                    }
                    more => {
                        found |= *first == letter;
                        more
                    }
                };
            }
            (found != negated, rest.get(1..).unwrap_or_default())
        }
        [first, rest @ ..] => (*first == letter, rest),
        [] => return One::Differs,
    };
    if fits { One::Fits(rest) } else { One::Differs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_local_files() {
        let rows = [
            ("/tmp/a", "/tmp/a"),
            ("a/b", "a/b"),
            ("file:///tmp/a", "/tmp/a"),
            ("file://localhost/tmp/a", "/tmp/a"),
            ("file://a", "file://a"),
            ("file:/tmp/a", "file:/tmp/a"),
        ];
        for (name, path) in rows {
            assert_eq!(local_path(name), path, "{name}");
        }
    }

    #[test]
    fn patterns() {
        let rows = [
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("*", "", true),
            ("**b", "aab", true),
            ("a?", "a", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[]x", "]x", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("model-?????-of-*", "model-00001-of-00002", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
        ];
        for (pattern, name, expected) in rows {
            let letters = |s: &str| s.chars().collect::<Vec<_>>();
            assert_eq!(
                fits(&letters(pattern), &letters(name)),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
