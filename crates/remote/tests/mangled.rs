//! Corrupted messages: the master answers or returns an error, and keeps serving.
//!
//! The fuzz target `fuzz/fuzz_targets/service.rs` looks for new cases.

use ferroflow_model::graph_from_text;
use ferroflow_model::proto::*;
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_remote::{EagerService, Master, MasterOptions, Worker};
use ferroflow_runtime::CancelToken;
use ferroflow_tensor::Tensor;
use prost::Message;
use std::time::Duration;

const GRAPH: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'z' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'y' op: 'AddV2' input: 'x' input: 'z' attr { key: 'T' value { type: DT_FLOAT } } }";

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// `message` with some bytes changed, cut off or repeated, as far as it still is one.
fn mangled<M: Message + Default>(message: &M, random: &mut Random) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1));
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => {
                let piece = bytes.get(at..).unwrap_or_default().to_vec();
                bytes.extend(piece);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.below(256) as u8;
                }
            }
        }
    }
    M::decode(&bytes[..]).ok()
}

fn feed(name: &str, value: f32) -> NamedTensorProto {
    NamedTensorProto {
        name: name.to_string(),
        tensor: Some(tensor_to_proto(&Tensor::vector(&[value; 3]).unwrap()).unwrap()),
    }
}

fn step(session_handle: &str) -> RunStepRequest {
    RunStepRequest {
        session_handle: session_handle.to_string(),
        feed: vec![feed("x:0", 1.0), feed("z:0", 2.0)],
        fetch: vec!["y:0".into()],
        options: Some(RunOptions {
            timeout_in_ms: 1000,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Runs a good step.
fn check_alive(master: &Master, handle: &str) {
    let prepared = master.prepare(step(handle)).unwrap();
    let response = master.run_step(prepared, &CancelToken::new()).unwrap();
    let sum = response.tensor[0].tensor.clone().unwrap();
    let sum = tensor_from_proto(&sum, None).unwrap().get().unwrap();
    assert_eq!(sum.slice::<f32>().unwrap(), [3.0; 3]);
}

#[test]
fn damaged_messages() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = MasterOptions {
        threads: 2,
        ..Default::default()
    };
    let master = Master::new(options, runtime.handle().clone());
    let create = CreateSessionRequest {
        graph_def: Some(graph_from_text(GRAPH).unwrap()),
        config: Some(ConfigProto::default()),
        ..Default::default()
    };
    let handle = master
        .create_session(create.clone(), &CancelToken::new())
        .unwrap()
        .session_handle;
    let extend = ExtendSessionRequest {
        session_handle: handle.clone(),
        graph_def: Some(graph_from_text("node { name: 'n' op: 'NoOp' input: '^y' }").unwrap()),
        current_graph_version: 0,
    };
    let make = MakeCallableRequest {
        session_handle: handle.clone(),
        options: Some(CallableOptions {
            feed: vec!["x:0".into(), "z:0".into()],
            fetch: vec!["y:0".into()],
            ..Default::default()
        }),
        ..Default::default()
    };
    let setup = PartialRunSetupRequest {
        session_handle: handle.clone(),
        feed: vec!["x:0".into(), "z:0".into()],
        fetch: vec!["y:0".into()],
        ..Default::default()
    };
    let mut random = Random(7);
    let token = || CancelToken::new().with_timeout(Duration::from_secs(2));
    for round in 0..600 {
        let random = &mut random;
        match round % 5 {
            0 => drop(mangled(&create, random).map(|m| master.create_session(m, &token()))),
            1 => {
                let prepared = mangled(&step(&handle), random).map(|m| master.prepare(m));
                if let Some(Ok(step)) = prepared {
                    let _ = master.run_step(step, &token());
                }
            }
            2 => {
                if let Some(Ok(made)) = mangled(&make, random).map(|m| master.make_callable(m)) {
                    let run = RunCallableRequest {
                        session_handle: handle.clone(),
                        handle: made.handle,
                        feed: vec![feed("", 1.0).tensor.unwrap()],
                        ..Default::default()
                    };
                    drop(mangled(&run, random).map(|m| master.run_callable(m, &token())));
                }
            }
            3 => drop(mangled(&setup, random).map(|m| master.partial_run_setup(m))),
            _ => drop(mangled(&extend, random).map(|m| master.extend_session(m))),
        }
        if round % 50 == 0 {
            check_alive(&master, &handle);
        }
    }
    check_alive(&master, &handle);
}

/// A worker's graph that sends what it is fed.
const PART: &str = "
    node { name: 'r' op: '_Recv' device: '/device:CPU:0'
           attr { key: 'tensor_type' value { type: DT_FLOAT } } attr { key: 'tensor_name' value { s: 'x' } }
           attr { key: 'send_device' value { s: '' } } attr { key: 'recv_device' value { s: '' } }
           attr { key: 'send_device_incarnation' value { i: 0 } } }
    node { name: 's' op: '_Send' input: 'r' device: '/device:CPU:0'
           attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'tensor_name' value { s: 'y' } }
           attr { key: 'send_device' value { s: '' } } attr { key: 'recv_device' value { s: '' } }
           attr { key: 'send_device_incarnation' value { i: 0 } } }";

#[test]
fn damaged_messages_of_masters_and_eager_clients() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let master = Master::new(MasterOptions::default(), runtime.handle().clone());
    let (worker, eager) = (Worker::new(&master), EagerService::new(&master));
    let register = RegisterGraphRequest {
        graph_def: Some(graph_from_text(PART).unwrap()),
        ..Default::default()
    };
    let graph_handle = worker
        .register_graph(register.clone())
        .unwrap()
        .graph_handle;
    let run = |step_id: i64| RunGraphRequest {
        graph_handle: graph_handle.clone(),
        step_id,
        send: vec![feed(";0000000000000000;;x;0:0", 1.0)],
        recv_key: vec![";0000000000000000;;y;0:0".to_string()],
        ..Default::default()
    };
    let create = CreateContextRequest {
        context_id: 9,
        ..Default::default()
    };
    eager.create_context(create.clone()).unwrap();
    let operation = Operation {
        id: 1,
        name: "Neg".to_string(),
        op_inputs: vec![operation::Input {
            item: feed("", 1.0).tensor.map(operation::input::Item::Tensor),
        }],
        ..Default::default()
    };
    let enqueue = EnqueueRequest {
        context_id: 9,
        queue: vec![QueueItem {
            item: Some(queue_item::Item::Operation(operation)),
        }],
    };
    let mut random = Random(11);
    let token = || CancelToken::new().with_timeout(Duration::from_millis(200));
    let check_alive = |round: i64| {
        let ran = worker.run_graph(run(1000 + round), &token()).unwrap();
        assert_eq!(ran.recv.len(), 1);
        let step_id = 1000 + round;
        worker.cleanup_graph(CleanupGraphRequest { step_id });
        let answer = eager.enqueue(enqueue.clone(), &token()).unwrap();
        assert_eq!(answer.queue_response[0].shape.len(), 1);
    };
    for round in 0..400 {
        let random = &mut random;
        match round % 4 {
            0 => drop(mangled(&register, random).map(|m| worker.register_graph(m))),
            1 => drop(mangled(&run(round), random).map(|m| worker.run_graph(m, &token()))),
            2 => drop(mangled(&enqueue, random).map(|m| eager.enqueue(m, &token()))),
            _ => drop(mangled(&create, random).map(|m| eager.create_context(m))),
        }
        if round % 50 == 0 {
            check_alive(round);
        }
    }
    check_alive(400);
}
