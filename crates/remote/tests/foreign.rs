//! A worker that is not ours, as far as a master sees it: what it is asked to do.

use crate::world;

use ferroflow_model::proto::*;
use ferroflow_rpc::{Boxed, HttpRequest, HttpResponse, unary, unknown};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tonic::server::NamedService;
use world::{LOOP, World};

/// Registers all graphs, and runs none.
#[derive(Clone, Default)]
struct Foreign {
    graphs: Arc<Mutex<Vec<RegisterGraphRequest>>>,
}

impl NamedService for Foreign {
    const NAME: &'static str = "tensorflow.WorkerService";
}

impl tower_service::Service<HttpRequest> for Foreign {
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = Boxed<Result<HttpResponse, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let answer = match method {
            "GetStatus" => unary(request, usize::MAX, |_: GetStatusRequest| async {
                let device = DeviceAttributes {
                    name: "/job:w/replica:0/task:1/device:CPU:0".to_string(),
                    device_type: "CPU".to_string(),
                    incarnation: 5,
                    ..Default::default()
                };
                Ok(GetStatusResponse {
                    device_attributes: vec![device],
                })
            }),
            "CreateWorkerSession" => {
                unary(request, usize::MAX, |_: CreateWorkerSessionRequest| async {
                    Ok(CreateWorkerSessionResponse::default())
                })
            }
            "RegisterGraph" => {
                let graphs = self.graphs.clone();
                unary(request, usize::MAX, |r: RegisterGraphRequest| async move {
                    graphs.lock().unwrap().push(r);
                    Ok(RegisterGraphResponse::default())
                })
            }
            _ => unknown(),
        };
        Box::pin(async { Ok(answer.await) })
    }
}

/// The names of the transfers of a graph.
fn transfers(graph: &RegisterGraphRequest) -> Vec<&str> {
    let nodes = graph.graph_def.iter().flat_map(|g| &g.node);
    let transfers = nodes.filter(|n| n.op == "_Send" || n.op == "_Recv");
    transfers.map(|n| n.name.as_str()).collect()
}

/// A cluster whose second task is foreign.
fn start() -> (World, Foreign) {
    let world = World::new(1, 1);
    let foreign = Foreign::default();
    let served = tonic::transport::Server::builder().add_service(foreign.clone());
    let address = world.addresses[1].parse().unwrap();
    world.runtime.spawn(served.serve(address));
    (world, foreign)
}

#[test]
fn all_nodes_have_start_times_if_recvs_are_scheduled() {
    let (world, foreign) = start();
    let config = ConfigProto {
        graph_options: Some(GraphOptions {
            enable_recv_scheduling: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    const NEG: &str = "Neg{T=type: DT_FLOAT}";
    let plain = format!(
        "x = Placeholder{{dtype=type: DT_FLOAT}}() @0\ny = Placeholder{{dtype=type: DT_FLOAT}}() @1
         a = {NEG}(x) @1\nb = {NEG}(a, ^y) @1\nc = {NEG}(b) @0\nd = {NEG}(x, ^b) @0"
    );
    let alone = format!("x = Placeholder{{dtype=type: DT_FLOAT}}() @1\na = {NEG}(x) @1");
    let steps = [
        (&*plain, "c:0"),
        (&plain, "d:0"),
        (&plain, "b:0"),
        (&alone, "a:0"),
        (LOOP, "xa:0"),
    ];
    for (lines, fetch) in steps {
        let session = world.session(lines, config.clone()).unwrap();
        world.step(&session, 1.0, fetch, "").unwrap_err();
    }
    let graphs = foreign.graphs.lock().unwrap();
    assert_eq!(graphs.len(), 5);
    for (i, request) in graphs.iter().enumerate() {
        for node in request.graph_def.iter().flat_map(|g| &g.node) {
            assert!(node.attr.contains_key("_start_time"), "{i}: {}", node.name);
        }
        // Such a worker would not end a loop.
        let options = request.graph_options.as_ref().unwrap();
        assert_eq!(options.enable_recv_scheduling, i < 4, "{i}");
    }
}

#[test]
fn graphs_of_a_session_share_no_names_of_transfers() {
    let (world, foreign) = start();
    const NEG: &str = "Neg{T=type: DT_FLOAT}";
    let lines = format!(
        "x = Placeholder{{dtype=type: DT_FLOAT}}() @0\na = {NEG}(x) @1\nb = {NEG}(a) @0\nc = {NEG}(a) @0"
    );
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    for fetch in ["b:0", "c:0"] {
        world.step(&session, 1.0, fetch, "").unwrap_err();
    }
    let graphs = foreign.graphs.lock().unwrap();
    let [first, second] = &graphs[..] else {
        panic!("{} graphs", graphs.len());
    };
    let (first, second) = (transfers(first), transfers(second));
    assert_eq!([first.len(), second.len()], [2, 2], "{first:?} {second:?}");
    assert!(!first.iter().any(|name| second.contains(name)), "{first:?}");
}
