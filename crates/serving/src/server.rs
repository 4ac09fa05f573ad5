//! [`Server`]: listens, serves, drains.

use crate::batching::{Batcher, Parameters};
use crate::config::{ModelSource, read_models};
use crate::connections::ConnectionThreads;
use crate::front::{Front, FrontOptions};
use crate::grpc::{self, Services};
use crate::http_server;
use crate::manager::{ManagerOptions, ModelManager};
use crate::metrics::{Metrics, Recent};
use crate::request_log::RequestLogs;
use crate::rest::RestOptions;
use crate::share::Share;
use crate::trace::{TraceOptions, Traces};
use ferroflow_base::{Code, Result, Status};
use ferroflow_rpc::{Calls, MAX_STEPS, TlsAcceptor, TlsPem, finish, tls_acceptor};
use ferroflow_runtime::Pool;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

/// Options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// The address of the gRPC services, if any; port 0 selects a free one.
    pub grpc: Option<SocketAddr>,
    /// The path of a UNIX socket for the gRPC services, if any.
    pub grpc_socket: Option<PathBuf>,
    /// The address of the REST API, if any.
    pub rest: Option<SocketAddr>,
    /// Encrypts gRPC connections, if set; not those of the UNIX socket.
    pub tls: Option<TlsPem>,
    /// Encrypts connections of the REST API, if set.
    pub rest_tls: Option<TlsPem>,
    /// Largest gRPC request, bytes.
    pub max_message: usize,
    /// Options of the REST API.
    pub rest_options: RestOptions,
    /// Options of both protocols.
    pub front: FrontOptions,
    /// The manager's options.
    pub manager: ManagerOptions,
    /// How requests are merged, if they are, and whether models may have parameters of their own.
    pub batching: Option<(Parameters, bool)>,
    /// The models, if no file lists them.
    pub models: Vec<ModelSource>,
    /// The file that lists the models.
    pub model_config: Option<PathBuf>,
    /// How often the file is read again; never if zero.
    pub config_poll: Duration,
    /// How often new versions are searched; once if zero.
    pub version_poll: Duration,
    /// Where spans of requests are sent, if they are.
    pub traces: Option<TraceOptions>,
    /// How long requests may run after the server was asked to stop.
    pub grace: Duration,
}

/// A server that listens; [`Server::run`] serves.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    /// Serves the connections of gRPC.
    threads: ConnectionThreads,
    grpc: Option<(TcpListener, SocketAddr)>,
    grpc_socket: Option<UnixListener>,
    rest: Option<(TcpListener, SocketAddr)>,
    tls: Option<TlsAcceptor>,
    rest_tls: Option<TlsAcceptor>,
    front: Arc<Front>,
    options: ServerOptions,
}

fn unavailable(what: &str, e: impl std::fmt::Display) -> Status {
    Status::new(Code::Unavailable, format!("{what}: {e}"))
}

impl Server {
    /// Listens at the addresses of `options` and loads the models.
    ///
    /// # Errors
    /// UNAVAILABLE if an address cannot be bound; INVALID_ARGUMENT if the certificate, the key or the configuration is
    /// unusable. Models that cannot be loaded are reported in the log and by their status.
    pub fn bind(options: ServerOptions) -> Result<Server> {
        let acceptor = |pem: &Option<TlsPem>, protocol| {
            let pem = pem.as_ref();
            pem.map(|pem| tls_acceptor(pem, protocol)).transpose()
        };
        let tls = acceptor(&options.tls, "h2")?;
        let rest_tls = acceptor(&options.rest_tls, "http/1.1")?;
        let sources = match &options.model_config {
            Some(path) => read_models(path)?.unwrap_or_default(),
            None => options.models.clone(),
        };
        let n_threads = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(n_threads)
            .max_blocking_threads(MAX_STEPS)
            .thread_name("ferroflow-serve")
            .enable_all()
            .build()
            .map_err(|e| unavailable("cannot start threads", e))?;
        let threads = ConnectionThreads::start(n_threads)?;
        let bind = |at: SocketAddr| -> Result<(TcpListener, SocketAddr)> {
            let failed = |e| unavailable(&format!("cannot listen at {at}"), e);
            let listener = runtime.block_on(TcpListener::bind(at)).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Ok((listener, address))
        };
        let grpc = options.grpc.map(bind).transpose()?;
        let rest = options.rest.map(bind).transpose()?;
        let guard = runtime.enter();
        let grpc_socket = options.grpc_socket.as_deref();
        let grpc_socket = grpc_socket.map(bind_socket).transpose()?;
        let traces = options.traces.as_ref().map(Traces::new).transpose()?;
        drop(guard);
        let metrics = Arc::new(Metrics::default());
        let logs = RequestLogs::new(metrics.clone());
        let batching = options.batching.clone();
        let share = Arc::new(Share::new(Pool::available_threads()));
        let front = Arc::new(Front {
            manager: ModelManager::new(options.manager.clone(), metrics.clone()),
            calls: Calls::new().map_err(|e| unavailable("cannot start threads", e))?,
            recent: Recent::default(),
            options: options.front.clone(),
            batcher: batching
                .map(|(p, own)| Batcher::start_sharing(p, own, metrics.clone(), share.clone())),
            is_stopping: Default::default(),
            logs,
            metrics,
            traces,
            threads: runtime.handle().clone(),
            share,
        });
        if let Err(e) = front.set_models(sources) {
            tracing::error!("{e}");
        }
        Ok(Server {
            runtime,
            threads,
            grpc,
            grpc_socket,
            rest,
            tls,
            rest_tls,
            front,
            options,
        })
    }

    /// The address of the gRPC services, if any.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(_, address)| *address)
    }

    /// The address of the REST API, if any.
    pub fn rest_address(&self) -> Option<SocketAddr> {
        self.rest.as_ref().map(|(_, address)| *address)
    }

    /// The runtime that serves, for a `stop` of [`run`](Self::run) that listens before the server does.
    pub fn handle(&self) -> &tokio::runtime::Handle {
        self.runtime.handle()
    }

    /// The methods, for use without a connection.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// Serves until `stop` is ready; then reports that it does not serve, accepts no new calls and lets running
    /// requests finish.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        self.run_until(Box::pin(stop));
    }

    /// Not generic, so that the code of connections is compiled with this crate's optimizations and not with those of
    /// the caller's.
    fn run_until(self, stop: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let (front, options) = (self.front.clone(), self.options);
        start_polling(&front, &options);
        let (stopped, stopping) = watch::channel(false);
        let services = Services {
            front: front.clone(),
            max_message: options.max_message,
            streams: Arc::default(),
        };
        let ended = || {
            let mut stopping = stopping.clone();
            async move {
                let _ = stopping.wait_for(|s| *s).await;
            }
        };
        let threads = &self.threads;
        self.runtime.block_on(async {
            tokio::spawn(front.clone().record_totals());
            tokio::spawn(signal(front.clone(), stop, stopped));
            let rpc = async {
                if let Some((listener, _)) = self.grpc {
                    grpc::serve(listener, services.clone(), self.tls, threads, ended()).await;
                }
            };
            let socket = async {
                if let Some(listener) = self.grpc_socket {
                    grpc::serve(listener, services.clone(), None, threads, ended()).await;
                }
            };
            let pages = async {
                if let Some((listener, _)) = self.rest {
                    let pages = http_server::router(front.clone(), options.rest_options.clone());
                    http_server::serve(listener, pages, self.rest_tls, ended()).await;
                }
            };
            let late = async {
                ended().await;
                finish(&front.calls, options.grace).await;
            };
            let all = async { tokio::join!(rpc, socket, pages, ended()) };
            tokio::select! {
                _ = all => {}
                () = late => {}
            }
        });
        if let Some(path) = &options.grpc_socket {
            let _ = std::fs::remove_file(path);
        }
        if let Some(batcher) = &front.batcher {
            batcher.stop();
        }
        if let Some(traces) = &front.traces {
            traces.shutdown();
        }
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// Tells everything that the server stops, once `stop` is ready.
async fn signal(front: Arc<Front>, stop: impl Future<Output = ()>, stopped: watch::Sender<bool>) {
    stop.await;
    front
        .is_stopping
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let _ = stopped.send(true);
}

/// Listens at a UNIX socket; one that an earlier server left is removed.
fn bind_socket(path: &Path) -> Result<UnixListener> {
    let is_socket = |m: std::fs::Metadata| m.file_type().is_socket();
    if std::fs::symlink_metadata(path).is_ok_and(is_socket) {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path)
        .map_err(|e| unavailable(&format!("cannot listen at {}", path.display()), e))
}

/// Starts the threads that search for versions and read the configuration again.
fn start_polling(front: &Arc<Front>, options: &ServerOptions) {
    let every = |interval: Duration, mut action: Box<dyn FnMut(&Front) + Send>| {
        if interval.is_zero() {
            return;
        }
        // The thread ends with the server.
        let front = Arc::downgrade(front);
        let poll = move || {
            loop {
                std::thread::sleep(interval);
                match front.upgrade() {
                    Some(front) => action(&front),
                    None => return,
                }
            }
        };
        if let Err(e) = std::thread::Builder::new()
            .name("ferroflow-poll".into())
            .spawn(poll)
        {
            tracing::error!("cannot start a thread: {e}");
        }
    };
    every(options.version_poll, Box::new(|front| front.manager.poll()));
    if let Some(path) = options.model_config.clone() {
        let mut last_error = String::new();
        // A configuration that was refused, or that a client has replaced, is tried again.
        let reload = move |front: &Front| {
            let read = read_models(&path).and_then(|sources| match sources {
                Some(sources) if !front.manager.has(&sources) => front.set_models(sources),
                _ => Ok(()),
            });
            let error = read.err().map_or(String::new(), |e| e.to_string());
            if error != last_error && !error.is_empty() {
                tracing::error!("{} was not applied: {error}", path.display());
            }
            last_error = error;
        };
        every(options.config_poll, Box::new(reload));
    }
}
