//! QuantizedResizeBilinear (TensorFlow: `core/kernels/quantized_resize_bilinear_op.cc`).

use crate::resize::{Lerp, Mapping, Sizes, each_row, lerps, shape, sizes};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::quantized::{codes, scalar_ranges, set_codes, set_range, stored};
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Element, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "QuantizedResizeBilinear",
    "images: T, size: int32, min: float, max: float -> resized_images: T, out_min: float, out_max: \
     float | T: type {quint8,qint32,float}; align_corners: bool = false; half_pixel_centers: bool \
     = false",
)
.shape(|ctx| {
    shape(ctx)?;
    scalar_ranges(ctx, 2..4)
})
.kernel(kernel)];

/// A pixel of four neighbors: top left, top right, bottom left, bottom right.
trait Blend: Element {
    /// The type of weights.
    type Weight: Copy + Sync + Send;
    /// Converts a weight.
    fn weight(w: f32) -> Self::Weight;
    /// Interpolates, along rows first.
    fn blend(corners: [Self; 4], x: Self::Weight, y: Self::Weight) -> Self;
}

impl Blend for f32 {
    type Weight = f32;
    fn weight(w: f32) -> f32 {
        w
    }
    #[inline(always)]
    fn blend([a, b, c, d]: [f32; 4], x: f32, y: f32) -> f32 {
        let (top, bottom) = (a + (b - a) * x, c + (d - c) * x);
        top + (bottom - top) * y
    }
}

/// In fixed point with this many bits of fraction; quotients are rounded toward zero.
macro_rules! fixed_point {
    ($ty:ident, $wide:ident, $bits:literal) => {
        impl Blend for $ty {
            type Weight = $wide;
            fn weight(w: f32) -> $wide {
                (w * (1u32 << $bits) as f32) as $wide
            }
            #[inline(always)]
            fn blend(corners: [$ty; 4], x: $wide, y: $wide) -> $ty {
                const ONE: $wide = 1 << $bits;
                let [a, b, c, d] = corners.map(|v| v as $wide);
                let (top, bottom) = (a * ONE + (b - a) * x, c * ONE + (d - c) * x);
                let sum = top + (bottom - top) / ONE * y;
                ((sum + ONE / 2) / ONE) as $ty
            }
        }
    };
}
fixed_point!(u8, i32, 7);
fixed_point!(i32, i64, 30);

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    let mapping = Mapping {
        align_corners: build.attrs.bool("align_corners")?,
        half_pixel_centers: build.attrs.bool("half_pixel_centers")?,
    };
    dispatch!(stored(dtype), T in [u8, i32, f32] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        resized::<T>(ctx, mapping, dtype)
    })), else Err(build.unsupported(dtype)))
}

fn resized<T: Blend>(ctx: &mut KernelCtx, mapping: Mapping, dtype: DType) -> Result<()> {
    let mut range = [0.0; 2];
    for (i, name) in ["min", "max"].into_iter().enumerate() {
        let t = ctx.input(i + 2)?;
        if !t.shape().is_scalar() {
            return Err(invalid_argument!("{name} must be a scalar"));
        }
        range[i] = t.to_scalar()?;
    }
    let s = sizes(ctx)?;
    let images = codes(ctx, 0)?;
    if s.input == s.output {
        set_codes(ctx, 0, images, dtype)?;
        return set_range(ctx, 1, range);
    }
    let dims = shape_of(&[s.batch, s.output[0], s.output[1], s.channels])?;
    let mut out = ctx.alloc(T::DTYPE, dims)?;
    let rows = lerps(mapping, s.input[0], s.output[0]);
    let columns = lerps(mapping, s.input[1], s.output[1]);
    let from = images.slice::<T>()?;
    each_row(ctx.par(), &s, out.slice_mut::<T>()?, |image, y, out| {
        blend_row(&s, &columns, rows[y], image, from, out);
    });
    set_codes(ctx, 0, out, dtype)?;
    set_range(ctx, 1, range)
}

fn blend_row<T: Blend>(
    s: &Sizes,
    columns: &[Lerp],
    row: Lerp,
    image: usize,
    from: &[T],
    out: &mut [T],
) {
    let (top, bottom) = (
        s.line(from, image, row.lower),
        s.line(from, image, row.upper),
    );
    let (y, c) = (T::weight(row.weight), s.channels);
    for (pixel, column) in out.chunks_exact_mut(c).zip(columns) {
        let x = T::weight(column.weight);
        let at = |line: &'_ [T], column: usize, i: usize| line[column * c + i];
        for (i, to) in pixel.iter_mut().enumerate() {
            let corners = [
                at(top, column.lower, i),
                at(top, column.upper, i),
                at(bottom, column.lower, i),
                at(bottom, column.upper, i),
            ];
            *to = T::blend(corners, x, y);
        }
    }
}
