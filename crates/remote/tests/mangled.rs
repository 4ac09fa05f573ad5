//! Corrupted messages: the master answers or returns an error, and keeps serving.
//!
//! The fuzz targets `fuzz/fuzz_targets/service.rs` and `tasks.rs` look for new cases.

use crate::messages;

use ferroflow_model::graph_from_text;
use ferroflow_model::proto::*;
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_remote::{Master, MasterOptions};
use ferroflow_runtime::CancelToken;
use ferroflow_tensor::Tensor;
use ferroflow_testkit::random::Rng;
use messages::Tasks;
use prost::Message;
use std::time::Duration;

const GRAPH: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'z' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'y' op: 'AddV2' input: 'x' input: 'z' attr { key: 'T' value { type: DT_FLOAT } } }";

/// `message` with some bytes changed, cut off or repeated, as far as it still is one.
fn mangled<M: Message + Default>(message: &M, random: &mut Rng) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    damage(&mut bytes, random);
    M::decode(&bytes[..]).ok()
}

/// Changes, cuts off or repeats some bytes.
fn damage(bytes: &mut Vec<u8>, random: &mut Rng) {
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
    let mut random = Rng(7);
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

#[test]
fn damaged_messages_of_masters_and_eager_clients() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tasks = Tasks::new(runtime.handle());
    let samples = tasks.samples();
    for (i, sample) in samples.iter().enumerate() {
        // Nothing sends what is asked for.
        let is_answered = sample[0] != 4;
        assert_eq!(tasks.send(sample), is_answered, "sample {i}");
    }
    let mut random = Rng(11);
    for round in 0..300 * samples.len() {
        let mut message = samples[round % samples.len()].clone();
        let kind = message.remove(0);
        damage(&mut message, &mut random);
        message.insert(0, kind);
        tasks.send(&message);
        if round % 100 == 0 {
            assert!(tasks.is_alive(1000 + round as i64), "round {round}");
        }
    }
}
