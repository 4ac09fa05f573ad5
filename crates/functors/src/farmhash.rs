//! FarmHash's `Fingerprint64` and `Fingerprint128`, the functions `farmhashna::Hash64` and
//! `farmhashcc::CityHash128` of Google's FarmHash 1.1 (MIT).

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

#[inline]
fn fetch64(s: &[u8], at: usize) -> u64 {
    let bytes = s.get(at..).and_then(|s| s.first_chunk());
    bytes.copied().map_or(0, u64::from_le_bytes)
}

#[inline]
fn fetch32(s: &[u8], at: usize) -> u64 {
    let bytes = s.get(at..).and_then(|s| s.first_chunk());
    bytes.copied().map_or(0, u32::from_le_bytes).into()
}

#[inline]
fn mul(a: u64, b: u64) -> u64 {
    a.wrapping_mul(b)
}

/// Wrapping sum.
#[inline]
fn sum<const N: usize>(terms: [u64; N]) -> u64 {
    terms.into_iter().fold(0, u64::wrapping_add)
}

#[inline]
fn shift_mix(v: u64) -> u64 {
    v ^ (v >> 47)
}

#[inline]
fn hash_16(u: u64, v: u64, k: u64) -> u64 {
    let a = shift_mix(mul(u ^ v, k));
    mul(shift_mix(mul(v ^ a, k)), k)
}

fn up_to_16(s: &[u8]) -> u64 {
    let len = s.len() as u64;
    let k = K2 + len * 2;
    match *s {
        [] => K2,
        [_, _, _, _, _, _, _, _, ..] => {
            let a = sum([fetch64(s, 0), K2]);
            let b = fetch64(s, s.len() - 8);
            let c = sum([mul(b.rotate_right(37), k), a]);
            let d = mul(sum([a.rotate_right(25), b]), k);
            hash_16(c, d, k)
        }
        [_, _, _, _, ..] => {
            let a = fetch32(s, 0);
            hash_16(len + (a << 3), fetch32(s, s.len() - 4), k)
        }
        [a, ..] => {
            let (b, c) = (s[s.len() >> 1], s[s.len() - 1]);
            let y = u64::from(a) + (u64::from(b) << 8);
            let z = len + (u64::from(c) << 2);
            mul(shift_mix(mul(y, K2) ^ mul(z, K0)), K2)
        }
    }
}

fn up_to_32(s: &[u8]) -> u64 {
    let (n, k) = (s.len(), K2 + s.len() as u64 * 2);
    let a = mul(fetch64(s, 0), K1);
    let b = fetch64(s, 8);
    let c = mul(fetch64(s, n - 8), k);
    let d = mul(fetch64(s, n - 16), K2);
    let mixed = sum([sum([a, b]).rotate_right(43), c.rotate_right(30), d]);
    hash_16(mixed, sum([a, sum([b, K2]).rotate_right(18), c]), k)
}

fn up_to_64(s: &[u8]) -> u64 {
    let (n, k) = (s.len(), K2 + s.len() as u64 * 2);
    let a = mul(fetch64(s, 0), K2);
    let b = fetch64(s, 8);
    let c = mul(fetch64(s, n - 8), k);
    let d = mul(fetch64(s, n - 16), K2);
    let y = sum([sum([a, b]).rotate_right(43), c.rotate_right(30), d]);
    let z = hash_16(y, sum([a, sum([b, K2]).rotate_right(18), c]), k);
    let e = mul(fetch64(s, 16), k);
    let f = fetch64(s, 24);
    let g = mul(sum([y, fetch64(s, n - 32)]), k);
    let h = mul(sum([z, fetch64(s, n - 24)]), k);
    let mixed = sum([sum([e, f]).rotate_right(43), g.rotate_right(30), h]);
    hash_16(mixed, sum([e, sum([f, a]).rotate_right(18), g]), k)
}

/// Mixes 32 bytes at `at` into a pair of seeds.
#[inline]
fn weak_hash_32(s: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let [w, x, y, z] = [0, 8, 16, 24].map(|i| fetch64(s, at + i));
    let a = sum([a, w]);
    let b = sum([b, a, z]).rotate_right(21);
    let c = a;
    let a = sum([a, x, y]);
    (sum([a, z]), sum([b, a.rotate_right(44), c]))
}

/// Returns the fingerprint.
pub(crate) fn fingerprint64(s: &[u8]) -> u64 {
    match s.len() {
        0..=16 => up_to_16(s),
        17..=32 => up_to_32(s),
        33..=64 => up_to_64(s),
        _ => long(s),
    }
}

fn long(s: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let mut x = SEED;
    let mut y = sum([mul(SEED, K1), 113]);
    let mut z = mul(shift_mix(sum([mul(y, K2), 113])), K2);
    let (mut v, mut w) = ((0u64, 0u64), (0u64, 0u64));
    x = sum([mul(x, K2), fetch64(s, 0)]);
    // All blocks of 64 bytes but the last, which may overlap the one before it.
    for s in s[..(s.len() - 1) / 64 * 64].chunks_exact(64) {
        x = mul(sum([x, y, v.0, fetch64(s, 8)]).rotate_right(37), K1);
        y = mul(sum([y, v.1, fetch64(s, 48)]).rotate_right(42), K1);
        x ^= w.1;
        y = sum([y, v.0, fetch64(s, 40)]);
        z = mul(sum([z, w.0]).rotate_right(33), K1);
        v = weak_hash_32(s, 0, mul(v.1, K1), sum([x, w.0]));
        w = weak_hash_32(s, 32, sum([z, w.1]), sum([y, fetch64(s, 16)]));
        std::mem::swap(&mut z, &mut x);
    }
    let k = sum([K1, (z & 0xff) << 1]);
    w.0 = sum([w.0, (s.len() as u64 - 1) & 63]);
    v.0 = sum([v.0, w.0]);
    w.0 = sum([w.0, v.0]);
    let s = &s[s.len() - 64..];
    x = mul(sum([x, y, v.0, fetch64(s, 8)]).rotate_right(37), k);
    y = mul(sum([y, v.1, fetch64(s, 48)]).rotate_right(42), k);
    x ^= mul(w.1, 9);
    y = sum([y, mul(v.0, 9), fetch64(s, 40)]);
    z = mul(sum([z, w.0]).rotate_right(33), k);
    v = weak_hash_32(s, 0, mul(v.1, k), sum([x, w.0]));
    w = weak_hash_32(s, 32, sum([z, w.1]), sum([y, fetch64(s, 16)]));
    std::mem::swap(&mut z, &mut x);
    hash_16(
        sum([hash_16(v.0, w.0, k), mul(shift_mix(y), K0), z]),
        sum([hash_16(v.1, w.1, k), x]),
        k,
    )
}

/// Mixes two numbers (`Hash128to64`).
#[inline]
fn mixed(u: u64, v: u64) -> u64 {
    hash_16(u, v, 0x9ddf_ea08_eb38_2d69)
}

/// Hashes fewer than 128 bytes with two seeds.
fn short_128(s: &[u8], [mut a, mut b]: [u64; 2]) -> [u64; 2] {
    let n = s.len();
    let (mut c, mut d);
    if n <= 16 {
        a = mul(shift_mix(mul(a, K1)), K1);
        c = sum([mul(b, K1), up_to_16(s)]);
        d = shift_mix(sum([a, if n >= 8 { fetch64(s, 0) } else { c }]));
    } else {
        c = mixed(sum([fetch64(s, n - 8), K1]), a);
        d = mixed(sum([b, n as u64]), sum([c, fetch64(s, n - 16)]));
        a = sum([a, d]);
        for at in (0..n - 16).step_by(16) {
            a = mul(a ^ mul(shift_mix(mul(fetch64(s, at), K1)), K1), K1);
            b ^= a;
            c = mul(c ^ mul(shift_mix(mul(fetch64(s, at + 8), K1)), K1), K1);
            d ^= c;
        }
    }
    let (a, b) = (mixed(a, c), mixed(d, b));
    [a ^ b, mixed(b, a)]
}

/// Hashes the bytes from `from` on, 128 or more, with two seeds.
fn long_128(s: &[u8], from: usize, [mut x, mut y]: [u64; 2]) -> [u64; 2] {
    let n = s.len() - from;
    let mut z = mul(n as u64, K1);
    let first = sum([mul((y ^ K1).rotate_right(49), K1), fetch64(s, from)]);
    let second = mul(first.rotate_right(42), K1);
    let mut v = (first, sum([second, fetch64(s, from + 8)]));
    let first = sum([mul(sum([y, z]).rotate_right(35), K1), x]);
    let second = sum([x, fetch64(s, from + 88)]).rotate_right(53);
    let mut w = (first, mul(second, K1));
    let blocks = n / 128 * 2;
    for at in (0..blocks).map(|i| from + i * 64) {
        x = mul(sum([x, y, v.0, fetch64(s, at + 8)]).rotate_right(37), K1) ^ w.1;
        y = mul(sum([y, v.1, fetch64(s, at + 48)]).rotate_right(42), K1);
        y = sum([y, v.0, fetch64(s, at + 40)]);
        z = mul(sum([z, w.0]).rotate_right(33), K1);
        v = weak_hash_32(s, at, mul(v.1, K1), sum([x, w.0]));
        w = weak_hash_32(s, at + 32, sum([z, w.1]), sum([y, fetch64(s, at + 16)]));
        (x, z) = (z, x);
    }
    x = sum([x, mul(sum([v.0, z]).rotate_right(49), K0)]);
    y = sum([mul(y, K0), w.1.rotate_right(37)]);
    z = sum([mul(z, K0), w.0.rotate_right(27)]);
    w.0 = mul(w.0, 9);
    v.0 = mul(v.0, K0);
    // The last block may begin in the bytes that were hashed above.
    for done in (32..n % 128 + 32).step_by(32) {
        let at = s.len() - done;
        y = sum([mul(sum([x, y]).rotate_right(42), K0), v.1]);
        w.0 = sum([w.0, fetch64(s, at + 16)]);
        x = sum([mul(x, K0), w.0]);
        z = sum([z, w.1, fetch64(s, at)]);
        w.1 = sum([w.1, v.0]);
        v = weak_hash_32(s, at, sum([v.0, z]), v.1);
        v.0 = mul(v.0, K0);
    }
    let (x, y) = (mixed(x, v.0), mixed(sum([y, z]), w.0));
    [
        sum([mixed(sum([x, v.1]), w.1), y]),
        mixed(sum([x, w.1]), sum([y, v.1])),
    ]
}

/// Returns the fingerprint of 128 bits, the low half first.
pub(crate) fn fingerprint128(s: &[u8]) -> [u64; 2] {
    let (from, seeds) = match s.len() {
        0..16 => (0, [K0, K1]),
        _ => (16, [fetch64(s, 0), sum([fetch64(s, 8), K0])]),
    };
    match s.len() - from {
        0..128 => short_128(&s[from..], seeds),
        _ => long_128(s, from, seeds),
    }
}
