//! Where: the indices of nonzero elements (TensorFlow: `core/kernels/where_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, PartialShape, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Where",
    "input: T -> index: int64 | T: type {numbertype,bool} = bool",
)
.shape(|ctx| {
    let rank = ctx.input(0).rank();
    ctx.set(0, PartialShape::of([None, rank]));
    Ok(())
})
// A byte of the input takes longer than in most kernels: it may become eight bytes for each dimension.
.cost(Cost::Expensive)
.kernel(where_)];

/// Elements of a word of bits.
const WORD: usize = 64;
/// Words that are worth a task.
const GROUP: usize = 512;

/// Returns for each element whether it is not zero, one bit each.
fn bits_of<T: Element>(values: &[T]) -> u64 {
    let mut bits = 0;
    for (i, values) in values.chunks(8).enumerate() {
        let mut bytes = [0u8; 8];
        for (byte, v) in bytes.iter_mut().zip(values) {
            *byte = u8::from(*v != T::default());
        }
        // The product moves the bytes' lowest bits to the highest byte.
        let gathered = u64::from_le_bytes(bytes).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= gathered << (8 * i);
    }
    bits
}

fn words_of<T: Element>(par: &dyn Parallelism, values: &[T]) -> Vec<u64> {
    let mut words = vec![0; values.len().div_ceil(WORD)];
    par_chunks_mut(par, &mut words, GROUP, 1, &|i, words| {
        let values = &values[i * GROUP * WORD..];
        vectorized(
            #[inline(always)]
            || {
                for (word, values) in words.iter_mut().zip(values.chunks(WORD)) {
                    *word = bits_of(values);
                }
            },
        );
    });
    words
}

/// Calls `f` with the position of each set bit.
fn each_set(words: &[u64], mut f: impl FnMut(usize)) {
    for (i, &word) in words.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            f(i * WORD + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}

fn where_(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [bool, f32, f64, i32, i64, u8, i8, i16, u16, u32, u64, f16, bf16, Complex32, Complex64] =>
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let words = words_of(ctx.par(), ctx.slice::<T>(0)?);
            positions(ctx, &words)
        })),
        else Err(build.unsupported(dtype)))
}

/// Sets the output to the coordinates of the set bits.
fn positions(ctx: &mut KernelCtx, words: &[u64]) -> Result<()> {
    let dims = ctx.shape(0)?.clone();
    let rank = dims.rank();
    if !(1..=8).contains(&rank) {
        return Err(invalid_argument!(
            "WhereOp : Unhandled input dimensions: {rank}"
        ));
    }
    let n: usize = words.iter().map(|word| word.count_ones() as usize).sum();
    let mut out = ctx.alloc(DType::Int64, indices::shape_of([n, rank])?)?;
    let to = out.slice_mut::<i64>()?;
    if rank == 1 {
        let mut to = to.iter_mut();
        each_set(words, |at| {
            if let Some(to) = to.next() {
                *to = at as i64;
            }
        });
        return ctx.set_output(0, out);
    }
    // The coordinates of the row that has the last position, and where the row begins.
    let (mut coords, columns) = ([0i64; 8], dims[rank - 1]);
    let (mut begin, mut to) = (0, to.chunks_exact_mut(rank));
    each_set(words, |at| {
        if at - begin >= columns {
            let mut row = at / columns;
            begin = row * columns;
            for (coord, &size) in coords[..rank - 1].iter_mut().zip(&dims[..rank - 1]).rev() {
                *coord = (row % size) as i64;
                row /= size;
            }
        }
        coords[rank - 1] = (at - begin) as i64;
        if let Some(to) = to.next() {
            to.copy_from_slice(&coords[..rank]);
        }
    });
    ctx.set_output(0, out)
}
