//! Servers of one cluster in this process.
#![allow(dead_code, reason = "each test program uses a part")]

use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_from_proto, tensor_to_proto};
use ferroflow_remote::{
    MasterOptions, Security, Server, ServerDef, ServerDefaults, ServerOptions, TaskName, TlsOptions,
};
use ferroflow_tensor::Tensor;
use prost::Message;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use tokio::runtime::Runtime;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// The first scalar of a response, if any.
fn value_of(answer: &RunStepResponse) -> f32 {
    let value = answer.tensor.first().and_then(|t| t.tensor.as_ref());
    value.map_or(0.0, |proto| {
        let tensor = tensor_from_proto(proto, None).and_then(|t| t.get());
        tensor.unwrap().to_scalar().unwrap()
    })
}

/// `i` from `x` up to ten on task 0, `a` doubled in each iteration on task 1.
pub const LOOP: &str = "
    x = Placeholder{dtype=type: DT_FLOAT}() @0
    ten = Const{dtype=type: DT_FLOAT; value=tensor { dtype: DT_FLOAT tensor_shape { } float_val: 10 }}() @0
    one = Const{dtype=type: DT_FLOAT; value=tensor { dtype: DT_FLOAT tensor_shape { } float_val: 1 }}() @0
    ei = Enter{T=type: DT_FLOAT; frame_name=s: 'f'}(x) @0
    ea = Enter{T=type: DT_FLOAT; frame_name=s: 'f'}(one) @1
    et = Enter{T=type: DT_FLOAT; frame_name=s: 'f'; is_constant=b: true}(ten) @0
    eo = Enter{T=type: DT_FLOAT; frame_name=s: 'f'; is_constant=b: true}(one) @0
    mi = Merge{T=type: DT_FLOAT; N=i: 2}(ei, ni) @0
    ma = Merge{T=type: DT_FLOAT; N=i: 2}(ea, na) @1
    p = Less{T=type: DT_FLOAT}(mi, et) @0
    c = LoopCond(p) @0
    si = Switch{T=type: DT_FLOAT}(mi, c) @0
    sa = Switch{T=type: DT_FLOAT}(ma, c) @1
    i2 = AddV2{T=type: DT_FLOAT}(si:1, eo) @0
    a2 = AddV2{T=type: DT_FLOAT}(sa:1, sa:1) @1
    ni = NextIteration{T=type: DT_FLOAT}(i2) @0
    na = NextIteration{T=type: DT_FLOAT}(a2) @1
    xi = Exit{T=type: DT_FLOAT}(si) @0
    xa = Exit{T=type: DT_FLOAT}(sa) @1";

/// A graph in short: `name = Op{attr=value}(input, ...) @task`, of 32-bit floats.
pub fn graph(lines: &str) -> GraphDef {
    let node = |line: &str| {
        let (name, rest) = line.split_once(" = ").expect("name = Op");
        let (head, rest) = rest.split_once('(').expect("inputs");
        let (inputs, task) = rest.split_once(')').expect("a device");
        let (op, attrs) = head.split_once('{').unwrap_or((head, "}"));
        let inputs = inputs.split(", ").filter(|i| !i.is_empty());
        let inputs: String = inputs.map(|i| format!("input: '{i}' ")).collect();
        let mut text = format!("node {{ name: '{name}' op: '{op}' {inputs}");
        if let Some(task) = task.trim().strip_prefix('@') {
            text += &format!("device: '/job:w/task:{task}' ");
        }
        for attr in attrs
            .strip_suffix('}')
            .unwrap_or(attrs)
            .split("; ")
            .filter(|a| !a.is_empty())
        {
            let (name, value) = attr.split_once('=').expect("attr=value");
            text += &format!("attr {{ key: '{name}' value {{ {value} }} }} ");
        }
        text + "}\n"
    };
    let text: String = lines.trim().lines().map(|l| node(l.trim())).collect();
    graph_from_text(&text).expect("valid text")
}

/// Servers of one cluster, and connections to them.
pub struct World {
    pub runtime: Runtime,
    pub addresses: Vec<String>,
    pub channels: Vec<Channel>,
}

impl World {
    /// Starts `n` tasks of the job `w`; the cluster has `missing` further ones that do not answer.
    pub fn new(n: usize, missing: usize) -> World {
        Self::protected(n, missing, &Security::default())
    }

    /// As [`World::new`]; connections between the tasks, and from here, are protected. The servers have the
    /// certificate of `tests/tls` if there are authorities.
    pub fn protected(n: usize, missing: usize, security: &Security) -> World {
        Self::configured(n, missing, security, &ConfigProto::default())
    }

    /// As [`World::protected`], with this default configuration of the servers.
    pub fn configured(
        n: usize,
        missing: usize,
        security: &Security,
        config: &ConfigProto,
    ) -> World {
        let file = |name: &str| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
            folder.join(name)
        };
        let tls = security.authorities.as_ref().map(|_| TlsOptions {
            certificate: file("server.pem"),
            key: file("server.key"),
            client_authorities: None,
        });
        let listeners: Vec<TcpListener> = (0..n + missing)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses = listeners
            .iter()
            .map(|l| l.local_addr().unwrap().to_string());
        let addresses: Vec<String> = addresses.collect();
        let tasks: BTreeMap<u32, String> = (0..).zip(addresses.iter().cloned()).collect();
        let cluster = BTreeMap::from([("w".to_string(), tasks)]);
        drop(listeners);
        let runtime = Runtime::new().unwrap();
        let mut channels = Vec::new();
        for (index, address) in (0..n as u32).zip(&addresses) {
            let task = TaskName {
                job: "w".to_string(),
                index,
            };
            let server = Server::bind(ServerOptions {
                address: address.parse().unwrap(),
                monitor: None,
                tls: tls.clone(),
                max_message: usize::MAX,
                master: MasterOptions {
                    server: ServerDef {
                        cluster: cluster.clone(),
                        task,
                        defaults: ServerDefaults {
                            collective_leader: "/job:w/replica:0/task:0".to_string(),
                            ..config.into()
                        },
                        security: security.clone(),
                        port: None,
                    },
                    threads: 2,
                    ..Default::default()
                },
            });
            let server = server.unwrap();
            // Ends with the process.
            std::thread::spawn(move || server.run(std::future::pending()));
            let scheme = if tls.is_some() { "https" } else { "http" };
            let mut endpoint = Channel::from_shared(format!("{scheme}://{address}")).unwrap();
            if let Some(authorities) = &security.authorities {
                let authority = Certificate::from_pem(authorities);
                let config = ClientTlsConfig::new().ca_certificate(authority);
                endpoint = endpoint.tls_config(config).unwrap();
            }
            channels.push(runtime.block_on(endpoint.connect()).unwrap());
        }
        World {
            runtime,
            addresses,
            channels,
        }
    }

    pub fn call<Q, R>(&self, task: usize, method: &str, request: Q) -> Result<R, Status>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        let path = format!("/tensorflow.{method}");
        self.runtime.block_on(async {
            let mut grpc = tonic::client::Grpc::new(self.channels[task].clone());
            grpc.ready().await.unwrap();
            let path = PathAndQuery::try_from(path).unwrap();
            let codec = ProstCodec::<Q, R>::default();
            let answer = grpc.unary(Request::new(request), path, codec).await?;
            Ok(answer.into_inner())
        })
    }

    pub fn session(&self, lines: &str, config: ConfigProto) -> Result<String, Status> {
        let request = CreateSessionRequest {
            graph_def: Some(graph(lines)),
            config: Some(config),
            target: format!("grpc://{}", self.addresses[0]),
        };
        let made: CreateSessionResponse = self.call(0, "MasterService/CreateSession", request)?;
        Ok(made.session_handle)
    }

    /// Feeds one tensor to a partial run; returns the value of `fetch`.
    pub fn partial_step(
        &self,
        session: &str,
        handle: &str,
        (feed, value): (&str, f32),
        fetch: &str,
    ) -> Result<f32, Status> {
        let request = RunStepRequest {
            session_handle: session.to_string(),
            partial_run_handle: handle.to_string(),
            feed: vec![NamedTensorProto {
                name: feed.to_string(),
                tensor: Some(tensor_to_proto(&Tensor::scalar(value)).unwrap()),
            }],
            fetch: vec![fetch.to_string()],
            ..Default::default()
        };
        let answer: RunStepResponse = self.call(0, "MasterService/RunStep", request)?;
        Ok(value_of(&answer))
    }

    /// Runs a step with `x` fed; returns the value of `fetch`, if any.
    pub fn step(&self, session: &str, x: f32, fetch: &str, target: &str) -> Result<f32, Status> {
        let list = |name: &str| -> Vec<String> {
            let names = name.split_whitespace();
            names.map(str::to_string).collect()
        };
        let request = RunStepRequest {
            session_handle: session.to_string(),
            feed: vec![NamedTensorProto {
                name: "x:0".to_string(),
                tensor: Some(tensor_to_proto(&Tensor::scalar(x)).unwrap()),
            }],
            fetch: list(fetch),
            target: list(target),
            ..Default::default()
        };
        let answer: RunStepResponse = self.call(0, "MasterService/RunStep", request)?;
        Ok(value_of(&answer))
    }
}
