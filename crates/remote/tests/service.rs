//! The services over a socket: requests, errors, traces, devices.

use crate::one_server;

use bytes::Bytes;
use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_to_proto};
use ferroflow_remote::TlsOptions;
use ferroflow_tensor::Tensor;
use one_server::{GRAPH, World, feed, run, tls, value};
use std::collections::HashMap;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

#[test]
fn errors_are_tensorflows() {
    let world = World::new();
    let handle = world.session(true);
    let with = |change: fn(&mut RunStepRequest)| {
        let mut request = run(&handle, &[("x:0", 1.0)], &["y:0"], &[]);
        change(&mut request);
        request
    };
    let rows: Vec<(RunStepRequest, Code, &str)> = vec![
        (
            run("unknown", &[], &["y:0"], &[]),
            Code::Aborted,
            "Session unknown is not found.",
        ),
        (
            run(&handle, &[], &["y:0"], &[]),
            Code::InvalidArgument,
            "From /job:localhost/replica:0/task:0:\nYou must feed a value for placeholder tensor 'x' \
             with dtype float\n\t [[{{node x}}]]",
        ),
        (
            run(&handle, &[], &["nope:0"], &[]),
            Code::NotFound,
            "FetchOutputs node nope:0: not found",
        ),
        (
            run(&handle, &[], &["y:x"], &[]),
            Code::NotFound,
            "FetchOutputs node y:x: not found",
        ),
        (
            run(&handle, &[("x:x", 1.0)], &["y:0"], &[]),
            Code::NotFound,
            "FeedInputs: unable to find feed output x:x",
        ),
        (
            run(&handle, &[], &["set:0"], &[]),
            Code::InvalidArgument,
            "Tried to fetch data for 'set:0', which produces no output.  To run to a node but not \
             fetch any data, pass 'set:0' as an argument to the 'target_node_names' argument of the \
             Session::Run API.",
        ),
        (
            run(&handle, &[], &["y:7"], &[]),
            Code::InvalidArgument,
            "FetchOutputs y:7: output index too large, must be < 1",
        ),
        (
            run(&handle, &[("x:0", 1.0)], &["x:0"], &[]),
            Code::InvalidArgument,
            "x:0 is both fed and fetched.",
        ),
        (
            run(&handle, &[("nope:0", 1.0)], &["y:0"], &[]),
            Code::NotFound,
            "FeedInputs: unable to find feed output nope:0",
        ),
        (
            run(&handle, &[("x:4", 1.0)], &["y:0"], &[]),
            Code::InvalidArgument,
            "FeedInputs: x:4 should have output index < 1",
        ),
        (
            run(&handle, &[], &["^y"], &[]),
            Code::InvalidArgument,
            "Attempt to add output -1 of y not in range [0, 1) to node with type _Send.",
        ),
        (
            run(&handle, &[], &[], &[]),
            Code::InvalidArgument,
            "Must specify at least one target",
        ),
        (
            run(&handle, &[], &[], &["nope"]),
            Code::NotFound,
            "target nodes not found: nope ",
        ),
        (
            run(&handle, &[], &[], &["nope", "y", "y:x"]),
            Code::NotFound,
            "PruneForTargets: Some target nodes not found: nope y:x ",
        ),
        (
            run(&handle, &[("x:0", 1.0), ("x:0", 2.0)], &["y:0"], &[]),
            Code::InvalidArgument,
            "Endpoint \"x:0\" fed more than once.",
        ),
        (
            with(|r| r.feed[0].tensor = Some(tensor_to_proto(&Tensor::scalar(1i32)).unwrap())),
            Code::Internal,
            "Output 0 of type int32 does not match declared output type float for node {{node \
             _recv_x_0}}",
        ),
        (
            with(|r| {
                r.feed[0].tensor.as_mut().unwrap().tensor_content = Bytes::from_static(b"abc")
            }),
            Code::InvalidArgument,
            "3 were given",
        ),
        (
            run(&handle, &[], &["get:0"], &[]),
            Code::FailedPrecondition,
            "[[{{node get}}]]",
        ),
        (
            with(|r| r.partial_run_handle = "none".to_string()),
            Code::InvalidArgument,
            "Must run PartialRunSetup before performing partial runs",
        ),
    ];
    for (request, code, part) in rows {
        let mut in_body = request.clone();
        let error = world.step(request).unwrap_err();
        assert_eq!(error.code(), code, "{}", error.message());
        assert!(
            error.message().contains(part),
            "'{}' in '{}'",
            part,
            error.message()
        );
        in_body.store_errors_in_response_body = true;
        let answer: RunStepResponse = world.call("RunStep", in_body).unwrap();
        assert_eq!(answer.status_code, code as i32);
        assert_eq!(answer.status_error_message, error.message());
    }
    let unknown = world.call::<_, ResetResponse>("Dance", ResetRequest::default());
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
    // After all that the session is as it was.
    assert_eq!(
        world
            .step(run(&handle, &[("x:0", 2.0)], &["y:0"], &[]))
            .unwrap(),
        [4.0]
    );
}

#[test]
fn a_request_that_comes_twice_runs_once() {
    let world = World::new();
    let handle = world.session(true);
    let mut request = run(&handle, &[("x:0", 3.0)], &["y:0"], &[]);
    request.request_id = 17;
    assert_eq!(world.step(request.clone()).unwrap(), [6.0]);
    let error = world.step(request).unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
    assert!(error.message().contains("received twice"));
}

#[test]
fn clients_may_compress() {
    let world = World::new();
    let handle = world.session(true);
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let request = run(&handle, &[("x:0", 4.0)], &["y:0"], &[]);
        let answer: RunStepResponse = world
            .call_compressed("RunStep", request, Some(encoding))
            .unwrap();
        assert_eq!(answer.tensor.len(), 1);
    }
}

/// A failing call returns its error, though the step aborts its rendezvous first.

#[test]
fn a_clients_cluster_names_the_devices() {
    let world = World::new();
    let target = format!("grpc://{}", world.address);
    let create = |job: &str, address: &str| {
        let tasks = HashMap::from([(0, address.to_string())]);
        let job = JobDef {
            name: job.to_string(),
            tasks,
        };
        let request = CreateSessionRequest {
            graph_def: Some(graph_from_text(GRAPH).unwrap()),
            config: Some(ConfigProto {
                cluster_def: Some(ClusterDef { job: vec![job] }),
                ..Default::default()
            }),
            target: target.clone(),
        };
        world.call::<_, CreateSessionResponse>("CreateSession", request)
    };
    let here = world.address.to_string();
    for (job, address, part) in [
        (
            "worker",
            "elsewhere:1",
            "The master (current machine) is not included in the provided cluster_def. job {\n  name: \
             \"worker\"\n  tasks {\n    key: 0\n    value: \"elsewhere:1\"\n  }\n}\n",
        ),
        (
            "localhost",
            &here,
            "The ClusterSpec names the job and task index to be the same names that were provided when \
             the server booted. This is currently not allowed. Job: localhost, task index: 0",
        ),
    ] {
        let refused = create(job, address).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(refused.message(), part);
    }
    let handle = create("worker", &here).unwrap().session_handle;
    let list = ListDevicesRequest {
        session_handle: handle.clone(),
    };
    let list: ListDevicesResponse = world.call("ListDevices", list).unwrap();
    let name = "/job:worker/replica:0/task:0/device:CPU:0";
    assert_eq!(list.local_device[0].name, name);
    let error = world.step(run(&handle, &[], &["y:0"], &[])).unwrap_err();
    assert!(
        error
            .message()
            .starts_with("From /job:worker/replica:0/task:0:\n")
    );
}

/// Only a full trace says what the nodes did; it begins with the source that TensorFlow counts.

#[test]
fn levels_of_traces() {
    let world = World::new();
    let handle = world.session(true);
    let names = |level: run_options::TraceLevel| {
        let mut request = run(&handle, &[("x:0", 1.0)], &["y:0"], &[]);
        request.options = Some(RunOptions {
            trace_level: level as i32,
            ..Default::default()
        });
        let answer: RunStepResponse = world.call("RunStep", request).unwrap();
        let stats = answer.metadata.unwrap_or_default().step_stats;
        let devices = stats.unwrap_or_default().dev_stats.into_iter();
        let nodes = devices.flat_map(|d| d.node_stats);
        nodes.map(|n| n.node_name).collect::<Vec<_>>()
    };
    use run_options::TraceLevel::*;
    for level in [NoTrace, SoftwareTrace, HardwareTrace] {
        assert_eq!(names(level), Vec::<String>::new());
    }
    assert_eq!(names(FullTrace), ["_SOURCE", "y"]);
}

#[test]
fn callables_traces_and_devices() {
    let world = World::with(|o| o.master.cpus = 2);
    let handle = world.session(true);
    let options = CallableOptions {
        feed: vec!["x:0".to_string()],
        fetch: vec!["y:0".to_string()],
        run_options: Some(RunOptions {
            trace_level: run_options::TraceLevel::FullTrace as i32,
            output_partition_graphs: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    let made: MakeCallableResponse = world
        .call(
            "MakeCallable",
            MakeCallableRequest {
                session_handle: handle.clone(),
                options: Some(options),
                request_id: 0,
            },
        )
        .unwrap();
    let request = RunCallableRequest {
        session_handle: handle.clone(),
        handle: made.handle,
        feed: vec![feed("", 4.0).tensor.unwrap()],
        request_id: 0,
    };
    let ran: RunCallableResponse = world.call("RunCallable", request.clone()).unwrap();
    assert_eq!(value(&ran.fetch[0]), 8.0);
    let metadata = ran.metadata.unwrap();
    let device = &metadata.step_stats.unwrap().dev_stats[0];
    assert_eq!(
        device.device,
        "/job:localhost/replica:0/task:0/device:CPU:0"
    );
    assert!(device.node_stats.iter().any(|n| n.node_name == "y"));
    let nodes = &metadata.partition_graphs[0].node;
    assert!(nodes.iter().any(|n| n.op == "AddV2"));
    let release = ReleaseCallableRequest {
        session_handle: handle.clone(),
        handle: made.handle,
    };
    let _: ReleaseCallableResponse = world.call("ReleaseCallable", release).unwrap();
    let error = world.call::<_, RunCallableResponse>("RunCallable", request);
    assert!(
        error
            .unwrap_err()
            .message()
            .contains("after handle was released")
    );
    let list = ListDevicesRequest {
        session_handle: handle,
    };
    let list: ListDevicesResponse = world.call("ListDevices", list).unwrap();
    let names: Vec<_> = list.local_device.iter().map(|d| &d.name[..]).collect();
    assert_eq!(names[1], "/job:localhost/replica:0/task:0/device:CPU:1");
    let status: GetStatusResponse = world.call("GetStatus", GetStatusRequest {}).unwrap();
    assert_eq!(status.device_attributes, list.local_device);
}

/// A server that got garbage serves the others.

#[test]
fn garbage_is_refused() {
    use std::io::Write;
    let world = World::with(|o| o.max_message = 1 << 20);
    let handle = world.session(true);
    for garbage in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0",
    ] {
        let mut socket = std::net::TcpStream::connect(world.address).unwrap();
        socket.write_all(garbage).unwrap();
    }
    let mut large = run(&handle, &[("x:0", 1.0)], &["y:0"], &[]);
    let content = vec![0u8; 2 << 20];
    large.feed[0].tensor.as_mut().unwrap().tensor_content = content.into();
    let error = world.step(large).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    // A RunStep whose bytes are those of another message.
    let wrong = world.call::<_, RunStepResponse>(
        "RunStep",
        NamedTensorProto {
            name: handle.clone(),
            tensor: Some(TensorProto {
                dtype: 77,
                ..Default::default()
            }),
        },
    );
    assert_eq!(wrong.unwrap_err().code(), Code::Internal);
    assert_eq!(
        world
            .step(run(&handle, &[("x:0", 1.0)], &["y:0"], &[]))
            .unwrap(),
        [2.0]
    );
}

#[test]
fn encrypted() {
    let world = World::with(|o| {
        o.tls = Some(TlsOptions {
            certificate: tls("server.pem"),
            key: tls("server.key"),
            client_authorities: None,
        });
    });
    let handle = world.session(true);
    let y = world.step(run(&handle, &[("x:0", 1.5)], &["y:0"], &[]));
    assert_eq!(y.unwrap(), [3.0]);
    let plain = world.runtime.block_on(async {
        let address = format!("http://{}", world.address);
        let channel = Channel::from_shared(address).unwrap().connect().await;
        let mut grpc = tonic::client::Grpc::new(channel?);
        grpc.ready().await?;
        let path = PathAndQuery::from_static("/tensorflow.WorkerService/GetStatus");
        let codec = ProstCodec::<GetStatusRequest, GetStatusResponse>::default();
        let answer = grpc.unary(Request::new(GetStatusRequest::default()), path, codec);
        answer.await?;
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    assert!(plain.is_err(), "what is not encrypted gets no answer");
}

/// Parts on two devices: their graphs, what goes between them, and an error that ends both.

#[test]
fn several_devices() {
    let world = World::with(|o| o.master.cpus = 2);
    let graph = "
        node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
        node { name: 'a' op: 'Neg' input: 'x' device: '/cpu:0' attr { key: 'T' value { type: DT_FLOAT } } }
        node { name: 'b' op: 'AddV2' input: 'a' input: 'x' device: '/cpu:1'
               attr { key: 'T' value { type: DT_FLOAT } } }
        node { name: 'c' op: 'Mul' input: 'b' input: 'a' input: '^d' device: '/cpu:0'
               attr { key: 'T' value { type: DT_FLOAT } } }
        node { name: 'd' op: 'NoOp' input: '^b' device: '/cpu:1' }
        node { name: 'bad' op: 'CheckNumerics' input: 'b' device: '/cpu:1'
               attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'message' value { s: 'seen' } } }
        node { name: 'after' op: 'AddV2' input: 'bad' input: 'a' device: '/cpu:0'
               attr { key: 'T' value { type: DT_FLOAT } } }";
    let create = CreateSessionRequest {
        graph_def: Some(graph_from_text(graph).unwrap()),
        ..Default::default()
    };
    let made: CreateSessionResponse = world.call("CreateSession", create).unwrap();
    let handle = made.session_handle;
    let mut request = run(&handle, &[("x:0", 3.0)], &["c:0", "b:0"], &[]);
    request.options = Some(RunOptions {
        output_partition_graphs: true,
        trace_level: run_options::TraceLevel::FullTrace as i32,
        ..Default::default()
    });
    let response: RunStepResponse = world.call("RunStep", request).unwrap();
    let values = response
        .tensor
        .iter()
        .map(|t| value(t.tensor.as_ref().unwrap()));
    assert_eq!(values.collect::<Vec<_>>(), [0.0, 0.0]);
    let metadata = response.metadata.unwrap();
    assert_eq!(metadata.partition_graphs.len(), 2);
    for (i, graph) in metadata.partition_graphs.iter().enumerate() {
        let count = |op: &str| graph.node.iter().filter(|n| n.op == op).count();
        // `a` goes one way; `b` and the end of `d` the other. `x` may be fed on either side.
        assert!(
            count("_Send") >= [1, 2][i] && count("_Recv") >= [2, 1][i],
            "{graph:?}"
        );
        let device = format!("/job:localhost/replica:0/task:0/device:CPU:{i}");
        assert!(graph.node.iter().all(|n| n.device == device));
    }
    let stats = metadata.step_stats.unwrap().dev_stats;
    let on = |i: usize, name: &str| stats[i].node_stats.iter().any(|n| n.node_name == name);
    assert!(on(0, "a") && on(1, "b") && on(0, "c"));
    for _ in 0..20 {
        let failed = world.step(run(&handle, &[("x:0", f32::NAN)], &["after:0"], &[]));
        let failed = failed.unwrap_err();
        assert_eq!(failed.code(), Code::InvalidArgument);
        assert!(
            failed.message().contains("seen : Tensor had NaN"),
            "{failed}"
        );
    }
    let fine = world.step(run(&handle, &[("x:0", 1.0)], &["after:0"], &[]));
    assert_eq!(fine.unwrap(), [-1.0]);
}
