//! ResourceScatter ops: in-place updates of variables by row (TensorFlow:
//! `core/kernels/resource_variable_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::gather::bad_index;
use ferroflow_functors::indices;
use ferroflow_functors::numeric::{Num, Ordered};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::resource::{value_mut, variable};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, Shape, Tensor, bf16, dispatch, dispatch_items, f16,
};

/// ResourceScatterAdd, ResourceScatterSub, ResourceScatterMul, ResourceScatterDiv,
/// ResourceScatterMin, ResourceScatterMax, ResourceScatterUpdate.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ResourceScatterAdd",
        "resource: resource, indices: Tindices, updates: dtype -> | dtype: numbertype; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(scatter_shape)
    .kernel(|b| combine(b, Combine::Add)),
    Op::new(
        "ResourceScatterSub",
        "resource: resource, indices: Tindices, updates: dtype -> | dtype: numbertype; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(scatter_shape)
    .kernel(|b| combine(b, Combine::Sub)),
    Op::new(
        "ResourceScatterMul",
        "resource: resource, indices: Tindices, updates: dtype -> | dtype: numbertype; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(scatter_shape)
    .kernel(|b| combine(b, Combine::Mul)),
    Op::new(
        "ResourceScatterDiv",
        "resource: resource, indices: Tindices, updates: dtype -> | dtype: numbertype; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(scatter_shape)
    .kernel(|b| combine(b, Combine::Div)),
    Op::new(
        "ResourceScatterMin",
        "resource: resource, indices: Tindices, updates: dtype -> | dtype: numbertype; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(scatter_shape)
    .kernel(|b| combine(b, Combine::Min)),
    Op::new(
        "ResourceScatterMax",
        "resource: resource, indices: Tindices, updates: dtype -> | dtype: numbertype; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(scatter_shape)
    .kernel(|b| combine(b, Combine::Max)),
    Op::new(
        "ResourceScatterUpdate",
        "resource: resource, indices: Tindices, updates: dtype -> | dtype: type; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(scatter_shape)
    .kernel(replace),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Combine {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

fn scatter_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (Some(params), Some(indices), Some(updates)) = (
        ctx.handle_shape(0).to_full(),
        ctx.input(1).to_full(),
        ctx.input(2).to_full(),
    ) else {
        return Ok(());
    };
    check_shapes(&params, &indices, &updates)
}

fn check_shapes(params: &Shape, indices: &Shape, updates: &Shape) -> Result<()> {
    let fits = params.rank() > 0 && {
        let dims = indices.iter().chain(&params[1..]);
        updates.iter().eq(dims)
    };
    if updates.is_scalar() && params.rank() > 0 || fits {
        return Ok(());
    }
    Err(invalid_argument!(
        "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got \
         updates.shape {updates}, indices.shape {indices}, params.shape {params}"
    ))
}

/// Returns the indexed rows, all of which must be below `limit`.
fn rows(indices: &Tensor, limit: usize) -> Result<Vec<usize>> {
    let picked = indices::ints(indices)?.into_iter().enumerate();
    let row = |(i, index): (usize, i64)| {
        let row = usize::try_from(index).ok().filter(|&r| r < limit);
        row.ok_or_else(|| bad_index(i, indices.shape(), index, limit))
    };
    picked.map(row).collect()
}

/// Updates rows of the first tensor by the second.
type Apply<'a> = dyn Fn(&mut Tensor, &[usize], &Tensor) -> Result<()> + Send + Sync + 'a;

/// Applies `apply` to the indexed rows, in order. Changes nothing if an index is out of
/// range.
fn scatter(ctx: &KernelCtx, dtype: DType, apply: &Apply) -> Result<()> {
    let var = variable(ctx, 0)?;
    let mut value = var.write();
    let target = value_mut(ctx, 0, &mut value, dtype)?;
    let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
    check_shapes(target.shape(), indices.shape(), updates.shape())?;
    let rows = rows(indices, target.shape()[0])?;
    apply(target, &rows, updates)
}

fn each_row<T: Clone>(
    shape: &Shape,
    target: &mut [T],
    rows: &[usize],
    updates: &[T],
    f: impl Fn(&mut T, &T),
) {
    let inner: usize = shape[1..].iter().product();
    for (i, &row) in rows.iter().enumerate() {
        let to = &mut target[row * inner..(row + 1) * inner];
        match updates {
            [one] if inner != 1 || rows.len() != 1 => to.iter_mut().for_each(|to| f(to, one)),
            all => {
                let from = &all[i * inner..(i + 1) * inner];
                to.iter_mut().zip(from).for_each(|(to, from)| f(to, from));
            }
        }
    }
}

fn replace(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(2)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        scatter(ctx, dtype, &|target, rows, updates| {
            dispatch_items!(dtype, T => {
                let shape = target.shape().clone();
                let from = updates.items::<T>()?;
                each_row(&shape, target.items_mut::<T>()?, rows, from, |a: &mut T, b| a.clone_from(b));
                Ok(())
            })
        })
    }))
}

/// Returns a function that changes rows of elements by `f`.
fn by<T: Element>(f: fn(T, T) -> T, refuses_zero: bool) -> Box<Apply<'static>> {
    Box::new(move |target, rows, updates| {
        let shape = target.shape().clone();
        let from = updates.slice::<T>()?;
        if refuses_zero && from.contains(&T::default()) {
            return Err(invalid_argument!("updates must not contain 0"));
        }
        each_row(&shape, target.slice_mut::<T>()?, rows, from, |a, b| {
            *a = f(*a, *b)
        });
        Ok(())
    })
}

fn combine(build: &KernelBuild, combine: Combine) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(2)?;
    // Integers must not be divided by zero; floats may.
    let refuses_zero = combine == Combine::Div && dtype.is_integer();
    macro_rules! half {
        ($T:ty) => {{
            let f: fn($T, $T) -> $T = match combine {
                Combine::Add => |a, b| a + b,
                Combine::Sub => |a, b| a - b,
                Combine::Mul => |a, b| a * b,
                Combine::Div => |a, b| a / b,
                Combine::Min => |a, b| if b < a { b } else { a },
                Combine::Max => |a, b| if a < b { b } else { a },
            };
            by(f, refuses_zero)
        }};
    }
    let apply = match (dtype, combine) {
        (DType::Half, _) => half!(f16),
        (DType::Bfloat16, _) => half!(bf16),
        (_, Combine::Min | Combine::Max) => {
            dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] => {
                let f = match combine {
                    Combine::Min => <T as Ordered>::smaller,
                    _ => <T as Ordered>::larger,
                };
                by::<T>(f, refuses_zero)
            }, else return Err(build.unsupported(dtype)))
        }
        _ => {
            dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] => {
                let f = match combine {
                    Combine::Add => <T as Num>::add,
                    Combine::Sub => <T as Num>::sub,
                    Combine::Mul => <T as Num>::mul,
                    _ => <T as Num>::div,
                };
                by::<T>(f, refuses_zero)
            }, else return Err(build.unsupported(dtype)))
        }
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        scatter(ctx, dtype, &*apply)
    }))
}
