//! [`Transport`]: what carries calls to a task: a connection, or this process.

use crate::master_session::lock;
use crate::service::Endpoint;
use ferroflow_base::ordered_map;
use ferroflow_rpc::{Boxed, HttpRequest, HttpResponse, measured};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll};
use tonic::transport::{Channel, Error};
use tower_service::Service;

/// What carries calls to a task.
#[derive(Clone)]
pub(crate) enum Transport {
    /// A connection, opened by the first call.
    Channel(Channel),
    /// The task is one of this process; its address in the directory.
    Local(Arc<Directory>, String),
}

impl Service<HttpRequest> for Transport {
    type Response = HttpResponse;
    type Error = Error;
    type Future = Boxed<Result<HttpResponse, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Transport::Channel(channel) => channel.poll_ready(cx),
            Transport::Local(..) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        match self {
            Transport::Channel(channel) => Box::pin(channel.call(request)),
            Transport::Local(directory, address) => directory.call(address, request),
        }
    }
}

/// The calls of one method that tasks of a [`LocalCluster`](crate::LocalCluster) have made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of calls.
    pub calls: usize,
    /// Bytes of their requests.
    pub sent: usize,
    /// Bytes of their answers.
    pub received: usize,
}

#[derive(Default)]
struct Counts {
    calls: AtomicUsize,
    sent: AtomicUsize,
    received: AtomicUsize,
}

/// The tasks of this process by address. Calls go from one to the other as messages of gRPC, without a connection.
#[derive(Default)]
pub(crate) struct Directory {
    tasks: RwLock<HashMap<String, Endpoint>>,
    /// What was called, by method.
    counts: Mutex<BTreeMap<String, Arc<Counts>>>,
}

impl Directory {
    pub(crate) fn insert(&self, address: String, task: Endpoint) {
        let mut tasks = self.tasks.write().unwrap_or_else(|e| e.into_inner());
        tasks.insert(address, task);
    }

    /// Removes all tasks, which refer to this directory.
    pub(crate) fn clear(&self) {
        let mut tasks = self.tasks.write().unwrap_or_else(|e| e.into_inner());
        let removed = std::mem::take(&mut *tasks);
        drop(tasks);
        drop(removed);
    }

    /// The calls since the last time, by method.
    pub(crate) fn take_traffic(&self) -> BTreeMap<String, Traffic> {
        let counts = std::mem::take(&mut *lock(&self.counts));
        let read = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        let all = counts.into_iter().map(|(method, counts)| {
            let traffic = Traffic {
                calls: read(&counts.calls),
                sent: read(&counts.sent),
                received: read(&counts.received),
            };
            (method, traffic)
        });
        ordered_map(all)
    }

    fn call(&self, address: &str, request: HttpRequest) -> Boxed<Result<HttpResponse, Error>> {
        let tasks = self.tasks.read().unwrap_or_else(|e| e.into_inner());
        let task = tasks.get(address).cloned();
        drop(tasks);
        let method = request.uri().path().rsplit('/').next();
        let method = method.unwrap_or_default().to_string();
        let counts = lock(&self.counts).entry(method).or_default().clone();
        counts.calls.fetch_add(1, Ordering::Relaxed);
        let of_answer = counts.clone();
        let count = move |n| {
            counts.sent.fetch_add(n, Ordering::Relaxed);
        };
        let request = request.map(|body| measured(body, count));
        let Some(task) = task else {
            let gone = tonic::Status::unavailable(format!("no task has the address {address}"));
            return Box::pin(async move { Ok(gone.into_http()) });
        };
        let answered = task.call(request);
        let count = move |n| {
            of_answer.received.fetch_add(n, Ordering::Relaxed);
        };
        Box::pin(async move {
            match answered.await {
                Ok(answer) => Ok(answer.map(|body| measured(body, count))),
                Err(never) => match never {},
            }
        })
    }
}
