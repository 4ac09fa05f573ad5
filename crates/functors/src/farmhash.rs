//! FarmHash's `Fingerprint64`, the function `farmhashna::Hash64` of Google's FarmHash 1.1 (MIT).

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
