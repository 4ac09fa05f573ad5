//! The Standard Compression Scheme for Unicode (Unicode Technical Standard 6).

use super::{Decoded, character, decoded_to, error};

/// Where the windows are that bytes below 128 are quoted from.
const STATIC: [u32; 8] = [0, 0x80, 0x100, 0x300, 0x2000, 0x2080, 0x2100, 0x3000];

/// The states of a decoder.
struct Decoder {
    /// Where the windows of bytes from 128 on are.
    windows: [u32; 8],
    current: usize,
    /// Whether bytes are pairs of UTF-16.
    is_wide: bool,
}

/// What the next bytes are.
enum Step {
    Unit(u32),
    Command,
    Bad,
    /// The text ends in them.
    Cut,
}

/// Returns the place of a window from its number.
fn place(x: u8) -> Option<u32> {
    const SPECIAL: [u32; 7] = [0xc0, 0x250, 0x370, 0x530, 0x3040, 0x30a0, 0xff60];
    match x {
        0x01..=0x67 => Some(u32::from(x) << 7),
        0x68..=0xa7 => Some((u32::from(x) << 7) + 0xac00),
        0xf9..=0xff => SPECIAL.get(usize::from(x - 0xf9)).copied(),
        _ => None,
    }
}

impl Decoder {
    fn select(&mut self, window: u8, place: u32) {
        self.current = usize::from(window & 7);
        self.windows[self.current] = place;
        self.is_wide = false;
    }

    /// Returns what the first bytes are, and how many.
    fn step(&mut self, bytes: &[u8]) -> (Step, usize) {
        let pair = |a: u8, b: u8| u32::from(u16::from_be_bytes([a, b]));
        // Both modes have the same commands, with other numbers: defining, extending, quoting.
        let (define, extend, quote, choose) = match self.is_wide {
            true => (0xe8..=0xef, 0xf1, 0xf0, 0xe0..=0xe7),
            false => (0x18..=0x1f, 0x0b, 0x0e, 0x10..=0x17),
        };
        let &[b, ref rest @ ..] = bytes else {
            return (Step::Cut, 0);
        };
        match (b, rest) {
            (b, _) if choose.contains(&b) => {
                (self.current, self.is_wide) = (usize::from(b & 7), false);
                (Step::Command, 1)
            }
            (b, [x, ..]) if define.contains(&b) => match place(*x) {
                Some(place) => {
                    self.select(b, place);
                    (Step::Command, 2)
                }
                None => (Step::Bad, 2),
            },
            (b, [high, low, ..]) if b == extend => {
                self.select(high >> 5, 0x10000 + (pair(high & 0x1f, *low) << 7));
                (Step::Command, 3)
            }
            (b, [high, low, ..]) if b == quote => (Step::Unit(pair(*high, *low)), 3),
            (0x0f, _) if !self.is_wide => {
                self.is_wide = true;
                (Step::Command, 1)
            }
            (0xf2, _) if self.is_wide => (Step::Bad, 1),
            (b, _) if define.contains(&b) || b == extend || b == quote => (Step::Cut, bytes.len()),
            (b, [low, ..]) if self.is_wide => (Step::Unit(pair(b, *low)), 2),
            _ if self.is_wide => (Step::Cut, 1),
            (0x0c, _) => (Step::Bad, 1),
            (1..=8, [x, ..]) => {
                let (window, x) = (usize::from(b - 1), u32::from(*x));
                let unit = match x {
                    0..0x80 => STATIC[window] + x,
                    _ => self.windows[window] + x - 0x80,
                };
                (Step::Unit(unit), 2)
            }
            (1..=8, []) => (Step::Cut, 1),
            (0x80.., _) => {
                let start = self.windows[self.current];
                (Step::Unit(start + u32::from(b) - 0x80), 1)
            }
            _ => (Step::Unit(b.into()), 1),
        }
    }
}

pub(super) fn scsu<E>(
    text: &[u8],
    mut each: impl FnMut(Decoded) -> Result<(), E>,
) -> Result<(), E> {
    let mut decoder = Decoder {
        windows: [0x80, 0xc0, 0x400, 0x600, 0x900, 0x3040, 0x30a0, 0xff00],
        current: 0,
        is_wide: false,
    };
    // Commands count as part of the next character.
    let (mut rest, mut len) = (text, 0);
    let mut high: Option<(u32, usize)> = None;
    while !rest.is_empty() {
        let (step, n) = decoder.step(rest);
        rest = rest.get(n..).unwrap_or_default();
        len += n;
        if let Step::Command = step {
            continue;
        }
        let pending = high.take();
        if let (Some((first, before)), Step::Unit(second @ 0xdc00..=0xdfff)) = (pending, &step) {
            let code_point = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            each(character(code_point, before + std::mem::take(&mut len)))?;
            continue;
        }
        if let Some((first, before)) = pending {
            each(character(first, before))?;
        }
        let len = std::mem::take(&mut len);
        match step {
            Step::Unit(unit @ 0xd800..=0xdbff) => high = Some((unit, len)),
            Step::Unit(unit) => each(character(unit, len))?,
            _ => each(error(len))?,
        }
    }
    if let Some((first, before)) = high {
        each(character(first, before))?;
    }
    decoded_to(len, &mut each)
}
