//! Weights in the layout that kernels read, as tensors that a file can hold.

use ferroflow_base::{Result, Status, data_loss, invalid_argument};
use ferroflow_opdef::{AttrValue, Attrs, KernelBuild};
use ferroflow_primitives::bf16::Bf16Weights;
use ferroflow_primitives::gemm::{GemmElement, PackedB};
use ferroflow_primitives::{Isa, as_constants};
use ferroflow_sync::Inline;
use ferroflow_tensor::{Bytes, Element, LazyTensor, Shape, Tensor};

/// Returns the version of the packed layout and the machine's instruction set, which together
/// determine the packed bytes; so do its instructions for `bfloat16` if any product
/// [wants](wants_bf16) those. Weights packed under another value cannot be used.
///
/// ```
/// assert!(ferroflow_functors::prepack::packing(false).starts_with("7/"));
/// ```
pub fn packing(in_bf16: bool) -> String {
    let isa = match Isa::current() {
        Isa::Portable => "portable",
        Isa::Avx2 => "avx2",
        Isa::Avx512 => "avx512",
    };
    let bf16 = match in_bf16 && Bf16Weights::is_supported() {
        true => "+bf16",
        false => "",
    };
    format!("{VERSION}/{isa}{bf16}")
}

/// The attr of products that are computed in `bfloat16` where the CPU can; compilation sets it.
const MATH: &str = "_math";

/// Returns whether a node is to multiply floats in `bfloat16`.
pub fn wants_bf16(attrs: &Attrs) -> bool {
    matches!(attrs.get(MATH), Some(AttrValue::Str(math)) if math == "bfloat16")
}

/// Returns whether a kernel multiplies floats in `bfloat16`.
pub fn multiplies_bf16(build: &KernelBuild) -> bool {
    wants_bf16(build.attrs) && Bf16Weights::is_supported()
}

/// Incremented whenever the packed layout changes.
const VERSION: u32 = 7;

/// The bytes of packed weights, kept alive by the tensor.
struct Owner(Tensor);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

/// Returns the packed blocks of an earlier build of this node's kernel, if any.
///
/// # Errors
/// DATA_LOSS if the attr does not hold packed tensors.
pub fn blocks(build: &KernelBuild) -> Result<Option<Vec<Bytes>>> {
    let Some(blocks) = build.packed().transpose()? else {
        return Ok(None);
    };
    let bytes = blocks.into_iter().map(|t| Bytes::from_owner(Owner(t)));
    Ok(Some(bytes.collect()))
}

/// Returns the packed matrix of an earlier build.
///
/// # Errors
/// DATA_LOSS if the packed size is wrong.
pub fn matrix<T: GemmElement>(
    build: &KernelBuild,
    k: usize,
    n: usize,
) -> Result<Option<PackedB<T>>> {
    let Some(blocks) = blocks(build)? else {
        return Ok(None);
    };
    let [block] = &blocks[..] else {
        return Err(misfit());
    };
    let found = match multiplies_bf16(build) {
        true => T::bf16_from_packed(k, n, block.clone()),
        false => PackedB::from_packed(k, n, block.clone()),
    };
    found.map(Some).ok_or_else(misfit)
}

/// Returns a constant matrix as the right-hand side of products: packed by an earlier build, or
/// packed now.
///
/// # Errors
/// INVALID_ARGUMENT if the constant is not a matrix; DATA_LOSS if packed weights are damaged.
pub fn weights<T: GemmElement + Element>(
    build: &KernelBuild,
    weights: &LazyTensor,
    transposed: bool,
) -> Result<PackedB<T>> {
    let (k, n) = sizes(weights.shape(), transposed)?;
    match matrix(build, k, n)? {
        Some(packed) => Ok(packed),
        None => {
            let weights = weights.get()?;
            Ok(of_matrix(build, weights.slice()?, [k, n], transposed))
        }
    }
}

/// Packs `matrix[k][n]`, or the transpose of `matrix[n][k]`, as the right-hand side of a node's products.
///
/// # Panics
/// If the slice is too short.
pub fn of_matrix<T: GemmElement>(
    build: &KernelBuild,
    matrix: &[T],
    size: [usize; 2],
    transposed: bool,
) -> PackedB<T> {
    as_constants(|| {
        let bf16 = match multiplies_bf16(build) {
            true => T::bf16(&Inline, matrix, size, transposed),
            false => None,
        };
        bf16.unwrap_or_else(|| packed(matrix, size, transposed))
    })
}

fn packed<T: GemmElement>(matrix: &[T], [k, n]: [usize; 2], transposed: bool) -> PackedB<T> {
    match transposed {
        false => PackedB::from_rows(&Inline, matrix, n, k, n),
        true => PackedB::from_transposed(&Inline, matrix, k, k, n),
    }
}

/// Packs a matrix as the right-hand side of products.
///
/// # Errors
/// INVALID_ARGUMENT if the tensor is not a matrix of `T`.
pub fn pack<T: GemmElement + Element>(weights: &Tensor, transposed: bool) -> Result<PackedB<T>> {
    let (k, n) = sizes(weights.shape(), transposed)?;
    Ok(packed(weights.slice()?, [k, n], transposed))
}

fn sizes(shape: &Shape, transposed: bool) -> Result<(usize, usize)> {
    match (shape.dims(), transposed) {
        (&[rows, columns], false) => Ok((rows, columns)),
        (&[rows, columns], true) => Ok((columns, rows)),
        _ => Err(invalid_argument!(
            "weights must be a matrix, got shape {shape}"
        )),
    }
}

/// Returns the part of a packed matrix that is stored in a file.
///
/// # Errors
/// RESOURCE_EXHAUSTED if a copy does not fit into memory.
pub fn tensor<T: GemmElement + Element>(matrix: &PackedB<T>) -> Result<Tensor> {
    match matrix.bf16() {
        Some(pairs) => numbers(pairs.packed()),
        None => numbers(matrix.packed()),
    }
}

/// Returns packed numbers as they are stored in a file.
///
/// # Errors
/// RESOURCE_EXHAUSTED if a copy does not fit into memory.
pub fn numbers<T: Element>(packed: &[T]) -> Result<Tensor> {
    Tensor::from_slice(Shape::from([packed.len()]), packed)
}

/// Returns the error of packed weights whose size is wrong.
#[cold]
pub fn misfit() -> Status {
    data_loss!("the packed weights do not have the size of the weights")
}
