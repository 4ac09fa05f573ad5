//! Igamma, Igammac, IgammaGradA, Betainc, Zeta, Polygamma (TensorFlow:
//! `core/kernels/cwise_op_igammas.cc`, `cwise_op_zeta.cc` and `betainc_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::{BinaryFn, binary_kernel, half_binary_kernel};
use ferroflow_functors::shapes;
use ferroflow_functors::unary::COSTLY;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::{special, special_gamma};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, bf16, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Igamma",
        "a: T, x: T -> z: T | T: type {bfloat16,half,float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| kernel_of(build, special::igamma, special::igamma_single))
    .gradient(igamma_gradient),
    Op::new(
        "Igammac",
        "a: T, x: T -> z: T | T: type {bfloat16,half,float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| kernel_of(build, special::igammac, special::igammac_single))
    .gradient(igammac_gradient),
    Op::new(
        "IgammaGradA",
        "a: T, x: T -> z: T | T: type {float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| kernel(build, special_gamma::igamma_by_shape)),
    Op::new("Zeta", "x: T, q: T -> z: T | T: type {float,double} |")
        .shape(shapes::broadcast)
        .kernel(|build| kernel(build, special::zeta))
        .gradient(zeta_gradient),
    Op::new("Polygamma", "a: T, x: T -> z: T | T: type {float,double} |")
        .shape(shapes::broadcast)
        .kernel(|build| kernel(build, special::polygamma))
        .gradient(polygamma_gradient),
    Op::new(
        "Betainc",
        "a: T, b: T, x: T -> z: T | T: type {float,double} |",
    )
    .shape(betainc_shape)
    .kernel(|build| match build.input(0)? {
        DType::Float => Ok(Box::new(|ctx: &mut KernelCtx| {
            betainc(ctx, special::betainc_single)
        })),
        DType::Double => Ok(Box::new(|ctx: &mut KernelCtx| {
            betainc(ctx, special::betainc)
        })),
        dtype => Err(build.unsupported(dtype)),
    })
    .gradient(betainc_gradient),
];

pub(crate) fn kernel(build: &KernelBuild, f: fn(f64, f64) -> f64) -> Result<Box<dyn OpKernel>> {
    kernel_of(build, f, move |a, b| f(a.into(), b.into()) as f32)
}

/// Returns the kernel of a function, with a cheaper one for single and half precision.
fn kernel_of(
    build: &KernelBuild,
    f: fn(f64, f64) -> f64,
    single: impl Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    match build.input(0)? {
        DType::Float => binary_kernel::<f32, f32>(BinaryFn(single)),
        DType::Double => binary_kernel::<f64, f64>(BinaryFn(f)),
        DType::Half => half_binary_kernel::<f16>(BinaryFn(single)),
        DType::Bfloat16 => half_binary_kernel::<bf16>(BinaryFn(single)),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Infers one shape for all inputs that are not scalars.
fn betainc_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut shape = PartialShape::scalar();
    for i in 0..3 {
        let input = ctx.input(i);
        shape = match (shape.rank(), input.rank()) {
            (_, None) | (None, _) => PartialShape::unknown(),
            (_, Some(0)) => shape,
            (Some(0), _) => input,
            _ => ctx.merge(&shape, &input)?,
        };
    }
    ctx.set(0, shape);
    Ok(())
}

fn betainc<T: Element>(ctx: &mut KernelCtx, f: fn(T, T, T) -> T) -> Result<()> {
    let mut shape = Shape::scalar();
    let mut from = "";
    for (i, name) in ["a", "b", "x"].into_iter().enumerate() {
        let input = ctx.shape(i)?;
        if shape.is_scalar() {
            shape = input.clone();
            from = name;
        } else if !input.is_scalar() && *input != shape {
            return Err(invalid_argument!(
                "Shapes of {from} and {name} are inconsistent: {shape} vs. {input}"
            ));
        }
    }
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    let (a, b, x) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?, ctx.slice::<T>(2)?);
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, COSTLY, 1, &|i, out| {
        let at = |s: &[T], k: usize| s[(i * COSTLY + k).min(s.len() - 1)];
        for (k, out) in out.iter_mut().enumerate() {
            *out = f(at(a, k), at(b, k), at(x, k));
        }
    });
    ctx.set_output(0, out)
}

/// Returns `x^(a-1) e^-x / Γ(a)`, the derivative of Igamma by x.
fn density<'g>(a: Expr<'g>, x: Expr<'g>) -> Expr<'g> {
    ((a - 1.0) * x.op("Log", &[]) - x - a.op("Lgamma", &[])).op("Exp", &[])
}

fn igamma_gradient(g: &mut GradientCtx) -> Result<()> {
    of_igamma(g, g.dy(0))
}

fn igammac_gradient(g: &mut GradientCtx) -> Result<()> {
    of_igamma(g, -g.dy(0))
}

fn of_igamma<'g>(g: &mut GradientCtx<'g>, d: Expr<'g>) -> Result<()> {
    let (a, x) = (g.x(0), g.x(1));
    let da = g.needs(0).then(|| d * a.op("IgammaGradA", &[x]));
    let dx = g.needs(1).then(|| d * density(a, x));
    g.set_broadcast(da, dx)
}

/// The gradient by `x` is not implemented, as in TensorFlow.
fn zeta_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, q) = (g.x(0), g.x(1));
    let dq = g.dy(0) * -x * (x + 1.0).op("Zeta", &[q]);
    g.set_broadcast(None, Some(dq))
}

fn polygamma_gradient(g: &mut GradientCtx) -> Result<()> {
    let (n, x) = (g.x(0), g.x(1));
    let dx = g.dy(0) * (n + 1.0).op("Polygamma", &[x]);
    g.set_broadcast(None, Some(dx))
}

/// The gradient by `x` only, as in TensorFlow.
fn betainc_gradient(g: &mut GradientCtx) -> Result<()> {
    let (a, b, x) = (g.x(0), g.x(1), g.x(2));
    let lgamma = |e: Expr<'_>| e.op("Lgamma", &[]).output();
    let log_beta = x.at(lgamma(a)) + x.at(lgamma(b)) - x.at(lgamma(a + b));
    let log = (b - 1.0) * (-x).op("Log1p", &[]) + (a - 1.0).op("Xlogy", &[x]) - log_beta;
    let dx = g.dy(0) * log.op("Exp", &[]);
    g.set(2, dx.sum_to(x))
}
