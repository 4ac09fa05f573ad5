//! Speed of the CPU primitives on the shapes of the benchmark networks.
//!
//! `cargo bench -p ferroflow-primitives --bench primitives -- [threads=N] [name filter]`. Every
//! figure is the best of many runs; MobileNetV2, ResNet50, EfficientNetB0, InceptionV3 and
//! BERT-base gave the sizes.

use ferroflow_primitives::conv::{Conv2dShape, PackedFilter, conv2d};
use ferroflow_primitives::depthwise::{DepthwiseShape, depthwise2d};
use ferroflow_primitives::gemm::{
    Activation, BatchItem, Epilogue, GemmShape, PackedB, batch_gemm, gemm, gemm_packed,
};
use ferroflow_primitives::math::{BinaryOp, UnaryOp, binary, unary};
use ferroflow_primitives::pool::{PoolAxis, PoolKind, pool2d};
use ferroflow_primitives::rows::{layer_norm, reduce_rows, softmax};
use ferroflow_primitives::{Level, rows::ReduceOp, transpose::permute};
use ferroflow_sync::Parallelism;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Threads made for each call; good enough to see whether the work divides.
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

struct Bench {
    filter: String,
    par: Threads,
}

impl Bench {
    /// Times `f`; `work` is in `unit`s times 1e9.
    fn run(&self, name: &str, work: f64, unit: &str, mut f: impl FnMut(&dyn Parallelism)) {
        if !name.contains(&self.filter) {
            return;
        }
        f(&self.par);
        let begin = Instant::now();
        let mut best = Duration::MAX;
        let mut runs = 0;
        while runs < 3 || (begin.elapsed() < Duration::from_millis(250) && runs < 20_000) {
            let start = Instant::now();
            f(&self.par);
            best = best.min(start.elapsed());
            runs += 1;
        }
        let s = best.as_secs_f64();
        println!("{name:44} {:9.1} us {:8.2} {unit}", s * 1e6, work / s / 1e9);
    }

    fn gemm(&self, m: usize, k: usize, n: usize, act: Activation) {
        let (a, b, bias) = (numbers(m * k), numbers(k * n), numbers(n));
        let b = PackedB::from_rows(&self.par, &b, n, k, n);
        let mut out = numbers(m * n);
        let ep = Epilogue::new(Some(&bias), act);
        let name = format!("gemm {m}x{k}x{n} {}", short(act));
        self.run(&name, 2.0 * (m * n * k) as f64, "GFLOP/s", |par| {
            gemm_packed(par, &a, k, m, &b, &mut out, n, &ep);
        });
    }

    fn conv(&self, hw: usize, c: [usize; 2], f: [usize; 2], stride: usize) {
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
        let (input, filter, bias) = (
            numbers(s.input_len()),
            numbers(s.filter_len()),
            numbers(c[1]),
        );
        let packed = PackedFilter::new(&self.par, &filter, &s);
        let mut y = numbers(s.output_len());
        let ep = Epilogue::new(Some(&bias), Activation::Relu);
        let name = format!(
            "conv {hw}x{hw}x{} {}x{}/{stride} -> {}",
            c[0], f[0], f[1], c[1]
        );
        let work = 2.0 * (s.output_len() * f[0] * f[1] * c[0]) as f64;
        self.run(&name, work, "GFLOP/s", |par| {
            conv2d(par, &s, &input, &packed, &mut y, &ep)
        });
    }

    fn depthwise(&self, hw: usize, c: usize, f: usize, stride: usize) {
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
        let (input, filter, bias) = (numbers(s.input_len()), numbers(s.filter_len()), numbers(c));
        let mut y = numbers(s.output_len());
        let name = format!("depthwise {hw}x{hw}x{c} {f}x{f}/{stride}");
        let work = 2.0 * (s.output_len() * f * f) as f64;
        self.run(&name, work, "GFLOP/s", |par| {
            depthwise2d(
                par,
                &s,
                &input,
                &filter,
                Some(&bias),
                Activation::Relu6,
                &mut y,
            );
        });
    }

    fn pool(&self, kind: PoolKind, hw: usize, c: usize, window: usize, stride: usize, pad: usize) {
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
        let name = format!("pool {kind:?} {hw}x{hw}x{c} {window}/{stride}");
        self.run(&name, 4.0 * (x.len() + y.len()) as f64, "GB/s", |par| {
            pool2d(par, kind, 1, [axis, axis], c, &x, &mut y);
        });
    }

    fn permute(&self, shape: &[usize], perm: &[usize]) {
        let bytes = 4 * shape.iter().product::<usize>();
        let (x, mut y) = (vec![1u8; bytes], vec![0u8; bytes]);
        self.run(
            &format!("permute {shape:?} {perm:?}"),
            2.0 * bytes as f64,
            "GB/s",
            |par| {
                permute(par, 4, shape, perm, &x, &mut y);
            },
        );
    }
}

fn short(act: Activation) -> String {
    match act {
        Activation::None => String::new(),
        Activation::Unary(op) => format!("{op:?}"),
        act => format!("{act:?}"),
    }
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0)
        .collect()
}

fn main() {
    let mut bench = Bench {
        filter: String::new(),
        par: Threads(1),
    };
    for arg in std::env::args().skip(1).filter(|a| a != "--bench") {
        match arg.strip_prefix("threads=") {
            Some(n) => bench.par = Threads(n.parse().unwrap_or(1)),
            None => bench.filter = arg,
        }
    }
    println!("{:?}, {} thread(s)", Level::current(), bench.par.0);
    products(&bench);
    convolutions(&bench);
    memory_bound(&bench);
}

fn products(b: &Bench) {
    let relu6 = Activation::Relu6;
    for [m, k, n] in [
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
    ] {
        b.gemm(m, k, n, relu6);
    }
    b.gemm(128, 768, 3072, Activation::None);
    b.gemm(128, 768, 3072, UnaryOp::GeluErf.into());
    b.gemm(3136, 24, 144, UnaryOp::Swish.into());
    for (m, k, n, ta, tb) in [
        (768, 768, 768, false, false),
        (128, 784, 512, false, false),
        (128, 512, 512, false, true),
        (784, 128, 512, true, false),
        (16, 512, 512, false, false),
        (1, 512, 512, false, false),
    ] {
        let (x, y, mut out) = (numbers(m * k), numbers(k * n), numbers(m * n));
        let s = GemmShape::dense(m, n, k, ta, tb);
        let turned = |t| if t { "'" } else { "" };
        let name = format!(
            "gemm unpacked {m}x{k}{} · {k}x{n}{}",
            turned(ta),
            turned(tb)
        );
        b.run(&name, 2.0 * (m * n * k) as f64, "GFLOP/s", |par| {
            gemm(par, &s, &x, &y, &mut out, &Epilogue::none());
        });
    }
    for (m, n, k, t) in [(128, 128, 64, true), (128, 64, 128, false)] {
        let (x, y) = (numbers(12 * m * k), numbers(12 * k * n));
        let mut out = numbers(12 * m * n);
        let s = GemmShape::dense(m, n, k, false, t);
        let item = |i| BatchItem {
            a: i * m * k,
            b: i * k * n,
            out: 0,
        };
        let work = 2.0 * (12 * m * n * k) as f64;
        b.run(
            &format!("batch gemm 12 x {m}x{k}x{n}"),
            work,
            "GFLOP/s",
            |par| {
                batch_gemm(
                    par,
                    12,
                    &s,
                    &x,
                    &y,
                    &mut out,
                    m * n,
                    &item,
                    Activation::None,
                );
            },
        );
    }
}

fn convolutions(b: &Bench) {
    for (hw, c, f, stride) in [
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
    ] {
        b.conv(hw, c, f, stride);
    }
    for (hw, c, f, stride) in [
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
    ] {
        b.depthwise(hw, c, f, stride);
    }
}

fn memory_bound(b: &Bench) {
    b.pool(PoolKind::Max, 112, 64, 3, 2, 1);
    b.pool(PoolKind::Average, 35, 256, 3, 1, 1);
    b.pool(PoolKind::Average, 7, 2048, 7, 1, 0);
    let n = 1024;
    let (x, mut y) = (numbers(n), numbers(n));
    for op in [
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
    ] {
        b.run(
            &format!("unary {op:?} 1024"),
            16.0 * n as f64,
            "G/s",
            |_| {
                (0..16).for_each(|_| unary(op, &x, &mut y));
            },
        );
    }
    let z = numbers(n);
    b.run("binary Add 1024", 16.0 * n as f64, "G/s", |_| {
        (0..16).for_each(|_| binary(BinaryOp::Add, &x[..], &z[..], &mut y));
    });
    let x = numbers(1536 * 128);
    let mut y = numbers(x.len());
    b.run("softmax 1536x128", x.len() as f64, "G/s", |par| {
        softmax(par, &x, 128, &mut y)
    });
    let (x, scale) = (numbers(128 * 768), numbers(768));
    let mut y = numbers(x.len());
    b.run("layer_norm 128x768", x.len() as f64, "G/s", |par| {
        layer_norm(par, &x, &scale, &scale, 1e-6, &mut y);
    });
    let mut sums = numbers(128);
    b.run("reduce_rows Sum 128x768", x.len() as f64, "G/s", |par| {
        reduce_rows(par, ReduceOp::Sum, &x, 768, &mut sums);
    });
    b.permute(&[1, 128, 12, 64], &[0, 2, 1, 3]);
    b.permute(&[1, 128, 12, 64], &[0, 2, 3, 1]);
    b.permute(&[768, 768], &[1, 0]);
    b.permute(&[56, 56, 64], &[2, 0, 1]);
}
