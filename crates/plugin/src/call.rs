//! Functions that a kernel of a library may use during a call.
//!
//! Every function here is a field of `ferroflow_api` and relies on the header's contract: `call` is
//! the pointer that the kernel got, used on its thread before it returns, and other pointers point
//! to what their types say. No reference to the call is alive while a kernel or one of its
//! callbacks runs, which may use the call again; destructors of objects may not.

use crate::abi::{TensorParts, UseTensor, Value};
use crate::value::{self, IntoAsync, IntoSync};
use ferroflow_base::{Code, Result, Status, invalid_argument};
use ferroflow_host_context::{Frame, KernelFrame, Reporter, SyncKernelFrame};
use ferroflow_host_kernels::{DenseHostTensor, HostTensor, TensorShape};
use ferroflow_sync::{AsyncValue, DepthGuard, IndirectPromise};
use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};

/// The frame of a kernel of either engine.
pub(crate) enum AnyFrame<'a, 'b> {
    Async(&'a mut KernelFrame<'b>),
    Sync(&'a mut SyncKernelFrame<'b>),
}

/// Calls the same method on frames of both kinds.
macro_rules! each {
    ($call:expr, $frame:ident => $do:expr) => {
        match &$call.frame {
            AnyFrame::Async($frame) => $do,
            AnyFrame::Sync($frame) => $do,
        }
    };
}

/// `ferroflow_call`
pub(crate) struct Call<'a, 'b> {
    frame: AnyFrame<'a, 'b>,
    /// The first error.
    error: Option<Status>,
}

/// Calls a kernel; returns its error, if any.
pub(crate) fn run(frame: AnyFrame<'_, '_>, kernel: impl FnOnce(*mut Call<'_, '_>)) -> Result<()> {
    let mut call = Call { frame, error: None };
    kernel(&mut call);
    call.error.map_or(Ok(()), Err)
}

impl Call<'_, '_> {
    fn check_result(&self, i: usize) -> Result<()> {
        match each!(self, f => f.n_results()) {
            n if i < n => Ok(()),
            n => Err(invalid_argument!(
                "kernel has {n} results, none at index {i}"
            )),
        }
    }

    /// Forwards an argument to a result.
    fn forward(&mut self, arg: usize, i: usize) -> Result<()> {
        self.check_result(i)?;
        match &mut self.frame {
            AnyFrame::Async(f) => {
                let value = f.arg_value(arg)?;
                f.set_result(i, value);
            }
            AnyFrame::Sync(f) => {
                let value = f.arg_value(arg).cloned();
                let missing = || invalid_argument!("kernel has no argument {arg}");
                f.set_result(i, value.ok_or_else(missing)?);
            }
        }
        Ok(())
    }

    fn set(&mut self, i: usize, value: &Value) -> Result<()> {
        if let Err(e) = self.check_result(i) {
            // SAFETY: as below. The value belongs to the host from here on, so its object is
            // destroyed.
            let _ = unsafe { value::take(value, IntoAsync) };
            return Err(e);
        }
        // SAFETY: the header requires such values.
        unsafe {
            match &mut self.frame {
                AnyFrame::Async(f) => f.set_result(i, value::take(value, IntoAsync)?),
                AnyFrame::Sync(f) => f.set_result(i, value::take(value, IntoSync)?),
            }
        }
        Ok(())
    }

    fn tensor_arg(&self, i: usize) -> Result<DenseHostTensor> {
        let tensor = each!(self, f => f.arg::<HostTensor>(i)?.dense().cloned())?;
        value::dtype(tensor.dtype.0.into())?;
        Ok(tensor)
    }

    fn new_tensor(&self, like: &TensorParts) -> Result<DenseHostTensor> {
        // SAFETY: the header requires as many numbers as `rank`.
        let dims = unsafe { value::list(like.dims, like.rank as usize) }?;
        let shape = TensorShape::new(dims.to_vec())?;
        let allocator = each!(self, f => f.ctx().host().allocator());
        DenseHostTensor::new(allocator, value::dtype(like.dtype)?, shape)
    }

    fn set_tensor(&mut self, i: usize, tensor: DenseHostTensor) {
        let tensor = HostTensor::Dense(tensor);
        match &mut self.frame {
            AnyFrame::Async(f) => f.emplace(i, tensor),
            AnyFrame::Sync(f) => f.set_result(i, ferroflow_host_context::Value::new(tensor)),
        }
    }

    fn later(&mut self, i: usize) -> Result<Later> {
        self.check_result(i)?;
        match &mut self.frame {
            AnyFrame::Async(f) => Ok(Later {
                promise: f.allocate_indirect(i),
                reporter: f.reporter(),
            }),
            AnyFrame::Sync(_) => Err(invalid_argument!(
                "a kernel of a synchronous function cannot have asynchronous results"
            )),
        }
    }
}

/// `ferroflow_later`
pub(crate) struct Later {
    promise: IndirectPromise,
    reporter: Reporter,
}

/// Results that are set later may be sent to other threads.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Later>();
};

thread_local! {
    /// The number of callbacks with a tensor that run on this thread, and the results that were set
    /// during them: their waiters may write to the tensor.
    static READS: Cell<u32> = const { Cell::new(0) };
    static SETTLED: RefCell<Vec<(Later, Result<AsyncValue>)>> = const { RefCell::new(Vec::new()) };
}

/// Runs a callback with a tensor.
fn with_tensor(callback: impl FnOnce()) {
    let _guard = DepthGuard::enter(&READS, u32::MAX);
    callback();
}

/// Sets the results deferred during callbacks, when the last one has ended and its tensor is free.
fn settle_all() {
    while READS.get() == 0
        && let Some((later, result)) = SETTLED.with_borrow_mut(Vec::pop)
    {
        later.finish(result);
    }
}

impl Later {
    fn settle(self, result: Result<AsyncValue>) {
        SETTLED.with_borrow_mut(|all| all.push((self, result)));
        settle_all();
    }

    fn finish(self, result: Result<AsyncValue>) {
        match result {
            Ok(value) => self.promise.forward_to(value),
            Err(status) => self.promise.set_error(self.reporter.report(status)),
        }
    }
}

/// Calls `f` with a call; records the error if it fails.
///
/// # Safety
/// `call` is null or meets the contract of this module.
unsafe fn with<T>(
    call: *mut Call<'_, '_>,
    action: impl FnOnce(&mut Call<'_, '_>) -> Result<T>,
) -> Option<T> {
    // SAFETY: as above.
    let call = unsafe { call.as_mut() }?;
    match action(call) {
        Ok(value) => Some(value),
        Err(status) => {
            call.error.get_or_insert(status);
            None
        }
    }
}

fn code<T>(done: Option<T>) -> c_int {
    c_int::from(done.is_none())
}

fn null() -> Status {
    invalid_argument!("a kernel of a library passes a null pointer")
}

/// Returns the error of a library: its code and message.
///
/// # Safety
/// `message` is null or ends with a zero.
unsafe fn status(code: c_int, message: *const c_char) -> Status {
    let codes = [
        Code::Cancelled,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
    ];
    let code = codes.into_iter().find(|c| *c as c_int == code);
    // SAFETY: the contract of this function.
    let message = unsafe { value::lossy(message) };
    let message = message.unwrap_or_else(|| "a kernel of a library failed".to_string());
    Status::new(code.unwrap_or(Code::Unknown), message)
}

pub(crate) unsafe extern "C" fn n_args(call: *const Call<'_, '_>) -> usize {
    // SAFETY: see the module.
    unsafe { call.as_ref() }.map_or(0, |call| each!(call, f => f.n_args()))
}

pub(crate) unsafe extern "C" fn n_results(call: *const Call<'_, '_>) -> usize {
    // SAFETY: see the module.
    unsafe { call.as_ref() }.map_or(0, |call| each!(call, f => f.n_results()))
}

pub(crate) unsafe extern "C" fn n_attributes(call: *const Call<'_, '_>) -> usize {
    // SAFETY: see the module.
    unsafe { call.as_ref() }.map_or(0, |call| each!(call, f => f.n_attributes()))
}

pub(crate) unsafe extern "C" fn arg(call: *mut Call<'_, '_>, i: usize, value: *mut Value) -> c_int {
    // SAFETY: see the module.
    let done = unsafe {
        with(call, |call| {
            let value = value.as_mut().ok_or_else(null)?;
            value.content = each!(call, f => value::arg(&**f, i, value)?);
            Ok(())
        })
    };
    code(done)
}

pub(crate) unsafe extern "C" fn set_result(
    call: *mut Call<'_, '_>,
    i: usize,
    value: *const Value,
) -> c_int {
    // SAFETY: see the module.
    let done = unsafe { with(call, |call| call.set(i, value.as_ref().ok_or_else(null)?)) };
    code(done)
}

pub(crate) unsafe extern "C" fn forward_arg(
    call: *mut Call<'_, '_>,
    arg: usize,
    i: usize,
) -> c_int {
    // SAFETY: see the module.
    code(unsafe { with(call, |call| call.forward(arg, i)) })
}

pub(crate) unsafe extern "C" fn attribute(
    call: *mut Call<'_, '_>,
    i: usize,
    value: *mut Value,
) -> c_int {
    // SAFETY: see the module.
    let done = unsafe {
        with(call, |call| {
            let value = value.as_mut().ok_or_else(null)?;
            value.content = each!(call, f => value::attribute(f.attribute(i)?, value.kind)?);
            Ok(())
        })
    };
    code(done)
}

pub(crate) unsafe extern "C" fn array_attribute(
    call: *mut Call<'_, '_>,
    i: usize,
    kind: u32,
    data: *mut *const c_void,
    n_elements: *mut usize,
) -> c_int {
    // SAFETY: see the module.
    let done = unsafe {
        with(call, |call| {
            let data = data.as_mut().ok_or_else(null)?;
            let n_elements = n_elements.as_mut().ok_or_else(null)?;
            let dtype = value::dtype(kind)?;
            let attribute = each!(call, f => f.attribute(i)?);
            let (n, bytes) = attribute.checked_array_bytes(dtype)?;
            (*data, *n_elements) = (bytes.as_ptr().cast(), n);
            Ok(())
        })
    };
    code(done)
}

/// Returns the library's view of a tensor.
fn parts(tensor: &DenseHostTensor, data: *mut c_void, n_bytes: usize) -> TensorParts {
    TensorParts {
        dtype: tensor.dtype.0.into(),
        // The rank has 16 bits in files, 32 in libraries.
        rank: tensor.shape.0.len() as u32,
        dims: tensor.shape.0.as_ptr(),
        data,
        n_bytes,
    }
}

pub(crate) unsafe extern "C" fn read_tensor(
    call: *mut Call<'_, '_>,
    i: usize,
    reader: Option<UseTensor>,
    state: *mut c_void,
) -> c_int {
    // SAFETY: see the module.
    let found = unsafe {
        with(call, |call| {
            Ok((call.tensor_arg(i)?, reader.ok_or_else(null)?))
        })
    };
    if let Some((tensor, reader)) = &found {
        tensor.buffer.read(|bytes| {
            let parts = parts(tensor, bytes.as_ptr().cast_mut().cast(), bytes.len());
            // SAFETY: the library's own function and state; the bytes do not change meanwhile.
            with_tensor(|| unsafe { reader(&parts, state) });
        });
        settle_all();
    }
    code(found)
}

pub(crate) unsafe extern "C" fn set_tensor(
    call: *mut Call<'_, '_>,
    i: usize,
    like: *const TensorParts,
    fill: Option<UseTensor>,
    state: *mut c_void,
) -> c_int {
    // SAFETY: see the module.
    let made = unsafe {
        with(call, |call| {
            let like = like.as_ref().ok_or_else(null)?;
            call.check_result(i)?;
            Ok((call.new_tensor(like)?, fill.ok_or_else(null)?))
        })
    };
    let done = made.and_then(|(tensor, fill)| {
        tensor.buffer.write(|bytes| {
            let parts = parts(&tensor, bytes.as_mut_ptr().cast(), bytes.len());
            // SAFETY: the library's own function and state; the tensor has no other owner yet.
            with_tensor(|| unsafe { fill(&parts, state) });
        });
        settle_all();
        // SAFETY: see the module.
        unsafe {
            with(call, |call| {
                call.set_tensor(i, tensor);
                Ok(())
            })
        }
    });
    code(done)
}

pub(crate) unsafe extern "C" fn set_later(call: *mut Call<'_, '_>, i: usize) -> *mut Later {
    // SAFETY: see the module.
    let later = unsafe { with(call, |call| call.later(i)) };
    later.map_or(std::ptr::null_mut(), |l| Box::into_raw(Box::new(l)))
}

/// Takes a deferred result back from the library.
///
/// # Safety
/// `later` is null or comes from [`set_later`] and was not set yet.
unsafe fn take_later(later: *mut Later) -> Option<Later> {
    // SAFETY: such a pointer is that of a box.
    (!later.is_null()).then(|| *unsafe { Box::from_raw(later) })
}

pub(crate) unsafe extern "C" fn settle(later: *mut Later, value: *const Value) {
    // SAFETY: see the module, and the header for `later`.
    unsafe {
        if let Some(later) = take_later(later) {
            let value = value.as_ref().ok_or_else(null);
            later.settle(value.and_then(|v| value::take(v, IntoAsync)));
        }
    }
}

pub(crate) unsafe extern "C" fn settle_error(
    later: *mut Later,
    code: c_int,
    message: *const c_char,
) {
    // SAFETY: see the module, and the header for `later`.
    unsafe {
        if let Some(later) = take_later(later) {
            later.settle(Err(status(code, message)));
        }
    }
}

pub(crate) unsafe extern "C" fn fail(call: *mut Call<'_, '_>, code: c_int, message: *const c_char) {
    // SAFETY: see the module.
    unsafe {
        let _: Option<()> = with(call, |_| Err(status(code, message)));
    }
}

pub(crate) unsafe extern "C" fn print(call: *mut Call<'_, '_>, data: *const c_char, length: usize) {
    // SAFETY: see the module; `data` has `length` bytes.
    unsafe {
        with(call, |call| {
            let text = String::from_utf8_lossy(value::list(data.cast::<u8>(), length)?);
            each!(call, f => f.ctx().host().print(&text));
            Ok(())
        });
    }
}
