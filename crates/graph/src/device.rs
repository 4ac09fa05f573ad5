//! [`DeviceSpec`]: which devices a node may be on.

use crate::Node;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::AttrValue;
use std::fmt;
use std::sync::Arc;

/// A device name with parts left open, in any of TensorFlow's forms.
///
/// ```
/// use ferroflow_graph::DeviceSpec;
/// let cpu = "/job:worker/replica:0/task:1/device:CPU:0";
/// for name in ["", "/cpu:0", "/device:CPU:*", "/job:worker", "/task:1/device:cpu:0", cpu] {
///     assert!(DeviceSpec::parse(name).unwrap().matches(cpu), "{name}");
/// }
/// assert!(!DeviceSpec::parse("/device:GPU:0").unwrap().matches(cpu));
/// for name in ["cpu 0", "/job:", "/job:a b/task:0", "/task:-1", "//cpu:0", "/device:CPU:x"] {
///     assert!(DeviceSpec::parse(name).is_err(), "{name}");
/// }
/// assert_eq!(DeviceSpec::parse("/cpu:7").unwrap().to_string(), "/device:CPU:7");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSpec {
    job: Option<String>,
    replica: Option<u32>,
    task: Option<u32>,
    kind: Option<String>,
    index: Option<u32>,
}

impl DeviceSpec {
    /// Reads a name; INVALID_ARGUMENT when it has no such form.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the name is malformed.
    pub fn parse(name: &str) -> Result<DeviceSpec> {
        let bad = || invalid_argument!("Malformed device specification '{name}'");
        let mut spec = DeviceSpec::default();
        if name.is_empty() || name == "/" {
            return Ok(spec);
        }
        for part in name.strip_prefix('/').ok_or_else(bad)?.split('/') {
            spec.read(part).ok_or_else(bad)?;
        }
        Ok(spec)
    }

    /// Reads a part between slashes; `None` if it is malformed.
    fn read(&mut self, part: &str) -> Option<()> {
        // `*` leaves a part open.
        let word = |text: &str| {
            let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            match text {
                "*" => Some(None),
                text => is_word.then(|| Some(text.to_string())),
            }
        };
        let number = |text: &str| match text {
            "*" => Some(None),
            text if text.starts_with('+') => None,
            text => text.parse().ok().map(Some),
        };
        match part.split_once(':')? {
            ("job", job) => self.job = word(job)?,
            ("replica", replica) => self.replica = number(replica)?,
            ("task", task) => self.task = number(task)?,
            ("device", device) => {
                let (kind, index) = device.split_once(':').unwrap_or((device, "*"));
                self.kind = word(kind)?.map(|kind| kind.to_uppercase());
                self.index = number(index)?;
            }
            (kind, index) => {
                self.kind = Some(word(kind)??.to_uppercase());
                self.index = number(index)?;
            }
        }
        Some(())
    }

    /// Whether the device of this full name is meant.
    pub fn matches(&self, device: &str) -> bool {
        DeviceSpec::parse(device).is_ok_and(|d| self.covers(&d))
    }

    /// Whether the device with these parts is meant.
    pub(crate) fn covers(&self, device: &DeviceSpec) -> bool {
        let same = |a: &Option<u32>, b: &Option<u32>| a.is_none() || a == b;
        same(&self.task, &device.task)
            && (self.job.is_none() || self.job == device.job)
            && same(&self.replica, &device.replica)
            && (self.kind.is_none() || self.kind == device.kind)
            && same(&self.index, &device.index)
    }

    /// The number of the task, if it is given.
    pub(crate) fn task(&self) -> Option<u32> {
        self.task
    }

    /// The kind of device, if it is given.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// These parts of the name, and those of `other` where this one leaves them open.
    ///
    /// ```
    /// use ferroflow_graph::DeviceSpec;
    /// let of = |name| DeviceSpec::parse(name).unwrap();
    /// let merged = of("/cpu:1").or(&of("/job:ps/task:2/cpu:0"));
    /// assert_eq!(merged.to_string(), "/job:ps/task:2/device:CPU:1");
    /// ```
    #[must_use]
    pub fn or(self, other: &DeviceSpec) -> DeviceSpec {
        DeviceSpec {
            job: self.job.or_else(|| other.job.clone()),
            replica: self.replica.or(other.replica),
            task: self.task.or(other.task),
            kind: self.kind.or_else(|| other.kind.clone()),
            index: self.index.or(other.index),
        }
    }

    /// The same task, any device of the kind CPU: where soft placement goes.
    #[must_use]
    pub fn softened(&self) -> DeviceSpec {
        DeviceSpec {
            kind: Some("CPU".to_string()),
            index: None,
            ..self.clone()
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (&self.kind, self.index) {
            (None, None) => Ok(()),
            (kind, index) => {
                write!(f, "/device:{}:", kind.as_deref().unwrap_or("*"))?;
                match index {
                    Some(index) => write!(f, "{index}"),
                    None => write!(f, "*"),
                }
            }
        }
    }
}

/// The devices that a session may use.
#[derive(Clone, Debug, Default)]
pub struct DeviceSet {
    /// Full names; the first is where nodes go that ask for none.
    pub names: Vec<String>,
    /// The incarnation of each device, which changes when its task restarts; of the devices of a process
    /// alone it does not matter, and the list may be shorter.
    pub incarnations: Vec<u64>,
    /// Whether a node is placed on a CPU if the requested device does not exist.
    pub soft: bool,
    /// Whether floats travel between tasks as bfloat16, which halves their bytes and keeps 8 bits of precision.
    pub sends_bfloat16: bool,
    /// Whether tensors from other tasks are received only shortly before they are needed
    /// (`GraphOptions.enable_recv_scheduling`).
    pub schedules_recvs: bool,
    /// Which types of devices have a kernel for a node.
    pub kernels: DeviceKernels,
}

type HasKernel = dyn Fn(&str, &Node) -> bool + Send + Sync;

/// Which types of devices have a kernel for a node; by default all have.
#[derive(Clone, Default)]
pub struct DeviceKernels(Option<Arc<HasKernel>>);

impl DeviceKernels {
    /// `has` returns whether a type, such as `GPU`, has a kernel for a node.
    pub fn new(has: impl Fn(&str, &Node) -> bool + Send + Sync + 'static) -> DeviceKernels {
        DeviceKernels(Some(Arc::new(has)))
    }

    /// Whether all types have kernels for all nodes.
    pub(crate) fn are_everywhere(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a type of devices has a kernel for a node.
    pub fn has(&self, device_type: &str, node: &Node) -> bool {
        self.0.as_ref().is_none_or(|has| has(device_type, node))
    }
}

impl fmt::Debug for DeviceKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "everywhere",
            Some(_) => "by type",
        })
    }
}

/// The prefix of a colocation constraint in the attr `_class`.
const COLOCATED: &str = "loc:@";

/// The names of the nodes that a node is colocated with.
pub(crate) fn colocated_with(node: &Node) -> impl Iterator<Item = &str> {
    let classes = match node.attrs.get("_class") {
        Some(AttrValue::List(classes)) => &classes[..],
        _ => &[],
    };
    let names = classes.iter().filter_map(|class| match class {
        AttrValue::Str(name) => std::str::from_utf8(name).ok(),
        _ => None,
    });
    names.filter_map(|name| name.strip_prefix(COLOCATED))
}

impl DeviceSet {
    /// The incarnation of a device, by position.
    pub fn incarnation(&self, device: usize) -> u64 {
        self.incarnations.get(device).copied().unwrap_or(1)
    }
}
