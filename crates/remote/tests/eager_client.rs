//! Clients of eager contexts on several tasks (the cases of TensorFlow's `c_api_remote_test.cc` and
//! `c_api_cluster_test.cc`).

use crate::world;

use ferroflow_base::{Code, Result};
use ferroflow_model::graph_from_text;
use ferroflow_model::proto::{
    ClusterDef, ConfigProto, CoordinationServiceConfig, JobDef, ServerDef, config_proto,
};
use ferroflow_remote::{
    EagerCluster, JoinOptions, MasterOptions, RemoteCall, RemoteInput, RemoteTensor, Server,
    ServerOptions,
};
use ferroflow_runtime::eager::{CallInputs, EagerContext, Given};
use ferroflow_runtime::{AttrValue, Attrs, CancelToken, DType};
use ferroflow_tensor::Tensor;
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use world::World;

fn device(task: usize) -> String {
    format!("/job:w/replica:0/task:{task}/device:CPU:0")
}

/// The cluster of these addresses as the task `index` sees it.
fn def(addresses: &[String], index: usize) -> ServerDef {
    let tasks: HashMap<i32, String> = (0..).zip(addresses.iter().cloned()).collect();
    ServerDef {
        cluster: Some(ClusterDef {
            job: vec![JobDef {
                name: "w".to_string(),
                tasks,
            }],
        }),
        job_name: "w".to_string(),
        task_index: index as i32,
        protocol: "grpc".to_string(),
        ..Default::default()
    }
}

/// A client that is the last task of a cluster.
struct Client {
    engine: EagerContext,
    cluster: EagerCluster,
}

impl Client {
    fn join(addresses: &[String]) -> Client {
        let engine = EagerContext::new(2);
        let def = def(addresses, addresses.len() - 1);
        let cluster = EagerCluster::join(&engine, &def, &JoinOptions::default()).unwrap();
        Client { engine, cluster }
    }

    /// Runs a call on a task; returns its outputs of these dtypes.
    fn run(
        &self,
        task: usize,
        name: &str,
        attrs: &Attrs,
        inputs: &[RemoteInput],
        dtypes: &[DType],
    ) -> Result<Vec<Arc<RemoteTensor>>> {
        let call = RemoteCall {
            name,
            attrs,
            inputs: inputs.to_vec(),
        };
        let outputs = self.cluster.promise(&device(task), dtypes)?;
        let cancel = CancelToken::new();
        self.cluster
            .run(&self.engine, &call, &device(task), &outputs, &cancel)?;
        Ok(outputs)
    }

    fn add(&self, task: usize, a: RemoteInput, b: RemoteInput) -> Result<RemoteInput> {
        let attrs = Attrs::default().with("T", AttrValue::Type(DType::Float));
        let mut sum = self.run(task, "AddV2", &attrs, &[a, b], &[DType::Float])?;
        Ok(RemoteInput::Remote(sum.remove(0)))
    }

    fn variable(&self, task: usize, value: f32) -> Result<RemoteInput> {
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(DType::Float))
            .with(
                "shape",
                AttrValue::Shape(ferroflow_runtime::PartialShape::scalar()),
            )
            .with(
                "shared_name",
                AttrValue::Str(format!("v{task}").into_bytes().into()),
            );
        let mut made = self.run(task, "VarHandleOp", &attrs, &[], &[DType::Resource])?;
        let variable = RemoteInput::Remote(made.remove(0));
        let attrs = Attrs::default().with("dtype", AttrValue::Type(DType::Float));
        let inputs = [variable.clone(), scalar(value)];
        self.run(task, "AssignVariableOp", &attrs, &inputs, &[])?;
        Ok(variable)
    }

    fn read(&self, task: usize, variable: &RemoteInput) -> Result<f32> {
        let attrs = Attrs::default().with("dtype", AttrValue::Type(DType::Float));
        let inputs = [variable.clone()];
        let value = self.run(task, "ReadVariableOp", &attrs, &inputs, &[DType::Float])?;
        value[0].fetch()?.to_scalar()
    }
}

fn scalar(value: f32) -> RemoteInput {
    RemoteInput::Local(Tensor::scalar(value))
}

fn value(input: &RemoteInput) -> f32 {
    input.fetch().unwrap().to_scalar().unwrap()
}

#[test]
fn ops_run_where_they_are_told() {
    let world = World::new(2, 1);
    let client = Client::join(&world.addresses);
    let names: Vec<String> = client
        .cluster
        .devices()
        .into_iter()
        .map(|d| d.name)
        .collect();
    assert_eq!(names, [device(2), device(0), device(1)]);
    let a = client.add(0, scalar(1.0), scalar(2.0)).unwrap();
    // A tensor of the same task, and one of another.
    let b = client.add(0, a.clone(), scalar(10.0)).unwrap();
    let c = client.add(1, b.clone(), a.clone()).unwrap();
    assert_eq!([&a, &b, &c].map(value), [3.0, 13.0, 16.0]);
    let RemoteInput::Remote(c) = c else {
        panic!("c is of task 1")
    };
    assert_eq!(
        (c.device(), c.shape().unwrap().rank()),
        (&*device(1), Some(0))
    );
    // Copies between tasks, and from here.
    let there = client.cluster.copy(&c, &device(0)).unwrap();
    assert_eq!(there.device(), device(0));
    let sent = client
        .cluster
        .send(&Tensor::scalar(5.0f32), &device(0))
        .unwrap();
    let inputs = [RemoteInput::Remote(there), RemoteInput::Remote(sent)];
    let [x, y] = inputs;
    assert_eq!(value(&client.add(0, x, y).unwrap()), 21.0);
}

#[test]
fn errors_name_their_task() {
    let world = World::new(1, 1);
    let client = Client::join(&world.addresses);
    let matrix = |n: usize| Tensor::from_slice([n, n], &vec![1.0f32; n * n]).unwrap();
    let inputs = [2, 3].map(|n| RemoteInput::Local(matrix(n)));
    let attrs = Attrs::default().with("T", AttrValue::Type(DType::Float));
    let rows = [
        (
            "MatMul",
            &inputs[..],
            Code::InvalidArgument,
            "Matrix size-incompatible",
        ),
        ("Blub", &[], Code::NotFound, "Blub"),
    ];
    for (op, inputs, code, text) in rows {
        let error = client.run(0, op, &attrs, inputs, &[DType::Float]);
        let error = error.err().expect("the op fails");
        assert_eq!(error.code(), code, "{op}: {error}");
        let origin =
            "remote target /job:w/replica:0/task:0 while calling /tensorflow.eager.EagerService";
        assert!(error.message().contains(text), "{op}: {error}");
        assert!(error.message().contains(origin), "{op}: {error}");
    }
    assert_eq!(
        value(&client.add(0, scalar(1.0), scalar(1.0)).unwrap()),
        2.0
    );
    let unknown = client
        .add(7, scalar(1.0), scalar(1.0))
        .err()
        .expect("no task");
    assert_eq!(unknown.code(), Code::InvalidArgument, "{unknown}");
    // An output that never came has the error that it was ended with.
    let output = client.cluster.promise(&device(0), &[DType::Float]).unwrap();
    output[0].fail(&unknown);
    let ended = output[0].fetch().err().map(|e| e.to_string());
    assert_eq!(ended, Some(unknown.to_string()));
}

/// `y = f(x) = -(x + a + b)` with variables `a` and `b`.
const FUNCTION: &str = "library { function {
    signature {
        name: 'f' is_stateful: true
        input_arg { name: 'x' type: DT_FLOAT }
        input_arg { name: 'a' type: DT_RESOURCE }
        input_arg { name: 'b' type: DT_RESOURCE }
        output_arg { name: 'y' type: DT_FLOAT }
    }
    node_def { name: 'ra' op: 'ReadVariableOp' input: 'a'
        attr { key: 'dtype' value { type: DT_FLOAT } } }
    node_def { name: 'rb' op: 'ReadVariableOp' input: 'b'
        attr { key: 'dtype' value { type: DT_FLOAT } } }
    node_def { name: 'ab' op: 'AddV2' input: 'ra:value:0' input: 'rb:value:0'
        device: '/job:w/task:1/device:CPU:0' attr { key: 'T' value { type: DT_FLOAT } } }
    node_def { name: 'xab' op: 'AddV2' input: 'ab:z:0' input: 'x'
        attr { key: 'T' value { type: DT_FLOAT } } }
    node_def { name: 'out' op: 'Neg' input: 'xab:z:0' attr { key: 'T' value { type: DT_FLOAT } } }
    ret { key: 'y' value: 'out:y:0' }
} }";

#[test]
fn functions_use_variables_of_all_tasks() {
    let world = World::new(2, 1);
    let client = Client::join(&world.addresses);
    let library = graph_from_text(FUNCTION).unwrap().library.unwrap();
    for function in library.function {
        client.engine.add_function(Arc::new(function)).unwrap();
    }
    let variables = [0, 1].map(|task| client.variable(task, 10.0 * (task + 1) as f32).unwrap());
    assert_eq!(client.read(1, &variables[1]).unwrap(), 20.0);
    let [a, b] = variables.clone();
    // On either task, which asks the other one for its part.
    for task in [0, 1] {
        let inputs = [scalar(1.0), a.clone(), b.clone()];
        let y = client.run(task, "f", &Attrs::default(), &inputs, &[DType::Float]);
        assert_eq!(
            y.unwrap()[0].fetch().unwrap().to_scalar::<f32>().unwrap(),
            -31.0
        );
    }
    // Here, with parts on both.
    let def = client.engine.def("f").unwrap();
    let dtypes = [DType::Float, DType::Resource, DType::Resource];
    let inputs = [scalar(2.0), a, b];
    let places = inputs.iter().map(RemoteInput::resource_device).collect();
    let devices = client.cluster.call_devices();
    let call = client
        .engine
        .call_on(
            &def,
            &Attrs::default(),
            &[Given::One; 3],
            (&dtypes, places),
            &devices,
        )
        .unwrap();
    let tensors = inputs
        .iter()
        .map(|input| Some(input.fetch().unwrap()).into());
    let mut tensors: CallInputs = tensors.collect();
    let y = call.run(&mut tensors, None).unwrap();
    assert_eq!(y[0].to_scalar::<f32>().unwrap(), -32.0);
    client.cluster.remove_function("f").unwrap();
    client.engine.remove_function("f").unwrap();
    let inputs = [scalar(1.0), variables[0].clone(), variables[1].clone()];
    let gone = client.run(0, "f", &Attrs::default(), &inputs, &[DType::Float]);
    assert_eq!(gone.err().map(|e| e.code()), Some(Code::NotFound));
}

/// A server of the task `index`, until dropped.
struct Worker {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    fn start(addresses: &[String], index: usize) -> Worker {
        let bytes = def(addresses, index).encode_to_vec();
        let server = Server::bind(ServerOptions {
            address: addresses[index].parse().unwrap(),
            monitor: None,
            tls: None,
            max_message: usize::MAX,
            master: MasterOptions {
                server: ferroflow_remote::ServerDef::from_bytes(&bytes).unwrap(),
                threads: 2,
                ..Default::default()
            },
        });
        let server = server.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        Worker {
            stop: Some(stop),
            thread: Some(std::thread::spawn(move || server.run(stopped))),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))));
    }
}

fn free_addresses<const N: usize>() -> [String; N] {
    let listeners = [(); N].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

#[test]
fn the_cluster_changes() {
    let [first, second, third, own] = free_addresses();
    // The client is task 0: the others may come and go.
    let before = [own.clone(), first.clone()];
    let worker = Worker::start(&before, 1);
    let engine = EagerContext::new(2);
    let cluster = EagerCluster::join(&engine, &def(&before, 0), &JoinOptions::default()).unwrap();
    let client = Client { engine, cluster };
    let variable = client.variable(1, 4.0).unwrap();
    assert_eq!(client.read(1, &variable).unwrap(), 4.0);
    // The same tasks: what they have stays.
    let update = |addresses: &[String]| {
        let limit = Some(Duration::from_millis(300));
        client
            .cluster
            .update(&client.engine, &def(addresses, 0), limit)
    };
    update(&before).unwrap();
    assert_eq!(client.read(1, &variable).unwrap(), 4.0);
    assert!(client.cluster.is_alive("/job:w/replica:0/task:1").unwrap());
    // A task that does not answer is missing, the other ones stay.
    let missing = [own.clone(), first.clone(), third.clone()];
    let error = update(&missing).expect_err("a task is missing");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert_eq!(client.read(1, &variable).unwrap(), 4.0);
    // It comes.
    let late = Worker::start(&missing, 2);
    update(&missing).unwrap();
    assert_eq!(client.cluster.devices().len(), 3);
    let sum = client.add(2, scalar(1.0), scalar(2.0)).unwrap();
    assert_eq!(value(&client.add(1, sum, scalar(1.0)).unwrap()), 4.0);
    // It leaves.
    update(&before).unwrap();
    assert!(client.add(2, scalar(1.0), scalar(2.0)).is_err());
    drop(late);
    // The first task is replaced by another process; its variable is lost.
    let after = [own, second];
    let replacement = Worker::start(&after, 1);
    update(&after).unwrap();
    assert!(client.read(1, &variable).is_err());
    assert_eq!(
        value(&client.add(1, scalar(1.0), scalar(2.0)).unwrap()),
        3.0
    );
    drop(worker);
    assert!(
        client
            .cluster
            .check_health("/job:w/replica:0/task:1", None)
            .is_ok()
    );
    // It dies: calls fail until it is back at its address.
    drop(replacement);
    let dead = client
        .add(1, scalar(1.0), scalar(2.0))
        .err()
        .expect("it is dead");
    assert_eq!(dead.code(), Code::Unavailable, "{dead}");
    assert!(!client.cluster.is_alive("/job:w/replica:0/task:1").unwrap());
    let _restarted = Worker::start(&after, 1);
    let health = client.cluster.check_health("/job:w/replica:0/task:1", None);
    assert_eq!(
        health.err().map(|e| e.code()),
        Some(Code::FailedPrecondition)
    );
    let unknown = client
        .add(1, scalar(1.0), scalar(2.0))
        .err()
        .expect("no context");
    assert_eq!(unknown.code(), Code::Aborted, "{unknown}");
    update(&after).unwrap();
    assert_eq!(
        value(&client.add(1, scalar(1.0), scalar(2.0)).unwrap()),
        3.0
    );
    // Another name for this task needs another context.
    let renamed = client.cluster.update(&client.engine, &def(&after, 1), None);
    assert_eq!(renamed.err().map(|e| e.code()), Some(Code::InvalidArgument));
}

#[test]
fn calls_end_when_they_are_cancelled() {
    let world = World::new(1, 1);
    let client = Client::join(&world.addresses);
    // A queue that stays empty.
    let types = AttrValue::List(vec![AttrValue::Type(DType::Float)]);
    let attrs = Attrs::default().with("component_types", types.clone());
    let queue = client
        .run(0, "FIFOQueueV2", &attrs, &[], &[DType::Resource])
        .unwrap();
    let dequeue = Attrs::default().with("component_types", types);
    let call = RemoteCall {
        name: "QueueDequeueV2",
        attrs: &dequeue,
        inputs: vec![RemoteInput::Remote(queue[0].clone())],
    };
    let outputs = client.cluster.promise(&device(0), &[DType::Float]).unwrap();
    let cancel = CancelToken::new();
    let error = std::thread::scope(|scope| {
        let (cluster, engine, token) = (&client.cluster, &client.engine, &cancel);
        let (call, outputs) = (&call, &outputs);
        let run = scope.spawn(move || cluster.run(engine, call, &device(0), outputs, token));
        cancel.cancel();
        run.join().unwrap()
    });
    assert_eq!(error.err().map(|e| e.code()), Some(Code::Cancelled));
    assert_eq!(
        value(&client.add(0, scalar(1.0), scalar(2.0)).unwrap()),
        3.0
    );
}

#[test]
fn tasks_share_values_and_wait_for_each_other() {
    let addresses: [String; 2] = free_addresses();
    let defs = [0, 1].map(|index| ServerDef {
        default_session_config: Some(ConfigProto {
            experimental: Some(config_proto::Experimental {
                coordination_config: Some(CoordinationServiceConfig {
                    service_type: "standalone".to_string(),
                    service_leader: "/job:w/replica:0/task:0".to_string(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..def(&addresses, index)
    });
    let options = JoinOptions {
        is_alone: true,
        ..Default::default()
    };
    let clients = defs.map(|def| {
        let engine = EagerContext::new(1);
        let cluster = EagerCluster::join(&engine, &def, &options).unwrap();
        Client { engine, cluster }
    });
    let [leader, member] = &clients;
    let minute = Duration::from_secs(60);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| leader.cluster.key_value("k", Some(minute)));
        member.cluster.insert_key_value("k", "v").unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), b"v");
        for _ in 0..2 {
            let waits = scope.spawn(|| leader.cluster.wait_at_barrier("b", minute));
            member.cluster.wait_at_barrier("b", minute).unwrap();
            waits.join().unwrap().unwrap();
        }
    });
    let twice = member
        .cluster
        .insert_key_value("k", "w")
        .err()
        .map(|e| e.code());
    assert_eq!(twice, Some(Code::AlreadyExists));
    member.cluster.delete_key_value("k").unwrap();
    let short = Some(Duration::from_millis(20));
    let missing = leader.cluster.key_value("k", short).err().map(|e| e.code());
    assert_eq!(missing, Some(Code::DeadlineExceeded));
    let world = World::new(1, 1);
    let alone = Client::join(&world.addresses);
    let none = alone
        .cluster
        .insert_key_value("k", "v")
        .err()
        .map(|e| e.code());
    assert_eq!(none, Some(Code::FailedPrecondition));
}
