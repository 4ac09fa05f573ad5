//! Dimensions in another order or number: Transpose, ConjugateTranspose, InvertPermutation, Tile,
//! BroadcastTo, BroadcastArgs, BroadcastGradientArgs.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::{broadcast_shape, broadcast_tensor};
use ferroflow_functors::indices::{self, Ints, constant};
use ferroflow_functors::strided::Strided;
use ferroflow_functors::transpose::transposed;
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;

/// Transpose, ConjugateTranspose, InvertPermutation, Tile, BroadcastTo, BroadcastArgs,
/// BroadcastGradientArgs.
pub(crate) const OPS: &[Op] = &[
    Op::new("Transpose", "x: T, perm: Tperm -> y: T | T: type; Tperm: type {int32,int64} = int32")
        .shape(transpose_shape)
        .kernel(transpose)
    .gradient(transpose_gradient),
    Op::new(
        "ConjugateTranspose",
        "x: T, perm: Tperm -> y: T | T: type; Tperm: type {int32,int64} = int32",
    )
    .shape(transpose_shape)
    .kernel(conjugate_transpose)
    .gradient(transpose_gradient),
    Op::new("InvertPermutation", "x: T -> y: T | T: type {int32,int64} = int32")
        .shape(|ctx| {
            ctx.set(0, ctx.with_rank(0, 1)?);
            Ok(())
        })
        .kernel(invert_permutation).not_differentiable(),
    Op::new(
        "Tile",
        "input: T, multiples: Tmultiples -> output: T | T: type; Tmultiples: type {int32,int64} = int32",
    )
    .shape(tile_shape)
    .kernel(tile)
    .gradient(tile_gradient),
    Op::new(
        "BroadcastTo",
        "input: T, shape: Tidx -> output: T | T: type; Tidx: type {int32,int64} = int32",
    )
    .shape(broadcast_to_shape)
    .kernel(broadcast_to)
    .gradient(broadcast_to_gradient),
    Op::new("BroadcastArgs", "s0: T, s1: T -> r0: T | T: type {int32,int64} = int32")
        .shape(|ctx| {
            let (a, b) = (ctx.with_rank(0, 1)?.dim(0), ctx.with_rank(1, 1)?.dim(0));
            ctx.set(0, PartialShape::of([a.zip(b).map(|(a, b)| a.max(b))]));
            Ok(())
        })
        .cost(Cost::Cheap)
        .kernel(broadcast_args),
    Op::new(
        "BroadcastGradientArgs",
        "s0: T, s1: T -> r0: T, r1: T | T: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        for i in 0..2 {
            ctx.with_rank(i, 1)?;
            ctx.set(i, PartialShape::of_rank(1));
        }
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(broadcast_gradient_args).not_differentiable(),
];

/// Checks a permutation of `rank` dimensions.
fn permutation(perm: &[i64], rank: usize) -> Result<SmallVec<[usize; 8]>> {
    if perm.len() != rank {
        return Err(invalid_argument!(
            "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
            perm.len()
        ));
    }
    let mut seen = SmallVec::<[bool; 8]>::from_elem(false, rank);
    let mut out = SmallVec::<[usize; 8]>::new();
    for &p in perm {
        let p = if p < 0 { p + rank as i64 } else { p };
        let Some(at) = usize::try_from(p).ok().filter(|&p| p < rank) else {
            return Err(invalid_argument!("{p} is out of range [0 .. {rank})"));
        };
        seen[at] = true;
        out.push(at);
    }
    if let Some(missing) = seen.iter().position(|s| !s) {
        return Err(invalid_argument!(
            "{missing} is missing from {{{}}}.",
            out.iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(",")
        ));
    }
    Ok(out)
}

fn transpose_input(ctx: &mut KernelCtx) -> Result<Tensor> {
    if ctx.shape(1)?.rank() != 1 {
        return Err(invalid_argument!(
            "perm must be rank 1, got shape {}",
            ctx.shape(1)?
        ));
    }
    let perm = indices::ints(ctx.input(1)?)?;
    let value = ctx.take_input(0)?;
    let perm = permutation(&perm, value.shape().rank())?;
    transposed(ctx, value, &perm)
}

fn transpose(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let out = transpose_input(ctx)?;
        ctx.set_output(0, out)
    }))
}

fn conjugate_transpose(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let mut out = transpose_input(ctx)?;
        match out.dtype() {
            DType::Complex64 => {
                out.slice_mut::<Complex32>()?
                    .iter_mut()
                    .for_each(|v| *v = v.conj());
            }
            DType::Complex128 => {
                out.slice_mut::<Complex64>()?
                    .iter_mut()
                    .for_each(|v| *v = v.conj());
            }
            _ => {}
        }
        ctx.set_output(0, out)
    }))
}

fn transpose_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let perm_len = ctx.with_rank(1, 1)?.dim(0);
    let perm = constant(ctx, 1);
    let rank = input.rank().or(perm.as_ref().map(|p| p.len())).or(perm_len);
    let Some(rank) = rank.filter(|&r| r <= 254) else {
        return Ok(());
    };
    if perm_len.is_some_and(|n| n != rank) {
        return Err(invalid_argument!(
            "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
            perm_len.unwrap_or(0)
        ));
    }
    let shape = match perm {
        None if rank <= 1 => input,
        None => PartialShape::of_rank(rank),
        Some(perm) => {
            let perm = permutation(&perm, rank)?;
            indices::partial(rank, |i| input.dim(perm[i] as isize))
        }
    };
    ctx.set(0, shape);
    Ok(())
}

fn invert_permutation(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if ctx.shape(0)?.rank() != 1 {
            return Err(invalid_argument!("invert_permutation expects a 1D vector."));
        }
        let perm = indices::ints(ctx.input(0)?)?;
        let mut out = Ints::from_elem(-1, perm.len());
        for (i, &p) in perm.iter().enumerate() {
            let Some(slot) = usize::try_from(p).ok().and_then(|p| out.get_mut(p)) else {
                return Err(invalid_argument!("{p} is not between 0 and {}", perm.len()));
            };
            if *slot != -1 {
                return Err(invalid_argument!("{p} is duplicated in the input."));
            }
            *slot = i as i64;
        }
        let out = indices::int_vector(dtype, out.iter().copied())?;
        ctx.set_output(0, out)
    }))
}

fn tiled(dim: usize, i: usize, multiple: i64) -> Result<usize> {
    let Ok(m) = usize::try_from(multiple) else {
        return Err(invalid_argument!(
            "Expected multiples[{i}] >= 0, but got {multiple}"
        ));
    };
    dim.checked_mul(m).ok_or_else(|| {
        invalid_argument!("dimension {i} of {dim} elements times {multiple} is too large")
    })
}

fn check_multiples(shape: &Shape, rank: usize) -> Result<()> {
    if shape.rank() != 1 {
        return Err(invalid_argument!(
            "Expected multiples to be 1-D, but got shape {shape}"
        ));
    }
    if shape[0] != rank {
        return Err(invalid_argument!(
            "Expected multiples argument to be a vector of length {rank} but got length {}",
            shape[0]
        ));
    }
    Ok(())
}

fn tile(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(|ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let shape = input.shape();
        check_multiples(ctx.shape(1)?, shape.rank())?;
        let multiples = indices::ints(ctx.input(1)?)?;
        let dims: SmallVec<[usize; 8]> = (0..shape.rank())
            .map(|i| tiled(shape[i], i, multiples[i]))
            .collect::<Result<_>>()?;
        let out_shape = indices::shape_of(dims)?;
        if &out_shape == shape {
            let same = ctx.take_input(0)?;
            return ctx.set_output(0, same);
        }
        let mut out = ctx.alloc(input.dtype(), out_shape)?;
        if out.num_elements() > 0 {
            let strides = shape.strides();
            let dims = (0..shape.rank())
                .flat_map(|i| [(multiples[i] as usize, 0), (shape[i], strides[i] as isize)]);
            let view = Strided::new(0, dims);
            view.copy_to(ctx.par(), input.items::<T>()?, out.items_mut::<T>()?)?;
        }
        ctx.set_output(0, out)
    })))
}

fn tile_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut input = ctx.input(0);
    let len = ctx.with_rank(1, 1)?.dim(0).filter(|&n| n <= 254);
    if let Some(rank) = len {
        input = ctx.with_rank(0, rank)?;
    }
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let Some(multiples) = constant(ctx, 1).filter(|m| m.len() == dims.len()) else {
        ctx.set(0, PartialShape::of_rank(dims.len()));
        return Ok(());
    };
    let mut out = SmallVec::<[Option<usize>; 4]>::new();
    for (i, (d, &m)) in dims.iter().zip(&multiples).enumerate() {
        out.push(match d {
            Some(d) => Some(tiled(*d, i, m)?),
            None if m == 0 => Some(0),
            None => None,
        });
    }
    ctx.set(0, PartialShape::of(out));
    Ok(())
}

fn check_broadcast(input: &[Option<usize>], to: &[Option<usize>]) -> Result<()> {
    let show = |s: &[Option<usize>]| PartialShape::of(s.iter().copied());
    if input.len() > to.len() {
        return Err(invalid_argument!(
            "Rank of input ({}) must be no greater than rank of output shape ({}).",
            input.len(),
            to.len()
        ));
    }
    let fits = |(a, b): (&Option<usize>, &Option<usize>)| match (a, b) {
        (Some(a), Some(b)) => a == b || *a == 1,
        _ => true,
    };
    if !input.iter().rev().zip(to.iter().rev()).all(fits) {
        return Err(invalid_argument!(
            "Incompatible shapes: {} vs. {}",
            show(input),
            show(to)
        ));
    }
    Ok(())
}

fn broadcast_to(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(|ctx: &mut KernelCtx| {
        let sizes = ctx.input(1)?;
        if sizes.shape().rank() > 1 {
            return Err(invalid_argument!("shape must be 1-D, got shape {}", sizes.shape()));
        }
        let shape = Shape::checked(&indices::ints(sizes)?)?;
        if ctx.shape(0)? == &shape {
            let same = ctx.take_input(0)?;
            return ctx.set_output(0, same);
        }
        let (from, to) = (PartialShape::from(ctx.shape(0)?), PartialShape::from(&shape));
        check_broadcast(from.dims().unwrap_or(&[]), to.dims().unwrap_or(&[]))?;
        let out = if shape.num_elements() == ctx.input(0)?.num_elements() {
            ctx.take_input(0)?.with_shape(shape)?
        } else {
            broadcast_tensor::<T>(ctx, ctx.input(0)?, shape)?
        };
        ctx.set_output(0, out)
    })))
}

fn broadcast_to_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let to = indices::shape_input(ctx, 1)?;
    if let (Some(from), Some(to)) = (ctx.input(0).dims(), to.dims()) {
        check_broadcast(from, to)?;
    }
    ctx.set(0, to);
    Ok(())
}

fn shape_input(ctx: &KernelCtx, i: usize) -> Result<Ints> {
    if ctx.shape(i)?.rank() != 1 {
        return Err(invalid_argument!(
            "In[{i}] must be a vector.{}",
            ctx.shape(i)?
        ));
    }
    indices::ints(ctx.input(i)?)
}

fn broadcast_args(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (a, b) = (shape_input(ctx, 0)?, shape_input(ctx, 1)?);
        let out = broadcast_shape(&Shape::checked(&a)?, &Shape::checked(&b)?)?;
        let out = indices::int_vector(dtype, out.iter().map(|&d| d as i64))?;
        ctx.set_output(0, out)
    }))
}

fn broadcast_gradient_args(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (a, b) = (shape_input(ctx, 0)?, shape_input(ctx, 1)?);
        let (mut reduce_a, mut reduce_b) = (Ints::new(), Ints::new());
        let rank = a.len().max(b.len());
        for i in 0..if a == b { 0 } else { rank } {
            let at = |s: &Ints| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
            let (x, y) = (at(&a), at(&b));
            if x != y && x != 1 && y != 1 {
                return Err(invalid_argument!(
                    "Incompatible shapes: {} vs. {}",
                    indices::list(&a),
                    indices::list(&b)
                ));
            }
            if x == 1 {
                reduce_a.push(i as i64);
            }
            if y == 1 {
                reduce_b.push(i as i64);
            }
        }
        ctx.set_output(0, indices::int_vector(dtype, reduce_a.iter().copied())?)?;
        ctx.set_output(1, indices::int_vector(dtype, reduce_b.iter().copied())?)
    }))
}

fn broadcast_to_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).sum_to(g.x(0));
    g.set(0, dx)
}

fn transpose_gradient(g: &mut GradientCtx) -> Result<()> {
    let back = g.x(1).op("InvertPermutation", &[]);
    let dx = g.dy(0).op(g.op_name(), &[back]);
    g.set(0, dx)
}

/// Each dimension is split into how often it is repeated and its own size.
fn tile_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, multiples, d) = (g.x(0), g.x(1).cast(DType::Int32), g.dy(0));
    let shape = x.shape_of();
    let pairs = x.make("Pack", &[multiples, shape], &[("axis", 1i64.into())]);
    let split = pairs.reshape(x.ints([-1]));
    let axes = match x.rank() {
        Some(rank) => x.ints((0..rank as i64).map(|i| 2 * i)),
        None => x.int(0).op("Range", &[split.op("Size", &[]), x.int(2)]),
    };
    g.set(0, d.reshape(split).sum(axes, false).reshape(shape))
}
