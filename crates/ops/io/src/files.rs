//! ReadFile, WriteFile, MatchingFiles (TensorFlow: `core/kernels/whole_file_read_ops.cc` and
//! `matching_files_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_resources::file_system::{io_error, local_path};
use ferroflow_tensor::{Bytes, PartialShape, Tensor};
use std::path::{Path, PathBuf};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("ReadFile", "filename: string -> contents: string |")
        .shape(|ctx| {
            ctx.with_rank(0, 0)?;
            shapes::scalar(ctx)
        })
        .cost(Cost::Expensive)
        .kernel(|_| Ok(Box::new(read_file))),
    Op::new(
        "WriteFile",
        "filename: string, contents: string -> | | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank(1, 0)?;
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(write_file))),
    Op::new("MatchingFiles", "pattern: string -> filenames: string |")
        .shape(|ctx| {
            ctx.set(0, PartialShape::of_rank(1));
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(|_| Ok(Box::new(matching))),
];

/// Returns the only string of input `i`.
fn scalar(ctx: &KernelCtx, i: usize, name: &str) -> Result<Bytes> {
    let t = ctx.input(i)?;
    match (t.shape().is_scalar(), t.strings()?) {
        (true, [one]) => Ok(one.clone()),
        _ => Err(invalid_argument!(
            "Input {name} tensor must be scalar, but had shape: {}",
            t.shape()
        )),
    }
}

fn read_file(ctx: &mut KernelCtx) -> Result<()> {
    let name = scalar(ctx, 0, "filename")?;
    let name = String::from_utf8_lossy(&name);
    let contents = std::fs::read(local_path(&name)).map_err(|e| io_error(&name, &e))?;
    ctx.set_output(0, Tensor::string(contents))
}

fn write_file(ctx: &mut KernelCtx) -> Result<()> {
    let (name, contents) = (scalar(ctx, 0, "filename")?, scalar(ctx, 1, "contents")?);
    let name = String::from_utf8_lossy(&name);
    let path = local_path(&name);
    if let Some(folder) = Path::new(path).parent() {
        let made = std::fs::create_dir_all(folder);
        // If the folder is a file, writing fails below.
        if !folder.exists() {
            made.map_err(|e| io_error(&folder.to_string_lossy(), &e))?;
        }
    }
    std::fs::write(path, &contents).map_err(|e| io_error(&name, &e))
}

fn matching(ctx: &mut KernelCtx) -> Result<()> {
    let patterns = ctx.input(0)?;
    if patterns.shape().rank() > 1 {
        return Err(invalid_argument!(
            "Input patterns tensor must be scalar or vector, but had shape: {}",
            patterns.shape()
        ));
    }
    let mut found = Vec::new();
    for pattern in patterns.strings()? {
        found.extend(glob(&String::from_utf8_lossy(pattern)));
    }
    found.sort();
    let names: Vec<Bytes> = found.into_iter().map(Bytes::from).collect();
    let names = Tensor::from_strings([names.len()], names)?;
    ctx.set_output(0, names)
}

/// Returns the files and folders that match a pattern, path component by path component.
pub(crate) fn glob(pattern: &str) -> Vec<String> {
    let pattern = local_path(pattern);
    let (mut paths, rest) = match pattern.strip_prefix('/') {
        Some(rest) => (vec![PathBuf::from("/")], rest),
        None => (vec![PathBuf::new()], pattern),
    };
    for part in rest.split('/').filter(|p| !p.is_empty()) {
        let is_plain = !part.contains(['*', '?', '[', '\\']);
        let letters: Vec<char> = part.chars().collect();
        let step = |path: &PathBuf| -> Vec<PathBuf> {
            if is_plain {
                let next = path.join(part);
                return if next.exists() {
                    vec![next]
                } else {
                    Vec::new()
                };
            }
            let folder = match path.as_os_str().is_empty() {
                true => Path::new("."),
                false => path,
            };
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
            let fits = |name: &String| fits(&letters, &name.chars().collect::<Vec<_>>());
            names.filter(fits).map(|name| path.join(name)).collect()
        };
        paths = paths.iter().flat_map(step).collect();
    }
    let text = |p: PathBuf| p.to_string_lossy().into_owned();
    paths
        .into_iter()
        .map(text)
        .filter(|p| !p.is_empty())
        .collect()
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
