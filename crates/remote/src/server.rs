//! [`Server`]: listens, serves, shuts down.

use crate::eager::EagerService;
use crate::link::{self, LinkServer};
use crate::master::{Master, MasterOptions};
use crate::peers::KEEPALIVE;
use crate::security::{Encryption, Origin};
use crate::service::Endpoint;
use crate::task::Task;
use crate::worker::Worker;
use ferroflow_base::{Code, Result, Status};
use ferroflow_rpc::{
    BoxedStream, Calls, HttpRequest, MAX_STEPS, TlsOptions, finish, serve_connection,
};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// How long steps may run after the server was asked to stop.
pub const GRACE: Duration = Duration::from_secs(30);
/// Longest interval between two collections of idle sessions.
const GARBAGE_INTERVAL: Duration = Duration::from_secs(10);
/// How long no connection is accepted after a failure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen at; port 0 selects a free one.
    pub address: SocketAddr,
    /// The address of `/healthz` and `/metrics`, if any.
    pub monitor: Option<SocketAddr>,
    /// Encrypts connections, if set.
    pub tls: Option<TlsOptions>,
    /// Largest request, bytes.
    pub max_message: usize,
    /// Options of its sessions.
    pub master: MasterOptions,
}

/// A server that listens; [`Server::run`] serves.
///
/// ```no_run
/// use ferroflow_remote::{MasterOptions, Server, ServerOptions};
/// let server = Server::bind(ServerOptions {
///     address: "127.0.0.1:2222".parse().unwrap(),
///     monitor: None,
///     tls: None,
///     max_message: usize::MAX,
///     master: MasterOptions::default(),
/// })?;
/// println!("grpc://{}", server.address());
/// server.run(std::future::pending());
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct Server {
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    address: SocketAddr,
    monitor: Option<(TcpListener, SocketAddr)>,
    encryption: Option<Encryption>,
    max_message: usize,
    calls: Arc<Calls>,
    master: Arc<Master>,
    worker: Arc<Worker>,
    eager: Arc<EagerService>,
}

fn unavailable(what: &str, e: impl std::fmt::Display) -> Status {
    Status::new(Code::Unavailable, format!("{what}: {e}"))
}

impl Server {
    /// Listens at the addresses of `options`.
    ///
    /// # Errors
    /// UNAVAILABLE if an address cannot be bound; INVALID_ARGUMENT if the certificate or key is unusable.
    pub fn bind(options: ServerOptions) -> Result<Server> {
        let read = |tls: &TlsOptions| Encryption::new(&tls.read()?);
        let encryption = options.tls.as_ref().map(read).transpose()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, |n| n.get().max(2)))
            .max_blocking_threads(MAX_STEPS)
            .thread_name("ferroflow-rpc")
            .enable_all()
            .build()
            .map_err(|e| unavailable("cannot start threads", e))?;
        let bind = |at: SocketAddr| -> Result<(TcpListener, SocketAddr)> {
            let failed = |e| unavailable(&format!("cannot listen at {at}"), e);
            let listener = runtime.block_on(TcpListener::bind(at)).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Ok((listener, address))
        };
        let (listener, address) = bind(options.address)?;
        let monitor = options.monitor.map(bind).transpose()?;
        let master = Master::new(options.master, runtime.handle().clone());
        let calls = Calls::new().map_err(|e| unavailable("cannot start threads", e))?;
        Ok(Server {
            runtime,
            listener,
            address,
            monitor,
            encryption,
            max_message: options.max_message,
            calls: Arc::new(calls),
            worker: Arc::new(Worker::new(&master)),
            eager: Arc::new(EagerService::new(&master)),
            master: Arc::new(master),
        })
    }

    /// The address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the monitoring pages, if any.
    pub fn monitor_address(&self) -> Option<SocketAddr> {
        self.monitor.as_ref().map(|(_, address)| *address)
    }

    pub(crate) fn task(&self) -> &Arc<Task> {
        self.master.task()
    }

    /// The sessions of the server; with it this process [has sessions](Master::session_options) over all tasks of
    /// the cluster, too.
    pub fn master(&self) -> Arc<Master> {
        self.master.clone()
    }

    /// The runtime that serves, for a `stop` of [`run`](Self::run) that listens before the server does.
    pub fn handle(&self) -> &tokio::runtime::Handle {
        self.runtime.handle()
    }

    /// Serves until `stop` is ready; then accepts no new calls, lets running steps finish and closes the
    /// sessions.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        self.run_until(Box::pin(stop));
    }

    /// Not generic, so that the code of connections exists once, with this crate's optimizations.
    fn run_until(self, stop: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let endpoint = Endpoint {
            master: self.master.clone(),
            worker: self.worker,
            eager: self.eager,
            max_message: self.max_message,
            calls: self.calls.clone(),
            has_links: self.encryption.is_none(),
        };
        let (master, calls) = (self.master.clone(), self.calls);
        self.runtime.block_on(async move {
            if let Some((listener, _)) = self.monitor {
                let pages = crate::monitor::router(master.clone());
                tokio::spawn(async move { axum::serve(listener, pages).await });
            }
            ferroflow_rpc::spawn(
                &tokio::runtime::Handle::current(),
                collect_garbage(master.clone(), master.session_idle()),
            );
            let graceful = GracefulShutdown::new();
            tokio::select! {
                () = accept(self.listener, endpoint, self.encryption, &graceful) => {}
                () = stop => {}
            }
            tokio::select! {
                () = graceful.shutdown() => {}
                () = finish(&calls, GRACE) => {}
            }
        });
        self.master.close_all();
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// Accepts connections until it is dropped.
async fn accept(
    listener: TcpListener,
    endpoint: Endpoint,
    encryption: Option<Encryption>,
    graceful: &GracefulShutdown,
) {
    loop {
        let accepted = listener.accept().await;
        match accepted.and_then(|(s, from)| s.set_nodelay(true).map(|()| (s, from))) {
            Ok((stream, from)) => {
                let (endpoint, encryption) = (endpoint.clone(), encryption.clone());
                let serve = connection(stream, from, endpoint, encryption, graceful.watcher());
                ferroflow_rpc::spawn(&tokio::runtime::Handle::current(), serve);
            }
            Err(e) => {
                // Such as too many open files.
                tracing::debug!("accepting a connection failed: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection: a link or one of gRPC.
async fn connection(
    stream: TcpStream,
    from: SocketAddr,
    endpoint: Endpoint,
    encryption: Option<Encryption>,
    watcher: Watcher,
) {
    if endpoint.has_links && link::is_link(&stream).await.unwrap_or(false) {
        // A link is not asked to end.
        drop(watcher);
        return LinkServer(endpoint).serve(stream).await;
    }
    let call = move |mut request: HttpRequest| {
        request.extensions_mut().insert(Origin(from));
        endpoint.call(request)
    };
    let stream: Option<BoxedStream> = match encryption {
        Some(encryption) => encryption.begin(stream).await,
        None => Some(Box::new(stream)),
    };
    let Some(stream) = stream else {
        return;
    };
    let served = serve_connection(stream, Box::new(call), KEEPALIVE, KEEPALIVE, watcher);
    if let Err(e) = served.await {
        tracing::debug!("a connection ended: {e}");
    }
}

async fn collect_garbage(master: Arc<Master>, idle: Option<Duration>) {
    let often = idle.map_or(GARBAGE_INTERVAL, |idle| idle / 4);
    let interval = often.clamp(Duration::from_millis(100), GARBAGE_INTERVAL);
    loop {
        tokio::time::sleep(interval).await;
        master.collect_garbage();
    }
}
