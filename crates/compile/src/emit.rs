//! Graph → plan: builds every kernel once, hands it its constants.

use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_graph::{ARG, Graph, NodeId, RETVAL, topological_order};
use ferroflow_opdef::{KernelBuild, NodeInfo, Registry};
use ferroflow_program::{Action, BuildNode, NodeIdx, Plan, PlanBuilder, Source};
use ferroflow_tensor::{DType, LazyTensor};
use rustc_hash::FxHashMap;

/// Emits the plan of a pruned graph.
///
/// A constant that every reader absorbed when its kernel was built leaves no trace in the plan, and
/// its pages of the model file are given back at once.
pub fn emit(graph: &Graph, registry: &Registry) -> Result<Plan> {
    let mut emitter = Emitter {
        graph,
        registry,
        builder: PlanBuilder::new(),
        idx: vec![None; graph.id_bound()],
        consts: FxHashMap::default(),
        n_args: 0,
        n_results: 0,
    };
    for id in topological_order(graph)? {
        let node = graph.node(id);
        emitter
            .node(id)
            .map_err(|e| e.at_node(&node.name, node.op()))?;
    }
    emitter.builder.finish(emitter.n_args, emitter.n_results)
}

struct Emitter<'a> {
    graph: &'a Graph,
    registry: &'a Registry,
    builder: PlanBuilder,
    idx: Vec<Option<NodeIdx>>,
    consts: FxHashMap<NodeId, u32>,
    n_args: usize,
    n_results: usize,
}

impl Emitter<'_> {
    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        if node.op() == "Const" {
            return Ok(());
        }
        let constants: Vec<Option<LazyTensor>> = node
            .inputs
            .iter()
            .map(|i| {
                let source = self.graph.node(i.node);
                (source.op() == "Const")
                    .then(|| source.attrs.tensor("value").cloned())
                    .transpose()
            })
            .collect::<Result<_>>()?;
        let index = || {
            node.attrs.int("index").and_then(|i| {
                usize::try_from(i).map_err(|_| internal!("index {i} of {} is negative", node.name))
            })
        };
        let op = self
            .registry
            .op(node.op())
            .ok_or_else(|| internal!("op {} vanished from the registry", node.op()))?;
        let action = match node.op() {
            ARG => {
                self.n_args = self.n_args.max(index()? + 1);
                Action::Arg(index()? as u32)
            }
            RETVAL => {
                self.n_results = self.n_results.max(index()? + 1);
                if let Some(Some(_)) = constants.first() {
                    let constant = self.constant(node.inputs[0].node)?;
                    self.builder.constant_result(index()? as u32, constant);
                    return Ok(());
                }
                Action::Retval(index()? as u32)
            }
            _ => {
                let factory = op.kernel.ok_or_else(|| {
                    unimplemented_error!("No OpKernel was registered to support Op '{}'", node.op())
                })?;
                let inputs: Vec<DType> = node
                    .inputs
                    .iter()
                    .filter_map(|i| self.graph.dtype(*i))
                    .collect();
                Action::Kernel(factory(&KernelBuild {
                    node: &node.name,
                    def: &node.def,
                    attrs: &node.attrs,
                    inputs: &inputs,
                    outputs: &node.outputs,
                    constants: &constants,
                })?)
            }
        };
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (i, input) in node.inputs.iter().enumerate() {
            inputs.push(match &constants[i] {
                Some(value) => match &action {
                    Action::Kernel(kernel) if kernel.absorbs(i) => {
                        value.release();
                        Source::Nothing
                    }
                    _ => Source::Const(self.constant(input.node)?),
                },
                None => Source::Node(self.emitted(input.node)?, input.slot as u16),
            });
        }
        let mut controls = Vec::with_capacity(node.controls.len());
        for control in &node.controls {
            // Constants are there before the step begins.
            if self.graph.node(*control).op() != "Const" {
                controls.push(self.emitted(*control)?);
            }
        }
        let info = NodeInfo {
            name: node.name.clone(),
            op: node.op().to_string(),
        };
        let n_outputs = node.outputs.len();
        let idx = self.builder.add(BuildNode {
            info,
            action,
            inputs,
            controls,
            n_outputs,
            cost: op.cost,
        });
        self.idx[id.index()] = Some(idx);
        Ok(())
    }

    fn emitted(&self, id: NodeId) -> Result<NodeIdx> {
        self.idx[id.index()]
            .ok_or_else(|| internal!("'{}' was not emitted yet", self.graph.node(id).name))
    }

    fn constant(&mut self, id: NodeId) -> Result<u32> {
        if let Some(&c) = self.consts.get(&id) {
            return Ok(c);
        }
        let c = self
            .builder
            .constant(self.graph.node(id).attrs.tensor("value")?.get()?);
        self.consts.insert(id, c);
        Ok(c)
    }
}
