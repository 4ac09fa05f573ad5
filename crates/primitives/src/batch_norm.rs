//! Batch normalization of rows of channels, by the moments of the rows: sums over the rows and what is computed from them
//! (Ioffe and Szegedy, "Batch normalization", ICML 2015, algorithm 1 and the derivatives in section 3).
//!
//! The callers divide rows into blocks that stay in the cache. Within one, a vector of channels is summed over all
//! rows before the next one, so that its sums stay in registers.

use crate::isa::{Loops, run};

/// Sets `sums` to the sums over the rows of `(x - mean)²`.
///
/// # Panics
/// If `mean` and `sums` differ in length, or `x` does not hold whole rows.
pub fn centered_squares(x: &[f32], mean: &[f32], sums: &mut [f32]) {
    let square = |[x]: [f32; 1], [mean]: [f32; 1]| [(x - mean) * (x - mean)];
    reduce([x], [mean], [sums], square);
}

/// Computes `y = (x - mean) * factor + offset`.
///
/// # Panics
/// If the parameters differ in length, `x` and `y` do, or they do not hold whole rows.
pub fn normalize(x: &[f32], [mean, factor, offset]: [&[f32]; 3], y: &mut [f32]) {
    let rule = |[x]: [f32; 1], [mean, factor, offset]: [f32; 3]| (x - mean) * factor + offset;
    map([x], [mean, factor, offset], y, rule);
}

/// Sets `plain` to the sums over the rows of `dy`, and `weighted` to those of `dy * (x - mean)`.
///
/// # Panics
/// If the sums and `mean` differ in length, `dy` and `x` do, or they do not hold whole rows.
pub fn gradient_sums([dy, x]: [&[f32]; 2], mean: &[f32], plain: &mut [f32], weighted: &mut [f32]) {
    let terms = |[dy, x]: [f32; 2], [mean]: [f32; 1]| [dy, dy * (x - mean)];
    reduce([dy, x], [mean], [plain, weighted], terms);
}

/// Computes `dx = factor * dy + slope * (x - mean) + bias`.
///
/// # Panics
/// If the parameters differ in length, `dy`, `x` and `dx` do, or they do not hold whole rows.
pub fn gradient([dy, x]: [&[f32]; 2], [mean, factor, slope, bias]: [&[f32]; 4], dx: &mut [f32]) {
    let rule = |[dy, x]: [f32; 2], [mean, factor, slope, bias]: [f32; 4]| {
        factor * dy + slope * (x - mean) + bias
    };
    map([dy, x], [mean, factor, slope, bias], dx, rule);
}

fn check<const K: usize, const P: usize>(
    inputs: [&[f32]; K],
    params: [&[f32]; P],
    len: usize,
    channels: usize,
) {
    assert!(inputs.iter().all(|x| x.len() == len), "not {len} elements");
    assert!(
        params.iter().all(|p| p.len() == channels),
        "not {channels} channels"
    );
    assert!(
        len == 0 || channels > 0 && len.is_multiple_of(channels),
        "{len} elements of {channels} channels"
    );
}

/// Sets `sums` to the sums over the rows of `terms(inputs, params)`.
fn reduce<const K: usize, const P: usize, const N: usize>(
    inputs: [&[f32]; K],
    params: [&[f32]; P],
    sums: [&mut [f32]; N],
    terms: impl Fn([f32; K], [f32; P]) -> [f32; N],
) {
    check(inputs, params, inputs[0].len(), sums[0].len());
    let channels = sums[0].len();
    assert!(
        sums.iter().all(|s| s.len() == channels),
        "sums differ in length"
    );
    run(Reduce {
        inputs,
        params,
        sums,
        terms,
    });
}

/// Computes `out = rule(inputs, params)` for each row.
fn map<const K: usize, const P: usize>(
    inputs: [&[f32]; K],
    params: [&[f32]; P],
    out: &mut [f32],
    rule: impl Fn([f32; K], [f32; P]) -> f32,
) {
    check(inputs, params, out.len(), params[0].len());
    run(Map {
        inputs,
        params,
        out,
        rule,
    });
}

/// Runs `$do` for blocks of channels, as wide as possible, with `$first` (a block's first channel) and the constant
/// `$width` (their number).
macro_rules! each_block {
    ($channels:expr, $first:ident, $width:ident, $do:block) => {{
        let mut $first = 0;
        each_block!(@ 16, $channels, $first, $width, $do);
        each_block!(@ 8, $channels, $first, $width, $do);
        each_block!(@ 4, $channels, $first, $width, $do);
        each_block!(@ 1, $channels, $first, $width, $do);
    }};
    (@ $w:literal, $channels:expr, $first:ident, $width:ident, $do:block) => {
        while $channels - $first >= $w {
            const $width: usize = $w;
            $do
            $first += $w;
        }
    };
}

/// Returns `W` elements from `at` on.
#[inline(always)]
fn lanes<const W: usize>(x: &[f32], at: usize) -> [f32; W] {
    std::array::from_fn(|i| x[at..at + W][i])
}

/// Returns element `i` of each array.
#[inline(always)]
fn column<const W: usize, const K: usize>(rows: &[[f32; W]; K], i: usize) -> [f32; K] {
    std::array::from_fn(|k| rows[k][i])
}

struct Reduce<'a, F, const K: usize, const P: usize, const N: usize> {
    inputs: [&'a [f32]; K],
    params: [&'a [f32]; P],
    sums: [&'a mut [f32]; N],
    terms: F,
}

impl<F, const K: usize, const P: usize, const N: usize> Loops for Reduce<'_, F, K, P, N>
where
    F: Fn([f32; K], [f32; P]) -> [f32; N],
{
    #[inline(always)]
    fn run(mut self) {
        let channels = self.sums[0].len();
        each_block!(channels, first, W, {
            let params = self.params.map(|p| lanes::<W>(p, first));
            let mut sums = [[0.0; W]; N];
            let mut at = first;
            while at < self.inputs[0].len() {
                let x = self.inputs.map(|x| lanes::<W>(x, at));
                #[allow(
                    clippy::needless_range_loop,
                    reason = "iterators over all arrays at once are not vectorized"
                )]
                for i in 0..W {
                    let terms = (self.terms)(column(&x, i), column(&params, i));
                    for n in 0..N {
                        sums[n][i] += terms[n];
                    }
                }
                at += channels;
            }
            for (to, sum) in self.sums.iter_mut().zip(&sums) {
                to[first..first + W].copy_from_slice(sum);
            }
        });
    }
}

struct Map<'a, F, const K: usize, const P: usize> {
    inputs: [&'a [f32]; K],
    params: [&'a [f32]; P],
    out: &'a mut [f32],
    rule: F,
}

impl<F, const K: usize, const P: usize> Loops for Map<'_, F, K, P>
where
    F: Fn([f32; K], [f32; P]) -> f32,
{
    #[inline(always)]
    fn run(self) {
        let channels = self.params[0].len();
        each_block!(channels, first, W, {
            let params = self.params.map(|p| lanes::<W>(p, first));
            let mut at = first;
            while at < self.out.len() {
                let x = self.inputs.map(|x| lanes::<W>(x, at));
                for (i, out) in self.out[at..at + W].iter_mut().enumerate() {
                    *out = (self.rule)(column(&x, i), column(&params, i));
                }
                at += channels;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::{each_isa, noise};

    fn close(got: &[f32], want: impl Iterator<Item = f64>, what: &dyn std::fmt::Debug) {
        for (got, want) in got.iter().zip(want) {
            let error = (f64::from(*got) - want).abs();
            assert!(
                error <= 1e-5 * want.abs().max(1.0),
                "{got} for {want}: {what:?}"
            );
        }
    }

    #[test]
    fn rows_of_any_number_of_channels() {
        each_isa(|isa| {
            for (rows, c) in [(0, 3), (1, 1), (5, 2), (7, 16), (9, 24), (4, 31), (3, 53)] {
                let (x, dy) = (noise(rows * c, 1), noise(rows * c, 2));
                let [mean, factor, slope, bias] = [3, 4, 5, 6].map(|seed| noise(c, seed));
                let what = (isa, rows, c);
                let wide = |v: f32| f64::from(v);
                let at = |i: usize| {
                    let c = i % c;
                    let [m, f, s, b] = [mean[c], factor[c], slope[c], bias[c]].map(wide);
                    (wide(dy[i]), wide(x[i]) - m, f, s, b)
                };
                let sum = |f: &dyn Fn(usize) -> f64, j: usize| -> f64 {
                    (0..rows).map(|r| f(r * c + j)).sum()
                };
                let [mut squares, mut plain, mut weighted] = [7, 8, 9].map(|s| noise(c, s));
                centered_squares(&x, &mean, &mut squares);
                close(
                    &squares,
                    (0..c).map(|j| sum(&|i| at(i).1 * at(i).1, j)),
                    &what,
                );
                gradient_sums([&dy, &x], &mean, &mut plain, &mut weighted);
                close(&plain, (0..c).map(|j| sum(&|i| at(i).0, j)), &what);
                close(
                    &weighted,
                    (0..c).map(|j| sum(&|i| at(i).0 * at(i).1, j)),
                    &what,
                );
                let mut out = noise(rows * c, 10);
                normalize(&x, [&mean, &factor, &bias], &mut out);
                let want = |(_, x, f, _, b): (f64, f64, f64, f64, f64)| x * f + b;
                close(&out, (0..rows * c).map(at).map(want), &what);
                gradient([&dy, &x], [&mean, &factor, &slope, &bias], &mut out);
                let want = |(dy, x, f, s, b): (f64, f64, f64, f64, f64)| f * dy + s * x + b;
                close(&out, (0..rows * c).map(at).map(want), &what);
            }
        });
    }
}
