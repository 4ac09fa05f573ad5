//! Names of tasks and devices, and the attributes of a server's devices.

use crate::security::Security;
use ferroflow_base::{Result, internal, invalid_argument, not_found, ordered_map, try_ordered_map};
use ferroflow_model::proto::{ConfigProto, DeviceAttributes, DeviceLocality};
use ferroflow_runtime::DeviceSet;
use prost::Message;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;

/// One task of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName {
    /// The job, e.g. `worker`.
    pub job: String,
    /// Its index in the job.
    pub index: u32,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/job:{}/replica:0/task:{}", self.job, self.index)
    }
}

impl TaskName {
    /// The task in the full name of a device.
    ///
    /// ```
    /// use ferroflow_remote::TaskName;
    /// let task = TaskName::of_device("/job:ps/replica:0/task:2/device:CPU:0").unwrap();
    /// assert_eq!((&*task.job, task.index), ("ps", 2));
    /// assert_eq!(TaskName::of_device("/device:CPU:0"), None);
    /// ```
    pub fn of_device(device: &str) -> Option<TaskName> {
        let mut parts = device.strip_prefix("/job:")?.split('/');
        let job = parts.next()?.to_string();
        let index = parts.find_map(|part| part.strip_prefix("task:"))?;
        let index = index.parse().ok()?;
        Some(TaskName { job, index })
    }
}

/// A cluster, and this server's task in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerDef {
    /// Addresses by job and task.
    pub cluster: BTreeMap<String, BTreeMap<u32, String>>,
    /// The task of this server.
    pub task: TaskName,
    /// What the server's default configuration asks for.
    pub defaults: ServerDefaults,
    /// How connections between the tasks are protected.
    pub security: Security,
    /// The port to listen on, if it is not that of the task's address: a proxy may be between them.
    pub port: Option<u16>,
}

/// A server's default `ConfigProto`: what applies to the server itself, and to all of its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerDefaults {
    /// Number of virtual CPU devices (`device_count`), if given.
    pub cpus: Option<usize>,
    /// Threads that compute (`intra_op_parallelism_threads`), if given.
    pub threads: Option<usize>,
    /// The task that forms the groups of collectives (`collective_group_leader`); empty for this one.
    pub collective_leader: String,
    /// The whole configuration, serialized: sessions begin with it, and what their clients set is merged into it.
    pub session_config: Vec<u8>,
}

impl ServerDefaults {
    /// Returns the configuration of a session for which a client asks for this one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the default configuration does not decode.
    pub(crate) fn session_config(&self, asked: &ConfigProto) -> Result<ConfigProto> {
        let default = ConfigProto::decode(self.session_config.as_slice());
        let mut config = default.map_err(|e| invalid_argument!("not a ConfigProto: {e}"))?;
        let merged = config.merge(asked.encode_to_vec().as_slice());
        merged.map_err(|e| invalid_argument!("not a ConfigProto: {e}"))?;
        Ok(config)
    }
}

impl From<&ConfigProto> for ServerDefaults {
    fn from(config: &ConfigProto) -> Self {
        let positive = |n: i32| usize::try_from(n).ok().filter(|n| *n > 0);
        let experimental = config.experimental.as_ref();
        ServerDefaults {
            cpus: config.device_count.get("CPU").copied().and_then(positive),
            threads: positive(config.intra_op_parallelism_threads),
            collective_leader: experimental
                .map(|e| e.collective_group_leader.clone())
                .unwrap_or_default(),
            session_config: config.encode_to_vec(),
        }
    }
}

impl ServerDef {
    /// Returns the cluster whose only task, number 0 of `job`, has this address.
    pub fn single(job: &str, address: &str) -> Self {
        let tasks = ordered_map([(0, address.to_string())]);
        ServerDef {
            cluster: ordered_map([(job.to_string(), tasks)]),
            task: TaskName {
                job: job.to_string(),
                index: 0,
            },
            defaults: ServerDefaults::default(),
            security: Security::default(),
            port: None,
        }
    }

    /// Parses `job=host:port,host:port;job=…`, the form of TensorFlow's server binary.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text does not parse or a job occurs twice; INTERNAL if the task is not in the cluster.
    ///
    /// ```
    /// let def = ferroflow_remote::ServerDef::from_flags("ps=a:1;worker=b:2,c:3", "worker", 1).unwrap();
    /// assert_eq!(def.address().unwrap(), "c:3");
    /// assert_eq!(def.task.to_string(), "/job:worker/replica:0/task:1");
    /// ```
    pub fn from_flags(cluster: &str, job: &str, index: u32) -> Result<Self> {
        let mut jobs = BTreeMap::new();
        for part in cluster.split(';').filter(|p| !p.is_empty()) {
            let (name, tasks) = part.split_once(['=', '|']).ok_or_else(|| {
                invalid_argument!("'{part}' names no job; expected JOB=HOST:PORT,HOST:PORT…")
            })?;
            let tasks = tasks.split([',', '|']).map(str::to_string);
            if jobs
                .insert(name.to_string(), ordered_map((0..).zip(tasks)))
                .is_some()
            {
                return Err(invalid_argument!("duplicate job '{name}'"));
            }
        }
        Self::checked(jobs, job, index)
    }

    /// Decodes a serialized `tensorflow.ServerDef`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the bytes do not decode or the port is not one; INTERNAL if the task is not in the cluster;
    /// NOT_FOUND if the protocol is not gRPC.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let def = ferroflow_model::proto::ServerDef::decode(bytes);
        let def = def.map_err(|e| invalid_argument!("not a ServerDef: {e}"))?;
        if !matches!(def.protocol.as_str(), "" | "grpc") {
            return Err(not_found!(
                "No server factory registered for the protocol '{}'; the available one is grpc",
                def.protocol
            ));
        }
        let port = u16::try_from(def.port);
        let port = port.map_err(|_| invalid_argument!("{} is not a port", def.port))?;
        let cluster = crate::config::addresses(&def.cluster.unwrap_or_default())?;
        let index = u32::try_from(def.task_index);
        let index =
            index.map_err(|_| invalid_argument!("task {} has no valid number", def.task_index))?;
        let checked = Self::checked(cluster, &def.job_name, index)?;
        Ok(ServerDef {
            defaults: (&def.default_session_config.unwrap_or_default()).into(),
            port: (port > 0).then_some(port),
            ..checked
        })
    }

    /// Applies a serialized `tensorflow.ConfigProto`, the server's default configuration.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the bytes do not decode.
    pub fn with_session_config(self, bytes: &[u8]) -> Result<Self> {
        let config = ConfigProto::decode(bytes);
        let config = config.map_err(|e| invalid_argument!("not a ConfigProto: {e}"))?;
        Ok(ServerDef {
            defaults: (&config).into(),
            ..self
        })
    }

    /// Parses the JSON of the environment variable `TF_CONFIG`; `None` if it names no cluster.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text does not parse; INTERNAL if the task is not in the cluster.
    ///
    /// ```
    /// let json = r#"{"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "worker", "index": 1}}"#;
    /// let def = ferroflow_remote::ServerDef::from_tf_config(json).unwrap().unwrap();
    /// assert_eq!(def.address().unwrap(), "h:2");
    /// // A sparse cluster: tasks by index.
    /// let json = r#"{"cluster": {"ps": {"4": "h:9"}}, "task": {"type": "ps", "index": "4"}}"#;
    /// let def = ferroflow_remote::ServerDef::from_tf_config(json).unwrap().unwrap();
    /// assert_eq!(def.address().unwrap(), "h:9");
    /// assert!(ferroflow_remote::ServerDef::from_tf_config("{}").unwrap().is_none());
    /// ```
    pub fn from_tf_config(json: &str) -> Result<Option<Self>> {
        let config: Json =
            serde_json::from_str(json).map_err(|e| invalid_argument!("TF_CONFIG: {e}"))?;
        let bad = |what: &str| invalid_argument!("TF_CONFIG: {what}");
        let config = config.as_object().ok_or_else(|| bad("not an object"))?;
        let jobs = match config.get("cluster") {
            None => return Ok(None),
            Some(cluster) => cluster.as_object(),
        };
        let jobs = jobs.ok_or_else(|| bad("'cluster' is not an object"))?;
        if jobs.is_empty() {
            return Ok(None);
        }
        let number = |text: &str| {
            text.parse()
                .map_err(|_| bad(&format!("task index '{text}' is not a number")))
        };
        let address = |json: &Json| match json.as_str() {
            Some(address) => Ok(address.to_string()),
            None => Err(bad("the address of a task is not a string")),
        };
        let jobs = jobs.iter().map(|(job, tasks)| {
            let tasks = match tasks {
                Json::Array(list) => {
                    let numbered = (0..).zip(list).map(|(i, at)| Ok((i, address(at)?)));
                    try_ordered_map(numbered)?
                }
                // By index, which is text in JSON.
                Json::Object(map) => {
                    let numbered = map.iter().map(|(i, at)| Ok((number(i)?, address(at)?)));
                    try_ordered_map(numbered)?
                }
                _ => return Err(bad(&format!("the tasks of '{job}' are not a list"))),
            };
            Ok((job.clone(), tasks))
        });
        let jobs = try_ordered_map(jobs)?;
        let task = match config.get("task") {
            None => None,
            Some(task) => Some(
                task.as_object()
                    .ok_or_else(|| bad("'task' is not an object"))?,
            ),
        };
        let job = match task.and_then(|t| t.get("type")) {
            None => "",
            Some(job) => job
                .as_str()
                .ok_or_else(|| bad("the type of the task is not a string"))?,
        };
        let index = match task.and_then(|t| t.get("index")) {
            None | Some(Json::Null) => 0,
            Some(Json::String(text)) => number(text)?,
            Some(index) => number(&index.to_string())?,
        };
        Self::checked(jobs, job, index).map(Some)
    }

    /// Checks that a cluster has the task.
    ///
    /// # Errors
    /// INTERNAL otherwise.
    pub fn checked(
        cluster: BTreeMap<String, BTreeMap<u32, String>>,
        job: &str,
        index: u32,
    ) -> Result<Self> {
        let job = match job {
            "" if cluster.len() == 1 => cluster.keys().next().cloned().unwrap_or_default(),
            job => job.to_string(),
        };
        let def = ServerDef {
            cluster,
            task: TaskName { job, index },
            defaults: ServerDefaults::default(),
            security: Security::default(),
            port: None,
        };
        def.address().map(|_| def.clone())
    }

    /// The address of this server.
    ///
    /// # Errors
    /// INTERNAL, as TensorFlow has it, if the cluster does not have the task.
    pub fn address(&self) -> Result<&str> {
        let job = self.cluster.get(&self.task.job).ok_or_else(|| {
            let jobs: Vec<&str> = self.cluster.keys().map(String::as_str).collect();
            internal!(
                "Job \"{}\" was not defined in cluster, which has: {}",
                self.task.job,
                jobs.join(", ")
            )
        })?;
        job.get(&self.task.index)
            .map(String::as_str)
            .ok_or_else(|| {
                internal!(
                    "Task {} was not defined in job \"{}\", which has {} tasks",
                    self.task.index,
                    self.task.job,
                    job.len()
                )
            })
    }
}

/// The memory limit that TensorFlow reports for a CPU; it does not enforce it.
const CPU_MEMORY_LIMIT: i64 = 256 << 20;

/// The devices of a task.
#[derive(Clone, Debug)]
pub(crate) struct Devices {
    task: TaskName,
    attributes: Vec<DeviceAttributes>,
}

impl Devices {
    /// Returns `cpus` virtual devices, which share this machine's processors.
    pub(crate) fn cpus(task: &TaskName, cpus: usize) -> Self {
        let incarnation = || {
            let mut id = random_u64();
            while id == 0 {
                id = random_u64();
            }
            id
        };
        Devices {
            task: task.clone(),
            attributes: (0..cpus)
                .map(|i| DeviceAttributes {
                    name: format!("{task}/device:CPU:{i}"),
                    device_type: "CPU".to_string(),
                    memory_limit: CPU_MEMORY_LIMIT,
                    locality: Some(DeviceLocality::default()),
                    incarnation: incarnation(),
                    xla_global_id: -1,
                    ..Default::default()
                })
                .collect(),
        }
    }

    /// The same devices, named as those of another task.
    pub(crate) fn renamed(&self, task: &TaskName) -> Self {
        let mut renamed = self.clone();
        renamed.task.clone_from(task);
        for (i, device) in renamed.attributes.iter_mut().enumerate() {
            device.name = format!("{task}/device:CPU:{i}");
        }
        renamed
    }

    /// The incarnations.
    pub(crate) fn incarnations(&self) -> Vec<u64> {
        self.attributes.iter().map(|d| d.incarnation).collect()
    }

    /// The devices of a session that has no others.
    pub(crate) fn set(&self, soft: bool) -> DeviceSet {
        DeviceSet {
            names: self.names(),
            incarnations: self.incarnations(),
            soft,
            ..Default::default()
        }
    }

    /// The incarnation of the default device.
    pub(crate) fn incarnation(&self) -> u64 {
        self.attributes.first().map_or(0, |d| d.incarnation)
    }

    /// The task that owns the devices.
    pub(crate) fn task(&self) -> &TaskName {
        &self.task
    }

    /// The name of the default device.
    pub(crate) fn first(&self) -> &str {
        self.attributes.first().map_or("", |d| &d.name)
    }

    /// The full names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.attributes.iter().map(|d| d.name.clone()).collect()
    }

    /// The device that another task calls by this name, whatever that calls this task.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it does not exist.
    pub(crate) fn local(&self, name: &str) -> Result<&DeviceAttributes> {
        let local = name.rsplit('/').next().unwrap_or_default();
        let mut devices = self.attributes.iter().filter(|_| !local.is_empty());
        let device = devices.find(|d| d.name.ends_with(local));
        device.ok_or_else(|| invalid_argument!("{name} unknown device."))
    }

    pub(crate) fn attributes(&self) -> &[DeviceAttributes] {
        &self.attributes
    }
}

/// Returns a random number that is not 0, for a request.
pub(crate) fn random_id() -> i64 {
    (random_u64() | 1) as i64
}

/// Returns a random number for a step; TensorFlow leaves the upper seven bits clear.
pub(crate) fn random_step_id() -> u64 {
    random_u64() >> 7
}

/// Returns a random number, seeded by the system at every call.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_begin_with_the_servers_configuration() {
        let default = ConfigProto {
            isolate_session_state: true,
            device_filters: vec!["/job:ps".to_string()],
            operation_timeout_in_ms: 5,
            ..Default::default()
        };
        let asked = ConfigProto {
            operation_timeout_in_ms: 9,
            device_filters: vec!["/job:w".to_string()],
            ..Default::default()
        };
        let merged = ServerDefaults::from(&default).session_config(&asked);
        let merged = merged.expect("valid");
        assert!(merged.isolate_session_state);
        assert_eq!(merged.device_filters, ["/job:ps", "/job:w"]);
        assert_eq!(merged.operation_timeout_in_ms, 9);
        let none = ServerDefaults::default().session_config(&asked);
        assert_eq!(none.expect("valid"), asked);
    }
}
