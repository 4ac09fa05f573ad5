//! Memory with machine code, and its calls.

use crate::helpers::Helper;
use ferroflow_base::{Result, internal, resource_exhausted};
use ferroflow_opdef::{Cluster, ClusterOutput};
use ferroflow_primitives::philox::Philox;
use ferroflow_sync::CancelToken;
use memmap2::{Mmap, MmapMut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most memory that all code of the process takes.
const MAX_CODE: usize = 64 << 20;
/// The most memory that an array takes.
const MAX_ARRAY: usize = 1 << 32;

static CODE_SIZE: AtomicUsize = AtomicUsize::new(0);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The outputs are complete.
    Done,
    /// The program left: the nodes that it was made of have to be run.
    Left,
    /// The token was cancelled.
    Cancelled,
}

impl Exit {
    pub(crate) const DONE: i64 = 0;
    pub(crate) const LEFT: i64 = 1;
    pub(crate) const CANCELLED: i64 = 2;
}

/// An array of a run.
#[derive(Clone, Debug)]
pub enum Array<'a> {
    /// The elements of an input.
    Input(&'a [u8]),
    /// The elements of an array that the program makes, with unused bytes at the end, and how many
    /// they are; empty before it is allocated.
    Own(Vec<u64>, usize),
}

/// The address and length of an array, as code sees it.
#[repr(C)]
pub(crate) struct RawArray {
    pub(crate) data: *const u8,
    pub(crate) len: usize,
}

/// What code is called with.
#[repr(C)]
pub(crate) struct Env<'a, 'b> {
    /// The inputs; replaced by the outputs.
    words: *mut u64,
    arrays: *mut RawArray,
    helpers: *const usize,
    own: &'a mut [Array<'b>],
    sizes: &'a [usize],
    pub(crate) streams: &'a mut [Philox],
    cancel: &'a CancelToken,
}

/// Pages with machine code, which count for the limit of the process.
pub(crate) struct CodeMemory(Mmap);

impl CodeMemory {
    /// Copies code to memory that can be executed.
    pub(crate) fn new(bytes: &[u8]) -> Result<CodeMemory> {
        let size = bytes.len().max(1).next_multiple_of(4096);
        let total = CODE_SIZE.fetch_add(size, Ordering::Relaxed) + size;
        let memory = match total <= MAX_CODE {
            true => executable(bytes),
            false => Err(resource_exhausted!(
                "compiled clusters take more than {} MiB",
                MAX_CODE >> 20
            )),
        };
        if memory.is_err() {
            CODE_SIZE.fetch_sub(size, Ordering::Relaxed);
        }
        memory.map(CodeMemory)
    }

    pub(crate) fn start(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn size(&self) -> usize {
        self.0.len().next_multiple_of(4096)
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        CODE_SIZE.fetch_sub(self.size(), Ordering::Relaxed);
    }
}

/// Machine code of one program.
pub struct Code {
    memory: CodeMemory,
    /// The functions that it calls, and where they are.
    helpers: Vec<Helper>,
    addresses: Vec<usize>,
    n_inputs: usize,
    n_outputs: usize,
    /// The bytes of an element of each array.
    element_sizes: Vec<usize>,
    n_input_arrays: usize,
    n_streams: usize,
}

impl Code {
    /// Copies code, which must be that of a function `fn(&mut Env) -> i64` of the program without relocations, which
    /// calls these helpers, to memory that can be executed.
    pub(crate) fn new(program: &Cluster, bytes: &[u8], helpers: Vec<Helper>) -> Result<Code> {
        let addresses = helpers.iter().map(|h| h.address());
        let addresses: Option<Vec<usize>> = addresses.collect();
        let addresses =
            addresses.ok_or_else(|| internal!("a cluster calls a function that there is not"))?;
        let memory = CodeMemory::new(bytes)?;
        let outputs = program.outputs.iter().map(|output| match output {
            ClusterOutput::Tensor(_, _, elements) => elements.len(),
            ClusterOutput::Array(_) => 0,
        });
        let types = program.array_types();
        Ok(Code {
            memory,
            helpers,
            addresses,
            n_inputs: program.input_values().count(),
            n_outputs: outputs.sum(),
            element_sizes: types.iter().map(|t| t.dtype().size()).collect(),
            n_input_arrays: types.len() - program.arrays.len(),
            n_streams: program.n_streams as usize,
        })
    }

    /// Returns the machine code and the functions that it calls.
    pub(crate) fn parts(&self) -> (&[u8], &[Helper]) {
        (&self.memory.0, &self.helpers)
    }

    /// Returns the number of words that [`run`](Self::run) takes.
    pub fn n_words(&self) -> usize {
        self.n_inputs.max(self.n_outputs)
    }

    /// Runs the program. `words` are the elements of the inputs, one a word, zero-extended; if the
    /// program is done, they are those of the outputs. `arrays` are the arrays by slot, `streams` those of random numbers,
    /// to be kept if the program is done.
    ///
    /// # Errors
    /// INTERNAL if the numbers of words, arrays or streams are wrong or an input is not aligned.
    pub fn run(
        &self,
        words: &mut [u64],
        arrays: &mut [Array],
        streams: &mut [Philox],
        cancel: &CancelToken,
    ) -> Result<Exit> {
        let is_input = |array: &Array, size: usize| match array {
            Array::Input(bytes) => bytes.len() % size == 0 && bytes.as_ptr().addr() % size == 0,
            Array::Own(..) => false,
        };
        let fits = arrays.len() == self.element_sizes.len()
            && arrays
                .iter()
                .zip(&self.element_sizes)
                .enumerate()
                .all(|(i, (array, size))| is_input(array, *size) == (i < self.n_input_arrays));
        if !fits || words.len() < self.n_words() || streams.len() != self.n_streams {
            return Err(internal!("a compiled cluster got wrong inputs"));
        }
        let mut raw: Vec<RawArray> = Vec::with_capacity(arrays.len());
        for (array, size) in arrays.iter().zip(&self.element_sizes) {
            let (data, len) = match array {
                Array::Input(bytes) => (bytes.as_ptr(), bytes.len() / size),
                Array::Own(..) => (std::ptr::dangling(), 0),
            };
            raw.push(RawArray { data, len });
        }
        let mut env = Env {
            words: words.as_mut_ptr(),
            arrays: raw.as_mut_ptr(),
            helpers: self.addresses.as_ptr(),
            own: arrays,
            sizes: &self.element_sizes,
            streams,
            cancel,
        };
        // SAFETY: `memory` holds a whole function of this signature, made by `translate` from a
        // verified program and never changed, here or by a process with the same key. It reads
        // and writes `n_words` words at `words`, as
        // many as there are, and elements of arrays, whose index it compares with `len` before.
        // It writes only to arrays that `allocate` has made, which are not touched meanwhile, and calls functions at
        // `helpers`, which has all that it was translated with.
        let exit = unsafe {
            let start = self.memory.start().cast::<()>();
            let run: extern "C" fn(*mut Env) -> i64 = std::mem::transmute(start);
            run(&mut env)
        };
        Ok(match exit {
            Exit::DONE => Exit::Done,
            Exit::CANCELLED => Exit::Cancelled,
            _ => Exit::Left,
        })
    }

    /// Returns the number of bytes of the code's pages.
    pub fn size(&self) -> usize {
        self.memory.size()
    }
}

fn executable(bytes: &[u8]) -> Result<Mmap> {
    let failed = |e: std::io::Error| internal!("no memory for compiled code: {e}");
    let mut memory = MmapMut::map_anon(bytes.len().max(1)).map_err(failed)?;
    memory[..bytes.len()].copy_from_slice(bytes);
    memory.make_exec().map_err(failed)
}

/// Offsets in [`Env`] and [`RawArray`].
pub(crate) mod offsets {
    use super::{Env, RawArray};
    use std::mem::offset_of;

    /// What code of one layout must not be called with another one.
    pub(crate) const ALL: [i32; 6] = [WORDS, ARRAYS, HELPERS, ARRAY, DATA, LEN];
    pub(crate) const WORDS: i32 = offset_of!(Env, words) as i32;
    pub(crate) const ARRAYS: i32 = offset_of!(Env, arrays) as i32;
    pub(crate) const HELPERS: i32 = offset_of!(Env, helpers) as i32;
    pub(crate) const ARRAY: i32 = size_of::<RawArray>() as i32;
    pub(crate) const DATA: i32 = offset_of!(RawArray, data) as i32;
    pub(crate) const LEN: i32 = offset_of!(RawArray, len) as i32;
}

/// Makes an array of zeros; returns 1 if that is not possible.
pub(crate) extern "C" fn allocate(env: &mut Env, slot: i64, len: i64) -> i64 {
    let Ok(slot) = usize::try_from(slot) else {
        return 1;
    };
    let (Some(Array::Own(words, n)), Some(size)) = (env.own.get_mut(slot), env.sizes.get(slot))
    else {
        return 1;
    };
    let bytes = usize::try_from(len).ok().and_then(|n| n.checked_mul(*size));
    let Some(bytes) = bytes.filter(|b| *b <= MAX_ARRAY) else {
        return 1;
    };
    let n_words = bytes.div_ceil(8);
    words.clear();
    if words.try_reserve_exact(n_words).is_err() {
        return 1;
    }
    words.resize(n_words, 0);
    *n = len as usize;
    // SAFETY: `arrays` has an entry for each of `own`, and no other reference to it exists now.
    unsafe {
        *env.arrays.add(slot) = RawArray {
            data: words.as_mut_ptr().cast_const().cast(),
            len: len as usize,
        };
    }
    0
}

/// Returns 1 if the step was cancelled.
pub(crate) extern "C" fn poll(env: &Env) -> i64 {
    i64::from(env.cancel.check().is_err())
}
