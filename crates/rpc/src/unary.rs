//! One call: its message, its response, its thread.

use crate::calls::Calls;
use crate::deadline::{client_timeout, deadline_within, with_deadline};
use crate::wire::{AnyWire, Incoming, Outgoing};
use ferroflow_base::{Result, internal};
use ferroflow_sync::CancelToken;
use http::HeaderValue;
use http_body_util::BodyExt;
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use tokio::runtime::Handle;
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
    let handler = |message: Incoming| -> Answered {
        let answer = message.downcast().ok().map(|message| handler(*message));
        Box::pin(async move {
            let answer = match answer {
                Some(answer) => answer.await?,
                None => return Err(tonic::Status::internal("a message of another method")),
            };
            Ok(tonic::Response::new(Box::new(answer) as Box<dyn Outgoing>))
        })
    };
    let wire = AnyWire::receiving::<Q>();
    unary_of(wire, request, max_message, Box::new(handler))
}

/// The response of a handler.
type Answered = Boxed<Result<tonic::Response<Box<dyn Outgoing>>, tonic::Status>>;
type Handler = Box<dyn FnOnce(Incoming) -> Answered + Send>;

/// As [`unary`], the same code for all messages.
fn unary_of(
    wire: AnyWire,
    request: HttpRequest,
    max_message: usize,
    handler: Handler,
) -> Boxed<HttpResponse> {
    let mut grpc = Grpc::new(wire)
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
struct Method<'a>(Option<Handler>, &'a mut bool);

impl UnaryService<Incoming> for Method<'_> {
    type Response = Box<dyn Outgoing>;
    type Future = Answered;

    fn call(&mut self, request: tonic::Request<Incoming>) -> Answered {
        *self.1 = true;
        match self.0.take() {
            Some(handler) => handler(request.into_inner()),
            None => Box::pin(async { Err(tonic::Status::internal("the call was started twice")) }),
        }
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
    let ran = threads.spawn_blocking(move || f(&cancel)).await;
    drop(hung_up);
    ran.unwrap_or_else(|e| {
        Err(internal!(
            "a request handler failed (please report this): {e}"
        ))
    })
}

/// The response to a method that does not exist.
pub fn unknown() -> Boxed<HttpResponse> {
    Box::pin(async { tonic::Status::unimplemented("unknown method").into_http() })
}
