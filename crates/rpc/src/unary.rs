//! One call: its message, its response, its thread.

use crate::calls::Calls;
use crate::deadline::{client_timeout, deadline_within, with_deadline};
use crate::wire::{AnyMessage, Frames, parse};
use bytes::Bytes;
use ferroflow_base::{Result, internal};
use ferroflow_sync::CancelToken;
use http::HeaderValue;
use http_body_util::BodyExt;
use prost::Message;
use std::any::Any;
use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, UnaryService};

/// A gRPC request before its message is read.
pub type HttpRequest = http::Request<Body>;
/// The response of a gRPC call.
pub type HttpResponse = http::Response<Body>;
/// A future of a handler.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs a call: `dispatch` receives the method's name and the request. The call is over when its response has
/// been sent; it ends with DEADLINE_EXCEEDED at the client's deadline.
pub fn answer(
    calls: &Calls,
    request: HttpRequest,
    dispatch: impl FnOnce(&str, HttpRequest) -> Boxed<HttpResponse>,
) -> Boxed<Result<HttpResponse, Infallible>> {
    let path = request.uri().path();
    let method = path.rsplit('/').next().unwrap_or_default().to_string();
    let deadline = client_timeout(request.headers()).and_then(deadline_within);
    let call = calls.begin();
    let answered = dispatch(&method, request);
    let held = move |body: Body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &call;
            frame
        }))
    };
    Box::pin(async move { Ok(with_deadline(deadline, answered).await.map(held)) })
}

/// Reads the message of a unary call of at most `max_message` bytes and writes the handler's response.
pub fn unary<Q, R, F, A>(
    request: HttpRequest,
    max_message: usize,
    handler: F,
) -> Boxed<HttpResponse>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: FnOnce(Q) -> A + Send + 'static,
    A: Future<Output = Result<R, tonic::Status>> + Send + 'static,
{
    let handler = move |frame: Bytes| {
        let answer = handler(parse(frame)?);
        let answer = async move { Ok(Box::new(answer.await?) as AnyMessage) };
        Ok(Box::pin(answer) as Boxed<_>)
    };
    unary_frames(request, max_message, Box::new(handler))
}

/// Parses the message of a call and starts its handler.
pub type FrameHandler = Box<
    dyn FnOnce(Bytes) -> Result<Boxed<Result<AnyMessage, tonic::Status>>, tonic::Status> + Send,
>;

/// [`unary`] without the types of the messages.
pub fn unary_frames(
    request: HttpRequest,
    max_message: usize,
    handler: FrameHandler,
) -> Boxed<HttpResponse> {
    let mut grpc = Grpc::new(Frames)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(max_message)
        .max_encoding_message_size(usize::MAX);
    Box::pin(async move {
        let mut is_read = false;
        let mut answer = grpc
            .unary(Method(Some(handler), &mut is_read), request)
            .await;
        let status = answer.headers_mut().get_mut("grpc-status");
        // TensorFlow's clients take OUT_OF_RANGE for the end of their data.
        if let Some(status) = status.filter(|s| !is_read && *s == "11") {
            *status = HeaderValue::from_static("8");
        }
        answer
    })
}

/// One call of a method; sets the flag when the message has been read.
struct Method<'a>(Option<FrameHandler>, &'a mut bool);

impl UnaryService<Bytes> for Method<'_> {
    type Response = AnyMessage;
    type Future = Boxed<Result<tonic::Response<AnyMessage>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let answer = match self.0.take() {
            Some(handler) => handler(request.into_inner()),
            None => Err(tonic::Status::internal("the call was started twice")),
        };
        *self.1 = answer.is_ok();
        Box::pin(async move { Ok(tonic::Response::new(answer?.await?)) })
    }
}

/// Cancels the step when the client disconnects, which drops the future that owns this.
pub struct CancelOnDrop(pub CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs `f` on one of `threads`, where it may block. Its token is cancelled when the future is dropped.
///
/// # Errors
/// Those of `f`; INTERNAL if it panics.
pub async fn blocking<R: Send + 'static>(
    threads: &Handle,
    f: impl FnOnce(&CancelToken) -> Result<R> + Send + 'static,
) -> Result<R> {
    let cancel = CancelToken::new();
    let hung_up = CancelOnDrop(cancel.clone());
    // One type of task for all handlers.
    let task: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> =
        Box::new(move || Box::new(f(&cancel)));
    let ran = threads.spawn_blocking(task).await;
    drop(hung_up);
    let failed = |e: &dyn Display| internal!("a request handler failed (please report this): {e}");
    match ran {
        Ok(ran) => match ran.downcast::<Result<R>>() {
            Ok(ran) => *ran,
            Err(_) => Err(failed(&"its result has another type")),
        },
        Err(e) => Err(failed(&e)),
    }
}

/// Runs `work` as a task of `threads`. The task ends when the future is dropped.
///
/// # Errors
/// Those of `work`; INTERNAL if it panics.
pub async fn beside<R: Send + 'static>(
    threads: &Handle,
    work: impl Future<Output = Result<R, tonic::Status>> + Send + 'static,
) -> Result<R, tonic::Status> {
    struct Task<R>(JoinHandle<R>);
    impl<R> Drop for Task<R> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    // One type of task for all that return this type.
    let work: Boxed<Result<R, tonic::Status>> = Box::pin(work);
    let mut task = Task(threads.spawn(work));
    let ran = (&mut task.0).await;
    let failed = |e| format!("a request handler failed (please report this): {e}");
    ran.unwrap_or_else(|e| Err(tonic::Status::internal(failed(e))))
}

/// The same body; `count` is told the bytes of each piece that is read of it.
pub fn measured(body: Body, count: impl Fn(usize) + Send + 'static) -> Body {
    Body::new(body.map_frame(move |frame| {
        if let Some(data) = frame.data_ref() {
            count(data.len());
        }
        frame
    }))
}

/// The response to a method that does not exist.
pub fn unknown() -> Boxed<HttpResponse> {
    Box::pin(async { tonic::Status::unimplemented("unknown method").into_http() })
}
