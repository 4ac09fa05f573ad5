//! Weights in the order that the kernels read them, as tensors that a file can hold.

use ferroflow_base::{Result, Status, data_loss, invalid_argument};
use ferroflow_opdef::KernelBuild;
use ferroflow_primitives::Isa;
use ferroflow_primitives::gemm::{GemmElement, PackedB};
use ferroflow_sync::Inline;
use ferroflow_tensor::{Bytes, Element, LazyTensor, Shape, Tensor};

/// What packed weights depend on besides the graph: the version of the kernels' order and the
/// machine's instructions. Weights that were packed under another name are of no use.
///
/// ```
/// assert!(ferroflow_functors::prepack::packing().starts_with("2/"));
/// ```
pub fn packing() -> String {
    let isa = match Isa::current() {
        Isa::Portable => "portable",
        Isa::Avx2 => "avx2",
        Isa::Avx512 => "avx512",
    };
    format!("{VERSION}/{isa}")
}

/// Goes up whenever something is packed differently than before.
const VERSION: u32 = 2;

/// The bytes of packed weights, kept alive by the tensor.
struct Owner(Tensor);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

/// Returns the blocks that a kernel of this node was packed into before.
pub fn blocks(build: &KernelBuild) -> Result<Option<Vec<Bytes>>> {
    let Some(blocks) = build.packed().transpose()? else {
        return Ok(None);
    };
    let bytes = blocks.into_iter().map(|t| Bytes::from_owner(Owner(t)));
    Ok(Some(bytes.collect()))
}

/// Returns a matrix that was packed before.
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
    PackedB::from_packed(k, n, block.clone())
        .map(Some)
        .ok_or_else(misfit)
}

/// Returns a constant matrix as the right-hand side of products: as it was packed before, or packed
/// now.
pub fn weights<T: GemmElement + Element>(
    build: &KernelBuild,
    weights: &LazyTensor,
    transposed: bool,
) -> Result<PackedB<T>> {
    let (k, n) = sizes(weights.shape(), transposed)?;
    match matrix(build, k, n)? {
        Some(packed) => Ok(packed),
        None => pack(&weights.get()?, transposed),
    }
}

/// Packs a matrix as the right-hand side of products.
pub fn pack<T: GemmElement + Element>(weights: &Tensor, transposed: bool) -> Result<PackedB<T>> {
    let (k, n) = sizes(weights.shape(), transposed)?;
    let data = weights.slice::<T>()?;
    Ok(match transposed {
        false => PackedB::from_rows(&Inline, data, n, k, n),
        true => PackedB::from_transposed(&Inline, data, k, k, n),
    })
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
pub fn tensor<T: GemmElement + Element>(matrix: &PackedB<T>) -> Result<Tensor> {
    let packed = matrix.packed();
    Tensor::from_slice(Shape::from([packed.len()]), packed)
}

/// Returns the error of packed weights whose size is wrong.
#[cold]
pub fn misfit() -> Status {
    data_loss!("the packed weights do not have the size of the weights")
}
