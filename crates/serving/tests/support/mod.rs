//! A server on free ports, with clients of both protocols.
#![allow(dead_code, reason = "each test program uses a part")]

use ferroflow_runtime::Pool;
use ferroflow_serving::{
    Front, FrontOptions, LoadOptions, ManagerOptions, ModelSource, RestOptions, Server,
    ServerOptions,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

/// The models that `oracle/serving.py` wrote.
pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

/// Options of a manager for tests.
pub fn manager_options() -> ManagerOptions {
    ManagerOptions {
        load: LoadOptions {
            tags: vec!["serve".to_string()],
            pool: Arc::new(Pool::new(2)),
            cache: None,
        },
        max_retries: 0,
        retry_interval: Duration::from_secs(3600),
        load_threads: 2,
        warmup_steps: 0,
        warmup_replays: 1,
        memory_budget: None,
        labels_need_no_version: false,
    }
}

/// Options of a server on free ports of the loopback address.
pub fn options(models: Vec<ModelSource>) -> ServerOptions {
    let at = Some("127.0.0.1:0".parse().unwrap());
    ServerOptions {
        grpc: at,
        grpc_socket: None,
        rest: at,
        tls: None,
        rest_tls: None,
        max_message: 1 << 20,
        rest_options: RestOptions {
            cors: false,
            max_body: 1 << 20,
            metrics_path: "/monitoring/prometheus/metrics".to_string(),
            timeout: Duration::from_secs(600),
        },
        front: FrontOptions::default(),
        manager: manager_options(),
        batching: None,
        models,
        model_config: None,
        config_poll: Duration::ZERO,
        version_poll: Duration::ZERO,
        traces: None,
        grace: Duration::from_secs(600),
    }
}

/// A server that runs until this is dropped.
pub struct World {
    pub front: Arc<Front>,
    pub grpc: SocketAddr,
    pub rest: SocketAddr,
    pub runtime: tokio::runtime::Runtime,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    pub fn new(options: ServerOptions) -> World {
        let server = Server::bind(options).unwrap();
        let (front, grpc, rest) = (
            server.front().clone(),
            server.grpc_address(),
            server.rest_address(),
        );
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let stopped = async { drop(stopped.await) };
            server.run(stopped);
        });
        World {
            front,
            grpc: grpc.unwrap(),
            rest: rest.unwrap(),
            runtime: tokio::runtime::Runtime::new().unwrap(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn stop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Sends a gRPC request and returns the response, both encoded or decoded as the types say.
    pub fn call<Q, R>(
        &self,
        method: &str,
        request: impl tonic::IntoRequest<Q>,
    ) -> Result<R, tonic::Status>
    where
        Q: prost::Message + Default + 'static,
        R: prost::Message + Default + 'static,
    {
        let path: PathAndQuery = method.parse().unwrap();
        self.runtime.block_on(async {
            let address = format!("http://{}", self.grpc);
            let channel = Channel::from_shared(address)
                .unwrap()
                .connect()
                .await
                .unwrap();
            let mut grpc = tonic::client::Grpc::new(channel);
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<Q, R>::default();
            let answer = grpc.unary(request.into_request(), path, codec).await?;
            Ok(answer.into_inner())
        })
    }

    /// A connection to the REST port.
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(self.rest).unwrap()
    }

    /// Sends an HTTP request; returns the status, the headers and the body.
    pub fn http(&self, head: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = self.connect();
        let length = body.len();
        let head =
            format!("{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses a body may close the connection before it is read.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let at = answer
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .expect("a response");
        let body = answer.split_off(at + 4);
        let head = String::from_utf8(answer).unwrap();
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap();
        (status, head.to_ascii_lowercase(), body)
    }

    /// Sends a JSON request.
    pub fn json(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (status, _, body) = self.http(&format!("{method} {path} HTTP/1.1"), body.as_bytes());
        (status, String::from_utf8(body).unwrap())
    }

    /// A prediction of the model `half`.
    pub fn predict(&self, path: &str) -> (u16, String) {
        self.json(
            "POST",
            &format!("/v1/models/{path}:predict"),
            "{\"instances\": [2]}",
        )
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
    }
}
