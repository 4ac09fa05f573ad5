//! Graphs as programs: nodes are translated when something needs them, into the block of their
//! region.

use super::build::{Builder, Elements, List, MAX_ELEMENTS, Meaning, Outputs, Region};
use super::randoms::draws;
use super::regions::{Path, Regions, maker};
use super::tensor_arrays::TensorArrayOp;
use crate::deadness::is_next;
use crate::passes::control_only::is_safe;
use ferroflow_graph::{Graph, Library, Node, NodeClass, NodeId, Output};
use ferroflow_opdef::{ClusterBlock, ClusterInst, ClusterLoop, ScalarType, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// The most conditionals of which each needs the next: translation calls itself.
const MAX_CONDITIONALS: usize = 100;
/// Deepest nesting of blocks; programs that nest deeper are not read.
const MAX_BLOCKS: usize = 48;

/// A graph, or one call of a function.
pub(super) struct Scope<'g> {
    pub(super) graph: &'g Graph,
    regions: Rc<Regions>,
    /// The number of blocks around.
    base: usize,
    pub(super) id: usize,
    pub(super) calls: usize,
    pub(super) args: Vec<Meaning>,
    /// The nodes that others wait for and that may fail.
    awaited: OnceCell<Rc<Vec<NodeId>>>,
    /// The Merges of conditionals, by predicate.
    merges: OnceCell<FxHashMap<Output, Rc<Vec<NodeId>>>>,
    /// The Merges that some Merges need.
    merges_before: RefCell<FxHashMap<NodeId, FxHashSet<NodeId>>>,
    /// What outputs mean that are not translated.
    given: FxHashMap<Output, Meaning>,
}

/// The translation of one cluster. Everything returns `None` if it cannot be a program.
pub(super) struct Translator<'l> {
    pub(super) b: Builder,
    pub(super) library: &'l Library,
    n_scopes: usize,
    /// Conditionals that wait for others to be translated.
    n_conditionals: usize,
    /// Whether bodies of functions are lowered after this, which renames their nodes.
    pub(super) lowers: bool,
    /// The nodes of scopes that draw from a stream.
    pub(super) drawn: FxHashSet<(usize, NodeId)>,
}

impl<'l> Translator<'l> {
    pub(super) fn new(library: &'l Library) -> Self {
        Translator {
            b: Builder::default(),
            library,
            n_scopes: 0,
            n_conditionals: 0,
            lowers: false,
            drawn: FxHashSet::default(),
        }
    }

    /// The scope of a graph, whose blocks are within those that are open.
    pub(super) fn scope<'g>(
        &mut self,
        graph: &'g Graph,
        regions: &Rc<Regions>,
        given: FxHashMap<Output, Meaning>,
    ) -> Option<Scope<'g>> {
        self.n_scopes += 1;
        Some(Scope {
            regions: regions.clone(),
            graph,
            base: self.b.open.len().checked_sub(1)?,
            id: self.n_scopes,
            calls: 0,
            args: Vec::new(),
            awaited: OnceCell::new(),
            merges: OnceCell::new(),
            merges_before: RefCell::default(),
            given,
        })
    }

    /// The outputs of a node without regions around it, in the last open block.
    pub(super) fn alone(&mut self, node: &Node, inputs: Vec<Meaning>) -> Option<Vec<Meaning>> {
        match node.class() {
            NodeClass::Call
            | NodeClass::If
            | NodeClass::Case
            | NodeClass::While
            | NodeClass::For => self.functional(0, node, inputs),
            _ => self.op(node, &inputs),
        }
    }

    /// The meaning of an output.
    pub(super) fn meaning(&mut self, scope: &Scope, output: Output) -> Option<Meaning> {
        if let Some(given) = scope.given.get(&output) {
            return Some(given.clone());
        }
        let outputs = self.node(scope, output.node)?;
        outputs.get(output.slot as usize).cloned()
    }

    /// What is known of a node in the blocks that are open.
    fn known(&self, scope: &Scope, id: NodeId) -> Option<Outputs> {
        let depth = scope.base + scope.regions.paths.of(id)?.len();
        self.b.open.get(depth)?.known.get(&(scope.id, id)).cloned()
    }

    pub(super) fn node(&mut self, scope: &Scope, id: NodeId) -> Option<Outputs> {
        let mut todo = vec![id];
        while let Some(&id) = todo.last() {
            if self.known(scope, id).is_some() {
                todo.pop();
                continue;
            }
            let node = scope.graph.node(id);
            let inputs = match node.class() {
                // What these read belongs to other regions.
                NodeClass::Merge | NodeClass::Exit => &[],
                NodeClass::Switch => &node.inputs[..1.min(node.inputs.len())],
                _ => &node.inputs[..],
            };
            let missing = inputs
                .iter()
                .find(|i| !scope.given.contains_key(i) && self.known(scope, i.node).is_none());
            match missing {
                Some(input) if todo.len() <= scope.graph.len() => todo.push(input.node),
                Some(_) => return None,
                None => {
                    let path = scope.regions.paths.of(id)?;
                    if !self.is_open(scope, path) {
                        return None;
                    }
                    let depth = scope.base + path.len();
                    // Blocks further inside wait, still unfinished.
                    let inner = self.b.open.split_off(depth + 1);
                    let outputs = self.translate(scope, id)?;
                    self.note(scope, id, outputs)?;
                    self.b.open.extend(inner);
                }
            }
        }
        self.known(scope, id)
    }

    fn note(&mut self, scope: &Scope, id: NodeId, outputs: Vec<Meaning>) -> Option<()> {
        let depth = scope.base + scope.regions.paths.of(id)?.len();
        let open = self.b.open.get_mut(depth)?;
        open.known.insert((scope.id, id), Rc::new(outputs));
        Some(())
    }

    /// Translates what others wait for in a region, which is the last open block.
    pub(super) fn wait(&mut self, scope: &Scope, path: &[Region]) -> Option<()> {
        for &id in scope.awaited().iter() {
            if scope.regions.paths.of(id).is_some_and(|of| of == path) {
                self.node(scope, id)?;
            }
        }
        Some(())
    }

    fn is_open(&self, scope: &Scope, path: &Path) -> bool {
        path.iter().enumerate().all(|(i, region)| {
            let open = self.b.open.get(scope.base + 1 + i);
            open.is_some_and(|o| o.region == Some((scope.id, *region)))
        })
    }

    /// Translates a node whose inputs are known, into the last open block.
    fn translate(&mut self, scope: &Scope, id: NodeId) -> Option<Vec<Meaning>> {
        let node = scope.graph.node(id);
        match node.class() {
            NodeClass::Const => {
                let value = node.attrs.tensor("value").ok()?;
                if value.shape().num_elements() > MAX_ELEMENTS {
                    return self.b.range(&value.get().ok()?).map(|range| vec![range]);
                }
                let elements = self.b.tensor(&value.get().ok()?)?;
                Some(vec![Meaning::Tensor(Rc::new(elements))])
            }
            NodeClass::Arg => {
                let index = usize::try_from(node.attrs.int("index").ok()?).ok()?;
                Some(vec![scope.args.get(index)?.clone()])
            }
            NodeClass::Enter if !node.attrs.bool("is_constant").ok()? => None,
            NodeClass::Identity | NodeClass::LoopCond | NodeClass::Retval | NodeClass::Enter => {
                node.inputs
                    .iter()
                    .map(|i| self.meaning(scope, *i))
                    .collect()
            }
            NodeClass::Switch => {
                let data = self.meaning(scope, *node.inputs.first()?)?;
                Some(vec![data; node.outputs.len()])
            }
            NodeClass::Merge if self.n_conditionals < MAX_CONDITIONALS => {
                self.n_conditionals += 1;
                let outputs = self.conditional(scope, id);
                self.n_conditionals -= 1;
                outputs
            }
            NodeClass::Merge => None,
            NodeClass::Exit => {
                self.frame(scope, scope.regions.frames.of(id)?)?;
                Some(self.known(scope, id)?.to_vec())
            }
            NodeClass::Call
            | NodeClass::If
            | NodeClass::Case
            | NodeClass::While
            | NodeClass::For => {
                let inputs = node.inputs.iter().map(|i| self.meaning(scope, *i));
                let inputs: Vec<Meaning> = inputs.collect::<Option<_>>()?;
                self.functional(scope.calls, node, inputs)
            }
            _ => {
                let inputs = node.inputs.iter().map(|i| self.meaning(scope, *i));
                let inputs: Vec<Meaning> = inputs.collect::<Option<_>>()?;
                match TensorArrayOp::of(node) {
                    Some(op) => self.tensor_array_op(scope, id, op, &inputs),
                    None if draws(node) => self.random(scope, id, &inputs),
                    None => self.op(node, &inputs),
                }
            }
        }
    }

    /// Opens a block within the last one.
    pub(super) fn open(&mut self, region: Option<(usize, Region)>) -> Option<()> {
        self.b.enter(region);
        (self.b.open.len() <= MAX_BLOCKS).then_some(())
    }

    /// A conditional, with all Merges of it that do not need each other; the outputs of the one
    /// that is asked for.
    fn conditional(&mut self, scope: &Scope, id: NodeId) -> Option<Vec<Meaning>> {
        let (predicate, _) = sides(scope, id)?;
        let path = scope.regions.paths.of(id)?;
        let mut group = vec![id];
        let others = scope.merges(predicate);
        for &other in others.iter().filter(|other| **other != id) {
            let is_same =
                scope.regions.paths.of(other) == Some(path) && self.known(scope, other).is_none();
            if is_same
                && group
                    .iter()
                    .all(|m| !scope.needs(*m, other) && !scope.needs(other, *m))
            {
                group.push(other);
            }
        }
        let cond = self.meaning(scope, predicate)?.scalar(ScalarType::Bool)?;
        let mut blocks = Vec::new();
        let mut results = Vec::new();
        for on in [true, false] {
            self.open(Some((scope.id, Region::Branch(predicate, on))))?;
            let mut of_branch = Vec::new();
            for merge in &group {
                let (_, from) = sides(scope, *merge)?;
                let (_, input) = from[usize::from(on)];
                of_branch.push(self.meaning(scope, input)?);
            }
            let mut inner = path.clone();
            inner.push(Region::Branch(predicate, on));
            self.wait(scope, &inner)?;
            let insts = self.b.leave()?;
            blocks.push(ClusterBlock {
                insts,
                results: values(&of_branch),
            });
            results.push(of_branch);
        }
        let merged = self.join(cond, blocks, results)?;
        for (merge, meaning) in group.into_iter().zip(merged) {
            let mut outputs = vec![meaning];
            if scope.graph.node(merge).outputs.len() > 1 {
                let (_, from) = sides(scope, merge)?;
                let position = |on: usize| from[on].0 as i64;
                let (a, b) = (position(1), position(0));
                let (a, b) = (
                    self.b.int(ScalarType::I32, a)?,
                    self.b.int(ScalarType::I32, b)?,
                );
                let index = self.b.select(cond, a, b)?;
                outputs.push(Meaning::Tensor(Rc::new(Elements::scalar(
                    ScalarType::I32,
                    index,
                ))));
            }
            self.note(scope, merge, outputs)?;
        }
        Some(self.known(scope, id)?.to_vec())
    }

    /// Ends a conditional: `results` are those of the two blocks.
    pub(super) fn join(
        &mut self,
        cond: ValueId,
        blocks: Vec<ClusterBlock>,
        results: Vec<Vec<Meaning>>,
    ) -> Option<Vec<Meaning>> {
        let [a, b] = &results[..] else {
            return None;
        };
        let is_same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_alike(a, b));
        if !is_same {
            return None;
        }
        let merged = a.iter().map(|m| self.fresh(m));
        let merged: Vec<Meaning> = merged.collect::<Option<_>>()?;
        let [then, otherwise] = <[ClusterBlock; 2]>::try_from(blocks).ok()?;
        self.b.push(ClusterInst::If {
            outs: values(&merged),
            cond,
            then,
            otherwise,
        })?;
        Some(merged)
    }

    /// New values in the place of those of a tensor; lists stay in their arrays.
    pub(super) fn fresh(&mut self, meaning: &Meaning) -> Option<Meaning> {
        Some(match meaning {
            Meaning::Tensor(elements) => Meaning::Tensor(Rc::new(self.b.like(elements)?)),
            Meaning::List(list) => Meaning::List(self.latest(*list)?),
            Meaning::Range(_) | Meaning::Key(_) | Meaning::Counter(_) => meaning.clone(),
        })
    }

    /// A loop of Enter, Merge, Switch, NextIteration and Exit; notes what its Exits mean.
    fn frame(&mut self, scope: &Scope, frame: usize) -> Option<()> {
        let graph = scope.graph;
        let is_back = |output: Output| is_next(graph.node(output.node));
        let (mut merges, mut exits, mut conds) = (Vec::new(), Vec::new(), Vec::new());
        for (id, node) in graph
            .iter()
            .filter(|(id, _)| scope.regions.frames.of(*id) == Some(frame))
        {
            match node.class() {
                NodeClass::Merge => match node.inputs[..] {
                    [enter, next] if is_back(next) => merges.push((id, enter, next)),
                    [next, enter] if is_back(next) => merges.push((id, enter, next)),
                    _ => {}
                },
                NodeClass::Exit => exits.push((id, *node.inputs.first()?)),
                NodeClass::LoopCond => conds.push((id, *node.inputs.first()?)),
                _ => {}
            }
        }
        let [(loop_cond, cond)] = conds[..] else {
            return None;
        };
        // In a branch they could be dead.
        let mut path = scope.regions.paths.around(frame)?.clone();
        let is_in = |id: NodeId, path: &Path| {
            let own = scope.regions.paths.of(id);
            own.is_some_and(|own| path.starts_with(own))
        };
        path.push(Region::Head(frame));
        let body_path: Path = path.iter().copied().chain([Region::Body(frame)]).collect();
        let mut nexts = merges.iter().map(|(.., next)| next.node);
        if !is_in(loop_cond, &path) || !nexts.all(|next| is_in(next, &body_path)) {
            return None;
        }
        let mut first = Vec::new();
        for (_, enter, _) in &merges {
            let enter = graph.node(enter.node);
            if enter.class() != NodeClass::Enter {
                return None;
            }
            first.push(self.meaning(scope, *enter.inputs.first()?)?);
        }
        let vars = first.iter().map(|m| self.fresh(m));
        let vars: Vec<Meaning> = vars.collect::<Option<_>>()?;
        self.open(Some((scope.id, Region::Head(frame))))?;
        for ((merge, ..), var) in merges.iter().zip(&vars) {
            self.note(
                scope,
                *merge,
                vec![var.clone(); graph.node(*merge).outputs.len()],
            )?;
        }
        let goes_on = self.meaning(scope, cond)?.scalar(ScalarType::Bool)?;
        self.wait(scope, &path)?;
        let mut ends = Vec::new();
        for (_, input) in &exits {
            let data = *graph.node(input.node).inputs.first()?;
            ends.push(self.meaning(scope, data)?);
        }
        self.open(Some((scope.id, Region::Body(frame))))?;
        let mut next = Vec::new();
        for (_, _, from) in &merges {
            next.push(self.meaning(scope, *graph.node(from.node).inputs.first()?)?);
        }
        self.wait(scope, &body_path)?;
        let results = self.end_loop(&first, &vars, goes_on, &ends, &next)?;
        for ((exit, _), result) in exits.into_iter().zip(results) {
            self.note(scope, exit, vec![result])?;
        }
        Some(())
    }

    /// Ends the loop whose head and body are the last two open blocks; returns its results.
    pub(super) fn end_loop(
        &mut self,
        first: &[Meaning],
        vars: &[Meaning],
        cond: ValueId,
        ends: &[Meaning],
        next: &[Meaning],
    ) -> Option<Vec<Meaning>> {
        let is_same =
            next.len() == vars.len() && vars.iter().zip(next).all(|(a, b)| is_alike(a, b));
        if !is_same {
            return None;
        }
        let body = self.b.leave()?;
        let head = self.b.leave()?;
        // What is passed on is all that was written, and what ends the loop has not missed a write.
        let passed = next.iter().filter_map(Meaning::list);
        let all_passed = passed.map(|list| self.latest(list)).all(|l| l.is_some());
        let lists = ends.iter().zip(vars).filter_map(|(end, _)| end.list());
        let all_latest = lists.into_iter().all(|end| {
            let vars = vars.iter().filter_map(Meaning::list);
            vars.filter(|v| v.slot == end.slot)
                .all(|v| v.version == end.version)
        });
        if !all_passed || !all_latest {
            return None;
        }
        let written = |m: &Meaning| match m.list() {
            Some(list) => Some(Meaning::List(List {
                version: *self.b.versions.get(list.slot as usize)?,
                ..list
            })),
            None => Some(m.clone()),
        };
        let ends: Vec<Meaning> = ends.iter().map(written).collect::<Option<_>>()?;
        let ends = &ends[..];
        let outs = ends.iter().map(|m| self.fresh(m));
        let outs: Vec<Meaning> = outs.collect::<Option<_>>()?;
        self.b.push(ClusterInst::Loop(Box::new(ClusterLoop {
            params: values(vars),
            init: values(first),
            head,
            cond,
            exits: values(ends),
            body,
            next: values(next),
            outs: values(&outs),
        })))?;
        Some(outs)
    }
}

impl Scope<'_> {
    /// The nodes that others wait for and that may fail, which are computed even if nothing reads them.
    fn awaited(&self) -> Rc<Vec<NodeId>> {
        let find = || {
            let controls = self.graph.iter().flat_map(|(_, n)| &n.controls);
            let mut makers: Vec<NodeId> = controls.map(|c| maker(self.graph, *c)).collect();
            makers.sort_unstable();
            makers.dedup();
            makers.retain(|id| may_fail(self.graph, self.graph.node(*id)));
            Rc::new(makers)
        };
        self.awaited.get_or_init(find).clone()
    }

    /// The Merges of the conditionals on a predicate.
    fn merges(&self, predicate: Output) -> Rc<Vec<NodeId>> {
        let all = self.merges.get_or_init(|| {
            let mut all: FxHashMap<Output, Vec<NodeId>> = FxHashMap::default();
            let merges = self
                .graph
                .iter()
                .filter(|(_, n)| n.class() == NodeClass::Merge);
            for (id, _) in merges {
                if let Some((predicate, _)) = sides(self, id) {
                    all.entry(predicate).or_default().push(id);
                }
            }
            all.into_iter().map(|(p, ids)| (p, Rc::new(ids))).collect()
        });
        all.get(&predicate).cloned().unwrap_or_default()
    }

    /// Whether a Merge needs another one, by way of nodes that are to be translated.
    fn needs(&self, merge: NodeId, other: NodeId) -> bool {
        if let Some(before) = self.merges_before.borrow().get(&merge) {
            return before.contains(&other);
        }
        let mut seen = FxHashSet::default();
        let mut before = FxHashSet::default();
        let mut todo = vec![merge];
        while let Some(id) = todo.pop() {
            let node = self.graph.node(id);
            let inputs = node.inputs.iter();
            let inputs =
                inputs.filter(|i| !self.given.contains_key(i) && !is_next(self.graph.node(i.node)));
            for input in inputs.filter(|i| seen.insert(i.node)) {
                if self.graph.node(input.node).class() == NodeClass::Merge {
                    before.insert(input.node);
                    if let Some(more) = self.merges_before.borrow().get(&input.node) {
                        before.extend(more);
                        continue;
                    }
                }
                todo.push(input.node);
            }
        }
        let needs = before.contains(&other);
        self.merges_before.borrow_mut().insert(merge, before);
        needs
    }
}

fn may_fail(graph: &Graph, node: &Node) -> bool {
    match node.class() {
        NodeClass::Arg | NodeClass::Const | NodeClass::NoOp | NodeClass::Merge => false,
        NodeClass::Enter | NodeClass::Exit | NodeClass::NextIteration | NodeClass::LoopCond => {
            false
        }
        _ => !is_safe(graph, node),
    }
}

/// The predicate of a conditional's Merge, and for false and true which input comes from there.
fn sides(scope: &Scope, merge: NodeId) -> Option<(Output, [(usize, Output); 2])> {
    let node = scope.graph.node(merge);
    let [a, b] = node.inputs[..] else {
        return None;
    };
    let last = |o: Output| {
        let path = scope
            .regions
            .paths
            .after(scope.graph, &scope.regions.frames, o)?;
        match path.last() {
            Some(Region::Branch(predicate, on)) => Some((*predicate, *on)),
            _ => None,
        }
    };
    let ((p, on), (q, other)) = (last(a)?, last(b)?);
    if p != q || on == other {
        return None;
    }
    let (a, b) = ((0, a), (1, b));
    Some((p, if on { [b, a] } else { [a, b] }))
}

/// Whether two outputs are tensors of one type and shape, or the same list.
fn is_alike(a: &Meaning, b: &Meaning) -> bool {
    match (a, b) {
        (Meaning::Tensor(a), Meaning::Tensor(b)) => a.ty == b.ty && a.dims == b.dims,
        (Meaning::List(a), Meaning::List(b)) => a.slot == b.slot,
        _ => false,
    }
}

/// The values of tensors, one after another.
pub(super) fn values(all: &[Meaning]) -> Vec<ValueId> {
    let tensors = all.iter().filter_map(Meaning::tensor);
    tensors.flat_map(|t| t.values.iter().copied()).collect()
}
