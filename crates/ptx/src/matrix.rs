//! Products of matrices whose elements are spread over the lanes of a warp.

use crate::alu::{LANES, Rows};
use crate::ops::Matrix;

/// An element of a register: number `part` of those that it holds.
fn element(kind: Matrix, word: u64, part: usize) -> f32 {
    let half = (word >> (16 * part)) as u16;
    match kind {
        Matrix::F16 => half::f16::from_bits(half).to_f32(),
        Matrix::Bf16 => half::bf16::from_bits(half).to_f32(),
        // The lower bits are not read.
        Matrix::Tf32 => f32::from_bits(word as u32 & !0x1fff),
    }
}

/// `d = a b + c`: 16 x 8 results; `s` are four registers of `a`, two of `b` and four of `c`.
pub(crate) fn multiply(rows: &mut Rows, kind: Matrix, d: &[u32], s: &[u32]) {
    // Elements of a register, and the columns that it has of them.
    let (parts, depth) = if kind == Matrix::Tf32 {
        (1, 8)
    } else {
        (2, 16)
    };
    let (mut a, mut b) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
    for lane in 0..LANES {
        let (group, thread) = (lane / 4, lane % 4);
        for part in 0..parts {
            let column = thread * parts + part;
            for i in 0..4 {
                let word = rows.get(s[i])[lane];
                a[group + i % 2 * 8][column + i / 2 * depth / 2] = element(kind, word, part);
            }
            for i in 0..2 {
                let word = rows.get(s[4 + i])[lane];
                b[column + i * depth / 2][group] = element(kind, word, part);
            }
        }
    }
    for lane in 0..LANES {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..4 {
            let (row, column) = (group + i / 2 * 8, thread * 2 + i % 2);
            let start = f32::from_bits(rows.get(s[6 + i])[lane] as u32);
            let sum = (0..depth).fold(f64::from(start), |sum, k| {
                sum + f64::from(a[row][k]) * f64::from(b[k][column])
            });
            rows.set(d[i], lane, u64::from((sum as f32).to_bits()));
        }
    }
}

/// Spreads matrices of 8 x 8 elements of 16 bits over a warp: each lane has two neighbours of a row, or of a column.
pub(crate) fn spread(rows: &mut Rows, d: &[u32], matrices: &[[[u16; 8]; 8]], is_turned: bool) {
    for (d, matrix) in d.iter().zip(matrices) {
        for lane in 0..LANES {
            let at = |part: usize| match (lane / 4, lane % 4 * 2 + part) {
                (row, column) if is_turned => u64::from(matrix[column][row]),
                (row, column) => u64::from(matrix[row][column]),
            };
            rows.set(*d, lane, at(0) | at(1) << 16);
        }
    }
}
