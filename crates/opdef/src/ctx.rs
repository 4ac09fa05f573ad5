//! [`KernelCtx`]: a kernel's view of a running step.

use crate::{Callable, Functions, Resources};
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_sync::{CancelToken, Parallelism};
use ferroflow_tensor::{DType, Element, Shape, Tensor};
use std::sync::Arc;

/// An input slot or an output of a node.
#[derive(Clone, Default)]
pub enum Value {
    /// No value (a dead input of a merge, or an input absorbed by the kernel).
    #[default]
    Empty,
    /// A tensor that belongs to this slot.
    Tensor(Tensor),
    /// A constant of the plan, by position.
    Const(u32),
}

impl From<Option<Tensor>> for Value {
    #[inline]
    fn from(tensor: Option<Tensor>) -> Self {
        tensor.map_or(Value::Empty, Value::Tensor)
    }
}

impl Value {
    /// Returns the tensor that belongs to this slot, if any.
    #[inline]
    pub fn into_tensor(self) -> Option<Tensor> {
        match self {
            Value::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// Drops a tensor; constants stay.
    #[inline]
    pub fn clear(&mut self) {
        if !matches!(self, Value::Const(_)) {
            *self = Value::Empty;
        }
    }
}

/// Services of the step that a kernel may use.
#[derive(Clone, Copy)]
pub struct StepServices<'a> {
    /// Threads for work inside the kernel.
    pub par: &'a dyn Parallelism,
    /// Cancels the step; long kernels check it regularly.
    pub cancel: &'a CancelToken,
    /// State that outlives the step.
    pub resources: &'a Resources,
    /// Functions that kernels may call.
    pub functions: &'a dyn Functions,
    /// The step's number, unique in the process.
    pub step_id: u64,
}

/// A node as messages and traces show it.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// The node's name.
    pub name: String,
    /// Its op type.
    pub op: String,
}

/// The context of one kernel call.
pub struct KernelCtx<'a> {
    node: &'a NodeInfo,
    inputs: &'a mut [Value],
    consts: &'a [Tensor],
    outputs: &'a mut [Value],
    services: &'a StepServices<'a>,
}

impl<'a> KernelCtx<'a> {
    /// Creates a context over the slots of an engine. Every `Value::Const` must index `consts`.
    #[inline]
    pub fn new(
        node: &'a NodeInfo,
        inputs: &'a mut [Value],
        consts: &'a [Tensor],
        outputs: &'a mut [Value],
        services: &'a StepServices<'a>,
    ) -> Self {
        KernelCtx {
            node,
            inputs,
            consts,
            outputs,
            services,
        }
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        &self.node.name
    }

    /// Returns the number of inputs.
    #[inline]
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of outputs.
    #[inline]
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Returns input `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such input; INTERNAL if it has no value.
    #[inline]
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.inputs.get(i) {
            Some(Value::Tensor(t)) => Ok(t),
            Some(Value::Const(c)) => self
                .consts
                .get(*c as usize)
                .ok_or_else(|| internal!("no constant {c} in the plan")),
            _ => Err(self.no_input(i)),
        }
    }

    /// Returns the value of input `i` if it is a scalar of type `T` stored in the tensor itself, as
    /// most scalars are.
    #[inline]
    pub fn inline_scalar<T: Element>(&self, i: usize) -> Option<T> {
        match self.inputs.get(i)? {
            Value::Tensor(t) => t.inline_scalar(),
            Value::Const(c) => self.consts.get(*c as usize)?.inline_scalar(),
            Value::Empty => None,
        }
    }

    /// Returns whether input `i` has a value.
    pub fn has_input(&self, i: usize) -> bool {
        !matches!(self.inputs.get(i), None | Some(Value::Empty))
    }

    /// Returns the elements of input `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such input or its dtype is not that of `T`; INTERNAL if
    /// it has no value.
    #[inline]
    pub fn slice<T: Element>(&self, i: usize) -> Result<&[T]> {
        self.input(i)?.slice()
    }

    /// Returns the shape of input `i`.
    ///
    /// # Errors
    /// As for [`KernelCtx::input`].
    #[inline]
    pub fn shape(&self, i: usize) -> Result<&Shape> {
        Ok(self.input(i)?.shape())
    }

    /// Takes input `i` out of its slot (constants are shared), so that its storage can be reused
    /// if it has no other owner.
    ///
    /// # Errors
    /// As for [`KernelCtx::input`].
    #[inline]
    pub fn take_input(&mut self, i: usize) -> Result<Tensor> {
        match self.inputs.get_mut(i) {
            Some(Value::Const(_)) => self.input(i).cloned(),
            Some(slot) => match std::mem::take(slot) {
                Value::Tensor(t) => Ok(t),
                _ => Err(self.no_input(i)),
            },
            None => Err(self.no_input(i)),
        }
    }

    /// Puts another tensor in the place of input `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such input.
    pub fn set_input(&mut self, i: usize, tensor: Tensor) -> Result<()> {
        match self.inputs.get_mut(i) {
            Some(slot) => {
                *slot = Value::Tensor(tensor);
                Ok(())
            }
            None => Err(self.no_input(i)),
        }
    }

    /// Returns whether input `i` may be overwritten: it has this dtype and element count, and this
    /// node is the last to read it.
    #[inline]
    pub fn can_forward(&mut self, i: usize, dtype: DType, num_elements: usize) -> bool {
        match self.inputs.get_mut(i) {
            Some(Value::Tensor(t)) => {
                t.dtype() == dtype && t.num_elements() == num_elements && t.is_unique()
            }
            _ => false,
        }
    }

    /// Returns a tensor for an output: the first of the inputs in `candidates` that can be
    /// overwritten (its slot is then empty, its values still in the tensor), else a new one with
    /// arbitrary values. The position is that of the input, if one is reused.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the tensor does not fit into memory.
    pub fn forward_or_alloc(
        &mut self,
        candidates: &[usize],
        dtype: DType,
        shape: Shape,
    ) -> Result<(Tensor, Option<usize>)> {
        let n = shape.num_elements();
        for &i in candidates {
            if self.can_forward(i, dtype, n) {
                return Ok((self.take_input(i)?.with_shape(shape)?, Some(i)));
            }
        }
        Ok((self.alloc(dtype, shape)?, None))
    }

    /// Returns a new tensor with arbitrary values.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the tensor does not fit into memory.
    #[inline]
    pub fn alloc(&self, dtype: DType, shape: Shape) -> Result<Tensor> {
        Tensor::for_overwrite(dtype, shape)
    }

    /// Sets output `i`.
    ///
    /// # Errors
    /// INTERNAL if the node has no such output.
    #[inline(always)]
    pub fn set_output(&mut self, i: usize, tensor: Tensor) -> Result<()> {
        match self.outputs.get_mut(i) {
            Some(slot) => {
                *slot = Value::Tensor(tensor);
                Ok(())
            }
            None => Err(self.no_output(i)),
        }
    }

    /// Returns the threads for work inside the kernel.
    #[inline]
    pub fn par(&self) -> &'a dyn Parallelism {
        self.services.par
    }

    /// Returns variables, tables and queues.
    #[inline]
    pub fn resources(&self) -> &'a Resources {
        self.services.resources
    }

    /// Returns the function `name`; it may be kept and called in later steps.
    ///
    /// # Errors
    /// UNIMPLEMENTED if there is none, as outside a graph.
    pub fn function(&self, name: &str) -> Result<Arc<dyn Callable>> {
        let found = self.services.functions.get(name);
        found.ok_or_else(|| {
            unimplemented_error!("function '{name}' is not available outside a graph")
        })
    }

    /// Returns the step's services.
    pub fn services(&self) -> &StepServices<'a> {
        self.services
    }

    #[cold]
    fn no_output(&self, i: usize) -> ferroflow_base::Status {
        internal!("node '{}' has no output {i}", self.node.name)
    }

    #[cold]
    fn no_input(&self, i: usize) -> ferroflow_base::Status {
        if i < self.inputs.len() {
            internal!("input {i} of node '{}' has no value", self.node.name)
        } else {
            invalid_argument!("node '{}' has no input {i}", self.node.name)
        }
    }
}
