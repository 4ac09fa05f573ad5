//! Clients that cost little, to load a server of TensorFlow Serving's API with predictions.
//!
//! ```text
//! cargo run --release -p ferroflow-serving --example serving_clients -- grpc|rest HOST:PORT MODEL INPUT DIM,DIM… [CLIENTS] [SECONDS]
//! ```
//!
//! Every client has a connection of its own and sends zeros of these dimensions, one request after the other. Prints
//! requests per second and the times of a request in microseconds: median and 99th percentile.

use ferroflow_model::proto::serving::{ModelSpec, PredictRequest, PredictResponse};
use ferroflow_model::tensor_to_proto;
use ferroflow_tensor::{DType, Shape, Tensor};
use std::error::Error;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Request;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

type Res<T> = Result<T, Box<dyn Error>>;

enum Client {
    Grpc(Box<tonic::client::Grpc<Channel>>, PredictRequest),
    Rest(TcpStream, Vec<u8>),
}

impl Client {
    async fn connect(
        protocol: &str,
        address: &str,
        model: &str,
        input: &str,
        dims: &[i64],
    ) -> Res<Client> {
        if protocol == "rest" {
            let row: i64 = dims.iter().skip(1).product();
            let row = match dims.len() {
                1 => "0.5".to_string(),
                _ => format!("[{}]", vec!["0.5"; row as usize].join(",")),
            };
            let rows = vec![row; dims[0] as usize].join(",");
            let body = format!("{{\"instances\": [{rows}]}}");
            let head = format!(
                "POST /v1/models/{model}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            return Ok(Client::Rest(stream, (head + &body).into_bytes()));
        }
        let channel = Channel::from_shared(format!("http://{address}"))?
            .connect()
            .await?;
        let zeros = Tensor::zeros(DType::Float, Shape::checked(dims)?)?;
        let request = PredictRequest {
            model_spec: Some(ModelSpec {
                name: model.to_string(),
                ..Default::default()
            }),
            inputs: [(input.to_string(), tensor_to_proto(&zeros)?)].into(),
            output_filter: Vec::new(),
        };
        Ok(Client::Grpc(
            Box::new(tonic::client::Grpc::new(channel)),
            request,
        ))
    }

    async fn predict(&mut self, buffer: &mut Vec<u8>) -> Res<()> {
        match self {
            Client::Grpc(grpc, request) => {
                grpc.ready().await?;
                let path =
                    PathAndQuery::from_static("/tensorflow.serving.PredictionService/Predict");
                let codec = ProstCodec::<PredictRequest, PredictResponse>::default();
                let answer = grpc
                    .unary(Request::new(request.clone()), path, codec)
                    .await?;
                let outputs = answer.into_inner().outputs.len();
                if outputs == 0 {
                    Err("no outputs".into())
                } else {
                    Ok(())
                }
            }
            Client::Rest(stream, request) => {
                stream.write_all(request).await?;
                buffer.clear();
                loop {
                    if stream.read_buf(buffer).await? == 0 {
                        return Err("the connection was closed".into());
                    }
                    let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") else {
                        continue;
                    };
                    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
                    if !head.starts_with("http/1.1 200") {
                        return Err(head.into());
                    }
                    let length = head
                        .split("content-length: ")
                        .nth(1)
                        .and_then(|l| l.split('\r').next()?.parse::<usize>().ok());
                    if buffer.len() >= end + 4 + length.ok_or("no length")? {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn run(mut self, end: Instant) -> Res<Vec<u128>> {
        let (mut times, mut buffer) = (Vec::new(), Vec::new());
        while Instant::now() < end {
            let began = Instant::now();
            self.predict(&mut buffer).await?;
            times.push(began.elapsed().as_micros());
        }
        Ok(times)
    }
}

async fn load(args: &[String]) -> Res<()> {
    let [protocol, address, model, input, dims, ..] = args else {
        return Err("say grpc|rest HOST:PORT MODEL INPUT DIM,DIM…".into());
    };
    let clients = args.get(5).map_or(Ok(16), |n| n.parse())?;
    let seconds: f64 = args.get(6).map_or(Ok(4.0), |s| s.parse())?;
    let dims: Vec<i64> = dims.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let mut ready = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect(protocol, address, model, input, &dims).await?;
        client.predict(&mut Vec::new()).await?;
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
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0);
    println!(
        "{:.0} requests/s, p50 {} us, p99 {} us",
        times.len() as f64 / seconds,
        at(50),
        at(99)
    );
    Ok(())
}

fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // One thread for all clients: the cores are the server's.
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(load(&args))
}
