//! Rows written by index, into tensors and into variables: ScatterNd, TensorScatterUpdate, Add, …,
//! ResourceScatterNdUpdate, Add, …

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::gather::{ignores_bad_indices, row_position};
use ferroflow_functors::indices;
use ferroflow_functors::shapes;
use ferroflow_functors::strided::unravel;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::resource::{value_mut, variable};
use ferroflow_tensor::{
    Bytes, Complex32, Complex64, DType, Item, PartialShape, Shape, Tensor, bf16, dispatch_items,
    f16,
};

/// ScatterNd, TensorScatterUpdate, TensorScatterAdd, TensorScatterSub, TensorScatterMax,
/// TensorScatterMin, ResourceScatterNdUpdate, ResourceScatterNdAdd, ResourceScatterNdSub,
/// ResourceScatterNdMax, ResourceScatterNdMin.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ScatterNd",
        "indices: Tindices, updates: T, shape: Tindices -> output: T | T: type; \
         Tindices: type {int16,int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(scatter_nd_shape)
    .kernel(scatter_nd)
    .gradient(scatter_nd_gradient),
    Op::new(
        "TensorScatterUpdate",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int16,int32,int64,uint16}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| update(b, Target::Input))
    .gradient(update_gradient),
    Op::new(
        "TensorScatterAdd",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| combining(b, Combine::Add, Target::Input))
    .gradient(add_gradient),
    Op::new(
        "TensorScatterSub",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| combining(b, Combine::Sub, Target::Input))
    .gradient(sub_gradient),
    Op::new(
        "TensorScatterMax",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| combining(b, Combine::Max, Target::Input))
    .gradient(extreme_gradient),
    Op::new(
        "TensorScatterMin",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| combining(b, Combine::Min, Target::Input))
    .gradient(extreme_gradient),
    Op::new(
        "ResourceScatterNdUpdate",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type {int32,int64}; \
         use_locking: bool = true; bad_indices_policy: string = '' | stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| update(b, Target::Variable)),
    Op::new(
        "ResourceScatterNdAdd",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type {int32,int64}; \
         use_locking: bool = true; bad_indices_policy: string = '' | stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| combining(b, Combine::Add, Target::Variable)),
    Op::new(
        "ResourceScatterNdSub",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type {int32,int64}; \
         use_locking: bool = true; bad_indices_policy: string = '' | stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| combining(b, Combine::Sub, Target::Variable)),
    Op::new(
        "ResourceScatterNdMax",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type {int32,int64}; \
         use_locking: bool = true; bad_indices_policy: string = '' | stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| combining(b, Combine::Max, Target::Variable)),
    Op::new(
        "ResourceScatterNdMin",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type {int32,int64}; \
         use_locking: bool = true; bad_indices_policy: string = '' | stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| combining(b, Combine::Min, Target::Variable)),
];

#[derive(Clone, Copy)]
enum Combine {
    Add,
    Sub,
    Max,
    Min,
}

/// What the rows are written to.
#[derive(Clone, Copy)]
enum Target {
    /// Input 0; indices are input 1 and updates input 2.
    Input,
    /// Zeros of the shape in input 2; indices are input 0 and updates input 1.
    Zeros,
    /// The variable in input 0; indices are input 1 and updates input 2.
    Variable,
}

/// Checks that indices and updates fit a target of shape `shape`; gives the length of coordinates.
fn check(indices: &Shape, updates: &Shape, shape: &Shape) -> Result<usize> {
    let Some((&depth, outer)) = indices.split_last() else {
        return Err(invalid_argument!(
            "Indices shape must have rank at least one. Found:{indices}"
        ));
    };
    if shape.num_elements() == 0 && (indices.num_elements() > 0 || updates.num_elements() > 0) {
        return Err(invalid_argument!(
            "Indices and updates specified for empty output shape: {shape}"
        ));
    }
    if updates.rank() < outer.len() || updates[..outer.len()] != *outer {
        return Err(invalid_argument!(
            "Dimensions [0,{}) of indices[shape={indices}] must match dimensions [0,{}) of \
             updates[shape={updates}]",
            outer.len(),
            outer.len()
        ));
    }
    if depth > shape.rank() || updates[outer.len()..] != shape[depth..] {
        return Err(invalid_argument!(
            "Dimensions [{depth},{}) of input[shape={shape}] must match dimensions [{},{}) of \
             updates[shape={updates}]",
            shape.rank(),
            outer.len(),
            updates.rank()
        ));
    }
    Ok(depth)
}

/// Applies `combine` to every row that the indices name, in their order.
fn scatter<T: Item>(
    ctx: &mut KernelCtx,
    target: Target,
    ignore: bool,
    combine: impl Fn(&mut T, &T),
) -> Result<()> {
    let mut out = match target {
        Target::Input => ctx.take_input(0)?,
        Target::Zeros => {
            let sizes = ctx.input(2)?;
            if sizes.shape().rank() != 1 {
                return Err(invalid_argument!(
                    "Shape must be a vector, got {}",
                    sizes.shape()
                ));
            }
            let shape = Shape::checked(&indices::ints(sizes)?)?;
            Tensor::zeros(ctx.input(1)?.dtype(), shape)?
        }
        Target::Variable => {
            let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
            let var = variable(ctx, 0)?;
            let mut value = var.write();
            let out = value_mut(ctx, 0, &mut value, updates.dtype())?;
            return scatter_into::<T>(out, indices, updates, ignore, combine);
        }
    };
    let first = usize::from(matches!(target, Target::Input));
    let (indices, updates) = (ctx.input(first)?, ctx.input(first + 1)?);
    scatter_into::<T>(&mut out, indices, updates, ignore, combine)?;
    ctx.set_output(0, out)
}

fn scatter_into<T: Item>(
    out: &mut Tensor,
    indices: &Tensor,
    updates: &Tensor,
    ignore: bool,
    combine: impl Fn(&mut T, &T),
) -> Result<()> {
    let shape = out.shape().clone();
    let depth = check(indices.shape(), updates.shape(), &shape)?;
    let inner: usize = shape[depth..].iter().product();
    let coords = indices::ints(indices)?;
    let from = updates.items::<T>()?;
    let to = out.items_mut::<T>()?;
    let n: usize = indices.shape()[..indices.shape().rank() - 1]
        .iter()
        .product();
    for i in 0..n {
        let row = &coords[i * depth..(i + 1) * depth];
        let Some(p) = row_position(row, &shape) else {
            if ignore {
                continue;
            }
            return Err(bad_coords(i, row, indices.shape(), &shape));
        };
        let from = &from[i * inner..(i + 1) * inner];
        for (to, from) in to[p * inner..(p + 1) * inner].iter_mut().zip(from) {
            combine(to, from);
        }
    }
    Ok(())
}

#[cold]
fn bad_coords(i: usize, row: &[i64], indices: &Shape, shape: &Shape) -> ferroflow_base::Status {
    let outer = &indices[..indices.rank() - 1];
    let mut at = vec![0; outer.len()];
    unravel(i, outer, &mut at);
    let row = indices::coordinates(row.iter().copied());
    invalid_argument!(
        "indices{} = {row} does not index into shape {shape}",
        indices::list(at)
    )
}

fn update(build: &KernelBuild, target: Target) -> Result<Box<dyn OpKernel>> {
    let ignore = ignores_bad_indices(build.attrs)?;
    let dtype = build.input(2)?;
    Ok(dispatch_items!(dtype, T => {
        Box::new(move |ctx: &mut KernelCtx| {
            scatter::<T>(ctx, target, ignore, |to, from| to.clone_from(from))
        })
    }))
}

fn scatter_nd(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let ignore = ignores_bad_indices(build.attrs)?;
    macro_rules! kernel {
        ($T:ty, $f:expr) => {
            Ok(Box::new(move |ctx: &mut KernelCtx| {
                scatter::<$T>(ctx, Target::Zeros, ignore, $f)
            }))
        };
    }
    match build.output(0)? {
        DType::Bool => kernel!(bool, |to, from| *to |= *from),
        DType::String => kernel!(Bytes, |to, from| *to = [&to[..], &from[..]].concat().into()),
        _ => combining(build, Combine::Add, Target::Zeros),
    }
}

/// Runs a scatter of numbers over their bits: `f` sees values of `V`, storage is [`Item`].
fn combining(build: &KernelBuild, combine: Combine, target: Target) -> Result<Box<dyn OpKernel>> {
    let ignore = ignores_bad_indices(build.attrs)?;
    let first = usize::from(!matches!(target, Target::Zeros));
    let dtype = build.input(first + 1)?;
    // `$bits` is how the item type stores a value of `$T`.
    macro_rules! number {
        ($T:ty, $Item:ty, $from:expr, $into:expr, $f:expr) => {{
            let f: fn($T, $T) -> $T = $f;
            Ok(Box::new(move |ctx: &mut KernelCtx| {
                scatter::<$Item>(ctx, target, ignore, |to, from| {
                    *to = $into(f($from(*to), $from(*from)));
                })
            }))
        }};
    }
    macro_rules! ordered {
        ($T:ty, $Item:ty, $from:expr, $into:expr, $add:expr, $sub:expr) => {
            match combine {
                Combine::Add => number!($T, $Item, $from, $into, $add),
                Combine::Sub => number!($T, $Item, $from, $into, $sub),
                Combine::Max => number!($T, $Item, $from, $into, |a, b| if a < b { b } else { a }),
                Combine::Min => number!($T, $Item, $from, $into, |a, b| if b < a { b } else { a }),
            }
        };
    }
    macro_rules! complex {
        ($T:ty, $Item:ty, $from:expr, $into:expr) => {
            match combine {
                Combine::Add => number!($T, $Item, $from, $into, |a, b| a + b),
                Combine::Sub => number!($T, $Item, $from, $into, |a, b| a - b),
                _ => Err(build.unsupported(dtype)),
            }
        };
    }
    macro_rules! integer {
        ($T:ty, $Item:ty) => {
            ordered!(
                $T,
                $Item,
                |v| v as $T,
                |v| v as $Item,
                <$T>::wrapping_add,
                <$T>::wrapping_sub
            )
        };
    }
    match dtype {
        DType::Float => {
            ordered!(
                f32,
                u32,
                f32::from_bits,
                f32::to_bits,
                |a, b| a + b,
                |a, b| a - b
            )
        }
        DType::Double => {
            ordered!(
                f64,
                u64,
                f64::from_bits,
                f64::to_bits,
                |a, b| a + b,
                |a, b| a - b
            )
        }
        DType::Half => ordered!(
            f16,
            u16,
            f16::from_bits,
            f16::to_bits,
            |a, b| a + b,
            |a, b| a - b
        ),
        DType::Bfloat16 => {
            ordered!(
                bf16,
                u16,
                bf16::from_bits,
                bf16::to_bits,
                |a, b| a + b,
                |a, b| a - b
            )
        }
        // Numbers of one bit, as C++ adds them up: what is not zero is true.
        DType::Bool => match combine {
            Combine::Add => number!(bool, bool, |v| v, |v| v, |a, b| a | b),
            Combine::Sub => number!(bool, bool, |v| v, |v| v, |a, b| a ^ b),
            _ => Err(build.unsupported(dtype)),
        },
        DType::Int8 => integer!(i8, u8),
        DType::Uint8 => integer!(u8, u8),
        DType::Int16 => integer!(i16, u16),
        DType::Uint16 => integer!(u16, u16),
        DType::Int32 => integer!(i32, u32),
        DType::Uint32 => integer!(u32, u32),
        DType::Int64 => integer!(i64, u64),
        DType::Uint64 => integer!(u64, u64),
        DType::Complex64 => complex!(
            Complex32,
            u64,
            |v: u64| Complex32::new(f32::from_bits(v as u32), f32::from_bits((v >> 32) as u32)),
            |v: Complex32| v.re.to_bits() as u64 | (v.im.to_bits() as u64) << 32
        ),
        DType::Complex128 => complex!(
            Complex64,
            [u64; 2],
            |v: [u64; 2]| Complex64::new(f64::from_bits(v[0]), f64::from_bits(v[1])),
            |v: Complex64| [v.re.to_bits(), v.im.to_bits()]
        ),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Contradictions between the shapes of indices and updates and of the target.
fn check_partial(indices: &PartialShape, updates: &PartialShape, to: &PartialShape) -> Result<()> {
    let (Some(indices), Some(updates), Some(to)) =
        (indices.to_full(), updates.to_full(), to.to_full())
    else {
        return Ok(());
    };
    check(&indices, &updates, &to).map(|_| ())
}

fn tensor_scatter_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_partial(&ctx.with_rank_at_least(1, 1)?, &ctx.input(2), &ctx.input(0))?;
    shapes::unchanged(ctx)
}

fn variable_scatter_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let indices = ctx.with_rank_at_least(1, 1)?;
    check_partial(&indices, &ctx.input(2), &ctx.handle_shape(0))
}

fn scatter_nd_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = indices::shape_input(ctx, 2)?;
    check_partial(&ctx.with_rank_at_least(0, 1)?, &ctx.input(1), &shape)?;
    ctx.set(0, shape);
    Ok(())
}

fn scatter_nd_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("GatherNd", &[g.x(0)]);
    g.set(1, dx)
}

fn update_gradient(g: &mut GradientCtx) -> Result<()> {
    let (indices, d) = (g.x(1), g.dy(0));
    let zeros = g.x(2).zeros_like();
    g.set(0, d.op("TensorScatterUpdate", &[indices, zeros]))?;
    g.set(2, d.op("GatherNd", &[indices]))
}

fn add_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d)?;
    g.set(2, d.op("GatherNd", &[g.x(1)]))
}

fn sub_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d)?;
    g.set(2, -d.op("GatherNd", &[g.x(1)]))
}

/// All elements that are as large as the result share the gradient.
fn extreme_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, updates, y, d) = (g.x(0), g.x(1), g.x(2), g.y(0), g.dy(0));
    let own = x.op("Equal", &[y]).cast(d.dtype());
    let at = y.op("GatherNd", &[indices]);
    let given = updates.op("Equal", &[at]).cast(d.dtype());
    let shape = x.shape_of().cast(indices.dtype());
    let share = d / (own + indices.op("ScatterNd", &[given, shape]));
    g.set(0, share * own)?;
    g.set(2, share.op("GatherNd", &[indices]) * given)
}
