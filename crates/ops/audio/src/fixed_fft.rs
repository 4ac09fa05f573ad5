//! The discrete Fourier transform of 16-bit integers, bit for bit that of KISS FFT 131 (`kiss_fftr` with
//! `FIXED_POINT=16`), for sizes that are powers of two.

use std::f64::consts::PI;

/// A complex number of two fractions with 15 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Complex {
    pub re: i16,
    pub im: i16,
}

/// Rounds a product to 15 bits.
fn rounded(v: i32) -> i16 {
    (v.wrapping_add(1 << 14) >> 15) as i16
}

fn product(a: i16, b: i16) -> i32 {
    i32::from(a) * i32::from(b)
}

impl Complex {
    fn root(phase: f64) -> Self {
        let fixed = |x: f64| (0.5 + 32767.0 * x).floor() as i16;
        Complex {
            re: fixed(phase.cos()),
            im: fixed(phase.sin()),
        }
    }

    fn times(self, o: Self) -> Self {
        let re = product(self.re, o.re).wrapping_sub(product(self.im, o.im));
        let im = product(self.re, o.im).wrapping_add(product(self.im, o.re));
        Complex {
            re: rounded(re),
            im: rounded(im),
        }
    }

    /// Divides by a small number.
    fn over(self, n: i16) -> Self {
        Complex {
            re: rounded(product(self.re, 32767 / n)),
            im: rounded(product(self.im, 32767 / n)),
        }
    }

    fn plus(self, o: Self) -> Self {
        Complex {
            re: self.re.wrapping_add(o.re),
            im: self.im.wrapping_add(o.im),
        }
    }

    fn minus(self, o: Self) -> Self {
        Complex {
            re: self.re.wrapping_sub(o.re),
            im: self.im.wrapping_sub(o.im),
        }
    }
}

/// The transform of a real signal of one size.
pub(crate) struct FixedFft {
    /// The radix and the size that is left, level by level.
    levels: Vec<(usize, usize)>,
    roots: Vec<Complex>,
    super_roots: Vec<Complex>,
}

impl FixedFft {
    /// Returns the transform of `size` numbers, a power of two; `None` if it is less than two.
    pub(crate) fn new(size: usize) -> Option<Self> {
        if size < 2 || !size.is_power_of_two() {
            return None;
        }
        let half = size / 2;
        let mut levels = Vec::new();
        let mut left = half;
        while left > 1 {
            let radix = if left.is_multiple_of(4) { 4 } else { 2 };
            left /= radix;
            levels.push((radix, left));
        }
        if levels.is_empty() {
            levels.push((1, 1));
        }
        let roots = (0..half).map(|i| Complex::root(-2.0 * PI * i as f64 / half as f64));
        let super_roots =
            (0..half / 2).map(|i| Complex::root(-PI * ((i + 1) as f64 / half as f64 + 0.5)));
        Some(FixedFft {
            levels,
            roots: roots.collect(),
            super_roots: super_roots.collect(),
        })
    }

    /// Returns the spectrum, from zero to half the rate.
    pub(crate) fn spectrum(&self, signal: &[i16]) -> Vec<Complex> {
        let n = self.roots.len();
        let pairs = signal.chunks_exact(2);
        let pairs: Vec<Complex> = pairs.map(|p| Complex { re: p[0], im: p[1] }).collect();
        let mut whole = vec![Complex::default(); n];
        self.level(&mut whole, &pairs, 0, 1, 0);
        let mut out = vec![Complex::default(); n + 1];
        let first = whole[0].over(2);
        out[0].re = first.re.wrapping_add(first.im);
        out[n].re = first.re.wrapping_sub(first.im);
        for k in 1..=n / 2 {
            let a = whole[k].over(2);
            let other = whole[n - k];
            let conjugate = Complex {
                re: other.re,
                im: other.im.wrapping_neg(),
            };
            let b = conjugate.over(2);
            let (sum, difference) = (a.plus(b), a.minus(b));
            let turned = difference.times(self.super_roots[k - 1]);
            let half = |v: i32| (v >> 1) as i16;
            let wide = |v: i16| i32::from(v);
            out[k] = Complex {
                re: half(wide(sum.re) + wide(turned.re)),
                im: half(wide(sum.im) + wide(turned.im)),
            };
            out[n - k] = Complex {
                re: half(wide(sum.re) - wide(turned.re)),
                im: half(wide(turned.im) - wide(sum.im)),
            };
        }
        out
    }

    /// Transforms the inputs from `from` on, each `stride`-th.
    fn level(&self, out: &mut [Complex], input: &[Complex], from: usize, stride: usize, at: usize) {
        let (radix, m) = self.levels[at];
        if m == 1 {
            for (i, to) in out.iter_mut().enumerate() {
                *to = input[from + i * stride];
            }
        } else {
            for (i, part) in out.chunks_exact_mut(m).enumerate() {
                self.level(part, input, from + i * stride, stride * radix, at + 1);
            }
        }
        match radix {
            4 => self.four(out, stride, m),
            2 => self.two(out, stride, m),
            _ => out.iter_mut().for_each(|x| *x = x.over(1)),
        }
    }

    fn two(&self, out: &mut [Complex], stride: usize, m: usize) {
        for k in 0..m {
            let (a, b) = (out[k].over(2), out[k + m].over(2));
            let turned = b.times(self.roots[k * stride]);
            out[k + m] = a.minus(turned);
            out[k] = a.plus(turned);
        }
    }

    fn four(&self, out: &mut [Complex], stride: usize, m: usize) {
        for k in 0..m {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| out[k + i * m].over(4));
            let b = b.times(self.roots[k * stride]);
            let c = c.times(self.roots[k * stride * 2]);
            let d = d.times(self.roots[k * stride * 3]);
            let (difference, sum) = (a.minus(c), a.plus(c));
            let (odd, turned) = (b.plus(d), b.minus(d));
            let turned = Complex {
                re: turned.im,
                im: turned.re.wrapping_neg(),
            };
            out[k] = sum.plus(odd);
            out[k + m] = difference.plus(turned);
            out[k + 2 * m] = sum.minus(odd);
            out[k + 3 * m] = difference.minus(turned);
        }
    }
}
