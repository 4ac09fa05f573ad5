//! Constants in the place of reads.

use super::handles::{CallSite, Handles};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{Function, Graph, Node, NodeClass, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs, Registry};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;

/// The values of variables, by number.
pub(super) struct Replacement<'a, 'g> {
    pub(super) handles: &'a Handles<'g>,
    pub(super) values: &'a FxHashMap<usize, Tensor>,
    pub(super) registry: &'a Registry,
}

/// The type of what is passed on in the place of a handle; nothing reads it.
const PLACE: DType = DType::Int32;

impl Replacement<'_, '_> {
    /// Returns the changes to the graph and its functions.
    pub(super) fn patch(&self, graph: &Graph) -> Result<Patch> {
        let mut patches: Vec<Patch> = self.handles.scopes.iter().map(|_| Patch::new()).collect();
        let mut is_changed: Vec<bool> = vec![false; patches.len()];
        for (number, value) in self.values {
            for (scope, id) in &self.handles.variables[*number].reads {
                self.put(&mut patches[*scope], *scope, *id, value)?;
                is_changed[*scope] = true;
            }
        }
        for ((scope, output), number) in &self.handles.of {
            if self.values.contains_key(number) && self.handles.variables[*number].is_passed {
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

    /// Puts a constant with the name and the controls of a node in its place.
    fn put(&self, patch: &mut Patch, scope: usize, id: NodeId, value: &Tensor) -> Result<()> {
        let mut attrs = Attrs::default();
        attrs.set("dtype", AttrValue::Type(value.dtype()));
        attrs.set("value", AttrValue::Tensor(value.clone().into()));
        let def = self.registry.def("Const")?;
        let node = patch.edit(self.handles.scopes[scope].graph, id);
        node.def = def.ok_or_else(|| internal!("the op Const is not registered"))?;
        node.attrs = attrs;
        node.inputs.clear();
        node.outputs = [value.dtype()].into_iter().collect();
        Ok(())
    }

    /// Lets an output and its readers pass on a number in the place of a handle.
    fn remove_handle(&self, patch: &mut Patch, scope: usize, output: Output) -> Result<()> {
        let graph = self.handles.scopes[scope].graph;
        match graph.node(output.node).class() {
            NodeClass::VarHandle => {
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
            if let Some(call) = CallSite::of(node) {
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
