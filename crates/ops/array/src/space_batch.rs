//! SpaceToDepth, DepthToSpace, SpaceToBatch, BatchToSpace, and their ND forms (TensorFlow:
//! `core/kernels/spacetodepth_op.cc`, `spacetobatch_op.cc` and `batchtospace_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Ints, constant, shape_of};
use ferroflow_functors::strided::{Strided, par_rows, unravel};
use ferroflow_opdef::{Attrs, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Item, PartialShape, dispatch_items};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SpaceToDepth",
        "input: T -> output: T | T: type; block_size: int >= 2; \
         data_format: string {'NHWC','NCHW','NCHW_VECT_C'} = 'NHWC'",
    )
    .shape(|ctx| depth_shape(ctx, true))
    .kernel(|b| depth(b, true))
    .gradient(depth_gradient),
    Op::new(
        "DepthToSpace",
        "input: T -> output: T | T: type; block_size: int >= 2; \
         data_format: string {'NHWC','NCHW','NCHW_VECT_C'} = 'NHWC'",
    )
    .shape(|ctx| depth_shape(ctx, false))
    .kernel(|b| depth(b, false))
    .gradient(depth_gradient),
    Op::new(
        "SpaceToBatchND",
        "input: T, block_shape: Tblock_shape, paddings: Tpaddings -> output: T | T: \
         type; Tblock_shape: type {int32,int64} = int32; Tpaddings: type {int32,int64} \
         = int32",
    )
    .shape(|ctx| batch_shape(ctx, true))
    .kernel(|b| batch(b, true))
    .gradient(batch_gradient),
    Op::new(
        "SpaceToBatch",
        "input: T, paddings: Tpaddings -> output: T | T: type; \
         Tpaddings: type {int32,int64} = int32; block_size: int >= 2",
    )
    .shape(|ctx| batch_shape(ctx, true))
    .kernel(|b| batch(b, true))
    .gradient(old_batch_gradient),
    Op::new(
        "BatchToSpaceND",
        "input: T, block_shape: Tblock_shape, crops: Tcrops -> output: T | T: type; \
         Tblock_shape: type {int32,int64} = int32; Tcrops: type {int32,int64} = int32",
    )
    .shape(|ctx| batch_shape(ctx, false))
    .kernel(|b| batch(b, false))
    .gradient(batch_gradient),
    Op::new(
        "BatchToSpace",
        "input: T, crops: Tidx -> output: T | T: type; block_size: int >= 2; \
         Tidx: type {int32,int64} = int32",
    )
    .shape(|ctx| batch_shape(ctx, false))
    .kernel(|b| batch(b, false))
    .gradient(old_batch_gradient),
];

/// Returns the block size and whether channels come first.
fn block_attrs(attrs: &Attrs) -> Result<(usize, bool)> {
    let block = attrs.int("block_size")?;
    let block = usize::try_from(block)
        .ok()
        .filter(|&b| b > 1 && b < 1 << 20);
    let Some(block) = block else {
        return Err(invalid_argument!(
            "Block size should be > 1: {}",
            attrs.int("block_size")?
        ));
    };
    match attrs.str("data_format")? {
        "NHWC" => Ok((block, false)),
        "NCHW" => Ok((block, true)),
        other => Err(invalid_argument!(
            "Only NHWC and NCHW data_format supported on CPU. Got {other}"
        )),
    }
}

/// Returns batch, height, width and channels after moving blocks into (`pack`) or out of the
/// channels.
fn moved(dims: [Option<usize>; 4], block: usize, pack: bool) -> Result<[Option<usize>; 4]> {
    let [n, h, w, c] = dims;
    let fits = |d: Option<usize>, by: usize| d.is_none_or(|d| d.is_multiple_of(by));
    let known = |d: Option<usize>| d.map_or("?".to_string(), |d| d.to_string());
    if pack && !(fits(h, block) && fits(w, block)) {
        return Err(invalid_argument!(
            "Image width {} and height {} should be divisible by block_size: {block}",
            known(w),
            known(h)
        ));
    }
    if !pack && !fits(c, block * block) {
        return Err(invalid_argument!(
            "Input depth dimension {} should be divisible by: {}",
            known(c),
            block * block
        ));
    }
    let divided = |d: Option<usize>, by: usize| d.map(|d| d / by);
    let times = |d: Option<usize>, by: usize| d.and_then(|d| d.checked_mul(by));
    Ok(match pack {
        true => [
            n,
            divided(h, block),
            divided(w, block),
            times(c, block * block),
        ],
        false => [
            n,
            times(h, block),
            times(w, block),
            divided(c, block * block),
        ],
    })
}

fn depth_shape(ctx: &mut ShapeCtx, pack: bool) -> Result<()> {
    let (block, first) = block_attrs(ctx.attrs())?;
    let s = ctx.with_rank(0, 4)?;
    let order = if first { [0, 2, 3, 1] } else { [0, 1, 2, 3] };
    let [n, h, w, c] = moved(order.map(|i| s.dim(i)), block, pack)?;
    ctx.set(
        0,
        PartialShape::of(if first { [n, c, h, w] } else { [n, h, w, c] }),
    );
    Ok(())
}

pub(crate) fn depth(build: &KernelBuild, pack: bool) -> Result<Box<dyn OpKernel>> {
    if build.attrs.str("data_format")? == "NCHW_VECT_C" {
        return Err(build.unsupported(build.input(0)?));
    }
    let (block, first) = block_attrs(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let s = input.shape();
        if s.rank() != 4 {
            let rank = s.rank();
            return Err(match pack {
                true => invalid_argument!("Input rank should be 4 instead of {rank}"),
                false => invalid_argument!("Input rank should be: 4 instead of: {rank}"),
            });
        }
        let order = if first { [0, 2, 3, 1] } else { [0, 1, 2, 3] };
        let [n, h, w, c] = moved(order.map(|i| Some(s[i])), block, pack)?.map(|d| d.unwrap_or(0));
        let shape = shape_of(if first { [n, c, h, w] } else { [n, h, w, c] })?;
        // Input and output seen as batch, coarse rows, block rows, coarse columns, block
        // columns and channels: (size, input stride).
        let strides = s.strides();
        let [sn, sh, sw, sc] = order.map(|i| strides[i] as isize);
        let b = block;
        let view = if pack {
            let (rows, row) = ((h, sh * b as isize), (b, sh));
            let (cols, col) = ((w, sw * b as isize), (b, sw));
            let depth = (c / (b * b), sc);
            match first {
                true => Strided::new(0, [(n, sn), row, col, depth, rows, cols]),
                false => Strided::new(0, [(n, sn), rows, cols, row, col, depth]),
            }
        } else {
            let (rows, cols, depth) = ((h / b, sh), (w / b, sw), (c, sc));
            let (row, col) = ((b, sc * (b * c) as isize), (b, sc * c as isize));
            match first {
                true => Strided::new(0, [(n, sn), depth, rows, row, cols, col]),
                false => Strided::new(0, [(n, sn), rows, row, cols, col, depth]),
            }
        };
        let mut out = ctx.alloc(input.dtype(), shape)?;
        view.gather(ctx.par(), input, &mut out)?;
        ctx.set_output(0, out)
    }))
}

/// Block sizes and margins (paddings or crops), one for each spatial dimension.
struct Blocks {
    blocks: SmallVec<[usize; 4]>,
    margins: SmallVec<[(usize, usize); 4]>,
}

impl Blocks {
    fn new(blocks: &[i64], margins: &[i64]) -> Result<Self> {
        if margins.len() != 2 * blocks.len() {
            return Err(invalid_argument!(
                "paddings or crops should have shape [{}, 2] instead of {} elements",
                blocks.len(),
                margins.len()
            ));
        }
        let size =
            |v: i64, min: usize| usize::try_from(v).ok().filter(|&v| v >= min && v < 1 << 40);
        let blocks = blocks
            .iter()
            .enumerate()
            .map(|(i, &b)| {
                size(b, 1).ok_or_else(|| {
                    invalid_argument!(
                        "All values in block_shape must be positive, got value, {b} at index {i}."
                    )
                })
            })
            .collect::<Result<_>>()?;
        let margins = margins
            .chunks_exact(2)
            .map(|m| {
                size(m[0], 0).zip(size(m[1], 0)).ok_or_else(|| {
                    invalid_argument!("Paddings must be non-negative: {} {}", m[0], m[1])
                })
            })
            .collect::<Result<_>>()?;
        Ok(Blocks { blocks, margins })
    }

    /// Returns the output's dimensions for an input with `dims`.
    fn apply(&self, dims: &[Option<usize>], to_batch: bool) -> Result<Vec<Option<usize>>> {
        check_rank(dims.len(), self.blocks.len())?;
        let product = self
            .blocks
            .iter()
            .try_fold(1usize, |p, &b| p.checked_mul(b));
        let Some(product) = product else {
            return Err(invalid_argument!(
                "Product of block sizes must be positive and not overflow"
            ));
        };
        let mut out = dims.to_vec();
        let too_large = || invalid_argument!("dimensions overflow");
        if to_batch {
            out[0] = match dims[0] {
                Some(d) => Some(d.checked_mul(product).ok_or_else(too_large)?),
                None => None,
            };
        } else if let Some(d) = dims[0] {
            if !d.is_multiple_of(product) {
                return Err(invalid_argument!(
                    "Input batch dimension ({d}) is not divisible by product of block sizes ({product})"
                ));
            }
            out[0] = Some(d / product);
        }
        for (i, (&b, m)) in self.blocks.iter().zip(&self.margins).enumerate() {
            let Some(d) = dims[1 + i] else { continue };
            out[1 + i] = Some(if to_batch {
                let padded = d.checked_add(m.0 + m.1).ok_or_else(too_large)?;
                if !padded.is_multiple_of(b) {
                    return Err(invalid_argument!(
                        "padded_shape[{i}]={padded} is not divisible by block_shape[{i}]={b}"
                    ));
                }
                padded / b
            } else {
                let full = d.checked_mul(b).ok_or_else(too_large)?;
                full.checked_sub(m.0 + m.1).ok_or_else(|| {
                    invalid_argument!(
                        "cropped_shape[{i}]={} must be non-negative",
                        full as i64 - (m.0 + m.1) as i64
                    )
                })?
            });
        }
        Ok(out)
    }
}

fn check_rank(rank: usize, spatial: usize) -> Result<()> {
    match rank > spatial {
        true => Ok(()),
        false => Err(invalid_argument!(
            "input rank should be >= {} instead of {rank}",
            1 + spatial
        )),
    }
}

/// Spatial dimensions of the older ops, whose block size is an attr.
const OLD_SPATIAL: usize = 2;

fn batch_shape(ctx: &mut ShapeCtx, to_batch: bool) -> Result<()> {
    let nd = ctx.num_inputs() > 2;
    let input = ctx.input(0);
    let blocks = match nd {
        true => constant(ctx, 1),
        false => Some(Ints::from_elem(ctx.attrs().int("block_size")?, OLD_SPATIAL)),
    };
    let margins = constant(ctx, if nd { 2 } else { 1 });
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let shape = match (blocks, margins) {
        (Some(b), Some(m)) => PartialShape::of(Blocks::new(&b, &m)?.apply(dims, to_batch)?),
        (Some(b), None) => indices::partial(dims.len(), |i| dims[i].filter(|_| i > b.len())),
        _ => PartialShape::of_rank(dims.len()),
    };
    ctx.set(0, shape);
    Ok(())
}

fn batch(build: &KernelBuild, to_batch: bool) -> Result<Box<dyn OpKernel>> {
    let old_block = build.attrs.int("block_size").ok();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let rank = ctx.shape(0)?.rank();
        let (blocks, margins) = match old_block {
            Some(_) if rank != 4 => {
                return Err(invalid_argument!(
                    "Input rank should be: 4instead of: {rank}"
                ));
            }
            Some(b) => (Ints::from_elem(b, OLD_SPATIAL), ctx.input(1)?),
            None => {
                if ctx.shape(1)?.rank() != 1 {
                    return Err(invalid_argument!(
                        "block_shape rank should be 1 instead of {}",
                        ctx.shape(1)?.rank()
                    ));
                }
                (indices::ints(ctx.input(1)?)?, ctx.input(2)?)
            }
        };
        check_rank(rank, blocks.len())?;
        let m = margins.shape();
        if m.rank() != 2 || m[0] != blocks.len() || m[1] != 2 {
            return Err(invalid_argument!(
                "{} should have shape [{}, 2] instead of {m}",
                if to_batch { "paddings" } else { "crops" },
                blocks.len()
            ));
        }
        let blocks = Blocks::new(&blocks, &indices::ints(margins)?)?;
        let dtype = ctx.input(0)?.dtype();
        dispatch_items!(dtype, T => move_blocks::<T>(ctx, &blocks, to_batch))
    }))
}

fn move_blocks<T: Item>(ctx: &mut KernelCtx, b: &Blocks, to_batch: bool) -> Result<()> {
    let input = ctx.input(0)?;
    let dims: SmallVec<[Option<usize>; 6]> = input.shape().iter().map(|&d| Some(d)).collect();
    let out_shape = shape_of(
        b.apply(&dims, to_batch)?
            .into_iter()
            .map(|d| d.unwrap_or(0)),
    )?;
    let spatial = b.blocks.len();
    let shape = input.shape();
    let inner: usize = shape[1 + spatial..].iter().product();
    // The batch of the side with blocks in it is (block entries, batch of the other side).
    let small_batch = shape[0].min(out_shape[0]).max(1);
    let mut out = ctx.alloc(input.dtype(), out_shape.clone())?;
    let from = input.items::<T>()?;
    // Lines are along the last spatial dimension; without one, the batch is.
    let (outer, columns) = match spatial {
        0 => (0, 0),
        _ => (spatial - 1, shape[spatial]),
    };
    let (block, (margin, _)) = match (b.blocks.last(), b.margins.last()) {
        (Some(&block), Some(&margins)) => (block, margins),
        _ => {
            out.items_mut::<T>()?.clone_from_slice(from);
            return ctx.set_output(0, out);
        }
    };
    let line = out_shape[spatial] * inner;
    let lines_of_image: usize = shape[1..spatial].iter().product();
    par_rows(ctx.par(), out.items_mut::<T>()?, line, &|row, to| {
        let mut at = SmallVec::<[usize; 6]>::from_elem(0, spatial);
        unravel(row, &out_shape[..spatial], &mut at);
        if to_batch {
            let mut entry = SmallVec::<[usize; 6]>::from_elem(0, spatial);
            unravel(at[0] / small_batch, &b.blocks, &mut entry);
            let source = (0..outer).try_fold(at[0] % small_batch, |s, i| {
                let x = (at[1 + i] * b.blocks[i] + entry[i]).checked_sub(b.margins[i].0)?;
                (x < shape[1 + i]).then_some(s * shape[1 + i] + x)
            });
            let Some(source) = source else {
                return to.fill(T::default());
            };
            // Input column x * block + entry - margin.
            let entry = entry[outer];
            let n = to.len() / inner.max(1);
            let start = margin.saturating_sub(entry).div_ceil(block).min(n);
            let end = (columns + margin).saturating_sub(entry).div_ceil(block);
            let end = end.clamp(start, n);
            let first = source * columns + (start * block + entry).saturating_sub(margin);
            to[..start * inner].fill(T::default());
            to[end * inner..].fill(T::default());
            let to = &mut to[start * inner..end * inner];
            move_pixels(
                inner,
                &from[(first * inner).min(from.len())..],
                block,
                to,
                1,
            );
        } else {
            let full = |i: usize| at[1 + i] + b.margins[i].0;
            let entry = (0..outer).fold(0, |e, i| e * b.blocks[i] + full(i) % b.blocks[i]);
            let place = (0..outer).fold(0, |s, i| s * shape[1 + i] + full(i) / b.blocks[i]);
            for x in 0..block.min(to.len() / inner.max(1)) {
                let (entry, column) = (entry * block + (margin + x) % block, (margin + x) / block);
                let image = entry * small_batch + at[0];
                let first = ((image * lines_of_image + place) * columns + column) * inner;
                move_pixels(inner, &from[first..], 1, &mut to[x * inner..], block);
            }
        }
    });
    ctx.set_output(0, out)
}

/// Copies pixels of `inner` elements until `to` ends: every `from_step`th one to every `to_step`th one.
fn move_pixels<T: Item>(inner: usize, from: &[T], from_step: usize, to: &mut [T], to_step: usize) {
    match inner {
        1 => move_pixels_of::<T, 1>(from, from_step, to, to_step),
        2 => move_pixels_of::<T, 2>(from, from_step, to, to_step),
        3 => move_pixels_of::<T, 3>(from, from_step, to, to_step),
        4 => move_pixels_of::<T, 4>(from, from_step, to, to_step),
        _ => {
            let from = from.chunks(inner).step_by(from_step);
            for (to, from) in to.chunks_mut(inner).step_by(to_step).zip(from) {
                to.clone_from_slice(from);
            }
        }
    }
}

fn move_pixels_of<T: Item, const N: usize>(
    from: &[T],
    from_step: usize,
    to: &mut [T],
    to_step: usize,
) {
    let from = from.as_chunks::<N>().0.iter().step_by(from_step);
    let to = to.as_chunks_mut::<N>().0.iter_mut().step_by(to_step);
    for (to, from) in to.zip(from) {
        to.clone_from(from);
    }
}

/// Returns the inverse op.
fn inverse(op: &str) -> &'static str {
    match op {
        "SpaceToDepth" => "DepthToSpace",
        "DepthToSpace" => "SpaceToDepth",
        "SpaceToBatchND" => "BatchToSpaceND",
        "BatchToSpaceND" => "SpaceToBatchND",
        "SpaceToBatch" => "BatchToSpace",
        _ => "SpaceToBatch",
    }
}

fn depth_gradient(g: &mut GradientCtx) -> Result<()> {
    let attrs = [g.attr("block_size"), g.attr("data_format")];
    let dx = g.dy(0).op_with(inverse(g.op_name()), &[], &attrs);
    g.set(0, dx)
}

fn batch_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op(inverse(g.op_name()), &[g.x(1), g.x(2)]);
    g.set(0, dx)
}

fn old_batch_gradient(g: &mut GradientCtx) -> Result<()> {
    let attrs = [g.attr("block_size")];
    let dx = g.dy(0).op_with(inverse(g.op_name()), &[g.x(1)], &attrs);
    g.set(0, dx)
}

pub(crate) fn pack<'g, const N: usize>(parts: &[Expr<'g>; N]) -> Expr<'g> {
    parts[0].make("Pack", parts, &[])
}
