//! The error of an op that is not registered.

use ferroflow_base::{Status, not_found};
use std::sync::OnceLock;

/// The name of this machine; `localhost` if it is not known.
pub fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        match name.trim() {
            "" => "localhost".to_string(),
            name => name.to_string(),
        }
    })
}

/// TensorFlow's error of an op that is neither registered nor a function.
#[cold]
pub fn op_not_registered(op: &str) -> Status {
    not_found!(
        "Op type not registered '{op}' in binary running on {}. Make sure the Op and Kernel are registered in \
         the binary running in this process.",
        host_name()
    )
}
