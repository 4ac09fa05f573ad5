//! Clients that cost little, to load a TensorFlow server with steps: every client has a connection
//! and a session of its own and adds two scalars, one step after the other.
//!
//! ```text
//! cargo run --release -p ferroflow-remote --example clients -- 127.0.0.1:2222 [CLIENTS] [SECONDS]
//! ```
//!
//! Prints the steps per second of all together and the median latency of a step in microseconds.

use ferroflow_model::proto::*;
use ferroflow_model::{graph_from_text, tensor_from_proto, tensor_to_proto};
use ferroflow_tensor::Tensor;
use prost::Message;
use std::error::Error;
use std::time::{Duration, Instant};
use tonic::Request;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

type Res<T> = Result<T, Box<dyn Error>>;

const GRAPH: &str = "
    node { name: 'a' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'b' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'sum' op: 'AddV2' input: 'a' input: 'b' attr { key: 'T' value { type: DT_FLOAT } } }
    versions { producer: 1087 }";

struct Client {
    grpc: tonic::client::Grpc<Channel>,
    session: String,
}

impl Client {
    async fn connect(address: &str) -> Res<Client> {
        let channel = Channel::from_shared(format!("http://{address}"))?;
        let mut client = Client {
            grpc: tonic::client::Grpc::new(channel.connect().await?),
            session: String::new(),
        };
        let request = CreateSessionRequest {
            graph_def: Some(graph_from_text(GRAPH)?),
            ..Default::default()
        };
        let made: CreateSessionResponse = client.call("CreateSession", request).await?;
        client.session = made.session_handle;
        Ok(client)
    }

    async fn call<Q, R>(&mut self, method: &str, request: Q) -> Res<R>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        self.grpc.ready().await?;
        let path: PathAndQuery = format!("/tensorflow.MasterService/{method}").parse()?;
        let codec = ProstCodec::<Q, R>::default();
        let answer = self.grpc.unary(Request::new(request), path, codec).await?;
        Ok(answer.into_inner())
    }

    /// Adds two numbers and checks the answer.
    async fn step(&mut self, number: f32) -> Res<()> {
        let fed = |name: &str, value: f32| {
            Ok::<_, Box<dyn Error>>(NamedTensorProto {
                name: name.to_string(),
                tensor: Some(tensor_to_proto(&Tensor::scalar(value))?),
            })
        };
        let request = RunStepRequest {
            session_handle: self.session.clone(),
            feed: vec![fed("a:0", number)?, fed("b:0", 1.0)?],
            fetch: vec!["sum:0".to_string()],
            ..Default::default()
        };
        let answer: RunStepResponse = self.call("RunStep", request).await?;
        let sum = answer.tensor.first().and_then(|t| t.tensor.as_ref());
        let sum = tensor_from_proto(sum.ok_or("no answer")?, None)?.get()?;
        let sum = sum.to_scalar::<f32>()?;
        match sum == number + 1.0 {
            true => Ok(()),
            false => Err(format!("{number} + 1 is not {sum}").into()),
        }
    }

    /// Steps until `end`; the microseconds that each took.
    async fn run(mut self, end: Instant) -> Res<Vec<u128>> {
        let mut times = Vec::new();
        while Instant::now() < end {
            let began = Instant::now();
            self.step((times.len() % 1000) as f32).await?;
            times.push(began.elapsed().as_micros());
        }
        let close = CloseSessionRequest {
            session_handle: self.session.clone(),
        };
        let _: CloseSessionResponse = self.call("CloseSession", close).await?;
        Ok(times)
    }
}

async fn load(address: &str, clients: usize, seconds: f64) -> Res<()> {
    let mut ready = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect(address).await?;
        client.step(0.0).await?;
        ready.push(client);
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let local = tokio::task::LocalSet::new();
    let runs: Vec<_> = ready
        .into_iter()
        .map(|client| local.spawn_local(client.run(end)))
        .collect();
    local.await;
    let mut times = Vec::new();
    for run in runs {
        times.extend(run.await??);
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(0);
    println!("{:.0} steps/s, {median} us", times.len() as f64 / seconds);
    Ok(())
}

fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let address = args.first().ok_or("say HOST:PORT of a server")?;
    let clients = args.get(1).map_or(Ok(16), |n| n.parse())?;
    let seconds = args.get(2).map_or(Ok(4.0), |s| s.parse())?;
    // One thread for all clients: the cores are the server's.
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(load(address, clients, seconds))
}
