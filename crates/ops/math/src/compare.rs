//! Comparisons with broadcasting (TensorFlow: `core/kernels/cwise_op_*.cc`).

use crate::quantized::{of_stored, stored};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::{
    BroadcastPlan, ComparisonFn, WidenOperands, binary_kernel, checked_broadcast,
};
use ferroflow_functors::field::Real;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{
    Bytes, Complex32, Complex64, DType, PartialShape, Shape, Tensor, bf16, dispatch, f16,
};

/// The kernel of a comparison of 16-bit floats.
macro_rules! halves {
    ($ty:ty, $op:tt) => {
        binary_kernel::<$ty, bool>(WidenOperands(ComparisonFn(|x: f32, y: f32| x $op y)))
    };
}

/// The factory of an order relation.
macro_rules! order {
    ($name:literal, $op:tt) => {
        Op::new($name, "x: T, y: T -> z: bool | T: realnumbertype |")
            .shape(shapes::broadcast)
            .kernel(|build| {
                let dtype = build.input(0)?;
                dispatch!(dtype, T in [f32, f64, i32, i64, u8, i8, i16, u16, u32, u64] =>
                    binary_kernel::<T, bool>(ComparisonFn(|x: T, y: T| x $op y)),
                    else dispatch!(dtype, H in [f16, bf16] => halves!(H, $op),
                        else Err(build.unsupported(dtype))))
            })
            .not_differentiable()
    };
}

macro_rules! equality {
    ($name:literal, $op:tt) => {
        Op::new($name, "x: T, y: T -> z: bool | T: type; incompatible_shape_error: bool = true | \
         commutative")
            .shape(equality_shape)
            .kernel(|build| {
                let dtype = build.input(0)?;
                let kernel = dispatch!(stored(dtype), T in [
                    f32, f64, i32, i64, bool, u8, i8, i16, u16, u32, u64, Complex32, Complex64
                ] =>
                    of_stored(build, binary_kernel::<T, bool>(ComparisonFn(|x: T, y: T| x $op y))?),
                    else match dtype {
                        DType::Half => halves!(f16, $op),
                        DType::Bfloat16 => halves!(bf16, $op),
                        DType::String => {
                            let f: fn(&Bytes, &Bytes) -> bool = |x, y| x $op y;
                            Ok(Box::new(move |ctx: &mut KernelCtx| strings(ctx, f)) as Box<dyn OpKernel>)
                        }
                        _ => Err(build.unsupported(dtype)),
                    })?;
                let otherwise: bool = 1 $op 2;
                tolerant(build, kernel, otherwise)
            })
            .not_differentiable()
    };
}

/// Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, ApproximateEqual.
pub(crate) const OPS: &[Op] = &[
    equality!("Equal", ==),
    equality!("NotEqual", !=),
    order!("Less", <),
    order!("LessEqual", <=),
    order!("Greater", >),
    order!("GreaterEqual", >=),
    Op::new(
        "ApproximateEqual",
        "x: T, y: T -> z: bool | T: numbertype; tolerance: float = 0.00001 | commutative",
    )
    .shape(|ctx| {
        let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(approximate)
    .not_differentiable(),
];

fn equality_shape(ctx: &mut ShapeCtx) -> Result<()> {
    match shapes::broadcast(ctx) {
        Err(_) if !ctx.attrs().bool("incompatible_shape_error")? => {
            ctx.set(0, PartialShape::unknown());
            Ok(())
        }
        Ok(()) if !ctx.attrs().bool("incompatible_shape_error")? => {
            // If the dimensions turn out not to fit, the output is a scalar.
            if ctx.input(0).to_full().is_none() || ctx.input(1).to_full().is_none() {
                ctx.set(0, PartialShape::unknown());
            }
            Ok(())
        }
        other => other,
    }
}

/// With `incompatible_shape_error = false`, shapes that do not fit result in the scalar
/// `otherwise`.
fn tolerant(
    build: &KernelBuild,
    kernel: Box<dyn OpKernel>,
    otherwise: bool,
) -> Result<Box<dyn OpKernel>> {
    if build.attrs.bool("incompatible_shape_error")? {
        return Ok(kernel);
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if checked_broadcast(ctx.shape(0)?, ctx.shape(1)?).is_err() {
            return ctx.set_output(0, Tensor::scalar(otherwise));
        }
        kernel.compute(ctx)
    }))
}

/// Calls `f` with every pair of strings of inputs 0 and 1 broadcast together.
fn pairs(ctx: &KernelCtx, shape: &Shape, mut f: impl FnMut(usize, &Bytes, &Bytes)) -> Result<()> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let plan = BroadcastPlan::broadcast(shape, x.shape(), y.shape());
    let (x, y) = (x.strings()?, y.strings()?);
    plan.elements(shape.num_elements(), |i, a, b| f(i, &x[a], &y[b]));
    Ok(())
}

fn strings(ctx: &mut KernelCtx, f: fn(&Bytes, &Bytes) -> bool) -> Result<()> {
    let shape = checked_broadcast(ctx.shape(0)?, ctx.shape(1)?)?;
    let mut out = ctx.alloc(DType::Bool, shape.clone())?;
    let values = out.slice_mut::<bool>()?;
    pairs(ctx, &shape, |i, x, y| values[i] = f(x, y))?;
    ctx.set_output(0, out)
}

/// Concatenates strings elementwise: the kernel of Add.
pub(crate) fn concat_strings(ctx: &mut KernelCtx) -> Result<()> {
    let shape = checked_broadcast(ctx.shape(0)?, ctx.shape(1)?)?;
    let mut out = ctx.alloc(DType::String, shape.clone())?;
    let values = out.items_mut::<Bytes>()?;
    pairs(ctx, &shape, |i, x, y| {
        values[i] = [&x[..], &y[..]].concat().into()
    })?;
    ctx.set_output(0, out)
}

fn approximate(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    let tolerance = build.attrs.float("tolerance")?;
    let kernel = dispatch!(dtype, T in [f32, f64] => {
        let tolerance = T::from(tolerance);
        binary_kernel::<T, bool>(ComparisonFn(move |x: T, y: T| Real::abs(x - y) < tolerance))
    }, else Err(build.unsupported(dtype)))?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if ctx.shape(0)? != ctx.shape(1)? {
            return Err(invalid_argument!(
                "x and y must be of the same shape. x shape: {}. y shape: {}",
                ctx.shape(0)?,
                ctx.shape(1)?
            ));
        }
        kernel.compute(ctx)
    }))
}
