//! [`Cursor`]: the primitives of MLIR bytecode.

use ferroflow_base::{Result, Status, invalid_argument};
use std::fmt;

/// What fills the space in front of aligned sections.
const PADDING: u8 = 0xCB;

/// A position in a part of a file.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
    end: usize,
    /// The name of the part, for messages.
    part: &'static str,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(file: &'a [u8]) -> Self {
        Cursor {
            file,
            at: 0,
            end: file.len(),
            part: "file",
        }
    }

    /// Renames the part.
    pub(crate) fn named(self, part: &'static str) -> Self {
        Cursor { part, ..self }
    }

    /// Returns the error that something at this position is wrong.
    pub(crate) fn error(&self, what: impl fmt::Display) -> Status {
        let Cursor { at, part, .. } = self;
        invalid_argument!("the StableHLO program is damaged: {what}, at byte {at} in its {part}")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    pub(crate) fn remaining(&self) -> usize {
        self.end - self.at
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn bytes(&mut self, n: u64) -> Result<&'a [u8]> {
        let part = self.take(n)?;
        Ok(&self.file[part.at..part.end])
    }

    /// Returns the next `n` bytes as a part.
    pub(crate) fn take(&mut self, n: u64) -> Result<Cursor<'a>> {
        if n > self.remaining() as u64 {
            return Err(self.error(format_args!(
                "{n} bytes are needed where {} are left",
                self.remaining()
            )));
        }
        let end = self.at + n as usize;
        let part = Cursor { end, ..*self };
        self.at = end;
        Ok(part)
    }

    /// Splits a part off the end.
    pub(crate) fn take_last(&mut self, n: u64) -> Result<&'a [u8]> {
        if n > self.remaining() as u64 {
            return Err(self.error(format_args!("{n} bytes are more than the part has")));
        }
        let start = self.end - n as usize;
        let last = &self.file[start..self.end];
        self.end = start;
        Ok(last)
    }

    /// Reads an integer whose first byte has as many trailing zeros as bytes follow.
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let first = self.byte()?;
        if first == 0 {
            let mut all = [0; 8];
            all.copy_from_slice(self.bytes(8)?);
            return Ok(u64::from_le_bytes(all));
        }
        let following = first.trailing_zeros() as usize;
        let mut all = [0; 8];
        all[0] = first;
        all[1..=following].copy_from_slice(self.bytes(following as u64)?);
        Ok(u64::from_le_bytes(all) >> (following + 1))
    }

    /// Reads an integer with a flag in its lowest bit.
    pub(crate) fn flagged(&mut self) -> Result<(u64, bool)> {
        let both = self.varint()?;
        Ok((both >> 1, both & 1 == 1))
    }

    /// Reads an integer with the sign in its lowest bit.
    pub(crate) fn signed(&mut self) -> Result<i64> {
        let (magnitude, negative) = self.flagged()?;
        Ok(magnitude as i64 ^ -i64::from(negative))
    }

    /// Reads the number of things that follow, each of which takes at least a byte.
    pub(crate) fn count(&mut self) -> Result<usize> {
        let n = self.varint()?;
        self.check_count(n)
    }

    /// Returns a number of things that follow, each of which takes at least a byte.
    pub(crate) fn check_count(&self, n: u64) -> Result<usize> {
        if n > self.remaining() as u64 {
            let left = self.remaining();
            return Err(self.error(format_args!("{n} entries do not fit into {left} bytes")));
        }
        Ok(n as usize)
    }

    /// Reads an index of a table with `len` entries.
    pub(crate) fn index(&mut self, len: usize, what: &str) -> Result<usize> {
        let i = self.varint()?;
        self.check_index(i, len, what)
    }

    /// Returns an index of a table with `len` entries.
    pub(crate) fn check_index(&self, i: u64, len: usize, what: &str) -> Result<usize> {
        if i >= len as u64 {
            return Err(self.error(format_args!("{what} {i} does not exist, of {len}")));
        }
        Ok(i as usize)
    }

    /// Reads a list of signed integers.
    pub(crate) fn signed_list(&mut self) -> Result<Vec<i64>> {
        (0..self.count()?).map(|_| self.signed()).collect()
    }

    /// Reads bytes behind their number.
    pub(crate) fn blob(&mut self) -> Result<&'a [u8]> {
        let n = self.varint()?;
        self.bytes(n)
    }

    /// Reads text that ends with a zero byte.
    pub(crate) fn zero_ended(&mut self) -> Result<String> {
        let rest = &self.file[self.at..self.end];
        let Some(len) = rest.iter().position(|b| *b == 0) else {
            return Err(self.error("text does not end"));
        };
        self.at += len + 1;
        Ok(String::from_utf8_lossy(&rest[..len]).into_owned())
    }

    /// Reads a section: its number and its content.
    pub(crate) fn section(&mut self) -> Result<(u8, Cursor<'a>)> {
        let head = self.byte()?;
        let len = self.varint()?;
        if head & 0x80 != 0 {
            let alignment = self.varint()?;
            if !alignment.is_power_of_two() {
                return Err(self.error(format_args!("{alignment} is not an alignment")));
            }
            while !(self.at as u64).is_multiple_of(alignment) {
                if self.byte()? != PADDING {
                    return Err(self.error("the padding of a section has other bytes"));
                }
            }
        }
        Ok((head & 0x7F, self.take(len)?))
    }

    /// Fails unless everything has been read.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            n => Err(self.error(format_args!("{n} bytes remain"))),
        }
    }
}
