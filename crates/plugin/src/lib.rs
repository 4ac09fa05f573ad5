//! Host kernels in shared libraries, written in any language with a C interface.
//!
//! Entry point: [`load`]. The interface is `include/ferroflow_kernels.h`: a library exports one
//! function, which gets a table of functions and registers kernels by name. `abi.rs` mirrors the
//! header in Rust, `registration.rs` and `call.rs` have the functions of the table, `value.rs`
//! converts values.
//!
//! Unsafe code: everything that crosses the interface. It relies on the header's contract; mistakes
//! of a library within that contract (types, numbers of arguments, names) are checked.
//!
//! Does not know: engines, graphs, where a program comes from.

#![warn(clippy::missing_errors_doc)]

mod abi;
mod call;
mod registration;
mod value;

use abi::{Api, Register};
use ferroflow_base::{Result, failed_precondition, invalid_argument, not_found};
use ferroflow_host_context::KernelRegistry;
use libloading::Library;
use registration::Registration;

/// The symbol that a library exports.
const REGISTER: &str = "ferroflow_register_kernels";

/// The table that libraries get.
static API: Api = Api {
    version: 1,
    n_bytes: size_of::<Api>() as u32,
    add_kernel: registration::add_kernel,
    add_sync_kernel: registration::add_sync_kernel,
    n_args: call::n_args,
    n_results: call::n_results,
    n_attributes: call::n_attributes,
    arg: call::arg,
    set_result: call::set_result,
    forward_arg: call::forward_arg,
    attribute: call::attribute,
    array_attribute: call::array_attribute,
    read_tensor: call::read_tensor,
    set_tensor: call::set_tensor,
    set_later: call::set_later,
    settle: call::settle,
    settle_error: call::settle_error,
    fail: call::fail,
    print: call::print,
};

/// Loads the library `path` and adds its kernels to `registry`. It stays loaded until the process
/// exits.
///
/// # Errors
/// NOT_FOUND if the file does not exist or is not a library; INVALID_ARGUMENT if it does not export
/// `ferroflow_register_kernels`; ALREADY_EXISTS if the name of a kernel is taken.
///
/// The library's code runs with all rights of this process: load only what you trust.
///
/// ```
/// use ferroflow_host_context::KernelRegistry;
/// let error = ferroflow_plugin::load(&mut KernelRegistry::default(), "/no/such/library.so");
/// assert!(error.unwrap_err().message().contains("/no/such/library.so"));
/// ```
pub fn load(registry: &mut KernelRegistry, path: &str) -> Result<()> {
    // SAFETY: the library's initializers are code that the caller trusts.
    let library = unsafe { Library::new(path) }.map_err(|e| {
        let reason = std::error::Error::source(&e).map_or(String::new(), |s| format!(": {s}"));
        not_found!("cannot load the shared library '{path}': {e}{reason}")
    })?;
    // SAFETY: the header declares this symbol with this type.
    let register = unsafe { library.get::<Register>(REGISTER.as_bytes()) }
        .map_err(|_| invalid_argument!("'{path}' has no kernels: it does not export {REGISTER}"))?;
    let mut registration = Registration::new(registry);
    // SAFETY: both pointers are valid until the call returns, as the header promises.
    let code = unsafe { register(&API, &mut registration) };
    let result = registration.finish();
    // Kernels and objects of the library may be used until the process exits.
    std::mem::forget(library);
    result.map_err(|e| e.prefixed(&format!("in '{path}': ")))?;
    match code {
        0 => Ok(()),
        code => Err(failed_precondition!(
            "'{path}' could not register its kernels: code {code}"
        )),
    }
}
