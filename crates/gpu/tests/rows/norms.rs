//! Softmax, layer normalization, reductions and sums so far of rows of all lengths that kernels tell apart.

use crate::place::{Inputs, Place, alone, attrs, cast, compare, doubles, expected, random};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Tensor};

const DTYPES: [DType; 3] = [DType::Float, DType::Half, DType::Bfloat16];

/// Lengths of rows on both sides of where kernels change, and those that vectors of 4 or 8 elements do not divide.
const LENGTHS: [usize; 38] = [
    1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 60, 64, 100, 127, 128, 129, 132, 200, 255, 256, 257, 260,
    384, 511, 512, 516, 640, 768, 772, 776, 1000, 1020, 1023, 1024, 1025, 1500, 2049,
];

fn softmax(x: &[f64], is_log: bool) -> Vec<f64> {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|v| (v - largest).exp()).sum();
    let one = |v: &f64| match is_log {
        true => v - largest - sum.ln(),
        false => (v - largest).exp() / sum,
    };
    x.iter().map(one).collect()
}

fn layer_norm(x: &[f64], scale: &[f64], offset: &[f64], epsilon: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let factor = 1.0 / (variance + epsilon).sqrt();
    let one = |((v, s), o): ((&f64, &f64), &f64)| (v - mean) * factor * s + o;
    x.iter().zip(scale).zip(offset).map(one).collect()
}

#[test]
fn rows_of_all_lengths_are_normalized() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    for dtype in DTYPES {
        let t = ("T", AttrValue::Type(dtype));
        for n in LENGTHS {
            // Five rows: a block has four.
            let x = random(&[5, n], n as u64, dtype);
            let rows = doubles(&x);
            let rows = || rows.chunks(n);
            for (op, is_log) in [("Softmax", false), ("LogSoftmax", true)] {
                let y = gpu.compute(
                    op,
                    &attrs(std::slice::from_ref(&t)),
                    std::slice::from_ref(&x),
                    Inputs::OnDevice,
                );
                let expected: Vec<f64> = rows().flat_map(|row| softmax(row, is_log)).collect();
                let checked = compare(
                    &y.unwrap_or_else(|e| panic!("{op} {n} {dtype}: {e}"))[0],
                    &expected,
                );
                checked.unwrap_or_else(|e| panic!("{op} {n} {dtype}: {e:.300}"));
            }
            let (scale, offset) = (random(&[n], 1, dtype), random(&[n], 2, dtype));
            let by = attrs(&[t.clone(), ("epsilon", AttrValue::Float(1e-3))]);
            let (s, o) = (doubles(&scale), doubles(&offset));
            let y = gpu.compute(
                "_LayerNorm",
                &by,
                &[x.clone(), scale, offset],
                Inputs::OnDevice,
            );
            let expected: Vec<f64> = rows()
                .flat_map(|row| layer_norm(row, &s, &o, 1e-3))
                .collect();
            let checked = compare(
                &y.unwrap_or_else(|e| panic!("_LayerNorm {n} {dtype}: {e}"))[0],
                &expected,
            );
            checked.unwrap_or_else(|e| panic!("_LayerNorm {n} {dtype}: {e:.300}"));
        }
    }
}

#[test]
fn softmax_takes_infinities() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    for n in [5, 64, 200, 1024, 1100] {
        let mut x: Vec<f32> = (0..2 * n).map(|i| (i % 11) as f32 * 8.0 - 40.0).collect();
        // A row with masked elements, one with nothing else.
        x[1..n]
            .iter_mut()
            .step_by(2)
            .for_each(|v| *v = f32::NEG_INFINITY);
        x[n..].fill(f32::NEG_INFINITY);
        let of = Tensor::from_slice([2, n], &x).expect("as many");
        let t = attrs(&[("T", AttrValue::Type(DType::Float))]);
        let y = gpu
            .compute("Softmax", &t, &[of], Inputs::OnDevice)
            .expect("computed");
        let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        let expected: Vec<f64> = wide.chunks(n).flat_map(|row| softmax(row, false)).collect();
        compare(&y[0], &expected).unwrap_or_else(|e| panic!("{n}: {e:.300}"));
    }
}

#[test]
fn large_tensors_are_reduced() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    let shapes: [(&[usize], i32); 9] = [
        (&[3, 1025], 1),
        (&[2, 40_000], 1),
        (&[1, 9000], 1),
        (&[1500, 3], 0),
        (&[2, 900, 40], 1),
        (&[6000, 33], 0),
        (&[4, 2100, 1], 1),
        (&[7, 1024], 1),
        (&[1025, 70], 0),
    ];
    for dtype in DTYPES {
        let t = ("T", AttrValue::Type(dtype));
        for (shape, axis) in shapes {
            let (x, at) = (random(shape, 3, dtype), Tensor::scalar(axis));
            for op in [
                "Sum", "Mean", "Max", "Min", "Prod", "Cumsum", "Cumprod", "ArgMax", "ArgMin",
            ] {
                let int = AttrValue::Type(DType::Int32);
                let by = match op {
                    "Cumsum" | "Cumprod" => attrs(&[t.clone(), ("Tidx", int)]),
                    "ArgMax" | "ArgMin" => attrs(&[
                        t.clone(),
                        ("Tidx", int),
                        ("output_type", AttrValue::Type(DType::Int64)),
                    ]),
                    _ => attrs(&[t.clone(), ("Tidx", int)]),
                };
                let inputs = [x.clone(), at.clone()];
                // GPUs add up in floats.
                let wide = [cast(&x, DType::Float), at.clone()];
                let of_floats = by.clone().with("T", AttrValue::Type(DType::Float));
                let host = expected(op, &of_floats, &wide).unwrap_or_else(|e| panic!("{op}: {e}"));
                let y = gpu.compute(op, &by, &inputs, Inputs::Values);
                let y = y.unwrap_or_else(|e| panic!("{op} {shape:?} {dtype}: {e}"));
                let checked = compare(&y[0], &doubles(&host[0]));
                checked.unwrap_or_else(|e| panic!("{op} {shape:?} {dtype}: {e:.300}"));
            }
        }
        for (shape, k) in [([3, 2000], 5), ([2, 300], 40), ([5, 33], 33)] {
            let by = attrs(&[t.clone(), ("Tk", AttrValue::Type(DType::Int32))]);
            let inputs = [random(&shape, 6, dtype), Tensor::scalar(k)];
            let host = Place::host().run("TopKV2", &by, &inputs, Inputs::Given);
            let y = gpu.compute("TopKV2", &by, &inputs, Inputs::Values);
            for (y, host) in y.expect("TopKV2").iter().zip(&host.expect("TopKV2")) {
                let checked = compare(y, &doubles(host));
                checked.unwrap_or_else(|e| panic!("TopKV2 {shape:?} {dtype}: {e:.300}"));
            }
        }
        let x = random(&[50_000], 4, dtype);
        let by = attrs(std::slice::from_ref(&t));
        let y = gpu
            .compute("L2Loss", &by, std::slice::from_ref(&x), Inputs::OnDevice)
            .expect("L2Loss");
        let half: f64 = doubles(&x).iter().map(|v| v * v / 2.0).sum();
        compare(&y[0], &[half]).unwrap_or_else(|e| panic!("L2Loss {dtype}: {e}"));
    }
}

#[test]
fn conditions_are_reduced() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    for (shape, axis) in [([3, 1500], 1), ([40, 70], 0), ([5, 300], 1), ([1500, 2], 0)] {
        let n = shape[0] * shape[1];
        for of in [[true, true], [false, false], [true, false], [false, true]] {
            // All the same but one.
            let values: Vec<bool> = (0..n).map(|i| of[usize::from(i == n / 2)]).collect();
            let x = Tensor::from_slice(shape, &values).expect("as many");
            for op in ["All", "Any"] {
                let by = attrs(&[("Tidx", AttrValue::Type(DType::Int32))]);
                let inputs = [x.clone(), Tensor::scalar(axis)];
                let host = Place::host()
                    .run(op, &by, &inputs, Inputs::Given)
                    .expect(op);
                let y = gpu.compute(op, &by, &inputs, Inputs::OnDevice).expect(op);
                let checked = compare(&y[0], &doubles(&host[0]));
                checked.unwrap_or_else(|e| panic!("{op} {shape:?}: {e:.300}"));
            }
        }
    }
}
