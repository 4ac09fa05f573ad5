//! Where sessions run, how long, and what they refuse.

use super::*;
use ferroflow_model::proto;
use prost::Message;

/// A session over the client's graph with a target and a config.
fn session(client: &Client, target: &CStr, config: &proto::ConfigProto) -> *mut TF_Session {
    let config = config.encode_to_vec();
    // SAFETY: all handles live.
    unsafe {
        let options = TF_NewSessionOptions();
        TF_SetTarget(options, target.as_ptr());
        TF_SetConfig(options, config.as_ptr().cast(), config.len(), client.status);
        client.expect_ok("config");
        let session = TF_NewSession(client.graph, options, client.status);
        TF_DeleteSessionOptions(options);
        session
    }
}

/// The names of a session's devices.
fn devices(client: &Client, session: *mut TF_Session) -> Vec<String> {
    // SAFETY: all handles live.
    unsafe {
        let list = TF_SessionListDevices(session, client.status);
        client.expect_ok("devices");
        let names = (0..TF_DeviceListCount(list)).map(|i| {
            let name = TF_DeviceListName(list, i, client.status);
            CStr::from_ptr(name).to_string_lossy().into_owned()
        });
        let names = names.collect();
        TF_DeleteDeviceList(list);
        names
    }
}

fn neg(client: &Client, name: &str, x: TF_Output, device: &CStr) -> TF_Output {
    // SAFETY: the description lives.
    let oper = client.add("Neg", name, &[x], |d| unsafe {
        TF_SetDevice(d, device.as_ptr());
    });
    TF_Output { oper, index: 0 }
}

#[test]
fn a_server_runs_the_session_of_its_target() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let task = std::collections::HashMap::from([(0, format!("localhost:{port}"))]);
    let def = proto::ServerDef {
        cluster: Some(proto::ClusterDef {
            job: vec![proto::JobDef {
                name: "local".to_string(),
                tasks: task.into_iter().collect(),
            }],
        }),
        job_name: "local".to_string(),
        protocol: "grpc".to_string(),
        ..Default::default()
    };
    let client = Client::new();
    let x = client.placeholder("x");
    let y = neg(&client, "y", x, c"");
    let bytes = def.encode_to_vec();
    // SAFETY: all handles live.
    unsafe {
        let server = TF_NewServer(bytes.as_ptr().cast(), bytes.len(), client.status);
        client.expect_ok("server");
        TF_ServerStart(server, client.status);
        client.expect_ok("start");
        let target = CStr::from_ptr(TF_ServerTarget(server)).to_owned();
        let session = session(&client, &target, &Default::default());
        client.expect_ok("session");
        assert_eq!(client.run(session, x, 3.0, y), Some(-3.0));
        client.expect_ok("run");
        assert_eq!(
            devices(&client, session),
            ["/job:local/replica:0/task:0/device:CPU:0"]
        );
        // The graph grows there, too.
        let z = neg(&client, "z", y, c"");
        assert_eq!(client.run(session, x, 3.0, z), Some(3.0));
        client.expect_ok("run of the larger graph");
        client.run(session, y, 3.0, x);
        let (code, message) = client.outcome();
        assert_eq!(code, 3, "{message}");
        assert!(!message.contains("Additional GRPC"), "{message}");
        TF_CloseSession(session, client.status);
        client.expect_ok("close");
        TF_DeleteSession(session, client.status);
        TF_ServerStop(server, client.status);
        TF_DeleteServer(server);
    }
}

#[test]
fn targets_that_are_no_address_are_refused() {
    let client = Client::new();
    assert!(session(&client, c"local:1234", &Default::default()).is_null());
    assert_eq!(client.outcome().0, 5);
}

#[test]
fn devices_are_those_of_the_config() {
    let client = Client::new();
    let x = client.placeholder("x");
    let on = |device: &str| format!("/job:localhost/replica:0/task:0/device:CPU:{device}");
    let y = neg(&client, "y", x, c"/device:CPU:2");
    let config = proto::ConfigProto {
        device_count: [("CPU".to_string(), 3)].into_iter().collect(),
        ..Default::default()
    };
    let three = session(&client, c"", &config);
    assert_eq!(devices(&client, three), [on("0"), on("1"), on("2")]);
    assert_eq!(client.run(three, x, 2.0, y), Some(-2.0));
    client.expect_ok("run on the third device");
    let one = session(&client, c"", &Default::default());
    assert_eq!(client.run(one, x, 2.0, y), None);
    let (code, message) = client.outcome();
    assert_eq!(code, 3, "{message}");
    let soft = proto::ConfigProto {
        allow_soft_placement: true,
        ..Default::default()
    };
    let soft = session(&client, c"", &soft);
    assert_eq!(client.run(soft, x, 2.0, y), Some(-2.0));
    for session in [three, one, soft] {
        // SAFETY: the session lives.
        unsafe { TF_DeleteSession(session, client.status) };
    }
}

#[test]
fn steps_end_at_the_limit_of_the_config() {
    let client = Client::new();
    // SAFETY: the descriptions live.
    let queue = client.add("FIFOQueueV2", "q", &[], |d| unsafe {
        TF_SetAttrTypeList(d, c"component_types".as_ptr(), [1].as_ptr(), 1);
    });
    let queue = TF_Output {
        oper: queue,
        index: 0,
    };
    // SAFETY: as above.
    let taken = client.add("QueueDequeueV2", "take", &[queue], |d| unsafe {
        TF_SetAttrTypeList(d, c"component_types".as_ptr(), [1].as_ptr(), 1);
    });
    let config = proto::ConfigProto {
        operation_timeout_in_ms: 50,
        ..Default::default()
    };
    let session = session(&client, c"", &config);
    let x = client.placeholder("x");
    let taken = TF_Output {
        oper: taken,
        index: 0,
    };
    assert_eq!(client.run(session, x, 0.0, taken), None);
    assert_eq!(client.outcome().0, 4);
    // SAFETY: the session lives.
    unsafe { TF_DeleteSession(session, client.status) };
}

#[test]
fn targets_of_other_graphs_are_refused() {
    let (client, other) = (Client::new(), Client::new());
    let x = client.placeholder("x");
    let foreign: *const TF_Operation = other.placeholder("x").oper;
    let session = client.session();
    let feed = scalar(1.0);
    // SAFETY: all handles live.
    unsafe {
        TF_SessionRun(
            session,
            null(),
            &x,
            &feed.cast_const(),
            1,
            null(),
            null_mut(),
            0,
            &foreign,
            1,
            null_mut(),
            client.status,
        );
        TF_DeleteTensor(feed);
    }
    assert_eq!(client.outcome().0, 3);
    // SAFETY: the session lives.
    unsafe { TF_DeleteSession(session, client.status) };
}

/// Imports a GraphDef's text; returns the code and the number of dimensions of `y`.
fn imported(text: &str) -> (c_int, String, c_int) {
    let client = Client::new();
    let bytes = ferroflow_model::graph_from_text(text)
        .expect("text")
        .encode_to_vec();
    // SAFETY: all handles live.
    unsafe {
        let buffer = TF_NewBufferFromString(bytes.as_ptr().cast(), bytes.len());
        let options = TF_NewImportGraphDefOptions();
        TF_GraphImportGraphDef(client.graph, buffer, options, client.status);
        TF_DeleteImportGraphDefOptions(options);
        TF_DeleteBuffer(buffer);
        let (code, message) = client.outcome();
        let oper = TF_GraphOperationByName(client.graph, c"y".as_ptr());
        if oper.is_null() {
            return (code, message, -2);
        }
        let y = TF_Output { oper, index: 0 };
        let rank = TF_GraphGetTensorNumDims(client.graph, y, client.status);
        (code, message, rank)
    }
}

#[test]
fn imports_are_checked_as_in_tensorflow() {
    const X: &str =
        "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } }
        attr { key: 'shape' value { shape { unknown_rank: true } } } }";
    let neg = |rest: &str| {
        format!(
            "{X} node {{ name: 'y' op: 'Neg' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} {rest} }}"
        )
    };
    let shapes = |dims: &str| {
        neg(&format!(
            "input: 'x' attr {{ key: '_output_shapes' value {{ list {{ {dims} }} }} }}"
        ))
    };
    assert_eq!(imported(&neg("input: 'x'")), (0, String::new(), -1));
    let declared = shapes("shape { dim { size: 3 } }");
    assert_eq!(imported(&declared), (0, String::new(), 1));
    let rows = [
        (shapes(""), "attribute specifies shapes for 0 outputs"),
        (
            format!("{} node {{ name: '_z' op: 'NoOp' }}", X),
            "Node '_z': Node name contains invalid characters",
        ),
        (
            neg("input: '^x' input: 'x'"),
            "Control dependencies must come after regular dependencies",
        ),
        (
            neg("input: 'x' attr { key: '_class' value { list { s: 'loc:@w' } } }"),
            "expects to be colocated with unknown node 'w'",
        ),
    ];
    for (text, expected) in rows {
        let (code, message, rank) = imported(&text);
        assert_eq!((code, rank), (3, -2), "{text}");
        assert!(message.contains(expected), "{message}");
    }
    let removed = format!(
        "versions {{ producer: 2000 }} {X} node {{ name: 'y' op: 'BatchMatrixInverse' input: 'x'
         attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}"
    );
    let text = "Op BatchMatrixInverse is not available in GraphDef version 2000. It has been removed in version 13. \
                Use MatrixInverse instead..";
    assert_eq!(imported(&removed), (12, text.to_string(), -2));
}

#[test]
fn runs_of_graph_defs_are_reported() {
    let client = Client::new();
    let x = client.placeholder("x");
    client.add("Neg", "y", &[x], |_| ());
    let run = |options: &[u8]| {
        let mut result = null_mut();
        // SAFETY: all objects live; the run takes its input over.
        unsafe {
            let session_options = TF_NewSessionOptions();
            let session = TF_NewDeprecatedSession(session_options, client.status);
            let graph = TF_NewBuffer();
            TF_GraphToGraphDef(client.graph, graph, client.status);
            let bytes = graph.as_ref().expect("a buffer");
            TF_ExtendGraph(session, bytes.data, bytes.length, client.status);
            let options = TF_NewBufferFromString(options.as_ptr().cast(), options.len());
            let report = TF_NewBuffer();
            TF_Run(
                session,
                options,
                &c"x:0".as_ptr(),
                &scalar(3.0),
                1,
                &c"y:0".as_ptr(),
                &mut result,
                1,
                null(),
                0,
                report,
                client.status,
            );
            let bytes = report.as_ref().expect("a buffer");
            let bytes = crate::guard::list(bytes.data.cast::<u8>(), bytes.length);
            let found = proto::RunMetadata::decode(bytes).expect("metadata");
            for buffer in [graph, options, report] {
                TF_DeleteBuffer(buffer);
            }
            TF_DeleteTensor(result);
            let outcome = client.outcome();
            TF_DeleteDeprecatedSession(session, client.status);
            TF_DeleteSessionOptions(session_options);
            (outcome, found.step_stats.is_some())
        }
    };
    let traced = proto::RunOptions {
        trace_level: proto::run_options::TraceLevel::FullTrace as i32,
        ..Default::default()
    };
    let ok = (0, String::new());
    assert_eq!(run(&traced.encode_to_vec()), (ok.clone(), true));
    assert_eq!(run(&[]), (ok, false));
    let garbage = (3, "Unparseable RunOptions proto".to_string());
    assert_eq!(run(b"\xff"), (garbage, false));
}
