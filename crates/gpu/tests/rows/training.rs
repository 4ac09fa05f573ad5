//! Optimizers and other ops that write variables; pooling, batch normalization and gathers of sizes that have kernels of their own.

use crate::place::{Inputs, Place, alone, attrs, cast, compare, doubles, random};
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_ops::registry;
use ferroflow_tensor::{DType, PartialShape, Tensor};

const DTYPES: [DType; 3] = [DType::Float, DType::Half, DType::Bfloat16];

const DENSE: &str = "GradientDescent ProximalGradientDescent Momentum KerasMomentum Adagrad AdagradV2 AdagradDA ProximalAdagrad \
                     Adadelta RMSProp CenteredRMSProp Adam AdamWithAmsgrad AdaMax AddSign PowerSign Ftrl FtrlV2";
const SPARSE: &str = "ProximalGradientDescent Momentum KerasMomentum Adagrad AdagradV2 AdagradDA ProximalAdagrad Adadelta RMSProp \
                      CenteredRMSProp Ftrl FtrlV2";

fn types(pairs: &[(&'static str, DType)]) -> Attrs {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(n, t)| (*n, AttrValue::Type(*t)))
        .collect();
    attrs(&pairs)
}

/// Makes a variable.
fn variable(place: &Place, name: &str, value: &Tensor) -> Result<Tensor> {
    let dtype = value.dtype();
    let shape = PartialShape::of(value.shape().iter().map(|d| Some(*d)));
    let by = types(&[("dtype", dtype)])
        .with("shape", AttrValue::Shape(shape))
        .with("shared_name", AttrValue::str(&format!("{name} {dtype}")));
    let handle = place
        .run("VarHandleOp", &by, &[], Inputs::Values)?
        .swap_remove(0);
    let inputs = [handle.clone(), value.clone()];
    place.run(
        "AssignVariableOp",
        &types(&[("dtype", dtype)]),
        &inputs,
        Inputs::Values,
    )?;
    Ok(handle)
}

fn value_of(place: &Place, handle: &Tensor, dtype: DType) -> Result<Tensor> {
    let inputs = std::slice::from_ref(handle);
    let read = place.compute(
        "ReadVariableOp",
        &types(&[("dtype", dtype)]),
        inputs,
        Inputs::Values,
    );
    read.map(|mut outputs| outputs.swap_remove(0))
}

/// A number of an optimizer, by the name of its input.
fn hyperparameter(name: &str) -> f32 {
    match name {
        "lr" | "alpha" | "logbase" => 0.1,
        "lr_power" => -0.5,
        "rho" | "momentum" | "beta1" | "beta1_power" => 0.9,
        "beta2" | "beta2_power" => 0.99,
        "epsilon" => 1e-3,
        "sign_decay" => 0.8,
        // l1, l2, l2_shrinkage
        _ => 0.01,
    }
}

/// Runs an op of variables of a dtype twice, with numbers that are rounded to another one; returns what they are then.
fn updated(
    place: &Place,
    op: &str,
    by: &Attrs,
    (dtype, of): (DType, DType),
    gradient: &Tensor,
) -> Result<Vec<Vec<f64>>> {
    let def = registry().def(op)?.expect("registered");
    let (mut handles, mut inputs) = (Vec::new(), Vec::new());
    for (i, arg) in def.inputs.iter().enumerate() {
        let rounded = |t: &Tensor| cast(&cast(t, of), dtype);
        inputs.push(match arg.name() {
            name @ ("var"
            | "accum"
            | "accum_update"
            | "ms"
            | "mg"
            | "mom"
            | "m"
            | "v"
            | "vhat"
            | "linear"
            | "gradient_accumulator"
            | "gradient_squared_accumulator") => {
                // What a mean of squares is larger than the square of a mean.
                let base = if name == "mg" { 0.0 } else { 2.0 };
                let first = doubles(&random(&[12, 5], i as u64, DType::Float));
                let first: Vec<f64> = first.iter().map(|v| v * 0.25 + base).collect();
                let first = Tensor::from_slice([12, 5], &first).expect("as many");
                let handle = variable(place, &format!("{op}{name}"), &rounded(&first))?;
                handles.push(handle.clone());
                handle
            }
            "grad" | "delta" => gradient.clone(),
            "indices" => match by.dtype("Tindices")? {
                DType::Int32 => Tensor::vector(&[3i32, 0, 11, 7])?,
                _ => Tensor::vector(&[3i64, 0, 11, 7])?,
            },
            "global_step" => Tensor::scalar(3i64),
            name => rounded(&Tensor::scalar(hyperparameter(name))),
        });
    }
    for _ in 0..2 {
        place.run(op, by, &inputs, Inputs::Values)?;
    }
    let values = handles
        .iter()
        .map(|h| Ok(doubles(&value_of(place, h, dtype)?)));
    values.collect()
}

#[test]
fn optimizers_update_variables() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    let dense = DENSE
        .split_whitespace()
        .map(|op| (format!("ResourceApply{op}"), None));
    let sparse = SPARSE.split_whitespace().flat_map(|op| {
        [DType::Int32, DType::Int64].map(|index| (format!("ResourceSparseApply{op}"), Some(index)))
    });
    let mut wrong = Vec::new();
    for (op, index) in dense.chain(sparse) {
        for dtype in DTYPES {
            let mut by = types(&[("T", dtype)]);
            let mut shape = [12, 5];
            if let Some(index) = index {
                by = by.with("Tindices", AttrValue::Type(index));
                shape = [4, 5];
            }
            let gradient = random(&shape, 77, dtype);
            // The host computes in floats.
            let of_floats = by.clone().with("T", AttrValue::Type(DType::Float));
            let wide = cast(&gradient, DType::Float);
            let host = updated(
                &Place::host(),
                &op,
                &of_floats,
                (DType::Float, dtype),
                &wide,
            );
            let host = host.unwrap_or_else(|e| panic!("{op}: {e}"));
            let got = match updated(&gpu, &op, &by, (dtype, dtype), &gradient) {
                Ok(got) => got,
                Err(e) => {
                    wrong.push(format!("{op} {dtype}: {e}"));
                    continue;
                }
            };
            for (i, (expected, got)) in host.iter().zip(&got).enumerate() {
                let got = cast(&Tensor::vector(got).expect("small"), dtype);
                if let Err(e) = compare(&got, expected) {
                    wrong.push(format!("{op} {dtype}, variable {i}: {e:.200}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Compares an op with the host, which computes in floats; with floats on the device, and with all inputs there.
fn check(gpu: &Place, op: &str, by: &Attrs, inputs: &[Tensor]) -> Vec<String> {
    let is_half = |t: &Tensor| matches!(t.dtype(), DType::Half | DType::Bfloat16);
    let wide = |t: &Tensor| match is_half(t) {
        true => cast(t, DType::Float),
        false => t.clone(),
    };
    let floats: Vec<Tensor> = inputs.iter().map(wide).collect();
    let mut of_floats = by.clone();
    for name in ["T", "Tparams"] {
        if by.dtype(name).is_ok_and(DType::is_floating) {
            of_floats = of_floats.with(name, AttrValue::Type(DType::Float));
        }
    }
    let host = Place::host().run(op, &of_floats, &floats, Inputs::Given);
    let host = host.unwrap_or_else(|e| panic!("{op}: {e}"));
    let what = format!("{op} {}{}", inputs[0].dtype(), inputs[0].shape());
    let mut wrong = Vec::new();
    for place in [Inputs::Values, Inputs::OnDevice] {
        let got = match gpu.compute(op, by, inputs, place) {
            Ok(got) => got,
            Err(e) => {
                wrong.push(format!("{what} {place:?}: {e}"));
                continue;
            }
        };
        // What is empty is for gradients.
        for (got, host) in got
            .iter()
            .zip(&host)
            .filter(|(got, _)| got.num_elements() > 0)
        {
            let compared = compare(got, &doubles(host)).err();
            wrong.extend(compared.map(|e| format!("{what} {place:?}: {e:.200}")));
        }
    }
    wrong
}

fn list(values: &[i64]) -> AttrValue {
    AttrValue::List(values.iter().map(|v| AttrValue::Int(*v)).collect())
}

#[test]
fn windows_of_all_widths_are_pooled() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    let mut wrong = Vec::new();
    for dtype in DTYPES {
        for channels in [3, 4, 8, 12, 16, 24] {
            let x = random(&[2, 9, 7, channels], 1, dtype);
            let windows = [[3, 2], [5, 6]].map(|[h, w]| list(&[1, h, w, 1]));
            let paddings = ["SAME", "VALID"];
            let both = paddings
                .iter()
                .flat_map(|p| windows.iter().map(move |w| (p, w)));
            for (padding, window) in both {
                let by = types(&[("T", dtype)])
                    .with("ksize", window.clone())
                    .with("strides", list(&[1, 2, 2, 1]))
                    .with("padding", AttrValue::str(padding));
                for op in ["MaxPool", "AvgPool"] {
                    wrong.extend(check(&gpu, op, &by, std::slice::from_ref(&x)));
                }
                let y = gpu.compute("MaxPool", &by, std::slice::from_ref(&x), Inputs::OnDevice);
                let y = y.expect("a pool").swap_remove(0);
                let dy = random(y.shape(), 2, dtype);
                wrong.extend(check(&gpu, "MaxPoolGrad", &by, &[x.clone(), y, dy.clone()]));
                let shape: Vec<i32> = x.shape().iter().map(|d| *d as i32).collect();
                let shape = Tensor::vector(&shape).expect("small");
                wrong.extend(check(&gpu, "AvgPoolGrad", &by, &[shape, dy]));
            }
            let depthwise = |name: &str| {
                types(&[("T", dtype)])
                    .with("strides", list(&[1, 1, 1, 1]))
                    .with("padding", AttrValue::str(name))
            };
            let filter = random(&[3, 2, channels, 2], 3, dtype);
            let dy = random(&[2, 9, 7, channels * 2], 4, dtype);
            let by = depthwise("SAME");
            let inputs = [x.clone(), filter.clone()];
            wrong.extend(check(&gpu, "DepthwiseConv2dNative", &by, &inputs));
            let sizes = |t: &Tensor| {
                let dims: Vec<i32> = t.shape().iter().map(|d| *d as i32).collect();
                Tensor::vector(&dims).expect("small")
            };
            let op = "DepthwiseConv2dNativeBackpropInput";
            wrong.extend(check(
                &gpu,
                op,
                &by,
                &[sizes(&x), filter.clone(), dy.clone()],
            ));
            let op = "DepthwiseConv2dNativeBackpropFilter";
            wrong.extend(check(&gpu, op, &by, &[x, sizes(&filter), dy]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn batches_are_normalized() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    let mut wrong = Vec::new();
    for dtype in DTYPES {
        for shape in [[2, 3, 5, 4], [1, 1, 7, 33], [3, 20, 30, 8], [2, 1, 1, 1]] {
            let channels = shape[3];
            let x = random(&shape, 1, dtype);
            let of = |seed: u64| random(&[channels], seed, DType::Float);
            let (scale, offset, empty) = (of(2), of(3), random(&[0], 0, DType::Float));
            let by = types(&[("T", dtype), ("U", DType::Float)]);
            let forward = [
                x.clone(),
                scale.clone(),
                offset.clone(),
                empty.clone(),
                empty,
            ];
            wrong.extend(check(&gpu, "FusedBatchNormV3", &by, &forward));
            let dy = random(&shape, 4, dtype);
            let positive: Vec<f32> = (0..channels).map(|i| 0.5 + i as f32 / 10.0).collect();
            let (mean, factor) = (of(5), Tensor::vector(&positive).expect("small"));
            let inputs = [
                dy.clone(),
                x.clone(),
                scale.clone(),
                mean.clone(),
                factor.clone(),
                offset.clone(),
            ];
            wrong.extend(check(&gpu, "FusedBatchNormGradV3", &by, &inputs));
            // The same behind a Relu, whose gradient is where its result is positive.
            let outputs = gpu.compute("FusedBatchNormV3", &by, &forward, Inputs::Values);
            let [y, _, _, mean, factor, rest] = &outputs.expect("a batch")[..] else {
                panic!("six outputs");
            };
            let kept = doubles(&dy).into_iter().zip(doubles(y));
            let kept: Vec<f64> = kept.map(|(dy, y)| if y > 0.0 { dy } else { 0.0 }).collect();
            let kept = cast(&Tensor::from_slice(shape, &kept).expect("as many"), dtype);
            let saved = [&scale, mean, factor, rest].map(Tensor::clone);
            let inputs = [&[kept, x.clone()], &saved[..]].concat();
            let plain = gpu.compute("FusedBatchNormGradV3", &by, &inputs, Inputs::Values);
            let plain = plain.expect("a gradient");
            let inputs = [&[dy, x], &saved[..], &[offset, y.clone()]].concat();
            let got = gpu.compute("_ReluBatchNormGrad", &by, &inputs, Inputs::Values);
            let got = got.expect("a gradient");
            for (i, (got, plain)) in got.iter().zip(&plain).enumerate().take(3) {
                let compared = compare(got, &doubles(plain));
                wrong.extend(
                    compared
                        .err()
                        .map(|e| format!("_ReluBatchNormGrad {dtype} {shape:?} {i}: {e:.200}")),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rows_are_moved() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    let mut wrong = Vec::new();
    let of = |dims: &[usize], dtype: DType| random(dims, 8, dtype);
    let indices = [
        Tensor::vector(&[3i32, 0, 2, 3]).expect("small"),
        Tensor::vector(&[3i64, 0, 2, 3]).expect("small"),
    ];
    for dtype in [
        DType::Float,
        DType::Half,
        DType::Bfloat16,
        DType::Bool,
        DType::Int64,
        DType::Int32,
    ] {
        for index in &indices {
            let by = types(&[
                ("Tparams", dtype),
                ("Tindices", index.dtype()),
                ("Taxis", DType::Int32),
            ]);
            for (dims, axis) in [
                (&[5usize, 7][..], 0),
                (&[5, 8], 0),
                (&[2, 5, 3], 1),
                (&[6, 4], 1),
            ] {
                if gpu.has("GatherV2", &by) {
                    let inputs = [of(dims, dtype), index.clone(), Tensor::scalar(axis)];
                    wrong.extend(check(&gpu, "GatherV2", &by, &inputs));
                }
            }
            if dtype.is_floating() {
                let by = types(&[
                    ("T", dtype),
                    ("Tindices", index.dtype()),
                    ("Tnumsegments", DType::Int32),
                ]);
                let inputs = [of(&[4, 7], dtype), index.clone(), Tensor::scalar(5i32)];
                wrong.extend(check(&gpu, "UnsortedSegmentSum", &by, &inputs));
                let by = types(&[("T", dtype), ("TI", index.dtype())]);
                let scalar = |v: f32| cast(&Tensor::scalar(v), dtype);
                let inputs = [
                    index.clone(),
                    Tensor::scalar(5i32),
                    scalar(2.0),
                    scalar(-1.0),
                ];
                wrong.extend(check(&gpu, "OneHot", &by, &inputs));
            }
        }
        let by = types(&[("T", dtype), ("Tperm", DType::Int32)]);
        for (dims, perm) in [
            (&[40usize, 50][..], &[1, 0][..]),
            (&[33, 65, 4], &[1, 0, 2]),
            (&[35, 40, 2], &[1, 0, 2]),
            (&[2, 33, 3, 40], &[0, 3, 2, 1]),
            (&[2, 33, 64], &[0, 2, 1]),
        ] {
            if gpu.has("Transpose", &by) {
                let perm = Tensor::vector::<i32>(perm).expect("small");
                wrong.extend(check(&gpu, "Transpose", &by, &[of(dims, dtype), perm]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn variables_are_scattered_to() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    let mut wrong = Vec::new();
    let indices = [
        Tensor::vector(&[3i32, 0, 5]).expect("small"),
        Tensor::vector(&[3i64, 0, 5]).expect("small"),
    ];
    for index in &indices {
        for op in [
            "ResourceScatterUpdate",
            "ResourceScatterAdd",
            "ResourceScatterSub",
        ] {
            for dtype in DTYPES {
                let by = types(&[("dtype", dtype), ("Tindices", index.dtype())]);
                if !gpu.has(op, &by) {
                    continue;
                }
                for updates in [
                    random(&[3, 4], 5, dtype),
                    cast(&Tensor::scalar(0.5f32), dtype),
                ] {
                    let run = |place: &Place| -> Result<Vec<f64>> {
                        let handle = variable(place, "var", &random(&[6, 4], 4, dtype))?;
                        place.run(
                            op,
                            &by,
                            &[handle.clone(), index.clone(), updates.clone()],
                            Inputs::Values,
                        )?;
                        Ok(doubles(&value_of(place, &handle, dtype)?))
                    };
                    let host = run(&Place::host()).unwrap_or_else(|e| panic!("{op}: {e}"));
                    match run(&gpu) {
                        Ok(got) => {
                            let got = cast(&Tensor::vector(&got).expect("small"), dtype);
                            wrong.extend(
                                compare(&got, &host)
                                    .err()
                                    .map(|e| format!("{op} {dtype}: {e:.200}")),
                            );
                        }
                        Err(e) => wrong.push(format!("{op} {dtype}: {e}")),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
