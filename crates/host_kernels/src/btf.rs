//! `btf.*`: tensors from files in TFRT's binary tensor format (BTF): the number of tensors, their
//! offsets, then each with its rank, type, layout, sizes and elements; little endian throughout.

use super::dense::{CooHostTensor, DenseHostTensor, HostTensor};
use super::shape::TensorShape;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{Frame, HostDType, KernelFrame, KernelRegistry};
use ferroflow_tensor::{HostAllocator, memory_limit};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

/// Layout of all elements, row-major; the other layout holds nonzero elements with coordinates.
const DENSE: u8 = 0;
const COO: u8 = 2;

/// The type of tensor that a kernel expects.
#[derive(Clone, Copy)]
struct Expected {
    dtype: HostDType,
    /// The type's number in the file.
    code: u8,
    rank: usize,
    layout: u8,
}

/// A file being read.
struct Reader {
    file: File,
    path: String,
}

impl Reader {
    fn open(path: String) -> Result<Reader> {
        let file = File::open(&path)
            .map_err(|_| invalid_argument!("failed to open file {path} for reading"))?;
        Ok(Reader { file, path })
    }

    fn seek(&mut self, at: u64) -> Result<()> {
        let moved = self.file.seek(SeekFrom::Start(at));
        moved.map(|_| ()).map_err(|_| self.too_short("a tensor"))
    }

    /// Returns the next `n` bytes.
    fn bytes(&mut self, n: usize, what: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&self.file).take(n as u64).read_to_end(&mut bytes);
        match read {
            Ok(got) if got == n => Ok(bytes),
            _ => Err(self.too_short(what)),
        }
    }

    fn words(&mut self, n: usize, what: &str) -> Result<Vec<u64>> {
        let bytes = self.bytes(n.saturating_mul(8), what)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    fn word(&mut self, what: &str) -> Result<u64> {
        let words = self.words(1, what)?;
        words.first().copied().ok_or_else(|| self.too_short(what))
    }

    fn too_short(&self, what: &str) -> ferroflow_base::Status {
        invalid_argument!("failed to read {what} from {}", self.path)
    }

    fn dims(&mut self, rank: usize) -> Result<TensorShape> {
        let dims = self.words(rank, "tensor dims")?;
        let dims = dims.into_iter().map(|d| i64::try_from(d).unwrap_or(-1));
        TensorShape::new(dims.collect::<Vec<_>>())
    }

    /// Reads shape and elements, `size` bytes each.
    fn payload(&mut self, rank: usize, size: usize) -> Result<(TensorShape, Vec<u8>)> {
        let shape = self.dims(rank)?;
        let n_bytes = shape.n_elements()?.checked_mul(size);
        let n_bytes = n_bytes.filter(|n| *n <= memory_limit());
        let n_bytes = n_bytes.ok_or_else(|| invalid_argument!("cannot allocate result tensor"))?;
        let bytes = self.bytes(n_bytes, "tensor data")?;
        Ok((shape, bytes))
    }
}

/// Reads tensor `index` of the file.
fn read(
    path: String,
    index: i32,
    expected: Expected,
    allocator: &Arc<dyn HostAllocator>,
) -> Result<HostTensor> {
    let mut file = Reader::open(path)?;
    let n_tensors = file.word("num_tensors")?;
    let index = u64::try_from(index).ok().filter(|i| *i < n_tensors);
    let Some(index) = index else {
        return Err(invalid_argument!(
            "invalid tensor index to read tensor from path {} which contains {n_tensors} tensors",
            file.path
        ));
    };
    file.seek(index.saturating_add(1).saturating_mul(8))?;
    let offset = file.word("tensor offset")?;
    file.seek(offset)?;
    let rank = file.word("tensor header")?;
    let header = file.word("tensor header")?.to_le_bytes();
    let [code, layout, ..] = header;
    if code != expected.code {
        return Err(invalid_argument!(
            "unexpected tensor dtype {code}. Expected dtype is {}",
            expected.code
        ));
    }
    if rank != expected.rank as u64 {
        return Err(invalid_argument!(
            "unexpected tensor rank {rank}. Expected rank is {}",
            expected.rank
        ));
    }
    if layout != expected.layout {
        return Err(invalid_argument!("unexpected tensor layout {layout}"));
    }
    let size = expected.dtype.size().unwrap_or(1);
    if layout == DENSE {
        let (shape, bytes) = file.payload(expected.rank, size)?;
        let tensor = DenseHostTensor::from_bytes(allocator, expected.dtype, shape, &bytes)?;
        return Ok(HostTensor::Dense(tensor));
    }
    let shape = file.dims(expected.rank)?;
    let (rows, indices) = file.payload(2, 8)?;
    let (count, values) = file.payload(1, size)?;
    if rows.0[..] != [count.n_elements()? as i64, expected.rank as i64] {
        return Err(invalid_argument!(
            "the tensor is not correctly formatted: indices of shape {rows} and values of shape \
             {count} do not fit a tensor of shape {shape}"
        ));
    }
    let words = indices.as_chunks::<8>().0.iter();
    let indices: Vec<i64> = words.map(|word| i64::from_le_bytes(*word)).collect();
    CooHostTensor::new(expected.dtype, shape, indices, values).map(HostTensor::Coo)
}

/// Reads a tensor of a file, by path and index; reading may block.
fn read_tensor(frame: &mut KernelFrame, expected: Expected) -> Result<()> {
    let (path, index) = (frame.arg::<String>(0)?.clone(), *frame.arg::<i32>(1)?);
    let (promise, reporter) = (frame.allocate::<HostTensor>(0), frame.reporter());
    let host = frame.ctx().host().clone();
    super::blocking(frame.ctx(), move || {
        let tensor = read(path, index, expected, host.allocator());
        reporter.fulfill(promise, tensor);
    })
}

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = [
        ("i8", HostDType::I8, 0),
        ("i32", HostDType::I32, 2),
        ("i64", HostDType::I64, 3),
        ("f32", HostDType::F32, 4),
        ("ui8", HostDType::UI8, 6),
    ];
    for (name, dtype, code) in types {
        for (kind, layout) in [("dense", DENSE), ("coo", COO)] {
            for rank in 0..5 {
                let expected = Expected {
                    dtype,
                    code,
                    rank,
                    layout,
                };
                let kernel = format!("btf.read_{kind}_tensor.{name}.{rank}");
                registry.add_raw(&kernel, move |frame| read_tensor(frame, expected));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_tensor::MallocAllocator;

    /// Returns a tensor [1, 2] of i8, and a sparse one of shape [2] with 9 at 1.
    fn file() -> Vec<u8> {
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut bytes: Vec<u8> = words(&[2, 24, 56, 1, 0, 2]);
        bytes.extend([1, 2, 0, 0, 0, 0, 0, 0]);
        let sparse: Vec<u8> = words(&[1, 6 | 2 << 8, 2, 1, 1, 1, 1]);
        bytes.extend(sparse);
        bytes.push(9);
        bytes
    }

    fn check(bytes: &[u8], index: i32, expected: Expected) -> Result<HostTensor> {
        let name = format!("ferroflow-{}.btf", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("a temporary file");
        let allocator: Arc<dyn HostAllocator> = Arc::new(MallocAllocator);
        let tensor = read(path.display().to_string(), index, expected, &allocator);
        std::fs::remove_file(&path).expect("the file exists");
        tensor
    }

    fn expected(dtype: HostDType, code: u8, layout: u8) -> Expected {
        Expected {
            dtype,
            code,
            rank: 1,
            layout,
        }
    }

    #[test]
    fn no_byte_of_a_file_does_harm() {
        let (dense, sparse) = (
            expected(HostDType::I8, 0, DENSE),
            expected(HostDType::UI8, 6, COO),
        );
        let bytes = file();
        let first = check(&bytes, 0, dense).expect("the first tensor");
        let elements = first.dense().expect("dense").buffer.read(<[u8]>::to_vec);
        assert_eq!(elements, [1, 2]);
        let second = check(&bytes, 1, sparse).expect("the second tensor");
        let second = second.coo().expect("sparse");
        assert_eq!(
            (&second.indices[..], &second.values[..]),
            (&[1][..], &[9][..])
        );
        let mut errors = 0;
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut mangled = bytes.clone();
                mangled[at] = value;
                errors += usize::from(check(&mangled, 0, dense).is_err());
                errors += usize::from(check(&mangled, 1, sparse).is_err());
            }
            let short = &bytes[..at];
            assert!(check(short, 1, sparse).is_err(), "{at} bytes");
        }
        assert!(errors > 100, "{errors}");
        assert!(check(&bytes, 2, dense).is_err());
        assert!(check(&bytes, -1, dense).is_err());
    }
}
