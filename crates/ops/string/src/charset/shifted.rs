//! Encodings with seven bits, in which some characters switch to other ones: UTF-7 (RFC 2152) and HZ (RFC 1843).
//!
//! What belongs to an invalid sequence is as in ICU (`ucnv_u7.cpp`, `ucnvhz.cpp`). Bytes that switch count as part of
//! the next character.

use super::{Decoded, REPLACEMENT, decoded_to, gb2312};

/// Passes characters on, with the bytes since the last one.
struct Events<F> {
    from: usize,
    each: F,
}

impl<E, F: FnMut(Decoded) -> Result<(), E>> Events<F> {
    fn pass(&mut self, code_point: u32, to: usize, is_error: bool) -> Result<(), E> {
        let len = to - self.from;
        self.from = to;
        (self.each)(Decoded {
            code_point,
            len,
            is_error,
        })
    }

    fn character(&mut self, code_point: u32, to: usize) -> Result<(), E> {
        self.pass(code_point, to, false)
    }

    fn error(&mut self, to: usize) -> Result<(), E> {
        self.pass(REPLACEMENT, to, true)
    }

    fn end(mut self, text: &[u8]) -> Result<(), E> {
        decoded_to(text.len() - self.from, &mut self.each)
    }
}

/// Returns the value of a character of base 64.
fn digit(b: u8) -> Option<u32> {
    let value = match b {
        b'A'..=b'Z' => b - b'A',
        b'a'..=b'z' => b - b'a' + 26,
        b'0'..=b'9' => b - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

/// Whether a byte may stand for itself.
fn is_direct(b: u8) -> bool {
    matches!(b, 0x20..=0x7d | b'\r' | b'\n' | b'\t') && b != b'\\'
}

/// The code units of UTF-7 in base 64.
#[derive(Default)]
struct Units {
    bits: u32,
    n_bits: u32,
    /// The first half of a pair.
    high: Option<(u32, usize)>,
}

pub(super) fn utf7<E>(text: &[u8], each: impl FnMut(Decoded) -> Result<(), E>) -> Result<(), E> {
    let mut events = Events { from: 0, each };
    let mut at = 0;
    while let Some(&b) = text.get(at) {
        at += 1;
        match b {
            b'+' if text.get(at) == Some(&b'-') => {
                at += 1;
                events.character(b'+'.into(), at)?;
            }
            b'+' => at = base64(text, at, &mut events)?,
            b if is_direct(b) => events.character(b.into(), at)?,
            _ => events.error(at)?,
        }
    }
    events.end(text)
}

/// Decodes what follows a plus up to what is not of base 64; returns where that is.
fn base64<E, F: FnMut(Decoded) -> Result<(), E>>(
    text: &[u8],
    start: usize,
    events: &mut Events<F>,
) -> Result<usize, E> {
    let (mut at, mut units) = (start, Units::default());
    while let Some(value) = text.get(at).and_then(|&b| digit(b)) {
        at += 1;
        units.bits = units.bits << 6 | value;
        units.n_bits += 6;
        if units.n_bits >= 16 {
            units.n_bits -= 16;
            let unit = units.bits >> units.n_bits;
            units.bits &= (1 << units.n_bits) - 1;
            unit_to(events, &mut units.high, unit, at)?;
        }
    }
    if let Some((high, to)) = units.high.take() {
        events.character(high, to)?;
    }
    let is_minus = text.get(at) == Some(&b'-');
    if text.get(at).is_some() && at == start {
        // The plus is all that is wrong.
        events.error(at)?;
    } else if units.bits != 0 {
        at += usize::from(is_minus);
        events.error(at)?;
    } else {
        at += usize::from(is_minus);
    }
    Ok(at)
}

/// Passes on a code unit that ends at `to`, or the pair that it completes.
fn unit_to<E, F: FnMut(Decoded) -> Result<(), E>>(
    events: &mut Events<F>,
    high: &mut Option<(u32, usize)>,
    unit: u32,
    to: usize,
) -> Result<(), E> {
    if let Some((first, end)) = high.take() {
        if let 0xdc00..=0xdfff = unit {
            let code_point = 0x10000 + ((first - 0xd800) << 10) + (unit - 0xdc00);
            return events.character(code_point, to);
        }
        events.character(first, end)?;
    }
    match unit {
        0xd800..=0xdbff => {
            *high = Some((unit, to));
            Ok(())
        }
        unit => events.character(unit, to),
    }
}

pub(super) fn hz<E>(text: &[u8], each: impl FnMut(Decoded) -> Result<(), E>) -> Result<(), E> {
    let mut events = Events { from: 0, each };
    let (mut at, mut is_chinese, mut is_empty) = (0, false, false);
    while let Some(&b) = text.get(at) {
        let next = match text.get(at + 1) {
            Some(&next) => next,
            None if b == b'~' || is_chinese => break,
            None => 0,
        };
        let is_trail = |b: u8| (0x21..=0x7e).contains(&b);
        match (b, next) {
            (b'~', b'~') => {
                (at, is_empty) = (at + 2, false);
                events.character(b'~'.into(), at)?;
            }
            (b'~', b'\n') => at += 2,
            (b'~', b'{' | b'}') => {
                at += 2;
                is_chinese = next == b'{';
                // Nothing between two switches is an error.
                if std::mem::replace(&mut is_empty, true) {
                    is_empty = false;
                    events.error(at)?;
                }
            }
            (b'~', _) => {
                is_empty = false;
                let starts = if is_chinese {
                    is_trail(next)
                } else {
                    next < 0x80
                };
                at += if starts { 1 } else { 2 };
                events.error(at)?;
            }
            (lead, trail) if is_chinese => {
                is_empty = false;
                let is_lead = (0x21..=0x7d).contains(&lead);
                let found = gb2312([lead | 0x80, trail | 0x80]);
                match found.filter(|_| is_lead && is_trail(trail)) {
                    Some(c) => {
                        at += 2;
                        events.character(c, at)?;
                    }
                    None => {
                        at += if !is_lead && is_trail(trail) { 1 } else { 2 };
                        events.error(at)?;
                    }
                }
            }
            (b, _) => {
                is_empty = false;
                at += 1;
                match b {
                    0..0x80 => events.character(b.into(), at)?,
                    _ => events.error(at)?,
                }
            }
        }
    }
    events.end(text)
}
