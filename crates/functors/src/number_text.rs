//! Numbers in text, as TensorFlow parses them (`tsl/platform/numbers.cc`).

use crate::str_util::strip_whitespace;
use std::str::FromStr;

/// A number that can be parsed.
pub trait Number: Sized {
    /// Parses text with blanks around the number.
    fn parse(text: &[u8]) -> Option<Self>;
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Number for $ty {
            fn parse(text: &[u8]) -> Option<$ty> {
                std::str::from_utf8(strip_whitespace(text)).ok()?.parse().ok()
            }
        }
    )*};
}
integers! { i32 i64 u32 u64 }

impl Number for f32 {
    fn parse(text: &[u8]) -> Option<f32> {
        let text = strip_whitespace(text);
        match quotient(text, 1 << 24) {
            Some(value) => Some(value as f32),
            None => float(std::str::from_utf8(text).ok()?),
        }
    }
}

impl Number for f64 {
    fn parse(text: &[u8]) -> Option<f64> {
        let text = strip_whitespace(text);
        quotient(text, 1 << 53).or_else(|| float(std::str::from_utf8(text).ok()?))
    }
}

/// Powers of ten that 24 bits hold.
const POWERS: [f64; 11] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10];

/// Parses a short decimal number without exponent whose digits are a number up to `limit`. Digits and power of ten
/// are exact, so that their quotient is the nearest number, also after it is rounded to 24 bits if they have as many
/// (Figueroa, "When is double rounding innocuous?").
fn quotient(text: &[u8], limit: u64) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        _ => (false, text),
    };
    if digits.len() > POWERS.len() {
        return None;
    }
    let (mut value, mut places) = (0, None);
    for (i, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + u64::from(byte - b'0'),
            b'.' if places.is_none() => places = Some(digits.len() - 1 - i),
            _ => return None,
        }
    }
    if value > limit || digits.len() == usize::from(places.is_some()) {
        return None;
    }
    let quotient = value as f64 / POWERS.get(places.unwrap_or(0))?;
    Some(if negative { -quotient } else { quotient })
}

/// A floating-point type.
trait Float: FromStr {
    /// Bits of the significand.
    const BITS: i64;
    /// The exponent of the smallest number.
    const LEAST: i64;
    fn of(v: f64) -> Self;
}

impl Float for f32 {
    const BITS: i64 = 24;
    const LEAST: i64 = -149;
    fn of(v: f64) -> f32 {
        v as f32
    }
}

impl Float for f64 {
    const BITS: i64 = 53;
    const LEAST: i64 = -1074;
    fn of(v: f64) -> f64 {
        v
    }
}

/// Parses a decimal or hexadecimal number, an infinity or a NaN.
fn float<T: Float>(text: &str) -> Option<T> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let signed = |v: f64| T::of(if negative { -v } else { v });
    if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        return hexadecimal::<T>(hex).map(signed);
    }
    match digits.split_at_checked(3) {
        Some((nan, rest)) if nan.eq_ignore_ascii_case("nan") && !rest.is_empty() => {
            let inner = rest.strip_prefix('(')?.strip_suffix(')')?;
            let is_word = inner
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_');
            is_word.then(|| signed(f64::NAN))
        }
        _ => text.parse().ok(),
    }
}

/// Parses hexadecimal digits, with or without a point and a power of two, and rounds to the nearest number.
fn hexadecimal<T: Float>(text: &str) -> Option<f64> {
    let (digits, power) = match text.split_once(['p', 'P']) {
        Some((digits, power)) => (digits, exponent(power)?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // Digits that do not fit only count as more than nothing.
    let (mut value, mut exponent) = (0u64, power - 4 * fraction.len() as i64);
    for byte in whole.bytes().chain(fraction.bytes()) {
        let digit = u64::from(char::from(byte).to_digit(16)?);
        if value >> 60 == 0 {
            value = value * 16 + digit;
        } else {
            value |= u64::from(digit != 0);
            exponent += 4;
        }
    }
    let bits = 64 - i64::from(value.leading_zeros());
    let shift = (bits - T::BITS).max(T::LEAST - exponent).max(0);
    if shift > 64 {
        return Some(0.0);
    }
    // Half of the last place; to even.
    let (wide, half) = (u128::from(value), (1u128 << shift) >> 1);
    let odd = wide >> shift & 1;
    let rounded = match half {
        0 => wide,
        half => (wide + half - 1 + odd) >> shift,
    };
    // Two factors, because one could be out of range where the product is not.
    let scale = (exponent + shift).clamp(-1074, 1100) as i32;
    let (first, second) = (scale / 2, scale - scale / 2);
    Some(rounded as f64 * 2f64.powi(first) * 2f64.powi(second))
}

/// Parses the exponent of a hexadecimal number; larger ones than any number has are cut.
fn exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let most = i64::MAX / 4;
    let size = digits.parse().map_or(most, |size: i64| size.min(most));
    Some(if text.starts_with('-') { -size } else { size })
}
