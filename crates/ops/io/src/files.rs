//! Whole files, names of files by pattern, numbers from bytes and text.

use ferroflow_base::{Result, Status, invalid_argument, resource_exhausted};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::file_system::{io_error, local_path};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};
use std::path::{Path, PathBuf};

/// ReadFile, WriteFile, MatchingFiles, DecodeRaw, DecodePaddedRaw.
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
    Op::new(
        "DecodeRaw",
        "bytes: string -> output: out_type | out_type: type {half,float,double,int32,uint16,uint8,\
         int16,int8,int64,complex64,complex128,bool,bfloat16}; little_endian: bool = true |",
    )
    .shape(|ctx| {
        let input = ctx.input(0);
        if let Some(dims) = input.dims() {
            ctx.set(0, PartialShape::of(dims.iter().copied().chain([None])));
        }
        Ok(())
    })
    .kernel(|build| raw(build, false))
    .not_differentiable(),
    Op::new(
        "DecodePaddedRaw",
        "input_bytes: string, fixed_length: int32 -> output: out_type | out_type: type \
         {half,float,double,int32,uint16,uint8,int16,int8,int64,bfloat16}; \
         little_endian: bool = true |",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        let size = ctx.attrs().dtype("out_type")?.size() as i64;
        let width = match ferroflow_functors::indices::constant_int(ctx, 1) {
            Some(n) if n > 0 && n % size == 0 => usize::try_from(n / size).ok(),
            Some(n) => return Err(bad_length(n, size)),
            None => None,
        };
        let input = ctx.input(0);
        if let Some(dims) = input.dims() {
            ctx.set(0, PartialShape::of(dims.iter().copied().chain([width])));
        }
        Ok(())
    })
    .kernel(|build| raw(build, true))
    .not_differentiable(),
];

/// The only string of input `i`.
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
        // A folder that is a file is found to be none when the file is written.
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

/// The files and folders that fit a pattern, part of the path by part.
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

/// Whether a name fits a pattern of `*`, `?`, `[a-z]`, `[^a-z]` and `\x`.
fn fits(mut pattern: &[char], mut name: &[char]) -> bool {
    // Where the last star was, to let it stand for one letter more.
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

/// Whether a letter fits the beginning of a pattern.
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

#[cold]
fn bad_length(length: i64, size: i64) -> Status {
    invalid_argument!(
        "fixed_length ({length}) must be greater than zero and a multiple of the size of out_type \
         ({size})"
    )
}

/// The kernel that takes the bytes of strings for numbers, all of one length; or, `padded` with
/// zeros or cut, of a length that is given.
fn raw(build: &KernelBuild, padded: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let swapped = !build.attrs.bool("little_endian")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (input, size) = (ctx.input(0)?, dtype.size().max(1));
        let strings = input.strings()?;
        let width = match padded {
            true => {
                let length = ctx.input(1)?;
                if !length.shape().is_scalar() {
                    return Err(invalid_argument!(
                        "k must be scalar, got shape {}",
                        length.shape()
                    ));
                }
                let length = i64::from(length.to_scalar::<i32>()?);
                if length <= 0 || length % size as i64 != 0 {
                    return Err(bad_length(length, size as i64));
                }
                length as usize
            }
            false => strings.first().map_or(0, |s| s.len()),
        };
        if let Some(other) = strings.iter().find(|s| !padded && s.len() != width) {
            return Err(invalid_argument!(
                "DecodeRaw requires input strings to all be the same size, but element 1 has size \
                 {width} != {}",
                other.len()
            ));
        }
        if width % size != 0 {
            return Err(invalid_argument!(
                "Input to DecodeRaw has length {width} that is not a multiple of {size}, the size of \
                 {dtype}"
            ));
        }
        let mut bytes = Vec::new();
        let n = strings.len().saturating_mul(width);
        bytes
            .try_reserve_exact(n)
            .map_err(|_| resource_exhausted!("OOM when allocating {n} bytes"))?;
        for string in strings {
            let end = bytes.len() + width;
            bytes.extend(string.iter().take(width));
            bytes.resize(end, 0);
        }
        // The parts of a complex number are turned one by one.
        let unit = match dtype.is_complex() {
            true => size / 2,
            false => size,
        };
        if swapped && unit > 1 {
            bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
        }
        if dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        let dims = input.shape().iter().copied().chain([width / size]);
        let shape: Shape = ferroflow_functors::indices::shape_of(dims)?;
        let out = Tensor::from_bytes(dtype, shape, &bytes)?;
        ctx.set_output(0, out)
    }))
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
