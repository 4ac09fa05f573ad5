//! `TF_SessionOptions` and the devices of sessions (`tensorflow/c/c_api.h`).

use crate::TF_Status;
use crate::guard::{delete, guard, guard_plain, handle, list, shared, text, unique};
use crate::session::TF_Session;
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_model::proto;
use ferroflow_remote::{GrpcSession, compile_options};
use ferroflow_runtime::{CompileOptions, DeviceSet, SessionOptions};
use prost::Message;
use std::ffi::{CString, c_char, c_int, c_void};
use std::time::Duration;

/// Options of sessions: where they run, and the `ConfigProto`.
#[derive(Clone, Default)]
pub struct TF_SessionOptions {
    target: String,
    config: proto::ConfigProto,
}

impl TF_SessionOptions {
    /// Returns the address of the master that runs the sessions; `None` for sessions of this process.
    ///
    /// # Errors
    /// NOT_FOUND if the target is neither.
    pub(crate) fn master(&self) -> Result<Option<&str>> {
        match self.target.as_str() {
            "" | "local" => Ok(None),
            target if target.starts_with("grpc://") => Ok(Some(target)),
            target => Err(not_found!(
                "No session factory registered for the given session options: {{target: \"{target}\" config: }} \
                 Registered factories are {{DIRECT_SESSION, GRPC_SESSION}}."
            )),
        }
    }

    pub(crate) fn config(&self) -> &proto::ConfigProto {
        &self.config
    }

    /// Returns the time that a step may take, unless its own options limit it.
    pub(crate) fn step_limit(&self) -> Option<Duration> {
        let limit = u64::try_from(self.config.operation_timeout_in_ms).ok();
        limit.filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// Returns the names of the devices of a session of this process.
    pub(crate) fn devices(&self) -> Vec<String> {
        let cpus = self.config.device_count.get("CPU").copied().unwrap_or(1);
        (0..cpus.max(1))
            .map(|i| format!("{TASK}/device:CPU:{i}"))
            .collect()
    }

    /// Returns the options of a session of this process in the terms of the engine.
    ///
    /// # Errors
    /// NOT_FOUND if the target is another one.
    pub(crate) fn to_engine(&self) -> Result<SessionOptions> {
        if let Some(target) = self.master()? {
            return Err(not_found!("'{target}' is not in this process"));
        }
        let config = &self.config;
        let threads = usize::try_from(config.intra_op_parallelism_threads).unwrap_or(0);
        let graph_options = config.graph_options.as_ref();
        Ok(SessionOptions {
            threads,
            pool: (threads == 0).then(crate::shared_pool),
            compile: CompileOptions {
                lower: CompileOptions::all().lower,
                ..compile_options(config)
            },
            devices: DeviceSet {
                names: self.devices(),
                incarnations: Vec::new(),
                soft: config.allow_soft_placement,
                ..Default::default()
            },
            place_pruned_graph: graph_options.is_some_and(|g| g.place_pruned_graph),
            check_feed_shapes: false,
            ..Default::default()
        })
    }
}

/// The task that this process is to its sessions.
const TASK: &str = "/job:localhost/replica:0/task:0";

/// Creates default options.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewSessionOptions() -> *mut TF_SessionOptions {
    handle(TF_SessionOptions::default())
}

/// Deletes options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteSessionOptions(opts: *mut TF_SessionOptions) {
    // SAFETY: the contract of the header.
    unsafe { delete(opts) }
}

/// Sets where sessions run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetTarget(options: *mut TF_SessionOptions, target: *const c_char) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        unsafe { unique(options)?.target = text(target)?.to_string() };
        Ok(())
    });
}

/// Sets the serialized `ConfigProto`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetConfig(
    options: *mut TF_SessionOptions,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (options, bytes) = unsafe { (unique(options)?, list(proto.cast::<u8>(), proto_len)) };
        options.config = proto::ConfigProto::decode(bytes)
            .map_err(|_| invalid_argument!("Unparseable ConfigProto"))?;
        Ok(())
    });
}

/// Devices.
pub struct TF_DeviceList {
    devices: Vec<Device>,
}

/// A device as clients see it.
pub(crate) struct Device {
    name: CString,
    kind: CString,
    memory_bytes: i64,
    incarnation: u64,
}

impl TF_DeviceList {
    /// Those of a session: of a master's tasks, or CPUs of these names.
    pub(crate) fn of_session(grpc: Option<&GrpcSession>, cpus: &[String]) -> Result<TF_DeviceList> {
        let name = |name: &String| CString::new(name.as_str()).unwrap_or_default();
        Ok(match grpc {
            Some(session) => TF_DeviceList::of(&session.devices()?),
            None => TF_DeviceList::cpus(cpus.iter().map(name)),
        })
    }

    /// CPUs of these names.
    pub(crate) fn cpus(names: impl IntoIterator<Item = CString>) -> TF_DeviceList {
        let device = |name| Device {
            name,
            kind: c"CPU".into(),
            memory_bytes: 256 << 20,
            incarnation: incarnation(),
        };
        TF_DeviceList {
            devices: names.into_iter().map(device).collect(),
        }
    }

    /// The devices of a cluster.
    pub(crate) fn of(attributes: &[proto::DeviceAttributes]) -> TF_DeviceList {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let device = |d: &proto::DeviceAttributes| Device {
            name: text(&d.name),
            kind: text(&d.device_type),
            memory_bytes: d.memory_limit,
            incarnation: d.incarnation,
        };
        TF_DeviceList {
            devices: attributes.iter().map(device).collect(),
        }
    }
}

/// A number of this process that is not 0.
fn incarnation() -> u64 {
    static NUMBER: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *NUMBER.get_or_init(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = since.map_or(1, |d| d.as_nanos() as u64);
        (nanos ^ u64::from(std::process::id()).rotate_left(40)) | 1
    })
}

/// Returns the devices of a session, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SessionListDevices(
    session: *mut TF_Session,
    status: *mut TF_Status,
) -> *mut TF_DeviceList {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        Ok(handle(unsafe { shared(session) }?.devices()?))
    })
}

/// Deletes a list of devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteDeviceList(list: *mut TF_DeviceList) {
    // SAFETY: the contract of the header.
    unsafe { delete(list) }
}

/// Returns the number of devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeviceListCount(list: *const TF_DeviceList) -> c_int {
    guard_plain(0, || {
        // SAFETY: the contract of the header.
        unsafe { list.as_ref() }.map_or(0, |l| l.devices.len() as c_int)
    })
}

/// Declares functions that read a field of a device.
macro_rules! fields {
    ($($(#[$doc:meta])* fn $name:ident -> $ty:ty = $device:ident => $value:expr, $otherwise:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                list: *const TF_DeviceList,
                index: c_int,
                status: *mut TF_Status,
            ) -> $ty {
                guard(status, $otherwise, || {
                    // SAFETY: the contract of the header.
                    let devices = unsafe { &shared(list)?.devices };
                    let found = usize::try_from(index).ok().and_then(|i| devices.get(i));
                    let $device = found.ok_or_else(|| invalid_argument!("index out of bounds"))?;
                    Ok($value)
                })
            }
        )*
    };
}

fields! {
    /// Returns a device's name.
    fn TF_DeviceListName -> *const c_char = device => device.name.as_ptr(), std::ptr::null();
    /// Returns a device's type.
    fn TF_DeviceListType -> *const c_char = device => device.kind.as_ptr(), std::ptr::null();
    /// Returns a device's memory, in bytes.
    fn TF_DeviceListMemoryBytes -> i64 = device => device.memory_bytes, -1;
    /// Returns a device's incarnation.
    fn TF_DeviceListIncarnation -> u64 = device => device.incarnation, 0;
}
