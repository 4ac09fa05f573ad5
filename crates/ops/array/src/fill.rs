//! Tensors made of a value and a shape: Fill, ZerosLike, OnesLike, Empty, Range, LinSpace, OneHot.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant_int, ints, shape_of};
use ferroflow_functors::shapes;
use ferroflow_functors::strided::{par_fill, par_rows};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, Item, PartialShape, Shape, Tensor, bf16, dispatch,
    dispatch_items, f16,
};

/// Fill, ZerosLike, OnesLike, Empty, Range, LinSpace, OneHot.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Fill",
        "dims: index_type, value: T -> output: T | T: type; index_type: type {int32,int64} = int32",
    )
    .shape(shape_from_input)
    .kernel(fill)
    .gradient(fill_gradient),
    Op::new("ZerosLike", "x: T -> y: T | T: type")
        .shape(shapes::unchanged)
        .kernel(zeros_like)
        .not_differentiable(),
    Op::new(
        "OnesLike",
        "x: T -> y: T | T: type {bfloat16,half,float,double,int8,uint8,int16,uint16,int32,uint32,\
         int64,uint64,complex64,complex128,bool}",
    )
    .shape(shapes::unchanged)
    .kernel(ones_like)
    .not_differentiable(),
    Op::new(
        "Empty",
        "shape: int32 -> output: dtype | dtype: type; init: bool = false | stateful",
    )
    .shape(shape_from_input)
    .kernel(empty)
    .not_differentiable(),
    Op::new(
        "Range",
        "start: Tidx, limit: Tidx, delta: Tidx -> output: Tidx | Tidx: type {bfloat16,half,float,\
         double,int8,int16,int32,int64,uint16,uint32,uint64} = int32",
    )
    .shape(range_shape)
    .kernel(range)
    .not_differentiable(),
    Op::new(
        "LinSpace",
        "start: T, stop: T, num: Tidx -> output: T | T: type {bfloat16,half,float,double}; \
         Tidx: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        for i in 0..3 {
            ctx.with_rank(i, 0)?;
        }
        let num = match constant_int(ctx, 2) {
            Some(n) if n <= 0 => return Err(invalid_argument!("Requires num > 0: {n}")),
            n => n.map(|n| n as usize),
        };
        ctx.set(0, PartialShape::of([num]));
        Ok(())
    })
    .kernel(lin_space)
    .not_differentiable(),
    Op::new(
        "OneHot",
        "indices: TI, depth: int32, on_value: T, off_value: T -> output: T | axis: int = -1; \
         T: type; TI: type {uint8,int8,int32,int64} = int64",
    )
    .shape(one_hot_shape)
    .kernel(one_hot)
    .not_differentiable(),
];

fn shape_from_input(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = indices::shape_input(ctx, 0)?;
    ctx.set(0, shape);
    Ok(())
}

fn dims_input(ctx: &KernelCtx, name: &str) -> Result<Shape> {
    let dims = ctx.input(0)?;
    // An old graph may give one size as a scalar.
    if dims.shape().rank() > 1 {
        return Err(invalid_argument!(
            "{name} must represent a vector, got shape {}",
            dims.shape()
        ));
    }
    Shape::checked(&indices::ints(dims)?)
}

fn fill(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let shape = dims_input(ctx, "dims")?;
            let [value] = ctx.input(1)?.items::<T>()? else {
                return Err(invalid_argument!("value must be a scalar, got shape {}", ctx.shape(1)?));
            };
            let mut out = ctx.alloc(dtype, shape)?;
            par_fill(ctx.par(), out.items_mut::<T>()?, value);
            ctx.set_output(0, out)
        })),
    )
}

fn zeros_like(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    if dtype == DType::Variant {
        return Ok(Box::new(|ctx: &mut KernelCtx| {
            let zeros = ferroflow_functors::tensor_list::zeros(ctx.input(0)?)?;
            ctx.set_output(0, zeros)
        }));
    }
    if dtype == DType::Resource {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = Tensor::zeros(dtype, ctx.shape(0)?.clone())?;
        ctx.set_output(0, out)
    }))
}

fn ones_like(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    fn ones<T: Element>(one: T) -> Box<dyn OpKernel> {
        Box::new(move |ctx: &mut KernelCtx| {
            let shape = ctx.shape(0)?.clone();
            let (mut out, _) = ctx.forward_or_alloc(&[0], T::DTYPE, shape)?;
            out.slice_mut::<T>()?.fill(one);
            ctx.set_output(0, out)
        })
    }
    match build.output(0)? {
        DType::Bool => Ok(ones(true)),
        DType::Half => Ok(ones(f16::ONE)),
        DType::Bfloat16 => Ok(ones(bf16::ONE)),
        DType::Complex64 => Ok(ones(Complex32::new(1.0, 0.0))),
        DType::Complex128 => Ok(ones(Complex64::new(1.0, 0.0))),
        DType::Float => Ok(ones(1f32)),
        DType::Double => Ok(ones(1f64)),
        dtype => dispatch!(dtype, T in [i8, u8, i16, u16, i32, u32, i64, u64] => Ok(ones(1 as T)),
            else Err(build.unsupported(dtype))),
    }
}

fn empty(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let init = build.attrs.bool("init")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = dims_input(ctx, "shape")?;
        let out = if init {
            Tensor::zeros(dtype, shape)?
        } else {
            ctx.alloc(dtype, shape)?
        };
        ctx.set_output(0, out)
    }))
}

/// A number that Range counts with.
trait Count: Element {
    const ZERO: Self;
    /// How many steps of `delta` lead from `start` to `limit`.
    fn steps(start: Self, limit: Self, delta: Self) -> Option<u64>;
    fn less(self, other: Self) -> bool;
    fn plus(self, delta: Self) -> Self;
}

macro_rules! count_ints {
    ($($ty:ty),*) => {$(
        impl Count for $ty {
            const ZERO: Self = 0;
            fn steps(start: Self, limit: Self, delta: Self) -> Option<u64> {
                let (a, b, d) = (start as i128, limit as i128, delta as i128);
                u64::try_from((b - a).unsigned_abs().div_ceil(d.unsigned_abs())).ok()
            }
            fn less(self, other: Self) -> bool {
                self < other
            }
            fn plus(self, delta: Self) -> Self {
                self.wrapping_add(delta)
            }
        }
    )*};
}
count_ints!(i8, i16, i32, i64, u16, u32, u64);

macro_rules! count_floats {
    ($($ty:ty, $zero:expr, $wide:expr;)*) => {$(
        impl Count for $ty {
            const ZERO: Self = $zero;
            fn steps(start: Self, limit: Self, delta: Self) -> Option<u64> {
                let steps = $wide((limit - start) / delta).abs().ceil();
                (steps < i64::MAX as f64).then_some(steps as u64)
            }
            fn less(self, other: Self) -> bool {
                self < other
            }
            fn plus(self, delta: Self) -> Self {
                self + delta
            }
        }
    )*};
}
count_floats! {
    f32, 0.0, f64::from;
    f64, 0.0, f64::from;
    f16, f16::ZERO, f16::to_f64;
    bf16, bf16::ZERO, bf16::to_f64;
}

fn range_len<T: Count>(start: T, limit: T, delta: T) -> Result<u64> {
    if delta == T::ZERO {
        return Err(invalid_argument!("Requires delta != 0: {delta:?}"));
    }
    let up = T::ZERO.less(delta);
    if up && limit.less(start) {
        return Err(invalid_argument!(
            "Requires start <= limit when delta > 0: {start:?}/{limit:?}"
        ));
    }
    if !up && start.less(limit) {
        return Err(invalid_argument!(
            "Requires start >= limit when delta < 0: {start:?}/{limit:?}"
        ));
    }
    T::steps(start, limit, delta)
        .ok_or_else(|| invalid_argument!("Requires ((limit - start) / delta) <= {}", i64::MAX))
}

fn range_kernel<T: Count>(ctx: &mut KernelCtx) -> Result<()> {
    let arg = |i: usize, name: &str| {
        let t = ctx.input(i)?;
        t.to_scalar::<T>()
            .map_err(|_| invalid_argument!("{name} must be a scalar, not shape {}", t.shape()))
    };
    let (start, limit, delta) = (arg(0, "start")?, arg(1, "limit")?, arg(2, "delta")?);
    let n = range_len(start, limit, delta)?;
    let mut out = ctx.alloc(
        T::DTYPE,
        Shape::checked(&[i64::try_from(n).unwrap_or(i64::MAX)])?,
    )?;
    let mut v = start;
    for o in out.slice_mut::<T>()? {
        *o = v;
        v = v.plus(delta);
    }
    ctx.set_output(0, out)
}

fn range(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [i32, i64, f32, f64, f16, bf16, i8, i16, u16, u32, u64] =>
        Ok(Box::new(range_kernel::<T>)),
        else Err(build.unsupported(dtype)))
}

fn range_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut n = None;
    if let (Some(start), Some(limit), Some(delta)) =
        (ctx.constant(0), ctx.constant(1), ctx.constant(2))
    {
        n = dispatch!(start.dtype(), T in [i32, i64, f32, f64, f16, bf16, i8, i16, u16, u32, u64] =>
            Some(range_len(start.to_scalar::<T>()?, limit.to_scalar()?, delta.to_scalar()?)?),
            else None);
    }
    ctx.set(0, PartialShape::of([n.map(|n| n as usize)]));
    Ok(())
}

fn lin_space(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    /// `start + step * i`, every operation rounded to `T`.
    fn kernel<T: Element>(step: fn(T, T, i64) -> T, at: fn(T, T, i64) -> T) -> Box<dyn OpKernel> {
        Box::new(move |ctx: &mut KernelCtx| {
            for (i, name) in ["start", "stop", "num"].iter().enumerate() {
                if !ctx.shape(i)?.is_scalar() {
                    let shape = ctx.shape(i)?;
                    return Err(invalid_argument!(
                        "{name} must be a scalar, not shape {shape}"
                    ));
                }
            }
            let num = indices::int(ctx.input(2)?).unwrap_or(0);
            if num <= 0 {
                return Err(invalid_argument!("Requires num > 0: {num}"));
            }
            let (start, stop) = (ctx.input(0)?.to_scalar()?, ctx.input(1)?.to_scalar()?);
            let mut out = ctx.alloc(T::DTYPE, Shape::checked(&[num])?)?;
            let values = out.slice_mut::<T>()?;
            let step = step(start, stop, (num - 1).max(1));
            for (i, v) in values.iter_mut().enumerate() {
                *v = at(start, step, i as i64);
            }
            values[0] = start;
            if let [_, .., last] = values {
                *last = stop;
            }
            ctx.set_output(0, out)
        })
    }
    match build.output(0)? {
        DType::Float => Ok(kernel::<f32>(
            |a, b, n| (b - a) / n as f32,
            |a, s, i| a + s * i as f32,
        )),
        DType::Double => Ok(kernel::<f64>(
            |a, b, n| (b - a) / n as f64,
            |a, s, i| a + s * i as f64,
        )),
        DType::Half => Ok(kernel::<f16>(
            |a, b, n| (b - a) / f16::from_f64(n as f64),
            |a, s, i| a + s * f16::from_f64(i as f64),
        )),
        DType::Bfloat16 => Ok(kernel::<bf16>(
            |a, b, n| (b - a) / bf16::from_f64(n as f64),
            |a, s, i| a + s * bf16::from_f64(i as f64),
        )),
        dtype => Err(build.unsupported(dtype)),
    }
}

fn one_hot_axis(axis: i64, rank: usize) -> Result<usize> {
    match axis {
        -1 => Ok(rank),
        a if a >= 0 && a as usize <= rank => Ok(a as usize),
        a => Err(invalid_argument!(
            "Expected axis to be -1 or between [0, {}).  But received: {a}",
            rank + 1
        )),
    }
}

fn one_hot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("axis")?;
    Ok(dispatch_items!(build.output(0)?, T => {
        Box::new(move |ctx: &mut KernelCtx| one_hot_items::<T>(ctx, axis))
    }))
}

fn one_hot_items<T: Item>(ctx: &mut KernelCtx, axis: i64) -> Result<()> {
    let indices = ctx.input(0)?;
    let shape = indices.shape();
    let at = one_hot_axis(axis, shape.rank())?;
    let scalar = |i: usize, name: &str| {
        let t = ctx.input(i)?;
        if !t.shape().is_scalar() {
            return Err(invalid_argument!(
                "{name} must be a scalar, but got: {}",
                t.shape()
            ));
        }
        Ok(t)
    };
    let depth = scalar(1, "depth")?.to_scalar::<i32>()?;
    let on = &scalar(2, "on_value")?.items::<T>()?[0];
    let off = &scalar(3, "off_value")?.items::<T>()?[0];
    let Ok(depth) = usize::try_from(depth) else {
        return Err(invalid_argument!(
            "depth must be non-negative, got: {depth}"
        ));
    };
    let out_shape = shape_of(
        shape[..at]
            .iter()
            .chain(&[depth])
            .chain(&shape[at..])
            .copied(),
    )?;
    let inner: usize = shape[at..].iter().product();
    let mut out = ctx.alloc(ctx.input(2)?.dtype(), out_shape)?;
    let values = ints(indices)?;
    let hot = |i: i64| usize::try_from(i).ok().filter(|&i| i < depth);
    par_rows(
        ctx.par(),
        out.items_mut::<T>()?,
        depth * inner,
        &|row, to| {
            to.fill(off.clone());
            for (j, &i) in values[row * inner..(row + 1) * inner].iter().enumerate() {
                if let Some(i) = hot(i) {
                    to[i * inner + j] = on.clone();
                }
            }
        },
    );
    ctx.set_output(0, out)
}

fn one_hot_shape(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 1..4 {
        ctx.with_rank(i, 0)?;
    }
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let at = one_hot_axis(ctx.attrs().int("axis")?, dims.len())?;
    let depth = match constant_int(ctx, 1) {
        Some(d) if d < 0 => {
            return Err(invalid_argument!("depth must be non-negative, got: {d}"));
        }
        d => d.map(|d| d as usize),
    };
    ctx.set(
        0,
        PartialShape::of(
            dims[..at]
                .iter()
                .chain(&[depth])
                .chain(&dims[at..])
                .copied(),
        ),
    );
    Ok(())
}

fn fill_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let flat = d.reshape(d.ints([-1]));
    g.set(1, flat.sum(d.ints([0]), false))
}
