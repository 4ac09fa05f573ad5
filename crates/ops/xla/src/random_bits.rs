//! XlaRngBitGenerator: the generators Philox and ThreeFry (Salmon et al., SC 2011) with XLA's states (XLA:
//! `hlo/builder/lib/prng.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{shape_input, shape_vector};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_primitives::threefry::encrypt;
use ferroflow_tensor::{DType, Element, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "XlaRngBitGenerator",
    "algorithm: int32, initial_state: uint64, shape: Tshape -> output_key: uint64, output: dtype | dtype: type \
     {uint8,int8,int32,int64,uint32,uint64} = uint64; Tshape: type {int32,int64} = int32",
)
.shape(shapes)
.kernel(bits)];

fn shapes(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 0)?;
    let state = ctx.with_rank(1, 1)?;
    ctx.set(0, state);
    ctx.set(1, shape_input(ctx, 2)?);
    Ok(())
}

/// An integer that takes the lowest bits of a number.
trait Low: Element {
    fn low(bits: u64) -> Self;
}

macro_rules! low {
    ($($ty:ty),*) => {$(
        impl Low for $ty {
            #[inline(always)]
            fn low(bits: u64) -> Self { bits as $ty }
        }
    )*};
}
low!(u8, i8, i32, u32, i64, u64);

fn bits(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(1)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let algorithm = ctx.input(0)?.to_scalar::<i32>()?;
        let state = ctx.input(1)?;
        if state.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Shape must be rank 1 but is rank {}",
                state.shape().rank()
            ));
        }
        let state = state.slice::<u64>()?;
        let shape = shape_vector(ctx.input(2)?)?;
        let (next, out) = match (algorithm, state) {
            // What XLA selects itself is Philox on a CPU.
            (1 | 3, &[key, low]) => philox(ctx, key, [low, key], dtype, shape, 2)?,
            (1 | 3, &[key, low, high]) => philox(ctx, key, [low, high], dtype, shape, 3)?,
            (2, &[key, counter]) => threefry(ctx, key, counter, dtype, shape)?,
            (1..=3, _) => {
                return Err(invalid_argument!(
                    "the initial state has {} elements: ThreeFry needs 2 and Philox 2 or 3",
                    state.len()
                ));
            }
            _ => return Err(invalid_argument!("unknown algorithm")),
        };
        ctx.set_output(0, next)?;
        ctx.set_output(1, out)
    }))
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn philox(
    ctx: &KernelCtx,
    key: u64,
    [low, high]: [u64; 2],
    dtype: DType,
    shape: Shape,
    len: usize,
) -> Result<(Tensor, Tensor)> {
    let counter = u128::from(low) | u128::from(high) << 64;
    let mut out = ctx.alloc(dtype, shape)?;
    let words = if dtype.size() == 8 { 2 } else { 1 };
    let per_block = 4 / words;
    let mut stream = Philox::at(key, counter);
    dispatch!(dtype, T in [u8, i8, i32, u32, i64, u64] => {
        for out in out.slice_mut::<T>()?.chunks_mut(per_block) {
            let block = stream.next_block();
            for (j, out) in out.iter_mut().enumerate() {
                *out = match words {
                    2 => T::low(joined(block[2 * j], block[2 * j + 1])),
                    _ => T::low(block[j].into()),
                };
            }
        }
    }, else return Err(invalid_argument!("{dtype} is not a type of random bits")));
    let (_, next) = stream.position();
    let state = [key, next as u64, (next >> 64) as u64];
    Ok((Tensor::vector(&state[..len])?, out))
}

fn threefry_block(counter: u64, key: u64) -> [u32; 2] {
    let words = |n: u64| [n as u32, (n >> 32) as u32];
    encrypt(words(key), words(counter))
}

fn threefry(
    ctx: &KernelCtx,
    key: u64,
    counter: u64,
    dtype: DType,
    shape: Shape,
) -> Result<(Tensor, Tensor)> {
    let mut out = ctx.alloc(dtype, shape.clone())?;
    let n_blocks = dispatch!(dtype, T in [i64, u64] => {
        for (i, out) in out.slice_mut::<T>()?.iter_mut().enumerate() {
            let [a, b] = threefry_block(counter.wrapping_add(i as u64), key);
            *out = T::low(joined(a, b));
        }
        shape.num_elements()
    }, else dispatch!(dtype, T in [u8, i8, i32, u32] => {
        let halves = Halves::of(&shape);
        for (i, out) in out.slice_mut::<T>()?.iter_mut().enumerate() {
            let (block, word) = halves.place(i);
            *out = T::low(threefry_block(counter.wrapping_add(block as u64), key)[word].into());
        }
        halves.n_blocks()
    }, else return Err(invalid_argument!("{dtype} is not a type of random bits"))));
    let state = [key, counter.wrapping_add(n_blocks as u64)];
    Ok((Tensor::vector(&state)?, out))
}

/// How the two words of blocks are spread over a tensor: neighbors along one dimension, the first even one or else the
/// largest, are a block's.
struct Halves {
    outer: usize,
    size: usize,
    inner: usize,
}

impl Halves {
    fn of(shape: &Shape) -> Halves {
        let even = shape.iter().position(|d| d % 2 == 0);
        let largest = || (0..shape.rank()).rev().max_by_key(|&i| shape[i]);
        match even.or_else(largest) {
            Some(axis) => Halves {
                outer: shape[..axis].iter().product(),
                size: shape[axis],
                inner: shape[axis + 1..].iter().product(),
            },
            None => Halves {
                outer: 1,
                size: 1,
                inner: 1,
            },
        }
    }

    fn n_blocks(&self) -> usize {
        self.outer * self.size.div_ceil(2) * self.inner
    }

    /// Returns the block of an element, and which of its words it is.
    fn place(&self, i: usize) -> (usize, usize) {
        let (inner, along) = (i % self.inner, i / self.inner);
        let (along, outer) = (along % self.size, along / self.size);
        let block = (outer * self.size.div_ceil(2) + along / 2) * self.inner + inner;
        (block, along % 2)
    }
}
