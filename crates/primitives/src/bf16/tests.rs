//! Products and convolutions against plain loops over rounded numbers, in tiles and in vectors.

use super::*;
use crate::epilogue::Activation;
use crate::isa::testing::{TwoThreads, each_isa, noise};
use crate::math::UnaryOp;
use ferroflow_sync::Inline;

fn rounded(values: &[f32]) -> Vec<f32> {
    let wide = |x: &f32| f32::from_bits(u32::from(round_bf16(*x)) << 16);
    values.iter().map(wide).collect()
}

/// Compares with sums in double precision; numbers are below 1.
fn check_sums(out: &[f32], expected: &[f64], what: &dyn std::fmt::Debug) {
    for (i, (x, y)) in out.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*x) - y).abs() < 2e-4 * (1.0 + y.abs()),
            "{what:?} at {i}: {x} instead of {y}"
        );
    }
}

fn supported(mut f: impl FnMut(&dyn Parallelism)) {
    each_isa(|_| {
        if Bf16Weights::is_supported() {
            f(&Inline);
            f(&TwoThreads);
        }
    });
}

#[test]
fn products() {
    let sizes = [
        [0, 3, 4],
        [3, 0, 4],
        [3, 5, 0],
        [20, 5, 0],
        [1, 1, 1],
        [1, 100, 64],
        [5, 17, 3],
        [6, 64, 33],
        [16, 16, 32],
        [17, 31, 31],
        [50, 130, 65],
        [79, 81, 200],
        [300, 200, 300],
        [40, 40, 1000],
    ];
    for [m, n, k] in sizes {
        let (a, b, bias) = (noise(m * k, 1), noise(k * n, 2), noise(n, 3));
        let (scale, side) = (noise(n, 4), noise(m * n, 5));
        let (ra, rb) = (rounded(&a), rounded(&b));
        let sum = |i: usize, j: usize| -> f64 {
            (0..k)
                .map(|t| f64::from(ra[i * k + t]) * f64::from(rb[t * n + j]))
                .sum()
        };
        let plain: Vec<f64> = (0..m * n)
            .map(|i| sum(i / n.max(1), i % n.max(1)))
            .collect();
        let transposed: Vec<f32> = (0..n * k)
            .map(|i| b[i % k.max(1) * n + i / k.max(1)])
            .collect();
        supported(|par| {
            for is_transposed in [false, true] {
                let given = if is_transposed { &transposed } else { &b };
                let packed = Bf16Weights::new(par, given, [k, n], is_transposed);
                let bytes: Vec<u8> = packed
                    .packed()
                    .iter()
                    .flat_map(|x| x.to_ne_bytes())
                    .collect();
                assert!(
                    Bf16Weights::from_packed(k + 64, n + 1, bytes.clone().into()).is_none()
                        || n * k == 0
                );
                let weights = Bf16Weights::from_packed(k, n, bytes.into()).expect("as packed");
                let mut out = vec![f32::NAN; m * n];
                bf16_gemm(par, &a, k, m, &weights, &mut out, n, &Epilogue::none());
                check_sums(&out, &plain, &[m, n, k]);
                for act in [
                    Activation::None,
                    Activation::Relu6,
                    Activation::Unary(UnaryOp::Tanh),
                ] {
                    let ep = Epilogue {
                        scale: Some(&scale),
                        bias: Some(&bias),
                        side: Some((&side, n)),
                        act,
                    };
                    bf16_gemm(par, &a, k, m, &weights, &mut out, n, &ep);
                    let expected: Vec<f64> = plain
                        .iter()
                        .enumerate()
                        .map(|(i, x)| {
                            let j = i % n;
                            let y =
                                x * f64::from(scale[j]) + f64::from(bias[j]) + f64::from(side[i]);
                            match act {
                                Activation::None => y,
                                Activation::Relu6 => y.clamp(0.0, 6.0),
                                _ => y.tanh(),
                            }
                        })
                        .collect();
                    check_sums(&out, &expected, &([m, n, k], act));
                }
            }
        });
    }
}

#[test]
fn convolutions() {
    for (filter, stride, pad, [in_c, out_c]) in [
        (1, 1, 0, [40, 33]),
        (1, 2, 0, [16, 64]),
        (3, 1, 1, [5, 7]),
        (3, 2, 0, [32, 20]),
        (5, 1, 2, [3, 70]),
    ] {
        let (size, batch) = (9, 2);
        let out_size = (size + 2 * pad - filter) / stride + 1;
        let s = Conv2dShape {
            batch,
            in_h: size,
            in_w: size,
            in_c,
            filter_h: filter,
            filter_w: filter,
            out_c,
            stride_h: stride,
            stride_w: stride,
            dil_h: 1,
            dil_w: 1,
            pad_top: pad,
            pad_left: pad,
            out_h: out_size,
            out_w: out_size,
            groups: 1,
        };
        let (x, w, bias) = (
            noise(s.input_len(), 1),
            noise(s.filter_len(), 2),
            noise(out_c, 3),
        );
        let (rx, rw) = (rounded(&x), rounded(&w));
        let mut expected = vec![0f64; s.output_len()];
        for (i, y) in expected.iter_mut().enumerate() {
            let (c, pixel) = (i % out_c, i / out_c);
            let (b, oy, ox) = (
                pixel / (out_size * out_size),
                pixel / out_size % out_size,
                pixel % out_size,
            );
            *y = f64::from(bias[c]);
            for tap in 0..filter * filter {
                let (iy, ix) = (oy * stride + tap / filter, ox * stride + tap % filter);
                if iy < pad || ix < pad || iy - pad >= size || ix - pad >= size {
                    continue;
                }
                let at = ((b * size + iy - pad) * size + ix - pad) * in_c;
                for t in 0..in_c {
                    *y += f64::from(rx[at + t]) * f64::from(rw[(tap * in_c + t) * out_c + c]);
                }
            }
        }
        supported(|par| {
            let k = filter * filter * in_c;
            let weights = Bf16Weights::new(par, &w, [k, out_c], false);
            let mut out = vec![f32::NAN; s.output_len()];
            let ep = Epilogue::new(Some(&bias), Activation::None);
            bf16_conv2d(par, &s, &x, &weights, &mut out, &ep);
            check_sums(&out, &expected, &s);
        });
    }
}

#[test]
fn not_a_number_stays() {
    supported(|par| {
        let weights = Bf16Weights::new(par, &[1.0; 4], [2, 2], false);
        let mut out = [0.0; 4];
        let ep = Epilogue::new(None, Activation::Relu);
        bf16_gemm(
            par,
            &[f32::NAN, 1.0, -1.0, -2.0],
            2,
            2,
            &weights,
            &mut out,
            2,
            &ep,
        );
        assert!(
            out[0].is_nan() && out[1].is_nan() && out[2..] == [0.0; 2],
            "{out:?}"
        );
    });
}
