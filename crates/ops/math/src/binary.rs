//! Elementwise arithmetic of two tensors with broadcasting (TensorFlow:
//! `core/kernels/cwise_op_*.cc`).

use crate::int32;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::binary::{
    BinaryFn, BinaryFunctor, ComparisonFn, Limit, Side, SimdBinary, binary_kernel, binary_op,
    checked_binary_kernel, half_binary_kernel,
};
use ferroflow_functors::field::{Field, Real};
use ferroflow_functors::numeric::{Half, Int, Num, Ordered};
use ferroflow_functors::vectorized::Vectorized;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, Op, OpKernel};
use ferroflow_primitives::math::{BinaryOp, binary_single};
use ferroflow_primitives::vectorized;
use ferroflow_tensor::{Complex, Complex32, Complex64, DType, bf16, dispatch, f16};

/// The factory of a function that every listed type and the 16-bit floats have.
macro_rules! binary_of {
    ($trait:ident :: $f:ident, [$($ty:ty),+]) => {
        binary_of!(BinaryFn(<f32 as $trait>::$f), $trait::$f, [$($ty),+])
    };
    ($single:expr, $trait:ident :: $f:ident, [$($ty:ty),+]) => {
        |build: &KernelBuild| {
            let dtype = build.input(0)?;
            match dtype {
                DType::Half => half_binary_kernel::<f16>($single),
                DType::Bfloat16 => half_binary_kernel::<bf16>($single),
                DType::Float => binary_kernel::<f32, f32>($single),
                _ => dispatch!(dtype, T in [$($ty),+] => binary_kernel::<T, T>(BinaryFn(<T as $trait>::$f)),
                    else Err(build.unsupported(dtype))),
            }
        }
    };
}

macro_rules! num_op {
    ($f:ident, $simd:ident) => {
        binary_of!(
            SimdBinary(BinaryOp::$simd, <f32 as Num>::$f),
            Num::$f,
            [
                f64, i32, i64, u8, i8, i16, u16, u32, u64, Complex32, Complex64
            ]
        )
    };
}

macro_rules! field_op {
    ($f:ident) => {
        binary_of!(Field::$f, [f64, Complex32, Complex64])
    };
}

/// The factory of a product by a logarithm.
macro_rules! log_product {
    ($simd:ident, $f:ident) => {
        binary_of!(
            vector_function(BinaryOp::$simd),
            Field::$f,
            [f64, Complex32, Complex64]
        )
    };
}

/// A function that vector instructions compute for single elements, too.
fn vector_function(op: BinaryOp) -> SimdBinary<impl Fn(f32, f32) -> f32 + Send + Sync> {
    SimdBinary(op, move |a, b| binary_single(op, a, b))
}

fn atan2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    match build.input(0)? {
        DType::Double => binary_kernel::<f64, f64>(Vectorized(BinaryFn(<f64 as Real>::atan2))),
        _ => (binary_of!(vector_function(BinaryOp::Atan2), Real::atan2, [f64]))(build),
    }
}

macro_rules! real_op {
    ($f:ident) => {
        binary_of!(Real::$f, [f64])
    };
}

macro_rules! ordered_op {
    ($f:ident, $larger:literal) => {
        binary_of!(
            Limit { larger: $larger },
            Ordered::$f,
            [f64, i32, i64, u8, i8, i16, u16, u32, u64]
        )
    };
}

/// The factory of a division: integers must not be divided by zero.
macro_rules! division {
    ($trait:ident :: $f:ident, [$($ty:ty),+], $check:ident) => {
        division!(Vectorized(BinaryFn(<f32 as $trait>::$f)), $trait::$f, [$($ty),+], $check)
    };
    ($trait:ident :: $f:ident, [$($ty:ty),+], $check:ident, $int32:path) => {
        |build: &KernelBuild| match build.input(0)? {
            DType::Int32 => checked_binary_kernel(Vectorized(BinaryFn($int32)), $check::<i32>),
            _ => (division!($trait::$f, [$($ty),+], $check))(build),
        }
    };
    ($single:expr, $trait:ident :: $f:ident, [$($ty:ty),+], $check:ident) => {
        |build: &KernelBuild| {
            dispatch!(build.input(0)?, T in [i32, i64, u8, i8, i16, u16, u32, u64] =>
                checked_binary_kernel::<T, T>(BinaryFn(<T as $trait>::$f), $check::<T>),
                else (binary_of!($single, $trait::$f, [$($ty),+]))(build))
        }
    };
}

macro_rules! bits_op {
    ($f:ident) => {
        |build: &KernelBuild| {
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [i32, i64, u8, i8, i16, u16, u32, u64] =>
                binary_kernel::<T, T>(BinaryFn(<T as Int>::$f)),
                else Err(build.unsupported(dtype)))
        }
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    binary_op("Add", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,int8,int16,int32,int64,complex64,complex128,string}", |build| match build.input(0)? {
            DType::String => Ok(Box::new(crate::compare::concat_strings)),
            _ => ADD(build),
        })
    .gradient(add_grad),
    binary_op("AddV2", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,uint16,uint32,uint64,int8,int16,int32,int64,complex64,complex128} \
         | commutative aggregate", ADD)
    .gradient(add_grad),
    binary_op("Sub", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,int8,uint16,int16,int32,int64,complex64,complex128,uint32,uint64}", num_op!(sub, Sub))
    .gradient(sub_grad),
    binary_op("Mul", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,int8,uint16,int16,int32,uint32,uint64,int64,complex64,complex128} \
         | commutative", num_op!(mul, Mul))
    .gradient(mul_grad),
    binary_op("Maximum", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,int8,uint8,int16,uint16,int32,uint32,int64,uint64}", ordered_op!(larger, true))
    .gradient(maximum_grad),
    binary_op("Minimum", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,int8,uint8,int16,uint16,int32,uint32,int64,uint64}", ordered_op!(smaller, false))
    .gradient(minimum_grad),
    binary_op("SquaredDifference", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,int32,int64,complex64,complex128} | commutative", binary_of!(
            SimdBinary(BinaryOp::SquaredDifference, Num::squared_difference),
            Num::squared_difference,
            [f64, i32, i64, Complex32, Complex64]
        ))
    .gradient(squared_difference_grad),
    binary_op("Div", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,int8,uint16,int16,int32,uint32,uint64,int64,complex64,complex128}", division!(DIVIDE, Num::div, [f64, Complex32, Complex64], no_zero))
    .gradient(div_grad),
    binary_op("RealDiv", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,int8,uint16,int16,int32,uint32,uint64,int64,complex64,complex128}", binary_of!(DIVIDE, Num::div, [f64, Complex32, Complex64]))
    .gradient(div_grad),
    binary_op("FloorDiv", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,int8,uint16,int16,int32,uint32,uint64,int64,complex64,complex128}", floor_div)
    .not_differentiable(),
    binary_op("TruncateDiv", "x: T, y: T -> z: T | T: type \
         {bfloat16,half,float,double,uint8,int8,uint16,int16,int32,uint32,uint64,int64,complex64,complex128}", division!(Ordered::trunc_div, [f64], no_zero_internal))
    .not_differentiable(),
    binary_op("Mod", "x: T, y: T -> z: T | T: type {int32,int64,half,half,bfloat16,float,double} |", division!(Ordered::trunc_mod, [f64], no_zero))
    .gradient(truncate_mod_grad),
    binary_op("FloorMod", "x: T, y: T -> z: T | T: type \
         {int8,int16,int32,int64,uint8,uint16,uint32,uint64,bfloat16,half,float,double}", division!(Ordered::floor_mod, [f64], no_zero, int32::floor_mod))
    .gradient(floor_mod_grad),
    binary_op("TruncateMod", "x: T, y: T -> z: T | T: type {int32,int64,bfloat16,half,float,double} |", division!(Ordered::trunc_mod, [f64], no_zero_internal))
    .gradient(truncate_mod_grad),
    binary_op("DivNoNan", "x: T, y: T -> z: T | T: type {half,float,bfloat16,double,complex64,complex128} |", field_op!(div_no_nan))
    .gradient(div_no_nan_grad),
    binary_op("MulNoNan", "x: T, y: T -> z: T | T: type {bfloat16,half,float,double,complex64,complex128} |", field_op!(mul_no_nan))
    .gradient(mul_no_nan_grad),
    binary_op("Xdivy", "x: T, y: T -> z: T | T: type {half,bfloat16,float,double,complex64,complex128} |", field_op!(xdivy))
    .gradient(xdivy_grad),
    binary_op("Xlogy", "x: T, y: T -> z: T | T: type {half,bfloat16,float,double,complex64,complex128} |", log_product!(Xlogy, xlogy))
    .gradient(xlogy_grad),
    binary_op("Xlog1py", "x: T, y: T -> z: T | T: type {half,bfloat16,float,double,complex64,complex128} |", log_product!(Xlog1py, xlog1py))
    .gradient(xlog1py_grad),
    binary_op("Atan2", "y: T, x: T -> z: T | T: type {bfloat16,half,float,double} |", atan2)
    .gradient(atan2_grad),
    binary_op("NextAfter", "x1: T, x2: T -> output: T | T: type {double,float} = float |", real_op!(next_after))
    .gradient(next_after_grad),
    binary_op("Pow", "x: T, y: T -> z: T | T: type \
         {bfloat16,float,half,double,int8,int16,int32,int64,complex64,complex128}", |build| {
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [i32, i64, i8, i16] =>
            checked_binary_kernel::<T, T>(IntegerPower, no_negative::<T>),
            else (field_op!(pow))(build))
        })
    .gradient(pow_grad),
    binary_op("BitwiseAnd", "x: T, y: T -> z: T | T: type \
         {int8,int16,int32,int64,uint8,uint16,uint32,uint64} | commutative", bits_op!(and)).not_differentiable(),
    binary_op("BitwiseOr", "x: T, y: T -> z: T | T: type \
         {int8,int16,int32,int64,uint8,uint16,uint32,uint64} | commutative", bits_op!(or)).not_differentiable(),
    binary_op("BitwiseXor", "x: T, y: T -> z: T | T: type \
         {int8,int16,int32,int64,uint8,uint16,uint32,uint64} | commutative", bits_op!(xor)).not_differentiable(),
    binary_op("LeftShift", "x: T, y: T -> z: T | T: type \
         {int8,int16,int32,int64,uint8,uint16,uint32,uint64}", bits_op!(shl)).not_differentiable(),
    binary_op("RightShift", "x: T, y: T -> z: T | T: type \
         {int8,int16,int32,int64,uint8,uint16,uint32,uint64}", bits_op!(shr)).not_differentiable(),
    binary_op("LogicalAnd", "x: bool, y: bool -> z: bool |  | commutative", |_| binary_kernel::<bool, bool>(BinaryFn(|a, b| a & b))).not_differentiable(),
    binary_op("LogicalOr", "x: bool, y: bool -> z: bool |  | commutative", |_| binary_kernel::<bool, bool>(BinaryFn(|a, b| a | b))).not_differentiable(),
    binary_op("Complex", "real: T, imag: T -> out: Tout | T: type {float,double} = float; Tout: type \
         {complex64,complex128} = complex64", |build| match (build.input(0)?, build.output(0)?) {
            (DType::Float, DType::Complex64) => binary_kernel::<f32, Complex32>(ComparisonFn(Complex::new)),
            (DType::Double, DType::Complex128) => binary_kernel::<f64, Complex64>(ComparisonFn(Complex::new)),
            (dtype, _) => Err(build.unsupported(dtype)),
        })
    .gradient(complex_grad),
];

const DIVIDE: SimdBinary<fn(f32, f32) -> f32> = SimdBinary(BinaryOp::Div, Num::div);

const ADD: fn(&KernelBuild) -> Result<Box<dyn OpKernel>> = num_op!(add, Add);

fn no_zero<T: Num>(divisors: &[T]) -> Result<()> {
    match divisors.iter().any(|d| d.is_zero()) {
        true => Err(invalid_argument!("Integer division by zero")),
        false => Ok(()),
    }
}

/// Like [`no_zero`], with TensorFlow's INTERNAL error for the ops that its check does not list.
fn no_zero_internal<T: Num>(divisors: &[T]) -> Result<()> {
    no_zero(divisors).map_err(|_| {
        internal!(
            "Unexpected error in binary operator (only integer div and mod should have errors)"
        )
    })
}

fn no_negative<T: Num + PartialOrd>(exponents: &[T]) -> Result<()> {
    match exponents.iter().any(|e| *e < T::ZERO) {
        true => Err(invalid_argument!(
            "Integers to negative integer powers are not allowed"
        )),
        false => Ok(()),
    }
}

/// Sets gradients from `f(x, y, z, dz)`, each only if needed.
fn both<'g>(
    g: &mut GradientCtx<'g>,
    dx: impl Fn(Expr<'g>, Expr<'g>, Expr<'g>) -> Expr<'g>,
    dy: impl Fn(Expr<'g>, Expr<'g>, Expr<'g>) -> Expr<'g>,
) -> Result<()> {
    let (x, y, dz) = (g.x(0).conj(), g.x(1).conj(), g.dy(0));
    let dx = g.needs(0).then(|| dx(x, y, dz));
    let dy = g.needs(1).then(|| dy(x, y, dz));
    g.set_broadcast(dx, dy)
}

fn add_grad(g: &mut GradientCtx) -> Result<()> {
    both(g, |_, _, dz| dz, |_, _, dz| dz)
}

fn sub_grad(g: &mut GradientCtx) -> Result<()> {
    both(g, |_, _, dz| dz, |_, _, dz| -dz)
}

fn mul_grad(g: &mut GradientCtx) -> Result<()> {
    both(g, |_, y, dz| dz * y, |x, _, dz| x * dz)
}

fn div_grad(g: &mut GradientCtx) -> Result<()> {
    both(g, |_, y, dz| dz / y, |x, y, dz| dz * (-x / y / y))
}

fn div_no_nan_grad(g: &mut GradientCtx) -> Result<()> {
    both(
        g,
        |_, y, dz| dz.op("DivNoNan", &[y]),
        |x, y, dz| dz * (-x).op("DivNoNan", &[y]).op("DivNoNan", &[y]),
    )
}

fn mul_no_nan_grad(g: &mut GradientCtx) -> Result<()> {
    both(
        g,
        |_, y, dz| dz.op("MulNoNan", &[y]),
        |x, _, dz| x.op("MulNoNan", &[dz]),
    )
}

/// For complex numbers the value is `|x - y|²`, so its gradient needs no conjugation.
fn squared_difference_grad(g: &mut GradientCtx) -> Result<()> {
    let (x, y, dz) = (g.x(0), g.x(1), g.dy(0));
    let dx = g.needs(0).then(|| dz * 2.0 * (x - y));
    let dy = g.needs(1).then(|| dz * 2.0 * (y - x));
    g.set_broadcast(dx, dy)
}

/// Passes the gradient to the selected input; to the first if both were equal.
fn picked_grad(g: &mut GradientCtx, first_if: &str) -> Result<()> {
    let first = g.x(0).op(first_if, &[g.x(1)]);
    both(
        g,
        |_, _, dz| dz.where_(first, dz.number(0.0)),
        |_, _, dz| dz.number(0.0).where_(first, dz),
    )
}

fn maximum_grad(g: &mut GradientCtx) -> Result<()> {
    picked_grad(g, "GreaterEqual")
}

fn minimum_grad(g: &mut GradientCtx) -> Result<()> {
    picked_grad(g, "LessEqual")
}

/// The factory of FloorDiv: quotients of 16-bit floats are rounded to them, then down.
fn floor_div(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    dispatch!(build.input(0)?, H in [f16, bf16] =>
        half_binary_kernel::<H>(BinaryFn(|x: f32, y: f32| H::narrow(x / y).wide().floor())),
        else (division!(Ordered::floor_div, [f64], no_zero, int32::floor_div))(build))
}

fn floor_mod_grad(g: &mut GradientCtx) -> Result<()> {
    both(g, |_, _, dz| dz, |x, y, dz| -dz * x.op("FloorDiv", &[y]))
}

fn truncate_mod_grad(g: &mut GradientCtx) -> Result<()> {
    both(g, |_, _, dz| dz, |x, y, dz| -dz * x.op("TruncateDiv", &[y]))
}

/// Returns 1 where `x` is not 0.
fn not_zero(x: Expr) -> Expr {
    x.op("NotEqual", &[x.number(0.0)]).cast(x.dtype())
}

fn xdivy_grad(g: &mut GradientCtx) -> Result<()> {
    both(
        g,
        |x, y, dz| not_zero(x).op("Xdivy", &[y]) * dz,
        |x, y, dz| (-x).op("Xdivy", &[y.op("Square", &[])]) * dz,
    )
}

fn xlogy_grad(g: &mut GradientCtx) -> Result<()> {
    both(
        g,
        |x, y, dz| not_zero(x).op("Xlogy", &[y]) * dz,
        |x, y, dz| x.op("Xdivy", &[y]) * dz,
    )
}

fn xlog1py_grad(g: &mut GradientCtx) -> Result<()> {
    both(
        g,
        |x, y, dz| not_zero(x).op("Xlog1py", &[y]) * dz,
        |x, y, dz| x.op("Xdivy", &[y + 1.0]) * dz,
    )
}

/// The inputs are y and x, in this order.
fn atan2_grad(g: &mut GradientCtx) -> Result<()> {
    both(
        g,
        |y, x, dz| x * (dz / (x.op("Square", &[]) + y.op("Square", &[]))),
        |y, x, dz| -y * (dz / (x.op("Square", &[]) + y.op("Square", &[]))),
    )
}

fn next_after_grad(g: &mut GradientCtx) -> Result<()> {
    both(g, |_, _, dz| dz, |_, _, dz| dz.zeros_like())
}

/// Powers of integers: squares and cubes of many by vectors.
struct IntegerPower;

/// Overwrites numbers with their squares or cubes; `false` for other exponents.
fn small_power<T: Int>(x: &mut [T], exponent: T) -> bool {
    let is_cube = exponent == T::ONE.add(T::ONE).add(T::ONE);
    if !is_cube && exponent != T::ONE.add(T::ONE) {
        return false;
    }
    vectorized(
        #[inline(always)]
        || {
            for x in x {
                let square = x.mul(*x);
                *x = if is_cube { square.mul(*x) } else { square };
            }
        },
    );
    true
}

impl<T: Int> BinaryFunctor<T, T> for IntegerPower {
    fn apply(&self, a: T, b: T) -> T {
        a.pow(b)
    }

    fn apply_slice(&self, a: Side<T>, b: Side<T>, out: &mut [T]) {
        if let (Side::Slice(a), Side::Scalar(b)) = (a, b) {
            out.copy_from_slice(a);
            if small_power(out, b) {
                return;
            }
        }
        BinaryFn(T::pow).apply_slice(a, b, out);
    }

    fn assign_left(&self, a: &mut [T], b: Side<T>) {
        match b {
            Side::Scalar(b) if small_power(a, b) => {}
            b => BinaryFn(T::pow).assign_left(a, b),
        }
    }

    fn assign_right(&self, a: Side<T>, b: &mut [T]) {
        BinaryFn(T::pow).assign_right(a, b);
    }

    fn in_place(&self) -> bool {
        true
    }
}

fn pow_grad(g: &mut GradientCtx) -> Result<()> {
    let z = g.y(0).conj();
    both(
        g,
        |x, y, dz| dz * y * x.op("Pow", &[y - 1.0]),
        |x, _, dz| {
            // The gradient by the exponent is zero for a base without logarithm.
            let test = if x.dtype().is_complex() {
                "NotEqual"
            } else {
                "Greater"
            };
            let has_log = x.op(test, &[x.number(0.0)]);
            let log = x.where_(has_log, x.number(1.0)).op("Log", &[]);
            dz * z * log.where_(has_log, x.number(0.0))
        },
    )
}

fn complex_grad(g: &mut GradientCtx) -> Result<()> {
    let dtype = g.x(0).dtype();
    both(
        g,
        |_, _, dz| dz.op_with("Real", &[], &[("Tout", dtype.into())]),
        |_, _, dz| dz.op_with("Imag", &[], &[("Tout", dtype.into())]),
    )
}
