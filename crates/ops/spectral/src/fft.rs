//! Fourier transforms of the inner one, two or three dimensions (TensorFlow:
//! `core/kernels/fft_ops.cc`, gradients in `python/ops/signal/fft_ops.py`).

use crate::transform::{Plans, Sample};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant, ints};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex, DType, Element, PartialShape, Shape, Tensor, dispatch};

const COMPLEX: &str =
    "input: Tcomplex -> output: Tcomplex | Tcomplex: type {complex64,complex128} = complex64";
const FORWARD: &str = "input: Treal, fft_length: int32 -> output: Tcomplex | Treal: type \
     {float,double} = float; Tcomplex: type {complex64,complex128} = complex64";
const INVERSE: &str = "input: Tcomplex, fft_length: int32 -> output: Treal | Treal: type \
     {float,double} = float; Tcomplex: type {complex64,complex128} = complex64";

/// FFT, IFFT, RFFT, IRFFT and their forms of two and three dimensions.
pub(crate) const OPS: &[Op] = &[
    op("FFT", COMPLEX, |ctx| unchanged(ctx, 1))
        .kernel(|build| complex_kernel(build, 1, true))
        .gradient(|g| complex_gradient(g, "IFFT", 1)),
    op("FFT2D", COMPLEX, |ctx| unchanged(ctx, 2))
        .kernel(|build| complex_kernel(build, 2, true))
        .gradient(|g| complex_gradient(g, "IFFT2D", 2)),
    op("FFT3D", COMPLEX, |ctx| unchanged(ctx, 3))
        .kernel(|build| complex_kernel(build, 3, true))
        .gradient(|g| complex_gradient(g, "IFFT3D", 3)),
    op("IFFT", COMPLEX, |ctx| unchanged(ctx, 1))
        .kernel(|build| complex_kernel(build, 1, false))
        .gradient(|g| complex_gradient(g, "FFT", 1)),
    op("IFFT2D", COMPLEX, |ctx| unchanged(ctx, 2))
        .kernel(|build| complex_kernel(build, 2, false))
        .gradient(|g| complex_gradient(g, "FFT2D", 2)),
    op("IFFT3D", COMPLEX, |ctx| unchanged(ctx, 3))
        .kernel(|build| complex_kernel(build, 3, false))
        .gradient(|g| complex_gradient(g, "FFT3D", 3)),
    op("RFFT", FORWARD, |ctx| real_shape(ctx, 1, true))
        .kernel(|build| real_kernel(build, 1, true))
        .gradient(|g| forward_gradient(g, "IRFFT", 1)),
    op("RFFT2D", FORWARD, |ctx| real_shape(ctx, 2, true))
        .kernel(|build| real_kernel(build, 2, true))
        .gradient(|g| forward_gradient(g, "IRFFT2D", 2)),
    op("RFFT3D", FORWARD, |ctx| real_shape(ctx, 3, true))
        .kernel(|build| real_kernel(build, 3, true)),
    op("IRFFT", INVERSE, |ctx| real_shape(ctx, 1, false))
        .kernel(|build| real_kernel(build, 1, false))
        .gradient(|g| inverse_gradient(g, "RFFT", 1)),
    op("IRFFT2D", INVERSE, |ctx| real_shape(ctx, 2, false))
        .kernel(|build| real_kernel(build, 2, false))
        .gradient(|g| inverse_gradient(g, "RFFT2D", 2)),
    op("IRFFT3D", INVERSE, |ctx| real_shape(ctx, 3, false))
        .kernel(|build| real_kernel(build, 3, false)),
];

const fn op(
    name: &'static str,
    signature: &'static str,
    shape: fn(&mut ShapeCtx) -> Result<()>,
) -> Op {
    Op::new(name, signature).shape(shape).cost(Cost::Expensive)
}

fn unchanged(ctx: &mut ShapeCtx, rank: usize) -> Result<()> {
    let shape = ctx.with_rank_at_least(0, rank)?;
    ctx.set(0, shape);
    Ok(())
}

fn real_shape(ctx: &mut ShapeCtx, rank: usize, forward: bool) -> Result<()> {
    let input = ctx.with_rank_at_least(0, rank)?;
    if let Some(n) = ctx.with_rank(1, 1)?.dim(0)
        && n != rank
    {
        return Err(invalid_argument!("Dimension must be {rank} but is {n}"));
    }
    let lengths = constant(ctx, 1);
    let shape = match input.dims() {
        None => PartialShape::unknown(),
        Some(dims) => {
            let mut dims = dims.to_vec();
            let outer = dims.len() - rank;
            for (i, dim) in dims[outer..].iter_mut().enumerate() {
                let length = lengths.as_ref().and_then(|l| usize::try_from(l[i]).ok());
                *dim = length.map(|n| match forward && i + 1 == rank {
                    true => half_spectrum(n),
                    false => n,
                });
            }
            PartialShape::of(dims)
        }
    };
    ctx.set(0, shape);
    Ok(())
}

/// Returns the number of frequencies of a real signal of length `n` that are not redundant.
fn half_spectrum(n: usize) -> usize {
    match n {
        0 => 0,
        n => n / 2 + 1,
    }
}

fn check_rank(shape: &Shape, rank: usize) -> Result<usize> {
    shape.rank().checked_sub(rank).ok_or_else(|| {
        invalid_argument!("Input must have rank of at least {rank} but got: {shape}",)
    })
}

fn complex_kernel(build: &KernelBuild, rank: usize, forward: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = match build.input(0)? {
        DType::Complex64 => DType::Float,
        _ => DType::Double,
    };
    dispatch!(dtype, T in [f32, f64] => {
        let plans = Plans::<T>::default();
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let outer = check_rank(ctx.shape(0)?, rank)?;
            let input = ctx.take_input(0)?;
            if input.num_elements() == 0 {
                return ctx.set_output(0, input);
            }
            let scale = match forward {
                true => None,
                false => Some(inverse_scale::<T>(&input.shape()[outer..])),
            };
            let out = plans.complex(ctx, input, outer..outer + rank, forward, scale)?;
            ctx.set_output(0, out)
        }))
    }, else Err(build.unsupported(dtype)))
}

fn inverse_scale<T: Sample>(dims: &[usize]) -> T {
    let n: f64 = dims.iter().map(|&d| d as f64).product();
    T::from_f64(1.0 / n).unwrap_or(T::zero())
}

fn real_kernel(build: &KernelBuild, rank: usize, forward: bool) -> Result<Box<dyn OpKernel>> {
    let (real, complex) = match forward {
        true => (build.input(0)?, build.output(0)?),
        false => (build.output(0)?, build.input(0)?),
    };
    let fits = (real == DType::Float) == (complex == DType::Complex64);
    let (from, to) = (build.input(0)?, build.output(0)?);
    dispatch!(real, T in [f32, f64] => {
        let plans = Plans::<T>::default();
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let lengths = fft_lengths(ctx, rank, forward)?;
            if !fits {
                let direction = if forward { "forward" } else { "backward" };
                return Err(invalid_argument!(
                    "Wrong types for {direction} real FFT: in={} out={}",
                    from as u8,
                    to as u8
                ));
            }
            let out = match forward {
                true => real_to_complex::<T>(ctx, &plans, &lengths)?,
                false => complex_to_real::<T>(ctx, &plans, &lengths)?,
            };
            ctx.set_output(0, out)
        }))
    }, else Err(build.unsupported(real)))
}

/// Returns the lengths of the transforms, checked against the input's shape.
fn fft_lengths(ctx: &KernelCtx, rank: usize, forward: bool) -> Result<Vec<usize>> {
    let shape = ctx.shape(0)?;
    let outer = check_rank(shape, rank)?;
    let lengths = ctx.input(1)?;
    if lengths.shape().dims() != [rank] {
        return Err(invalid_argument!("fft_length must have shape [{rank}]"));
    }
    let mut checked = Vec::with_capacity(rank);
    for (i, &length) in ints(lengths)?.iter().enumerate() {
        let n = usize::try_from(length)
            .map_err(|_| invalid_argument!("fft_length[{i}] must >= 0, but got: {length}"))?;
        let least = match !forward && i + 1 == rank {
            true => n / 2 + 1,
            false => n,
        };
        let dim = shape[outer + i];
        if dim != 0 && dim < least {
            return Err(invalid_argument!(
                "Input dimension {} must have length of at least {least} but got: {dim}",
                outer + i
            ));
        }
        checked.push(n);
    }
    Ok(checked)
}

/// Returns the shape of input 0 with other sizes of the inner dimensions.
fn with_inner(ctx: &KernelCtx, lengths: &[usize], last: usize) -> Result<Shape> {
    let shape = ctx.shape(0)?;
    let outer = shape.rank() - lengths.len();
    let others = &lengths[..lengths.len() - 1];
    let dims = shape[..outer].iter().chain(others).copied();
    ferroflow_functors::indices::shape_of(dims.chain([last]))
}

fn real_to_complex<T: Sample>(
    ctx: &mut KernelCtx,
    plans: &Plans<T>,
    lengths: &[usize],
) -> Result<Tensor>
where
    Complex<T>: Element,
{
    let n = lengths.last().copied().unwrap_or(0);
    let shape = with_inner(ctx, lengths, half_spectrum(n))?;
    let dtype = <Complex<T> as Element>::DTYPE;
    if ctx.shape(0)?.num_elements() == 0 || shape.num_elements() == 0 {
        return Tensor::zeros(dtype, shape);
    }
    let signal = with_inner(ctx, lengths, n)?;
    let input = crate::transform::cropped(ctx, &signal)?;
    let rank = signal.rank();
    let spectrum = plans.real_to_complex(ctx, &input, n, shape)?;
    plans.complex(ctx, spectrum, rank - lengths.len()..rank - 1, true, None)
}

fn complex_to_real<T: Sample>(
    ctx: &mut KernelCtx,
    plans: &Plans<T>,
    lengths: &[usize],
) -> Result<Tensor>
where
    Complex<T>: Element,
{
    let n = lengths.last().copied().unwrap_or(0);
    let shape = with_inner(ctx, lengths, n)?;
    if ctx.shape(0)?.num_elements() == 0 || shape.num_elements() == 0 {
        return Tensor::zeros(T::DTYPE, shape);
    }
    let spectrum = with_inner(ctx, lengths, half_spectrum(n))?;
    let input = crate::transform::cropped(ctx, &spectrum)?;
    let rank = spectrum.rank();
    let input = plans.complex(ctx, input, rank - lengths.len()..rank - 1, false, None)?;
    plans.complex_to_real(ctx, input, n, shape, inverse_scale(lengths))
}

/// Returns the number of elements of a transform, as `dtype`.
fn transform_size<'g>(x: Expr<'g>, rank: usize, dtype: DType) -> Expr<'g> {
    let inner = x.shape().dims().and_then(|dims| {
        let inner: Option<Vec<usize>> = dims[dims.len().checked_sub(rank)?..]
            .iter()
            .copied()
            .collect();
        inner
    });
    let sizes = match inner {
        Some(inner) => x.ints(inner.iter().map(|&d| d as i64)),
        None => inner_sizes(x, rank),
    };
    sizes.op("Prod", &[x.int(0)]).cast(dtype)
}

fn inner_sizes(x: Expr<'_>, rank: usize) -> Expr<'_> {
    let shape = x.shape_of();
    let outer = shape.op("Size", &[]) - x.int(rank as i32);
    shape.op(
        "Slice",
        &[outer.reshape(x.ints([1])), x.ints([rank as i64])],
    )
}

fn complex_gradient(g: &mut GradientCtx, inverse: &str, rank: usize) -> Result<()> {
    let d = g.dy(0);
    let n = transform_size(d, rank, d.dtype());
    let transformed = d.op(inverse, &[]);
    let dx = match inverse.starts_with('I') {
        true => transformed * n,
        false => transformed / n,
    };
    g.set(0, dx)
}

/// Returns the weights of the frequencies of a half spectrum: `inner` for those that stand for two
/// of the whole spectrum, 1 for the first and, if the length is even, the last.
fn weights<'g>(lengths: Expr<'g>, rank: usize, dtype: DType, inner: f64) -> Expr<'g> {
    let last = lengths.op(
        "Slice",
        &[lengths.ints([rank as i64 - 1]), lengths.ints([1])],
    );
    let (one, two) = (last.int(1), last.int(2));
    let odd = last.op("FloorMod", &[two]);
    let half = last.op("FloorDiv", &[two]);
    let ones = |n: Expr<'g>, value: f64| {
        let value = n.constant(Ok(Tensor::scalar(value))).cast(dtype);
        n.op("Fill", &[value])
    };
    // 1 + (⌈n/2⌉ - 1) + (1 if even) = ⌊n/2⌋ + 1
    let parts = [
        ones(last.ints([1]), 1.0),
        ones(half + odd - one, inner),
        ones(one - odd, 1.0),
    ];
    last.make(
        "ConcatV2",
        &[parts[0], parts[1], parts[2], last.int(0)],
        &[("N", 3.into())],
    )
}

/// The adjoint of a real transform: the inverse transform, in which the frequencies that stand for
/// two count half.
fn forward_gradient(g: &mut GradientCtx, inverse: &str, rank: usize) -> Result<()> {
    let (x, lengths, d) = (g.x(0), g.x(1), g.dy(0));
    let weighted = d * weights(lengths, rank, d.dtype(), 0.5);
    let attrs = [("Treal", x.dtype().into())];
    let dx = d.at(weighted.output()).op_with(inverse, &[lengths], &attrs);
    let dx = dx * transform_size(dx, rank, x.dtype());
    g.set(0, padded_like(dx, x))
}

fn inverse_gradient(g: &mut GradientCtx, forward: &str, rank: usize) -> Result<()> {
    let (x, lengths, d) = (g.x(0), g.x(1), g.dy(0));
    let attrs = [("Tcomplex", x.dtype().into())];
    let spectrum = d.op_with(forward, &[lengths], &attrs);
    let weights = weights(lengths, rank, d.dtype(), 2.0) / transform_size(d, rank, d.dtype());
    g.set(0, padded_like(spectrum * weights.cast(x.dtype()), x))
}

/// Returns `dx` followed by zeros in each dimension, for the part of `x` beyond the transform.
fn padded_like<'g>(dx: Expr<'g>, x: Expr<'g>) -> Expr<'g> {
    if let (Some(a), Some(b)) = (dx.shape().to_full(), x.shape().to_full())
        && a == b
    {
        return dx;
    }
    let missing = x.shape_of() - dx.shape_of();
    let paddings = missing.zeros_like().make(
        "Pack",
        &[missing.zeros_like(), missing],
        &[("axis", 1.into())],
    );
    dx.op("Pad", &[paddings])
}
