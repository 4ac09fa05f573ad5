//! Gamma, Poisson and binomial samples by rejection, each from its own stream, bit for bit
//! TensorFlow's (`core/kernels/random_op.cc`, `random_poisson_op.cc`, `random_binomial_op.cc`).

use ferroflow_functors::distributions::{normal_f64, unit_f64};
use ferroflow_primitives::philox::Philox;
use ferroflow_primitives::special::lgamma;

/// Numbers computed two per block, of which the second is used first.
struct Backward {
    make: fn([u32; 4]) -> [f64; 2],
    first: Option<f64>,
}

impl Backward {
    fn new(make: fn([u32; 4]) -> [f64; 2]) -> Self {
        Backward { make, first: None }
    }

    fn next(&mut self, random: &mut Philox) -> f64 {
        self.first.take().unwrap_or_else(|| {
            let [first, second] = (self.make)(random.next_block());
            self.first = Some(first);
            second
        })
    }
}

/// Returns two numbers in [0, 1).
fn units([a, b, c, d]: [u32; 4]) -> [f64; 2] {
    [unit_f64(a, b), unit_f64(c, d)]
}

/// Returns a sample of the gamma distribution of shape `alpha` (Marsaglia and Tsang, 2000).
pub(crate) fn gamma(mut random: Philox, alpha: f64) -> f64 {
    let (mut uniforms, mut normals) = (Backward::new(units), Backward::new(normal_f64));
    if alpha == 1.0 {
        return -(-uniforms.next(&mut random)).ln_1p();
    }
    let small = alpha < 1.0;
    let d = alpha + if small { 2.0 / 3.0 } else { -1.0 / 3.0 };
    let c = 1.0 / 3.0 / d.sqrt();
    // Sampling would not terminate for NaN and negative shapes.
    if d.is_nan() || c.is_nan() {
        return f64::NAN;
    }
    loop {
        let x = normals.next(&mut random);
        let v = 1.0 + c * x;
        if v <= 0.0 {
            continue;
        }
        let v = v * v * v;
        let u = uniforms.next(&mut random);
        if u < 1.0 - 0.0331 * (x * x) * (x * x) || u.ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
            let scale = match small {
                true => uniforms.next(&mut random).powf(1.0 / alpha),
                false => 1.0,
            };
            return d * v * scale;
        }
    }
}

/// Returns a sample of the Poisson distribution, by counting events until their distances exceed
/// one (Knuth) for small rates, else by transformed rejection (PTRS: Hörmann, 1993).
pub(crate) fn poisson(mut random: Philox, rate: f64) -> f64 {
    let mut uniforms = Backward::new(units);
    if rate < 10.0 {
        let (least, mut product, mut n) = ((-rate).exp(), 1.0, 0.0);
        loop {
            product *= uniforms.next(&mut random);
            if product <= least {
                return n;
            }
            n += 1.0;
        }
    }
    // Sampling would not terminate.
    if !rate.is_finite() {
        return rate;
    }
    let log_rate = rate.ln();
    let b = 0.931 + 2.53 * rate.sqrt();
    let a = -0.059 + 0.02483 * b;
    let scale = 1.1239 + 1.1328 / (b - 3.4);
    loop {
        let u = uniforms.next(&mut random) - 0.5;
        let v = uniforms.next(&mut random);
        let left = 0.5 - u.abs();
        let k = ((2.0 * a / left + b) * u + rate + 0.43).floor();
        if left >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2.0) {
            return k;
        }
        if k < 0.0 || (left < 0.013 && v > left) {
            continue;
        }
        let s = (v * scale / (a / (left * left) + b)).ln();
        if s <= -rate + k * log_rate - lgamma(k + 1.0) {
            return k;
        }
    }
}

/// Returns a sample of the binomial distribution of `count` trials with probability `prob`, for the
/// `position`-th element of a tensor whose stream is `random`.
///
/// `many` is whether `count * prob` (or `count * (1 - prob)`, if that is less) is at least ten.
pub(crate) fn binomial(random: &Philox, position: u128, count: f64, prob: f64, many: bool) -> f64 {
    let draw = |prob| match many {
        true => binomial_rejected(random.skipped(256 * position), count, prob),
        false => binomial_inverted(random.skipped(42 * position), count, prob),
    };
    if count.is_nan() || prob.is_nan() {
        f64::NAN
    } else if count <= 0.0 || prob <= 0.0 {
        0.0
    } else if prob >= 1.0 {
        count
    } else if prob <= 0.5 {
        draw(prob)
    } else {
        count - draw(1.0 - prob)
    }
}

/// Returns how many geometric samples fit into `count` (inversion; Kachitvichyanukul, 1988).
fn binomial_inverted(mut random: Philox, count: f64, prob: f64) -> f64 {
    let mut uniforms = Backward::new(units);
    let (mut sum, mut n) = (0.0, 0.0);
    loop {
        sum += (uniforms.next(&mut random).ln() / (-prob).ln_1p()).ceil();
        if sum > count {
            return n;
        }
        n += 1.0;
    }
}

/// Samples by transformed rejection (BTRS: Hörmann, 1993).
fn binomial_rejected(mut random: Philox, count: f64, prob: f64) -> f64 {
    let mut uniforms = Backward::new(units);
    let deviation = (count * prob * (1.0 - prob)).sqrt();
    let b = 1.15 + 2.53 * deviation;
    let a = -0.0873 + 0.0248 * b + 0.01 * prob;
    let c = count * prob + 0.5;
    let accepted = 0.92 - 4.2 / b;
    let r = prob / (1.0 - prob);
    let alpha = (2.83 + 5.1 / b) * deviation;
    let m = ((count + 1.0) * prob).floor();
    loop {
        let u = uniforms.next(&mut random);
        let v = uniforms.next(&mut random);
        let u = u - 0.5;
        let left = 0.5 - u.abs();
        let k = ((2.0 * a / left + b) * u + c).floor();
        if left >= 0.07 && v <= accepted {
            return k;
        }
        if k < 0.0 || k > count {
            continue;
        }
        let v = (v * alpha / (a / (left * left) + b)).ln();
        let most = (m + 0.5) * ((m + 1.0) / (r * (count - m + 1.0))).ln()
            + (count + 1.0) * ((count - m + 1.0) / (count - k + 1.0)).ln()
            + (k + 0.5) * (r * (count - k + 1.0) / (k + 1.0)).ln()
            + stirling_tail(m)
            + stirling_tail(count - m)
            - stirling_tail(k)
            - stirling_tail(count - k);
        if v <= most {
            return k;
        }
    }
}

/// Returns the error of Stirling's formula for `ln k!`.
fn stirling_tail(k: f64) -> f64 {
    const SMALL: [f64; 10] = [
        0.0810614667953272,
        0.0413406959554092,
        0.0276779256849983,
        0.02079067210376509,
        0.0166446911898211,
        0.0138761288230707,
        0.0118967099458917,
        0.0104112652619720,
        0.00925546218271273,
        0.00833056343336287,
    ];
    if k <= 9.0 {
        return SMALL.get(k as usize).copied().unwrap_or_default();
    }
    let square = (k + 1.0) * (k + 1.0);
    (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / square) / square) / (k + 1.0)
}
