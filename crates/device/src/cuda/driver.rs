//! The functions of NVIDIA's driver, looked up in its library at run time.
//!
//! The types are those of `cuda.h`: handles are pointers, passed on as numbers; a device is an `int`.

use ferroflow_base::{Result, Status, failed_precondition};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A result of the driver.
pub(super) type CuResult = c_int;

/// A handle: a pointer that only the driver follows.
pub(super) type Handle = u64;

/// The function that `cuLaunchHostFunc` calls.
pub(super) type HostFn = unsafe extern "C" fn(*mut c_void);

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The functions of the driver that this room calls, and its library.
        pub(super) struct Driver {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> CuResult,)*
            _library: Library,
        }

        impl Driver {
            /// Looks all functions up.
            ///
            /// # Errors
            /// FAILED_PRECONDITION if the library or one of them is missing.
            pub(super) fn open(path: &str) -> Result<Driver> {
                let missing = |e: libloading::Error| {
                    failed_precondition!("no CUDA driver: {e}; GPU devices need NVIDIA's driver, version 470 or newer")
                };
                // SAFETY: the initializers of NVIDIA's driver may run on any thread; the caller names no
                // other library.
                let library = unsafe { Library::new(path) }.map_err(missing)?;
                $(
                    // SAFETY: `cuda.h` declares the function with these types, which are part of the
                    // driver's stable interface; `_library` keeps it loaded as long as the pointer.
                    let $field = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> CuResult>($symbol)
                    }
                    .map_err(missing)?;
                )*
                Ok(Driver { $($field,)* _library: library })
            }
        }
    };
}

driver! {
    init = b"cuInit\0" (c_uint);
    device_count = b"cuDeviceGetCount\0" (*mut c_int);
    device_get = b"cuDeviceGet\0" (*mut c_int, c_int);
    device_name = b"cuDeviceGetName\0" (*mut c_char, c_int, c_int);
    device_memory = b"cuDeviceTotalMem_v2\0" (*mut usize, c_int);
    context_retain = b"cuDevicePrimaryCtxRetain\0" (*mut Handle, c_int);
    context_set = b"cuCtxSetCurrent\0" (Handle);
    context_synchronize = b"cuCtxSynchronize\0" ();
    stream_create = b"cuStreamCreate\0" (*mut Handle, c_uint);
    stream_destroy = b"cuStreamDestroy_v2\0" (Handle);
    stream_synchronize = b"cuStreamSynchronize\0" (Handle);
    stream_query = b"cuStreamQuery\0" (Handle);
    stream_wait = b"cuStreamWaitEvent\0" (Handle, Handle, c_uint);
    event_create = b"cuEventCreate\0" (*mut Handle, c_uint);
    event_destroy = b"cuEventDestroy_v2\0" (Handle);
    event_record = b"cuEventRecord\0" (Handle, Handle);
    event_elapsed = b"cuEventElapsedTime\0" (*mut f32, Handle, Handle);
    event_query = b"cuEventQuery\0" (Handle);
    event_synchronize = b"cuEventSynchronize\0" (Handle);
    allocate = b"cuMemAlloc_v2\0" (*mut u64, usize);
    free = b"cuMemFree_v2\0" (u64);
    allocate_host = b"cuMemHostAlloc\0" (*mut *mut c_void, usize, c_uint);
    free_host = b"cuMemFreeHost\0" (*mut c_void);
    copy = b"cuMemcpyAsync\0" (u64, u64, usize, Handle);
    fill_8 = b"cuMemsetD8Async\0" (u64, u8, usize, Handle);
    fill_16 = b"cuMemsetD16Async\0" (u64, u16, usize, Handle);
    fill_32 = b"cuMemsetD32Async\0" (u64, c_uint, usize, Handle);
    module_load = b"cuModuleLoadData\0" (*mut Handle, *const c_void);
    module_unload = b"cuModuleUnload\0" (Handle);
    function = b"cuModuleGetFunction\0" (*mut Handle, Handle, *const c_char);
    global = b"cuModuleGetGlobal_v2\0" (*mut u64, *mut usize, Handle, *const c_char);
    launch = b"cuLaunchKernel\0" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
                                  *mut *mut c_void, *mut *mut c_void);
    call_host = b"cuLaunchHostFunc\0" (Handle, HostFn, *mut c_void);
    capture_begin = b"cuStreamBeginCapture_v2\0" (Handle, c_int);
    capture_end = b"cuStreamEndCapture\0" (Handle, *mut Handle);
    graph_instantiate = b"cuGraphInstantiateWithFlags\0" (*mut Handle, Handle, u64);
    graph_launch = b"cuGraphLaunch\0" (Handle, Handle);
    graph_destroy = b"cuGraphDestroy\0" (Handle);
    graph_exec_destroy = b"cuGraphExecDestroy\0" (Handle);
    error_name = b"cuGetErrorName\0" (CuResult, *mut *const c_char);
    error_text = b"cuGetErrorString\0" (CuResult, *mut *const c_char);
}

/// `CUDA_ERROR_NOT_READY`.
pub(super) const NOT_READY: CuResult = 600;
const INVALID_VALUE: CuResult = 1;
const OUT_OF_MEMORY: CuResult = 2;
const NO_DEVICE: CuResult = 100;
const INVALID_IMAGE: CuResult = 200;
const NOT_FOUND: CuResult = 500;

impl Driver {
    /// The driver's text for an error.
    fn text(
        &self,
        of: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult,
        code: CuResult,
    ) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the function writes a pointer, to a static string or null.
        unsafe { of(code, &raw mut text) };
        match text.is_null() {
            true => format!("error {code}"),
            // SAFETY: the driver returned a string that ends in zero and is never freed.
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        }
    }

    /// Turns a result into an error with the driver's name and text.
    ///
    /// # Errors
    /// That of the driver: RESOURCE_EXHAUSTED, INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION without a
    /// device, else INTERNAL.
    pub(super) fn check(&self, result: CuResult, what: &str) -> Result<()> {
        use ferroflow_base::Code;
        if result == 0 {
            return Ok(());
        }
        let code = match result {
            INVALID_VALUE | INVALID_IMAGE => Code::InvalidArgument,
            OUT_OF_MEMORY => Code::ResourceExhausted,
            NOT_FOUND => Code::NotFound,
            NO_DEVICE => Code::FailedPrecondition,
            _ => Code::Internal,
        };
        let (name, text) = (
            self.text(self.error_name, result),
            self.text(self.error_text, result),
        );
        Err(Status::new(code, format!("{what}: {name}: {text}")))
    }
}
