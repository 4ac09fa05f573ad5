//! [`Link`]: the connections to another task.

use super::frame::{Failure, Header, Hello, Kind, MAGIC, Push, Reader, RunPart};
use super::writer::{Head, Writer};
use super::{INTERVAL, unavailable, watch};
use crate::master_session::lock;
use ferroflow_base::{Result, Status, internal};
use ferroflow_model::proto::{RecvBufRequest, RunGraphRequest, RunGraphResponse, TensorProto};
use ferroflow_tensor::{DType, Shape, Tensor};
use prost::Message;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Connections for calls and short tensors, and for long ones.
const LANES: usize = 3;
/// Longer tensors do not hold up calls.
const SHORT: usize = 1 << 16;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(20);

/// What all links of a task share.
pub(crate) struct LinkOptions {
    /// The name of the task that opens them; empty for a client.
    pub(crate) task: String,
    pub(crate) incarnation: u64,
    pub(crate) token: String,
    pub(crate) runtime: Handle,
}

/// The connections to a task. They are opened before a step uses them, and one that is lost closes all, until an
/// answer over gRPC tells again that the task knows links.
pub(crate) struct Link {
    address: String,
    options: Arc<LinkOptions>,
    is_known: AtomicBool,
    lanes: [Mutex<Option<Arc<Wire>>>; LANES],
    opening: tokio::sync::Mutex<()>,
    next: AtomicUsize,
}

/// The answer to a call; its payload is a vector of the dtype that was expected.
pub(super) struct Answer {
    head: bytes::Bytes,
    payload: Option<Tensor>,
}

type Done = Box<dyn FnOnce(Result<Answer>) + Send>;

struct Waiting {
    /// The dtype of the payload.
    dtype: DType,
    done: Done,
}

/// An open connection.
struct Wire {
    writer: Arc<Writer>,
    calls: Mutex<Option<HashMap<u64, Waiting>>>,
    next_call: AtomicU64,
}

/// A call, to cancel it.
pub(crate) struct LinkCall {
    wire: Arc<Wire>,
    call: u64,
}

impl LinkCall {
    /// Ends the call with this error, here and on the other task, unless it has ended.
    pub(crate) fn cancel(&self, reason: Status) {
        let Some(waiting) = self.wire.remove(self.call) else {
            return;
        };
        // A connection that is lost has cancelled its calls.
        let _ = self.wire.writer.send(Kind::Cancel, self.call, &(), None);
        (waiting.done)(Err(reason));
    }
}

impl Link {
    pub(crate) fn new(address: &str, options: &Arc<LinkOptions>) -> Arc<Self> {
        Arc::new(Link {
            address: address.to_string(),
            options: options.clone(),
            is_known: AtomicBool::new(false),
            lanes: Default::default(),
            opening: tokio::sync::Mutex::default(),
            next: AtomicUsize::new(0),
        })
    }

    /// Says that the task knows links.
    pub(crate) fn set_known(&self) {
        self.is_known.store(true, Ordering::Release);
    }

    /// Whether the task knows links, as far as this one was told.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    fn wire(&self, lane: usize) -> Option<Arc<Wire>> {
        lock(&self.lanes[lane]).clone()
    }

    /// Whether all connections are open.
    pub(crate) fn is_open(&self) -> bool {
        (0..LANES).all(|lane| self.wire(lane).is_some())
    }

    /// Opens the connections.
    ///
    /// # Errors
    /// UNAVAILABLE if the task cannot be reached, or is another one by now.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<()> {
        let _one = self.opening.lock().await;
        for lane in 0..LANES {
            if self.wire(lane).is_none() {
                let opened = tokio::time::timeout(CONNECT, self.connect(lane)).await;
                let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                opened.map_err(|e| {
                    self.is_known.store(false, Ordering::Release);
                    unavailable(&e.to_string())
                })?;
            }
        }
        Ok(())
    }

    async fn connect(self: &Arc<Self>, lane: usize) -> io::Result<()> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(MAGIC).await?;
        let (from, to) = stream.into_split();
        let writer = Writer::new(to);
        let hello = Hello {
            incarnation: self.options.incarnation,
            token: self.options.token.clone(),
            task: self.options.task.clone(),
        };
        let sent = writer.send(Kind::Hello, 0, &hello, None);
        sent.map_err(|e| io::Error::other(e.message().to_string()))?;
        let mut reader = Reader::new(from);
        reader.magic().await?;
        let (header, _) = reader.frame().await?;
        if header.kind != Kind::Hello {
            return Err(super::frame::malformed("no hello"));
        }
        let wire = Arc::new(Wire {
            writer,
            calls: Mutex::new(Some(HashMap::new())),
            next_call: AtomicU64::new(0),
        });
        *lock(&self.lanes[lane]) = Some(wire.clone());
        let link = self.clone();
        ferroflow_rpc::spawn(&self.options.runtime, async move {
            let progress = reader.progress.clone();
            let lost = tokio::select! {
                error = wire.read(&mut reader) => error,
                error = wire.writer.flush() => error,
                () = wire.ping() => io::ErrorKind::BrokenPipe.into(),
                () = watch(&progress) => io::ErrorKind::TimedOut.into(),
            };
            link.is_known.store(false, Ordering::Release);
            lock(&link.lanes[lane]).take_if(|open| Arc::ptr_eq(open, &wire));
            wire.close(&lost);
            // The steps of one connection are those of all.
            for other in &link.lanes {
                let open = lock(other).take();
                if let Some(open) = open {
                    open.close(&lost);
                }
            }
        });
        Ok(())
    }

    fn lane(&self, bytes: usize) -> Result<Arc<Wire>> {
        let lane = match bytes <= SHORT {
            true => 0,
            false => 1 + self.next.fetch_add(1, Ordering::Relaxed) % (LANES - 1),
        };
        self.wire(lane)
            .ok_or_else(|| unavailable("the connection is lost"))
    }

    /// Sends a tensor of a step, `None` if it is dead; `encoded` is the message of one that is not plain.
    ///
    /// # Errors
    /// UNAVAILABLE if the connection is lost.
    pub(crate) fn push(
        &self,
        step: u64,
        key: &str,
        tensor: Option<&Tensor>,
        encoded: impl FnOnce(&Tensor) -> Result<TensorProto>,
    ) -> Result<()> {
        let plain = tensor.filter(|t| t.dtype().is_plain() && t.byte_len() > 0);
        let proto = match (tensor, plain) {
            (Some(tensor), Some(_)) => Some(TensorProto {
                dtype: tensor.dtype() as i32,
                tensor_shape: Some(ferroflow_model::shape_to_proto(&tensor.shape().into())),
                ..Default::default()
            }),
            (Some(tensor), None) => Some(encoded(tensor)?),
            (None, _) => None,
        };
        let push = Push {
            step,
            key: key.to_string(),
            tensor: proto,
        };
        let bytes = plain.map_or(push.encoded_len(), Tensor::byte_len);
        self.lane(bytes)?.writer.send(Kind::Push, 0, &push, plain)
    }

    /// Runs a part of a step; the thread that receives the answer calls `done`.
    ///
    /// # Errors
    /// UNAVAILABLE if the connection is lost; `done` was not called then.
    pub(crate) fn run(
        &self,
        request: RunGraphRequest,
        tasks: Vec<u64>,
        done: impl FnOnce(Result<RunGraphResponse>) + Send + 'static,
    ) -> Result<LinkCall> {
        let part = RunPart {
            request: Some(request),
            tasks,
        };
        let parsed = move |answer: Result<Answer>| {
            done(answer.and_then(|answer| {
                let parsed = RunGraphResponse::decode(answer.head);
                parsed.map_err(|e| internal!("Unable to parse response: {e}"))
            }));
        };
        let wire = self.lane(0)?;
        let waiting = Waiting {
            dtype: DType::Uint8,
            done: Box::new(parsed),
        };
        wire.call(Kind::Run, &part, waiting)
    }

    /// Receives a buffer of a collective, a vector of the dtype.
    ///
    /// # Errors
    /// UNAVAILABLE if the connection is lost; those of the other task.
    pub(crate) async fn recv_buf(&self, request: RecvBufRequest, dtype: DType) -> Result<Tensor> {
        let (sender, receiver) = oneshot::channel();
        let done = move |answer| {
            // The collective may have ended.
            let _ = sender.send(answer);
        };
        let done: Done = Box::new(done);
        let wire = self.lane(usize::try_from(request.num_bytes).unwrap_or(0))?;
        let call = wire.call(Kind::RecvBuf, &request, Waiting { dtype, done })?;
        let call = CancelOnDrop(call);
        let answer = receiver.await;
        let answer = answer.map_err(|_| unavailable("the connection is lost"))??;
        drop(call);
        match answer.payload {
            Some(payload) => Ok(payload),
            None => Tensor::zeros(dtype, [0].into()),
        }
    }
}

struct CancelOnDrop(LinkCall);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0
            .cancel(ferroflow_base::cancelled!("the collective has ended"));
    }
}

impl Wire {
    fn call(self: &Arc<Self>, kind: Kind, head: &dyn Head, waiting: Waiting) -> Result<LinkCall> {
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        match lock(&self.calls).as_mut() {
            Some(calls) => calls.insert(call, waiting),
            None => return Err(unavailable("the connection is lost")),
        };
        if let Err(e) = self.writer.send(kind, call, head, None) {
            // Otherwise its end was told already.
            return match self.remove(call) {
                Some(_) => Err(e),
                None => Ok(LinkCall {
                    wire: self.clone(),
                    call,
                }),
            };
        }
        Ok(LinkCall {
            wire: self.clone(),
            call,
        })
    }

    fn remove(&self, call: u64) -> Option<Waiting> {
        lock(&self.calls).as_mut()?.remove(&call)
    }

    /// Hands answers to their calls, until the connection is lost.
    async fn read<R: tokio::io::AsyncRead + Unpin>(&self, reader: &mut Reader<R>) -> io::Error {
        loop {
            if let Err(e) = self.read_one(reader).await {
                return e;
            }
        }
    }

    async fn read_one<R: tokio::io::AsyncRead + Unpin>(
        &self,
        reader: &mut Reader<R>,
    ) -> io::Result<()> {
        let (
            Header {
                kind,
                call,
                payload,
                ..
            },
            head,
        ) = reader.frame().await?;
        let waiting = match kind {
            Kind::Answer | Kind::Failed => self.remove(call),
            _ => None,
        };
        let Some(Waiting { dtype, done }) = waiting else {
            return reader.skip(payload).await;
        };
        if kind == Kind::Failed {
            reader.skip(payload).await?;
            let failure = Failure::decode(head).unwrap_or_default();
            done(Err(failure.status()));
            return Ok(());
        }
        let size = dtype.size().max(1);
        let received = match payload {
            0 => Ok(None),
            n => {
                // Not answered if the connection is lost meanwhile.
                let unanswered = Unanswered(Some(done));
                let received = reader
                    .payload(dtype, Shape::from(&[n / size][..]), n)
                    .await?;
                unanswered.take()(received.map(|payload| Answer {
                    head,
                    payload: Some(payload),
                }));
                return Ok(());
            }
        };
        done(received.map(|payload| Answer { head, payload }));
        Ok(())
    }

    async fn ping(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if self.writer.send(Kind::Ping, 0, &(), None).is_err() {
                return;
            }
        }
    }

    fn close(&self, why: &io::Error) {
        self.writer.close(why.kind());
        let calls = lock(&self.calls).take();
        for waiting in calls.into_iter().flat_map(HashMap::into_values) {
            (waiting.done)(Err(unavailable(&format!("Connection lost: {why}"))));
        }
    }
}

/// The receiver of an answer that is being read.
struct Unanswered(Option<Done>);

impl Unanswered {
    fn take(mut self) -> Done {
        self.0.take().unwrap_or_else(|| Box::new(|_| {}))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(unavailable("the connection is lost")));
        }
    }
}
