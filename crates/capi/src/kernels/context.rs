//! `TF_OpKernelContext`: what a kernel reads and writes when it runs.

use super::{Node, TF_StringView};
use crate::guard::{guard, handle, list, shared, text, unique};
use crate::{TF_Status, TF_Tensor};
use ferroflow_base::{Result, Status, internal, invalid_argument, out_of_range};
use ferroflow_opdef::{DEFAULT_CONTAINER, KernelCtx};
use ferroflow_tensor::Tensor;
use std::ffi::{c_char, c_int, c_void};

/// One execution of a kernel.
pub struct TF_OpKernelContext {
    node: *const Node,
    inputs: Vec<Tensor>,
    outputs: Vec<Option<TF_Tensor>>,
    step: i64,
    failure: Option<Status>,
}

impl TF_OpKernelContext {
    pub(super) fn new(ctx: &KernelCtx, node: &Node) -> Result<TF_OpKernelContext> {
        let inputs = (0..ctx.num_inputs()).map(|i| ctx.input(i).cloned());
        Ok(TF_OpKernelContext {
            node,
            inputs: inputs.collect::<Result<_>>()?,
            outputs: (0..ctx.num_outputs()).map(|_| None).collect(),
            step: ctx.services().step_id as i64,
            failure: None,
        })
    }

    /// Hands the outputs to the engine.
    pub(super) fn finish(self, ctx: &mut KernelCtx) -> Result<()> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        // SAFETY: as in `node`.
        let node = unsafe { &*self.node };
        for (i, output) in self.outputs.into_iter().enumerate() {
            let name = || node.name.to_string_lossy();
            let missing = || internal!("Missing {i}-th output from {{{{node {}}}}}", name());
            let output = output.ok_or_else(missing)?.to_engine()?;
            let (found, declared) = (output.dtype(), node.outputs.get(i).copied());
            if let Some(declared) = declared.filter(|declared| *declared != found) {
                return Err(internal!(
                    "Output {i} of type {found} does not match declared output type {declared} for node \
                     {{{{node {}}}}}",
                    name()
                ));
            }
            ctx.set_output(i, output)?;
        }
        Ok(())
    }

    fn node(&self) -> &Node {
        // SAFETY: the kernel, which the node belongs to, outlives its executions.
        unsafe { &*self.node }
    }

    fn input(&self, i: c_int) -> Result<&Tensor> {
        let input = usize::try_from(i).ok().and_then(|i| self.inputs.get(i));
        input.ok_or_else(|| out_of_range!("input index out of range"))
    }

    fn output(&mut self, i: c_int) -> Result<&mut Option<TF_Tensor>> {
        let output = usize::try_from(i)
            .ok()
            .and_then(|i| self.outputs.get_mut(i));
        output.ok_or_else(|| out_of_range!("output index out of range"))
    }

    fn dtype(&self, i: usize, is_input: bool) -> c_int {
        let node = self.node();
        let dtypes = if is_input {
            &node.inputs
        } else {
            &node.outputs
        };
        dtypes.get(i).map_or(0, |t| *t as c_int)
    }

    /// Allocates an output of its declared dtype and returns a tensor with the same memory.
    fn allocate(&mut self, i: c_int, dims: &[i64]) -> Result<*mut TF_Tensor> {
        let declared = usize::try_from(i).map(|i| self.node().outputs.get(i).copied());
        let Ok(Some(dtype)) = declared else {
            let (n, name) = (self.outputs.len(), self.node().name.to_string_lossy());
            return Err(internal!(
                "allocate_output with bad index={i} num_outputs={n} kernel={name}"
            ));
        };
        let tensor = TF_Tensor::allocate_host(dtype as c_int, dims)?;
        let shared = tensor.share();
        *self.output(i)? = Some(tensor);
        Ok(handle(shared))
    }
}

/// Declares functions that return a number of an execution.
macro_rules! numbers {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty)?) -> $ret:ty = |$ctx:ident| $value:expr, $otherwise:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(ctx: *mut TF_OpKernelContext $(, $arg: $ty)?) -> $ret {
                // SAFETY: the contract of the header.
                unsafe { ctx.as_ref() }.map_or($otherwise, |$ctx| $value)
            }
        )*
    };
}

numbers! {
    /// Returns the number of inputs.
    fn TF_NumInputs() -> c_int = |ctx| ctx.inputs.len() as c_int, 0;
    /// Returns the number of outputs.
    fn TF_NumOutputs() -> c_int = |ctx| ctx.outputs.len() as c_int, 0;
    /// Returns the dtype of an input.
    fn TF_InputDatatype(index: c_int) -> c_int =
        |ctx| usize::try_from(index).map_or(0, |i| ctx.dtype(i, true)), 0;
    /// Returns the dtype of an output.
    fn TF_ExpectedOutputDataType(i: c_int) -> c_int =
        |ctx| usize::try_from(i).map_or(0, |i| ctx.dtype(i, false)), 0;
    /// Returns the number of the step.
    fn TF_StepId() -> i64 = |ctx| ctx.step, 0;
    /// Returns the number of the step.
    fn TF_GetStepId() -> i64 = |ctx| ctx.step, 0;
    /// Returns the number of the frame: steps are frames of their own.
    fn TF_GetFrameId() -> u64 = |ctx| ctx.step as u64, 0;
    /// Returns the number of the iteration, which kernels do not know.
    fn TF_GetIterId() -> i64 = |_ctx| 0, 0;
    /// Returns the number of the device.
    fn TF_GetDeviceId() -> c_int = |_ctx| 0, 0;
    /// Returns the version of graphs that TensorFlow 2.21 writes.
    fn TF_GetGraphDefVersion() -> c_int = |_ctx| ferroflow_graph::PRODUCER, 0;
    /// Returns the node's name.
    fn TF_GetOpKernelName() -> TF_StringView =
        |ctx| TF_StringView::of(ctx.node().name.to_bytes()), TF_StringView::of(b"");
    /// Returns the name of the device.
    fn TF_GetDeviceName() -> TF_StringView =
        |_ctx| TF_StringView::of(b"/job:localhost/replica:0/task:0/device:CPU:0"),
        TF_StringView::of(b"");
    /// Returns the name of the container of resources whose op does not name one.
    fn TF_GetResourceMgrDefaultContainerName() -> TF_StringView =
        |_ctx| TF_StringView::of(DEFAULT_CONTAINER.as_bytes()), TF_StringView::of(b"");
    /// Returns the name of an input's node, which kernels do not know.
    fn TF_GetOpKernelRequestedInput(_index: usize) -> TF_StringView =
        |_ctx| TF_StringView::of(b""), TF_StringView::of(b"");
}

/// Makes the execution fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelContext_Failure(
    ctx: *mut TF_OpKernelContext,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    if let (Some(ctx), Some(status)) = unsafe { (ctx.as_mut(), status.as_ref()) } {
        ctx.failure = status.error();
    }
}

/// Returns an input, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetInput(
    ctx: *mut TF_OpKernelContext,
    i: c_int,
    tensor: *mut *mut TF_Tensor,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (ctx, tensor) = unsafe { (shared(ctx)?, unique(tensor)?) };
        *tensor = handle(TF_Tensor::of_engine(ctx.input(i)?.clone())?);
        Ok(())
    });
}

/// The range of an argument's inputs.
#[repr(C)]
pub struct TF_InputRange_Args {
    /// The size of this struct.
    pub struct_size: usize,
    /// Not used.
    pub private: *mut c_void,
    /// The first input.
    pub start: c_int,
    /// The input behind the last one.
    pub stop: c_int,
    /// Whether there is such an argument.
    pub status: *mut TF_Status,
}

/// Finds the inputs of an argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_InputRange(
    ctx: *mut TF_OpKernelContext,
    name: *const c_char,
    args: *mut TF_InputRange_Args,
) {
    // SAFETY: the contract of the header.
    let Some(args) = (unsafe { args.as_mut() }) else {
        return;
    };
    guard(args.status, (), || {
        // SAFETY: as above.
        let (ctx, name) = unsafe { (shared(ctx)?, text(name)?) };
        let (node, mut start) = (ctx.node(), 0);
        for arg in &node.def.inputs {
            let n = arg.dtypes(&node.attrs)?.len();
            if arg.name() == name {
                (args.start, args.stop) = (start as c_int, (start + n) as c_int);
                return Ok(());
            }
            start += n;
        }
        Err(invalid_argument!("Unknown input name: {name}"))
    });
}

/// Sets an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetOutput(
    ctx: *mut TF_OpKernelContext,
    i: c_int,
    tensor: *const TF_Tensor,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (ctx, tensor) = unsafe { (unique(ctx)?, shared(tensor)?) };
        *ctx.output(i)? = Some(tensor.share());
        Ok(())
    });
}

/// Returns an output that was set, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetMutableOutput(
    ctx: *mut TF_OpKernelContext,
    i: c_int,
    status: *mut TF_Status,
) -> *mut TF_Tensor {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let output = unsafe { unique(ctx)?.output(i)? };
        Ok(output
            .as_ref()
            .map_or(std::ptr::null_mut(), |t| handle(t.share())))
    })
}

/// Allocates an output, which the client fills and deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AllocateOutput(
    context: *mut TF_OpKernelContext,
    index: c_int,
    _dtype: c_int,
    dims: *const i64,
    num_dims: c_int,
    _len: usize,
    status: *mut TF_Status,
) -> *mut TF_Tensor {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        unsafe { unique(context)?.allocate(index, list(dims, num_dims)) }
    })
}

/// As [`TF_AllocateOutput`]; no input is overwritten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ForwardInputOrAllocateOutput(
    context: *mut TF_OpKernelContext,
    _candidate_input_indices: *const c_int,
    _num_candidate_input_indices: c_int,
    output_index: c_int,
    output_dims: *const i64,
    output_num_dims: c_int,
    forwarded_input: *mut c_int,
    status: *mut TF_Status,
) -> *mut TF_Tensor {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        unsafe {
            if let Some(forwarded) = forwarded_input.as_mut() {
                *forwarded = -1;
            }
            unique(context)?.allocate(output_index, list(output_dims, output_num_dims))
        }
    })
}

/// Where temporary memory is.
#[repr(C)]
pub struct TF_AllocatorAttributes {
    /// The size of this struct.
    pub struct_size: usize,
    /// Whether it is the host's.
    pub on_host: u8,
}

/// Allocates a temporary tensor, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AllocateTemp(
    _context: *mut TF_OpKernelContext,
    dtype: c_int,
    dims: *const i64,
    num_dims: c_int,
    _alloc_attrs: *mut TF_AllocatorAttributes,
    status: *mut TF_Status,
) -> *mut TF_Tensor {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let dims = unsafe { list(dims, num_dims) };
        TF_Tensor::allocate_host(dtype, dims).map(handle)
    })
}

/// Declares functions that return whether a device keeps an argument in the host's memory: the CPU has no other.
macro_rules! on_host {
    ($($(#[$doc:meta])* fn $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                ctx: *mut TF_OpKernelContext,
                _i: c_int,
                status: *mut TF_Status,
            ) -> bool {
                // SAFETY: the contract of the header.
                guard(status, false, || unsafe { shared(ctx) }.map(|_| false))
            }
        )*
    };
}

on_host! {
    /// Returns whether an input is kept in the host's memory.
    fn TF_IsHostMemoryInput;
    /// Returns whether an output is kept in the host's memory.
    fn TF_IsHostMemoryOutput;
}

/// Accepts that a kernel defers work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_IncNumDeferredOps(_context: *mut TF_OpKernelContext) {}

/// Accepts that deferred work has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DecNumDeferredOps(_context: *mut TF_OpKernelContext) {}
