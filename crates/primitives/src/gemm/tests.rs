//! Matrix products against naive loops, with every instruction set of the CPU.

use super::*;
use crate::isa::testing::{TwoThreads, each_isa, noise};

fn naive(s: &GemmShape, a: &[f32], b: &[f32]) -> Vec<f64> {
    let mut out = vec![0.0; s.m * s.n];
    for i in 0..s.m {
        for j in 0..s.n {
            out[i * s.n + j] = (0..s.k)
                .map(|k| {
                    let x = if s.trans_a {
                        a[k * s.lda + i]
                    } else {
                        a[i * s.lda + k]
                    };
                    let y = if s.trans_b {
                        b[j * s.ldb + k]
                    } else {
                        b[k * s.ldb + j]
                    };
                    f64::from(x) * f64::from(y)
                })
                .sum();
        }
    }
    out
}

fn close(got: f32, want: f64, k: usize, what: &dyn std::fmt::Debug) {
    let tolerance = 1e-6 * (k as f64).sqrt() + 2e-6 * want.abs();
    assert!(
        (f64::from(got) - want).abs() <= tolerance,
        "{got} for {want}: {what:?}"
    );
}

#[test]
fn columns_of_every_length() {
    let (scale, bias) = ([0.5], [2.0]);
    each_isa(|isa| {
        for (m, k) in [(1, 32), (3, 33), (4, 64), (9, 100), (130, 1000), (2, 31)] {
            let (a, b) = (noise(m * (k + 3), 1), noise(k, 2));
            let mut s = GemmShape::dense(m, 1, k, false, false);
            s.lda = k + 3;
            let want = naive(&s, &a, &b);
            let packed = PackedB::from_rows(&Inline, &b, 1, k, 1);
            for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                let mut outs = vec![vec![7.0; m]; 3];
                gemm(par, &s, &a, &b, &mut outs[0], &Epilogue::none());
                gemm_packed(
                    par,
                    &a,
                    s.lda,
                    m,
                    &packed,
                    &mut outs[1],
                    1,
                    &Epilogue::none(),
                );
                let ep = Epilogue {
                    scale: Some(&scale[..]),
                    bias: Some(&bias),
                    side: None,
                    act: Activation::Clamp(1.0, 2.5),
                };
                gemm_packed(par, &a, s.lda, m, &packed, &mut outs[2], 1, &ep);
                for i in 0..m {
                    let all = (isa, m, k, i);
                    close(outs[0][i], want[i], k, &all);
                    close(outs[1][i], want[i], k, &all);
                    close(outs[2][i], (0.5 * want[i] + 2.0).clamp(1.0, 2.5), k, &all);
                }
            }
        }
    });
}

#[test]
fn products_of_every_shape() {
    let sizes = [
        (0, 3, 4),
        (3, 0, 4),
        (3, 4, 0),
        (1, 1, 1),
        (1, 16, 7),
        (1, 100, 33),
        (2, 33, 65),
        (3, 9, 5),
        (4, 8, 9),
        (5, 17, 3),
        (6, 32, 64),
        (7, 31, 129),
        (8, 5, 700),
        // The last ones, transposed, are read as they are stored.
        (300, 1, 130),
        (200, 3, 600),
        (90, 7, 101),
        (13, 48, 600),
        (49, 24, 1000),
        (50, 70, 40),
        (100, 40, 30),
        (200, 20, 10),
        (260, 35, 400),
    ];
    each_isa(|isa| {
        for (m, n, k) in sizes {
            for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut s = GemmShape::dense(m, n, k, ta, tb);
                (s.lda, s.ldb, s.ldc) = (s.lda + 1, s.ldb + 2, s.ldc + 3);
                let a = noise((m + k + 2) * (s.lda + 1), 1);
                let b = noise((n + k + 2) * (s.ldb + 1), 2);
                let want = naive(&s, &a, &b);
                for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                    let mut out = vec![7.0; m * s.ldc];
                    gemm(par, &s, &a, &b, &mut out, &Epilogue::none());
                    for i in 0..m {
                        for j in 0..s.ldc {
                            match j < n {
                                true => {
                                    close(out[i * s.ldc + j], want[i * n + j], k, &(isa, s, i, j))
                                }
                                false => assert_eq!(out[i * s.ldc + j], 7.0),
                            }
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn long_products() {
    // Rows that share cache sets, and more than one task.
    for (m, n, k, lda) in [
        (30, 260, 300, 1024),
        (520, 260, 256, 2048),
        (530, 40, 20, 20),
    ] {
        for (ta, tb) in [(false, false), (false, true)] {
            let mut s = GemmShape::dense(m, n, k, ta, tb);
            s.lda = lda;
            let (a, b) = (noise(m * lda, 11), noise(n * k, 12));
            let want = naive(&s, &a, &b);
            for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                let mut out = vec![0.0; m * n];
                gemm(par, &s, &a, &b, &mut out, &Epilogue::none());
                for (i, (got, want)) in out.iter().zip(&want).enumerate() {
                    close(*got, *want, k, &(s, i));
                }
            }
        }
    }
}

#[test]
fn epilogues() {
    let (m, n, k) = (23, 43, 900);
    let s = GemmShape::dense(m, n, k, false, false);
    let (a, b) = (noise(m * k, 3), noise(n * k, 4));
    let (scale, bias, side) = (noise(n, 7), noise(n, 5), noise(m * (n + 2), 6));
    let want = naive(&s, &a, &b);
    let acts = [
        Activation::None,
        Activation::Relu,
        Activation::Relu6,
        Activation::Clamp(-0.5, 0.25),
        UnaryOp::Sigmoid.into(),
        UnaryOp::GeluErf.into(),
        UnaryOp::Swish.into(),
        UnaryOp::LeakyRelu(0.1).into(),
        UnaryOp::HardSwish.into(),
    ];
    each_isa(|isa| {
        let packed = PackedB::from_fn(k, n, |k, j| b[k * n + j]);
        for act in acts {
            for with in 0..8 {
                let [with_scale, with_bias, with_side] = [1, 2, 4].map(|bit| with & bit != 0);
                let ep = Epilogue {
                    scale: with_scale.then_some(&scale[..]),
                    bias: with_bias.then_some(&bias[..]),
                    side: with_side.then_some((&side[..], n + 2)),
                    act,
                };
                let mut out = vec![0.0; m * n];
                gemm_packed(&TwoThreads, &a, k, m, &packed, &mut out, n, &ep);
                for i in 0..m {
                    for j in 0..n {
                        let mut x = want[i * n + j];
                        if with_scale {
                            x *= f64::from(scale[j]);
                        }
                        if with_bias {
                            x += f64::from(bias[j]);
                        }
                        if with_side {
                            x += f64::from(side[i * (n + 2) + j]);
                        }
                        let x = crate::scalar::unary_f64(act.as_unary(), x);
                        close(out[i * n + j], x, k, &(isa, ep, i, j));
                    }
                }
            }
        }
    });
}

#[test]
fn batches() {
    let (batch, m, n, k) = (5, 7, 9, 11);
    let s = GemmShape::dense(m, n, k, false, true);
    let (a, b) = (noise(batch * m * k, 8), noise(n * k, 9));
    each_isa(|isa| {
        for par in [&Inline as &dyn Parallelism, &TwoThreads] {
            let mut out = vec![0.0; batch * m * n];
            let item = |i| BatchItem {
                a: i * m * k,
                b: 0,
                out: 0,
            };
            batch_gemm(
                par,
                batch,
                &s,
                &a,
                &b,
                &mut out,
                m * n,
                &item,
                Activation::None,
            );
            for i in 0..batch {
                let want = naive(&s, &a[i * m * k..], &b);
                for (got, want) in out[i * m * n..].iter().zip(want) {
                    close(*got, want, k, &(isa, i));
                }
            }
        }
    });
}

#[test]
fn doubles_and_integers() {
    for (m, n, k) in [(1, 1, 1), (5, 9, 3), (17, 33, 500), (3, 0, 2), (4, 5, 0)] {
        let s = GemmShape::dense(m, n, k, false, false);
        let (a, b) = (noise(m * k, 10), noise(n * k, 11));
        let want = naive(&s, &a, &b);
        let wide = |v: &[f32]| v.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        each_isa(|_| {
            let mut out = vec![0.0f64; m * n];
            gemm(
                &Inline,
                &s,
                &wide(&a),
                &wide(&b),
                &mut out,
                &Epilogue::none(),
            );
            for (x, y) in out.iter().zip(&want) {
                assert!((x - y).abs() < 1e-12 * (k as f64 + 1.0), "{x} {y}");
            }
        });
        let ints = |v: &[f32]| v.iter().map(|x| (x * 100.0) as i32).collect::<Vec<_>>();
        let (a, b) = (ints(&a), ints(&b));
        let mut out = vec![0; m * n];
        let mac = |acc: i32, x: i32, y: i32| acc.wrapping_add(x.wrapping_mul(y));
        gemm_generic(&TwoThreads, &s, &a, &b, &mut out, 0, &mac, &|x| x);
        for i in 0..m {
            for j in 0..n {
                let want: i32 = (0..k).map(|x| a[i * k + x] * b[x * n + j]).sum();
                assert_eq!(out[i * n + j], want);
            }
        }
    }
}

#[test]
#[should_panic(expected = "left-hand matrix")]
fn short_slices_are_refused() {
    let b = PackedB::from_fn(3, 3, |_, _| 1.0f32);
    gemm_packed(
        &Inline,
        &[0.0; 5],
        3,
        2,
        &b,
        &mut [0.0; 6],
        3,
        &Epilogue::none(),
    );
}

#[test]
fn an_update_by_a_product_is_that_of_the_product_made_before() {
    let sizes = [
        (1, 1, 1),
        (3, 9, 5),
        (7, 31, 129),
        (8, 5, MAX_UPDATE_K),
        (13, 48, 60),
        (100, 40, 30),
        (260, 35, 40),
    ];
    // Momentum, and the number of visits of each element.
    let rule = |[var, accum, count]: [&mut f32; 3], g: f32| {
        *accum = *accum * 0.5 + g;
        *var -= *accum * 0.25;
        *count += 1.0;
    };
    each_isa(|isa| {
        for (m, n, k) in sizes {
            for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
                let s = GemmShape::dense(m, n, k, ta, tb);
                let (a, b) = (noise(m * k, 1), noise(n * k, 2));
                let mut product = vec![0.0; m * n];
                let packed = Columns::Stored(Stored::new(&s, &b));
                let mut rows = vec![0.0; m * k];
                match ta {
                    true => turn(&Inline, &a, m, [k, m], &mut rows, k),
                    false => rows.copy_from_slice(&a),
                }
                let out = Out::Matrix(SendPtr(product.as_mut_ptr()), n);
                // SAFETY: the product has this size.
                unsafe {
                    multiply(
                        &Inline,
                        (&rows, k),
                        m,
                        packed,
                        out,
                        &Epilogue::none(),
                        false,
                    )
                };
                for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                    let start = || [noise(m * n, 3), noise(m * n, 4), vec![0.0; m * n]];
                    let (mut want, mut got) = (start(), start());
                    for (i, g) in product.iter().enumerate() {
                        rule(want.each_mut().map(|v| &mut v[i]), *g);
                    }
                    let values = got.each_mut().map(|v| &mut v[..]);
                    gemm_update(par, &s, &a, &b, values, &rule);
                    assert_eq!(got, want, "{isa:?} {s:?}");
                }
            }
        }
    });
}

#[test]
fn kept_matrices_make_the_same_bits() {
    each_isa(|isa| {
        for (m, n, k) in [
            (1, 33, 300),
            (2, 64, 700),
            (7, 31, 129),
            (32, 100, 900),
            (64, 257, 800),
        ] {
            let s = GemmShape::dense(m, n, k, false, false);
            let (a, b) = (noise(m * k, 1), noise(k * n, 2));
            let packed = PackedB::from_rows(&Inline, &b, n, k, n);
            let bias = noise(n, 3);
            let ep = Epilogue::new(Some(&bias[..]), Activation::Relu);
            for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                let mut outs = vec![vec![7.0; m * n]; 2];
                gemm(par, &s, &a, &b, &mut outs[0], &ep);
                gemm_kept(par, &a, k, m, &packed, &mut outs[1], n, &ep);
                assert_eq!(outs[0], outs[1], "{isa:?}: {m} {n} {k}");
            }
        }
    });
}

#[test]
fn products_are_added_to_what_a_matrix_holds() {
    each_isa(|isa| {
        for (m, n, k) in [
            (1, 1, 5),
            (1, 100, 3),
            (7, 31, 129),
            (70, 33, 900),
            (320, 65, 32),
        ] {
            for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
                let s = GemmShape::dense(m, n, k, ta, tb);
                let (a, b, bias) = (noise(m * k, 1), noise(n * k, 2), noise(n, 3));
                let product = naive(&s, &a, &b);
                for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                    let before = noise(m * n, 4);
                    let mut out = before.clone();
                    let ep = Epilogue::new(Some(&bias[..]), Activation::None);
                    gemm_add(par, &s, &a, &b, &mut out, &ep);
                    for (i, got) in out.iter().enumerate() {
                        let want = product[i] + f64::from(before[i]) + f64::from(bias[i % n]);
                        close(*got, want, k, &(isa, s));
                    }
                }
            }
        }
    });
}
