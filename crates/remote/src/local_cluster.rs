//! [`LocalCluster`]: the tasks of a cluster in one process, without sockets.

use crate::device::{ServerDef, TaskName};
use crate::eager::EagerService;
use crate::master::{Master, MasterOptions};
use crate::peers::{Connections, Peers};
use crate::service::Endpoint;
use crate::task::Task;
use crate::transport::{Directory, Traffic};
use crate::worker::Worker;
use ferroflow_base::{Code, Result, Status, invalid_argument, not_found, ordered_map};
use ferroflow_rpc::{Calls, MAX_STEPS};
use ferroflow_runtime::Pool;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Tasks of the job `w` in this process, each a master and a worker, as a server has them. They call each other's
/// services with the messages of gRPC but without sockets, and share the threads: thousands of them fit into one
/// process, to test or to measure what a session over that many tasks does.
///
/// ```
/// use ferroflow_model::{graph_from_text, proto::*, tensor_from_proto};
/// use ferroflow_remote::LocalCluster;
/// use ferroflow_runtime::CancelToken;
/// let cluster = LocalCluster::new(3, 2)?;
/// let graph = "
///     node { name: 'x' op: 'Const' device: '/job:w/task:1' attr { key: 'dtype' value { type: DT_FLOAT } }
///            attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 3 } } } }
///     node { name: 'y' op: 'Neg' input: 'x' device: '/job:w/task:2' attr { key: 'T' value { type: DT_FLOAT } } }";
/// let (master, cancel) = (cluster.master(0)?, CancelToken::new());
/// let request = CreateSessionRequest { graph_def: Some(graph_from_text(graph)?), ..Default::default() };
/// let session_handle = master.create_session(request, &cancel)?.session_handle;
/// let request = RunStepRequest { session_handle, fetch: vec!["y:0".into()], ..Default::default() };
/// let answer = master.run_step(master.prepare(request)?, &cancel)?;
/// let y = tensor_from_proto(answer.tensor[0].tensor.as_ref().unwrap(), None)?.get()?;
/// assert_eq!(y.to_scalar::<f32>()?, -3.0);
/// assert_eq!(cluster.take_traffic()["RunGraph"].calls, 2);
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct LocalCluster {
    /// Serves all tasks.
    runtime: Option<Runtime>,
    directory: Arc<Directory>,
    masters: Vec<Arc<Master>>,
    workers: Vec<Arc<Worker>>,
}

impl LocalCluster {
    /// Returns `n` tasks, which share `threads` threads that compute.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there would be no task; UNAVAILABLE if threads cannot be started.
    pub fn new(n: u32, threads: usize) -> Result<LocalCluster> {
        if n == 0 {
            return Err(invalid_argument!("a cluster has at least one task"));
        }
        let failed = |e: std::io::Error| {
            Status::new(Code::Unavailable, format!("cannot start threads: {e}"))
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(2))
            .max_blocking_threads(MAX_STEPS)
            .thread_name("ferroflow-tasks")
            .enable_time()
            .build()
            .map_err(failed)?;
        let calls = Arc::new(Calls::new().map_err(failed)?);
        let pool = Arc::new(Pool::new(threads.max(1)));
        let names = (0..n).map(|index| TaskName {
            job: "w".to_string(),
            index,
        });
        let addresses = names.clone().map(|name| {
            let address = address(&name);
            (name, address)
        });
        let addresses = Arc::new(ordered_map(addresses));
        let mut cluster = LocalCluster {
            runtime: None,
            directory: Arc::default(),
            masters: Vec::new(),
            workers: Vec::new(),
        };
        for name in names {
            let options = MasterOptions {
                server: ServerDef {
                    task: name.clone(),
                    ..ServerDef::single("w", &address(&name))
                },
                ..Default::default()
            };
            let task = Task::with(&options, pool.clone(), |security, incarnation| {
                let handle = runtime.handle().clone();
                let connections =
                    Connections::new(security, name.to_string(), incarnation, handle.clone());
                let connections = Arc::new(connections.within(&cluster.directory));
                Peers::of_addresses(addresses.clone(), connections, handle)
            });
            let master = Master::of_task(options, task);
            let worker = Arc::new(Worker::new(&master));
            let eager = Arc::new(EagerService::new(&master));
            let master = Arc::new(master);
            let endpoint = Endpoint {
                master: master.clone(),
                worker: worker.clone(),
                eager,
                max_message: usize::MAX,
                calls: calls.clone(),
                has_links: false,
            };
            cluster.directory.insert(address(&name), endpoint);
            cluster.masters.push(master);
            cluster.workers.push(worker);
        }
        cluster.runtime = Some(runtime);
        Ok(cluster)
    }

    /// The master of a task. Its methods must not be called from asynchronous code.
    ///
    /// # Errors
    /// NOT_FOUND if the cluster does not have the task.
    pub fn master(&self, task: usize) -> Result<&Arc<Master>> {
        self.masters.get(task).ok_or_else(|| self.missing(task))
    }

    /// The worker of a task.
    ///
    /// # Errors
    /// NOT_FOUND if the cluster does not have the task.
    pub fn worker(&self, task: usize) -> Result<&Arc<Worker>> {
        self.workers.get(task).ok_or_else(|| self.missing(task))
    }

    fn missing(&self, task: usize) -> Status {
        let n = self.masters.len();
        not_found!("the cluster has {n} tasks, but no task {task}")
    }

    /// The calls that tasks have made since the last time, by method.
    pub fn take_traffic(&self) -> BTreeMap<String, Traffic> {
        self.directory.take_traffic()
    }

    /// The number of steps that some task still has.
    pub fn num_steps(&self) -> usize {
        let tasks = self.masters.iter();
        tasks.map(|master| master.task().rendezvous.len()).sum()
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.masters.iter().for_each(|master| master.close_all());
        self.directory.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// Where a task is found in the directory.
fn address(name: &TaskName) -> String {
    format!("{}-{}", name.job, name.index)
}
