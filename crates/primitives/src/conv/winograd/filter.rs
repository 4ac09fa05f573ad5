//! Transformed filters: a matrix of channels for each position of a tile.
//!
//! A transformed 3×3 filter is 16/9 as large. One with many channels is stored by its positions
//! instead, as in a direct convolution, and transformed panel by panel by each task that multiplies
//! by it: with few tiles reading a large filter takes longer than transforming it.

use super::tile::FilterJob;
use super::{WinogradTransform, panel_width};
use crate::aligned::SendPtr;
use crate::conv::Conv2dShape;
use crate::gemm::PackedB;
use crate::table::DispatchTable;
use ferroflow_sync::{Parallelism, parallel_for};
use std::ops::Range;

/// Pairs of an input and an output channel from which a filter is transformed on use.
const MANY_CHANNELS: usize = 256 * 256;
/// Elements of a filter that are transformed at a time.
const PACKED_TOGETHER: usize = 64 << 10;

/// Returns whether the filter of a convolution is stored by its positions.
pub(in crate::conv) fn transforms_on_use(s: &Conv2dShape) -> bool {
    s.in_c.saturating_mul(s.out_c) >= MANY_CHANNELS
}

/// Transforms `n` filters, whose elements at position `i` begin at `position(i)`.
///
/// # Safety
/// `dst` is valid for `n` elements of each plane, which are `plane` elements apart.
unsafe fn transform_filters<'a>(
    table: &DispatchTable,
    transform: &WinogradTransform,
    position: impl Fn(usize) -> &'a [f32],
    n: usize,
    dst: *mut f32,
    plane: usize,
) {
    let n_positions = transform.filter_size * transform.filter_size;
    let positions: [SendPtr<f32>; 25] = std::array::from_fn(|i| match i < n_positions {
        true => SendPtr(position(i)[..n].as_ptr().cast_mut()),
        false => SendPtr(std::ptr::null_mut()),
    });
    let job = FilterJob {
        positions: positions.as_ptr(),
        n,
        dst,
        plane,
    };
    // SAFETY: the positions are checked slices; the rest is the caller's promise.
    unsafe { (table.winograd_filter[transform.index])(&job) };
}

/// Returns the transformed filter: a matrix for each position of a tile.
pub(in crate::conv) fn pack(
    par: &dyn Parallelism,
    transform: &WinogradTransform,
    filter: &[f32],
    in_c: usize,
    out_c: usize,
) -> Vec<PackedB> {
    // A few channels at a time, whose planes stay in the cache.
    let table = DispatchTable::current();
    let channels = (PACKED_TOGETHER / (transform.planes() * out_c)).clamp(1, in_c.max(1));
    PackedB::from_row_blocks(
        par,
        [transform.planes(), in_c, out_c],
        channels,
        &|rows, to| {
            let position = |i: usize| &filter[(i * in_c + rows.start) * out_c..];
            let n = rows.len() * out_c;
            assert!(to.len() >= transform.planes() * n, "planes: too short");
            // SAFETY: just checked.
            unsafe { transform_filters(table, transform, position, n, to.as_mut_ptr(), n) };
        },
    )
}

/// Returns a matrix for each position of a filter.
pub(in crate::conv) fn pack_positions(
    par: &dyn Parallelism,
    transform: &WinogradTransform,
    filter: &[f32],
    in_c: usize,
    out_c: usize,
) -> Vec<PackedB> {
    (0..transform.filter_size * transform.filter_size)
        .map(|i| PackedB::from_rows(par, &filter[i * in_c * out_c..], out_c, in_c, out_c))
        .collect()
}

/// Elements of a panel's planes that are transformed and multiplied at a time: 256 KB, which stay in the
/// second-level cache.
const TRANSFORMED_TOGETHER: usize = 64 << 10;

/// Elements up to which a whole filter is transformed at once.
const WHOLE: usize = 8 << 20;

/// Returns the number of blocks of rows that the panels of a filter are transformed in.
pub(super) fn row_blocks(transform: &WinogradTransform, filter: &[PackedB]) -> usize {
    let rows = TRANSFORMED_TOGETHER / (transform.planes() * panel_width(filter));
    filter.first().map_or(0, |f| f.k().div_ceil(rows.max(1)))
}

/// Returns whether a filter that is stored by its positions may be transformed at once.
pub(super) fn is_small(transform: &WinogradTransform, filter: &[PackedB]) -> bool {
    let elements = |f: &PackedB| transform.planes() * f.k() * f.n();
    filter.first().is_some_and(|f| elements(f) <= WHOLE)
}

/// Returns the rows of a transformed panel: one more than those that are multiplied, so that the planes
/// do not map to the same cache set.
fn spaced(rows: usize) -> usize {
    rows + 1
}

/// Calls `f` with a matrix whose panels are these rows of this panel of each plane of the transformed
/// filter.
pub(super) fn with_transformed_rows(
    table: &DispatchTable,
    transform: &WinogradTransform,
    filter: &[PackedB],
    panel: usize,
    rows: Range<usize>,
    f: impl FnOnce(&PackedB),
) {
    let Some(first) = filter.first() else { return };
    let (width, planes) = (panel_width(filter), transform.planes());
    let (from, n) = (rows.start * width, rows.len() * width);
    first.in_scratch_alike(spaced(rows.len()), planes * width, |panels| {
        let (to, plane) = (panels.alloc(), spaced(rows.len()) * width);
        assert!(to.len() >= planes * plane, "planes: too short");
        let position = |i: usize| &filter[i].panel(panel)[from..];
        // SAFETY: just checked.
        unsafe { transform_filters(table, transform, position, n, to.as_mut_ptr(), plane) };
        f(panels);
    });
}

/// Calls `f` with one matrix of all planes of the transformed filter, whose columns are side by
/// side, and the number of panels of a plane.
pub(super) fn with_transformed(
    par: &dyn Parallelism,
    transform: &WinogradTransform,
    filter: &[PackedB],
    f: &dyn Fn(&PackedB, usize),
) {
    let table = DispatchTable::current();
    let Some(first) = filter.first() else { return };
    let (rows, panels, width) = (spaced(first.k()), first.panels(), panel_width(filter));
    let (planes, n, size) = (transform.planes(), first.k() * width, rows * width);
    first.in_scratch_alike(rows, planes * panels * width, |all| {
        let to: &mut [f32] = all.alloc();
        assert!(to.len() >= planes * panels * size, "planes: too short");
        let to = SendPtr(to.as_mut_ptr());
        parallel_for(par, panels, 1, &|range| {
            for panel in range {
                let position = |i: usize| filter[i].panel(panel);
                let dst = to.get().wrapping_add(panel * size);
                // SAFETY: a panel of each plane of the matrix just made, which is visited once.
                unsafe { transform_filters(table, transform, position, n, dst, panels * size) };
            }
        });
        f(all, panels);
    });
}
