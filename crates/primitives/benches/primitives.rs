//! Speed of the CPU primitives on the shapes of MobileNetV2, ResNet50, EfficientNetB0, InceptionV3
//! and BERT-base: `cargo bench -p ferroflow-primitives [-- FILTER]`.
//!
//! Items are floating-point operations. `THREADS=N` in the environment divides the work among N
//! threads, `FERROFLOW_SIMD=avx2` or `portable` chooses the instruction set.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use ferroflow_primitives::conv::{Conv2dShape, PackedFilter, conv2d};
use ferroflow_primitives::depthwise::{DepthwiseShape, depthwise2d};
use ferroflow_primitives::gemm::{
    Activation, BatchItem, Epilogue, GemmShape, PackedB, batch_gemm, gemm, gemm_add, gemm_packed,
};
use ferroflow_primitives::math::{BinaryOp, UnaryOp, binary, unary};
use ferroflow_primitives::pool::{PoolAxis, PoolKind, pool2d};
use ferroflow_primitives::rows::{ReduceOp, layer_norm, reduce_rows, softmax};
use ferroflow_primitives::transpose::permute;
use ferroflow_sync::Parallelism;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn main() {
    divan::main();
}

/// Threads spawned for each call; good enough to see whether the work divides.
struct Threads(usize);

impl Parallelism for Threads {
    fn width(&self) -> usize {
        self.0
    }
    fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let i = next.fetch_add(1, Relaxed);
                if i >= n_blocks {
                    return;
                }
                f(i);
            }
        };
        std::thread::scope(|s| {
            for _ in 1..self.0.min(n_blocks) {
                s.spawn(work);
            }
            work();
        });
    }
}

static PAR: LazyLock<Threads> = LazyLock::new(|| {
    let n = std::env::var("THREADS").ok().and_then(|n| n.parse().ok());
    Threads(n.unwrap_or(1))
});

fn numbers(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0)
        .collect()
}

const PRODUCTS: [[usize; 3]; 25] = [
    [128, 768, 768],
    [128, 3072, 768],
    [384, 768, 768],
    [3136, 64, 256],
    [3136, 256, 64],
    [784, 512, 128],
    [196, 1024, 256],
    [196, 256, 1024],
    [49, 2048, 512],
    [49, 512, 2048],
    [12544, 16, 96],
    [12544, 32, 16],
    [3136, 24, 144],
    [3136, 144, 24],
    [784, 32, 192],
    [196, 576, 96],
    [49, 160, 960],
    [49, 960, 320],
    [49, 320, 1280],
    [289, 768, 192],
    [1225, 64, 80],
    [1, 1280, 1000],
    [1, 2048, 1000],
    [4, 2048, 1000],
    [512, 512, 512],
];

/// m, k, n: packed weights, bias, Relu6.
#[divan::bench(args = PRODUCTS)]
fn gemm_relu6(bencher: Bencher, shape: [usize; 3]) {
    packed_gemm(bencher, shape, Activation::Relu6);
}

#[divan::bench(args = [
    ([128, 768, 3072], None),
    ([128, 768, 3072], Some(UnaryOp::GeluErf)),
    ([3136, 24, 144], Some(UnaryOp::Swish)),
])]
fn gemm_unary(bencher: Bencher, (shape, op): ([usize; 3], Option<UnaryOp>)) {
    packed_gemm(bencher, shape, op.map_or(Activation::None, Into::into));
}

fn packed_gemm(bencher: Bencher, [m, k, n]: [usize; 3], activation: Activation) {
    let (a, b, bias) = (numbers(m * k), numbers(k * n), numbers(n));
    let b = PackedB::from_rows(&*PAR, &b, n, k, n);
    let mut out = numbers(m * n);
    let epilogue = Epilogue::new(Some(&bias), activation);
    bencher
        .counter(ItemsCount::new(2 * m * n * k))
        .bench_local(|| {
            gemm_packed(&*PAR, black_box(&a), k, m, &b, &mut out, n, &epilogue);
        });
}

/// m, k, n, whether the operands are transposed.
#[divan::bench(args = [
    (768, 768, 768, false, false),
    (128, 784, 512, false, false),
    (128, 512, 512, false, true),
    (784, 128, 512, true, false),
    (320, 32, 1024, true, false),
    (320, 256, 1024, true, false),
    (16, 512, 512, false, false),
    (1, 512, 512, false, false),
])]
fn gemm_unpacked(bencher: Bencher, (m, k, n, ta, tb): (usize, usize, usize, bool, bool)) {
    let (x, y, mut out) = (numbers(m * k), numbers(k * n), numbers(m * n));
    let shape = GemmShape::dense(m, n, k, ta, tb);
    bencher
        .counter(ItemsCount::new(2 * m * n * k))
        .bench_local(|| {
            gemm(
                &*PAR,
                &shape,
                black_box(&x),
                &y,
                &mut out,
                &Epilogue::none(),
            );
        });
}

/// m, k, n of products added to a matrix, transposed on the left: gradients of weights.
#[divan::bench(args = [(320, 32, 1024), (320, 256, 1024), (512, 1024, 512)])]
fn gemm_added(bencher: Bencher, (m, k, n): (usize, usize, usize)) {
    let (x, y, mut out) = (numbers(m * k), numbers(k * n), numbers(m * n));
    let shape = GemmShape::dense(m, n, k, true, false);
    bencher
        .counter(ItemsCount::new(2 * m * n * k))
        .bench_local(|| {
            let epilogue = Epilogue::none();
            gemm_add(&*PAR, &shape, black_box(&x), &y, &mut out, &epilogue);
        });
}

/// Attention: twelve products m, n, k.
#[divan::bench(args = [(128, 128, 64, true), (128, 64, 128, false)])]
fn gemm_batch(bencher: Bencher, (m, n, k, tb): (usize, usize, usize, bool)) {
    let (x, y) = (numbers(12 * m * k), numbers(12 * k * n));
    let mut out = numbers(12 * m * n);
    let shape = GemmShape::dense(m, n, k, false, tb);
    let item = |i| BatchItem {
        a: i * m * k,
        b: i * k * n,
        out: 0,
    };
    let none = Activation::None;
    bencher
        .counter(ItemsCount::new(24 * m * n * k))
        .bench_local(|| {
            batch_gemm(
                &*PAR,
                12,
                &shape,
                black_box(&x),
                &y,
                &mut out,
                m * n,
                &item,
                none,
            );
        });
}

/// Height and width, channels in and out, filter, stride.
#[divan::bench(args = [
    (224, [3, 64], [7, 7], 2),
    (224, [3, 32], [3, 3], 2),
    (56, [64, 64], [3, 3], 1),
    (28, [128, 128], [3, 3], 1),
    (14, [256, 256], [3, 3], 1),
    (7, [512, 512], [3, 3], 1),
    (56, [256, 512], [1, 1], 2),
    (56, [128, 128], [3, 3], 2),
    (17, [192, 192], [1, 7], 1),
    (17, [192, 192], [7, 1], 1),
    (35, [64, 96], [3, 3], 1),
    (35, [48, 64], [5, 5], 1),
    (147, [32, 64], [3, 3], 1),
    (8, [384, 384], [1, 3], 1),
])]
fn conv(bencher: Bencher, (hw, c, f, stride): (usize, [usize; 2], [usize; 2], usize)) {
    let out = hw.div_ceil(stride);
    let pad = |f: usize| ((out - 1) * stride + f).saturating_sub(hw) / 2;
    let s = Conv2dShape {
        batch: 1,
        in_h: hw,
        in_w: hw,
        in_c: c[0],
        filter_h: f[0],
        filter_w: f[1],
        out_c: c[1],
        stride_h: stride,
        stride_w: stride,
        dil_h: 1,
        dil_w: 1,
        pad_top: pad(f[0]),
        pad_left: pad(f[1]),
        out_h: out,
        out_w: out,
        groups: 1,
    };
    let (input, filter) = (numbers(s.input_len()), numbers(s.filter_len()));
    let bias = numbers(c[1]);
    let packed = PackedFilter::new(&*PAR, &filter, &s);
    let mut y = numbers(s.output_len());
    let epilogue = Epilogue::new(Some(&bias), Activation::Relu);
    bencher
        .counter(ItemsCount::new(2 * s.output_len() * f[0] * f[1] * c[0]))
        .bench_local(|| conv2d(&*PAR, &s, black_box(&input), &packed, &mut y, &epilogue));
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
    (14, 672, 5, 1),
    (7, 1152, 5, 1),
    (56, 144, 5, 2),
])]
fn depthwise(bencher: Bencher, (hw, c, f, stride): (usize, usize, usize, usize)) {
    let out = hw.div_ceil(stride);
    let pad = ((out - 1) * stride + f).saturating_sub(hw) / 2;
    let s = DepthwiseShape {
        batch: 1,
        in_h: hw,
        in_w: hw,
        channels: c,
        multiplier: 1,
        filter_h: f,
        filter_w: f,
        stride_h: stride,
        stride_w: stride,
        dil_h: 1,
        dil_w: 1,
        pad_top: pad,
        pad_left: pad,
        out_h: out,
        out_w: out,
    };
    let (input, filter) = (numbers(s.input_len()), numbers(s.filter_len()));
    let (bias, mut y) = (numbers(c), numbers(s.output_len()));
    let relu6 = Activation::Relu6;
    bencher
        .counter(ItemsCount::new(2 * s.output_len() * f * f))
        .bench_local(|| {
            depthwise2d(
                &*PAR,
                &s,
                black_box(&input),
                &filter,
                Some(&bias),
                relu6,
                &mut y,
            );
        });
}

/// Height and width, channels, window, stride, padding.
#[divan::bench(args = [
    (PoolKind::Max, [112, 64, 3, 2, 1]),
    (PoolKind::Average, [35, 256, 3, 1, 1]),
    (PoolKind::Average, [7, 2048, 7, 1, 0]),
])]
fn pool(bencher: Bencher, (kind, [hw, c, window, stride, pad]): (PoolKind, [usize; 5])) {
    let output = (hw + 2 * pad - window) / stride + 1;
    let axis = PoolAxis {
        input: hw,
        output,
        window,
        stride,
        pad,
    };
    let x = numbers(hw * hw * c);
    let mut y = numbers(output * output * c);
    bencher
        .counter(BytesCount::new(4 * (x.len() + y.len())))
        .bench_local(|| pool2d(&*PAR, kind, 1, [axis, axis], c, black_box(&x), &mut y));
}

#[divan::bench(args = [
    UnaryOp::Exp,
    UnaryOp::Log,
    UnaryOp::Tanh,
    UnaryOp::Sigmoid,
    UnaryOp::Erf,
    UnaryOp::Swish,
    UnaryOp::GeluErf,
    UnaryOp::GeluTanh,
    UnaryOp::Sin,
    UnaryOp::Relu,
    UnaryOp::Rsqrt,
])]
fn unary_1024(bencher: Bencher, op: UnaryOp) {
    let (x, mut y) = (numbers(1024), numbers(1024));
    bencher
        .counter(ItemsCount::new(x.len()))
        .bench_local(|| unary(op, black_box(&x), &mut y));
}

#[divan::bench]
fn binary_add_1024(bencher: Bencher) {
    let (x, z, mut y) = (numbers(1024), numbers(1024), numbers(1024));
    bencher
        .counter(ItemsCount::new(x.len()))
        .bench_local(|| binary(BinaryOp::Add, black_box(&x[..]), &z[..], &mut y));
}

#[divan::bench]
fn softmax_1536x128(bencher: Bencher) {
    let x = numbers(1536 * 128);
    let mut y = numbers(x.len());
    bencher
        .counter(ItemsCount::new(x.len()))
        .bench_local(|| softmax(&*PAR, black_box(&x), 128, &mut y));
}

#[divan::bench]
fn layer_norm_128x768(bencher: Bencher) {
    let (x, scale) = (numbers(128 * 768), numbers(768));
    let mut y = numbers(x.len());
    bencher
        .counter(ItemsCount::new(x.len()))
        .bench_local(|| layer_norm(&*PAR, black_box(&x), &scale, &scale, 1e-6, &mut y));
}

#[divan::bench]
fn reduce_rows_sum_128x768(bencher: Bencher) {
    let (x, mut sums) = (numbers(128 * 768), numbers(128));
    bencher
        .counter(ItemsCount::new(x.len()))
        .bench_local(|| reduce_rows(&*PAR, ReduceOp::Sum, black_box(&x), 768, &mut sums));
}

#[divan::bench(args = [
    (&[1, 128, 12, 64][..], &[0, 2, 1, 3][..]),
    (&[1, 128, 12, 64], &[0, 2, 3, 1]),
    (&[768, 768], &[1, 0]),
    (&[56, 56, 64], &[2, 0, 1]),
])]
fn permute_f32(bencher: Bencher, (shape, perm): (&[usize], &[usize])) {
    let bytes = 4 * shape.iter().product::<usize>();
    let (x, mut y) = (vec![1u8; bytes], vec![0u8; bytes]);
    bencher
        .counter(BytesCount::new(2 * bytes))
        .bench_local(|| permute(&*PAR, 4, shape, perm, black_box(&x), &mut y));
}
