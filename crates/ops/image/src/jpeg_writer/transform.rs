//! Cosine transforms of blocks of 8 × 8 samples, and their quantization, with the integer arithmetic of libjpeg
//! (`jfdctint.c`, `jcdctmgr.c`, `jcparam.c`).

/// Coefficients in the order of [`ZIGZAG`].
pub(super) type Block = [i16; 64];

/// Where the coefficients of a block are, from the lowest frequency to the highest.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The tables of the standard's annex K, for luma and chroma.
const TABLES: [[u32; 64]; 2] = [
    [
        16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69,
        56, 14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81,
        104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
    ],
    [
        17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99,
        99, 47, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
        99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    ],
];

/// Returns what coefficients are divided by, row by row.
pub(super) fn quantization(table: usize, quality: u8) -> [u32; 64] {
    let quality = u32::from(quality).clamp(1, 100);
    let scale = match quality {
        ..50 => 5000 / quality,
        _ => 200 - 2 * quality,
    };
    TABLES[table & 1].map(|q| ((q * scale + 50) / 100).clamp(1, 255))
}

/// The divisors of a table, prepared.
pub(super) struct Divisors {
    inverses: [f32; 64],
    /// What a quotient needs so that its nearest integer is the result.
    offsets: [f32; 64],
}

/// The last bits of floats around this one are integers.
const WHOLE: f32 = 12_582_912.0;

impl Divisors {
    pub(super) fn new(table: &[u32; 64]) -> Divisors {
        // Transforms are eight times too large. Half a divisor more is rounded down; that it is a half step more than
        // an integer before the division keeps results off the integers.
        Divisors {
            inverses: table.map(|q| 1.0 / (q * 8) as f32),
            offsets: table.map(|q| 0.5 / (q * 8) as f32),
        }
    }

    /// Divides coefficients and rounds, halves away from zero. Numerators have less than 2¹⁵, divisors less than
    /// 2¹¹: half a step is more than what floats are off.
    #[inline(always)]
    fn quantize(&self, x: &[Lanes; 8], out: &mut Block) {
        let mut rows = [0i16; 64];
        let factors = self.inverses.iter().zip(&self.offsets);
        for ((to, &x), (inverse, offset)) in rows.iter_mut().zip(x.as_flattened()).zip(factors) {
            let quotient = x.abs() as f32 * inverse + offset;
            let size = (quotient + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i16;
            *to = if x < 0 { size.wrapping_neg() } else { size };
        }
        for (to, at) in out.iter_mut().zip(ZIGZAG) {
            *to = rows[usize::from(at & 63)];
        }
    }
}

type Lanes = [i32; 8];

#[inline(always)]
fn plus(mut a: Lanes, b: Lanes) -> Lanes {
    for (a, b) in a.iter_mut().zip(b) {
        *a = a.wrapping_add(b);
    }
    a
}

#[inline(always)]
fn minus(mut a: Lanes, b: Lanes) -> Lanes {
    for (a, b) in a.iter_mut().zip(b) {
        *a = a.wrapping_sub(b);
    }
    a
}

#[inline(always)]
fn times(mut a: Lanes, by: i32) -> Lanes {
    for a in &mut a {
        *a = a.wrapping_mul(by);
    }
    a
}

#[inline(always)]
fn descale(mut a: Lanes, bits: u32) -> Lanes {
    for a in &mut a {
        *a = a.wrapping_add(1 << (bits - 1)) >> bits;
    }
    a
}

const BITS: u32 = 13;
const PASS_BITS: u32 = 2;

/// Scales what has no factor.
#[inline(always)]
fn whole<const FIRST: bool>(mut a: Lanes) -> Lanes {
    if !FIRST {
        return descale(a, PASS_BITS);
    }
    for a in &mut a {
        *a <<= PASS_BITS;
    }
    a
}

/// One direction: the algorithm of Loeffler, Ligtenberg and Moschytz. The first result has two more bits.
#[inline(always)]
fn pass<const FIRST: bool>(x: &[Lanes; 8]) -> [Lanes; 8] {
    let bits = if FIRST {
        BITS - PASS_BITS
    } else {
        BITS + PASS_BITS
    };
    let (s0, d0) = (plus(x[0], x[7]), minus(x[0], x[7]));
    let (s1, d1) = (plus(x[1], x[6]), minus(x[1], x[6]));
    let (s2, d2) = (plus(x[2], x[5]), minus(x[2], x[5]));
    let (s3, d3) = (plus(x[3], x[4]), minus(x[3], x[4]));
    let (t10, t13) = (plus(s0, s3), minus(s0, s3));
    let (t11, t12) = (plus(s1, s2), minus(s1, s2));
    let z1 = times(plus(t12, t13), 4433);
    let (o2, o6) = (plus(z1, times(t13, 6270)), plus(z1, times(t12, -15137)));
    let (z1, z2) = (times(plus(d3, d0), -7373), times(plus(d2, d1), -20995));
    let (z3, z4) = (plus(d3, d1), plus(d2, d0));
    let z5 = times(plus(z3, z4), 9633);
    let (z3, z4) = (plus(times(z3, -16069), z5), plus(times(z4, -3196), z5));
    let o7 = plus(times(d3, 2446), plus(z1, z3));
    let o5 = plus(times(d2, 16819), plus(z2, z4));
    let o3 = plus(times(d1, 25172), plus(z2, z3));
    let o1 = plus(times(d0, 12299), plus(z1, z4));
    [
        whole::<FIRST>(plus(t10, t11)),
        descale(o1, bits),
        descale(o2, bits),
        descale(o3, bits),
        whole::<FIRST>(minus(t10, t11)),
        descale(o5, bits),
        descale(o6, bits),
        descale(o7, bits),
    ]
}

#[inline(always)]
fn transposed(x: &[Lanes; 8]) -> [Lanes; 8] {
    let mut out = [[0; 8]; 8];
    for (i, row) in x.iter().enumerate() {
        for (out, &v) in out.iter_mut().zip(row) {
            out[i] = v;
        }
    }
    out
}

/// Transforms and quantizes the block whose rows begin at `at` in rows of `stride` samples.
#[inline(always)]
pub(super) fn block(
    samples: &[u8],
    at: usize,
    stride: usize,
    divisors: &Divisors,
    out: &mut Block,
) {
    let mut rows = [[0; 8]; 8];
    for (y, row) in rows.iter_mut().enumerate() {
        if let Some(from) = samples
            .get(at + y * stride..)
            .and_then(<[u8]>::first_chunk::<8>)
        {
            for (to, &v) in row.iter_mut().zip(from) {
                *to = i32::from(v) - 128;
            }
        }
    }
    let middle = pass::<true>(&transposed(&rows));
    let done = pass::<false>(&transposed(&middle));
    divisors.quantize(&done, out);
}
