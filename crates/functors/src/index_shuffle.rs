//! Positions in random permutations, without the permutations (TensorFlow: `core/kernels/random_index_shuffle.cc`;
//! Beaulieu et al., "The Simon and Speck Families of Lightweight Block Ciphers", 2013).

/// Words of `width` bits.
#[derive(Clone, Copy)]
struct Words {
    width: u32,
    mask: u64,
}

impl Words {
    fn rotate_left(&self, x: u64, by: u32) -> u64 {
        (x << by | x >> (self.width - by)) & self.mask
    }

    fn rotate_right(&self, x: u64, by: u32) -> u64 {
        (x >> by | x << (self.width - by)) & self.mask
    }

    /// Returns the keys of the rounds.
    fn schedule(&self, key: [u32; 3], rounds: usize) -> Vec<u64> {
        let c = 0xffff_fffc & self.mask;
        let mut z = 0x7369_f885_192c_0ef5 & self.mask;
        let mut keys: Vec<u64> = key.iter().map(|&k| u64::from(k) & self.mask).collect();
        for i in 3..rounds {
            let (old, last) = (keys[i - 3], keys[i - 1]);
            let turned = self.rotate_right(last, 3) ^ self.rotate_right(last, 4);
            keys.push(c ^ (z & 1) ^ old ^ turned);
            z >>= 1;
        }
        keys
    }

    fn mix(&self, x: u64) -> u64 {
        self.rotate_left(x, 1) & self.rotate_left(x, 8) ^ self.rotate_left(x, 2)
    }

    fn encrypt(&self, value: u64, keys: &[u64]) -> u64 {
        let (mut left, mut right) = ((value >> self.width) & self.mask, value & self.mask);
        for pair in keys.chunks_exact(2) {
            left ^= self.mix(right) ^ pair[0];
            right ^= self.mix(left) ^ pair[1];
        }
        left << self.width | right
    }
}

/// Returns the position of `index` in the permutation of `0..=most` that a key stands for: the
/// cipher's permutation of a power of two, walked until it is in range.
pub fn place(index: u64, key: [u32; 3], most: u64, rounds: usize) -> u64 {
    if most == 0 {
        return 0;
    }
    let bits = (most as f64).log2().ceil() as u32;
    let bits = (bits + bits % 2).clamp(16, 64);
    let words = Words {
        width: bits / 2,
        mask: (1 << (bits / 2)) - 1,
    };
    let keys = words.schedule(key, rounds);
    let mut at = index;
    loop {
        at = words.encrypt(at, &keys);
        if at <= most {
            return at;
        }
    }
}
