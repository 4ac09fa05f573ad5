//! CropAndResize (TensorFlow: `core/kernels/image/crop_and_resize_op.cc`).

use crate::resize::{Lerp, widen};
use ferroflow_base::{Result, invalid_argument, out_of_range};
use ferroflow_functors::half_conversion::floats;
use ferroflow_functors::indices;
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape, Shape};
use std::ops::Range;

/// CropAndResize.
pub(crate) const OPS: &[Op] = &[Op::new(
    "CropAndResize",
    "image: T, boxes: float, box_ind: int32, crop_size: int32 -> crops: float | T: \
         type {uint8,uint16,int8,int16,int32,int64,half,float,double}; method: string \
         {'bilinear','nearest'} = 'bilinear'; extrapolation_value: float = 0.0",
)
.shape(shape)
.kernel(build)
.gradient(gradient)];

/// The gradient by the boxes is that of bilinear interpolation for all methods, as in TensorFlow.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (image, boxes, index, d) = (g.x(0), g.x(1), g.x(2), g.dy(0));
    if g.needs(0) {
        let attrs = [g.attr("T"), g.attr("method")];
        let inputs = [boxes, index, image.shape_of()];
        g.set(0, d.op_with("CropAndResizeGradImage", &inputs, &attrs))?;
    }
    if g.needs(1) {
        g.set(1, d.op("CropAndResizeGradBoxes", &[image, boxes, index]))?;
    }
    Ok(())
}

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let image = ctx.with_rank(0, 4)?;
    let boxes = ctx.with_rank(1, 2)?;
    let box_ind = ctx.with_rank(2, 1)?;
    let size = ctx.with_rank(3, 1)?;
    let n = match (boxes.dim(0), box_ind.dim(0)) {
        (Some(a), Some(b)) if a != b => {
            return Err(invalid_argument!(
                "Dimensions must be equal, but are {a} and {b}"
            ));
        }
        (a, b) => a.or(b),
    };
    for (dim, expected) in [(boxes.dim(1), 4), (size.dim(0), 2)] {
        if let Some(d) = dim
            && d != expected
        {
            return Err(invalid_argument!("Dimension must be {expected} but is {d}"));
        }
    }
    let size = indices::constant(ctx, 3).filter(|s| s.len() == 2);
    let at = |i: usize| size.as_ref().and_then(|s| usize::try_from(s[i]).ok());
    ctx.set(0, PartialShape::of([n, at(0), at(1), image.dim(3)]));
    Ok(())
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let nearest = build.attrs.str("method")? == "nearest";
    let outside = build.attrs.float("extrapolation_value")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        compute(ctx, nearest, outside)
    }))
}

/// Returns the coordinate of output position `i` of `n` on an axis of `size`, for a box from `a` to
/// `b`.
#[inline(always)]
pub(crate) fn position(i: usize, n: usize, a: f32, b: f32, size: usize) -> Option<f32> {
    let last = (size - 1) as f32;
    let at = if n > 1 {
        a * last + i as f32 * ((b - a) * last / (n - 1) as f32)
    } else {
        0.5 * (a + b) * last
    };
    (at >= 0.0 && at <= last).then_some(at)
}

/// Checks the shapes of boxes and the indices of their images, and returns how many there are.
pub(crate) fn box_count(boxes: &Shape, indices: &Shape) -> Result<usize> {
    if boxes.num_elements() == 0 && indices.num_elements() == 0 {
        return Ok(0);
    }
    if boxes.rank() != 2 {
        return Err(invalid_argument!("boxes must be 2-D{boxes}"));
    }
    if boxes[1] != 4 {
        return Err(invalid_argument!("boxes must have 4 columns"));
    }
    if indices.rank() != 1 {
        return Err(invalid_argument!("box_index must be 1-D{indices}"));
    }
    if indices[0] != boxes[0] {
        return Err(invalid_argument!("box_index has incompatible shape"));
    }
    Ok(boxes[0])
}

fn compute(ctx: &mut KernelCtx, nearest: bool, outside: f32) -> Result<()> {
    let (image, boxes, size) = (ctx.shape(0)?, ctx.shape(1)?, ctx.input(3)?);
    if image.rank() != 4 {
        return Err(invalid_argument!("input image must be 4-D{image}"));
    }
    let (batch, height, width, c) = (image[0], image[1], image[2], image[3]);
    if height == 0 || width == 0 {
        return Err(invalid_argument!("image dimensions must be positive"));
    }
    if boxes.rank() != 2 {
        return Err(invalid_argument!("boxes must be 2-D, got: {boxes}"));
    }
    if ctx.shape(2)?.rank() != 1 {
        return Err(invalid_argument!(
            "box_indices must be rank 1 but is shape {}",
            ctx.shape(2)?
        ));
    }
    let n = box_count(boxes, ctx.shape(2)?)?;
    let is_vector = size.shape().rank() == 1;
    if !is_vector || size.num_elements() != 2 {
        let must = if is_vector {
            "have two elements"
        } else {
            "be 1-D"
        };
        return Err(invalid_argument!("crop_size must {must}{}", size.shape()));
    }
    let size = indices::ints(size)?;
    if size[0] <= 0 || size[1] <= 0 {
        return Err(invalid_argument!("crop dimensions must be positive"));
    }
    let (crop_h, crop_w) = (size[0] as usize, size[1] as usize);
    let indices = indices::ints(ctx.input(2)?)?;
    if indices.iter().any(|&b| b < 0 || b as u64 >= batch as u64) {
        return Err(out_of_range!(
            "box_index has values outside [0, batch_size)"
        ));
    }
    let image = floats(ctx.par(), ctx.input(0)?)?;
    let mut out = ctx.alloc(DType::Float, shape_of(&[n, crop_h, crop_w, c])?)?;
    if out.num_elements() == 0 {
        return ctx.set_output(0, out);
    }
    let crops = Crops {
        image: image.slice::<f32>()?,
        size: [height, width],
        channels: c,
        first: indices.iter().map(|&b| b as usize * height).collect(),
        boxes: ctx.slice::<f32>(1)?.as_chunks().0,
        crop: [crop_h, crop_w],
        outside,
    };
    let len = crop_w * c;
    let rows = (MIN_TASK / len).max(1);
    par_chunks_mut(
        ctx.par(),
        out.slice_mut::<f32>()?,
        rows * len,
        1,
        &|i, out| {
            vectorized(
                #[inline(always)]
                || match nearest {
                    true => crops.nearest(i * rows, out),
                    false => crops.interpolated(i * rows, out),
                },
            );
        },
    );
    ctx.set_output(0, out)
}

/// Least output elements per task.
const MIN_TASK: usize = 8 * 1024;

/// What crops are made of. Their rows are numbered over all boxes.
struct Crops<'a> {
    image: &'a [f32],
    /// Height and width of the images.
    size: [usize; 2],
    channels: usize,
    /// For each box, the first line of its image, over all images.
    first: Vec<usize>,
    boxes: &'a [[f32; 4]],
    /// Height and width of the crops.
    crop: [usize; 2],
    outside: f32,
}

/// Positions on a line of the image for the columns of a crop, of which those of a range are inside.
#[derive(Default)]
struct Columns {
    /// The box; `None` for none yet.
    of: Option<usize>,
    inside: Range<usize>,
    at: Vec<Lerp>,
}

impl Crops<'_> {
    /// Returns box and position of row `i`; no position if it is outside.
    #[inline(always)]
    fn row(&self, i: usize) -> (usize, Option<f32>) {
        let (which, y) = (i / self.crop[0], i % self.crop[0]);
        let [y1, _, y2, _] = self.boxes[which];
        (which, position(y, self.crop[0], y1, y2, self.size[0]))
    }

    fn line(&self, which: usize, y: usize) -> &[f32] {
        let len = self.size[1] * self.channels;
        &self.image[(self.first[which] + y) * len..][..len]
    }

    /// Finds the positions of a box's columns; returns whether it was another box before.
    #[inline(always)]
    fn find(&self, which: usize, columns: &mut Columns) -> bool {
        if columns.of == Some(which) {
            return false;
        }
        columns.of = Some(which);
        let [_, x1, _, x2] = self.boxes[which];
        let n = self.crop[1];
        let at = |x: usize| position(x, n, x1, x2, self.size[1]);
        // They move in one direction, so those inside follow each other.
        let start = (0..n).find(|&x| at(x).is_some()).unwrap_or(n);
        columns.at.clear();
        columns.at.extend((start..n).map_while(at).map(|x| Lerp {
            lower: x.floor() as usize,
            upper: x.ceil() as usize,
            weight: x - x.floor(),
        }));
        columns.inside = start..start + columns.at.len();
        true
    }

    /// Computes whole rows from row `first` on.
    #[inline(always)]
    fn interpolated(&self, first: usize, out: &mut [f32]) {
        let (c, len) = (self.channels, self.crop[1] * self.channels);
        let mut columns = Columns::default();
        let none = (usize::MAX, vec![0.0; len]);
        // Lines of the image as wide as the crop: neighboring rows often have the same ones.
        let mut kept = [none.clone(), none];
        for (i, out) in (first..).zip(out.chunks_exact_mut(len)) {
            let (which, Some(v)) = self.row(i) else {
                out.fill(self.outside);
                continue;
            };
            if self.find(which, &mut columns) {
                kept.iter_mut().for_each(|(line, _)| *line = usize::MAX);
            }
            let (top, bottom, weight) = (v.floor() as usize, v.ceil() as usize, v - v.floor());
            if kept[0].0 != top {
                kept.swap(0, 1);
            }
            for ((line, values), y) in kept.iter_mut().zip([top, bottom]) {
                if *line != y {
                    *line = y;
                    widen(self.line(which, y), c, &columns.at, values);
                }
            }
            let (before, rest) = out.split_at_mut(columns.inside.start * c);
            let (inside, after) = rest.split_at_mut(columns.inside.len() * c);
            before.fill(self.outside);
            after.fill(self.outside);
            let [(_, top), (_, bottom)] = &kept;
            for ((out, top), bottom) in inside.iter_mut().zip(top).zip(bottom) {
                *out = top + (bottom - top) * weight;
            }
        }
    }

    /// Copies whole rows from row `first` on.
    #[inline(always)]
    fn nearest(&self, first: usize, out: &mut [f32]) {
        let c = self.channels;
        for (i, out) in (first..).zip(out.chunks_exact_mut(self.crop[1] * c)) {
            let (which, Some(v)) = self.row(i) else {
                out.fill(self.outside);
                continue;
            };
            let [_, x1, _, x2] = self.boxes[which];
            let line = self.line(which, v.round() as usize);
            for (x, out) in out.chunks_exact_mut(c).enumerate() {
                match position(x, self.crop[1], x1, x2, self.size[1]) {
                    Some(h) => out.copy_from_slice(&line[h.round() as usize * c..][..c]),
                    None => out.fill(self.outside),
                }
            }
        }
    }
}
