//! NonMaxSuppression, its versions 2 to 5, and NonMaxSuppressionWithOverlaps (TensorFlow:
//! `core/kernels/image/non_max_suppression_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::constant_int;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, f16};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// NonMaxSuppression, NonMaxSuppressionV2 to V5, NonMaxSuppressionWithOverlaps.
pub(crate) const OPS: &[Op] = &[
    op(
        "NonMaxSuppression",
        "boxes: float, scores: float, max_output_size: int32 -> selected_indices: int32 | \
         iou_threshold: float = 0.5",
    )
    .not_differentiable(),
    op(
        "NonMaxSuppressionV2",
        "boxes: T, scores: T, max_output_size: int32, iou_threshold: T_threshold -> \
         selected_indices: int32 | T: type {half,float} = float; T_threshold: type {half,float} \
         = float",
    )
    .not_differentiable(),
    op(
        "NonMaxSuppressionV3",
        "boxes: T, scores: T, max_output_size: int32, iou_threshold: T_threshold, \
         score_threshold: T_threshold -> selected_indices: int32 | T: type {half,float} = float; \
         T_threshold: type {half,float} = float",
    ),
    op(
        "NonMaxSuppressionV4",
        "boxes: T, scores: T, max_output_size: int32, iou_threshold: T_threshold, \
         score_threshold: T_threshold -> selected_indices: int32, valid_outputs: int32 | T: type \
         {half,float} = float; T_threshold: type {half,float} = float; pad_to_max_output_size: \
         bool = false",
    ),
    op(
        "NonMaxSuppressionV5",
        "boxes: T, scores: T, max_output_size: int32, iou_threshold: T, score_threshold: T, \
         soft_nms_sigma: T -> selected_indices: int32, selected_scores: T, valid_outputs: int32 \
         | T: type {half,float} = float; pad_to_max_output_size: bool = false",
    ),
    op(
        "NonMaxSuppressionWithOverlaps",
        "overlaps: float, scores: float, max_output_size: int32, overlap_threshold: float, \
         score_threshold: float -> selected_indices: int32 |",
    )
    .not_differentiable(),
];

const fn op(name: &'static str, signature: &'static str) -> Op {
    Op::new(name, signature)
        .shape(shape)
        .cost(Cost::Expensive)
        .kernel(build)
}

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (boxes, scores) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 1)?);
    for i in 2..ctx.num_inputs() {
        ctx.with_rank(i, 0)?;
    }
    let columns = match ctx.attrs().get("T").is_none() && ctx.num_inputs() == 5 {
        true => boxes.dim(0),
        false => Some(4),
    };
    for (a, b) in [(boxes.dim(0), scores.dim(0)), (boxes.dim(1), columns)] {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            return Err(invalid_argument!(
                "Dimensions must be equal, but are {a} and {b}"
            ));
        }
    }
    let last = ctx.num_outputs() - 1;
    let pads = last > 0 && ctx.attrs().bool("pad_to_max_output_size")?;
    let n = constant_int(ctx, 2).filter(|_| pads);
    let selected = PartialShape::of([n.and_then(|n| usize::try_from(n).ok())]);
    for i in 0..last.max(1) {
        ctx.set(i, selected.clone());
    }
    if last > 0 {
        ctx.set(last, PartialShape::scalar());
    }
    Ok(())
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let overlaps = build.def.name == "NonMaxSuppressionWithOverlaps";
    // TensorFlow's messages of version 3 are longer.
    let ranks = build.def.name == "NonMaxSuppressionV3";
    let threshold = match build.inputs.len() {
        3 => Some(build.attrs.float("iou_threshold")?),
        _ => None,
    };
    let pads = build.outputs.len() > 1 && build.attrs.bool("pad_to_max_output_size")?;
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if ranks {
            check_ranks(ctx)?;
        }
        let limits = Limits::new(ctx, threshold, overlaps)?;
        let n = box_count(ctx, overlaps)?;
        let scores = values(ctx.input(1)?)?;
        if limits.size < 0 {
            return Err(invalid_argument!("output size must be non-negative"));
        }
        let size = limits.size as usize;
        let round = rounding(dtype);
        let selected = match overlaps {
            true => {
                let overlaps = ctx.slice::<f32>(0)?;
                select(&scores, size, &limits, round, |i, j| overlaps[i * n + j])
            }
            false => {
                let boxes = values(ctx.input(0)?)?;
                let boxes: Vec<Area> = boxes.as_chunks().0.iter().map(Area::new).collect();
                select(&scores, size, &limits, round, |i, j| {
                    boxes[i].iou(&boxes[j])
                })
            }
        };
        set_outputs(
            ctx,
            &selected,
            if pads { size } else { selected.len() },
            dtype,
        )
    }))
}

fn set_outputs(
    ctx: &mut KernelCtx,
    selected: &[(usize, f32)],
    size: usize,
    dtype: DType,
) -> Result<()> {
    let mut indices = Tensor::zeros(DType::Int32, Shape::from([size]))?;
    for (to, (index, _)) in indices.slice_mut::<i32>()?.iter_mut().zip(selected) {
        *to = *index as i32;
    }
    ctx.set_output(0, indices)?;
    if ctx.num_outputs() == 3 {
        let mut scores = Tensor::zeros(DType::Float, Shape::from([size]))?;
        for (to, (_, score)) in scores.slice_mut::<f32>()?.iter_mut().zip(selected) {
            *to = *score;
        }
        let scores = ferroflow_functors::half_conversion::narrowed(ctx.par(), scores, dtype)?;
        ctx.set_output(1, scores)?;
    }
    match ctx.num_outputs() {
        1 => Ok(()),
        n => ctx.set_output(n - 1, Tensor::scalar(selected.len() as i32)),
    }
}

/// Returns rounding to a dtype.
fn rounding(dtype: DType) -> fn(f32) -> f32 {
    match dtype {
        DType::Half => |x| f16::from_f32(x).to_f32(),
        _ => |x| x,
    }
}

/// Returns the elements of a `half` or `float` tensor.
fn values(t: &Tensor) -> Result<Vec<f32>> {
    match t.dtype() {
        DType::Half => Ok(t.slice::<f16>()?.iter().map(|x| x.to_f32()).collect()),
        _ => Ok(t.slice::<f32>()?.to_vec()),
    }
}

/// What limits the selection.
struct Limits {
    size: i32,
    /// The highest similarity of two selected boxes.
    similarity: f32,
    /// Boxes with lower scores are not selected.
    score: f32,
    /// The sigma of soft suppression, if positive.
    sigma: f32,
}

impl Limits {
    /// Reads the inputs from `max_output_size` on.
    fn new(ctx: &KernelCtx, threshold: Option<f32>, overlaps: bool) -> Result<Limits> {
        let dtype = ctx.input(0)?.dtype();
        let size = scalar_input(ctx, 2, "max_output_size")?.to_scalar::<i32>()?;
        let number = |i: usize, name: &str| -> Result<f32> {
            let value = values(scalar_input(ctx, i, name)?)?;
            // Thresholds of another dtype are converted to that of the boxes.
            Ok(rounding(dtype)(value.first().copied().unwrap_or(0.0)))
        };
        let name = if overlaps {
            "overlap_threshold"
        } else {
            "iou_threshold"
        };
        let similarity = match threshold {
            Some(threshold) => threshold,
            None => number(3, name)?,
        };
        if !overlaps && !(0.0..=1.0).contains(&similarity) {
            return Err(invalid_argument!("iou_threshold must be in [0, 1]"));
        }
        let n = ctx.num_inputs();
        let lowest = match dtype {
            DType::Half => f16::MIN.to_f32(),
            _ => f32::MIN,
        };
        let score = if n > 4 {
            number(4, "score_threshold")?
        } else {
            lowest
        };
        let sigma = if n > 5 {
            number(5, "soft_nms_sigma")?
        } else {
            0.0
        };
        if sigma < 0.0 || sigma.is_nan() {
            return Err(invalid_argument!("soft_nms_sigma_val must be >= 0"));
        }
        Ok(Limits {
            size,
            similarity,
            score,
            sigma,
        })
    }
}

fn check_ranks(ctx: &KernelCtx) -> Result<()> {
    for (i, name) in [(2, "max_output_size"), (3, "iou_threshold")] {
        let shape = ctx.shape(i)?;
        if !shape.is_scalar() {
            return Err(invalid_argument!(
                "{name} must be 0-D, got shape {shape} (Shape must be rank 0 but is rank {})",
                shape.rank()
            ));
        }
    }
    Ok(())
}

/// Returns input `i`, which must be a scalar.
pub(crate) fn scalar_input<'a>(ctx: &'a KernelCtx, i: usize, name: &str) -> Result<&'a Tensor> {
    let value = ctx.input(i)?;
    match value.shape().is_scalar() {
        true => Ok(value),
        false => Err(invalid_argument!(
            "{name} must be 0-D, got shape {}",
            value.shape()
        )),
    }
}

/// Returns the number of boxes, after checking the shapes of the boxes and scores.
fn box_count(ctx: &KernelCtx, overlaps: bool) -> Result<usize> {
    let (boxes, scores) = (ctx.shape(0)?, ctx.shape(1)?);
    let n = match (boxes.dims(), overlaps) {
        (&[n, columns], true) if n == columns => n,
        (&[_, _], true) => {
            return Err(invalid_argument!("overlaps must be square{boxes}"));
        }
        (_, true) => return Err(invalid_argument!("overlaps must be 2-D{boxes}")),
        (&[n, 4], false) => n,
        (&[_, columns], false) => {
            return Err(invalid_argument!(
                "boxes must have 4 columns (Dimension must be 4 but is {columns})"
            ));
        }
        (dims, false) => {
            return Err(invalid_argument!(
                "boxes must be 2-D{boxes} (Shape must be rank 2 but is rank {})",
                dims.len()
            ));
        }
    };
    match scores.dims() {
        &[m] if m == n => Ok(n),
        &[m] => Err(invalid_argument!(
            "scores has incompatible shape (Dimensions must be equal, but are {n} and {m})"
        )),
        dims => Err(invalid_argument!(
            "scores must be 1-D{scores} (Shape must be rank 1 but is rank {})",
            dims.len()
        )),
    }
}

/// A box with ordered corners and its area.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    top: f32,
    left: f32,
    bottom: f32,
    right: f32,
    area: f32,
}

impl Area {
    /// Creates the box with two opposite corners, `y1, x1, y2, x2`.
    pub(crate) fn new(&[y1, x1, y2, x2]: &[f32; 4]) -> Area {
        let (top, bottom) = (y1.min(y2), y1.max(y2));
        let (left, right) = (x1.min(x2), x1.max(x2));
        let area = (bottom - top) * (right - left);
        Area {
            top,
            left,
            bottom,
            right,
            area,
        }
    }

    /// Returns the area of the intersection divided by that of the union.
    #[inline]
    pub(crate) fn iou(&self, other: &Area) -> f32 {
        if self.area <= 0.0 || other.area <= 0.0 {
            return 0.0;
        }
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        let width = self.right.min(other.right) - self.left.max(other.left);
        let common = height.max(0.0) * width.max(0.0);
        common / (self.area + other.area - common)
    }
}

/// A box that may be selected.
struct Candidate {
    index: usize,
    score: f32,
    /// How many of the selected boxes it was compared with.
    compared: usize,
}

impl Ord for Candidate {
    /// The higher score is first, then the lower index.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then(other.index.cmp(&self.index))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// Returns indices and scores of the selected boxes.
fn select(
    scores: &[f32],
    size: usize,
    limits: &Limits,
    round: fn(f32) -> f32,
    similarity: impl Fn(usize, usize) -> f32,
) -> Vec<(usize, f32)> {
    let is_soft = limits.sigma > 0.0;
    let scale = if is_soft {
        round(-0.5 / limits.sigma)
    } else {
        0.0
    };
    let candidates = scores
        .iter()
        .enumerate()
        .filter(|(_, s)| **s > limits.score);
    let mut queue: BinaryHeap<Candidate> = candidates
        // Zeros of both signs are equal.
        .map(|(index, score)| Candidate {
            index,
            score: score + 0.0,
            compared: 0,
        })
        .collect();
    let mut selected: Vec<(usize, f32)> = Vec::new();
    while selected.len() < size
        && let Some(mut next) = queue.pop()
    {
        let before = next.score;
        let mut suppressed = false;
        for &(other, _) in selected[next.compared..].iter().rev() {
            let similar = round(similarity(next.index, other));
            if !is_soft && similar > limits.similarity {
                suppressed = true;
                break;
            }
            if is_soft || similar.is_nan() {
                let weight = match is_soft {
                    true => round(round(round(scale * similar) * similar).exp()),
                    false => 0.0,
                };
                next.score = round(next.score * weight);
            }
            if next.score <= limits.score {
                break;
            }
        }
        next.compared = selected.len();
        if suppressed {
            continue;
        }
        if next.score == before {
            selected.push((next.index, next.score));
        } else if next.score > limits.score {
            queue.push(next);
        }
    }
    selected
}
