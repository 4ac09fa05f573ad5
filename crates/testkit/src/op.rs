//! One call of an op, outside any graph.

use ferroflow_base::Result;
use ferroflow_opdef::{Attrs, PreparedOp, Registry, Resources, StepServices, Value};
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Tensor};

/// Runs an op; returns its outputs. Type attrs follow from the inputs, which the kernel may
/// overwrite if it has the only reference.
///
/// # Errors
/// Those of the op's attrs, its inputs' dtypes and its kernel.
pub fn run(
    registry: &Registry,
    op: &str,
    attrs: &Attrs,
    inputs: Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let op = PreparedOp::new(registry, op, attrs, &dtypes)?;
    let (cancel, resources) = (CancelToken::new(), Resources::default());
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    let mut values: Vec<Value> = inputs.into_iter().map(Value::Tensor).collect();
    let mut outputs = vec![Value::Empty; op.outputs().len()];
    op.run(&mut values, &mut outputs, &services)?;
    let tensor = |output: Value| output.into_tensor().expect("every output is set");
    Ok(outputs.into_iter().map(tensor).collect())
}
