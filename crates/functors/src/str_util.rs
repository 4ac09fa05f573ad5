//! Helpers for string elements (TensorFlow: `core/lib/strings/str_util.h`).

/// Strips ASCII whitespace, the vertical tab included, from both ends.
pub fn strip_whitespace(s: &[u8]) -> &[u8] {
    let start = s.iter().position(|&b| !is_space(b)).unwrap_or(s.len());
    let end = s
        .iter()
        .rposition(|&b| !is_space(b))
        .map_or(start, |e| e + 1);
    s.get(start..end).unwrap_or_default()
}

/// Whether a byte continues a character of UTF-8.
#[inline]
pub fn is_trail_byte(b: u8) -> bool {
    b & 0xc0 == 0x80
}

/// Whether a byte is a space in the C locale.
#[inline]
pub fn is_space(b: u8) -> bool {
    b.is_ascii_whitespace() || b == 0x0b
}
