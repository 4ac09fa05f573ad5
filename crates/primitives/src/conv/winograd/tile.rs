//! The input, output, gradient and filter transforms of tiles, for vectors of channels.
//!
//! A transformed tile of `N × N` numbers is stored in as many planes and has `M × M` outputs. `N`
//! is 4, for the points 0, 1, -1 and ∞; 6, for those and 2 and -2; or 8, for those and ½ and -½.

use crate::aligned::SendPtr;
use crate::vector::Simd;

/// The input transform of a tile.
pub(crate) struct InputJob {
    /// The `N × N` pixels.
    pub pixels: *const SendPtr<f32>,
    /// Channels.
    pub n: usize,
    /// The tile in the first plane, and the distance to the next.
    pub dst: *mut f32,
    pub plane: usize,
}

/// The transform of an output tile's gradient, into panels of a matrix.
pub(crate) struct GradientJob {
    /// The `M × M` pixels.
    pub pixels: *const SendPtr<f32>,
    /// Channels.
    pub n: usize,
    /// The tile's row of the first panel in the first plane.
    pub dst: *mut f32,
    /// From one panel, which is two vectors wide, to the next.
    pub panel: usize,
    /// From one plane to the next.
    pub plane: usize,
}

/// The transform of filters.
pub(crate) struct FilterJob {
    /// Elements at each position of a filter, position after position.
    pub positions: *const SendPtr<f32>,
    /// Pairs of channels, or as many elements of panels.
    pub n: usize,
    /// The first plane, and the distance to the next.
    pub dst: *mut f32,
    pub plane: usize,
}

/// The output transform of a tile.
pub(crate) struct OutputJob {
    /// The tile in the first plane, and the distance to the next.
    pub src: *const f32,
    pub plane: usize,
    /// Channels.
    pub n: usize,
    pub scale: *const f32,
    pub bias: *const f32,
    /// The `M × M` pixels of the side input, each perhaps null.
    pub side: *const SendPtr<f32>,
    /// The `M × M` outputs.
    pub out: *const SendPtr<f32>,
    pub limits: [f32; 2],
}

/// Calls a function for vectors of the channels below `n`, the last one partial; expanded twice,
/// so that full vectors are moved without masks.
macro_rules! each_vector {
    ($s:ident, $j:ident, $f:expr) => {{
        let mut c = 0;
        while c + S::N <= $j.n {
            $f($s, $j, c, S::N);
            c += S::N;
        }
        if c < $j.n {
            $f($s, $j, c, $j.n - c);
        }
    }};
}

/// Reads the first `left` lanes.
///
/// # Safety
/// `p` is valid for reads of `left` elements.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, left: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe {
        match left == S::N {
            true => s.load(p),
            false => s.load_part(p, left),
        }
    }
}

/// Writes the first `left` lanes.
///
/// # Safety
/// `p` is valid for writes of `left` elements.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, p: *mut f32, x: S::V, left: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match left == S::N {
            true => s.store(p, x),
            false => s.store_part(p, x, left),
        }
    }
}

/// Returns the vector at `p + c`, or this number in all lanes if `p` is null.
///
/// # Safety
/// `p` is null or valid for reads of `left` elements from `c` on.
#[inline(always)]
unsafe fn or<S: Simd>(s: S, p: *const f32, c: usize, left: usize, otherwise: f32) -> S::V {
    match p.is_null() {
        true => s.splat(otherwise),
        // SAFETY: the caller's promise.
        false => unsafe { load(s, p.add(c), left) },
    }
}

/// Returns `Bᵀ d`: the values of polynomials that vanish at all points but one.
#[inline(always)]
fn input_line<S: Simd, const N: usize>(s: S, d: [S::V; N]) -> [S::V; N] {
    let mut t = d;
    if N == 4 {
        t[0] = s.sub(d[0], d[2]);
        t[1] = s.add(d[1], d[2]);
        t[2] = s.sub(d[2], d[1]);
        t[3] = s.sub(d[1], d[3]);
    } else if N == 6 {
        let (two, four, five) = (s.splat(2.0), s.splat(4.0), s.splat(5.0));
        let even = s.fnma(four, d[2], d[4]);
        let odd = s.fnma(four, d[1], d[3]);
        let (low, high) = (s.sub(d[4], d[2]), s.mul(two, s.sub(d[3], d[1])));
        t[0] = s.fma(four, d[0], s.fnma(five, d[2], d[4]));
        t[1] = s.add(even, odd);
        t[2] = s.sub(even, odd);
        t[3] = s.add(low, high);
        t[4] = s.sub(low, high);
        t[5] = s.fma(four, d[1], s.fnma(five, d[3], d[5]));
    } else {
        let [quarter, half, two, four] = [s.splat(0.25), s.splat(0.5), s.splat(2.0), s.splat(4.0)];
        let [a, b, c, e, f] = [
            s.splat(5.25),
            s.splat(4.25),
            s.splat(1.25),
            s.splat(2.5),
            s.splat(5.0),
        ];
        t[0] = s.fma(a, s.sub(d[4], d[2]), s.sub(d[0], d[6]));
        t[7] = s.fma(a, s.sub(d[3], d[5]), s.sub(d[7], d[1]));
        let even = s.fnma(b, d[4], s.add(d[2], d[6]));
        let odd = s.fnma(b, d[3], s.add(d[1], d[5]));
        (t[1], t[2]) = (s.add(even, odd), s.sub(even, odd));
        let even = s.fma(quarter, d[2], s.fnma(c, d[4], d[6]));
        let odd = s.fma(half, d[1], s.fnma(e, d[3], s.mul(two, d[5])));
        (t[3], t[4]) = (s.add(even, odd), s.sub(even, odd));
        let even = s.fma(four, d[2], s.fnma(f, d[4], d[6]));
        let odd = s.fma(two, d[1], s.fnma(e, d[3], s.mul(half, d[5])));
        (t[5], t[6]) = (s.add(even, odd), s.sub(even, odd));
    }
    t
}

/// Returns `Aᵀ m`: outputs.
#[inline(always)]
fn output_line<S: Simd, const N: usize, const M: usize>(s: S, m: [S::V; N]) -> [S::V; M] {
    let mut y = [s.zero(); M];
    let (sum, difference) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
    if N == 4 {
        y[0] = s.add(m[0], sum);
        y[1] = s.sub(difference, m[3]);
    } else if N == 6 {
        let far = s.fma(s.splat(2.0), s.sub(m[3], m[4]), m[5]);
        y[0] = s.add(s.add(m[0], sum), s.add(m[3], m[4]));
        y[1] = s.add(difference, far);
    } else {
        let [eighth, quarter, half] = [s.splat(0.125), s.splat(0.25), s.splat(0.5)];
        let [two, four, eight] = [s.splat(2.0), s.splat(4.0), s.splat(8.0)];
        let (far, wide) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
        let (near, narrow) = (s.add(m[5], m[6]), s.sub(m[5], m[6]));
        y[0] = s.add(s.add(m[0], sum), s.add(far, near));
        y[1] = s.fma(two, wide, s.fma(half, narrow, difference));
        y[2] = s.fma(four, far, s.fma(quarter, near, sum));
        y[3] = s.fma(eight, wide, s.fma(eighth, narrow, s.add(difference, m[7])));
    }
    y
}

/// Returns `G g` for as many numbers as a tile has outputs in a row.
#[inline(always)]
fn gradient_line<S: Simd, const N: usize, const M: usize>(s: S, g: [S::V; M]) -> [S::V; N] {
    let mut t = [s.zero(); N];
    let (sum, difference) = (s.add(g[0], g[1]), s.sub(g[0], g[1]));
    if N == 4 {
        let half = s.splat(0.5);
        t[0] = g[0];
        t[1] = s.mul(half, sum);
        t[2] = s.mul(half, difference);
        t[3] = s.neg(g[1]);
    } else if N == 6 {
        let (sixth, low) = (s.splat(-1.0 / 6.0), s.mul(s.splat(1.0 / 24.0), g[0]));
        let twelfth = s.splat(1.0 / 12.0);
        t[0] = s.mul(s.splat(0.25), g[0]);
        t[1] = s.mul(sixth, sum);
        t[2] = s.mul(sixth, difference);
        t[3] = s.fma(twelfth, g[1], low);
        t[4] = s.fnma(twelfth, g[1], low);
        t[5] = g[1];
    } else {
        let [eighth, quarter, half] = [s.splat(0.125), s.splat(0.25), s.splat(0.5)];
        let [two, four, eight] = [s.splat(2.0), s.splat(4.0), s.splat(8.0)];
        let [one, far, near] = [
            s.splat(-2.0 / 9.0),
            s.splat(1.0 / 90.0),
            s.splat(32.0 / 45.0),
        ];
        let both = |factor, even, odd| {
            let (even, odd) = (s.mul(factor, even), s.mul(factor, odd));
            (s.add(even, odd), s.sub(even, odd))
        };
        t[0] = g[0];
        (t[1], t[2]) = both(one, s.add(g[0], g[2]), s.add(g[1], g[3]));
        let odd = s.fma(two, g[1], s.mul(eight, g[3]));
        (t[3], t[4]) = both(far, s.fma(four, g[2], g[0]), odd);
        let odd = s.fma(half, g[1], s.mul(eighth, g[3]));
        (t[5], t[6]) = both(near, s.fma(quarter, g[2], g[0]), odd);
        t[7] = g[3];
    }
    t
}

/// Returns `G g` for the `F` elements of a line of a filter.
#[inline(always)]
fn filter_line<S: Simd, const N: usize, const F: usize>(s: S, g: [S::V; F]) -> [S::V; N] {
    let mut t = [s.zero(); N];
    let (first, last) = (g[0], g[F - 1]);
    // The values at a point and at its negative, by the even and the odd powers.
    let both = |factor, even, odd| {
        let (even, odd) = (s.mul(factor, even), s.mul(factor, odd));
        (s.add(even, odd), s.sub(even, odd))
    };
    if N == 4 {
        (t[1], t[2]) = both(s.splat(0.5), s.add(first, last), g[1]);
        (t[0], t[3]) = (first, last);
    } else {
        let (even, odd) = (s.add(s.add(first, g[2]), last), s.add(g[1], g[3]));
        let [two, four, eight, sixteen] = [s.splat(2.0), s.splat(4.0), s.splat(8.0), s.splat(16.0)];
        let far_even = s.fma(sixteen, last, s.fma(four, g[2], first));
        let far_odd = s.fma(eight, g[3], s.mul(two, g[1]));
        if N == 6 {
            t[0] = s.mul(s.splat(0.25), first);
            (t[1], t[2]) = both(s.splat(-1.0 / 6.0), even, odd);
            (t[3], t[4]) = both(s.splat(1.0 / 24.0), far_even, far_odd);
        } else {
            let [half, quarter] = [s.splat(0.5), s.splat(0.25)];
            let [eighth, sixteenth] = [s.splat(0.125), s.splat(0.0625)];
            let near_even = s.fma(sixteenth, last, s.fma(quarter, g[2], first));
            let near_odd = s.fma(eighth, g[3], s.mul(half, g[1]));
            t[0] = first;
            (t[1], t[2]) = both(s.splat(-2.0 / 9.0), even, odd);
            (t[3], t[4]) = both(s.splat(1.0 / 90.0), far_even, far_odd);
            (t[5], t[6]) = both(s.splat(32.0 / 45.0), near_even, near_odd);
        }
        t[N - 1] = last;
    }
    t
}

/// # Safety
/// There are `F × F` positions; they and each of the `N × N` planes are valid for `n` elements.
#[inline(always)]
pub(crate) unsafe fn filter_tile<S: Simd, const N: usize, const F: usize>(s: S, j: &FilterJob) {
    // SAFETY: elements stay below `n`.
    unsafe { each_vector!(s, j, filter_vector::<S, N, F>) }
}

/// # Safety
/// As for [`filter_tile`], and the `left` elements from `c` on are below `n`.
#[inline(always)]
unsafe fn filter_vector<S: Simd, const N: usize, const F: usize>(
    s: S,
    j: &FilterJob,
    c: usize,
    left: usize,
) {
    let mut half = [[s.zero(); N]; F];
    let mut x = 0;
    while x < F {
        let mut column = [s.zero(); F];
        let mut y = 0;
        while y < F {
            // SAFETY: a position's elements below `n`.
            column[y] = unsafe { load(s, (*j.positions.add(y * F + x)).get().add(c), left) };
            y += 1;
        }
        half[x] = filter_line::<S, N, F>(s, column);
        x += 1;
    }
    let mut y = 0;
    while y < N {
        let mut row = [s.zero(); F];
        let mut x = 0;
        while x < F {
            row[x] = half[x][y];
            x += 1;
        }
        let row = filter_line::<S, N, F>(s, row);
        let mut x = 0;
        while x < N {
            // SAFETY: a plane's elements below `n`.
            unsafe { store(s, j.dst.add((y * N + x) * j.plane + c), row[x], left) };
            x += 1;
        }
        y += 1;
    }
}

/// # Safety
/// There are `N × N` pixels; they and the tile in each plane are valid for `n` channels.
#[inline(always)]
pub(crate) unsafe fn input_tile<S: Simd, const N: usize>(s: S, j: &InputJob) {
    // SAFETY: channels stay below `n`.
    unsafe { each_vector!(s, j, input_vector::<S, N>) }
}

/// # Safety
/// As for [`input_tile`], and the `left` channels from `c` on are below `n`.
#[inline(always)]
unsafe fn input_vector<S: Simd, const N: usize>(s: S, j: &InputJob, c: usize, left: usize) {
    let mut half = [[s.zero(); N]; N];
    let mut x = 0;
    while x < N {
        let mut column = [s.zero(); N];
        let mut y = 0;
        while y < N {
            // SAFETY: a pixel's channels below `n`.
            column[y] = unsafe { load(s, (*j.pixels.add(y * N + x)).get().add(c), left) };
            y += 1;
        }
        half[x] = input_line::<S, N>(s, column);
        x += 1;
    }
    let mut y = 0;
    while y < N {
        let mut row = [s.zero(); N];
        let mut x = 0;
        while x < N {
            row[x] = half[x][y];
            x += 1;
        }
        let row = input_line::<S, N>(s, row);
        let mut x = 0;
        while x < N {
            // SAFETY: a plane's channels below `n`.
            unsafe { store(s, j.dst.add((y * N + x) * j.plane + c), row[x], left) };
            x += 1;
        }
        y += 1;
    }
}

/// # Safety
/// The pixels, and the tile's row of each panel in each of the `N × N` planes, are valid for `n`
/// channels.
#[inline(always)]
pub(crate) unsafe fn gradient_tile<S: Simd, const N: usize, const M: usize>(s: S, j: &GradientJob) {
    // SAFETY: channels stay below `n`.
    unsafe { each_vector!(s, j, gradient_vector::<S, N, M>) }
}

/// # Safety
/// As for [`gradient_tile`], and the `left` channels from `c` on are below `n`.
#[inline(always)]
unsafe fn gradient_vector<S: Simd, const N: usize, const M: usize>(
    s: S,
    j: &GradientJob,
    c: usize,
    left: usize,
) {
    let (panel, column) = (c / (2 * S::N), c % (2 * S::N));
    let mut half = [[s.zero(); N]; M];
    let mut x = 0;
    while x < M {
        let mut column = [s.zero(); M];
        let mut y = 0;
        while y < M {
            // SAFETY: a pixel's channels below `n`.
            column[y] = unsafe { load(s, (*j.pixels.add(y * M + x)).get().add(c), left) };
            y += 1;
        }
        half[x] = gradient_line::<S, N, M>(s, column);
        x += 1;
    }
    let mut y = 0;
    while y < N {
        let mut row = [s.zero(); M];
        let mut x = 0;
        while x < M {
            row[x] = half[x][y];
            x += 1;
        }
        let row = gradient_line::<S, N, M>(s, row);
        let mut x = 0;
        while x < N {
            let at = (y * N + x) * j.plane + panel * j.panel + column;
            // SAFETY: a panel's channels below `n`.
            unsafe { store(s, j.dst.add(at), row[x], left) };
            x += 1;
        }
        y += 1;
    }
}

/// # Safety
/// The tile in each of the `N × N` planes, the outputs and, where not null, the scale, the bias and
/// the side inputs are valid for `n` channels.
#[inline(always)]
pub(crate) unsafe fn output_tile<S: Simd, const N: usize, const M: usize>(s: S, j: &OutputJob) {
    // SAFETY: channels stay below `n`.
    unsafe { each_vector!(s, j, output_vector::<S, N, M>) }
}

/// # Safety
/// As for [`output_tile`], and the `left` channels from `c` on are below `n`.
#[inline(always)]
unsafe fn output_vector<S: Simd, const N: usize, const M: usize>(
    s: S,
    j: &OutputJob,
    c: usize,
    left: usize,
) {
    let (lo, hi) = (s.splat(j.limits[0]), s.splat(j.limits[1]));
    // SAFETY: channels below `n` of what is not null.
    let (scale, bias) = unsafe { (or(s, j.scale, c, left, 1.0), or(s, j.bias, c, left, 0.0)) };
    let mut half = [[s.zero(); N]; M];
    let mut x = 0;
    while x < N {
        let mut column = [s.zero(); N];
        let mut y = 0;
        while y < N {
            // SAFETY: a plane's channels below `n`.
            column[y] = unsafe { load(s, j.src.add((y * N + x) * j.plane + c), left) };
            y += 1;
        }
        let outputs = output_line::<S, N, M>(s, column);
        let mut y = 0;
        while y < M {
            half[y][x] = outputs[y];
            y += 1;
        }
        x += 1;
    }
    let mut y = 0;
    while y < M {
        let row = output_line::<S, N, M>(s, half[y]);
        let mut i = 0;
        while i < M {
            // SAFETY: there are `M × M` pixels; channels below `n` of what is not null.
            unsafe {
                let (side, out) = ((*j.side.add(y * M + i)).get(), *j.out.add(y * M + i));
                let mut x = s.fma(row[i], scale, bias);
                if !side.is_null() {
                    x = s.add(x, load(s, side.add(c), left));
                }
                store(s, out.get().add(c), s.min(hi, s.max(lo, x)), left);
            }
            i += 1;
        }
        y += 1;
    }
}
