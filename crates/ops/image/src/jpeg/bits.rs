//! Huffman codes and the bits of a scan (libjpeg: `jdhuff.c`).

use super::{Error, Stop};
use std::cell::RefCell;
use std::sync::Arc;

/// Bits of the codes that one look at the table decodes.
const LOOK: u32 = 10;

/// A Huffman table.
pub(super) struct Table {
    /// For each `LOOK` bits: the length of the code times 256, and its symbol; 0 for longer codes.
    look: [u16; 1 << LOOK],
    /// For each `LOOK` bits that hold a code and the coefficient that follows: the coefficient, the
    /// zeros in front of it and the number of bits; 0 for others.
    whole: [(i16, u8, u8); 1 << LOOK],
    /// The largest code of each length, -1 for none; ends with one above all codes.
    max: [i32; 18],
    /// What a code's value is moved by to find its symbol.
    offset: [i32; 18],
    symbols: Vec<u8>,
    /// What it was made of, with the symbols.
    counts: [u8; 16],
    is_dc: bool,
}

/// Tables that a thread keeps.
const KEPT: usize = 8;

thread_local! {
    /// The tables that were used last, the last one first.
    static LAST: RefCell<Vec<Arc<Table>>> = const { RefCell::new(Vec::new()) };
}

impl Table {
    /// Returns the table of codes, as [`Table::new`] does; most files have the same ones.
    pub(super) fn of(counts: &[u8; 16], symbols: &[u8], is_dc: bool) -> Result<Arc<Table>, Error> {
        LAST.with_borrow_mut(|last| {
            let is_same =
                |t: &Arc<Table>| t.counts == *counts && t.symbols == symbols && t.is_dc == is_dc;
            let table = match last.iter().position(is_same) {
                Some(at) => last.remove(at),
                None => Arc::new(Table::new(counts, symbols, is_dc)?),
            };
            last.truncate(KEPT - 1);
            last.insert(0, table.clone());
            Ok(table)
        })
    }

    /// Makes the table of codes with `counts[i]` codes of `i + 1` bits.
    fn new(counts: &[u8; 16], symbols: &[u8], is_dc: bool) -> Result<Table, Error> {
        let mut table = Table {
            look: [0; 1 << LOOK],
            whole: [(0, 0, 0); 1 << LOOK],
            max: [-1; 18],
            offset: [0; 18],
            symbols: symbols.to_vec(),
            counts: *counts,
            is_dc,
        };
        if is_dc && symbols.iter().any(|&s| s > 15) {
            return Err("a Huffman table is invalid");
        }
        let (mut code, mut next) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            let of_length = symbols.get(next..next + usize::from(count));
            let of_length = of_length.ok_or("a Huffman table is invalid")?;
            table.offset[length as usize] = next as i32 - code as i32;
            for &symbol in of_length {
                if length <= LOOK {
                    let first = (code << (LOOK - length)) as usize;
                    let entries = table.look.iter_mut().skip(first);
                    let entry = (length as u16) << 8 | u16::from(symbol);
                    entries.take(1 << (LOOK - length)).for_each(|e| *e = entry);
                }
                code += 1;
            }
            if count > 0 {
                table.max[length as usize] = code as i32 - 1;
            }
            // All ones is not a code.
            if code >> length != 0 {
                return Err("a Huffman table is invalid");
            }
            next += usize::from(count);
            code <<= 1;
        }
        table.max[17] = i32::MAX;
        if !is_dc {
            table.find_whole();
        }
        Ok(table)
    }

    fn find_whole(&mut self) {
        for (bits, (entry, out)) in self.look.iter().zip(&mut self.whole).enumerate() {
            let (length, symbol) = (u32::from(entry >> 8), *entry as u8);
            let (zeros, size) = (symbol >> 4, u32::from(symbol & 15));
            if length > 0 && size > 0 && length + size <= LOOK {
                let value = (bits as u32 >> (LOOK - length - size)) & ((1 << size) - 1);
                *out = (extended(value, size) as i16, zeros, (length + size) as u8);
            }
        }
    }
}

/// Returns the number that `size` bits stand for: those that begin with 0 are negative.
#[inline(always)]
pub(super) fn extended(value: u32, size: u32) -> i32 {
    let value = value as i32;
    match value < 1 << size >> 1 {
        true => value - (1 << size) + 1,
        false => value,
    }
}

/// The bytes of a file, the bits that were read ahead, and a marker that ended them.
#[derive(Clone)]
pub(super) struct Bits<'a> {
    pub(super) data: &'a [u8],
    /// The next byte.
    pub(super) at: usize,
    /// Where reading begins again if the file ends: behind the last whole unit.
    saved: usize,
    /// The next bits, the first one highest.
    buffer: u64,
    count: u32,
    /// A marker that was met; 0 for none.
    pub(super) marker: u8,
    /// Whether zeros were made up where bits are missing.
    pub(super) starved: bool,
    /// Whether a file that ends early is read on as if it did not.
    recovers: bool,
}

/// Bits available after reading ahead.
const AHEAD: u32 = 57;

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8], recovers: bool) -> Self {
        Bits {
            data,
            at: 0,
            saved: 0,
            buffer: 0,
            count: 0,
            marker: 0,
            starved: false,
            recovers,
        }
    }

    /// Forgets bits that were read ahead.
    pub(super) fn clear(&mut self) {
        (self.buffer, self.count) = (0, 0);
        self.starved = false;
        self.saved = self.at;
    }

    /// Forgets bits in front of a restart marker; `starved` ends unless another marker follows.
    pub(super) fn clear_for_restart(&mut self) {
        (self.buffer, self.count) = (0, 0);
    }

    /// Keeps what was read: a whole unit.
    pub(super) fn save(&mut self) {
        self.saved = self.at;
    }

    /// Returns the bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.data.len().saturating_sub(self.at)
    }

    /// Returns the next byte of the file.
    pub(super) fn byte(&mut self) -> Result<u8, Stop> {
        loop {
            if let Some(&byte) = self.data.get(self.at) {
                self.at += 1;
                return Ok(byte);
            }
            if self.saved < self.data.len() {
                if !self.recovers {
                    return Err(Stop::Suspended);
                }
                // As libjpeg: what is left of the unit is read again.
                self.at = self.saved;
            } else if self.recovers && self.data != END {
                (self.data, self.at, self.saved) = (END, 0, 0);
            } else {
                return Err(Stop::Fatal("the file ends too early"));
            }
        }
    }

    /// Reads ahead; makes zeros up if there are fewer than `need` bits in front of a marker.
    #[cold]
    fn fill(&mut self, need: u32) -> Result<(), Stop> {
        while self.marker == 0 && self.count < AHEAD {
            let mut byte = self.byte()?;
            if byte == 0xff {
                let mut code = byte;
                while code == 0xff {
                    code = self.byte()?;
                }
                if code != 0 {
                    self.marker = code;
                    break;
                }
                byte = 0xff;
            }
            self.push(byte);
        }
        if need > self.count {
            self.starved = true;
            // Zeros are available already.
            self.count = AHEAD;
        }
        Ok(())
    }

    #[inline(always)]
    fn push(&mut self, byte: u8) {
        self.buffer |= u64::from(byte) << (56 - self.count);
        self.count += 8;
    }

    #[inline(always)]
    fn drop_bits(&mut self, n: u32) {
        self.buffer <<= n;
        self.count -= n;
    }

    #[inline(always)]
    fn peek(&self, n: u32) -> u32 {
        (self.buffer >> 1 >> (63 - n)) as u32
    }

    #[inline(always)]
    fn take(&mut self, n: u32) -> u32 {
        let v = self.peek(n);
        self.drop_bits(n);
        v
    }

    /// Returns `n` bits, at most 16.
    #[inline(always)]
    pub(super) fn get(&mut self, n: u32) -> Result<u32, Stop> {
        if self.count < n {
            self.fill(n)?;
        }
        Ok(self.take(n))
    }

    /// Returns the next symbol; 0 for a code that there is not.
    #[inline(always)]
    pub(super) fn symbol(&mut self, table: &Table) -> Result<u8, Stop> {
        if self.count < 8 {
            self.fill(0)?;
        }
        if self.count < 8 {
            return self.long_symbol(table, 1);
        }
        let entry = table.look[self.peek(LOOK) as usize];
        let length = u32::from(entry >> 8);
        if length == 0 || length > self.count {
            // The code is longer than the eight bits that remain.
            return self.long_symbol(table, 9);
        }
        self.drop_bits(length);
        Ok(entry as u8)
    }

    #[cold]
    fn long_symbol(&mut self, table: &Table, mut length: u32) -> Result<u8, Stop> {
        let mut code = self.get(length)? as i32;
        while code > table.max[length as usize] {
            code = code << 1 | self.get(1)? as i32;
            length += 1;
        }
        Ok(table.of_long(code, length))
    }

    /// Returns what reads a unit of at most `bytes` faster, unless a marker was met or the file may end within it:
    /// what is left then depends on how far the reader was ahead.
    pub(super) fn quick(&mut self, bytes: usize) -> Option<Quick<'a>> {
        let needed = if self.data.ends_with(END) { 0 } else { bytes };
        (self.left() > needed && self.marker == 0).then_some(Quick {
            data: self.data,
            at: self.at,
            buffer: self.buffer,
            count: self.count,
            met_marker: false,
        })
    }

    /// Takes over what [`Quick`] read, unless it met a marker.
    pub(super) fn accept(&mut self, quick: Quick<'a>) -> bool {
        if quick.met_marker {
            return false;
        }
        (self.at, self.buffer, self.count) = (quick.at, quick.buffer, quick.count);
        true
    }
}

impl Table {
    /// Returns the symbol of a long code at the beginning of 64 bits, and the code's length.
    #[cold]
    #[inline(never)]
    fn long_symbol(&self, bits: u64) -> (u8, u32) {
        let code = |length: u32| (bits >> 1 >> (63 - length)) as i32;
        let mut length = LOOK + 1;
        while code(length) > self.max[length as usize] {
            length += 1;
        }
        (self.of_long(code(length), length), length)
    }

    fn of_long(&self, code: i32, length: u32) -> u8 {
        if length > 16 {
            return 0;
        }
        let at = code + self.offset[length as usize];
        let symbol = usize::try_from(at).ok().and_then(|at| self.symbols.get(at));
        symbol.copied().unwrap_or_default()
    }
}

/// A file's end, made up.
const END: &[u8] = &[0xff, 0xd9];

/// Reads bits until there is a marker or the end. What is seldom takes it by value, so that it stays in registers.
#[derive(Clone, Copy)]
pub(super) struct Quick<'a> {
    data: &'a [u8],
    at: usize,
    buffer: u64,
    count: u32,
    pub(super) met_marker: bool,
}

impl Quick<'_> {
    /// Reads ahead, so that there are more than 16 bits.
    #[inline(always)]
    fn fill(&mut self) {
        if self.count > 16 {
            return;
        }
        if let Some(next) = self.data.get(self.at..).and_then(|d| d.first_chunk::<8>()) {
            let word = u64::from_be_bytes(*next);
            // Whether one of the first six bytes is 255.
            let inverse = !word | 0xffff;
            let has_marker =
                inverse.wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_0000 != 0;
            if !has_marker {
                self.buffer |= (word >> 16 << 16) >> self.count;
                self.count += 48;
                self.at += 6;
                return;
            }
        }
        *self = self.filled_slowly();
    }

    #[cold]
    #[inline(never)]
    fn filled_slowly(mut self) -> Self {
        for _ in 0..6 {
            let Some(&byte) = self.data.get(self.at) else {
                self.met_marker = true;
                self.count += 8;
                continue;
            };
            let mut value = byte;
            self.at += 1;
            if byte == 0xff {
                match self.data.get(self.at) {
                    Some(0) => self.at += 1,
                    _ => {
                        self.met_marker = true;
                        self.at -= 1;
                        value = 0;
                    }
                }
            }
            self.buffer |= u64::from(value) << (56 - self.count);
            self.count += 8;
        }
        self
    }

    #[inline(always)]
    fn peek(&self, n: u32) -> u32 {
        (self.buffer >> 1 >> (63 - n)) as u32
    }

    #[inline(always)]
    fn drop_bits(&mut self, n: u32) {
        self.buffer <<= n;
        self.count -= n;
    }

    /// Returns `n` bits, at most 16.
    #[inline(always)]
    pub(super) fn get(&mut self, n: u32) -> u32 {
        self.fill();
        let v = self.peek(n);
        self.drop_bits(n);
        v
    }

    #[inline(always)]
    pub(super) fn symbol(&mut self, table: &Table) -> u8 {
        self.fill();
        let entry = table.look[self.peek(LOOK) as usize];
        if entry != 0 {
            self.drop_bits(u32::from(entry >> 8));
            return entry as u8;
        }
        let (symbol, bits) = table.long_symbol(self.buffer);
        self.drop_bits(bits.min(self.count));
        symbol
    }

    /// Returns the next coefficient with the zeros in front of it, if its code and it are short.
    #[inline(always)]
    pub(super) fn whole(&mut self, table: &Table) -> Option<(i16, usize)> {
        self.fill();
        let (value, zeros, bits) = table.whole[self.peek(LOOK) as usize];
        if bits == 0 {
            return None;
        }
        self.drop_bits(u32::from(bits));
        Some((value, usize::from(zeros)))
    }
}
