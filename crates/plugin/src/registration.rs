//! Registration of a library's kernels.

use crate::abi::Kernel;
use crate::call::{self, AnyFrame};
use crate::value::text;
use ferroflow_base::{Code, Result, Status, invalid_argument};
use ferroflow_host_context::KernelRegistry;
use std::ffi::{c_char, c_int, c_void};

/// `ferroflow_registry`
pub(crate) struct Registration<'a> {
    registry: &'a mut KernelRegistry,
    /// The first error.
    error: Option<Status>,
}

/// A kernel of a library and its state.
struct Foreign {
    kernel: Kernel,
    state: *mut c_void,
}

// SAFETY: by the header, kernels may be called on any thread, several at a time.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    fn run(&self, frame: AnyFrame<'_, '_>) -> Result<()> {
        // SAFETY: the library registered both together, and is never unloaded.
        call::run(frame, |call| unsafe { (self.kernel)(call, self.state) })
    }
}

impl<'a> Registration<'a> {
    pub(crate) fn new(registry: &'a mut KernelRegistry) -> Self {
        let error = None;
        Registration { registry, error }
    }

    pub(crate) fn finish(self) -> Result<()> {
        self.error.map_or(Ok(()), Err)
    }

    fn add(&mut self, name: &str, kernel: Foreign, is_sync: bool) -> Result<()> {
        if self.registry.get(name).is_some() {
            let message = format!("kernel '{name}' already exists");
            return Err(Status::new(Code::AlreadyExists, message));
        }
        match is_sync {
            false => (self.registry).add_raw(name, move |f| kernel.run(AnyFrame::Async(f))),
            true => (self.registry).add_raw_sync(name, move |f| kernel.run(AnyFrame::Sync(f))),
        };
        Ok(())
    }
}

/// # Safety
/// `registration` is the pointer passed to the library, which has not returned yet; `name` ends
/// with a zero.
unsafe fn add(
    registration: *mut Registration<'_>,
    name: *const c_char,
    kernel: Option<Kernel>,
    state: *mut c_void,
    is_sync: bool,
) -> c_int {
    // SAFETY: the contract of this function.
    let (Some(registration), name) = (unsafe { (registration.as_mut(), text(name)) }) else {
        return 1;
    };
    let added = match (name, kernel) {
        (Ok(name), Some(kernel)) => registration.add(&name, Foreign { kernel, state }, is_sync),
        (Err(e), _) => Err(e.prefixed("the name of a kernel: ")),
        (Ok(name), None) => Err(invalid_argument!("kernel '{name}' is a null pointer")),
    };
    match added {
        Ok(()) => 0,
        Err(e) => {
            registration.error.get_or_insert(e);
            1
        }
    }
}

/// `ferroflow_api.add_kernel`
pub(crate) unsafe extern "C" fn add_kernel(
    registration: *mut Registration<'_>,
    name: *const c_char,
    kernel: Option<Kernel>,
    state: *mut c_void,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { add(registration, name, kernel, state, false) }
}

/// `ferroflow_api.add_sync_kernel`
pub(crate) unsafe extern "C" fn add_sync_kernel(
    registration: *mut Registration<'_>,
    name: *const c_char,
    kernel: Option<Kernel>,
    state: *mut c_void,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { add(registration, name, kernel, state, true) }
}
