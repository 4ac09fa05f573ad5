//! `TFE_Execute`.

use super::cluster::OnDevice;
use super::context::TFE_Context;
use super::device::{Place, cpu_name};
use super::handle::{HandleValue, TFE_TensorHandle, forwarded};
use super::op::TFE_Op;
use crate::TF_Status;
use crate::guard::{guard, list_mut, unique};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_opdef::Value;
use ferroflow_runtime::CancelToken;
use ferroflow_runtime::eager::{
    CallInputs, CallOutputs, EagerCall, Executor, TensorHandle, TensorPromise,
};
use ferroflow_tensor::Tensor;
use smallvec::SmallVec;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An op may overwrite a tensor of at least this size whose only owner it is. Smaller ones are not worth the
/// search, and stay for another run of the same call.
const WORTH_FORWARDING: usize = 4096;

pub(super) type Handles = SmallVec<[*mut TFE_TensorHandle; 4]>;

/// Runs a call and returns references to its outputs; `num_retvals` is their greatest number, then the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_Execute(
    op: *mut TFE_Op,
    retvals: *mut *mut TFE_TensorHandle,
    num_retvals: *mut c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (call, n) = unsafe { (unique(op)?, unique(num_retvals)?) };
        if call.context.has_custom_devices.load(Ordering::Acquire)
            && let Some(device) = call.pin()?
        {
            // SAFETY: the contract of the header.
            return unsafe { device.execute(op, n, retvals) };
        }
        // SAFETY: as above.
        let slots = unsafe { list_mut(retvals, *n) };
        call.execute(slots, n)
    });
}

impl TFE_Op {
    #[inline]
    fn execute(&mut self, slots: &mut [*mut TFE_TensorHandle], n: &mut c_int) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        self.begin_inputs();
        if self.has_packed {
            self.unpack()?;
        }
        let (call, place) = match (
            self.context.has_cluster.load(Ordering::Acquire),
            &self.device,
        ) {
            (false, None) => (self.call()?, self.context.base()),
            (false, Some(_)) => {
                let place = self.place()?;
                (self.call()?, place)
            }
            (true, _) => match self.on_device()? {
                OnDevice::Own(call, place) => (call, place),
                OnDevice::Other(cluster, device) => {
                    let result = self.execute_there(&cluster, &device, slots, n);
                    self.end_run();
                    return result;
                }
            },
        };
        let n_outputs = call.outputs().len();
        if n_outputs > slots.len() {
            return Err(invalid_argument!(
                "Expecting {n_outputs} outputs, but *num_retvals is {n}"
            ));
        }
        let handles = match self.async_executor() {
            None => self.run_now(&call, place),
            Some(executor) => self.run_later(call, &executor, place),
        };
        let handles: Handles = handles?;
        for (slot, handle) in slots.iter_mut().zip(&handles) {
            *slot = *handle;
        }
        *n = n_outputs as c_int;
        Ok(())
    }

    /// The call on this process.
    #[inline]
    pub(super) fn call(&self) -> Result<Arc<EagerCall>> {
        let engine = &self.context.engine;
        engine.call(&self.def, &self.attrs, &self.given, &self.dtypes())
    }

    /// The executor of this thread, if calls run asynchronously.
    #[inline]
    pub(super) fn async_executor(&self) -> Option<Arc<Executor>> {
        match self.context.has_thread_executors.load(Ordering::Acquire) {
            false if !self.context.default_executor.is_async() => None,
            _ => self
                .context
                .with_executor(|e| e.is_async().then(|| e.clone())),
        }
    }

    /// The CPU device that the op asks for.
    #[cold]
    fn place(&self) -> Result<Place> {
        let (context, name) = (&self.context, self.device_text());
        let found = context.find_cpu(name);
        if found.is_none() && context.is_soft.load(Ordering::Relaxed) {
            return Ok(context.base());
        }
        let all = (context.base()..).take(context.n_cpus());
        let all = || all.map(|place| cpu_name(place).to_string_lossy().into_owned());
        found.ok_or_else(|| self.no_device(name, all()))
    }

    #[cold]
    pub(super) fn no_device(&self, name: &str, all: impl Iterator<Item = String>) -> Status {
        let all: Vec<String> = all.collect();
        invalid_argument!(
            "Could not satisfy device specification '{name}'. enable_soft_placement=0. Supported device \
             types [CPU]. All available devices [{}].",
            all.join(", ")
        )
    }

    fn run_now(&mut self, call: &EagerCall, place: Place) -> Result<Handles> {
        let mut inputs = CallInputs::new();
        let mut moved = false;
        for handle in &mut self.inputs {
            inputs.push(Value::Tensor(take(handle, &mut moved)?));
        }
        let began = self.begin();
        let result = call.run(&mut inputs, self.cancel.as_ref());
        if moved {
            give_back(&mut self.inputs, inputs);
        }
        self.end_run();
        if let Some(began) = began {
            self.context.trace(self.name_text(), began);
        }
        let handle = |tensor: Tensor| TFE_TensorHandle::of(tensor.into(), place).give();
        Ok(result?.into_iter().map(handle).collect())
    }

    #[inline]
    pub(super) fn begin(&self) -> Option<Instant> {
        let traces = self.context.traces.load(Ordering::Relaxed);
        traces.then(Instant::now)
    }

    fn run_later(
        &mut self,
        call: Arc<EagerCall>,
        executor: &Executor,
        place: Place,
    ) -> Result<Handles> {
        executor.status()?;
        let mut promises = Vec::with_capacity(call.outputs().len());
        let mut outputs: SmallVec<[TensorHandle; 4]> = SmallVec::new();
        for dtype in call.outputs() {
            let (promise, handle) = TensorHandle::promised(*dtype, self.context.engine.pool());
            promises.push(promise);
            outputs.push(handle);
        }
        let inputs = self.inputs.iter_mut().map(share).collect::<Result<_>>()?;
        self.end_run();
        let began = self.begin().map(|_| self.context.clone());
        let queued = Queued {
            call,
            inputs,
            promises,
            cancel: self.cancel.clone(),
            trace: began.map(|context| (context, self.name_text().to_string())),
        };
        executor.submit(Box::new(move |error, fail| queued.run(error, fail)))?;
        let handle = |output| TFE_TensorHandle::of(output, place).give();
        Ok(outputs.into_iter().map(handle).collect())
    }
}

/// The tensor of an input; the input's own one if it is worth it and the op is the only owner.
#[inline]
fn take(handle: &mut Arc<TFE_TensorHandle>, moved: &mut bool) -> Result<Tensor> {
    let tensor = handle.local()?;
    match tensor.available() {
        Some(t) if t.byte_len() < WORTH_FORWARDING => Ok(t.clone()),
        None => tensor.get(),
        Some(t) => {
            let (tensor, dtype) = (t.clone(), t.dtype());
            if let Some(owned) = Arc::get_mut(handle) {
                owned.value = HandleValue::Forwarded(dtype);
                *moved = true;
            }
            Ok(tensor)
        }
    }
}

/// Puts back what the kernel has not used.
#[cold]
fn give_back(handles: &mut [Arc<TFE_TensorHandle>], inputs: CallInputs) {
    for (handle, value) in handles.iter_mut().zip(inputs) {
        if let (Some(owned), Some(tensor)) = (Arc::get_mut(handle), value.into_tensor())
            && matches!(owned.value, HandleValue::Forwarded(_))
        {
            owned.value = HandleValue::Tensor(tensor.into());
        }
    }
}

/// The tensor of an input of a call that runs later.
fn share(handle: &mut Arc<TFE_TensorHandle>) -> Result<TensorHandle> {
    let tensor = handle.local()?;
    let large = |t: &Tensor| t.byte_len() >= WORTH_FORWARDING;
    let (is_large, dtype) = (tensor.available().is_some_and(large), tensor.dtype());
    if is_large && let Some(owned) = Arc::get_mut(handle) {
        let value = std::mem::replace(&mut owned.value, HandleValue::Forwarded(dtype));
        return match value {
            HandleValue::Tensor(tensor) => Ok(tensor),
            HandleValue::Remote(_, copy) => copy.into_inner().ok_or_else(forwarded),
            _ => Err(forwarded()),
        };
    }
    handle.local().cloned()
}

/// A call in the queue of an executor.
struct Queued {
    call: Arc<EagerCall>,
    inputs: SmallVec<[TensorHandle; 4]>,
    promises: Vec<TensorPromise>,
    cancel: Option<CancelToken>,
    trace: Option<(Arc<TFE_Context>, String)>,
}

impl Queued {
    fn run(self, error: Option<&Status>, fail: &dyn Fn(&Status)) -> Result<()> {
        let began = Instant::now();
        let outputs = match error {
            Some(error) => Err(error.clone()),
            None => run(&self.call, self.inputs, self.cancel.as_ref()),
        };
        if let Some((context, name)) = &self.trace {
            context.trace(name, began);
        }
        match outputs {
            Ok(outputs) => {
                let pairs = self.promises.into_iter().zip(outputs);
                pairs.for_each(|(promise, tensor)| promise.set(Ok(tensor)));
                Ok(())
            }
            Err(error) => {
                fail(&error);
                let promises = self.promises.into_iter();
                promises.for_each(|promise| promise.set(Err(error.clone())));
                Err(error)
            }
        }
    }
}

/// Runs a call on tensors that were computed by calls before it.
fn run(
    call: &EagerCall,
    inputs: SmallVec<[TensorHandle; 4]>,
    cancel: Option<&CancelToken>,
) -> Result<CallOutputs> {
    let tensor = |handle: TensorHandle| match handle.is_ready() {
        true => handle.into_ready().ok_or_else(forwarded),
        false => handle.get(),
    };
    let tensors: Result<CallInputs> = inputs
        .into_iter()
        .map(|h| tensor(h).map(Value::Tensor))
        .collect();
    call.run(&mut tensors?, cancel)
}
