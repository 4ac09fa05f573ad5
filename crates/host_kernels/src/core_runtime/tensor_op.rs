//! TensorFlow's ops on the handler of the CPU: the same op files that sessions use.
//!
//! An op is called `tf.NAME`, or just `NAME` if no op of the core runtime is called that.

use super::super::dense::{
    DenseHostTensor, HostTensor, ScalarHostTensor, SharedBuffer, StringHostTensor,
};
use super::super::shape::TensorShape;
use super::attrs::{OpAttr, OpAttrs};
use super::handle::Metadata;
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_host_context::{ExecutionContext, HostDType};
use ferroflow_opdef::{AsyncCall, AttrValue, Attrs, Cost, Resources, StepServices, Value};
use ferroflow_opdef::{PreparedOp, PreparedOps};
use ferroflow_ops::registry;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, memory_limit};
use std::sync::Arc;

/// TensorFlow's name of an op, if there is such an op.
pub(super) fn find(op: &str) -> Option<&'static str> {
    let name = op.strip_prefix("tf.").unwrap_or(op);
    let is_known = !name.starts_with('_') || name == "_FusedMatMul";
    let row = registry().op(name).filter(|_| is_known);
    row.map(|op| op.name)
}

/// Types and shapes of the results, where the inputs' say them; an error if those do not fit.
pub(super) fn metadata(
    op: &str,
    inputs: &[Metadata],
    attrs: &OpAttrs,
    ctx: &ExecutionContext,
) -> Result<Vec<Option<Metadata>>> {
    let dtypes: Vec<DType> = inputs
        .iter()
        .map(|(t, _)| dtype(*t))
        .collect::<Result<_>>()?;
    let prepared = prepared(op, attrs, &dtypes, ctx)?;
    let shapes = inputs
        .iter()
        .map(|(_, s)| PartialShape::from_tf(Some(&s.0)))
        .collect::<Result<Vec<_>>>()?;
    let shapes = prepared.shapes(&shapes, &[])?;
    let known = |(dtype, shape): (&DType, &PartialShape)| {
        let dims = shape.to_full()?.to_i64().to_vec();
        Some((host_dtype(*dtype)?, TensorShape(dims)))
    };
    Ok(prepared.outputs().iter().zip(&shapes).map(known).collect())
}

/// A call of an op with its inputs.
pub(super) struct OpCall {
    op: Arc<PreparedOp>,
    inputs: Vec<Tensor>,
    /// The shape of the result, where that is one number many times because the inputs are.
    uniform: Option<TensorShape>,
}

/// Ops that take element by element, so that the result is one number many times if the inputs are.
const ELEMENTWISE: &[&str] = &["AddV2", "Sub", "Mul", "RealDiv"];

/// Bytes of inputs from which on an op whose time grows with them is worth a task.
const LARGE: usize = 1 << 16;

impl OpCall {
    pub(super) fn new(
        op: &str,
        inputs: &[HostTensor],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
    ) -> Result<OpCall> {
        let is_scalar = |t: &HostTensor| matches!(t, HostTensor::Scalar(_));
        if ELEMENTWISE.contains(&op) && inputs.iter().all(is_scalar) {
            return Self::of_scalars(op, inputs, attrs, ctx);
        }
        let inputs = inputs.iter().map(tensor).collect::<Result<Vec<_>>>()?;
        let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
        let op = prepared(op, attrs, &dtypes, ctx)?;
        Ok(OpCall {
            op,
            inputs,
            uniform: None,
        })
    }

    /// A call that computes one element only.
    fn of_scalars(
        op: &str,
        inputs: &[HostTensor],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
    ) -> Result<OpCall> {
        let of = |t: &HostTensor| (t.dtype(), t.shape().clone());
        let known: Vec<Metadata> = inputs.iter().map(of).collect();
        let shapes = metadata(op, &known, attrs, ctx)?;
        let uniform = shapes.into_iter().flatten().map(|(_, shape)| shape).next();
        let uniform =
            uniform.ok_or_else(|| internal!("{op} does not say the shape of its result"))?;
        let one = |t: &HostTensor| match t {
            HostTensor::Scalar(t) => Tensor::from_bytes(dtype(t.dtype)?, Shape::scalar(), &t.value),
            other => tensor(other),
        };
        let dtypes = known.iter().map(|(t, _)| dtype(*t));
        Ok(OpCall {
            op: prepared(op, attrs, &dtypes.collect::<Result<Vec<_>>>()?, ctx)?,
            inputs: inputs.iter().map(one).collect::<Result<_>>()?,
            uniform: Some(uniform),
        })
    }

    /// Whether the call should be a task, so that who makes it may go on.
    pub(super) fn is_long(&self) -> bool {
        match self.op.cost() {
            Cost::Cheap | Cost::Async => false,
            Cost::BySize => self.inputs.iter().map(Tensor::byte_len).sum::<usize>() >= LARGE,
            Cost::Expensive => true,
        }
    }

    /// Runs the op; `done` gets the results, now or, from an op that waits for others, later.
    pub(super) fn run(
        self,
        ctx: &ExecutionContext,
        done: impl FnOnce(Result<Vec<HostTensor>>) + Send + 'static,
    ) {
        if self.op.cost() != Cost::Async {
            return done(self.run_here(ctx));
        }
        let finish = move |outputs: Result<Vec<Tensor>>| done(outputs.and_then(host_tensors));
        let call = AsyncCall::new(self.inputs, ctx.token().clone(), finish);
        self.op.kernel().start(call);
    }

    /// Runs an op that does not wait for others.
    pub(super) fn run_here(self, ctx: &ExecutionContext) -> Result<Vec<HostTensor>> {
        let resources = ctx.host().shared(Resources::default);
        let services = StepServices {
            par: ctx.host().work_queue().parallelism(),
            cancel: ctx.token(),
            resources: &resources,
            functions: &(),
            step_id: 0,
        };
        let mut values: Vec<Value> = self.inputs.into_iter().map(Value::Tensor).collect();
        let mut outputs = vec![Value::Empty; self.op.outputs().len()];
        self.op.run(&mut values, &mut outputs, &services)?;
        let outputs = outputs.into_iter().filter_map(Value::into_tensor);
        let outputs = host_tensors(outputs.collect())?;
        let Some(shape) = self.uniform else {
            return Ok(outputs);
        };
        let scalar = |one: HostTensor| {
            Ok(HostTensor::Scalar(ScalarHostTensor {
                dtype: one.dtype(),
                shape: shape.clone(),
                value: one.dense()?.buffer.read(<[u8]>::to_vec),
            }))
        };
        outputs.into_iter().map(scalar).collect()
    }
}

fn host_tensors(tensors: Vec<Tensor>) -> Result<Vec<HostTensor>> {
    tensors.into_iter().map(host_tensor).collect()
}

fn prepared(
    op: &str,
    attrs: &OpAttrs,
    inputs: &[DType],
    ctx: &ExecutionContext,
) -> Result<Arc<PreparedOp>> {
    let list = attrs.0.iter();
    let attrs: Attrs = list
        .map(|(name, value)| Ok((name.clone().into(), attr(value)?)))
        .collect::<Result<_>>()?;
    let cache = ctx
        .host()
        .shared(|| PreparedOps::new(ferroflow_ops::registry()));
    cache.get(op, &attrs, inputs)
}

/// The types of both worlds, by the names of MLIR and TensorFlow's numbers.
const TYPES: &[(&str, DType)] = &[
    ("ui8", DType::Uint8),
    ("ui16", DType::Uint16),
    ("ui32", DType::Uint32),
    ("ui64", DType::Uint64),
    ("i1", DType::Bool),
    ("i8", DType::Int8),
    ("i16", DType::Int16),
    ("i32", DType::Int32),
    ("i64", DType::Int64),
    ("f32", DType::Float),
    ("f64", DType::Double),
    ("complex<f32>", DType::Complex64),
    ("complex<f64>", DType::Complex128),
    ("f16", DType::Half),
    ("bf16", DType::Bfloat16),
    ("!corert.string", DType::String),
    ("!corert.resource", DType::Resource),
    ("!corert.variant", DType::Variant),
];

fn dtype(dtype: HostDType) -> Result<DType> {
    let name = dtype.name().unwrap_or("none");
    let found = TYPES.iter().find(|(n, _)| *n == name);
    found
        .map(|(_, t)| *t)
        .ok_or_else(|| invalid_argument!("TensorFlow's ops do not take type {name}"))
}

fn host_dtype(dtype: DType) -> Option<HostDType> {
    let (name, _) = TYPES.iter().find(|(_, t)| *t == dtype)?;
    HostDType::from_name(name)
}

fn tensor(host: &HostTensor) -> Result<Tensor> {
    let shape = Shape::checked(&host.shape().0)?;
    match host {
        HostTensor::Dense(t) => {
            let dtype = dtype(t.dtype)?;
            if let Some(same) = t.buffer.as_tensor().filter(|same| same.dtype() == dtype) {
                return same.with_shape(shape);
            }
            t.buffer
                .read(|bytes| Tensor::from_bytes(dtype, shape, bytes))
        }
        HostTensor::Scalar(t) => {
            let size = shape.num_elements().checked_mul(t.value.len());
            if size.is_none_or(|size| size > memory_limit()) {
                return Err(invalid_argument!("Cannot allocate tensor"));
            }
            let bytes = t.value.repeat(shape.num_elements());
            Tensor::from_bytes(dtype(t.dtype)?, shape, &bytes)
        }
        HostTensor::String(t) => {
            let strings = t.strings.iter().map(|s| s.clone().into_bytes().into());
            Tensor::from_strings(shape, strings.collect())
        }
        HostTensor::Coo(_) => Err(invalid_argument!("TensorFlow's ops take dense tensors")),
    }
}

fn host_tensor(tensor: Tensor) -> Result<HostTensor> {
    let shape = TensorShape(tensor.shape().to_i64().to_vec());
    if let Ok(strings) = tensor.strings() {
        let strings = strings
            .iter()
            .map(|s| String::from_utf8_lossy(s).into_owned());
        return Ok(HostTensor::String(StringHostTensor {
            shape,
            strings: strings.collect(),
        }));
    }
    let dtype = tensor.dtype();
    let host = host_dtype(dtype)
        .filter(|_| dtype.is_plain())
        .ok_or_else(|| unimplemented_error!("the core runtime has no tensors of dtype {dtype}"))?;
    Ok(HostTensor::Dense(DenseHostTensor {
        dtype: host,
        shape,
        buffer: SharedBuffer::of_tensor(tensor),
    }))
}

fn attr(value: &OpAttr) -> Result<AttrValue> {
    let one = |dtype: HostDType, bytes: &[u8]| -> Option<AttrValue> {
        let word = |n: usize| {
            let mut word = [0u8; 8];
            word.get_mut(..n)?.copy_from_slice(bytes.get(..n)?);
            Some(u64::from_le_bytes(word))
        };
        Some(match dtype.name()? {
            "i1" => AttrValue::Bool(word(1)? != 0),
            "i8" => AttrValue::Int((word(1)? as i8).into()),
            "i16" => AttrValue::Int((word(2)? as i16).into()),
            "i32" => AttrValue::Int((word(4)? as i32).into()),
            "i64" => AttrValue::Int(word(8)? as i64),
            "f32" => AttrValue::Float(f32::from_bits(word(4)? as u32)),
            "f64" => AttrValue::Float(f64::from_bits(word(8)?) as f32),
            _ => return None,
        })
    };
    let found = match value {
        OpAttr::Number { dtype, bytes } => one(*dtype, bytes),
        OpAttr::Array { dtype, bytes } => {
            let items = bytes.chunks(dtype.size().unwrap_or(1));
            let items = items.map(|b| one(*dtype, b)).collect::<Option<_>>();
            items.map(AttrValue::List)
        }
        OpAttr::String(text) => Some(AttrValue::str(text)),
        OpAttr::Type(t) => Some(AttrValue::Type(dtype(*t)?)),
        OpAttr::Shape(dims) => {
            let shape = PartialShape::from_tf(dims.as_deref())?;
            Some(AttrValue::Shape(shape))
        }
        OpAttr::Aggregate(items) => {
            let items = items.iter().map(attr).collect::<Result<_>>()?;
            Some(AttrValue::List(items))
        }
        OpAttr::Dense {
            dtype: host,
            shape,
            bytes,
        } => {
            let tensor = Tensor::from_bytes(dtype(*host)?, Shape::checked(shape)?, bytes)?;
            Some(AttrValue::Tensor(tensor.into()))
        }
    };
    found.ok_or_else(|| {
        unimplemented_error!("TensorFlow's ops do not take an attribute of this kind here")
    })
}
