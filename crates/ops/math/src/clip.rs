//! ClipByValue (TensorFlow: `core/kernels/cwise_op_clip.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::HALF_BLOCK;
use ferroflow_functors::numeric::Half;
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{GradientCtx, KernelCtx, Op};
use ferroflow_primitives::vectorized;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex, Complex32, Complex64, DType, Element, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "ClipByValue",
    "t: T, clip_value_min: T, clip_value_max: T -> output: T | T: numbertype |",
)
.shape(|ctx| {
    ctx.set(0, ctx.input(0));
    Ok(())
})
.kernel(|build| {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] =>
    Ok(Box::new(|ctx: &mut KernelCtx| clip::<T>(ctx, limited, limit_all))),
    else match dtype {
        DType::Half => Ok(Box::new(clip_half::<f16>)),
        DType::Bfloat16 => Ok(Box::new(clip_half::<bf16>)),
        // Real and imaginary parts are clipped separately.
        DType::Complex64 => Ok(Box::new(|ctx: &mut KernelCtx| clip::<Complex32>(ctx, by_parts, each_by_parts))),
        DType::Complex128 => Ok(Box::new(|ctx: &mut KernelCtx| clip::<Complex64>(ctx, by_parts, each_by_parts))),
        _ => Err(build.unsupported(dtype)),
    })
})
.gradient(clip_gradient)];

#[inline(always)]
fn limited<T: PartialOrd>(x: T, lo: T, hi: T) -> T {
    let y = if hi < x { hi } else { x };
    if y < lo { lo } else { y }
}

fn by_parts<T: PartialOrd>(x: Complex<T>, lo: Complex<T>, hi: Complex<T>) -> Complex<T> {
    Complex::new(limited(x.re, lo.re, hi.re), limited(x.im, lo.im, hi.im))
}

fn limit_all<T: Element + PartialOrd>(values: &mut [T], lo: T, hi: T) {
    vectorized(
        #[inline(always)]
        || values.iter_mut().for_each(|x| *x = limited(*x, lo, hi)),
    );
}

fn each_by_parts<T>(values: &mut [Complex<T>], lo: Complex<T>, hi: Complex<T>)
where
    T: PartialOrd + Copy,
{
    values.iter_mut().for_each(|x| *x = by_parts(*x, lo, hi));
}

/// `limit` limits an element, `limit_all` elements by the same limits.
fn clip<T: Element>(
    ctx: &mut KernelCtx,
    limit: fn(T, T, T) -> T,
    limit_all: fn(&mut [T], T, T),
) -> Result<()> {
    let (shape, lo, hi) = (ctx.shape(0)?.clone(), ctx.shape(1)?, ctx.shape(2)?);
    let fits = |s: &ferroflow_tensor::Shape| s.is_scalar() || *s == shape;
    if !fits(lo) || !fits(hi) {
        return Err(invalid_argument!(
            "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. \
             input shape: {shape}clip_value_min shape: {lo}clip_value_max shape: {hi}"
        ));
    }
    let (mut out, forwarded) = ctx.forward_or_alloc(&[0], T::DTYPE, shape)?;
    let x = if forwarded.is_some() {
        None
    } else {
        Some(ctx.slice::<T>(0)?)
    };
    let (lo, hi) = (ctx.slice::<T>(1)?, ctx.slice::<T>(2)?);
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, CHEAP, 1, &|i, out| {
        let range = i * CHEAP..i * CHEAP + out.len();
        if let Some(x) = x {
            out.copy_from_slice(&x[range.clone()]);
        }
        match (lo, hi) {
            (&[lo], &[hi]) => limit_all(out, lo, hi),
            _ => {
                for (k, x) in range.zip(out) {
                    *x = limit(*x, lo[k.min(lo.len() - 1)], hi[k.min(hi.len() - 1)]);
                }
            }
        }
    });
    ctx.set_output(0, out)
}

/// Clips 16-bit floats.
fn clip_half<H: Half>(ctx: &mut KernelCtx) -> Result<()> {
    clip(ctx, limited::<H>, |values, lo, hi| {
        let mut wide = [0.0; HALF_BLOCK];
        for values in values.chunks_mut(HALF_BLOCK) {
            let wide = &mut wide[..values.len()];
            H::widen(values, wide);
            limit_all(wide, lo.wide(), hi.wide());
            H::narrow_all(wide, values);
        }
    })
}

/// The gradient of a clipped element goes to its limit.
fn clip_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, low, high, d) = (g.x(0), g.x(1), g.x(2), g.dy(0));
    let (below, above) = (x.op("Less", &[low]), x.op("Greater", &[high]));
    let zero = d.number(0.0);
    let outside = below.op("LogicalOr", &[above]);
    g.set(0, zero.where_(outside, d))?;
    for (i, (is_limit, limit)) in [(below, low), (above, high)].into_iter().enumerate() {
        if g.needs(i + 1) {
            g.set(i + 1, d.where_(is_limit, zero).sum_to(limit))?;
        }
    }
    Ok(())
}
