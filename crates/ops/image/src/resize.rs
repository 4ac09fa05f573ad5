//! ResizeBilinear, ResizeNearestNeighbor, ResizeBicubic, ResizeArea (TensorFlow:
//! `core/kernels/image/resize_*_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::floats;
use ferroflow_functors::indices;
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{Attrs, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Item, PartialShape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ResizeBilinear",
        "images: T, size: int32 -> resized_images: float | T: type \
         {int8,uint8,int16,uint16,int32,int64,bfloat16,half,float,double,bfloat16}; \
         align_corners: bool = false; half_pixel_centers: bool = false",
    )
    .shape(shape)
    .kernel(|build| interpolating(build, bilinear))
    .gradient(interpolated_gradient),
    Op::new(
        "ResizeBicubic",
        "images: T, size: int32 -> resized_images: float | T: type \
         {int8,uint8,int16,uint16,int32,int64,half,float,double,bfloat16}; \
         align_corners: bool = false; half_pixel_centers: bool = false",
    )
    .shape(shape)
    .kernel(|build| interpolating(build, bicubic))
    .gradient(interpolated_gradient),
    Op::new(
        "ResizeArea",
        "images: T, size: int32 -> resized_images: float | T: type \
         {int8,uint8,int16,uint16,int32,int64,half,float,double,bfloat16}; \
         align_corners: bool = false",
    )
    .shape(shape)
    .kernel(|build| interpolating(build, area)),
    Op::new(
        "ResizeNearestNeighbor",
        "images: T, size: int32 -> resized_images: T | T: type \
         {int8,uint8,int16,uint16,int32,int64,half,float,double,bfloat16}; \
         align_corners: bool = false; half_pixel_centers: bool = false",
    )
    .shape(shape)
    .kernel(nearest)
    .gradient(nearest_gradient),
];

/// Least output elements per task.
pub(crate) const MIN_TASK: usize = 8 * 1024;

pub(crate) fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let images = ctx.with_rank(0, 4)?;
    let size = ctx.with_rank(1, 1)?;
    if let Some(n) = size.dim(0)
        && n != 2
    {
        return Err(invalid_argument!("Dimension must be 2 but is {n}"));
    }
    let size = indices::constant(ctx, 1).filter(|s| s.len() == 2);
    let at = |i: usize| size.as_ref().and_then(|s| usize::try_from(s[i]).ok());
    ctx.set(
        0,
        PartialShape::of([images.dim(0), at(0), at(1), images.dim(3)]),
    );
    Ok(())
}

/// The mapping of output positions to input positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub align_corners: bool,
    pub half_pixel_centers: bool,
}

impl Mapping {
    pub fn of(attrs: &Attrs) -> Result<Mapping> {
        let mapping = Mapping {
            align_corners: attrs.bool("align_corners")?,
            half_pixel_centers: attrs.get("half_pixel_centers").is_some()
                && attrs.bool("half_pixel_centers")?,
        };
        if mapping.align_corners && mapping.half_pixel_centers {
            return Err(invalid_argument!(
                "If half_pixel_centers is True, align_corners must be False."
            ));
        }
        Ok(mapping)
    }

    fn scale(self, input: usize, output: usize) -> f32 {
        if self.align_corners && output > 1 && input > 1 {
            (input - 1) as f32 / (output - 1) as f32
        } else {
            input as f32 / output as f32
        }
    }

    /// Returns the input position of output position `i`.
    fn at(self, i: usize, scale: f32) -> f32 {
        if self.half_pixel_centers {
            (i as f32 + 0.5) * scale - 0.5
        } else {
            i as f32 * scale
        }
    }
}

/// The sizes of a resize: batch, input, output and channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub batch: usize,
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub channels: usize,
}

pub(crate) fn sizes(ctx: &KernelCtx) -> Result<Sizes> {
    let (images, size) = (ctx.shape(0)?, ctx.input(1)?);
    if images.rank() != 4 {
        return Err(invalid_argument!("input must be 4-dimensional{images}"));
    }
    if size.shape().rank() != 1 {
        return Err(invalid_argument!(
            "shape_t must be 1-dimensional{}",
            size.shape()
        ));
    }
    let values = indices::ints(size)?;
    let [height, width] = values[..] else {
        return Err(invalid_argument!(
            "shape_t must have two elements{}",
            size.shape()
        ));
    };
    if height <= 0 || width <= 0 {
        return Err(invalid_argument!("output dimensions must be positive"));
    }
    if images[1] == 0 || images[2] == 0 || images[3] == 0 {
        return Err(invalid_argument!("input image must be of non-zero size"));
    }
    if images[1].max(images[2]) > i32::MAX as usize {
        return Err(invalid_argument!(
            "input sizes must be between 0 and max int32"
        ));
    }
    Ok(Sizes {
        batch: images[0],
        input: [images[1], images[2]],
        output: [height as usize, width as usize],
        channels: images[3],
    })
}

/// Resizes in single precision.
type Resize = fn(&dyn Parallelism, Mapping, &Sizes, &[f32], &mut [f32]);

fn interpolating(build: &KernelBuild, resize: Resize) -> Result<Box<dyn OpKernel>> {
    let mapping = Mapping::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let s = sizes(ctx)?;
        let x = floats(ctx.par(), ctx.input(0)?)?;
        if s.input == s.output {
            return ctx.set_output(0, x);
        }
        let dims = shape_of(&[s.batch, s.output[0], s.output[1], s.channels])?;
        let mut out = ctx.alloc(DType::Float, dims)?;
        resize(ctx.par(), mapping, &s, x.slice()?, out.slice_mut()?);
        ctx.set_output(0, out)
    }))
}

/// Runs `f(image, y, row)` for every row of the output.
pub(crate) fn each_row<T: Send>(
    par: &dyn Parallelism,
    s: &Sizes,
    out: &mut [T],
    f: impl Fn(usize, usize, &mut [T]) + Sync,
) {
    let len = s.output[1] * s.channels;
    par_chunks_mut(par, out, len, (MIN_TASK / len).max(1), &|i, row| {
        f(i / s.output[0], i % s.output[0], row);
    });
}

impl Sizes {
    pub fn line<'a, T>(&self, x: &'a [T], image: usize, y: usize) -> &'a [T] {
        let len = self.input[1] * self.channels;
        &x[(image * self.input[0] + y) * len..][..len]
    }
}

/// Two neighbors and the weight of the second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lerp {
    pub lower: usize,
    pub upper: usize,
    pub weight: f32,
}

pub(crate) fn lerps(mapping: Mapping, input: usize, output: usize) -> Vec<Lerp> {
    let scale = mapping.scale(input, output);
    (0..output)
        .map(|i| {
            let at = mapping.at(i, scale);
            let floor = at.floor();
            let upper = (at.ceil() as i64).clamp(0, input as i64 - 1) as usize;
            Lerp {
                lower: (floor.max(0.0) as usize).min(upper),
                upper,
                weight: at - floor,
            }
        })
        .collect()
}

fn bilinear(par: &dyn Parallelism, mapping: Mapping, s: &Sizes, x: &[f32], out: &mut [f32]) {
    let ys = lerps(mapping, s.input[0], s.output[0]);
    let xs = lerps(mapping, s.input[1], s.output[1]);
    let len = s.output[1] * s.channels;
    let rows = (MIN_TASK / len).max(1);
    par_chunks_mut(par, out, rows * len, 1, &|i, out| {
        vectorized(
            #[inline(always)]
            || bilinear_rows(s, x, &ys, &xs, i * rows, out),
        );
    });
}

/// A line of the input, as wide as the output.
#[derive(Clone)]
struct Widened {
    /// Its number, over all images; `MAX` for none.
    line: usize,
    values: Vec<f32>,
}

/// Computes rows of the output, over all images, from row `first`.
#[inline(always)]
fn bilinear_rows(s: &Sizes, x: &[f32], ys: &[Lerp], xs: &[Lerp], first: usize, out: &mut [f32]) {
    let len = s.output[1] * s.channels;
    let none = Widened {
        line: usize::MAX,
        values: vec![0.0; len],
    };
    let mut kept = [none.clone(), none];
    for (i, out) in (first..).zip(out.chunks_exact_mut(len)) {
        let (image, v) = (i / s.output[0], ys[i % s.output[0]]);
        // The lower line of a row is often the upper one of the next.
        if kept[0].line != image * s.input[0] + v.lower {
            kept.swap(0, 1);
        }
        for (kept, y) in kept.iter_mut().zip([v.lower, v.upper]) {
            let line = image * s.input[0] + y;
            if kept.line != line {
                kept.line = line;
                widen(s.line(x, image, y), s.channels, xs, &mut kept.values);
            }
        }
        let [top, bottom] = &kept;
        for ((out, top), bottom) in out.iter_mut().zip(&top.values).zip(&bottom.values) {
            *out = top + (bottom - top) * v.weight;
        }
    }
}

/// Interpolates a line.
#[inline(always)]
pub(crate) fn widen(line: &[f32], channels: usize, xs: &[Lerp], out: &mut [f32]) {
    match channels {
        1 => widen_pixels::<1>(line, xs, out),
        3 => widen_pixels::<3>(line, xs, out),
        4 => widen_pixels::<4>(line, xs, out),
        c => {
            for (h, out) in xs.iter().zip(out.chunks_exact_mut(c)) {
                let (left, right) = (&line[h.lower * c..], &line[h.upper * c..]);
                for ((out, left), right) in out.iter_mut().zip(left).zip(right) {
                    *out = left + (right - left) * h.weight;
                }
            }
        }
    }
}

#[inline(always)]
fn widen_pixels<const C: usize>(line: &[f32], xs: &[Lerp], out: &mut [f32]) {
    let line = line.as_chunks::<C>().0;
    for (h, out) in xs.iter().zip(out.as_chunks_mut::<C>().0) {
        let (left, right) = (line[h.lower], line[h.upper]);
        *out = std::array::from_fn(|c| left[c] + (right[c] - left[c]) * h.weight);
    }
}

/// Four neighbors and their weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubic {
    pub at: [usize; 4],
    pub weight: [f32; 4],
}

/// Steps between two positions with precomputed weights.
const CUBIC_STEPS: usize = 1024;

pub(crate) fn cubics(mapping: Mapping, input: usize, output: usize) -> Vec<Cubic> {
    let keys = mapping.half_pixel_centers;
    let a = if keys { -0.5f32 } else { -0.75 };
    let near = |step: usize| {
        let x = step as f32 / CUBIC_STEPS as f32;
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    };
    let far = |step: usize| {
        let x = step as f32 / CUBIC_STEPS as f32 + 1.0;
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    };
    let scale = mapping.scale(input, output);
    (0..output)
        .map(|i| {
            let at = mapping.at(i, scale);
            let first = at.floor() as i64 - 1;
            let delta = at - at.floor();
            let step = ((delta * CUBIC_STEPS as f32).round_ties_even() as usize).min(CUBIC_STEPS);
            let back = CUBIC_STEPS - step;
            let mut weight = [far(step), near(step), near(back), far(back)];
            let wanted = [0, 1, 2, 3].map(|k| first + k);
            let at = wanted.map(|k| k.clamp(0, input as i64 - 1));
            if keys {
                for k in 0..4 {
                    if at[k] != wanted[k] {
                        weight[k] = 0.0;
                    }
                }
                let sum: f32 = weight.iter().sum();
                if sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
                    let inverse = 1.0 / sum;
                    weight.iter_mut().for_each(|w| *w *= inverse);
                }
            }
            Cubic {
                at: at.map(|k| k as usize),
                weight,
            }
        })
        .collect()
}

fn bicubic(par: &dyn Parallelism, mapping: Mapping, s: &Sizes, x: &[f32], out: &mut [f32]) {
    let ys = cubics(mapping, s.input[0], s.output[0]);
    let xs = cubics(mapping, s.input[1], s.output[1]);
    let c = s.channels;
    each_row(par, s, out, |image, y, row| {
        let (v, lines) = (ys[y].weight, ys[y].at.map(|y| s.line(x, image, y)));
        // Rows first: one line as wide as the input.
        let line: Vec<f32> = (0..lines[0].len())
            .map(|i| {
                lines[0][i] * v[0] + lines[1][i] * v[1] + lines[2][i] * v[2] + lines[3][i] * v[3]
            })
            .collect();
        for (h, out) in xs.iter().zip(row.chunks_exact_mut(c)) {
            let pixels = h.at.map(|x| &line[x * c..][..c]);
            let w = h.weight;
            for (i, o) in out.iter_mut().enumerate() {
                *o = pixels[0][i] * w[0]
                    + pixels[1][i] * w[1]
                    + pixels[2][i] * w[2]
                    + pixels[3][i] * w[3];
            }
        }
    });
}

/// Returns the input positions under an output position: the first, and the covered fraction of
/// each.
fn covered(i: usize, scale: f32, input: usize) -> impl Iterator<Item = (usize, f32)> + Clone {
    let (from, to) = (i as f32 * scale, (i + 1) as f32 * scale);
    let (start, end) = (from.floor() as i64, to.ceil() as i64);
    (start..end).map(move |v| {
        let position = v as f32;
        let weight = match (position < from, position + 1.0 > to) {
            (true, true) => scale,
            (true, false) => position + 1.0 - from,
            (false, true) => to - position,
            (false, false) => 1.0,
        };
        (v.clamp(0, input as i64 - 1) as usize, weight)
    })
}

fn area(par: &dyn Parallelism, mapping: Mapping, s: &Sizes, x: &[f32], out: &mut [f32]) {
    let [height, width] = [0, 1].map(|i| mapping.scale(s.input[i], s.output[i]));
    let share = 1.0 / (height * width);
    let c = s.channels;
    let columns: Vec<Vec<(usize, f32)>> = (0..s.output[1])
        .map(|x| covered(x, width, s.input[1]).collect())
        .collect();
    each_row(par, s, out, |image, y, row| {
        // The sums over rows first: they are next to each other in memory.
        let mut sums = vec![0f32; s.input[1] * c];
        for (y, weight) in covered(y, height, s.input[0]) {
            let line = s.line(x, image, y);
            for (sum, v) in sums.iter_mut().zip(line) {
                *sum += v * weight;
            }
        }
        for (column, out) in columns.iter().zip(row.chunks_exact_mut(c)) {
            out.fill(0.0);
            for &(x, weight) in column {
                for (o, sum) in out.iter_mut().zip(&sums[x * c..]) {
                    *o += sum * weight;
                }
            }
            out.iter_mut().for_each(|o| *o *= share);
        }
    });
}

fn nearest(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let mapping = Mapping::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let s = sizes(ctx)?;
        let x = ctx.input(0)?;
        let dims = shape_of(&[s.batch, s.output[0], s.output[1], s.channels])?;
        let mut out = ctx.alloc(x.dtype(), dims)?;
        let [ys, xs] = [0, 1].map(|i| positions(mapping, s.input[i], s.output[i]));
        dispatch_items!(x.dtype(), T => pick::<T>(ctx.par(), &s, &ys, &xs, x, &mut out)?);
        ctx.set_output(0, out)
    }))
}

/// Returns the nearest input position of each output position.
pub(crate) fn positions(mapping: Mapping, input: usize, output: usize) -> Vec<usize> {
    let scale = mapping.scale(input, output);
    (0..output)
        .map(|i| {
            let at = match mapping.half_pixel_centers {
                true => (i as f32 + 0.5) * scale,
                false => i as f32 * scale,
            };
            let at = if mapping.align_corners {
                at.round()
            } else {
                at.floor()
            };
            (at.max(0.0) as usize).min(input - 1)
        })
        .collect()
}

fn pick<T: Item>(
    par: &dyn Parallelism,
    s: &Sizes,
    ys: &[usize],
    xs: &[usize],
    x: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (x, c) = (x.items::<T>()?, s.channels);
    each_row(par, s, out.items_mut::<T>()?, |image, y, row| {
        let line = s.line(x, image, ys[y]);
        for (x, out) in xs.iter().zip(row.chunks_exact_mut(c)) {
            out.clone_from_slice(&line[x * c..][..c]);
        }
    });
    Ok(())
}

fn interpolated_gradient(g: &mut GradientCtx) -> Result<()> {
    let attrs = [g.attr("align_corners"), g.attr("half_pixel_centers")];
    let op = format!("{}Grad", g.op_name());
    let dx = g.dy(0).op_with(&op, &[g.x(0)], &attrs);
    g.set(0, dx)
}

fn nearest_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, d) = (g.x(0), g.dy(0));
    let shape = x.shape_of();
    let slice = [shape.ints([1]), shape.ints([3]), shape.ints([1])];
    let attrs = [g.attr("align_corners"), g.attr("half_pixel_centers")];
    let dx = d.op_with(
        "ResizeNearestNeighborGrad",
        &[shape.op("StridedSlice", &slice)],
        &attrs,
    );
    g.set(0, dx)
}
