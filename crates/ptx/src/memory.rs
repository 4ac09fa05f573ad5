//! [`Memory`]: the global memory that a launch may touch.

use crate::Res;

/// The arguments of a launch that are memory, and the variables of its module.
///
/// Callers that make one promise that these ranges are live and that nothing else uses them meanwhile.
pub(crate) struct Memory {
    spans: Vec<(u64, usize)>,
    /// The span of the last access.
    last: (u64, usize),
}

impl Memory {
    /// # Safety
    /// The ranges, addresses with lengths, are live as long as this, and no other thread uses them meanwhile.
    pub(crate) unsafe fn new(mut spans: Vec<(u64, usize)>) -> Memory {
        spans.sort_unstable();
        Memory {
            spans,
            last: (0, 0),
        }
    }

    /// Checks that a range is inside one of the spans.
    fn check(&mut self, at: u64, len: usize, align: usize) -> Res<()> {
        if !at.is_multiple_of(align as u64) {
            return Err(format!(
                "global address {at:#x} is not aligned to {align} bytes"
            ));
        }
        let is_in = |(from, size): (u64, usize)| {
            at >= from
                && at
                    .checked_add(len as u64)
                    .is_some_and(|end| end <= from + size as u64)
        };
        if is_in(self.last) {
            return Ok(());
        }
        if let Some(span) = self.spans.iter().find(|span| is_in(**span)) {
            self.last = *span;
            return Ok(());
        }
        let below = self.spans.iter().rev().find(|(from, _)| *from <= at);
        let nearest = below.map_or("below all arguments".to_string(), |(from, size)| {
            format!("{} bytes into an argument of {size}", at - from)
        });
        Err(format!("{len} bytes at {at:#x} are outside: {nearest}"))
    }

    /// Reads up to 16 bytes.
    pub(crate) fn read(&mut self, at: u64, len: usize, align: usize) -> Res<[u8; 16]> {
        self.check(at, len, align)?;
        let mut bytes = [0; 16];
        let from = std::ptr::with_exposed_provenance::<u8>(at as usize);
        // SAFETY: the range was checked to be inside a span, which is live by the promise of `new`; `len` is at most 16.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len.min(16)) };
        Ok(bytes)
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8], align: usize) -> Res<()> {
        self.check(at, bytes.len(), align)?;
        let to = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
        // SAFETY: as in `read`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}
