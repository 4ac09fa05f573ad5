//! A task that masters and eager clients send messages to, all of which may be damaged. The fuzz target `tasks`
//! includes this file.

use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_to_proto};
use ferroflow_remote::{EagerService, Master, MasterOptions, Worker};
use ferroflow_runtime::CancelToken;
use ferroflow_tensor::Tensor;
use prost::Message;
use std::time::Duration;
use tokio::runtime::Handle;

const CONTEXT: u64 = 9;
const DEVICE: &str = "/job:localhost/replica:0/task:0/device:CPU:0";

/// A worker's graph that sends what it is fed, and what a variable holds.
const PART: &str = "
    node { name: 'r' op: '_Recv' device: '/device:CPU:0'
           attr { key: 'tensor_type' value { type: DT_FLOAT } } attr { key: 'tensor_name' value { s: 'x' } }
           attr { key: 'send_device' value { s: '' } } attr { key: 'recv_device' value { s: '' } }
           attr { key: 'send_device_incarnation' value { i: 0 } } }
    node { name: 's' op: '_Send' input: 'r' device: '/device:CPU:0'
           attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'tensor_name' value { s: 'y' } }
           attr { key: 'send_device' value { s: '' } } attr { key: 'recv_device' value { s: '' } }
           attr { key: 'send_device_incarnation' value { i: 0 } } }";

/// A function of one argument.
const FUNCTION: &str = "
    library { function {
        signature { name: 'f' input_arg { name: 'x' type: DT_FLOAT } output_arg { name: 'y' type: DT_FLOAT } }
        node_def { name: 'n' op: 'Neg' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }
        ret { key: 'y' value: 'n:y:0' } } }";

/// A task with a registered graph and a context of a client.
pub struct Tasks {
    worker: Worker,
    eager: EagerService,
    graph_handle: String,
    threads: Handle,
}

fn scalar() -> TensorProto {
    tensor_to_proto(&Tensor::scalar(1.0f32)).expect("a float")
}

/// How long a message may wait for others.
fn token() -> CancelToken {
    CancelToken::new().with_timeout(Duration::from_millis(50))
}

impl Tasks {
    /// A task whose calls run on `threads`.
    pub fn new(threads: &Handle) -> Tasks {
        let options = MasterOptions {
            threads: 1,
            ..Default::default()
        };
        let master = Master::new(options, threads.clone());
        let (worker, eager) = (Worker::new(&master), EagerService::new(&master));
        let register = RegisterGraphRequest {
            graph_def: Some(graph_from_text(PART).expect("valid text")),
            ..Default::default()
        };
        let registered = worker.register_graph(register).expect("a valid graph");
        let create = CreateContextRequest {
            context_id: CONTEXT,
            ..Default::default()
        };
        eager.create_context(create).expect("a context");
        for item in items().into_iter().take(1) {
            eager.enqueue(queue(item), &token()).expect("a function");
        }
        Tasks {
            worker,
            eager,
            graph_handle: registered.graph_handle,
            threads: threads.clone(),
        }
    }

    fn run_graph(&self, step_id: i64, is_partial: bool) -> RunGraphRequest {
        RunGraphRequest {
            graph_handle: self.graph_handle.clone(),
            step_id,
            send: vec![NamedTensorProto {
                name: ";0000000000000000;;x;0:0".to_string(),
                tensor: Some(scalar()),
            }],
            recv_key: vec![";0000000000000000;;y;0:0".to_string()],
            is_partial,
            is_last_partial_run: is_partial,
            ..Default::default()
        }
    }

    /// A good message of each kind; the first byte is the kind's.
    pub fn samples(&self) -> Vec<Vec<u8>> {
        let register = RegisterGraphRequest {
            graph_def: graph_from_text(PART).ok(),
            ..Default::default()
        };
        let session = CreateWorkerSessionRequest {
            session_handle: "s".to_string(),
            server_def: Some(ServerDef::default()),
            isolate_session_state: true,
            ..Default::default()
        };
        let recv = RecvTensorRequest {
            step_id: 3,
            rendezvous_key: format!("{DEVICE};0000000000000001;{DEVICE};y;0:0"),
            ..Default::default()
        };
        let create = CreateContextRequest {
            context_id: CONTEXT + 1,
            server_def: Some(ServerDef::default()),
            ..Default::default()
        };
        let update = UpdateContextRequest {
            context_id: CONTEXT,
            context_view_id: 1,
            ..Default::default()
        };
        let component = RunComponentFunctionRequest {
            context_id: CONTEXT,
            operation: Some(Operation {
                func_step_id: -3,
                is_function: true,
                is_component_function: true,
                ..call("f", 8)
            }),
            output_num: vec![0],
        };
        let clean = CleanupGraphRequest { step_id: 3 };
        let mut samples = vec![
            register.encode_to_vec(),
            self.run_graph(3, false).encode_to_vec(),
            self.run_graph(4, true).encode_to_vec(),
            session.encode_to_vec(),
            recv.encode_to_vec(),
            clean.encode_to_vec(),
            create.encode_to_vec(),
            update.encode_to_vec(),
            component.encode_to_vec(),
        ];
        samples.extend(items().into_iter().map(|item| queue(item).encode_to_vec()));
        for (kind, sample) in samples.iter_mut().enumerate() {
            sample.insert(0, kind.min(9) as u8);
        }
        samples
    }

    /// Sends a message whose first byte says of which kind it is; returns whether it was answered well.
    pub fn send(&self, message: &[u8]) -> bool {
        let Some((kind, bytes)) = message.split_first() else {
            return false;
        };
        let (worker, eager, token) = (&self.worker, &self.eager, token());
        match kind % 10 {
            0 => parsed(bytes).is_some_and(|m| worker.register_graph(m).is_ok()),
            1 | 2 => parsed(bytes).is_some_and(|m| worker.run_graph(m, &token).is_ok()),
            3 => parsed(bytes).is_some_and(|m| worker.create_worker_session(m).is_ok()),
            4 => parsed(bytes).is_some_and(|m| self.recv_tensor(m)),
            5 => parsed(bytes).is_some_and(|m| {
                worker.cleanup_graph(m);
                true
            }),
            6 => parsed(bytes).is_some_and(|m| eager.create_context(m).is_ok()),
            7 => parsed(bytes).is_some_and(|m| eager.update_context(m).is_ok()),
            8 => parsed(bytes).is_some_and(|m| eager.run_component_function(m, &token).is_ok()),
            _ => parsed(bytes).is_some_and(|m| eager.enqueue(m, &token).is_ok()),
        }
    }

    fn recv_tensor(&self, request: RecvTensorRequest) -> bool {
        let received = async {
            let limit = Duration::from_millis(20);
            tokio::time::timeout(limit, self.worker.recv_tensor(request)).await
        };
        matches!(self.threads.block_on(received), Ok(Ok(_)))
    }

    /// Whether the task still runs graphs and ops.
    pub fn is_alive(&self, step_id: i64) -> bool {
        let ran = self
            .worker
            .run_graph(self.run_graph(step_id, false), &token());
        self.worker.cleanup_graph(CleanupGraphRequest { step_id });
        let limit = CancelToken::new().with_timeout(Duration::from_secs(10));
        let answer = self.eager.enqueue(queue(operation(call("Neg", 1))), &limit);
        ran.is_ok_and(|ran| ran.recv.len() == 1)
            && answer.is_ok_and(|answer| answer.queue_response[0].shape.len() == 1)
    }
}

fn parsed<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    M::decode(bytes).ok()
}

fn operation(operation: Operation) -> queue_item::Item {
    queue_item::Item::Operation(operation)
}

fn queue(item: queue_item::Item) -> EnqueueRequest {
    EnqueueRequest {
        context_id: CONTEXT,
        queue: vec![QueueItem { item: Some(item) }],
    }
}

/// A call of an op or a function with one argument.
fn call(name: &str, id: i64) -> Operation {
    Operation {
        id,
        name: name.to_string(),
        op_inputs: vec![operation::Input {
            item: Some(operation::input::Item::Tensor(scalar())),
        }],
        ..Default::default()
    }
}

/// A good item of each kind.
fn items() -> Vec<queue_item::Item> {
    use queue_item::Item;
    let handle = RemoteTensorHandle {
        op_id: 1,
        device: DEVICE.to_string(),
        op_device: DEVICE.to_string(),
        dtype: DataType::DtFloat as i32,
        ..Default::default()
    };
    let packed = send_packed_handle_op::Handle {
        item: Some(send_packed_handle_op::handle::Item::RemoteHandle(
            handle.clone(),
        )),
    };
    let library = graph_from_text(FUNCTION).expect("valid text").library;
    let function_def = library.and_then(|l| l.function.into_iter().next());
    vec![
        Item::RegisterFunction(RegisterFunctionOp {
            function_def,
            ..Default::default()
        }),
        operation(call("Neg", 1)),
        operation(Operation {
            is_function: true,
            ..call("f", 2)
        }),
        Item::SendTensor(SendTensorOp {
            op_id: 5,
            tensors: vec![scalar(), scalar()],
            device_name: DEVICE.to_string(),
        }),
        Item::SendPackedHandle(SendPackedHandleOp {
            op_id: 6,
            handles: vec![packed],
            device_name: "/job:localhost/replica:0/task:0/device:COMPOSITE:0".to_string(),
        }),
        Item::HandleToDecref(handle),
        Item::CleanupFunction(CleanupFunctionOp { step_id: -3 }),
        Item::SyncRemoteExecutorForStream(SyncRemoteExecutorForStream {}),
        Item::RemoveFunction(RemoveFunctionOp {
            function_name: "f".to_string(),
        }),
    ]
}
