//! Bits of a file.

use super::huffman::{Codes, Sink};

/// A file that bits are added to.
#[derive(Default)]
pub(super) struct Bits {
    out: Vec<u8>,
    /// The last bits, fewer than 32 between calls.
    waiting: u64,
    n: u32,
}

/// Adds symbols by their codes.
pub(super) struct Coded<'a> {
    bits: &'a mut Bits,
    codes: &'a Codes,
}

impl Bits {
    pub(super) fn with<'a>(&'a mut self, codes: &'a Codes) -> Coded<'a> {
        Coded { bits: self, codes }
    }

    /// Adds bytes between scans.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Adds up to 32 bits.
    #[inline(always)]
    fn put(&mut self, value: u32, n: u32) {
        self.waiting = self.waiting << n | u64::from(value);
        self.n += n;
        if self.n >= 32 {
            self.n -= 32;
            let word = (self.waiting >> self.n) as u32;
            // A byte of ones is followed by a zero.
            if word & 0x8080_8080 & (!word).wrapping_sub(0x0101_0101) == 0 {
                self.out.extend_from_slice(&word.to_be_bytes());
            } else {
                word.to_be_bytes().into_iter().for_each(|b| self.byte(b));
            }
        }
    }

    fn byte(&mut self, byte: u8) {
        self.out.push(byte);
        if byte == 0xff {
            self.out.push(0);
        }
    }

    /// Ends a scan: fills the last byte with ones.
    pub(super) fn finish(&mut self) {
        self.put(0x7f, 7);
        while self.n >= 8 {
            self.n -= 8;
            self.byte((self.waiting >> self.n) as u8);
        }
        (self.waiting, self.n) = (0, 0);
    }
}

impl Sink for Coded<'_> {
    #[inline(always)]
    fn symbol(&mut self, table: usize, symbol: u8, value: u32, n: u32) {
        let (code, length) = self.codes.code(table, symbol);
        self.bits.put(code << n | value, length + n);
    }

    #[inline(always)]
    fn bits(&mut self, value: u32, n: u32) {
        self.bits.put(value, n);
    }
}
