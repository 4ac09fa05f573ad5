//! [`Captured`]: operations that are enqueued at once, as often as wanted.
//!
//! While a thread captures, its new tensors are in memory of the capture, and what kernels do with arguments that are
//! with the host is noted: those that are copied to the device get a fixed place there; of those whose values are read
//! the values are kept, since the operations may depend on them; checks are kept, to be made again.

use crate::allocator::{Allocator, AllocatorOptions};
use crate::backend::RawGraph;
use crate::tensor_memory::StreamMemory;
use ferroflow_base::{Result, failed_precondition};
use ferroflow_tensor::Tensor;
use std::cell::RefCell;
use std::sync::Arc;

/// Checks the value of an argument.
pub type ArgCheck = Box<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// An argument that is with the host.
struct HostArg {
    at: usize,
    value: Tensor,
    /// Its copy on the device, if a kernel needs one.
    copy: Option<Tensor>,
    /// Whether the operations depend on its value.
    is_read: bool,
    checks: Vec<ArgCheck>,
}

/// What this thread captures.
struct Capturing {
    allocator: Allocator,
    args: Vec<HostArg>,
    /// Whether the current node's kernel is one of the device.
    is_known: bool,
    error: Option<&'static str>,
}

thread_local! {
    static CAPTURING: RefCell<Option<Capturing>> = const { RefCell::new(None) };
}

/// Ends a capture, also in a panic.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        CAPTURING.take();
    }
}

/// Whether both are the same memory of the host.
fn is_same(a: &Tensor, b: &Tensor) -> bool {
    let (Ok(a), Ok(b)) = (a.bytes(), b.bytes()) else {
        return false;
    };
    std::ptr::eq(a, b) && !a.is_empty()
}

/// The allocator of this thread's new tensors, if it captures.
pub(crate) fn allocator() -> Option<Allocator> {
    CAPTURING.with_borrow(|c| c.as_ref().map(|c| c.allocator.clone()))
}

/// The copy of an argument on the device while this thread captures; `None` if it does not.
///
/// # Errors
/// FAILED_PRECONDITION if the tensor is not an argument.
pub(crate) fn copy_of(memory: &StreamMemory, tensor: &Tensor) -> Result<Option<Tensor>> {
    let find = |c: &mut Capturing| {
        let found = c.args.iter().position(|a| is_same(&a.value, tensor));
        c.error = found.map_or(Some("a tensor is copied from the host"), |_| c.error);
        found.map(|i| (i, c.args[i].copy.clone()))
    };
    let found = CAPTURING.with_borrow_mut(|c| c.as_mut().map(find));
    let (i, copy) = match found {
        None => return Ok(None),
        Some(None) => return Err(failed_precondition!("a tensor is copied from the host")),
        Some(Some(found)) => found,
    };
    let copy = match copy {
        Some(copy) => copy,
        None => memory.allocate_tensor(tensor.dtype(), tensor.shape().clone())?,
    };
    CAPTURING.with_borrow_mut(|c| {
        if let Some(c) = c {
            c.args[i].copy = Some(copy.clone());
        }
    });
    copy.with_shape(tensor.shape().clone()).map(Some)
}

/// Notes that the operations depend on the value of a tensor.
pub fn note_read(tensor: &Tensor) {
    CAPTURING.with_borrow_mut(|c| {
        let args = c.as_mut().map(|c| &mut c.args).into_iter().flatten();
        for arg in args.filter(|a| is_same(&a.value, tensor)) {
            arg.is_read = true;
        }
    });
}

/// Checks a tensor, now and whenever the step is replayed with another value.
///
/// # Errors
/// Those of the check.
pub fn check_value(tensor: &Tensor, check: ArgCheck) -> Result<()> {
    check(tensor)?;
    CAPTURING.with_borrow_mut(|c| {
        if let Some(c) = c {
            match c.args.iter_mut().find(|a| is_same(&a.value, tensor)) {
                Some(arg) => arg.checks.push(check),
                None => c.error = Some("a tensor of the host is checked"),
            }
        }
    });
    Ok(())
}

/// Notes that the current node's kernel is one of the device.
pub(crate) fn note_kernel() {
    CAPTURING.with_borrow_mut(|c| {
        if let Some(c) = c {
            c.is_known = true;
        }
    });
}

/// Runs a node; what a kernel of the CPU does with arguments is unknown, so that it cannot be captured.
pub(crate) fn noting_kernel<R>(run: impl FnOnce() -> R) -> R {
    let is_capturing = CAPTURING.with_borrow_mut(|c| {
        if let Some(c) = c {
            c.is_known = false;
        }
        c.is_some()
    });
    let result = run();
    if is_capturing {
        CAPTURING.with_borrow_mut(|c| {
            if let Some(c) = c.as_mut().filter(|c| !c.is_known) {
                c.error = Some("a kernel of the CPU runs");
            }
        });
    }
    result
}

/// Operations of a computing stream, from tensors in fixed memory to others.
///
/// Their memory belongs to them: nothing else uses it between two replays.
pub struct Captured {
    graph: RawGraph,
    memory: Arc<StreamMemory>,
    /// The places of arguments on the device; `None` for those that are with the host.
    inputs: Vec<Option<Tensor>>,
    args: Vec<HostArg>,
    outputs: Vec<Tensor>,
}

impl Drop for Captured {
    fn drop(&mut self) {
        // What was enqueued may still run, also where that has failed.
        let _ = self.memory.compute().synchronize();
        let backend = self.memory.compute().device().backend();
        backend.destroy_graph(self.graph);
    }
}

impl StreamMemory {
    /// Captures what `run` enqueues for tensors like `like`. It must enqueue the same whenever the shapes, and the values
    /// that kernels note to have read, are the same.
    ///
    /// # Errors
    /// Those of `run`; UNIMPLEMENTED if the device has no graphs; FAILED_PRECONDITION if `run` reads from the host what
    /// is not an argument.
    pub fn capture(
        self: &Arc<Self>,
        like: &[Tensor],
        run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Captured> {
        let device = self.compute().device();
        let options = AllocatorOptions {
            records_frees: false,
            ..Default::default()
        };
        let on_host = like.iter().enumerate().filter(|(_, t)| !t.is_on_device());
        let arg = |(at, value): (usize, &Tensor)| HostArg {
            at,
            value: value.clone(),
            copy: None,
            is_read: false,
            checks: Vec::new(),
        };
        CAPTURING.set(Some(Capturing {
            allocator: Allocator::new(device, &options),
            args: on_host.map(arg).collect(),
            is_known: false,
            error: None,
        }));
        let _ends = Ends;
        let place = |t: &Tensor| match t.is_on_device() {
            true => self.allocate_tensor(t.dtype(), t.shape().clone()).map(Some),
            false => Ok(None),
        };
        let inputs: Vec<Option<Tensor>> = like.iter().map(place).collect::<Result<_>>()?;
        let given = inputs.iter().zip(like);
        let given = given
            .map(|(input, t)| input.as_ref().unwrap_or(t).clone())
            .collect();
        let (backend, stream) = (device.backend(), self.compute().raw());
        backend.begin_capture(stream)?;
        let outputs = run(given);
        let graph = backend.end_capture(stream);
        self.compute().note_op();
        let noted = CAPTURING.take();
        let failed = |why: &str| failed_precondition!("the step cannot be captured: {why}");
        let noted = noted.ok_or_else(|| failed("it was ended"))?;
        let error = noted.error.map(failed);
        let (outputs, graph) = match (outputs, graph, error) {
            (Ok(outputs), Ok(graph), None) => (outputs, graph),
            (Err(e), Ok(graph), _) | (_, Ok(graph), Some(e)) => {
                backend.destroy_graph(graph);
                return Err(e);
            }
            (Err(e), Err(_), _) | (Ok(_), Err(e), _) => return Err(e),
        };
        Ok(Captured {
            graph,
            memory: self.clone(),
            inputs,
            args: noted.args,
            outputs,
        })
    }
}

impl Captured {
    /// Whether the operations are those for these arguments, which have the shapes of those that were captured.
    pub fn fits(&self, args: &[Tensor]) -> bool {
        let is_equal = |arg: &HostArg| args.get(arg.at).is_some_and(|t| t.same_value(&arg.value));
        self.args.iter().filter(|arg| arg.is_read).all(is_equal)
    }

    /// Enqueues the operations for arguments that fit; returns their results, in memory of their own.
    ///
    /// # Errors
    /// Those of the kernels' checks; RESOURCE_EXHAUSTED if there is too little memory; those of the device.
    pub fn replay(&self, args: &[Tensor]) -> Result<Vec<Tensor>> {
        for (to, from) in self.inputs.iter().zip(args) {
            if let Some(to) = to {
                self.memory.copy_tensor(to, from)?;
            }
        }
        for arg in &self.args {
            let Some(value) = args.get(arg.at) else {
                continue;
            };
            arg.checks.iter().try_for_each(|check| check(value))?;
            if let Some(to) = &arg.copy {
                self.memory.upload_to(to, value)?;
            }
        }
        let (device, stream) = (self.memory.compute().device(), self.memory.compute().raw());
        // SAFETY: the captured operations use memory of `inputs`, of `args`, of `outputs`, and of an allocator that
        // lives as long as these do and that nothing else allocates from, besides that of constants, which the caller
        // keeps.
        let launched = unsafe { device.backend().launch_graph(stream, self.graph) };
        self.memory.compute().note_op();
        launched?;
        let copy = |t: &Tensor| {
            if !t.is_on_device() {
                return Ok(t.clone());
            }
            let to = self.memory.allocate_tensor(t.dtype(), t.shape().clone())?;
            self.memory.copy_tensor(&to, t)?;
            Ok(to)
        };
        self.outputs.iter().map(copy).collect()
    }
}
