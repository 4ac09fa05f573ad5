//! Repeatable pseudorandom numbers.

/// A linear congruential generator: the same numbers on every machine.
pub struct Rng(pub u64);

impl Rng {
    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A xorshift generator (Marsaglia 2003): the same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Returns `n` numbers between -1 and 1 (Marsaglia 2003): the same numbers on every machine.
pub fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.cast_signed() as f32 / i32::MAX as f32
    };
    (0..n).map(next).collect()
}
