//! FractionalMaxPool and FractionalAvgPool with their gradients (TensorFlow:
//! `core/kernels/fractional_max_pool_op.cc`, `fractional_avg_pool_op.cc`; Graham, "Fractional
//! Max-Pooling", 2014).

use crate::pooling_sequence::{Region, Seeds, regions};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::indices::{aligned, shape_input, shape_of};
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::summarize::debug_string;
use ferroflow_opdef::{
    AttrValue, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx,
};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{PartialShape, Shape, Tensor, dispatch};

const POOL: &str = "value: T -> output: T, row_pooling_sequence: int64, col_pooling_sequence: int64 \
     | pooling_ratio: list(float) >= 4; pseudo_random: bool = false; overlapping: bool = false; \
     deterministic: bool = false; seed: int = 0; seed2: int = 0; T: type {float,double,int32,int64}";

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("FractionalMaxPool", POOL)
        .shape(pool_shape)
        .kernel(|build| pool(build, true))
        .gradient(max_gradient),
    Op::new("FractionalAvgPool", POOL)
        .shape(pool_shape)
        .kernel(|build| pool(build, false))
        .gradient(average_gradient),
    Op::new(
        "FractionalMaxPoolGrad",
        "orig_input: T, orig_output: T, out_backprop: T, row_pooling_sequence: int64, \
         col_pooling_sequence: int64 -> output: T | overlapping: bool = false; T: type \
         {float,double,int32,int64}",
    )
    .shape(|ctx| {
        let shape = ctx.with_rank(0, 4)?;
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(|build| {
        let overlapping = build.attrs.bool("overlapping")?;
        let dtype = build.output(0)?;
        dispatch!(dtype, T in [f32, f64, i32, i64] =>
            Ok(Box::new(move |ctx: &mut KernelCtx| max_grad::<T>(ctx, overlapping))),
            else Err(build.unsupported(dtype)))
    }),
    Op::new(
        "FractionalAvgPoolGrad",
        "orig_input_tensor_shape: int64, out_backprop: T, row_pooling_sequence: int64, \
         col_pooling_sequence: int64 -> output: T | overlapping: bool = false; T: type \
         {float,double,int32,int64}",
    )
    .shape(|ctx| {
        let shape = shape_input(ctx, 0)?;
        let known = shape.rank().is_some();
        ctx.set(
            0,
            if known {
                shape
            } else {
                PartialShape::of_rank(4)
            },
        );
        Ok(())
    })
    .kernel(|build| {
        let overlapping = build.attrs.bool("overlapping")?;
        let dtype = build.output(0)?;
        dispatch!(dtype, T in [f32, f64, i32, i64] =>
            Ok(Box::new(move |ctx: &mut KernelCtx| average_grad::<T>(ctx, overlapping))),
            else Err(build.unsupported(dtype)))
    }),
];

fn pool_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank(0, 4)?;
    let ratios = ctx.attrs().floats("pooling_ratio")?;
    if ratios.len() != 4 {
        return Err(invalid_argument!(
            "pooling_ratio field must specify 4 dimensions"
        ));
    }
    if let Some(ratio) = ratios.iter().find(|&&ratio| ratio < 1.0) {
        return Err(invalid_argument!(
            "pooling_ratio cannot be smaller than 1, got: {ratio}"
        ));
    }
    let size = |(i, &ratio): (usize, &f32)| input.dim(i as isize).map(|n| pooled(n, ratio));
    let sizes: Vec<Option<usize>> = ratios.iter().enumerate().map(size).collect();
    // The sequences also have the end of the last region.
    for i in [1, 2] {
        ctx.set(i, PartialShape::of([sizes[i].map(|n| n + 1)]));
    }
    ctx.set(0, PartialShape::of(sizes));
    Ok(())
}

fn pooled(n: usize, ratio: f32) -> usize {
    (n as f32 / ratio).floor() as usize
}

/// The checked attrs of a pooling op.
struct Pooling {
    ratios: Vec<f32>,
    seeds: Seeds,
    overlapping: bool,
    is_max: bool,
}

fn pool(build: &KernelBuild, is_max: bool) -> Result<Box<dyn OpKernel>> {
    let ratios = build.attrs.floats("pooling_ratio")?;
    if ratios.len() != 4 {
        return Err(invalid_argument!(
            "pooling_ratio field must specify 4 dimensions"
        ));
    }
    if let Some(ratio) = ratios.iter().find(|&&ratio| ratio < 1.0 || ratio.is_nan()) {
        return Err(invalid_argument!(
            "pooling_ratio cannot be smaller than 1, got: {ratio}"
        ));
    }
    if ratios[0] != 1.0 || ratios[3] != 1.0 {
        let kind = if is_max { "max" } else { "average" };
        return Err(unimplemented_error!(
            "Fractional {kind} pooling is not yet supported on the batch nor channel dimension."
        ));
    }
    let pooling = Pooling {
        ratios,
        seeds: Seeds::of(build)?,
        overlapping: build.attrs.bool("overlapping")?,
        is_max,
    };
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f32, f64, i32, i64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| forward::<T>(ctx, &pooling))),
        else Err(build.unsupported(dtype)))
}

fn forward<T: Ordered>(ctx: &mut KernelCtx, pooling: &Pooling) -> Result<()> {
    let x = ctx.input(0)?;
    let &[batch, rows, cols, depth] = x.shape().dims() else {
        return Err(invalid_argument!("tensor_in must be 4-dimensional"));
    };
    for (i, (&n, &ratio)) in x.shape().iter().zip(&pooling.ratios).enumerate() {
        if (n as f32) < ratio {
            return Err(invalid_argument!(
                "Pooling ratio is higher than input dimension size for dimension {i}. Input dim \
                 size: {n} pooling ratio: {ratio}"
            ));
        }
    }
    let (out_rows, out_cols) = (
        pooled(rows, pooling.ratios[1]),
        pooled(cols, pooling.ratios[2]),
    );
    let [of_rows, of_cols] = pooling
        .seeds
        .sequences([(rows, out_rows), (cols, out_cols)]);
    let x = x.slice::<T>()?;
    let mut out = ctx.alloc(T::DTYPE, shape_of([batch, out_rows, out_cols, depth])?)?;
    let row_regions = regions(&of_rows, rows, pooling.overlapping);
    let col_regions = regions(&of_cols, cols, pooling.overlapping);
    let line = out_cols * depth;
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, line, 1, &|i, out| {
        let (b, r) = (i / out_rows, i % out_rows);
        let Some(region) = row_regions.get(r) else {
            return;
        };
        for (out, columns) in out.chunks_exact_mut(depth.max(1)).zip(&col_regions) {
            out.fill(if pooling.is_max { T::LOWEST } else { T::ZERO });
            let mut n = 0;
            for h in region.start..region.end {
                for w in columns.start..columns.end {
                    let from = ((b * rows + h) * cols + w) * depth;
                    let from = x.get(from..from + depth).unwrap_or_default();
                    n += 1;
                    for (out, &x) in out.iter_mut().zip(from) {
                        *out = match pooling.is_max {
                            true => {
                                if *out < x {
                                    x
                                } else {
                                    *out
                                }
                            }
                            false => out.add(x),
                        };
                    }
                }
            }
            if !pooling.is_max {
                out.iter_mut()
                    .for_each(|out| *out = out.div(T::from_count(n)));
            }
        }
    });
    ctx.set_output(0, out)?;
    ctx.set_output(1, Tensor::vector(&of_rows)?)?;
    ctx.set_output(2, Tensor::vector(&of_cols)?)
}

fn max_gradient(g: &mut GradientCtx) -> Result<()> {
    let inputs = [g.x(0), g.y(0), g.dy(0), g.y(1), g.y(2)];
    let dx = inputs[0].make("FractionalMaxPoolGrad", &inputs, &[g.attr("overlapping")]);
    g.set(0, dx)
}

fn average_gradient(g: &mut GradientCtx) -> Result<()> {
    let x = g.x(0);
    let wide: [(&str, AttrValue); 1] = [("out_type", ferroflow_tensor::DType::Int64.into())];
    let shape: Expr = x.op_with("Shape", &[], &wide);
    let inputs = [shape, g.dy(0), g.y(1), g.y(2)];
    let dx = shape.make("FractionalAvgPoolGrad", &inputs, &[g.attr("overlapping")]);
    g.set(0, dx)
}

/// Returns the regions that a sequence input describes.
fn region_input(ctx: &KernelCtx, i: usize, n: usize, overlapping: bool) -> Result<Vec<Region>> {
    Ok(regions(ctx.slice::<i64>(i)?, n, overlapping))
}

/// Returns the dimensions of a batch of images.
fn four(t: &Tensor, name: &str) -> Result<[usize; 4]> {
    let dims = <[usize; 4]>::try_from(t.shape().dims()).map_err(|_| {
        invalid_argument!(
            "{name} should be a tensor of rank 4, got {}",
            debug_string(t)
        )
    })?;
    match t.num_elements() {
        0 => Err(invalid_argument!(
            "{name} must not be empty, got {}",
            debug_string(t)
        )),
        _ => Ok(dims),
    }
}

/// Checks the sequences of a pooling of `x`.
fn check_sequences(x: &Tensor, of_rows: &Tensor, of_cols: &Tensor) -> Result<()> {
    let area = of_rows
        .num_elements()
        .saturating_mul(of_cols.num_elements());
    if area > x.num_elements() {
        return Err(invalid_argument!(
            "Pooling region has more elements than the input tensor. row_pooling_sequence: {}\
             col_pooling_sequence: {}orig_input: {}",
            debug_string(of_rows),
            debug_string(of_cols),
            debug_string(x)
        ));
    }
    for (t, name) in [(of_rows, "row"), (of_cols, "col")] {
        if t.shape().rank() != 1 {
            return Err(invalid_argument!(
                "{name}_pooling_sequence must be a vector, received shape {}",
                t.shape()
            ));
        }
    }
    Ok(())
}

fn max_grad<T: Ordered>(ctx: &mut KernelCtx, overlapping: bool) -> Result<()> {
    let (x, y, dy) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let ([batch, rows, cols, depth], out) = (four(x, "orig_input")?, four(y, "orig_output")?);
    check_sequences(x, ctx.input(3)?, ctx.input(4)?)?;
    let row_regions = region_input(ctx, 3, rows, overlapping)?;
    let col_regions = region_input(ctx, 4, cols, overlapping)?;
    let fits = out == [batch, row_regions.len(), col_regions.len(), depth];
    if !fits || dy.num_elements() != y.num_elements() {
        return Err(invalid_argument!(
            "tensor_out_dup is not the same as tensor_out"
        ));
    }
    let (x, y, dy) = (x.slice::<T>()?, y.slice::<T>()?, dy.slice::<T>()?);
    let mut dx = Tensor::zeros(T::DTYPE, Shape::from([batch, rows, cols, depth]))?;
    let image = rows * cols * depth;
    let n_out = out[1] * out[2] * depth;
    let wrong = std::sync::atomic::AtomicBool::new(false);
    par_chunks_mut(ctx.par(), dx.slice_mut::<T>()?, image, 1, &|b, dx| {
        let x = x.get(b * image..(b + 1) * image).unwrap_or_default();
        let range = b * n_out..(b + 1) * n_out;
        let pairs = y.get(range.clone()).unwrap_or_default().iter();
        let mut pairs = pairs.zip(dy.get(range).unwrap_or_default());
        for r in &row_regions {
            for c in &col_regions {
                for d in 0..depth {
                    let best = best_in(x, r, c, [cols, depth, d]);
                    let found = best.zip(pairs.next()).filter(|((x, _), (y, _))| x == *y);
                    match found.and_then(|((_, at), (_, dy))| Some((dx.get_mut(at)?, dy))) {
                        Some((dx, dy)) => *dx = dx.add(*dy),
                        None => wrong.store(true, std::sync::atomic::Ordering::Relaxed),
                    }
                }
            }
        }
    });
    if wrong.into_inner() {
        return Err(invalid_argument!(
            "tensor_out_dup is not the same as tensor_out"
        ));
    }
    ctx.set_output(0, dx)
}

/// Returns the first of the largest elements of a region, and its position.
fn best_in<T: Ordered>(
    x: &[T],
    rows: &Region,
    columns: &Region,
    [cols, depth, d]: [usize; 3],
) -> Option<(T, usize)> {
    let mut best: Option<(T, usize)> = None;
    for h in rows.start..rows.end {
        for w in columns.start..columns.end {
            let at = (h * cols + w) * depth + d;
            let &x = x.get(at)?;
            if best.is_none_or(|(y, _)| y < x) {
                best = Some((x, at));
            }
        }
    }
    best
}

/// A dtype that gradients of averages are rounded to.
trait Rounded: Ordered {
    fn to_f64(self) -> f64;
    fn of_f64(x: f64) -> Self;
}

macro_rules! rounded {
    ($($ty:ty),*) => {$(
        impl Rounded for $ty {
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn of_f64(x: f64) -> Self {
                x as $ty
            }
        }
    )*};
}
rounded!(f32, f64, i32, i64);

fn check_average(ctx: &KernelCtx) -> Result<[usize; 4]> {
    let (sizes, dy) = (ctx.input(0)?, ctx.input(1)?.shape());
    if sizes.shape().rank() != 1 || sizes.num_elements() != 4 {
        return Err(invalid_argument!(
            "original input tensor shape must be1-dimensional and 4 elements"
        ));
    }
    if dy.rank() != 4 {
        return Err(invalid_argument!("out_backprop must be 4-dimensional"));
    }
    if dy.contains(&0) {
        return Err(invalid_argument!(
            "out_backprop must be positive for all dimension, got:0"
        ));
    }
    for (i, name, n) in [(2, "row", dy[1]), (3, "col", dy[2])] {
        let found = ctx.input(i)?.num_elements();
        if found <= n {
            return Err(invalid_argument!(
                "Given out_backprop shape {dy}, {name}_seq_tensor must have at least {} elements, \
                 but got {found}",
                n + 1
            ));
        }
    }
    let sizes = sizes.slice::<i64>()?;
    for (size, name) in sizes.iter().zip(["Batch", "Rows", "Columns", "Depth"]) {
        if *size == 0 {
            return Err(invalid_argument!("{name} dimension of input must not be 0"));
        }
    }
    let shape = Shape::checked(sizes)?;
    if shape[0] != dy[0] || shape[3] != dy[3] {
        return Err(invalid_argument!(
            "out_backprop of shape {dy} does not belong to an input of shape {shape}"
        ));
    }
    Ok([shape[0], shape[1], shape[2], shape[3]])
}

fn average_grad<T: Rounded>(ctx: &mut KernelCtx, overlapping: bool) -> Result<()> {
    let [batch, rows, cols, depth] = check_average(ctx)?;
    let (_, out_rows, out_cols) = {
        let dy = ctx.input(1)?.shape();
        (dy[0], dy[1], dy[2])
    };
    for (i, n, name) in [(2, out_rows, "Row"), (3, out_cols, "Column")] {
        let sequence = ctx.slice::<i64>(i)?;
        let shift = i64::from(!overlapping);
        let pairs = sequence.iter().zip(sequence.iter().skip(1)).take(n);
        if pairs
            .into_iter()
            .any(|(&a, &b)| a < 0 || b.saturating_sub(shift) < 0)
        {
            return Err(invalid_argument!(
                "{name} sequence tensor values must not be negative, got {}",
                aligned(sequence)
            ));
        }
    }
    let row_regions = region_input(ctx, 2, rows, overlapping)?;
    let col_regions = region_input(ctx, 3, cols, overlapping)?;
    let dy = ctx.slice::<T>(1)?;
    let mut dx = ctx.alloc(T::DTYPE, shape_of([batch, rows, cols, depth])?)?;
    let (image, n_out) = (rows * cols * depth, out_rows * out_cols * depth);
    par_chunks_mut(ctx.par(), dx.slice_mut::<T>()?, image, 1, &|b, dx| {
        let mut sums = vec![0.0f64; dx.len()];
        let dy = dy.get(b * n_out..(b + 1) * n_out).unwrap_or_default();
        let mut dy = dy.chunks_exact(depth);
        for r in row_regions.iter().take(out_rows) {
            for c in col_regions.iter().take(out_cols) {
                let dy = dy.next().unwrap_or_default();
                let n = (r.end.saturating_sub(r.start) * c.end.saturating_sub(c.start)) as f64;
                for h in r.start..r.end {
                    for w in c.start..c.end {
                        let at = (h * cols + w) * depth;
                        let sums = sums.get_mut(at..at + depth).unwrap_or_default();
                        for (sum, dy) in sums.iter_mut().zip(dy) {
                            *sum += dy.to_f64() / n;
                        }
                    }
                }
            }
        }
        for (dx, sum) in dx.iter_mut().zip(&sums) {
            *dx = T::of_f64(*sum);
        }
    });
    ctx.set_output(0, dx)
}
