//! [`Collector`]: sends spans over HTTP/1.1, one connection for each batch of them.

use bytes::Bytes;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_rpc::{TlsConnector, server_name};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Most bytes of a collector's answer.
const ANSWER: usize = 1 << 20;
/// Where collectors receive spans, if an address has no path.
const PATH: &str = "/v1/traces";

/// The address at which a collector receives spans: that of `endpoint`, with OTLP's path if it has none.
///
/// # Errors
/// INVALID_ARGUMENT if it is neither an http nor an https address.
pub(crate) fn url(endpoint: &str) -> Result<Uri> {
    let bad = || invalid_argument!("expected http://HOST:PORT or https://HOST:PORT");
    let uri: Uri = endpoint.parse().map_err(|_| bad())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
        return Err(bad());
    }
    match uri.path() {
        "/" => {
            let url = format!("{}{PATH}", endpoint.trim_end_matches('/'));
            url.parse().map_err(|_| bad())
        }
        _ => Ok(uri),
    }
}

/// A connection to a collector whenever there are spans.
pub(crate) struct Collector {
    /// Spans are exported by a thread of their own, which has no runtime.
    pub runtime: Handle,
    /// What encrypts the connections to an `https` address.
    pub tls: Option<TlsConnector>,
    /// How long the collector may take.
    pub timeout: Duration,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Collector")
    }
}

#[tonic::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(
        &self,
        request: Request<Bytes>,
    ) -> std::result::Result<Response<Bytes>, HttpError> {
        let (tls, timeout) = (self.tls.clone(), self.timeout);
        // The timer, too, needs the runtime, so it is made there.
        let answer = async move { tokio::time::timeout(timeout, post(request, tls)).await };
        self.runtime.spawn(answer).await??
    }
}

async fn post(
    request: Request<Bytes>,
    tls: Option<TlsConnector>,
) -> std::result::Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let host = uri.host().unwrap_or_default();
    let port = uri
        .port_u16()
        .unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
    match tls {
        Some(tls) => {
            let stream = tls.connect(server_name(host)?, stream).await?;
            exchange(TokioIo::new(stream), request).await
        }
        None => exchange(TokioIo::new(stream), request).await,
    }
}

/// Sends a request over a connection of its own and reads the answer.
async fn exchange(
    stream: impl Read + Write + Unpin + Send + 'static,
    request: Request<Bytes>,
) -> std::result::Result<Response<Bytes>, HttpError> {
    let (mut sender, connection) = handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    if let Some(authority) = head.uri.authority() {
        let host = HeaderValue::from_str(authority.as_str())?;
        head.headers.insert(header::HOST, host);
    }
    head.uri = head
        .uri
        .path_and_query()
        .map_or("/", |p| p.as_str())
        .parse()?;
    let sent = Request::from_parts(head, Full::new(body));
    let (head, body) = sender.send_request(sent).await?.into_parts();
    let body = Limited::new(body, ANSWER).collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(head, body))
}
