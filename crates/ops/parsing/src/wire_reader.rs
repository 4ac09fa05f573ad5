//! Protobuf's wire format, read without a descriptor.

/// Most groups that may be nested.
const MAX_DEPTH: usize = 100;

/// Reads values one after the other; `None` stands for bytes that cannot be read.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Returns the number that protobuf's zigzag encoding stands for.
pub(crate) fn zigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

/// Appends a varint.
pub(crate) fn put_varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Returns the next `n` bytes.
    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(taken)
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        match self.bytes.get(self.at) {
            Some(byte) if *byte < 0x80 => {
                self.at += 1;
                Some((*byte).into())
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Returns the next tag; none at the end, and none if it is invalid, in front of which the reader then stays.
    #[inline]
    pub(crate) fn tag(&mut self) -> Option<u32> {
        let start = self.at;
        let tag = self.varint().and_then(|tag| u32::try_from(tag).ok());
        match tag.filter(|tag| *tag != 0) {
            // A tag that ends a group leaves the message incomplete.
            Some(tag) if tag & 7 != 4 => Some(tag),
            _ => {
                self.at = start;
                None
            }
        }
    }

    /// Returns the size of what follows.
    #[inline]
    pub(crate) fn size(&mut self) -> Option<usize> {
        let size = self.varint()?;
        i32::try_from(size).ok()?;
        usize::try_from(size).ok()
    }

    pub(crate) fn fixed32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(crate) fn fixed64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Skips the value after a tag; with `out` writes both there.
    pub(crate) fn skip(&mut self, tag: u32, mut out: Option<&mut Vec<u8>>) -> Option<()> {
        let mut open: Vec<u32> = Vec::new();
        let mut tag = tag;
        loop {
            let number = tag >> 3;
            if number == 0 {
                return None;
            }
            if let Some(out) = out.as_deref_mut() {
                put_varint(tag.into(), out);
            }
            match tag & 7 {
                0 => {
                    let value = self.varint()?;
                    if let Some(out) = out.as_deref_mut() {
                        put_varint(value, out);
                    }
                }
                wire @ (1 | 2 | 5) => {
                    let size = match wire {
                        1 => 8,
                        5 => 4,
                        _ => self.size()?,
                    };
                    let bytes = self.take(size)?;
                    if let Some(out) = out.as_deref_mut() {
                        if wire == 2 {
                            put_varint(size as u64, out);
                        }
                        out.extend_from_slice(bytes);
                    }
                }
                3 if open.len() < MAX_DEPTH => open.push(number),
                4 if open.last() == Some(&number) => drop(open.pop()),
                _ => return None,
            }
            if open.is_empty() {
                return Some(());
            }
            tag = u32::try_from(self.varint()?).ok()?;
        }
    }
}
