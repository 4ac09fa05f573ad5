//! [`Device`]: one device of a backend.

use crate::backend::{Backend, DeviceInfo, no_device};
use ferroflow_base::Result;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One device of a backend. Clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    ordinal: usize,
    info: DeviceInfo,
    /// Streams that were created, which never decreases.
    n_streams: AtomicUsize,
}

impl Device {
    /// Returns device `ordinal` of a backend.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such device.
    pub fn new(backend: Arc<dyn Backend>, ordinal: usize) -> Result<Device> {
        if ordinal >= backend.device_count() {
            return Err(no_device(&*backend, ordinal));
        }
        let info = backend.describe(ordinal)?;
        let n_streams = AtomicUsize::new(0);
        Ok(Device(Arc::new(Inner {
            backend,
            ordinal,
            info,
            n_streams,
        })))
    }

    /// Its backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    /// Its number among the backend's devices.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Its model and memory.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    pub(crate) fn count_stream(&self) {
        self.0.n_streams.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all operations are on one stream.
    pub(crate) fn has_one_stream(&self) -> bool {
        self.0.n_streams.load(Ordering::Acquire) < 2
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/device:{}:{}", self.0.backend.kind(), self.0.ordinal)
    }
}
