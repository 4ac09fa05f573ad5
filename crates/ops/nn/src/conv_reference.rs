//! The sizes of convolutions, and plain loops for the numeric types without vector code.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::window::{Layout, Placed, Rules};
use ferroflow_opdef::ShapeCtx;
use ferroflow_primitives::conv::{Conv2dShape, Conv3dShape};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{PartialShape, Shape};
use smallvec::SmallVec;

/// Returns the sizes of a convolution of `input`, in this layout, with a channels-last filter.
pub(crate) fn geometry(
    layout: Layout,
    rules: &Rules,
    input: &Shape,
    filter: &Shape,
) -> Result<Conv3dShape> {
    let rank = layout.rank();
    let is_3d = layout.spatial == 3;
    if input.rank() != rank {
        return Err(match is_3d {
            true => invalid_argument!("input must be 5-dimensional"),
            false => invalid_argument!("convolution input must be {rank}-dimensional: {input}"),
        });
    }
    if filter.rank() != rank && is_3d {
        return Err(invalid_argument!("filter must be 5-dimensional"));
    }
    if filter.rank() != rank {
        return Err(invalid_argument!(
            "convolution filter must be {rank}-dimensional: {filter}"
        ));
    }
    if filter.num_elements() == 0 {
        return Err(invalid_argument!(
            "filter must not have zero elements (i.e. all dimensions must be non-zero)"
        ));
    }
    let (in_c, out_c) = (input[layout.channel()], filter[rank - 1]);
    let groups = n_groups(in_c, filter[rank - 2], out_c)?;
    let mut axes = [Placed::ONE; 3];
    let first = 3 - layout.spatial;
    for (i, axis) in axes[first..].iter_mut().enumerate() {
        *axis = rules[i].place(input[layout.axis(i)], filter[i])?;
    }
    Ok(sizes(input[0], axes, [in_c, out_c, groups]))
}

fn n_groups(in_c: usize, filter_in_c: usize, out_c: usize) -> Result<usize> {
    if in_c == 0 || !in_c.is_multiple_of(filter_in_c.max(1)) || filter_in_c == 0 {
        return Err(invalid_argument!(
            "input depth must be evenly divisible by filter depth: {in_c} vs {filter_in_c}"
        ));
    }
    let groups = in_c / filter_in_c;
    if !out_c.is_multiple_of(groups) {
        return Err(invalid_argument!(
            "output depth must be evenly divisible by number of groups: {out_c} vs {groups}"
        ));
    }
    Ok(groups)
}

/// Returns the sizes in the primitives' form.
pub(crate) fn sizes(batch: usize, axes: [Placed; 3], channels: [usize; 3]) -> Conv3dShape {
    let [d, h, w] = axes;
    let [in_c, out_c, groups] = channels;
    Conv3dShape {
        plane: Conv2dShape {
            batch,
            in_h: h.input,
            in_w: w.input,
            in_c,
            filter_h: h.window,
            filter_w: w.window,
            out_c,
            stride_h: h.stride,
            stride_w: w.stride,
            dil_h: h.dilation,
            dil_w: w.dilation,
            pad_top: h.before,
            pad_left: w.before,
            out_h: h.output,
            out_w: w.output,
            groups,
        },
        in_d: d.input,
        filter_d: d.window,
        stride_d: d.stride,
        dil_d: d.dilation,
        pad_front: d.before,
        out_d: d.output,
    }
}

/// Returns the output's dimensions with channels last.
pub(crate) fn output_dims(layout: Layout, s: &Conv3dShape) -> Vec<usize> {
    let p = &s.plane;
    let all = [p.batch, s.out_d, p.out_h, p.out_w, p.out_c];
    (0..5)
        .filter(|&i| i != 1 || layout.spatial == 3)
        .map(|i| all[i])
        .collect()
}

/// Returns the sizes of the same convolution over an input of one zero per channel, for empty
/// inputs whose output is not empty.
pub(crate) fn over_nothing(s: &Conv3dShape) -> Conv3dShape {
    let mut s = *s;
    (s.in_d, s.plane.in_h, s.plane.in_w) = (1, 1, 1);
    s
}

/// The shape function of convolutions with the filter as input 1; `channels` computes the output
/// channels from those of input and filter.
pub(crate) fn shape(
    ctx: &mut ShapeCtx,
    layout: Layout,
    rules: &Rules,
    channels: fn(Option<usize>, &PartialShape) -> Result<Option<usize>>,
) -> Result<()> {
    let rank = layout.rank();
    let input = ctx.with_rank(0, rank)?;
    let filter = ctx.with_rank(1, rank)?;
    let spatial = (0..layout.spatial)
        .map(|i| rules[i].output(input.dim(layout.axis(i) as isize), filter.dim(i as isize)))
        .collect::<Result<Vec<_>>>()?;
    let out_c = channels(input.dim(layout.channel() as isize), &filter)?;
    let dims = layout.shape(input.dim(0), spatial, out_c);
    ctx.set(0, PartialShape::of(dims));
    Ok(())
}

/// Returns the output channels of a possibly grouped convolution.
pub(crate) fn grouped(in_c: Option<usize>, filter: &PartialShape) -> Result<Option<usize>> {
    let (filter_in_c, out_c) = (filter.dim(-2), filter.dim(-1));
    if let (Some(in_c), Some(filter_in_c)) = (in_c, filter_in_c) {
        n_groups(in_c, filter_in_c, out_c.unwrap_or(0))?;
    }
    Ok(out_c)
}

/// Calls `f(index of the filter pixel, input pixel)` for the input pixels that exist under the
/// window of an output pixel of image `n`.
pub(crate) fn each_offset(
    s: &Conv3dShape,
    [n, z, y, x]: [usize; 4],
    mut f: impl FnMut(usize, usize),
) {
    let p = &s.plane;
    let zs = offsets(z * s.stride_d, s.filter_d, s.dil_d, s.pad_front, s.in_d);
    let ys = offsets(y * p.stride_h, p.filter_h, p.dil_h, p.pad_top, p.in_h);
    let xs = offsets(x * p.stride_w, p.filter_w, p.dil_w, p.pad_left, p.in_w);
    for (kz, iz) in zs {
        for (ky, iy) in ys.clone() {
            let offset = (kz * p.filter_h + ky) * p.filter_w;
            let row = ((n * s.in_d + iz) * p.in_h + iy) * p.in_w;
            for (kx, ix) in xs.clone() {
                f(offset + kx, row + ix);
            }
        }
    }
}

/// Calls `f(output pixel, where its window begins in a line of the input, offsets from there of the pixels under the
/// window)` for the output pixels of image `n`.
#[inline(always)]
pub(crate) fn each_window(s: &Conv3dShape, n: usize, mut f: impl FnMut(usize, usize, &[usize])) {
    let p = &s.plane;
    let (step, line) = (p.dil_w * p.in_c, p.in_w * p.in_c);
    // Input columns under the windows of a line: the first, and how many.
    let columns = (0..p.out_w).map(|x| {
        let mut xs = offsets(x * p.stride_w, p.filter_w, p.dil_w, p.pad_left, p.in_w);
        let first = xs.next();
        first.map_or((0, 0), |(_, first)| (first * p.in_c, 1 + xs.count()))
    });
    let columns: Vec<(usize, usize)> = columns.collect();
    let (mut lines, mut window) = (Vec::new(), Vec::new());
    let mut pixel = n * s.out_d * p.out_h * p.out_w;
    for z in 0..s.out_d {
        for y in 0..p.out_h {
            lines.clear();
            let zs = offsets(z * s.stride_d, s.filter_d, s.dil_d, s.pad_front, s.in_d);
            for (_, iz) in zs {
                let ys = offsets(y * p.stride_h, p.filter_h, p.dil_h, p.pad_top, p.in_h);
                lines.extend(ys.map(|(_, iy)| ((n * s.in_d + iz) * p.in_h + iy) * line));
            }
            let mut width = usize::MAX;
            for &(first, count) in &columns {
                // Most windows of a line are alike.
                if count != width {
                    width = count;
                    window.clear();
                    for at in &lines {
                        window.extend((0..count).map(|i| at + i * step));
                    }
                }
                f(pixel, first, &window);
                pixel += 1;
            }
        }
    }
}

/// Filter pixels and the input pixels under them.
pub(crate) type Offsets = SmallVec<[(usize, usize); 16]>;

/// Sets `window` to what [`each_offset`] calls its function with, for output pixel `i`: for loops that are
/// generic.
pub(crate) fn offsets_of(s: &Conv3dShape, i: usize, window: &mut Offsets) {
    window.clear();
    each_offset(s, pixel(s, i), |tap, from| window.push((tap, from)));
}

/// Returns the positions of a filter whose window starts at `start - pad`, and their input
/// positions, as far as those exist.
pub(crate) fn offsets(
    start: usize,
    filter: usize,
    dilation: usize,
    pad: usize,
    input: usize,
) -> impl Iterator<Item = (usize, usize)> + Clone {
    // Nearly always 1, and divisions are slow.
    let steps = |n: usize| {
        if dilation == 1 {
            n
        } else {
            n.div_ceil(dilation)
        }
    };
    let first = steps(pad.saturating_sub(start));
    let end = steps((input + pad).saturating_sub(start)).min(filter);
    (first..end).map(move |k| (k, start + k * dilation - pad))
}

/// Returns the output pixel with number `i`.
pub(crate) fn pixel(s: &Conv3dShape, i: usize) -> [usize; 4] {
    let p = &s.plane;
    let (row, x) = (i / p.out_w, i % p.out_w);
    let (plane, y) = (row / p.out_h, row % p.out_h);
    [plane / s.out_d, plane % s.out_d, y, x]
}

/// Computes `out = conv(input, filter)`, pixel by pixel.
pub(crate) fn direct<T: Num>(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    input: &[T],
    filter: &[T],
    out: &mut [T],
) {
    let p = &s.plane;
    let (in_c, out_c) = (p.in_c / p.groups, p.out_c / p.groups);
    let offsets = s.filter_d * p.filter_h * p.filter_w;
    let group = (16 * 1024 / (offsets * in_c * p.out_c).max(1)).max(1);
    par_chunks_mut(par, out, p.out_c, group, &|i, out| {
        out.fill(T::ZERO);
        each_offset(s, pixel(s, i), |offset, from| {
            let pixel = &input[from * p.in_c..][..p.in_c];
            let filter = &filter[offset * in_c * p.out_c..][..in_c * p.out_c];
            for (g, pixel) in pixel.chunks_exact(in_c).enumerate() {
                let out = &mut out[g * out_c..][..out_c];
                for (x, filter) in pixel.iter().zip(filter.chunks_exact(p.out_c)) {
                    for (o, f) in out.iter_mut().zip(&filter[g * out_c..]) {
                        *o = o.add(x.mul(*f));
                    }
                }
            }
        });
    });
}

/// Returns the filter positions `k` and output positions that input position `i` of an axis
/// contributes to.
fn origins(
    i: usize,
    window: usize,
    stride: usize,
    dilation: usize,
    pad: usize,
    output: usize,
) -> impl Iterator<Item = (usize, usize)> + Clone {
    (0..window).filter_map(move |k| {
        let start = (i + pad).checked_sub(k * dilation)?;
        (start.is_multiple_of(stride) && start / stride < output).then_some((k, start / stride))
    })
}

/// Calls `f(index of the filter pixel, output pixel)` for the output pixels that an input pixel of
/// image `n` contributes to.
pub(crate) fn each_origin(
    s: &Conv3dShape,
    [n, z, y, x]: [usize; 4],
    mut f: impl FnMut(usize, usize),
) {
    let p = &s.plane;
    let zs = origins(z, s.filter_d, s.stride_d, s.dil_d, s.pad_front, s.out_d);
    let ys = origins(y, p.filter_h, p.stride_h, p.dil_h, p.pad_top, p.out_h);
    let xs = origins(x, p.filter_w, p.stride_w, p.dil_w, p.pad_left, p.out_w);
    for (kz, oz) in zs {
        for (ky, oy) in ys.clone() {
            let offset = (kz * p.filter_h + ky) * p.filter_w;
            let row = ((n * s.out_d + oz) * p.out_h + oy) * p.out_w;
            for (kx, ox) in xs.clone() {
                f(offset + kx, row + ox);
            }
        }
    }
}

/// Returns the input pixel with number `i`.
pub(crate) fn input_pixel(s: &Conv3dShape, i: usize) -> [usize; 4] {
    let p = &s.plane;
    let (row, x) = (i / p.in_w, i % p.in_w);
    let (plane, y) = (row / p.in_h, row % p.in_h);
    [plane / s.in_d, plane % s.in_d, y, x]
}

/// Calls `f(input pixel, output pixel)` for the pairs that filter pixel `offset` connects.
pub(crate) fn each_pair(s: &Conv3dShape, offset: usize, mut f: impl FnMut(usize, usize)) {
    let p = &s.plane;
    let (row, kx) = (offset / p.filter_w, offset % p.filter_w);
    let (kz, ky) = (row / p.filter_h, row % p.filter_h);
    let at = |o: usize, stride: usize, k: usize, dil: usize, pad: usize, input: usize| {
        (o * stride + k * dil)
            .checked_sub(pad)
            .filter(|&i| i < input)
    };
    for n in 0..p.batch {
        for oz in 0..s.out_d {
            let Some(iz) = at(oz, s.stride_d, kz, s.dil_d, s.pad_front, s.in_d) else {
                continue;
            };
            for oy in 0..p.out_h {
                let Some(iy) = at(oy, p.stride_h, ky, p.dil_h, p.pad_top, p.in_h) else {
                    continue;
                };
                let (from, to) = (
                    ((n * s.in_d + iz) * p.in_h + iy) * p.in_w,
                    ((n * s.out_d + oz) * p.out_h + oy) * p.out_w,
                );
                for ox in 0..p.out_w {
                    if let Some(ix) = at(ox, p.stride_w, kx, p.dil_w, p.pad_left, p.in_w) {
                        f(from + ix, to + ox);
                    }
                }
            }
        }
    }
}
