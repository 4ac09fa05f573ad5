//! Ops without rows: `_FusedMatMul`, and the gradients of slicing and padding.

use ferroflow_base::Result;
use ferroflow_opdef::{
    AttrValue, Attrs, KernelBuild, KernelCtx, NodeInfo, Resources, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Tensor, bf16};

/// Runs an op of one output; inputs in `constants` are known when the kernel is built.
fn run(op: &str, attrs: Attrs, inputs: &[Tensor], constants: &[usize]) -> Result<Tensor> {
    let row = registry().op(op).expect("a registered op");
    let def = registry().def(op)?.expect("a registered op");
    let mut attrs = attrs;
    def.complete_attrs(&mut attrs)?;
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let outputs = def.output_dtypes(&attrs)?;
    let lazy: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| constants.contains(&i).then(|| t.clone().into()))
        .collect();
    let kernel = row.kernel.expect("a kernel")(&KernelBuild {
        node: "node",
        device: "",
        def: &def,
        attrs: &attrs,
        inputs: &dtypes,
        outputs: &outputs,
        constants: &lazy,
    })?;
    let mut values: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| {
            if kernel.prepacks_input(i) {
                Value::Empty
            } else {
                Value::Tensor(t.clone())
            }
        })
        .collect();
    let mut out = [Value::Empty];
    let cancel = CancelToken::new();
    let resources = Resources::default();
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    kernel.compute(&mut KernelCtx::new(
        &NodeInfo::default(),
        &mut values,
        &[],
        &mut out,
        &services,
    ))?;
    let [out] = out;
    Ok(out.into_tensor().expect("an output"))
}

fn f32s<const N: usize>(shape: [usize; N], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values).unwrap()
}

fn i32s(values: &[i32]) -> Tensor {
    Tensor::vector(values).unwrap()
}

fn fused(ops: &[&str], dtype: DType, n_args: i64) -> Attrs {
    Attrs::default()
        .with("T", AttrValue::Type(dtype))
        .with("num_args", AttrValue::Int(n_args))
        .with("fused_ops", AttrValue::strs(ops))
}

#[test]
fn fused_products() {
    let a = f32s([2, 3], &[1., 2., 3., -1., -2., -3.]);
    let b = f32s([3, 2], &[1., 0., 0., 1., 1., 1.]);
    let bias = f32s([2], &[10., -4.]);
    let inputs = [a.clone(), b, bias.clone()];
    for constants in [&[][..], &[1], &[2], &[1, 2]] {
        let out = run(
            "_FusedMatMul",
            fused(&["BiasAdd", "Relu"], DType::Float, 1),
            &inputs,
            constants,
        );
        assert_eq!(out.unwrap().slice::<f32>().unwrap(), [14., 1., 6., 0.]);
    }
    let attrs = fused(&["BiasAdd", "LeakyRelu"], DType::Float, 1)
        .with("transpose_b", AttrValue::Bool(true))
        .with("leakyrelu_alpha", AttrValue::Float(0.5));
    let b = f32s([2, 3], &[1., 0., 1., 0., 1., 1.]);
    for constants in [&[][..], &[1]] {
        let out = run(
            "_FusedMatMul",
            attrs.clone(),
            &[a.clone(), b.clone(), bias.clone()],
            constants,
        );
        assert_eq!(out.unwrap().slice::<f32>().unwrap(), [14., 1., 6., -4.5]);
    }
    let half = |t: &Tensor| {
        let v: Vec<bf16> = t
            .slice::<f32>()
            .unwrap()
            .iter()
            .map(|&v| bf16::from_f32(v))
            .collect();
        Tensor::from_slice(t.shape().clone(), &v).unwrap()
    };
    let inputs: Vec<Tensor> = inputs.iter().map(half).collect();
    let out = run(
        "_FusedMatMul",
        fused(&["BiasAdd", "Relu6"], DType::Bfloat16, 1),
        &inputs,
        &[],
    );
    let expected = [6.0, 1.0, 6.0, 0.0].map(bf16::from_f32);
    assert_eq!(out.unwrap().slice::<bf16>().unwrap(), expected);
}

#[test]
fn products_over_nothing_are_the_bias() {
    let inputs = [f32s([2, 0], &[]), f32s([0, 2], &[]), f32s([2], &[3., -4.])];
    for constants in [&[][..], &[1, 2]] {
        let out = run(
            "_FusedMatMul",
            fused(&["BiasAdd", "Relu"], DType::Float, 1),
            &inputs,
            constants,
        );
        assert_eq!(out.unwrap().slice::<f32>().unwrap(), [3., 0., 3., 0.]);
    }
    let wrong = [inputs[0].clone(), inputs[1].clone(), f32s([3], &[0.; 3])];
    assert!(
        run(
            "_FusedMatMul",
            fused(&["BiasAdd"], DType::Float, 1),
            &wrong,
            &[]
        )
        .is_err()
    );
    assert!(
        run(
            "_FusedMatMul",
            fused(&["Sorcery"], DType::Float, 0),
            &inputs[..2],
            &[]
        )
        .is_err()
    );
}

#[test]
fn gradients_of_slicing_and_padding() {
    let attrs = || {
        Attrs::default()
            .with("T", AttrValue::Type(DType::Float))
            .with("Index", AttrValue::Type(DType::Int32))
    };
    let spec = [i32s(&[4]), i32s(&[3]), i32s(&[0]), i32s(&[-2])];
    let dy = f32s([2], &[1., 2.]);
    let mut inputs = spec.to_vec();
    inputs.push(dy.clone());
    let out = run("StridedSliceGrad", attrs(), &inputs, &[]).unwrap();
    assert_eq!(out.slice::<f32>().unwrap(), [0., 2., 0., 1.]);
    inputs[0] = f32s([4], &[9.; 4]);
    let out = run("TensorStridedSliceUpdate", attrs(), &inputs, &[]).unwrap();
    assert_eq!(out.slice::<f32>().unwrap(), [9., 2., 9., 1.]);
    let paddings = Tensor::from_slice([1, 2], &[2, 1]).unwrap();
    let padded = f32s([6], &[1., 2., 3., 4., 5., 6.]);
    for (mode, expected) in [("REFLECT", [3., 12., 6.]), ("SYMMETRIC", [5., 5., 11.])] {
        let attrs = Attrs::default()
            .with("T", AttrValue::Type(DType::Float))
            .with("mode", AttrValue::str(mode));
        let out = run(
            "MirrorPadGrad",
            attrs,
            &[padded.clone(), paddings.clone()],
            &[],
        )
        .unwrap();
        assert_eq!(out.slice::<f32>().unwrap(), expected, "{mode}");
    }
}
