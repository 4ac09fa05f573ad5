//! ThreeFry (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): words encrypted by keys.

use crate::vectorized;

/// Four of the rounds, and the addition of the next part of the key.
#[inline(always)]
fn rounds([a, b]: [u32; 2], rotations: [u32; 4], key: [u32; 2]) -> [u32; 2] {
    let (mut a, mut b) = (a, b);
    let mut i = 0;
    while i < 4 {
        a = a.wrapping_add(b);
        b = b.rotate_left(rotations[i]) ^ a;
        i += 1;
    }
    [a.wrapping_add(key[0]), b.wrapping_add(key[1])]
}

/// Encrypts two words by a key of two words, in 20 rounds.
#[inline(always)]
pub fn encrypt([k0, k1]: [u32; 2], [x0, x1]: [u32; 2]) -> [u32; 2] {
    const EVEN: [u32; 4] = [13, 15, 26, 6];
    const ODD: [u32; 4] = [17, 29, 16, 24];
    let k2 = 0x1BD1_1BDA ^ k0 ^ k1;
    let words = [x0.wrapping_add(k0), x1.wrapping_add(k1)];
    let words = rounds(words, EVEN, [k1, k2.wrapping_add(1)]);
    let words = rounds(words, ODD, [k2, k0.wrapping_add(2)]);
    let words = rounds(words, EVEN, [k0, k1.wrapping_add(3)]);
    let words = rounds(words, ODD, [k1, k2.wrapping_add(4)]);
    rounds(words, EVEN, [k2, k0.wrapping_add(5)])
}

/// Encrypts pairs of words by one key.
///
/// # Panics
/// If the slices do not have one length.
pub fn encrypt_all(key: [u32; 2], [x0, x1]: [&[u32]; 2], [y0, y1]: [&mut [u32]; 2]) {
    let n = x0.len();
    assert!([x1.len(), y0.len(), y1.len()] == [n; 3]);
    vectorized(
        #[inline(always)]
        || {
            for i in 0..n {
                [y0[i], y1[i]] = encrypt(key, [x0[i], x1[i]]);
            }
        },
    );
}
