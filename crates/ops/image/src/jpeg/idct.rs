//! Inverse cosine transforms of blocks of 8 × 8 coefficients, with the integer arithmetic of libjpeg
//! (`jidctfst.c`, `jidctint.c`, `jidctred.c`), so that every sample is libjpeg's.

use ferroflow_primitives::lanes::Row;

/// Coefficients of a block, row by row.
pub(super) type Block = [i16; 64];

/// What is left of eight samples in a direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    Fast,
    Accurate,
    Four,
    Two,
    One,
}

/// The scales of the fast transform's rows and columns.
const SCALES: [f64; 8] = [
    1.0,
    1.387039845,
    1.306562965,
    1.175875602,
    1.0,
    0.785694958,
    0.541196100,
    0.275899379,
];

impl Transform {
    pub(super) fn of(size: usize, accurate: bool) -> Transform {
        match (size, accurate) {
            (8, false) => Transform::Fast,
            (8, true) => Transform::Accurate,
            (4, _) => Transform::Four,
            (2, _) => Transform::Two,
            _ => Transform::One,
        }
    }

    /// Returns what coefficients are multiplied by, for a quantization table.
    pub(super) fn multipliers(self, quant: &[u16; 64]) -> Block {
        let mut out = [0; 64];
        for (i, (m, &q)) in out.iter_mut().zip(quant).enumerate() {
            *m = match self {
                Transform::Fast => {
                    // Products of two scales with 14 bits, as libjpeg's table has them.
                    let both = (SCALES[i / 8] * SCALES[i % 8] * 16384.0).round() as u32;
                    ((u32::from(q) * both + (1 << 11)) >> 12) as i16
                }
                _ => q as i16,
            };
        }
        out
    }

    /// Writes the samples of a block to rows of `out` that are `stride` apart.
    pub(super) fn run(self, block: &Block, multipliers: &Block, out: &mut [u8], stride: usize) {
        match self {
            Transform::Fast => fast(block, multipliers, out, stride),
            Transform::Accurate => accurate(block, multipliers, out, stride),
            Transform::Four => four(block, multipliers, out, stride),
            Transform::Two => two(block, multipliers, out, stride),
            Transform::One => {
                let dc = i32::from(block[0].wrapping_mul(multipliers[0]));
                if let Some(sample) = out.first_mut() {
                    *sample = clamp(descale(dc, 3));
                }
            }
        }
    }
}

/// Returns a sample: 128 stands for 0.
fn clamp(v: i32) -> u8 {
    (v + 128).clamp(0, 255) as u8
}

fn descale(v: i32, bits: u32) -> i32 {
    v.wrapping_add(1 << (bits - 1)) >> bits
}

/// One direction of the fast transform: the algorithm of Arai, Agui and Nakajima.
#[inline(always)]
fn fast_pass(x: [Row; 8]) -> [Row; 8] {
    let [x0, x1, x2, x3, x4, x5, x6, x7] = x;
    let (sum, difference) = (x0.plus(x4), x0.minus(x4));
    let t13 = x2.plus(x6);
    let t12 = x2.minus(x6).scaled(362 << 6).minus(t13);
    let (e0, e3) = (sum.plus(t13), sum.minus(t13));
    let (e1, e2) = (difference.plus(t12), difference.minus(t12));
    let (z13, z10) = (x5.plus(x3), x5.minus(x3));
    let (z11, z12) = (x1.plus(x7), x1.minus(x7));
    let o7 = z11.plus(z13);
    let t11 = z11.minus(z13).scaled(362 << 6);
    let z5 = z10.plus(z12).scaled(473 << 6);
    let t10 = z12.scaled(277 << 6).minus(z5);
    let t12 = z10.scaled(-(413 << 6)).minus(z10).plus(z5);
    let o6 = t12.minus(o7);
    let o5 = t11.minus(o6);
    let o4 = t10.plus(o5);
    [
        e0.plus(o7),
        e1.plus(o6),
        e2.plus(o5),
        e3.minus(o4),
        e3.plus(o4),
        e2.minus(o5),
        e1.minus(o6),
        e0.minus(o7),
    ]
}

fn fast(block: &Block, multipliers: &Block, out: &mut [u8], stride: usize) {
    if block[1..].iter().fold(0, |any, c| any | c) == 0 {
        let sample = clamp(i32::from(block[0].wrapping_mul(multipliers[0])) >> 5);
        for row in out.chunks_mut(stride).take(8) {
            if let Some(row) = row.first_chunk_mut::<8>() {
                *row = [sample; 8];
            }
        }
        return;
    }
    let (block, multipliers) = (block.as_chunks::<8>().0, multipliers.as_chunks::<8>().0);
    let rows = std::array::from_fn(|r| Row::products(&block[r], &multipliers[r]));
    let rows = Row::transposed(fast_pass(Row::transposed(fast_pass(rows))));
    for (row, out) in rows.iter().zip(out.chunks_mut(stride)) {
        if let Some(out) = out.first_chunk_mut::<8>() {
            *out = row.samples();
        }
    }
}

const BITS: u32 = 13;
const PASS_BITS: u32 = 2;

/// One direction of the accurate transform: the algorithm of Loeffler, Ligtenberg and Moschytz.
fn accurate_pass(x: [i32; 8], bits: u32) -> [i32; 8] {
    let z1 = (x[2] + x[6]).wrapping_mul(4433);
    let t2 = z1.wrapping_add(x[6].wrapping_mul(-15137));
    let t3 = z1.wrapping_add(x[2].wrapping_mul(6270));
    let t0 = (x[0] + x[4]) << BITS;
    let t1 = (x[0] - x[4]) << BITS;
    let (t10, t13) = (t0.wrapping_add(t3), t0.wrapping_sub(t3));
    let (t11, t12) = (t1.wrapping_add(t2), t1.wrapping_sub(t2));
    let (z1, z2, z3, z4) = (x[7] + x[1], x[5] + x[3], x[7] + x[3], x[5] + x[1]);
    let z5 = (z3 + z4).wrapping_mul(9633);
    let (z1, z2) = (z1.wrapping_mul(-7373), z2.wrapping_mul(-20995));
    let z3 = z3.wrapping_mul(-16069).wrapping_add(z5);
    let z4 = z4.wrapping_mul(-3196).wrapping_add(z5);
    let o0 = x[7].wrapping_mul(2446).wrapping_add(z1).wrapping_add(z3);
    let o1 = x[5].wrapping_mul(16819).wrapping_add(z2).wrapping_add(z4);
    let o2 = x[3].wrapping_mul(25172).wrapping_add(z2).wrapping_add(z3);
    let o3 = x[1].wrapping_mul(12299).wrapping_add(z1).wrapping_add(z4);
    let sums = [(t10, o3), (t11, o2), (t12, o1), (t13, o0)];
    let mut out = [0; 8];
    for (i, (even, odd)) in sums.into_iter().enumerate() {
        out[i] = descale(even.wrapping_add(odd), bits);
        out[7 - i] = descale(even.wrapping_sub(odd), bits);
    }
    out
}

/// Applies one-dimensional transforms to the columns, then to the first rows.
fn separable<const N: usize>(
    block: &Block,
    multipliers: &Block,
    out: &mut [u8],
    stride: usize,
    columns: impl Fn([i32; 8]) -> [i32; N],
    rows: impl Fn([i32; 8]) -> [i32; N],
) {
    let mut middle = [[0; 8]; N];
    for c in 0..8 {
        let product = |r: usize| i32::from(block[r * 8 + c].wrapping_mul(multipliers[r * 8 + c]));
        let column = columns(std::array::from_fn(product));
        for (row, v) in middle.iter_mut().zip(column) {
            row[c] = v;
        }
    }
    for (row, out) in middle.into_iter().zip(out.chunks_mut(stride)) {
        if let Some(out) = out.first_chunk_mut::<N>() {
            *out = rows(row).map(clamp);
        }
    }
}

fn accurate(block: &Block, multipliers: &Block, out: &mut [u8], stride: usize) {
    let columns = |x| accurate_pass(x, BITS - PASS_BITS);
    let rows = |x| accurate_pass(x, BITS + PASS_BITS + 3);
    separable(block, multipliers, out, stride, columns, rows);
}

fn four_pass(x: [i32; 8], bits: u32) -> [i32; 4] {
    let t0 = x[0] << (BITS + 1);
    let t2 = x[2]
        .wrapping_mul(15137)
        .wrapping_add(x[6].wrapping_mul(-6270));
    let (t10, t12) = (t0.wrapping_add(t2), t0.wrapping_sub(t2));
    let odd = |by: [i32; 4]| {
        let products = [x[7], x[5], x[3], x[1]].into_iter().zip(by);
        products.fold(0i32, |sum, (v, by)| sum.wrapping_add(v.wrapping_mul(by)))
    };
    let o0 = odd([-1730, 11893, -17799, 8697]);
    let o2 = odd([-4176, -4926, 7373, 20995]);
    let sums = [
        t10.wrapping_add(o2),
        t12.wrapping_add(o0),
        t12.wrapping_sub(o0),
        t10.wrapping_sub(o2),
    ];
    sums.map(|v| descale(v, bits))
}

fn four(block: &Block, multipliers: &Block, out: &mut [u8], stride: usize) {
    let columns = |x| four_pass(x, BITS - PASS_BITS + 1);
    let rows = |x| four_pass(x, BITS + PASS_BITS + 3 + 1);
    separable(block, multipliers, out, stride, columns, rows);
}

fn two_pass(x: [i32; 8], bits: u32) -> [i32; 2] {
    let even = x[0] << (BITS + 2);
    let products = [(x[7], -5906), (x[5], 6967), (x[3], -10426), (x[1], 29692)];
    let odd = products
        .into_iter()
        .fold(0i32, |sum, (v, by)| sum.wrapping_add(v.wrapping_mul(by)));
    [even.wrapping_add(odd), even.wrapping_sub(odd)].map(|v| descale(v, bits))
}

fn two(block: &Block, multipliers: &Block, out: &mut [u8], stride: usize) {
    let columns = |x| two_pass(x, BITS - PASS_BITS + 2);
    let rows = |x| two_pass(x, BITS + PASS_BITS + 3 + 2);
    separable(block, multipliers, out, stride, columns, rows);
}
