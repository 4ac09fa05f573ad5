//! Products and convolutions of codes against plain loops, with every instruction set of the CPU. Results
//! are equal to the bit.

use super::*;
use crate::isa::testing::{TwoThreads, each_isa, noise};
use ferroflow_sync::Inline;

fn bytes(n: usize, seed: u32) -> Vec<u8> {
    let mut x = seed | 1;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match x >> 28 {
                0 => 255,
                1 => 0,
                _ => (x >> 16) as u8,
            }
        })
        .collect()
}

fn weights(n: usize, seed: u32) -> Vec<i8> {
    bytes(n, seed).into_iter().map(|b| b as i8).collect()
}

fn epilogue<'a>(
    side: Option<Int8Side<'a>>,
    limits: (f32, f32),
    out: Int8Out<'a>,
) -> Int8Epilogue<'a> {
    Int8Epilogue { side, limits, out }
}

/// The numbers around a sum.
struct Rest {
    scale: Vec<f32>,
    bias: Vec<f32>,
    side_codes: Vec<u8>,
    side_floats: Vec<f32>,
    limits: (f32, f32),
}

impl Rest {
    fn new(m: usize, n: usize, limits: (f32, f32)) -> Rest {
        Rest {
            scale: noise(n, 5).into_iter().map(|x| x * 1e-3).collect(),
            bias: noise(n, 6).into_iter().map(|x| x * 50.0 + 100.0).collect(),
            side_codes: bytes(m * n, 7),
            side_floats: noise(m * n, 8),
            limits,
        }
    }

    fn channels(&self) -> Channels<'_> {
        Channels {
            scale: &self.scale,
            bias: &self.bias,
        }
    }

    fn side(&self, kind: usize) -> Option<Int8Side<'_>> {
        match kind {
            0 => None,
            1 => Some(Int8Side::Codes(&self.side_codes, 0.37)),
            _ => Some(Int8Side::Floats(&self.side_floats, 41.0)),
        }
    }

    fn float(&self, i: usize, column: usize, sum: i32, side: usize) -> f32 {
        let y = sum as f32 * self.scale[column] + self.bias[column];
        let y = match side {
            0 => y,
            1 => y + f32::from(self.side_codes[i]) * 0.37,
            _ => y + self.side_floats[i] * 41.0,
        };
        y.max(self.limits.0).min(self.limits.1)
    }

    fn code(&self, i: usize, column: usize, sum: i32, side: usize) -> u8 {
        self.float(i, column, sum, side)
            .clamp(0.0, 255.0)
            .round_ties_even() as u8
    }
}

/// Runs `f` for every instruction set, side input and kind of output, and compares with the sums.
fn check_all(
    what: &dyn std::fmt::Debug,
    [m, n]: [usize; 2],
    sums: &[i32],
    f: &dyn Fn(&dyn Parallelism, &Rest, Int8Epilogue<'_>),
) {
    for limits in [(f32::NEG_INFINITY, f32::INFINITY), (20.0, 120.0)] {
        let rest = Rest::new(m, n, limits);
        for side in 0..3 {
            let floats = sums.iter().enumerate();
            let floats: Vec<f32> = floats
                .map(|(i, s)| rest.float(i, i % n.max(1), *s, side))
                .collect();
            let codes = sums.iter().enumerate();
            let codes: Vec<u8> = codes
                .map(|(i, s)| rest.code(i, i % n.max(1), *s, side))
                .collect();
            each_isa(|isa| {
                for par in [&Inline as &dyn Parallelism, &TwoThreads] {
                    let mut out = vec![0u8; m * n];
                    let mut wide = vec![f32::NAN; m * n];
                    let given = rest.side(side);
                    f(
                        par,
                        &rest,
                        epilogue(given, limits, Int8Out::Codes(&mut out)),
                    );
                    assert_eq!(out, codes, "{isa:?} side {side} {limits:?} {what:?}");
                    f(
                        par,
                        &rest,
                        epilogue(given, limits, Int8Out::Floats(&mut wide)),
                    );
                    assert_eq!(wide, floats, "{isa:?} side {side} {limits:?} {what:?}");
                }
            });
        }
    }
}

/// Compares a product of these codes and weights, whose zero is `zero`.
fn check_product([m, n, k]: [usize; 3], (layout, zero): (Int8Layout, u8), (a, b): (&[u8], &[i8])) {
    let mut sums = vec![0i32; m * n];
    for (i, sum) in sums.iter_mut().enumerate() {
        for l in 0..k {
            let w = match layout {
                Int8Layout::Rows => b[l * n + i % n],
                Int8Layout::Columns => b[i % n * k + l],
            };
            *sum += (i32::from(a[i / n * k + l]) - i32::from(zero)) * i32::from(w);
        }
    }
    check_all(&(m, n, k, zero), [m, n], &sums, &|par, rest, epilogue| {
        let packed = Int8Weights::new(b, [k, n], layout, zero, rest.channels());
        int8_dense(par, m, a, &packed, epilogue);
    });
}

#[test]
fn products() {
    for [m, n, k] in [
        [0, 3, 4],
        [3, 0, 4],
        [3, 5, 0],
        [1, 1, 1],
        [1, 1000, 64],
        [2, 16, 3],
        [5, 17, 4],
        [6, 64, 7],
        [7, 65, 8],
        [13, 33, 30],
        [49, 48, 129],
        [50, 130, 64],
        [16, 16, 128],
        [79, 81, 200],
        [67, 100, 63],
    ] {
        for (layout, zero) in [
            (Int8Layout::Rows, 0),
            (Int8Layout::Columns, 128),
            (Int8Layout::Rows, 255),
        ] {
            let (a, b) = (bytes(m * k, 1), weights(k * n, 2));
            check_product([m, n, k], (layout, zero), (&a, &b));
        }
    }
}

#[test]
fn products_of_extreme_codes() {
    for [m, n, k] in [[1, 9, 5], [7, 17, 6], [20, 8, 131]] {
        for (code, weight) in [(255, -128), (255, 127), (0, -128), (0, 127)] {
            for zero in [0, 255] {
                let (a, b) = (vec![code; m * k], vec![weight; k * n]);
                check_product([m, n, k], (Int8Layout::Rows, zero), (&a, &b));
            }
        }
    }
}

#[test]
fn saturating_codes_and_not_a_number() {
    // The largest products in one step, which 16 bits cannot hold.
    let (a, b) = (vec![255u8; 64], vec![-128i8; 64]);
    each_isa(|isa| {
        for (bias, code) in [(0.0, 0), (f32::NAN, 0), (f32::INFINITY, 255)] {
            let channels = Channels {
                scale: &[1.0],
                bias: &[bias],
            };
            let packed = Int8Weights::new(&b, [64, 1], Int8Layout::Rows, 0, channels);
            let (mut codes, mut sum) = ([7], [0.0]);
            let limits = (f32::NEG_INFINITY, f32::INFINITY);
            let to = epilogue(None, limits, Int8Out::Codes(&mut codes));
            int8_dense(&Inline, 1, &a, &packed, to);
            assert_eq!(codes, [code], "{isa:?} {bias}");
            let to = epilogue(None, limits, Int8Out::Floats(&mut sum));
            int8_dense(&Inline, 1, &a, &packed, to);
            if bias == 0.0 {
                assert_eq!(sum, [-128.0 * 255.0 * 64.0], "{isa:?}");
            }
        }
    });
}

fn shape(input: [usize; 2], filter: [usize; 2], stride: usize, dil: usize) -> Conv2dShape {
    let out = |i: usize, pad: usize| {
        let reach = (filter[i] - 1) * dil + 1;
        (input[i] + 2 * pad).saturating_sub(reach) / stride + 1
    };
    let pads = [filter[0] / 2, filter[1] / 2];
    Conv2dShape {
        batch: 2,
        in_h: input[0],
        in_w: input[1],
        in_c: 0,
        filter_h: filter[0],
        filter_w: filter[1],
        out_c: 0,
        stride_h: stride,
        stride_w: stride,
        dil_h: dil,
        dil_w: dil,
        pad_top: pads[0],
        pad_left: pads[1],
        out_h: out(0, pads[0]),
        out_w: out(1, pads[1]),
        groups: 1,
    }
}

/// Calls `f(output pixel, tap, input pixel)` for the input pixels under windows.
fn each_tap(s: &Conv2dShape, mut f: impl FnMut(usize, usize, usize)) {
    for pixel in 0..s.batch * s.out_h * s.out_w {
        let (image, y, x) = (
            pixel / s.out_w / s.out_h,
            pixel / s.out_w % s.out_h,
            pixel % s.out_w,
        );
        for tap in 0..s.filter_h * s.filter_w {
            let (fy, fx) = (tap / s.filter_w, tap % s.filter_w);
            let y = (y * s.stride_h + fy * s.dil_h).checked_sub(s.pad_top);
            let x = (x * s.stride_w + fx * s.dil_w).checked_sub(s.pad_left);
            if let (Some(y), Some(x)) = (y.filter(|y| *y < s.in_h), x.filter(|x| *x < s.in_w)) {
                f(pixel, tap, (image * s.in_h + y) * s.in_w + x);
            }
        }
    }
}

/// Shapes of windows over images.
fn shapes() -> Vec<Conv2dShape> {
    let mut all = Vec::new();
    for input in [[1, 1], [5, 7], [8, 9]] {
        for filter in [[1, 1], [3, 3], [1, 5], [5, 2], [7, 7]] {
            for (stride, dil) in [(1, 1), (2, 1), (1, 2), (3, 1)] {
                all.push(shape(input, filter, stride, dil));
            }
        }
    }
    all
}

/// Compares a convolution of these codes by this filter.
fn check_convolution(s: &Conv2dShape, zero: u8, x: &[u8], w: &[i8]) {
    let m = s.batch * s.out_h * s.out_w;
    let mut sums = vec![0i32; m * s.out_c];
    each_tap(s, |pixel, tap, from| {
        for c in 0..s.in_c {
            let code = i32::from(x[from * s.in_c + c]) - i32::from(zero);
            for o in 0..s.out_c {
                let w = w[(tap * s.in_c + c) * s.out_c + o];
                sums[pixel * s.out_c + o] += code * i32::from(w);
            }
        }
    });
    check_all(s, [m, s.out_c], &sums, &|par, rest, epilogue| {
        let packed = Int8Weights::of_filter(w, s, zero, rest.channels());
        int8_conv2d(par, s, x, &packed, epilogue);
    });
}

#[test]
fn convolutions() {
    for (i, mut s) in shapes().into_iter().enumerate() {
        (s.in_c, s.out_c) = ([1, 3, 4, 8][i % 4], [1, 5, 16, 70][i / 2 % 4]);
        let x = bytes(s.batch * s.in_h * s.in_w * s.in_c, 1);
        let w = weights(s.filter_h * s.filter_w * s.in_c * s.out_c, 2);
        check_convolution(&s, [0, 3, 255][i % 3], &x, &w);
    }
}

#[test]
fn convolutions_in_tiles() {
    // Tiles over the edges, and more than one block of them in each direction.
    for (input, channels, zero) in [
        // Enough for two tasks: several blocks, and several panels of one block.
        ([19, 18], [64, 33], 5),
        ([9, 9], [128, 96], 7),
        ([1, 1], [32, 5], 3),
        ([5, 7], [33, 70], 255),
        ([8, 9], [47, 16], 0),
        ([2, 131], [32, 3], 9),
        ([19, 18], [34, 8], 128),
    ] {
        for pad in [0, 1, 2] {
            let mut s = shape(input, [3, 3], 1, 1);
            [s.in_c, s.out_c] = channels;
            (s.pad_top, s.pad_left) = (pad, pad);
            let x = bytes(s.batch * s.in_h * s.in_w * s.in_c, 1);
            let w = weights(9 * s.in_c * s.out_c, 2);
            check_convolution(&s, zero, &x, &w);
        }
    }
}

#[test]
fn convolutions_of_extreme_codes() {
    // The most channels of tiles, and more: the sum under the middle window is the largest there is.
    for in_c in [32, 1827, 1828] {
        for (code, weight) in [(255, -128), (255, 127), (0, -128), (0, 127)] {
            for zero in [0, 255] {
                let mut s = shape([3, 3], [3, 3], 1, 1);
                (s.in_c, s.out_c) = (in_c, 2);
                let x = vec![code; s.batch * 9 * in_c];
                check_convolution(&s, zero, &x, &vec![weight; 9 * in_c * 2]);
            }
        }
    }
}

#[test]
fn convolutions_of_each_channel() {
    for (i, mut s) in shapes().into_iter().enumerate() {
        s.in_c = [1, 3, 16, 33, 72][i % 5];
        (s.out_c, s.groups) = (s.in_c, s.in_c);
        let zero = [0, 3, 255][i % 3];
        let x = bytes(s.batch * s.in_h * s.in_w * s.in_c, 1);
        let w = weights(s.filter_h * s.filter_w * s.in_c, 2);
        let m = s.batch * s.out_h * s.out_w;
        let mut sums = vec![0i32; m * s.in_c];
        each_tap(&s, |pixel, tap, from| {
            for c in 0..s.in_c {
                let code = i32::from(x[from * s.in_c + c]) - i32::from(zero);
                sums[pixel * s.in_c + c] += code * i32::from(w[tap * s.in_c + c]);
            }
        });
        check_all(&s, [m, s.in_c], &sums, &|par, rest, epilogue| {
            let packed = DepthwiseWeights::new(&w, &s, zero, rest.channels());
            int8_depthwise2d(par, &s, &x, &packed, epilogue);
        });
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn kinds_of_instruction_sets() {
    if std::env::var_os("FERROFLOW_SIMD").is_some() {
        return;
    }
    let mut kinds = Vec::new();
    each_isa(|_| kinds.push(Kind::current()));
    let (has_vnni, wide) = (
        is_x86_feature_detected!("avxvnni"),
        is_x86_feature_detected!("avx512vnni"),
    );
    assert_eq!(kinds.contains(&Kind::AvxVnni), has_vnni, "{kinds:?}");
    assert_eq!(kinds.contains(&Kind::Vnni), wide, "{kinds:?}");
}

#[test]
fn single_numbers() {
    let x: Vec<f32> = noise(77, 3).into_iter().map(|x| x * 40.0).collect();
    let a = bytes(77, 1);
    each_isa(|isa| {
        let mut codes = vec![0; 77];
        quantize(&x, 3.1, 9, &mut codes);
        let expected = x.iter().map(|x| (x * 3.1 + 9.0).round_ties_even() as u8);
        assert_eq!(codes, expected.collect::<Vec<u8>>(), "{isa:?}");
        let mut wide = vec![0.0; 77];
        dequantize(&codes, 0.3, 9, &mut wide);
        let expected = codes.iter().map(|c| (f32::from(*c) - 9.0) * 0.3);
        assert_eq!(wide, expected.collect::<Vec<f32>>(), "{isa:?}");
        let mut sums = vec![0; 77];
        combine([&a, &codes], [0.7, 1.3], -9.5, (4, 250), &mut sums);
        let both = a.iter().zip(&codes);
        let expected = both.map(|(a, b)| {
            let y = f32::from(*a) * 0.7 + f32::from(*b) * 1.3 - 9.5;
            y.clamp(4.0, 250.0).round_ties_even() as u8
        });
        assert_eq!(sums, expected.collect::<Vec<u8>>(), "{isa:?}");
        let mut pairs = vec![0; 154];
        quantize_finely(&x, 3.1, 128, 8.0, &mut pairs);
        let expected = x.iter().flat_map(|x| {
            let y = x * 3.1 + 128.0;
            let first = y.round_ties_even().clamp(0.0, 255.0);
            [
                first as u8,
                ((y - first) * 8.0 + 128.0).round_ties_even() as u8,
            ]
        });
        assert_eq!(pairs, expected.collect::<Vec<u8>>(), "{isa:?}");
        quantize_finely(&[f32::NAN, f32::INFINITY], 1.0, 9, 8.0, &mut pairs[..4]);
        assert_eq!(pairs[..4], [0, 0, 255, 255], "{isa:?}");
        quantize(&[f32::NAN, f32::INFINITY], 1.0, 0, &mut codes[..2]);
        assert_eq!(codes[..2], [0, 255], "{isa:?}");
    });
}
