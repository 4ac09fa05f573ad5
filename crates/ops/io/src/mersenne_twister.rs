//! The generator MT19937-64 (Nishimura and Matsumoto, 2000) and the shuffle of GNU's C++ library, whose order
//! TensorFlow's files have.

const N: usize = 312;
const MIDDLE: usize = 156;

/// The generator's state.
pub(crate) struct MersenneTwister {
    state: Vec<u64>,
    at: usize,
}

impl MersenneTwister {
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = Vec::with_capacity(N);
        let mut last = seed;
        for i in 1..=N as u64 {
            state.push(last);
            last = (last ^ (last >> 62))
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(i);
        }
        MersenneTwister { state, at: N }
    }

    fn twist(&mut self) {
        const UPPER: u64 = !0 << 31;
        for i in 0..N {
            let joined = self.state[i] & UPPER | self.state[(i + 1) % N] & !UPPER;
            let odd = if joined & 1 == 1 {
                0xb502_6f5a_a966_19e9
            } else {
                0
            };
            self.state[i] = self.state[(i + MIDDLE) % N] ^ (joined >> 1) ^ odd;
        }
        self.at = 0;
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        if self.at >= N {
            self.twist();
        }
        let mut x = self.state[self.at];
        self.at += 1;
        x ^= (x >> 29) & 0x5555_5555_5555_5555;
        x ^= (x << 17) & 0x71d6_7fff_eda6_0000;
        x ^= (x << 37) & 0xfff7_eee0_0000_0000;
        x ^ (x >> 43)
    }

    /// Returns a number below `n`, as `std::uniform_int_distribution`.
    fn below(&mut self, n: u64) -> u64 {
        let scale = u64::MAX / n;
        loop {
            let x = self.next();
            if x < n * scale {
                return x / scale;
            }
        }
    }

    /// Shuffles as `std::shuffle`: two numbers are drawn at once.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        let n = all.len();
        let mut i = 1;
        if n >= 2 && n.is_multiple_of(2) {
            all.swap(1, self.below(2) as usize);
            i = 2;
        }
        while i < n {
            let range = i as u64 + 1;
            let both = self.below(range * (range + 1));
            all.swap(i, (both / (range + 1)) as usize);
            all.swap(i + 1, (both % (range + 1)) as usize);
            i += 2;
        }
    }
}
