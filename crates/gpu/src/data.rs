//! Moving elements: transposes, slices, parts and joins, broadcasts, fills.

use crate::elementwise::grid;
use crate::kernel::{GpuCtx, GpuKernel, Row, axis, int};
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_device::{Grid, TensorArg};
use ferroflow_functors::shapes::permutation;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

/// What is moved on the device.
pub(crate) const MOVED: &[DType] = &[
    DType::Float,
    DType::Half,
    DType::Bfloat16,
    DType::Double,
    DType::Int32,
    DType::Int64,
    DType::Bool,
];
pub(crate) const T: &[(&str, &[DType])] = &[("T", MOVED)];

pub(crate) const ROWS: &[Row] = &[
    Row::new("Transpose", transpose).types(T).host(&["perm"]),
    Row::new("ConcatV2", concat).types(T).host(&["axis"]),
    Row::new("Pack", pack).types(T),
    Row::new("Unpack", unpack).types(T),
    Row::new("Split", split).types(T).host(&["split_dim"]),
    Row::new("SplitV", split_v)
        .types(T)
        .host(&["size_splits", "split_dim"]),
    Row::new("BroadcastTo", broadcast_to)
        .types(T)
        .host(&["shape"]),
    Row::new("Tile", tile).types(T).host(&["multiples"]),
    Row::new("ZerosLike", zeros_like).types(T),
];

/// Dimensions that a launch copies; those outside of them are a loop of launches.
const MAX_RANK: usize = 6;

/// A copy between two strided ranges of elements of the same extents, outermost first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Copy {
    /// Extents, and the distances between elements in the source and in the target.
    dims: SmallVec<[(usize, i64, i64); 6]>,
}

impl Copy {
    pub(crate) fn new(dims: impl IntoIterator<Item = (usize, i64, i64)>) -> Copy {
        let mut copy = Copy::default();
        for (n, from, to) in dims.into_iter().filter(|(n, ..)| *n != 1) {
            match copy.dims.last_mut() {
                Some((outer, a, b)) if *a == from * n as i64 && *b == to * n as i64 => {
                    (*outer, *a, *b) = (*outer * n, from, to);
                }
                _ => copy.dims.push((n, from, to)),
            }
        }
        copy
    }

    fn count(&self) -> usize {
        self.dims.iter().map(|(n, ..)| n).product()
    }

    /// The same copy in units of `n` elements, if all of it is made of such units.
    fn in_units(&self, n: usize) -> Option<Copy> {
        let mut copy = self.clone();
        let fits = |stride: i64| stride.unsigned_abs().is_multiple_of(n as u64);
        let Some((inner, 1, 1)) = copy.dims.last_mut() else {
            return None;
        };
        if !inner.is_multiple_of(n) {
            return None;
        }
        *inner /= n;
        let last = copy.dims.len() - 1;
        for (_, a, b) in &mut copy.dims[..last] {
            if !fits(*a) || !fits(*b) {
                return None;
            }
            (*a, *b) = (*a / n as i64, *b / n as i64);
        }
        Some(copy)
    }

    /// The copy by tiles, if it transposes.
    fn tiles(&self) -> Option<Tiles> {
        let (&(n, from, 1), outer) = self.dims.split_last()? else {
            return None;
        };
        let at = outer.iter().position(|(_, a, _)| *a == 1 && from != 1)?;
        let (rows, _, row_to) = outer[at];
        let others = outer.iter().enumerate().filter(|(i, _)| *i != at);
        let others: SmallVec<[(usize, i64, i64); 6]> = others.map(|(_, d)| *d).collect();
        let count: usize = others.iter().map(|(n, ..)| n).product();
        // What the grid may have, and what is worth it.
        let fits = others.len() <= 4 && count <= 65_535 && n.div_ceil(TILE) <= 65_535;
        (fits && n.min(rows) >= TILE / 4).then_some(Tiles {
            rows: (rows, row_to),
            columns: (n, from),
            others,
            count,
        })
    }

    /// Enqueues the copy, from element `at` of `x` to element `to` of `y`.
    ///
    /// # Errors
    /// UNIMPLEMENTED if it reaches too far; those of the device.
    pub(crate) fn run(
        &self,
        ctx: &GpuCtx,
        (x, at): (&Tensor, usize),
        (y, to): (&Tensor, usize),
    ) -> Result<()> {
        if self.count() == 0 {
            return Ok(());
        }
        if let Some((n, a, b)) = self.dims.first().filter(|_| self.dims.len() > MAX_RANK) {
            let rest = Copy {
                dims: self.dims[1..].into(),
            };
            let place = |start: usize, i: usize, stride: i64| {
                usize::try_from(start as i64 + i as i64 * stride)
                    .map_err(|_| internal!("a copy leaves its tensor"))
            };
            return (0..*n)
                .try_for_each(|i| rest.run(ctx, (x, place(at, i, *a)?), (y, place(to, i, *b)?)));
        }
        let size = x.dtype().size();
        let address = |t: &Tensor, at: usize| -> Result<u64> {
            Ok(ctx.memory.span(t)?.address.0 + (at * size) as u64)
        };
        let (from, into) = (address(x, at)?, address(y, to)?);
        // Distances may be negative.
        let places = [TensorArg::Within(x, at), TensorArg::Within(y, to)];
        let mut unit = (size, self.clone());
        for bytes in [16, 8, 4, 2] {
            let is_aligned = (from | into).is_multiple_of(bytes as u64);
            if bytes > size
                && is_aligned
                && let Some(copy) = self.in_units(bytes / size)
            {
                unit = (bytes, copy);
                break;
            }
        }
        let (bytes, copy) = unit;
        if let Some(tiles) = copy.tiles() {
            return tiles.run(ctx, places, bytes);
        }
        let mut dims = [(1usize, 0i64, 0i64); MAX_RANK];
        dims[MAX_RANK - copy.dims.len()..].copy_from_slice(&copy.dims);
        let mut args: SmallVec<[TensorArg; 24]> = SmallVec::new();
        args.extend(places);
        args.push(TensorArg::I32(int(copy.count())?));
        push_dims(&mut args, &dims)?;
        ctx.run(&format!("copy_nd_{bytes}"), &grid(copy.count()), &args)
    }
}

/// Rows and columns of a tile.
const TILE: usize = 32;

/// A copy whose rows are contiguous in the source, and whose columns are in the target.
struct Tiles {
    /// Their number, and the distance between them in the target.
    rows: (usize, i64),
    /// Their number, and the distance between them in the source.
    columns: (usize, i64),
    /// The other dimensions, outermost first.
    others: SmallVec<[(usize, i64, i64); 6]>,
    /// The product of their extents.
    count: usize,
}

impl Tiles {
    fn run(&self, ctx: &GpuCtx, places: [TensorArg; 2], bytes: usize) -> Result<()> {
        let ((rows, row_to), (columns, column_from)) = (self.rows, self.columns);
        let mut dims = [(1usize, 0i64, 0i64); 4];
        dims[4 - self.others.len()..].copy_from_slice(&self.others);
        let mut args: SmallVec<[TensorArg; 24]> = SmallVec::new();
        args.extend(places);
        args.extend([TensorArg::I32(int(rows)?), TensorArg::I32(int(columns)?)]);
        args.extend([number(row_to)?, number(column_from)?]);
        push_dims(&mut args, &dims)?;
        let blocks = [rows.div_ceil(TILE), columns.div_ceil(TILE), self.count];
        let grid = Grid {
            blocks: blocks.map(|n| n as u32),
            threads: [TILE as u32, 8, 1],
            shared_bytes: 0,
        };
        ctx.run(&format!("transpose_{bytes}"), &grid, &args)
    }
}

/// Adds dimensions as kernels take them: all extents but the first, then the distances in the source and in the target.
fn push_dims(args: &mut SmallVec<[TensorArg; 24]>, dims: &[(usize, i64, i64)]) -> Result<()> {
    for (n, ..) in &dims[1..] {
        args.push(TensorArg::I32(int(*n)?));
    }
    for (_, a, _) in dims {
        args.push(number(*a)?);
    }
    for (.., b) in dims {
        args.push(number(*b)?);
    }
    Ok(())
}

/// A distance as kernels take it.
fn number(v: i64) -> Result<TensorArg<'static>> {
    let fits = i32::try_from(v).map(TensorArg::I32);
    fits.map_err(|_| unimplemented_error!("GPU kernels reach 2^31 elements"))
}

fn signed(strides: &[usize]) -> impl Iterator<Item = i64> + '_ {
    strides.iter().map(|s| *s as i64)
}

/// Returns `x` with its dimensions in another order.
///
/// # Errors
/// Those of the device.
pub(crate) fn transposed(ctx: &GpuCtx, x: &Tensor, perm: &[usize]) -> Result<Tensor> {
    let shape: Shape = perm.iter().map(|p| x.shape()[*p]).collect();
    let order: Vec<usize> = perm
        .iter()
        .copied()
        .filter(|p| x.shape()[*p] != 1)
        .collect();
    if order.is_sorted() {
        return x.clone().with_shape(shape);
    }
    let y = ctx.alloc(x.dtype(), shape)?;
    let (from, to) = (x.shape().strides(), y.shape().strides());
    let dims = perm.iter().zip(signed(&to));
    let copy = Copy::new(dims.map(|(p, to)| (x.shape()[*p], from[*p] as i64, to)));
    copy.run(ctx, (x, 0), (&y, 0))?;
    Ok(y)
}

/// Returns `x` broadcast to a shape, to which it fits.
///
/// # Errors
/// Those of the device.
pub(crate) fn broadcast(ctx: &GpuCtx, x: &Tensor, shape: &Shape) -> Result<Tensor> {
    let y = ctx.alloc(x.dtype(), shape.clone())?;
    let (own, strides, to) = (x.shape(), x.shape().strides(), y.shape().strides());
    let lead = shape.rank() - own.rank();
    let from = |d: usize| match d.checked_sub(lead) {
        Some(i) if own[i] != 1 => strides[i] as i64,
        _ => 0,
    };
    let copy = Copy::new((0..shape.rank()).map(|d| (shape[d], from(d), to[d] as i64)));
    copy.run(ctx, (x, 0), (&y, 0))?;
    Ok(y)
}

/// Returns a tensor whose address is one of whole buffers, as libraries expect: a part of a tensor is copied.
///
/// # Errors
/// Those of the device.
pub(crate) fn aligned(ctx: &GpuCtx, t: Tensor) -> Result<Tensor> {
    const ALIGNMENT: u64 = 256;
    if ctx.memory.span(&t)?.address.0.is_multiple_of(ALIGNMENT) {
        return Ok(t);
    }
    let copy = ctx.alloc(t.dtype(), t.shape().clone())?;
    ctx.memory.copy_tensor(&copy, &t)?;
    Ok(copy)
}

/// Fills a new tensor with zeros.
///
/// # Errors
/// Those of the device.
pub(crate) fn zero(ctx: &GpuCtx, y: &Tensor) -> Result<()> {
    ctx.memory.fill(y, &[0])
}

fn transpose(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, perm) = (ctx.input(0)?, ctx.ints(1)?);
        let order = permutation(&perm, x.shape().rank())?;
        let y = transposed(ctx, &x, &order)?;
        ctx.set_output(0, y)
    }))
}

/// Copies `parts` behind one another along a dimension of `y`.
pub(crate) fn join(ctx: &GpuCtx, parts: &[Tensor], along: usize, y: &Tensor) -> Result<()> {
    let inner: usize = y.shape()[along + 1..].iter().product();
    let outer: usize = y.shape()[..along].iter().product();
    let row = (y.shape()[along] * inner) as i64;
    let mut at = 0;
    for part in parts.iter().filter(|p| p.num_elements() > 0) {
        let own = part.num_elements() / outer.max(1);
        let copy = Copy::new([(outer, own as i64, row), (own, 1, 1)]);
        copy.run(ctx, (part, 0), (y, at))?;
        at += own;
    }
    Ok(())
}

fn concat(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let n = ctx.num_inputs() - 1;
        let parts: Vec<Tensor> = (0..n).map(|i| ctx.input(i)).collect::<Result<_>>()?;
        let first = parts[0].shape().clone();
        let wanted = ctx.ints(n)?;
        let [wanted] = wanted[..] else {
            return Err(invalid_argument!("axis must be a scalar"));
        };
        let along = axis(wanted, first.rank()).map_err(|_| {
            invalid_argument!(
                "ConcatOp : Expected concatenating dimensions in the range [-{0}, {0}), but got {wanted}",
                first.rank()
            )
        })?;
        let mut total = 0;
        for (i, part) in parts.iter().enumerate() {
            let same = part.shape().rank() == first.rank()
                && (0..first.rank()).all(|d| d == along || part.shape()[d] == first[d]);
            if !same {
                return Err(invalid_argument!(
                    "ConcatOp : Dimension {along} in both shapes must be equal: shape[0] = {first} vs. shape[{i}] = {}",
                    part.shape()
                ));
            }
            total += part.shape()[along];
        }
        let shape = with_dim(&first, along, total);
        let y = ctx.alloc(parts[0].dtype(), shape)?;
        join(ctx, &parts, along, &y)?;
        ctx.set_output(0, y)
    }))
}

fn with_dim(shape: &Shape, at: usize, n: usize) -> Shape {
    let dims = shape.iter().enumerate();
    dims.map(|(d, own)| if d == at { n } else { *own })
        .collect()
}

fn pack(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let wanted = build.attrs.int("axis")?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let n = ctx.num_inputs();
        let parts: Vec<Tensor> = (0..n).map(|i| ctx.input(i)).collect::<Result<_>>()?;
        let first = parts[0].shape().clone();
        let along = axis(wanted, first.rank() + 1)?;
        if let Some(other) = parts.iter().find(|p| *p.shape() != first) {
            return Err(invalid_argument!(
                "Shapes of all inputs must match: values[0].shape = {first} != {}",
                other.shape()
            ));
        }
        let mut dims = first.to_vec();
        dims.insert(along, n);
        let y = ctx.alloc(parts[0].dtype(), &dims[..])?;
        join(ctx, &parts, along, &y)?;
        ctx.set_output(0, y)
    }))
}

/// Copies the part of length `len` from `start` of dimension `along` on, under another shape.
fn part(
    ctx: &GpuCtx,
    x: &Tensor,
    along: usize,
    (start, len): (usize, usize),
    shape: Shape,
) -> Result<Tensor> {
    let inner: usize = x.shape()[along + 1..].iter().product();
    let outer: usize = x.shape()[..along].iter().product();
    if outer == 1 {
        return x.view(start * inner, shape);
    }
    let y = ctx.alloc(x.dtype(), shape)?;
    let row = (x.shape()[along] * inner) as i64;
    let copy = Copy::new([(outer, row, (len * inner) as i64), (len * inner, 1, 1)]);
    copy.run(ctx, (x, start * inner), (&y, 0))?;
    Ok(y)
}

fn unpack(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let wanted = build.attrs.int("axis")?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let x = ctx.input(0)?;
        let along = axis(wanted, x.shape().rank())?;
        if x.shape()[along] != ctx.num_outputs() {
            return Err(invalid_argument!(
                "Input shape axis {along} must equal {}, got shape {}",
                ctx.num_outputs(),
                x.shape()
            ));
        }
        for i in 0..ctx.num_outputs() {
            let mut dims = x.shape().to_vec();
            dims.remove(along);
            let y = part(ctx, &x, along, (i, 1), Shape::from(&dims[..]))?;
            ctx.set_output(i, y)?;
        }
        Ok(())
    }))
}

fn split_along(
    ctx: &mut GpuCtx,
    x: &Tensor,
    wanted: i64,
    lens: impl Fn(usize) -> Result<Vec<usize>>,
) -> Result<()> {
    let along = axis(wanted, x.shape().rank())?;
    let mut start = 0;
    for (i, len) in lens(x.shape()[along])?.into_iter().enumerate() {
        let y = part(ctx, x, along, (start, len), with_dim(x.shape(), along, len))?;
        ctx.set_output(i, y)?;
        start += len;
    }
    Ok(())
}

fn split(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (at, x, n) = (ctx.ints(0)?, ctx.input(1)?, ctx.num_outputs());
        let [at] = at[..] else {
            return Err(invalid_argument!("split_dim must be a scalar"));
        };
        split_along(ctx, &x, at, |size| match size.is_multiple_of(n) {
            true => Ok(vec![size / n; n]),
            false => Err(invalid_argument!(
                "Number of ways to split should evenly divide the split dimension, but got split_dim {at} (size = \
                 {size}) and num_split {n}"
            )),
        })
    }))
}

fn split_v(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, sizes, at) = (ctx.input(0)?, ctx.ints(1)?, ctx.ints(2)?);
        let [at] = at[..] else {
            return Err(invalid_argument!("split_dim must be a scalar"));
        };
        split_along(ctx, &x, at, |size| {
            let known = sizes.iter().filter(|s| **s != -1);
            let known = known.fold(0i64, |n, s| n.saturating_add(*s));
            let rest = (size as i64).saturating_sub(known);
            let n_open = sizes.iter().filter(|s| **s == -1).count();
            if rest < 0 || n_open > 1 || (n_open == 0 && rest > 0) || sizes.iter().any(|s| *s < -1)
            {
                return Err(invalid_argument!(
                    "Determined shape must either match input shape along split_dim exactly if fully specified, or be \
                     less than the size of the input along split_dim if not fully specified. Got: {known}"
                ));
            }
            Ok(sizes
                .iter()
                .map(|s| if *s == -1 { rest } else { *s } as usize)
                .collect())
        })
    }))
}

fn broadcast_to(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, shape) = (ctx.input(0)?, ctx.shape_of(1)?);
        let own = x.shape();
        let fits = own.rank() <= shape.rank()
            && own
                .iter()
                .rev()
                .zip(shape.iter().rev())
                .all(|(a, b)| a == b || *a == 1);
        if !fits {
            return Err(invalid_argument!(
                "Incompatible shapes: {} vs. {shape}",
                x.shape()
            ));
        }
        let y = broadcast(ctx, &x, &shape)?;
        ctx.set_output(0, y)
    }))
}

fn tile(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, times) = (ctx.input(0)?, ctx.ints(1)?);
        let rank = x.shape().rank();
        if times.len() != rank {
            return Err(invalid_argument!(
                "Expected multiples argument to be a vector of length {rank} but got length {}",
                times.len()
            ));
        }
        let times = Shape::checked(&times)?;
        let shape: Shape = x
            .shape()
            .iter()
            .zip(times.iter())
            .map(|(n, t)| n.saturating_mul(*t))
            .collect();
        let y = ctx.alloc(x.dtype(), shape)?;
        let (from, to) = (x.shape().strides(), y.shape().strides());
        let dims = (0..rank).flat_map(|d| {
            let n = x.shape()[d];
            [
                (times[d], 0, (n * to[d]) as i64),
                (n, from[d] as i64, to[d] as i64),
            ]
        });
        Copy::new(dims).run(ctx, (&x, 0), (&y, 0))?;
        ctx.set_output(0, y)
    }))
}

fn zeros_like(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let x = ctx.pass(0)?;
        let y = ctx.alloc(x.dtype(), x.shape().clone())?;
        zero(ctx, &y)?;
        ctx.set_output(0, y)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_merge_dimensions_and_elements() {
        // [2, 3, 4, 8] to [2, 4, 3, 8]: the last dimension stays whole.
        let copy = Copy::new([(2, 96, 96), (4, 8, 24), (3, 32, 8), (8, 1, 1)]);
        assert_eq!(copy.dims.len(), 4);
        let units = copy.in_units(4).expect("rows of 8");
        assert_eq!(
            units.dims[..],
            [(2, 24, 24), (4, 2, 6), (3, 8, 2), (2, 1, 1)]
        );
        assert_eq!(copy.in_units(16), None);
        // Contiguous on both sides.
        let copy = Copy::new([(2, 12, 12), (1, 5, 5), (3, 4, 4), (4, 1, 1)]);
        assert_eq!(copy.dims[..], [(24, 1, 1)]);
        assert!(copy.tiles().is_none());
        // [3, 40, 50] to [3, 50, 40] is a transpose, [3, 40, 2] to [3, 2, 40] hardly.
        let transpose = Copy::new([(3, 2000, 2000), (50, 1, 40), (40, 50, 1)]);
        let tiles = transpose.tiles().expect("a transpose");
        assert_eq!((tiles.rows, tiles.columns), ((50, 40), (40, 50)));
        assert_eq!(
            (&tiles.others[..], tiles.count),
            (&[(3, 2000, 2000)][..], 3)
        );
        let narrow = Copy::new([(3, 80, 80), (2, 1, 40), (40, 2, 1)]);
        assert!(narrow.tiles().is_none());
        // A broadcast is not.
        assert_eq!(Copy::new([(2, 0, 3), (3, 1, 1)]).dims.len(), 2);
    }
}
