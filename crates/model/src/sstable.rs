//! Sorted string tables, the container of checkpoint indices (LevelDB's table format; TensorFlow:
//! `core/lib/io/table.h`).
//!
//! A table consists of blocks of sorted entries, an index block that lists them, and a footer. Keys
//! are stored without the prefix they share with the previous one; each block has a checksum.

use ferroflow_base::{Result, data_loss};
use std::collections::BTreeMap;

const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
const FOOTER: usize = 48;
/// Bytes after a block: its compression type and its checksum.
const TRAILER: usize = 5;

/// Reverses the rotation and offset of stored checksums.
pub(crate) fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(0xa282_ead8).rotate_right(17)
}

/// Rotates and offsets a checksum for storing.
pub(crate) fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends a variable-length integer.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a variable-length integer off the front.
pub(crate) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn length(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(varint(bytes)?).ok()
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(n)?;
    *bytes = rest;
    Some(head)
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Returns all entries of a table, by key.
pub(crate) fn read(table: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut entries = BTreeMap::new();
    let footer = table.len().checked_sub(FOOTER).map(|at| &table[at..]);
    let Some(footer) = footer else {
        return Err(data_loss!("file is too short to be an sstable"));
    };
    let magic = footer[FOOTER - 8..].try_into().map(u64::from_le_bytes);
    if magic.ok() != Some(MAGIC) {
        return Err(data_loss!("not an sstable (bad magic number)"));
    }
    let mut handles = &footer[..FOOTER - 8];
    let index = handle(&mut handles).and_then(|_| handle(&mut handles));
    let index = index.ok_or_else(|| data_loss!("bad block handle"))?;
    for (_, mut value) in block_entries(&block(table, index)?)? {
        let at = handle(&mut &value[..]).ok_or_else(|| data_loss!("bad block handle"))?;
        value.clear();
        entries.extend(block_entries(&block(table, at)?)?);
    }
    Ok(entries)
}

/// Bytes from which a block is full.
const BLOCK: usize = 256 * 1024;
/// Entries from one whole key to the next.
const RESTART: usize = 16;

/// A block being filled.
#[derive(Default)]
struct BlockWriter {
    content: Vec<u8>,
    restarts: Vec<u32>,
    n_entries: usize,
    last: Vec<u8>,
}

impl BlockWriter {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let mut shared = 0;
        if self.n_entries.is_multiple_of(RESTART) {
            self.restarts.push(self.content.len() as u32);
        } else {
            let pairs = key.iter().zip(&self.last);
            shared = pairs.take_while(|(a, b)| a == b).count();
        }
        let own = key.get(shared..).unwrap_or_default();
        for n in [shared, own.len(), value.len()] {
            put_varint(&mut self.content, n as u64);
        }
        self.content.extend_from_slice(own);
        self.content.extend_from_slice(value);
        self.last = key.to_vec();
        self.n_entries += 1;
    }

    /// Appends the block to a table; returns its handle.
    fn finish(mut self, table: &mut Vec<u8>) -> Vec<u8> {
        if self.restarts.is_empty() {
            self.restarts.push(0);
        }
        for restart in &self.restarts {
            self.content.extend(restart.to_le_bytes());
        }
        self.content
            .extend((self.restarts.len() as u32).to_le_bytes());
        let mut handle = Vec::new();
        put_varint(&mut handle, table.len() as u64);
        put_varint(&mut handle, self.content.len() as u64);
        self.content.push(0);
        let crc = mask(crc32c::crc32c(&self.content));
        table.extend(self.content);
        table.extend(crc.to_le_bytes());
        handle
    }
}

/// Returns an uncompressed table of these entries.
pub(crate) fn write(entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let (mut table, mut index) = (Vec::new(), BlockWriter::default());
    let mut block = BlockWriter::default();
    for (key, value) in entries {
        block.add(key, value);
        if block.content.len() >= BLOCK {
            let handle = std::mem::take(&mut block).finish(&mut table);
            index.add(key, &handle);
        }
    }
    if block.n_entries > 0 {
        let last = block.last.clone();
        let handle = block.finish(&mut table);
        index.add(&last, &handle);
    }
    let mut footer = BlockWriter::default().finish(&mut table);
    footer.extend(index.finish(&mut table));
    footer.resize(FOOTER - 8, 0);
    table.extend(footer);
    table.extend(MAGIC.to_le_bytes());
    table
}

/// Reads the handle of a block: offset and size.
fn handle(bytes: &mut &[u8]) -> Option<(usize, usize)> {
    Some((length(bytes)?, length(bytes)?))
}

fn block(table: &[u8], (offset, size): (usize, usize)) -> Result<Vec<u8>> {
    let range = offset
        .checked_add(size)
        .and_then(|end| Some((offset, end.checked_add(TRAILER)?)));
    let Some(stored) = range.and_then(|(start, end)| table.get(start..end)) else {
        return Err(data_loss!("truncated block read"));
    };
    let (content, trailer) = stored.split_at(size);
    let expected = word(&trailer[1..]).map(unmask);
    if expected != Some(crc32c::crc32c(&stored[..size + 1])) {
        return Err(data_loss!("block checksum mismatch"));
    }
    match trailer[0] {
        0 => Ok(content.to_vec()),
        1 => {
            // An element of the format expands to at most 64 bytes.
            let length = snap::raw::decompress_len(content).unwrap_or(usize::MAX);
            if length > content.len().saturating_mul(64) {
                return Err(data_loss!("corrupted compressed block contents"));
            }
            snap::raw::Decoder::new()
                .decompress_vec(content)
                .map_err(|_| data_loss!("corrupted compressed block contents"))
        }
        _ => Err(data_loss!("bad block type")),
    }
}

fn block_entries(block: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let bad = || data_loss!("bad block contents");
    let at = block.len().checked_sub(4).ok_or_else(bad)?;
    let n_restarts = word(&block[at..]).ok_or_else(bad)? as usize;
    // Restart points only speed up searches; here everything is read in order.
    let end = n_restarts
        .checked_mul(4)
        .and_then(|n| at.checked_sub(n))
        .ok_or_else(bad)?;
    let mut rest = &block[..end];
    let mut entries = Vec::new();
    let mut key: Vec<u8> = Vec::new();
    while !rest.is_empty() {
        let (shared, own, value) = (length(&mut rest), length(&mut rest), length(&mut rest));
        let shared = shared.filter(|&s| s <= key.len()).ok_or_else(bad)?;
        let own = own.and_then(|n| take(&mut rest, n)).ok_or_else(bad)?;
        let value = value.and_then(|n| take(&mut rest, n)).ok_or_else(bad)?;
        key.truncate(shared);
        key.extend_from_slice(own);
        entries.push((key.clone(), value.to_vec()));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table of one block, compressed if `snappy`.
    pub(crate) fn write(entries: &[(&[u8], &[u8])], snappy: bool) -> Vec<u8> {
        let mut table = Vec::new();
        let mut put = |content: Vec<u8>, snappy: bool| {
            let (kind, mut stored) = if snappy {
                let mut encoder = snap::raw::Encoder::new();
                (1, encoder.compress_vec(&content).expect("small"))
            } else {
                (0, content)
            };
            let handle = (table.len() as u64, stored.len() as u64);
            stored.push(kind);
            let crc = crc32c::crc32c(&stored);
            let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
            table.extend(stored);
            table.extend(masked.to_le_bytes());
            handle
        };
        let data = put(lines(entries), snappy);
        let meta = put(lines(&[]), false);
        let index = put(lines(&[(b"z", &handle_bytes(data))]), snappy);
        let mut footer = handle_bytes(meta);
        footer.extend(handle_bytes(index));
        footer.resize(FOOTER - 8, 0);
        table.extend(footer);
        table.extend(MAGIC.to_le_bytes());
        table
    }

    fn handle_bytes((offset, size): (u64, u64)) -> Vec<u8> {
        [varint_bytes(offset), varint_bytes(size)].concat()
    }

    fn varint_bytes(mut v: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while v >= 0x80 {
            out.push(v as u8 | 0x80);
            v >>= 7;
        }
        out.push(v as u8);
        out
    }

    fn lines(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut last: &[u8] = &[];
        for (key, value) in entries {
            let shared = key.iter().zip(last).take_while(|(a, b)| a == b).count();
            for n in [shared, key.len() - shared, value.len()] {
                out.extend(varint_bytes(n as u64));
            }
            out.extend(&key[shared..]);
            out.extend(*value);
            last = key;
        }
        out.extend([0; 4]);
        out.extend(1u32.to_le_bytes());
        out
    }

    #[test]
    fn tables_round_trip() {
        let long = [7u8; 5000];
        let entries: [(&[u8], &[u8]); 4] = [
            (b"", b"head"),
            (b"abc", b""),
            (b"abcd", &long),
            (b"b\0\xff", b"x"),
        ];
        for snappy in [false, true] {
            let read = read(&write(&entries, snappy)).expect("well-formed");
            assert_eq!(read.len(), 4);
            for (key, value) in entries {
                assert_eq!(read.get(key).map(Vec::as_slice), Some(value), "{key:?}");
            }
        }
    }

    #[test]
    fn own_tables_round_trip() {
        for n in [0, 1, 15, 16, 17, 300, 9000] {
            let entry = |i: usize| (format!("key/{i:06}").into_bytes(), vec![i as u8; i % 90]);
            let entries: BTreeMap<_, _> = (0..n).map(entry).collect();
            assert_eq!(read(&super::write(&entries)).expect("well-formed"), entries);
        }
    }

    #[test]
    fn damage_is_found() {
        let table = write(&[(b"abc", &[9; 300]), (b"abd", b"y")], true);
        for keep in 0..table.len() {
            assert!(read(&table[..keep]).is_err(), "cut to {keep} bytes");
        }
        let whole = read(&table).expect("well-formed");
        for bit in 0..table.len() * 8 {
            let mut damaged = table.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Changes to padding and to the handle of the unused metaindex are harmless.
            if let Ok(read) = read(&damaged) {
                assert_eq!(read, whole, "bit {bit}");
            }
        }
    }

    #[test]
    fn varints_that_do_not_fit_are_refused() {
        assert_eq!(varint(&mut &[0xff; 11][..]), None);
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(varint(&mut &max[..]), Some(u64::MAX));
        assert_eq!(varint(&mut &[0x80][..]), None);
    }
}
