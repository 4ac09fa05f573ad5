//! Names of the devices of eager contexts.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::DeviceSpec;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// CPU devices that a context may have.
pub(crate) const MAX_CPUS: usize = 64;

/// The name of this process as a task, unless it has another one in a cluster.
const LOCAL_TASK: &str = "/job:localhost/replica:0/task:0";

/// A CPU device by number: its index, and above it the number of its task's name in this process. That of number 0
/// is `localhost`.
pub(crate) type Place = u32;

const INDEX_BITS: u32 = MAX_CPUS.trailing_zeros();

/// The tasks that CPU devices of this process were named after.
static TASKS: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// The places of a task begin here.
pub(crate) fn places_of(task: &str) -> Place {
    if task == LOCAL_TASK {
        return 0;
    }
    let mut tasks = TASKS.write().unwrap_or_else(PoisonError::into_inner);
    let known = tasks.iter().position(|known| known == task);
    let number = known.unwrap_or_else(|| {
        tasks.push(task.to_string());
        tasks.len() - 1
    });
    (number as Place + 1) << INDEX_BITS
}

/// The name of the task of a place.
pub(crate) fn task_name(place: Place) -> String {
    let tasks = TASKS.read().unwrap_or_else(PoisonError::into_inner);
    let number = (place >> INDEX_BITS).checked_sub(1);
    let task = number.and_then(|number| tasks.get(number as usize));
    task.map_or(LOCAL_TASK, |task| task).to_string()
}

/// The index of the CPU device of a place.
pub(crate) fn index_of(place: Place) -> u32 {
    place % MAX_CPUS as Place
}

/// The full name of a CPU device.
pub(crate) fn cpu_name(place: Place) -> &'static CStr {
    static LOCAL: [OnceLock<&CStr>; MAX_CPUS] = [const { OnceLock::new() }; MAX_CPUS];
    let make = || {
        intern(&format!(
            "{}/device:CPU:{}",
            task_name(place),
            index_of(place)
        ))
    };
    match LOCAL.get(place as usize) {
        Some(name) => name.get_or_init(make),
        None => make(),
    }
}

/// A name that lives as long as the process. There are as many as devices.
pub(crate) fn intern(name: &str) -> &'static CStr {
    static NAMES: Mutex<BTreeMap<String, &'static CStr>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let new: &'static CStr = Box::leak(CString::new(name).unwrap_or_default().into_boxed_c_str());
    names.insert(name.to_string(), new);
    new
}

/// Reads a name in its full form, or in the local form `CPU:0`.
///
/// # Errors
/// INVALID_ARGUMENT if it is malformed.
pub(crate) fn parse(name: &str) -> Result<DeviceSpec> {
    match name.starts_with('/') || name.is_empty() {
        true => DeviceSpec::parse(name),
        false => DeviceSpec::parse(&format!("/device:{name}")),
    }
}

/// The one of the first `n` places from `base` on that a name stands for.
pub(crate) fn find_cpu(name: &str, base: Place, n: usize) -> Option<Place> {
    let spec = parse(name).ok()?;
    let mut places = (base..).take(n);
    places.find(|place| spec.matches(&cpu_name(*place).to_string_lossy()))
}

/// The one of the first `n` places from `base` on of which this is a name in one of the forms that a copy may give.
pub(crate) fn find_named(name: &str, base: Place, n: usize) -> Option<Place> {
    (base..).take(n).find(|place| {
        let (task, index) = (task_name(*place), index_of(*place));
        let local = format!("CPU:{index}");
        name == local
            || name.strip_prefix("/device:") == Some(&local)
            || name.strip_prefix(&task).is_some_and(|rest| {
                rest.strip_prefix("/device:") == Some(&local) || rest == format!("/cpu:{index}")
            })
    })
}

/// Checks that a name has all parts.
///
/// # Errors
/// INVALID_ARGUMENT if one is missing.
pub(crate) fn check_full(name: &str) -> Result<()> {
    let spec = parse(name).map(|spec| spec.to_string());
    let parts = ["/job:", "/replica:", "/task:", "/device:"];
    let is_full = |spec: &str| {
        let device = spec
            .rsplit_once("/device:")
            .map_or("", |(_, device)| device);
        let index = device.rsplit_once(':').map_or("", |(_, index)| index);
        parts.iter().all(|part| spec.contains(part)) && index.parse::<u32>().is_ok()
    };
    match spec {
        Ok(spec) if is_full(&spec) => Ok(()),
        _ => Err(invalid_argument!(
            "{name} could not be parsed as a device name. Use the full \
             /job:<name>/replica:<replica>/task:<task>/device:<type>:<device_num> format."
        )),
    }
}
