//! ExtractImagePatches (TensorFlow: `core/kernels/image/extract_image_patches_op.cc`).

use crate::space_batch::pack;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, shape_of};
use ferroflow_functors::strided::{par_rows, unravel};
use ferroflow_opdef::{Attrs, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "ExtractImagePatches",
    "images: T -> patches: T | ksizes: list(int) >= 4; strides: list(int) >= 4; \
         rates: list(int) >= 4; T: type \
         {bfloat16,half,float,double,int8,int16,int32,int64,uint8,uint16,uint32,uint64,complex64,complex128,bool}; \
         padding: string {'SAME','VALID'}",
)
.shape(patches_shape)
.kernel(patches)
.gradient(patches_gradient)];

/// Windows over one spatial dimension: size, stride, dilation.
#[derive(Clone, Copy)]
struct Window {
    size: usize,
    step: usize,
    rate: usize,
    same: bool,
}

impl Window {
    /// Returns the number of windows over `d` pixels, and the padding before the first pixel.
    fn over(&self, d: usize) -> (usize, usize) {
        let reach = (self.size - 1).saturating_mul(self.rate).saturating_add(1);
        if !self.same {
            return (
                d.checked_sub(reach).map_or(0, |rest| rest / self.step + 1),
                0,
            );
        }
        let n = d.div_ceil(self.step);
        let needed = n
            .saturating_sub(1)
            .saturating_mul(self.step)
            .saturating_add(reach);
        (n, needed.saturating_sub(d) / 2)
    }
}

/// Returns the windows over height and width.
fn windows(attrs: &Attrs) -> Result<[Window; 2]> {
    let same = attrs.str("padding")? == "SAME";
    let list = |name: &str| -> Result<[usize; 2]> {
        let v = attrs.ints(name)?;
        match v[..] {
            [1, h, w, 1] if (1..1 << 31).contains(&h) && (1..1 << 31).contains(&w) => {
                Ok([h as usize, w as usize])
            }
            [_, _, _, _] => Err(ferroflow_base::unimplemented_error!(
                "Only support {name} across space, and positive ones: {}",
                indices::list(&v)
            )),
            _ => Err(invalid_argument!(
                "{name} must have 4 elements, not {}",
                v.len()
            )),
        }
    };
    let (size, step, rate) = (list("ksizes")?, list("strides")?, list("rates")?);
    Ok([0, 1].map(|i| Window {
        size: size[i],
        step: step[i],
        rate: rate[i],
        same,
    }))
}

fn patches_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let [h, w] = windows(ctx.attrs())?;
    let s = ctx.with_rank(0, 4)?;
    let taps = h.size.checked_mul(w.size);
    let depth = taps.zip(s.dim(3)).and_then(|(t, c)| t.checked_mul(c));
    ctx.set(
        0,
        PartialShape::of([
            s.dim(0),
            s.dim(1).map(|d| h.over(d).0),
            s.dim(2).map(|d| w.over(d).0),
            depth,
        ]),
    );
    Ok(())
}

fn patches(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let windows = windows(build.attrs)?;
    let dtype = build.input(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let input = ctx.input(0)?;
            let s = input.shape();
            if s.rank() != 4 {
                return Err(invalid_argument!("input must be 4-dimensional{s}"));
            }
            let [wh, ww] = windows;
            let ((oh, top), (ow, left)) = (wh.over(s[1]), ww.over(s[2]));
            let (height, width, c) = (s[1], s[2], s[3]);
            let taps = wh.size.saturating_mul(ww.size).saturating_mul(c);
            let mut out = ctx.alloc(input.dtype(), shape_of([s[0], oh, ow, taps])?)?;
            let from = input.items::<T>()?;
            if c == 0 {
                return ctx.set_output(0, out);
            }
            par_rows(ctx.par(), out.items_mut::<T>()?, taps, &|row, to| {
                let mut at = [0; 3];
                unravel(row, &[s[0], oh, ow], &mut at);
                for (i, to) in to.chunks_mut(c).enumerate() {
                    let (i, j) = (i / ww.size, i % ww.size);
                    let y = (at[1] * wh.step + i * wh.rate).checked_sub(top).filter(|&y| y < height);
                    let x = (at[2] * ww.step + j * ww.rate).checked_sub(left).filter(|&x| x < width);
                    match y.zip(x) {
                        Some((y, x)) => {
                            let start = ((at[0] * height + y) * width + x) * c;
                            to.clone_from_slice(&from[start..start + c]);
                        }
                        None => to.fill(T::default()),
                    }
                }
            });
            ctx.set_output(0, out)
        })),
    )
}

/// Returns element `i` of a vector.
fn part(v: Expr, i: i32) -> Expr {
    v.op("Gather", &[v.int(i)])
}

/// Sums the gradients of patch elements by the pixel they were taken from. Patches of pixel
/// numbers tell which; those of padding are negative and dropped.
fn patches_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, d) = (g.x(0), g.dy(0));
    let attrs = ["ksizes", "strides", "rates", "padding"].map(|name| g.attr(name));
    let window = g.attrs().ints("ksizes")?;
    let [_, height, width, _] = window[..] else {
        return Err(invalid_argument!("ksizes must have 4 elements"));
    };
    let (own, its) = (x.shape_of(), d.op("Shape", &[]));
    let [n, rows, columns, channels] = [0, 1, 2, 3].map(|i| part(own, i));
    let one = x.int(1);
    let pixels = rows * columns;
    let places = one.op("Range", &[pixels + one, one]);
    let places = places.reshape(pack(&[one, rows, columns, one]));
    let places = places.op_with("ExtractImagePatches", &[], &attrs);
    let ids = places.reshape(x.ints([-1])) - one;
    let window = x.ints([height, width]);
    let (height, width) = (part(window, 0), part(window, 1));
    let came = pack(&[n, part(its, 1), part(its, 2), height, width, channels]);
    let came = d
        .reshape(came)
        .op("Transpose", &[x.ints([1, 2, 3, 4, 0, 5])]);
    let came = came.reshape(pack(&[x.int(-1), n * channels]));
    let sums = came.op("UnsortedSegmentSum", &[ids, pixels]);
    let sums = sums.reshape(pack(&[rows, columns, n, channels]));
    g.set(0, sums.op("Transpose", &[x.ints([2, 0, 1, 3])]))
}
