//! [`Shared`]: the shared memory of a block, which notes reads and writes.

use crate::Res;
use crate::module::Variable;

/// Bytes between variables, which no thread may touch.
const GAP: u64 = 64;
/// Shared memory of a block, as far as a kernel declares it.
const MAX_SIZE: u64 = 48 << 10;
/// The writer of bytes that are being copied.
const COPYING: u8 = u8::MAX;

/// Where the variables of a kernel are.
#[derive(Default, Clone, Debug)]
pub(crate) struct Layout {
    variables: Vec<(String, u64, u64)>,
    size: u64,
}

impl Layout {
    /// Adds a variable, if it is not there.
    pub(crate) fn add(&mut self, name: &str, of: &Variable) {
        if self.address(name).is_none() {
            let at = (self.size + GAP).next_multiple_of(of.align.max(16) as u64);
            self.variables.push((name.to_string(), at, of.size as u64));
            self.size = at + of.size as u64;
        }
    }

    pub(crate) fn address(&self, name: &str) -> Option<u64> {
        let found = self.variables.iter().find(|(n, ..)| n == name);
        found.map(|(_, at, _)| *at)
    }

    fn contains(&self, at: u64, len: u64) -> bool {
        let is_in = |(_, from, size): &(String, u64, u64)| at >= *from && at + len <= from + size;
        self.variables.iter().any(is_in)
    }

    /// Whether a GPU has as much.
    pub(crate) fn fits(&self) -> bool {
        self.variables.iter().map(|(_, _, size)| size).sum::<u64>() <= MAX_SIZE
    }
}

/// The last uses of a byte. Epochs are the times between barriers.
#[derive(Clone, Copy, Default)]
struct Mark {
    written: u32,
    read: u32,
    /// The warps that read it.
    readers: u32,
    writer: u8,
}

/// See the module text.
pub(crate) struct Shared {
    layout: Layout,
    bytes: Vec<u8>,
    marks: Vec<Mark>,
    epoch: u32,
    /// The first epoch of the block.
    first: u32,
}

impl Shared {
    pub(crate) fn new(layout: &Layout) -> Shared {
        Shared {
            layout: layout.clone(),
            bytes: vec![0; layout.size as usize],
            marks: vec![Mark::default(); layout.size as usize],
            epoch: 0,
            first: 0,
        }
    }

    /// Starts a block: nothing is written.
    pub(crate) fn start(&mut self) {
        self.epoch += 1;
        self.first = self.epoch;
    }

    /// All threads have reached a barrier.
    pub(crate) fn pass_barrier(&mut self) {
        self.epoch += 1;
    }

    fn range(&self, at: u64, len: usize, align: usize) -> Res<std::ops::Range<usize>> {
        if !at.is_multiple_of(align as u64) {
            return Err(format!(
                "shared address {at:#x} is not aligned to {align} bytes"
            ));
        }
        if !self.layout.contains(at, len as u64) {
            return Err(format!(
                "{len} bytes at {at:#x} are outside of shared memory"
            ));
        }
        Ok(at as usize..at as usize + len)
    }

    /// Reads up to 16 bytes for a warp.
    pub(crate) fn read(&mut self, at: u64, len: usize, align: usize, warp: u8) -> Res<[u8; 16]> {
        let range = self.range(at, len, align)?;
        for mark in &mut self.marks[range.clone()] {
            if mark.written < self.first {
                return Err(format!(
                    "shared memory at {at:#x} is read before it is written"
                ));
            }
            if mark.writer == COPYING {
                return Err(format!(
                    "shared memory at {at:#x} is read while it is copied"
                ));
            }
            if mark.written == self.epoch && mark.writer != warp {
                return Err(race(at, warp, mark.writer));
            }
            if mark.read != self.epoch {
                (mark.read, mark.readers) = (self.epoch, 0);
            }
            mark.readers |= 1 << warp;
        }
        let mut bytes = [0; 16];
        bytes[..len].copy_from_slice(&self.bytes[range]);
        Ok(bytes)
    }

    /// Checks that a warp may write a byte now.
    fn check_write(&self, mark: Mark, at: u64, warp: u8) -> Res<()> {
        let readers = mark.readers & !(1 << warp);
        if mark.read == self.epoch && mark.read >= self.first && readers != 0 {
            return Err(race(at, warp, readers.trailing_zeros() as u8));
        }
        match mark.written == self.epoch && mark.writer != warp && mark.writer != COPYING {
            true => Err(race(at, warp, mark.writer)),
            false => Ok(()),
        }
    }

    /// Writes bytes of a warp.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8], align: usize, warp: u8) -> Res<()> {
        let range = self.range(at, bytes.len(), align)?;
        for i in range.clone() {
            let mark = self.marks[i];
            if mark.written >= self.first && mark.writer == COPYING {
                return Err(format!(
                    "shared memory at {at:#x} is written while it is copied"
                ));
            }
            self.check_write(mark, at, warp)?;
            (self.marks[i].written, self.marks[i].writer) = (self.epoch, warp);
        }
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    /// Notes that a copy starts, which may write at once or when it is waited for.
    pub(crate) fn start_copy(&mut self, at: u64, len: usize, warp: u8) -> Res<()> {
        for i in self.range(at, len, len)? {
            let mark = self.marks[i];
            if mark.written >= self.first && mark.writer == COPYING {
                return Err(format!("two copies write shared memory at {at:#x}"));
            }
            self.check_write(mark, at, warp)?;
            (self.marks[i].written, self.marks[i].writer) = (self.epoch, COPYING);
        }
        Ok(())
    }

    /// Writes what a copy of a warp brings.
    pub(crate) fn end_copy(&mut self, at: u64, bytes: &[u8], warp: u8) -> Res<()> {
        for i in self.range(at, bytes.len(), bytes.len())? {
            let mark = &mut self.marks[i];
            (mark.written, mark.writer) = (self.epoch, warp);
            self.bytes[i] = bytes[i - at as usize];
        }
        Ok(())
    }
}

fn race(at: u64, a: u8, b: u8) -> String {
    format!("warps {a} and {b} use shared memory at {at:#x} without a barrier in between")
}
