//! Functions of an eager context: their calls run as graphs of one node.

use super::context::{CallDef, CallDevices, CallOutputs};
use super::{AttrValue, Attrs, Machine};
use crate::{Callable, RunOptions, Session, SessionOptions};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_compile::{Lower, Options};
use ferroflow_graph::{RUNS_EFFECTS, Signature, export_attr, op_def_of_proto};
use ferroflow_model::proto::{self, FunctionDef, FunctionDefLibrary, GraphDef, NodeDef};
use ferroflow_opdef::{FuncRef, OpDef};
use ferroflow_sync::CancelToken;
use ferroflow_tensor::{DType, Tensor};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The functions of a context, by name.
#[derive(Default)]
pub(crate) struct Functions(RwLock<BTreeMap<String, Added>>);

/// A function that was added, perhaps several times: it stays until it was removed as often.
struct Added {
    function: Arc<FunctionDef>,
    times: usize,
}

/// A call that a session runs.
pub(super) struct FunctionCall {
    session: Session,
    callable: Arc<Callable>,
    pub(super) outputs: SmallVec<[DType; 4]>,
}

/// The schema of a function.
pub(super) fn schema(function: &FunctionDef) -> Result<OpDef> {
    let signature = function.signature.as_ref();
    op_def_of_proto(signature.ok_or_else(|| invalid_argument!("the function has no signature"))?)
}

impl Functions {
    pub(super) fn add(&self, function: Arc<FunctionDef>) -> Result<()> {
        let name = schema(&function)?.name.to_string();
        if crate::registry().op(&name).is_some() {
            return Err(invalid_argument!(
                "Cannot add function '{name}' because an op with the same name already exists."
            ));
        }
        let mut functions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let added = functions.entry(name.clone()).or_insert_with(|| Added {
            function: function.clone(),
            times: 0,
        });
        if !ferroflow_graph::same_function(&added.function, &function) {
            return Err(invalid_argument!(
                "Cannot add function '{name}' because a different function with the same name already \
                 exists."
            ));
        }
        added.times += 1;
        Ok(())
    }

    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let mut functions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some(added) = functions.get_mut(name) else {
            return Err(invalid_argument!(
                "Tried to remove non-existent function '{name}'."
            ));
        };
        added.times -= 1;
        if added.times == 0 {
            functions.remove(name);
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<FunctionDef>> {
        let functions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        functions.get(name).map(|added| added.function.clone())
    }

    pub(super) fn all(&self) -> Vec<(String, Arc<FunctionDef>)> {
        let functions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let functions = functions.iter();
        functions
            .map(|(n, added)| (n.clone(), added.function.clone()))
            .collect()
    }

    /// Compiles a call of a function, or of an op that calls some; `inputs` are dtypes and devices.
    pub(super) fn call(
        &self,
        def: &CallDef,
        mut attrs: Attrs,
        (inputs, places): (&[DType], &[String]),
        machine: &Machine,
        devices: Option<&CallDevices>,
    ) -> Result<FunctionCall> {
        let schema = def.op_def();
        schema
            .complete_attrs(&mut attrs)
            .map_err(|e| e.at_node(&schema.name, &schema.name))?;
        check_inputs(schema, &attrs, inputs)?;
        let outputs = schema.output_dtypes(&attrs)?;
        let node = call_node(def, &attrs, inputs, &outputs)?;
        let name = |i: usize| format!("input_{i}");
        let mut nodes = Vec::with_capacity(inputs.len() + 1);
        for (i, dtype) in inputs.iter().enumerate() {
            let dtype = export_attr(&AttrValue::Type(*dtype))?;
            nodes.push(NodeDef {
                name: name(i),
                op: "Placeholder".to_string(),
                device: places.get(i).cloned().unwrap_or_default(),
                attr: [("dtype".to_string(), dtype)].into_iter().collect(),
                ..Default::default()
            });
        }
        nodes.push(NodeDef {
            input: (0..inputs.len()).map(name).collect(),
            ..node
        });
        let graph = GraphDef {
            node: nodes,
            library: Some(self.library()),
            ..Default::default()
        };
        let mut compile = Options::all();
        if devices.is_some() {
            // Branches and bodies may have nodes on several devices.
            compile.lower = Lower::Always;
        }
        let options = SessionOptions {
            compile,
            pool: Some(machine.pool.clone()),
            resources: machine.resources.fork_session(),
            freeze_variables: false,
            check_feed_shapes: false,
            fetches_follow_producers: true,
            devices: devices.map(|d| d.set.clone()).unwrap_or_default(),
            cluster: devices.map(|d| d.cluster.clone()),
            ..Default::default()
        };
        let session = Session::create(graph, options)?;
        let signature = Signature {
            feeds: (0..inputs.len())
                .map(|i| format!("{}:0", name(i)))
                .collect(),
            fetches: (0..outputs.len()).map(|i| format!("{CALL}:{i}")).collect(),
            targets: vec![CALL.to_string()],
        };
        let callable = session.callable(&signature)?;
        Ok(FunctionCall {
            session,
            callable,
            outputs,
        })
    }

    fn library(&self) -> FunctionDefLibrary {
        let functions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        FunctionDefLibrary {
            function: functions
                .values()
                .map(|added| (*added.function).clone())
                .collect(),
            ..Default::default()
        }
    }
}

/// The name of the node that calls.
const CALL: &str = "call";

/// The node that stands for the call, which runs the stateful nodes of its function.
fn call_node(def: &CallDef, attrs: &Attrs, inputs: &[DType], outputs: &[DType]) -> Result<NodeDef> {
    let types = |list: &[DType]| {
        let list = list.iter().map(|t| AttrValue::Type(*t)).collect();
        AttrValue::List(list)
    };
    let name = def.op_def().name.to_string();
    let (op, attrs) = match def.function() {
        None => (name, attrs.clone()),
        Some(_) => {
            let attrs = attrs.clone();
            let call = Attrs::default()
                .with("Tin", types(inputs))
                .with("Tout", types(outputs))
                .with("f", AttrValue::Func(FuncRef { name, attrs }))
                .with(RUNS_EFFECTS, AttrValue::Bool(true));
            ("StatefulPartitionedCall".to_string(), call)
        }
    };
    let attr = attrs
        .iter()
        .map(|(name, value)| Ok((name.to_string(), export_attr(value)?)))
        .collect::<Result<std::collections::HashMap<String, proto::AttrValue>>>()?;
    Ok(NodeDef {
        name: CALL.to_string(),
        op,
        attr,
        ..Default::default()
    })
}

fn check_inputs(def: &OpDef, attrs: &Attrs, inputs: &[DType]) -> Result<()> {
    let (op, expected) = (&def.name, def.input_dtypes(attrs)?);
    if expected.len() != inputs.len() {
        return Err(invalid_argument!(
            "Expects {} arguments, but {} is provided",
            expected.len(),
            inputs.len()
        ));
    }
    let mut pairs = expected.iter().zip(inputs).enumerate();
    match pairs.find(|(_, (want, got))| want != got) {
        None => Ok(()),
        Some((i, (want, got))) => Err(invalid_argument!(
            "cannot compute {op} as input #{i}(zero-based) was expected to be a {want} tensor but is a \
             {got} tensor"
        )),
    }
}

impl FunctionCall {
    pub(super) fn remote_outputs(&self) -> Vec<(usize, String)> {
        self.callable.engine.remote_fetches()
    }

    pub(super) fn run(
        &self,
        inputs: Vec<Tensor>,
        cancel: Option<&CancelToken>,
    ) -> Result<CallOutputs> {
        let options = RunOptions {
            cancel: cancel.cloned(),
            ..Default::default()
        };
        self.run_with(inputs, &options)
    }

    pub(super) fn run_with(
        &self,
        inputs: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<CallOutputs> {
        let outputs = self.session.run_callable(&self.callable, inputs, options)?;
        Ok(outputs.into_iter().collect())
    }
}
