//! Long operations: without the interpreter's lock, with a callback that shows progress.

use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time between two calls of a callback.
const TICK: Duration = Duration::from_millis(100);

/// Runs `work` while other Python threads run. `progress`, if given, is called with the stage, the seconds
/// since it began and whether it has ended: at the beginning, ten times a second, and at the end.
pub fn run<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    stage: &str,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let Some(progress) = progress else {
        return Ok(py.detach(work));
    };
    progress.call1((stage, 0.0, false))?;
    let callback = progress.clone().unbind();
    let begin = Instant::now();
    let (result, failed) = py.detach(|| {
        std::thread::scope(|scope| {
            let (send, receive) = channel();
            scope.spawn(move || send.send(work()));
            let mut failed = Ok(());
            loop {
                match receive.recv_timeout(TICK) {
                    Ok(result) => return (Some(result), failed),
                    Err(RecvTimeoutError::Disconnected) => return (None, failed),
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if failed.is_ok() {
                    let seconds = begin.elapsed().as_secs_f64();
                    failed = Python::attach(|py| {
                        py.check_signals()?;
                        callback.call1(py, (stage, seconds, false)).map(|_| ())
                    });
                }
            }
        })
    });
    failed?;
    progress.call1((stage, begin.elapsed().as_secs_f64(), true))?;
    result.ok_or_else(|| crate::error::broken("the operation panicked"))
}
