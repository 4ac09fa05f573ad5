//! Quantized convolutions that add a summand, against their parts.

use ferroflow_opdef::{
    AttrValue, Attrs, KernelBuild, KernelCtx, NodeInfo, Resources, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Tensor};

/// Runs an op and returns its first output as integers.
fn run(op: &str, inputs: Vec<Tensor>, out: DType) -> Vec<i64> {
    let row = registry().op(op).expect("the op exists");
    let def = registry().def(op).expect("parses").expect("the op exists");
    let mut attrs = Attrs::default();
    attrs.set("strides", AttrValue::ints(&[1, 1, 1, 1]));
    attrs.set("padding", AttrValue::str("SAME"));
    attrs.set("out_type", out.into());
    for (name, input) in [("Tinput", 0), ("Tfilter", 1), ("Tbias", 2), ("Tsummand", 9)] {
        if let Some(t) = inputs.get(input).filter(|_| def.attr(name).is_some()) {
            attrs.set(name, t.dtype().into());
        }
    }
    def.complete_attrs(&mut attrs).expect("complete");
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let kernel = row.kernel.expect("a kernel")(&KernelBuild {
        node: "test",
        device: "",
        def: &def,
        attrs: &attrs,
        inputs: &dtypes,
        outputs: &def.output_dtypes(&attrs).expect("known"),
        constants: &[],
    });
    let (resources, cancel) = (Resources::default(), CancelToken::new());
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 1,
    };
    let mut slots: Vec<Value> = inputs.into_iter().map(Value::Tensor).collect();
    let mut outputs = vec![Value::Empty; 3];
    let info = NodeInfo::default();
    let mut ctx = KernelCtx::new(&info, &mut slots, &[], &mut outputs, &services);
    kernel.expect("a kernel").compute(&mut ctx).expect(op);
    let out = outputs.swap_remove(0).into_tensor().expect("an output");
    match out.dtype() {
        DType::Quint8 => {
            let out = out.bitcast(DType::Uint8).expect("a byte");
            out.slice::<u8>()
                .expect("bytes")
                .iter()
                .map(|v| i64::from(*v))
                .collect()
        }
        _ => {
            let out = out.bitcast(DType::Int32).expect("four bytes");
            out.slice::<i32>()
                .expect("ints")
                .iter()
                .map(|v| i64::from(*v))
                .collect()
        }
    }
}

fn scalar(v: f32) -> Tensor {
    Tensor::scalar(v)
}

/// Image, filter, bias and their ranges.
fn convolution() -> Vec<Tensor> {
    let x: Vec<u8> = (0..18u8).map(|i| i * 13).collect();
    let w: Vec<i8> = (0..12).map(|i: i32| (i * 17 - 90) as i8).collect();
    let quantized = |t: Tensor, dtype| t.bitcast(dtype).expect("the same size");
    vec![
        quantized(
            Tensor::from_slice([1, 3, 3, 2], &x).expect("small"),
            DType::Quint8,
        ),
        quantized(
            Tensor::from_slice([1, 2, 2, 3], &w).expect("small"),
            DType::Qint8,
        ),
        Tensor::vector(&[0.5f32, -0.25, 3.0]).expect("small"),
        scalar(0.0),
        scalar(2.0),
        scalar(-1.0),
        scalar(1.0),
    ]
}

/// The step of the sums.
const STEP: f32 = 2.0 / 255.0 / 127.0;

/// Compares with the convolution and its bias, to which `added` is added before ReLU.
fn check(op: &str, inputs: Vec<Tensor>, added: &[f32], out: DType, step: f32, most: i64) {
    let sums = run("QuantizedConv2DWithBias", convolution(), DType::Qint32);
    let got = run(op, inputs, out);
    assert!(got.iter().any(|v| *v > 0), "{op}: {got:?}");
    for ((sum, more), got) in sums.iter().zip(added).zip(got) {
        let expect = ((*sum as f32 * STEP + more).max(0.0) / step).round() as i64;
        assert!(
            (expect.min(most) - got).abs() <= 1,
            "{op}: {expect} and {got}"
        );
    }
}

#[test]
fn summands_are_added() {
    let floats: Vec<f32> = (0..27).map(|i| i as f32 * 0.4 - 6.0).collect();
    let mut inputs = convolution();
    inputs.push(Tensor::from_slice([1, 3, 3, 3], &floats).expect("small"));
    let op = "QuantizedConv2DWithBiasSumAndRelu";
    check(op, inputs, &floats, DType::Qint32, STEP, i64::MAX);

    let codes: Vec<u8> = (0..27u8).map(|i| i * 9).collect();
    let values: Vec<f32> = codes.iter().map(|v| f32::from(*v) * 3.0 / 255.0).collect();
    let summand = Tensor::from_slice([1, 3, 3, 3], &codes).expect("small");
    let mut inputs = convolution();
    inputs.extend([scalar(0.0), scalar(8.0)]);
    inputs.extend([summand.bitcast(DType::Quint8).expect("a byte")]);
    inputs.extend([scalar(0.0), scalar(3.0)]);
    let op = "QuantizedConv2DWithBiasSumAndReluAndRequantize";
    check(op, inputs, &values, DType::Quint8, 8.0 / 255.0, 255);

    let codes: Vec<i8> = (0..27).map(|i: i32| (i * 9 - 120) as i8).collect();
    let values: Vec<f32> = codes.iter().map(|v| f32::from(*v) * 3.0 / 127.0).collect();
    let summand = Tensor::from_slice([1, 3, 3, 3], &codes).expect("small");
    let mut inputs = convolution();
    inputs.extend([scalar(0.0), scalar(8.0)]);
    inputs.extend([summand.bitcast(DType::Qint8).expect("a byte")]);
    inputs.extend([scalar(-3.0), scalar(2.0)]);
    let op = "QuantizedConv2DWithBiasSignedSumAndReluAndRequantize";
    check(op, inputs, &values, DType::Quint8, 8.0 / 255.0, 255);
}
