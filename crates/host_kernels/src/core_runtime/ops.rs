//! Ops of the CPU handler on tensors of all formats: those of TFRT's tests, which compute in double
//! precision, as it represents every value of their types (products wrap as integers do), and
//! constants.

use super::super::dense::{
    CooHostTensor, DenseHostTensor, HostTensor, ScalarHostTensor, copy_bytes,
};
use super::super::dht::coo_to_dense;
use super::super::shape::{Dims, TensorShape};
use super::attrs::{OpAttr, OpAttrs};
use super::handle::{Metadata, MetadataRef};
use super::transfer::{TensorFormat, convert};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_host_context::{AttrNumber, ExecutionContext, HostDType};
use ferroflow_sync::AsyncValue;
use ferroflow_tensor::{HostAllocator, MallocAllocator, f16, memory_limit};
use smallvec::SmallVec;
use std::sync::Arc;

type MetadataFn = fn(&[MetadataRef], &OpAttrs) -> Result<MetadataList>;
/// Types and shapes of an op's results, as far as they are known.
pub(super) type MetadataList = SmallVec<[Option<Metadata>; 1]>;
/// Results of an op: each is a [`HostTensor`].
pub(super) type Outputs = SmallVec<[AsyncValue; 1]>;
type RunFn = fn(&[&HostTensor], &OpAttrs, &ExecutionContext) -> Result<Outputs>;

/// An element type that ops compute with as doubles.
trait Element {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> f64;
    fn write(value: f64, bytes: &mut [u8]);
}

macro_rules! elements {
    ($($ty:ty: $read:expr, $write:expr;)*) => {
        $(impl Element for $ty {
            const SIZE: usize = size_of::<$ty>();
            #[inline]
            fn read(bytes: &[u8]) -> f64 {
                let read: fn($ty) -> f64 = $read;
                bytes.try_into().map_or(0.0, |bytes| read(<$ty>::from_le_bytes(bytes)))
            }
            #[inline]
            fn write(value: f64, bytes: &mut [u8]) {
                let write: fn(f64) -> $ty = $write;
                bytes.copy_from_slice(&write(value).to_le_bytes());
            }
        })*
    };
}
elements! {
    f32: f64::from, |v| v as f32;
    f64: |v| v, |v| v;
    f16: f64::from, f16::from_f64;
    // Integers wrap, as sums of them do.
    i32: f64::from, |v| v as i64 as i32;
    i8: f64::from, |v| v as i64 as i8;
    u8: f64::from, |v| v as i64 as u8;
}

/// Evaluates an expression with `T` as the type of the elements, or returns an error.
macro_rules! with_element {
    ($dtype:expr, $error:literal, T => $body:expr) => {{
        macro_rules! with {
            ($ty:ty) => {{
                type T = $ty;
                $body
            }};
        }
        match $dtype {
            HostDType::F32 => with!(f32),
            HostDType::F64 => with!(f64),
            HostDType::F16 => with!(f16),
            HostDType::I32 => with!(i32),
            HostDType::I8 => with!(i8),
            HostDType::UI8 | HostDType::I1 => with!(u8),
            _ => Err(wrong($error)),
        }
    }};
}

/// An op.
pub(super) struct CpuOp {
    pub(super) name: &'static str,
    /// Computes types and shapes of the results; without it they are known only after the op has
    /// run.
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
    op("tfrt_test.identity", Some(unary_metadata), identity, false),
    op("tfrt_test.identity_dense_only", None, dense_only, false),
    op("tfrt_test.add", Some(same_metadata), add, false),
    // TFRT's implementations accept different formats.
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
    op("tfrt_test.async.noop", Some(unary_metadata), identity, true),
    op("tfrt_test.async.noop_no_md", None, identity, true),
    op("tfrt_test.error.tensor", Some(unary_metadata), fail, false),
];

/// Returns the op `name`, if any.
pub(super) fn find(name: &str) -> Option<&'static CpuOp> {
    OPS.iter().find(|op| op.name == name)
}

fn wrong(what: &str) -> Status {
    invalid_argument!("{what}")
}

fn output(tensor: HostTensor) -> Result<Outputs> {
    Ok(SmallVec::from([AsyncValue::new(tensor)]))
}

fn known(dtype: HostDType, shape: TensorShape) -> MetadataList {
    SmallVec::from([Some((dtype, shape))])
}

/// Elements as numbers; small tensors need no allocation.
type Numbers = SmallVec<[f64; 16]>;

/// Elements as numbers.
fn values(tensor: &HostTensor) -> Result<Numbers> {
    let read = |dtype: HostDType, bytes: &[u8]| -> Result<Numbers> {
        with_element!(dtype, "the op does not take this type", T => {
            Ok(bytes.chunks_exact(T::SIZE).map(T::read).collect())
        })
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

fn dense(
    values: &[f64],
    dtype: HostDType,
    shape: TensorShape,
    ctx: &ExecutionContext,
) -> Result<Outputs> {
    let allocator = ctx.host().allocator();
    let tensor = with_element!(dtype, "the op does not give this type", T => {
        DenseHostTensor::build(allocator, dtype, shape, |bytes| {
            let places = bytes.chunks_exact_mut(T::SIZE);
            places.zip(values).for_each(|(to, v)| T::write(*v, to));
        })
    })?;
    output(HostTensor::Dense(tensor))
}

/// Applies `function` to the elements of two dense tensors of the same type and shape.
fn elementwise(
    a: &DenseHostTensor,
    b: &DenseHostTensor,
    ctx: &ExecutionContext,
    function: impl Fn(f64, f64) -> f64,
) -> Result<Outputs> {
    let (allocator, shape) = (ctx.host().allocator(), a.shape.clone());
    let tensor = with_element!(a.dtype, "the op does not take this type", T => {
        // Locks one buffer at a time: both may be the same.
        DenseHostTensor::build(allocator, a.dtype, shape, |out| {
            a.buffer.read(|a| copy_bytes(a, out));
            b.buffer.read(|b| {
                let pairs = out.chunks_exact_mut(T::SIZE).zip(b.chunks_exact(T::SIZE));
                pairs.for_each(|(to, b)| T::write(function(T::read(to), T::read(b)), to));
            });
        })
    })?;
    output(HostTensor::Dense(tensor))
}

fn one<'a>(inputs: &[&'a HostTensor]) -> Result<&'a HostTensor> {
    match inputs {
        [a] => Ok(a),
        _ => Err(wrong("the op takes one argument")),
    }
}

fn two<'a>(inputs: &[&'a HostTensor]) -> Result<(&'a HostTensor, &'a HostTensor)> {
    match inputs {
        [a, b] => Ok((a, b)),
        _ => Err(wrong("the op takes two arguments")),
    }
}

fn unary_metadata(inputs: &[MetadataRef], _: &OpAttrs) -> Result<MetadataList> {
    match inputs {
        [a] => Ok(known(a.0, a.1.clone())),
        _ => Err(wrong("the op takes one argument")),
    }
}

fn same_metadata(inputs: &[MetadataRef], _: &OpAttrs) -> Result<MetadataList> {
    match inputs {
        [a, b] if a == b => Ok(known(a.0, a.1.clone())),
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

fn matmul_metadata(inputs: &[MetadataRef], attrs: &OpAttrs) -> Result<MetadataList> {
    let [(dtype, a), (_, b)] = inputs else {
        return Err(wrong("the op takes two arguments"));
    };
    let [m, _, n] = matmul_shape(&a.0, &b.0, attrs)?;
    Ok(known(*dtype, TensorShape(Dims::from_slice(&[m, n]))))
}

fn matmul(inputs: &[&HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
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
    let mut out = Numbers::with_capacity(m * n);
    // Without columns the result is empty whatever the number of rows.
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
    dense(
        &out,
        a.dtype(),
        TensorShape(Dims::from_slice(&[m as i64, n as i64])),
        ctx,
    )
}

fn create_metadata(_: &[MetadataRef], attrs: &OpAttrs) -> Result<MetadataList> {
    let shape = TensorShape::new(attrs.numbers("shape")?)?;
    match attrs.get("values")? {
        OpAttr::Array { dtype, .. } => Ok(known(*dtype, shape)),
        _ => Err(wrong("attribute 'values' is not a list")),
    }
}

fn create(_: &[&HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let shape = TensorShape::new(attrs.numbers("shape")?)?;
    let OpAttr::Array { dtype, bytes } = attrs.get("values")? else {
        return Err(wrong("attribute 'values' is not a list"));
    };
    let tensor = DenseHostTensor::of_values(ctx.host().allocator(), *dtype, shape, bytes)?;
    output(HostTensor::Dense(tensor))
}

fn create_scalar(_: &[&HostTensor], attrs: &OpAttrs, _: &ExecutionContext) -> Result<Outputs> {
    let OpAttr::Number { dtype, bytes } = attrs
        .get("value")
        .map_err(|_| wrong("test.create_from_scalar must have 'value' attribute"))?
    else {
        return Err(wrong("attribute 'value' is not a number"));
    };
    output(HostTensor::Scalar(ScalarHostTensor {
        dtype: *dtype,
        shape: TensorShape::new(attrs.numbers("shape")?)?,
        value: bytes.clone(),
    }))
}

/// Creates a sparse tensor from coordinates, one row per element, and the elements.
fn create_coo(inputs: &[&HostTensor], attrs: &OpAttrs, _: &ExecutionContext) -> Result<Outputs> {
    let (indices, elements) = two(inputs)?;
    let shape = TensorShape::new(attrs.numbers("shape")?)?;
    let (indices, elements) = (indices.dense()?, elements.dense()?);
    let rows = [elements.shape.n_elements()? as i64, shape.0.len() as i64];
    if indices.dtype != HostDType::I64 || indices.shape.0[..] != rows {
        return Err(wrong("create_coo_tensor: indices do not fit the elements"));
    }
    let words = |bytes: &[u8]| bytes.chunks(8).filter_map(i64::from_bytes).collect();
    let indices: Vec<i64> = indices.buffer.read(words);
    let values = elements.buffer.read(<[u8]>::to_vec);
    let tensor = CooHostTensor::new(elements.dtype, shape, indices, values)?;
    output(HostTensor::Coo(tensor))
}

/// Returns type, shape and elements of a constant.
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

fn constant(_: &[&HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let (dtype, shape, bytes) = constant_value(attrs)?;
    let tensor = DenseHostTensor::from_bytes(ctx.host().allocator(), dtype, shape, bytes)?;
    output(HostTensor::Dense(tensor))
}

fn constant_metadata(_: &[MetadataRef], attrs: &OpAttrs) -> Result<MetadataList> {
    let (dtype, shape, _) = constant_value(attrs)?;
    Ok(known(dtype, shape))
}

fn zeros_like(inputs: &[&HostTensor], _: &OpAttrs, _: &ExecutionContext) -> Result<Outputs> {
    let a = one(inputs)?;
    if let HostTensor::String(a) = a {
        let mut empty = a.clone();
        empty.strings.iter_mut().for_each(String::clear);
        return output(HostTensor::String(empty));
    }
    let dtype = a.dtype();
    let size = dtype.size().ok_or_else(|| wrong("the op takes numbers"))?;
    output(HostTensor::Scalar(ScalarHostTensor {
        dtype,
        shape: a.shape().clone(),
        value: vec![0; size],
    }))
}

fn dense_only(inputs: &[&HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    output(convert(one(inputs)?, TensorFormat::Dense, ctx)?)
}

fn add_dense(inputs: &[&HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let dense = inputs.iter().map(|t| convert(t, TensorFormat::Dense, ctx));
    let dense = dense.collect::<Result<Vec<_>>>()?;
    add(&dense.iter().collect::<Vec<_>>(), attrs, ctx)
}

fn add(inputs: &[&HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let (a, b) = two(inputs)?;
    if a.shape() != b.shape() || a.dtype() != b.dtype() {
        return Err(wrong("incompatible dtypes or shapes"));
    }
    if let (HostTensor::Scalar(x), HostTensor::Scalar(_)) = (a, b) {
        let sum =
            values(a)?.first().copied().unwrap_or(0.0) + values(b)?.first().copied().unwrap_or(0.0);
        let value = with_element!(x.dtype, "the op does not give this type", T => {
            let mut value = vec![0; T::SIZE];
            T::write(sum, &mut value);
            Ok::<_, Status>(value)
        })?;
        return output(HostTensor::Scalar(ScalarHostTensor { value, ..x.clone() }));
    }
    if let (HostTensor::Dense(x), HostTensor::Dense(y)) = (a, b) {
        return elementwise(x, y, ctx, |x, y| x + y);
    }
    let (left, right) = (values(a)?, values(b)?);
    let sums: Numbers = left.iter().zip(&right).map(|(x, y)| x + y).collect();
    dense(&sums, a.dtype(), a.shape().clone(), ctx)
}

fn equal(inputs: &[&HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let (a, b) = two(inputs)?;
    if a.shape() != b.shape() {
        return Err(wrong("incompatible shapes"));
    }
    let (left, right) = (values(a)?, values(b)?);
    let same = left.iter().zip(&right).map(|(x, y)| f64::from(x == y));
    let same: Numbers = same.collect();
    dense(&same, a.dtype(), a.shape().clone(), ctx)
}

fn relu(inputs: &[&HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let a = one(inputs)?;
    let out: Numbers = values(a)?.into_iter().map(|v| v.max(0.0)).collect();
    dense(&out, a.dtype(), a.shape().clone(), ctx)
}

fn cast(inputs: &[&HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let a = one(inputs)?;
    let dtype =
        HostDType::from_name(attrs.string("type")?).ok_or_else(|| wrong("cast: unknown type"))?;
    dense(&values(a)?, dtype, a.shape().clone(), ctx)
}

/// Returns the sizes before, along and after an axis.
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

/// Reduces each row along the axis.
fn reduce(
    inputs: &[&HostTensor],
    attrs: &OpAttrs,
    ctx: &ExecutionContext,
    dtype: Option<HostDType>,
    line: impl Fn(&[f64]) -> f64,
) -> Result<Outputs> {
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

fn argmax(inputs: &[&HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
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

fn reduce_mean(inputs: &[&HostTensor], attrs: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    reduce(inputs, attrs, ctx, None, |items| {
        items.iter().sum::<f64>() / items.len().max(1) as f64
    })
}

fn odd_collector(inputs: &[&HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let a = one(inputs)?;
    let odd: Numbers = values(a)?
        .into_iter()
        .filter(|v| v.rem_euclid(2.0) == 1.0)
        .collect();
    dense(
        &odd,
        a.dtype(),
        TensorShape(Dims::from_slice(&[odd.len() as i64])),
        ctx,
    )
}

fn print(inputs: &[&HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let text = one(inputs)?.show(ctx.host());
    ctx.host().print(&format!("{text}\n"));
    Ok(Outputs::new())
}

/// Prints the address of the elements, which shows whether an op reused its input's buffer.
fn print_address(inputs: &[&HostTensor], _: &OpAttrs, ctx: &ExecutionContext) -> Result<Outputs> {
    let address = one(inputs)?.dense()?.buffer.read(<[u8]>::as_ptr);
    let text = format!("DenseHostTensor: buffer={address:p}\n");
    ctx.host().print(&text);
    Ok(Outputs::new())
}

fn identity(inputs: &[&HostTensor], _: &OpAttrs, _: &ExecutionContext) -> Result<Outputs> {
    output(one(inputs)?.clone())
}

fn fail(_: &[&HostTensor], _: &OpAttrs, _: &ExecutionContext) -> Result<Outputs> {
    Err(wrong("error from test.error.tensor implementation"))
}
