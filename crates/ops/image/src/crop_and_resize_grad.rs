//! CropAndResizeGradImage and CropAndResizeGradBoxes (TensorFlow:
//! `core/kernels/image/crop_and_resize_op.cc`).

use crate::crop_and_resize::{box_count, position};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{floats, narrowed};
use ferroflow_functors::indices;
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// CropAndResizeGradImage, CropAndResizeGradBoxes.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CropAndResizeGradImage",
        "grads: float, boxes: float, box_ind: int32, image_size: int32 -> output: T | \
         T: type {float,half,double}; method: string {'bilinear','nearest'} = \
         'bilinear'",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 4)?;
        ctx.with_rank(3, 1)?;
        let shape = match indices::constant(ctx, 3) {
            Some(size) if size.len() == 4 => indices::sizes(&size)?,
            _ => PartialShape::of_rank(4),
        };
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(by_image),
    Op::new(
        "CropAndResizeGradBoxes",
        "grads: float, image: T, boxes: float, box_ind: int32 -> output: float | T: \
         type {uint8,uint16,int8,int16,int32,int64,half,float,double}; method: string \
         {'bilinear'} = 'bilinear'",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 4)?;
        let boxes = ctx.with_rank(2, 2)?;
        ctx.set(0, boxes);
        Ok(())
    })
    .kernel(by_boxes),
];

/// The gradients of crops, their boxes, and the sizes of the images.
struct Crops<'a> {
    grads: &'a [f32],
    boxes: &'a [f32],
    /// The image of each box, if it exists.
    images: Vec<Option<usize>>,
    crop: [usize; 2],
    size: [usize; 2],
    channels: usize,
}

impl<'a> Crops<'a> {
    /// Reads the gradients (input 0) and the boxes (inputs `at` and `at + 1`).
    fn new(ctx: &'a KernelCtx, at: usize, image: &Shape) -> Result<Crops<'a>> {
        let (grads, of) = (ctx.shape(0)?, ctx.input(at + 1)?);
        let inside = |b: &i64| usize::try_from(*b).ok().filter(|&b| b < image[0]);
        Ok(Crops {
            grads: ctx.slice(0)?,
            boxes: ctx.slice(at)?,
            images: indices::ints(of)?.iter().map(inside).collect(),
            crop: [grads[1], grads[2]],
            size: [image[1], image[2]],
            channels: grads[3],
        })
    }

    /// Calls `f(box, its image, row and column of the crop, position in the image, gradients)` for
    /// the crops' pixels that are inside an image.
    fn each(&self, mut f: impl FnMut(usize, usize, [usize; 2], [f32; 2], &[f32])) {
        let c = self.channels;
        let corners = self.boxes.chunks_exact(4).zip(&self.images).enumerate();
        for (b, (corners, image)) in corners {
            let (&[y1, x1, y2, x2], Some(image)) = (corners, *image) else {
                continue;
            };
            for y in 0..self.crop[0] {
                let Some(v) = position(y, self.crop[0], y1, y2, self.size[0]) else {
                    continue;
                };
                for x in 0..self.crop[1] {
                    if let Some(h) = position(x, self.crop[1], x1, x2, self.size[1]) {
                        let at = ((b * self.crop[0] + y) * self.crop[1] + x) * c;
                        f(b, image, [y, x], [v, h], &self.grads[at..][..c]);
                    }
                }
            }
        }
    }
}

/// Checks the shape of the gradients.
fn check_grads(grads: &Shape) -> Result<()> {
    if grads.rank() != 4 {
        return Err(invalid_argument!("grads image must be 4-D{grads}"));
    }
    if grads[1] == 0 || grads[2] == 0 {
        return Err(invalid_argument!("grads dimensions must be positive"));
    }
    Ok(())
}

/// Checks that the boxes, in inputs `at` and `at + 1`, are as many as their gradients.
fn check_boxes(ctx: &KernelCtx, at: usize) -> Result<()> {
    if box_count(ctx.shape(at)?, ctx.shape(at + 1)?)? != ctx.shape(0)?[0] {
        return Err(invalid_argument!("boxes and grads have incompatible shape"));
    }
    Ok(())
}

/// Checks the sizes of images, and that their gradients have as many channels.
fn check_image(image: &Shape, grads: &Shape, unlike: &'static str) -> Result<()> {
    if image[1] == 0 || image[2] == 0 {
        return Err(invalid_argument!("image dimensions must be positive"));
    }
    if grads[3] != image[3] {
        return Err(invalid_argument!("{unlike}"));
    }
    Ok(())
}

fn by_image(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let nearest = build.attrs.str("method")? == "nearest";
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (grads, size) = (ctx.shape(0)?, ctx.input(3)?);
        check_grads(grads)?;
        check_boxes(ctx, 1)?;
        if size.shape().dims() != [4] {
            let must = if size.shape().rank() == 1 {
                "have 4 elements"
            } else {
                "be 1-D"
            };
            return Err(invalid_argument!("image_size must {must}{}", size.shape()));
        }
        let image = Shape::checked(&indices::ints(size)?)?;
        check_image(&image, grads, "image_size and grads are incompatible")?;
        let crops = Crops::new(ctx, 1, &image)?;
        let (width, c) = (image[2], image[3]);
        let per_image = image[1].saturating_mul(width.saturating_mul(c));
        let mut total = Tensor::zeros(DType::Double, image.clone())?;
        let sums = total.slice_mut::<f64>()?;
        crops.each(|_, n, _, [v, h], grads| {
            let mut add = |y: f32, x: f32, of_y: f32, of_x: f32| {
                let at = n * per_image + (y as usize * width + x as usize) * c;
                for (sum, g) in sums[at..][..c].iter_mut().zip(grads) {
                    *sum += (of_x * (of_y * g)) as f64;
                }
            };
            if nearest {
                return add(v.round(), h.round(), 1.0, 1.0);
            }
            let (dy, dx) = (v - v.floor(), h - h.floor());
            add(v.floor(), h.floor(), 1.0 - dy, 1.0 - dx);
            add(v.floor(), h.ceil(), 1.0 - dy, dx);
            add(v.ceil(), h.floor(), dy, 1.0 - dx);
            add(v.ceil(), h.ceil(), dy, dx);
        });
        let out = match dtype {
            DType::Double => total,
            _ => {
                let mut single = ctx.alloc(DType::Float, image)?;
                for (to, sum) in single.slice_mut::<f32>()?.iter_mut().zip(&*sums) {
                    *to = *sum as f32;
                }
                narrowed(ctx.par(), single, dtype)?
            }
        };
        ctx.set_output(0, out)
    }))
}

fn by_boxes(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let image = ctx.shape(1)?.clone();
        check_grads(ctx.shape(0)?)?;
        if image.rank() != 4 {
            return Err(invalid_argument!("input image must be 4-D{image}"));
        }
        check_image(&image, ctx.shape(0)?, "image, grads depth differ")?;
        check_boxes(ctx, 2)?;
        let crops = Crops::new(ctx, 2, &image)?;
        let (height, width, c) = (image[1], image[2], image[3]);
        let pixels = floats(ctx.par(), ctx.input(1)?)?;
        let pixels = pixels.slice::<f32>()?;
        let mut out = vec![0f32; crops.boxes.len()];
        // Derivative of the position in the image by the crop's position.
        let moved = |i: usize, n: usize, size: usize| match n {
            1 => [0.5 * (size - 1) as f32; 2],
            n => {
                let ratio = (size - 1) as f32 / (n - 1) as f32;
                [(size - 1) as f32 - i as f32 * ratio, i as f32 * ratio]
            }
        };
        crops.each(|b, n, [y, x], [v, h], grads| {
            let pixel = |y: f32, x: f32| {
                &pixels[((n * height + y as usize) * width + x as usize) * c..][..c]
            };
            let (dy, dx) = (v - v.floor(), h - h.floor());
            let (tl, tr) = (pixel(v.floor(), h.floor()), pixel(v.floor(), h.ceil()));
            let (bl, br) = (pixel(v.ceil(), h.floor()), pixel(v.ceil(), h.ceil()));
            let (mut by_y, mut by_x) = (0.0, 0.0);
            for (i, g) in grads.iter().enumerate() {
                by_y += g * ((1.0 - dx) * (bl[i] - tl[i]) + dx * (br[i] - tr[i]));
                by_x += g * ((1.0 - dy) * (tr[i] - tl[i]) + dy * (br[i] - bl[i]));
            }
            let [y1, y2] = moved(y, crops.crop[0], height);
            let [x1, x2] = moved(x, crops.crop[1], width);
            let to = out[4 * b..].iter_mut();
            for (o, d) in to.zip([by_y * y1, by_x * x1, by_y * y2, by_x * x2]) {
                *o += d;
            }
        });
        let shape = shape_of(&[crops.images.len(), 4])?;
        ctx.set_output(0, Tensor::from_slice(shape, &out)?)
    }))
}
