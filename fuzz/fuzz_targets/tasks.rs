//! Sends arbitrary messages to a worker and to eager contexts: `cargo +nightly fuzz run tasks`. The first byte selects
//! the method.
#![no_main]

#[path = "../../crates/remote/tests/messages/mod.rs"]
mod messages;

use libfuzzer_sys::fuzz_target;
use messages::Tasks;
use std::sync::OnceLock;
use tokio::runtime::Runtime;

fuzz_target!(|message: &[u8]| {
    static TASKS: OnceLock<(Runtime, Tasks)> = OnceLock::new();
    let (_, tasks) = TASKS.get_or_init(|| {
        let runtime = Runtime::new().expect("threads");
        let tasks = Tasks::new(runtime.handle());
        (runtime, tasks)
    });
    tasks.send(message);
});
