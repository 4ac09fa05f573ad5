//! Cumulative sums and products: Cumsum, Cumprod, CumulativeLogsumexp (TensorFlow:
//! `core/kernels/scan_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Field;
use ferroflow_functors::indices::{axis_in, int};
use ferroflow_functors::numeric::{Half, Num};
use ferroflow_functors::shapes;
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, bf16, dispatch, f16};

/// The factory of a scan with one of the [`Num`] functions.
macro_rules! scan_factory {
    ($f:ident, $start:ident) => {
        |build| match build.input(0)? {
            DType::Half => half_kernel::<f16>(build, f32::$start, <f32 as Num>::$f),
            DType::Bfloat16 => half_kernel::<bf16>(build, f32::$start, <f32 as Num>::$f),
            dtype => dispatch!(dtype, T in [
                f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
            ] => kernel(build, T::$start, <T as Num>::$f),
            else Err(build.unsupported(dtype))),
        }
    };
}

/// Cumsum, Cumprod, CumulativeLogsumexp.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Cumsum",
        "x: T, axis: Tidx -> out: T | exclusive: bool = false; reverse: bool = false; \
         T: numbertype; Tidx: type {int32,int64} = int32",
    )
    .shape(shapes::unchanged)
    .kernel(scan_factory!(add, ZERO))
    .gradient(cumsum_gradient),
    Op::new(
        "Cumprod",
        "x: T, axis: Tidx -> out: T | exclusive: bool = false; reverse: bool = false; \
         T: numbertype; Tidx: type {int32,int64} = int32",
    )
    .shape(shapes::unchanged)
    .kernel(scan_factory!(mul, ONE))
    .gradient(cumprod_gradient),
    Op::new(
        "CumulativeLogsumexp",
        "x: T, axis: Tidx -> out: T | exclusive: bool = false; reverse: bool = false; \
         T: type {bfloat16,half,float,double}; Tidx: type {int32,int64} = int32",
    )
    .shape(shapes::unchanged)
    .kernel(|build| match build.input(0)? {
        DType::Half => half_kernel::<f16>(build, f32::NEG_INFINITY, log_sum_exp),
        DType::Bfloat16 => half_kernel::<bf16>(build, f32::NEG_INFINITY, log_sum_exp),
        DType::Float => kernel(build, f32::NEG_INFINITY, log_sum_exp),
        DType::Double => kernel(build, f64::NEG_INFINITY, log_sum_exp),
        dtype => Err(build.unsupported(dtype)),
    })
    .gradient(cumulative_logsumexp_gradient),
];

/// Returns the logarithm of the sum of two exponentials, factoring out the larger one.
fn log_sum_exp<T: Field + PartialOrd>(a: T, b: T) -> T {
    let (high, low) = match a < b {
        true => (b, a),
        false => (a, b),
    };
    // Both are minus infinity, whose difference is NaN.
    match high < T::ZERO && high.sub(high) != T::ZERO {
        true => high,
        false => high.add(low.sub(high).exp().ln_1p()),
    }
}

/// Returns the lowest finite number of a float type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::Half => f16::MIN.into(),
        DType::Bfloat16 => bf16::MIN.into(),
        DType::Float => f32::MIN.into(),
        _ => f64::MIN,
    }
}

/// A function of the running value and the next element.
trait ScanFn<T>: Fn(T, T) -> T + Copy + Send + Sync + 'static {}
impl<T, F: Fn(T, T) -> T + Copy + Send + Sync + 'static> ScanFn<T> for F {}

/// The direction and extent of a scan.
#[derive(Clone, Copy)]
struct ScanAxis {
    exclusive: bool,
    reverse: bool,
}

impl ScanAxis {
    fn of(build: &KernelBuild) -> Result<ScanAxis> {
        let exclusive = build.attrs.bool("exclusive")?;
        Ok(ScanAxis {
            exclusive,
            reverse: build.attrs.bool("reverse")?,
        })
    }
}

/// Returns the lengths of the scanned dimension and of all inside it.
fn sizes(ctx: &KernelCtx) -> Result<(usize, usize)> {
    let (shape, axis) = (ctx.shape(0)?, ctx.input(1)?);
    let rank = shape.rank();
    if !axis.shape().is_scalar() {
        return Err(invalid_argument!(
            "ScanOp: axis must be a scalar, not {}",
            axis.shape()
        ));
    }
    let axis = int(axis).ok_or_else(|| invalid_argument!("ScanOp: axis must be an integer"))?;
    let Some(at) = axis_in(axis, rank) else {
        let axis = if axis < 0 {
            axis.saturating_add(rank as i64)
        } else {
            axis
        };
        return Err(invalid_argument!(
            "ScanOp: Expected scan axis in the range [{}, {rank}), but got {axis}",
            -(rank as i64)
        ));
    };
    Ok((shape[at], shape[at + 1..].iter().product()))
}

fn kernel<T: Element>(
    build: &KernelBuild,
    start: T,
    f: impl ScanFn<T>,
) -> Result<Box<dyn OpKernel>> {
    let way = ScanAxis::of(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (n, cols) = sizes(ctx)?;
        let shape = ctx.shape(0)?.clone();
        let (mut out, forwarded) = ctx.forward_or_alloc(&[0], T::DTYPE, shape)?;
        let values = out.slice_mut::<T>()?;
        if forwarded.is_none() {
            values.copy_from_slice(ctx.slice(0)?);
        }
        scan(ctx.par(), values, n, cols, way, start, f);
        ctx.set_output(0, out)
    }))
}

fn half_kernel<H: Half>(
    build: &KernelBuild,
    start: f32,
    f: impl ScanFn<f32>,
) -> Result<Box<dyn OpKernel>> {
    // Rounds after every step, like arithmetic on the type itself.
    kernel::<H>(build, H::narrow(start), move |a, x| {
        H::narrow(f(a.wide(), x.wide()))
    })
}

fn scan<T: Element>(
    par: &dyn Parallelism,
    values: &mut [T],
    n: usize,
    cols: usize,
    way: ScanAxis,
    start: T,
    f: impl ScanFn<T>,
) {
    if values.is_empty() {
        return;
    }
    let group = (CHEAP / (n * cols)).max(1);
    par_chunks_mut(par, values, n * cols, group, &|_, block| {
        let mut running = [start; 256];
        for c0 in (0..cols).step_by(running.len()) {
            let width = running.len().min(cols - c0);
            let running = &mut running[..width];
            running.fill(start);
            for i in 0..n {
                let r = if way.reverse { n - 1 - i } else { i };
                let row = &mut block[r * cols + c0..r * cols + c0 + width];
                if way.exclusive {
                    for (acc, x) in running.iter_mut().zip(row) {
                        let before = *acc;
                        *acc = f(before, *x);
                        *x = before;
                    }
                } else {
                    for (acc, x) in running.iter_mut().zip(row) {
                        *acc = f(*acc, *x);
                        *x = *acc;
                    }
                }
            }
        }
    });
}

/// Returns the cumulative sum of gradients in the opposite direction.
fn back<'g>(g: &GradientCtx<'g>, d: Expr<'g>) -> Result<Expr<'g>> {
    let reverse = !g.attrs().bool("reverse")?;
    let attrs = [g.attr("exclusive"), ("reverse", reverse.into())];
    Ok(d.op_with("Cumsum", &[g.x(1)], &attrs))
}

fn cumsum_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = back(g, g.dy(0))?;
    g.set(0, dx)
}

fn cumprod_gradient(g: &mut GradientCtx) -> Result<()> {
    let sums = back(g, g.y(0).conj() * g.dy(0))?;
    let dx = sums.op("DivNoNan", &[g.x(0).conj()]);
    g.set(0, dx)
}

/// The gradients from the opposite direction, weighted by exponentials; positive and negative ones
/// separately, because they go through logarithms.
fn cumulative_logsumexp_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let dx = weighed_back(g, d)? - weighed_back(g, -d)?;
    g.set(0, dx)
}

/// Returns the positive part of `d`, through logarithms.
fn weighed_back<'g>(g: &GradientCtx<'g>, d: Expr<'g>) -> Result<Expr<'g>> {
    let (x, y) = (g.x(0), g.y(0));
    let reverse = !g.attrs().bool("reverse")?;
    let attrs = [g.attr("exclusive"), ("reverse", reverse.into())];
    let is_positive = d.op("Greater", &[d.number(0.0)]);
    let none = d.number(lowest(d.dtype()));
    let logs = d.op("Log", &[]).where_(is_positive, none) - y;
    let sums = logs.op_with("CumulativeLogsumexp", &[g.x(1)], &attrs);
    Ok((sums + x).op("Exp", &[]))
}
