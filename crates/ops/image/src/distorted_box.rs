//! SampleDistortedBoundingBox: random crops that cover an object (TensorFlow:
//! `core/kernels/image/sample_distorted_bounding_box_op.cc`).

use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::indices::{Index, ints};
use ferroflow_functors::random_stream::NodeRandom;
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, PartialShape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SampleDistortedBoundingBox",
        "image_size: T, bounding_boxes: float -> begin: T, size: T, bboxes: float | T: type \
         {uint8,int8,int16,int32,int64}; seed: int = 0; seed2: int = 0; min_object_covered: float \
         = 0.1; aspect_ratio_range: list(float) = [0.75,1.33]; area_range: list(float) = \
         [0.05,1.0]; max_attempts: int = 100; use_image_if_no_bounding_boxes: bool = false | \
         stateful",
    )
    .shape(shape)
    .kernel(stateful)
    .not_differentiable(),
    Op::new(
        "SampleDistortedBoundingBoxV2",
        "image_size: T, bounding_boxes: float, min_object_covered: float -> begin: T, size: T, \
         bboxes: float | T: type {uint8,int8,int16,int32,int64}; seed: int = 0; seed2: int = 0; \
         aspect_ratio_range: list(float) = [0.75,1.33]; area_range: list(float) = [0.05,1.0]; \
         max_attempts: int = 100; use_image_if_no_bounding_boxes: bool = false | stateful",
    )
    .shape(shape)
    .kernel(stateful)
    .not_differentiable(),
    Op::new(
        "StatelessSampleDistortedBoundingBox",
        "image_size: T, bounding_boxes: float, min_object_covered: float, seed: Tseed -> begin: \
         T, size: T, bboxes: float | T: type {uint8,int8,int16,int32,int64}; Tseed: type \
         {int32,int64}; aspect_ratio_range: list(float) = [0.75,1.33]; area_range: list(float) = \
         [0.05,1.0]; max_attempts: int = 100; use_image_if_no_bounding_boxes: bool = false",
    )
    .shape(shape)
    .kernel(stateless),
];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let size = ctx.with_rank(0, 1)?;
    ctx.merge(&size, &PartialShape::of([Some(3)]))?;
    let boxes = ctx.with_rank(1, 3)?;
    if let Some(n) = boxes.dim(2)
        && n != 4
    {
        return Err(invalid_argument!("Dimension must be 4 but is {n}"));
    }
    if ctx.num_inputs() > 2 {
        ctx.with_rank(2, 0)?;
    }
    ctx.set(0, PartialShape::of([Some(3)]));
    ctx.set(1, PartialShape::of([Some(3)]));
    ctx.set(2, PartialShape::of([Some(1), Some(1), Some(4)]));
    Ok(())
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Rectangle {
    x: [i32; 2],
    y: [i32; 2],
}

impl Rectangle {
    fn area(self) -> f32 {
        let width = self.x[1].wrapping_sub(self.x[0]);
        width.wrapping_mul(self.y[1].wrapping_sub(self.y[0])) as f32
    }

    fn common(self, o: Rectangle) -> Rectangle {
        let side = |a: [i32; 2], b: [i32; 2]| [a[0].max(b[0]), a[1].min(b[1])];
        let both = Rectangle {
            x: side(self.x, o.x),
            y: side(self.y, o.y),
        };
        match both.x[0] > both.x[1] || both.y[0] > both.y[1] {
            true => Rectangle::default(),
            false => both,
        }
    }
}

/// The attrs.
struct Spec {
    /// `None` if it is an input.
    covered: Option<f32>,
    whole: bool,
    aspects: [f32; 2],
    areas: [f32; 2],
    attempts: i64,
}

impl Spec {
    fn of(attrs: &Attrs) -> Result<Spec> {
        let covered = match attrs.get("min_object_covered") {
            Some(_) => Some(attrs.float("min_object_covered")?),
            None => None,
        };
        if let Some(covered) = covered {
            check_covered(covered)?;
        }
        let aspects = attrs.floats("aspect_ratio_range")?;
        let &[low, high] = &aspects[..] else {
            return Err(invalid_argument!(
                "Aspect ratio range field must specify 2 dimensions"
            ));
        };
        if !(low > 0.0 && high > 0.0) {
            return Err(invalid_argument!(
                "Aspect ratio range must be non-negative: [{low}, {high}]"
            ));
        }
        let areas = attrs.floats("area_range")?;
        let &[least, most] = &areas[..] else {
            return Err(invalid_argument!(
                "Area range field must specify 2 dimensions"
            ));
        };
        if !(least > 0.0 && most > 0.0) {
            return Err(invalid_argument!(
                "Area range must be non-negative: [{least}, {most}]"
            ));
        }
        if least > 1.0 || most > 1.0 {
            return Err(invalid_argument!(
                "Area range must be less then or equal to 1.0: [{least}, {most}]"
            ));
        }
        let attempts = attrs.int("max_attempts")?;
        if attempts <= 0 {
            return Err(invalid_argument!(
                "Max attempts must be non-negative: {attempts}"
            ));
        }
        Ok(Spec {
            covered,
            whole: attrs.bool("use_image_if_no_bounding_boxes")?,
            aspects: [low, high],
            areas: [least, most],
            attempts,
        })
    }
}

fn check_covered(covered: f32) -> Result<()> {
    match covered >= 0.0 {
        true => Ok(()),
        false => Err(invalid_argument!(
            "Min object covered must be non-negative: {covered}"
        )),
    }
}

fn stateful(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let spec = Spec::of(build.attrs)?;
    let random = NodeRandom::new(build)?;
    // TensorFlow reserves 256 numbers, four to a block, for each sample of an attempt.
    let blocks = spec.attempts.unsigned_abs() as u128;
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut random = random.reserve(ctx, blocks)?;
        sample(ctx, &spec, &mut random, dtype)
    }))
}

fn stateless(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let spec = Spec::of(build.attrs)?;
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let seed = ctx.input(3)?;
        if seed.shape().dims() != [2] {
            return Err(invalid_argument!(
                "seed must have shape [2], not {}",
                seed.shape()
            ));
        }
        let seeds = ints(seed)?;
        let mut random = Philox::stateless(seeds[0] as u64, seeds[1] as u64);
        sample(ctx, &spec, &mut random, dtype)
    }))
}

/// Returns height and width of the image.
fn image_size(ctx: &KernelCtx) -> Result<[i32; 2]> {
    let size = ctx.input(0)?;
    if size.shape().rank() != 1 {
        return Err(invalid_argument!(
            "image_size must be 1-dimensional{}",
            size.shape()
        ));
    }
    let sizes = ints(size)?;
    let &[height, width, _] = &sizes[..] else {
        return Err(invalid_argument!(
            "image_size must contain 3 elements{}",
            size.shape()
        ));
    };
    let checked = |size: i64, name: &str| match i32::try_from(size) {
        Ok(size) if (0..i32::MAX).contains(&size) => Ok(size),
        _ => Err(invalid_argument!("image {name} cannot be >= int32 max")),
    };
    Ok([checked(height, "height")?, checked(width, "width")?])
}

/// Returns the bounding boxes in pixels.
fn objects(ctx: &KernelCtx, spec: &Spec, [height, width]: [i32; 2]) -> Result<Vec<Rectangle>> {
    let boxes = ctx.shape(1)?;
    if boxes.rank() != 3 {
        return Err(invalid_argument!(
            "input boxes must be 3-dimensional [batch, num_boxes, coords]: {boxes}"
        ));
    }
    if boxes[2] != 4 {
        return Err(invalid_argument!(
            "bounding boxes must have shape [4] or [*, 4], got {boxes}"
        ));
    }
    let ends = ctx.slice::<f32>(1)?;
    if let Some(v) = ends.iter().find(|v| !(0.0..=1.0).contains(*v)) {
        return Err(invalid_argument!(
            "All bounding box coordinates must be in [0.0, 1.0]: {v}"
        ));
    }
    let (w, h) = (width as f32, height as f32);
    let rectangles = ends.chunks_exact(4).map(|b| Rectangle {
        x: [(b[1] * w) as i32, (b[3] * w) as i32],
        y: [(b[0] * h) as i32, (b[2] * h) as i32],
    });
    let mut rectangles: Vec<Rectangle> = rectangles.collect();
    if rectangles.is_empty() {
        if !spec.whole {
            return Err(invalid_argument!(
                "No bounding boxes provided as input. One must enable \
                 use_image_if_no_bounding_boxes if you wish to not provide any bounding boxes."
            ));
        }
        rectangles.push(Rectangle {
            x: [0, width],
            y: [0, height],
        });
    }
    Ok(rectangles)
}

/// Returns a number below `n`, which is positive.
fn below(random: &mut Philox, n: i32) -> i32 {
    (random.next_u32() % n.max(1).unsigned_abs()) as i32
}

/// Returns a number in [0, 1).
fn unit(random: &mut Philox) -> f32 {
    f32::from_bits((127 << 23) | (random.next_u32() & 0x7f_ffff)) - 1.0
}

/// Draws a crop of an aspect ratio, if there is one.
fn crop(
    spec: &Spec,
    [height, width]: [i32; 2],
    aspect: f32,
    random: &mut Philox,
) -> Option<Rectangle> {
    let [least, most] = spec.areas;
    if most <= 0.0 || aspect <= 0.0 || width <= 0 || height <= 0 || least > most {
        return None;
    }
    let nearest = |v: f32| v.round_ties_even() as i64;
    let (least, most) = (
        least * width as f32 * height as f32,
        most * width as f32 * height as f32,
    );
    let mut rows = nearest((least / aspect).sqrt()) as i32;
    let mut highest = nearest((most / aspect).sqrt()) as i32;
    if nearest(highest as f32 * aspect) > i64::from(width) {
        highest =
            ((f64::from(width) + 0.5 - f64::from(0.000_000_1_f32)) / f64::from(aspect)) as i32;
        if nearest(highest as f32 * aspect) > i64::from(width) {
            highest -= 1;
        }
    }
    highest = highest.min(height);
    rows = rows.min(highest);
    if rows < highest {
        rows += below(random, highest - rows + 1);
    }
    let columns_of = |rows: i32| nearest(rows as f32 * aspect) as i32;
    let area_of = |rows: i32, columns: i32| columns.wrapping_mul(rows) as f32;
    let mut columns = columns_of(rows);
    let mut area = area_of(rows, columns);
    if area < least {
        rows += 1;
        columns = columns_of(rows);
        area = area_of(rows, columns);
    }
    if area > most {
        rows -= 1;
        columns = columns_of(rows);
        area = area_of(rows, columns);
    }
    let fits = area >= least && area <= most && columns <= width && rows <= height;
    if !fits || columns <= 0 || rows <= 0 {
        return None;
    }
    let y = if rows < height {
        below(random, height - rows)
    } else {
        0
    };
    let x = if columns < width {
        below(random, width - columns)
    } else {
        0
    };
    Some(Rectangle {
        x: [x, x + columns],
        y: [y, y + rows],
    })
}

fn covers(crop: Rectangle, least: f32, objects: &[Rectangle]) -> bool {
    crop.area() >= 1.0
        && objects.iter().any(|object| {
            let area = object.area();
            area >= 1.0 && crop.common(*object).area() / area >= least
        })
}

fn sample(ctx: &mut KernelCtx, spec: &Spec, random: &mut Philox, dtype: DType) -> Result<()> {
    let size @ [height, width] = image_size(ctx)?;
    let least = match spec.covered {
        Some(least) if ctx.num_inputs() == 2 => least,
        _ => {
            let least = ctx.input(2)?;
            if !least.shape().is_scalar() {
                return Err(invalid_argument!(
                    "min_object_covered must be 0-D, got shape {}",
                    least.shape()
                ));
            }
            let least = least.to_scalar()?;
            check_covered(least)?;
            least
        }
    };
    let objects = objects(ctx, spec, size)?;
    let [low, high] = spec.aspects;
    let mut found = None;
    for _ in 0..spec.attempts {
        let aspect = unit(random) * (high - low) + low;
        let crop = crop(spec, size, aspect, random);
        found = crop.filter(|crop| covers(*crop, least, &objects));
        if found.is_some() {
            break;
        }
    }
    let crop = found.unwrap_or(Rectangle {
        x: [0, width],
        y: [0, height],
    });
    if width < crop.x[1] || height < crop.y[1] {
        return Err(failed_precondition!(
            "the crop reaches beyond the image of {height} by {width} pixels"
        ));
    }
    dispatch!(dtype, T in [u8, i8, i16, i32, i64] => {
        let number = |v: i32| <T as Index>::from_i64(i64::from(v));
        let begin = [crop.y[0], crop.x[0], 0].map(number);
        let extent = [crop.y[1] - crop.y[0], crop.x[1] - crop.x[0], -1].map(number);
        ctx.set_output(0, Tensor::vector(&begin)?)?;
        ctx.set_output(1, Tensor::vector(&extent)?)?;
    }, else return Err(invalid_argument!("{dtype} is not a type of image sizes")));
    let (h, w) = (height as f32, width as f32);
    let ends = [
        crop.y[0] as f32 / h,
        crop.x[0] as f32 / w,
        crop.y[1] as f32 / h,
        crop.x[1] as f32 / w,
    ];
    ctx.set_output(2, Tensor::from_slice([1, 1, 4], &ends)?)
}
