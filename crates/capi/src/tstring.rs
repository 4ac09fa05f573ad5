//! `TF_TString` (`tensorflow/c/tf_tstring.h`, `xla/tsl/platform/ctstring_internal.h`): strings in the
//! layout that the inline functions of TensorFlow's headers know. Long ones are allocated with
//! `malloc`, since clients free them.

use std::ffi::{c_char, c_int, c_void};

/// Characters that a string has room for in itself.
const SMALL_CAPACITY: usize = 22;
const SMALL: u64 = 0;
const LARGE: u64 = 1;
const OFFSET: u64 = 2;
const VIEW: u64 = 3;

/// A string: 24 bytes, whose lowest two bits tell how they are read.
///
/// - small (0): the first byte is the size, times four; the characters follow, and a NUL;
/// - large (1): size times four plus 1, capacity, pointer of `malloc`;
/// - offset (2): 32 bits of size times four plus 2, 32 bits of offset from the string's own address;
/// - view (3): size times four plus 3, pointer to characters of another owner.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_TString {
    words: [u64; 3],
}

const _: () = assert!(size_of::<TF_TString>() == 24);

impl TF_TString {
    pub(crate) const EMPTY: TF_TString = TF_TString { words: [0; 3] };

    fn kind(&self) -> u64 {
        self.words[0] & 3
    }

    fn len(&self) -> usize {
        match self.kind() {
            SMALL => ((self.words[0] & 0xff) >> 2) as usize,
            OFFSET => ((self.words[0] & 0xffff_ffff) >> 2) as usize,
            _ => (self.words[0] >> 2) as usize,
        }
    }

    fn data(&self) -> *const u8 {
        let this = std::ptr::from_ref(self).cast::<u8>();
        match self.kind() {
            SMALL => this.wrapping_add(1),
            OFFSET => this.wrapping_add((self.words[0] >> 32) as usize),
            LARGE => self.words[2] as usize as *const u8,
            _ => self.words[1] as usize as *const u8,
        }
    }

    /// The characters.
    ///
    /// # Safety
    /// What the string refers to is valid.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: as this function's; the size and the pointer belong together.
        unsafe { crate::guard::list(self.data(), self.len()) }
    }

    /// A string with a copy of `bytes`, to be freed by [`dealloc`](Self::dealloc).
    pub(crate) fn of(bytes: &[u8]) -> TF_TString {
        let mut to = TF_TString::EMPTY;
        if bytes.len() <= SMALL_CAPACITY {
            let mut raw = [0u8; 24];
            raw[0] = (bytes.len() << 2) as u8;
            raw[1..=bytes.len()].copy_from_slice(bytes);
            for (word, raw) in to.words.iter_mut().zip(raw.as_chunks().0) {
                *word = u64::from_ne_bytes(*raw);
            }
            return to;
        }
        // As TensorFlow: a NUL behind the characters, in whole 16 bytes.
        let room = (bytes.len() + 1).next_multiple_of(16);
        // SAFETY: `malloc` takes any size.
        let data = unsafe { libc::malloc(room) }.cast::<u8>();
        if data.is_null() {
            return to;
        }
        // SAFETY: the new block has room for the characters and the NUL.
        unsafe {
            data.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            data.add(bytes.len()).write(0);
        }
        to.words = [
            (bytes.len() as u64) << 2 | LARGE,
            (room - 1) as u64,
            data as usize as u64,
        ];
        to
    }

    /// Frees the characters of a large string and makes it empty.
    ///
    /// # Safety
    /// A large string's characters came from `malloc` and have no other owner.
    pub(crate) unsafe fn dealloc(&mut self) {
        if self.kind() == LARGE {
            // SAFETY: as this function's.
            unsafe { libc::free(self.words[2] as usize as *mut c_void) };
        }
        *self = TF_TString::EMPTY;
    }

    fn capacity(&self) -> usize {
        match self.kind() {
            SMALL => SMALL_CAPACITY,
            LARGE => self.words[1] as usize,
            _ => 0,
        }
    }
}

/// Makes memory an empty string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringInit(t: *mut TF_TString) {
    if !t.is_null() {
        // SAFETY: the contract of the header: room for a string.
        unsafe { t.write(TF_TString::EMPTY) };
    }
}

/// Copies bytes into a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringCopy(dst: *mut TF_TString, src: *const c_char, size: usize) {
    // SAFETY: the contract of the header.
    if let Some(dst) = unsafe { dst.as_mut() } {
        // SAFETY: as above.
        let new = TF_TString::of(unsafe { crate::guard::list(src.cast::<u8>(), size) });
        // SAFETY: as above.
        unsafe { dst.dealloc() };
        *dst = new;
    }
}

/// Lets a string refer to bytes of another owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringAssignView(
    dst: *mut TF_TString,
    src: *const c_char,
    size: usize,
) {
    // SAFETY: the contract of the header.
    if let Some(dst) = unsafe { dst.as_mut() } {
        // SAFETY: as above.
        unsafe { dst.dealloc() };
        dst.words = [(size as u64) << 2 | VIEW, src as usize as u64, 0];
    }
}

/// Returns the address of the characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringGetDataPointer(tstr: *const TF_TString) -> *const c_char {
    // SAFETY: the contract of the header.
    unsafe { tstr.as_ref() }.map_or(std::ptr::null(), |t| t.data().cast())
}

/// Returns the number of characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringGetSize(tstr: *const TF_TString) -> usize {
    // SAFETY: the contract of the header.
    unsafe { tstr.as_ref() }.map_or(0, TF_TString::len)
}

/// Returns the number of characters that fit without another allocation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringGetCapacity(str: *const TF_TString) -> usize {
    // SAFETY: the contract of the header.
    unsafe { str.as_ref() }.map_or(0, TF_TString::capacity)
}

/// Returns how the string is kept: 0 small, 1 large, 2 offset, 3 view.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringGetType(str: *const TF_TString) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { str.as_ref() }.map_or(0, |t| t.kind() as c_int)
}

/// Frees the characters and makes the string empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringDealloc(tstr: *mut TF_TString) {
    // SAFETY: the contract of the header.
    if let Some(t) = unsafe { tstr.as_mut() } {
        // SAFETY: as above.
        unsafe { t.dealloc() };
    }
}
