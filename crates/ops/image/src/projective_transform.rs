//! ImageProjectiveTransformV2 and V3 (TensorFlow: `core/kernels/image/image_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant, ints, shape_of};
use ferroflow_functors::strided::par_rows;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Element, PartialShape, Tensor, bf16, dispatch, f16};

/// ImageProjectiveTransformV2, ImageProjectiveTransformV3.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ImageProjectiveTransformV2",
        "images: dtype, transforms: float, output_shape: int32 -> transformed_images: dtype | \
         dtype: type {uint8,int32,int64,half,bfloat16,float,double}; interpolation: string; \
         fill_mode: string = 'CONSTANT'",
    )
    .shape(shape)
    .cost(Cost::Expensive)
    .kernel(build)
    .gradient(gradient),
    Op::new(
        "ImageProjectiveTransformV3",
        "images: dtype, transforms: float, output_shape: int32, fill_value: float -> \
         transformed_images: dtype | dtype: type {uint8,int32,int64,half,bfloat16,float,double}; \
         interpolation: string; fill_mode: string = 'CONSTANT'",
    )
    .shape(shape)
    .cost(Cost::Expensive)
    .kernel(build)
    .gradient(gradient),
];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let images = ctx.with_rank(0, 4)?;
    ctx.with_rank(2, 1)?;
    let size = constant(ctx, 2).filter(|s| s.len() == 2);
    let at = |i: usize| size.as_ref().and_then(|s| usize::try_from(s[i]).ok());
    ctx.set(
        0,
        PartialShape::of([images.dim(0), at(0), at(1), images.dim(3)]),
    );
    Ok(())
}

/// The transform of the gradient is the inverse one.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (images, transforms, d) = (g.x(0), g.x(1), g.dy(0));
    let first = slice(transforms, [0, 0], [-1, 1]);
    let ones = first.op("OnesLike", &[]);
    let attrs = [("N", 2.into())];
    let matrices = transforms.make("ConcatV2", &[transforms, ones, transforms.int(1)], &attrs);
    let matrices = matrices.reshape(matrices.ints([-1, 3, 3]));
    let inverse = matrices.op("MatrixInverse", &[]);
    let flat = inverse.reshape(inverse.ints([-1, 9]));
    let flat = flat / slice(flat, [0, 8], [-1, 1]);
    let inverse = slice(flat, [0, 0], [-1, 8]);
    let size = images.shape_of();
    let size = size.op("Slice", &[size.ints([1]), size.ints([2])]);
    let mut inputs = vec![inverse, size];
    if g.num_inputs() == 4 {
        inputs.push(transforms.number(0.0));
    }
    let attrs = [g.attr("interpolation"), g.attr("fill_mode")];
    g.set(0, d.op_with(g.op_name(), &inputs, &attrs))
}

fn slice(e: Expr<'_>, from: [i64; 2], size: [i64; 2]) -> Expr<'_> {
    e.op("Slice", &[e.ints(from), e.ints(size)])
}

/// What coordinates outside the image refer to.
#[derive(Clone, Copy)]
enum FillMode {
    Reflect,
    Wrap,
    Constant,
    Nearest,
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let method = method(build);
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [u8, i32, i64, f16, bf16, f32, f64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| transform::<T>(ctx, &method))),
        else Err(build.unsupported(dtype)))
}

/// Returns whether to pick the nearest pixel, and what is outside. TensorFlow refuses no attr: an
/// error is that of an image that all its checks let pass.
fn method(build: &KernelBuild) -> Result<(bool, FillMode)> {
    let nearest = match build.attrs.str("interpolation")? {
        "NEAREST" => true,
        "BILINEAR" => false,
        other => {
            return Err(invalid_argument!(
                "Invalid interpolation {other}. Supported types: NEAREST, BILINEAR"
            ));
        }
    };
    let mode = match build.attrs.str("fill_mode")? {
        "REFLECT" => FillMode::Reflect,
        "WRAP" => FillMode::Wrap,
        "CONSTANT" => FillMode::Constant,
        "NEAREST" => FillMode::Nearest,
        other => {
            return Err(invalid_argument!(
                "Invalid mode {other}. Supported types: REFLECT, WRAP, CONSTANT, NEAREST"
            ));
        }
    };
    Ok((nearest, mode))
}

/// An element of an image, interpolated in single precision.
trait Pixel: Element {
    fn wide(self) -> f32;
    fn narrow(x: f32) -> Self;
}

macro_rules! pixels {
    ($($ty:ty),*) => {$(
        impl Pixel for $ty {
            #[inline]
            fn wide(self) -> f32 { self as f32 }
            #[inline]
            fn narrow(x: f32) -> Self { x as $ty }
        }
    )*};
}
pixels!(u8, i32, i64, f32, f64);

macro_rules! half_pixels {
    ($($ty:ty),*) => {$(
        impl Pixel for $ty {
            #[inline]
            fn wide(self) -> f32 { self.to_f32() }
            #[inline]
            fn narrow(x: f32) -> Self { <$ty>::from_f32(x) }
        }
    )*};
}
half_pixels!(f16, bf16);

/// Converts to an integer as x86 does, where what does not fit becomes the least one.
pub(crate) fn truncated(x: f32) -> i64 {
    match x.abs() < 9.2e18 {
        true => x as i64,
        false => i64::MIN,
    }
}

/// Maps a coordinate outside an image of `len` pixels into it.
fn mapped(at: f32, len: i64, mode: FillMode) -> f32 {
    let last = (len - 1) as f32;
    let inside = match mode {
        FillMode::Constant => return at,
        FillMode::Nearest => at,
        _ if len <= 1 && !(0.0..=last).contains(&at) => 0.0,
        FillMode::Reflect if at < 0.0 => {
            let period = (2 * len) as f32;
            let at = match at < period {
                true => (2 * len).wrapping_mul(truncated(-at / period)) as f32 + at,
                false => at,
            };
            if at < -(len as f32) {
                at + period
            } else {
                -at - 1.0
            }
        }
        FillMode::Reflect if at > last => {
            let period = (2 * len) as f32;
            let at = at - (2 * len).wrapping_mul(truncated(at / period)) as f32;
            if at >= len as f32 {
                period - at - 1.0
            } else {
                at
            }
        }
        FillMode::Wrap if at < 0.0 => {
            at + len.wrapping_mul(truncated(-at / last).wrapping_add(1)) as f32
        }
        FillMode::Wrap if at > last => at - len.wrapping_mul(truncated(at / last)) as f32,
        _ => at,
    };
    inside.max(0.0).min(last)
}

/// Returns the rows and columns of the output.
fn output_size(size: &Tensor) -> Result<(usize, usize)> {
    if size.shape().rank() != 1 {
        return Err(invalid_argument!(
            "output shape must be 1-dimensional{}",
            size.shape()
        ));
    }
    if size.num_elements() != 2 {
        return Err(invalid_argument!(
            "output shape must have two elements{}",
            size.shape()
        ));
    }
    let size = ints(size)?;
    if size[0] <= 0 || size[1] <= 0 {
        return Err(invalid_argument!("output dimensions must be positive"));
    }
    Ok((size[0] as usize, size[1] as usize))
}

fn transform<T: Pixel>(ctx: &mut KernelCtx, method: &Result<(bool, FillMode)>) -> Result<()> {
    let (images, transforms) = (ctx.shape(0)?, ctx.shape(1)?);
    let &[batch, height, width, channels] = images.dims() else {
        return Err(invalid_argument!("Input images must have rank 4"));
    };
    match transforms.dims() {
        &[n, 8] if n == batch || n == 1 => {}
        _ => {
            return Err(invalid_argument!(
                "Input transform should be num_images x 8 or 1 x 8"
            ));
        }
    }
    let (rows, columns) = output_size(ctx.input(2)?)?;
    let mut fill = T::narrow(0.0);
    if ctx.num_inputs() == 4 {
        let value = ctx.input(3)?;
        if !value.shape().is_scalar() {
            return Err(invalid_argument!(
                "fill_value must be a scalar{}",
                value.shape()
            ));
        }
        fill = T::narrow(value.to_scalar()?);
    }
    let (nearest, mode) = method.clone()?;
    let mut out = ctx.alloc(T::DTYPE, shape_of([batch, rows, columns, channels])?)?;
    let (pixels, transforms) = (ctx.slice::<T>(0)?, ctx.slice::<f32>(1)?.as_chunks().0);
    let source = |n: usize| Source {
        pixels: &pixels[n * height * width * channels..],
        size: [height as i64, width as i64],
        channels,
    };
    par_rows(
        ctx.par(),
        out.slice_mut::<T>()?,
        columns * channels,
        &|i, row| {
            let (n, y) = (i / rows, (i % rows) as f32);
            let image = source(n);
            let t: &[f32; 8] = &transforms[if transforms.len() == 1 { 0 } else { n }];
            for (x, out) in row.chunks_exact_mut(channels).enumerate() {
                let x = x as f32;
                let projection = t[6] * x + t[7] * y + 1.0;
                if projection == 0.0 {
                    out.fill(fill);
                    continue;
                }
                let from_x = (t[0] * x + t[1] * y + t[2]) / projection;
                let from_y = (t[3] * x + t[4] * y + t[5]) / projection;
                let from_x = mapped(from_x, image.size[1], mode);
                let from_y = mapped(from_y, image.size[0], mode);
                match nearest {
                    true => image.nearest(from_y, from_x, fill, out),
                    false => image.bilinear(from_y, from_x, fill, out),
                }
            }
        },
    );
    ctx.set_output(0, out)
}

/// An image that is transformed.
struct Source<'a, T> {
    pixels: &'a [T],
    size: [i64; 2],
    channels: usize,
}

impl<T: Pixel> Source<'_, T> {
    /// Returns the channels of a pixel, if it is inside.
    fn pixel(&self, y: f32, x: f32) -> Option<&[T]> {
        let (y, x) = (truncated(y), truncated(x));
        let inside = (0..self.size[0]).contains(&y) && (0..self.size[1]).contains(&x);
        let at = inside.then_some(((y * self.size[1] + x) as usize).checked_mul(self.channels)?)?;
        self.pixels.get(at..at + self.channels)
    }

    fn nearest(&self, y: f32, x: f32, fill: T, out: &mut [T]) {
        match self.pixel(y.round(), x.round()) {
            Some(pixel) => out.copy_from_slice(pixel),
            None => out.fill(fill),
        }
    }

    fn bilinear(&self, y: f32, x: f32, fill: T, out: &mut [T]) {
        let (top, left) = (y.floor(), x.floor());
        let (bottom, right) = (top + 1.0, left + 1.0);
        let corners = [(top, left), (top, right), (bottom, left), (bottom, right)];
        let corners = corners.map(|(y, x)| self.pixel(y, x));
        for (c, out) in out.iter_mut().enumerate() {
            let [tl, tr, bl, br] = corners.map(|p| p.map_or(fill, |p| p[c]).wide());
            let above = (right - x) * tl + (x - left) * tr;
            let below = (right - x) * bl + (x - left) * br;
            *out = T::narrow((bottom - y) * above + (y - top) * below);
        }
    }
}
