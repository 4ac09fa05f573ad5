//! Convolutions in forms without rows: fused, grouped, packed, transposed.

use ferroflow_base::Result;
use ferroflow_opdef::{
    AttrValue, Attrs, KernelBuild, KernelCtx, NodeInfo, Resources, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Shape, Tensor};
use ferroflow_testkit::random;

/// Returns deterministic numbers in `-1..1`.
fn noise(shape: &[usize], seed: u32) -> Tensor {
    let values = random::noise(shape.iter().product(), seed);
    Tensor::from_slice(Shape::from(shape), &values).expect("small")
}

fn double(t: &Tensor) -> Tensor {
    let values: Vec<f64> = t
        .slice::<f32>()
        .unwrap()
        .iter()
        .map(|v| f64::from(*v))
        .collect();
    Tensor::from_slice(t.shape().clone(), &values).expect("small")
}

fn ints(values: &[i32]) -> Tensor {
    Tensor::vector(values).expect("small")
}

/// Runs an op twice; the inputs in `constants` are known when the kernel is built.
fn run(op: &str, attrs: &Attrs, inputs: &[Tensor], constants: &[usize]) -> Result<Tensor> {
    let row = registry().op(op).expect("the op exists");
    let def = registry().def(op)?.expect("the op exists");
    let mut attrs = attrs.clone();
    attrs.set("T", AttrValue::Type(inputs[inputs.len() - 1].dtype()));
    def.complete_attrs(&mut attrs)?;
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let outputs = def.output_dtypes(&attrs)?;
    let lazy: Vec<_> = (0..inputs.len())
        .map(|i| constants.contains(&i).then(|| inputs[i].clone().into()))
        .collect();
    let kernel = (row.kernel.expect("a kernel"))(&KernelBuild {
        node: "test",
        device: "",
        def: &def,
        attrs: &attrs,
        inputs: &dtypes,
        outputs: &outputs,
        constants: &lazy,
    })?;
    let (cancel, info) = (CancelToken::new(), NodeInfo::default());
    let resources = Resources::default();
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    let mut result = None;
    for _ in 0..2 {
        let mut values: Vec<Value> = (0..inputs.len())
            .map(|i| match kernel.prepacks_input(i) {
                true => Value::Empty,
                false => Value::Tensor(inputs[i].clone()),
            })
            .collect();
        assert!(constants.is_empty() || constants.iter().all(|&i| kernel.prepacks_input(i)));
        let mut out = vec![Value::Empty; outputs.len()];
        kernel.compute(&mut KernelCtx::new(
            &info,
            &mut values,
            &[],
            &mut out,
            &services,
        ))?;
        result = out.swap_remove(0).into_tensor();
    }
    Ok(result.expect("an output"))
}

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    let as_double = |t: &Tensor| match t.dtype() {
        DType::Float => double(t),
        _ => t.clone(),
    };
    let (a, b) = (as_double(a), as_double(b));
    for (x, y) in a
        .slice::<f64>()
        .unwrap()
        .iter()
        .zip(b.slice::<f64>().unwrap())
    {
        assert!(
            (x - y).abs() <= 2e-5 * (1.0 + x.abs().max(y.abs())),
            "{x} and {y}"
        );
    }
}

fn conv_attrs(strides: [i64; 4], padding: &str, format: &str) -> Attrs {
    Attrs::default()
        .with("strides", AttrValue::ints(&strides))
        .with("padding", AttrValue::str(padding))
        .with("data_format", AttrValue::str(format))
}

fn fused_attrs(ops: &[&str], n_args: usize, format: &str) -> Attrs {
    conv_attrs([1; 4], "SAME", format)
        .with("fused_ops", AttrValue::strs(ops))
        .with("num_args", AttrValue::Int(n_args as i64))
        .with(
            "TArgs",
            AttrValue::List(vec![AttrValue::Type(DType::Float); n_args]),
        )
}

#[test]
fn fused_convolution_is_its_parts() {
    for (format, shape, out_shape) in [
        ("NHWC", [2, 5, 6, 3], [2, 5, 6, 8]),
        ("NCHW", [2, 3, 5, 6], [2, 8, 5, 6]),
    ] {
        let (x, filter) = (noise(&shape, 1), noise(&[3, 3, 3, 8], 2));
        let (scale, bias) = (noise(&[8], 5), noise(&[8], 3));
        let side = noise(&out_shape, 4);
        let plain = conv_attrs([1; 4], "SAME", format);
        let mut expected = run("Conv2D", &plain, &[x.clone(), filter.clone()], &[]).unwrap();
        let pixels = if format == "NHWC" { 1 } else { 30 };
        let values = expected.slice_mut::<f32>().unwrap();
        for (i, v) in values.iter_mut().enumerate() {
            let c = i / pixels % 8;
            let [factor, offset] = [&scale, &bias].map(|t| t.slice::<f32>().unwrap()[c]);
            *v = (*v * factor + offset + side.slice::<f32>().unwrap()[i]).max(0.0);
        }
        let attrs = fused_attrs(&["Scale", "BiasAdd", "Add", "Relu"], 3, format);
        for constants in [&[][..], &[1], &[2, 3], &[1, 2, 3]] {
            let inputs = [&x, &filter, &scale, &bias, &side].map(Tensor::clone);
            close(
                &run("_FusedConv2D", &attrs, &inputs, constants).unwrap(),
                &expected,
            );
        }
    }
}

#[test]
fn fused_batch_norm_is_its_parts() {
    let (x, filter) = (noise(&[1, 4, 5, 3], 1), noise(&[2, 2, 3, 4], 2));
    let params: Vec<Tensor> = [3, 4, 5].iter().map(|&s| noise(&[4], s)).collect();
    let variance = Tensor::vector(&[0.5f32, 1.5, 0.1, 2.0]).unwrap();
    let y = run(
        "Conv2D",
        &conv_attrs([1; 4], "SAME", "NHWC"),
        &[x.clone(), filter.clone()],
        &[],
    )
    .unwrap();
    let norm = Attrs::default()
        .with("is_training", AttrValue::Bool(false))
        .with("epsilon", AttrValue::Float(0.001));
    let inputs = [
        y,
        params[0].clone(),
        params[1].clone(),
        params[2].clone(),
        variance.clone(),
    ];
    let expected = run("FusedBatchNorm", &norm, &inputs, &[]).unwrap();
    let attrs =
        fused_attrs(&["FusedBatchNorm"], 4, "NHWC").with("epsilon", AttrValue::Float(0.001));
    let inputs = [
        x,
        filter,
        params[0].clone(),
        params[1].clone(),
        params[2].clone(),
        variance,
    ];
    for constants in [&[][..], &[2, 3, 4, 5], &[1, 2, 3, 4, 5]] {
        close(
            &run("_FusedConv2D", &attrs, &inputs, constants).unwrap(),
            &expected,
        );
    }
}

#[test]
fn groups_of_a_packed_filter() {
    // Enough channels for the filter to be transformed for one group.
    let (x, filter) = (noise(&[1, 6, 6, 64], 1), noise(&[3, 3, 32, 64], 2));
    let attrs = conv_attrs([1; 4], "SAME", "NHWC");
    let inputs = [x, filter];
    let expected = run("Conv2D", &attrs, &inputs.each_ref().map(double), &[]).unwrap();
    close(&run("Conv2D", &attrs, &inputs, &[1]).unwrap(), &expected);
    close(&run("Conv2D", &attrs, &inputs, &[]).unwrap(), &expected);
}

#[test]
fn convolutions_in_groups() {
    // Input channels, those of a group, output channels.
    for (in_c, per, out_c) in [(6, 1, 6), (5, 1, 15), (12, 3, 8), (16, 4, 16), (8, 4, 40)] {
        for (stride, dilation, format) in [(1, 1, "NHWC"), (2, 1, "NCHW"), (1, 2, "NHWC")] {
            let in_layout = |h, w, c| match format {
                "NHWC" => [2, h, w, c],
                _ => [2, c, h, w],
            };
            let steps = |n| match format {
                "NHWC" => [1, n, n, 1],
                _ => [1, 1, n, n],
            };
            let attrs = conv_attrs(steps(stride), "SAME", format)
                .with("dilations", AttrValue::ints(&steps(dilation)))
                .with("_groups", AttrValue::Int((in_c / per) as i64));
            let shape = in_layout(7, 6, in_c);
            let (x, filter) = (noise(&shape, 1), noise(&[3, 5, per, out_c], 2));
            let wide = [double(&x), double(&filter)];
            let expected = run("Conv2D", &attrs, &wide, &[]).unwrap();
            let dy = noise(expected.shape(), 3);
            let sizes = |t: &Tensor| ints(&t.shape().iter().map(|d| *d as i32).collect::<Vec<_>>());
            let mut ops = vec![
                ("Conv2D", vec![x.clone(), filter.clone()]),
                (
                    "Conv2DBackpropInput",
                    vec![sizes(&x), filter.clone(), dy.clone()],
                ),
                (
                    "Conv2DBackpropFilter",
                    vec![x.clone(), sizes(&filter), dy.clone()],
                ),
            ];
            if per == 1 {
                let shape = Shape::from([3, 5, in_c, out_c / in_c]);
                let deep = filter.with_shape(shape).unwrap();
                ops.extend([
                    ("DepthwiseConv2dNative", vec![x.clone(), deep.clone()]),
                    (
                        "DepthwiseConv2dNativeBackpropInput",
                        vec![sizes(&x), deep.clone(), dy.clone()],
                    ),
                    (
                        "DepthwiseConv2dNativeBackpropFilter",
                        vec![x.clone(), sizes(&deep), dy.clone()],
                    ),
                ]);
            }
            for (op, inputs) in ops {
                let wide: Vec<_> = inputs
                    .iter()
                    .map(|t| match t.dtype() {
                        DType::Float => double(t),
                        _ => t.clone(),
                    })
                    .collect();
                let expected = run(op, &attrs, &wide, &[]).unwrap();
                close(&run(op, &attrs, &inputs, &[]).unwrap(), &expected);
                if !op.ends_with("Filter") {
                    close(&run(op, &attrs, &inputs, &[1]).unwrap(), &expected);
                }
            }
        }
    }
}

#[test]
fn transposed_convolution_in_phases() {
    let cases: [([usize; 4], [usize; 4], i64, &str); 7] = [
        ([2, 8, 6, 5], [4, 4, 5, 3], 2, "SAME"),
        ([1, 9, 7, 5], [3, 3, 5, 3], 2, "VALID"),
        ([1, 7, 8, 4], [2, 3, 4, 6], 3, "SAME"),
        ([1, 8, 8, 33], [3, 3, 33, 32], 1, "SAME"),
        ([1, 5, 5, 6], [3, 3, 3, 4], 1, "SAME"),
        ([1, 6, 6, 6], [3, 3, 3, 4], 2, "SAME"),
        ([1, 6, 6, 2], [1, 1, 2, 4], 4, "SAME"),
    ];
    for (input, filter, stride, padding) in cases {
        for format in ["NHWC", "NCHW"] {
            let mut strides = [1, stride, stride, 1];
            let mut shape = input;
            if format == "NCHW" {
                strides = [1, 1, stride, stride];
                shape = [input[0], input[3], input[1], input[2]];
            }
            let attrs = conv_attrs(strides, padding, format);
            let filter = noise(&filter, 7);
            let forward = [noise(&shape, 1), filter.clone()];
            let dy = noise(run("Conv2D", &attrs, &forward, &[]).unwrap().shape(), 9);
            let sizes = ints(&shape.map(|d| d as i32));
            let op = "Conv2DBackpropInput";
            let plain = [sizes.clone(), double(&filter), double(&dy)];
            let expected = run(op, &attrs, &plain, &[]).unwrap();
            let inputs = [sizes, filter, dy];
            close(&run(op, &attrs, &inputs, &[]).unwrap(), &expected);
            close(&run(op, &attrs, &inputs, &[1]).unwrap(), &expected);
        }
    }
}

#[test]
fn fused_depthwise_is_its_parts() {
    let (x, filter) = (noise(&[2, 7, 6, 5], 1), noise(&[3, 3, 5, 1], 2));
    let (scale, bias) = (noise(&[5], 4), noise(&[5], 3));
    let plain = conv_attrs([1, 2, 2, 1], "SAME", "NHWC");
    let mut expected = run(
        "DepthwiseConv2dNative",
        &plain,
        &[x.clone(), filter.clone()],
        &[],
    )
    .unwrap();
    for (i, v) in expected.slice_mut::<f32>().unwrap().iter_mut().enumerate() {
        let [factor, offset] = [&scale, &bias].map(|t| t.slice::<f32>().unwrap()[i % 5]);
        *v = (*v * factor + offset).clamp(0.0, 6.0);
    }
    let attrs = plain
        .with("fused_ops", AttrValue::strs(&["Scale", "BiasAdd", "Relu6"]))
        .with("num_args", AttrValue::Int(2));
    let inputs = [x, filter, scale, bias];
    for constants in [&[][..], &[2, 3], &[1, 2, 3]] {
        let got = run("_FusedDepthwiseConv2dNative", &attrs, &inputs, constants).unwrap();
        close(&got, &expected);
    }
}

#[test]
fn hostile_attrs_are_errors() {
    let inputs = [noise(&[1, 4, 4, 2], 1), noise(&[2, 2, 2, 2], 2)];
    for strides in [
        [1, 0, 1, 1],
        [1, -1, 1, 1],
        [1, i64::MAX, 1, 1],
        [2, 1, 1, 1],
    ] {
        let attrs = conv_attrs(strides, "SAME", "NHWC");
        assert!(run("Conv2D", &attrs, &inputs, &[]).is_err());
    }
    let huge = conv_attrs([1; 4], "EXPLICIT", "NHWC").with(
        "explicit_paddings",
        AttrValue::ints(&[
            0,
            0,
            i32::MAX as i64,
            i32::MAX as i64,
            i32::MAX as i64,
            0,
            0,
            0,
        ]),
    );
    assert!(run("Conv2D", &huge, &inputs, &[]).is_err());
    let far = conv_attrs([1, i32::MAX as i64, i32::MAX as i64, 1], "SAME", "NHWC").with(
        "dilations",
        AttrValue::ints(&[1, i32::MAX as i64 - 1, 1, 1]),
    );
    let out = run("Conv2D", &far, &inputs, &[]).unwrap();
    assert_eq!(out.shape(), &Shape::from([1, 1, 1, 2]));
    let pool = |k: i64| {
        conv_attrs([1, 1, 1, 1], "SAME", "NHWC").with("ksize", AttrValue::ints(&[1, k, k, 1]))
    };
    let x = [double(&inputs[0])];
    assert!(run("MaxPool", &pool(i32::MAX as i64), &x, &[]).is_ok());
    assert!(run("AvgPool", &pool(i64::MAX), &x, &[]).is_err());
    let none = [noise(&[1, 4, 4, 2], 1), noise(&[2, 2, 2, 0], 2)];
    assert!(run("Conv2D", &conv_attrs([1; 4], "SAME", "NHWC"), &none, &[]).is_err());
}
