//! UniformQuantizedDot, UniformQuantizedDotHybrid and UniformQuantizedAdd (TensorFlow:
//! `core/kernels/uniform_quant_ops/uniform_quantized_dot_ops.cc`, `uniform_quantized_add_op.cc`).

use crate::scales::{Multiplier, Scales, check_positive, multipliers};
use crate::uniform_quantize::{code, limited, limits};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::{broadcast_partial, broadcast_shape, broadcast_tensor};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::quantized::{codes, map_slices, set_codes};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::int_gemm::{PackedCodes, product_of_rows};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "UniformQuantizedDot",
        "lhs: Tin, rhs: Tin, lhs_scales: float, lhs_zero_points: int32, rhs_scales: float, \
         rhs_zero_points: int32, output_scales: float, output_zero_points: int32 -> output: Tout | \
         Tin: type {qint8}; Tout: type {qint32}; lhs_quantization_axis: int = -1; \
         lhs_quantization_min_val: int; lhs_quantization_max_val: int; rhs_quantization_axis: int \
         = -1; rhs_quantization_min_val: int; rhs_quantization_max_val: int; \
         output_quantization_axis: int = -1; output_quantization_min_val: int; \
         output_quantization_max_val: int",
    )
    .shape(|ctx| dot_shape(ctx, &[(2, 0), (3, 0), (4, 1), (5, 1), (6, 1), (7, 1)]))
    .cost(Cost::Expensive)
    .kernel(dot),
    Op::new(
        "UniformQuantizedDotHybrid",
        "lhs: Tlhs, rhs: Trhs, rhs_scales: float, rhs_zero_points: int32 -> output: Tout | Tlhs: \
         type {float}; Trhs: type {qint8}; Tout: type {float}; rhs_quantization_axis: int = -1; \
         rhs_quantization_min_val: int; rhs_quantization_max_val: int",
    )
    .shape(|ctx| dot_shape(ctx, &[(2, 1), (3, 1)]))
    .cost(Cost::Expensive)
    .kernel(hybrid),
    Op::new(
        "UniformQuantizedAdd",
        "lhs: T, rhs: T, lhs_scales: float, lhs_zero_points: int32, rhs_scales: float, \
         rhs_zero_points: int32, output_scales: float, output_zero_points: int32 -> output: T | \
         lhs_quantization_axis: int = -1; lhs_quantization_min_val: int; \
         lhs_quantization_max_val: int; rhs_quantization_axis: int = -1; rhs_quantization_min_val: \
         int; rhs_quantization_max_val: int; output_quantization_axis: int = -1; \
         output_quantization_min_val: int; output_quantization_max_val: int; T: type {qint32}",
    )
    .shape(|ctx| {
        let shape = broadcast_partial(&ctx.input(0), &ctx.input(1))?;
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(add),
];

fn dot_shape(ctx: &mut ShapeCtx, ranks: &[(usize, usize)]) -> Result<()> {
    let (lhs, rhs) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 2)?);
    for (i, most) in ranks {
        let shape = ctx.input(*i);
        if let Some(rank) = shape.rank().filter(|rank| rank > most) {
            return Err(invalid_argument!(
                "Shape must be at most rank {most} but is rank {rank}"
            ));
        }
    }
    if let (Some(k), Some(l)) = (lhs.dim(1), rhs.dim(0))
        && k != l
    {
        return Err(invalid_argument!(
            "Dimensions must be equal, but are {k} and {l}"
        ));
    }
    ctx.set(0, PartialShape::of([lhs.dim(0), rhs.dim(1)]));
    Ok(())
}

/// Checks that an axis is that of the columns, or none.
fn check_axis(build: &KernelBuild, side: &str) -> Result<()> {
    match build.attrs.int(&format!("{side}_quantization_axis"))? {
        -1 | 1 => Ok(()),
        _ => Err(invalid_argument!(
            "{side}_quantization_axis Attr must be 1 (per-channel) or -1 (per-tensor)."
        )),
    }
}

/// Returns rows, columns and the length of the reduction.
fn sizes(lhs: &Shape, rhs: &Shape) -> Result<[usize; 3]> {
    for (shape, name) in [(lhs, "lhs"), (rhs, "rhs")] {
        if shape.rank() != 2 {
            return Err(invalid_argument!(
                "{name} rank must be 2, but given {name} shape {shape}"
            ));
        }
    }
    if lhs[1] != rhs[0] {
        return Err(invalid_argument!(
            "lhs.dim_size(1) and rhs.dim_size(0) must be equal, but given lhs shape {lhs} and rhs \
             shape {rhs}"
        ));
    }
    Ok([lhs[0], rhs[1], lhs[1]])
}

/// Returns 1, the axis of columns, if input `i` is not a scalar.
fn axis_of(ctx: &KernelCtx, i: usize) -> Result<i64> {
    Ok(if ctx.shape(i)?.is_scalar() { -1 } else { 1 })
}

/// Returns the sums of products: `lhs` less the zero point of its row, `rhs` less that of its
/// column.
fn products(
    ctx: &KernelCtx,
    [m, n, k]: [usize; 3],
    lhs: &[i8],
    row_zeros: &(dyn Fn(usize) -> i32 + Sync),
    rhs: &[i8],
    column_zeros: &[i32],
) -> Result<Tensor> {
    let mut out = ctx.alloc(DType::Int32, shape_of([m, n])?)?;
    let common = match column_zeros {
        [zero] => *zero,
        _ => 0,
    };
    let packed = PackedCodes::new(rhs, k, n, false, common);
    let sums = out.slice_mut::<i32>()?;
    product_of_rows(ctx.par(), m, &packed, 0, sums, &|i, row| {
        for (to, from) in row.iter_mut().zip(&lhs[i * k..][..k]) {
            *to = i16::from(*from);
        }
    });
    // What the zero points subtract: (a - x)(b - y) = a·b - x·b - (a - x)·y.
    let own = column_zeros.len() > 1;
    let by_column: Vec<i32> = (0..n)
        .map(|j| {
            let column = (0..k).map(|l| i32::from(rhs[l * n + j]).wrapping_sub(common));
            column.fold(0i32, i32::wrapping_add)
        })
        .collect();
    for (i, row) in sums.chunks_exact_mut(n.max(1)).enumerate() {
        let zero = row_zeros(i);
        let codes = lhs[i * k..][..k]
            .iter()
            .map(|v| i32::from(*v).wrapping_sub(zero));
        let total = codes.fold(0i32, i32::wrapping_add);
        for (j, (sum, b)) in row.iter_mut().zip(&by_column).enumerate() {
            let less = if own {
                total.wrapping_mul(column_zeros[j])
            } else {
                0
            };
            *sum = sum.wrapping_sub(zero.wrapping_mul(*b)).wrapping_sub(less);
        }
    }
    Ok(out)
}

fn dot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    if build.attrs.int("lhs_quantization_axis")? != -1 {
        return Err(invalid_argument!(
            "lhs_quantization_axis Attr must be -1 (per-tensor)."
        ));
    }
    check_axis(build, "rhs")?;
    check_axis(build, "output")?;
    let limits = limits(build, "output_")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for (i, name) in [(2, "lhs"), (4, "rhs"), (6, "output")] {
            if !ctx.slice::<f32>(i)?.iter().all(|v| *v > 0.0) {
                return Err(invalid_argument!(
                    "{name} scales elements must be all positive."
                ));
            }
        }
        let (lhs, rhs) = (codes(ctx, 0)?, codes(ctx, 1)?);
        let s = sizes(lhs.shape(), rhs.shape())?;
        let (scales, zeros) = (ctx.shape(2)?, ctx.shape(3)?);
        if scales != zeros || !scales.is_scalar() {
            return Err(invalid_argument!(
                "lhs scales/zero_points must be all scalar tensors. Given: {scales}{zeros}"
            ));
        }
        let of_rhs = Scales::of(ctx, rhs.shape(), 4, axis_of(ctx, 4)?)?;
        let shape = shape_of([s[0], s[1]])?;
        let of_output = Scales::of(ctx, &shape, 6, axis_of(ctx, 6)?)?;
        if ctx.shape(4)?.is_scalar() && !ctx.shape(6)?.is_scalar() {
            return Err(invalid_argument!(
                "If rhs is per-tensor quantized, output must be also per-tensor quantized. Given \
                 rhs scales and zero_points of shape {} but given output scales and zero_points \
                 of shape {}",
                ctx.shape(4)?,
                ctx.shape(6)?
            ));
        }
        let (scale, zero) = (ctx.slice::<f32>(2)?[0], ctx.slice::<i32>(3)?[0]);
        let at = |v: &[f32], c: usize| f64::from(v[if v.len() == 1 { 0 } else { c }]);
        let steps = (0..of_rhs.scales.len()).map(|c| {
            let product = f64::from(scale) * at(of_rhs.scales, c);
            let step = Multiplier::new(product / at(of_output.scales, c))?;
            let zeros = of_output.zeros;
            Ok((step, zeros[if zeros.len() == 1 { 0 } else { c }]))
        });
        let steps = steps.collect::<Result<Vec<_>>>()?;
        let (a, b) = (lhs.slice::<i8>()?, rhs.slice::<i8>()?);
        let sums = products(ctx, s, a, &|_| zero, b, of_rhs.zeros)?;
        let mut out = ctx.alloc(DType::Int32, shape)?;
        let (from, to) = (sums.slice::<i32>()?, out.slice_mut::<i32>()?);
        map_slices(ctx.par(), from, to, &steps, 1, |sum, (step, zero)| {
            limited(step.times(sum).wrapping_add(*zero), limits)
        });
        set_codes(ctx, 0, out, DType::Qint32)
    }))
}

/// Returns codes of a row of floats with its scale and zero point, which fit its range.
pub(crate) fn quantized_row(row: &[f32], out: &mut [i8]) -> (f32, i32) {
    const LIMITS: [i32; 2] = [-128, 127];
    let low = f64::from(row.iter().fold(0f32, |a, b| a.min(*b)));
    let high = f64::from(row.iter().fold(0f32, |a, b| a.max(*b)));
    let scale = ((high - low) / 255.0) as f32;
    let inverse = match high - low == 0.0 {
        true => 0.0,
        false => (255.0 / (high - low)) as f32,
    };
    if scale == 0.0 || !inverse.is_finite() {
        out.fill(0);
        return (1.0, 0);
    }
    let (of_low, of_high) = (low / f64::from(scale), high / f64::from(scale));
    let zero = match 128.0 + of_low.abs() < 127.0 + of_high.abs() {
        true => -128.0 - of_low,
        false => 127.0 - of_high,
    };
    let zero = (zero.round() as i32).clamp(-128, 127);
    for (to, x) in out.iter_mut().zip(row) {
        *to = code(*x, inverse, zero, LIMITS) as i8;
    }
    (scale, zero)
}

fn hybrid(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    check_axis(build, "rhs")?;
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let rhs = codes(ctx, 1)?;
        let s @ [m, _, k] = sizes(ctx.shape(0)?, rhs.shape())?;
        let of_rhs = Scales::of(ctx, rhs.shape(), 2, axis_of(ctx, 2)?)?;
        if !check_positive(&[&of_rhs]) {
            return Err(invalid_argument!(
                "rhs scales elements must be all positive."
            ));
        }
        let x = ctx.slice::<f32>(0)?;
        let mut lhs = vec![0i8; x.len()];
        let rows = (0..m).map(|i| quantized_row(&x[i * k..][..k], &mut lhs[i * k..][..k]));
        let rows: Vec<(f32, i32)> = rows.collect();
        let b = rhs.slice::<i8>()?;
        let sums = products(ctx, s, &lhs, &|i| rows[i].1, b, of_rhs.zeros)?;
        let mut out = ctx.alloc(DType::Float, sums.shape().clone())?;
        let from = sums.slice::<i32>()?.chunks_exact(s[1].max(1));
        let to = out.slice_mut::<f32>()?.chunks_exact_mut(s[1].max(1));
        for ((from, to), (scale, _)) in from.zip(to).zip(&rows) {
            let columns = of_rhs.scales.iter().cycle();
            for ((to, sum), column) in to.iter_mut().zip(from).zip(columns) {
                *to = *sum as f32 * scale * column;
            }
        }
        ctx.set_output(0, out)
    }))
}

fn add(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let axes = [
        attrs.int("lhs_quantization_axis")?,
        attrs.int("rhs_quantization_axis")?,
        attrs.int("output_quantization_axis")?,
    ];
    if axes.iter().any(|axis| *axis < -1) {
        return Err(invalid_argument!(
            "lhs, rhs and output quantization_axis must be -1 or within [0, dims)"
        ));
    }
    let limits = limits(build, "output_")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| sum(ctx, axes, limits)))
}

/// Checks that the axes of operands fit that of their sum.
fn check_axes(inputs: &[Tensor; 2], shape: &Shape, axes: [i64; 3]) -> Result<()> {
    for ((input, axis), name) in inputs.iter().zip(axes).zip(["lhs", "rhs"]) {
        let from_end = |rank: usize, axis: i64| rank as i64 - axis;
        let matches = from_end(input.shape().rank(), axis) == from_end(shape.rank(), axes[2]);
        if axis >= 0 && axes[2] >= 0 && !matches {
            return Err(invalid_argument!(
                "If {name} and output is both per-axis quantized, the quantization axis must match."
            ));
        }
        if axis < 0 && axes[2] >= 0 {
            return Err(invalid_argument!(
                "If output is per-axis quantized, {name} must be, too."
            ));
        }
    }
    Ok(())
}

fn sum(ctx: &mut KernelCtx, axes: [i64; 3], limits: [i32; 2]) -> Result<()> {
    let inputs = [codes(ctx, 0)?, codes(ctx, 1)?];
    let sides = [
        Scales::of(ctx, inputs[0].shape(), 2, axes[0])?,
        Scales::of(ctx, inputs[1].shape(), 4, axes[1])?,
    ];
    let (a, b) = (inputs[0].shape(), inputs[1].shape());
    let shape = broadcast_shape(a, b)
        .map_err(|_| invalid_argument!("Cannot Add tensors of shapes: {a}{b}"))?;
    let output = Scales::of(ctx, &shape, 6, axes[2])?;
    check_axes(&inputs, &shape, axes)?;
    if !check_positive(&[&sides[0], &sides[1], &output]) {
        return Err(invalid_argument!(
            "lhs/rhs/output scales elements must be all positive."
        ));
    }
    let mut parts = Vec::with_capacity(2);
    for (input, side) in inputs.iter().zip(&sides) {
        let mut steps = multipliers(side, &output)?;
        // An axis of length one is broadcast afterwards.
        steps.truncate(side.scales.len());
        let params: Vec<(Multiplier, i32)> = match side.zeros {
            [zero] => steps.into_iter().map(|step| (step, *zero)).collect(),
            zeros => steps.into_iter().zip(zeros.iter().copied()).collect(),
        };
        let mut moved = ctx.alloc(DType::Int32, input.shape().clone())?;
        let (from, to) = (input.slice::<i32>()?, moved.slice_mut::<i32>()?);
        map_slices(
            ctx.par(),
            from,
            to,
            &params,
            side.post,
            |v, (step, zero)| step.times(v.wrapping_sub(*zero)),
        );
        let whole = dispatch_items!(DType::Int32, T => {
            broadcast_tensor(ctx, &moved, shape.clone())?
        });
        parts.push(whole);
    }
    let mut out = ctx.alloc(DType::Int32, shape)?;
    let (a, b) = (parts[0].slice::<i32>()?, parts[1].slice::<i32>()?);
    let both: Vec<i32> = a.iter().zip(b).map(|(a, b)| a.wrapping_add(*b)).collect();
    let to = out.slice_mut::<i32>()?;
    map_slices(
        ctx.par(),
        &both,
        to,
        output.zeros,
        output.post,
        |v, zero| {
            let v = v.wrapping_add(*zero);
            if v < limits[0] {
                limits[0]
            } else {
                v.min(limits[1])
            }
        },
    );
    set_codes(ctx, 0, out, DType::Qint32)
}
