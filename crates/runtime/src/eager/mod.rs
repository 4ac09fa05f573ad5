//! Eager execution: [`Eager`] runs any op by name, on tensors that may still be computed.

mod context;
mod conveniences;
mod executor;
pub(crate) mod functions;

use ferroflow_base::{Result, internal};
use ferroflow_opdef::PreparedOp;
use ferroflow_opdef::{AsyncCall, Cost, Resources, StepServices, Value};
use ferroflow_sync::{AsyncValue, AsyncValueRef, CancelToken, Chain, Pool, Promise};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use context::{CallDef, CallDevices, CallInputs, CallOutputs, EagerCall, EagerContext, Given};
pub use executor::Executor;
pub use ferroflow_opdef::{AttrValue, Attrs};

/// Ops run on the calling thread if their inputs are available and have at most this many bytes.
const SMALL: usize = 16 << 10;
/// The same for expensive ops.
const SMALL_EXPENSIVE: usize = 1 << 10;

/// The outputs of an op.
pub type Outputs = SmallVec<[TensorHandle; 1]>;
type Inputs = SmallVec<[TensorHandle; 4]>;

/// Runs ops one by one, in any order that their inputs allow, on the threads of one pool.
///
/// An op returns handles. Small ops have run when `execute` returns, others run in the background;
/// reading a value returns the error of its op, if any. Wrong dtypes and shapes are errors of `execute`.
/// Ops with side effects, such as assignments to variables, run in the order of the calls.
///
/// ```
/// use ferroflow_runtime::eager::{Attrs, Eager, TensorHandle};
/// use ferroflow_runtime::Tensor;
/// let eager = Eager::new(0);
/// let a = Tensor::from_slice([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
/// let a = TensorHandle::from(a);
/// let product = eager.matmul(&a, &a)?;
/// let sum = eager.execute("AddV2", [&product, &a], &Attrs::default())?;
/// assert_eq!(sum[0].get()?.slice::<f32>()?, [8.0, 12.0, 18.0, 26.0]);
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
#[derive(Clone)]
pub struct Eager {
    machine: Arc<Machine>,
    ops: Arc<RwLock<FxHashMap<String, Vec<Arc<EagerOp>>>>>,
}

struct Machine {
    pool: Arc<Pool>,
    resources: Resources,
    cancel: CancelToken,
    /// The end of the last op with side effects.
    last: Mutex<AsyncValue>,
}

/// An op with its attrs; a kernel is built once for each combination of input types.
///
/// ```
/// use ferroflow_runtime::eager::{AttrValue, Attrs, Eager, TensorHandle};
/// use ferroflow_runtime::Tensor;
/// let eager = Eager::new(1);
/// let attrs = Attrs::default().with("transpose_b", AttrValue::Bool(true));
/// let op = eager.op("MatMul", &attrs);
/// let a = TensorHandle::from(Tensor::from_slice([1, 2], &[3.0f32, 4.0])?);
/// assert_eq!(op.execute([&a, &a])?[0].get()?.to_scalar::<f32>()?, 25.0);
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
pub struct EagerOp {
    machine: Arc<Machine>,
    name: String,
    attrs: Attrs,
    prepared: RwLock<Vec<Arc<PreparedOp>>>,
}

/// A tensor that is or will be available; its dtype is known, its shape in part.
#[derive(Clone)]
pub struct TensorHandle(Repr);

#[derive(Clone)]
enum Repr {
    Ready(Tensor),
    Later(Arc<Later>),
}

struct Later {
    value: AsyncValueRef<Tensor>,
    dtype: DType,
    shape: PartialShape,
    pool: Arc<Pool>,
}

impl From<Tensor> for TensorHandle {
    #[inline]
    fn from(tensor: Tensor) -> Self {
        TensorHandle(Repr::Ready(tensor))
    }
}

impl From<&Tensor> for TensorHandle {
    #[inline]
    fn from(tensor: &Tensor) -> Self {
        tensor.clone().into()
    }
}

impl From<&TensorHandle> for TensorHandle {
    #[inline]
    fn from(handle: &TensorHandle) -> Self {
        handle.clone()
    }
}

impl TensorHandle {
    /// The dtype.
    #[inline]
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Ready(tensor) => tensor.dtype(),
            Repr::Later(later) => later.dtype,
        }
    }

    /// The shape, as far as it is known now.
    pub fn shape(&self) -> PartialShape {
        match (&self.0, self.available()) {
            (_, Some(tensor)) => tensor.shape().into(),
            (Repr::Later(later), None) => later.shape.clone(),
            (Repr::Ready(tensor), None) => tensor.shape().into(),
        }
    }

    /// Returns a handle of a tensor of this dtype, and what sets it.
    pub fn promised(dtype: DType, pool: &Arc<Pool>) -> (TensorPromise, TensorHandle) {
        let (promise, value) = Promise::new();
        let pool = pool.clone();
        let promise = TensorPromise {
            promise,
            pool: pool.clone(),
        };
        let shape = PartialShape::unknown();
        let later = Later {
            value,
            dtype,
            shape,
            pool,
        };
        (promise, TensorHandle(Repr::Later(Arc::new(later))))
    }

    /// Returns the tensor, if it was available when the handle was made, as it is: no other owner is added.
    #[inline]
    pub fn into_ready(self) -> Option<Tensor> {
        match self.0 {
            Repr::Ready(tensor) => Some(tensor),
            Repr::Later(_) => None,
        }
    }

    /// Returns the tensor, if it is available.
    #[inline]
    pub fn available(&self) -> Option<&Tensor> {
        match &self.0 {
            Repr::Ready(tensor) => Some(tensor),
            Repr::Later(later) => later.value.get(),
        }
    }

    /// Returns whether the tensor was available when the handle was made.
    pub fn is_ready(&self) -> bool {
        matches!(self.0, Repr::Ready(_))
    }

    /// Returns whether the tensor, or an error, is available.
    pub fn is_available(&self) -> bool {
        match &self.0 {
            Repr::Ready(_) => true,
            Repr::Later(later) => later.value.is_available(),
        }
    }

    /// Returns the tensor. A thread that waits for it runs tasks of the pool.
    ///
    /// # Errors
    /// The error of the op, or of an op that it depends on.
    pub fn get(&self) -> Result<Tensor> {
        match &self.0 {
            Repr::Ready(tensor) => Ok(tensor.clone()),
            Repr::Later(later) => {
                if !later.value.is_available() {
                    later.pool.help_until(&|| later.value.is_available());
                }
                later.value.expect().cloned()
            }
        }
    }
}

/// Sets a tensor that was promised.
pub struct TensorPromise {
    promise: Promise<Tensor>,
    pool: Arc<Pool>,
}

impl TensorPromise {
    /// Sets the tensor, or the error.
    pub fn set(self, tensor: Result<Tensor>) {
        match tensor {
            Ok(tensor) => self.promise.emplace(tensor),
            Err(error) => self.promise.set_error(error),
        }
        self.pool.notify();
    }
}

/// Waits for the tensor asynchronously.
impl IntoFuture for TensorHandle {
    type Output = Result<Tensor>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Tensor>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        match self.0 {
            Repr::Ready(tensor) => Box::pin(std::future::ready(Ok(tensor))),
            Repr::Later(later) => later.value.clone().into_future(),
        }
    }
}

impl Eager {
    /// Computes with `threads` threads, the calling one included; 0 means all processors.
    pub fn new(threads: usize) -> Eager {
        let threads = match threads {
            0 => Pool::available_threads(),
            n => n,
        };
        Eager::on(Arc::new(Pool::new(threads)))
    }

    /// Computes on the threads of `pool`.
    pub fn on(pool: Arc<Pool>) -> Eager {
        Eager {
            machine: Arc::new(Machine::new(pool)),
            ops: Arc::default(),
        }
    }

    /// Returns the op `name` with these attrs. Types and counts may be left out: the inputs determine them.
    pub fn op(&self, name: &str, attrs: &Attrs) -> Arc<EagerOp> {
        let ops = self.ops.read().unwrap_or_else(PoisonError::into_inner);
        let find = |list: &Vec<Arc<EagerOp>>| {
            let mut list = list.iter();
            list.find(|op| op.attrs.same_values(attrs)).cloned()
        };
        if let Some(op) = ops.get(name).and_then(find) {
            return op;
        }
        drop(ops);
        let op = Arc::new(EagerOp {
            machine: self.machine.clone(),
            name: name.to_string(),
            attrs: attrs.clone(),
            prepared: RwLock::default(),
        });
        let mut ops = self.ops.write().unwrap_or_else(PoisonError::into_inner);
        let list = ops.entry(name.to_string()).or_default();
        // Bounded: the attrs of a program may differ in every call.
        if list.len() < MAX_KEPT {
            list.push(op.clone());
        }
        op
    }

    /// Runs an op by its name.
    ///
    /// # Errors
    /// As [`EagerOp::execute`].
    pub fn execute(
        &self,
        name: &str,
        inputs: impl IntoIterator<Item = impl Into<TensorHandle>>,
        attrs: &Attrs,
    ) -> Result<Outputs> {
        self.op(name, attrs).execute(inputs)
    }

    /// Waits for all ops with side effects.
    ///
    /// # Errors
    /// The error of the last one.
    pub fn wait(&self) {
        let last = self.machine.lock_last().clone();
        self.machine.pool.help_until(&|| last.is_available());
    }

    fn one(
        &self,
        name: &str,
        inputs: impl IntoIterator<Item = impl Into<TensorHandle>>,
        attrs: &Attrs,
    ) -> Result<TensorHandle> {
        let mut outputs = self.execute(name, inputs, attrs)?;
        let output = outputs.pop();
        output.ok_or_else(|| internal!("op {name} has no output"))
    }
}

/// Sets of attrs that are cached for each op.
const MAX_KEPT: usize = 256;

impl Machine {
    fn new(pool: Arc<Pool>) -> Machine {
        Machine::with_resources(pool, Resources::default())
    }

    fn with_resources(pool: Arc<Pool>, resources: Resources) -> Machine {
        Machine {
            pool,
            resources,
            cancel: CancelToken::new(),
            last: Mutex::new(AsyncValue::new(Chain)),
        }
    }

    fn lock_last(&self) -> std::sync::MutexGuard<'_, AsyncValue> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn services(&self) -> StepServices<'_> {
        StepServices {
            par: &*self.pool,
            cancel: &self.cancel,
            resources: &self.resources,
            functions: &(),
            step_id: 0,
        }
    }
}

impl EagerOp {
    /// Runs the op.
    ///
    /// # Errors
    /// NOT_FOUND if the op is not registered; INVALID_ARGUMENT if inputs or attrs do not fit its signature;
    /// the error of a small op.
    pub fn execute(
        &self,
        inputs: impl IntoIterator<Item = impl Into<TensorHandle>>,
    ) -> Result<Outputs> {
        let inputs: Inputs = inputs.into_iter().map(Into::into).collect();
        let prepared = self.prepared(&inputs)?;
        match self.run_now(&prepared, &inputs) {
            Some(result) => result,
            None => self.run_later(prepared, inputs),
        }
    }

    /// The kernel for the dtypes of these inputs.
    fn prepared(&self, inputs: &Inputs) -> Result<Arc<PreparedOp>> {
        let fits = |op: &&Arc<PreparedOp>| {
            let dtypes = op.inputs().iter().copied();
            dtypes.eq(inputs.iter().map(TensorHandle::dtype))
        };
        let list = self.prepared.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(op) = list.iter().find(fits) {
            return Ok(op.clone());
        }
        drop(list);
        let dtypes: SmallVec<[DType; 4]> = inputs.iter().map(TensorHandle::dtype).collect();
        let op = Arc::new(PreparedOp::new(
            crate::registry(),
            &self.name,
            &self.attrs,
            &dtypes,
        )?);
        let mut list = self
            .prepared
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if list.len() < MAX_KEPT {
            list.push(op.clone());
        }
        Ok(op)
    }

    /// Runs a small op whose inputs are available on the calling thread.
    fn run_now(&self, op: &PreparedOp, inputs: &Inputs) -> Option<Result<Outputs>> {
        let limit = match op.cost() {
            Cost::Cheap => usize::MAX,
            Cost::BySize => SMALL,
            Cost::Expensive => SMALL_EXPENSIVE,
            Cost::Async => return None,
        };
        let mut values: SmallVec<[Value; 4]> = SmallVec::new();
        let mut bytes = 0usize;
        for input in inputs {
            let tensor = input.available()?;
            bytes = bytes.saturating_add(tensor.byte_len());
            values.push(Value::Tensor(tensor.clone()));
        }
        if bytes > limit || (op.is_stateful() && !self.machine.lock_last().is_available()) {
            return None;
        }
        let mut outputs: SmallVec<[Value; 1]> = SmallVec::new();
        outputs.resize(op.outputs().len(), Value::Empty);
        let ran = op.run(&mut values, &mut outputs, &self.machine.services());
        Some(ran.map(|()| {
            let tensors = outputs.into_iter().filter_map(Value::into_tensor);
            tensors.map(TensorHandle::from).collect()
        }))
    }

    fn run_later(&self, op: Arc<PreparedOp>, inputs: Inputs) -> Result<Outputs> {
        let machine = self.machine.clone();
        let shapes: Vec<PartialShape> = inputs.iter().map(TensorHandle::shape).collect();
        let small = |t: &&Tensor| t.byte_len() <= SMALL_EXPENSIVE;
        let values: Vec<Option<Tensor>> = inputs
            .iter()
            .map(|i| i.available().filter(small).cloned())
            .collect();
        let shapes = op.shapes(&shapes, &values)?;
        let mut promises = Vec::with_capacity(shapes.len());
        let mut outputs = Outputs::new();
        for (&dtype, shape) in op.outputs().iter().zip(shapes) {
            let (promise, value) = Promise::new();
            promises.push(promise);
            outputs.push(TensorHandle(Repr::Later(Arc::new(Later {
                value,
                dtype,
                shape,
                pool: machine.pool.clone(),
            }))));
        }
        let mut order = None;
        if op.is_stateful() {
            let (done, is_done) = Promise::new();
            let mut last = machine.lock_last();
            let before = std::mem::replace(&mut *last, is_done.into());
            order = Some((before, done));
        }
        let pending = Pending {
            op,
            machine,
            inputs,
            promises,
            order,
        };
        pending.when_ready(0);
        Ok(outputs)
    }
}

/// A run that waits for its inputs.
struct Pending {
    op: Arc<PreparedOp>,
    machine: Arc<Machine>,
    inputs: Inputs,
    promises: Vec<Promise<Tensor>>,
    /// The side effect before it, and the event of its own.
    order: Option<(AsyncValue, Promise<Chain>)>,
}

impl Pending {
    /// Runs once all inputs from `i` on, and the side effect before it, are available.
    fn when_ready(self, mut i: usize) {
        while let Some(input) = self.inputs.get(i) {
            i += 1;
            if let Repr::Later(later) = &input.0
                && !later.value.is_available()
            {
                let value = later.value.clone();
                return value.and_then(move || self.when_ready(i));
            }
        }
        if let Some((before, _)) = &self.order
            && !before.is_available()
        {
            let before = before.clone();
            return before.and_then(move || self.when_ready(i));
        }
        let pool = self.machine.pool.clone();
        pool.spawn(Box::new(move || self.run()));
    }

    fn run(self) {
        let Pending {
            op,
            machine,
            inputs,
            promises,
            order,
        } = self;
        let pool = machine.pool.clone();
        let finish = move |result: Result<Vec<Tensor>>| {
            match result {
                Ok(tensors) => {
                    let pairs = promises.into_iter().zip(tensors);
                    pairs.for_each(|(promise, tensor)| promise.emplace(tensor));
                }
                Err(error) => promises
                    .into_iter()
                    .for_each(|promise| promise.set_error(error.clone())),
            }
            if let Some((_, done)) = order {
                done.emplace(Chain);
            }
            pool.notify();
        };
        let tensors: Result<Vec<Tensor>> = inputs.iter().map(TensorHandle::get).collect();
        drop(inputs);
        let tensors = match tensors {
            Ok(tensors) => tensors,
            Err(error) => return finish(Err(error)),
        };
        if op.cost() == Cost::Async {
            let call = AsyncCall::new(tensors, machine.cancel.clone(), finish);
            return op.kernel().start_with(call, &machine.services());
        }
        let mut values: SmallVec<[Value; 4]> = tensors.into_iter().map(Value::Tensor).collect();
        let mut outputs = vec![Value::Empty; op.outputs().len()];
        let ran = catch_unwind(AssertUnwindSafe(|| {
            op.run(&mut values, &mut outputs, &machine.services())
        }));
        let ran = ran.unwrap_or_else(|_| Err(internal!("the kernel panicked")));
        finish(ran.map(|()| outputs.into_iter().filter_map(Value::into_tensor).collect()));
    }
}
