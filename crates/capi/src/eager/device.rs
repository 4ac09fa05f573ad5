//! Names of the devices of eager contexts.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::DeviceSpec;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// CPU devices that a context may have.
pub(crate) const MAX_CPUS: usize = 64;

/// The full name of a CPU device.
pub(crate) fn cpu_name(index: usize) -> &'static CStr {
    static NAMES: [OnceLock<CString>; MAX_CPUS] = [const { OnceLock::new() }; MAX_CPUS];
    let make = || {
        let name = format!("/job:localhost/replica:0/task:0/device:CPU:{index}");
        CString::new(name).unwrap_or_default()
    };
    match NAMES.get(index) {
        Some(name) => name.get_or_init(make),
        None => c"",
    }
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

/// The index of the CPU device of a context with `n` that a name stands for.
pub(crate) fn find_cpu(name: &str, n: usize) -> Option<u32> {
    let spec = parse(name).ok()?;
    let is_meant = |i: &usize| spec.matches(&cpu_name(*i).to_string_lossy());
    let index = (0..n).find(is_meant)?;
    u32::try_from(index).ok()
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
