//! Functions of eager contexts that run on several tasks.

use crate::world;

use ferroflow_model::proto::queue_item::Item;
use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_from_proto, tensor_to_proto};
use ferroflow_tensor::Tensor;
use std::collections::HashMap;
use tonic::{Code, Status};
use world::World;

const CONTEXT: u64 = 11;

fn device(task: usize) -> String {
    format!("/job:w/replica:0/task:{task}/device:CPU:0")
}

/// Contexts of one client on all tasks.
fn contexts(world: &World) {
    contexts_for(world, 0, |_| true);
}

/// Begins a context on each task, which expires after some seconds without a request unless these are 0, and knows
/// these tasks.
fn contexts_for(world: &World, keep_alive_secs: i64, is_known: fn(usize) -> bool) {
    let tasks: HashMap<i32, String> = (0..).zip(world.addresses.clone()).collect();
    let known = (0..world.channels.len()).filter(|task| is_known(*task));
    let devices = known.flat_map(|task| {
        let status: GetStatusResponse = world
            .call(task, "WorkerService/GetStatus", GetStatusRequest {})
            .unwrap();
        status.device_attributes
    });
    let devices: Vec<DeviceAttributes> = devices.collect();
    for task in 0..world.channels.len() {
        let request = CreateContextRequest {
            server_def: Some(ServerDef {
                cluster: Some(ClusterDef {
                    job: vec![JobDef {
                        name: "w".to_string(),
                        tasks: tasks.clone(),
                    }],
                }),
                job_name: "w".to_string(),
                task_index: task as i32,
                ..Default::default()
            }),
            context_id: CONTEXT,
            cluster_device_attributes: devices.clone(),
            keep_alive_secs,
            ..Default::default()
        };
        let made: Result<CreateContextResponse, Status> =
            world.call(task, "eager.EagerService/CreateContext", request);
        made.unwrap();
    }
}

fn enqueue(world: &World, task: usize, item: Item) -> Result<Vec<f32>, Status> {
    let answer = answer(world, task, item)?;
    let values = answer.tensor.iter().map(|proto| {
        let tensor = tensor_from_proto(proto, None).unwrap().get().unwrap();
        tensor.to_scalar().unwrap()
    });
    Ok(values.collect())
}

fn answer(world: &World, task: usize, item: Item) -> Result<QueueResponse, Status> {
    let request = EnqueueRequest {
        context_id: CONTEXT,
        queue: vec![QueueItem { item: Some(item) }],
    };
    let answer: EnqueueResponse = world.call(task, "eager.EagerService/Enqueue", request)?;
    Ok(answer.queue_response.into_iter().next().unwrap_or_default())
}

enum Arg {
    Value(f32),
    /// An output of an op of a task, with its dtype.
    Handle(i64, usize, i32),
}

/// An operation; one of id −1 returns its outputs.
fn operation(id: i64, name: &str, task: usize, args: &[Arg], attrs: &str) -> Item {
    let inputs = args.iter().map(|arg| operation::Input {
        item: Some(match arg {
            Arg::Value(x) => {
                operation::input::Item::Tensor(tensor_to_proto(&Tensor::scalar(*x)).unwrap())
            }
            Arg::Handle(id, owner, dtype) => {
                operation::input::Item::RemoteHandle(RemoteTensorHandle {
                    op_id: *id,
                    output_num: 0,
                    device: device(*owner),
                    op_device: device(*owner),
                    dtype: *dtype,
                    ..Default::default()
                })
            }
        }),
    });
    // The attrs of a node in text form.
    let text = format!("node {{ name: 'n' op: 'n' {attrs} }}");
    let attrs = graph_from_text(&text).unwrap().node.remove(0).attr;
    Item::Operation(Operation {
        id,
        name: name.to_string(),
        op_inputs: inputs.collect(),
        attrs,
        device: device(task),
        is_function: name.starts_with("__"),
        ..Default::default()
    })
}

/// Registers the functions of a library in text form on a task.
fn register(world: &World, task: usize, library: &str) {
    let text = format!("library {{ {library} }}");
    let library = graph_from_text(&text).unwrap().library.unwrap();
    for function in library.function {
        let item = Item::RegisterFunction(RegisterFunctionOp {
            function_def: Some(function),
            ..Default::default()
        });
        enqueue(world, task, item).unwrap();
    }
}

const FLOAT: i32 = 1;
const RESOURCE: i32 = 20;

/// A variable of a task, whose handle is the output of the op `id`.
fn variable(world: &World, task: usize, id: i64, value: f32) {
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let anonymous = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";
    let attrs = format!(
        "{dtype} attr {{ key: 'shape' value {{ shape {{}} }} }}
        attr {{ key: 'shared_name' value {{ s: '{anonymous}' }} }}"
    );
    enqueue(world, task, operation(id, "VarHandleOp", task, &[], &attrs)).unwrap();
    let args = [Arg::Handle(id, task, RESOURCE), Arg::Value(value)];
    let assign = operation(10 + id, "AssignVariableOp", task, &args, dtype);
    enqueue(world, task, assign).unwrap();
}

#[test]
fn a_function_uses_variables_of_other_tasks() {
    let world = World::new(3, 0);
    contexts(&world);
    variable(&world, 1, 1, 10.0);
    variable(&world, 2, 2, 20.0);
    let library = "function {
        signature {
            name: '__f' is_stateful: true
            input_arg { name: 'x' type: DT_FLOAT }
            input_arg { name: 'a' type: DT_RESOURCE }
            input_arg { name: 'b' type: DT_RESOURCE }
            output_arg { name: 'y' type: DT_FLOAT }
        }
        node_def { name: 'step' op: 'AssignAddVariableOp' input: 'a' input: 'x'
            attr { key: 'dtype' value { type: DT_FLOAT } } }
        node_def { name: 'ra' op: 'ReadVariableOp' input: 'a' input: '^step'
            attr { key: 'dtype' value { type: DT_FLOAT } } }
        node_def { name: 'rb' op: 'ReadVariableOp' input: 'b'
            attr { key: 'dtype' value { type: DT_FLOAT } } }
        node_def { name: 'sum' op: 'AddV2' input: 'ra:value:0' input: 'rb:value:0'
            device: '/job:w/task:2/device:CPU:0' attr { key: 'T' value { type: DT_FLOAT } } }
        node_def { name: 'out' op: 'Neg' input: 'sum:z:0' attr { key: 'T' value { type: DT_FLOAT } } }
        ret { key: 'y' value: 'out:y:0' }
        control_ret { key: 'step' value: 'step' }
    }";
    register(&world, 0, library);
    let call = |x: f32| {
        let args = [
            Arg::Value(x),
            Arg::Handle(1, 1, RESOURCE),
            Arg::Handle(2, 2, RESOURCE),
        ];
        enqueue(&world, 0, operation(-1, "__f", 0, &args, ""))
    };
    assert_eq!(call(1.0).unwrap(), [-31.0]);
    assert_eq!(call(2.0).unwrap(), [-33.0]);
    // The client sees what the function assigned.
    let args = [Arg::Handle(1, 1, RESOURCE)];
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let read = enqueue(&world, 1, operation(-1, "ReadVariableOp", 1, &args, dtype));
    assert_eq!(read.unwrap(), [13.0]);
    // A tensor of another task is copied.
    let ones = operation(
        40,
        "Identity",
        1,
        &[Arg::Value(5.0)],
        "attr { key: 'T' value { type: DT_FLOAT } }",
    );
    enqueue(&world, 1, ones).unwrap();
    let args = [Arg::Handle(40, 1, FLOAT)];
    let negated = operation(
        -1,
        "Neg",
        0,
        &args,
        "attr { key: 'T' value { type: DT_FLOAT } }",
    );
    assert_eq!(enqueue(&world, 0, negated).unwrap(), [-5.0]);
    // After the variable is destroyed, the function fails with its name.
    let args = [Arg::Handle(2, 2, RESOURCE)];
    enqueue(&world, 2, operation(50, "DestroyResourceOp", 2, &args, "")).unwrap();
    let error = call(0.0).expect_err("b is gone");
    assert_eq!(error.code(), tonic::Code::FailedPrecondition, "{error}");
}

#[test]
fn a_dataset_uses_variables_of_other_tasks() {
    let world = World::new(2, 0);
    contexts(&world);
    let attrs =
        "attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' value { shape {} } }
        attr { key: 'shared_name' value { s: 'elsewhere' } }";
    let variable = operation(1, "VarHandleOp", 1, &[], attrs);
    enqueue(&world, 1, variable).unwrap();
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let args = [Arg::Handle(1, 1, RESOURCE), Arg::Value(5.0)];
    let assign = operation(2, "AssignVariableOp", 1, &args, dtype);
    enqueue(&world, 1, assign).unwrap();
    let int = |name: &str, value: i64| {
        format!(
            "node_def {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT64 }} }} attr {{ \
             key: 'value' value {{ tensor {{ dtype: DT_INT64 tensor_shape {{ }} int64_val: {value} }} }} }} }}"
        )
    };
    let list =
        |key: &str, value: &str| format!("attr {{ key: '{key}' value {{ list {{ {value} }} }} }}");
    let library = format!(
        "function {{
            signature {{
                name: '__add' is_stateful: true
                input_arg {{ name: 's' type: DT_FLOAT }}
                input_arg {{ name: 'x' type: DT_INT64 }}
                input_arg {{ name: 'v' type: DT_RESOURCE }}
                output_arg {{ name: 'y' type: DT_FLOAT }}
            }}
            node_def {{ name: 'c' op: 'Cast' input: 'x' attr {{ key: 'SrcT' value {{ type: DT_INT64 }} }}
                attr {{ key: 'DstT' value {{ type: DT_FLOAT }} }} }}
            node_def {{ name: 'r' op: 'ReadVariableOp' input: 'v' {dtype} }}
            node_def {{ name: 'm' op: 'Mul' input: 'c:y:0' input: 'r:value:0'
                attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
            node_def {{ name: 'a' op: 'AddV2' input: 's' input: 'm:z:0'
                attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
            ret {{ key: 'y' value: 'a:z:0' }}
        }}
        function {{
            signature {{
                name: '__sum' is_stateful: true
                input_arg {{ name: 'zero' type: DT_FLOAT }}
                input_arg {{ name: 'v' type: DT_RESOURCE }}
                output_arg {{ name: 'y' type: DT_FLOAT }}
            }}
            {} {} {}
            node_def {{ name: 'd' op: 'RangeDataset' input: 'from:output:0' input: 'to:output:0'
                input: 'by:output:0' {} {} }}
            node_def {{ name: 'sum' op: 'ReduceDataset' input: 'd:handle:0' input: 'zero' input: 'v'
                attr {{ key: 'f' value {{ func {{ name: '__add' }} }} }} {} {} {} {} }}
            ret {{ key: 'y' value: 'sum:components:0' }}
        }}",
        int("from", 0),
        int("to", 4),
        int("by", 1),
        list("output_types", "type: DT_INT64"),
        list("output_shapes", "shape { }"),
        list("Tstate", "type: DT_FLOAT"),
        list("Targuments", "type: DT_RESOURCE"),
        list("output_types", "type: DT_FLOAT"),
        list("output_shapes", "shape { }"),
    );
    register(&world, 0, &library);
    let args = [Arg::Value(1.0), Arg::Handle(1, 1, RESOURCE)];
    let sum = enqueue(&world, 0, operation(-1, "__sum", 0, &args, ""));
    assert_eq!(sum.unwrap(), [31.0]);
}

#[test]
fn an_output_stays_on_the_task_that_computed_it() {
    let world = World::new(2, 0);
    contexts(&world);
    variable(&world, 1, 1, 5.0);
    let t = |key: &str| format!("attr {{ key: '{key}' value {{ type: DT_FLOAT }} }}");
    let library = format!(
        "function {{
            signature {{
                name: '__both' is_stateful: true
                input_arg {{ name: 'x' type: DT_FLOAT }}
                input_arg {{ name: 'v' type: DT_RESOURCE }}
                output_arg {{ name: 'there' type: DT_FLOAT }}
                output_arg {{ name: 'here' type: DT_FLOAT }}
            }}
            node_def {{ name: 'r' op: 'ReadVariableOp' input: 'v' {} }}
            node_def {{ name: 'n' op: 'Neg' input: 'r:value:0' device: '{}' {} }}
            node_def {{ name: 'a' op: 'AddV2' input: 'x' input: 'r:value:0' device: '{}' {} }}
            ret {{ key: 'there' value: 'n:y:0' }}
            ret {{ key: 'here' value: 'a:z:0' }}
        }}",
        t("dtype"),
        device(1),
        t("T"),
        device(0),
        t("T"),
    );
    register(&world, 0, &library);
    for id in [60, 61] {
        let args = [Arg::Value(1.0), Arg::Handle(1, 1, RESOURCE)];
        let both = operation(id, "__both", 0, &args, "");
        let answer = answer(&world, 0, both).unwrap();
        assert_eq!(answer.device, [device(1), String::new()]);
        assert_eq!(answer.shape.len(), 2);
        // Reading it there takes no task but that one.
        let read = |task| {
            let args = [Arg::Handle(id, task, FLOAT)];
            let read = operation(-1, "Identity", task, &args, &t("T"));
            enqueue(&world, task, read)
        };
        assert_eq!(read(1).unwrap(), [-5.0]);
        let gone = read(0).expect_err("the first output is not on task 0");
        assert!(gone.message().contains("Unable to find"), "{gone}");
    }
}

#[test]
fn nodes_read_the_tensor_of_their_device_of_a_packed_handle() {
    let world = World::new(2, 0);
    contexts(&world);
    variable(&world, 0, 1, 1.0);
    variable(&world, 1, 2, 20.0);
    let handles = [(1, 0), (2, 1)].map(|(op_id, task)| {
        let handle = RemoteTensorHandle {
            op_id,
            device: device(task),
            op_device: device(task),
            dtype: RESOURCE,
            ..Default::default()
        };
        send_packed_handle_op::Handle {
            item: Some(send_packed_handle_op::handle::Item::RemoteHandle(handle)),
        }
    });
    let packed = Item::SendPackedHandle(SendPackedHandleOp {
        op_id: 30,
        handles: handles.into(),
        device_name: "/job:localhost/replica:0/task:0/device:COMPOSITE:0".to_string(),
    });
    enqueue(&world, 0, packed).unwrap();
    let dtype = "attr { key: 'dtype' value { type: DT_FLOAT } }";
    let library = format!(
        "function {{
            signature {{
                name: '__difference' is_stateful: true
                input_arg {{ name: 'v' type: DT_RESOURCE }}
                output_arg {{ name: 'y' type: DT_FLOAT }}
            }}
            node_def {{ name: 'a' op: 'ReadVariableOp' input: 'v' device: '{}' {dtype} }}
            node_def {{ name: 'b' op: 'ReadVariableOp' input: 'v' device: '{}' {dtype} }}
            node_def {{ name: 'd' op: 'Sub' input: 'a:value:0' input: 'b:value:0'
                attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}
            ret {{ key: 'y' value: 'd:z:0' }}
        }}",
        device(0),
        device(1),
    );
    register(&world, 0, &library);
    for _ in 0..2 {
        let args = [Arg::Handle(30, 0, RESOURCE)];
        let called = enqueue(&world, 0, operation(-1, "__difference", 0, &args, ""));
        assert_eq!(called.unwrap(), [-19.0]);
    }
    // An op outside of functions takes the tensor of its task.
    let args = [Arg::Handle(30, 0, RESOURCE)];
    let read = operation(-1, "ReadVariableOp", 0, &args, dtype);
    assert_eq!(enqueue(&world, 0, read).unwrap(), [1.0]);
}

/// Registers a function of task 0 that negates a variable.
fn register_negated(world: &World) {
    let library = "function {
        signature {
            name: '__negated' is_stateful: true
            input_arg { name: 'v' type: DT_RESOURCE }
            output_arg { name: 'y' type: DT_FLOAT }
        }
        node_def { name: 'r' op: 'ReadVariableOp' input: 'v'
            attr { key: 'dtype' value { type: DT_FLOAT } } }
        node_def { name: 'n' op: 'Neg' input: 'r:value:0' attr { key: 'T' value { type: DT_FLOAT } } }
        ret { key: 'y' value: 'n:y:0' }
    }";
    register(world, 0, library);
}

/// Calls the function with the variable 1 of task 1.
fn negated(world: &World) -> Result<Vec<f32>, Status> {
    let args = [Arg::Handle(1, 1, RESOURCE)];
    enqueue(world, 0, operation(-1, "__negated", 0, &args, ""))
}

#[test]
fn a_repeated_context_takes_the_place_of_the_first() {
    let world = World::new(2, 0);
    contexts(&world);
    // As of a client that got no answer.
    contexts(&world);
    variable(&world, 1, 1, 5.0);
    register_negated(&world);
    assert_eq!(negated(&world).unwrap(), [-5.0]);
}

#[test]
fn a_function_says_that_another_task_lost_its_context() {
    let world = World::new(2, 0);
    contexts(&world);
    variable(&world, 1, 1, 5.0);
    register_negated(&world);
    assert_eq!(negated(&world).unwrap(), [-5.0]);
    // As after a restart.
    let close = CloseContextRequest {
        context_id: CONTEXT,
        ..Default::default()
    };
    let closed: Result<CloseContextResponse, Status> =
        world.call(1, "eager.EagerService/CloseContext", close);
    closed.unwrap();
    let error = negated(&world).expect_err("task 1 has no context");
    assert_eq!(error.code(), tonic::Code::Aborted, "{error}");
    // By these, coordinators of parameter servers find out which task restarted.
    let expected = format!("Unable to find a context_id matching the specified one ({CONTEXT}).");
    assert!(error.message().contains(&expected), "{error}");
    let origin = "/job:w/replica:0/task:1 while calling /tensorflow.eager.EagerService";
    assert!(error.message().contains(origin), "{error}");
}

#[test]
fn operations_that_cannot_run_here_are_refused() {
    let world = World::new(1, 0);
    contexts(&world);
    let missing = Arg::Handle(777, 0, FLOAT);
    let rows = [
        (
            operation(
                5,
                "Neg",
                0,
                &[missing],
                "attr { key: 'T' value { type: DT_FLOAT } }",
            ),
            "Unable to find the relevant tensor remote_handle: Op ID: 777",
            "ErrorSourceProto",
        ),
        (
            operation(6, "NoOp", 8, &[], ""),
            "/job:w/replica:0/task:8/device:CPU:0 unknown device.",
            "",
        ),
    ];
    for (item, text, payload) in rows {
        let error = answer(&world, 0, item).expect_err(text);
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
        assert!(error.message().contains(text), "{error}");
        let details = String::from_utf8_lossy(error.details()).into_owned();
        assert!(details.contains(payload), "{details:?}");
    }
    let empty = CreateContextRequest::default();
    let made: Result<CreateContextResponse, Status> =
        world.call(0, "eager.EagerService/CreateContext", empty);
    assert_eq!(made.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[test]
fn tensors_of_filtered_tasks_are_on_unknown_devices() {
    let world = World::new(2, 0);
    contexts_for(&world, 0, |task| task == 0);
    let attrs = "attr { key: 'T' value { type: DT_FLOAT } }";
    let there = operation(1, "Neg", 1, &[Arg::Value(2.0)], attrs);
    enqueue(&world, 1, there).unwrap();
    let error = enqueue(
        &world,
        0,
        operation(-1, "Neg", 0, &[Arg::Handle(1, 1, FLOAT)], attrs),
    );
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let text = format!("{} unknown device.", device(1));
    assert!(error.message().contains(&text), "{error}");
}

#[test]
fn contexts_of_lost_clients_end_by_themselves() {
    let world = World::new(1, 0);
    contexts_for(&world, 1, |_| true);
    // A request of its worker session does not count as one of the client.
    let request = RegisterGraphRequest {
        session_handle: format!("eager_{CONTEXT}"),
        create_worker_session_called: true,
        graph_def: Some(GraphDef::default()),
        ..Default::default()
    };
    let start = std::time::Instant::now();
    let lost = || {
        let answer: Result<RegisterGraphResponse, Status> =
            world.call(0, "WorkerService/RegisterGraph", request.clone());
        answer.is_err_and(|e| e.message().contains("Unable to find a context_id"))
    };
    assert!(!lost(), "the context has just begun");
    while !lost() {
        assert!(start.elapsed().as_secs() < 60, "the context stays");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
