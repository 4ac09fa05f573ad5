//! Links: connections between tasks of Ferroflow's, on the same port as gRPC.
//!
//! Tasks learn of each other from a header of gRPC answers that they know links; stock servers never see one.
//! A link carries what is worth it: parts of steps, the tensors that they exchange, buffers of collectives.
//! Frames are written by the thread that has them, without a copy of the tensors, and tensors are received in
//! their own memory. The tasks of a step that all know links *push*: what a part sends to another task goes there
//! at once, without a request, and waits in the step's rendezvous.
//!
//! A task that loses the connection of another one ends the steps that this one takes part in: a tensor may have
//! been lost with it.

mod client;
mod frame;
mod server;
mod writer;

pub(crate) use client::{Link, LinkOptions};
pub(crate) use server::{LinkServer, is_link};

use ferroflow_base::{Code, Status};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The header by which answers say that their task knows links.
pub(crate) const HEADER: &str = "ferroflow-link";

/// How often each side of a connection is heard of.
const INTERVAL: Duration = crate::peers::KEEPALIVE;

fn unavailable(text: &str) -> Status {
    Status::new(Code::Unavailable, text)
}

/// Returns once nothing was read between three looks at the counter.
async fn watch(progress: &AtomicU64) {
    let (mut last, mut idle) = (u64::MAX, 0);
    while idle < 2 {
        tokio::time::sleep(INTERVAL).await;
        let now = progress.load(Ordering::Relaxed);
        idle = if now == last { idle + 1 } else { 0 };
        last = now;
    }
}
