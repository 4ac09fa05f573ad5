//! RecordInput: batches of records of files in random order (TensorFlow: `core/kernels/record_input_op.cc`,
//! `record_yielder.cc`).
//!
//! TensorFlow's threads fill a buffer that batches are taken from. Here a batch fills it when too little is left, in the order
//! that TensorFlow has with one thread.

use crate::mersenne_twister::MersenneTwister;
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_model::{RecordCompression, RecordReader};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::file_system::glob;
use ferroflow_tensor::{Bytes, PartialShape, Tensor};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RecordInput",
    "-> records: string | file_pattern: string; file_random_seed: int = 301; \
     file_shuffle_shift_ratio: float = 0.0; file_buffer_size: int = 10000; file_parallelism: int = \
     16; batch_size: int = 32; compression_type: string = '' | stateful",
)
.shape(|ctx| {
    ctx.set(0, PartialShape::unknown());
    Ok(())
})
.cost(Cost::Expensive)
.kernel(record_input)];

struct Options {
    pattern: String,
    seed: u64,
    shift: f32,
    compression: RecordCompression,
}

/// The records that were read and not yet returned.
struct Pool {
    random: MersenneTwister,
    epoch: u64,
    files: VecDeque<String>,
    current: Option<RecordReader>,
    buffer: Vec<Bytes>,
    /// How many records are buffered; those of a whole epoch, once it had fewer.
    limit: usize,
    n_read: usize,
}

/// Most records that are read before they are mixed with others.
const CHUNK: usize = 16;

fn record_input(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let parallelism = attrs.int("file_parallelism")?;
    if parallelism < 0 {
        return Err(invalid_argument!(
            "file_parallelism should >= 0, got {parallelism}"
        ));
    }
    let batch = attrs.int("batch_size")?;
    let size = usize::try_from(batch)
        .map_err(|_| invalid_argument!("batch_size must be non-negative but got {batch}"))?;
    let options = Options {
        pattern: attrs.str("file_pattern")?.to_string(),
        seed: attrs.int("file_random_seed")? as u64,
        shift: attrs.float("file_shuffle_shift_ratio")?,
        compression: match attrs.str("compression_type")? {
            "GZIP" => RecordCompression::Gzip,
            "ZLIB" => RecordCompression::Zlib,
            _ => RecordCompression::None,
        },
    };
    let limit = attrs.int("file_buffer_size")?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let name = format!("{}/RecordInput", build.node);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let pool = ctx.resources().session_local(&name, || {
            Ok(Mutex::new(Pool {
                random: MersenneTwister::new(options.seed),
                epoch: 0,
                files: VecDeque::new(),
                current: None,
                buffer: Vec::new(),
                limit,
                n_read: 0,
            }))
        })?;
        let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records = Vec::new();
        while records.len() < size {
            ctx.services().cancel.check()?;
            records.push(pool.next(&options)?);
        }
        ctx.set_output(0, Tensor::from_strings([size], records)?)
    }))
}

impl Pool {
    fn next(&mut self, options: &Options) -> Result<Bytes> {
        if self.files.is_empty() && self.current.is_none() {
            if let Some(record) = self.buffer.pop() {
                return Ok(record);
            }
            self.begin(options)?;
        }
        if self.buffer.len() < (self.limit / 2).max(1) {
            self.fill(options)?;
        }
        self.buffer
            .pop()
            .ok_or_else(|| not_found!("Found no records at {}", options.pattern))
    }

    /// Begins another pass over the files.
    fn begin(&mut self, options: &Options) -> Result<()> {
        if self.epoch > 0 {
            self.limit = self.limit.min(self.n_read);
        }
        (self.epoch, self.n_read) = (self.epoch + 1, 0);
        let patterns = options.pattern.split(',');
        let found = patterns.map(glob).collect::<Result<Vec<_>>>()?;
        let mut files = found.concat();
        if files.is_empty() {
            return Err(not_found!("Found no files at {}", options.pattern));
        }
        let mut random = MersenneTwister::new(hash(self.epoch, options.seed));
        random.shuffle(&mut files);
        if (0.0..1.0).contains(&options.shift) {
            let shift = (options.shift * files.len() as f32) as usize;
            files.rotate_left(shift);
        }
        self.files = files.into();
        Ok(())
    }

    /// Reads records until the buffer is full or the files end.
    fn fill(&mut self, options: &Options) -> Result<()> {
        let mut values = Vec::new();
        loop {
            match self.read(options)? {
                Some(record) => values.push(record),
                None => break self.mix(values),
            }
            if values.len() >= CHUNK {
                self.mix(std::mem::take(&mut values));
                if self.buffer.len() >= self.limit.max(1) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, options: &Options) -> Result<Option<Bytes>> {
        loop {
            if let Some(reader) = &mut self.current {
                match reader.read()? {
                    Some(record) => {
                        self.n_read += 1;
                        return Ok(Some(record.into()));
                    }
                    None => self.current = None,
                }
            }
            let Some(file) = self.files.pop_front() else {
                return Ok(None);
            };
            let reader = RecordReader::open(Path::new(&file), options.compression);
            self.current = Some(reader.map_err(|_| invalid_argument!("Can't open {file}"))?);
        }
    }

    /// Puts records at random places of the buffer.
    fn mix(&mut self, mut values: Vec<Bytes>) {
        while let Some(value) = values.pop() {
            let at = (self.random.next() % (self.buffer.len() as u64 + 1)) as usize;
            self.buffer.push(value);
            let last = self.buffer.len() - 1;
            self.buffer.swap(at, last);
        }
    }
}

/// Returns TensorFlow's `Hash64` of a number (`core/lib/hash/hash.cc`: MurmurHash64A).
fn hash(number: u64, seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mixed = |x: u64| x ^ (x >> 47);
    let part = mixed(number.wrapping_mul(M)).wrapping_mul(M);
    let h = seed ^ 8u64.wrapping_mul(M);
    let h = (h ^ part).wrapping_mul(M);
    mixed(mixed(h).wrapping_mul(M))
}
