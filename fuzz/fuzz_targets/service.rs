//! Feeds arbitrary messages to the service's handlers, in a session with a small graph:
//! `cargo +nightly fuzz run service`. The first byte selects the method.
#![no_main]

use ferroflow_model::graph_from_text;
use ferroflow_model::proto::*;
use ferroflow_remote::{Master, MasterOptions};
use ferroflow_runtime::CancelToken;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};

const GRAPH: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'y' op: 'AddV2' input: 'x' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";

fn message<M: Message + Default>(bytes: &[u8]) -> M {
    M::decode(bytes).unwrap_or_default()
}

/// The threads of the service.
fn threads() -> Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("threads")).handle().clone()
}

fuzz_target!(|bytes: &[u8]| {
    let Some((method, bytes)) = bytes.split_first() else {
        return;
    };
    let master = Master::new(MasterOptions { threads: 1, ..Default::default() }, threads());
    let create = CreateSessionRequest {
        graph_def: graph_from_text(GRAPH).ok(),
        ..Default::default()
    };
    // Bounds the time of waiting calls.
    let cancel = CancelToken::new().with_timeout(Duration::from_secs(1));
    let Ok(created) = master.create_session(create, &cancel) else {
        return;
    };
    let session_handle = created.session_handle;
    match method % 8 {
        0 => drop(master.create_session(message(bytes), &cancel)),
        1 => drop(master.extend_session(ExtendSessionRequest { session_handle, ..message(bytes) })),
        2 => {
            if let Ok(step) = master.prepare(RunStepRequest { session_handle, ..message(bytes) }) {
                drop(master.run_step(step, &cancel));
            }
        }
        3 => {
            let setup = PartialRunSetupRequest { session_handle, ..message(bytes) };
            drop(master.partial_run_setup(setup));
        }
        4 => {
            let made = MakeCallableRequest { session_handle: session_handle.clone(), ..message(bytes) };
            if let Ok(made) = master.make_callable(made) {
                let run = RunCallableRequest { session_handle, handle: made.handle, ..Default::default() };
                drop(master.run_callable(run, &cancel));
            }
        }
        5 => drop(master.run_callable(RunCallableRequest { session_handle, ..message(bytes) }, &cancel)),
        6 => drop(master.reset(message(bytes))),
        _ => drop(master.close_session(message(bytes))),
    }
});
