//! UniformQuantizedConvolution and UniformQuantizedConvolutionHybrid (TensorFlow:
//! `core/kernels/uniform_quant_ops/uniform_quantized_convolution_ops.cc`).

use crate::conv_params::{ConvAttrs, Convolution, Spaces};
use crate::scales::{Multiplier, Scales, check_positive};
use crate::uniform_dot::quantized_row;
use crate::uniform_quantize::{limited, limits};
use ferroflow_base::{Result, invalid_argument, resource_exhausted};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::quantized::{codes, set_codes};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "UniformQuantizedConvolution",
        "lhs: Tin, rhs: Tin, lhs_scales: float, lhs_zero_points: int32, rhs_scales: float, \
         rhs_zero_points: int32, output_scales: float, output_zero_points: int32 -> output: Tout | \
         Tin: type {qint8}; Tout: type {qint32}; window_strides: list(int) = []; padding: string; \
         explicit_padding: list(int) = []; lhs_dilation: list(int) = []; rhs_dilation: list(int) \
         = []; batch_group_count: int = 1; feature_group_count: int = 1; dimension_numbers: \
         string = ''; lhs_quantization_axis: int = -1; lhs_quantization_min_val: int; \
         lhs_quantization_max_val: int; rhs_quantization_axis: int = -1; \
         rhs_quantization_min_val: int; rhs_quantization_max_val: int; \
         output_quantization_axis: int = -1; output_quantization_min_val: int; \
         output_quantization_max_val: int",
    )
    .shape(|ctx| conv_shape(ctx, &[(2, 0), (3, 0), (4, 1), (5, 1), (6, 1), (7, 1)]))
    .cost(Cost::Expensive)
    .kernel(conv),
    Op::new(
        "UniformQuantizedConvolutionHybrid",
        "lhs: Tlhs, rhs: Trhs, rhs_scales: float, rhs_zero_points: int32 -> output: Tout | Tlhs: \
         type {float}; Trhs: type {qint8}; Tout: type {float}; window_strides: list(int) = []; \
         padding: string; explicit_padding: list(int) = []; lhs_dilation: list(int) = []; \
         rhs_dilation: list(int) = []; batch_group_count: int = 1; feature_group_count: int = 1; \
         dimension_numbers: string = ''; rhs_quantization_axis: int = -1; \
         rhs_quantization_min_val: int; rhs_quantization_max_val: int",
    )
    .shape(|ctx| conv_shape(ctx, &[(2, 1), (3, 1)]))
    .cost(Cost::Expensive)
    .kernel(hybrid),
];

fn conv_shape(ctx: &mut ShapeCtx, ranks: &[(usize, usize)]) -> Result<()> {
    for (i, most) in ranks {
        if let Some(rank) = ctx.input(*i).rank().filter(|rank| rank > most) {
            return Err(invalid_argument!(
                "Shape must be at most rank {most} but is rank {rank}"
            ));
        }
    }
    let (lhs, rhs) = (ctx.input(0), ctx.input(1));
    for shape in [&lhs, &rhs] {
        if let Some(rank) = shape.rank().filter(|rank| *rank < 2) {
            return Err(invalid_argument!(
                "Shape must be at least rank 2 but is rank {rank}"
            ));
        }
    }
    let out = match (lhs.rank(), rhs.rank()) {
        (None, None) => PartialShape::unknown(),
        (Some(a), Some(b)) if a != b => {
            return Err(invalid_argument!("lhs and rhs must have same rank."));
        }
        (Some(rank), _) | (None, Some(rank)) => match (lhs.to_full(), rhs.to_full()) {
            (Some(lhs), Some(rhs)) => {
                let conv = ConvAttrs::of(ctx.attrs())?.apply(&lhs, &rhs)?;
                (&conv.output_shape()?).into()
            }
            _ => PartialShape::of_rank(rank),
        },
    };
    ctx.set(0, out);
    Ok(())
}

/// Returns the elements in another order of dimensions.
fn ordered<T: Element + Copy>(from: &[T], shape: &Shape, order: &[usize]) -> Vec<T> {
    let mut strides = vec![1; shape.rank()];
    for d in (1..shape.rank()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    let mut out = Vec::with_capacity(from.len());
    let mut at = vec![0; order.len()];
    for _ in 0..from.len() {
        let index: usize = order.iter().zip(&at).map(|(d, i)| strides[*d] * i).sum();
        out.push(from[index]);
        for (i, d) in at.iter_mut().zip(order).rev() {
            *i += 1;
            if *i < shape[*d] {
                break;
            }
            *i = 0;
        }
    }
    out
}

/// A convolution's operands in the order batch or output feature, feature, space.
struct Sides {
    lhs: Vec<i8>,
    rhs: Vec<i8>,
    /// The zero point of each batch, or of all.
    lhs_zeros: Vec<i32>,
    /// The zero point of each output feature, or of all.
    rhs_zeros: Vec<i32>,
}

fn pick<T: Copy>(all: &[T], i: usize) -> T {
    all[if all.len() == 1 { 0 } else { i }]
}

/// Returns the positions of the elements in a space with strides, in order.
fn positions(dims: &[usize], strides: &[usize]) -> Vec<usize> {
    if dims.contains(&0) {
        return Vec::new();
    }
    let mut all = vec![0];
    for (n, stride) in dims.iter().zip(strides) {
        let inner = all
            .iter()
            .flat_map(|at| (0..*n).map(move |i| at + i * stride));
        all = inner.collect();
    }
    all
}

/// The planes of an input, padded with their zero points.
struct Padded {
    codes: Tensor,
    /// The elements of a plane.
    len: usize,
    strides: Vec<usize>,
}

fn padded(ctx: &KernelCtx, conv: &Convolution, spaces: &Spaces, sides: &Sides) -> Result<Padded> {
    let len = spaces
        .padded
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d));
    let planes = conv.batch * conv.feature;
    let shape = len.map(|n| shape_of([planes, n])).transpose()?;
    let shape = shape.ok_or_else(|| resource_exhausted!("the padded input is too large"))?;
    let mut codes = ctx.alloc(DType::Int8, shape)?;
    let len = len.unwrap_or_default();
    let strides = strides_of(&spaces.padded);
    let origin: usize = strides.iter().zip(&spaces.before).map(|(s, b)| s * b).sum();
    let places = positions(&spaces.lhs, &products(&strides, &spaces.lhs_dilation));
    let planes = codes.slice_mut::<i8>()?.chunks_exact_mut(len.max(1));
    for (i, to) in planes.enumerate() {
        // TensorFlow keeps the low bits of a zero point out of a code's range.
        to.fill(pick(&sides.lhs_zeros, i / conv.feature) as i8);
        for (place, code) in places.iter().zip(&sides.lhs[i * places.len()..]) {
            to[origin + place] = *code;
        }
    }
    Ok(Padded {
        codes,
        len,
        strides,
    })
}

/// Convolves, and makes each sum an element of the output in its place: `finish` has the sum, the batch of
/// `lhs` and the output feature.
fn convolve<T: Element>(
    ctx: &mut KernelCtx,
    conv: &Convolution,
    sides: &Sides,
    finish: &(dyn Fn(i32, usize, usize) -> T + Sync),
) -> Result<Tensor> {
    let shape = conv.output_shape()?;
    if shape.num_elements() == 0 {
        return ctx.alloc(T::DTYPE, shape);
    }
    let spaces = conv.spaces()?;
    let (n_batches, n_features) = (conv.out_batch, conv.out_feature);
    let padded = padded(ctx, conv, &spaces, sides)?;
    let (plane, codes) = (padded.len, padded.codes.slice::<i8>()?);
    let starts = positions(&spaces.out, &products(&padded.strides, &spaces.window));
    let taps = positions(
        &spaces.rhs,
        &products(&padded.strides, &spaces.rhs_dilation),
    );
    let (group, depth) = (n_features / conv.feature_groups, conv.rhs_feature);
    let batch_group = n_features / conv.batch_groups;
    let mut sums = ctx.alloc(T::DTYPE, shape_of([n_batches * n_features, starts.len()])?)?;
    par_chunks_mut(
        ctx.par(),
        sums.slice_mut::<T>()?,
        starts.len().max(1),
        1,
        &|i, out| {
            let (batch, feature) = (i / n_features, i % n_features);
            let batch = (feature / batch_group) * n_batches + batch;
            let (zero, own) = (
                pick(&sides.lhs_zeros, batch),
                pick(&sides.rhs_zeros, feature),
            );
            let mut acc = vec![0i32; starts.len()];
            for d in 0..depth {
                let from = &codes[(batch * conv.feature + (feature / group) * depth + d) * plane..]
                    [..plane];
                let weights = &sides.rhs[(feature * depth + d) * taps.len()..];
                for (tap, weight) in taps.iter().zip(weights) {
                    let weight = i32::from(*weight).wrapping_sub(own);
                    for (acc, start) in acc.iter_mut().zip(&starts) {
                        let code = i32::from(from[start + tap]).wrapping_sub(zero);
                        *acc = acc.wrapping_add(code.wrapping_mul(weight));
                    }
                }
            }
            for (to, acc) in out.iter_mut().zip(acc) {
                *to = finish(acc, batch, feature);
            }
        },
    );
    let mut order = vec![0; shape.rank()];
    for (i, d) in conv.out_order().into_iter().enumerate() {
        order[d] = i;
    }
    let from: Vec<usize> = conv.out_order().iter().map(|d| shape[*d]).collect();
    let values = ordered(sums.slice::<T>()?, &shape_of(from)?, &order);
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    out.slice_mut::<T>()?.copy_from_slice(&values);
    Ok(out)
}

fn products(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn strides_of(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for d in (1..dims.len()).rev() {
        strides[d - 1] = strides[d] * dims[d];
    }
    strides
}

fn check_axis(build_axis: i64, wanted: usize, side: &str, name: &str) -> Result<()> {
    if build_axis == -1 || usize::try_from(build_axis) == Ok(wanted) {
        return Ok(());
    }
    Err(invalid_argument!(
        "{side}_quantization_axis Attr must be -1 (per-tensor) or dimension_numbers.{name} \
         (per-channel)."
    ))
}

fn check_scales(ctx: &KernelCtx, i: usize, side: &str) -> Result<()> {
    match ctx.slice::<f32>(i)?.iter().all(|v| *v > 0.0) {
        true => Ok(()),
        false => Err(invalid_argument!(
            "{side} scales elements must be all positive."
        )),
    }
}

fn conv(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = ConvAttrs::of(build.attrs)?;
    let limits = limits(build, "output_")?;
    if build.attrs.int("lhs_quantization_axis")? != -1 {
        return Err(invalid_argument!(
            "lhs_quantization_axis Attr must be -1 (per-tensor)."
        ));
    }
    let rhs_axis = build.attrs.int("rhs_quantization_axis")?;
    let out_axis = build.attrs.int("output_quantization_axis")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for (i, side) in [(2, "lhs"), (4, "rhs"), (6, "output")] {
            check_scales(ctx, i, side)?;
        }
        let (lhs, rhs) = (codes(ctx, 0)?, codes(ctx, 1)?);
        let conv = attrs.apply(lhs.shape(), rhs.shape())?;
        let (scales, zeros) = (ctx.shape(2)?, ctx.shape(3)?);
        if scales != zeros || !scales.is_scalar() {
            return Err(invalid_argument!(
                "lhs scales/zero_points must be all scalar tensors. Given: {scales}{zeros}"
            ));
        }
        let wanted = conv.numbers.kernel_output_feature;
        check_axis(rhs_axis, wanted, "rhs", "kernel_output_feature_dimension")?;
        let of_rhs = Scales::of(ctx, rhs.shape(), 4, rhs_axis)?;
        let wanted = conv.numbers.output_feature;
        check_axis(out_axis, wanted, "output", "output_feature_dimension")?;
        let of_out = Scales::of(ctx, &conv.output_shape()?, 6, out_axis)?;
        if ctx.shape(4)?.is_scalar() && !ctx.shape(6)?.is_scalar() {
            return Err(invalid_argument!(
                "If rhs is per-tensor quantized, output must be also per-tensor quantized. Given \
                 output scales/zero_points of rank {}",
                ctx.shape(6)?.rank()
            ));
        }
        let scale = f64::from(ctx.slice::<f32>(2)?[0]);
        let steps = (0..of_rhs.scales.len()).map(|c| {
            let product = scale * f64::from(of_rhs.scales[c]);
            let step = Multiplier::new(product / f64::from(pick(of_out.scales, c)))?;
            Ok((step, pick(of_out.zeros, c)))
        });
        let steps = steps.collect::<Result<Vec<_>>>()?;
        let sides = Sides {
            lhs: ordered(lhs.slice::<i8>()?, lhs.shape(), &conv.lhs_order()),
            rhs: ordered(rhs.slice::<i8>()?, rhs.shape(), &conv.rhs_order()),
            lhs_zeros: ctx.slice::<i32>(3)?.to_vec(),
            rhs_zeros: of_rhs.zeros.to_vec(),
        };
        let out = convolve::<i32>(ctx, &conv, &sides, &|sum, _, feature| {
            let (step, zero) = pick(&steps, feature);
            limited(step.times(sum).wrapping_add(zero), limits)
        })?;
        set_codes(ctx, 0, out, DType::Qint32)
    }))
}

fn hybrid(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = ConvAttrs::of(build.attrs)?;
    let axis = build.attrs.int("rhs_quantization_axis")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        check_scales(ctx, 2, "rhs")?;
        let rhs = codes(ctx, 1)?;
        let shape = ctx.shape(0)?.clone();
        let conv = attrs.apply(&shape, rhs.shape())?;
        let wanted = conv.numbers.kernel_output_feature;
        check_axis(axis, wanted, "rhs", "kernel_output_feature_dimension")?;
        let of_rhs = Scales::of(ctx, rhs.shape(), 2, axis)?;
        if !check_positive(&[&of_rhs]) {
            return Err(invalid_argument!(
                "rhs scales elements must be all positive."
            ));
        }
        let x = ordered(ctx.slice::<f32>(0)?, &shape, &conv.lhs_order());
        let mut lhs = vec![0i8; x.len()];
        let row = x.len() / conv.batch.max(1);
        let rows = x
            .chunks_exact(row.max(1))
            .zip(lhs.chunks_exact_mut(row.max(1)));
        let mut rows: Vec<(f32, i32)> = rows.map(|(from, to)| quantized_row(from, to)).collect();
        rows.resize(conv.batch, (1.0, 0));
        let own = of_rhs.scales.to_vec();
        let sides = Sides {
            lhs,
            rhs: ordered(rhs.slice::<i8>()?, rhs.shape(), &conv.rhs_order()),
            lhs_zeros: rows.iter().map(|row| row.1).collect(),
            rhs_zeros: of_rhs.zeros.to_vec(),
        };
        let out = convolve::<f32>(ctx, &conv, &sides, &|sum, batch, feature| {
            sum as f32 * rows[batch].0 * pick(&own, feature)
        })?;
        ctx.set_output(0, out)
    }))
}
