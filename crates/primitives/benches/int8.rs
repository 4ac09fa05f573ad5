//! Speed of products of codes and of `bfloat16` numbers on the shapes of MobileNetV2 and ResNet50:
//! `cargo bench -p ferroflow-primitives --bench int8 [-- FILTER]`.
//!
//! Items are operations, two for each product. `FERROFLOW_SIMD` chooses the instruction set: `portable`, `avx2`,
//! `avx_vnni` (AVX2 with that addition), `avx512` (without tiles).

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use ferroflow_primitives::bf16::{Bf16Weights, bf16_conv2d};
use ferroflow_primitives::conv::Conv2dShape;
use ferroflow_primitives::gemm::{Activation, Epilogue};
use ferroflow_primitives::int8::{
    Channels, DepthwiseWeights, Int8Epilogue, Int8Out, Int8Weights, int8_conv2d, int8_depthwise2d,
};
use ferroflow_sync::Inline;

fn main() {
    divan::main();
}

fn shape(hw: usize, [in_c, out_c]: [usize; 2], f: usize, stride: usize) -> Conv2dShape {
    let out = hw.div_ceil(stride);
    let pad = ((out - 1) * stride + f).saturating_sub(hw) / 2;
    Conv2dShape {
        batch: 1,
        in_h: hw,
        in_w: hw,
        in_c,
        filter_h: f,
        filter_w: f,
        out_c,
        stride_h: stride,
        stride_w: stride,
        dil_h: 1,
        dil_w: 1,
        pad_top: pad,
        pad_left: pad,
        out_h: out,
        out_w: out,
        groups: 1,
    }
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| ((i * 7919) % 251) as u8).collect()
}

fn signed(n: usize) -> Vec<i8> {
    bytes(n).into_iter().map(|b| b as i8).collect()
}

fn epilogue(out: &mut [u8]) -> Int8Epilogue<'_> {
    Int8Epilogue {
        side: None,
        limits: (0.0, 255.0),
        out: Int8Out::Codes(out),
    }
}

/// Height and width, channels, filter, stride.
const CONVS: &[(usize, [usize; 2], usize, usize)] = &[
    (56, [64, 64], 1, 1),
    (56, [64, 256], 1, 1),
    (28, [512, 128], 1, 1),
    (14, [256, 1024], 1, 1),
    (7, [2048, 512], 1, 1),
    (112, [16, 96], 1, 1),
    (112, [32, 16], 1, 1),
    (56, [144, 24], 1, 1),
    (14, [576, 96], 1, 1),
    (56, [64, 64], 3, 1),
    (28, [128, 128], 3, 1),
    (14, [256, 256], 3, 1),
    (7, [512, 512], 3, 1),
    (224, [3, 64], 7, 2),
];

#[divan::bench(args = CONVS)]
fn conv(bencher: Bencher, &(hw, c, f, stride): &(usize, [usize; 2], usize, usize)) {
    let s = shape(hw, c, f, stride);
    let (input, filter) = (bytes(s.input_len()), signed(s.filter_len()));
    let numbers = vec![1e-3; c[1]];
    let channels = Channels {
        scale: &numbers,
        bias: &numbers,
    };
    let size = [f * f * c[0], c[1]];
    let packed = Int8Weights::of_filter(&filter, &s, 128, channels);
    let mut y = vec![0; s.output_len()];
    bencher
        .counter(ItemsCount::new(2 * s.output_len() * size[0]))
        .bench_local(|| int8_conv2d(&Inline, &s, black_box(&input), &packed, epilogue(&mut y)));
}

/// Height and width, channels, filter, stride.
#[divan::bench(args = [
    (112, 32, 3, 1),
    (112, 96, 3, 2),
    (56, 144, 3, 1),
    (28, 192, 3, 1),
    (14, 576, 3, 1),
    (14, 576, 3, 2),
    (7, 960, 3, 1),
    (28, 240, 5, 1),
])]
fn depthwise(bencher: Bencher, (hw, c, f, stride): (usize, usize, usize, usize)) {
    let mut s = shape(hw, [c, c], f, stride);
    s.groups = c;
    let (input, filter) = (bytes(s.input_len()), signed(f * f * c));
    let numbers = vec![1e-3; c];
    let channels = Channels {
        scale: &numbers,
        bias: &numbers,
    };
    let packed = DepthwiseWeights::new(&filter, &s, 128, channels);
    let mut y = vec![0; s.output_len()];
    bencher
        .counter(ItemsCount::new(2 * s.output_len() * f * f))
        .bench_local(|| {
            int8_depthwise2d(&Inline, &s, black_box(&input), &packed, epilogue(&mut y));
        });
}

/// The same convolutions of floats that are rounded to `bfloat16`.
#[divan::bench(args = CONVS)]
fn conv_bf16(bencher: Bencher, &(hw, c, f, stride): &(usize, [usize; 2], usize, usize)) {
    let s = shape(hw, c, f, stride);
    let (input, filter) = (vec![0.5; s.input_len()], vec![0.25; s.filter_len()]);
    let size = [f * f * c[0], c[1]];
    if !Bf16Weights::is_supported() {
        return;
    }
    let packed = Bf16Weights::new(&Inline, &filter, size, false);
    let mut y = vec![0.0; s.output_len()];
    let epilogue = Epilogue::new(None, Activation::Relu);
    bencher
        .counter(ItemsCount::new(2 * s.output_len() * size[0]))
        .bench_local(|| bf16_conv2d(&Inline, &s, black_box(&input), &packed, &mut y, &epilogue));
}
