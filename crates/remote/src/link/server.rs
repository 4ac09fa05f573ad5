//! [`LinkServer`]: the links that other tasks open to this one.

use super::frame::{Failure, Hello, Kind, MAGIC, Push, Reader, RunPart, malformed, type_of};
use super::watch;
use super::writer::Writer;
use crate::master_session::lock;
use crate::peers::{RECV_TENSOR, with_origin};
use crate::service::Endpoint;
use ferroflow_base::{Result, Status, internal};
use ferroflow_model::proto::{RecvBufRequest, RunGraphResponse};
use ferroflow_rpc::message;
use ferroflow_runtime::CancelToken;
use ferroflow_tensor::Tensor;
use prost::Message;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::TcpStream;

/// Whether a new connection is one of a link; it has sent nothing that was read.
pub(crate) async fn is_link(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let n = stream.peek(&mut first).await?;
    Ok(n == 1 && first[0] == MAGIC[0])
}

/// Serves links.
#[derive(Clone)]
pub(crate) struct LinkServer(pub(crate) Endpoint);

/// A connection that another task opened.
struct Accepted {
    endpoint: Endpoint,
    writer: Arc<Writer>,
    /// The calls in progress.
    calls: Mutex<HashMap<u64, CancelToken>>,
}

impl LinkServer {
    /// Serves a connection until it is lost. Its calls are cancelled then, and so are the steps that the
    /// other task takes part in.
    pub(crate) async fn serve(self, stream: TcpStream) {
        let (hello, lost) = match self.accept(stream).await {
            Ok((hello, mut reader, accepted)) => {
                let progress = reader.progress.clone();
                let lost = tokio::select! {
                    error = accepted.read(&mut reader) => error,
                    error = accepted.writer.flush() => error,
                    () = watch(&progress) => io::ErrorKind::TimedOut.into(),
                };
                accepted.writer.close(lost.kind());
                let calls = std::mem::take(&mut *lock(&accepted.calls));
                calls.into_values().for_each(|cancel| cancel.cancel());
                (hello, lost)
            }
            Err(e) => return tracing::debug!("a link was not opened: {e}"),
        };
        let task = self.0.master.task();
        let reason = super::unavailable(&format!("Connection lost: {lost}"));
        // By its name, coordinators tell parameter servers from workers.
        let reason = match hello.task.as_str() {
            "" => reason,
            name => with_origin(&reason, name, RECV_TENSOR),
        };
        task.rendezvous.lose_task(hello.incarnation, &reason);
    }

    async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(Hello, Reader<tokio::net::tcp::OwnedReadHalf>, Arc<Accepted>)> {
        let (from, mut to) = stream.into_split();
        let mut reader = Reader::new(from);
        reader.magic().await?;
        let (header, head) = reader.frame().await?;
        if header.kind != Kind::Hello {
            return Err(malformed("no hello"));
        }
        let hello = Hello::decode(head).map_err(|_| malformed("a hello"))?;
        let task = self.0.master.task();
        if !task.server.security.has_token(&hello.token) {
            return Err(malformed("another token"));
        }
        to.write_all(MAGIC).await?;
        let writer = Writer::new(to);
        let own = Hello {
            incarnation: task.incarnation(),
            token: String::new(),
            task: task.server.task.to_string(),
        };
        let sent = writer.send(Kind::Hello, 0, &own, None);
        sent.map_err(|e| io::Error::other(e.message().to_string()))?;
        let accepted = Accepted {
            endpoint: self.0.clone(),
            writer,
            calls: Mutex::default(),
        };
        Ok((hello, reader, Arc::new(accepted)))
    }
}

impl Accepted {
    async fn read<R: AsyncRead + Unpin>(self: &Arc<Self>, reader: &mut Reader<R>) -> io::Error {
        loop {
            if let Err(e) = self.read_one(reader).await {
                return e;
            }
        }
    }

    async fn read_one<R: AsyncRead + Unpin>(
        self: &Arc<Self>,
        reader: &mut Reader<R>,
    ) -> io::Result<()> {
        let (header, head) = reader.frame().await?;
        if header.kind == Kind::Push {
            let push = Push::decode(head).map_err(|_| malformed("a push"))?;
            return self.push(push, header.payload, reader).await;
        }
        reader.skip(header.payload).await?;
        match header.kind {
            Kind::Run => {
                let part = RunPart::decode(head).map_err(|_| malformed("a part of a step"))?;
                self.run(header.call, part);
            }
            Kind::RecvBuf => {
                let request = RecvBufRequest::decode(head);
                self.recv_buf(header.call, request.map_err(|_| malformed("a RecvBuf"))?);
            }
            Kind::Cancel => {
                let cancel = lock(&self.calls).remove(&header.call);
                if let Some(cancel) = cancel {
                    cancel.cancel();
                }
            }
            Kind::Ping => self.send(Kind::Pong, 0, &(), None),
            _ => return Err(malformed("a frame of this direction")),
        }
        Ok(())
    }

    /// Puts a tensor of another task into its step's rendezvous.
    async fn push<R: AsyncRead + Unpin>(
        &self,
        push: Push,
        payload: usize,
        reader: &mut Reader<R>,
    ) -> io::Result<()> {
        let task = self.endpoint.master.task();
        let tensor = match (&push.tensor, payload) {
            (None, _) => Ok(None),
            (Some(proto), 0) => task.handles.decode(proto).map(Some),
            (Some(proto), n) => match type_of(proto) {
                Ok((dtype, shape)) => reader.payload(dtype, shape, n).await?.map(Some),
                Err(e) => {
                    reader.skip(n).await?;
                    Err(e)
                }
            },
        };
        task.rendezvous.push(push.step, &push.key, tensor);
        Ok(())
    }

    fn run(self: &Arc<Self>, call: u64, part: RunPart) {
        let request = part.request.unwrap_or_default();
        let in_body = request.store_errors_in_response_body;
        let (cancel, counted) = (self.begin(call), self.endpoint.calls.begin());
        let this = self.clone();
        let done = move |answer: Result<RunGraphResponse>| {
            lock(&this.calls).remove(&call);
            let answer = match answer {
                Err(e) if in_body => Ok(RunGraphResponse {
                    status_code: e.code() as i32,
                    status_error_message: message(&e),
                    ..Default::default()
                }),
                answer => answer,
            };
            match answer {
                Ok(answer) => this.send(Kind::Answer, call, &answer, None),
                Err(e) => this.fail(call, &e),
            }
            drop(counted);
        };
        let (worker, calls) = (&self.endpoint.worker, &self.endpoint.calls);
        worker.start_part(request, part.tasks, cancel, calls, Box::new(done));
    }

    fn recv_buf(self: &Arc<Self>, call: u64, request: RecvBufRequest) {
        let (cancel, this) = (self.begin(call), self.clone());
        ferroflow_rpc::spawn(&tokio::runtime::Handle::current(), async move {
            let (sender, cancelled) = tokio::sync::oneshot::channel();
            // The receiver is gone once the buffer has come.
            let registration = cancel.on_cancel(move || {
                let _ = sender.send(());
            });
            let task = this.endpoint.master.task();
            let received = tokio::select! {
                received = task.collectives.buffer(&task.devices, &request) => received,
                _ = cancelled => Err(internal!("the call was cancelled")),
            };
            drop(registration);
            lock(&this.calls).remove(&call);
            match received {
                Ok(buffer) => this.send(Kind::Answer, call, &(), Some(&buffer)),
                Err(e) => this.fail(call, &e),
            }
        });
    }

    fn begin(&self, call: u64) -> CancelToken {
        let cancel = CancelToken::new();
        lock(&self.calls).insert(call, cancel.clone());
        cancel
    }

    fn fail(&self, call: u64, error: &Status) {
        self.send(Kind::Failed, call, &Failure::of(error), None);
    }

    fn send(&self, kind: Kind, call: u64, head: &dyn super::writer::Head, tensor: Option<&Tensor>) {
        if let Err(e) = self.writer.send(kind, call, head, tensor) {
            // The other task notices for itself.
            tracing::debug!("an answer was not sent: {}", e.message());
        }
    }
}
