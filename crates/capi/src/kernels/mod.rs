//! Kernels of clients for ops that they define (`tensorflow/c/kernels.h`).

mod construction;
mod context;
#[cfg(test)]
mod tests;

pub use construction::*;
pub use context::*;

use crate::TF_Status;
use crate::guard::{delete, guard, handle, text, unique};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::kernel_def::AttrConstraint;
use ferroflow_model::proto::{AttrValue, KernelDef, attr_value};
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, OpKernel};
use ferroflow_runtime::registry;
use ferroflow_tensor::DType;
use prost::Message;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

type Create = unsafe extern "C" fn(*mut TF_OpKernelConstruction) -> *mut c_void;
type Compute = unsafe extern "C" fn(*mut c_void, *mut TF_OpKernelContext);
type ComputeAsync =
    unsafe extern "C" fn(*mut c_void, *mut TF_OpKernelContext, *mut TF_AsyncOpKernelDoneCallback);
type Delete = unsafe extern "C" fn(*mut c_void);

#[derive(Clone, Copy)]
enum Run {
    None,
    Sync(Compute),
    Async(ComputeAsync),
}

/// A kernel that is being described: which nodes it is for, and what it does.
#[derive(Clone)]
pub struct TF_KernelBuilder {
    op: String,
    device: String,
    types: Vec<(String, DType)>,
    /// Arguments in the host's memory, which all are on CPUs.
    host_memory: Vec<String>,
    label: String,
    priority: i32,
    create: Option<Create>,
    run: Run,
    delete: Option<Delete>,
}

/// What an asynchronous kernel calls when it has finished.
pub struct TF_AsyncOpKernelDoneCallback(mpsc::SyncSender<()>);

fn kernels() -> MutexGuard<'static, Vec<Arc<TF_KernelBuilder>>> {
    static KERNELS: Mutex<Vec<Arc<TF_KernelBuilder>>> = Mutex::new(Vec::new());
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernels of clients, of all ops or of one.
pub(crate) fn client_kernels(op: Option<&str>) -> Vec<KernelDef> {
    let kernels = kernels();
    let wanted = kernels.iter().filter(|k| op.is_none_or(|op| op == k.op));
    let def = |k: &Arc<TF_KernelBuilder>| KernelDef {
        op: k.op.clone(),
        device_type: k.device.clone(),
        constraint: k.types.iter().map(constraint).collect(),
        host_memory_arg: k.host_memory.clone(),
        label: k.label.clone(),
        priority: k.priority,
    };
    wanted.map(def).collect()
}

/// The dtype that an attr must be, in its file form.
fn constraint((attr, dtype): &(String, DType)) -> AttrConstraint {
    let list = attr_value::ListValue {
        r#type: vec![*dtype as i32],
        ..Default::default()
    };
    AttrConstraint {
        name: attr.clone(),
        allowed_values: Some(AttrValue {
            value: Some(attr_value::Value::List(list.into())),
        }),
    }
}

/// Registers the kernels of an op that was defined after them.
pub(crate) fn register_for(op: &str) {
    let waiting: Vec<_> = kernels().iter().filter(|k| k.op == op).cloned().collect();
    waiting.into_iter().for_each(register);
}

/// Adds a kernel to those of its op, if a client has defined that. A kernel that is for no node, since it names
/// what the op does not have, fails the nodes, as in TensorFlow.
fn register(builder: Arc<TF_KernelBuilder>) {
    let is_client_op = |op: &&'static ferroflow_opdef::Op| op.signature.is_empty();
    if registry().op(&builder.op).filter(is_client_op).is_none() {
        return;
    }
    let (name, device) = (builder.op.clone(), builder.device.clone());
    let (label, priority) = (builder.label.clone(), builder.priority);
    let described = |kernel: ferroflow_opdef::KernelDef| {
        kernel.device_type(&device).label(&label).priority(priority)
    };
    let mut kernel = described(ferroflow_opdef::KernelDef::new(&name, {
        let builder = builder.clone();
        move |build| client_kernel(builder.clone(), build)
    }));
    for (attr, dtype) in &builder.types {
        kernel = kernel.types(attr, &[*dtype]);
    }
    for argument in &builder.host_memory {
        kernel = kernel.host_memory(argument);
    }
    if let Err(error) = registry().register_kernel(kernel) {
        let failing = ferroflow_opdef::KernelDef::new(&name, move |_| Err(error.clone()));
        // It names nothing that the op could lack.
        let registered = registry().register_kernel(described(failing));
        debug_assert!(registered.is_ok());
    }
}

/// Builds the kernel of a node whose op a client defined.
///
/// # Errors
/// The error of the client's function.
fn client_kernel(builder: Arc<TF_KernelBuilder>, build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let mut kernel = ClientKernel {
        builder,
        state: std::ptr::null_mut(),
        node: Node::of(build)?,
    };
    if let Some(create) = kernel.builder.create {
        let mut construction = TF_OpKernelConstruction::new(kernel.node.clone());
        // SAFETY: the client registered the function; the argument lives until it returns.
        kernel.state = unsafe { create(&raw mut construction) };
        // What a refused kernel has is deleted with it.
        if let Some(error) = construction.failure {
            return Err(error.at_node(build.node, &build.def.name));
        }
    }
    Ok(Box::new(kernel))
}

/// What kernels know of their node.
#[derive(Clone)]
struct Node {
    name: CString,
    op: String,
    def: Arc<ferroflow_opdef::OpDef>,
    attrs: Attrs,
    inputs: Vec<DType>,
    outputs: Vec<DType>,
}

impl Node {
    fn of(build: &KernelBuild) -> Result<Node> {
        Ok(Node {
            name: CString::new(build.node).unwrap_or_default(),
            op: build.def.name.to_string(),
            def: Arc::new(build.def.clone()),
            attrs: build.attrs.clone(),
            inputs: build.inputs.to_vec(),
            outputs: build.outputs.to_vec(),
        })
    }
}

/// A kernel of a client.
struct ClientKernel {
    builder: Arc<TF_KernelBuilder>,
    state: *mut c_void,
    node: Node,
}

// SAFETY: as TensorFlow's, kernels of clients may be called from any thread, several at a time.
unsafe impl Send for ClientKernel {}
// SAFETY: as above.
unsafe impl Sync for ClientKernel {}

impl Drop for ClientKernel {
    fn drop(&mut self) {
        if let Some(delete) = self.builder.delete {
            // SAFETY: the client's function, for what its other function created.
            unsafe { delete(self.state) };
        }
    }
}

impl OpKernel for ClientKernel {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let mut context = TF_OpKernelContext::new(ctx, &self.node)?;
        match self.builder.run {
            Run::None => {}
            // SAFETY: the client's function; the context lives until it returns.
            Run::Sync(compute) => unsafe { compute(self.state, &raw mut context) },
            Run::Async(compute) => {
                let (sender, receiver) = mpsc::sync_channel(1);
                let done = handle(TF_AsyncOpKernelDoneCallback(sender));
                // SAFETY: as above; the client calls `TF_RunAsyncOpKernelDoneCallback` once.
                unsafe { compute(self.state, &raw mut context, done) };
                // An error means that the callback was dropped, which ends the call as well.
                let _ = receiver.recv();
            }
        }
        context.finish(ctx)
    }
}

/// Begins a kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewKernelBuilder(
    op_name: *const c_char,
    device_name: *const c_char,
    create_func: Option<Create>,
    compute_func: Option<Compute>,
    delete_func: Option<Delete>,
) -> *mut TF_KernelBuilder {
    let run = compute_func.map_or(Run::None, Run::Sync);
    // SAFETY: the contract of the header.
    unsafe { new_builder(op_name, device_name, create_func, run, delete_func) }
}

/// Begins an asynchronous kernel; the engine waits for its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewAsyncKernelBuilder(
    op_name: *const c_char,
    device_name: *const c_char,
    create_func: Option<Create>,
    compute_async_func: Option<ComputeAsync>,
    delete_func: Option<Delete>,
) -> *mut TF_KernelBuilder {
    let run = compute_async_func.map_or(Run::None, Run::Async);
    // SAFETY: the contract of the header.
    unsafe { new_builder(op_name, device_name, create_func, run, delete_func) }
}

/// # Safety
/// The texts are NULL or C strings.
unsafe fn new_builder(
    op: *const c_char,
    device: *const c_char,
    create: Option<Create>,
    run: Run,
    delete: Option<Delete>,
) -> *mut TF_KernelBuilder {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: as this function's.
        let (op, device) = unsafe { (text(op)?, text(device)?) };
        Ok(handle(TF_KernelBuilder {
            op: op.to_string(),
            device: device.to_string(),
            types: Vec::new(),
            host_memory: Vec::new(),
            label: String::new(),
            priority: 0,
            create,
            run,
            delete,
        }))
    })
}

/// Ends an execution of an asynchronous kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_RunAsyncOpKernelDoneCallback(done: *mut TF_AsyncOpKernelDoneCallback) {
    if !done.is_null() {
        // SAFETY: the contract of the header: it is called once.
        let done = unsafe { Box::from_raw(done) };
        // The engine waits as long as the callback exists.
        let _ = done.0.send(());
    }
}

/// Demands a dtype of an attr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_KernelBuilder_TypeConstraint(
    kernel_builder: *mut TF_KernelBuilder,
    attr_name: *const c_char,
    r#type: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (builder, name) = unsafe { (unique(kernel_builder)?, text(attr_name)?) };
        let dtype = DType::from_number(r#type)
            .ok_or_else(|| invalid_argument!("unknown dtype {}", r#type))?;
        builder.types.push((name.to_string(), dtype));
        Ok(())
    });
}

/// Declares that an argument is in the host's memory, as all are on CPUs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_KernelBuilder_HostMemory(
    kernel_builder: *mut TF_KernelBuilder,
    arg_name: *const c_char,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let (builder, name) = unsafe { (unique(kernel_builder)?, text(arg_name)?) };
        builder.host_memory.push(name.to_string());
        Ok(())
    });
}

/// Sets the priority among kernels for the same nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_KernelBuilder_Priority(
    kernel_builder: *mut TF_KernelBuilder,
    priority_number: i32,
) {
    // SAFETY: the contract of the header.
    if let Some(builder) = unsafe { kernel_builder.as_mut() } {
        builder.priority = priority_number;
    }
}

/// Sets the label.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_KernelBuilder_Label(
    kernel_builder: *mut TF_KernelBuilder,
    label: *const c_char,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        unsafe { unique(kernel_builder)?.label = text(label)?.to_string() };
        Ok(())
    });
}

/// Adds a kernel and deletes the builder. Kernels run for ops that clients define.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_RegisterKernelBuilder(
    _kernel_name: *const c_char,
    builder: *mut TF_KernelBuilder,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        if builder.is_null() {
            return Err(invalid_argument!("TF_KernelBuilder argument is NULL"));
        }
        // SAFETY: the contract of the header: the builder is not used any more.
        let builder: Arc<TF_KernelBuilder> = Arc::from(unsafe { Box::from_raw(builder) });
        kernels().push(builder.clone());
        register(builder);
        Ok(())
    });
}

/// As [`TF_RegisterKernelBuilder`], for the nodes that a serialized `KernelDef` names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_RegisterKernelBuilderWithKernelDef(
    serialized_kernel_def: *const c_char,
    name: *const c_char,
    builder: *mut TF_KernelBuilder,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let builder_ref = unsafe { unique(builder)? };
        if serialized_kernel_def.is_null() {
            return Err(invalid_argument!("the KernelDef is NULL"));
        }
        // SAFETY: as above.
        let bytes = unsafe { CStr::from_ptr(serialized_kernel_def) }.to_bytes();
        let def = KernelDef::decode(bytes)
            .map_err(|_| invalid_argument!("Error parsing serialized KernelDef."))?;
        builder_ref.op = def.op;
        builder_ref.device = def.device_type;
        // SAFETY: as above.
        unsafe { TF_RegisterKernelBuilder(name, builder, status) };
        Ok(())
    });
}

/// Deletes a kernel that was not registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteKernelBuilder(builder: *mut TF_KernelBuilder) {
    // SAFETY: the contract of the header.
    unsafe { delete(builder) }
}

/// Characters without a NUL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_StringView {
    /// The first one.
    pub data: *const c_char,
    /// Their number.
    pub len: usize,
}

impl TF_StringView {
    fn of(text: &[u8]) -> TF_StringView {
        TF_StringView {
            data: text.as_ptr().cast(),
            len: text.len(),
        }
    }
}
