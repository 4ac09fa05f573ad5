//! Special functions of several tensors: Igamma, Igammac, Betainc, Zeta, Polygamma.

use crate::map::COSTLY;
use crate::shapes;
use crate::special;
use crate::zip::{Both, half_zip_kernel, zip_kernel};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, bf16, dispatch, f16};

/// Igamma, Igammac, Betainc, Zeta, Polygamma.
pub const OPS: &[Op] = &[
    Op::new(
        "Igamma",
        "a: T, x: T -> z: T | T: type {bfloat16,half,float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| kernel(build, special::igamma)),
    Op::new(
        "Igammac",
        "a: T, x: T -> z: T | T: type {bfloat16,half,float,double} |",
    )
    .shape(shapes::broadcast)
    .kernel(|build| kernel(build, special::igammac)),
    Op::new("Zeta", "x: T, q: T -> z: T | T: type {float,double} |")
        .shape(shapes::broadcast)
        .kernel(|build| kernel(build, special::zeta)),
    Op::new("Polygamma", "a: T, x: T -> z: T | T: type {float,double} |")
        .shape(shapes::broadcast)
        .kernel(|build| kernel(build, special::polygamma)),
    Op::new(
        "Betainc",
        "a: T, b: T, x: T -> z: T | T: type {float,double} |",
    )
    .shape(betainc_shape)
    .kernel(|build| {
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [f32, f64] => Ok(Box::new(betainc::<T>)),
                else Err(build.unsupported(dtype)))
    }),
];

fn kernel(build: &KernelBuild, f: fn(f64, f64) -> f64) -> Result<Box<dyn OpKernel>> {
    let single = move |a: f32, b: f32| f(a.into(), b.into()) as f32;
    match build.input(0)? {
        DType::Float => zip_kernel::<f32, f32>(Both(single)),
        DType::Double => zip_kernel::<f64, f64>(Both(f)),
        DType::Half => half_zip_kernel::<f16>(Both(single)),
        DType::Bfloat16 => half_zip_kernel::<bf16>(Both(single)),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// All inputs have one shape, except scalars.
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

/// A float type that special functions convert to and from `f64`.
trait Float: Element + Into<f64> {
    fn from_f64(x: f64) -> Self;
}
impl Float for f32 {
    fn from_f64(x: f64) -> Self {
        x as f32
    }
}
impl Float for f64 {
    fn from_f64(x: f64) -> Self {
        x
    }
}

fn betainc<T: Float>(ctx: &mut KernelCtx) -> Result<()> {
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
        let at = |s: &[T], k: usize| s[(i * COSTLY + k).min(s.len() - 1)].into();
        for (k, out) in out.iter_mut().enumerate() {
            *out = T::from_f64(special::betainc(at(a, k), at(b, k), at(x, k)));
        }
    });
    ctx.set_output(0, out)
}
