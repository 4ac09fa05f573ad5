//! Hashes that tasks of a cluster and TensorFlow's ops must agree on.

/// Returns MurmurHash64A of `bytes` with TensorFlow's seed (TensorFlow: `tsl/platform/hash.cc`).
pub fn hash64(bytes: &[u8]) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    const SEED: u64 = 0x00DE_CAFC_AFFE;
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MUL);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let k = u64::from_le_bytes(*word).wrapping_mul(MUL);
        hash = (hash ^ (k ^ (k >> 47)).wrapping_mul(MUL)).wrapping_mul(MUL);
    }
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |k, &b| k << 8 | u64::from(b));
        hash = (hash ^ tail).wrapping_mul(MUL);
    }
    hash = (hash ^ (hash >> 47)).wrapping_mul(MUL);
    hash ^ (hash >> 47)
}

/// Combines two hashes, in order (TensorFlow: `Hash64Combine`).
pub fn hash64_combine(a: u64, b: u64) -> u64 {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7800;
    let b = b.wrapping_add(GOLDEN_RATIO);
    a ^ b.wrapping_add(a << 10).wrapping_add(a >> 4)
}
