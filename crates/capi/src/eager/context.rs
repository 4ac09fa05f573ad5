//! `TFE_Context` and its options.

use super::custom_device::CustomDevice;
use super::device::{MAX_CPUS, Place, cpu_name, find_cpu, task_name};
use crate::guard::{guard, guard_plain, handle, list, shared, text, unique};
use crate::{TF_Buffer, TF_DeviceList, TF_Status};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_model::proto::{ConfigProto, DeviceStepStats, NodeExecStats, RunMetadata, StepStats};
use ferroflow_remote::EagerCluster;
use ferroflow_runtime::eager::{EagerContext, Executor};
use prost::Message;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_uchar, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::ThreadId;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Options of contexts.
#[derive(Clone)]
pub struct TFE_ContextOptions {
    config: ConfigProto,
    is_async: bool,
    policy: c_int,
    uses_tfrt: bool,
}

/// The policy that copies silently.
const SILENT: c_int = 2;

/// A context: devices, functions, resources and executors. Clients have one reference to it, each of its ops
/// another one.
pub struct TFE_Context {
    pub(super) engine: EagerContext,
    n_cpus: AtomicUsize,
    /// The devices of packed tensors, each by those of its components.
    pub(super) composites: Mutex<Vec<Vec<Place>>>,
    pub(super) default_executor: Arc<Executor>,
    pub(super) thread_executors: RwLock<FxHashMap<ThreadId, Arc<Executor>>>,
    pub(super) has_thread_executors: AtomicBool,
    pub(super) custom_devices: RwLock<Vec<Arc<CustomDevice>>>,
    pub(super) has_custom_devices: AtomicBool,
    pub(super) is_soft: AtomicBool,
    /// The place of the first CPU device.
    pub(super) base: AtomicU32,
    pub(super) cluster: RwLock<Option<Arc<EagerCluster>>>,
    pub(super) has_cluster: AtomicBool,
    pub(super) traces: AtomicBool,
    stats: Mutex<Vec<NodeExecStats>>,
    policy: c_int,
    id: u64,
}

thread_local! {
    /// The policies of this thread, by context.
    static POLICIES: RefCell<FxHashMap<u64, c_int>> = RefCell::default();
}

impl TFE_Context {
    fn new(options: &TFE_ContextOptions) -> Result<TFE_Context> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        if options.uses_tfrt {
            return Err(unimplemented_error!("TFRT is not supported"));
        }
        let config = &options.config;
        let engine = match config.intra_op_parallelism_threads {
            n if n > 0 => EagerContext::new(n as usize),
            _ => EagerContext::on(crate::shared_pool()),
        };
        let n_cpus = config.device_count.get("CPU").copied().unwrap_or(1);
        Ok(TFE_Context {
            engine,
            n_cpus: AtomicUsize::new(usize::try_from(n_cpus).unwrap_or(1).clamp(1, MAX_CPUS)),
            composites: Mutex::default(),
            default_executor: Arc::new(Executor::new(options.is_async, 0)),
            thread_executors: RwLock::default(),
            has_thread_executors: AtomicBool::new(false),
            custom_devices: RwLock::default(),
            has_custom_devices: AtomicBool::new(false),
            is_soft: AtomicBool::new(config.allow_soft_placement),
            base: AtomicU32::new(0),
            cluster: RwLock::default(),
            has_cluster: AtomicBool::new(false),
            traces: AtomicBool::new(false),
            stats: Mutex::default(),
            policy: options.policy,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Keeps when a call ran, for [`TFE_ContextExportRunMetadata`].
    #[cold]
    pub(super) fn trace(&self, op: &str, began: Instant) {
        let took = began.elapsed();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let start = now.unwrap_or_default().saturating_sub(took);
        let end = took.as_micros() as i64;
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.push(NodeExecStats {
            node_name: op.to_string(),
            all_start_micros: start.as_micros() as i64,
            op_end_rel_micros: end,
            all_end_rel_micros: end,
            timeline_label: op.to_string(),
            ..Default::default()
        });
    }

    fn run_metadata(&self) -> RunMetadata {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let node_stats = std::mem::take(&mut *stats);
        let device = DeviceStepStats {
            device: cpu_name(self.base()).to_string_lossy().into_owned(),
            node_stats,
            ..Default::default()
        };
        RunMetadata {
            step_stats: Some(StepStats {
                dev_stats: vec![device],
            }),
            ..Default::default()
        }
    }

    /// The place of the first CPU device.
    #[inline]
    pub(super) fn base(&self) -> Place {
        self.base.load(Ordering::Relaxed)
    }

    /// The number of CPU devices.
    #[inline]
    pub(super) fn n_cpus(&self) -> usize {
        self.n_cpus.load(Ordering::Relaxed)
    }

    /// Adds CPU devices to the first one.
    fn add_cpus(&self, n: usize) -> Result<()> {
        let changed = self
            .n_cpus
            .compare_exchange(1, n, Ordering::Relaxed, Ordering::Relaxed);
        changed.map(drop).map_err(|_| {
            invalid_argument!(
                "Trying to add device {} to manager but its name conflicts with an existing device.",
                cpu_name(self.base() + 1).to_string_lossy()
            )
        })
    }

    /// The CPU device that a name stands for.
    pub(super) fn find_cpu(&self, name: &str) -> Option<Place> {
        find_cpu(name, self.base(), self.n_cpus())
    }

    pub(super) fn wait_for_all(&self) -> Result<()> {
        let executors = self.thread_executors.read();
        let executors = executors.unwrap_or_else(PoisonError::into_inner);
        let all = executors
            .values()
            .cloned()
            .chain([self.default_executor.clone()]);
        let all: Vec<Arc<Executor>> = all.collect();
        let results: Vec<Result<()>> = all.iter().map(|e| e.wait()).collect();
        all.iter().for_each(|e| e.clear_error());
        results.into_iter().collect()
    }
}

/// Creates default options.
#[unsafe(no_mangle)]
pub extern "C" fn TFE_NewContextOptions() -> *mut TFE_ContextOptions {
    handle(TFE_ContextOptions {
        config: ConfigProto::default(),
        is_async: false,
        policy: SILENT,
        uses_tfrt: false,
    })
}

/// Sets the serialized `ConfigProto`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextOptionsSetConfig(
    options: *mut TFE_ContextOptions,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (options, bytes) = unsafe { (unique(options)?, list(proto.cast::<u8>(), proto_len)) };
        options.config =
            ConfigProto::decode(bytes).map_err(|_| invalid_argument!("Unparseable ConfigProto"))?;
        Ok(())
    });
}

/// Changes options, if there are some.
///
/// # Safety
/// `options` is NULL or valid and not used otherwise.
unsafe fn set_option(options: *mut TFE_ContextOptions, set: impl FnOnce(&mut TFE_ContextOptions)) {
    // SAFETY: as this function's.
    if let Some(options) = unsafe { options.as_mut() } {
        set(options);
    }
}

/// Sets whether calls run asynchronously.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextOptionsSetAsync(
    options: *mut TFE_ContextOptions,
    enable: c_uchar,
) {
    // SAFETY: the contract of the header.
    unsafe { set_option(options, |o| o.is_async = enable != 0) }
}

/// Sets what happens to inputs on another device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextOptionsSetDevicePlacementPolicy(
    options: *mut TFE_ContextOptions,
    policy: c_int,
) {
    // SAFETY: the contract of the header.
    unsafe { set_option(options, |o| o.policy = policy) }
}

/// Asks for TFRT, which contexts do not have, as in TensorFlow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextOptionsSetTfrt(
    options: *mut TFE_ContextOptions,
    use_tfrt: bool,
) {
    // SAFETY: the contract of the header.
    unsafe { set_option(options, |o| o.uses_tfrt = use_tfrt) }
}

/// Deletes options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteContextOptions(options: *mut TFE_ContextOptions) {
    // SAFETY: the contract of the header.
    unsafe { crate::guard::delete(options) }
}

/// Creates a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_NewContext(
    opts: *const TFE_ContextOptions,
    status: *mut TF_Status,
) -> *mut TFE_Context {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let context = TFE_Context::new(unsafe { shared(opts) }?)?;
        Ok(Arc::into_raw(Arc::new(context)).cast_mut())
    })
}

/// Deletes a context, after its calls in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteContext(ctx: *mut TFE_Context) {
    if ctx.is_null() {
        return;
    }
    // SAFETY: the contract of the header: the reference that `TFE_NewContext` gave away.
    let context = unsafe { Arc::from_raw(ctx) };
    guard_plain((), move || {
        // The error of a call is of no use any more.
        let _ = context.wait_for_all();
        drop(context);
    });
}

/// Returns the devices, custom ones excepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextListDevices(
    ctx: *mut TFE_Context,
    status: *mut TF_Status,
) -> *mut TF_DeviceList {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let context = unsafe { shared(ctx) }?;
        if let Some(cluster) = context.cluster() {
            return Ok(handle(TF_DeviceList::of(&cluster.devices())));
        }
        let places = (context.base()..).take(context.n_cpus());
        let names = places.map(cpu_name).map(CStr::to_owned);
        Ok(handle(TF_DeviceList::cpus(names)))
    })
}

/// Forgets prepared calls and the executors of threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextClearCaches(ctx: *mut TFE_Context) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let context = unsafe { shared(ctx) }?;
        context.engine.clear_caches();
        context.has_thread_executors.store(false, Ordering::Release);
        let executors = context.thread_executors.write();
        executors.unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    });
}

/// Sets what happens to inputs on another device, for calls of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextSetThreadLocalDevicePlacementPolicy(
    ctx: *mut TFE_Context,
    policy: c_int,
) {
    // SAFETY: the contract of the header.
    if let Some(context) = unsafe { ctx.as_ref() } {
        POLICIES.with_borrow_mut(|policies| policies.insert(context.id, policy));
    }
}

/// Returns what happens to inputs on another device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextGetDevicePlacementPolicy(ctx: *mut TFE_Context) -> c_int {
    // SAFETY: the contract of the header.
    let Some(context) = (unsafe { ctx.as_ref() }) else {
        return SILENT;
    };
    let own = POLICIES.with_borrow(|policies| policies.get(&context.id).copied());
    own.unwrap_or(context.policy)
}

/// Sets a flag of a context.
macro_rules! flags {
    ($($(#[$doc:meta])* fn $name:ident = |$context:ident, $on:ident| $set:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                ctx: *mut TFE_Context,
                enable: c_uchar,
                status: *mut TF_Status,
            ) {
                guard(status, (), || {
                    // SAFETY: the contract of the header.
                    let $context = unsafe { shared(ctx) }?;
                    let $on = enable != 0;
                    let () = $set;
                    Ok(())
                });
            }
        )*
    };
}

flags! {
    /// Sets whether a call may run on another device than it asks for.
    fn TFE_ContextSetSoftDevicePlacement =
        |context, on| context.is_soft.store(on, Ordering::Relaxed);
    /// Accepts the wish to log devices; there is one.
    fn TFE_ContextSetLogDevicePlacement = |_context, _on| ();
    /// Accepts the wish to wrap ops in functions; results are the same.
    fn TFE_ContextSetRunEagerOpAsFunction = |_context, _on| ();
    /// Accepts the wish to rewrite functions for XLA; nothing does.
    fn TFE_ContextSetJitCompileRewrite = |_context, _on| ();
}

/// Functions of a context that return nothing and report nothing.
macro_rules! plain {
    ($($(#[$doc:meta])* fn $name:ident = |$context:ident| $body:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(ctx: *mut TFE_Context) {
                // SAFETY: the contract of the header.
                if let Some($context) = unsafe { ctx.as_ref() } {
                    $body
                }
            }
        )*
    };
}

plain! {
    /// Collects when calls run, for [`TFE_ContextExportRunMetadata`].
    fn TFE_ContextEnableRunMetadata = |context| context.traces.store(true, Ordering::Relaxed);
    /// Ends the collection.
    fn TFE_ContextDisableRunMetadata = |context| context.traces.store(false, Ordering::Relaxed);
    /// As [`TFE_ContextEnableRunMetadata`].
    fn TFE_ContextEnableGraphCollection = |context| context.traces.store(true, Ordering::Relaxed);
    /// As [`TFE_ContextDisableRunMetadata`].
    fn TFE_ContextDisableGraphCollection = |context| context.traces.store(false, Ordering::Relaxed);
    /// Begins a step; steps have no state.
    fn TFE_ContextStartStep = |_context| ();
    /// Ends a step.
    fn TFE_ContextEndStep = |_context| ();
}

/// Waits for all calls and returns what was collected, a `RunMetadata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextExportRunMetadata(
    ctx: *mut TFE_Context,
    buf: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let context = unsafe { shared(ctx) }?;
        context.wait_for_all()?;
        // SAFETY: as above.
        unsafe { crate::buffer::fill_message(buf, &context.run_metadata()) }
    });
}

/// Waits for all calls of all threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextAsyncWait(ctx: *mut TFE_Context, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    guard(status, (), || unsafe { shared(ctx) }?.wait_for_all());
}

/// Returns the context's number, unique in this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_GetContextId(ctx: *mut TFE_Context) -> u64 {
    // SAFETY: the contract of the header.
    unsafe { ctx.as_ref() }.map_or(0, |context| context.id)
}

/// Returns the name of the host's part of a device name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_HostAddressSpace(ctx: *mut TFE_Context, buf: *mut TF_Buffer) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let name = task_name(shared(ctx)?.base());
            crate::buffer::fill(buf, name.into_bytes())
        }
    });
}

/// Returns the names of the ops that functions ran: none, as in TensorFlow's builds for users.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_GetExecutedOpNames(
    ctx: *mut TFE_Context,
    buf: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe {
            shared(ctx)?;
            crate::buffer::fill(buf, Vec::new())
        }
    });
}

/// Adds CPU devices to the first one; `prefix` is the name of this process as a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_SetLogicalCpuDevices(
    ctx: *mut TFE_Context,
    num_cpus: c_int,
    prefix: *const std::ffi::c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let context = unsafe { shared(ctx) }?;
        let prefix = match prefix.is_null() {
            true => "",
            // SAFETY: the contract of the header.
            false => unsafe { text(prefix) }?,
        };
        let own = task_name(context.base());
        if !prefix.is_empty() && prefix != own {
            return Err(unimplemented_error!(
                "TFE_SetLogicalCpuDevices: devices of this process are named '{own}', not '{prefix}'"
            ));
        }
        match usize::try_from(num_cpus) {
            Ok(n) if n > MAX_CPUS => Err(invalid_argument!("at most {MAX_CPUS} CPU devices")),
            Ok(n) if n > 1 => context.add_cpus(n),
            _ => Ok(()),
        }
    });
}
