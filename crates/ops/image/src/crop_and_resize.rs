//! CropAndResize (TensorFlow: `core/kernels/image/crop_and_resize_op.cc`).

use ferroflow_base::{Result, invalid_argument, out_of_range};
use ferroflow_functors::half_conversion::floats;
use ferroflow_functors::indices;
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape};

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

fn compute(ctx: &mut KernelCtx, nearest: bool, outside: f32) -> Result<()> {
    let (image, boxes, size) = (ctx.shape(0)?, ctx.shape(1)?, ctx.input(3)?);
    if image.rank() != 4 {
        return Err(invalid_argument!("input image must be 4-D"));
    }
    let (batch, height, width, c) = (image[0], image[1], image[2], image[3]);
    if height == 0 || width == 0 {
        return Err(invalid_argument!("image dimensions must be positive"));
    }
    if boxes.rank() != 2 || boxes[1] != 4 {
        return Err(invalid_argument!(
            "boxes must be 2-D with 4 columns, got {boxes}"
        ));
    }
    let n = boxes[0];
    if ctx.shape(2)?.rank() != 1 || ctx.shape(2)?[0] != n {
        return Err(invalid_argument!("box_index has incompatible shape"));
    }
    if size.shape().rank() != 1 || size.num_elements() != 2 {
        return Err(invalid_argument!(
            "crop_size must have two elements {}",
            size.shape()
        ));
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
    let (image, boxes) = (image.slice::<f32>()?, ctx.slice::<f32>(1)?);
    let mut out = ctx.alloc(DType::Float, shape_of(&[n, crop_h, crop_w, c])?)?;
    let group = (4096 / (crop_w * c).max(1)).max(1);
    par_chunks_mut(
        ctx.par(),
        out.slice_mut::<f32>()?,
        crop_w * c,
        group,
        &|i, row| {
            let (b, y) = (i / crop_h, i % crop_h);
            let [y1, x1, y2, x2] = [0, 1, 2, 3].map(|k| boxes[4 * b + k]);
            let base = indices[b] as usize * height;
            let pixel = |y: usize, x: usize| &image[((base + y) * width + x) * c..][..c];
            let Some(v) = position(y, crop_h, y1, y2, height) else {
                return row.fill(outside);
            };
            vectorized(
                #[inline(always)]
                || {
                    for (x, out) in row.chunks_exact_mut(c).enumerate() {
                        let Some(h) = position(x, crop_w, x1, x2, width) else {
                            out.fill(outside);
                            continue;
                        };
                        if nearest {
                            out.copy_from_slice(pixel(v.round() as usize, h.round() as usize));
                            continue;
                        }
                        let (top, bottom) = (v.floor() as usize, v.ceil() as usize);
                        let (left, right) = (h.floor() as usize, h.ceil() as usize);
                        let (dy, dx) = (v - v.floor(), h - h.floor());
                        let (tl, tr) = (pixel(top, left), pixel(top, right));
                        let (bl, br) = (pixel(bottom, left), pixel(bottom, right));
                        for (i, o) in out.iter_mut().enumerate() {
                            let top = tl[i] + (tr[i] - tl[i]) * dx;
                            let bottom = bl[i] + (br[i] - bl[i]) * dx;
                            *o = top + (bottom - top) * dy;
                        }
                    }
                },
            );
        },
    );
    ctx.set_output(0, out)
}
