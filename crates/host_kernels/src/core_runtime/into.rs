//! Kernels that write the result of an op into an existing tensor: `tf_sync.*`, and `tfrt_test.*`
//! of TFRT's own tests.

use super::super::dense::{DenseHostTensor, HostTensor};
use super::super::shape::{Dims, TensorShape};
use super::attrs::{OpAttr, OpAttrs};
use super::ops;
use super::tensor_op::{OpCall, TensorOp};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_host_context::{
    Attribute, Frame, HostDType, KernelFrame, KernelRegistry, SyncKernelFrame,
};
use ferroflow_sync::{AsyncValue, Chain};
use smallvec::SmallVec;

/// Runs `op` and returns its result.
fn compute(
    frame: &impl Frame,
    op: &str,
    inputs: &[HostTensor],
    attrs: &OpAttrs,
) -> Result<AsyncValue> {
    let inputs: SmallVec<[&HostTensor; 4]> = inputs.iter().collect();
    let results = match ops::find(op) {
        Some(own) => (own.run)(&inputs, attrs, frame.ctx())?,
        None => {
            let tensor_op = TensorOp::find(op);
            let tensor_op = tensor_op.ok_or_else(|| internal!("op {op} is missing"))?;
            OpCall::new(&tensor_op, &inputs, attrs, frame.ctx())?.run_here(frame.ctx())?
        }
    };
    let result = results.into_iter().next();
    result.ok_or_else(|| internal!("{op} returned no result"))
}

/// Returns these arguments, the first of which must have the kernel's type.
fn inputs(frame: &impl Frame, dtype: HostDType, arguments: &[usize]) -> Result<Vec<HostTensor>> {
    let tensor = |i: &usize| frame.arg::<HostTensor>(*i).cloned();
    let tensors: Vec<_> = arguments.iter().map(tensor).collect::<Result<_>>()?;
    if let (Some(first), Some(i)) = (tensors.first(), arguments.first())
        && first.dtype() != dtype
    {
        let name = |dtype: HostDType| dtype.name().unwrap_or("?");
        return Err(invalid_argument!(
            "argument {i} is a tensor of {}, kernel expects one of {}",
            name(first.dtype()),
            name(dtype)
        ));
    }
    Ok(tensors)
}

/// Returns `result`, and the argument `output` if it can hold the result.
fn into<'a>(
    frame: &'a impl Frame,
    output: usize,
    result: &'a AsyncValue,
) -> Result<(&'a DenseHostTensor, &'a DenseHostTensor)> {
    let (from, to) = (
        result.expect::<HostTensor>()?.dense()?,
        frame.arg::<HostTensor>(output)?.dense()?,
    );
    if from.shape != to.shape {
        return Err(invalid_argument!(
            "output shape {} does not match the expected output shape {}",
            to.shape,
            from.shape
        ));
    }
    if from.dtype != to.dtype {
        let name = |t: &DenseHostTensor| t.dtype.name().unwrap_or("?");
        return Err(invalid_argument!(
            "output is of {}, the result of {}",
            name(to),
            name(from)
        ));
    }
    Ok((from, to))
}

/// Writes `result` to the argument `output`.
fn store(frame: &impl Frame, output: usize, result: &AsyncValue) -> Result<()> {
    let (from, to) = into(frame, output, result)?;
    let bytes = from.buffer.read(<[u8]>::to_vec);
    to.buffer.write(|to| to.copy_from_slice(&bytes));
    Ok(())
}

fn flag(value: bool) -> OpAttr {
    OpAttr::Number {
        dtype: HostDType::I1,
        bytes: vec![value.into()],
    }
}

fn ints(values: &[i32]) -> OpAttr {
    OpAttr::Array {
        dtype: HostDType::I32,
        bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn named<const N: usize>(attrs: [(&str, OpAttr); N]) -> OpAttrs {
    OpAttrs(attrs.map(|(name, attr)| (name.to_string(), attr)).into())
}

fn i32_tensor(frame: &impl Frame, value: i32) -> Result<HostTensor> {
    let (allocator, shape) = (frame.ctx().host().allocator(), TensorShape(Dims::new()));
    let bytes = value.to_le_bytes();
    let tensor = DenseHostTensor::from_bytes(allocator, HostDType::I32, shape, &bytes)?;
    Ok(HostTensor::Dense(tensor))
}

/// Concatenates along an axis; scalars form a vector.
fn concat(frame: &mut SyncKernelFrame, dtype: HostDType) -> Result<()> {
    let output = frame.n_args().saturating_sub(1);
    let axis = i32_tensor(frame, *frame.arg::<i32>(0)?)?;
    let mut tensors = inputs(frame, dtype, &(1..output).collect::<Vec<_>>())?;
    for tensor in &mut tensors {
        if let HostTensor::Dense(t) = tensor
            && t.shape.0.is_empty()
        {
            t.shape.0.push(1);
        }
    }
    tensors.push(axis);
    let joined = compute(frame, "ConcatV2", &tensors, &OpAttrs::default())?;
    store(frame, output, &joined)
}

/// Reads an attribute with a header, or an empty list, which has none.
fn op_attr(attribute: Attribute) -> Result<OpAttr> {
    match attribute.kind().filter(|k| k.is_array()) {
        Some(kind) if attribute.array_bytes(kind.dtype())?.0 == 0 => {
            Ok(OpAttr::Aggregate(Vec::new()))
        }
        _ => OpAttr::new(&attribute.typed()?),
    }
}

/// Multiplies two matrices and applies the following ops.
fn fused_matmul(frame: &mut SyncKernelFrame) -> Result<()> {
    let arguments: Vec<usize> = (0..frame.n_args()).filter(|i| *i != 2).collect();
    let factors = inputs(frame, HostDType::F32, &arguments)?;
    let attrs = named([
        ("fused_ops", op_attr(frame.attribute(0)?)?),
        ("transpose_a", flag(frame.attribute(1)?.number()?)),
        ("transpose_b", flag(frame.attribute(2)?.number()?)),
    ]);
    let product = compute(frame, "_FusedMatMul", &factors, &attrs)?;
    store(frame, 2, &product)
}

fn constant(frame: &mut SyncKernelFrame) -> Result<()> {
    let value = OpAttr::new(&frame.attribute(0)?.typed()?)?;
    let value = compute(frame, "tf.Const", &[], &named([("value", value)]))?;
    store(frame, 0, &value)
}

/// Writes `alpha a b + beta c` to `c`. Alpha is the first argument and beta the fourth; `c` is not
/// read if beta is zero. `sum` adds the terms of one element.
fn matmul<T: Copy + 'static>(
    frame: &mut KernelFrame,
    dtype: HostDType,
    sum: impl Fn(T, [u8; 4], T, [u8; 4]) -> [u8; 4],
) -> Result<()> {
    let (alpha, beta) = (*frame.arg::<T>(0)?, *frame.arg::<T>(3)?);
    let factors = inputs(frame, dtype, &[1, 2])?;
    let product = compute(frame, "MatMul", &factors, &OpAttrs::default())?;
    let (from, to) = into(frame, 4, &product)?;
    let product = from.buffer.read(<[u8]>::to_vec);
    to.buffer.write(|to| {
        for (to, product) in to.as_chunks_mut().0.iter_mut().zip(product.as_chunks().0) {
            *to = sum(alpha, *product, beta, *to);
        }
    });
    frame.emplace(0, Chain);
    Ok(())
}

/// Computes the maximum of each window.
fn max_pool(frame: &mut KernelFrame) -> Result<()> {
    let padding = match frame.attribute(0)?.string()? {
        "valid" => "VALID",
        "same" => "SAME",
        other => return Err(invalid_argument!("padding '{other}' is not recognized")),
    };
    let window = |i: usize| -> Result<OpAttr> {
        match frame.attribute(i)?.array::<i32>()?[..] {
            [rows, columns] => Ok(ints(&[1, rows, columns, 1])),
            _ => Err(invalid_argument!("a window has two sizes and two strides")),
        }
    };
    let attrs = named([
        ("padding", OpAttr::String(padding.to_string())),
        ("ksize", window(1)?),
        ("strides", window(2)?),
    ]);
    let pooled = compute(
        frame,
        "MaxPool",
        &inputs(frame, HostDType::F32, &[0])?,
        &attrs,
    )?;
    store(frame, 1, &pooled)?;
    frame.emplace(0, Chain);
    Ok(())
}

/// Reshapes without changing elements.
fn flatten(frame: &mut KernelFrame) -> Result<()> {
    let (from, to) = (frame.arg::<HostTensor>(0)?, frame.arg::<HostTensor>(1)?);
    let (mut from, to) = (from.dense()?.clone(), to.dense()?);
    if from.shape.n_elements()? == to.shape.n_elements()? {
        from.shape = to.shape.clone();
    }
    store(frame, 1, &AsyncValue::new(HostTensor::Dense(from)))?;
    frame.emplace(0, Chain);
    Ok(())
}

/// Applies `op` along the last axis of a tensor and returns a new tensor.
fn along_last(frame: &mut KernelFrame, op: &str, dtype: HostDType) -> Result<()> {
    let tensors = inputs(frame, dtype, &[0])?;
    let rank = tensors.iter().map(|t| t.shape().0.len()).sum::<usize>();
    let axis = OpAttr::Number {
        dtype: HostDType::I32,
        bytes: (rank as i32 - 1).to_le_bytes().to_vec(),
    };
    let reduced = compute(frame, op, &tensors, &named([("axis", axis)]))?;
    frame.set_result(0, reduced);
    Ok(())
}

/// Adds a kernel `tf_sync.OP.TYPE` of synchronous functions whose last argument is the result.
fn add_sync(
    registry: &mut KernelRegistry,
    op: &'static str,
    ty: (&str, HostDType),
    arguments: &'static [usize],
) {
    registry.add_raw_sync(&format!("tf_sync.{op}.{}", ty.0), move |frame| {
        let inputs = inputs(frame, ty.1, arguments)?;
        let result = compute(frame, op, &inputs, &OpAttrs::default())?;
        store(frame, arguments.len(), &result)
    });
}

/// Adds a kernel `tfrt_test.KERNEL.TYPE` that takes `arguments`, writes to argument `output` and
/// returns a chain.
fn add(
    registry: &mut KernelRegistry,
    (kernel, op, arguments, output): (&str, &'static str, &'static [usize], usize),
    ty: (&str, HostDType),
) {
    registry.add_raw(&format!("tfrt_test.{kernel}.{}", ty.0), move |frame| {
        let inputs = inputs(frame, ty.1, arguments)?;
        let result = compute(frame, op, &inputs, &OpAttrs::default())?;
        store(frame, output, &result)?;
        frame.emplace(0, Chain);
        Ok(())
    });
}

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = |names: &[&'static str]| {
        let typed = |name: &&'static str| Some((*name, HostDType::from_name(name)?));
        names.iter().filter_map(typed).collect::<Vec<_>>()
    };
    for ty in types(&["f16", "f32", "f64"]) {
        for op in ["Log", "Log1p", "Rsqrt", "Sigmoid", "Softmax", "LogSoftmax"] {
            add_sync(registry, op, ty, &[0]);
        }
    }
    for ty in types(&["ui8", "i8", "i32", "i64", "f16", "f32", "f64"]) {
        for op in ["AddV2", "Mul", "Sub", "RealDiv", "Tile"] {
            add_sync(registry, op, ty, &[0, 1]);
        }
        let (name, dtype) = ty;
        registry.add_raw_sync(&format!("tf_sync.ConcatV2.{name}"), move |frame| {
            concat(frame, dtype)
        });
    }
    for ty in types(&["f32", "i32"]) {
        let rows: [(&str, &'static str, &'static [usize], usize); 6] = [
            ("relu", "tfrt_test.relu", &[0], 1),
            ("relu_inplace", "tfrt_test.relu", &[0], 0),
            ("add", "tfrt_test.add", &[0, 1], 2),
            ("add_inplace", "tfrt_test.add", &[0, 1], 1),
            ("equal", "tfrt_test.equal", &[0, 1], 2),
            ("equal_inplace", "tfrt_test.equal", &[0, 1], 1),
        ];
        for row in rows {
            add(registry, row, ty);
        }
        let (name, dtype) = ty;
        registry
            .add_raw(&format!("tfrt_test.argmax.{name}.2"), move |frame| {
                along_last(frame, "tfrt_test.argmax", dtype)
            })
            .add_raw(&format!("tfrt_test.reduce_mean.{name}.1"), move |frame| {
                along_last(frame, "tfrt_test.reduce_mean", dtype)
            });
    }
    registry
        .add_raw_sync("tf_sync.Const", constant)
        .add_raw_sync("tf_sync._FusedMatMul.f32", fused_matmul)
        .add_raw("tfrt_test.matmul.f32.2", |frame| {
            matmul(frame, HostDType::F32, |alpha: f32, product, beta, old| {
                let product = alpha * f32::from_le_bytes(product);
                let sum = match beta {
                    0.0 => product,
                    beta => product + beta * f32::from_le_bytes(old),
                };
                sum.to_le_bytes()
            })
        })
        .add_raw("tfrt_test.matmul.i32.2", |frame| {
            matmul(frame, HostDType::I32, |alpha: i32, product, beta, old| {
                let product = alpha.wrapping_mul(i32::from_le_bytes(product));
                let old = beta.wrapping_mul(i32::from_le_bytes(old));
                product.wrapping_add(old).to_le_bytes()
            })
        })
        .add_raw("tfrt_test.flatten.f32", flatten)
        .add_raw("tfrt_test.max_pooling_2d.f32", max_pool);
}
