//! Ops of the CPU handler that work on tensors of all forms: those that TFRT's tests use, which count
//! in double precision, for it represents every value of the types they take (products wrap as integers do), and
//! constants.

use super::super::dense::{CooHostTensor, DenseHostTensor, HostTensor, ScalarHostTensor};
use super::super::dht::coo_to_dense;
use super::super::shape::TensorShape;
use super::attrs::{OpAttr, OpAttrs};
use super::handle::Metadata;
use super::transfer::{Form, convert};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_host_context::{AttrNumber, ExecutionContext, HostDType};
use ferroflow_tensor::{HostAllocator, MallocAllocator, f16, memory_limit};
use std::sync::Arc;

type MetadataFn = fn(&[Metadata], &OpAttrs) -> Result<Vec<Metadata>>;
type RunFn = fn(&[HostTensor], &OpAttrs, &ExecutionContext) -> Result<Vec<HostTensor>>;

/// An op.
pub(super) struct CpuOp {
    pub(super) name: &'static str,
    /// Types and shapes of the results; ops without it are known only when they have run.
    pub(super) metadata: Option<MetadataFn>,
    pub(super) run: RunFn,
    /// Whether it runs from the work queue.
    pub(super) is_async: bool,
}

const fn op(name: &'static str, metadata: Option<MetadataFn>, run: RunFn, is_async: bool) -> CpuOp {
    CpuOp {
        name,
        metadata,
        run,
        is_async,
    }
}

const OPS: &[CpuOp] = &[
    op(
        "tfrt_test.create_dense_tensor",
        Some(create_metadata),
        create,
        false,
    ),
    op("tfrt_test.create_from_scalar", None, create_scalar, false),
    op("tfrt_test.matmul", Some(matmul_metadata), matmul, false),
    op("tfrt_test.create_coo_tensor", None, create_coo, false),
    op("tfrt_test.identity_dense_only", None, dense_only, false),
    op("tfrt_test.add", Some(same_metadata), add, false),
    // TFRT's differ in what its implementations ask for.
    op("tfrt_test.add.denseonly", None, add_dense, false),
    op("tfrt_test.add.denseonly2", None, add_dense, false),
    op("tfrt_test.add.denseonly3", None, add_dense, false),
    op("tfrt_test.equal", None, equal, false),
    op("tfrt_test.relu", Some(unary_metadata), relu, false),
    op("tfrt_test.cast", None, cast, false),
    op("tfrt_test.argmax", None, argmax, false),
    op("tfrt_test.reduce_mean", None, reduce_mean, false),
    op("tfrt_test.odd_collector", None, odd_collector, false),
    op("tfrt_test.print", None, print, false),
    op("tfrt_test.print_address", None, print_address, false),
    op("tf.Const", Some(constant_metadata), constant, false),
    op("tf.ZerosLike", Some(unary_metadata), zeros_like, false),
    op("tfrt_test.async.noop", Some(unary_metadata), noop, true),
    op("tfrt_test.async.noop_no_md", None, noop, true),
    op("tfrt_test.error.tensor", Some(unary_metadata), fail, false),
];

/// The op called `name`.
pub(super) fn find(name: &str) -> Option<&'static CpuOp> {
    OPS.iter().find(|op| op.name == name)
}

fn wrong(what: &str) -> Status {
    invalid_argument!("{what}")
}

/// Elements as numbers.
fn values(tensor: &HostTensor) -> Result<Vec<f64>> {
    let read = |dtype: HostDType, bytes: &[u8]| -> Result<Vec<f64>> {
        let size = dtype.size().unwrap_or(1);
        let number = |b: &[u8]| -> Option<f64> {
            Some(match dtype.name()? {
                "f32" => f32::from_le_bytes(b.try_into().ok()?).into(),
                "f64" => f64::from_le_bytes(b.try_into().ok()?),
                "f16" => f16::from_le_bytes(b.try_into().ok()?).into(),
                "i32" => i32::from_le_bytes(b.try_into().ok()?).into(),
                "i8" => i8::from_le_bytes(b.try_into().ok()?).into(),
                "ui8" | "i1" => (*b.first()?).into(),
                _ => return None,
            })
        };
        bytes
            .chunks(size)
            .map(number)
            .collect::<Option<_>>()
            .ok_or_else(|| wrong("the op does not take this type"))
    };
    match tensor {
        HostTensor::Dense(t) => t.buffer.read(|bytes| read(t.dtype, bytes)),
        HostTensor::Scalar(t) => {
            let one = read(t.dtype, &t.value)?;
            let n = t.shape.n_elements()?;
            if n > memory_limit() / size_of::<f64>() {
                return Err(wrong("Cannot allocate tensor"));
            }
            Ok(one.into_iter().cycle().take(n).collect())
        }
        HostTensor::Coo(t) => {
            let allocator: Arc<dyn HostAllocator> = Arc::new(MallocAllocator);
            let dense = coo_to_dense(t, &allocator)?;
            dense.buffer.read(|bytes| read(t.dtype, bytes))
        }
        HostTensor::String(_) => Err(wrong("the op takes numbers")),
    }
}

fn bytes_of(values: &[f64], dtype: HostDType) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for v in values {
        match dtype.name() {
            Some("f32") => bytes.extend((*v as f32).to_le_bytes()),
            Some("f64") => bytes.extend(v.to_le_bytes()),
            Some("f16") => bytes.extend(f16::from_f64(*v).to_le_bytes()),
            // Integers wrap, as sums of them do.
            Some("i32") => bytes.extend((*v as i64 as i32).to_le_bytes()),
            Some("i8") => bytes.extend((*v as i64 as i8).to_le_bytes()),
            Some("ui8" | "i1") => bytes.push(*v as i64 as u8),
            _ => return Err(wrong("the op does not give this type")),
        }
    }
    Ok(bytes)
}

fn dense(
    values: &[f64],
    dtype: HostDType,
    shape: TensorShape,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    let bytes = bytes_of(values, dtype)?;
    let allocator = ctx.host().allocator();
    let tensor = DenseHostTensor::from_bytes(allocator, dtype, shape, &bytes)?;
    Ok(vec![HostTensor::Dense(tensor)])
}

fn one(inputs: &[HostTensor]) -> Result<&HostTensor> {
    match inputs {
        [a] => Ok(a),
        _ => Err(wrong("the op takes one argument")),
    }
}

fn two(inputs: &[HostTensor]) -> Result<(&HostTensor, &HostTensor)> {
    match inputs {
        [a, b] => Ok((a, b)),
        _ => Err(wrong("the op takes two arguments")),
    }
}

fn unary_metadata(inputs: &[Metadata], _: &OpAttrs) -> Result<Vec<Metadata>> {
    match inputs {
        [a] => Ok(vec![a.clone()]),
        _ => Err(wrong("the op takes one argument")),
    }
}

fn same_metadata(inputs: &[Metadata], _: &OpAttrs) -> Result<Vec<Metadata>> {
    match inputs {
        [a, b] if a == b => Ok(vec![a.clone()]),
        [_, _] => Err(wrong("incompatible dtypes or shapes")),
        _ => Err(wrong("the op takes two arguments")),
    }
}

fn matmul_shape(a: &[i64], b: &[i64], attrs: &OpAttrs) -> Result<[i64; 3]> {
    let transposed = |name: &str, dims: &[i64]| match dims {
        [rows, columns] => Ok(match attrs.number::<bool>(name)? {
            true => (*columns, *rows),
            false => (*rows, *columns),
        }),
        _ => Err(wrong("matmul arguments must be of rank 2")),
    };
    let ((m, k), (k2, n)) = (transposed("transpose_a", a)?, transposed("transpose_b", b)?);
    match k == k2 {
        true => Ok([m, k, n]),
        false => Err(wrong("matmul arguments have incompatible shapes")),
    }
}

fn matmul_metadata(inputs: &[Metadata], attrs: &OpAttrs) -> Result<Vec<Metadata>> {
    let [(dtype, a), (_, b)] = inputs else {
        return Err(wrong("the op takes two arguments"));
    };
    let [m, _, n] = matmul_shape(&a.0, &b.0, attrs)?;
    Ok(vec![(*dtype, TensorShape(vec![m, n]))])
}

fn matmul(
    inputs: &[HostTensor],
    attrs: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    let (a, b) = two(inputs)?;
    let [m, k, n] = matmul_shape(&a.shape().0, &b.shape().0, attrs)?.map(|d| d as usize);
    let (left, right) = (values(a)?, values(b)?);
    let (at, bt) = (
        attrs.number::<bool>("transpose_a")?,
        attrs.number::<bool>("transpose_b")?,
    );
    let element = |v: &[f64], i: usize| v.get(i).copied().unwrap_or(0.0);
    if m.saturating_mul(n) > memory_limit() / size_of::<f64>() {
        return Err(wrong("Cannot allocate tensor"));
    }
    let is_whole = !matches!(a.dtype().name(), Some("f16" | "f32" | "f64"));
    let mut out = Vec::with_capacity(m * n);
    // Without columns there is nothing to do for any number of rows.
    let rows = if n > 0 { m } else { 0 };
    for i in 0..rows {
        for j in 0..n {
            let pairs = (0..k).map(|l| {
                let x = element(&left, if at { l * m + i } else { i * k + l });
                let y = element(&right, if bt { j * k + l } else { l * n + j });
                (x, y)
            });
            out.push(match is_whole {
                false => pairs.map(|(x, y)| x * y).sum(),
                true => pairs.fold(0i32, |sum, (x, y)| {
                    sum.wrapping_add((x as i32).wrapping_mul(y as i32))
                }) as f64,
            });
        }
    }
    dense(&out, a.dtype(), TensorShape(vec![m as i64, n as i64]), ctx)
}

fn create_metadata(_: &[Metadata], attrs: &OpAttrs) -> Result<Vec<Metadata>> {
    let shape = TensorShape::new(attrs.numbers("shape")?)?;
    match attrs.get("values")? {
        OpAttr::Array { dtype, .. } => Ok(vec![(*dtype, shape)]),
        _ => Err(wrong("attribute 'values' is not a list")),
    }
}

fn create(_: &[HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let shape = TensorShape::new(attrs.numbers("shape")?)?;
    let OpAttr::Array { dtype, bytes } = attrs.get("values")? else {
        return Err(wrong("attribute 'values' is not a list"));
    };
    let tensor = DenseHostTensor::of_values(ctx.host().allocator(), *dtype, shape, bytes)?;
    Ok(vec![HostTensor::Dense(tensor)])
}

fn create_scalar(
    _: &[HostTensor],
    attrs: &OpAttrs,
    _: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    let OpAttr::Number { dtype, bytes } = attrs
        .get("value")
        .map_err(|_| wrong("test.create_from_scalar must have 'value' attribute"))?
    else {
        return Err(wrong("attribute 'value' is not a number"));
    };
    Ok(vec![HostTensor::Scalar(ScalarHostTensor {
        dtype: *dtype,
        shape: TensorShape::new(attrs.numbers("shape")?)?,
        value: bytes.clone(),
    })])
}

/// Coordinates, a row for each element, and the elements.
fn create_coo(
    inputs: &[HostTensor],
    attrs: &OpAttrs,
    _: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    let (indices, elements) = two(inputs)?;
    let shape = TensorShape::new(attrs.numbers("shape")?)?;
    let (indices, elements) = (indices.dense()?, elements.dense()?);
    let rows = [elements.shape.n_elements()? as i64, shape.0.len() as i64];
    if indices.dtype != HostDType::I64 || indices.shape.0 != rows {
        return Err(wrong("create_coo_tensor: indices do not fit the elements"));
    }
    let words = |bytes: &[u8]| bytes.chunks(8).filter_map(i64::from_bytes).collect();
    let indices: Vec<i64> = indices.buffer.read(words);
    let values = elements.buffer.read(<[u8]>::to_vec);
    let tensor = CooHostTensor::new(elements.dtype, shape, indices, values)?;
    Ok(vec![HostTensor::Coo(tensor)])
}

/// Type, shape and elements of a constant.
fn constant_value(attrs: &OpAttrs) -> Result<(HostDType, TensorShape, &[u8])> {
    let OpAttr::Dense {
        dtype,
        shape,
        bytes,
    } = attrs.get("value")?
    else {
        return Err(wrong("attribute 'value' is not dense"));
    };
    match attrs.0.get("dtype") {
        Some(OpAttr::Type(other)) if other != dtype => {
            Err(wrong("attributes 'dtype' and 'value' have different types"))
        }
        _ => Ok((*dtype, TensorShape::new(shape.clone())?, bytes)),
    }
}

fn constant(_: &[HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let (dtype, shape, bytes) = constant_value(attrs)?;
    let tensor = DenseHostTensor::from_bytes(ctx.host().allocator(), dtype, shape, bytes)?;
    Ok(vec![HostTensor::Dense(tensor)])
}

fn constant_metadata(_: &[Metadata], attrs: &OpAttrs) -> Result<Vec<Metadata>> {
    let (dtype, shape, _) = constant_value(attrs)?;
    Ok(vec![(dtype, shape)])
}

fn zeros_like(inputs: &[HostTensor], _: &OpAttrs, _: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let a = one(inputs)?;
    if let HostTensor::String(a) = a {
        let mut empty = a.clone();
        empty.strings.iter_mut().for_each(String::clear);
        return Ok(vec![HostTensor::String(empty)]);
    }
    let dtype = a.dtype();
    let size = dtype.size().ok_or_else(|| wrong("the op takes numbers"))?;
    Ok(vec![HostTensor::Scalar(ScalarHostTensor {
        dtype,
        shape: a.shape().clone(),
        value: vec![0; size],
    })])
}

fn dense_only(
    inputs: &[HostTensor],
    _: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    Ok(vec![convert(one(inputs)?, Form::Dense, ctx)?])
}

fn add_dense(
    inputs: &[HostTensor],
    attrs: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    let dense = inputs.iter().map(|t| convert(t, Form::Dense, ctx));
    add(&dense.collect::<Result<Vec<_>>>()?, attrs, ctx)
}

fn add(inputs: &[HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let (a, b) = two(inputs)?;
    if a.shape() != b.shape() || a.dtype() != b.dtype() {
        return Err(wrong("incompatible dtypes or shapes"));
    }
    if let (HostTensor::Scalar(x), HostTensor::Scalar(_)) = (a, b) {
        let sum =
            values(a)?.first().copied().unwrap_or(0.0) + values(b)?.first().copied().unwrap_or(0.0);
        let value = bytes_of(&[sum], x.dtype)?;
        return Ok(vec![HostTensor::Scalar(ScalarHostTensor {
            value,
            ..x.clone()
        })]);
    }
    let (left, right) = (values(a)?, values(b)?);
    let sums: Vec<f64> = left.iter().zip(&right).map(|(x, y)| x + y).collect();
    dense(&sums, a.dtype(), a.shape().clone(), ctx)
}

fn equal(inputs: &[HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let (a, b) = two(inputs)?;
    if a.shape() != b.shape() {
        return Err(wrong("incompatible shapes"));
    }
    let (left, right) = (values(a)?, values(b)?);
    let same = left.iter().zip(&right).map(|(x, y)| f64::from(x == y));
    let same: Vec<f64> = same.collect();
    dense(&same, a.dtype(), a.shape().clone(), ctx)
}

fn relu(inputs: &[HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let a = one(inputs)?;
    let out: Vec<f64> = values(a)?.into_iter().map(|v| v.max(0.0)).collect();
    dense(&out, a.dtype(), a.shape().clone(), ctx)
}

fn cast(inputs: &[HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let a = one(inputs)?;
    let dtype =
        HostDType::from_name(attrs.string("type")?).ok_or_else(|| wrong("cast: unknown type"))?;
    dense(&values(a)?, dtype, a.shape().clone(), ctx)
}

/// Sizes before, along and after an axis.
fn split(tensor: &HostTensor, attrs: &OpAttrs) -> Result<(usize, usize, usize, TensorShape)> {
    let axis = usize::try_from(attrs.number::<i32>("axis")?).unwrap_or(usize::MAX);
    let dims = &tensor.shape().0;
    let Some(along) = dims.get(axis) else {
        return Err(wrong("axis is out of range"));
    };
    let product = |dims: &[i64]| dims.iter().product::<i64>() as usize;
    let (before, after) = (product(&dims[..axis]), product(&dims[axis + 1..]));
    let mut rest = dims.clone();
    rest.remove(axis);
    Ok((before, *along as usize, after, TensorShape(rest)))
}

/// Reduces each line along the axis.
fn reduce(
    inputs: &[HostTensor],
    attrs: &OpAttrs,
    ctx: &ExecutionContext,
    dtype: Option<HostDType>,
    line: impl Fn(&[f64]) -> f64,
) -> Result<Vec<HostTensor>> {
    let a = one(inputs)?;
    let (before, along, after, shape) = split(a, attrs)?;
    let all = values(a)?;
    let mut out = Vec::new();
    for i in 0..before {
        for j in 0..after {
            let at = |l: usize| all.get((i * along + l) * after + j).copied().unwrap_or(0.0);
            let items: Vec<f64> = (0..along).map(at).collect();
            out.push(line(&items));
        }
    }
    dense(&out, dtype.unwrap_or(a.dtype()), shape, ctx)
}

fn argmax(
    inputs: &[HostTensor],
    attrs: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    reduce(inputs, attrs, ctx, Some(HostDType::I32), |items| {
        let best = items
            .iter()
            .enumerate()
            .fold((0, f64::NEG_INFINITY), |best, (i, v)| {
                if *v > best.1 { (i, *v) } else { best }
            });
        best.0 as f64
    })
}

fn reduce_mean(
    inputs: &[HostTensor],
    attrs: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    reduce(inputs, attrs, ctx, None, |items| {
        items.iter().sum::<f64>() / items.len().max(1) as f64
    })
}

fn odd_collector(
    inputs: &[HostTensor],
    _: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    let a = one(inputs)?;
    let odd: Vec<f64> = values(a)?
        .into_iter()
        .filter(|v| v.rem_euclid(2.0) == 1.0)
        .collect();
    dense(&odd, a.dtype(), TensorShape(vec![odd.len() as i64]), ctx)
}

fn print(inputs: &[HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
    let text = one(inputs)?.show(ctx.host());
    ctx.host().print(&format!("{text}\n"));
    Ok(Vec::new())
}

/// Where the elements lie, for those who want to know whether an op wrote over its input.
fn print_address(
    inputs: &[HostTensor],
    _: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<HostTensor>> {
    let address = one(inputs)?.dense()?.buffer.read(<[u8]>::as_ptr);
    let text = format!("DenseHostTensor: buffer={address:p}\n");
    ctx.host().print(&text);
    Ok(Vec::new())
}

fn noop(inputs: &[HostTensor], _: &OpAttrs, _: &ExecutionContext) -> Result<Vec<HostTensor>> {
    Ok(vec![one(inputs)?.clone()])
}

fn fail(_: &[HostTensor], _: &OpAttrs, _: &ExecutionContext) -> Result<Vec<HostTensor>> {
    Err(wrong("error from test.error.tensor implementation"))
}
