//! [`DeviceIndex`]: finds the devices that nodes request.

use crate::device::colocated_with;
use crate::{DeviceSet, DeviceSpec, Node};
use ferroflow_base::{Result, invalid_argument};
use rustc_hash::FxHashMap;

/// The devices of a [`DeviceSet`] by task: to find one takes as long among thousands of tasks as among two.
pub struct DeviceIndex<'a> {
    devices: &'a DeviceSet,
    /// The parts of the names, in order; a name without such a form is matched by no request.
    specs: Vec<Option<DeviceSpec>>,
    /// The devices of the tasks of each number, in order.
    by_task: FxHashMap<u32, Vec<usize>>,
    /// What was requested, by name.
    known: FxHashMap<String, usize>,
    /// Devices that were compared with requests.
    #[cfg(test)]
    n_compared: std::cell::Cell<usize>,
}

impl DeviceSet {
    /// The index of these devices.
    ///
    /// ```
    /// use ferroflow_graph::DeviceSet;
    /// let devices = DeviceSet {
    ///     names: (0..3).map(|i| format!("/job:w/replica:0/task:{i}/device:CPU:0")).collect(),
    ///     ..Default::default()
    /// };
    /// let mut index = devices.index();
    /// assert_eq!(index.place("x", "/job:w/task:2").unwrap(), 2);
    /// assert_eq!(index.place("y", "/cpu:0").unwrap(), 0);
    /// assert!(index.place("z", "/job:w/task:3").is_err());
    /// ```
    pub fn index(&self) -> DeviceIndex<'_> {
        let specs = self.names.iter().map(|name| DeviceSpec::parse(name).ok());
        let specs: Vec<Option<DeviceSpec>> = specs.collect();
        let mut by_task = FxHashMap::<u32, Vec<usize>>::default();
        for (i, spec) in specs.iter().enumerate() {
            if let Some(task) = spec.as_ref().and_then(DeviceSpec::task) {
                by_task.entry(task).or_default().push(i);
            }
        }
        DeviceIndex {
            devices: self,
            specs,
            by_task,
            known: FxHashMap::default(),
            #[cfg(test)]
            n_compared: std::cell::Cell::default(),
        }
    }

    /// The device, by position, of the node `node` that requests `requested`; see [`DeviceIndex::place`] for
    /// many nodes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no device matches.
    pub fn place(&self, node: &str, requested: &str) -> Result<usize> {
        self.index().place(node, requested)
    }
}

impl DeviceIndex<'_> {
    /// The first device that all these requests match.
    pub(crate) fn first(&self, requests: &[&DeviceSpec]) -> Option<usize> {
        let fits = |device: &usize| {
            #[cfg(test)]
            self.n_compared.set(self.n_compared.get() + 1);
            let name = self.specs[*device].as_ref();
            name.is_some_and(|name| requests.iter().all(|spec| spec.covers(name)))
        };
        match requests.iter().find_map(|spec| spec.task()) {
            Some(task) => self.by_task.get(&task)?.iter().copied().find(fits),
            None => (0..self.specs.len()).find(fits),
        }
    }

    /// The device, by position, of the node `node` that requests `requested`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no device matches.
    pub fn place(&mut self, node: &str, requested: &str) -> Result<usize> {
        if let Some(known) = self.known.get(requested) {
            return Ok(*known);
        }
        let spec = DeviceSpec::parse(requested).map_err(|e| e.note(format!("at node '{node}'")))?;
        let mut found = self.first(&[&spec]);
        if found.is_none() && self.devices.soft {
            found = self.first(&[&spec.softened()]);
        }
        let hint = match spec.kind() {
            Some("GPU") => " The requested device appears to be a GPU, but CUDA is not enabled.",
            _ => "",
        };
        let found = found.ok_or_else(|| {
            invalid_argument!(
                "Cannot assign a device for operation {node}: {{{{node {node}}}}} was explicitly \
                 assigned to {spec} but available devices are [ {} ]. Make sure the device \
                 specification refers to a valid device.{hint}\n\t [[{node}]]",
                self.devices.names.join(", ")
            )
        })?;
        self.known.insert(requested.to_string(), found);
        Ok(found)
    }

    /// Checks that colocated nodes ask for devices that can be the same, unless placement is soft. `find`
    /// returns a node of the graph by name.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if no device fits both.
    pub fn check_colocation<'a>(
        &self,
        nodes: &'a [Node],
        find: impl Fn(&str) -> Option<&'a Node>,
    ) -> Result<()> {
        if self.devices.soft {
            return Ok(());
        }
        for node in nodes.iter().filter(|n| !n.device.is_empty()) {
            let own = DeviceSpec::parse(&node.device)?;
            for other in colocated_with(node).filter_map(&find) {
                let asked = DeviceSpec::parse(&other.device)?;
                if self.first(&[&own, &asked]).is_none() {
                    return Err(invalid_argument!(
                        "Cannot colocate nodes {{{{colocation_node {}}}}} and {{{{colocation_node \
                         {}}}}}: Cannot merge devices with incompatible ids: '{own}' and '{asked}'\n\t \
                         [[{{{{node {}}}}}]]",
                        node.name,
                        other.name,
                        node.name
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;
    use crate::testing::graph;

    /// Two jobs of `n` tasks with two devices each.
    fn devices(n: usize) -> DeviceSet {
        let tasks = ["ps", "w"].into_iter().flat_map(|job| {
            (0..2 * n).map(move |i| {
                let (task, cpu) = (i / 2, i % 2);
                format!("/job:{job}/replica:0/task:{task}/device:CPU:{cpu}")
            })
        });
        DeviceSet {
            names: tasks.collect(),
            ..Default::default()
        }
    }

    #[test]
    fn requests_find_the_first_device_that_they_match() {
        let devices = devices(3);
        let mut index = devices.index();
        for (request, expected) in [
            ("", 0),
            ("/cpu:1", 1),
            ("/task:2", 4),
            ("/job:w", 6),
            ("/job:w/task:1/cpu:1", 9),
            ("/job:w/replica:0/task:1/device:CPU:1", 9),
            ("/replica:0/task:0", 0),
        ] {
            assert_eq!(index.place("n", request).ok(), Some(expected), "{request}");
        }
        for request in ["/job:w/task:3", "/job:x/task:1", "/task:1/gpu:0", "/cpu:2"] {
            assert!(index.place("n", request).is_err(), "{request}");
        }
    }

    /// Two nodes for each of `n` tasks.
    fn nodes(n: usize) -> Graph {
        let lines: Vec<String> = (0..2 * n).map(|i| format!("n{i} = Placeholder")).collect();
        let mut graph = graph(&lines.join("\n")).expect("valid");
        for i in 0..2 * n {
            let node = graph.node_mut(crate::NodeId::new(i)).expect("one a line");
            node.device = format!("/job:w/task:{}", i / 2);
        }
        graph
    }

    #[test]
    fn work_is_linear_in_tasks() {
        let compared = [10, 1000].map(|n| {
            let (devices, graph) = (devices(n), nodes(n));
            let mut index = devices.index();
            for (_, node) in graph.iter() {
                index.place(&node.name, &node.device).expect("a device");
            }
            index.n_compared.get() as f64 / n as f64
        });
        assert!(compared[1] <= compared[0], "{compared:?}");
    }
}
