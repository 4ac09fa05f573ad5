//! ExtractVolumePatches (TensorFlow: `core/kernels/image/extract_volume_patches_op.cc`).

use crate::space_batch::pack;
use ferroflow_base::{Result, invalid_argument, out_of_range, unimplemented_error};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::strided::{par_rows, unravel};
use ferroflow_opdef::{Attrs, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{Item, PartialShape, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "ExtractVolumePatches",
    "input: T -> patches: T | ksizes: list(int) >= 5; strides: list(int) >= 5; T: realnumbertype; \
     padding: string {'SAME','VALID'}",
)
.shape(patches_shape)
.kernel(kernel)
.gradient(gradient)];

/// Windows over one dimension.
#[derive(Clone, Copy)]
struct Window {
    size: usize,
    step: usize,
    same: bool,
}

impl Window {
    /// Returns the number of windows over `d` elements, and the padding before the first.
    fn over(&self, d: usize) -> (usize, usize) {
        if !self.same {
            let n = d
                .checked_sub(self.size)
                .map_or(0, |rest| rest / self.step + 1);
            return (n, 0);
        }
        let n = d.div_ceil(self.step);
        let needed = n.saturating_sub(1).saturating_mul(self.step);
        (n, needed.saturating_add(self.size).saturating_sub(d) / 2)
    }
}

fn windows(attrs: &Attrs) -> Result<[Window; 3]> {
    let same = attrs.str("padding")? == "SAME";
    let list = |name: &str| -> Result<[usize; 3]> {
        match attrs.ints(name)?[..] {
            [1, d, h, w, 1] => {
                let inside = |x: i64| usize::try_from(x).ok().filter(|x| (1..1 << 31).contains(x));
                match [d, h, w].map(inside) {
                    [Some(d), Some(h), Some(w)] => Ok([d, h, w]),
                    _ => Err(out_of_range!("{name} is out of range.")),
                }
            }
            [_, _, _, _, _] => Err(unimplemented_error!("Only support {name} across space.")),
            ref other => Err(invalid_argument!(
                "ExtractVolumePatches requires the {} attribute to contain 5 values, but got: {}",
                name.trim_end_matches(|c| c == 's' && name == "strides"),
                other.len()
            )),
        }
    };
    let (size, step) = (list("ksizes")?, list("strides")?);
    Ok([0, 1, 2].map(|i| Window {
        size: size[i],
        step: step[i],
        same,
    }))
}

fn patches_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let windows = windows(ctx.attrs())?;
    let s = ctx.with_rank(0, 5)?;
    let taps = windows
        .iter()
        .try_fold(1usize, |n, w| n.checked_mul(w.size));
    let depth = taps.zip(s.dim(4)).and_then(|(t, c)| t.checked_mul(c));
    let of = |i: usize| s.dim(i as isize + 1).map(|d| windows[i].over(d).0);
    ctx.set(0, PartialShape::of([s.dim(0), of(0), of(1), of(2), depth]));
    Ok(())
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let windows = windows(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let &[batch, d, h, w, c] = input.shape().dims() else {
            return Err(invalid_argument!(
                "input must be 5-dimensional{}",
                input.shape()
            ));
        };
        let [(od, front), (oh, top), (ow, left)] =
            [(0, d), (1, h), (2, w)].map(|(i, n)| windows[i].over(n));
        let taps = windows
            .iter()
            .try_fold(c, |n, window| n.checked_mul(window.size));
        let taps = taps.unwrap_or(usize::MAX);
        let mut out = ctx.alloc(input.dtype(), shape_of([batch, od, oh, ow, taps])?)?;
        if out.num_elements() > 0 {
            let patches = Patches {
                windows,
                before: [front, top, left],
                input: [d, h, w],
                output: [batch, od, oh, ow],
            };
            dispatch_items!(input.dtype(), T => {
                let (from, to) = (input.items::<T>()?, out.items_mut::<T>()?);
                copy_patches(ctx.par(), &patches, [taps, c], from, to);
            });
        }
        ctx.set_output(0, out)
    }))
}

struct Patches {
    windows: [Window; 3],
    before: [usize; 3],
    input: [usize; 3],
    output: [usize; 4],
}

impl Patches {
    /// Returns the input pixel of an element of the patch of output pixel `at`; `None` if there is none.
    fn pixel(&self, at: &[usize; 4], tap: usize) -> Option<usize> {
        let [_, wh, ww] = self.windows;
        let plane = tap / ww.size;
        let taps = [plane / wh.size, plane % wh.size, tap % ww.size];
        (0..3).try_fold(at[0], |place, i| {
            let x = at[1 + i] * self.windows[i].step + taps[i];
            let x = x.checked_sub(self.before[i])?;
            (x < self.input[i]).then_some(place * self.input[i] + x)
        })
    }
}

fn copy_patches<T: Item>(
    par: &dyn Parallelism,
    patches: &Patches,
    [taps, c]: [usize; 2],
    from: &[T],
    to: &mut [T],
) {
    par_rows(par, to, taps, &|row, to| {
        let mut at = [0; 4];
        unravel(row, &patches.output, &mut at);
        for (i, to) in to.chunks_mut(c).enumerate() {
            match patches.pixel(&at, i) {
                Some(pixel) => {
                    let from = from.get(pixel * c..(pixel + 1) * c);
                    to.clone_from_slice(from.unwrap_or_default());
                }
                None => to.fill(T::default()),
            }
        }
    });
}

/// Sums the gradients of patch elements by the place they were taken from. Patches of numbered
/// places tell which; those of padding are negative and dropped.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, dy) = (g.x(0), g.dy(0));
    let attrs = ["ksizes", "strides", "padding"].map(|name| g.attr(name));
    let (own, its) = (x.shape_of(), dy.op("Shape", &[]));
    fn part(v: Expr, i: i32) -> Expr {
        v.op("Gather", &[v.int(i)])
    }
    let [n, d, h, w, c] = [0, 1, 2, 3, 4].map(|i| part(own, i));
    let one = x.int(1);
    let total = d * h * w;
    let places = one.op("Range", &[total + one, one]);
    let places = places.reshape(pack(&[one, d, h, w, one]));
    let places = places.op_with("ExtractVolumePatches", &[], &attrs);
    let ids = places.reshape(x.ints([-1])) - one;
    let spots = part(its, 1) * part(its, 2) * part(its, 3);
    let came = dy.reshape(pack(&[
        n,
        spots * part(its, 4).op("FloorDiv", &[c.op("Maximum", &[one])]),
        c,
    ]));
    let came = came.op("Transpose", &[x.ints([1, 0, 2])]);
    let came = came.reshape(pack(&[x.int(-1), n * c]));
    let sums = came.op("UnsortedSegmentSum", &[ids, total]);
    let sums = sums.reshape(pack(&[d, h, w, n, c]));
    g.set(0, sums.op("Transpose", &[x.ints([3, 0, 1, 2, 4])]))
}
