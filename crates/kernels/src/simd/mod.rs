//! SIMD primitives over plain slices.
