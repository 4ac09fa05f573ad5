//! [`spawn`] and [`block_on`]: tokio's, for boxed futures. Tokio's code for a task is a thousand lines of intermediate code for
//! each type of future, twice since a runtime has one thread or several; a box for each task costs nothing next to a call.

use std::pin::Pin;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Starts `future` as a task of `runtime`.
pub fn spawn(
    runtime: &Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    fn start(runtime: &Handle, future: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
        runtime.spawn(future)
    }
    start(runtime, Box::pin(future))
}

/// Runs `future` to its end on this thread, which must not be one of a runtime.
pub fn block_on<T>(runtime: &Handle, future: impl Future<Output = T>) -> T {
    let future: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(future);
    runtime.block_on(future)
}
