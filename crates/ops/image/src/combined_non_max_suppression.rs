//! CombinedNonMaxSuppression: suppression for each class, then the best boxes of all classes
//! (TensorFlow: `core/kernels/image/non_max_suppression_op.cc`).

use crate::non_max_suppression::{Area, scalar_input};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant_int, shape_of};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// CombinedNonMaxSuppression.
pub(crate) const OPS: &[Op] = &[Op::new(
    "CombinedNonMaxSuppression",
    "boxes: float, scores: float, max_output_size_per_class: int32, max_total_size: int32, \
     iou_threshold: float, score_threshold: float -> nmsed_boxes: float, nmsed_scores: float, \
     nmsed_classes: float, valid_detections: int32 | pad_per_class: bool = false; clip_boxes: \
     bool = true",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(build)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (boxes, scores) = (ctx.with_rank(0, 4)?, ctx.with_rank(1, 3)?);
    for i in 2..6 {
        ctx.with_rank(i, 0)?;
    }
    let pairs = [
        (boxes.dim(0), scores.dim(0)),
        (boxes.dim(1), scores.dim(1)),
        (boxes.dim(3), Some(4)),
    ];
    for (a, b) in pairs {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            return Err(invalid_argument!(
                "Dimensions must be equal, but are {a} and {b}"
            ));
        }
    }
    if let (Some(q), Some(classes)) = (boxes.dim(2), scores.dim(2))
        && q != 1
        && q != classes
    {
        return Err(invalid_argument!(
            "third dimension of boxes must be either 1 or equal to the third dimension of scores"
        ));
    }
    let total = constant_int(ctx, 3).map(|n| usize::try_from(n).unwrap_or(0));
    if total == Some(0) {
        return Err(invalid_argument!("max_total_size should be > 0 "));
    }
    let mut size = total;
    if ctx.attrs().bool("pad_per_class")? {
        let per_class = constant_int(ctx, 2).map(|n| usize::try_from(n).unwrap_or(0));
        if per_class == Some(0) {
            return Err(invalid_argument!(
                "max_output_size_per_class must be > 0 if pad_per_class is set to true "
            ));
        }
        let all = per_class.zip(scores.dim(2));
        let all = all.map(|(n, classes)| n.saturating_mul(classes));
        size = total.zip(all).map(|(a, b)| a.min(b));
    }
    let batch = boxes.dim(0).or(scores.dim(0));
    ctx.set(0, PartialShape::of([batch, size, Some(4)]));
    ctx.set(1, PartialShape::of([batch, size]));
    ctx.set(2, PartialShape::of([batch, size]));
    ctx.set(3, PartialShape::of([batch]));
    Ok(())
}

/// The sizes of the inputs and what limits the selection.
struct Limits {
    batch: usize,
    boxes: usize,
    /// Boxes at each position: 1 or one for each class.
    q: usize,
    classes: usize,
    per_class: usize,
    total: usize,
    iou: f32,
    score: f32,
}

impl Limits {
    fn new(ctx: &KernelCtx) -> Result<Limits> {
        let (boxes, scores) = (ctx.shape(0)?, ctx.shape(1)?);
        if boxes.rank() == 0 || boxes.first() != scores.first() {
            return Err(invalid_argument!(
                "boxes and scores must have same batch size"
            ));
        }
        let per_class = scalar_input(ctx, 2, "max_size_per_class")?.to_scalar::<i32>()?;
        if per_class <= 0 {
            return Err(invalid_argument!("max_size_per_class must be positive"));
        }
        let total = scalar_input(ctx, 3, "max_total_size")?.to_scalar::<i32>()?;
        if total <= 0 {
            return Err(invalid_argument!("max_total_size must be > 0"));
        }
        let iou = scalar_input(ctx, 4, "iou_threshold")?.to_scalar::<f32>()?;
        let score = scalar_input(ctx, 5, "score_threshold")?.to_scalar::<f32>()?;
        if !(0.0..=1.0).contains(&iou) {
            return Err(invalid_argument!("iou_threshold must be in [0, 1]"));
        }
        let &[batch, n, q, columns] = boxes.dims() else {
            return Err(invalid_argument!("boxes must be 4-D{boxes}"));
        };
        if q != 1 && scores.get(2) != Some(&q) {
            return Err(invalid_argument!(
                "third dimension of boxes must be either 1 or num classes"
            ));
        }
        if columns != 4 {
            return Err(invalid_argument!("boxes must have 4 columns"));
        }
        let &[_, score_boxes, classes] = scores.dims() else {
            return Err(invalid_argument!("scores must be 3-D{scores}"));
        };
        if score_boxes != n {
            return Err(invalid_argument!("scores has incompatible shape"));
        }
        Ok(Limits {
            batch,
            boxes: n,
            q,
            classes,
            per_class: per_class as usize,
            total: total as usize,
            iou,
            score,
        })
    }
}

/// A selected box.
#[derive(Clone, Copy)]
struct Detection {
    score: f32,
    class: usize,
    corners: [f32; 4],
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let pads = build.attrs.bool("pad_per_class")?;
    let clips = build.attrs.bool("clip_boxes")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let limits = Limits::new(ctx)?;
        let (boxes, scores) = (ctx.slice::<f32>(0)?, ctx.slice::<f32>(1)?);
        let mut classes = vec![Vec::new(); limits.batch * limits.classes];
        par_chunks_mut(ctx.par(), &mut classes, 1, 1, &|i, selected| {
            let (b, class) = (i / limits.classes, i % limits.classes);
            let boxes = &boxes[b * limits.boxes * limits.q * 4..];
            let scores = &scores[b * limits.boxes * limits.classes..];
            selected[0] = select(&limits, boxes, scores, class);
        });
        let size = match pads {
            true => limits
                .total
                .min(limits.per_class.saturating_mul(limits.classes)),
            false => limits.total,
        };
        let shape = shape_of([limits.batch, size])?;
        let mut out = Outputs {
            boxes: Tensor::zeros(DType::Float, shape_of([limits.batch, size, 4])?)?,
            scores: Tensor::zeros(DType::Float, shape.clone())?,
            classes: Tensor::zeros(DType::Float, shape)?,
            counts: Vec::with_capacity(limits.batch),
        };
        for b in 0..limits.batch {
            let all = &classes[b * limits.classes..][..limits.classes];
            out.add(&best(&limits, all, size), b * size, clips)?;
        }
        ctx.set_output(0, out.boxes)?;
        ctx.set_output(1, out.scores)?;
        ctx.set_output(2, out.classes)?;
        ctx.set_output(3, Tensor::vector(&out.counts)?)
    }))
}

/// Returns the boxes selected for a class, best first.
fn select(limits: &Limits, boxes: &[f32], scores: &[f32], class: usize) -> Vec<Detection> {
    let scores = scores.iter().skip(class).step_by(limits.classes);
    let mut candidates: Vec<(usize, f32)> = scores
        .copied()
        .take(limits.boxes)
        .enumerate()
        .filter(|(_, score)| *score > limits.score)
        .collect();
    candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
    let offset = if limits.q > 1 { class } else { 0 };
    let boxes = boxes.as_chunks::<4>().0;
    let (mut areas, mut selected) = (Vec::<Area>::new(), Vec::new());
    for (i, score) in candidates {
        if selected.len() >= limits.per_class {
            break;
        }
        let corners = boxes[i * limits.q + offset];
        let area = Area::new(&corners);
        if !areas.iter().rev().any(|a| area.iou(a) > limits.iou) {
            areas.push(area);
            selected.push(Detection {
                score,
                class,
                corners,
            });
        }
    }
    selected
}

/// Returns the best of all classes. TensorFlow fills each class with entries of score -1, which
/// precede boxes of lower scores.
fn best(limits: &Limits, classes: &[Vec<Detection>], size: usize) -> Vec<Detection> {
    let mut all: Vec<Detection> = classes.iter().flatten().copied().collect();
    let n = all.len();
    let slots = limits.per_class.min(limits.boxes) * limits.classes;
    if all.iter().any(|d| d.score < -1.0) {
        let filler = Detection {
            score: -1.0,
            class: usize::MAX,
            corners: [0.0; 4],
        };
        all.resize(n + (slots - n).min(n), filler);
    }
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all.truncate(n.min(size));
    all
}

struct Outputs {
    boxes: Tensor,
    scores: Tensor,
    classes: Tensor,
    counts: Vec<i32>,
}

impl Outputs {
    /// Adds the detections of an image at position `at`.
    fn add(&mut self, detections: &[Detection], at: usize, clips: bool) -> Result<()> {
        let boxes = self.boxes.slice_mut::<f32>()?.as_chunks_mut::<4>().0;
        let scores = self.scores.slice_mut::<f32>()?;
        let classes = self.classes.slice_mut::<f32>()?;
        for (i, d) in detections.iter().enumerate() {
            boxes[at + i] = match clips {
                true => d.corners.map(|x| x.clamp(0.0, 1.0)),
                false => d.corners,
            };
            scores[at + i] = d.score;
            classes[at + i] = match d.class {
                usize::MAX => -1.0,
                class => class as f32,
            };
        }
        self.counts.push(detections.len() as i32);
        Ok(())
    }
}
