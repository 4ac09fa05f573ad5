//! Reductions: dimensions are collapsed, then reduced one after another, each as rows (innermost)
//! or as a middle dimension. Blocks have fixed sizes, so that results do not depend on the number
//! of threads.

use crate::numeric::{Num, Ordered};
use crate::unary::CHEAP;
use ferroflow_base::Result;
use ferroflow_primitives::rows::{ReduceOp, reduce_middle, reduce_rows};
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Inline, Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Element, Tensor};
use smallvec::SmallVec;

/// A reduction of many elements to one.
pub trait Reduce<T: Element>: Sized + Send + Sync + 'static {
    /// The reduction of partial results.
    type Then: Reduce<T, Then = Self::Then>;

    /// The result for no elements.
    const START: T;

    /// Adds one more element.
    fn step(acc: T, x: T) -> T;

    /// Reduces a row.
    #[inline(always)]
    fn row(x: &[T]) -> T {
        reduce_row::<T>(x, Self::START, Self::step, Self::Then::step)
    }

    /// Reduces rows of `n` elements, one to each of `out`.
    fn rows(x: &[T], n: usize, out: &mut [T]) {
        with_vectors::<T>(
            #[inline(always)]
            || {
                for (out, x) in out.iter_mut().zip(x.chunks_exact(n)) {
                    *out = match n < LANES {
                        true => x.iter().fold(Self::START, |acc, x| Self::step(acc, *x)),
                        false => Self::row(x),
                    };
                }
            },
        );
    }

    /// Computes `out[c] = reduction of x[r * ld + c]` over `rows` rows.
    fn block(x: &[T], ld: usize, rows: usize, out: &mut [T]) {
        with_vectors::<T>(
            #[inline(always)]
            || reduce_block(x, ld, rows, out, Self::START, Self::step, Self::Then::step),
        );
    }
}

const LANES: usize = 16;

/// Runs loops over elements with the best vector instructions of the CPU, if that is worth it for their type: for
/// elements that are reduced often and that the baseline reduces more slowly than memory delivers them.
#[inline(always)]
fn with_vectors<T: Element>(loops: impl FnOnce()) {
    match T::DTYPE {
        DType::Double | DType::Int32 | DType::Int64 => vectorized(loops),
        _ => loops(),
    }
}

#[inline(always)]
fn reduce_row<T: Element>(
    x: &[T],
    start: T,
    step: impl Fn(T, T) -> T,
    join: impl Fn(T, T) -> T,
) -> T {
    // Integers may be added in any order: compilers choose a good one only if none is asked for.
    if const { T::DTYPE.is_integer() } {
        return x.iter().fold(start, |acc, x| step(acc, *x));
    }
    let mut lanes = [start; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    let rest = rest.iter().fold(start, |acc, x| step(acc, *x));
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *x);
        }
    }
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = join(lanes[i], lanes[i + n]);
        }
    }
    join(lanes[0], rest)
}

#[inline(always)]
fn reduce_block<T: Copy>(
    x: &[T],
    ld: usize,
    rows: usize,
    out: &mut [T],
    start: T,
    step: impl Fn(T, T) -> T,
    join: impl Fn(T, T) -> T,
) {
    const COLUMNS: usize = 1024;
    const WIDE: usize = 64;
    let cols = out.len();
    if cols == ld && cols <= WIDE / 2 && rows * cols >= 4 * WIDE {
        // Combine several short rows into a longer one.
        let wide = WIDE / cols * cols;
        let mut sums = [start; WIDE];
        for chunk in x[..rows * cols].chunks(wide) {
            for (sum, x) in sums.iter_mut().zip(chunk) {
                *sum = step(*sum, *x);
            }
        }
        out.copy_from_slice(&sums[..cols]);
        for part in sums[cols..wide].chunks_exact(cols) {
            for (out, x) in out.iter_mut().zip(part) {
                *out = join(*out, *x);
            }
        }
        return;
    }
    for (i, out) in out.chunks_mut(COLUMNS).enumerate() {
        out.fill(start);
        for r in 0..rows {
            let at = r * ld + i * COLUMNS;
            let x = &x[at..at + out.len()];
            for (out, x) in out.iter_mut().zip(x) {
                *out = step(*out, *x);
            }
        }
    }
}

macro_rules! reducers {
    ($($(#[$doc:meta])* $name:ident: $bound:ident, $start:expr, |$acc:ident, $x:ident| $step:expr, $then:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name;
        impl<T: $bound> Reduce<T> for $name {
            type Then = $then;
            const START: T = $start;
            #[inline(always)]
            fn step($acc: T, $x: T) -> T { $step }
        }
    )*};
}
reducers! {
    /// The sum.
    Sum: Num, T::ZERO, |acc, x| acc.add(x), Sum;
    /// The product.
    Prod: Num, T::ONE, |acc, x| acc.mul(x), Prod;
    /// The sum of the squares of the absolute values.
    SumSquares: Num, T::ZERO, |acc, x| acc.add(x.norm()), Sum;
    /// The largest element, or NaN if there is one.
    Max: Ordered, T::LOWEST, |acc, x| acc.larger(x), Max;
    /// The smallest element, or NaN if there is one.
    Min: Ordered, T::HIGHEST, |acc, x| acc.smaller(x), Min;
}

/// Logical and.
pub struct All;
impl Reduce<bool> for All {
    type Then = All;
    const START: bool = true;
    #[inline(always)]
    fn step(acc: bool, x: bool) -> bool {
        acc & x
    }
}

/// Logical or.
pub struct Any;
impl Reduce<bool> for Any {
    type Then = Any;
    const START: bool = false;
    #[inline(always)]
    fn step(acc: bool, x: bool) -> bool {
        acc | x
    }
}

macro_rules! fast {
    ($($(#[$doc:meta])* $name:ident: $slow:ident, $op:expr;)*) => {$(
        $(#[$doc])*
        pub struct $name;
        impl Reduce<f32> for $name {
            type Then = FastSum;
            const START: f32 = 0.0;
            #[inline(always)]
            fn step(acc: f32, x: f32) -> f32 { <$slow as Reduce<f32>>::step(acc, x) }
            fn row(x: &[f32]) -> f32 {
                let mut out = [0.0];
                reduce_rows(&Inline, $op, x, x.len(), &mut out);
                out[0]
            }
            fn rows(x: &[f32], n: usize, out: &mut [f32]) {
                match n < LANES {
                    true => <$slow as Reduce<f32>>::rows(x, n, out),
                    false => reduce_rows(&Inline, $op, &x[..n * out.len()], n, out),
                }
            }
            fn block(x: &[f32], ld: usize, rows: usize, out: &mut [f32]) {
                if ld == out.len() && ld >= LANES {
                    return reduce_middle(&Inline, $op, [1, rows, ld], x, out);
                }
                <$slow as Reduce<f32>>::block(x, ld, rows, out);
            }
        }
    )*};
}
fast! {
    /// The sum of `f32`, by `ferroflow_primitives`.
    FastSum: Sum, ReduceOp::Sum;
    /// The sum of the squares of `f32`, by `ferroflow_primitives`.
    FastSumSquares: SumSquares, ReduceOp::SumSquares;
}

/// The product of `f32`; of long rows by vectors that do not wait for each other.
pub struct FastProd;
impl Reduce<f32> for FastProd {
    type Then = FastProd;
    const START: f32 = 1.0;
    #[inline(always)]
    fn step(acc: f32, x: f32) -> f32 {
        acc * x
    }
    fn row(x: &[f32]) -> f32 {
        const PARTS: usize = 4;
        if x.len() < 4 * PARTS * LANES {
            return Prod::row(x);
        }
        let (blocks, rest) = x.as_chunks::<{ PARTS * LANES }>();
        let products = vectorized(
            #[inline(always)]
            || {
                // Local, so that they stay in registers.
                let mut products = [[1.0; LANES]; PARTS];
                for block in blocks {
                    let (parts, _) = block.as_chunks::<LANES>();
                    for p in 0..PARTS {
                        for lane in 0..LANES {
                            products[p][lane] *= parts[p][lane];
                        }
                    }
                }
                products
            },
        );
        Prod::row(products.as_flattened()) * Prod::row(rest)
    }
}

/// Rows whose sums are computed together.
const SUMS: usize = 64;

macro_rules! fast_limits {
    ($($(#[$doc:meta])* $name:ident: $slow:ident, $op:expr;)*) => {$(
        $(#[$doc])*
        pub struct $name;
        impl Reduce<f32> for $name {
            type Then = $name;
            const START: f32 = <$slow as Reduce<f32>>::START;
            #[inline(always)]
            fn step(acc: f32, x: f32) -> f32 { <$slow as Reduce<f32>>::step(acc, x) }
            fn row(x: &[f32]) -> f32 {
                let mut out = [0.0];
                Self::rows(x, x.len(), &mut out);
                out[0]
            }
            fn rows(x: &[f32], n: usize, out: &mut [f32]) {
                if n < LANES {
                    return <$slow as Reduce<f32>>::rows(x, n, out);
                }
                let mut sums = [0.0; SUMS];
                for (x, out) in x.chunks(SUMS * n).zip(out.chunks_mut(SUMS)) {
                    let (x, sums) = (&x[..n * out.len()], &mut sums[..out.len()]);
                    // A sum is NaN if an element is, which must be the result.
                    reduce_rows(&Inline, ReduceOp::Sum, x, n, sums);
                    reduce_rows(&Inline, $op, x, n, out);
                    for (i, _) in sums.iter().enumerate().filter(|(_, sum)| sum.is_nan()) {
                        out[i] = <$slow as Reduce<f32>>::row(&x[i * n..][..n]);
                    }
                }
            }
        }
    )*};
}
fast_limits! {
    /// The largest `f32`, by `ferroflow_primitives`.
    FastMax: Max, ReduceOp::Max;
    /// The smallest `f32`, by `ferroflow_primitives`.
    FastMin: Min, ReduceOp::Min;
}

/// Collapsed dimensions, outermost first: length, and whether it is reduced. Dimensions of length
/// 1 are removed.
pub type Layout = SmallVec<[(usize, bool); 4]>;

/// Collapses `dims`, of which those with `reduced[i]` are reduced.
pub fn layout(dims: &[usize], reduced: &[bool]) -> Layout {
    let mut layout = Layout::new();
    for (&n, &reduced) in dims.iter().zip(reduced).filter(|(n, _)| **n != 1) {
        match layout.last_mut() {
            Some(last) if last.1 == reduced => last.0 = last.0.saturating_mul(n),
            _ => layout.push((n, reduced)),
        }
    }
    layout
}

/// The functions of a [`Reduce`]: code that takes it exists once for each type, not for each reduction.
pub struct Reducer<T> {
    start: T,
    /// Reduces rows of equal length, one to each element of the output.
    rows: fn(&[T], usize, &mut [T]),
    block: fn(&[T], usize, usize, &mut [T]),
    then: fn() -> Reducer<T>,
}

impl<T: Element> Reducer<T> {
    /// Returns the functions of `R`.
    pub fn of<R: Reduce<T>>() -> Self {
        Reducer {
            start: R::START,
            rows: R::rows,
            block: R::block,
            then: Reducer::of::<R::Then>,
        }
    }
}

/// Reduces `x` to `out`, which has as many elements as the remaining dimensions.
///
/// # Errors
/// RESOURCE_EXHAUSTED if intermediate results do not fit into memory.
pub fn reduce<T: Element>(
    par: &dyn Parallelism,
    reducer: &Reducer<T>,
    layout: &Layout,
    x: &[T],
    out: &mut [T],
) -> Result<()> {
    let count = |dims: &[(usize, bool)]| dims.iter().map(|d| d.0).product::<usize>();
    let mut layout = layout.clone();
    let Some(last) = layout.iter().rposition(|d| d.1) else {
        (reducer.rows)(x, 1, out);
        return Ok(());
    };
    let sizes =
        |layout: &Layout, i: usize| [count(&layout[..i]), layout[i].0, count(&layout[i + 1..])];
    let first = sizes(&layout, last);
    layout.remove(last);
    if !layout.iter().any(|d| d.1) {
        pass(par, reducer, first, x, out)?;
        return Ok(());
    }
    let mut partial = Tensor::for_overwrite(T::DTYPE, [first[0] * first[2]].into())?;
    pass(par, reducer, first, x, partial.slice_mut()?)?;
    let then = (reducer.then)();
    while let Some(i) = layout.iter().rposition(|d| d.1) {
        let next = sizes(&layout, i);
        layout.remove(i);
        if !layout.iter().any(|d| d.1) {
            return pass(par, &then, next, partial.slice()?, out);
        }
        let mut smaller = Tensor::for_overwrite(T::DTYPE, [next[0] * next[2]].into())?;
        pass(par, &then, next, partial.slice()?, smaller.slice_mut()?)?;
        partial = smaller;
    }
    Ok(())
}

/// Reduces the middle one of three dimensions.
fn pass<T: Element>(
    par: &dyn Parallelism,
    reducer: &Reducer<T>,
    [outer, n, cols]: [usize; 3],
    x: &[T],
    out: &mut [T],
) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    if n == 0 {
        out.fill(reducer.start);
        return Ok(());
    }
    let &Reducer { rows, block, .. } = reducer;
    // Rows per block, and blocks per output.
    let height = (CHEAP / cols).max(128);
    if n >= 2 * height {
        let blocks = n.div_ceil(height);
        let mut partial = Tensor::for_overwrite(T::DTYPE, [outer * blocks * cols].into())?;
        par_chunks_mut(par, partial.slice_mut::<T>()?, cols, 1, &|i, out| {
            let (o, r) = (i / blocks, i % blocks * height);
            let height = height.min(n - r);
            let x = &x[(o * n + r) * cols..(o * n + r + height) * cols];
            match cols {
                1 => rows(x, height, out),
                _ => block(x, cols, height, out),
            }
        });
        let then = (reducer.then)();
        return pass(par, &then, [outer, blocks, cols], partial.slice()?, out);
    }
    if outer == 1 && cols >= 1024 && n * cols > CHEAP {
        let width = (CHEAP / n).max(256);
        par_chunks_mut(par, out, width, 1, &|i, out| {
            block(&x[i * width..], cols, n, out);
        });
        return Ok(());
    }
    if cols == 1 {
        let group = (CHEAP / n).max(1);
        par_chunks_mut(par, out, group, 1, &|i, out| {
            rows(&x[i * group * n..], n, out);
        });
        return Ok(());
    }
    let group = (CHEAP / (n * cols)).max(1);
    par_chunks_mut(par, out, cols, group, &|i, out| {
        block(&x[i * n * cols..(i + 1) * n * cols], cols, n, out);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dims: &[usize], reduced: &[bool]) {
        let n: usize = dims.iter().product();
        let x: Vec<i64> = (0..n as i64).map(|i| i * 7919 % 1013 - 500).collect();
        let kept = dims
            .iter()
            .zip(reduced)
            .map(|(&d, &r)| if r { 1 } else { d });
        let kept: Vec<usize> = kept.collect();
        let size: usize = kept.iter().product();
        let (mut sums, mut largest) = (vec![0i64; size], vec![i64::MIN; size]);
        for (i, &x) in x.iter().enumerate() {
            let (mut rest, mut at, mut stride) = (i, 0, 1);
            for (&d, &k) in dims.iter().zip(&kept).rev() {
                at += if k == 1 { 0 } else { rest % d * stride };
                rest /= d;
                stride *= k;
            }
            sums[at] += x;
            largest[at] = largest[at].max(x);
        }
        let layout = layout(dims, reduced);
        let mut out = vec![0; size];
        reduce(&Inline, &Reducer::of::<Sum>(), &layout, &x, &mut out).expect("fits");
        assert_eq!(out, sums, "{dims:?} {reduced:?}");
        reduce(&Inline, &Reducer::of::<Max>(), &layout, &x, &mut out).expect("fits");
        assert_eq!(out, largest, "{dims:?} {reduced:?}");
        let wide: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        let mut out = vec![0.0; size];
        reduce(&Inline, &Reducer::of::<FastSum>(), &layout, &wide, &mut out).expect("fits");
        let expected: Vec<f32> = sums.iter().map(|&s| s as f32).collect();
        assert_eq!(out, expected, "{dims:?} {reduced:?}");
    }

    #[test]
    fn every_way_to_split_the_work() {
        check(&[100_003], &[true]);
        check(&[3, 40_001], &[false, true]);
        check(&[40_001, 3], &[true, false]);
        check(&[2, 40_001, 3], &[false, true, false]);
        check(&[5, 20_011], &[true, false]);
        check(&[300, 4099], &[true, false]);
        check(&[6, 5, 4, 3], &[true, false, true, false]);
        check(&[6, 5, 4, 3], &[false, true, false, true]);
        check(&[2, 1, 3], &[false, true, false]);
        check(&[37, 1000, 9], &[true, false, true]);
        check(&[4001, 9], &[false, true]);
        check(&[4001, 9], &[true, false]);
        check(&[7, 401, 31], &[false, true, false]);
    }
}
