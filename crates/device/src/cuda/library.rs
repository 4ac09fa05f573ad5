//! Libraries of CUDA that are loaded at run time.

use super::lock;
use crate::StreamMemory;
use crate::capture::is_capturing;
use ferroflow_base::{Result, failed_precondition};
use libloading::Library;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A handle of a library: a pointer that only the library follows.
pub(super) type Handle = u64;

/// Declares a table of functions that return an `int`, and how they are looked up.
macro_rules! functions {
    ($table:ident { $($field:ident = $symbol:literal ($($arg:ty),* $(,)?);)* }) => {
        struct $table {
            $($field: unsafe extern "C" fn($($arg),*) -> std::ffi::c_int,)*
        }

        impl $table {
            /// # Safety
            /// The library's functions have these types; it stays loaded as long as the table is used.
            unsafe fn find(library: &libloading::Library) -> ferroflow_base::Result<$table> {
                $(
                    // SAFETY: the caller promises the type.
                    let $field = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> std::ffi::c_int>($symbol)
                    }
                    .map_err(|e| ferroflow_base::failed_precondition!("the library is too old: {e}"))?;
                )*
                Ok($table { $($field,)* })
            }
        }
    };
}
pub(super) use functions;

/// Functions with the library that they are of.
pub(super) struct Loaded<F> {
    pub(super) functions: F,
    pub(super) _library: Library,
}

/// What a library has prepared for each kind of operation.
pub(super) struct Plans<K, P>(Mutex<HashMap<K, Arc<P>>>);

impl<K, P> Default for Plans<K, P> {
    fn default() -> Self {
        Plans(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, P> Plans<K, P> {
    /// Returns the plan of a kind; `make` makes it at the first call.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn of(&self, kind: &K, make: impl FnOnce() -> Result<P>) -> Result<Arc<P>> {
        let known = lock(&self.0).get(kind).cloned();
        if let Some(plan) = known {
            return Ok(plan);
        }
        // Measures, which takes its time.
        let plan = Arc::new(make()?);
        lock(&self.0).insert(kind.clone(), plan.clone());
        Ok(plan)
    }
}

/// Loads the first of several versions of a library that there is.
///
/// # Errors
/// FAILED_PRECONDITION if there is none.
pub(super) fn open(names: &[&str]) -> Result<Library> {
    let mut why = String::new();
    for name in names {
        // SAFETY: the initializers of NVIDIA's libraries may run on any thread; the names are theirs.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok(library),
            Err(e) => why = format!("{why}; {e}"),
        }
    }
    Err(failed_precondition!(
        "GPU kernels need {}, where the dynamic loader finds it{why}",
        names.first().unwrap_or(&"")
    ))
}

/// Returns the time that operations of the computing stream take, in nanoseconds: the least of a few. Waits for the
/// stream, so that it is for choices that are made once.
///
/// # Errors
/// Those of the operations.
pub fn measure(memory: &StreamMemory, enqueue: impl Fn() -> Result<()>) -> Result<u128> {
    if is_capturing() {
        return Err(failed_precondition!(
            "a step that is captured makes no choices"
        ));
    }
    enqueue()?;
    let mut least = u128::MAX;
    for _ in 0..3 {
        memory.compute().synchronize()?;
        let start = Instant::now();
        for _ in 0..3 {
            enqueue()?;
        }
        memory.compute().synchronize()?;
        least = least.min(start.elapsed().as_nanos());
    }
    Ok(least)
}
