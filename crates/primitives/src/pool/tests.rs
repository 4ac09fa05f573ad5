//! Pooling against naive loops, with every instruction set of the CPU.

use super::*;
use crate::isa::testing::{TwoThreads, each_isa, noise};
use ferroflow_sync::Inline;

fn compare(batch: usize, axes: [PoolAxis; 3], channels: usize) {
    let [d, h, w] = axes;
    let input = noise(batch * d.input * h.input * w.input * channels, 1);
    let n_out = batch * d.output * h.output * w.output * channels;
    for kind in [PoolKind::Max, PoolKind::MaxOrNan, PoolKind::Average] {
        let mut want = Vec::new();
        for i in 0..n_out {
            let (c, p) = (i % channels, i / channels);
            let (x, p) = (p % w.output, p / w.output);
            let (y, p) = (p % h.output, p / h.output);
            let (z, n) = (p % d.output, p / d.output);
            let mut values = Vec::new();
            for z in d.range(z) {
                for y in h.range(y) {
                    for x in w.range(x) {
                        let at = (((n * d.input + z) * h.input + y) * w.input + x) * channels + c;
                        values.push(f64::from(input[at]));
                    }
                }
            }
            want.push(match kind {
                PoolKind::Max | PoolKind::MaxOrNan => {
                    values.iter().copied().fold(f64::from(f32::MIN), f64::max)
                }
                PoolKind::Average => values.iter().sum::<f64>() / (values.len().max(1) as f64),
            });
        }
        each_isa(|isa| {
            for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                let mut out = vec![f32::NAN; n_out];
                pool3d(par, kind, batch, axes, channels, &input, &mut out);
                for (got, want) in out.iter().zip(&want) {
                    let ok = (f64::from(*got) - want).abs() < 1e-6;
                    assert!(ok, "{isa:?} {kind:?} {axes:?}: {got} for {want}");
                }
            }
        });
    }
}

#[test]
fn ranges_leave_padding_out() {
    let a = PoolAxis {
        input: 5,
        output: 4,
        window: 3,
        stride: 2,
        pad: 2,
    };
    assert_eq!([0, 1, 2, 3].map(|i| a.range(i)), [0..1, 0..3, 2..5, 4..5]);
    assert_eq!([0, 1, 2, 3].map(|i| a.whole_from(i)), [1, 2, 1, 1]);
}

#[test]
fn nan_stays() {
    let axis = PoolAxis {
        input: 4,
        output: 2,
        window: 2,
        stride: 2,
        pad: 0,
    };
    for at in 0..4 {
        let mut input = [1.0, 2.0, 3.0, 4.0];
        input[at] = f32::NAN;
        each_isa(|_| {
            let mut out = [0.0; 2];
            let axes = [PoolAxis::identity(1), axis];
            pool2d(&Inline, PoolKind::MaxOrNan, 1, axes, 1, &input, &mut out);
            assert_eq!(out.map(f32::is_nan), [at < 2, at >= 2]);
        });
    }
}

#[test]
fn windows_of_every_kind() {
    let one = PoolAxis::identity(1);
    let axis = |input, window, stride, pad| PoolAxis {
        input,
        output: (input + 2 * pad - window) / stride + 1,
        window,
        stride,
        pad,
    };
    for c in [1, 7, 8, 33, 70] {
        compare(2, [one, axis(7, 3, 2, 1), axis(9, 3, 2, 1)], c);
        compare(1, [one, axis(8, 2, 2, 0), axis(6, 2, 2, 0)], c);
        compare(2, [one, axis(5, 3, 1, 1), axis(5, 3, 1, 1)], c);
        compare(1, [axis(4, 2, 2, 0), axis(5, 3, 1, 1), axis(5, 3, 2, 1)], c);
        compare(3, [one, axis(7, 7, 1, 0), axis(7, 7, 1, 0)], c);
        compare(1, [one, axis(9, 2, 3, 0), axis(23, 2, 3, 1)], c);
        compare(1, [one, axis(2, 3, 1, 2), axis(2, 3, 1, 2)], c);
    }
    compare(0, [one, axis(7, 3, 2, 1), axis(9, 3, 2, 1)], 4);
}
