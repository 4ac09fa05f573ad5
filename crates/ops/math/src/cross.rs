//! Cross (TensorFlow: `core/kernels/cross_op.cc`).

use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Element, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("Cross", "a: T, b: T -> product: T | T: realnumbertype |")
        .shape(|ctx| {
            let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
            ctx.set(0, shape);
            Ok(())
        })
        .kernel(cross_factory)
        .gradient(cross_gradient),
];

fn cross_factory(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] =>
        Ok(Box::new(|ctx: &mut KernelCtx| cross(ctx, |x: T| x, |x: T| x))),
        else dispatch!(dtype, H in [f16, bf16] =>
            Ok(Box::new(|ctx: &mut KernelCtx| cross(ctx, |x: H| x.to_f32(), H::from_f32))),
            else Err(build.unsupported(dtype))))
}

fn cross<T: Element, W: Num>(
    ctx: &mut KernelCtx,
    up: impl Fn(T) -> W,
    down: impl Fn(W) -> T,
) -> Result<()> {
    let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
    if a != b {
        return Err(invalid_argument!(
            "Both inputs must be of same shape: {a} vs. {b}"
        ));
    }
    match a.last() {
        None => return Err(invalid_argument!("Input must be at least 1D{a}")),
        Some(3) => {}
        Some(_) => {
            return Err(failed_precondition!(
                "Cross-products are only defined for 3-element vectors."
            ));
        }
    }
    let mut out = ctx.alloc(T::DTYPE, a.clone())?;
    let (a, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    let vectors = a.chunks_exact(3).zip(b.chunks_exact(3));
    for ((a, b), out) in vectors.zip(out.slice_mut::<T>()?.chunks_exact_mut(3)) {
        let (a, b) = ([0, 1, 2].map(|i| up(a[i])), [0, 1, 2].map(|i| up(b[i])));
        for (i, out) in out.iter_mut().enumerate() {
            let (j, k) = ((i + 1) % 3, (i + 2) % 3);
            *out = down(a[j].mul(b[k]).sub(a[k].mul(b[j])));
        }
    }
    ctx.set_output(0, out)
}

fn cross_gradient(g: &mut GradientCtx) -> Result<()> {
    let (a, b, d) = (g.x(0), g.x(1), g.dy(0));
    g.set(0, b.op("Cross", &[d]))?;
    g.set(1, d.op("Cross", &[a]))
}
