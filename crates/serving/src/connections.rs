//! [`ConnectionThreads`]: the threads that serve gRPC's connections; and what accepts connections.
//!
//! A request passes from its connection to its step and back without a change of threads: to wake another one takes longer
//! than a small model's step. What takes long leaves these threads, see [`Front::run`](crate::Front::run).

use ferroflow_base::{Code, Result, Status};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// How long no connections are accepted after an error of the system, for instance too many open files.
const BREATH: Duration = Duration::from_millis(100);

/// Threads, each with an async runtime of its own. They end when this is dropped.
pub(crate) struct ConnectionThreads {
    threads: Vec<ConnectionThread>,
    _ended: watch::Sender<()>,
}

/// A thread that serves connections.
struct ConnectionThread {
    /// Where tasks of its connections are spawned.
    handle: Handle,
    /// The number of its connections.
    open: Arc<AtomicUsize>,
}

/// A connection that is counted.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionThreads {
    /// Starts `n` threads.
    ///
    /// # Errors
    /// UNAVAILABLE if the system refuses them.
    pub(crate) fn start(n: usize) -> Result<ConnectionThreads> {
        let failed = |e| Status::new(Code::Unavailable, format!("cannot start threads: {e}"));
        let (sender, ended) = watch::channel(());
        let mut threads = Vec::with_capacity(n);
        for _ in 0..n {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(failed)?;
            let handle = runtime.handle().clone();
            let mut ended = ended.clone();
            let serve = move || {
                // An error says that the sender was dropped.
                let _ = runtime.block_on(ended.changed());
                runtime.shutdown_background();
            };
            let thread = std::thread::Builder::new().name("ferroflow-grpc".into());
            thread.spawn(serve).map_err(failed)?;
            let open = Arc::default();
            threads.push(ConnectionThread { handle, open });
        }
        Ok(ConnectionThreads {
            threads,
            _ended: sender,
        })
    }

    /// Serves a connection on the thread with the fewest.
    pub(crate) fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let open = |t: &&ConnectionThread| t.open.load(Ordering::Relaxed);
        let Some(thread) = self.threads.iter().min_by_key(open) else {
            return;
        };
        thread.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(thread.open.clone());
        ferroflow_rpc::spawn(&thread.handle, async move {
            connection.await;
            drop(open);
        });
    }
}

/// What accepts connections.
pub(crate) trait Listener {
    /// A connection that belongs to no async runtime.
    type Raw: Send + 'static;
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for a connection.
    async fn accept(&self) -> io::Result<Self::Raw>;

    /// Opens a connection in the runtime that calls this.
    fn open(raw: Self::Raw) -> io::Result<Self::Stream>;
}

impl Listener for TcpListener {
    type Raw = std::net::TcpStream;
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<Self::Raw> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Only a connection that has ended refuses the option.
        let _ = stream.set_nodelay(true);
        stream.into_std()
    }

    fn open(raw: Self::Raw) -> io::Result<TcpStream> {
        TcpStream::from_std(raw)
    }
}

impl Listener for UnixListener {
    type Raw = std::os::unix::net::UnixStream;
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<Self::Raw> {
        UnixListener::accept(self).await?.0.into_std()
    }

    fn open(raw: Self::Raw) -> io::Result<UnixStream> {
        UnixStream::from_std(raw)
    }
}

/// Accepts connections and passes them to `begin` until `stop` is ready; then waits until those that are watched end.
pub(crate) async fn accept<L: Listener>(
    listener: L,
    stop: impl Future<Output = ()>,
    begin: impl Fn(L::Raw, Watcher),
) {
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok(raw) => begin(raw, graceful.watcher()),
            Err(e) => {
                tracing::warn!("a connection was not accepted: {e}");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}
