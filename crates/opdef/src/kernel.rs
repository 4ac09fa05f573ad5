//! Kernels of tensor ops: one interface for all engines.

use crate::{AttrType, AttrValue, Attrs, KernelCtx, KernelFactory, OpDef, StepServices};
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_sync::CancelToken;
use ferroflow_tensor::{DType, LazyTensor, Tensor};

/// The implementation of one node. Built once, called concurrently by many steps.
///
/// A plain `Fn(&mut KernelCtx) -> Result<()>` is a kernel.
pub trait OpKernel: Send + Sync {
    /// Reads inputs from `ctx` and writes every output to it.
    ///
    /// # Errors
    /// The error that the step ends with; INVALID_ARGUMENT for inputs that the op rejects.
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()>;

    /// Returns whether the kernel absorbed constant input `i` when it was built (for example as
    /// packed weights) and does not read it from the context.
    fn prepacks_input(&self, _i: usize) -> bool {
        false
    }

    /// Returns the constants that the kernel converted to the machine's layout, if any;
    /// [`KernelBuild::packed`] of a later build returns them, which saves the conversion.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if copies do not fit into memory.
    fn packed(&self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    /// Starts an execution that may finish later, on another thread. Called instead of
    /// [`OpKernel::compute`] for ops of [`Cost::Async`](crate::Cost::Async); must not block.
    fn start(&self, call: AsyncCall) {
        call.refuse();
    }

    /// Like [`OpKernel::start`], with the step's services; what engines call. Kernels that look up
    /// resources or functions implement this one.
    fn start_with(&self, call: AsyncCall, _services: &StepServices) {
        self.start(call);
    }
}

type Done = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

/// One execution of an asynchronous kernel: it owns the inputs and finishes with the outputs.
///
/// Dropping a call without finishing it ends its step with CANCELLED.
pub struct AsyncCall {
    /// The inputs, in order.
    pub inputs: Vec<Tensor>,
    /// Cancelled with the step.
    pub cancel: CancelToken,
    /// The step's number.
    pub step_id: u64,
    /// The frame id and the iteration of the node; zeros outside of loops.
    pub frame: (u64, u64),
    done: Option<Done>,
}

impl AsyncCall {
    /// Creates a call of step 0 that passes its outputs (or the error) to `done`.
    pub fn new(
        inputs: Vec<Tensor>,
        cancel: CancelToken,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) -> Self {
        AsyncCall {
            inputs,
            cancel,
            step_id: 0,
            frame: (0, 0),
            done: Some(Box::new(done)),
        }
    }

    #[cold]
    fn refuse(self) {
        self.finish(Err(internal!("the kernel has no asynchronous form")));
    }

    /// Finishes with all outputs in order, or an error.
    pub fn finish(mut self, outputs: Result<Vec<Tensor>>) {
        // What follows may end the step, whose memory must not wait for them.
        self.inputs = Vec::new();
        if let Some(done) = self.done.take() {
            done(outputs);
        }
    }
}

impl Drop for AsyncCall {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(ferroflow_base::cancelled!(
                "the operation was dropped before it finished"
            )));
        }
    }
}

impl<F: Fn(&mut KernelCtx) -> Result<()> + Send + Sync> OpKernel for F {
    #[inline]
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        self(ctx)
    }
}

/// The attr with the tensors of [`OpKernel::packed`].
pub const PACKED: &str = "_packed";

/// The attr with the name of an EnsureShape's input in messages.
pub const INPUT_NAME: &str = "_input_name";

/// The node to build a kernel for.
pub struct KernelBuild<'a> {
    /// Node name, for messages.
    pub node: &'a str,
    /// The device of the node, as in the graph; empty if it has none.
    pub device: &'a str,
    /// Schema of the op.
    pub def: &'a OpDef,
    /// The node's attrs, complete and checked.
    pub attrs: &'a Attrs,
    /// Dtype of each input.
    pub inputs: &'a [DType],
    /// Dtype of each output.
    pub outputs: &'a [DType],
    /// The values of constant inputs; shorter than `inputs` or `None` where unknown.
    pub constants: &'a [Option<LazyTensor>],
}

impl KernelBuild<'_> {
    /// Returns the constant value of input `i`, if it is known before the first step.
    pub fn constant(&self, i: usize) -> Option<&LazyTensor> {
        self.constants.get(i)?.as_ref()
    }

    /// Returns the tensors of [`OpKernel::packed`] of the same node on the same kind of machine;
    /// their sizes are unchecked.
    pub fn packed(&self) -> Option<Result<Vec<Tensor>>> {
        let Some(AttrValue::List(list)) = self.attrs.get(PACKED) else {
            return None;
        };
        let tensor = |value: &AttrValue| match value {
            AttrValue::Tensor(tensor) => tensor.get(),
            _ => Err(ferroflow_base::data_loss!(
                "attr '{PACKED}' is not a list of tensors"
            )),
        };
        Some(list.iter().map(tensor).collect())
    }

    /// Returns the dtype of input `i`.
    ///
    /// # Errors
    /// INTERNAL if the op has no such input.
    pub fn input(&self, i: usize) -> Result<DType> {
        self.inputs
            .get(i)
            .copied()
            .ok_or_else(|| ferroflow_base::internal!("op {} has no input {i}", self.def.name))
    }

    /// Returns the dtype of output `i`.
    ///
    /// # Errors
    /// INTERNAL if the op has no such output.
    pub fn output(&self, i: usize) -> Result<DType> {
        self.outputs
            .get(i)
            .copied()
            .ok_or_else(|| ferroflow_base::internal!("op {} has no output {i}", self.def.name))
    }

    /// Returns the error of an op that has no CPU kernel for `dtype`.
    #[cold]
    pub fn unsupported(&self, dtype: DType) -> Status {
        let missing = format!("none for {dtype}");
        no_kernel(&self.def.name, self.node, self.attrs, &missing)
    }

    /// Builds the kernel of the node.
    ///
    /// # Errors
    /// Those of `factory`. If there is no kernel for the node's dtypes, the INVALID_ARGUMENT error
    /// lists the dtypes that have one, as TensorFlow does.
    pub fn kernel(&self, factory: KernelFactory) -> Result<Box<dyn OpKernel>> {
        factory(self).map_err(|e| match e.message().starts_with(NO_KERNEL) {
            true => self.registered(factory).unwrap_or(e),
            false => e,
        })
    }

    /// Returns [`no_kernel`] with the dtypes of one attr that have kernels.
    #[cold]
    fn registered(&self, factory: KernelFactory) -> Option<Status> {
        for attr in self.def.attrs.iter().filter(|a| a.ty == AttrType::Type) {
            let candidates = match attr.allowed.is_empty() {
                true => DType::ALL.iter().map(|t| AttrValue::Type(*t)).collect(),
                false => attr.allowed.clone(),
            };
            let has_kernel = |value: &&AttrValue| {
                let mut attrs = self.attrs.clone();
                attrs.set(attr.name.clone(), (*value).clone());
                let dtypes = self.def.input_dtypes(&attrs);
                let (Ok(inputs), Ok(outputs)) = (dtypes, self.def.output_dtypes(&attrs)) else {
                    return false;
                };
                let build = KernelBuild {
                    attrs: &attrs,
                    inputs: &inputs,
                    outputs: &outputs,
                    constants: &[],
                    ..*self
                };
                factory(&build).is_ok()
            };
            let line = |value: &AttrValue| format!("device='CPU'; {} in [{value}]", attr.name);
            let lines: Vec<String> = candidates.iter().filter(has_kernel).map(line).collect();
            if !lines.is_empty() {
                let lines = lines.join("\n  ");
                return Some(no_kernel(&self.def.name, self.node, self.attrs, &lines));
            }
        }
        None
    }
}

/// The start of the message of [`no_kernel`].
const NO_KERNEL: &str = "No OpKernel was registered to support Op '";

/// Returns TensorFlow's error of a node that has no CPU kernel; `kernels` lists the registered
/// ones.
#[cold]
pub fn no_kernel(op: &str, node: &str, attrs: &Attrs, kernels: &str) -> Status {
    invalid_argument!(
        "{NO_KERNEL}{op}' used by {{{{node {node}}}}} with these \
         attrs: [{attrs}]\nRegistered devices: [CPU]\nRegistered kernels:\n  {kernels}\n"
    )
    .at_node(node, op)
}
