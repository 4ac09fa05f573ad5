//! [`Server`]: listens, serves, shuts down.

use crate::master::{Master, MasterOptions};
use crate::service::{Endpoint, MasterService, WorkerService};
use ferroflow_base::{Code, Result, Status, invalid_argument};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, ServerTlsConfig};

/// How long steps may go on after the server was told to stop.
const GRACE: Duration = Duration::from_secs(30);
/// How often idle sessions are looked for.
const GARBAGE_INTERVAL: Duration = Duration::from_secs(10);
/// What a client may send before it must wait for us, bytes.
const WINDOW: u32 = 16 << 20;
/// Threads that may block in steps at the same time.
const MAX_BLOCKING: usize = 4096;

/// Where the keys of a server are.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

/// How a server works.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens; port 0 means any free one.
    pub address: SocketAddr,
    /// Where `/healthz` and `/metrics` are served, if anywhere.
    pub monitor: Option<SocketAddr>,
    /// Encrypts connections.
    pub tls: Option<TlsOptions>,
    /// Largest message that is read, bytes.
    pub max_message: usize,
    /// The sessions.
    pub master: MasterOptions,
}

/// A server that listens but does not answer yet.
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
/// server.run(std::future::pending())?;
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct Server {
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    address: SocketAddr,
    monitor: Option<(TcpListener, SocketAddr)>,
    options: ServerOptions,
    master: Arc<Master>,
}

fn unavailable(what: &str, e: impl std::fmt::Display) -> Status {
    Status::new(Code::Unavailable, format!("{what}: {e}"))
}

impl Server {
    /// Listens at the addresses of `options`.
    pub fn bind(options: ServerOptions) -> Result<Server> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, |n| n.get().max(2)))
            .max_blocking_threads(MAX_BLOCKING)
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
        let master = Arc::new(Master::new(options.master.clone()));
        Ok(Server {
            runtime,
            listener,
            address,
            monitor,
            options,
            master,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is watched.
    pub fn monitor_address(&self) -> Option<SocketAddr> {
        self.monitor.as_ref().map(|(_, address)| *address)
    }

    /// Serves until `stop` is ready; then takes no new call, lets running steps finish and closes
    /// the sessions.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let mut builder = tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        if let Some(tls) = &self.options.tls {
            let read = |path: &PathBuf| {
                std::fs::read(path)
                    .map_err(|e| invalid_argument!("cannot read {}: {e}", path.display()))
            };
            let identity = Identity::from_pem(read(&tls.certificate)?, read(&tls.key)?);
            builder = builder
                .tls_config(ServerTlsConfig::new().identity(identity))
                .map_err(|e| invalid_argument!("TLS: {e}"))?;
        }
        let endpoint = Endpoint {
            master: self.master.clone(),
            max_message: self.options.max_message,
        };
        let router = builder
            .add_service(MasterService(endpoint.clone()))
            .add_service(WorkerService(endpoint));
        let master = self.master.clone();
        let served = self.runtime.block_on(async move {
            if let Some((listener, _)) = self.monitor {
                let pages = crate::monitor::router(master.clone());
                tokio::spawn(async move { axum::serve(listener, pages).await });
            }
            tokio::spawn(collect_garbage(master.clone()));
            let (stopped, stopping) = tokio::sync::oneshot::channel();
            let stop = async move {
                stop.await;
                // Nobody is left to hear it when serving has failed.
                let _ = stopped.send(());
            };
            let incoming = TcpIncoming::from(self.listener).with_nodelay(Some(true));
            let serving = router.serve_with_incoming_shutdown(incoming, stop);
            let late = async move {
                let _ = stopping.await;
                finish_steps(&master).await;
            };
            tokio::select! {
                served = serving => served,
                () = late => Ok(()),
            }
        });
        self.master.close_all();
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        served.map_err(|e| unavailable("serving failed", e))
    }
}

async fn collect_garbage(master: Arc<Master>) {
    loop {
        tokio::time::sleep(GARBAGE_INTERVAL).await;
        master.collect_garbage();
    }
}

/// Waits for the steps under way, for a while; clients may stay connected.
async fn finish_steps(master: &Master) {
    let give_up = tokio::time::Instant::now() + GRACE;
    while master.num_running() > 0 && tokio::time::Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The answers are on their way.
    tokio::time::sleep(Duration::from_millis(100)).await;
}
