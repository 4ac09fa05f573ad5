//! Functions of elements over their whole ranges, compared with those of the host.

use crate::place::{Inputs, Place, alone, attrs, cast, doubles, expected};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};

const UNARY: &str = "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Inv IsFinite IsInf IsNan \
                     LeakyRelu Lgamma Log Log1p Neg Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh \
                     Softplus Softsign Sqrt Square Tan Tanh _Gelu _GeluTanh _HardSwish _Swish";
const BINARY: &str = "AddV2 Atan2 Div DivNoNan Equal FloorDiv Greater GreaterEqual Less LessEqual Maximum Minimum Mul MulNoNan \
                      NotEqual Pow RealDiv SquaredDifference Sub Xdivy Xlog1py Xlogy";
const GRADIENTS: &str = "EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad \
                         SoftplusGrad SoftsignGrad SqrtGrad TanhGrad";

/// Zeros, infinities, numbers that are none, subnormal ones, the limits of what functions tell apart.
const SPECIAL: [f32; 28] = [
    0.0,
    f32::INFINITY,
    f32::NAN,
    f32::MIN_POSITIVE,
    f32::MAX,
    1e-45,
    1e-40,
    1.0,
    0.5,
    2.0,
    3.0,
    6.0,
    0.1,
    0.25,
    0.625,
    0.375,
    0.999_999_94,
    1.000_000_1,
    5.5,
    9.0,
    10.0,
    20.0,
    88.72,
    88.73,
    103.9,
    104.0,
    1e4,
    105_615.0,
];

/// Numbers of all magnitudes, both signs of each, and a few in even distances.
fn numbers() -> Vec<f32> {
    let exponents = (0..=254u32).flat_map(|e| {
        [0, 0x12_3456, 0x35_04f3, 0x5a_5a5a, 0x7f_ffff].map(|m| f32::from_bits(e << 23 | m))
    });
    let even = (0..600).map(|i| i as f32 * 0.217);
    let all = exponents.chain(even).chain(SPECIAL);
    all.flat_map(|v| [v, -v]).collect()
}

/// How far results may be from those of the host: relative to each, and at all.
fn tolerance(op: &str, dtype: DType) -> (f64, f64) {
    let relative = match dtype {
        DType::Half => 2e-3,
        DType::Bfloat16 => 1.6e-2,
        _ => 4e-6,
    };
    let at_all = match op {
        // As exact as the approximation of the error function.
        "_Gelu" | "_GeluTanh" => 3e-7,
        // Subnormal factors are zeros.
        "_Swish" => 6e-37,
        _ if dtype == DType::Half => 1e-7,
        _ => 1e-38,
    };
    (relative, at_all)
}

/// Whether GPUs compute something else of these inputs on purpose.
fn is_unlike(op: &str, inputs: &[f64]) -> bool {
    match op {
        // The limit, in place of no number.
        "_Gelu" => inputs[0] == f64::NEG_INFINITY,
        // A half of the smallest number is lost.
        "SqrtGrad" | "RsqrtGrad" => inputs[1].abs() < 1e-44,
        _ => false,
    }
}

/// The attrs of an op of a dtype.
fn typed(op: &str, dtype: DType) -> Attrs {
    let t = ("T", AttrValue::Type(dtype));
    match op {
        "LeakyRelu" | "LeakyReluGrad" => attrs(&[t, ("alpha", AttrValue::Float(0.3))]),
        _ => attrs(&[t]),
    }
}

/// The results in double precision; `None` if the host has no such kernel.
fn exact(op: &str, inputs: &[Tensor]) -> Option<Vec<f64>> {
    let inputs: Vec<Tensor> = inputs.iter().map(|t| cast(t, DType::Double)).collect();
    let run = |op: &str, inputs: &[Tensor]| {
        let attrs = typed(op, DType::Double);
        let outputs = Place::host().run(op, &attrs, inputs, Inputs::Given);
        Some(doubles(&outputs.ok()?[0]))
    };
    let x = doubles(&inputs[0]);
    let over = |f: &dyn Fn(f64) -> f64| Some(x.iter().map(|x| f(*x)).collect());
    match op {
        "_Gelu" => {
            let scaled: Vec<f64> = x.iter().map(|x| -x / 2f64.sqrt()).collect();
            let tails = run("Erfc", &[Tensor::vector(&scaled).expect("small")])?;
            Some(
                x.iter()
                    .zip(tails)
                    .map(|(x, tail)| 0.5 * x * tail)
                    .collect(),
            )
        }
        "_GeluTanh" => over(&|x| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / (1.0 + (-2.0 * inner).exp())
        }),
        "_Swish" => over(&|x| x / (1.0 + (-x).exp())),
        "_HardSwish" => over(&|x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        _ => run(op, &inputs),
    }
}

/// Compares the results with those of the host and with those in double precision; returns where they are neither.
fn check(gpu: &Place, op: &str, inputs: &[Tensor]) -> Vec<String> {
    let dtype = inputs[0].dtype();
    let attrs = typed(op, dtype);
    let expected = expected(op, &attrs, inputs).unwrap_or_else(|e| panic!("{op} of {dtype}: {e}"));
    let got = gpu.compute(op, &attrs, inputs, Inputs::OnDevice);
    let got = got.unwrap_or_else(|e| panic!("{op} of {dtype}: {e}"));
    let exact = exact(op, inputs);
    let inputs: Vec<Vec<f64>> = inputs.iter().map(doubles).collect();
    let (expected, got) = (doubles(&expected[0]), doubles(&got[0]));
    let exact = exact.unwrap_or_else(|| expected.clone());
    let (relative, at_all) = tolerance(op, dtype);
    let largest = match dtype {
        DType::Half => 65504.0,
        _ => f64::from(f32::MAX),
    };
    let is_near = |e: f64, g: f64| {
        e == g
            || e.is_nan() && g.is_nan()
            || (e - g).abs() <= relative * e.abs() + at_all
            || e.abs() >= largest && g.is_infinite() && e.signum() == g.signum()
    };
    let args = |i: usize| -> Vec<f64> { inputs.iter().map(|x| x[i]).collect() };
    let is_wrong = |i: &usize| {
        let is_right = [expected[*i], exact[*i]].map(|e| is_near(e, got[*i]));
        !is_right.contains(&true) && !is_unlike(op, &args(*i))
    };
    let different: Vec<usize> = (0..expected.len()).filter(is_wrong).collect();
    let text = |i: &usize| {
        let args = args(*i);
        let (got, expected, exact) = (got[*i], expected[*i], exact[*i]);
        format!("{op}{args:?} of {dtype}: {got:e}, with the host {expected:e}, exactly {exact:e}")
    };
    let n = different.len();
    let mut shown: Vec<String> = different.iter().step_by(n / 6 + 1).map(text).collect();
    if let Some(first) = shown.first_mut() {
        *first = format!("{n} differ: {first}");
    }
    shown
}

#[test]
fn functions_are_those_of_the_host() {
    let _alone = alone(false);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    let mut wrong = Vec::new();
    let all = Tensor::vector(&numbers()).expect("small");
    let few: Vec<f32> = SPECIAL.iter().flat_map(|v| [*v, -v]).collect();
    let n = few.len();
    let left: Vec<f32> = (0..n * n).map(|i| few[i / n]).collect();
    let right: Vec<f32> = (0..n * n).map(|i| few[i % n]).collect();
    let pair = [left, right].map(|v| Tensor::vector(&v).expect("small"));
    // Not a multiple of the elements of a thread.
    let odd = Tensor::vector(&numbers()[..=400]).expect("small");
    for dtype in [DType::Float, DType::Half, DType::Bfloat16] {
        for op in UNARY.split_whitespace() {
            for x in [&all, &odd] {
                wrong.extend(check(&gpu, op, &[cast(x, dtype)]));
            }
        }
        let pair = pair.each_ref().map(|t| cast(t, dtype));
        for op in BINARY
            .split_whitespace()
            .chain(GRADIENTS.split_whitespace())
        {
            wrong.extend(check(&gpu, op, &pair));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn older_devices_convert_alike() {
    let _alone = alone(false);
    let Some(gpus) = Place::gpu(75).zip(Place::gpu(80)) else {
        return;
    };
    let numbers = Tensor::vector(&numbers()).expect("small");
    let types = [
        DType::Float,
        DType::Half,
        DType::Bfloat16,
        DType::Double,
        DType::Int32,
        DType::Int64,
        DType::Uint8,
        DType::Bool,
    ];
    for from in types {
        for to in types {
            let by = attrs(&[
                ("SrcT", AttrValue::Type(from)),
                ("DstT", AttrValue::Type(to)),
            ]);
            if from == to || !gpus.1.has("Cast", &by) {
                continue;
            }
            let inputs = [cast(&numbers, from)];
            let [older, newer] = [&gpus.0, &gpus.1].map(|gpu| {
                let y = gpu.compute("Cast", &by, &inputs, Inputs::OnDevice);
                doubles(&y.unwrap_or_else(|e| panic!("{from} to {to}: {e}"))[0])
            });
            let host = Place::host().run("Cast", &by, &inputs, Inputs::Given);
            let host = doubles(&host.expect("a cast")[0]);
            let is_same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
            for (i, x) in doubles(&inputs[0]).iter().enumerate() {
                let (older, newer, host) = (older[i], newer[i], host[i]);
                assert!(
                    is_same(older, host) && is_same(newer, host),
                    "{x:e}, {from} to {to}: {older:e} and {newer:e} instead of {host:e}"
                );
            }
        }
    }
}
