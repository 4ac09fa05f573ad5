//! Row operations against double precision, with every instruction set of the CPU.

use super::*;
use crate::isa::testing::{TwoThreads, each_isa, noise};
use ferroflow_sync::Inline;

const SIZES: [[usize; 2]; 9] = [
    [0, 4],
    [1, 1],
    [3, 7],
    [2, 8],
    [5, 33],
    [1, 1000],
    [40, 129],
    [2, 5000],
    [3000, 3],
];

fn want(op: ReduceOp, x: impl Iterator<Item = f32>) -> f64 {
    let x: Vec<f64> = x.map(f64::from).collect();
    match op {
        ReduceOp::Sum => x.iter().sum(),
        ReduceOp::Mean => x.iter().sum::<f64>() / x.len() as f64,
        ReduceOp::Max => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => x.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceOp::SumSquares => x.iter().map(|x| x * x).sum(),
    }
}

fn close(got: f32, want: f64, what: &dyn std::fmt::Debug) {
    let same = f64::from(got) == want || (got.is_nan() && want.is_nan());
    let error = (f64::from(got) - want).abs();
    assert!(
        same || error < 2e-6 * want.abs().max(5.0),
        "{got} for {want}: {what:?}"
    );
}

#[test]
fn reductions() {
    use ReduceOp::*;
    each_isa(|isa| {
        for par in [&Inline as &dyn Parallelism, &TwoThreads] {
            for ([rows, cols], op) in SIZES
                .into_iter()
                .flat_map(|s| [Sum, Mean, Max, Min, SumSquares].map(|o| (s, o)))
            {
                let what = (isa, rows, cols, op);
                let x = noise(rows * cols, 1);
                let mut y = vec![9.0; rows];
                reduce_rows(par, op, &x, cols, &mut y);
                for (r, y) in y.iter().enumerate() {
                    close(
                        *y,
                        want(op, x[r * cols..(r + 1) * cols].iter().copied()),
                        &what,
                    );
                }
                for outer in [1, 2] {
                    let x = noise(outer * rows * cols, 2);
                    let mut y = vec![9.0; outer * cols];
                    reduce_middle(par, op, [outer, rows, cols], &x, &mut y);
                    for (i, y) in y.iter().enumerate() {
                        let (o, c) = (i / cols, i % cols);
                        let column = (0..rows).map(|r| x[(o * rows + r) * cols + c]);
                        close(*y, want(op, column), &what);
                    }
                }
            }
        }
    });
    let mut y = [1.0];
    reduce_rows(&Inline, Max, &[], 0, &mut y);
    assert_eq!(y, [f32::NEG_INFINITY]);
}

#[test]
fn softmax_rows() {
    each_isa(|isa| {
        for par in [&Inline as &dyn Parallelism, &TwoThreads] {
            for [rows, cols] in SIZES {
                let x: Vec<f32> = noise(rows * cols, 3).iter().map(|x| x * 30.0).collect();
                let (mut y, mut z) = (vec![9.0; x.len()], vec![9.0; x.len()]);
                softmax(par, &x, cols, &mut y);
                log_softmax(par, &x, cols, &mut z);
                for r in 0..rows {
                    let row = &x[r * cols..(r + 1) * cols];
                    let max = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
                    let sum: f64 = row.iter().map(|x| (f64::from(*x) - max).exp()).sum();
                    for (c, x) in row.iter().enumerate() {
                        let d = f64::from(*x) - max;
                        let p = d.exp() / sum;
                        let got = f64::from(y[r * cols + c]);
                        assert!((got - p).abs() < 1e-5 * p, "{isa:?} {got} for {p}");
                        close(z[r * cols + c], d - sum.ln(), &(isa, rows, cols));
                    }
                }
            }
        }
        let mut y = [0.0; 3];
        softmax(&Inline, &[1000.0, 0.0, f32::NEG_INFINITY], 3, &mut y);
        assert_eq!(y, [1.0, 0.0, 0.0]);
        softmax(&Inline, &[1.0, f32::NAN, 0.0], 3, &mut y);
        assert!(y.iter().all(|y| y.is_nan()));
    });
}

#[test]
fn normalized_rows() {
    each_isa(|isa| {
        for [rows, cols] in SIZES {
            let x: Vec<f32> = noise(rows * cols, 3).iter().map(|x| x + 3.0).collect();
            let (a, b) = (noise(cols, 4), noise(cols, 5));
            let mut y = vec![9.0; x.len()];
            layer_norm(&TwoThreads, &x, &a, &b, 1e-3, &mut y);
            let (mut means, mut variances) = (vec![0.0; rows], vec![0.0; rows]);
            moments(&TwoThreads, &x, cols, &mut means, &mut variances);
            for r in 0..rows {
                let row = &x[r * cols..(r + 1) * cols];
                let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / cols as f64;
                let square = |x: &f32| (f64::from(*x) - mean).powi(2);
                let var = row.iter().map(square).sum::<f64>() / cols as f64;
                close(means[r], mean, &isa);
                close(variances[r], var, &isa);
                for (c, x) in row.iter().enumerate() {
                    let n = (f64::from(*x) - mean) / (var + 1e-3).sqrt();
                    let want = n * f64::from(a[c]) + f64::from(b[c]);
                    close(y[r * cols + c], want, &(isa, rows, cols));
                }
            }
        }
    });
}
