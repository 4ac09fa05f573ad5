//! Elementwise functions of one tensor (TensorFlow: `core/kernels/cwise_op_*.cc`).

use crate::near::{self, Near};
use crate::unary_vectors;
use ferroflow_base::Result;
use ferroflow_functors::csr::Csr;
use ferroflow_functors::field::{Field, Real};
use ferroflow_functors::numeric::{Int, Num};
use ferroflow_functors::shapes;
use ferroflow_functors::unary::{
    CHEAP, COSTLY, ConvertFn, SimdUnary, UnaryFn, UnaryFunctor, WidenInput, half_unary_kernel,
    unary_kernel, unary_op,
};
use ferroflow_functors::vectorized::Vectorized;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::math::UnaryOp;
use ferroflow_primitives::{special, special_slices};
use ferroflow_tensor::{Complex32, Complex64, DType, bf16, dispatch, f16};

/// The factory of a function that every listed type and the 16-bit floats have.
macro_rules! unary_of {
    ($block:expr, $trait:ident :: $f:ident, [$($ty:ty),+]) => {
        unary_of!($block, UnaryFn(<f32 as $trait>::$f), $trait::$f, [$($ty),+])
    };
    ($block:expr, $single:expr, $trait:ident :: $f:ident, [$($ty:ty),+]) => {
        |build: &KernelBuild| {
            let dtype = build.input(0)?;
            match dtype {
                DType::Half => half_unary_kernel::<f16>($block, $single),
                DType::Bfloat16 => half_unary_kernel::<bf16>($block, $single),
                DType::Float => unary_kernel::<f32, f32>($block, $single),
                _ => dispatch!(dtype, T in [$($ty),+] =>
                    unary_kernel::<T, T>($block, UnaryFn(<T as $trait>::$f)),
                    else Err(build.unsupported(dtype))),
            }
        }
    };
}

macro_rules! field_op {
    ($f:ident, $simd:ident) => {
        unary_of!(
            COSTLY,
            SimdUnary(UnaryOp::$simd),
            Field::$f,
            [f64, Complex32, Complex64]
        )
    };
    ($f:ident) => {
        unary_of!(COSTLY, Field::$f, [f64, Complex32, Complex64])
    };
}

macro_rules! real_op {
    ($block:expr, $f:ident, $simd:ident) => {
        unary_of!($block, SimdUnary(UnaryOp::$simd), Real::$f, [f64])
    };
}

/// The factory of a rounding.
macro_rules! rounding_op {
    ($f:ident, $simd:ident) => {
        |build: &KernelBuild| of_floats(build, CHEAP, UnaryOp::$simd, <f64 as Real>::$f)
    };
}

/// The factory of a function that vector instructions compute in both precisions.
macro_rules! vector_op {
    ($block:expr, $simd:ident, $trait:ident :: $f:ident) => {
        |build: &KernelBuild| {
            dispatch!(build.input(0)?, T in [Complex32, Complex64] =>
                unary_kernel::<T, T>($block, UnaryFn(<T as $trait>::$f)),
                else of_floats(build, $block, UnaryOp::$simd, <f64 as $trait>::$f))
        }
    };
}

/// The factory of a function that has other code for doubles.
macro_rules! double_op {
    ($double:path, $else:expr) => {
        |build: &KernelBuild| match build.input(0)? {
            DType::Double => $double(),
            _ => $else(build),
        }
    };
}

/// The factory of a function that has other code for complex numbers.
macro_rules! complex_op {
    ($complex:ident, $else:expr) => {
        |build: &KernelBuild| match build.input(0)? {
            DType::Complex64 => unary_vectors::$complex::<Complex32>(),
            DType::Complex128 => unary_vectors::$complex::<Complex64>(),
            _ => $else(build),
        }
    };
}

macro_rules! special_op {
    ($f:path) => {
        |build: &KernelBuild| special_kernel(build, $f)
    };
}

/// The factory of a function whose integer and float forms are in different traits.
macro_rules! mixed_op {
    ([$($int:ty),+], $int_trait:ident :: $g:ident, $simd:ident, $trait:ident :: $f:ident, [$($ty:ty),+]) => {
        |build: &KernelBuild| {
            dispatch!(build.input(0)?, T in [$($int),+] =>
                unary_kernel::<T, T>(CHEAP, UnaryFn(<T as $int_trait>::$g)),
                else (unary_of!(CHEAP, SimdUnary(UnaryOp::$simd), $trait::$f, [$($ty),+]))(build))
        }
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    // TensorFlow's masters make it of several of these ops; the pass `composite` splits it again.
    Op::new(
        "_UnaryOpsComposition",
        "x: T -> y: T | T: type {float,half,double}; op_names: list(string)",
    )
    .shape(shapes::unchanged),
    unary_op("Sqrt", FIELD, complex_op!(sqrt, vector_op!(CHEAP, Sqrt, Num::root)))
    .gradient(sqrt_grad),
    unary_op("Rsqrt", FIELD, vector_op!(COSTLY, Rsqrt, Field::rsqrt))
    .gradient(rsqrt_grad),
    unary_op("Exp", FIELD, complex_op!(exp, vector_op!(COSTLY, Exp, Field::exp)))
    .gradient(exp_grad),
    unary_op("Expm1", FIELD, vector_op!(COSTLY, Expm1, Field::exp_m1))
    .gradient(expm1_grad),
    unary_op("Log", FIELD, complex_op!(ln, vector_op!(COSTLY, Log, Field::ln)))
    .gradient(log_grad),
    unary_op("Log1p", FIELD, vector_op!(COSTLY, Log1p, Field::ln_1p))
    .gradient(log1p_grad),
    unary_op("Sin", FIELD, double_op!(unary_vectors::sin, field_op!(sin, Sin)))
    .gradient(sin_grad),
    unary_op("Cos", FIELD, double_op!(unary_vectors::cos, field_op!(cos, Cos)))
    .gradient(cos_grad),
    unary_op("Tan", FIELD, field_op!(tan))
    .gradient(tan_grad),
    unary_op("Asin", FIELD, field_op!(asin, Asin))
    .gradient(asin_grad),
    unary_op("Acos", FIELD, field_op!(acos, Acos))
    .gradient(acos_grad),
    unary_op("Atan", FIELD, vector_op!(COSTLY, Atan, Field::atan))
    .gradient(atan_grad),
    unary_op("Sinh", FIELD, field_op!(sinh, Sinh))
    .gradient(sinh_grad),
    unary_op("Cosh", FIELD, field_op!(cosh, Cosh))
    .gradient(cosh_grad),
    unary_op("Tanh", FIELD, vector_op!(COSTLY, Tanh, Field::tanh))
    .gradient(tanh_grad),
    unary_op("Asinh", FIELD, vector_op!(COSTLY, Asinh, Field::asinh))
    .gradient(asinh_grad),
    unary_op("Acosh", FIELD, vector_op!(COSTLY, Acosh, Field::acosh))
    .gradient(acosh_grad),
    unary_op("Atanh", FIELD, field_op!(atanh, Atanh))
    .gradient(atanh_grad),
    unary_op("Sigmoid", FIELD, vector_op!(COSTLY, Sigmoid, Field::sigmoid))
    .gradient(sigmoid_grad),
    unary_op("Erf", FLOATS, |build| match build.input(0)? {
        DType::Double => near::kernel(build, Near::of(special_slices::erf, f64::is_finite, special::erf)),
        _ => (real_op!(COSTLY, erf, Erf))(build),
    })
    .gradient(erf_grad),
    unary_op("Erfc", FLOATS, |build| match build.input(0)? {
        DType::Double => near::kernel(build, Near::of(special_slices::erfc, f64::is_finite, special::erfc)),
        _ => (real_op!(COSTLY, erfc, Erfc))(build),
    })
    .gradient(erfc_grad),
    unary_op("Erfinv", FLOATS, special_op!(special::erfinv))
    .gradient(erfinv_grad),
    unary_op("Ndtri", FLOATS, special_op!(special::ndtri))
    .gradient(ndtri_grad),
    unary_op("Lgamma", FLOATS, |build| match build.input(0)? {
        DType::Double => special_kernel(build, special::lgamma),
        _ => near::kernel(build, Near::of(special_slices::lgamma, is_moderate, special::lgamma)),
    })
    .gradient(lgamma_grad),
    unary_op("Digamma", FLOATS, |build| {
        near::kernel(build, Near::of(special_slices::digamma, is_moderate, special::digamma))
    })
    .gradient(digamma_grad),
    unary_op("Reciprocal", SIGNED, field_op!(recip, Reciprocal))
    .gradient(reciprocal_grad),
    unary_op("Inv", SIGNED, field_op!(recip, Reciprocal))
    .gradient(reciprocal_grad),
    unary_op("Floor", FLOATS, rounding_op!(floor, Floor))
    .not_differentiable(),
    unary_op("Ceil", FLOATS, rounding_op!(ceil, Ceil))
    .not_differentiable(),
    unary_op("Rint", FLOATS, rounding_op!(rint, Round))
    .not_differentiable(),
    unary_op("Round", SIGNED, |build| {
        dispatch!(build.input(0)?, T in [i32, i64] =>
            unary_kernel::<T, T>(CHEAP, UnaryFn(<T as Int>::round)),
            else of_floats(build, CHEAP, UnaryOp::Round, <f64 as Real>::rint))
    })
    .not_differentiable(),
    unary_op("Abs", "x: T -> y: T | T: type {bfloat16,half,float,double,int8,int16,int32,int64} |", mixed_op!([i8, i16, i32, i64], Int::abs, Abs, Real::abs, [f64]))
    .gradient(abs_grad),
    unary_op("Neg", SIGNED, unary_of!(
            CHEAP,
            SimdUnary(UnaryOp::Neg),
            Num::neg,
            [f64, i8, i16, i32, i64, Complex32, Complex64]
        ))
    .gradient(neg_grad),
    unary_op("Sign", SIGNED, mixed_op!(
            [i8, i16, i32, i64],
            Int::sign,
            Sign,
            Field::sign,
            [f64, Complex32, Complex64]
        ))
    .gradient(sign_grad),
    unary_op("Square", "x: T -> y: T | T: type \
         {bfloat16,half,float,double,int8,int16,int32,int64,uint8,uint16,uint32,uint64,complex64,complex128}", unary_of!(
            CHEAP,
            SimdUnary(UnaryOp::Square),
            Num::square,
            [
                f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
            ]
        ))
    .gradient(square_grad),
    unary_op("IsNan", TESTED, |build| {
        test(build, |x: f32| x.is_nan(), |x: f64| x.is_nan())
    }),
    unary_op("IsInf", TESTED, |build| {
        test(build, |x: f32| x.is_infinite(), |x: f64| x.is_infinite())
    }),
    unary_op("IsFinite", TESTED, |build| {
        test(build, |x: f32| x.is_finite(), |x: f64| x.is_finite())
    }),
    unary_op("LogicalNot", "x: bool -> y: bool |  |", |_| {
        unary_kernel::<bool, bool>(CHEAP, UnaryFn(|x: bool| !x))
    }).not_differentiable(),
    unary_op("Invert", INTEGERS, |build| {
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [i8, i16, i32, i64, u8, u16, u32, u64] =>
            unary_kernel::<T, T>(CHEAP, UnaryFn(<T as Int>::not)),
            else Err(build.unsupported(dtype)))
    }).not_differentiable(),
    unary_op("PopulationCount", "x: T -> y: uint8 | T: type {int8,int16,int32,int64,uint8,uint16,uint32,uint64} |", |build| {
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [i8, i16, i32, i64, u8, u16, u32, u64] =>
            unary_kernel::<T, u8>(CHEAP, ConvertFn(<T as Int>::ones)),
            else Err(build.unsupported(dtype)))
        }).not_differentiable(),
    unary_op("Conj", "input: T -> output: T | T: type {complex64,complex128,variant} = complex64 |", |build| {
            let dtype = build.input(0)?;
            if dtype == DType::Variant {
                return Ok(Box::new(|ctx: &mut KernelCtx| {
                    let matrix = Csr::input(ctx, 0)?.conj()?;
                    ctx.set_output(0, matrix.into_tensor()?)
                }));
            }
            dispatch!(dtype, T in [Complex32, Complex64] =>
            unary_kernel::<T, T>(CHEAP, Vectorized(UnaryFn(|x: T| <T as Field>::conj(x)))),
            else Err(build.unsupported(dtype)))
        })
    .gradient(conj_grad),
    unary_op("Real", PART, |build| part(build, |z| z.re, |z| z.re))
    .gradient(real_grad),
    unary_op("Imag", PART, |build| part(build, |z| z.im, |z| z.im))
    .gradient(imag_grad),
    unary_op("Angle", PART, |build| part(build, |z| z.arg(), |z| z.arg()))
    .gradient(angle_grad),
    unary_op("ComplexAbs", "x: T -> y: Tout | T: type {complex64,complex128} = complex64; Tout: type \
         {float,double} = float", |build| part(build, |z| z.norm(), |z| z.norm()))
    .gradient(complex_abs_grad),
];

pub(crate) const FLOATS: &str = "x: T -> y: T | T: type {bfloat16,half,float,double} |";

const FIELD: &str = "x: T -> y: T | T: type {bfloat16,half,float,double,complex64,complex128} |";

const SIGNED: &str = "x: T -> y: T | T: type \
         {bfloat16,half,float,double,int8,int16,int32,int64,complex64,complex128}";

const TESTED: &str = "x: T -> y: bool | T: type {bfloat16,half,float,double} |";

const INTEGERS: &str =
    "x: T -> y: T | T: type {int8,int16,int32,int64,uint8,uint16,uint32,uint64} |";

const PART: &str = "input: T -> output: Tout | T: type {complex64,complex128} = complex64; Tout: \
         type {float,double} = float";

/// Returns the kernel of a function that vector instructions compute: `op` of single precision and
/// 16-bit floats, `double` of doubles.
fn of_floats(
    build: &KernelBuild,
    block: usize,
    op: UnaryOp,
    double: impl Fn(f64) -> f64 + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    match build.input(0)? {
        DType::Half => half_unary_kernel::<f16>(block, SimdUnary(op)),
        DType::Bfloat16 => half_unary_kernel::<bf16>(block, SimdUnary(op)),
        DType::Float => unary_kernel::<f32, f32>(block, SimdUnary(op)),
        DType::Double => unary_kernel(block, Vectorized(UnaryFn(double))),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Returns the kernel of a real function of complex numbers.
fn part(
    build: &KernelBuild,
    single: impl Fn(Complex32) -> f32 + Send + Sync + 'static,
    double: impl Fn(Complex64) -> f64 + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    match (build.input(0)?, build.output(0)?) {
        (DType::Complex64, DType::Float) => {
            unary_kernel::<Complex32, f32>(CHEAP, Vectorized(ConvertFn(single)))
        }
        (DType::Complex128, DType::Double) => {
            unary_kernel::<Complex64, f64>(CHEAP, Vectorized(ConvertFn(double)))
        }
        (dtype, _) => Err(build.unsupported(dtype)),
    }
}

fn test(
    build: &KernelBuild,
    single: impl Fn(f32) -> bool + Send + Sync + 'static,
    double: impl Fn(f64) -> bool + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let single = Vectorized(ConvertFn(single));
    match build.input(0)? {
        DType::Float => unary_kernel::<f32, bool>(CHEAP, single),
        DType::Double => unary_kernel::<f64, bool>(CHEAP, Vectorized(ConvertFn(double))),
        DType::Half => unary_kernel::<f16, bool>(CHEAP, WidenInput(single)),
        DType::Bfloat16 => unary_kernel::<bf16, bool>(CHEAP, WidenInput(single)),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Positive numbers of which neither a product with the next ones nor an inverse overflows.
fn is_moderate(x: f64) -> bool {
    x > 1e-270 && x < 1e270
}

/// Returns the kernel of a function that every float type computes in `f64`.
pub(crate) fn special_kernel(build: &KernelBuild, f: fn(f64) -> f64) -> Result<Box<dyn OpKernel>> {
    let single = move || -> Box<dyn UnaryFunctor<f32, f32>> {
        Box::new(UnaryFn(move |x: f32| f(x.into()) as f32))
    };
    match build.input(0)? {
        DType::Float => unary_kernel::<f32, f32>(COSTLY, single()),
        DType::Double => unary_kernel::<f64, f64>(COSTLY, UnaryFn(f)),
        DType::Half => half_unary_kernel::<f16>(COSTLY, single()),
        DType::Bfloat16 => half_unary_kernel::<bf16>(COSTLY, single()),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Returns a gradient of the form `dx = dy * f(x, y)`, with `x` and `y` conjugated.
pub(crate) fn times<'g>(
    g: &mut GradientCtx<'g>,
    f: impl Fn(Expr<'g>, Expr<'g>) -> Expr<'g>,
) -> Result<()> {
    let factor = f(g.x(0).conj(), g.y(0).conj());
    let dx = g.dy(0) * factor;
    g.set(0, dx)
}

fn sqrt_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = g.y(0).op("SqrtGrad", &[g.dy(0)]);
    g.set(0, dx)
}

fn rsqrt_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = g.y(0).op("RsqrtGrad", &[g.dy(0)]);
    g.set(0, dx)
}

fn tanh_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = g.y(0).conj().op("TanhGrad", &[g.dy(0)]);
    g.set(0, dx)
}

fn sigmoid_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = g.y(0).conj().op("SigmoidGrad", &[g.dy(0)]);
    g.set(0, dx)
}

fn reciprocal_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = g.y(0).op("ReciprocalGrad", &[g.dy(0)]);
    g.set(0, dx)
}

fn exp_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |_, y| y)
}

fn expm1_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.op("Exp", &[]))
}

fn log_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.op("Reciprocal", &[]))
}

fn log1p_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| (1.0 + x).op("Reciprocal", &[]))
}

fn sin_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.op("Cos", &[]))
}

fn cos_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| -x.op("Sin", &[]))
}

fn tan_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| {
        x.op("Cos", &[]).op("Reciprocal", &[]).op("Square", &[])
    })
}

fn asin_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| {
        (1.0 - x.op("Square", &[]))
            .op("Sqrt", &[])
            .op("Reciprocal", &[])
    })
}

fn acos_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| {
        -(1.0 - x.op("Square", &[]))
            .op("Sqrt", &[])
            .op("Reciprocal", &[])
    })
}

fn atan_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| (1.0 + x.op("Square", &[])).op("Reciprocal", &[]))
}

fn sinh_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.op("Cosh", &[]))
}

fn cosh_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.op("Sinh", &[]))
}

fn asinh_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |_, y| y.op("Cosh", &[]).op("Reciprocal", &[]))
}

fn acosh_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |_, y| y.op("Sinh", &[]).op("Reciprocal", &[]))
}

fn atanh_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| (1.0 - x.op("Square", &[])).op("Reciprocal", &[]))
}

fn erf_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| {
        (-x.op("Square", &[])).op("Exp", &[]) * std::f64::consts::FRAC_2_SQRT_PI
    })
}

fn erfc_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| {
        (-x.op("Square", &[])).op("Exp", &[]) * -std::f64::consts::FRAC_2_SQRT_PI
    })
}

fn erfinv_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |_, y| {
        y.op("Square", &[]).op("Exp", &[]) / std::f64::consts::FRAC_2_SQRT_PI
    })
}

fn ndtri_grad(g: &mut GradientCtx) -> Result<()> {
    let root = (2.0 * std::f64::consts::PI).sqrt();
    times(g, move |_, y| {
        (y.op("Square", &[]) * 0.5).op("Exp", &[]) * root
    })
}

fn lgamma_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.op("Digamma", &[]))
}

fn digamma_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.number(1.0).op("Polygamma", &[x]))
}

fn abs_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x.op("Sign", &[]))
}

fn square_grad(g: &mut GradientCtx) -> Result<()> {
    times(g, |x, _| x * 2.0)
}

fn neg_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = -g.dy(0);
    g.set(0, dx)
}

fn sign_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = g.x(0).zeros_like();
    g.set(0, dx)
}

fn conj_grad(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).conj();
    g.set(0, dx)
}

/// Returns the complex number of dtype `like` with these parts.
fn complex<'g>(re: Expr<'g>, im: Expr<'g>, like: Expr<'g>) -> Expr<'g> {
    re.op_with("Complex", &[im], &[("Tout", like.dtype().into())])
}

fn real_grad(g: &mut GradientCtx) -> Result<()> {
    let dy = g.dy(0);
    g.set(0, complex(dy, dy.number(0.0), g.x(0)))
}

fn imag_grad(g: &mut GradientCtx) -> Result<()> {
    let dy = g.dy(0);
    g.set(0, complex(dy.number(0.0), dy, g.x(0)))
}

fn angle_grad(g: &mut GradientCtx) -> Result<()> {
    let (x, dy) = (g.x(0), g.dy(0));
    let of_part = [("Tout", dy.dtype().into())];
    let (re, im) = (
        x.op_with("Real", &[], &of_part),
        x.op_with("Imag", &[], &of_part),
    );
    let turned = complex(im, re, x).op("Reciprocal", &[]);
    g.set(0, -(complex(dy, dy.number(0.0), x) * turned))
}

fn complex_abs_grad(g: &mut GradientCtx) -> Result<()> {
    let (x, y, dy) = (g.x(0), g.y(0), g.dy(0));
    let zero = dy.number(0.0);
    let dx = (complex(dy, zero, x) * x).op("DivNoNan", &[complex(y, zero, x)]);
    g.set(0, dx)
}
