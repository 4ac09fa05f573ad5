//! Constants in the place of reads.

use super::handles::{Handles, Kind};
use ferroflow_base::{Result, internal};
use ferroflow_functors::indices::int_vector;
use ferroflow_graph::{Function, Graph, Node, NodeClass, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs, OpDef, Registry};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What a variable or a table holds.
pub(super) enum Contents {
    Value(Tensor),
    Entries {
        keys: Tensor,
        values: Tensor,
        is_static: bool,
    },
}

/// The contents of variables and tables, by number.
pub(super) struct Replacement<'a, 'g> {
    pub(super) handles: &'a Handles<'g>,
    pub(super) contents: &'a FxHashMap<usize, Contents>,
    pub(super) registry: &'a Registry,
}

/// The type of what is passed on in the place of a handle; nothing reads it.
const PLACE: DType = DType::Int32;

impl Replacement<'_, '_> {
    /// Returns the changes to the graph and its functions.
    pub(super) fn patch(&self, graph: &Graph) -> Result<Patch> {
        let mut patches: Vec<Patch> = self.handles.scopes.iter().map(|_| Patch::new()).collect();
        let mut is_changed: Vec<bool> = vec![false; patches.len()];
        for (number, contents) in self.contents {
            for (scope, id) in &self.handles.variables[*number].reads {
                self.replace_read(&mut patches[*scope], *scope, *id, contents)?;
                is_changed[*scope] = true;
            }
            for (scope, id) in &self.handles.variables[*number].questions {
                if let Contents::Value(value) = contents {
                    self.answer(&mut patches[*scope], *scope, *id, value)?;
                    is_changed[*scope] = true;
                }
            }
        }
        for ((scope, output), number) in &self.handles.of {
            if self.contents.contains_key(number) && self.handles.variables[*number].is_passed {
                self.remove_handle(&mut patches[*scope], *scope, *output)?;
                is_changed[*scope] = true;
            }
        }
        let mut patches = patches.into_iter();
        let mut main = patches.next().unwrap_or_default();
        let functions = self.handles.scopes.iter().zip(is_changed).skip(1);
        for ((scope, is_changed), patch) in functions.zip(patches) {
            let (Some(name), true) = (&scope.name, is_changed) else {
                continue;
            };
            let old = graph.library().get(name)?;
            let mut body = scope.graph.clone();
            patch.apply(&mut body);
            let function = Function {
                control_results: old.control_results.clone(),
                noinline: old.noinline,
                must_compile: old.must_compile,
                ..Function::new(body)?
            };
            main.add_function(graph, name, function);
        }
        Ok(main)
    }

    fn replace_read(
        &self,
        patch: &mut Patch,
        scope: usize,
        id: NodeId,
        contents: &Contents,
    ) -> Result<()> {
        let graph = self.handles.scopes[scope].graph;
        match contents {
            Contents::Value(value) => self.put(patch, scope, id, value),
            Contents::Entries { keys, .. } if graph.node(id).op() == "LookupTableSizeV2" => {
                let size = Tensor::scalar(keys.num_elements() as i64);
                self.put(patch, scope, id, &size)
            }
            Contents::Entries {
                keys,
                values,
                is_static,
            } => {
                let node = patch.edit(graph, id);
                node.def = self.def("_FrozenTableFind")?;
                node.inputs.remove(0);
                let attrs = &mut node.attrs;
                attrs.set("table_keys", AttrValue::Tensor(keys.clone().into()));
                attrs.set("table_values", AttrValue::Tensor(values.clone().into()));
                attrs.set("is_static", AttrValue::Bool(*is_static));
                Ok(())
            }
        }
    }

    /// Answers what a node asks of a variable with this value.
    fn answer(&self, patch: &mut Patch, scope: usize, id: NodeId, value: &Tensor) -> Result<()> {
        let node = self.handles.scopes[scope].graph.node(id);
        let answer = match node.op() {
            "VariableShape" => {
                let dims = value.shape().to_i64().into_iter();
                int_vector(node.outputs[0], dims)?
            }
            _ => Tensor::scalar(true),
        };
        self.put(patch, scope, id, &answer)
    }

    fn def(&self, op: &str) -> Result<Arc<OpDef>> {
        let def = self.registry.def(op)?;
        def.ok_or_else(|| internal!("the op {op} is not registered"))
    }

    /// Puts a constant with the name and the controls of a node in its place.
    fn put(&self, patch: &mut Patch, scope: usize, id: NodeId, value: &Tensor) -> Result<()> {
        let mut attrs = Attrs::default();
        attrs.set("dtype", AttrValue::Type(value.dtype()));
        attrs.set("value", AttrValue::Tensor(value.clone().into()));
        let node = patch.edit(self.handles.scopes[scope].graph, id);
        node.def = self.def("Const")?;
        node.attrs = attrs;
        node.inputs.clear();
        node.outputs = [value.dtype()].into_iter().collect();
        Ok(())
    }

    /// Lets an output and its readers pass on a number in the place of a handle.
    fn remove_handle(&self, patch: &mut Patch, scope: usize, output: Output) -> Result<()> {
        let graph = self.handles.scopes[scope].graph;
        let node = graph.node(output.node);
        match node.class() {
            _ if Kind::of(node).is_some() => {
                self.put(patch, scope, output.node, &Tensor::scalar(0))?;
            }
            NodeClass::Arg | NodeClass::Identity => {
                let node = patch.edit(graph, output.node);
                node.attrs.set("T", AttrValue::Type(PLACE));
                node.outputs[0] = PLACE;
            }
            _ => patch.edit(graph, output.node).outputs[output.slot as usize] = PLACE,
        }
        for (id, slot) in self.handles.scopes[scope].readers(output) {
            let node = graph.node(id);
            if let Some(call) = self.handles.scopes[scope].call(id) {
                set_type(patch.edit(graph, id), call.types, slot - call.first)?;
            } else if node.class() == NodeClass::Retval {
                let node = patch.edit(graph, id);
                node.attrs.set("T", AttrValue::Type(PLACE));
            }
        }
        Ok(())
    }
}

fn set_type(node: &mut Node, attr: &'static str, at: usize) -> Result<()> {
    let mut types = node.attrs.dtypes(attr)?;
    if let Some(dtype) = types.get_mut(at) {
        *dtype = PLACE;
    }
    let types = types.into_iter().map(AttrValue::Type).collect();
    node.attrs.set(attr, AttrValue::List(types));
    Ok(())
}
