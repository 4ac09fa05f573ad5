//! Clusters of several servers in one process: sessions that span them, and requests to their workers.

use crate::world;

use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_from_proto};
use ferroflow_remote::Security;
use prost::Message;
use tokio::runtime::Runtime;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use world::{LOOP, World, graph};

const X: &str = "x = Placeholder{dtype=type: DT_FLOAT}() @0\n";
const T: &str = "{T=type: DT_FLOAT}";

#[test]
fn steps_span_tasks() {
    let world = World::new(3, 0);
    let v = "{dtype=type: DT_FLOAT; shape=shape { }; shared_name=s: 'v'}";
    let d = "{dtype=type: DT_FLOAT}";
    let k =
        "{dtype=type: DT_FLOAT; value=tensor { dtype: DT_FLOAT tensor_shape { } float_val: 5 }}";
    let lines = format!(
        "{X}a = Neg{T}(x) @1\nb = Square{T}(a) @2\nc = AddV2{T}(b, x) @0\nd = Exp{T}(a, ^b) @2
         k = Const{k}() @0\nk1 = Neg{T}(k) @1\nk2 = Neg{T}(k1, ^k) @1
         v = VarHandleOp{v}() @2\nset = AssignVariableOp{d}(v, a)\nget = ReadVariableOp{d}(v) @2"
    );
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    // A constant that is read and waited for.
    assert_eq!(world.step(&session, 0.0, "k2:0", "").unwrap(), 5.0);
    for x in 1..20 {
        let x = x as f32;
        assert_eq!(world.step(&session, x, "c:0", "").unwrap(), x * x + x);
        assert_eq!(world.step(&session, x, "b:0", "").unwrap(), x * x);
        assert_eq!(world.step(&session, 0.0, "d:0", "").unwrap(), 1.0);
        world.step(&session, x, "", "set").unwrap();
        assert_eq!(world.step(&session, 0.0, "get:0", "").unwrap(), -x);
    }
}

#[test]
fn floats_travel_as_bfloat16_on_request() {
    let world = World::new(2, 0);
    for (enable_bfloat16_sendrecv, expected) in [(false, -(1.0 + 1.0 / 1024.0)), (true, -1.0)] {
        let config = ConfigProto {
            graph_options: Some(GraphOptions {
                enable_bfloat16_sendrecv,
                ..Default::default()
            }),
            ..Default::default()
        };
        let lines = format!("{X}a = Neg{T}(x) @1\nb = Identity{T}(a) @0");
        let session = world.session(&lines, config).unwrap();
        let got = world.step(&session, 1.0 + 1.0 / 1024.0, "b:0", "").unwrap();
        assert_eq!(got, expected);
    }
}

#[test]
fn results_do_not_depend_on_when_tensors_are_received() {
    let world = World::new(3, 0);
    let config = ConfigProto {
        graph_options: Some(GraphOptions {
            enable_recv_scheduling: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    // Task 0 needs `b` and task 1 needs `a` long after they are computed.
    let mut lines = format!("{X}a = Square{T}(x) @0\nb = Exp{T}(a) @1\nc0 = Neg{T}(x) @0\n");
    for i in 1..40 {
        lines += &format!("c{i} = Neg{T}(c{}) @0\n", i - 1);
    }
    lines += &format!(
        "y = Mul{T}(c39, b) @0\nd = AddV2{T}(y, a) @1\ne = NoOp(^b, ^d) @2\nz = Neg{T}(d, ^e) @2"
    );
    let scheduled = world.session(&lines, config.clone()).unwrap();
    let plain = world.session(&lines, ConfigProto::default()).unwrap();
    for x in [0.5f32, -2.0, 1.5] {
        for fetch in ["b:0", "z:0"] {
            let expected = world.step(&plain, x, fetch, "").unwrap();
            let got = world.step(&scheduled, x, fetch, "").unwrap();
            assert_eq!(got, expected, "{fetch} {x}");
        }
    }
    // What is computed after a loop, of tensors that the loop needs.
    let mut lines = LOOP.replace("(one) @1", "(w29) @1") + "\n";
    lines += &format!("w0 = Neg{T}(one) @0\n");
    for i in 1..30 {
        lines += &format!("w{i} = Neg{T}(w{}) @0\n", i - 1);
    }
    lines += &format!("after = AddV2{T}(xa, w29) @0\nv = Neg{T}(after) @1");
    let scheduled = world.session(&lines, config).unwrap();
    for (x, doubled) in [(0.0, 1024.0), (9.0, 2.0), (99.0, 1.0)] {
        let got = world.step(&scheduled, x, "v:0", "").unwrap();
        assert_eq!(got, -(doubled + 1.0), "{x}");
    }
}

#[test]
fn lists_of_tensors_go_to_other_tasks() {
    let world = World::new(2, 0);
    let shape =
        "{dtype=type: DT_INT32; value=tensor { dtype: DT_INT32 tensor_shape { } int_val: -1 }}";
    let n = "{dtype=type: DT_INT32; value=tensor { dtype: DT_INT32 tensor_shape { } int_val: 4 }}";
    let i = "{dtype=type: DT_INT32; value=tensor { dtype: DT_INT32 tensor_shape { } int_val: 2 }}";
    let float = "element_dtype=type: DT_FLOAT";
    let of = format!("{{{float}; shape_type=type: DT_INT32}}");
    let item = format!("{{{float}}}");
    // The elements that were not written travel, too.
    let lines = format!(
        "{X}shape = Const{shape}() @0\nn = Const{n}() @0\ni = Const{i}() @0
         new = TensorListReserve{of}(shape, n) @0
         set = TensorListSetItem{item}(new, i, x) @0
         pushed = TensorListPushBack{item}(set, x) @1
         got = TensorListGetItem{item}(pushed, i, empty) @1
         empty = Const{{dtype=type: DT_INT32; value=tensor {{ dtype: DT_INT32 tensor_shape {{ dim {{ }} }} }}}}() @1
         y = Neg{T}(got) @0"
    );
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    assert_eq!(world.step(&session, 3.0, "y:0", "").unwrap(), -3.0);
}

#[test]
fn tasks_trust_each_other() {
    let authorities =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/ca.pem")).unwrap();
    for authorities in [None, Some(authorities)] {
        let world = World::protected(
            2,
            0,
            &Security {
                authorities,
                token: Some("secret".to_string()),
            },
        );
        // A client on this machine may use the master, which has the token.
        let lines = format!("{X}a = Neg{T}(x) @1");
        let session = world.session(&lines, ConfigProto::default()).unwrap();
        assert_eq!(world.step(&session, 2.0, "a:0", "").unwrap(), -2.0);
        // Only tasks that have it may use a worker.
        let request = GetStatusRequest {};
        let answer: Result<GetStatusResponse, Status> =
            world.call(1, "WorkerService/GetStatus", request);
        assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated);
    }
}

#[test]
fn loops_and_conditionals_span_tasks() {
    let world = World::new(2, 0);
    let session = world.session(LOOP, ConfigProto::default()).unwrap();
    for (x, doubled) in [
        (0.0, 1024.0),
        (7.0, 8.0),
        (9.0, 2.0),
        (10.0, 1.0),
        (99.0, 1.0),
    ] {
        assert_eq!(world.step(&session, x, "xa:0", "").unwrap(), doubled, "{x}");
        let last = f32::max(x, 10.0);
        assert_eq!(world.step(&session, x, "xi:0", "").unwrap(), last, "{x}");
    }
    let lines = format!(
        "{X}p = Greater{T}(x, n) @0\nn = Neg{T}(x) @1\ns = Switch{T}(x, p) @1\nf = Square{T}(s) @0
         t = Exp{T}(s:1) @1\nm = Merge{{T=type: DT_FLOAT; N=i: 2}}(f, t) @0"
    );
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    for (x, expect) in [(-3.0, 9.0), (0.0, 0.0)] {
        assert_eq!(world.step(&session, x, "m:0", "").unwrap(), expect);
    }
    assert_eq!(world.step(&session, 1.0, "m:0", "").unwrap(), 1f32.exp());
    // The client learns that its fetch is dead, and the next step runs.
    let dead = world.step(&session, 1.0, "f:0", "").expect_err("dead");
    assert_eq!(dead.code(), Code::InvalidArgument, "{dead}");
    assert_eq!(world.step(&session, -3.0, "f:0", "").unwrap(), 9.0);
}

#[test]
fn errors_of_workers_end_the_step() {
    let world = World::new(2, 0);
    let message = "{T=type: DT_FLOAT; message=s: 'bad'}";
    let lines = format!("{X}l = Log{T}(x) @1\nc = CheckNumerics{message}(l) @1\ny = Neg{T}(c) @0");
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    for _ in 0..10 {
        let failed = world
            .step(&session, -1.0, "y:0", "")
            .expect_err("not a number");
        assert_eq!(failed.code(), Code::InvalidArgument);
        let text = failed.message();
        assert!(text.contains("bad : Tensor had NaN values"), "{text}");
        assert!(text.contains("/job:w/replica:0/task:1"), "{text}");
        assert_eq!(world.step(&session, 1.0, "y:0", "").unwrap(), 0.0);
    }
    let unplaced = world.session("x = NoOp() @7", ConfigProto::default());
    let unplaced = unplaced.and_then(|s| world.step(&s, 0.0, "", "x"));
    let code = unplaced.expect_err("no such task").code();
    assert_eq!(code, Code::InvalidArgument);
}

#[test]
fn partial_runs_span_tasks() {
    let world = World::new(2, 0);
    let lines = format!(
        "{X}z = Placeholder{{dtype=type: DT_FLOAT}}() @1\na = Neg{T}(x) @1\nb = Add{T}(a, z) @0"
    );
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    let setup = PartialRunSetupRequest {
        session_handle: session.clone(),
        feed: vec!["x:0".to_string(), "z:0".to_string()],
        fetch: vec!["a:0".to_string(), "b:0".to_string()],
        ..Default::default()
    };
    let partial: PartialRunSetupResponse = world
        .call(0, "MasterService/PartialRunSetup", setup)
        .unwrap();
    let handle = partial.partial_run_handle;
    let steps = [(("x:0", 3.0), "a:0", -3.0), (("z:0", 10.0), "b:0", 7.0)];
    for (feed, fetch, expected) in steps {
        let got = world.partial_step(&session, &handle, feed, fetch).unwrap();
        assert_eq!(got, expected, "{fetch}");
    }
    // It is over.
    let again = world.partial_step(&session, &handle, ("x:0", 1.0), "a:0");
    assert_eq!(again.expect_err("over").code(), Code::InvalidArgument);
}

#[test]
fn a_missing_task_is_named() {
    let world = World::new(1, 1);
    let config = ConfigProto {
        operation_timeout_in_ms: 200,
        ..Default::default()
    };
    let missing = world
        .session(X, config)
        .expect_err("task 1 does not answer");
    assert_eq!(missing.code(), Code::DeadlineExceeded);
    let text = missing.message();
    let expected = "/job:w/replica:0/task:1 (failed to connect to ";
    assert!(text.contains(expected), "{text}");
    // Filters leave the task out.
    let config = ConfigProto {
        device_filters: vec!["/job:w/task:0".to_string()],
        ..Default::default()
    };
    let lines = format!("{X}y = Neg{T}(x)");
    let session = world.session(&lines, config).unwrap();
    assert_eq!(world.step(&session, 2.0, "y:0", "").unwrap(), -2.0);
}

/// Sends a request to a worker; expects this code and a part of the message.
fn check<Q>(world: &World, method: &str, request: Q, code: Code, part: &str)
where
    Q: Message + Default + 'static,
{
    let path = format!("WorkerService/{method}");
    let answer: Result<RunGraphResponse, Status> = world.call(0, &path, request);
    let error = answer.expect_err(method);
    assert_eq!(error.code(), code, "{method}: {error}");
    assert!(error.message().contains(part), "{method}: {error}");
}

#[test]
fn wrong_requests_to_a_worker_are_errors() {
    let world = World::new(1, 0);
    let status: GetStatusResponse = world
        .call(0, "WorkerService/GetStatus", GetStatusRequest {})
        .unwrap();
    let device = &status.device_attributes[0];
    assert_eq!(device.name, "/job:w/replica:0/task:0/device:CPU:0");
    let name = &device.name;
    let unnamed = CreateWorkerSessionRequest::default();
    let code = Code::InvalidArgument;
    check(
        &world,
        "CreateWorkerSession",
        unnamed,
        code,
        "Session must be non-empty.",
    );
    let unknown = RegisterGraphRequest {
        session_handle: "none".to_string(),
        create_worker_session_called: true,
        ..Default::default()
    };
    let lost = "Session handle is not found: none. Possibly this worker";
    check(
        &world,
        "RegisterGraph",
        unknown.clone(),
        Code::Aborted,
        lost,
    );
    let answer: Result<RegisterGraphResponse, Status> =
        world.call(0, "WorkerService/RegisterGraph", unknown);
    let details = answer.unwrap_err().details().to_vec();
    let details = String::from_utf8_lossy(&details);
    // Coordinators look for it.
    let restarted = "type.googleapis.com/tensorflow.distributed_runtime.WorkerPossiblyRestarted";
    assert!(details.contains(restarted), "{details:?}");
    let homeless = RegisterGraphRequest {
        graph_def: Some(graph("n = NoOp()")),
        ..Default::default()
    };
    check(
        &world,
        "RegisterGraph",
        homeless,
        code,
        "Node 'n' is missing a device specification",
    );
    let run = RunGraphRequest {
        graph_handle: "7".to_string(),
        request_id: 5,
        ..Default::default()
    };
    let none = "Graph handle is not found: 7";
    check(&world, "RunGraph", run.clone(), Code::Aborted, none);
    check(&world, "RunGraph", run, Code::Aborted, "received twice");
    let deregister = DeregisterGraphRequest::default();
    check(
        &world,
        "DeregisterGraph",
        deregister,
        Code::Aborted,
        "Graph handle",
    );
    let old = device.incarnation ^ 1;
    let elsewhere = name.replace("CPU:0", "CPU:9");
    let keys = [
        ("x", code, "Invalid  rendezvous key: x"),
        ("a;zz;b;c;0:0", code, "Invalid  rendezvous key"),
        (
            &format!("{elsewhere};{old:016x};{name};x;0:0"),
            code,
            "unknown device.",
        ),
        (
            &format!("{name};{old:016x};{name};x;0:0"),
            Code::Aborted,
            "RecvTensor expects a different device incarnation",
        ),
    ];
    for (key, code, part) in keys {
        let request = RecvTensorRequest {
            rendezvous_key: key.to_string(),
            step_id: 3,
            ..Default::default()
        };
        check(&world, "RecvTensor", request, code, part);
    }
}

#[test]
fn keys_and_tensors_of_steps_are_checked() {
    let world = World::new(1, 0);
    let register = RegisterGraphRequest {
        graph_def: Some(graph("n = NoOp() @0")),
        ..Default::default()
    };
    let registered: RegisterGraphResponse = world
        .call(0, "WorkerService/RegisterGraph", register)
        .unwrap();
    let device = "/job:w/replica:0/task:0/device:CPU:0";
    let good = format!("{device};0000000000000001;{device};x;0:0");
    let short = TensorProto {
        dtype: DataType::DtFloat as i32,
        tensor_content: vec![0; 3].into(),
        ..Default::default()
    };
    let sends = [
        ("garbage", None, "Invalid  rendezvous key: garbage"),
        (&*good, Some(short), "Invalid TensorProto for feed value 0"),
    ];
    let run = |step_id| RunGraphRequest {
        graph_handle: registered.graph_handle.clone(),
        step_id,
        ..Default::default()
    };
    for (step, (name, tensor, part)) in (20..).zip(sends) {
        let float = TensorProto {
            dtype: DataType::DtFloat as i32,
            float_val: vec![1.0],
            ..Default::default()
        };
        let sent = NamedTensorProto {
            name: name.to_string(),
            tensor: Some(tensor.unwrap_or(float)),
        };
        let request = RunGraphRequest {
            send: vec![sent],
            ..run(step)
        };
        check(&world, "RunGraph", request, Code::InvalidArgument, part);
    }
    let request = RunGraphRequest {
        recv_key: vec!["garbage".to_string()],
        ..run(30)
    };
    let part = "Failed to fetch outputs for step 30. (Original error message: Invalid  rendezvous key: garbage)";
    check(&world, "RunGraph", request, Code::Internal, part);
}

#[test]
fn a_worker_reports_what_it_ran() {
    let world = World::new(1, 0);
    let lines = "c = Const{dtype=type: DT_FLOAT; value=tensor { dtype: DT_FLOAT tensor_shape { } float_val: 6 }}() @0
                 t = Print{T=type: DT_FLOAT; U=list { type: DT_FLOAT }}(c, c) @0";
    let register = RegisterGraphRequest {
        graph_def: Some(graph(lines)),
        ..Default::default()
    };
    let registered: RegisterGraphResponse = world
        .call(0, "WorkerService/RegisterGraph", register)
        .unwrap();
    // As a stock master asks: (costs, graphs).
    for (record_costs, record_partition_graphs) in [(false, false), (true, false), (false, true)] {
        let request = RunGraphRequest {
            graph_handle: registered.graph_handle.clone(),
            step_id: 40,
            exec_opts: Some(ExecutorOpts {
                record_costs,
                record_partition_graphs,
                ..Default::default()
            }),
            ..Default::default()
        };
        let answer: RunGraphResponse = world.call(0, "WorkerService/RunGraph", request).unwrap();
        let graphs = answer.partition_graph.iter().flat_map(|g| &g.node);
        let graphs: Vec<&str> = graphs.map(|n| n.name.as_str()).collect();
        assert_eq!(graphs.contains(&"t"), record_partition_graphs, "{graphs:?}");
        let costs = answer.cost_graph.unwrap_or_default();
        let t = costs.node.iter().find(|n| n.name == "t");
        assert_eq!(t.is_some_and(|t| t.device.ends_with("CPU:0")), record_costs);
        assert_eq!(answer.step_stats.is_some(), record_costs);
    }
}

#[test]
fn the_default_container_is_the_job() {
    let world = World::new(1, 0);
    let lines = |container: &str| {
        let var = format!(
            "VarHandleOp{{dtype=type: DT_FLOAT; shape=shape {{ }}; shared_name=s: 'v'; container=s: '{container}'}}"
        );
        format!(
            "x = Placeholder{{dtype=type: DT_FLOAT}}() @0\nv = {var}() @0\n\
             set = AssignVariableOp{{dtype=type: DT_FLOAT}}(v, x) @0\n\
             get = ReadVariableOp{{dtype=type: DT_FLOAT}}(v) @0\ny = Neg{T}(x) @0"
        )
    };
    let session = |container: &str| {
        let session = world.session(&lines(container), ConfigProto::default());
        session.unwrap()
    };
    world.step(&session(""), 7.0, "y:0", "set").unwrap();
    let read = |container: &str| world.step(&session(container), 0.0, "get:0", "").ok();
    let values = ["", "w", "localhost"].map(read);
    assert_eq!(values, [Some(7.0), Some(7.0), None]);
    // Of its containers, a client may name this one.
    let reset = |container: &str| {
        let request = ResetRequest {
            container: vec![container.to_string()],
            ..Default::default()
        };
        let _: ResetResponse = world.call(0, "MasterService/Reset", request).unwrap();
        read("")
    };
    assert_eq!(["localhost", "w"].map(reset), [Some(7.0), None]);
}

#[test]
fn a_tensor_may_be_asked_for_before_its_step_begins() {
    let world = World::new(1, 0);
    let status: GetStatusResponse = world
        .call(0, "WorkerService/GetStatus", GetStatusRequest {})
        .unwrap();
    let device = &status.device_attributes[0];
    let send = format!(
        "send_device=s: '{}'; send_device_incarnation=i: {}; recv_device=s: '/job:w/replica:0/task:5/device:CPU:0'",
        device.name, device.incarnation as i64
    );
    let lines = format!(
        "c = Const{{dtype=type: DT_FLOAT; value=tensor {{ dtype: DT_FLOAT tensor_shape {{ }} float_val: 6 }}}}() @0
         s = _Send{{T=type: DT_FLOAT; tensor_name=s: 'e'; {send}}}(c) @0"
    );
    let register = RegisterGraphRequest {
        graph_def: Some(graph(&lines)),
        ..Default::default()
    };
    let registered: RegisterGraphResponse = world
        .call(0, "WorkerService/RegisterGraph", register)
        .unwrap();
    let key = format!(
        "{};{:016x};/job:w/replica:0/task:5/device:CPU:0;e;0:0",
        device.name, device.incarnation
    );
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| -> RecvTensorResponse {
            let request = RecvTensorRequest {
                step_id: 11,
                rendezvous_key: key.clone(),
                ..Default::default()
            };
            // Another connection: this one has a runtime of its own.
            let runtime = Runtime::new().unwrap();
            runtime.block_on(async {
                let mut grpc = tonic::client::Grpc::new(world.channels[0].clone());
                grpc.ready().await.unwrap();
                let path = PathAndQuery::from_static("/tensorflow.WorkerService/RecvTensor");
                let codec = ProstCodec::default();
                let answer = grpc.unary(Request::new(request), path, codec).await;
                answer.unwrap().into_inner()
            })
        });
        let run = RunGraphRequest {
            graph_handle: registered.graph_handle.clone(),
            step_id: 11,
            ..Default::default()
        };
        let _: RunGraphResponse = world.call(0, "WorkerService/RunGraph", run).unwrap();
        let answer = asked.join().expect("an answer");
        let tensor = tensor_from_proto(&answer.tensor.unwrap(), None).unwrap();
        assert_eq!(tensor.get().unwrap().to_scalar::<f32>().unwrap(), 6.0);
    });
    let cleanup = CleanupGraphRequest { step_id: 11 };
    let _: CleanupGraphResponse = world
        .call(0, "WorkerService/CleanupGraph", cleanup)
        .unwrap();
}

/// A dataset on task 0 whose function calls one on task 1, which alone has the variable that it reads.
const CALLS_FROM_A_DATASET: &str = "
    node { name: 'x' op: 'Placeholder' device: '/job:w/task:1' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'v' op: 'VarHandleOp' device: '/job:w/task:1' attr { key: 'dtype' value { type: DT_FLOAT } }
           attr { key: 'shape' value { shape { } } } attr { key: 'shared_name' value { s: 'there' } } }
    node { name: 'set' op: 'AssignVariableOp' input: 'v' input: 'x' device: '/job:w/task:1'
           attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'one' op: 'Const' device: '/job:w/task:0' attr { key: 'dtype' value { type: DT_FLOAT } }
           attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 1 } } } }
    node { name: 'd' op: 'TensorDataset' input: 'one' device: '/job:w/task:0'
           attr { key: 'Toutput_types' value { list { type: DT_FLOAT } } }
           attr { key: 'output_shapes' value { list { shape { } } } } }
    node { name: 'm' op: 'MapDataset' input: 'd' device: '/job:w/task:0'
           attr { key: 'f' value { func { name: 'calls' } } }
           attr { key: 'Targuments' value { list { } } }
           attr { key: 'output_types' value { list { type: DT_FLOAT } } }
           attr { key: 'output_shapes' value { list { shape { } } } } }
    node { name: 'y' op: 'DatasetToSingleElement' input: 'm' device: '/job:w/task:0'
           attr { key: 'output_types' value { list { type: DT_FLOAT } } }
           attr { key: 'output_shapes' value { list { shape { } } } } }
    library {
        function {
            signature { name: 'calls' is_stateful: true
                input_arg { name: 'a' type: DT_FLOAT } output_arg { name: 'b' type: DT_FLOAT } }
            node_def { name: 'target' op: 'Const' attr { key: 'dtype' value { type: DT_STRING } }
                attr { key: 'value' value { tensor { dtype: DT_STRING tensor_shape { }
                string_val: '/job:w/replica:0/task:1/device:CPU:0' } } } }
            node_def { name: 'call' op: 'RemoteCall' input: 'target:output:0' input: 'a'
                attr { key: 'Tin' value { list { type: DT_FLOAT } } }
                attr { key: 'Tout' value { list { type: DT_FLOAT } } }
                attr { key: 'f' value { func { name: 'reads' } } } }
            ret { key: 'b' value: 'call:output:0' }
        }
        function {
            signature { name: 'reads' is_stateful: true
                input_arg { name: 'a' type: DT_FLOAT } output_arg { name: 'b' type: DT_FLOAT } }
            node_def { name: 'v' op: 'VarHandleOp' attr { key: 'dtype' value { type: DT_FLOAT } }
                attr { key: 'shape' value { shape { } } } attr { key: 'shared_name' value { s: 'there' } } }
            node_def { name: 'r' op: 'ReadVariableOp' input: 'v:resource:0'
                attr { key: 'dtype' value { type: DT_FLOAT } } }
            node_def { name: 's' op: 'AddV2' input: 'a' input: 'r:value:0'
                attr { key: 'T' value { type: DT_FLOAT } } }
            ret { key: 'b' value: 's:z:0' }
        }
    }";

#[test]
fn functions_of_datasets_call_other_tasks() {
    let world = World::new(2, 0);
    let request = CreateSessionRequest {
        graph_def: Some(graph_from_text(CALLS_FROM_A_DATASET).unwrap()),
        target: format!("grpc://{}", world.addresses[0]),
        ..Default::default()
    };
    let made: CreateSessionResponse = world
        .call(0, "MasterService/CreateSession", request)
        .unwrap();
    let session = made.session_handle;
    for x in [4.0, 9.0] {
        world.step(&session, x, "", "set").unwrap();
        assert_eq!(world.step(&session, 0.0, "y:0", "").unwrap(), x + 1.0);
    }
}
