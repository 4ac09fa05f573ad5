//! Quantized products of matrices with what follows them, as in TensorFlow's oneDNN builds
//! (TensorFlow: `core/kernels/mkl/mkl_qmatmul_op.cc`).

use crate::quantized_epilogue::{Epilogue, finish, int_range, magnitude};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::quantized::{codes, scalar, scalar_ranges, set_codes, set_range};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::int_gemm::{Codes, int_gemm};
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizedMatMulWithBias",
        "a: T1, b: T2, bias: Tbias, min_a: float, max_a: float, min_b: float, max_b: float -> \
         out: Toutput, min_out: float, max_out: float | T1: type \
         {qint8,quint8,qint32,qint16,quint16}; T2: type {qint8,quint8,qint32,qint16,quint16}; \
         Tbias: type {float,qint32}; Toutput: type {qint8,quint8,qint32,qint16,quint16} = \
         qint32; transpose_a: bool = false; transpose_b: bool = false; input_quant_mode: string \
         {'MIN_FIRST','SCALED'} = 'MIN_FIRST'",
    )
    .shape(shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedMatMulWithBiasAndDequantize",
        "a: T1, b: T2, bias: Tbias, min_a: float, max_a: float, min_b: float, max_b: float, \
         min_freezed_output: float, max_freezed_output: float -> out: Toutput | T1: type \
         {qint8,quint8,qint32,qint16,quint16}; T2: type {qint8,quint8,qint32,qint16,quint16}; \
         Tbias: type {float,qint32}; Toutput: type {float}; transpose_a: bool = false; \
         transpose_b: bool = false; input_quant_mode: string {'MIN_FIRST','SCALED'} = \
         'MIN_FIRST'",
    )
    .shape(shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedMatMulWithBiasAndRelu",
        "a: T1, b: T2, bias: float, min_a: float, max_a: float, min_b: float, max_b: float -> \
         out: Toutput, min_out: float, max_out: float | T1: type \
         {qint8,quint8,qint32,qint16,quint16}; T2: type {qint8,quint8,qint32,qint16,quint16}; \
         Toutput: type {qint8,quint8,qint32,qint16,quint16} = qint32; transpose_a: bool = \
         false; transpose_b: bool = false; input_quant_mode: string {'MIN_FIRST','SCALED'} = \
         'MIN_FIRST'",
    )
    .shape(shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedMatMulWithBiasAndReluAndRequantize",
        "a: T1, b: T2, bias: Tbias, min_a: float, max_a: float, min_b: float, max_b: float, \
         min_freezed_output: float, max_freezed_output: float -> out: Toutput, min_out: float, \
         max_out: float | T1: type {qint8,quint8,qint32,qint16,quint16}; T2: type \
         {qint8,quint8,qint32,qint16,quint16}; Tbias: type {float,qint32}; Toutput: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8; transpose_a: bool = false; transpose_b: \
         bool = false; input_quant_mode: string {'MIN_FIRST','SCALED'} = 'MIN_FIRST'",
    )
    .shape(shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
    Op::new(
        "QuantizedMatMulWithBiasAndRequantize",
        "a: T1, b: T2, bias: Tbias, min_a: float, max_a: float, min_b: float, max_b: float, \
         min_freezed_output: float, max_freezed_output: float -> out: Toutput, min_out: float, \
         max_out: float | T1: type {qint8,quint8,qint32,qint16,quint16}; T2: type \
         {qint8,quint8,qint32,qint16,quint16}; Tbias: type {float,qint32}; Toutput: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8; transpose_a: bool = false; transpose_b: \
         bool = false; input_quant_mode: string {'MIN_FIRST','SCALED'} = 'MIN_FIRST'",
    )
    .shape(shape)
    .cost(Cost::Expensive)
    .kernel(kernel),
];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (a, b) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 2)?);
    let ta = ctx.attrs().bool("transpose_a")? as isize;
    let tb = ctx.attrs().bool("transpose_b")? as isize;
    if let (Some(k), Some(l)) = (a.dim(1 - ta), b.dim(tb))
        && k != l
    {
        return Err(invalid_argument!(
            "Dimensions must be equal, but are {k} and {l}"
        ));
    }
    ctx.set(0, PartialShape::of([a.dim(ta), b.dim(1 - tb)]));
    ctx.with_rank(2, 1)?;
    let n = ctx.num_inputs();
    match ctx.num_outputs() {
        1 => (3..n).try_for_each(|i| ctx.with_rank(i, 0).map(|_| ())),
        _ => scalar_ranges(ctx, 3..n),
    }
}

#[derive(Clone, Copy)]
struct Spec {
    transposed: [bool; 2],
    min_first: bool,
    relu: bool,
    out: DType,
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (attrs, op) = (build.attrs, build.def.name.as_ref());
    let out = match op {
        _ if op.ends_with("AndRequantize") => DType::Quint8,
        _ if op.ends_with("AndDequantize") => DType::Float,
        _ => DType::Qint32,
    };
    let dtypes = [
        (build.input(0)?, DType::Quint8),
        (build.input(1)?, DType::Qint8),
        (build.output(0)?, out),
    ];
    if let Some((dtype, _)) = dtypes.iter().find(|(dtype, has)| dtype != has) {
        return Err(build.unsupported(*dtype));
    }
    let spec = Spec {
        transposed: [attrs.bool("transpose_a")?, attrs.bool("transpose_b")?],
        min_first: attrs.str("input_quant_mode")? == "MIN_FIRST",
        relu: op.contains("Relu"),
        out,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| product(ctx, spec)))
}

fn product(ctx: &mut KernelCtx, spec: Spec) -> Result<()> {
    let a_range = [scalar(ctx, 3, "min_a")?, scalar(ctx, 4, "max_a")?];
    let b_range = [scalar(ctx, 5, "min_b")?, scalar(ctx, 6, "max_b")?];
    let (a, b) = (codes(ctx, 0)?, codes(ctx, 1)?);
    for (i, t) in [&a, &b].into_iter().enumerate() {
        if t.shape().rank() != 2 {
            return Err(invalid_argument!("In[{i}] is not a matrix"));
        }
    }
    let [ta, tb] = spec.transposed;
    let (k, l) = (a.shape()[1 - ta as usize], b.shape()[tb as usize]);
    if k != l {
        return Err(ferroflow_functors::matmul::incompatible(
            a.shape(),
            b.shape(),
        ));
    }
    let (m, n) = (a.shape()[ta as usize], b.shape()[1 - tb as usize]);
    let mut sums = ctx.alloc(DType::Int32, shape_of([m, n])?)?;
    let (left, right) = (
        Codes {
            codes: a.slice::<u8>()?,
            transposed: ta,
            zero: 0,
        },
        Codes {
            codes: b.slice::<i8>()?,
            transposed: tb,
            zero: 0,
        },
    );
    int_gemm(ctx.par(), [m, n, k], left, right, sums.slice_mut::<i32>()?);
    let int_range = int_range::<u8>(a_range, b_range);
    let frozen = match spec.out {
        DType::Qint32 => int_range,
        _ => [
            scalar(ctx, 7, "min_freezed_output")?,
            scalar(ctx, 8, "max_freezed_output")?,
        ],
    };
    let width = match spec.min_first {
        true => a_range[1] - a_range[0],
        false => magnitude(a_range),
    };
    let step = width / 255.0 * (magnitude(b_range) / 127.0);
    let epilogue = Epilogue {
        steps: vec![step; n],
        bias: Some(bias(ctx, spec, a_range, [k, n])?),
        summand: None,
        relu: spec.relu,
        out: match spec.out {
            DType::Quint8 => magnitude(frozen) / 255.0,
            DType::Float => 1.0,
            _ => step,
        },
    };
    let out = finish(ctx, sums, &epilogue, spec.out)?;
    set_codes(ctx, 0, out, spec.out)?;
    match spec.out {
        DType::Float => Ok(()),
        _ => set_range(ctx, 1, frozen),
    }
}

/// Returns the bias.
///
/// Codes of the mode MIN_FIRST count from the range's minimum: TensorFlow adds the columns' sums of
/// codes, times the minimum's code, to a float bias.
fn bias(ctx: &KernelCtx, spec: Spec, [min, max]: [f32; 2], [k, n]: [usize; 2]) -> Result<Tensor> {
    let bias = codes(ctx, 2)?;
    if bias.shape().dims() != [n] {
        return Err(invalid_argument!(
            "bias must have one element for each of {n} columns, got shape {}",
            bias.shape()
        ));
    }
    if bias.dtype() != DType::Float || !spec.min_first {
        return Ok(bias);
    }
    let first = 255.0 * min / (max - min);
    let b = codes(ctx, 1)?;
    let (b, tb) = (b.slice::<i8>()?, spec.transposed[1]);
    let of_column = |j: usize| -> i64 {
        let code = |l: usize| if tb { b[j * k + l] } else { b[l * n + j] };
        (0..k).map(|l| i64::from(code(l))).sum()
    };
    let biases = bias.slice::<f32>()?.iter().enumerate();
    let shifted: Vec<f32> = biases
        .map(|(j, bias)| bias + of_column(j) as f32 * first)
        .collect();
    Tensor::vector(&shifted)
}
