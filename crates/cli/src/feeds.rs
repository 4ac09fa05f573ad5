//! Conversion of `--feed` and `--feeds` to tensors.

use crate::image_feed;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::arrays;
use ferroflow_runtime::{DType, PartialShape, Shape, Tensor};
use ferroflow_tensor::{Complex32, Complex64, Element, bf16, dispatch, f16};
use serde_json::Value as Json;
use std::path::Path;

/// Returns all feeds: (tensor name, value). `tensor_of` returns a tensor's dtype and shape,
/// `name_of` the tensor of a signature's key.
pub fn read(
    tensor_of: &dyn Fn(&str) -> Result<(DType, PartialShape)>,
    name_of: &dyn Fn(&str) -> String,
    feeds: &[String],
    npz: Option<&Path>,
    image_range: (f32, f32),
) -> Result<Vec<(String, Tensor)>> {
    let mut out: Vec<(String, Tensor)> = Vec::new();
    for feed in feeds {
        let (name, value) = feed
            .split_once('=')
            .ok_or_else(|| invalid_argument!("--feed {feed}: expected NAME=VALUE"))?;
        let (key, name) = (name, name_of(name));
        let (dtype, shape) = tensor_of(&name)?;
        let tensor = parse(value, dtype, &shape, image_range)
            .and_then(|t| narrowed(t, dtype))
            .map_err(|e| e.note(format!("in --feed {key}")))?;
        out.push((name, tensor));
    }
    if let Some(path) = npz {
        let mut from_npz: Vec<String> = Vec::new();
        for key in arrays::npz_keys(path)? {
            let name = name_of(&key);
            let Ok((dtype, _)) = tensor_of(&name) else {
                continue;
            };
            let is_same = |n: &str| n.trim_end_matches(":0") == name.trim_end_matches(":0");
            if from_npz.iter().any(|n| is_same(n)) {
                return Err(invalid_argument!(
                    "{} has two arrays for tensor '{name}'",
                    path.display()
                ));
            }
            // `--feed` takes precedence.
            if !out.iter().any(|(n, _)| is_same(n)) {
                let value = narrowed(arrays::read_npz_key(path, &key)?, dtype)?;
                out.push((name.clone(), value));
                from_npz.push(name);
            }
        }
    }
    Ok(out)
}

/// Narrows floats where bfloat16 is wanted: numpy has no bfloat16, so files hold floats.
fn narrowed(tensor: Tensor, wanted: DType) -> Result<Tensor> {
    if (tensor.dtype(), wanted) != (DType::Float, DType::Bfloat16) {
        return Ok(tensor);
    }
    let values: Vec<bf16> = tensor.slice()?.iter().map(|v| bf16::from_f32(*v)).collect();
    Tensor::from_slice(tensor.shape().clone(), &values)
}

fn parse(
    text: &str,
    dtype: DType,
    shape: &PartialShape,
    image_range: (f32, f32),
) -> Result<Tensor> {
    if let Some(file) = text.strip_prefix('@') {
        return read_file(file, dtype, shape, image_range);
    }
    let json = literal(text, dtype)?;
    let mut dims = Vec::new();
    let mut at = &json;
    while let Json::Array(items) = at {
        dims.push(items.len());
        match items.first() {
            Some(first) => at = first,
            None => break,
        }
    }
    let mut leaves = Vec::new();
    collect(&json, &dims, &mut leaves)?;
    from_leaves(&leaves, Shape::from(&dims[..]), dtype)
}

/// Reads the tensor that a file holds.
fn read_file(
    file: &str,
    dtype: DType,
    shape: &PartialShape,
    image_range: (f32, f32),
) -> Result<Tensor> {
    let lower = file.to_lowercase();
    if lower.ends_with(".npy") {
        return arrays::read_npy(Path::new(file));
    }
    // Keys may contain colons: they are often tensor names.
    if let Some((stem, key)) = file.split_once(".npz:") {
        return arrays::read_npz_key(Path::new(&format!("{stem}.npz")), key);
    }
    if dtype == DType::String {
        let bytes = std::fs::read(file).map_err(|e| ferroflow_base::not_found!("{file}: {e}"))?;
        return Ok(Tensor::string(bytes));
    }
    if image_feed::EXTENSIONS.iter().any(|e| lower.ends_with(e)) {
        return image_feed::read(Path::new(file), dtype, shape, image_range);
    }
    Err(invalid_argument!(
        "@{file}: expected FILE.npy, FILE.npz:KEY, FILE.png or FILE.jpg"
    ))
}

/// Reads a literal: JSON, or the text itself if it is to be a string.
fn literal(text: &str, dtype: DType) -> Result<Json> {
    match serde_json::from_str(text) {
        Ok(json) => Ok(json),
        Err(_) if dtype == DType::String => Ok(Json::String(text.to_string())),
        Err(e) => serde_json::from_str(&quoted(text)).map_err(|_| {
            invalid_argument!(
                "'{}' is not a literal ({e}); write 3.5, true or [[1,2],[3,4]], or @FILE",
                shortened(text)
            )
        }),
    }
}

/// Returns the tensor whose elements are `leaves`.
fn from_leaves(leaves: &[&Json], shape: Shape, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::Float => from_floats(leaves, shape, |v| v as f32),
        DType::Double => from_floats(leaves, shape, |v| v),
        DType::Half => from_floats(leaves, shape, f16::from_f64),
        DType::Bfloat16 => from_floats(leaves, shape, bf16::from_f64),
        DType::Bool => {
            let bools = leaves.iter().map(|v| {
                v.as_bool()
                    .ok_or_else(|| invalid_argument!("{v} is neither true nor false"))
            });
            Tensor::from_slice(shape, &bools.collect::<Result<Vec<_>>>()?)
        }
        DType::String => {
            let strings = leaves.iter().map(|v| match v {
                Json::String(s) => s.clone().into(),
                other => other.to_string().into(),
            });
            Tensor::from_strings(shape, strings.collect())
        }
        DType::Complex64 => {
            from_complex(leaves, shape, |c| Complex32::new(c.re as f32, c.im as f32))
        }
        DType::Complex128 => from_complex(leaves, shape, |c| c),
        _ => dispatch!(dtype, T in [i8, i16, i32, i64, u8, u16, u32, u64] => {
            let ints = leaves.iter().map(|v| {
                let wide = v.as_i64().map(i128::from).or(v.as_u64().map(i128::from));
                let wide = wide.or_else(|| v.as_str()?.parse().ok());
                wide.and_then(|i| T::try_from(i).ok())
                    .ok_or_else(|| invalid_argument!("{v} is not a valid {dtype}"))
            });
            Tensor::from_slice(shape, &ints.collect::<Result<Vec<T>>>()?)
        }, else Err(invalid_argument!("literals of dtype {dtype} are not supported; use @FILE.npy"))),
    }
}

fn from_floats<T: Element>(
    leaves: &[&Json],
    shape: Shape,
    round: impl Fn(f64) -> T,
) -> Result<Tensor> {
    let values = leaves.iter().map(|v| number(v).map(&round));
    Tensor::from_slice(shape, &values.collect::<Result<Vec<_>>>()?)
}

fn from_complex<T: Element>(
    leaves: &[&Json],
    shape: Shape,
    round: impl Fn(Complex64) -> T,
) -> Result<Tensor> {
    let values = leaves.iter().map(|v| match v {
        Json::String(s) => complex(s)
            .map(&round)
            .ok_or_else(|| invalid_argument!("\"{s}\" is not a number")),
        v => Ok(round(Complex64::new(number(v)?, 0.0))),
    });
    Tensor::from_slice(shape, &values.collect::<Result<Vec<_>>>()?)
}

/// Returns a number, which may be quoted: JSON has no infinities.
fn number(v: &Json) -> Result<f64> {
    match v {
        Json::Number(n) => n
            .as_f64()
            .ok_or_else(|| invalid_argument!("{v} is out of range")),
        Json::String(s) => s
            .trim_start_matches('+')
            .parse()
            .map_err(|_| invalid_argument!("\"{s}\" is not a number")),
        other => Err(invalid_argument!("{other} is not a number")),
    }
}

/// Returns the beginning of a possibly long text.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((i, _)) => format!("{} …", &text[..i]),
        None => text.to_string(),
    }
}

/// Quotes numbers that JSON does not have: `nan`, `-inf`, `+3`, `1e400`, `1+2j`.
fn quoted(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let n = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if n == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(n);
        match serde_json::from_str::<Json>(word) {
            Ok(_) => out.push_str(word),
            Err(_) => out += &format!("\"{word}\""),
        }
        rest = after;
    }
    out
}

/// Parses `1+2j`, `-2.5j` or a plain number.
fn complex(text: &str) -> Option<Complex64> {
    let Some(body) = text.strip_suffix('j') else {
        return Some(Complex64::new(text.parse().ok()?, 0.0));
    };
    // The sign between the parts follows a digit, not an exponent's `e`.
    let bytes = body.as_bytes();
    let sign = (1..bytes.len())
        .rfind(|&i| matches!(bytes[i], b'+' | b'-') && !matches!(bytes[i - 1], b'e' | b'E'));
    let (re, im) = body.split_at(sign.unwrap_or(0));
    let re = if re.is_empty() { 0.0 } else { re.parse().ok()? };
    Some(Complex64::new(re, im.parse().ok()?))
}

fn collect<'a>(json: &'a Json, dims: &[usize], out: &mut Vec<&'a Json>) -> Result<()> {
    match (json, dims) {
        (Json::Array(items), [n, rest @ ..]) if items.len() == *n => {
            items.iter().try_for_each(|item| collect(item, rest, out))
        }
        (Json::Array(_), _) | (_, [_, ..]) => Err(invalid_argument!(
            "the nested lists of the literal are not all of the same length"
        )),
        (leaf, []) => {
            out.push(leaf);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        let parsed = |text: &str, dtype| {
            parse(text, dtype, &PartialShape::unknown(), (0.0, 1.0)).map(|t| t.to_string())
        };
        for (text, dtype, plain) in [
            ("[1, 2.5]", DType::Float, "[1.0,2.5]"),
            (
                "[nan, -inf, +3, 1e400]",
                DType::Double,
                "[\"nan\",\"-inf\",\"3\",\"inf\"]",
            ),
            ("+3", DType::Int32, "3"),
            (
                "[1+2j, -2.5j, 1e-3, 4]",
                DType::Complex64,
                "[\"1+2j\",\"-2.5j\",\"0.001\",\"4\"]",
            ),
        ] {
            let same = parsed(plain, dtype).unwrap();
            assert_eq!(parsed(text, dtype).unwrap(), same, "{text}");
        }
        for (text, dtype) in [
            ("[1, x]", DType::Float),
            ("1.5", DType::Int32),
            ("300", DType::Uint8),
            ("1+2", DType::Complex64),
            ("[[1],[2,3]]", DType::Float),
            ("[1", DType::Float),
        ] {
            assert!(parsed(text, dtype).is_err(), "{text}");
        }
    }
}
