//! Clients that cost little, to load a server of TensorFlow Serving's API with predictions.
//!
//! ```text
//! cargo run --release -p ferroflow-serving --example serving_clients -- grpc|rest HOST:PORT MODEL INPUT DIM,DIM… [CLIENTS] [SECONDS] [RATE]
//! ```
//!
//! Every client has a thread and a connection of its own and sends zeros of these dimensions: one request after the
//! other, or evenly spaced ones, if the rate of all clients is given. A request that has to wait for the
//! one before it counts from the moment it was due. Frames of HTTP/2 are written here, because a whole client would
//! take more of the machine than the server. Prints requests per second and the times of a request in microseconds:
//! median and 99th percentile.

use ferroflow_model::proto::serving::{ModelSpec, PredictRequest};
use ferroflow_model::tensor_to_proto;
use ferroflow_tensor::{DType, Shape, Tensor};
use prost::Message;
use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

type Res<T> = Result<T, Box<dyn Error + Send + Sync>>;

enum Client {
    Grpc(Box<Http2>),
    Rest(TcpStream, Vec<u8>, Vec<u8>),
}

/// A connection of HTTP/2 with one stream at a time.
struct Http2 {
    stream: TcpStream,
    /// The encoded headers of a request.
    headers: Vec<u8>,
    /// The message with gRPC's prefix.
    body: Vec<u8>,
    id: u32,
    /// Bytes that the server takes on the connection, and on each new stream.
    window: i64,
    stream_window: i64,
    max_frame: usize,
    /// Bytes that were received and not read.
    received: Vec<u8>,
    start: usize,
}

/// Types and flags of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// The largest frame that every peer takes; a peer's settings may allow larger ones.
const MAX_FRAME: usize = 16384;
const INITIAL_WINDOW: i64 = 65535;

fn frame(to: &mut Vec<u8>, kind: u8, flags: u8, id: u32, payload: &[u8]) {
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&id.to_be_bytes());
    to.extend_from_slice(payload);
}

/// A text with its length, as HPACK writes it without compression.
fn text(to: &mut Vec<u8>, text: &str) {
    to.push(text.len() as u8);
    to.extend_from_slice(text.as_bytes());
}

impl Http2 {
    fn connect(address: &str, path: &str, message: &[u8]) -> Res<Http2> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // POST, http; path, authority, content type and `te` as literals that the server does not keep.
        let mut headers = vec![0x83, 0x86, 0x04];
        text(&mut headers, path);
        headers.push(0x01);
        text(&mut headers, address);
        headers.extend_from_slice(&[0x0f, 0x10]);
        text(&mut headers, "application/grpc");
        headers.push(0x00);
        text(&mut headers, "te");
        text(&mut headers, "trailers");
        let mut body = vec![0];
        body.extend_from_slice(&(message.len() as u32).to_be_bytes());
        body.extend_from_slice(message);
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut hello, SETTINGS, 0, 0, &[]);
        // Responses are never held back.
        frame(&mut hello, WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes());
        stream.write_all(&hello)?;
        Ok(Http2 {
            stream,
            headers,
            body,
            id: 1,
            window: INITIAL_WINDOW,
            stream_window: INITIAL_WINDOW,
            max_frame: MAX_FRAME,
            received: Vec::new(),
            start: 0,
        })
    }

    fn predict(&mut self) -> Res<()> {
        let (id, mut out) = (self.id, Vec::with_capacity(self.headers.len() + 64));
        frame(&mut out, HEADERS, END_HEADERS, id, &self.headers);
        self.id += 2;
        let body = std::mem::take(&mut self.body);
        let mut window = self.stream_window;
        let max_frame = self.max_frame;
        for (i, part) in body.chunks(max_frame).enumerate() {
            let size = part.len() as i64;
            while self.window < size || window < size {
                self.stream.write_all(&out)?;
                out.clear();
                let before = self.stream_window;
                self.read()?;
                window += self.stream_window - before;
            }
            self.window -= size;
            window -= size;
            let is_last = (i + 1) * max_frame >= body.len();
            frame(&mut out, DATA, u8::from(is_last) * END_STREAM, id, part);
        }
        self.body = body;
        self.stream.write_all(&out)?;
        let mut has_data = false;
        loop {
            let (kind, flags, of) = self.read()?;
            if of != id {
                continue;
            }
            has_data |= kind == DATA;
            if flags & END_STREAM != 0 && (kind == DATA || kind == HEADERS) {
                // An error has no message.
                return match has_data {
                    true => Ok(()),
                    false => Err("the server answers with an error".into()),
                };
            }
        }
    }

    /// Reads a frame and answers those of the connection; returns its type, flags and stream.
    fn read(&mut self) -> Res<(u8, u8, u32)> {
        let header = self.take(9)?;
        let [a, b, c, kind, flags, id @ ..] = &self.received[header..header + 9] else {
            return Err("a short frame".into());
        };
        let size = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let (kind, flags) = (*kind, *flags);
        let id = u32::from_be_bytes(id.try_into()?) & 0x7fff_ffff;
        let at = self.take(size)?;
        let payload = &self.received[at..at + size];
        let mut answer = Vec::new();
        match kind {
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.chunks_exact(6) {
                    let value = u32::from_be_bytes(setting[2..].try_into()?);
                    match setting[..2] {
                        // SETTINGS_INITIAL_WINDOW_SIZE and SETTINGS_MAX_FRAME_SIZE
                        [0, 4] => self.stream_window = i64::from(value),
                        [0, 5] => self.max_frame = value as usize,
                        _ => {}
                    }
                }
                frame(&mut answer, SETTINGS, ACK, 0, &[]);
            }
            PING if flags & ACK == 0 => frame(&mut answer, PING, ACK, 0, payload),
            WINDOW_UPDATE if id == 0 => {
                self.window += i64::from(u32::from_be_bytes(payload.try_into()?));
            }
            GO_AWAY => return Err("the server ends the connection".into()),
            _ => {}
        }
        if !answer.is_empty() {
            self.stream.write_all(&answer)?;
        }
        Ok((kind, flags, id))
    }

    /// Receives that many bytes; returns where they begin.
    fn take(&mut self, n: usize) -> Res<usize> {
        while self.received.len() < self.start + n {
            if self.start > MAX_FRAME {
                self.received.drain(..self.start);
                self.start = 0;
            }
            let mut buffer = [0; 4096];
            let more = self.stream.read(&mut buffer)?;
            if more == 0 {
                return Err("the connection was closed".into());
            }
            self.received.extend_from_slice(&buffer[..more]);
        }
        self.start += n;
        Ok(self.start - n)
    }
}

impl Client {
    fn connect(
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
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            return Ok(Client::Rest(
                stream,
                (head + &body).into_bytes(),
                Vec::new(),
            ));
        }
        let zeros = Tensor::zeros(DType::Float, Shape::checked(dims)?)?;
        let request = PredictRequest {
            model_spec: Some(ModelSpec {
                name: model.to_string(),
                ..Default::default()
            }),
            inputs: [(input.to_string(), tensor_to_proto(&zeros)?)].into(),
            output_filter: Vec::new(),
        };
        let path = "/tensorflow.serving.PredictionService/Predict";
        let connection = Http2::connect(address, path, &request.encode_to_vec())?;
        Ok(Client::Grpc(Box::new(connection)))
    }

    fn predict(&mut self) -> Res<()> {
        match self {
            Client::Grpc(connection) => connection.predict(),
            Client::Rest(stream, request, buffer) => {
                stream.write_all(request)?;
                buffer.clear();
                loop {
                    let mut part = [0; 4096];
                    let more = stream.read(&mut part)?;
                    if more == 0 {
                        return Err("the connection was closed".into());
                    }
                    buffer.extend_from_slice(&part[..more]);
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

    /// Sends requests until the end, from `due` on with this interval, if any; returns their microseconds.
    fn run(mut self, mut due: Instant, interval: Option<Duration>, end: Instant) -> Res<Vec<u128>> {
        // Otherwise the kernel delays the end of a pause by 50 µs, which would count as the server's.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let mut times = Vec::new();
        while Instant::now().max(due) < end {
            if interval.is_some() {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            } else {
                due = Instant::now();
            }
            self.predict()?;
            times.push(due.elapsed().as_micros());
            due += interval.unwrap_or_default();
        }
        Ok(times)
    }
}

fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [protocol, address, model, input, dims, ..] = &args[..] else {
        return Err("say grpc|rest HOST:PORT MODEL INPUT DIM,DIM…".into());
    };
    let clients: u32 = args.get(5).map_or(Ok(16), |n| n.parse())?;
    let seconds: f64 = args.get(6).map_or(Ok(4.0), |s| s.parse())?;
    let rate: Option<f64> = args.get(7).map(|r| r.parse()).transpose()?;
    let dims: Vec<i64> = dims.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let mut ready = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect(protocol, address, model, input, &dims)?;
        client.predict()?;
        ready.push(client);
    }
    let interval = rate.map(|rate| Duration::from_secs_f64(f64::from(clients) / rate));
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(seconds);
    let runs: Vec<_> = (0..)
        .zip(ready)
        .map(|(i, client)| {
            let first = begin + interval.unwrap_or_default() * i / clients;
            std::thread::spawn(move || client.run(first, interval, end))
        })
        .collect();
    let mut times = Vec::new();
    for run in runs {
        times.extend(run.join().map_err(|_| "a client panicked")??);
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
