//! Igamma, Igammac, IgammaGradA, Betainc, Zeta, Polygamma (TensorFlow:
//! `core/kernels/cwise_op_igammas.cc`, `cwise_op_zeta.cc` and `betainc_op.cc`).

use crate::near_pair::{self, NearPair};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::{BinaryFn, binary_kernel};
use ferroflow_functors::field::Promote;
use ferroflow_functors::shapes;
use ferroflow_functors::unary::COSTLY;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::special_blocks::{Block, LANES};
use ferroflow_primitives::{special, special_blocks, special_gamma};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Igamma",
        "a: T, x: T -> z: T | T: type {bfloat16,half,float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| near_pair::kernel(build, IGAMMA))
    .gradient(igamma_gradient),
    Op::new(
        "Igammac",
        "a: T, x: T -> z: T | T: type {bfloat16,half,float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| near_pair::kernel(build, IGAMMAC))
    .gradient(igammac_gradient),
    Op::new(
        "IgammaGradA",
        "a: T, x: T -> z: T | T: type {float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| kernel(build, special_gamma::igamma_by_shape)),
    Op::new("Zeta", "x: T, q: T -> z: T | T: type {float,double} |")
        .shape(shapes::broadcast)
        .kernel(|build| near_pair::kernel(build, ZETA))
        .gradient(zeta_gradient),
    Op::new("Polygamma", "a: T, x: T -> z: T | T: type {float,double} |")
        .shape(shapes::broadcast)
        .kernel(|build| near_pair::kernel(build, POLYGAMMA))
        .gradient(polygamma_gradient),
    Op::new(
        "Betainc",
        "a: T, b: T, x: T -> z: T | T: type {float,double} |",
    )
    .shape(betainc_shape)
    .kernel(|build| match build.input(0)? {
        DType::Float => Ok(Box::new(|ctx: &mut KernelCtx| betainc::<f32>(ctx, SINGLE))),
        DType::Double => Ok(Box::new(|ctx: &mut KernelCtx| {
            betainc::<f64>(ctx, f64::EPSILON)
        })),
        dtype => Err(build.unsupported(dtype)),
    })
    .gradient(betainc_gradient),
];

/// Returns the kernel of a function of doubles, of both types.
fn kernel(build: &KernelBuild, f: fn(f64, f64) -> f64) -> Result<Box<dyn OpKernel>> {
    match build.input(0)? {
        DType::Float => {
            binary_kernel::<f32, f32>(BinaryFn(move |a: f32, b: f32| f(a.into(), b.into()) as f32))
        }
        DType::Double => binary_kernel::<f64, f64>(BinaryFn(f)),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// The precision of expansions whose results become single precision: some have fewer digits than their complement.
const SINGLE: f64 = 1e-14;

/// Whether neither logarithms nor expansions of the incomplete gamma functions are too long.
fn is_gamma_near(a: f64, x: f64) -> bool {
    a > 1e-100 && a <= special::HUGE_SHAPE && x > 1e-100 && x < 1e12
}

const IGAMMA: NearPair = NearPair {
    double: |a, x| special_blocks::igamma::<false>(a, x, f64::EPSILON),
    single: |a, x| special_blocks::igamma::<false>(a, x, SINGLE),
    is_near: is_gamma_near,
    far: special::igamma,
    example: [1.0, 1.0],
};

const IGAMMAC: NearPair = NearPair {
    double: |a, x| special_blocks::igamma::<true>(a, x, f64::EPSILON),
    single: |a, x| special_blocks::igamma::<true>(a, x, SINGLE),
    is_near: is_gamma_near,
    far: special::igammac,
    example: [1.0, 1.0],
};

fn is_zeta_near(x: f64, q: f64) -> bool {
    x > 1.0 && x < 300.0 && q > 1e-100 && q < 1e100
}

const ZETA: NearPair = NearPair {
    double: special_blocks::zeta,
    single: special_blocks::zeta,
    is_near: is_zeta_near,
    far: special::zeta,
    example: [2.0, 1.0],
};

/// The factorials that are exact.
const FACTORIALS: [f64; 19] = {
    let mut all = [1.0; 19];
    let mut n = 1;
    while n < all.len() {
        all[n] = all[n - 1] * n as f64;
        n += 1;
    }
    all
};

fn polygammas(n: &Block, x: &Block) -> Block {
    let mut next = *n;
    next.iter_mut().for_each(|n| *n += 1.0);
    let mut y = special_blocks::zeta(&next, x);
    for (y, n) in y.iter_mut().zip(n) {
        let factorial = FACTORIALS.get(*n as usize).copied().unwrap_or(f64::NAN);
        *y *= if n % 2.0 == 0.0 {
            -factorial
        } else {
            factorial
        };
    }
    y
}

const POLYGAMMA: NearPair = NearPair {
    double: polygammas,
    single: polygammas,
    is_near: |n, x| {
        n >= 1.0 && n < FACTORIALS.len() as f64 && n == n.floor() && is_zeta_near(2.0, x)
    },
    far: special::polygamma,
    example: [1.0, 1.0],
};

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

fn betainc<T: Element + Promote<Wide = f64>>(ctx: &mut KernelCtx, precision: f64) -> Result<()> {
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
        let at = |s: &[T], k: usize| s[(i * COSTLY + k).min(s.len() - 1)].promote();
        for (n, out) in out.chunks_mut(LANES).enumerate() {
            let part = |s| block_of(|k| at(s, n * LANES + k), out.len());
            let [a, b, x] = [part(a), part(b), part(x)];
            for (out, y) in out.iter_mut().zip(beta_block([&a, &b, &x], precision)) {
                *out = T::demote(y);
            }
        }
    });
    ctx.set_output(0, out)
}

/// The first `n` numbers of a block, and then ones.
fn block_of(at: impl Fn(usize) -> f64, n: usize) -> Block {
    let mut block = [1.0; LANES];
    let numbers = block.iter_mut().enumerate().take(n);
    numbers.for_each(|(k, x)| *x = at(k));
    block
}

fn beta_block([a, b, x]: [&Block; 3], precision: f64) -> Block {
    let is_near = |i: usize| {
        let is_shape = |n: f64| n > 1e-100 && n < 1e6;
        is_shape(a[i]) && is_shape(b[i]) && x[i] > 1e-100 && x[i] < 1.0
    };
    let or = |x: &Block, other: f64| block_of(|i| if is_near(i) { x[i] } else { other }, LANES);
    let mut y = special_blocks::betainc(&or(a, 1.0), &or(b, 1.0), &or(x, 0.5), precision);
    for i in (0..LANES).filter(|i| !is_near(*i)) {
        y[i] = special::betainc(a[i], b[i], x[i]);
    }
    y
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
