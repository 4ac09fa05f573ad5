//! Clusters of contexts: `TFE_ContextSetServerDef`, and calls on the devices of other tasks.

use super::context::TFE_Context;
use super::device::{Place, parse, places_of};
use super::execute::Handles;
use super::handle::{HandleValue, TFE_TensorHandle};
use super::op::TFE_Op;
use crate::TF_Status;
use crate::guard::{guard, list, shared, text};
use ferroflow_base::{Result, Status, failed_precondition, internal, invalid_argument};
use ferroflow_model::proto::ServerDef;
use ferroflow_opdef::Attrs;
use ferroflow_remote::{EagerCluster, JoinOptions, RemoteCall, RemoteInput, RemoteTensor};
use ferroflow_runtime::CancelToken;
use ferroflow_runtime::eager::{EagerCall, TensorHandle};
use ferroflow_tensor::DType;
use prost::Message;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Where a call of a context in a cluster runs.
pub(super) enum OnDevice {
    /// In this process.
    Own(Arc<EagerCall>, Place),
    /// On a device of another task.
    Other(Arc<EagerCluster>, String),
}

/// An input of a call of another task, which may still be computed.
enum Input {
    Local(TensorHandle),
    Remote(Arc<RemoteTensor>),
}

impl TFE_TensorHandle {
    fn input(&self) -> Result<Input> {
        match &self.value {
            HandleValue::Remote(remote, _) => Ok(Input::Remote(remote.clone())),
            _ => self.local().cloned().map(Input::Local),
        }
    }
}

impl Input {
    /// The tensor, once it is computed.
    fn ready(self) -> Result<RemoteInput> {
        match self {
            Input::Local(tensor) => tensor.get().map(RemoteInput::Local),
            Input::Remote(remote) => Ok(RemoteInput::Remote(remote)),
        }
    }
}

impl TFE_Context {
    /// The cluster that the context is in.
    pub(super) fn cluster(&self) -> Option<Arc<EagerCluster>> {
        let cluster = self.cluster.read();
        cluster.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_cluster(&self, cluster: Option<EagerCluster>) {
        let base = cluster
            .as_ref()
            .map(|c| places_of(&c.own_task().to_string()));
        self.base
            .store(base.unwrap_or(self.base()), Ordering::Relaxed);
        self.has_cluster.store(cluster.is_some(), Ordering::Release);
        let mut slot = self.cluster.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *slot, cluster.map(Arc::new));
        drop(slot);
        drop(old);
    }

    /// Joins a cluster, and leaves the one before.
    fn join(&self, def: &ServerDef, options: JoinOptions) -> Result<()> {
        self.wait_for_all()?;
        if self.cluster().is_some_and(|old| old.listens_like(def)) {
            self.set_cluster(None);
        }
        let options = JoinOptions {
            cpus: self.n_cpus(),
            ..options
        };
        let cluster = EagerCluster::join(&self.engine, def, &options)?;
        // What was prepared knows no other tasks.
        self.engine.clear_caches();
        self.set_cluster(Some(cluster));
        Ok(())
    }

    /// Copies a tensor to a device of another task.
    pub(super) fn copy_to_other(
        &self,
        found: &TFE_TensorHandle,
        name: &str,
    ) -> Result<TFE_TensorHandle> {
        let unknown = || invalid_argument!("{name} unknown device.");
        let cluster = self.cluster().ok_or_else(unknown)?;
        let device = cluster.find_device(&parse(name)?).ok_or_else(unknown)?;
        let copy = match found.input()?.ready()? {
            RemoteInput::Local(tensor) => cluster.send(&tensor, &device)?,
            RemoteInput::Remote(remote) => cluster.copy(&remote, &device)?,
        };
        Ok(TFE_TensorHandle::remote(copy))
    }
}

impl TFE_Op {
    /// The device of a call of a context in a cluster: an op is where the resources are that it uses.
    #[cold]
    pub(super) fn on_device(&self) -> Result<OnDevice> {
        let context = &self.context;
        let Some(cluster) = context.cluster() else {
            return Ok(OnDevice::Own(self.call()?, context.base()));
        };
        let is_function = self.def.function().is_some();
        let places = self.resource_places()?;
        let mut resources = places.iter().filter(|place| !place.is_empty());
        let name = match resources.next() {
            Some(device) if !is_function => device.as_str(),
            _ => self.device_text(),
        };
        let place = match name {
            "" => Some(context.base()),
            name => context.find_cpu(name),
        };
        let device = match place {
            None => cluster.find_device(&parse(name)?),
            Some(_) => None,
        };
        let place = match (place, device) {
            (Some(place), _) => place,
            (None, Some(device)) => return Ok(OnDevice::Other(cluster, device)),
            (None, None) if context.is_soft.load(Ordering::Relaxed) => context.base(),
            (None, None) => {
                let all = cluster.devices().into_iter().map(|device| device.name);
                return Err(self.no_device(name, all));
            }
        };
        if !self.def.needs_graph(&self.attrs) {
            return Ok(OnDevice::Own(self.call()?, place));
        }
        let (engine, dtypes) = (&context.engine, self.dtypes());
        let inputs = (&dtypes[..], places.into_boxed_slice());
        let devices = cluster.call_devices();
        let call = engine.call_on(&self.def, &self.attrs, &self.given, inputs, &devices)?;
        Ok(OnDevice::Own(call, place))
    }

    /// The device of the resource that each input is a handle of; empty for other inputs.
    fn resource_places(&self) -> Result<Vec<String>> {
        let places =
            self.inputs
                .iter()
                .map(|input| match input.dtype() == DType::Resource as c_int {
                    true => Ok(input.input()?.ready()?.resource_device()),
                    false => Ok(String::new()),
                });
        places.collect()
    }

    /// Runs the call on a device of another task.
    #[cold]
    pub(super) fn execute_there(
        &mut self,
        cluster: &Arc<EagerCluster>,
        device: &str,
        slots: &mut [*mut TFE_TensorHandle],
        n: &mut c_int,
    ) -> Result<()> {
        let attrs = self.all_attrs()?;
        let mut complete = attrs.clone();
        let schema = self.def.op_def();
        schema
            .complete_attrs(&mut complete)
            .map_err(|e| e.at_node(&schema.name, &schema.name))?;
        let dtypes = schema.output_dtypes(&complete)?;
        if dtypes.len() > slots.len() {
            return Err(invalid_argument!(
                "Expecting {} outputs, but *num_retvals is {n}",
                dtypes.len()
            ));
        }
        let outputs = cluster.promise(device, &dtypes)?;
        let inputs = self.inputs.iter().map(|input| input.input());
        let there = There {
            context: self.context.clone(),
            cluster: cluster.clone(),
            name: self.name_text().to_string(),
            device: device.to_string(),
            attrs,
            inputs: inputs.collect::<Result<_>>()?,
            outputs: outputs.clone(),
            cancel: self.cancel.clone().unwrap_or_default(),
        };
        match self.async_executor() {
            None => there.run()?,
            Some(executor) => {
                executor.status()?;
                executor.submit(Box::new(move |error, fail| there.run_queued(error, fail)))?;
            }
        }
        let handles = outputs.into_iter();
        let handles: Handles = handles
            .map(|o| TFE_TensorHandle::remote(o).give())
            .collect();
        for (slot, handle) in slots.iter_mut().zip(&handles) {
            *slot = *handle;
        }
        *n = handles.len() as c_int;
        Ok(())
    }
}

/// A call that another task is to run.
struct There {
    context: Arc<TFE_Context>,
    cluster: Arc<EagerCluster>,
    name: String,
    device: String,
    attrs: Attrs,
    inputs: Vec<Input>,
    outputs: Vec<Arc<RemoteTensor>>,
    cancel: CancelToken,
}

impl There {
    fn run(self) -> Result<()> {
        let inputs = self.inputs.into_iter().map(Input::ready);
        let call = RemoteCall {
            name: &self.name,
            attrs: &self.attrs,
            inputs: inputs.collect::<Result<_>>()?,
        };
        let engine = &self.context.engine;
        self.cluster
            .run(engine, &call, &self.device, &self.outputs, &self.cancel)
    }

    fn run_queued(self, error: Option<&Status>, fail: &dyn Fn(&Status)) -> Result<()> {
        let outputs = self.outputs.clone();
        let result = match error {
            Some(error) => Err(error.clone()),
            None => self.run(),
        };
        if let Err(error) = &result {
            fail(error);
            outputs.iter().for_each(|output| output.fail(error));
        }
        result
    }
}

/// A serialized `ServerDef`.
///
/// # Safety
/// `proto` is NULL or has `len` bytes.
unsafe fn server_def(proto: *const c_void, len: usize) -> Result<ServerDef> {
    // SAFETY: as this function's.
    let bytes = unsafe { list(proto.cast::<u8>(), len) };
    ServerDef::decode(bytes)
        .map_err(|_| invalid_argument!("Invalid tensorflow.ServerDef protocol buffer"))
}

fn limit(milliseconds: i64) -> Option<Duration> {
    let positive = u64::try_from(milliseconds).ok().filter(|ms| *ms > 0);
    positive.map(Duration::from_millis)
}

/// Joins a cluster: this process becomes the task that the `ServerDef` names, serves at its port, and runs ops
/// on the devices of the other tasks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextSetServerDef(
    ctx: *mut TFE_Context,
    keep_alive_secs: c_int,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    // SAFETY: the contract is the same.
    unsafe {
        TFE_ContextSetServerDefWithTimeoutAndRetries(
            ctx,
            keep_alive_secs,
            proto,
            proto_len,
            0,
            0,
            status,
            false,
        );
    }
}

/// As [`TFE_ContextSetServerDef`]; each task has this time to answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextSetServerDefWithTimeout(
    ctx: *mut TFE_Context,
    keep_alive_secs: c_int,
    proto: *const c_void,
    proto_len: usize,
    init_timeout_in_ms: i64,
    status: *mut TF_Status,
    clear_existing_contexts: bool,
) {
    // SAFETY: the contract is the same.
    unsafe {
        TFE_ContextSetServerDefWithTimeoutAndRetries(
            ctx,
            keep_alive_secs,
            proto,
            proto_len,
            init_timeout_in_ms,
            0,
            status,
            clear_existing_contexts,
        );
    }
}

/// As [`TFE_ContextSetServerDefWithTimeout`]; tasks that fail are asked again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextSetServerDefWithTimeoutAndRetries(
    ctx: *mut TFE_Context,
    keep_alive_secs: c_int,
    proto: *const c_void,
    proto_len: usize,
    init_timeout_in_ms: i64,
    retries: c_int,
    status: *mut TF_Status,
    clear_existing_contexts: bool,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, def) = unsafe { (shared(ctx)?, server_def(proto, proto_len)?) };
        let options = JoinOptions {
            keep_alive_secs: i64::from(keep_alive_secs),
            timeout: limit(init_timeout_in_ms),
            retries: u32::try_from(retries).unwrap_or(0),
            clear_existing: clear_existing_contexts,
            ..Default::default()
        };
        context.join(&def, options)
    });
}

/// Changes the tasks of the cluster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextUpdateServerDef(
    ctx: *mut TFE_Context,
    keep_alive_secs: c_int,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    // SAFETY: the contract is the same.
    unsafe {
        TFE_ContextUpdateServerDefWithTimeout(ctx, keep_alive_secs, proto, proto_len, 0, status);
    }
}

/// As [`TFE_ContextUpdateServerDef`]; each task has this time to answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextUpdateServerDefWithTimeout(
    ctx: *mut TFE_Context,
    _keep_alive_secs: c_int,
    proto: *const c_void,
    proto_len: usize,
    init_timeout_in_ms: i64,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, def) = unsafe { (shared(ctx)?, server_def(proto, proto_len)?) };
        let cluster = context.cluster().ok_or_else(|| {
            invalid_argument!("Trying to update a context with invalid context id.")
        })?;
        context.wait_for_all()?;
        cluster.update(&context.engine, &def, limit(init_timeout_in_ms))
    });
}

/// As [`TFE_ContextSetServerDef`], without contexts on the other tasks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_InitializeLocalOnlyContext(
    ctx: *mut TFE_Context,
    keep_alive_secs: c_int,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, def) = unsafe { (shared(ctx)?, server_def(proto, proto_len)?) };
        let options = JoinOptions {
            keep_alive_secs: i64::from(keep_alive_secs),
            is_alone: true,
            ..Default::default()
        };
        context.join(&def, options)
    });
}

/// Lets collective ops reach the other tasks, which have clients of their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_EnableCollectiveOps(
    ctx: *mut TFE_Context,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, def) = unsafe { (shared(ctx)?, server_def(proto, proto_len)?) };
        match context.cluster() {
            Some(cluster) => cluster.update(&context.engine, &def, None),
            None => context.join(
                &def,
                JoinOptions {
                    is_alone: true,
                    ..Default::default()
                },
            ),
        }
    });
}

/// Ends collective ops, present and future, with the error that `status` has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_AbortCollectiveOps(ctx: *mut TFE_Context, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    let reason = unsafe { status.as_ref() }.and_then(TF_Status::error);
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let cluster = unsafe { shared(ctx) }?.cluster();
        if let (Some(cluster), Some(reason)) = (cluster, reason) {
            cluster.abort_collectives(reason);
        }
        Ok(())
    });
}

/// The cluster of a context.
///
/// # Safety
/// `ctx` is NULL or valid.
unsafe fn cluster_of(ctx: *const TFE_Context) -> Result<Arc<EagerCluster>> {
    // SAFETY: as this function's.
    let cluster = unsafe { shared(ctx) }?.cluster();
    cluster.ok_or_else(|| failed_precondition!("Coordination service is not enabled."))
}

/// Returns whether a task answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextCheckAlive(
    ctx: *mut TFE_Context,
    worker_name: *const c_char,
    status: *mut TF_Status,
) -> bool {
    guard(status, false, || {
        // SAFETY: the contract of the header.
        let (context, name) = unsafe { (shared(ctx)?, text(worker_name)?) };
        match context.cluster() {
            Some(cluster) => cluster.is_alive(name),
            None => Err(invalid_argument!(
                "Unable to find worker interface corresponding to task {name}"
            )),
        }
    })
}

/// Fails if a task does not answer in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CollectiveOpsCheckPeerHealth(
    ctx: *mut TFE_Context,
    task: *const c_char,
    timeout_in_ms: i64,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, task) = unsafe { (shared(ctx)?, text(task)?) };
        let cluster = context.cluster().ok_or_else(|| {
            internal!("CheckPeerHealth is not supposed to be called for local collectives")
        })?;
        cluster.check_health(task, limit(timeout_in_ms))
    });
}

/// Sets a value of the coordination service.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_InsertConfigKeyValue(
    ctx: *mut TFE_Context,
    key: *const c_char,
    value: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, key, value) = unsafe { (shared(ctx)?, text(key)?, text(value)?) };
        let cluster = context.cluster();
        let cluster = cluster
            .ok_or_else(|| failed_precondition!("Coordination service agent is not enabled."))?;
        cluster.insert_key_value(key, value)
    });
}

/// Returns a value of the coordination service; waits until it is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_GetConfigKeyValue(
    ctx: *mut TFE_Context,
    key: *const c_char,
    timeout_in_ms: i64,
    value_buf: *mut crate::TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (cluster, key) = unsafe { (cluster_of(ctx)?, text(key)?) };
        let value = cluster.key_value(key, limit(timeout_in_ms))?;
        // SAFETY: as above.
        unsafe { crate::buffer::fill(value_buf, value) }
    });
}

/// Deletes a value of the coordination service.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteConfigKeyValue(
    ctx: *mut TFE_Context,
    key: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (cluster, key) = unsafe { (cluster_of(ctx)?, text(key)?) };
        cluster.delete_key_value(key)
    });
}

/// Tells the coordination service that this task has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ReportErrorToCluster(
    ctx: *mut TFE_Context,
    error_code: c_int,
    error_message: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (cluster, message) = unsafe { (cluster_of(ctx)?, text(error_message)?) };
        let code = ferroflow_base::Code::from_number(error_code);
        let code = code.unwrap_or(ferroflow_base::Code::Unknown);
        cluster.report_error(&Status::new(code, message))
    });
}

/// Waits until all tasks have come to a barrier of the coordination service.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_WaitAtBarrier(
    ctx: *mut TFE_Context,
    barrier_id: *const c_char,
    barrier_timeout_in_ms: i64,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (cluster, barrier) = unsafe { (cluster_of(ctx)?, text(barrier_id)?) };
        let timeout = limit(barrier_timeout_in_ms).unwrap_or(Duration::MAX);
        cluster.wait_at_barrier(barrier, timeout)
    });
}
