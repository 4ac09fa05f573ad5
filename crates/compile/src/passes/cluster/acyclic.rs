//! Makes programs of ops on scalars and small tensors outside of loops: each group becomes one `_Cluster` node.
//!
//! A node may be in a group if its op has a translation and its tensors have a few elements, of static shapes. So may a
//! conditional of Switch and Merge, as a whole. The nodes of a group are connected and wait for the same barriers: nodes in no
//! group that take time, or that read one. So a group does not wait for what waits for it, nor is a node kept back by
//! a slow one that it did not wait for before.
//!
//! (TensorFlow: `compiler/jit/mark_for_compilation_pass.cc`.)

use super::barriers::Barriers;
use super::build::{Elements, Meaning, Region};
use super::regions::{Paths, Regions, maker};
use super::translate::Translator;
use super::{Candidate, Made, is_member, replace};
use crate::passes::elementwise::is_elementwise;
use crate::{Jit, Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Consumers, Frames, Graph, MUST_COMPILE, Node, NodeClass, NodeId, Output, Patch, ShapeMap,
    loop_frames, topological_order,
};
use ferroflow_opdef::{Cluster, Cost, ScalarType, ScalarUnary};
use ferroflow_tensor::DType;
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
/// Larger groups are cut.
const MAX_GROUP: usize = 500;
/// A group that is larger and cannot be cut, for its conditionals, stays.
const MAX_UNCUT: usize = 2000;
/// Rounds in which conditionals are found that cannot be part of a group.
const MAX_ROUNDS: usize = 8;

/// Nanoseconds of a node that runs by itself.
const NODE: usize = 14;
/// Nanoseconds of an elementwise node: those that follow each other are fused.
const FUSED_NODE: usize = 4;
/// Nanoseconds of a product of small matrices.
const PRODUCT: usize = 40;
/// Nanoseconds of a node that calls functions.
const CALL: usize = 150;
/// Nanoseconds of a cluster, without what it computes.
const CLUSTER: usize = 60;
/// Nanoseconds of each tensor that a cluster reads or makes.
const TENSOR: usize = 14;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    // What is received may be dead, or come after what another part of a group is for.
    let receives = |n: &Node| n.class() == NodeClass::Recv;
    if graph.len() < 2 || graph.iter().any(|(_, n)| receives(n)) {
        return Ok(());
    }
    let Some(regions) = Regions::new(graph, loop_frames(graph)?) else {
        return Ok(());
    };
    let regions = Rc::new(regions);
    let groups = Groups {
        shapes: &*ctx.shapes(graph)?,
        regions: &regions,
        predicates: predicates(graph, &regions),
        graph,
        ctx,
    };
    let consumers = Consumers::new(graph);
    let mut todo = groups.find()?;
    let mut made: Vec<(Candidate, Made)> = Vec::new();
    while let Some(members) = todo.pop() {
        let Some(candidate) = groups.candidate(members, &consumers) else {
            continue;
        };
        if !groups.is_worthwhile(&candidate) {
            continue;
        }
        match Made::of(graph, &candidate, groups.shapes, &regions, ctx.lower) {
            Some(program) => made.push((candidate, program)),
            // It may have too many values.
            None => {
                let half = candidate.members.len() / 2;
                let parts = groups.cut(candidate.members, half);
                todo.extend(Some(parts).filter(|p| p.len() > 1).into_iter().flatten());
            }
        }
    }
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
    /// The predicate of the outermost conditional that each node is in, or begins or ends.
    predicates: Vec<Option<Output>>,
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
        // Groups are on the device of the first node that may be in one.
        let mut device = None;
        for &id in &order {
            let own = &*self.graph.node(id).device;
            if device.is_none_or(|device| device == own) && self.fits(id) {
                device = Some(own);
                fits[id.index()] = true;
            }
        }
        if device.is_none() {
            return Ok(Vec::new());
        }
        for (id, node) in self.graph.iter() {
            // It may be alive where only some of what it waits for is.
            if self.paths().of(id).is_none() {
                for before in node.predecessors() {
                    if let Some(predicate) = self.conditional_of(before) {
                        conditionals.remove(&predicate);
                    }
                }
            }
        }
        conditionals.retain(|_, nodes| nodes.iter().all(|id| fits[id.index()]));
        for round in 0..=MAX_ROUNDS {
            if round == MAX_ROUNDS {
                conditionals.clear();
            }
            let inside: FxHashSet<NodeId> = conditionals.values().flatten().copied().collect();
            for &id in &order {
                fits[id.index()] &= inside.contains(&id) || self.conditional_of(id).is_none();
            }
            let Some(barriers) =
                Barriers::new(self.graph, &order, &fits, |node| self.takes_time(node))
            else {
                return Ok(Vec::new());
            };
            let before = conditionals.len();
            conditionals.retain(|_, nodes| {
                let mut of_nodes = nodes.iter().map(|id| barriers.of(*id));
                let first = of_nodes.next();
                of_nodes.all(|set| Some(set) == first)
            });
            if conditionals.len() == before {
                return Ok(self.connected(&order, &fits, &barriers, &conditionals));
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
        self.predicates[id.index()]
    }

    /// Whether a node may be in a group.
    fn fits(&self, id: NodeId) -> bool {
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
        let mut outputs = (0..node.outputs.len()).map(|slot| Output::new(id, slot));
        if !is_free
            || self.paths().of(id).is_none()
            || node.outputs.is_empty()
            || !outputs.all(is_small)
            || !node.inputs.iter().all(reads)
        {
            return false;
        }
        match node.class() {
            NodeClass::Switch | NodeClass::Merge | NodeClass::Const => {
                self.conditional_of(id).is_some()
            }
            NodeClass::Identity => !node.inputs.is_empty(),
            _ => self.has_translation(id),
        }
    }

    /// Whether a program without loops can compute the node alone.
    fn has_translation(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let n = self.shapes.get(Output::new(id, 0)).num_elements();
        if calls_helper(node) && n != Some(1) {
            // Kernels compute several at once.
            return false;
        }
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
            translator.alone(node, inputs)?;
            translator.b.leave()
        };
        let program = |insts| Cluster {
            insts,
            ..Cluster::default()
        };
        translate().is_some_and(|insts| program(insts).max_insts().is_some())
    }

    /// Values for the elements of an output.
    fn elements(&self, translator: &mut Translator, output: Output) -> Option<Elements> {
        let ty = ScalarType::of(self.graph.dtype(output)?)?;
        let dims = self.shapes.get(output).to_full()?.dims().to_vec();
        translator.b.fresh(ty, dims)
    }

    /// Whether a node may take longer than a group, or wait for something.
    fn takes_time(&self, node: &Node) -> bool {
        let op = self.ctx.registry.op(node.op());
        let is_cheap = op.is_some_and(|op| op.node_cost(&node.attrs) == Cost::Cheap);
        let waits = node.class().calls_functions() || node.def.flags.stateful;
        match node.class() {
            NodeClass::Arg | NodeClass::Const => false,
            NodeClass::VarHandle | NodeClass::ReadVariable => false,
            // Each iteration takes time; a Switch or Merge of theirs does not.
            NodeClass::Exit => true,
            NodeClass::Switch | NodeClass::Merge | NodeClass::Identity | NodeClass::NoOp => false,
            _ => waits || !is_cheap,
        }
    }

    /// Connected nodes with the same barriers.
    fn connected(
        &self,
        order: &[NodeId],
        fits: &[bool],
        barriers: &Barriers,
        conditionals: &Conditionals,
    ) -> Vec<Vec<NodeId>> {
        let mut sets = Sets::new(self.graph.id_bound());
        for &id in order.iter().filter(|id| fits[id.index()]) {
            for before in self.graph.node(id).predecessors() {
                if fits[before.index()] && barriers.of(before) == barriers.of(id) {
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
        let mut parts: Vec<Vec<NodeId>> = groups
            .into_iter()
            .flat_map(|g| self.cut(g, MAX_GROUP))
            .collect();
        parts.retain(|part| part.len() <= MAX_UNCUT);
        parts
    }

    /// Cuts a group into parts of at least `n` nodes, between conditionals: edges go from earlier parts to later ones.
    fn cut(&self, group: Vec<NodeId>, n: usize) -> Vec<Vec<NodeId>> {
        if group.len() <= n {
            return vec![group];
        }
        let mut last: FxHashMap<Output, usize> = FxHashMap::default();
        for (i, id) in group.iter().enumerate() {
            if let Some(predicate) = self.conditional_of(*id) {
                last.insert(predicate, i);
            }
        }
        let (mut parts, mut part, mut until) = (Vec::new(), Vec::new(), 0);
        for (i, id) in group.into_iter().enumerate() {
            let of_conditional = self.conditional_of(id).and_then(|p| last.get(&p));
            until = until.max(of_conditional.copied().unwrap_or(i));
            part.push(id);
            if part.len() >= n && until == i {
                parts.push(std::mem::take(&mut part));
            }
        }
        if !part.is_empty() {
            parts.push(part);
        }
        parts
    }

    /// Whether a node is in no branch and no loop.
    fn is_outer(&self, id: NodeId) -> bool {
        self.paths().of(id).is_some_and(Vec::is_empty)
    }

    /// The candidate of these nodes; `None` if others read or wait for what may be dead.
    fn candidate(&self, members: Vec<NodeId>, consumers: &Consumers) -> Option<Candidate> {
        let inside: FxHashSet<NodeId> = members.iter().copied().collect();
        let (mut outputs, mut awaited) = (Vec::new(), Vec::new());
        for &id in &members {
            let readers = consumers.of(id).iter();
            let outside = readers.filter(|(by, _)| !inside.contains(by));
            let slots: FxHashSet<Option<u32>> = outside.map(|(_, slot)| *slot).collect();
            let class = self.graph.node(id).class();
            if !slots.is_empty() && (!self.is_outer(id) || class == NodeClass::Switch) {
                return None;
            }
            // Within a branch, the program has what is awaited.
            let maker = maker(self.graph, id);
            let is_own = inside.contains(&maker) && self.is_outer(maker);
            if consumers.is_awaited(id) && is_own {
                awaited.push(maker);
            }
            let own =
                (0..self.graph.node(id).outputs.len() as u32).filter(|s| slots.contains(&Some(*s)));
            outputs.extend(own.map(|slot| Output::new(id, slot as usize)));
        }
        let name = outputs
            .last()
            .map(|o: &Output| self.graph.node(o.node).name.clone());
        Some(Candidate {
            name: name.unwrap_or_default(),
            entries: members.clone(),
            members,
            outputs,
            awaited,
        })
    }

    /// About as many instructions as the program needs for a node.
    fn instructions(&self, id: NodeId) -> usize {
        let node = self.graph.node(id);
        let n = |output| self.shapes.get(output).num_elements().unwrap_or(MAX_SMALL);
        let of_output = n(Output::new(id, 0));
        match (is_product(node), node.inputs.first()) {
            // Each element is a sum over a row of the first matrix.
            (true, Some(a)) => {
                let rows = self.shapes.get(Output::new(id, 0)).dim(-2).unwrap_or(1);
                of_output * n(*a) / rows.max(1)
            }
            _ => of_output,
        }
    }

    /// Whether a cluster is expected to be faster than its nodes.
    fn is_worthwhile(&self, candidate: &Candidate) -> bool {
        let nodes = candidate.members.iter().map(|id| self.graph.node(*id));
        let is_copy = |n: &&Node| matches!(n.class(), NodeClass::Identity | NodeClass::Const);
        let computing: Vec<&Node> = nodes.filter(|n| !is_copy(n)).collect();
        if candidate.outputs.is_empty() || computing.len() < 2 {
            return false;
        }
        let is_asked = |n: &&Node| n.attrs.bool(MUST_COMPILE).unwrap_or(false);
        if self.ctx.jit == Jit::On || computing.iter().any(is_asked) {
            return true;
        }
        let alone = |node: &&Node| match node.class().calls_functions() {
            true => CALL,
            false if is_elementwise(node) && node.outputs[..] == [DType::Float] => FUSED_NODE,
            false if is_product(node) => PRODUCT,
            false => NODE,
        };
        let inside: FxHashSet<NodeId> = candidate.members.iter().copied().collect();
        let inputs = candidate
            .members
            .iter()
            .flat_map(|id| &self.graph.node(*id).inputs);
        let inputs = inputs
            .filter(|i| !inside.contains(&i.node) && !self.graph.node(i.node).is_free_constant());
        let inputs: FxHashSet<&Output> = inputs.collect();
        let elements = candidate.members.iter().map(|id| self.instructions(*id));
        let cost = CLUSTER + TENSOR * (inputs.len() + candidate.outputs.len());
        cost + elements.sum::<usize>() < computing.iter().map(alone).sum()
    }
}

/// The predicate of the outermost conditional that each node is in, or begins or ends.
fn predicates(graph: &Graph, regions: &Regions) -> Vec<Option<Output>> {
    let Regions { frames, paths } = regions;
    let after = |output| paths.after(graph, frames, output);
    let first = |path: &[Region]| match path.first() {
        Some(Region::Branch(predicate, _)) => Some(*predicate),
        _ => None,
    };
    let of_node = |id: NodeId, node: &Node| {
        let path = paths.of(id)?;
        match (path.is_empty(), node.class()) {
            (false, _) => first(path),
            (true, NodeClass::Switch) => first(&after(Output::new(id, 0))?),
            (true, NodeClass::Merge) => first(&after(*node.inputs.first()?)?),
            _ => None,
        }
    };
    let mut all = vec![None; graph.id_bound()];
    for (id, node) in graph.iter() {
        all[id.index()] = of_node(id, node);
    }
    all
}

fn is_product(node: &Node) -> bool {
    matches!(
        node.op(),
        "MatMul" | "_FusedMatMul" | "BatchMatMul" | "BatchMatMulV2"
    )
}

/// Whether a program calls a function to compute the op.
fn calls_helper(node: &Node) -> bool {
    use ScalarUnary::*;
    let is_inline = |f| {
        matches!(
            f,
            Neg | Abs
                | Sign
                | Square
                | Sqrt
                | Rsqrt
                | Reciprocal
                | Floor
                | Ceil
                | Rint
                | IsNan
                | IsInf
                | IsFinite
                | Not
                | Invert
        )
    };
    ScalarUnary::of_op(node.op()).is_some_and(|f| !is_inline(f))
        || matches!(node.op(), "Pow" | "Atan2")
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
