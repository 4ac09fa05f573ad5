//! Sessions of clients: graphs that grow, variables, resets, ends.

use crate::one_server;

use ferroflow_model::graph_from_text;
use ferroflow_model::proto::*;
use one_server::{GRAPH, World, run};
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

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
