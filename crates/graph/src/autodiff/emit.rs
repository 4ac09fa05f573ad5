//! The graph that gradient functions write to.

use crate::builder::{infer_attrs, split_args};
use crate::{Frames, GraphBuilder, Node, NodeId, Output, ShapeMap, integers};
use ferroflow_base::{Result, Status, internal};
use ferroflow_opdef::{AttrValue, Attrs, Expr, GradientGraph, NodeClass};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::{RefCell, RefMut};

/// Constants of at most this many bytes are made once for each value.
const MAX_SHARED: usize = 256;

/// The place of a node's outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeScope {
    /// In the graph itself or a loop of it.
    Forward(Option<usize>),
    /// In a loop that computes gradients, by its position in [`Emit::regions`].
    Backward(usize),
    /// A constant, which may be read everywhere.
    Anywhere,
}

/// A part of the graph that gradient nodes are added to: the one that was asked (position 0), or a
/// loop that is passed in reverse.
pub(super) struct Region {
    /// The region around the loop.
    pub(super) parent: usize,
    /// The loop that is reversed; for region 0 the one that contains the request.
    pub(super) of: Option<usize>,
    /// The node that nodes without inputs from the region wait for.
    pub(super) pivot: Option<NodeId>,
    /// The loop, unless this is the part that was asked.
    pub(super) frame: Option<super::loops::LoopFrame>,
    /// Values from elsewhere, and what they are here.
    pub(super) inside: FxHashMap<Output, Output>,
}

/// The growing graph.
pub(super) struct Emit<'a, 'r> {
    pub(super) builder: &'a mut GraphBuilder<'r>,
    pub(super) frames: Frames,
    pub(super) shapes: ShapeMap,
    pub(super) regions: Vec<Region>,
    /// The region that nodes are added to.
    pub(super) region: usize,
    /// The prefix of names of new nodes.
    pub(super) prefix: String,
    /// The scope of all new nodes, without the last `/`.
    pub(super) scope: String,
    pub(super) loops: super::loops::Loops,
    n_old: usize,
    places: Vec<NodeScope>,
    constants: FxHashMap<(DType, Vec<usize>, Vec<u8>), Output>,
    error: Option<Status>,
}

impl<'a, 'r> Emit<'a, 'r> {
    pub(super) fn new(
        builder: &'a mut GraphBuilder<'r>,
        frames: Frames,
        shapes: ShapeMap,
        scope: String,
        base: Option<usize>,
        pivot: Option<NodeId>,
    ) -> Self {
        let n_old = builder.graph.id_bound();
        Emit {
            builder,
            loops: super::loops::Loops::default(),
            frames,
            shapes,
            regions: vec![Region {
                parent: 0,
                of: base,
                pivot,
                frame: None,
                inside: FxHashMap::default(),
            }],
            region: 0,
            prefix: String::new(),
            scope,
            n_old,
            places: Vec::new(),
            constants: FxHashMap::default(),
            error: None,
        }
    }

    /// The place of `value`.
    pub(super) fn place(&self, value: Output) -> NodeScope {
        match value.node.index().checked_sub(self.n_old) {
            Some(new) => self.places.get(new).copied().unwrap_or(NodeScope::Anywhere),
            None => {
                let node = self.builder.graph.node(value.node);
                if node.is_free_constant() {
                    return NodeScope::Anywhere;
                }
                NodeScope::Forward(self.frames.after(&self.builder.graph, value.node))
            }
        }
    }

    /// A name under the request's scope that no node has.
    fn name(&self, op: &str) -> String {
        let base = match self.prefix.is_empty() {
            true => format!("{}/{op}", self.scope),
            false => format!("{}/{}/{op}", self.scope, self.prefix),
        };
        self.builder.graph.unique_name(&base)
    }

    /// Adds a node whose outputs are in `place`; its inputs are available there.
    pub(super) fn add_at(
        &mut self,
        place: NodeScope,
        op: &str,
        inputs: &[Output],
        mut attrs: Attrs,
        controls: &[NodeId],
    ) -> Result<NodeId> {
        let def = self.builder.def(op)?;
        let args = split_args(&def, inputs, &attrs)?;
        infer_attrs(self.builder, &def, &args, &mut attrs)?;
        def.complete_attrs(&mut attrs)?;
        let outputs = def.output_dtypes(&attrs)?;
        let node = Node {
            name: self.name(op),
            def,
            attrs,
            inputs: SmallVec::from_slice(inputs),
            controls: SmallVec::from_slice(controls),
            device: self.builder.device.clone(),
            outputs,
        };
        let home = self.builder.current;
        let id = self.builder.add_raw(node, home)?;
        let new = id.index().checked_sub(self.n_old);
        let new = new.ok_or_else(|| internal!("a new node has an old number"))?;
        self.places.resize(new + 1, NodeScope::Anywhere);
        self.places[new] = place;
        Ok(id)
    }

    /// Makes a node another one with at least the same outputs.
    pub(super) fn replace(&mut self, id: NodeId, node: Node) {
        let old = self.builder.graph.node(id).clone();
        self.builder.changed.push((id, old));
        self.builder.graph.replace(id, node);
    }

    /// Adds a node here; inputs from elsewhere are brought in.
    fn add_here(
        &mut self,
        op: &str,
        inputs: &[Output],
        attrs: Attrs,
        controls: &[NodeId],
    ) -> Result<NodeId> {
        let mut brought: SmallVec<[Output; 4]> = SmallVec::new();
        for input in inputs {
            brought.push(self.bring(*input, self.region)?);
        }
        let mut controls: SmallVec<[NodeId; 2]> = SmallVec::from_slice(controls);
        let floats = |o: &Output| self.place(*o) == NodeScope::Anywhere;
        if brought.iter().all(floats) && controls.is_empty() && op != "Const" {
            controls.extend(self.regions[self.region].pivot);
        }
        self.add_at(self.place_of(self.region), op, &brought, attrs, &controls)
    }

    pub(super) fn add_constant(&mut self, value: Tensor) -> Result<Output> {
        let key = match value.bytes() {
            Ok(bytes) if bytes.len() <= MAX_SHARED => {
                let dims = value.shape().dims().to_vec();
                Some((value.dtype(), dims, bytes.to_vec()))
            }
            _ => None,
        };
        if let Some(known) = key.as_ref().and_then(|k| self.constants.get(k)) {
            return Ok(*known);
        }
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(value.dtype()))
            .with("value", AttrValue::Tensor(value.into()));
        let prefix = std::mem::take(&mut self.prefix);
        let id = self.add_at(NodeScope::Anywhere, "Const", &[], attrs, &[]);
        self.prefix = prefix;
        let constant = Output::new(id?, 0);
        if let Some(key) = key {
            self.constants.insert(key, constant);
        }
        Ok(constant)
    }

    /// Copies constants that new nodes in loops read into the loops: engines that check frames, as
    /// TensorFlow's does, accept no others.
    pub(super) fn pin_constants(&mut self) -> Result<()> {
        let mut pinned: FxHashMap<(Output, NodeId), Output> = FxHashMap::default();
        for new in 0..self.places.len() {
            let (id, place) = (NodeId::new(self.n_old + new), self.places[new]);
            let graph = &self.builder.graph;
            let Some(node) = graph.get(id).cloned() else {
                continue;
            };
            if matches!(place, NodeScope::Anywhere | NodeScope::Forward(None))
                || node.class() == NodeClass::Enter
            {
                continue;
            }
            let floats: SmallVec<[bool; 4]> = (node.inputs.iter())
                .map(|i| graph.node(i.node).is_free_constant())
                .collect();
            // Something that is alive where the node is.
            let bound = node
                .inputs
                .iter()
                .zip(&floats)
                .find(|(_, floats)| !**floats);
            let bound = bound
                .map(|(i, _)| i.node)
                .or(node.controls.first().copied());
            let Some(bound) = bound else {
                continue;
            };
            for (slot, input) in node.inputs.iter().enumerate().filter(|(i, _)| floats[*i]) {
                let own = match pinned.get(&(*input, bound)) {
                    Some(own) => *own,
                    None => {
                        let attrs = self.builder.graph.node(input.node).attrs.clone();
                        let own = self.add_at(place, "Const", &[], attrs, &[bound])?;
                        pinned.insert((*input, bound), Output::new(own, 0));
                        Output::new(own, 0)
                    }
                };
                self.builder.graph.set_input(id, slot, own);
            }
        }
        Ok(())
    }

    /// The value of a constant.
    pub(super) fn constant_value(&self, value: Output) -> Option<Tensor> {
        let node = self.builder.graph.get(value.node)?;
        match node.op() {
            "Const" => node.attrs.tensor("value").ok()?.get().ok(),
            _ => None,
        }
    }

    fn held_shape(&self, value: Output) -> Option<PartialShape> {
        if let Some(t) = self.constant_value(value) {
            let known = integers(&t)?.into_iter().map(|d| usize::try_from(d).ok());
            return Some(PartialShape::of(known));
        }
        let node = self.builder.graph.get(value.node)?;
        match node.op() {
            "Shape" => Some(self.shapes.get(*node.inputs.first()?)),
            _ => None,
        }
    }
}

/// [`Emit`] as gradient functions see it.
pub(super) struct Emitter<'a, 'r>(RefCell<Emit<'a, 'r>>);

impl<'a, 'r> Emitter<'a, 'r> {
    pub(super) fn new(emit: Emit<'a, 'r>) -> Self {
        Emitter(RefCell::new(emit))
    }

    /// The graph; not while an expression is being written.
    pub(super) fn emit(&self) -> RefMut<'_, Emit<'a, 'r>> {
        self.0.borrow_mut()
    }

    /// The value as an expression.
    pub(super) fn expr(&self, value: Output) -> Expr<'_> {
        Expr::new(self, value)
    }

    /// The first error since the last call.
    pub(super) fn check(&self) -> Result<()> {
        self.emit().error.take().map_or(Ok(()), Err)
    }

    /// Nodes that are added from now on are in this region, their names under this prefix.
    pub(super) fn turn_to(&self, region: usize, prefix: &str) {
        let mut emit = self.emit();
        emit.region = region;
        emit.prefix.clear();
        emit.prefix.push_str(prefix);
    }
}

impl GradientGraph for Emitter<'_, '_> {
    fn add(
        &self,
        op: &str,
        inputs: &[Output],
        attrs: Attrs,
        controls: &[NodeId],
    ) -> Result<Vec<Output>> {
        let mut emit = self.emit();
        let id = emit.add_here(op, inputs, attrs, controls)?;
        let n = emit.builder.graph.node(id).outputs.len();
        Ok((0..n).map(|slot| Output::new(id, slot)).collect())
    }

    fn constant(&self, value: Tensor) -> Result<Output> {
        self.emit().add_constant(value)
    }

    fn dtype(&self, value: Output) -> Option<DType> {
        self.emit().builder.graph.dtype(value)
    }

    fn shape(&self, value: Output) -> PartialShape {
        let emit = self.emit();
        match emit.constant_value(value) {
            Some(t) => PartialShape::from(t.shape()),
            None => emit.shapes.get(value),
        }
    }

    fn value(&self, value: Output) -> Option<Tensor> {
        self.emit().constant_value(value)
    }

    fn held_shape(&self, value: Output) -> Option<PartialShape> {
        self.emit().held_shape(value)
    }

    fn fail(&self, error: Status) {
        let mut emit = self.emit();
        emit.error.get_or_insert(error);
    }

    fn source(&self) -> String {
        self.emit().scope.clone()
    }
}
