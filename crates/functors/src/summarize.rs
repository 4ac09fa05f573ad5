//! Tensors as text, in the two formats of TensorFlow.

use ferroflow_base::general;
use ferroflow_tensor::{DType, Tensor, bf16, dispatch, f16};

/// Formats the first `max` elements (all if negative), as in the message of a failed Assert:
/// `[1 2][3...]...`. Complex numbers and handles are shown as `?`.
///
/// Source: `Tensor::SummarizeValue`.
pub fn summary(t: &Tensor, max: i64) -> String {
    let elements = Elements::of(t, false);
    let n = t.num_elements();
    let limit = usize::try_from(max).map_or(n, |m| m.min(n));
    let mut out = String::new();
    match t.shape().dims() {
        [] if limit > 0 => out += &String::from_utf8_lossy(&elements.text(0)),
        [] => {}
        dims => brackets(dims, 0, limit, &elements, &mut 0, &mut out),
    }
    if n > limit {
        out += "...";
    }
    out
}

/// Returns a tensor with its dtype, its shape and its first values.
///
/// Source: `Tensor::DebugString`.
pub fn debug_string(t: &Tensor) -> String {
    let (dtype, shape) = (t.dtype(), t.shape());
    let values = summary(t, 3);
    format!("Tensor<type: {dtype} shape: {shape} values: {values}>")
}

fn brackets(
    dims: &[usize],
    depth: usize,
    limit: usize,
    elements: &Elements,
    at: &mut usize,
    out: &mut String,
) {
    let is_last = depth + 1 == dims.len();
    for i in 0..dims[depth] {
        if *at >= limit {
            if is_last && depth > 0 {
                *out += "...";
            }
            return;
        }
        if is_last {
            if i > 0 {
                out.push(' ');
            }
            *out += &String::from_utf8_lossy(&elements.text(*at));
            *at += 1;
        } else {
            out.push('[');
            brackets(dims, depth + 1, limit, elements, at, out);
            out.push(']');
        }
    }
}

/// Formats the first and last `edge` elements of each dimension (all if negative), nested and on
/// separate lines: the format of `tf.print`.
///
/// Source: `Tensor::SummarizeValue` with `print_v2`.
pub fn summary_v2(t: &Tensor, edge: i64) -> Vec<u8> {
    let elements = Elements::of(t, true);
    let dims = t.shape().dims();
    if dims.is_empty() {
        return match edge {
            0 => b"...".to_vec(),
            _ => elements.text(0),
        };
    }
    let mut out = Vec::new();
    let n = t.num_elements();
    let edge = usize::try_from(edge).map_or(n, |edge| edge.min(n));
    nested(dims, 0, 0, edge, &elements, &mut out);
    out
}

fn nested(
    dims: &[usize],
    depth: usize,
    offset: usize,
    edge: usize,
    elements: &Elements,
    out: &mut Vec<u8>,
) {
    let Some((&n, inner)) = dims.get(depth).zip(dims.get(depth + 1..)) else {
        out.extend(elements.text(offset));
        return;
    };
    let stride: usize = inner.iter().product();
    // Between two elements of a dimension: a blank, or line breaks and the indent of open brackets.
    let separator = match inner.len() {
        0 => " ".to_string(),
        deep => "\n".repeat(deep) + &" ".repeat(depth + 1),
    };
    out.push(b'[');
    let whole = edge.checked_mul(2).is_none_or(|shown| n <= shown);
    let (head, tail) = if whole { (n, n) } else { (edge, n - edge) };
    for i in 0..head {
        if i > 0 {
            out.extend(separator.as_bytes());
        }
        nested(dims, depth + 1, offset + i * stride, edge, elements, out);
    }
    if !whole {
        out.extend(separator.as_bytes());
        out.extend(b"...");
    }
    for i in tail..n {
        out.extend(separator.as_bytes());
        nested(dims, depth + 1, offset + i * stride, edge, elements, out);
    }
    out.push(b']');
}

/// The elements of a tensor, formatted one by one.
struct Elements<'a> {
    tensor: &'a Tensor,
    quoted: bool,
}

impl<'a> Elements<'a> {
    fn of(tensor: &'a Tensor, quoted: bool) -> Self {
        Elements { tensor, quoted }
    }

    fn text(&self, i: usize) -> Vec<u8> {
        let t = self.tensor;
        let text = match t.dtype() {
            DType::Float => of_slice(t, i, |v: &f32| float(*v)),
            DType::Half => of_slice(t, i, |v: &f16| float(v.to_f32())),
            DType::Bfloat16 => of_slice(t, i, |v: &bf16| float(v.to_f32())),
            DType::Double => of_slice(t, i, |v: &f64| double(*v)),
            DType::Bool => of_slice(t, i, |v: &bool| u8::from(*v).to_string()),
            DType::String => {
                let text = t.strings().ok().and_then(|s| s.get(i));
                return escaped(text.map_or(&b""[..], |s| s), self.quoted);
            }
            dtype => dispatch!(dtype, T in [i8, i16, i32, i64, u8, u16, u32, u64]
                => of_slice(t, i, |v: &T| v.to_string()), else "?".to_string()),
        };
        text.into_bytes()
    }
}

fn of_slice<T: ferroflow_tensor::Element>(
    t: &Tensor,
    i: usize,
    text: impl Fn(&T) -> String,
) -> String {
    let value = t.slice::<T>().ok().and_then(|s| s.get(i));
    value.map_or_else(|| "?".to_string(), text)
}

/// Formats with 6 digits if they identify the float, else with 9. Denormal numbers are zero on TensorFlow's threads.
pub fn float(v: f32) -> String {
    let v = if v.is_subnormal() {
        0.0f32.copysign(v)
    } else {
        v
    };
    let short = general(f64::from(v), 6);
    match short.parse::<f32>() {
        Ok(same) if same == v => short,
        _ => general(f64::from(v), 9),
    }
}

/// Formats with 15 digits if they identify the double, else with 17. Denormal numbers are zero on TensorFlow's threads.
pub fn double(v: f64) -> String {
    let v = if v.is_subnormal() {
        0.0f64.copysign(v)
    } else {
        v
    };
    let short = general(v, 15);
    match short.parse::<f64>() {
        Ok(same) if same == v => short,
        _ => general(v, 17),
    }
}

/// Escapes text like C, except for UTF-8. In quotes, all bytes from 128 on stay, also those that are not UTF-8.
fn escaped(text: &[u8], quoted: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    let quote = quoted.then_some(b'"');
    out.extend(quote);
    for chunk in text.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            match byte {
                b'\n' => out.extend(b"\\n"),
                b'\r' => out.extend(b"\\r"),
                b'\t' => out.extend(b"\\t"),
                b'"' | b'\'' | b'\\' => out.extend([b'\\', byte]),
                byte if byte.is_ascii_control() => out.extend(format!("\\{byte:03o}").bytes()),
                _ => out.push(byte),
            }
        }
        match quoted {
            true => out.extend(chunk.invalid()),
            false => {
                let invalid = chunk.invalid().iter();
                out.extend(invalid.flat_map(|byte| format!("\\{byte:03o}").into_bytes()));
            }
        }
    }
    out.extend(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with C's `printf`.
    #[test]
    fn numbers() {
        for (v, digits, text) in [
            (0.0, 6, "0"),
            (-0.0, 6, "-0"),
            (100000.0, 6, "100000"),
            (1e6, 6, "1e+06"),
            (123456789.0, 6, "1.23457e+08"),
            (0.0001, 6, "0.0001"),
            (0.00001, 6, "1e-05"),
            (999999.5, 6, "1e+06"),
            (1.5e300, 17, "1.5000000000000001e+300"),
            (f64::NAN, 6, "nan"),
            (f64::NEG_INFINITY, 6, "-inf"),
        ] {
            assert_eq!(general(v, digits), text);
        }
    }

    /// Compares with lines of TensorFlow 2.21.
    #[test]
    fn forms() {
        let nested = |t: &Tensor, edge: i64| String::from_utf8(summary_v2(t, edge)).unwrap();
        let t = Tensor::from_slice([3, 2], &[1i32, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(summary(&t, 5), "[1 2][3 4][5...]...");
        assert_eq!(summary(&t, -1), "[1 2][3 4][5 6]");
        assert_eq!(summary(&t, 2), "[1 2]...");
        let cube = Tensor::from_slice([2, 2, 2], &[1i8, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(summary(&cube, 6), "[[1 2][3 4]][[5 6]]...");
        assert_eq!(summary(&cube, 0), "...");
        let ten = Tensor::from_slice([10], &[0i32, 1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        assert_eq!(summary(&ten, 3), "0 1 2...");
        assert_eq!(nested(&ten, 2), "[0 1 ... 8 9]");
        assert_eq!(nested(&ten, -1), "[0 1 2 3 4 5 6 7 8 9]");
        let rows: Vec<i32> = (0..60).collect();
        let rows = Tensor::from_slice([5, 3, 4], &rows).unwrap();
        assert_eq!(
            nested(&rows, 1),
            "[[[0 ... 3]\n  ...\n  [8 ... 11]]\n\n ...\n\n [[48 ... 51]\n  ...\n  [56 ... 59]]]"
        );
        assert_eq!(
            nested(&Tensor::from_slice::<f32>([0, 2], &[]).unwrap(), 3),
            "[]"
        );
        let words =
            Tensor::from_strings([2], vec![b"\xff\0".as_slice().into(), "é\"".into()]).unwrap();
        assert_eq!(summary_v2(&words, 3), b"[\"\xff\\000\" \"\xc3\xa9\\\"\"]");
        assert_eq!(summary(&words, 3), "\\377\\000 é\\\"");
    }
}
