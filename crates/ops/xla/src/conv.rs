//! XlaConv and XlaConvV2: convolutions with any order of dimensions, dilations and groups, as products of a matrix of
//! patches (TensorFlow: `compiler/tf2xla/kernels/xla_conv_op.cc`).

use crate::axis::{Axis, paddings, vector};
use crate::reduce_window::same_rank;
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::conversion::{common, converted};
use ferroflow_functors::indices::{int, shape_of};
use ferroflow_functors::product::MatMulElement;
use ferroflow_functors::strided::unravel;
use ferroflow_functors::transpose::transposed;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::gemm::{BatchItem, GemmShape};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, DType, Shape, Tensor, dispatch};
use prost::Message;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaConv",
        "lhs: T, rhs: T, window_strides: Tindices, padding: Tindices, lhs_dilation: Tindices, rhs_dilation: Tindices, \
         feature_group_count: Tindices -> output: T | T: numbertype; Tindices: type {int32,int64}; \
         dimension_numbers: string; precision_config: string",
    )
    .shape(same_rank)
    .cost(Cost::Expensive)
    .kernel(|build| conv(build, 1)),
    Op::new(
        "XlaConvV2",
        "lhs: LhsT, rhs: RhsT, window_strides: Tindices, padding: Tindices, lhs_dilation: Tindices, rhs_dilation: \
         Tindices, feature_group_count: Tindices -> output: preferred_element_type | LhsT: numbertype; RhsT: \
         numbertype; Tindices: type {int32,int64}; dimension_numbers: string; precision_config: string; \
         preferred_element_type: numbertype; batch_group_count: int = 1",
    )
    .shape(same_rank)
    .cost(Cost::Expensive)
    .kernel(|build| conv(build, build.attrs.int("batch_group_count")?)),
];

/// The roles of dimensions (XLA: `xla_data.proto`).
#[derive(Clone, PartialEq, Message)]
struct ConvolutionDimensionNumbers {
    #[prost(int64, tag = "7")]
    input_batch_dimension: i64,
    #[prost(int64, tag = "8")]
    input_feature_dimension: i64,
    #[prost(int64, repeated, tag = "11")]
    input_spatial_dimensions: Vec<i64>,
    #[prost(int64, tag = "3")]
    kernel_input_feature_dimension: i64,
    #[prost(int64, tag = "4")]
    kernel_output_feature_dimension: i64,
    #[prost(int64, repeated, tag = "6")]
    kernel_spatial_dimensions: Vec<i64>,
    #[prost(int64, tag = "9")]
    output_batch_dimension: i64,
    #[prost(int64, tag = "10")]
    output_feature_dimension: i64,
    #[prost(int64, repeated, tag = "12")]
    output_spatial_dimensions: Vec<i64>,
}

/// Returns a permutation of dimensions: `first`, those of `middle`, `last`.
fn permutation(rank: usize, first: i64, middle: &[i64], last: i64) -> Result<Vec<usize>> {
    let all: Vec<i64> = [&[first], middle, &[last]].concat();
    let mut sorted = all.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank as i64) {
        return Err(invalid_argument!(
            "The dimension numbers of a convolution of rank {rank} must be its dimensions, each once, but are {all:?}"
        ));
    }
    Ok(all.into_iter().map(|d| d as usize).collect())
}

/// A convolution of an image with dimensions (batch, spatial, feature) and a kernel (input feature, spatial, output
/// feature).
struct Conv {
    axes: Vec<Axis>,
    /// Sizes of the output's spatial dimensions.
    places: Vec<usize>,
    batch: usize,
    features: usize,
    out_features: usize,
    feature_groups: usize,
    batch_groups: usize,
}

#[cold]
fn unfit(what: &str, n: usize, groups: i64) -> Status {
    invalid_argument!("Expected {what} ({n}) to be a multiple of the group count {groups}.")
}

/// Returns the number of groups that `n` is divided into.
fn groups(n: usize, count: i64, what: &str) -> Result<usize> {
    match usize::try_from(count) {
        Ok(groups) if groups > 0 && n.is_multiple_of(groups) => Ok(groups),
        _ => Err(unfit(what, n, count)),
    }
}

impl Conv {
    fn of(ctx: &KernelCtx, lhs: &Shape, rhs: &Shape, batch_groups: i64) -> Result<Conv> {
        let (rank, n) = (lhs.rank(), lhs.rank() - 2);
        let strides = vector(ctx.input(2)?, n, "window_strides")?;
        let paddings = paddings(ctx.input(3)?, n)?;
        let lhs_dilation = vector(ctx.input(4)?, n, "lhs_dilation")?;
        let rhs_dilation = vector(ctx.input(5)?, n, "rhs_dilation")?;
        let feature_groups = int(ctx.input(6)?).unwrap_or(0);
        let axis = |i: usize| Axis {
            size: lhs[1 + i],
            window: rhs[1 + i],
            stride: strides[i],
            padding: paddings[i],
            base_dilation: lhs_dilation[i],
            window_dilation: rhs_dilation[i],
        };
        let axes: Vec<Axis> = (0..n).map(axis).collect();
        let (features, out_features) = (lhs[rank - 1], rhs[rank - 1]);
        let conv = Conv {
            places: axes.iter().map(Axis::places).collect::<Result<_>>()?,
            axes,
            batch: lhs[0],
            features,
            out_features,
            feature_groups: groups(features, feature_groups, "input feature dimension")?,
            batch_groups: groups(lhs[0], batch_groups, "input batch dimension")?,
        };
        groups(out_features, feature_groups, "output feature dimension")?;
        groups(out_features, batch_groups, "output feature dimension")?;
        if conv.feature_groups > 1 && conv.batch_groups > 1 {
            return Err(invalid_argument!(
                "both batch_group_count {batch_groups} and feature_group_count {feature_groups} cannot be greater than 1"
            ));
        }
        if rhs[0] != features / conv.feature_groups {
            return Err(invalid_argument!(
                "Expected LHS feature dimension (value {features}) to be a multiple of feature_group_count \
                 ({feature_groups}), and LHS feature dimension / feature_group_count = RHS feature dimension (value {}).",
                rhs[0]
            ));
        }
        Ok(conv)
    }

    fn groups(&self) -> usize {
        self.feature_groups * self.batch_groups
    }

    /// Returns the output's dimensions: (batch, spatial, feature).
    fn out_dims(&self) -> Vec<usize> {
        let batch = self.batch / self.batch_groups;
        [&[batch], &self.places[..], &[self.out_features]].concat()
    }
}

fn conv(build: &KernelBuild, batch_groups: i64) -> Result<Box<dyn OpKernel>> {
    let bytes: &[u8] = build.attrs.bytes("dimension_numbers")?;
    let numbers = ConvolutionDimensionNumbers::decode(bytes)
        .map_err(|_| invalid_argument!("Error parsing convolution dimension numbers"))?;
    let (lhs, rhs, out) = (build.input(0)?, build.input(1)?, build.output(0)?);
    let dtype = common(common(lhs, rhs), out);
    // Sums of 16-bit floats are those of floats.
    let dtype = match dtype {
        DType::Half | DType::Bfloat16 => DType::Float,
        dtype => dtype,
    };
    dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let result = convolved::<T>(ctx, &numbers, batch_groups)?;
            ctx.set_output(0, converted(&result, out)?)
        })),
        else Err(build.unsupported(dtype)))
}

fn convolved<T: MatMulElement>(
    ctx: &KernelCtx,
    numbers: &ConvolutionDimensionNumbers,
    batch_groups: i64,
) -> Result<Tensor> {
    let (lhs, rhs) = (ctx.input(0)?, ctx.input(1)?);
    let rank = lhs.shape().rank();
    if rank < 3 || rhs.shape().rank() != rank {
        return Err(invalid_argument!(
            "The LHS and RHS of a convolution must have the same rank of at least 3, but are {} and {}",
            lhs.shape(),
            rhs.shape()
        ));
    }
    let n = numbers;
    let lhs_order = permutation(
        rank,
        n.input_batch_dimension,
        &n.input_spatial_dimensions,
        n.input_feature_dimension,
    )?;
    let rhs_order = permutation(
        rank,
        n.kernel_input_feature_dimension,
        &n.kernel_spatial_dimensions,
        n.kernel_output_feature_dimension,
    )?;
    let out_order = permutation(
        rank,
        n.output_batch_dimension,
        &n.output_spatial_dimensions,
        n.output_feature_dimension,
    )?;
    let lhs = transposed(ctx, converted(lhs, T::DTYPE)?, &lhs_order)?;
    let rhs = transposed(ctx, converted(rhs, T::DTYPE)?, &rhs_order)?;
    let conv = Conv::of(ctx, lhs.shape(), rhs.shape(), batch_groups)?;
    let dims = conv.out_dims();
    // The matrices of the kernel have a row for each element of a patch: spatial, then the feature.
    let rows_first: Vec<usize> = (1..rank - 1).chain([0, rank - 1]).collect();
    let rhs = transposed(ctx, rhs, &rows_first)?;
    let out = products::<T>(ctx, &conv, &lhs, &rhs)?;
    // (group, batch, spatial, feature of the group) to (batch, spatial, feature).
    let grouped = [
        &[conv.groups()],
        &dims[..rank - 1],
        &[conv.out_features / conv.groups()],
    ]
    .concat();
    let out = out.with_shape(shape_of(grouped)?)?;
    let perm: Vec<usize> = (1..rank).chain([0, rank]).collect();
    let out = transposed(ctx, out, &perm)?.with_shape(shape_of(dims)?)?;
    let mut back = vec![0; rank];
    for (i, &dim) in out_order.iter().enumerate() {
        back[dim] = i;
    }
    transposed(ctx, out, &back)
}

/// Elements of the patches that are made at once.
const PATCHES: usize = 1 << 20;

/// Returns the products of the patches with the kernel, one group after another.
fn products<T: MatMulElement>(
    ctx: &KernelCtx,
    conv: &Conv,
    lhs: &Tensor,
    rhs: &Tensor,
) -> Result<Tensor> {
    let groups = conv.groups();
    let dims = conv.out_dims();
    let rows: usize = dims[..dims.len() - 1].iter().product();
    let out_features = conv.out_features / groups;
    let window: usize = conv.axes.iter().map(|axis| axis.window).product();
    let depth = window * (conv.features / conv.feature_groups);
    let mut out = Tensor::zeros(T::DTYPE, shape_of([groups, rows, out_features])?)?;
    if depth == 0 || out.num_elements() == 0 {
        return Ok(out);
    }
    let chunk = (PATCHES / depth).clamp(1, rows);
    let mut patches = Tensor::for_overwrite(T::DTYPE, shape_of([chunk, depth])?)?;
    let (lhs, rhs) = (lhs.slice::<T>()?, rhs.slice::<T>()?);
    let out_items = out.slice_mut::<T>()?;
    for group in 0..groups {
        for first in (0..rows).step_by(chunk) {
            let m = chunk.min(rows - first);
            let patches = &mut patches.slice_mut::<T>()?[..m * depth];
            par_chunks_mut(ctx.par(), patches, depth, 1 + 4096 / depth, &|i, patch| {
                fill_patch(conv, lhs, group, first + i, patch);
            });
            let s = GemmShape {
                m,
                n: out_features,
                k: depth,
                trans_a: false,
                trans_b: false,
                lda: depth,
                ldb: conv.out_features,
                ldc: out_features,
            };
            let item = |_| BatchItem {
                a: 0,
                b: group * out_features,
                out: 0,
            };
            let to = &mut out_items[(group * rows + first) * out_features..][..m * out_features];
            T::products(ctx.par(), 1, &s, patches, rhs, to, &item)?;
        }
    }
    Ok(out)
}

/// Copies the elements that the window covers at a place of the output, with zeros for those outside.
fn fill_patch<T: MatMulElement>(conv: &Conv, lhs: &[T], group: usize, row: usize, patch: &mut [T]) {
    let n = conv.axes.len();
    let per_image: usize = conv.places.iter().product();
    let (image, place) = (row / per_image, row % per_image);
    let features = conv.features / conv.feature_groups;
    let (batch_group, feature_group) = match conv.batch_groups {
        1 => (0, group),
        _ => (group, 0),
    };
    let image = batch_group * (conv.batch / conv.batch_groups) + image;
    let mut at = [0; Shape::MAX_RANK];
    let mut coords = [0; Shape::MAX_RANK];
    unravel(place, &conv.places, &mut at[..n]);
    let mut windows = [0; Shape::MAX_RANK];
    for (window, axis) in windows.iter_mut().zip(&conv.axes) {
        *window = axis.window;
    }
    for (w, part) in patch.chunks_exact_mut(features).enumerate() {
        unravel(w, &windows[..n], &mut coords[..n]);
        let mut from = Some(image);
        for (i, axis) in conv.axes.iter().enumerate() {
            let element = axis.element(at[i], coords[i]);
            from = from.zip(element).map(|(from, i)| from * axis.size + i);
        }
        match from {
            Some(from) => {
                let from = from * conv.features + feature_group * features;
                part.copy_from_slice(&lhs[from..][..features]);
            }
            None => part.fill(T::ZERO),
        }
    }
}
