//! Makes programs of ops on scalars and small tensors outside of loops: each group becomes one `_Cluster` node.
//!
//! A node may be in a group if its op has a translation and its tensors have a few elements, of static shapes. So may a
//! conditional of Switch and Merge, as a whole. Each node has a stage, which grows behind nodes that are in no group and read
//! one, and behind nodes that take time: groups are of one stage, so that none waits for what waits for it, and nothing
//! waits for a slow node that did not before.
//!
//! (TensorFlow: `compiler/jit/mark_for_compilation_pass.cc`.)

use super::build::{Elements, MAX_ELEMENTS, Meaning, Region};
use super::regions::{Paths, Regions};
use super::translate::Translator;
use super::{Candidate, Made, is_member, replace};
use crate::{Jit, Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Consumers, Frames, Graph, Node, NodeClass, NodeId, Output, Patch, ShapeMap, loop_frames,
    topological_order,
};
use ferroflow_opdef::{Cost, ScalarType};
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;

pub(crate) const NAME: &str = "cluster_acyclic";

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "makes groups of ops on small tensors single nodes, which run as machine code",
    run,
};

/// The most elements of a tensor in a group: kernels compute longer ones faster.
const MAX_SMALL: usize = 8;
/// The most nodes of a group without conditionals; larger ones are cut.
const MAX_GROUP: usize = 500;
/// Rounds in which conditionals are found that cannot be part of a group.
const MAX_ROUNDS: usize = 8;

/// What runs take, in nanoseconds: a node of a group without code, a node that calls functions,
/// a cluster, each tensor that it reads or makes, an instruction.
const NODE: usize = 14;
const CALL: usize = 150;
const CLUSTER: usize = 60;
const TENSOR: usize = 14;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    // What is received may be dead, or come after what another part of a group is for.
    let receives = |n: &Node| n.class() == NodeClass::Recv;
    let least = match ctx.jit {
        Jit::On => 2,
        _ => CLUSTER / NODE + 1,
    };
    if graph.len() < least || graph.iter().any(|(_, n)| receives(n)) {
        return Ok(());
    }
    let Some(regions) = Regions::new(graph, loop_frames(graph)?) else {
        return Ok(());
    };
    let regions = Rc::new(regions);
    let groups = Groups {
        shapes: &ctx.shapes(graph)?,
        regions: &regions,
        graph,
        ctx,
    };
    let consumers = Consumers::new(graph);
    let found = groups.find()?.into_iter();
    let candidates = found.map(|members| groups.candidate(members, &consumers));
    let made = candidates
        .filter(|c| groups.is_worthwhile(c))
        .filter_map(|c| {
            let made = Made::of(groups.graph, &c, groups.shapes, &regions)?;
            Some((c, made))
        });
    let made: Vec<(Candidate, Made)> = made.collect();
    let mut patch = Patch::new();
    for (candidate, made) in made {
        replace(graph, ctx, &mut patch, &candidate, made)?;
    }
    patch.apply(graph);
    Ok(())
}

struct Groups<'a> {
    graph: &'a Graph,
    ctx: &'a PassCtx<'a>,
    shapes: &'a ShapeMap,
    regions: &'a Regions,
}

/// The conditionals of Switch and Merge outside of all others, by predicate.
type Conditionals = FxHashMap<Output, Vec<NodeId>>;

impl Groups<'_> {
    fn paths(&self) -> &Paths {
        &self.regions.paths
    }

    fn frames(&self) -> &Frames {
        &self.regions.frames
    }

    /// The groups, each in the order in which its nodes may run.
    fn find(&self) -> Result<Vec<Vec<NodeId>>> {
        let order = topological_order(self.graph)?;
        let mut conditionals = self.conditionals();
        let mut fits = vec![false; self.graph.id_bound()];
        for &id in &order {
            fits[id.index()] = self.fits(id, &conditionals);
        }
        conditionals.retain(|_, nodes| nodes.iter().all(|id| fits[id.index()]));
        for _ in 0..MAX_ROUNDS {
            let inside: FxHashSet<NodeId> = conditionals.values().flatten().copied().collect();
            for &id in &order {
                fits[id.index()] &= inside.contains(&id) || self.conditional_of(id).is_none();
            }
            let stages = self.stages(&order, &fits);
            // One that waits for what waits for a part of it cannot be in a group.
            let before = conditionals.len();
            conditionals.retain(|_, nodes| {
                let mut of_nodes = nodes.iter().map(|id| stages[id.index()]);
                let first = of_nodes.next();
                of_nodes.all(|stage| Some(stage) == first)
            });
            if conditionals.len() == before {
                return Ok(self.connected(&order, &fits, &stages, &conditionals));
            }
        }
        Ok(Vec::new())
    }

    fn conditionals(&self) -> Conditionals {
        let mut all = Conditionals::default();
        for (id, _) in self.graph.iter() {
            if let Some(predicate) = self.conditional_of(id) {
                all.entry(predicate).or_default().push(id);
            }
        }
        all
    }

    /// The predicate of the outermost conditional that a node is in, or begins or ends.
    fn conditional_of(&self, id: NodeId) -> Option<Output> {
        let node = self.graph.node(id);
        let path = self.paths().of(id)?;
        let first = |path: &[Region]| match path.first() {
            Some(Region::Branch(predicate, _)) => Some(*predicate),
            _ => None,
        };
        let after = |output| self.paths().after(self.graph, self.frames(), output);
        match (path.is_empty(), node.class()) {
            (false, _) => first(path),
            (true, NodeClass::Switch) => first(&after(Output::new(id, 0))?),
            (true, NodeClass::Merge) => first(&after(*node.inputs.first()?)?),
            _ => None,
        }
    }

    /// Whether a node may be in a group.
    fn fits(&self, id: NodeId, conditionals: &Conditionals) -> bool {
        let node = self.graph.node(id);
        let is_free = self.frames().of(id).is_none() && is_member(self.graph, id);
        let is_small = |output: Output| {
            let dtype = self.graph.dtype(output);
            let n = self.shapes.get(output).num_elements();
            dtype.and_then(ScalarType::of).is_some()
                && n.is_some_and(|n| (1..=MAX_SMALL).contains(&n))
        };
        let reads =
            |input: &Output| self.graph.node(input.node).is_free_constant() || is_small(*input);
        let outputs = (0..node.outputs.len()).map(|slot| Output::new(id, slot));
        if !is_free
            || node.outputs.is_empty()
            || !outputs.into_iter().all(is_small)
            || !node.inputs.iter().all(reads)
        {
            return false;
        }
        let inside = self.conditional_of(id);
        match node.class() {
            NodeClass::Switch | NodeClass::Merge => {
                inside.is_some_and(|predicate| conditionals.contains_key(&predicate))
            }
            NodeClass::Const => inside.is_some(),
            NodeClass::Identity => !node.inputs.is_empty(),
            _ => self.paths().of(id).is_some() && self.has_translation(node),
        }
    }

    /// Whether a program can compute the node alone.
    fn has_translation(&self, node: &Node) -> bool {
        let translate = || {
            let mut translator = Translator::new(self.graph.library());
            translator.b.enter(None);
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for input in &node.inputs {
                let maker = self.graph.node(input.node);
                let elements = match maker.is_free_constant() {
                    true => translator
                        .b
                        .tensor(&maker.attrs.tensor("value").ok()?.get().ok()?)?,
                    false => self.elements(&mut translator, *input)?,
                };
                inputs.push(Meaning::Tensor(Rc::new(elements)));
            }
            translator.alone(node, inputs)
        };
        translate().is_some()
    }

    /// Values for the elements of an output.
    fn elements(&self, translator: &mut Translator, output: Output) -> Option<Elements> {
        let ty = ScalarType::of(self.graph.dtype(output)?)?;
        let dims = self.shapes.get(output).to_full()?.dims().to_vec();
        let n = dims.iter().product::<usize>();
        let values = (0..n.min(MAX_ELEMENTS)).map(|_| translator.b.value(ty));
        let values = values.collect::<Option<_>>()?;
        Some(Elements { ty, dims, values })
    }

    /// The stage of each node.
    fn stages(&self, order: &[NodeId], fits: &[bool]) -> Vec<u32> {
        let mut stages = vec![0u32; self.graph.id_bound()];
        for &id in order {
            let node = self.graph.node(id);
            let before = |p: NodeId| match fits[p.index()] && !fits[id.index()] {
                true => stages[p.index()] + 1,
                false => stages[p.index()],
            };
            let before = node.predecessors().map(before).max().unwrap_or(0);
            let takes_time = !fits[id.index()] && self.takes_time(node);
            stages[id.index()] = before + u32::from(takes_time);
        }
        stages
    }

    fn takes_time(&self, node: &Node) -> bool {
        let op = self.ctx.registry.op(node.op());
        let is_waited = !matches!(node.class(), NodeClass::Arg | NodeClass::Const);
        is_waited && op.is_none_or(|op| op.cost != Cost::Cheap)
    }

    /// Nodes of one stage that are connected.
    fn connected(
        &self,
        order: &[NodeId],
        fits: &[bool],
        stages: &[u32],
        conditionals: &Conditionals,
    ) -> Vec<Vec<NodeId>> {
        let mut sets = Sets::new(self.graph.id_bound());
        for &id in order.iter().filter(|id| fits[id.index()]) {
            for before in self.graph.node(id).predecessors() {
                if fits[before.index()] && stages[before.index()] == stages[id.index()] {
                    sets.unite(before.index(), id.index());
                }
            }
        }
        for nodes in conditionals.values() {
            for pair in nodes.windows(2) {
                sets.unite(pair[0].index(), pair[1].index());
            }
        }
        let mut groups: Vec<Vec<NodeId>> = Vec::new();
        let mut at: FxHashMap<usize, usize> = FxHashMap::default();
        for &id in order.iter().filter(|id| fits[id.index()]) {
            let group = *at.entry(sets.root(id.index())).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[group].push(id);
        }
        // Edges go from earlier parts to later ones, but for those of a conditional.
        let is_cut = |group: &Vec<NodeId>| {
            group.len() > MAX_GROUP && group.iter().all(|id| self.conditional_of(*id).is_none())
        };
        let cut = |group: Vec<NodeId>| match is_cut(&group) {
            true => group.chunks(MAX_GROUP).map(<[_]>::to_vec).collect(),
            false => vec![group],
        };
        groups.into_iter().flat_map(cut).collect()
    }

    fn candidate(&self, members: Vec<NodeId>, consumers: &Consumers) -> Candidate {
        let inside: FxHashSet<NodeId> = members.iter().copied().collect();
        let mut outputs = Vec::new();
        for &id in &members {
            for slot in 0..self.graph.node(id).outputs.len() {
                let is_read = |(by, of): &(NodeId, Option<u32>)| {
                    *of == Some(slot as u32) && !inside.contains(by)
                };
                if consumers.of(id).iter().any(is_read) {
                    outputs.push(Output::new(id, slot));
                }
            }
        }
        let name = outputs.last().map(|o| self.graph.node(o.node).name.clone());
        Candidate {
            name: name.unwrap_or_default(),
            entries: members.clone(),
            members,
            outputs,
        }
    }

    /// Whether a cluster is expected to be faster than its nodes.
    fn is_worthwhile(&self, candidate: &Candidate) -> bool {
        let computes = |id: &&NodeId| {
            !matches!(
                self.graph.node(**id).class(),
                NodeClass::Identity | NodeClass::Const
            )
        };
        let computing: Vec<&NodeId> = candidate.members.iter().filter(computes).collect();
        if candidate.outputs.is_empty() || computing.len() < 2 {
            return false;
        }
        if self.ctx.jit == Jit::On {
            return true;
        }
        let saved = |id: &&NodeId| match self.graph.node(**id).class() {
            NodeClass::If | NodeClass::Case | NodeClass::While | NodeClass::Call => CALL,
            _ => NODE,
        };
        let inside: FxHashSet<NodeId> = candidate.members.iter().copied().collect();
        let inputs = candidate
            .members
            .iter()
            .flat_map(|id| &self.graph.node(*id).inputs);
        let inputs = inputs
            .filter(|i| !inside.contains(&i.node) && !self.graph.node(i.node).is_free_constant());
        let inputs: FxHashSet<&Output> = inputs.collect();
        let elements = candidate.members.iter().map(|id| {
            let n = self.shapes.get(Output::new(*id, 0)).num_elements();
            n.unwrap_or(MAX_SMALL)
        });
        let cost = CLUSTER + TENSOR * (inputs.len() + candidate.outputs.len());
        cost + elements.sum::<usize>() < computing.iter().map(saved).sum()
    }
}

/// Disjoint sets of numbers.
struct Sets(Vec<usize>);

impl Sets {
    fn new(n: usize) -> Sets {
        Sets((0..n).collect())
    }

    fn root(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }

    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[b] = a;
    }
}
