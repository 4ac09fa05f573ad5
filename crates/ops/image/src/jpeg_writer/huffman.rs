//! Huffman codes (libjpeg: `jchuff.c`, `jstdhuff.c`).

use std::cmp::Reverse;

/// What symbols go to. Tables 0 and 1 are those of DC coefficients, 2 and 3 those of AC coefficients.
pub(super) trait Sink {
    /// Adds a symbol and `n` further bits, up to 16.
    fn symbol(&mut self, table: usize, symbol: u8, value: u32, n: u32);

    /// Adds `n` bits.
    fn bits(&mut self, value: u32, n: u32);
}

/// How often symbols occur.
pub(super) struct Counts([[u32; 256]; 4]);

impl Default for Counts {
    fn default() -> Counts {
        Counts([[0; 256]; 4])
    }
}

impl Sink for Counts {
    #[inline(always)]
    fn symbol(&mut self, table: usize, symbol: u8, _: u32, _: u32) {
        self.0[table & 3][usize::from(symbol)] += 1;
    }

    #[inline(always)]
    fn bits(&mut self, _: u32, _: u32) {}
}

impl Counts {
    /// Returns the codes that make the scan shortest.
    pub(super) fn codes(&self) -> Codes {
        Codes(self.0.each_ref().map(Code::shortest))
    }
}

/// The codes of a scan.
pub(super) struct Codes([Code; 4]);

impl Codes {
    /// The codes of the standard's annex K.
    pub(super) fn standard() -> Codes {
        let dc = (0..12).collect::<Vec<u8>>();
        Codes([
            Code::new(DC_LENGTHS[0], dc.clone()),
            Code::new(DC_LENGTHS[1], dc),
            Code::new(AC_LENGTHS[0], AC_LUMA.to_vec()),
            Code::new(AC_LENGTHS[1], AC_CHROMA.to_vec()),
        ])
    }

    /// Returns the number of symbols of each length, and the symbols.
    pub(super) fn listed(&self, class: usize, table: usize) -> (&[u8], &[u8]) {
        let code = &self.0[(class * 2 + table) & 3];
        (&code.lengths, &code.symbols)
    }

    #[inline(always)]
    pub(super) fn code(&self, table: usize, symbol: u8) -> (u32, u32) {
        let [code, length] = self.0[table & 3].codes[usize::from(symbol)];
        (code.into(), length.into())
    }
}

struct Code {
    /// The number of symbols with codes of 1, 2, … bits.
    lengths: [u8; 16],
    symbols: Vec<u8>,
    /// The code of each symbol, and its length.
    codes: [[u16; 2]; 256],
}

impl Code {
    fn new(lengths: [u8; 16], symbols: Vec<u8>) -> Code {
        let mut codes = [[0; 2]; 256];
        let (mut code, mut at) = (0u16, symbols.iter());
        for (length, &n) in (1..).zip(&lengths) {
            for &symbol in at.by_ref().take(n.into()) {
                codes[usize::from(symbol)] = [code, length];
                code = code.wrapping_add(1);
            }
            code = code.wrapping_shl(1);
        }
        Code {
            lengths,
            symbols,
            codes,
        }
    }

    /// Huffman's algorithm, in which the larger of two equally frequent symbols comes first; codes of more than 16
    /// bits are made shorter as in figure K.3 of the standard.
    fn shortest(counts: &[u32; 256]) -> Code {
        let mut sizes = [0usize; 257];
        // Sets of symbols; the last symbol takes the code of all ones.
        let mut sets: Vec<(u64, usize, Vec<usize>)> = Vec::new();
        let with_last = counts.iter().copied().chain([1]).enumerate();
        for (symbol, count) in with_last.filter(|(_, count)| *count > 0) {
            sets.push((count.into(), symbol, vec![symbol]));
        }
        let rarest = |sets: &mut Vec<(u64, usize, Vec<usize>)>| {
            let order =
                |(_, (count, symbol, _)): &(usize, &(u64, usize, _))| (*count, Reverse(*symbol));
            let found = sets.iter().enumerate().min_by_key(order);
            found.map(|(i, _)| i).map(|i| sets.swap_remove(i))
        };
        while sets.len() > 1 {
            let (Some(first), Some(second)) = (rarest(&mut sets), rarest(&mut sets)) else {
                break;
            };
            let both = [first.2, second.2].concat();
            both.iter().for_each(|&symbol| sizes[symbol] += 1);
            sets.push((first.0 + second.0, first.1, both));
        }
        let mut n = vec![0usize; 258];
        sizes.iter().for_each(|&size| n[size] += 1);
        n[0] = 0;
        for size in (17..n.len()).rev() {
            while n[size] > 0 {
                let mut shorter = size - 2;
                while n[shorter] == 0 {
                    shorter -= 1;
                }
                n[size] -= 2;
                n[size - 1] += 1;
                n[shorter + 1] += 2;
                n[shorter] -= 1;
            }
        }
        // The last symbol has one of the longest codes.
        if let Some(longest) = n.iter_mut().rev().find(|n| **n > 0) {
            *longest -= 1;
        }
        let mut symbols: Vec<u8> = (0..=255).filter(|&s| sizes[usize::from(s)] > 0).collect();
        symbols.sort_by_key(|&symbol| sizes[usize::from(symbol)]);
        Code::new(std::array::from_fn(|i| n[i + 1] as u8), symbols)
    }
}

const DC_LENGTHS: [[u8; 16]; 2] = [
    [0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
    [0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
];

const AC_LENGTHS: [[u8; 16]; 2] = [
    [0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d],
    [0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77],
];

const AC_LUMA: [u8; 162] = [
    0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07,
    0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0,
    0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28,
    0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49,
    0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69,
    0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89,
    0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
    0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5,
    0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
    0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
    0xf9, 0xfa,
];

const AC_CHROMA: [u8; 162] = [
    0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71,
    0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0,
    0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26,
    0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
    0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
    0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87,
    0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5,
    0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
    0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
    0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
    0xf9, 0xfa,
];
