//! Permutation of axes: [`permute`] for elements of any size.

#[cfg(test)]
mod tests;

use super::aligned::SendPtr;
use ferroflow_sync::{Parallelism, parallel_for};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _MM_TRANSPOSE4_PS, _mm_loadu_ps, _mm_shuffle_ps, _mm_storeu_ps, _mm_unpackhi_ps,
    _mm_unpacklo_ps,
};
use std::array;

/// Least elements per task.
const MIN_TASK: usize = 16 * 1024;

/// An axis of the output: its size and its stride in the input, in elements.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    step: usize,
}

/// Computes `dst[i_perm[0], i_perm[1], …] = src[i_0, i_1, …]` for elements of `elem` bytes: axis
/// `i` of the output is axis `perm[i]` of the input.
///
/// # Panics
/// If `perm` is not a permutation of the axes or the slices do not have the length of `shape`.
pub fn permute(
    par: &dyn Parallelism,
    elem: usize,
    shape: &[usize],
    perm: &[usize],
    src: &[u8],
    dst: &mut [u8],
) {
    let total: usize = shape.iter().product();
    assert!(
        src.len() == total * elem && dst.len() == total * elem,
        "permute: {} and {} bytes for {total} elements of {elem}",
        src.len(),
        dst.len(),
    );
    // SAFETY: the lengths are those of the elements.
    unsafe { permute_raw(par, elem, shape, perm, src.as_ptr(), dst.as_mut_ptr()) }
}

/// [`permute`] for elements of a type.
///
/// # Panics
/// As for [`permute`].
pub fn permute_elements<T: Copy + Send + Sync>(
    par: &dyn Parallelism,
    shape: &[usize],
    perm: &[usize],
    src: &[T],
    dst: &mut [T],
) {
    let total: usize = shape.iter().product();
    assert!(
        src.len() == total && dst.len() == total,
        "permute: {} and {} elements, not {total}",
        src.len(),
        dst.len(),
    );
    let (src, dst) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
    // SAFETY: the lengths are those of the elements, which are moved as a whole.
    unsafe { permute_raw(par, size_of::<T>(), shape, perm, src, dst) }
}

/// # Safety
/// Both blocks of memory have elements of `elem` bytes for `shape`; they are disjoint.
unsafe fn permute_raw(
    par: &dyn Parallelism,
    elem: usize,
    shape: &[usize],
    perm: &[usize],
    src: *const u8,
    dst: *mut u8,
) {
    assert_eq!(shape.len(), perm.len(), "permute: one entry for each axis");
    assert!(
        (0..shape.len()).all(|i| perm.contains(&i)),
        "permute: {perm:?} is not a permutation",
    );
    if shape.contains(&0) {
        return;
    }
    let mut steps = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        steps[i - 1] = steps[i] * shape[i];
    }
    // Merge axes that stay neighbors.
    let mut axes: Vec<Axis> = Vec::new();
    for &i in perm {
        let axis = Axis {
            size: shape[i],
            step: steps[i],
        };
        match axes.last_mut() {
            _ if axis.size == 1 => {}
            Some(last) if last.step == axis.step * axis.size => {
                *last = Axis {
                    size: last.size * axis.size,
                    step: axis.step,
                };
            }
            _ => axes.push(axis),
        }
    }
    // Elements that stay contiguous are one bigger element.
    let mut run = elem;
    if let Some(last) = axes.last()
        && last.step == 1
    {
        run *= last.size;
        let size = last.size;
        axes.pop();
        for a in &mut axes {
            debug_assert!(a.step.is_multiple_of(size));
            a.step /= size;
        }
    }
    let dst = SendPtr(dst);
    // SAFETY: the axes describe all `total` elements of both slices, each once.
    unsafe {
        match run {
            1 => walk::<u8>(par, &axes, src, dst),
            2 => walk::<[u8; 2]>(par, &axes, src, dst),
            4 => walk::<[u8; 4]>(par, &axes, src, dst),
            8 => walk::<[u8; 8]>(par, &axes, src, dst),
            16 => walk::<[u8; 16]>(par, &axes, src, dst),
            _ => copy_runs(par, &axes, run, src, dst),
        }
    }
}

/// Calls `f(input offset, output offset)` for the index tuples `from..to` of `axes`, both in
/// elements; the output is dense with `inner` elements per tuple.
fn each_index(
    axes: &[Axis],
    inner: usize,
    from: usize,
    to: usize,
    mut f: impl FnMut(usize, usize),
) {
    let mut index = vec![0; axes.len()];
    let mut rest = from;
    let mut offset = 0;
    for (i, a) in index.iter_mut().zip(axes).rev() {
        *i = rest % a.size;
        rest /= a.size;
        offset += *i * a.step;
    }
    for n in from..to {
        f(offset, n * inner);
        for (i, a) in index.iter_mut().zip(axes).rev() {
            *i += 1;
            offset += a.step;
            if *i < a.size {
                break;
            }
            offset -= a.size * a.step;
            *i = 0;
        }
    }
}

/// The offset in the input of the index tuple `at`.
fn offset(axes: &[Axis], at: usize) -> usize {
    match axes {
        [] => 0,
        [axis] => at * axis.step,
        _ => {
            let mut found = 0;
            each_index(axes, 1, at, at + 1, |x, _| found = x);
            found
        }
    }
}

/// # Safety
/// `axes` with elements of `run` bytes stay inside both blocks of memory, which are disjoint.
unsafe fn copy_runs(
    par: &dyn Parallelism,
    axes: &[Axis],
    run: usize,
    src: *const u8,
    dst: SendPtr<u8>,
) {
    let src = SendPtr(src.cast_mut());
    let total: usize = axes.iter().map(|a| a.size).product();
    parallel_for(par, total, (4 * MIN_TASK / run).max(1), &|range| {
        each_index(axes, 1, range.start, range.end, |from, to| {
            // SAFETY: the caller's promise; tasks write disjoint ranges of `to`.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    src.get().add(from * run),
                    dst.get().add(to * run),
                    run,
                );
            }
        });
    });
}

/// # Safety
/// As for [`copy_runs`] with elements of type `T`, which has alignment 1.
unsafe fn walk<T: Copy + Send + 'static>(
    par: &dyn Parallelism,
    axes: &[Axis],
    src: *const u8,
    dst: SendPtr<u8>,
) {
    let src = SendPtr(src.cast::<T>().cast_mut());
    let dst = SendPtr(dst.get().cast::<T>());
    let Some((&inner, outer)) = axes.split_last() else {
        // SAFETY: without axes there is one element.
        return unsafe { *dst.get() = *src.get() };
    };
    // The innermost input axis is another one, since the innermost was made part of `T`.
    let Some(along) = outer.iter().position(|a| a.step == 1) else {
        let total: usize = outer.iter().map(|a| a.size).product();
        return parallel_for(par, total, (MIN_TASK / inner.size).max(1), &|range| {
            each_index(outer, inner.size, range.start, range.end, |from, to| {
                for i in 0..inner.size {
                    // SAFETY: the caller's promise.
                    unsafe { *dst.get().add(to + i) = *src.get().add(from + i * inner.step) };
                }
            });
        });
    };
    // Transposes a plane (`along` × `inner`) for each index of the other axes.
    let rows = outer[along].size;
    let row_step: usize = outer[along + 1..].iter().map(|a| a.size).product::<usize>() * inner.size;
    let (before, after) = (&outer[..along], &outer[along + 1..]);
    let n_before: usize = before.iter().map(|a| a.size).product();
    if let ([], []) | ([_], []) = (before, after)
        && rows * inner.size <= SMALL_PLANE
    {
        // Small planes one after the other.
        let step = before.first().map_or(0, |axis| axis.step);
        let per_task = (MIN_TASK / (rows * inner.size)).max(1);
        return parallel_for(par, n_before, per_task, &|range| {
            for plane in range {
                // SAFETY: a plane, as below.
                unsafe {
                    let src = src.get().add(plane * step);
                    let dst = dst.get().add(plane * rows * row_step);
                    plane_strip(src, inner.step, dst, row_step, rows, inner.size);
                }
            }
        });
    }
    let strips = rows.div_ceil(STRIP);
    let n_after: usize = after.iter().map(|a| a.size).product();
    let tasks = n_before * n_after * strips;
    let per_task = (MIN_TASK / (STRIP.min(rows) * inner.size)).max(1);
    parallel_for(par, tasks, per_task, &|range| {
        for task in range {
            let (plane, strip) = (task / strips, task % strips);
            let (b, a) = (plane / n_after, plane % n_after);
            let r0 = strip * STRIP;
            let r1 = (r0 + STRIP).min(rows);
            let from = r0 + offset(before, b) + offset(after, a);
            let to = (b * rows + r0) * row_step + a * inner.size;
            // SAFETY: rows `r0..r1` of one plane, inside by the caller's promise; each output
            // element belongs to one row of one plane.
            unsafe {
                let (src, dst) = (src.get().add(from), dst.get().add(to));
                plane_strip(src, inner.step, dst, row_step, r1 - r0, inner.size);
            }
        }
    });
}

/// Elements of planes that are transposed as a whole.
const SMALL_PLANE: usize = 2048;
/// Rows of the output written together.
pub(crate) const STRIP: usize = 32;

/// Elements of 8 bytes between lines of the same set of a first-level cache. If the rows of both matrices are such
/// lines, whole rows of a block are read and written.
#[cfg(target_arch = "x86_64")]
const SET_ELEMENTS: usize = 4096 / 8;

/// Rows and columns of the blocks that are transposed in registers.
const B: usize = 8;

/// Computes `dst[r][c] = src[c][r]` for a block of `B × B`.
///
/// # Safety
/// `src` and `dst` are valid for `B` rows of `B` elements.
#[inline(always)]
unsafe fn turn_block<T: Copy>(src: *const T, ld_src: usize, dst: *mut T, ld_dst: usize) {
    #[cfg(target_arch = "x86_64")]
    if size_of::<T>() == 4 {
        for (r, c) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
            // SAFETY: a quarter of the block.
            unsafe {
                let (src, dst) = (src.add(c * ld_src + r), dst.add(r * ld_dst + c));
                turn_quad(src.cast(), ld_src, dst.cast(), ld_dst);
            }
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if size_of::<T>() == 8 && !(ld_src | ld_dst).is_multiple_of(SET_ELEMENTS) {
        use std::arch::x86_64::{_mm_loadu_pd, _mm_storeu_pd, _mm_unpackhi_pd, _mm_unpacklo_pd};
        // SAFETY: every such CPU has SSE2; pairs of numbers, which are only moved.
        unsafe {
            let pair = |c: usize, r: usize| _mm_loadu_pd(src.add(c * ld_src + 2 * r).cast());
            let block: [[_; B / 2]; B] = array::from_fn(|c| array::from_fn(|r| pair(c, r)));
            for r in 0..B {
                for c in (0..B).step_by(2) {
                    let (a, b) = (block[c][r / 2], block[c + 1][r / 2]);
                    let row = match r % 2 {
                        0 => _mm_unpacklo_pd(a, b),
                        _ => _mm_unpackhi_pd(a, b),
                    };
                    _mm_storeu_pd(dst.add(r * ld_dst + c).cast(), row);
                }
            }
        }
        return;
    }
    // SAFETY: rows of the block.
    unsafe {
        let row = |i: usize| src.add(i * ld_src).cast::<[T; B]>().read_unaligned();
        let block: [[T; B]; B] = array::from_fn(row);
        let turned: [[T; B]; B] = array::from_fn(|j| array::from_fn(|i| block[i][j]));
        for (j, row) in turned.into_iter().enumerate() {
            dst.add(j * ld_dst).cast::<[T; B]>().write_unaligned(row);
        }
    }
}

/// Computes `dst[r][c] = src[c][r]`, in square blocks.
///
/// # Safety
/// `src` is valid for `cols` rows of `rows` elements, `dst` for `rows` rows of `cols`.
pub(crate) unsafe fn plane_strip<T: Copy>(
    src: *const T,
    ld_src: usize,
    dst: *mut T,
    ld_dst: usize,
    rows: usize,
    cols: usize,
) {
    let (full_rows, full_cols) = (rows / B * B, cols / B * B);
    // SAFETY: indices stay below `rows` and `cols`.
    unsafe {
        for c in (0..full_cols).step_by(B) {
            for r in (0..full_rows).step_by(B) {
                let (src, dst) = (src.add(c * ld_src + r), dst.add(r * ld_dst + c));
                turn_block(src, ld_src, dst, ld_dst);
            }
        }
        let (from, to) = (
            src.wrapping_add(full_rows),
            dst.wrapping_add(full_rows * ld_dst),
        );
        narrow(from, ld_src, to, ld_dst, [rows - full_rows, full_cols]);
        let (from, to) = (
            src.wrapping_add(full_cols * ld_src),
            dst.wrapping_add(full_cols),
        );
        narrow(from, ld_src, to, ld_dst, [rows, cols - full_cols]);
    }
}

/// Computes `dst[r][c] = src[c][r]` for fewer than `B` rows or columns.
///
/// # Safety
/// As for [`plane_strip`].
unsafe fn narrow<T: Copy>(
    src: *const T,
    ld_src: usize,
    dst: *mut T,
    ld_dst: usize,
    size: [usize; 2],
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    let done = unsafe { narrow_in_registers(src, ld_src, dst, ld_dst, size) };
    #[cfg(not(target_arch = "x86_64"))]
    let done = [0; 2];
    let ([rows, cols], [done_rows, done_cols]) = (size, done);
    // SAFETY: the caller's promise.
    let turn = |r: usize, c: usize| unsafe { *dst.add(r * ld_dst + c) = *src.add(c * ld_src + r) };
    if done_cols < cols {
        (0..done_rows).for_each(|r| (done_cols..cols).for_each(|c| turn(r, c)));
    }
    (done_rows..rows).for_each(|r| (0..cols).for_each(|c| turn(r, c)));
}

/// [`narrow`] for as many rows, and columns of these, as it returns.
///
/// # Safety
/// As for [`plane_strip`].
#[cfg(target_arch = "x86_64")]
unsafe fn narrow_in_registers<T: Copy>(
    src: *const T,
    ld_src: usize,
    dst: *mut T,
    ld_dst: usize,
    [rows, cols]: [usize; 2],
) -> [usize; 2] {
    if size_of::<T>() != 4 {
        return [0; 2];
    }
    let (src, dst) = (src.cast::<f32>(), dst.cast::<f32>());
    let quads = |n: usize| (0..n / 4).map(|i| 4 * i);
    let (all_rows, all_cols) = ([rows, cols / 4 * 4], [rows / 4 * 4, cols]);
    // SAFETY: blocks of four rows or columns.
    unsafe {
        match (rows, cols) {
            (2, _) if ld_src == 2 => {
                quads(cols).for_each(|c| part_two(src.add(2 * c), dst.add(c), ld_dst));
                all_rows
            }
            (3, _) if ld_src == 3 => {
                quads(cols).for_each(|c| part_three(src.add(3 * c), dst.add(c), ld_dst));
                all_rows
            }
            (_, 2) if ld_dst == 2 => {
                quads(rows).for_each(|r| join_two(src.add(r), ld_src, dst.add(2 * r)));
                all_cols
            }
            (_, 3) if ld_dst == 3 => {
                quads(rows).for_each(|r| join_three(src.add(r), ld_src, dst.add(3 * r)));
                all_cols
            }
            (_, 4..) => {
                // The last columns over those before.
                for c in quads(cols).chain((cols % 4 > 0).then(|| cols - 4)) {
                    for r in quads(rows) {
                        let (src, dst) = (src.add(c * ld_src + r), dst.add(r * ld_dst + c));
                        turn_quad(src, ld_src, dst, ld_dst);
                    }
                }
                all_cols
            }
            _ => [0; 2],
        }
    }
}

/// Computes `dst[r][c] = src[c][r]` for four rows and columns.
///
/// # Safety
/// `src` and `dst` are valid for four rows of four elements.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn turn_quad(src: *const f32, ld_src: usize, dst: *mut f32, ld_dst: usize) {
    // SAFETY: every such CPU has SSE; rows that the caller promises, of numbers that are only moved.
    unsafe {
        let from = |i: usize| _mm_loadu_ps(src.add(i * ld_src));
        let (mut a, mut b, mut c, mut d) = (from(0), from(1), from(2), from(3));
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        for (i, row) in [a, b, c, d].into_iter().enumerate() {
            _mm_storeu_ps(dst.add(i * ld_dst), row);
        }
    }
}

/// Makes four pairs of two rows of four numbers.
///
/// # Safety
/// `src` is valid for two rows of four numbers, `dst` for eight.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn join_two(src: *const f32, ld_src: usize, dst: *mut f32) {
    // SAFETY: as for `turn_quad`.
    unsafe {
        let (a, b) = (_mm_loadu_ps(src), _mm_loadu_ps(src.add(ld_src)));
        _mm_storeu_ps(dst, _mm_unpacklo_ps(a, b));
        _mm_storeu_ps(dst.add(4), _mm_unpackhi_ps(a, b));
    }
}

/// Makes two rows of four pairs.
///
/// # Safety
/// `src` is valid for eight numbers, `dst` for two rows of four.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn part_two(src: *const f32, dst: *mut f32, ld_dst: usize) {
    // SAFETY: as for `turn_quad`.
    unsafe {
        let (a, b) = (_mm_loadu_ps(src), _mm_loadu_ps(src.add(4)));
        _mm_storeu_ps(dst, _mm_shuffle_ps::<0b10_00_10_00>(a, b));
        _mm_storeu_ps(dst.add(ld_dst), _mm_shuffle_ps::<0b11_01_11_01>(a, b));
    }
}

/// Makes four triples of three rows of four numbers.
///
/// # Safety
/// `src` is valid for three rows of four numbers, `dst` for twelve.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn join_three(src: *const f32, ld_src: usize, dst: *mut f32) {
    // SAFETY: as for `turn_quad`.
    unsafe {
        let from = |i: usize| _mm_loadu_ps(src.add(i * ld_src));
        let (a, b, c) = (from(0), from(1), from(2));
        // a0 a2 b0 b2, b1 b3 c1 c3 and c0 c2 a1 a3.
        let ab = _mm_shuffle_ps::<0b10_00_10_00>(a, b);
        let bc = _mm_shuffle_ps::<0b11_01_11_01>(b, c);
        let ca = _mm_shuffle_ps::<0b11_01_10_00>(c, a);
        _mm_storeu_ps(dst, _mm_shuffle_ps::<0b10_00_10_00>(ab, ca));
        _mm_storeu_ps(dst.add(4), _mm_shuffle_ps::<0b11_01_10_00>(bc, ab));
        _mm_storeu_ps(dst.add(8), _mm_shuffle_ps::<0b11_01_11_01>(ca, bc));
    }
}

/// Makes three rows of four triples.
///
/// # Safety
/// `src` is valid for twelve numbers, `dst` for three rows of four.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn part_three(src: *const f32, dst: *mut f32, ld_dst: usize) {
    // SAFETY: as for `turn_quad`.
    unsafe {
        // a0 b0 c0 a1, b1 c1 a2 b2 and c2 a3 b3 c3.
        let (x, y, z) = (
            _mm_loadu_ps(src),
            _mm_loadu_ps(src.add(4)),
            _mm_loadu_ps(src.add(8)),
        );
        // a2 b2 a3 b3, then b0 c0 b1 c1.
        let high = _mm_shuffle_ps::<0b10_01_11_10>(y, z);
        let low = _mm_shuffle_ps::<0b01_00_10_01>(x, y);
        let a = _mm_shuffle_ps::<0b10_00_11_00>(x, high);
        let b = _mm_shuffle_ps::<0b11_01_10_00>(low, high);
        let c = _mm_shuffle_ps::<0b11_00_11_01>(low, z);
        for (i, row) in [a, b, c].into_iter().enumerate() {
            _mm_storeu_ps(dst.add(i * ld_dst), row);
        }
    }
}
