//! [`serve_connection`]: one client over HTTP/2.
//!
//! The calls of a connection run in its task, as futures that it polls. As tasks of their own, each message would wake
//! another thread, which takes longer than a small call. A call that computes for long leaves the task by
//! [`blocking`](crate::blocking).

use crate::unary::{Boxed, HttpRequest, HttpResponse};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Flow control window of a connection, bytes.
const WINDOW: u32 = 8 << 20;
/// Largest frame of a client that follows the server's settings, bytes: a tensor comes in few pieces.
const MAX_FRAME: u32 = 1 << 20;
/// How often the futures of a connection are polled before its task yields to others.
const MAX_ROUNDS: usize = 16;

/// The bytes of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection of any kind: the code that serves it exists once.
pub type BoxedStream = Box<dyn ByteStream>;

/// What answers the calls of a connection.
pub type Answerer =
    Box<dyn Fn(HttpRequest) -> Boxed<Result<HttpResponse, Infallible>> + Send + Sync>;

/// Serves a client until it disconnects, or until the server shuts down and its calls have ended. Calls that run when it
/// disconnects are dropped. The client is asked every `keep_alive` whether it lives, and has `patience` to answer.
///
/// The future is boxed so that its code is compiled here, once, and not where it is polled.
///
/// # Errors
/// Those of the connection and of the protocol.
pub fn serve_connection(
    stream: BoxedStream,
    call: Answerer,
    keep_alive: Duration,
    patience: Duration,
    watcher: Watcher,
) -> Boxed<hyper::Result<()>> {
    let begun = Begun::default();
    let mut http = http2::Builder::new(begun.clone());
    http.timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(None)
        .max_frame_size(MAX_FRAME)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .keep_alive_interval(Some(keep_alive))
        .keep_alive_timeout(patience);
    let service = service_fn(move |request: http::Request<Incoming>| {
        call(request.map(tonic::body::Body::new))
    });
    let served = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
    Box::pin(with_calls(served, begun))
}

/// A call of a connection.
type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls that a connection has begun and that its task does not poll yet.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, call: F) {
        self.lock().push(Box::pin(call));
    }
}

impl Begun {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls a connection and its calls until the connection ends.
async fn with_calls<T>(served: impl Future<Output = T>, begun: Begun) -> T {
    let mut served = pin!(served);
    let mut calls = FuturesUnordered::new();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    poll_fn(move |cx| {
        wakes.begin(cx.waker());
        let mut inner = Context::from_waker(&waker);
        for _ in 0..MAX_ROUNDS {
            wakes.is_woken.store(false, Ordering::SeqCst);
            let ended = served.as_mut().poll(&mut inner);
            if ended.is_ready() {
                return ended;
            }
            calls.extend(begun.lock().drain(..));
            while let Poll::Ready(Some(())) = calls.poll_next_unpin(&mut inner) {}
            if !wakes.is_woken.load(Ordering::SeqCst) {
                break;
            }
        }
        wakes.end();
        Poll::Pending
    })
    .await
}

/// Wakes a task, but not while it polls: a task that is woken then is queued again, and its runtime wakes a thread for that.
#[derive(Default)]
struct Wakes {
    /// Whether a future was woken since it was polled.
    is_woken: AtomicBool,
    /// Whether the task polls, and looks at `is_woken` afterwards.
    is_polling: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wakes {
    fn task(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task begins to poll.
    fn begin(&self, task: &Waker) {
        self.is_polling.store(true, Ordering::SeqCst);
        let mut known = self.task();
        if !known.as_ref().is_some_and(|known| known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }

    /// The task ends to poll; it is woken if a future was since it was polled.
    fn end(&self) {
        self.is_polling.store(false, Ordering::SeqCst);
        if self.is_woken.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }

    fn wake_task(&self) {
        let task = self.task().clone();
        task.inspect(Waker::wake_by_ref);
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if !self.is_polling.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::yield_now;

    /// A connection that begins this many calls, each of which wakes itself, waits for a thread and sends its number;
    /// the connection ends after all of them.
    async fn run(n: usize) -> Vec<usize> {
        let begun = Begun::default();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let served = {
            let begun = begun.clone();
            async move {
                for i in 0..n {
                    let sender = sender.clone();
                    begun.execute(async move {
                        for _ in 0..i % 5 {
                            yield_now().await;
                        }
                        let (woken, waiting) = oneshot::channel();
                        std::thread::spawn(move || woken.send(i));
                        let _ = sender.send(waiting.await.unwrap_or(usize::MAX));
                    });
                    yield_now().await;
                }
                drop(sender);
                let mut done = Vec::new();
                while let Some(i) = receiver.recv().await {
                    done.push(i);
                }
                done
            }
        };
        with_calls(served, begun).await
    }

    #[test]
    fn calls_run_in_the_task_of_their_connection() {
        for threads in [1, 2, 4] {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .build()
                .unwrap();
            for n in [0, 1, 2, 300] {
                let mut done = runtime.block_on(run(n));
                done.sort_unstable();
                assert_eq!(done, (0..n).collect::<Vec<_>>(), "{threads} threads");
            }
        }
    }

    #[test]
    fn a_call_ends_with_its_connection() {
        struct Dropped(Arc<AtomicUsize>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::<AtomicUsize>::default();
        let begun = Begun::default();
        let held = Dropped(count.clone());
        begun.execute(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(with_calls(yield_now(), begun));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
