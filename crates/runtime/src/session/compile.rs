//! Compiling a signature: prune, expand, freeze, place, partition, optimize.

use super::partitioned::Part;
use super::{Engine, Session, registry};
use crate::callable::{Callable, Feed};
use crate::freeze::{Frozen, freeze};
use ferroflow_base::Result;
use ferroflow_compile::{ExpandedGraph, compile, expand};
use ferroflow_executor::Executor;
use ferroflow_graph::{
    Graph, Partition, PlacedGraph, PrunedGraph, Signature, TensorConnection, partition,
};
use std::sync::Arc;

/// The graphs that a signature runs.
pub(super) enum Placed {
    /// One device runs all.
    One(PlacedGraph),
    Parts(Vec<Partition>),
}

impl Session {
    pub(super) fn compile_callable(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<Callable> {
        let mut expanded = self.expanded(signature, connections)?;
        let feeds = Feed::all(expanded.graph(), signature);
        let frozen = self.freeze(&mut expanded)?;
        let engine = self.engine(expanded)?;
        let connections = connections.to_vec();
        Ok(Callable::new(engine, frozen, signature.clone(), feeds).connected(connections))
    }

    /// The engine of a callable whose variables have changed: it reads them in every step.
    #[cold]
    pub(super) fn thaw<'a>(&self, callable: &'a Callable) -> Result<&'a Engine> {
        let _one = self.compiled.alone();
        if let Some(thawed) = callable.thawed.get() {
            return Ok(thawed);
        }
        let engine = self.engine(self.expanded(&callable.signature, &callable.connections)?)?;
        Ok(callable.thawed.get_or_init(|| engine))
    }

    /// The part of the graph that a signature needs.
    pub(super) fn prune(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<PrunedGraph> {
        let current = self.current();
        current.state.prune(signature, connections, registry())
    }

    /// The part of the graph that a signature needs, with its functions expanded.
    pub(crate) fn expanded(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
    ) -> Result<ExpandedGraph> {
        expand(self.prune(signature, connections)?, registry())
    }

    /// Replaces variables that are only read by their values, if the session's options say so.
    pub(crate) fn freeze(&self, expanded: &mut ExpandedGraph) -> Result<Frozen> {
        match self.options.freeze_variables && self.options.compile.optimize {
            true => freeze(expanded, registry(), &self.options.resources),
            false => Ok(Frozen::default()),
        }
    }

    fn engine(&self, expanded: ExpandedGraph) -> Result<Engine> {
        Ok(match self.place(expanded)? {
            Placed::One(graph) => Engine::One(self.executor(graph)?),
            Placed::Parts(parts) => {
                let parts = parts.into_iter().map(|p| self.part(p));
                Engine::Parts(parts.collect::<Result<_>>()?)
            }
        })
    }

    pub(super) fn executor(&self, graph: PlacedGraph) -> Result<Arc<Executor>> {
        let plan = compile(graph, registry(), &self.options.compile)?;
        Ok(Executor::new(Arc::new(plan)))
    }

    fn part(&self, partition: Partition) -> Result<Part> {
        Ok(Part {
            device: partition.device,
            executor: self.executor(partition.graph)?,
            feeds: partition.feeds,
            fetches: partition.fetches,
        })
    }

    /// The device of each node, if the session has devices.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a node asks for a device that the session does not have.
    pub(super) fn place_nodes(&self, graph: &Graph) -> Result<Option<Vec<usize>>> {
        let devices = &self.options.devices;
        match devices.names.is_empty() {
            true => Ok(None),
            false => devices.place_nodes(graph).map(Some),
        }
    }

    /// Places a graph: one part for each device that runs something, if they are several.
    pub(super) fn place(&self, expanded: ExpandedGraph) -> Result<Placed> {
        let (graph, names) = (expanded.graph(), &self.options.devices.names);
        let parts = match self.place_nodes(graph)? {
            Some(places) => partition(graph, &places, names, registry())?,
            None => None,
        };
        Ok(match parts {
            Some(parts) => Placed::Parts(parts),
            None => Placed::One(expanded.on_one_device()),
        })
    }
}
