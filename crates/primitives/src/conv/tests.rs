//! Convolutions against naive loops, with every instruction set of the CPU.

use super::winograd::WinogradTransform;
use super::*;
use crate::depthwise::{filter_gradient_by_channel, suits_small_groups};
use crate::epilogue::Activation;
use crate::isa::testing::{TwoThreads, each_isa, noise};
use crate::math::UnaryOp;
use bytes::Bytes;
use ferroflow_sync::Inline;

/// Returns the sum over one window, in double precision.
fn naive(s: &Conv3dShape, input: &[f32], filter: &[f32]) -> Vec<f64> {
    let p = &s.plane;
    let (in_c, out_c) = (p.in_c / p.groups, p.out_c / p.groups);
    let mut out = Vec::new();
    for n in 0..p.batch {
        for (z, y, x) in (0..s.out_d)
            .flat_map(|z| (0..p.out_h).flat_map(move |y| (0..p.out_w).map(move |x| (z, y, x))))
        {
            for o in 0..p.out_c {
                let mut acc = 0.0;
                for kz in 0..s.filter_d {
                    for ky in 0..p.filter_h {
                        for kx in 0..p.filter_w {
                            let iz = (z * s.stride_d + kz * s.dil_d).wrapping_sub(s.pad_front);
                            let iy = (y * p.stride_h + ky * p.dil_h).wrapping_sub(p.pad_top);
                            let ix = (x * p.stride_w + kx * p.dil_w).wrapping_sub(p.pad_left);
                            if iz >= s.in_d || iy >= p.in_h || ix >= p.in_w {
                                continue;
                            }
                            for c in 0..in_c {
                                let i = ((n * s.in_d + iz) * p.in_h + iy) * p.in_w + ix;
                                let i = i * p.in_c + o / out_c * in_c + c;
                                let k = (kz * p.filter_h + ky) * p.filter_w + kx;
                                let k = (k * in_c + c) * p.out_c + o;
                                acc += f64::from(input[i]) * f64::from(filter[k]);
                            }
                        }
                    }
                }
                out.push(acc);
            }
        }
    }
    out
}

fn compare(s: &Conv3dShape) {
    let p = &s.plane;
    let input = noise(p.input_len() * s.in_d, 1);
    let filter = noise(p.filter_len() * s.filter_d, 2);
    let (scale, bias) = (noise(p.out_c, 5), noise(p.out_c, 3));
    let side = noise(p.output_len() * s.out_d, 4);
    let want = naive(s, &input, &filter);
    each_isa(|isa| {
        let mut ways = vec![PackedFilter::new_3d(&Inline, &filter, s)];
        if s.filter_d == 1 {
            for f in winograd::applicable(p) {
                ways.push(PackedFilter::with_transform(&Inline, &filter, p, Some(f)));
                ways.push(PackedFilter::by_positions(&Inline, &filter, p, f));
            }
        }
        let pars = [&Inline as &dyn Parallelism, &TwoThreads];
        let doubles = |x: &[f32]| x.iter().map(|&x| x.into()).collect::<Vec<f64>>();
        for par in pars {
            let mut out = vec![f64::NAN; want.len()];
            conv3d_plain(par, s, &doubles(&input), &doubles(&filter), &mut out);
            for (i, (got, want)) in out.iter().zip(&want).enumerate() {
                assert!(
                    (got - want).abs() < 1e-10,
                    "{isa:?} {s:?} {i}: {got} for {want}"
                );
            }
        }
        for (packed, par) in ways.iter().flat_map(|way| pars.map(|par| (way, par))) {
            let acts = [
                (false, Activation::None),
                (true, Activation::Relu),
                (false, Activation::Unary(UnaryOp::Abs)),
            ];
            for (with_more, act) in acts {
                let ep = Epilogue {
                    scale: with_more.then_some(&scale[..]),
                    bias: Some(&bias),
                    side: with_more.then_some((&side[..], p.out_c)),
                    act,
                };
                let mut out = vec![f32::NAN; want.len()];
                conv3d(par, s, &input, packed, &mut out, &ep);
                for (i, got) in out.iter().enumerate() {
                    let (bias, scale) = (bias[i % p.out_c], scale[i % p.out_c]);
                    let mut x = want[i] + f64::from(bias);
                    if with_more {
                        let scaled = want[i] * f64::from(scale) + f64::from(bias);
                        x = (scaled + f64::from(side[i])).max(0.0);
                    } else if act != Activation::None {
                        x = x.abs();
                    }
                    let error = (f64::from(*got) - x).abs();
                    let k = (packed.n_offsets * p.in_c) as f64;
                    let lost = match packed.transform.map(WinogradTransform::planes) {
                        Some(64) => 2.0 * tiled_loss(p),
                        Some(_) => tiled_loss(p),
                        None => 1.0,
                    };
                    assert!(
                        error < lost * (1e-5 + 2e-6 * k.sqrt()),
                        "{isa:?} {s:?} {:?} {i}: {got} for {x}",
                        packed.transform.map(WinogradTransform::planes)
                    );
                }
            }
        }
    });
}

/// Returns the accuracy that tiles of six and eight may lose compared with direct sums.
fn tiled_loss(s: &Conv2dShape) -> f64 {
    if s.filter_h == 5 { 4.0 } else { 1.0 }
}

fn plane(hw: [usize; 2], c: [usize; 2], f: [usize; 2], stride: usize, same: bool) -> Conv2dShape {
    let out = |i: usize, f: usize| {
        if same {
            i.div_ceil(stride)
        } else {
            (i - f) / stride + 1
        }
    };
    let pad = |i: usize, f: usize| {
        if same {
            ((out(i, f) - 1) * stride + f).saturating_sub(i) / 2
        } else {
            0
        }
    };
    Conv2dShape {
        batch: 1,
        in_h: hw[0],
        in_w: hw[1],
        in_c: c[0],
        filter_h: f[0],
        filter_w: f[1],
        out_c: c[1],
        stride_h: stride,
        stride_w: stride,
        dil_h: 1,
        dil_w: 1,
        pad_top: pad(hw[0], f[0]),
        pad_left: pad(hw[1], f[1]),
        out_h: out(hw[0], f[0]),
        out_w: out(hw[1], f[1]),
        groups: 1,
    }
}

#[test]
fn planes() {
    for (hw, c, f, stride, same) in [
        ([5, 5], [3, 8], [3, 3], 1, true),
        ([7, 7], [19, 33], [3, 3], 1, true),
        ([9, 8], [3, 16], [3, 3], 2, true),
        ([16, 17], [3, 7], [7, 7], 2, true),
        ([6, 6], [4, 5], [1, 1], 1, true),
        ([6, 7], [24, 18], [1, 1], 2, true),
        ([9, 5], [6, 24], [1, 7], 1, true),
        ([9, 5], [6, 24], [7, 1], 1, true),
        ([9, 11], [5, 24], [3, 5], 1, false),
        ([7, 7], [160, 40], [3, 3], 1, true),
        ([2, 3], [700, 20], [3, 3], 1, true),
        ([1, 2], [3, 4], [5, 5], 1, true),
        ([28, 28], [24, 12], [3, 3], 1, true),
    ] {
        compare(&plane(hw, c, f, stride, same).solid());
    }
}

#[test]
fn sliding_along_rows() {
    for (hw, c, f, same) in [
        ([5, 8], [1, 16], [3, 3], true),
        ([4, 9], [3, 32], [3, 3], true),
        ([3, 29], [16, 13], [3, 3], true),
        ([3, 21], [7, 8], [2, 3], false),
        ([1, 26], [5, 3], [1, 3], true),
        ([2, 11], [8, 70], [5, 3], true),
        ([2, 37], [48, 5], [3, 3], true),
    ] {
        for stride in [1, 2] {
            let mut s = plane(hw, c, f, stride, same);
            compare(&s.solid());
            s.batch = 2;
            (s.pad_top, s.pad_left) = (4, 14);
            (s.out_h, s.out_w) = (s.out_h + 5, s.out_w + 19);
            compare(&s.solid());
        }
    }
}

#[test]
fn small_tiles() {
    for (hw, c) in [
        ([7, 7], [32, 40]),
        ([4, 6], [33, 35]),
        ([1, 1], [40, 32]),
        ([15, 9], [64, 64]),
        // More tiles than are multiplied at once by a filter that is transformed on use.
        ([24, 23], [33, 34]),
        // More rows of a panel than are transformed at once.
        ([4, 3], [260, 33]),
    ] {
        for f in [3, 5] {
            let mut s = plane(hw, c, [f, f], 1, true);
            assert!(winograd::transform(&s).is_some());
            compare(&s.solid());
            (s.batch, s.pad_left) = (2, 2);
            compare(&s.solid());
            if hw[0] >= f && hw[1] >= f {
                compare(&plane(hw, c, [f, f], 1, false).solid());
            }
        }
    }
}

#[test]
fn batches_groups_dilation_and_odd_padding() {
    let mut s = plane([8, 7], [12, 18], [3, 3], 1, true);
    s.batch = 3;
    compare(&s.solid());
    s.groups = 3;
    compare(&s.solid());
    s.groups = 6;
    compare(&s.solid());
    s.groups = 1;
    (s.dil_h, s.dil_w, s.pad_top, s.pad_left) = (2, 3, 1, 4);
    compare(&s.solid());
    (s.dil_h, s.dil_w, s.pad_top, s.pad_left, s.stride_w) = (1, 1, 5, 0, 3);
    (s.out_h, s.out_w) = (12, 5);
    compare(&s.solid());
}

/// Filters of one channel: wide pictures, narrow ones, and steps.
#[test]
fn pictures() {
    for hw in [[6, 70], [70, 3], [4, 4]] {
        for f in [[3, 3], [4, 1], [1, 4]] {
            for (stride, same) in [(1, true), (1, false), (2, true)] {
                if hw[0] >= f[0] && hw[1] >= f[1] {
                    compare(&plane(hw, [1, 1], f, stride, same).solid());
                }
            }
        }
    }
}

#[test]
fn dilated_tiles() {
    for (f, dilation) in [
        (3, [2, 2]),
        (3, [4, 1]),
        (3, [6, 7]),
        (3, [20, 9]),
        (5, [3, 2]),
    ] {
        let mut s = plane([13, 22], [40, 36], [f, f], 1, true);
        s.batch = 2;
        [s.dil_h, s.dil_w] = dilation;
        (s.pad_top, s.pad_left) = (f / 2 * s.dil_h, f / 2 * s.dil_w);
        compare(&s.solid());
        (s.pad_top, s.out_w) = (0, 9);
        compare(&s.solid());
        if suits_filter_gradient_in_tiles(&s) {
            compare_filter_gradient(&s.solid());
        }
    }
}

/// Sizes in groups: input and output channels, and how many groups.
const GROUPED: [([usize; 2], usize); 13] = [
    ([6, 6], 6),
    ([70, 70], 70),
    ([300, 300], 300),
    ([35, 105], 35),
    ([16, 160], 8),
    ([48, 12], 12),
    ([24, 48], 12),
    ([64, 64], 2),
    ([40, 80], 4),
    ([64, 64], 16),
    ([64, 32], 8),
    ([96, 48], 6),
    ([64, 160], 4),
];

#[test]
fn groups_of_every_kind() {
    for (c, groups) in GROUPED {
        for (f, stride, dilation) in [
            ([3, 3], 1, 1),
            ([7, 7], 1, 1),
            ([7, 7], 2, 1),
            ([1, 5], 2, 1),
            ([2, 4], 3, 1),
            ([3, 3], 1, 2),
        ] {
            let mut s = plane([9, 10], c, f, stride, true);
            (s.batch, s.groups) = (2, groups);
            (s.dil_h, s.dil_w) = (dilation, dilation);
            compare(&s.solid());
        }
        let mut deep = deep(c);
        deep.plane.groups = groups;
        compare(&deep);
    }
}

/// A convolution with strides along all three axes.
fn deep(c: [usize; 2]) -> Conv3dShape {
    Conv3dShape {
        in_d: 5,
        filter_d: 2,
        stride_d: 2,
        dil_d: 1,
        pad_front: 1,
        out_d: 3,
        ..plane([6, 7], c, [3, 3], 2, true).solid()
    }
}

#[test]
fn solids() {
    let mut s = plane([5, 6], [4, 9], [3, 3], 1, true);
    s.batch = 2;
    let mut s = s.solid();
    (
        s.in_d,
        s.filter_d,
        s.stride_d,
        s.dil_d,
        s.pad_front,
        s.out_d,
    ) = (4, 3, 1, 1, 1, 4);
    compare(&s);
    (s.stride_d, s.dil_d, s.out_d) = (2, 2, 3);
    compare(&s);
}

#[test]
fn sliding_along_rows_of_volumes() {
    for c in [[1, 16], [2, 5], [3, 40], [16, 16]] {
        for (filter_d, stride_d, pad_front) in
            [(3, 1, 1), (2, 2, 0), (1, 1, 0), (1, 1, 2), (3, 3, 4)]
        {
            for width in [14, 27] {
                let mut s = plane([6, width], c, [3, 3], 1, true);
                s.batch = 2;
                let out_d = (5 + 2 * pad_front - filter_d) / stride_d + 1;
                compare(&Conv3dShape {
                    in_d: 5,
                    out_d,
                    filter_d,
                    stride_d,
                    pad_front,
                    ..s.solid()
                });
            }
        }
    }
}

#[test]
fn nothing() {
    let mut s = plane([4, 4], [3, 4], [3, 3], 1, true);
    s.batch = 0;
    compare(&s.solid());
    (s.batch, s.in_c) = (1, 0);
    compare(&s.solid());
    (s.in_c, s.out_c) = (3, 0);
    compare(&s.solid());
}

#[test]
fn large_filters_are_transformed_on_use() {
    let s = plane([5, 6], [256, 256], [3, 3], 1, true);
    let (input, filter) = (noise(s.input_len(), 1), noise(s.filter_len(), 2));
    each_isa(|isa| {
        let run = |filter: &PackedFilter, par: &dyn Parallelism| {
            let mut out = vec![0.0; s.output_len()];
            conv2d(par, &s, &input, filter, &mut out, &Epilogue::none());
            out
        };
        let packed = PackedFilter::new(&Inline, &filter, &s);
        let parts: Vec<Bytes> = packed.parts().iter().map(|p| bytes_of(p)).collect();
        assert_eq!(parts.len(), 9);
        let on_use = run(&packed, &Inline);
        let again = PackedFilter::from_packed(parts.clone(), &s).expect("its own parts");
        assert_eq!(run(&again, &TwoThreads), on_use, "{isa:?}");
        assert!(PackedFilter::from_packed(parts[1..].to_vec(), &s).is_none());
        let transform = winograd::transform(&s);
        let before = PackedFilter::with_transform(&Inline, &filter, &s, transform);
        for (a, b) in run(&before, &Inline).iter().zip(&on_use) {
            assert!((a - b).abs() < 1e-4, "{isa:?}: {a} and {b}");
        }
    });
}

fn bytes_of(values: &[f32]) -> Bytes {
    let bytes = values.iter().flat_map(|x| x.to_ne_bytes());
    bytes.collect::<Vec<u8>>().into()
}

#[test]
fn transformed_filters_lose_little() {
    for (f, bound) in [(3, 1e-5), (5, 5e-5)] {
        transformed(f, bound);
    }
}

fn transformed(f: usize, bound: f64) {
    let s = plane([8, 8], [256, 32], [f, f], 1, true);
    let (input, filter) = (noise(s.input_len(), 1), noise(s.filter_len(), 2));
    let want = naive(&s.solid(), &input, &filter);
    let size = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    each_isa(|isa| {
        let error = |f: &PackedFilter| {
            let mut out = vec![0.0; want.len()];
            conv2d(&Inline, &s, &input, f, &mut out, &Epilogue::none());
            let pairs = out.iter().zip(&want);
            let errors = pairs.map(|(x, y)| (f64::from(*x) - y).abs());
            errors.fold(0.0, f64::max) / size
        };
        let direct = error(&PackedFilter::with_offsets(&Inline, &filter, &s.solid()));
        let transforms: Vec<_> = winograd::applicable(&s).collect();
        assert_eq!(transforms.len(), if f == 5 { 2 } else { 1 });
        for transform in transforms {
            let packed = PackedFilter::with_transform(&Inline, &filter, &s, Some(transform));
            let transformed = error(&packed);
            println!(
                "{isa:?}: {direct:e} directly, {transformed:e} in {} planes",
                transform.planes()
            );
            assert!(transformed < bound);
        }
    });
}

/// Compares the filter gradient with sums over output pixels in double precision.
fn compare_filter_gradient(s: &Conv3dShape) {
    let p = &s.plane;
    let tiled = suits_filter_gradient_in_tiles(p);
    assert!(tiled || suits_filter_gradient(s), "{s:?}");
    let (in_c, out_c) = (p.in_c / p.groups, p.out_c / p.groups);
    let input = noise(p.input_len() * s.in_d, 5);
    let dy = noise(p.output_len() * s.out_d, 6);
    let mut want = vec![0f64; p.filter_len() * s.filter_d];
    for i in 0..dy.len() / p.out_c {
        let (x, y, z) = (i % p.out_w, i / p.out_w % p.out_h, i / p.out_w / p.out_h);
        let (n, z) = (z / s.out_d, z % s.out_d);
        for offset in 0..s.filter_d * p.filter_h * p.filter_w {
            let (kx, ky) = (offset % p.filter_w, offset / p.filter_w % p.filter_h);
            let kz = offset / p.filter_w / p.filter_h;
            let iz = (z * s.stride_d + kz * s.dil_d).wrapping_sub(s.pad_front);
            let iy = (y * p.stride_h + ky * p.dil_h).wrapping_sub(p.pad_top);
            let ix = (x * p.stride_w + kx * p.dil_w).wrapping_sub(p.pad_left);
            if iz >= s.in_d || iy >= p.in_h || ix >= p.in_w {
                continue;
            }
            let pixel = ((n * s.in_d + iz) * p.in_h + iy) * p.in_w + ix;
            for c in 0..in_c {
                for o in 0..p.out_c {
                    let value = input[pixel * p.in_c + o / out_c * in_c + c];
                    want[(offset * in_c + c) * p.out_c + o] +=
                        f64::from(value) * f64::from(dy[i * p.out_c + o]);
                }
            }
        }
    }
    let bound = 1e-5 + 3e-6 * (dy.len() as f64 / p.out_c as f64).sqrt();
    let near = |got: f64, i: usize, lost: f64| {
        let error = (got - want[i]).abs();
        assert!(error < lost * bound, "{s:?} {i}: {got} for {}", want[i]);
    };
    let (wide_input, wide_dy): (Vec<f64>, Vec<f64>) = (
        input.iter().map(|x| f64::from(*x)).collect(),
        dy.iter().map(|x| f64::from(*x)).collect(),
    );
    each_isa(|_| {
        for par in [&Inline as &dyn Parallelism, &TwoThreads] {
            let mut out = vec![f32::NAN; want.len()];
            conv3d_filter_gradient(par, s, &input, &dy, &mut out);
            let values = out.iter().map(|x| f64::from(*x)).enumerate();
            values.for_each(|(i, got)| near(got, i, 1.0));
            if suits_small_groups(s) {
                let mut out = vec![f32::NAN; want.len()];
                filter_gradient_by_channel(par, s, &input, &dy, &mut out);
                let values = out.iter().map(|x| f64::from(*x)).enumerate();
                values.for_each(|(i, got)| near(got, i, 1.0));
            }
            if tiled {
                let mut out = vec![f32::NAN; want.len()];
                conv2d_filter_gradient_in_tiles(par, p, &input, &dy, &mut out);
                let values = out.iter().map(|x| f64::from(*x)).enumerate();
                values.for_each(|(i, got)| near(got, i, tiled_loss(p)));
            }
            let mut out = vec![f64::NAN; want.len()];
            conv3d_filter_gradient(par, s, &wide_input, &wide_dy, &mut out);
            out.iter()
                .enumerate()
                .for_each(|(i, got)| near(*got, i, 1.0));
        }
    });
}

#[test]
fn filter_gradients() {
    for (hw, c, f, stride, same) in [
        ([5, 5], [3, 8], [3, 3], 1, true),
        ([7, 8], [19, 33], [3, 3], 1, true),
        ([9, 8], [3, 16], [3, 3], 2, true),
        ([16, 17], [3, 7], [7, 7], 2, true),
        ([12, 14], [4, 5], [2, 5], 3, true),
        ([9, 5], [6, 24], [1, 3], 1, true),
        ([9, 11], [5, 24], [3, 5], 1, false),
        ([200, 4], [2, 3], [3, 3], 1, true),
        ([28, 28], [1, 12], [5, 5], 1, true),
    ] {
        for batch in [1, 7] {
            let mut s = plane(hw, c, f, stride, same);
            s.batch = batch;
            compare_filter_gradient(&s.solid());
        }
    }
    for (hw, c, f, same) in [
        ([15, 16], [32, 40], 3, true),
        ([17, 13], [37, 32], 5, true),
        ([14, 21], [33, 35], 5, false),
    ] {
        for batch in [1, 5] {
            let mut s = plane(hw, c, [f, f], 1, same);
            s.batch = batch;
            assert_eq!(suits_filter_gradient_in_tiles(&s), batch == 5 || hw[0] > 14);
            compare_filter_gradient(&s.solid());
        }
    }
    let mut grouped = plane([8, 9], [6, 12], [3, 3], 1, true);
    (grouped.groups, grouped.batch) = (3, 2);
    compare_filter_gradient(&grouped.solid());
    let mut dilated = plane([9, 10], [2, 5], [3, 2], 1, false);
    (dilated.dil_h, dilated.dil_w) = (2, 3);
    (dilated.out_h, dilated.out_w) = (5, 7);
    compare_filter_gradient(&dilated.solid());
    for (c, groups) in GROUPED {
        for (stride, dilation) in [(1, 1), (2, 1), (1, 2)] {
            let mut s = plane([9, 10], c, [3, 5], stride, true);
            (s.batch, s.groups) = (3, groups);
            (s.dil_h, s.dil_w) = (dilation, dilation);
            compare_filter_gradient(&s.solid());
        }
        let mut deep = deep(c);
        deep.plane.groups = groups;
        compare_filter_gradient(&deep);
    }
    compare_filter_gradient(&deep([3, 4]));
    let none = Conv2dShape {
        in_h: 0,
        out_h: 0,
        ..plane([3, 8], [3, 4], [3, 3], 1, true)
    };
    let mut out = [7f32; 9 * 12];
    conv3d_filter_gradient(&Inline, &none.solid(), &[], &[], &mut out);
    assert_eq!(out, [0.0; 9 * 12]);
}
