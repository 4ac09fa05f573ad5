//! [`Captured`]: operations that are enqueued at once, as often as wanted.
//!
//! While a thread captures, its new tensors are in memory of the capture, and each kernel of the device notes what it does
//! with inputs that are with the host: what is copied gets a fixed place on the device; what is read may decide what is
//! enqueued, so that the value is kept; checks are kept. A replay runs the step again, in which kernels of the host compute as
//! usual, and those of the device only copy, compare and check what they noted; then it enqueues all operations at once.

use crate::allocator::Allocator;
use crate::backend::RawGraph;
use crate::tensor_memory::StreamMemory;
use ferroflow_base::{Result, failed_precondition, internal};
use ferroflow_tensor::Tensor;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Checks the value of an input.
pub type InputCheck = Box<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// One call of a kernel of the device. Inputs are numbered.
#[derive(Default)]
struct KernelCall {
    outputs: Vec<(usize, Tensor)>,
    /// Inputs with their places on the device.
    copies: Vec<(usize, Tensor)>,
    /// Inputs with the values that were read.
    reads: Vec<(usize, Tensor)>,
    checks: Vec<(usize, InputCheck)>,
}

enum Mode {
    Capturing {
        allocator: Allocator,
        calls: Vec<KernelCall>,
    },
    Replaying {
        calls: Arc<Vec<KernelCall>>,
        next: usize,
    },
}

thread_local! {
    static MODE: RefCell<Option<Mode>> = const { RefCell::new(None) };
}

/// Ends a mode, also in a panic.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        MODE.take();
    }
}

/// Whether this thread captures.
pub fn is_capturing() -> bool {
    MODE.with_borrow(|mode| matches!(mode, Some(Mode::Capturing { .. })))
}

/// The allocator of this thread's new tensors, if it captures.
pub(crate) fn allocator() -> Option<Allocator> {
    MODE.with_borrow(|mode| match mode {
        Some(Mode::Capturing { allocator, .. }) => Some(allocator.clone()),
        _ => None,
    })
}

/// Calls `f` with the call that this thread captures, if it does.
fn with_call<R>(f: impl FnOnce(&mut KernelCall) -> R) -> Option<R> {
    MODE.with_borrow_mut(|mode| match mode {
        Some(Mode::Capturing { calls, .. }) => calls.last_mut().map(f),
        _ => None,
    })
}

/// Begins a call of a kernel of the device; returns its outputs, by number, if it was captured and need not be made.
///
/// # Errors
/// Those of checks; FAILED_PRECONDITION if an input has another value than the captured operations are for.
pub fn begin_call(
    memory: &StreamMemory,
    input: impl Fn(usize) -> Result<Tensor>,
) -> Result<Option<Vec<(usize, Tensor)>>> {
    let replayed = MODE.with_borrow_mut(|mode| match mode {
        None => None,
        Some(Mode::Capturing { calls, .. }) => {
            calls.push(KernelCall::default());
            None
        }
        Some(Mode::Replaying { calls, next }) => {
            *next += 1;
            Some((calls.clone(), *next - 1))
        }
    });
    let Some((calls, at)) = replayed else {
        return Ok(None);
    };
    let call = calls.get(at);
    let call = call.ok_or_else(|| internal!("a step calls more kernels than were captured"))?;
    for (i, value) in &call.reads {
        if !input(*i)?.same_value(value) {
            return Err(failed_precondition!("another value decides what runs"));
        }
    }
    for (i, check) in &call.checks {
        check(&input(*i)?)?;
    }
    for (i, to) in &call.copies {
        memory.upload_to(to, &input(*i)?)?;
    }
    Ok(Some(call.outputs.clone()))
}

/// Notes an output of the current call.
pub fn note_output(i: usize, tensor: &Tensor) {
    with_call(|call| call.outputs.push((i, tensor.clone())));
}

/// Notes that the current call depends on the value of input `i`, which is with the host.
pub fn note_read(i: usize, tensor: &Tensor) {
    if !tensor.is_on_device() {
        with_call(|call| call.reads.push((i, tensor.clone())));
    }
}

/// Checks input `i` of the current call, now and whenever it is replayed.
///
/// # Errors
/// Those of the check.
pub fn check_input(i: usize, tensor: &Tensor, check: InputCheck) -> Result<()> {
    check(tensor)?;
    with_call(|call| call.checks.push((i, check)));
    Ok(())
}

/// Returns a copy of input `i` of the current call, which is with the host, as [`StreamMemory::upload`].
///
/// # Errors
/// As for [`StreamMemory::upload`].
pub fn upload_input(memory: &StreamMemory, i: usize, tensor: &Tensor) -> Result<Tensor> {
    if tensor.is_on_device() || !is_capturing() {
        return memory.upload(tensor);
    }
    let known = |call: &mut KernelCall| call.copies.iter().find(|(at, _)| *at == i).cloned();
    if let Some(Some((_, copy))) = with_call(known) {
        return Ok(copy);
    }
    let copy = memory.allocate_tensor(tensor.dtype(), tensor.shape().clone())?;
    with_call(|call| call.copies.push((i, copy.clone())));
    Ok(copy)
}

/// Operations of a computing stream, from tensors in fixed memory to others.
///
/// Their memory belongs to them: nothing else uses it between two replays.
pub struct Captured {
    graph: RawGraph,
    memory: Arc<StreamMemory>,
    /// The places of arguments on the device; `None` for those that are with the host.
    inputs: Vec<Option<Tensor>>,
    calls: Arc<Vec<KernelCall>>,
    /// Has the memory of what is between, which nothing else may get.
    _allocator: Allocator,
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
    /// Captures what `run` enqueues for tensors like `like`. It must call the same kernels, in the same order, whenever the
    /// shapes and what kernels note to have read are the same.
    ///
    /// # Errors
    /// Those of `run`; UNIMPLEMENTED if the device has no graphs; FAILED_PRECONDITION if a kernel copies from the host what
    /// is not an input.
    pub fn capture(
        self: &Arc<Self>,
        like: &[Tensor],
        run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Captured> {
        let device = self.compute().device();
        let allocator = Allocator::new(device, self.options());
        MODE.set(Some(Mode::Capturing {
            allocator: allocator.clone(),
            calls: Vec::new(),
        }));
        let _ends = Ends;
        let place = |t: &Tensor| match t.is_on_device() {
            true => self.allocate_tensor(t.dtype(), t.shape().clone()).map(Some),
            false => Ok(None),
        };
        let inputs: Vec<Option<Tensor>> = like.iter().map(place).collect::<Result<_>>()?;
        let (backend, stream) = (device.backend(), self.compute().raw());
        backend.begin_capture(stream)?;
        let outputs = catch_unwind(AssertUnwindSafe(|| run(given(&inputs, like))));
        let graph = backend.end_capture(stream);
        let outputs = outputs.unwrap_or_else(|_| Err(internal!("a kernel panicked")));
        self.compute().note_op();
        let calls = match MODE.take() {
            Some(Mode::Capturing { calls, .. }) => Arc::new(calls),
            _ => Arc::default(),
        };
        match (outputs, graph) {
            (Ok(_), Ok(graph)) => Ok(Captured {
                graph,
                memory: self.clone(),
                inputs,
                calls,
                _allocator: allocator,
            }),
            (Err(e), Ok(graph)) => {
                backend.destroy_graph(graph);
                Err(e)
            }
            (Err(e), Err(_)) | (Ok(_), Err(e)) => Err(e),
        }
    }
}

/// The arguments of a step: those on the device in their places.
fn given(inputs: &[Option<Tensor>], args: &[Tensor]) -> Vec<Tensor> {
    let each = inputs.iter().zip(args);
    each.map(|(input, arg)| input.as_ref().unwrap_or(arg).clone())
        .collect()
}

impl Captured {
    /// Runs the step for arguments of the shapes that were captured; returns its results, in memory of their own.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the captured operations are not those of these arguments; those of `run`, of the kernels'
    /// checks, and of the device.
    pub fn replay(
        &self,
        args: &[Tensor],
        run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        for (to, from) in self.inputs.iter().zip(args) {
            if let Some(to) = to {
                self.memory.copy_tensor(to, from)?;
            }
        }
        let outputs = {
            let (calls, next) = (self.calls.clone(), 0);
            MODE.set(Some(Mode::Replaying { calls, next }));
            let _ends = Ends;
            run(given(&self.inputs, args))?
        };
        let (device, stream) = (self.memory.compute().device(), self.memory.compute().raw());
        // SAFETY: the captured operations use memory of `inputs`, of `calls`, and of an allocator that lives as long as
        // these do and that nothing else allocates from, besides that of constants and workspaces, which are kept.
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
        outputs.iter().map(copy).collect()
    }
}
