//! Plans for the shapes of a signature's feeds.

use super::compile::Placed;
use super::{Engine, Session, registry};
use crate::callable::Callable;
use crate::freeze::Freeze;
use crate::shape_classes::{ShapeClasses, is_worthwhile};
use ferroflow_base::Result;
use ferroflow_compile::compile_if;
use ferroflow_executor::Executor;
use ferroflow_graph::{ARG, Patch};
use ferroflow_opdef::AttrValue;
use ferroflow_program::Body;
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// The most bytes of constants of a signature that gets plans for the shapes of its feeds, which have copies of them.
const MAX_CONSTANTS: usize = 16 << 20;

impl Session {
    /// Makes a plan for feeds of the shapes of `args`; returns what runs the step.
    #[cold]
    pub(super) fn specialize<'a>(
        &self,
        callable: &'a Callable,
        classes: &'a ShapeClasses,
        args: &[Tensor],
    ) -> &'a Engine {
        let _one = self.compiled.alone();
        // A graph that contradicts the shapes fails, if at all, where it did before.
        let engine = self.engine_for(callable, args).ok().flatten();
        classes.add(args, engine.filter(|_| callable.frozen.holds()));
        classes.find(args).flatten().unwrap_or(&callable.engine)
    }

    /// The engine of a callable for feeds of the shapes of `args`, if it pays.
    fn engine_for(&self, callable: &Callable, args: &[Tensor]) -> Result<Option<Engine>> {
        let Engine::One(general) = &callable.engine else {
            return Ok(None);
        };
        if !callable.has_shapes_of(args) {
            return Ok(None);
        }
        let mut expanded = self.expanded(&callable.signature, &callable.connections)?;
        let mut patch = Patch::new();
        let graph = expanded.graph();
        let feeds = graph.iter().filter(|(_, n)| n.op() == ARG);
        for ((id, _), arg) in feeds.zip(args) {
            let shape = AttrValue::Shape(arg.shape().into());
            patch.edit(graph, id).attrs.set("_shape", shape);
        }
        expanded.apply(patch);
        // A variable that was not initialized then is not checked before each step.
        if !self
            .freeze(&mut expanded, Freeze::Variables)?
            .is(&callable.frozen)
        {
            return Ok(None);
        }
        let constants = expanded.graph().iter().filter_map(|(_, n)| {
            let value = n.attrs.tensor("value").ok()?;
            Some(value.shape().num_elements() * value.dtype().size())
        });
        if constants.sum::<usize>() > MAX_CONSTANTS {
            return Ok(None);
        }
        let Placed::One(graph) = self.place(expanded)? else {
            return Ok(None);
        };
        let (graph, kept) = (self.rewrite_part(graph)?, self.op_segment()?);
        let pays = |body: &Body| is_worthwhile(general.plan(), body);
        let plan = compile_if(graph, registry(), &self.options.compile, &kept, pays)?;
        Ok(plan.map(|plan| Engine::One(Executor::new(Arc::new(plan)))))
    }
}
