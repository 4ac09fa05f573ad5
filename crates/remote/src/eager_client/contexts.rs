//! The contexts of other tasks: begun, changed, kept alive and ended by their client.

use super::{JoinOptions, View};
use crate::cluster::get_statuses;
use crate::device::TaskName;
use crate::peers::Peer;
use ferroflow_base::{Result, Status, deadline_exceeded, internal};
use ferroflow_model::proto::{
    CloseContextRequest, CloseContextResponse, CreateContextRequest, CreateContextResponse,
    DeviceAttributes, GetStatusRequest, GetStatusResponse, KeepAliveRequest, KeepAliveResponse,
    ServerDef, UpdateContextRequest, UpdateContextResponse,
};
use ferroflow_runtime::CancelToken;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long ending the contexts of other tasks may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a task may take to say whether it has a context.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest pause between two attempts to begin a context.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The devices of tasks, by their names in the cluster. Waits for tasks that do not answer, for
/// `timeout` or, as in TensorFlow, without end; with `GRPC_FAIL_FAST` in the environment not at all.
///
/// # Errors
/// UNAVAILABLE, DEADLINE_EXCEEDED if a task does not answer.
pub(super) async fn devices_of(
    peers: &[Peer],
    timeout: Option<Duration>,
) -> Result<Vec<DeviceAttributes>> {
    let fails_fast = std::env::var("GRPC_FAIL_FAST").is_ok_and(|v| v.eq_ignore_ascii_case("true"));
    let statuses: Vec<GetStatusResponse> = match fails_fast {
        true => {
            let calls = peers.iter().map(|peer| {
                let peer = peer.clone();
                async move { peer.call("GetStatus", GetStatusRequest {}).await }
            });
            all(calls).await.into_iter().collect::<Result<_>>()?
        }
        false => {
            let cancel = CancelToken::new();
            let cancel = timeout.map_or(cancel.clone(), |timeout| cancel.with_timeout(timeout));
            get_statuses(peers, &cancel).await?
        }
    };
    let mut devices = Vec::new();
    for (peer, status) in peers.iter().zip(statuses) {
        for mut device in status.device_attributes {
            let local = device.name.rsplit('/').next().unwrap_or_default();
            device.name = format!("{}/{local}", peer.task);
            devices.push(device);
        }
    }
    Ok(devices)
}

/// The results of calls that run at the same time, in their order.
async fn all<T: Send + 'static>(
    calls: impl Iterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
) -> Vec<Result<T>> {
    let mut running = JoinSet::new();
    let mut results = Vec::new();
    for (i, call) in calls.enumerate() {
        results.push(Err(internal!("a call has no result")));
        running.spawn(async move { (i, call.await) });
    }
    while let Some(done) = running.join_next().await {
        if let Ok((i, result)) = done {
            results[i] = result;
        }
    }
    results
}

/// The cluster as one of its tasks sees it.
fn def_for(def: &ServerDef, task: &TaskName) -> ServerDef {
    ServerDef {
        job_name: task.job.clone(),
        task_index: task.index as i32,
        ..def.clone()
    }
}

/// Begins contexts; returns, for each task, whether it has one now.
pub(super) async fn create(
    peers: &[Peer],
    id: u64,
    view: &View,
    def: &ServerDef,
    options: &JoinOptions,
) -> Vec<Result<()>> {
    let calls = peers.iter().map(|peer| {
        let request = CreateContextRequest {
            server_def: Some(def_for(def, &peer.task)),
            // The client waits for each op: an asynchronous one would leave its error to those after it.
            r#async: false,
            keep_alive_secs: options.keep_alive_secs,
            cluster_device_attributes: view.devices.clone(),
            context_id: id,
            context_view_id: view.number,
            lazy_copy_remote_function_inputs: true,
            clear_existing_contexts: options.clear_existing,
            ..Default::default()
        };
        create_one(peer.clone(), request, options.timeout, options.retries)
    });
    all(calls).await
}

async fn create_one(
    peer: Peer,
    request: CreateContextRequest,
    timeout: Option<Duration>,
    retries: u32,
) -> Result<()> {
    let mut pause = Duration::from_millis(100);
    let mut failed = 0;
    loop {
        let call = peer.call_eager::<_, CreateContextResponse>("CreateContext", request.clone());
        let result = match timeout {
            None => call.await,
            Some(timeout) => match tokio::time::timeout(timeout, call).await {
                Ok(result) => result,
                Err(_) => Err(deadline_exceeded!("{} does not begin a context", peer.task)),
            },
        };
        match result {
            Ok(_) => return Ok(()),
            Err(error) if failed == retries => return Err(error),
            Err(_) => failed += 1,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Tells tasks that keep their context of a changed cluster.
pub(super) async fn update(
    peers: &[Peer],
    id: u64,
    view: &View,
    def: Option<&ServerDef>,
) -> Vec<Result<()>> {
    let calls = peers.iter().map(|peer| {
        let request = UpdateContextRequest {
            server_def: def.map(|def| def_for(def, &peer.task)),
            // Without devices, only the view changes.
            cluster_device_attributes: def.map_or_else(Vec::new, |_| view.devices.clone()),
            context_id: id,
            context_view_id: view.number,
        };
        let peer = peer.clone();
        async move {
            let call = peer.call_eager::<_, UpdateContextResponse>("UpdateContext", request);
            call.await.map(drop)
        }
    });
    all(calls).await
}

/// Whether each task still has the context in this view: one that was restarted or replaced has not.
pub(super) async fn probe(peers: &[Peer], id: u64, view: u64) -> Vec<bool> {
    let calls = peers.iter().map(|peer| {
        let peer = peer.clone();
        async move {
            let request = KeepAliveRequest { context_id: id };
            let call = peer.call_eager::<_, KeepAliveResponse>("KeepAlive", request);
            let answer = tokio::time::timeout(PROBE_TIMEOUT, call).await;
            let answer = answer.map_err(|_| Status::new(ferroflow_base::Code::Unavailable, ""))?;
            Ok(answer?.context_view_id == view)
        }
    });
    let answers = all(calls).await.into_iter();
    answers.map(|answer| answer.unwrap_or(false)).collect()
}

/// Ends the contexts of tasks; those that do not answer are left alone.
pub(super) async fn close(peers: &[Peer], id: u64, view: u64) {
    let calls = peers.iter().map(|peer| {
        let peer = peer.clone();
        async move {
            let request = CloseContextRequest {
                context_id: id,
                context_view_id: view,
            };
            peer.call_eager::<_, CloseContextResponse>("CloseContext", request)
                .await
        }
    });
    // The caller leaves: an error has no reader.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, all(calls)).await;
}
