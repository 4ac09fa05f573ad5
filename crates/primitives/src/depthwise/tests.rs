//! Depthwise convolutions against naive loops, with every instruction set of the CPU.

use super::*;
use crate::isa::testing::{TwoThreads, each_isa, noise};
use crate::math::UnaryOp;
use crate::scalar::unary_f64;
use ferroflow_sync::Inline;

fn compare(s: &DepthwiseShape) {
    let out_c = s.channels * s.multiplier;
    let (input, filter) = (noise(s.input_len(), 1), noise(s.filter_len(), 2));
    let bias = noise(out_c, 3);
    let mut want = Vec::new();
    for n in 0..s.batch {
        for (y, x) in (0..s.out_h).flat_map(|y| (0..s.out_w).map(move |x| (y, x))) {
            for o in 0..out_c {
                let mut acc = f64::from(bias[o]);
                for k in 0..s.filter_h * s.filter_w {
                    let (ky, kx) = (k / s.filter_w, k % s.filter_w);
                    let iy = (y * s.stride_h + ky * s.dil_h).wrapping_sub(s.pad_top);
                    let ix = (x * s.stride_w + kx * s.dil_w).wrapping_sub(s.pad_left);
                    if iy < s.in_h && ix < s.in_w {
                        let pixel = &input[((n * s.in_h + iy) * s.in_w + ix) * s.channels..];
                        let filter = f64::from(filter[k * out_c + o]);
                        acc += f64::from(pixel[o / s.multiplier]) * filter;
                    }
                }
                want.push(acc);
            }
        }
    }
    each_isa(|isa| {
        for par in [&Inline as &dyn Parallelism, &TwoThreads] {
            for act in [Activation::None, Activation::Relu6, UnaryOp::Swish.into()] {
                let mut out = vec![f32::NAN; s.output_len()];
                depthwise2d(par, s, &input, &filter, Some(&bias), act, &mut out);
                for (got, want) in out.iter().zip(&want) {
                    let want = unary_f64(act.as_unary(), *want);
                    let ok = (f64::from(*got) - want).abs() < 5e-6;
                    assert!(ok, "{isa:?} {s:?} {act:?}: {got} for {want}");
                }
            }
        }
    });
}

#[test]
fn windows_of_every_kind() {
    for (h, w, c) in [
        (5, 9, 8),
        (7, 7, 35),
        (4, 3, 17),
        (14, 16, 300),
        (1, 6, 3),
        (5, 67, 3),
        (4, 33, 1),
        (3, 40, 4),
    ] {
        for (k, stride) in [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (2, 3), (1, 1)] {
            for multiplier in [1, 2] {
                let (out_h, out_w) = (usize::div_ceil(h, stride), usize::div_ceil(w, stride));
                let pad = |i: usize, o: usize| ((o - 1) * stride + k).saturating_sub(i) / 2;
                let mut s = DepthwiseShape {
                    batch: 2,
                    in_h: h,
                    in_w: w,
                    channels: c,
                    multiplier,
                    filter_h: k,
                    filter_w: k,
                    stride_h: stride,
                    stride_w: stride,
                    dil_h: 1,
                    dil_w: 1,
                    pad_top: pad(h, out_h),
                    pad_left: pad(w, out_w),
                    out_h,
                    out_w,
                };
                compare(&s);
                (s.pad_left, s.pad_top) = (4, 1);
                compare(&s);
                (s.dil_h, s.dil_w) = (2, 3);
                compare(&s);
            }
        }
    }
}

#[test]
fn nothing() {
    let s = DepthwiseShape {
        batch: 1,
        in_h: 4,
        in_w: 4,
        channels: 0,
        multiplier: 1,
        filter_h: 3,
        filter_w: 3,
        stride_h: 1,
        stride_w: 1,
        dil_h: 1,
        dil_w: 1,
        pad_top: 1,
        pad_left: 1,
        out_h: 4,
        out_w: 4,
    };
    compare(&s);
    compare(&DepthwiseShape {
        channels: 3,
        batch: 0,
        ..s
    });
    compare(&DepthwiseShape {
        channels: 3,
        in_w: 0,
        ..s
    });
}
