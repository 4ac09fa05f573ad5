//! Runs a single node at compile time.

use ferroflow_base::{Result, internal};
use ferroflow_graph::Node;
use ferroflow_opdef::{KernelBuild, KernelCtx, NodeInfo, Registry, Resources, StepServices, Value};
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Tensor};

/// The outputs of `node` for these inputs.
pub(crate) fn evaluate(node: &Node, inputs: &[Tensor], registry: &Registry) -> Result<Vec<Tensor>> {
    let factory = registry
        .op(node.op())
        .and_then(|op| op.kernel)
        .ok_or_else(|| internal!("op {} has no kernel", node.op()))?;
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let kernel = factory(&KernelBuild {
        node: &node.name,
        device: &node.device,
        def: &node.def,
        attrs: &node.attrs,
        inputs: &dtypes,
        outputs: &node.outputs,
        constants: &[],
    })?;
    let info = NodeInfo {
        name: node.name.clone(),
        op: node.op().to_string(),
    };
    let cancel = CancelToken::new();
    let resources = Resources::default();
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    let mut slots: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
    let mut outputs = vec![Value::Empty; node.outputs.len()];
    kernel.compute(&mut KernelCtx::new(
        &info,
        &mut slots,
        &[],
        &mut outputs,
        &services,
    ))?;
    let outputs: Option<Vec<Tensor>> = outputs.into_iter().map(Value::into_tensor).collect();
    outputs.ok_or_else(|| internal!("the kernel of {} left an output unset", node.op()))
}
