//! The ops and the CPU primitives they run on.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "SIMD intrinsics and disjoint writes from several threads live here")]
pub mod simd;
