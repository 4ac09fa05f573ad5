//! The services over a socket, with messages of a client that is not TensorFlow's.

use bytes::Bytes;
use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_from_proto, tensor_to_proto};
use ferroflow_remote::{MasterOptions, Server, ServerOptions, TlsOptions};
use ferroflow_tensor::Tensor;
use prost::Message;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

const GRAPH: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'z' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'y' op: 'AddV2' input: 'x' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }
    node { name: 's' op: 'AddV2' input: 'y' input: 'z' attr { key: 'T' value { type: DT_FLOAT } } }
    node { name: 'v' op: 'VarHandleOp' attr { key: 'dtype' value { type: DT_FLOAT } }
           attr { key: 'shape' value { shape { } } } attr { key: 'shared_name' value { s: 'v' } } }
    node { name: 'set' op: 'AssignVariableOp' input: 'v' input: 'x'
           attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'get' op: 'ReadVariableOp' input: 'v' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'checked' op: 'CheckNumerics' input: 'y' attr { key: 'T' value { type: DT_FLOAT } }
           attr { key: 'message' value { s: 'not a number' } } }
    node { name: 'q' op: 'FIFOQueueV2'
           attr { key: 'component_types' value { list { type: DT_FLOAT } } } }
    node { name: 'take' op: 'QueueDequeueV2' input: 'q'
           attr { key: 'component_types' value { list { type: DT_FLOAT } } } }";

/// A certificate made for these tests alone, its key, or the authority that vouches for it.
fn tls(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tls")
        .join(file)
}

/// A running server and a connection to it.
struct World {
    runtime: Runtime,
    channel: Channel,
    address: SocketAddr,
    monitor: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    fn new() -> World {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ServerOptions)) -> World {
        let mut options = ServerOptions {
            address: "127.0.0.1:0".parse().unwrap(),
            monitor: Some("127.0.0.1:0".parse().unwrap()),
            tls: None,
            max_message: usize::MAX,
            master: MasterOptions::default(),
        };
        change(&mut options);
        let encrypted = options.tls.is_some();
        let server = Server::bind(options).unwrap();
        let address = server.address();
        let monitor = server.monitor_address().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let stopped = async move {
                let _ = stopped.await;
            };
            server.run(stopped).unwrap();
        });
        let runtime = Runtime::new().unwrap();
        let channel = runtime.block_on(async {
            let scheme = if encrypted { "https" } else { "http" };
            let mut endpoint = Channel::from_shared(format!("{scheme}://{address}")).unwrap();
            if encrypted {
                let authority = Certificate::from_pem(std::fs::read(tls("ca.pem")).unwrap());
                let config = ClientTlsConfig::new().ca_certificate(authority);
                endpoint = endpoint.tls_config(config).unwrap();
            }
            endpoint.connect().await.unwrap()
        });
        World {
            runtime,
            channel,
            address,
            monitor,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Waits until `n` steps are running, by the gauge of the monitoring port.
    fn await_steps(&self, n: usize) {
        let line = format!("steps_running {n}\n");
        loop {
            let mut stream = TcpStream::connect(self.monitor).unwrap();
            let request = "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("steps_running "), "{answer}");
            if answer.contains(&line) {
                return;
            }
        }
    }

    fn call<Q, R>(&self, method: &str, request: Q) -> Result<R, Status>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        self.call_compressed(method, request, None)
    }

    fn call_compressed<Q, R>(
        &self,
        method: &str,
        request: Q,
        encoding: Option<CompressionEncoding>,
    ) -> Result<R, Status>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        let service = match method {
            "GetStatus" | "CleanupAll" => "Worker",
            _ => "Master",
        };
        let path = format!("/tensorflow.{service}Service/{method}");
        let channel = self.channel.clone();
        self.runtime.block_on(async move {
            let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
            if let Some(encoding) = encoding {
                grpc = grpc.send_compressed(encoding);
            }
            grpc.ready().await.unwrap();
            let path: PathAndQuery = path.parse().unwrap();
            let codec = ProstCodec::<Q, R>::default();
            let answer = grpc.unary(Request::new(request), path, codec).await?;
            Ok(answer.into_inner())
        })
    }

    fn session(&self, isolated: bool) -> String {
        let request = CreateSessionRequest {
            graph_def: Some(graph_from_text(GRAPH).unwrap()),
            config: Some(ConfigProto {
                isolate_session_state: isolated,
                ..Default::default()
            }),
            target: String::new(),
        };
        let made: CreateSessionResponse = self.call("CreateSession", request).unwrap();
        made.session_handle
    }

    fn step(&self, request: RunStepRequest) -> Result<Vec<f32>, Status> {
        let response: RunStepResponse = self.call("RunStep", request)?;
        assert_eq!(response.status_code, 0, "{}", response.status_error_message);
        Ok(response
            .tensor
            .iter()
            .map(|t| value(t.tensor.as_ref().unwrap()))
            .collect())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn value(proto: &TensorProto) -> f32 {
    let tensor = tensor_from_proto(proto, None).unwrap().get().unwrap();
    tensor.to_scalar::<f32>().unwrap()
}

fn feed(name: &str, value: f32) -> NamedTensorProto {
    NamedTensorProto {
        name: name.to_string(),
        tensor: Some(tensor_to_proto(&Tensor::scalar(value)).unwrap()),
    }
}

fn run(session: &str, feeds: &[(&str, f32)], fetch: &[&str], target: &[&str]) -> RunStepRequest {
    let names = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
    RunStepRequest {
        session_handle: session.to_string(),
        feed: feeds.iter().map(|(n, v)| feed(n, *v)).collect(),
        fetch: names(fetch),
        target: names(target),
        ..Default::default()
    }
}

#[test]
fn a_session_grows_and_runs() {
    let world = World::new();
    let handle = world.session(true);
    assert_eq!(
        world
            .step(run(&handle, &[("x:0", 3.0)], &["y:0"], &[]))
            .unwrap(),
        [6.0]
    );
    let more = "node { name: 'n' op: 'Neg' input: 'y' attr { key: 'T' value { type: DT_FLOAT } } }";
    let extend = |version| ExtendSessionRequest {
        session_handle: handle.clone(),
        graph_def: Some(graph_from_text(more).unwrap()),
        current_graph_version: version,
    };
    let extended: ExtendSessionResponse = world.call("ExtendSession", extend(0)).unwrap();
    assert_eq!(extended.new_graph_version, 1);
    let twice = run(&handle, &[("x:0", 3.0)], &["n:0", "y:0"], &[]);
    assert_eq!(world.step(twice).unwrap(), [-6.0, 6.0]);
    let back = world.call::<_, ExtendSessionResponse>("ExtendSession", extend(0));
    let back = back.unwrap_err();
    assert_eq!(back.code(), Code::Aborted);
    assert_eq!(
        back.message(),
        "Current version is 1 but caller expected 0."
    );
    let again = world.call::<_, ExtendSessionResponse>("ExtendSession", extend(1));
    assert_eq!(again.unwrap_err().code(), Code::InvalidArgument);
    let request = CloseSessionRequest {
        session_handle: handle.clone(),
    };
    let _: CloseSessionResponse = world.call("CloseSession", request.clone()).unwrap();
    let closed = world.call::<_, CloseSessionResponse>("CloseSession", request);
    assert_eq!(closed.unwrap_err().code(), Code::Aborted);
}

/// Each row: nodes that a session refuses, and a part of the message. The session stays as it was.
#[test]
fn nodes_that_do_not_fit_are_refused() {
    let world = World::new();
    let handle = world.session(true);
    let node = |name: &str, op: &str, inputs: &str, ty: &str| {
        format!(
            "node {{ name: '{name}' op: '{op}' {inputs} attr {{ key: 'T' value {{ type: {ty} }} }} }} "
        )
    };
    let neg = |inputs: &str| node("n", "Neg", inputs, "DT_FLOAT");
    let rows = [
        (
            node("n", "Neg", "input: 'y'", "DT_INT32"),
            "Input 0 of node n was passed float from y:0 incompatible with expected int32.",
        ),
        (
            neg("input: 'y:7'"),
            "Node 'n': Connecting to invalid output 7 of source node y which has 1 outputs.",
        ),
        (
            neg("input: '^x' input: 'y'"),
            "All control inputs must follow all data inputs",
        ),
        (
            node("n", "Assign", "input: 'y' input: 'y'", "DT_FLOAT"),
            "Input 0 of node n was passed float from y:0 incompatible with expected float_ref.",
        ),
        (
            node("n", "RefIdentity", "input: 'y'", "DT_INT32"),
            "Input 0 of node n was passed float from y:0 incompatible with expected int32_ref.",
        ),
        (
            "node { name: 'r' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } } attr \
             { key: 'shape' value { shape { } } } } "
                .to_string() + &node("n", "RefIdentity", "input: 'r'", "DT_INT32"),
            "Input 0 of node n was passed float_ref from r:0 incompatible with expected int32_ref.",
        ),
        (neg("input: 'n'"), "1 nodes in a cycle"),
        (
            neg("input: 'm'") + &node("m", "Neg", "input: 'n'", "DT_FLOAT"),
            "2 nodes in a cycle",
        ),
        (neg("input: 'y' device: '/nowhere:0'"), "/device:NOWHERE:0"),
        (neg("input: 'y' device: '/job:ps/task:3'"), "/job:ps/task:3"),
    ];
    for (text, part) in rows {
        let graph = graph_from_text(&text).unwrap();
        let extend = ExtendSessionRequest {
            session_handle: handle.clone(),
            graph_def: Some(graph.clone()),
            current_graph_version: 0,
        };
        let refused = world.call::<_, ExtendSessionResponse>("ExtendSession", extend);
        let refused = refused.expect_err(part);
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(part), "{refused}");
        let mut whole = graph_from_text(GRAPH).unwrap();
        whole.node.extend(graph.node);
        let create = CreateSessionRequest {
            graph_def: Some(whole),
            ..Default::default()
        };
        let refused = world.call::<_, CreateSessionResponse>("CreateSession", create);
        assert!(refused.expect_err(part).message().contains(part), "{part}");
    }
    let y = run(&handle, &[("x:0", 3.0)], &["y:0"], &[]);
    assert_eq!(world.step(y).unwrap(), [6.0]);
    let pools = CreateSessionRequest {
        config: Some(ConfigProto {
            use_per_session_threads: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    let refused = world.call::<_, CreateSessionResponse>("CreateSession", pools);
    assert!(
        refused
            .unwrap_err()
            .message()
            .contains("thread pool options")
    );
}

/// Each row: what is asked, the code and a part of the message.
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
fn sessions_share_variables_unless_isolated() {
    let world = World::new();
    let [a, b, alone] = [false, false, true].map(|isolated| world.session(isolated));
    world.step(run(&a, &[("x:0", 5.0)], &[], &["set"])).unwrap();
    assert_eq!(world.step(run(&b, &[], &["get:0"], &[])).unwrap(), [5.0]);
    let error = world.step(run(&alone, &[], &["get:0"], &[])).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    let _: ResetResponse = world.call("Reset", ResetRequest::default()).unwrap();
    assert_eq!(
        world
            .step(run(&b, &[], &["get:0"], &[]))
            .unwrap_err()
            .code(),
        Code::Aborted
    );
    let fresh = world.session(false);
    let error = world.step(run(&fresh, &[], &["get:0"], &[])).unwrap_err();
    assert_eq!(
        error.code(),
        Code::FailedPrecondition,
        "the container was cleared"
    );
}

/// Containers that are not listed survive a reset.
#[test]
fn a_reset_clears_the_default_container() {
    let world = World::new();
    let graph = GRAPH.replace(
        "value { s: 'v' }",
        "value { s: 'v' } } attr { key: 'container' value { s: 'box' }",
    );
    let session = |graph: &str| {
        let request = CreateSessionRequest {
            graph_def: Some(graph_from_text(graph).unwrap()),
            ..Default::default()
        };
        let made: CreateSessionResponse = world.call("CreateSession", request).unwrap();
        made.session_handle
    };
    let (plain, boxed) = (session(GRAPH), session(&graph));
    for handle in [&plain, &boxed] {
        world
            .step(run(handle, &[("x:0", 5.0)], &[], &["set"]))
            .unwrap();
    }
    let rows: [(&[&str], bool, bool); 2] = [(&[], false, true), (&["box"], false, false)];
    for (containers, plain_lives, box_lives) in rows {
        let container = containers.iter().map(|c| c.to_string()).collect();
        let _: ResetResponse = world
            .call(
                "Reset",
                ResetRequest {
                    container,
                    ..Default::default()
                },
            )
            .unwrap();
        for (graph, lives) in [(GRAPH, plain_lives), (&graph, box_lives)] {
            let handle = session(graph);
            let read = world.step(run(&handle, &[], &["get:0"], &[]));
            assert_eq!(read.is_ok(), lives, "{containers:?}: {read:?}");
        }
    }
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
fn a_partial_run_that_fails_says_why() {
    let world = World::new();
    let handle = world.session(true);
    for _ in 0..20 {
        let setup = PartialRunSetupRequest {
            session_handle: handle.clone(),
            feed: vec!["x:0".to_string(), "z:0".to_string()],
            fetch: vec!["checked:0".to_string(), "s:0".to_string()],
            ..Default::default()
        };
        let begun: PartialRunSetupResponse = world.call("PartialRunSetup", setup).unwrap();
        let part = |feed: &[(&str, f32)], fetch: &[&str]| {
            let mut request = run(&handle, feed, fetch, &[]);
            request.partial_run_handle = begun.partial_run_handle.clone();
            world.step(request)
        };
        let error = part(&[("x:0", f32::NAN)], &["checked:0"]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains("not a number"), "{error}");
        let error = part(&[("z:0", 1.0)], &["s:0"]).unwrap_err();
        assert!(
            error.message().contains("Must run PartialRunSetup"),
            "{error}"
        );
    }
}

#[test]
fn closing_a_session_ends_its_steps() {
    let world = World::new();
    let handle = world.session(true);
    let error = std::thread::scope(|scope| {
        let waits = scope.spawn(|| world.step(run(&handle, &[], &["take:0"], &[])));
        world.await_steps(1);
        let request = CloseSessionRequest {
            session_handle: handle.clone(),
        };
        let _: CloseSessionResponse = world.call("CloseSession", request).unwrap();
        waits.join().unwrap().unwrap_err()
    });
    assert_eq!(error.code(), Code::Cancelled);
    let mut late = run(&world.session(true), &[], &["take:0"], &[]);
    late.options = Some(RunOptions {
        timeout_in_ms: 50,
        ..Default::default()
    });
    assert_eq!(world.step(late).unwrap_err().code(), Code::DeadlineExceeded);
}

/// Also when the queue that a step waits at is in the container that the reset clears.
#[test]
fn a_reset_ends_steps_as_closing_does() {
    let world = World::new();
    let handle = world.session(false);
    let error = std::thread::scope(|scope| {
        let waits = scope.spawn(|| world.step(run(&handle, &[], &["take:0"], &[])));
        world.await_steps(1);
        let _: ResetResponse = world.call("Reset", ResetRequest::default()).unwrap();
        waits.join().unwrap().unwrap_err()
    });
    assert_eq!(error.code(), Code::Cancelled);
    let why = "Step was cancelled by an explicit call to `Session::Close()`.";
    assert_eq!(error.message(), why);
}

/// A client may describe the cluster; then its session is of the task at the address it called.
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
fn a_partial_run_takes_its_feeds_one_by_one() {
    let world = World::new();
    let handle = world.session(true);
    let set_up = || -> String {
        let request = PartialRunSetupRequest {
            session_handle: handle.clone(),
            feed: vec!["x:0".to_string(), "z:0".to_string()],
            fetch: vec!["y:0".to_string(), "s:0".to_string()],
            ..Default::default()
        };
        let made: PartialRunSetupResponse = world.call("PartialRunSetup", request).unwrap();
        made.partial_run_handle
    };
    let part = |step: &str, feeds: &[(&str, f32)], fetch: &[&str]| {
        let mut request = run(&handle, feeds, fetch, &[]);
        request.partial_run_handle = step.to_string();
        world.step(request)
    };
    // Two steps at the same time do not see each other.
    let (a, b) = (set_up(), set_up());
    assert_eq!(part(&a, &[("x:0", 1.0)], &["y:0"]).unwrap(), [2.0]);
    assert_eq!(part(&b, &[("x:0", 10.0)], &["y:0"]).unwrap(), [20.0]);
    for (feeds, fetch, message) in [
        (
            &[("x:0", 1.0)][..],
            &[][..],
            "The feed x:0 has already been fed.",
        ),
        (
            &[][..],
            &["y:0"][..],
            "The fetch y:0 has already been fetched.",
        ),
        (
            &[][..],
            &["s:0"][..],
            "Fetch z:0 can't be computed from the feeds",
        ),
        (
            &[("w:0", 1.0)][..],
            &[][..],
            "was not specified in partial_run_setup",
        ),
    ] {
        let error = part(&a, feeds, fetch).unwrap_err();
        assert!(error.message().contains(message), "{}", error.message());
    }
    assert_eq!(part(&a, &[("z:0", 5.0)], &["s:0"]).unwrap(), [7.0]);
    assert_eq!(part(&b, &[("z:0", 6.0)], &["s:0"]).unwrap(), [26.0]);
    let over = part(&a, &[], &["s:0"]).unwrap_err();
    assert_eq!(
        over.message(),
        "Must run PartialRunSetup before performing partial runs"
    );
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
fn ten_thousand_sessions() {
    let world = World::with(|o| o.master.max_sessions = 10_001);
    let kept = world.session(true);
    let empty = CreateSessionRequest::default;
    for _ in 0..10_000 {
        let _: CreateSessionResponse = world.call("CreateSession", empty()).unwrap();
    }
    let full = world.call::<_, CreateSessionResponse>("CreateSession", empty());
    assert_eq!(full.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(
        world
            .step(run(&kept, &[("x:0", 1.0)], &["y:0"], &[]))
            .unwrap(),
        [2.0]
    );
}

#[test]
fn a_client_that_vanishes_leaves_no_step() {
    let world = World::with(|o| o.master.session_idle = Some(Duration::from_millis(1)));
    let handle = world.session(true);
    let other = Runtime::new().unwrap();
    let address = world.address;
    let request = run(&handle, &[], &["take:0"], &[]);
    other.spawn(async move {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        let mut grpc = tonic::client::Grpc::new(channel.connect().await.unwrap());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/tensorflow.MasterService/RunStep");
        let codec = ProstCodec::<RunStepRequest, RunStepResponse>::default();
        grpc.unary(Request::new(request), path, codec).await
    });
    world.await_steps(1);
    other.shutdown_background();
    world.await_steps(0);
}

#[test]
fn a_partial_run_that_is_abandoned_does_not_count_as_used() {
    let world = World::new();
    let request = PartialRunSetupRequest {
        session_handle: world.session(true),
        feed: vec!["x:0".into()],
        fetch: vec!["y:0".into()],
        ..Default::default()
    };
    let made: PartialRunSetupResponse = world.call("PartialRunSetup", request).unwrap();
    assert!(!made.partial_run_handle.is_empty());
    // Or stopping would wait for it.
    world.await_steps(0);
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
