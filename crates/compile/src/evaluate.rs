//! Runs a single node at compile time.

use ferroflow_base::{Result, internal};
use ferroflow_graph::Node;
use ferroflow_opdef::{Attrs, PreparedOp, Registry, Resources, StepServices, Value};
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Tensor};

/// The outputs of `node` for these inputs.
pub(crate) fn evaluate(node: &Node, inputs: &[Tensor], registry: &Registry) -> Result<Vec<Tensor>> {
    let attrs = node.attrs.iter();
    let declared = attrs.filter(|(name, _)| node.def.attr(name).is_some());
    let attrs: Attrs = declared.map(|(k, v)| (k.clone(), v.clone())).collect();
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let op = PreparedOp::new(registry, node.op(), &attrs, &dtypes)?;
    let services = StepServices {
        par: &Inline,
        cancel: &CancelToken::new(),
        resources: &Resources::default(),
        functions: &(),
        step_id: 0,
    };
    let mut slots: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
    let mut outputs = vec![Value::Empty; node.outputs.len()];
    op.run(&mut slots, &mut outputs, &services)?;
    let outputs: Option<Vec<Tensor>> = outputs.into_iter().map(Value::into_tensor).collect();
    outputs.ok_or_else(|| internal!("the kernel of {} left an output unset", node.op()))
}
