//! Copies the bodies of functions to where they are called, and nodes to bodies of new functions.

use crate::PassCtx;
use ferroflow_base::{Result, internal};
use ferroflow_graph::{
    ARG, DeviceSpec, Function, Graph, Node, NodeClass, NodeId, Output, Patch, RETVAL,
    boundary_attrs, unique_name,
};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

/// The form of the arguments and results of a copied body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// Identity nodes, which others can wait for.
    Identities,
    /// Nothing: readers of an argument read what is passed.
    Direct,
}

/// A body that was copied.
pub(crate) struct CopiedBody {
    /// The outputs that its results are.
    pub(crate) results: Vec<Output>,
    /// The copies.
    pub(crate) nodes: Vec<NodeId>,
    /// The copy of each node of the body, or what is passed for it.
    new: Vec<Output>,
}

impl CopiedBody {
    /// The node that stands for a node of the body.
    pub(crate) fn node(&self, id: NodeId) -> NodeId {
        self.new[id.index()].node
    }
}

/// Copies bodies into one graph, with unique names of nodes and loops.
pub(crate) struct BodyCopier<'a, 'b> {
    pub(crate) ctx: &'a PassCtx<'b>,
    pub(crate) graph: &'a mut Graph,
    pub(crate) patch: Patch,
    frame_names: FxHashSet<String>,
}

/// The loop that an Enter leads into.
fn frame_name(node: &Node) -> Option<&str> {
    let is_enter = node.class() == NodeClass::Enter;
    is_enter
        .then(|| node.attrs.str("frame_name").ok())
        .flatten()
}

impl<'a, 'b> BodyCopier<'a, 'b> {
    pub(crate) fn new(ctx: &'a PassCtx<'b>, graph: &'a mut Graph) -> Self {
        let frame_names = graph.iter().filter_map(|(_, n)| frame_name(n));
        BodyCopier {
            ctx,
            frame_names: frame_names.map(str::to_string).collect(),
            graph,
            patch: Patch::new(),
        }
    }

    /// A name that no loop has.
    pub(crate) fn unique_frame(&mut self, base: &str) -> String {
        let name = unique_name(base, |name| self.frame_names.contains(name));
        self.frame_names.insert(name.clone());
        name
    }

    /// Places the nodes from `first` on, which were added for a node on `device`: what they leave open is
    /// as there.
    pub(crate) fn place_added(&mut self, first: usize, device: &str) -> Result<()> {
        if device.is_empty() {
            return Ok(());
        }
        let default = DeviceSpec::parse(device)?;
        for id in (first..self.graph.id_bound()).map(NodeId::new) {
            let own = DeviceSpec::parse(&self.graph.node(id).device)?;
            self.patch.edit(self.graph, id).device = own.or(&default).to_string();
        }
        Ok(())
    }

    /// The id of the node after those of a body that is copied next.
    pub(crate) fn id_after(&self, function: &Function, boundary: Boundary) -> NodeId {
        let n = function.graph.iter().filter(|(_, n)| !boundary.drops(n));
        NodeId::new(self.graph.id_bound() + n.count())
    }

    /// Copies the body of `function`, which is called by the node `caller` with `args`. A copy is named
    /// `CALLER/NODE`; `finish` may change each before it is added.
    pub(crate) fn copy(
        &mut self,
        function: &Function,
        caller: &str,
        args: &[Output],
        boundary: Boundary,
        finish: &mut dyn FnMut(NodeId, &Node, &mut Node),
    ) -> Result<CopiedBody> {
        let body = &function.graph;
        let mut copied = CopiedBody {
            results: Vec::new(),
            nodes: Vec::with_capacity(body.len()),
            new: vec![Output::new(NodeId::new(0), 0); body.id_bound()],
        };
        // Ids first, since loops make nodes read later ones.
        let mut next = self.graph.id_bound();
        for (id, node) in body.iter() {
            copied.new[id.index()] = match node.class() {
                NodeClass::Arg if boundary == Boundary::Direct => passed(node, args)?,
                _ => Output::new(NodeId::new(next), 0),
            };
            next += usize::from(!boundary.drops(node));
        }
        let mut results = vec![None; function.results.len()];
        let mut frames: FxHashMap<String, String> = FxHashMap::default();
        for (id, node) in body.iter() {
            let mut inputs = node.inputs.iter().map(|i| {
                let new = copied.new[i.node.index()];
                let slot = new.slot + i.slot;
                Output { slot, ..new }
            });
            if node.class() == NodeClass::Retval {
                let result = match boundary {
                    Boundary::Identities => Some(copied.new[id.index()]),
                    Boundary::Direct => inputs.next(),
                };
                if let Some(slot) = results.get_mut(index(node)?) {
                    *slot = result;
                }
            }
            if boundary.drops(node) {
                continue;
            }
            let mut copy = Node {
                name: self.graph.unique_name(&format!("{caller}/{}", node.name)),
                inputs: inputs.collect(),
                controls: node.controls.iter().map(|c| copied.node(*c)).collect(),
                ..node.clone()
            };
            self.become_identity(&mut copy, args)?;
            finish(id, node, &mut copy);
            if let Some(old) = frame_name(node) {
                let name = match frames.get(old) {
                    Some(name) => name.clone(),
                    None => self.unique_frame(&format!("{caller}/{old}")),
                };
                copy.attrs.set("frame_name", AttrValue::str(&name));
                frames.insert(old.to_string(), name);
            }
            copied.nodes.push(self.patch.add(self.graph, copy)?);
        }
        let results: Option<Vec<Output>> = results.into_iter().collect();
        copied.results = results.ok_or_else(|| internal!("a function lacks a result"))?;
        Ok(copied)
    }

    /// Makes the copy of an argument or result an Identity.
    fn become_identity(&self, copy: &mut Node, args: &[Output]) -> Result<()> {
        let class = copy.class();
        if let NodeClass::Arg | NodeClass::Retval = class {
            let dtype = copy.attrs.dtype("T")?;
            if class == NodeClass::Arg {
                copy.inputs.push(passed(copy, args)?);
            }
            copy.def = self.ctx.def("Identity")?;
            copy.attrs = Attrs::default().with("T", AttrValue::Type(dtype));
            copy.outputs = smallvec::smallvec![dtype];
        }
        Ok(())
    }
}

impl Boundary {
    /// Whether a node of a body has no copy.
    fn drops(self, node: &Node) -> bool {
        self == Boundary::Direct && matches!(node.class(), NodeClass::Arg | NodeClass::Retval)
    }
}

fn index(node: &Node) -> Result<usize> {
    let index = usize::try_from(node.attrs.int("index")?);
    index.map_err(|_| internal!("'{}' has a negative index", node.name))
}

/// The output that is passed for an argument.
fn passed(arg: &Node, args: &[Output]) -> Result<Output> {
    let passed = args.get(index(arg)?).copied();
    passed.ok_or_else(|| internal!("nothing is passed for '{}'", arg.name))
}

/// The body of a new function, of nodes of a graph.
pub(crate) struct NewBody<'a, 'b> {
    ctx: &'a PassCtx<'b>,
    graph: &'a Graph,
    body: Graph,
    patch: Patch,
    args: Vec<Output>,
    /// The number of the argument that stands for an output of the graph.
    passed: &'a FxHashMap<Output, usize>,
    copies: FxHashMap<NodeId, NodeId>,
    n_results: usize,
}

impl<'a, 'b> NewBody<'a, 'b> {
    /// A body with arguments of these dtypes, some of which are `passed` for outputs of `graph`.
    pub(crate) fn new(
        ctx: &'a PassCtx<'b>,
        graph: &'a Graph,
        dtypes: &[DType],
        passed: &'a FxHashMap<Output, usize>,
    ) -> Result<Self> {
        let mut new = NewBody {
            ctx,
            graph,
            body: Graph::new(),
            patch: Patch::new(),
            args: Vec::with_capacity(dtypes.len()),
            passed,
            copies: FxHashMap::default(),
            n_results: 0,
        };
        new.body.producer = graph.producer;
        for (i, dtype) in dtypes.iter().enumerate() {
            let name = graph.unique_name(&format!("_arg_{i}"));
            let arg = ctx.node(name, ARG, boundary_attrs(*dtype, i), &[], &[])?;
            let arg = new.patch.add(&mut new.body, arg)?;
            new.args.push(Output::new(arg, 0));
        }
        Ok(new)
    }

    /// Copies nodes of the graph; `finish` may change each before it is added. They wait for each other only.
    pub(crate) fn copy(&mut self, nodes: &[NodeId], finish: impl Fn(&mut Node)) -> Result<()> {
        // Ids first, since loops make nodes read later ones.
        let first = self.body.id_bound();
        let ids = (first..).map(NodeId::new);
        self.copies.extend(nodes.iter().copied().zip(ids));
        for id in nodes {
            let node = self.graph.node(*id);
            let inputs = node.inputs.iter().map(|input| self.output(*input));
            let inputs: Option<_> = inputs.collect();
            let mut copy = Node {
                inputs: inputs
                    .ok_or_else(|| internal!("an input of '{}' is missing", node.name))?,
                controls: self.copies_of(&node.controls).collect(),
                ..node.clone()
            };
            finish(&mut copy);
            self.patch.add(&mut self.body, copy)?;
        }
        Ok(())
    }

    /// The argument of this number.
    pub(crate) fn arg(&self, i: usize) -> Output {
        self.args[i]
    }

    /// What stands for an output of the graph.
    pub(crate) fn output(&self, output: Output) -> Option<Output> {
        match self.passed.get(&output) {
            Some(arg) => Some(self.args[*arg]),
            None => self.copies.get(&output.node).map(|copy| Output {
                node: *copy,
                ..output
            }),
        }
    }

    /// The copies of those of the nodes that have one.
    pub(crate) fn copies_of(&self, nodes: &[NodeId]) -> impl Iterator<Item = NodeId> {
        nodes.iter().filter_map(|id| self.copies.get(id).copied())
    }

    /// Adds the next result, which waits for the copies of `awaited`.
    pub(crate) fn result(&mut self, output: Output, awaited: &[NodeId]) -> Result<()> {
        let dtype = self.body.dtype(output);
        let dtype = dtype.ok_or_else(|| internal!("a result without dtype"))?;
        let name = self
            .graph
            .unique_name(&format!("_retval_{}", self.n_results));
        let attrs = boundary_attrs(dtype, self.n_results);
        let awaited: Vec<NodeId> = self.copies_of(awaited).collect();
        let node = self.ctx.node(name, RETVAL, attrs, &[output], &awaited)?;
        self.patch.add(&mut self.body, node)?;
        self.n_results += 1;
        Ok(())
    }

    /// The function, which runs the copies of `effects` whether its results need them or not.
    pub(crate) fn finish(mut self, effects: &[NodeId]) -> Result<Function> {
        let effects = self.copies_of(effects).collect();
        self.patch.apply(&mut self.body);
        Function::with_effects(self.body, effects)
    }
}
