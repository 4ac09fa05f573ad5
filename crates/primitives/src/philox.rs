//! The counter-based generator Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011), keyed as in TensorFlow
//! (`core/lib/random/philox_random.h`).

use crate::isa::{Loops, run};

/// A stream of random 32-bit numbers: a key and a counter of blocks of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
    counter: u128,
    block: [u32; 4],
    n_used: usize,
}

impl Philox {
    /// Returns the stream of `seed` (the key) and `seed2` (the upper half of the counter).
    pub fn new(seed: u64, seed2: u64) -> Self {
        Philox::at(seed, (seed2 as u128) << 64)
    }

    /// Returns the stream of `key` from `counter` on.
    pub fn at(key: u64, counter: u128) -> Self {
        Philox {
            key: [key as u32, (key >> 32) as u32],
            counter,
            block: [0; 4],
            n_used: 4,
        }
    }

    /// Returns the stream of the two seeds of a stateless op, which are scrambled so that all their
    /// bits count.
    pub fn stateless(seed: u64, seed2: u64) -> Self {
        let (key, counter) = scrambled(seed, seed2);
        Philox::at(key, counter)
    }

    /// Returns the stream `n_blocks` further on, at the beginning of a block.
    pub fn skipped(&self, n_blocks: u128) -> Self {
        Philox {
            counter: self.counter.wrapping_add(n_blocks),
            n_used: 4,
            ..*self
        }
    }

    /// Returns the key and the counter of the next block.
    pub fn position(&self) -> ([u32; 2], u128) {
        (self.key, self.counter)
    }

    /// Returns the next four numbers.
    #[inline]
    pub fn next_block(&mut self) -> [u32; 4] {
        let block = rounds(self.counter, self.key);
        self.counter = self.counter.wrapping_add(1);
        block
    }

    /// Fills `out` with the next blocks, several at a time; the rest of the last one is skipped.
    pub fn fill(&mut self, out: &mut [u32]) {
        let n_blocks = out.len().div_ceil(4);
        run(Blocks {
            counter: self.counter,
            key: self.key,
            out,
        });
        self.counter = self.counter.wrapping_add(n_blocks as u128);
    }

    /// Returns the next number.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.n_used >= self.block.len() {
            self.block = self.next_block();
            self.n_used = 0;
        }
        let value = self.block.get(self.n_used).copied().unwrap_or(0);
        self.n_used += 1;
        value
    }
}

/// Returns the key and the counter of the two seeds of a stateless op.
pub fn scrambled(seed: u64, seed2: u64) -> (u64, u128) {
    let counter = (seed as u128) | ((seed2 as u128) << 64);
    let [a, b, c, d] = rounds(counter, [0x3EC8_F720, 0x0246_1E29]);
    let pair = |low: u32, high: u32| (low as u64) | ((high as u64) << 32);
    (pair(a, b), (pair(c, d) as u128) << 64)
}

/// Applies ten rounds to one counter.
#[inline]
fn rounds(counter: u128, [mut k0, mut k1]: [u32; 2]) -> [u32; 4] {
    let word = |i: u32| (counter >> (32 * i)) as u32;
    let [mut a, mut b, mut c, mut d] = [word(0), word(1), word(2), word(3)];
    for _ in 0..10 {
        let p = a as u64 * 0xD251_1F53;
        let q = c as u64 * 0xCD9E_8D57;
        (a, b, c, d) = (
            (q >> 32) as u32 ^ b ^ k0,
            q as u32,
            (p >> 32) as u32 ^ d ^ k1,
            p as u32,
        );
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [a, b, c, d]
}

/// Counters that are encrypted together.
const TOGETHER: usize = 16;

/// The blocks of `counter` and those after it.
struct Blocks<'a> {
    counter: u128,
    key: [u32; 2],
    out: &'a mut [u32],
}

impl Loops for Blocks<'_> {
    #[inline(always)]
    fn run(self) {
        for (i, out) in self.out.chunks_mut(4 * TOGETHER).enumerate() {
            let counter = self.counter.wrapping_add((i * TOGETHER) as u128);
            let low = counter as u64;
            if let (Ok(out), Some(_)) = (out.try_into(), low.checked_add(TOGETHER as u64)) {
                together(low, (counter >> 64) as u64, self.key, out);
                continue;
            }
            for (i, out) in out.chunks_mut(4).enumerate() {
                let block = rounds(counter.wrapping_add(i as u128), self.key);
                out.copy_from_slice(&block[..out.len()]);
            }
        }
    }
}

/// Applies ten rounds to counters whose lower halves follow each other.
///
/// Each word is the lower half of a number of 64 bits, as the instructions for products expect it.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "iterators over all arrays at once are not vectorized"
)]
fn together(low: u64, high: u64, [mut k0, mut k1]: [u32; 2], out: &mut [u32; 4 * TOGETHER]) {
    const WORD: u64 = u32::MAX as u64;
    let mut a: [u64; TOGETHER] = std::array::from_fn(|i| low + i as u64);
    let mut b = a.map(|low| low >> 32);
    let (mut c, mut d) = ([high; TOGETHER], [high >> 32; TOGETHER]);
    for _ in 0..10 {
        for i in 0..TOGETHER {
            let p = (a[i] & WORD) * 0xD251_1F53;
            let q = (c[i] & WORD) * 0xCD9E_8D57;
            a[i] = (q >> 32) ^ b[i] ^ u64::from(k0);
            c[i] = (p >> 32) ^ d[i] ^ u64::from(k1);
            (b[i], d[i]) = (q, p);
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    for i in 0..TOGETHER {
        let first = (a[i] & WORD) | b[i] << 32;
        let second = (c[i] & WORD) | d[i] << 32;
        (out[4 * i], out[4 * i + 1]) = (first as u32, (first >> 32) as u32);
        (out[4 * i + 2], out[4 * i + 3]) = (second as u32, (second >> 32) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::each_isa;

    #[test]
    fn blocks_together_are_those_one_by_one() {
        each_isa(|isa| {
            for counter in [0, 7 << 64, u128::from(u64::MAX) - 20, u128::MAX - 3] {
                for n in [0, 1, 3, 4, 63, 64, 65, 200] {
                    let mut stream = Philox::at(0x1234_5678_9abc_def0, counter);
                    let mut one_by_one = stream;
                    let mut got = vec![0; n];
                    stream.fill(&mut got);
                    for got in got.chunks(4) {
                        let want = one_by_one.next_block();
                        assert_eq!(got, &want[..got.len()], "{isa:?}, {counter}, {n}");
                    }
                    assert_eq!(stream, one_by_one, "{isa:?}, {counter}, {n}");
                }
            }
        });
    }

    #[test]
    fn known_answers() {
        // The first vectors of the authors' known-answer test file.
        assert_eq!(
            rounds(0, [0, 0]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            rounds(u128::MAX, [u32::MAX, u32::MAX]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }
}
