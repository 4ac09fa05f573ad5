//! Hashes of strings that TensorFlow's results depend on.
//!
//! `siphasher` is SipHash as its authors specify it. FarmHash is in `farmhash.rs`: the crate of that
//! name returns other values for lengths that are multiples of 64.

use crate::farmhash;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// Returns FarmHash's `Fingerprint64`, which never changes (TensorFlow: `tsl/platform/fingerprint.h`).
#[inline]
pub fn fingerprint64(bytes: &[u8]) -> u64 {
    farmhash::fingerprint64(bytes)
}

/// Returns FarmHash's `Fingerprint128`, the low half first.
#[inline]
pub fn fingerprint128(bytes: &[u8]) -> [u64; 2] {
    farmhash::fingerprint128(bytes)
}

/// Combines two fingerprints, in order (TensorFlow: `FingerprintCat64`).
#[inline]
pub fn fingerprint_cat64(a: u64, b: u64) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |v: u64| v ^ (v >> 47);
    let sum = a ^ MUL ^ mix(b.wrapping_mul(MUL)).wrapping_mul(MUL);
    mix(mix(sum.wrapping_mul(MUL)).wrapping_mul(MUL))
}

/// Returns SipHash-2-4 of `bytes` (TensorFlow: `StrongKeyedHash`).
#[inline]
pub fn strong_keyed_hash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(key[0], key[1]);
    hasher.write(bytes);
    hasher.finish()
}
