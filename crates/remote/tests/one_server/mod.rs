//! A server in this process, with a session graph and a client that is not TensorFlow's.
#![allow(dead_code, reason = "each test program uses a part")]

use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_from_proto, tensor_to_proto};
use ferroflow_remote::{MasterOptions, Server, ServerOptions};
use ferroflow_tensor::Tensor;
use prost::Message;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

pub const GRAPH: &str = "
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
pub fn tls(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tls")
        .join(file)
}

/// A running server and a connection to it.
pub struct World {
    pub runtime: Runtime,
    pub channel: Channel,
    pub address: SocketAddr,
    pub monitor: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    pub fn new() -> World {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServerOptions)) -> World {
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
            server.run(stopped);
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
    pub fn await_steps(&self, n: usize) {
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

    pub fn call<Q, R>(&self, method: &str, request: Q) -> Result<R, Status>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        self.call_compressed(method, request, None)
    }

    pub fn call_compressed<Q, R>(
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

    pub fn session(&self, isolated: bool) -> String {
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

    pub fn step(&self, request: RunStepRequest) -> Result<Vec<f32>, Status> {
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

pub fn value(proto: &TensorProto) -> f32 {
    let tensor = tensor_from_proto(proto, None).unwrap().get().unwrap();
    tensor.to_scalar::<f32>().unwrap()
}

pub fn feed(name: &str, value: f32) -> NamedTensorProto {
    NamedTensorProto {
        name: name.to_string(),
        tensor: Some(tensor_to_proto(&Tensor::scalar(value)).unwrap()),
    }
}

pub fn run(
    session: &str,
    feeds: &[(&str, f32)],
    fetch: &[&str],
    target: &[&str],
) -> RunStepRequest {
    let names = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
    RunStepRequest {
        session_handle: session.to_string(),
        feed: feeds.iter().map(|(n, v)| feed(n, *v)).collect(),
        fetch: names(fetch),
        target: names(target),
        ..Default::default()
    }
}
