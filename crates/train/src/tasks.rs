//! [`Tasks`]: which tasks of a cluster train a network, and what each does.
//!
//! Each variable, with what the optimizer keeps for it, is on one task. A step sends the value of a
//! variable to the workers, which send back their gradients; where the variable is, these are added up
//! in the order of the workers and applied once. If the workers have the variables themselves, each
//! an equal share, a task receives and sends in a step as many bytes as in an all-reduce in a ring: the
//! variables that it does not have, and the gradients of those that it has. Unlike mirrored variables
//! whose gradients are reduced by collectives, there is one value of each variable, so that workers
//! cannot diverge and the optimizer's state is not repeated; checkpoints are those of one process; and
//! parameter servers are the same with other devices.

use super::Network;
use ferroflow_base::{Result, invalid_argument};
use std::cmp::Reverse;

/// When workers update the variables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Updates {
    /// Together: a step divides a batch among all workers, and applies the mean of their gradients
    /// once. It computes what one worker would for the whole batch.
    #[default]
    Synchronous,
    /// Each alone: a worker trains on batches of its own, and applies its gradients at once, though
    /// others may have updated the variables since it read them.
    Asynchronous,
}

/// The tasks of a cluster that train a network (see [`Network::minimize_over`]).
///
/// ```
/// use ferroflow_train::{Tasks, Updates};
/// let tasks = Tasks::of_job("worker", 2);
/// assert_eq!(tasks.workers, ["/job:worker/task:0", "/job:worker/task:1"]);
/// assert_eq!(tasks.parameters, tasks.workers);
/// let tasks = tasks.with_parameters("ps", 1).asynchronous();
/// assert_eq!(tasks.parameters, ["/job:ps/task:0"]);
/// assert_eq!(tasks.updates, Updates::Asynchronous);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tasks {
    /// The devices that compute gradients.
    pub workers: Vec<String>,
    /// The devices that have the variables.
    pub parameters: Vec<String>,
    /// When the variables are updated.
    pub updates: Updates,
}

fn devices(job: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("/job:{job}/task:{i}")).collect()
}

impl Tasks {
    /// The first `n` tasks of a job train on parts of each batch, and have the variables.
    pub fn of_job(job: &str, n: usize) -> Tasks {
        Tasks {
            workers: devices(job, n),
            parameters: devices(job, n),
            updates: Updates::Synchronous,
        }
    }

    /// Returns the same with the variables on the first `n` tasks of a job, the parameter servers.
    #[must_use]
    pub fn with_parameters(self, job: &str, n: usize) -> Tasks {
        Tasks {
            parameters: devices(job, n),
            ..self
        }
    }

    /// Returns the same with workers that update the variables each alone.
    #[must_use]
    pub fn asynchronous(self) -> Tasks {
        Tasks {
            updates: Updates::Asynchronous,
            ..self
        }
    }

    /// The trainer's own task, wherever that is.
    pub(super) fn local() -> Tasks {
        Tasks {
            workers: vec![String::new()],
            parameters: vec![String::new()],
            updates: Updates::Synchronous,
        }
    }

    /// Whether training takes no other task than the trainer's.
    pub(super) fn is_local(&self) -> bool {
        *self == Tasks::local()
    }

    pub(super) fn check(&self) -> Result<()> {
        match (&self.workers[..], &self.parameters[..]) {
            ([], _) => Err(invalid_argument!(
                "training over tasks takes at least one worker"
            )),
            (_, []) => Err(invalid_argument!(
                "training over tasks takes at least one device that has the variables"
            )),
            _ => Ok(()),
        }
    }

    /// The device of what the optimizer has once.
    pub(super) fn home(&self) -> &str {
        self.parameters.first().map_or("", String::as_str)
    }

    /// The number of parts that a step divides its batch into.
    pub(super) fn parts(&self) -> usize {
        match self.updates {
            Updates::Synchronous => self.workers.len().max(1),
            Updates::Asynchronous => 1,
        }
    }

    /// Places the network's variables, largest first, each on the device with the fewest bytes so far.
    pub(super) fn place_variables(&self, net: &mut Network) {
        let mut order: Vec<usize> = (0..net.variables.len()).collect();
        let bytes = |net: &Network, i: usize| {
            let variable = &net.variables[i];
            variable.shape.num_elements() * variable.dtype.size()
        };
        order.sort_by_key(|i| Reverse(bytes(net, *i)));
        let mut used = vec![0; self.parameters.len()];
        for i in order {
            let least = (0..used.len()).min_by_key(|device| used[*device]);
            let Some(device) = least else {
                return;
            };
            used[device] += bytes(net, i);
            let variable = &mut net.variables[i];
            variable.device.clone_from(&self.parameters[device]);
            net.builder.place(variable.handle.node, &variable.device);
        }
    }
}
