//! Greedy placement by cost ("TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed
//! Systems", section 3.2.1): the execution of the graph is simulated, and each node goes to the device
//! where it would finish first, its own time and that of copying its inputs included.
//!
//! Requests, colocation and resources hold as in placement by rules. A loop is one group, since one
//! that spans devices exchanges its predicate in each iteration. Nodes that take less time than a copy,
//! and read only such nodes, wait until a reader has been placed and go with it: constants, handles,
//! reads of variables.

use crate::placement::{Asked, Groups, is_generator};
use crate::{
    Consumers, Costs, DeviceSet, Frames, Graph, NodeId, Output, Placement, PlacementReason,
    loop_frames, topological_order,
};
use ferroflow_base::Result;
use ferroflow_opdef::NodeClass;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// The most devices that hold inputs of a node and are compared for it.
const MAX_CANDIDATES: usize = 4;
/// Stands for the slot of a control edge.
const END: usize = u32::MAX as usize;

impl DeviceSet {
    /// Places each node where it finishes first. `kept` are the devices of nodes that have their
    /// state there already, by name.
    ///
    /// The time that this takes is linear in the graph and logarithmic in the number of devices: of the
    /// devices that have none of a node's inputs, the one that is free first is always the best.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no device matches what a node requests, or a loop is malformed.
    pub fn place_by_cost(
        &self,
        graph: &Graph,
        costs: &Costs,
        kept: &FxHashMap<String, usize>,
    ) -> Result<Placement> {
        let mut simulation = Simulation::new(self, graph, costs, kept)?;
        for id in topological_order(graph)? {
            simulation.visit(id);
        }
        Ok(simulation.finish())
    }
}

struct Simulation<'a> {
    graph: &'a Graph,
    costs: &'a Costs,
    asked: Vec<Option<Asked<'a>>>,
    /// The root of each node's group.
    roots: Vec<usize>,
    /// The device of each group that has one, with the node that it was chosen for.
    chosen: Vec<Option<(usize, NodeId)>>,
    /// The task of each device.
    task_of: Vec<usize>,
    /// When each device has nothing to compute any more.
    free: Vec<u64>,
    /// The devices that may be chosen, in order of `free`.
    by_free: BTreeSet<(u64, usize)>,
    /// When the outputs of each node are available on its device; `None` if it has no device yet.
    done: Vec<Option<u64>>,
    /// When a tensor that was copied is available elsewhere.
    copies: FxHashMap<(Output, usize), u64>,
    reasons: Vec<PlacementReason>,
    /// Edges that were looked at.
    #[cfg(test)]
    n_visits: usize,
}

impl<'a> Simulation<'a> {
    fn new(
        devices: &DeviceSet,
        graph: &'a Graph,
        costs: &'a Costs,
        kept: &FxHashMap<String, usize>,
    ) -> Result<Self> {
        let mut groups = Groups::of(graph);
        join_loops(graph, &loop_frames(graph)?, &mut groups);
        let asked = devices.requests(graph, &mut groups)?;
        let roots: Vec<usize> = (0..graph.id_bound())
            .map(|i| groups.root(NodeId::new(i)))
            .collect();
        let mut chosen = vec![None; graph.id_bound()];
        let mut reasons = vec![PlacementReason::First; graph.id_bound()];
        for (id, node) in graph.iter() {
            let root = roots[id.index()];
            if let Some(asked) = &asked[root] {
                chosen[root] = Some((asked.device, asked.by));
                if asked.by == id {
                    reasons[id.index()] = PlacementReason::Requested;
                }
            } else if let Some(device) = kept.get(&node.name)
                && chosen[root].is_none()
            {
                chosen[root] = Some((*device, id));
                reasons[id.index()] = PlacementReason::Kept;
            }
        }
        let mut tasks: FxHashMap<&str, usize> = FxHashMap::default();
        let mut task_of = Vec::with_capacity(devices.names.len());
        let mut by_free = BTreeSet::new();
        for (i, name) in devices.names.iter().enumerate() {
            let task = name.split("/device:").next().unwrap_or_default();
            let number = tasks.len();
            task_of.push(*tasks.entry(task).or_insert(number));
            if name.contains("/device:CPU:") {
                by_free.insert((0, i));
            }
        }
        Ok(Simulation {
            graph,
            costs,
            asked,
            roots,
            chosen,
            free: vec![0; task_of.len()],
            task_of,
            by_free,
            done: vec![None; graph.id_bound()],
            copies: FxHashMap::default(),
            reasons,
            #[cfg(test)]
            n_visits: 0,
        })
    }

    /// Places a node all of whose inputs have been visited, unless it may wait for its readers.
    fn visit(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        if node.class() == NodeClass::Arg {
            // The client's task has the feeds; placing its node elsewhere saves no copy.
            self.done[id.index()] = Some(0);
            self.chosen[self.roots[id.index()]].get_or_insert((0, id));
            return;
        }
        let root = self.roots[id.index()];
        if let Some((device, by)) = self.chosen[root] {
            if by != id {
                self.reasons[id.index()] = PlacementReason::With(by);
            }
            self.run(id, device);
            return;
        }
        let waits = |s: NodeId| self.done[s.index()].is_none();
        let is_short = self.costs.compute(id) < self.costs.copies.latency;
        if node.class() != NodeClass::Retval && is_short && node.predecessors().all(waits) {
            return;
        }
        let device = self.choose(id);
        self.chosen[root] = Some((device, id));
        self.reasons[id.index()] = PlacementReason::Cost;
        self.run(id, device);
    }

    /// The device where a node finishes first; of equals, one that has inputs of it.
    fn choose(&mut self, id: NodeId) -> usize {
        let mut candidates: Vec<usize> = Vec::with_capacity(MAX_CANDIDATES + 1);
        for source in self.graph.node(id).predecessors() {
            if candidates.len() == MAX_CANDIDATES {
                break;
            }
            if self.done[source.index()].is_some()
                && let Some((device, _)) = self.chosen[self.roots[source.index()]]
                && !candidates.contains(&device)
            {
                candidates.push(device);
            }
        }
        if let Some((_, device)) = self.by_free.first()
            && !candidates.contains(device)
        {
            candidates.push(*device);
        }
        let starts = candidates.iter().map(|d| (self.start(id, *d), *d));
        let starts: Vec<(u64, usize)> = starts.collect();
        #[cfg(test)]
        {
            self.n_visits += candidates.len() * self.graph.node(id).predecessors().count();
        }
        let best = starts.into_iter().min_by_key(|(start, _)| *start);
        best.map_or(0, |(_, device)| device)
    }

    /// When a node could start on a device.
    fn start(&self, id: NodeId, device: usize) -> u64 {
        let node = self.graph.node(id);
        let inputs = node.inputs.iter().map(|i| self.arrival(*i, device));
        let controls = node.controls.iter();
        let controls = controls.map(|c| self.arrival(Output::new(*c, END), device));
        let ready = inputs.chain(controls).max().unwrap_or(0);
        ready.max(self.free.get(device).copied().unwrap_or(0))
    }

    /// When a tensor is available on a device.
    fn arrival(&self, output: Output, device: usize) -> u64 {
        let Some(done) = self.done[output.node.index()] else {
            return 0;
        };
        match self.chosen[self.roots[output.node.index()]] {
            Some((from, _)) if from != device => {
                let copied = self.copies.get(&(output, device));
                copied.copied().unwrap_or_else(|| {
                    let within = self.task_of.get(from) == self.task_of.get(device);
                    let bytes = self.costs.bytes(output);
                    done.saturating_add(self.costs.copies.of(bytes, within))
                })
            }
            _ => done,
        }
    }

    /// Runs a node on its device, after the inputs that have waited for it.
    fn run(&mut self, id: NodeId, device: usize) {
        let mut stack = vec![id];
        let mut order = Vec::new();
        while let Some(at) = stack.pop() {
            order.push(at);
            for source in self.graph.node(at).predecessors() {
                let root = self.roots[source.index()];
                let is_back = self.graph.node(source).class() == NodeClass::NextIteration;
                if self.done[source.index()].is_some() || is_back {
                    continue;
                }
                match self.chosen[root] {
                    None => {
                        self.chosen[root] = Some((device, source));
                        self.reasons[source.index()] = PlacementReason::Readers;
                        stack.push(source);
                    }
                    // Another node of its group was placed meanwhile.
                    Some((_, by)) => {
                        if by != source && self.reasons[source.index()] == PlacementReason::First {
                            self.reasons[source.index()] = PlacementReason::With(by);
                            stack.push(source);
                        }
                    }
                }
            }
        }
        for at in order.into_iter().rev() {
            let own = self.chosen[self.roots[at.index()]].map_or(device, |(d, _)| d);
            self.run_one(at, own);
        }
    }

    fn run_one(&mut self, id: NodeId, device: usize) {
        if self.done[id.index()].is_some() {
            return;
        }
        let start = self.start(id, device);
        let end = start.saturating_add(self.costs.compute(id));
        for input in &self.graph.node(id).inputs {
            let arrival = self.arrival(*input, device);
            let source = self.chosen[self.roots[input.node.index()]];
            if source.is_some_and(|(from, _)| from != device) {
                self.copies.insert((*input, device), arrival);
            }
        }
        self.done[id.index()] = Some(end);
        if let Some(free) = self.free.get_mut(device) {
            if self.by_free.remove(&(*free, device)) {
                self.by_free.insert((end, device));
            }
            *free = end;
        }
    }

    fn finish(self) -> Placement {
        let device = |i: usize| self.chosen[self.roots[i]].map_or(0, |(device, _)| device);
        let mut placed = Placement {
            devices: (0..self.graph.id_bound()).map(device).collect(),
            reasons: self.reasons,
            finish: self.free,
        };
        let consumers = Consumers::new(self.graph);
        for (id, node) in self.graph.iter() {
            let is_free = self.asked[self.roots[id.index()]].is_none();
            if is_free && (is_generator(node) || node.class() == NodeClass::Retval) {
                placed.move_boundary(node, id, &consumers);
            }
        }
        placed
    }
}

/// Makes each outermost loop one group, without the nodes that request a device themselves.
fn join_loops(graph: &Graph, frames: &Frames, groups: &mut Groups) {
    // Outer loops come first.
    let mut outermost: Vec<usize> = Vec::with_capacity(frames.loops.len());
    for (i, frame) in frames.loops.iter().enumerate() {
        outermost.push(frame.parent.map_or(i, |parent| outermost[parent]));
    }
    let mut first: Vec<Option<NodeId>> = vec![None; frames.loops.len()];
    for (id, node) in graph.iter().filter(|(_, n)| n.device.is_empty()) {
        let frame = match node.class() {
            NodeClass::Enter => frames.after(graph, id),
            _ => frames.of(id),
        };
        if let Some(frame) = frame.map(|f| outermost[f]) {
            groups.join(*first[frame].get_or_insert(id), id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{graph, registry};
    use crate::{Patch, infer_shapes};

    fn devices(n_tasks: usize) -> DeviceSet {
        let name = |i| format!("/job:worker/replica:0/task:{i}/device:CPU:0");
        DeviceSet {
            names: (0..n_tasks).map(name).collect(),
            ..Default::default()
        }
    }

    /// Places a graph on two tasks; a node whose name begins with `long` takes 10 ms, tensors have 1 kB.
    fn check(text: &str, kept: &[(&str, usize)], expect: &str) {
        let graph = graph(text).expect("valid");
        let shapes = infer_shapes(&graph, registry()).expect("no contradiction");
        let mut costs = Costs::estimate(&graph, &shapes);
        for (id, node) in graph.iter() {
            let ns = match node.name.starts_with("long") {
                true => 10_000_000,
                false => 100,
            };
            costs.set_measured(id, ns, &[1000, 1000]);
        }
        let kept = kept.iter().map(|(name, d)| (name.to_string(), *d));
        let placed = devices(2).place_by_cost(&graph, &costs, &kept.collect());
        let placed = placed.expect("can be placed");
        let nodes = graph.iter().map(|(id, node)| {
            let reason = placed.reasons[id.index()].text(&graph);
            format!("{}: {} {reason}", node.name, placed.devices[id.index()])
        });
        assert_eq!(nodes.collect::<Vec<_>>().join("; "), expect, "{text}");
    }

    #[test]
    fn long_branches_are_distributed() {
        check(
            "x = Placeholder\nlong1 = Neg(x)\nlong2 = Round(x)\nsum = Mul(long1, long2)\nend = Neg(sum)",
            &[],
            "x: 0 with its readers; long1: 0 finishes there first; long2: 1 finishes there first; \
             sum: 1 finishes there first; end: 1 finishes there first",
        );
    }

    #[test]
    fn short_nodes_stay_together() {
        check(
            "x = Placeholder\na = Neg(x)\nb = Round(x)\nsum = Mul(a, b)",
            &[],
            "x: 0 with its readers; a: 0 first device; b: 0 first device; sum: 0 first device",
        );
    }

    #[test]
    fn state_stays_where_it_is() {
        check(
            "v = VariableV2\nlong = Neg(v)\nx = Placeholder\nset = Assign(v, x)",
            &[("v", 1)],
            "v: 1 its state was placed there; long: 1 finishes there first; x: 1 with its readers; \
             set: 1 with 'v'",
        );
    }

    #[test]
    fn a_loop_is_one_group() {
        let looped = "a = Placeholder\nm = Merge(e, n)\ne = Enter(a)\nl = Less(m, m)\n\
                      c = LoopCond(l)\ns = Switch(m, c)\nlong = Neg(s:1)\nn = NextIteration(long)\n\
                      x = Exit(s)\nlong2 = Neg(a)";
        let graph = graph(looped).expect("valid");
        let shapes = infer_shapes(&graph, registry()).expect("no contradiction");
        let costs = Costs::estimate(&graph, &shapes);
        let placed = devices(2).place_by_cost(&graph, &costs, &FxHashMap::default());
        let placed = placed.expect("can be placed").devices;
        let of = |name: &str| placed[graph.find(name).expect("a node").index()];
        let inside = ["e", "m", "l", "c", "s", "long", "n", "x"];
        assert!(inside.iter().all(|n| of(n) == of("m")), "{placed:?}");
    }

    /// Layers of nodes that each read two of the layer before.
    fn layered(n_nodes: usize) -> Graph {
        let mut graph = graph("x = Placeholder").expect("valid");
        let mut patch = Patch::new();
        for i in 1..n_nodes {
            let input = |back: usize| Output::new(NodeId::new(i.saturating_sub(back)), 0);
            let inputs = [input(64), input(65 + i % 7)];
            let attrs = ferroflow_opdef::Attrs::default();
            let node = crate::Node::new(registry(), format!("n{i}"), "Mul", attrs, &inputs, &[]);
            patch
                .add(&mut graph, node.expect("valid"))
                .expect("a new name");
        }
        graph
    }

    #[test]
    fn work_is_linear_in_nodes_and_flat_in_devices() {
        let mut visits = Vec::new();
        for (n_nodes, n_tasks) in [(10_000, 4), (100_000, 4), (100_000, 1_000)] {
            let graph = layered(n_nodes);
            let shapes = infer_shapes(&graph, registry()).expect("no contradiction");
            let mut costs = Costs::estimate(&graph, &shapes);
            for (id, _) in graph.iter() {
                costs.set_measured(id, 1_000_000, &[4]);
            }
            let devices = devices(n_tasks);
            let kept = FxHashMap::default();
            let mut simulation =
                Simulation::new(&devices, &graph, &costs, &kept).expect("can be placed");
            for id in topological_order(&graph).expect("no cycle") {
                simulation.visit(id);
            }
            visits.push(simulation.n_visits);
            let placed = simulation.finish().devices;
            let used: std::collections::HashSet<usize> = placed.into_iter().collect();
            assert!(used.len() >= 4, "{} devices", used.len());
        }
        assert!(visits[1] <= 11 * visits[0], "{visits:?}");
        assert!(visits[2] <= 2 * visits[1], "{visits:?}");
    }
}
