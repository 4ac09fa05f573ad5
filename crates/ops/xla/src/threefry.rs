//! ThreeFry, the generator of JAX's keys: its programs compute it by many small ops, in place of which the compiler puts
//! this one.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::threefry::{encrypt, encrypt_all};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Tensor};

/// The op of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "_Threefry2x32",
    "key0: uint32, key1: uint32, x0: uint32, x1: uint32 -> y0: uint32, y1: uint32",
)
.shape(|ctx| {
    let shape = ctx.merge(&ctx.input(2), &ctx.input(3))?;
    ctx.set(0, shape.clone());
    ctx.set(1, shape);
    Ok(())
})
.kernel(build)];

/// Numbers that are encrypted together.
const BLOCK: usize = 2048;

fn build(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let shape = ctx.shape(2)?.clone();
        let fits = |i: usize| Ok(ctx.shape(i)?.is_scalar() || *ctx.shape(i)? == shape);
        if *ctx.shape(3)? != shape || !fits(0)? || !fits(1)? {
            return Err(invalid_argument!(
                "the words must have one shape, and those of the key that or none"
            ));
        }
        let mut first = ctx.alloc(DType::Uint32, shape.clone())?;
        let mut second = ctx.alloc(DType::Uint32, shape)?;
        let words = [
            ctx.slice::<u32>(0)?,
            ctx.slice::<u32>(1)?,
            ctx.slice::<u32>(2)?,
            ctx.slice::<u32>(3)?,
        ];
        let out = first.slice_mut::<u32>()?;
        let mut blocks: Vec<(&mut [u32], &mut [u32])> = out
            .chunks_mut(BLOCK)
            .zip(second.slice_mut::<u32>()?.chunks_mut(BLOCK))
            .collect();
        par_chunks_mut(ctx.par(), &mut blocks, 1, 8, &|i, blocks| {
            for (a, b) in blocks {
                block(words, i * BLOCK, a, b);
            }
        });
        drop(blocks);
        set_both(ctx, first, second)
    }))
}

fn set_both(ctx: &mut KernelCtx, first: Tensor, second: Tensor) -> Result<()> {
    ctx.set_output(0, first)?;
    ctx.set_output(1, second)
}

/// Encrypts the words from `start` on.
fn block([k0, k1, x0, x1]: [&[u32]; 4], start: usize, a: &mut [u32], b: &mut [u32]) {
    let n = a.len();
    let [x0, x1] = [x0, x1].map(|x| &x[start..][..n]);
    if let (&[k0], &[k1]) = (k0, k1) {
        return encrypt_all([k0, k1], [x0, x1], [a, b]);
    }
    let of = |k: &[u32], i: usize| if k.len() == 1 { k[0] } else { k[start + i] };
    for i in 0..n {
        [a[i], b[i]] = encrypt([of(k0, i), of(k1, i)], [x0[i], x1[i]]);
    }
}
