//! [`EagerService`]: ops and functions that clients run one by one, a method for each of
//! `tensorflow.eager.EagerService`'s.

use crate::config::addresses;
use crate::device::TaskName;
use crate::eager_context::{RemoteContext, no_context};
use crate::function_tasks;
use crate::master::Master;
use crate::master_session::lock;
use crate::task::Task;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_model::proto::{
    CloseContextRequest, CloseContextResponse, CreateContextRequest, CreateContextResponse,
    EnqueueRequest, EnqueueResponse, KeepAliveRequest, KeepAliveResponse,
    RunComponentFunctionRequest, RunComponentFunctionResponse, ServerDef, UpdateContextRequest,
    UpdateContextResponse, WaitQueueDoneRequest, WaitQueueDoneResponse,
};
use ferroflow_runtime::CancelToken;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The eager contexts of a server, by id.
pub struct EagerService {
    task: Arc<Task>,
    contexts: Arc<Contexts>,
}

/// Contexts by id.
type Contexts = Mutex<HashMap<u64, Arc<RemoteContext>>>;

/// How often contexts are looked for whose clients are not heard of any more.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);

/// Drops contexts that have expired until the service is gone.
async fn expire(contexts: Weak<Contexts>) {
    let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(contexts) = contexts.upgrade() else {
            return;
        };
        let expired: Vec<_> = lock(&contexts)
            .extract_if(|_, context| context.is_expired())
            .collect();
        if !expired.is_empty() {
            // Their tensors may be large, and their steps end.
            tokio::task::spawn_blocking(move || drop(expired));
        }
    }
}

impl EagerService {
    /// The eager service of the server that has this master, without contexts.
    pub fn new(master: &Master) -> Self {
        let (task, contexts) = (master.task().clone(), Arc::<Contexts>::default());
        let runtime = task.peers.runtime();
        ferroflow_rpc::spawn(runtime, expire(Arc::downgrade(&contexts)));
        EagerService { task, contexts }
    }

    /// `CreateContext`. A context of the same id is replaced by one with the same or a higher view id.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the context exists or the cluster is malformed.
    pub fn create_context(&self, request: CreateContextRequest) -> Result<CreateContextResponse> {
        let id = request.context_id;
        if id == 0 {
            return Err(invalid_argument!(
                "Failed to initialize remote for worker context due to invalid context id"
            ));
        }
        let def = request.server_def.unwrap_or_default();
        let (name, cluster) = self.place(&def)?;
        let peers = Arc::new(self.task.peers.of_cluster(&cluster));
        let is_old = |contexts: &HashMap<u64, Arc<RemoteContext>>| {
            let known = contexts.get(&id);
            known.is_some_and(|old| old.view() > request.context_view_id)
        };
        if !is_old(&lock(&self.contexts)) {
            self.task.coordination.join(&def, &name, &peers)?;
        }
        let mut contexts = lock(&self.contexts);
        if is_old(&contexts) {
            return Err(invalid_argument!(
                "EagerService:CreateContext failed. Context id: <{id}> already exists."
            ));
        }
        if request.clear_existing_contexts {
            contexts.clear();
        }
        let config = def.default_session_config.as_ref();
        let experimental = config.and_then(|c| c.experimental.as_ref());
        let leader = experimental.map_or("", |e| &e.collective_group_leader);
        if !leader.is_empty() && contexts.is_empty() {
            self.task.collectives.reset(&name, leader);
        }
        let timeout = config.map_or(0, |config| config.operation_timeout_in_ms);
        let timeout = u64::try_from(timeout).ok().filter(|ms| *ms > 0);
        let timeout = timeout.map(Duration::from_millis);
        let context = RemoteContext::new(
            &self.task,
            id,
            request.context_view_id,
            request.keep_alive_secs,
            &name,
            peers,
            &request.cluster_device_attributes,
        )?
        .with_timeout(timeout);
        let devices = context.devices().attributes().to_vec();
        let context = Arc::new(context);
        function_tasks::open(&context);
        contexts.insert(id, context);
        Ok(CreateContextResponse {
            device_attributes: devices,
        })
    }

    /// The name of this task in the cluster of a client, and the cluster.
    fn place(&self, def: &ServerDef) -> Result<(TaskName, crate::config::Addresses)> {
        let cluster = match &def.cluster {
            Some(cluster) => addresses(cluster)?,
            None => self.task.server.cluster.clone(),
        };
        let own = &self.task.server.task;
        let name = TaskName {
            job: match def.job_name.as_str() {
                "" => own.job.clone(),
                job => job.to_string(),
            },
            index: u32::try_from(def.task_index).unwrap_or(own.index),
        };
        Ok((name, cluster))
    }

    fn find(&self, id: u64) -> Result<Arc<RemoteContext>> {
        let context = lock(&self.contexts).get(&id).cloned();
        let context = context.filter(|context| !context.is_expired());
        let context = context.ok_or_else(|| no_context(id))?;
        context.keep_alive();
        Ok(context)
    }

    /// `UpdateContext`: the cluster has changed.
    ///
    /// # Errors
    /// ABORTED if the context does not exist; INVALID_ARGUMENT if the view id is not the next one.
    pub fn update_context(&self, request: UpdateContextRequest) -> Result<UpdateContextResponse> {
        let context = self.find(request.context_id)?;
        let next = context.view() + 1;
        if request.context_view_id != next {
            return Err(invalid_argument!(
                "EagerService:UpdateContext failed. Context id: <{}> currently at view #{} but received \
                 update request at view #{}. View id should only be continuously incremented.",
                request.context_id,
                context.view(),
                request.context_view_id
            ));
        }
        // Without devices, only the view changes.
        if !request.cluster_device_attributes.is_empty() {
            let def = request.server_def.unwrap_or_default();
            let (name, cluster) = self.place(&def)?;
            let peers = Arc::new(self.task.peers.of_cluster(&cluster));
            self.task.coordination.join(&def, &name, &peers)?;
            context.set_cluster(peers, &request.cluster_device_attributes)?;
        }
        context.set_view(next);
        Ok(UpdateContextResponse {
            device_attributes: context.devices().attributes().to_vec(),
        })
    }

    /// Whether a request is expected to take less than a switch of threads.
    pub(crate) fn is_brief(&self, request: &EnqueueRequest) -> bool {
        let context = self.find(request.context_id);
        context.is_ok_and(|context| request.queue.iter().all(|item| context.is_brief(item)))
    }

    /// `Enqueue`, and each request of `StreamingEnqueue`: runs its items in order.
    ///
    /// # Errors
    /// ABORTED if the context does not exist; the first error of an item.
    pub fn enqueue(
        &self,
        request: EnqueueRequest,
        cancel: &CancelToken,
    ) -> Result<EnqueueResponse> {
        let context = self.find(request.context_id)?;
        let items = request.queue.into_iter();
        let responses = items.map(|item| context.run_item(item, cancel));
        Ok(EnqueueResponse {
            queue_response: responses.collect::<Result<_>>()?,
        })
    }

    /// `RunComponentFunction`: runs the part of a function that is on this task.
    ///
    /// # Errors
    /// ABORTED if the context does not exist; those of the function.
    pub fn run_component_function(
        &self,
        request: RunComponentFunctionRequest,
        cancel: &CancelToken,
    ) -> Result<RunComponentFunctionResponse> {
        let context = self.find(request.context_id)?;
        let operation = request.operation.unwrap_or_default();
        if !operation.is_function || !operation.is_component_function {
            return Err(internal!(
                "RunComponentFunction request can only be used to execute component functions."
            ));
        }
        let response = context.run_component(&operation, &request.output_num, cancel)?;
        Ok(RunComponentFunctionResponse {
            shape: response.shape,
            tensor: response.tensor,
        })
    }

    /// `WaitQueueDone`: nothing is left to wait for, since items run before they are answered.
    ///
    /// # Errors
    /// ABORTED if the context does not exist.
    pub fn wait_queue_done(&self, request: WaitQueueDoneRequest) -> Result<WaitQueueDoneResponse> {
        self.find(request.context_id)?;
        Ok(WaitQueueDoneResponse {})
    }

    /// `KeepAlive`: returns the view id.
    ///
    /// # Errors
    /// ABORTED if the context does not exist.
    pub fn keep_alive(&self, request: KeepAliveRequest) -> Result<KeepAliveResponse> {
        let context = self.find(request.context_id)?;
        Ok(KeepAliveResponse {
            context_view_id: context.view(),
        })
    }

    /// `CloseContext`; requests of an older view are ignored.
    pub fn close_context(&self, request: CloseContextRequest) -> CloseContextResponse {
        let mut contexts = lock(&self.contexts);
        let is_current = |c: &Arc<RemoteContext>| c.view() <= request.context_view_id;
        if contexts.get(&request.context_id).is_some_and(is_current) {
            contexts.remove(&request.context_id);
        }
        CloseContextResponse {}
    }
}
