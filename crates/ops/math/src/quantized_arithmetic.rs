//! QuantizedMatMul, QuantizedAdd and QuantizedMul (TensorFlow:
//! `core/kernels/quantized_matmul_op.cc`, `quantized_add_op.cc`, `quantized_mul_op.cc`).

use crate::matmul::mat_mul_shape;
use ferroflow_base::{Result, Status, invalid_argument, unimplemented_error};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::matmul::incompatible;
use ferroflow_functors::quantized::{
    code, code_unclamped, codes, par_map, product_range, range_of, scalar_ranges, set_codes,
    set_range, value,
};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::int_gemm::{Codes, int_gemm};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Shape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizedMatMul",
        "a: T1, b: T2, min_a: float, max_a: float, min_b: float, max_b: float -> out: Toutput, \
         min_out: float, max_out: float | T1: type {qint8,quint8,qint32,qint16,quint16}; T2: type \
         {qint8,quint8,qint32,qint16,quint16}; Toutput: type {qint8,quint8,qint32,qint16,quint16} \
         = qint32; transpose_a: bool = false; transpose_b: bool = false; Tactivation: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8",
    )
    .shape(|ctx| {
        mat_mul_shape(ctx)?;
        scalar_ranges(ctx, 2..6)
    })
    .cost(Cost::Expensive)
    .kernel(mat_mul),
    Op::new(
        "QuantizedAdd",
        "x: T1, y: T2, min_x: float, max_x: float, min_y: float, max_y: float -> z: Toutput, \
         min_z: float, max_z: float | T1: type {qint8,quint8,qint32,qint16,quint16}; T2: type \
         {qint8,quint8,qint32,qint16,quint16}; Toutput: type {qint8,quint8,qint32,qint16,quint16} \
         = qint32",
    )
    .shape(|ctx| {
        shapes::broadcast(ctx)?;
        scalar_ranges(ctx, 2..6)
    })
    .kernel(|build| on_bytes(build, add)),
    Op::new(
        "QuantizedMul",
        "x: T1, y: T2, min_x: float, max_x: float, min_y: float, max_y: float -> z: Toutput, \
         min_z: float, max_z: float | T1: type {qint8,quint8,qint32,qint16,quint16}; T2: type \
         {qint8,quint8,qint32,qint16,quint16}; Toutput: type {qint8,quint8,qint32,qint16,quint16} \
         = qint32",
    )
    .shape(|ctx| {
        shapes::broadcast(ctx)?;
        scalar_ranges(ctx, 0..0)
    })
    .kernel(|build| on_bytes(build, multiply)),
];

type Run = fn(&mut KernelCtx) -> Result<()>;

/// Returns the kernel if the inputs are quint8 and the output is qint32.
fn on_bytes(build: &KernelBuild, run: Run) -> Result<Box<dyn OpKernel>> {
    let dtypes = [
        (build.input(0)?, DType::Quint8),
        (build.input(1)?, DType::Quint8),
        (build.output(0)?, DType::Qint32),
    ];
    match dtypes.iter().find(|(dtype, has)| dtype != has) {
        Some((dtype, _)) => Err(build.unsupported(*dtype)),
        None => Ok(Box::new(run)),
    }
}

fn mat_mul(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let transposed = [attrs.bool("transpose_a")?, attrs.bool("transpose_b")?];
    on_bytes(build, |_| Ok(()))?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        product(ctx, transposed)
    }))
}

fn product(ctx: &mut KernelCtx, [ta, tb]: [bool; 2]) -> Result<()> {
    let mut ends = [0.0; 4];
    for (i, name) in ["min_a", "max_a", "min_b", "max_b"].into_iter().enumerate() {
        let t = ctx.input(i + 2)?;
        if t.num_elements() != 1 || i == 0 && !t.shape().is_scalar() {
            return Err(invalid_argument!(
                "{name} must be a scalar, but got shape{}",
                t.shape()
            ));
        }
        ends[i] = t.slice::<f32>()?[0];
    }
    let [min_a, max_a, min_b, max_b] = ends;
    for (min, max, name) in [(min_a, max_a, "a"), (min_b, max_b, "b")] {
        if min.is_nan() || max.is_nan() || max <= min {
            return Err(invalid_argument!(
                "max_{name} must be larger than min_{name}."
            ));
        }
    }
    let (a, b) = (codes(ctx, 0)?, codes(ctx, 1)?);
    for (i, t) in [&a, &b].into_iter().enumerate() {
        if t.shape().rank() != 2 {
            return Err(invalid_argument!("In[{i}] is not a matrix"));
        }
    }
    let (k, l) = (a.shape()[1 - ta as usize], b.shape()[tb as usize]);
    if k != l {
        return Err(incompatible(a.shape(), b.shape()));
    }
    let (m, n) = (a.shape()[ta as usize], b.shape()[1 - tb as usize]);
    let mut out = ctx.alloc(DType::Int32, shape_of([m, n])?)?;
    let (a, b) = (
        Codes {
            codes: a.slice::<u8>()?,
            transposed: ta,
            zero: code_unclamped::<u8>(0.0, min_a, max_a) as i32,
        },
        Codes {
            codes: b.slice::<u8>()?,
            transposed: tb,
            zero: code_unclamped::<u8>(0.0, min_b, max_b) as i32,
        },
    );
    int_gemm(ctx.par(), [m, n, k], a, b, out.slice_mut::<i32>()?);
    set_codes(ctx, 0, out, DType::Qint32)?;
    set_range(
        ctx,
        1,
        product_range::<u8, u8>([min_a, max_a], [min_b, max_b]),
    )
}

/// How the elements of two tensors pair up.
enum Pairing {
    /// Input `.0` is a scalar.
    Scalar(usize),
    /// One to one.
    Same,
    /// The elements of input `.0` repeat.
    Repeated(usize),
}

/// Returns the pairing and the output's shape; TensorFlow, too, knows no other broadcasts.
fn pairing(ctx: &KernelCtx) -> Result<(Pairing, Shape)> {
    let (x, y) = (ctx.shape(0)?, ctx.shape(1)?);
    let shape = broadcast_shape(x, y)?;
    let unpadded =
        |s: &Shape| -> Vec<usize> { s.iter().copied().skip_while(|&d| d == 1).collect() };
    let (a, b) = (unpadded(x), unpadded(y));
    let pairing = if a.is_empty() && x.num_elements() == 1 {
        Pairing::Scalar(0)
    } else if b.is_empty() {
        Pairing::Scalar(1)
    } else if a == b {
        Pairing::Same
    } else if x.num_elements() < y.num_elements() && b.ends_with(&a) {
        Pairing::Repeated(0)
    } else if a.ends_with(&b) {
        Pairing::Repeated(1)
    } else {
        return Err(unimplemented_error!(
            "Broadcast between {x} and {y} is not supported yet."
        ));
    };
    Ok((pairing, shape))
}

/// Checks the ranges of both inputs.
fn check_ranges(x: [f32; 2], y: [f32; 2], names: [&str; 2]) -> Result<()> {
    for (range, name) in [(x, names[0]), (y, names[1])] {
        if range[0].is_nan() || range[1].is_nan() || range[1] <= range[0] {
            return Err(invalid_argument!("{name}"));
        }
    }
    Ok(())
}

/// Writes `f(x, y)` for each pair.
fn paired(
    par: &dyn Parallelism,
    pairing: &Pairing,
    [x, y]: [&[u8]; 2],
    out: &mut [i32],
    f: impl Fn(u8, u8) -> i32 + Sync,
    empty: &'static str,
) -> Result<()> {
    const BLOCK: usize = 16 * 1024;
    match pairing {
        Pairing::Scalar(0) => par_map(par, y, out, |y| f(x[0], y)),
        Pairing::Scalar(_) => par_map(par, x, out, |x| f(x, y[0])),
        Pairing::Same => par_chunks_mut(par, out, BLOCK, 1, &|i, out| {
            let pairs = x[i * BLOCK..].iter().zip(&y[i * BLOCK..]);
            out.iter_mut()
                .zip(pairs)
                .for_each(|(o, (x, y))| *o = f(*x, *y));
        }),
        Pairing::Repeated(which) => {
            let n = [x, y][*which].len();
            if n == 0 {
                return Err(invalid_argument!("{empty}"));
            }
            par_chunks_mut(par, out, n, (BLOCK / n).max(1), &|i, out| {
                let start = |input: usize| if *which == input { 0 } else { i * n };
                let pairs = x[start(0)..].iter().zip(&y[start(1)..]);
                out.iter_mut()
                    .zip(pairs)
                    .for_each(|(o, (x, y))| *o = f(*x, *y));
            });
        }
    }
    Ok(())
}

/// Codes of a 32-bit range as a linear function of 8-bit codes.
#[derive(Clone, Copy)]
struct Line {
    first: i64,
    step: i64,
}

impl Line {
    fn new([min, max]: [f32; 2], [new_min, new_max]: [f32; 2]) -> Line {
        let at = |code: u8| code_unclamped::<i32>(value(code, min, max), new_min, new_max);
        let first = at(0);
        Line {
            first,
            step: i64::from(at(1).wrapping_sub(first) as i32),
        }
    }

    #[inline(always)]
    fn at(self, code: u8) -> i32 {
        let v = self.first.wrapping_add(i64::from(code) * self.step);
        v.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    }
}

fn add(ctx: &mut KernelCtx) -> Result<()> {
    let x = range_of(ctx, 2, ["min_x", "max_x"])?;
    let y = range_of(ctx, 4, ["min_y", "max_y"])?;
    let (pairing, shape) = pairing(ctx)?;
    check_ranges(
        x,
        y,
        [
            "max_x must be larger than min_x.",
            "max_y must be larger than min_y.",
        ],
    )?;
    let most = x[0].min(y[0]).abs().max(x[1].max(y[1]).abs());
    let range = [-most * 16_384.0, most * 16_384.0];
    let (a, b) = (codes(ctx, 0)?, codes(ctx, 1)?);
    let both = [a.slice::<u8>()?, b.slice::<u8>()?];
    let mut out = ctx.alloc(DType::Int32, shape)?;
    let (of_x, of_y) = (Line::new(x, range), Line::new(y, range));
    let empty = "Must have some elements to add";
    let to = out.slice_mut::<i32>()?;
    match pairing {
        // A scalar takes the exact way.
        Pairing::Scalar(which) => {
            let own = [x, y][which];
            let exact = code::<i32>(value(both[which][0], own[0], own[1]), range[0], range[1]);
            let line = [of_y, of_x][which];
            par_map(ctx.par(), both[1 - which], to, |v| {
                line.at(v).wrapping_add(exact)
            });
        }
        _ => paired(
            ctx.par(),
            &pairing,
            both,
            to,
            |x, y| of_x.at(x).wrapping_add(of_y.at(y)),
            empty,
        )?,
    }
    set_codes(ctx, 0, out, DType::Qint32)?;
    set_range(ctx, 1, range)
}

fn multiply(ctx: &mut KernelCtx) -> Result<()> {
    let mut ends = [0.0; 4];
    for (i, name) in ["min_x", "max_x", "min_y", "max_y"].into_iter().enumerate() {
        let t = ctx.input(i + 2)?;
        if !t.shape().is_scalar() {
            return Err(not_scalar(name));
        }
        ends[i] = t.to_scalar()?;
    }
    let [min_x, max_x, min_y, max_y] = ends;
    let (pairing, shape) = pairing(ctx)?;
    check_ranges(
        [min_x, max_x],
        [min_y, max_y],
        [
            "max_x must be larger than min_a.",
            "max_x must be larger than min_b.",
        ],
    )?;
    let zero_x = code_unclamped::<u8>(0.0, min_x, max_x) as i32;
    let zero_y = code_unclamped::<u8>(0.0, min_y, max_y) as i32;
    let (a, b) = (codes(ctx, 0)?, codes(ctx, 1)?);
    let both = [a.slice::<u8>()?, b.slice::<u8>()?];
    let mut out = ctx.alloc(DType::Int32, shape)?;
    paired(
        ctx.par(),
        &pairing,
        both,
        out.slice_mut::<i32>()?,
        |x, y| {
            let x = i32::from(x).wrapping_sub(zero_x);
            x.wrapping_mul(i32::from(y).wrapping_sub(zero_y))
        },
        "vector must have at least 1 element",
    )?;
    set_codes(ctx, 0, out, DType::Qint32)?;
    set_range(
        ctx,
        1,
        product_range::<u8, u8>([min_x, max_x], [min_y, max_y]),
    )
}

#[cold]
fn not_scalar(name: &str) -> Status {
    invalid_argument!("{name} must be a scalar")
}
