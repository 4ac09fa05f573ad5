//! Attributes to text.

use super::attrs::extend;
use super::ir::{Attr, Dense, Type, element_size, float_bits, float_value};
use std::fmt::Write;

pub(super) fn is_bare(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$'))
}

pub(super) fn symbol_text(name: &str) -> String {
    match is_bare(name) {
        true => format!("@{name}"),
        false => format!("@{}", string_text(name.as_bytes())),
    }
}

pub(super) fn named_attr(name: &str, value: &Attr) -> String {
    let name = match is_bare(name) {
        true => name.to_string(),
        false => string_text(name.as_bytes()),
    };
    match value {
        Attr::Unit => name,
        value => format!("{name} = {}", attr_text(value, true)),
    }
}

pub(super) fn string_text(bytes: &[u8]) -> String {
    let mut text = "\"".to_string();
    for b in bytes {
        match b {
            b'"' | b'\\' => {
                let _ = write!(text, "\\{:02X}", b);
            }
            b' '..=b'~' => text.push(*b as char),
            _ => {
                let _ = write!(text, "\\{:02X}", b);
            }
        }
    }
    text.push('"');
    text
}

/// An attribute as text; a number with its type if `typed` and it is not the default one.
pub fn attr_text(attr: &Attr, typed: bool) -> String {
    match attr {
        Attr::Unit => "unit".to_string(),
        Attr::Bool(b) => b.to_string(),
        Attr::Int(value, ty) => {
            let text = match ty.as_integer() {
                Some((_, true)) => (*value as u64).to_string(),
                _ => value.to_string(),
            };
            match typed && !ty.is("i64") {
                true => format!("{text} : {ty}"),
                false => text,
            }
        }
        Attr::Float(bits, ty) => {
            let text = float_text(*bits, ty);
            // Bits without a type would be an integer.
            match typed && (!ty.is("f64") || text.starts_with("0x")) {
                true => format!("{text} : {ty}"),
                false => text,
            }
        }
        Attr::String(bytes) => string_text(bytes),
        Attr::TypedString(bytes, ty) => format!("{} : {ty}", string_text(bytes)),
        Attr::Type(ty) => ty.to_string(),
        Attr::Array(items) => {
            let items: Vec<String> = items.iter().map(|a| attr_text(a, true)).collect();
            format!("[{}]", items.join(", "))
        }
        Attr::Dict(items) => {
            let items: Vec<String> = items.iter().map(|(n, a)| named_attr(n, a)).collect();
            format!("{{{}}}", items.join(", "))
        }
        Attr::Symbol(path) => {
            let path: Vec<String> = path.iter().map(|p| symbol_text(p)).collect();
            path.join("::")
        }
        Attr::Dense(dense) => dense_text(dense),
        Attr::Shape(None) => "#corert.shape<*>".to_string(),
        Attr::Shape(Some(dims)) => {
            let dims = dims.iter().map(|d| match d {
                -1 => "?".to_string(),
                d => d.to_string(),
            });
            let dims: Vec<String> = dims.collect();
            format!("#corert.shape<{}>", dims.join("x"))
        }
        Attr::Opaque(text) => text.clone(),
    }
}

/// `1.000000e+00`; with more digits where those are not exact, the bits if the number is not finite.
fn float_text(bits: u64, ty: &Type) -> String {
    let value = float_value(bits, ty);
    if !value.is_finite() {
        let digits = 2 * element_size(ty);
        return format!("0x{bits:0digits$X}");
    }
    for precision in [6, 9, 17] {
        let text = scientific(value, precision);
        let back: f64 = text.parse().unwrap_or(f64::NAN);
        if float_bits(back, ty) == bits {
            return text;
        }
    }
    scientific(value, 17)
}

fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

fn dense_text(dense: &Dense) -> String {
    let (shape, element) = dense
        .ty
        .as_ranked_tensor()
        .unwrap_or((Vec::new(), Type::new("i8")));
    let mut items = dense.distinct();
    let body = match items.len() {
        0 => String::new(),
        1 => nested_text(&[], &element, &mut items),
        _ => nested_text(&shape, &element, &mut items),
    };
    format!("dense<{body}> : {}", dense.ty)
}

fn nested_text<'b>(
    shape: &[i64],
    element: &Type,
    items: &mut impl Iterator<Item = &'b [u8]>,
) -> String {
    match shape.split_first() {
        None => items
            .next()
            .map(|i| element_text(i, element))
            .unwrap_or_default(),
        Some((n, inner)) => {
            let parts: Vec<String> = (0..*n)
                .map(|_| nested_text(inner, element, items))
                .collect();
            format!("[{}]", parts.join(", "))
        }
    }
}

fn element_text(bytes: &[u8], ty: &Type) -> String {
    if let Some(inner) = ty.of_complex() {
        let (re, im) = bytes.split_at(bytes.len() / 2);
        let (re, im) = (element_text(re, &inner), element_text(im, &inner));
        return format!("({re},{im})");
    }
    let mut word = [0u8; 16];
    word.iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    let bits = u128::from_le_bytes(word);
    if ty.is_float() {
        return float_text(bits as u64, ty);
    }
    match ty.as_integer() {
        Some((1, false)) => (bits != 0).to_string(),
        Some((_, true)) => bits.to_string(),
        Some((width, false)) => (extend(bits, width, false) as i128).to_string(),
        None => (bits as i64).to_string(),
    }
}
