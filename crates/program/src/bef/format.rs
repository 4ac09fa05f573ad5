//! The file format: numbers of sections, integers, and how a file is divided into sections.

use ferroflow_base::{Result, data_loss};
use std::ops::Range;

/// The first bytes of every file.
pub(super) const MAGIC: [u8; 2] = [0x0b, 0xef];
/// The only version of TFRT of February 2021.
pub(super) const VERSION: u8 = 0;
/// The byte that fills gaps.
pub(super) const PADDING: u8 = 0xcc;
/// Stands for a string or type that the file does not have.
pub(super) const INVALID_INDEX: usize = 0xffff;
/// `kernel code` and `location` of the first kernel of every function, which defines its arguments.
pub(super) const PSEUDO_CODE: u32 = 0xabab_abab;
pub(super) const PSEUDO_LOCATION: u32 = 0xcdcd_cdcd;
/// Words in front of a kernel's lists.
pub(super) const HEADER_WORDS: usize = 7;
/// The bit in a kernel's metadata that lets it run before all its arguments are available.
pub(super) const NON_STRICT: u32 = 1;

/// Sections by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Section {
    FormatVersion = 0,
    LocationFilenames = 1,
    LocationPositions = 2,
    Strings = 3,
    Attributes = 4,
    Kernels = 5,
    Types = 6,
    FunctionIndex = 7,
    Functions = 8,
    AttributeTypes = 9,
    AttributeNames = 10,
    RegisterTypes = 11,
    /// Ferroflow's: the graph of a compiled model of layout 1.
    Graph = 0x40,
    /// Ferroflow's: what a compiled model takes and returns.
    Interface = 0x41,
    /// Ferroflow's: the tensors of a compiled model.
    Tensors = 0x42,
    /// Ferroflow's: bytes of large tensors.
    Weights = 0x43,
    /// Ferroflow's: what kernels run on which thread.
    Streams = 0x44,
    /// Ferroflow's: names of places.
    LocationNames = 0x45,
    /// Ferroflow's: functions that TFRT's engines do not run, behind those of the index.
    OtherFunctions = 0x46,
    /// Ferroflow's: the bodies of functions of kind `dataflow`.
    Bodies = 0x47,
}

pub(super) const N_SECTIONS: usize = 20;

impl Section {
    /// The position of section `id` among the known ones, if it is known.
    pub(super) fn slot(id: u8) -> Option<usize> {
        match id {
            0..=11 => Some(id.into()),
            0x40..=0x47 => Some(usize::from(id - 0x40) + 12),
            _ => None,
        }
    }
}

/// The engine that runs a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FunctionKind {
    /// The engine `async`.
    Async = 0,
    /// Native code.
    Native = 1,
    /// The engine `sync`.
    Sync = 2,
    /// The engine `dataflow`.
    Dataflow = 3,
}

impl FunctionKind {
    /// Whether kernels are listed in the file.
    pub(crate) fn has_body(self) -> bool {
        matches!(self, FunctionKind::Async | FunctionKind::Sync)
    }

    /// The section that lists functions of this kind.
    pub(super) fn section(self) -> Section {
        match self {
            FunctionKind::Dataflow => Section::OtherFunctions,
            _ => Section::FunctionIndex,
        }
    }

    pub(super) fn number(self) -> u8 {
        self as u8
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        [
            FunctionKind::Async,
            FunctionKind::Native,
            FunctionKind::Sync,
            FunctionKind::Dataflow,
        ]
        .into_iter()
        .find(|k| k.number() == number)
    }
}

pub(super) fn corrupt(what: &str) -> ferroflow_base::Status {
    data_loss!("{what}")
}

/// Reads integers from the front of bytes.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Reader { bytes, at }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Seven bits a byte, high ones first; the top bit is set if more follow.
    pub(super) fn int(&mut self) -> Option<usize> {
        let mut value = 0usize;
        loop {
            let byte = self.byte()?;
            if value > usize::MAX >> 7 {
                return None;
            }
            value = value << 7 | usize::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    /// A count of things that take at least a byte each.
    pub(super) fn count(&mut self) -> Option<usize> {
        let n = self.int()?;
        (n <= self.left()).then_some(n)
    }

    /// The number of bytes left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    /// Bytes after their number.
    pub(super) fn raw(&mut self) -> Option<&'a [u8]> {
        let n = self.int()?;
        self.take(n)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.raw()?).ok().map(str::to_string)
    }

    pub(super) fn ints(&mut self) -> Option<Vec<usize>> {
        let n = self.count()?;
        (0..n).map(|_| self.int()).collect()
    }
}

/// The byte ranges of the sections, `None` where one is missing.
pub(super) fn sections(file: &[u8]) -> Result<[Option<Range<usize>>; N_SECTIONS]> {
    let mut sections = [const { None }; N_SECTIONS];
    if file.get(..2) != Some(&MAGIC) {
        return Err(corrupt("invalid BEF file header detected"));
    }
    let mut reader = Reader::new(file, 2);
    while !reader.is_empty() {
        let range = (|| {
            let id = reader.byte()?;
            let header = reader.int()?;
            let length = header >> 1;
            if header & 1 != 0 {
                let alignment = usize::from(reader.byte()?);
                if !alignment.is_power_of_two() {
                    return None;
                }
                reader.at = reader.at.next_multiple_of(alignment);
            }
            let end = reader.at.checked_add(length).filter(|e| *e <= file.len())?;
            let range = reader.at..end;
            reader.at = end;
            Some((id, range))
        })();
        let Some((id, range)) = range else {
            return Err(corrupt("BEF file section header corrupted"));
        };
        if let Some(slot) = Section::slot(id).and_then(|i| sections.get_mut(i)) {
            *slot = Some(range);
        }
    }
    Ok(sections)
}

/// Bytes being written, with the alignment that they need.
#[derive(Default, Clone)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    alignment: usize,
}

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(super) fn int(&mut self, value: usize) {
        let mut shift = 63;
        while shift >= 7 && value >> shift == 0 {
            shift -= 7;
        }
        while shift > 0 {
            if value >> shift != 0 {
                self.byte((value >> shift & 0x7f) as u8 | 0x80);
            }
            shift -= 7;
        }
        self.byte((value & 0x7f) as u8);
    }

    /// The same with the low bits first and to be read backwards.
    pub(super) fn int_backwards(&mut self, mut value: usize) {
        self.byte((value & 0x7f) as u8);
        value >>= 7;
        while value != 0 {
            self.byte((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
    }

    pub(super) fn align(&mut self, alignment: usize) {
        if alignment > 1 {
            let to = self.bytes.len().next_multiple_of(alignment);
            self.bytes.resize(to, PADDING);
            self.alignment = self.alignment.max(alignment);
        }
    }

    pub(super) fn alignment(&self) -> usize {
        self.alignment.max(1)
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.align(4);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn append(&mut self, other: &Writer) {
        self.align(other.alignment());
        self.bytes.extend(&other.bytes);
    }

    pub(super) fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Bytes after their number.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.int(bytes.len());
        self.bytes.extend(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.raw(text.as_bytes());
    }

    pub(super) fn section(&mut self, id: Section, body: &Writer) {
        self.byte(id as u8);
        let aligned = body.alignment() > 1;
        self.int(body.bytes.len() << 1 | usize::from(aligned));
        if aligned {
            self.byte(body.alignment() as u8);
            self.align(body.alignment());
        }
        self.bytes.extend(&body.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back() {
        for value in [0, 1, 127, 128, 300, 1 << 14, (1 << 21) + 5, usize::MAX >> 1] {
            let mut writer = Writer::default();
            writer.int(value);
            assert_eq!(Reader::new(&writer.bytes, 0).int(), Some(value));
            let lengths = [(127, 1), (128, 2), (1 << 14, 3)];
            if let Some((_, n)) = lengths.iter().find(|(v, _)| *v == value) {
                assert_eq!(writer.bytes.len(), *n);
            }
        }
    }
}
