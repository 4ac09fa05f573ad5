//! TensorFlow's ops on the CPU handler, from the op files that sessions use.
//!
//! An op is called `tf.NAME`, or just `NAME` if the core runtime has no op of that name.

use super::super::dense::{
    DenseHostTensor, HostTensor, ScalarHostTensor, SharedBuffer, StringHostTensor,
};
use super::super::shape::TensorShape;
use super::attrs::{OpAttr, OpAttrs};
use super::handle::MetadataRef;
use super::ops::{MetadataList, Outputs};
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_host_context::{ExecutionContext, HostContext, HostDType};
use ferroflow_opdef::{
    AsyncCall, AttrValue, Attrs, Cost, PreparedOp, PreparedOps, Resources, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::AsyncValue;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, memory_limit};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock, Weak};

/// A TensorFlow op and what earlier calls found out.
pub(super) struct TensorOp {
    /// TensorFlow's name.
    pub(super) name: &'static str,
    /// The host and the kernel of the first call.
    first: OnceLock<(Weak<HostContext>, Arc<PreparedOp>)>,
}

impl TensorOp {
    /// Returns the op `name`, if TensorFlow has one.
    pub(super) fn find(name: &str) -> Option<TensorOp> {
        let name = name.strip_prefix("tf.").unwrap_or(name);
        let is_known = !name.starts_with('_') || name == "_FusedMatMul";
        let row = registry().op(name).filter(|_| is_known)?;
        Some(TensorOp {
            name: row.name,
            first: OnceLock::new(),
        })
    }

    /// Returns types and shapes of the results, as far as those of the inputs determine them.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the inputs do not fit.
    pub(super) fn metadata(
        &self,
        inputs: &[MetadataRef],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
    ) -> Result<MetadataList> {
        let dtypes = inputs.iter().map(|(t, _)| dtype(*t));
        let prepared = self.prepared(attrs, &dtypes.collect::<Result<DTypes>>()?, ctx)?;
        let shapes = inputs
            .iter()
            .map(|(_, s)| PartialShape::from_tf(Some(&s.0)))
            .collect::<Result<Vec<_>>>()?;
        let shapes = prepared.shapes(&shapes, &[])?;
        let known = |(dtype, shape): (&DType, &PartialShape)| {
            let dims = shape.to_full()?.to_i64().as_slice().into();
            Some((host_dtype(*dtype)?, TensorShape(dims)))
        };
        Ok(prepared.outputs().iter().zip(&shapes).map(known).collect())
    }

    /// Returns the kernel for inputs of these types.
    fn prepared(
        &self,
        attrs: &OpAttrs,
        inputs: &[DType],
        ctx: &ExecutionContext,
    ) -> Result<Arc<PreparedOp>> {
        if let Some((host, op)) = self.first.get()
            && std::ptr::eq(host.as_ptr(), Arc::as_ptr(ctx.host()))
            && op.inputs() == inputs
        {
            return Ok(op.clone());
        }
        let list = attrs.0.iter();
        let attrs: Attrs = list
            .map(|(name, value)| Ok((name.clone().into(), attr(value)?)))
            .collect::<Result<_>>()?;
        let cache = ctx.host().shared(|| PreparedOps::new(registry()));
        let op = cache.get(self.name, &attrs, inputs)?;
        let _ = self.first.set((Arc::downgrade(ctx.host()), op.clone()));
        Ok(op)
    }
}

type DTypes = SmallVec<[DType; 4]>;

/// A call of an op with its inputs.
pub(super) struct OpCall {
    op: Arc<PreparedOp>,
    inputs: Vec<Tensor>,
    /// The shape of the result, if all its elements are equal because those of each input are.
    uniform: Option<TensorShape>,
}

/// Elementwise ops, whose result has equal elements if the inputs do.
const ELEMENTWISE: &[&str] = &["AddV2", "Sub", "Mul", "RealDiv"];

/// Bytes of inputs from which an op of proportional cost is worth a task.
const LARGE: usize = 1 << 16;

impl OpCall {
    pub(super) fn new(
        op: &TensorOp,
        inputs: &[&HostTensor],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
    ) -> Result<OpCall> {
        let is_scalar = |t: &&HostTensor| matches!(t, HostTensor::Scalar(_));
        if inputs.iter().all(is_scalar) && ELEMENTWISE.contains(&op.name) {
            return Self::of_scalars(op, inputs, attrs, ctx);
        }
        let inputs = inputs
            .iter()
            .map(|t| tensor(t))
            .collect::<Result<Vec<_>>>()?;
        let dtypes: DTypes = inputs.iter().map(Tensor::dtype).collect();
        let op = op.prepared(attrs, &dtypes, ctx)?;
        Ok(OpCall {
            op,
            inputs,
            uniform: None,
        })
    }

    /// Returns a call that computes a single element.
    fn of_scalars(
        op: &TensorOp,
        inputs: &[&HostTensor],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
    ) -> Result<OpCall> {
        let known: Vec<MetadataRef> = inputs.iter().map(|t| (t.dtype(), t.shape())).collect();
        let shapes = op.metadata(&known, attrs, ctx)?;
        let uniform = shapes.into_iter().flatten().map(|(_, shape)| shape).next();
        let uniform = uniform
            .ok_or_else(|| internal!("{} does not report the shape of its result", op.name))?;
        let one = |t: &&HostTensor| match t {
            HostTensor::Scalar(t) => Tensor::from_bytes(dtype(t.dtype)?, Shape::scalar(), &t.value),
            other => tensor(other),
        };
        let dtypes = known.iter().map(|(t, _)| dtype(*t));
        Ok(OpCall {
            op: op.prepared(attrs, &dtypes.collect::<Result<DTypes>>()?, ctx)?,
            inputs: inputs.iter().map(one).collect::<Result<_>>()?,
            uniform: Some(uniform),
        })
    }

    /// Returns whether the call should be a task, so that its caller can continue.
    pub(super) fn is_long(&self) -> bool {
        match self.op.cost() {
            Cost::Cheap | Cost::Async => false,
            Cost::BySize => self.inputs.iter().map(Tensor::byte_len).sum::<usize>() >= LARGE,
            Cost::Expensive => true,
        }
    }

    /// Returns whether the op waits for other ops.
    pub(super) fn waits(&self) -> bool {
        self.op.cost() == Cost::Async
    }

    /// Runs the op and passes the results to `done`: now, or later for an op that waits for others.
    pub(super) fn run(
        self,
        ctx: &ExecutionContext,
        done: impl FnOnce(Result<Outputs>) + Send + 'static,
    ) {
        if !self.waits() {
            return done(self.run_here(ctx));
        }
        let finish = move |outputs: Result<Vec<Tensor>>| done(outputs.and_then(host_tensors));
        let call = AsyncCall::new(self.inputs, ctx.token().clone(), finish);
        let resources = ctx.host().shared(Resources::default);
        let services = StepServices {
            par: ctx.host().work_queue().parallelism(),
            cancel: ctx.token(),
            resources: &resources,
            functions: &(),
            step_id: 0,
        };
        self.op.kernel().start_with(call, &services);
    }

    /// Runs an op that does not wait for others.
    pub(super) fn run_here(self, ctx: &ExecutionContext) -> Result<Outputs> {
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
        let Some(shape) = self.uniform else {
            return host_tensors(outputs.collect());
        };
        let scalar = |one: Tensor| {
            let one = host_tensor(one)?;
            Ok(AsyncValue::new(HostTensor::Scalar(ScalarHostTensor {
                dtype: one.dtype(),
                shape: shape.clone(),
                value: one.dense()?.buffer.read(<[u8]>::to_vec),
            })))
        };
        outputs.map(scalar).collect()
    }
}

fn host_tensors(tensors: Vec<Tensor>) -> Result<Outputs> {
    let values = tensors
        .into_iter()
        .map(|t| host_tensor(t).map(AsyncValue::new));
    values.collect()
}

/// Types with names of MLIR and numbers of TensorFlow.
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
    let shape = TensorShape(tensor.shape().to_i64().as_slice().into());
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
