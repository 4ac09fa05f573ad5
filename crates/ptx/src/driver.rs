//! What the stand-in for NVIDIA's driver calls, see `crates/device/src/cuda/fake_driver.c`.

use crate::kernel::Kernel;
use crate::launch::Launch;
use crate::module::Module;
use crate::{Res, lock};
use libloading::Library;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The functions that the stand-in calls, as it declares them.
#[repr(C)]
struct Table {
    load: unsafe extern "C" fn(*const c_char, c_uint) -> u64,
    function: unsafe extern "C" fn(u64, *const c_char) -> u64,
    prepare: unsafe extern "C" fn(u64, *const c_uint, *const *const Param) -> u64,
    run: unsafe extern "C" fn(u64) -> c_int,
    forget: extern "C" fn(u64),
    error: extern "C" fn() -> *const c_char,
}

static TABLE: Table = Table {
    load,
    function,
    prepare,
    run,
    forget,
    error,
};

/// An argument of a launch, as the device room hands it to the driver: the memory that it stands for follows.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Param {
    pub(crate) value: u64,
    pub(crate) start: u64,
    pub(crate) len: usize,
}

/// What the stand-in refers to by number.
#[derive(Default)]
struct State {
    last: u64,
    modules: HashMap<u64, Arc<Module>>,
    kernels: HashMap<u64, Arc<Kernel>>,
    launches: HashMap<u64, Launch>,
    /// The kernels that ran, by name.
    launched: BTreeMap<String, Launched>,
}

/// What ran of a kernel.
#[derive(Clone, Default)]
pub struct Launched {
    /// The number of launches.
    pub n_launches: usize,
    /// Whether each instruction ran.
    pub ran: Vec<bool>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    /// The last error of this thread.
    static ERROR: RefCell<CString> = RefCell::default();
}

/// A text was no module, or a function could not be decoded.
const INVALID: u64 = u64::MAX;

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    f(lock(&STATE).get_or_insert_default())
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// Notes the error of a call and returns `or` in its place.
fn noted<T>(result: Res<T>, or: T) -> T {
    result.unwrap_or_else(|e| {
        let text = CString::new(e.replace('\0', " ")).unwrap_or_default();
        ERROR.set(text);
        or
    })
}

/// Has a stand-in for NVIDIA's driver, a library that [`Cuda`] is about to open, run kernels here, as a device of a compute
/// capability such as 80 does.
///
/// [`Cuda`]: https://docs.nvidia.com/cuda/cuda-driver-api/
///
/// # Errors
/// If the library is not the stand-in.
pub fn attach(library: &Path, capability: u32) -> Res<()> {
    // SAFETY: the stand-in has no initializers.
    let library = unsafe { Library::new(library) }.map_err(|e| e.to_string())?;
    // SAFETY: the stand-in declares the function with these types.
    let attach =
        unsafe { library.get::<unsafe extern "C" fn(*const Table, c_uint)>(b"interpret_with\0") };
    let attach = *attach.map_err(|e| e.to_string())?;
    // SAFETY: the table is static, and its functions have the types that the stand-in declares.
    unsafe { attach(&raw const TABLE, capability) };
    // It stays loaded: calls may come until the process ends.
    std::mem::forget(library);
    Ok(())
}

/// The kernels that ran in this process, by name.
#[must_use]
pub fn launched() -> BTreeMap<String, Launched> {
    with(|state| state.launched.clone())
}

/// The names of the kernels of a module.
///
/// # Errors
/// If the text is not a module.
pub fn kernels(text: &str) -> Res<Vec<String>> {
    let module = Module::parse(text)?;
    Ok(module.names().map(str::to_string).collect())
}

/// # Safety
/// The text ends in zero.
unsafe extern "C" fn load(text: *const c_char, capability: c_uint) -> u64 {
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let parsed = Module::parse(&text).and_then(|module| match module.target <= capability {
        true => Ok(module),
        false => Err(format!("the device is older than sm_{}", module.target)),
    });
    let loaded = parsed.map(|module| {
        with(|state| {
            let number = state.number();
            state.modules.insert(number, Arc::new(module));
            number
        })
    });
    noted(loaded, INVALID)
}

/// # Safety
/// The name ends in zero.
unsafe extern "C" fn function(module: u64, name: *const c_char) -> u64 {
    // SAFETY: the caller promises it.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let found = with(|state| state.modules.get(&module).cloned());
    let kernel = match found {
        Some(module) => module.kernel(&name),
        None => Err("there is no such module".to_string()),
    };
    let number = kernel.map(|kernel| {
        kernel.map_or(0, |kernel| {
            with(|state| {
                let number = state.number();
                state.kernels.insert(number, kernel);
                number
            })
        })
    });
    noted(number, INVALID)
}

/// Notes a launch.
///
/// # Safety
/// `sizes` are the blocks, the threads, and the bytes of shared memory; the pointers to parameters end in a null.
unsafe extern "C" fn prepare(
    function: u64,
    sizes: *const c_uint,
    params: *const *const Param,
) -> u64 {
    // SAFETY: the caller promises seven numbers.
    let sizes: [u32; 7] = std::array::from_fn(|i| unsafe { *sizes.add(i) });
    let mut args = Vec::new();
    // SAFETY: the caller promises that a null ends the pointers, and that the others are of parameters.
    while let Some(param) = unsafe { (*params.add(args.len())).as_ref() } {
        args.push(*param);
    }
    let prepared = with(|state| {
        let kernel = state.kernels.get(&function).cloned();
        let kernel = kernel.ok_or("there is no such function")?;
        let name = &kernel.name;
        if sizes[6] != 0 {
            return Err(format!("{name}: shared memory at launch is not known"));
        }
        if args.len() != kernel.params.len() {
            let n = kernel.params.len();
            return Err(format!("{name}: {} arguments of {n}", args.len()));
        }
        for (i, ((_, ty), arg)) in kernel.params.iter().zip(&args).enumerate() {
            let fits = ty.size() == 8 || (arg.len == 0 && arg.value >> 32 == 0);
            if !fits {
                return Err(format!("{name}: argument {i} is not a {ty:?}"));
            }
        }
        let number = state.number();
        let launch = Launch {
            kernel,
            blocks: [sizes[0], sizes[1], sizes[2]],
            threads: [sizes[3], sizes[4], sizes[5]],
            args,
        };
        state.launches.insert(number, launch);
        Ok(number)
    });
    noted(prepared, INVALID)
}

/// Runs a launch that was noted.
///
/// # Safety
/// The memory among its arguments is live.
unsafe extern "C" fn run(launch: u64) -> c_int {
    let Some(launch) = with(|state| state.launches.get(&launch).cloned()) else {
        return noted(Err("there is no such launch".to_string()), 1);
    };
    // SAFETY: the caller promises the memory; a stream runs one operation at a time.
    let done = unsafe { launch.run() }.map(|ran| {
        with(|state| {
            let name = launch.kernel.name.clone();
            let all = state.launched.entry(name).or_default();
            all.n_launches += 1;
            all.ran.resize(ran.len().max(all.ran.len()), false);
            all.ran.iter_mut().zip(ran).for_each(|(a, b)| *a |= b);
        });
        0
    });
    noted(done, 1)
}

extern "C" fn forget(launch: u64) {
    with(|state| state.launches.remove(&launch));
}

extern "C" fn error() -> *const c_char {
    // Static until the next error of this thread.
    ERROR.with_borrow(|text| text.as_ptr())
}
