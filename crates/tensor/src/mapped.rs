//! A read-only file mapping whose pages can be released.

use ferroflow_base::{Result, not_found};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// A whole file, mapped read-only.
///
/// The file must not be cut short or changed by others while it is mapped; that is the usual
/// contract of model files, and it is the same one that TensorFlow's memory-mapped models have.
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// NOT_FOUND if the file cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| not_found!("{}: {e}", path.display()))?;
        // SAFETY: the mapping is private and read-only; the documented contract of this type is
        // that the file does not change meanwhile.
        let map = unsafe { memmap2::Mmap::map(&file) }
            .map_err(|e| not_found!("cannot map {}: {e}", path.display()))?;
        Ok(MappedFile { map })
    }

    /// Returns the range of `part` in this file, if it is a part of the mapping.
    pub fn locate(&self, part: &[u8]) -> Option<Range<usize>> {
        let start = (part.as_ptr() as usize).checked_sub(self.map.as_ptr() as usize)?;
        let end = start.checked_add(part.len())?;
        (end <= self.map.len()).then_some(start..end)
    }

    /// Tells the system that the pages wholly inside `range` will not be read soon, so that they
    /// stop counting as resident. Reading them later brings them back from the file.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            const PAGE: usize = 4096;
            let start = range.start.next_multiple_of(PAGE);
            let end = range.end.min(self.map.len()) / PAGE * PAGE;
            if start < end {
                // SAFETY: the mapping is file-backed, private and never written, so dropped pages
                // are read again from the file with the same content. A failure is harmless.
                let _ = unsafe {
                    self.map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}
