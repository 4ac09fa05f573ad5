//! Elementary functions of `f64` without calls or branches, so that loops of them are vectorized: the
//! approximations of Cephes (Moshier). Errors stay within about two units in the last place; NaN and
//! infinities have the results of the C library.

/// Adding this leaves no bits for a fraction: the lowest bits are those of the integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// Returns the value of a polynomial, the highest coefficient first.
#[inline(always)]
pub(crate) fn poly<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let mut y = coefficients[0];
    let mut i = 1;
    while i < N {
        y = y * x + coefficients[i];
        i += 1;
    }
    y
}

/// Returns `2^n` for an integer from -1022 to 1023.
#[inline(always)]
fn power_of_two(n: f64) -> f64 {
    f64::from_bits((n + ROUND).to_bits().wrapping_add(1023) << 52)
}

/// Returns `n` and `y` with `e^x = 2^n (1 + y)`.
#[inline(always)]
fn exp_parts(x: f64) -> (f64, f64) {
    let n = (x * std::f64::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts; the products with the first are exact.
    let r = x - n * 6.931_457_519_531_25e-1 - n * 1.428_606_820_309_417_2e-6;
    let z = r * r;
    let p = r * poly(
        z,
        [1.261_771_930_748_105_9e-4, 3.029_944_077_074_419_6e-2, 1.0],
    );
    let q = poly(
        z,
        [
            3.001_985_051_386_644_6e-6,
            2.524_483_403_496_841e-3,
            2.272_655_482_081_550_3e-1,
            2.0,
        ],
    );
    (n, 2.0 * (p / (q - p)))
}

/// Returns e to the power of `x`.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    let x = if x > 710.0 { 710.0 } else { x };
    let x = if x < -746.0 { -746.0 } else { x };
    let (n, y) = exp_parts(x);
    // In two steps: the smallest results are denormal.
    let half = (n * 0.5 + ROUND) - ROUND;
    (1.0 + y) * power_of_two(half) * power_of_two(n - half)
}

/// Returns `e^x - 1` without cancellation.
#[inline(always)]
pub fn exp_m1(x: f64) -> f64 {
    let bounded = if x > 700.0 { 700.0 } else { x };
    let bounded = if bounded < -700.0 { -700.0 } else { bounded };
    let (n, y) = exp_parts(bounded);
    let scale = power_of_two(n);
    let y = scale * y + (scale - 1.0);
    let y = if x > 700.0 { exp(x) } else { y };
    if x.abs() < 1e-300 { x } else { y }
}

/// Returns the natural logarithm of `x`.
#[inline(always)]
pub fn ln(x: f64) -> f64 {
    let is_denormal = x < f64::MIN_POSITIVE;
    let scaled = if is_denormal {
        x * 18_014_398_509_481_984.0
    } else {
        x
    };
    let bits = scaled.to_bits();
    // Integers below 2^52 are the lowest bits of a float of that exponent.
    let exponent = f64::from_bits(0x4330_0000_0000_0000 | bits >> 52) - 4_503_599_627_370_496.0;
    let exponent = exponent - if is_denormal { 1076.0 } else { 1022.0 };
    let m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000);
    let is_low = m < std::f64::consts::FRAC_1_SQRT_2;
    let e = if is_low { exponent - 1.0 } else { exponent };
    let f = if is_low { m + m - 1.0 } else { m - 1.0 };
    let z = f * f;
    let p = poly(
        f,
        [
            1.018_756_638_045_809_3e-4,
            4.974_949_949_767_47e-1,
            4.705_791_198_788_817,
            1.449_892_253_416_109_3e1,
            1.793_686_785_078_198_2e1,
            7.708_387_337_558_854,
        ],
    );
    let q = poly(
        f,
        [
            1.0,
            1.128_735_871_891_674_5e1,
            4.522_791_458_375_322e1,
            8.298_752_669_127_766e1,
            7.115_447_506_185_639e1,
            2.312_516_201_267_653_4e1,
        ],
    );
    let y = f * (z * p / q) - e * 2.121_944_400_546_905_8e-4 - 0.5 * z;
    let y = f + y + e * 0.693_359_375;
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    // NaN, too, is not at least zero.
    if x >= 0.0 { y } else { f64::NAN }
}

/// Returns `ln (1 + x)` without cancellation.
#[inline(always)]
pub fn ln_1p(x: f64) -> f64 {
    let u = 1.0 + x;
    // The rounding error of the addition.
    let lost = if x < 1.0 {
        x - (u - 1.0)
    } else {
        1.0 - (u - x)
    };
    let y = ln(u);
    let y = if y.is_finite() { y + lost / u } else { y };
    if x.abs() < 1e-300 { x } else { y }
}

/// Above this, adding one to a square does not change it.
const LARGE: f64 = 1e9;

/// Returns `ln (1 + small)`, or `ln 2x` where `x` is above [`LARGE`].
#[inline(always)]
fn ln_1p_or_double(small: f64, x: f64) -> f64 {
    let is_large = x > LARGE;
    let y = ln_1p(if is_large { x } else { small });
    if is_large {
        y + std::f64::consts::LN_2
    } else {
        y
    }
}

/// Returns the inverse hyperbolic sine.
#[inline(always)]
pub fn asinh(x: f64) -> f64 {
    let size = x.abs();
    let square = size * size;
    let rest = square / (1.0 + (1.0 + square).sqrt());
    ln_1p_or_double(size + rest, size).copysign(x)
}

/// Returns the inverse hyperbolic cosine; NaN below one.
#[inline(always)]
pub fn acosh(x: f64) -> f64 {
    let t = x - 1.0;
    let y = ln_1p_or_double(t + (t * t + 2.0 * t).sqrt(), x);
    if x < 1.0 { f64::NAN } else { y }
}

/// What `f64` loses of a right angle.
const FRAC_PI_2_REST: f64 = 6.123_233_995_736_766e-17;

/// Returns the arctangent.
#[inline(always)]
pub fn atan(x: f64) -> f64 {
    let size = x.abs();
    let (is_large, is_middle) = (size > 2.414_213_562_373_095, size > 0.66);
    let above = if is_middle { size - 1.0 } else { size };
    let below = if is_middle { size + 1.0 } else { 1.0 };
    let above = if is_large { -1.0 } else { above };
    let below = if is_large { size } else { below };
    let t = above / below;
    let z = t * t;
    let p = poly(
        z,
        [
            -8.750_608_600_031_904e-1,
            -1.615_753_718_733_365_2e1,
            -7.500_855_792_314_705e1,
            -1.228_866_684_490_136_1e2,
            -6.485_021_904_942_025e1,
        ],
    );
    let q = poly(
        z,
        [
            1.0,
            2.485_846_490_142_306_4e1,
            1.650_270_098_316_988_6e2,
            4.328_810_604_912_903e2,
            4.853_903_996_359_137e2,
            1.945_506_571_482_614e2,
        ],
    );
    let y = t * (z * (p / q)) + t;
    let base = if is_middle {
        std::f64::consts::FRAC_PI_4
    } else {
        0.0
    };
    let rest = if is_middle { 0.5 * FRAC_PI_2_REST } else { 0.0 };
    let base = if is_large {
        std::f64::consts::FRAC_PI_2
    } else {
        base
    };
    let rest = if is_large { FRAC_PI_2_REST } else { rest };
    (base + (y + rest)).copysign(x)
}

/// Returns the angle of the point `(x, y)`.
#[inline(always)]
pub fn atan2(y: f64, x: f64) -> f64 {
    let (a, b) = (x.abs(), y.abs());
    let is_steep = a < b;
    let (small, large) = if is_steep { (a, b) } else { (b, a) };
    let at_end = if large == 0.0 { 0.0 } else { 1.0 };
    // Both infinite or both zero.
    let ratio = if small == large {
        at_end
    } else {
        small / large
    };
    let angle = atan(ratio);
    let turned = std::f64::consts::FRAC_PI_2 - (angle - FRAC_PI_2_REST);
    let angle = if is_steep { turned } else { angle };
    let turned = std::f64::consts::PI - (angle - 2.0 * FRAC_PI_2_REST);
    // The sign of a zero counts.
    let angle = if x.is_sign_negative() { turned } else { angle };
    let angle = if x.is_nan() || y.is_nan() {
        f64::NAN
    } else {
        angle
    };
    angle.copysign(y)
}

/// Below this magnitude [`sin_cos`] is exact to about a unit in the last place.
pub const SIN_COS_LIMIT: f64 = 1e6;

/// Returns the sine and the cosine of `x`, a number of a magnitude below [`SIN_COS_LIMIT`].
#[inline(always)]
pub fn sin_cos(x: f64) -> (f64, f64) {
    let n = x * std::f64::consts::FRAC_2_PI + ROUND;
    let quadrant = n.to_bits();
    let n = n - ROUND;
    // Half of pi in three parts (fdlibm); the products with the first two are exact.
    let r = x - n * 1.570_796_326_734_125_6 - n * 6.077_100_506_303_966e-11;
    let r = r - n * 2.022_266_248_795_950_7e-21;
    let z = r * r;
    let s = poly(
        z,
        [
            1.589_623_015_765_465_7e-10,
            -2.505_074_776_285_780_7e-8,
            2.755_731_362_138_572_4e-6,
            -1.984_126_982_958_954e-4,
            8.333_333_333_322_118e-3,
            -1.666_666_666_666_663e-1,
        ],
    );
    let s = r + r * z * s;
    let c = poly(
        z,
        [
            -1.135_853_652_138_768_2e-11,
            2.087_570_084_197_473e-9,
            -2.755_731_417_929_674e-7,
            2.480_158_728_885_170_4e-5,
            -1.388_888_888_887_305_6e-3,
            4.166_666_666_666_659e-2,
        ],
    );
    let c = 1.0 - 0.5 * z + z * z * c;
    let (sin, cos) = if quadrant & 1 == 0 { (s, c) } else { (c, s) };
    let negative = |sign: u64, y: f64| f64::from_bits(y.to_bits() ^ (sign & 2) << 62);
    let sin = negative(quadrant, sin);
    let cos = negative(quadrant.wrapping_add(1), cos);
    // Zero keeps its sign.
    (if x == 0.0 { x } else { sin }, cos)
}

/// Returns the hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f64) -> f64 {
    let size = x.abs();
    let far = 1.0 - 2.0 / (exp(2.0 * size) + 1.0);
    let z = x * x;
    let p = poly(
        z,
        [
            -9.643_991_794_250_523e-1,
            -9.928_772_310_019_185e1,
            -1.614_687_684_417_084_5e3,
        ],
    );
    let q = poly(
        z,
        [
            1.0,
            1.128_116_784_916_329_3e2,
            2.235_488_390_601_004_5e3,
            4.844_063_053_251_255e3,
        ],
    );
    // Computes both and selects without a branch; for large numbers the first is not a number.
    let near = x + x * (z * (p / q));
    if size < 0.625 { near } else { far.copysign(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the error in units of the last place against the C library's.
    fn check(name: &str, f: impl Fn(f64) -> f64, of: impl Fn(f64) -> f64) {
        let edges = [
            0.0,
            -0.0,
            1.0,
            5e-324,
            -5e-324,
            1e-310,
            1e-300,
            f64::MIN_POSITIVE,
            0.625,
            709.7,
            709.79,
            711.0,
            -708.0,
            -744.0,
            -745.2,
            -800.0,
            f64::MAX,
            f64::MIN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        let steps = (-4000..4000).map(|i| f64::from(i) * 0.017);
        let small = (-500..500).map(|i| f64::from(i) * 1.3e-5 + 1.0);
        for x in edges.into_iter().chain(steps).chain(small) {
            let (got, want) = (f(x), of(x));
            if want.is_nan() || want.is_infinite() || want == 0.0 {
                assert!(
                    got == want || got.is_nan() && want.is_nan(),
                    "{name}({x:e}): {got:e} for {want:e}"
                );
                continue;
            }
            let unit = (want.abs() * f64::EPSILON).max(5e-324);
            assert!(
                (got - want).abs() <= 2.0 * unit,
                "{name}({x:e}): {got:e} for {want:e}"
            );
        }
    }

    #[test]
    fn functions_are_the_library_s() {
        check("exp", exp, f64::exp);
        check("ln", ln, f64::ln);
        check("tanh", tanh, f64::tanh);
        check("exp_m1", exp_m1, f64::exp_m1);
        check("ln_1p", ln_1p, f64::ln_1p);
        check("atan", atan, f64::atan);
        check("asinh", asinh, libm::asinh);
        check("acosh", acosh, libm::acosh);
        let near = |x: f64| x.abs() < SIN_COS_LIMIT;
        check(
            "sin",
            |x| if near(x) { sin_cos(x).0 } else { x.sin() },
            f64::sin,
        );
        check(
            "cos",
            |x| if near(x) { sin_cos(x).1 } else { x.cos() },
            f64::cos,
        );
        for i in 1..=100_000u32 {
            let x = f64::from(i) * 9.99;
            let (sin, cos) = sin_cos(x);
            assert!(
                (sin - x.sin()).abs() < 3e-16 && (cos - x.cos()).abs() < 3e-16,
                "{x}"
            );
        }
        for x in [
            0.0,
            -0.0,
            1.0,
            -3.5,
            1e300,
            -1e-300,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ] {
            let of = move |y: f64| y.atan2(x);
            check("atan2", move |y| atan2(y, x), of);
        }
    }
}
