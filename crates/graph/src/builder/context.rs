//! Routing of values into branches and loops.

use super::GraphBuilder;
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{AttrValue, Attrs};
use rustc_hash::FxHashMap;

pub(super) enum Kind {
    /// One side of a conditional.
    Branch {
        /// The predicate in the outer context.
        pred: Output,
        /// The side.
        side: bool,
    },
    /// The inside of a loop.
    Loop { frame: String, parallel: i64 },
}

/// A branch or the inside of a loop.
pub(super) struct Context {
    pub(super) kind: Kind,
    pub(super) parent: Option<usize>,
    /// The node that nodes without inputs wait for.
    pub(super) pivot: NodeId,
    /// Outer values, and what they are inside.
    pub(super) inside: FxHashMap<Output, Output>,
}

impl GraphBuilder<'_> {
    /// The node that a node without inputs waits for in the current context.
    pub(super) fn pivot(&self) -> Option<NodeId> {
        self.current.map(|c| self.contexts[c].pivot)
    }

    fn home(&self, node: NodeId) -> Option<usize> {
        self.context_of.get(node.index()).copied().flatten()
    }

    /// Whether context `c` is `of` or inside it.
    fn is_within(&self, mut c: Option<usize>, of: Option<usize>) -> bool {
        loop {
            if c == of {
                return true;
            }
            match c {
                Some(i) => c = self.contexts[i].parent,
                None => return false,
            }
        }
    }

    /// `value` as context `to` sees it.
    pub(crate) fn route(&mut self, value: Output, to: Option<usize>) -> Result<Output> {
        let home = self.home(value.node);
        if home == to {
            return Ok(value);
        }
        let Some(context) = to.filter(|_| self.is_within(to, home)) else {
            return Err(invalid_argument!(
                "'{}' is inside a branch or loop and can be used there only; return it from there",
                self.graph.output_name(value)
            ));
        };
        if let Some(inside) = self.contexts[context].inside.get(&value) {
            return Ok(*inside);
        }
        let parent = self.contexts[context].parent;
        let outer = self.route(value, parent)?;
        let dtype = self.dtype(outer)?;
        let base = self.graph.node(value.node).name.clone();
        let of_type = Attrs::default().with("T", AttrValue::Type(dtype));
        let inside = match &self.contexts[context].kind {
            Kind::Branch { pred, side } => {
                let (pred, slot) = (*pred, usize::from(*side));
                let name = format!("{base}/Switch");
                let switch = self.add_plain("Switch", &name, &[outer, pred], of_type, to)?;
                Output::new(switch.node, slot)
            }
            Kind::Loop { frame, parallel } => {
                let attrs = of_type
                    .with("frame_name", AttrValue::str(frame))
                    .with("is_constant", AttrValue::Bool(true))
                    .with("parallel_iterations", AttrValue::Int(*parallel));
                let name = format!("{base}/Enter");
                self.add_plain("Enter", &name, &[outer], attrs, to)?
            }
        };
        self.contexts[context].inside.insert(value, inside);
        Ok(inside)
    }

    /// The node to wait for in context `to` instead of an outer one.
    pub(super) fn route_control(&mut self, node: NodeId, to: Option<usize>) -> Result<NodeId> {
        let home = self.home(node);
        if home == to {
            return Ok(node);
        }
        match to {
            // Outer nodes come in as values; the pivot waits for all of those.
            Some(context) if self.is_within(to, home) => Ok(self.contexts[context].pivot),
            _ => Err(invalid_argument!(
                "'{}' is inside a branch or loop; only nodes there can wait for it",
                self.graph.node(node).name
            )),
        }
    }

    /// Adds a node without routing, whose outputs are in `home`; returns the first.
    pub(super) fn add_plain(
        &mut self,
        op: &str,
        name: &str,
        inputs: &[Output],
        attrs: Attrs,
        home: Option<usize>,
    ) -> Result<Output> {
        let name = self.graph.unique_name(name);
        let mut node = Node::new(self.registry, name, op, attrs, inputs, &[])?;
        node.device = self.device.clone();
        Ok(Output::new(self.add_raw(node, home)?, 0))
    }

    /// Runs `f` inside a context.
    pub(super) fn inside<T>(
        &mut self,
        context: usize,
        f: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outer = self.current.replace(context);
        // Control dependencies from outside hold by the pivot.
        let controls = std::mem::take(&mut self.controls);
        let result = f(self);
        self.controls = controls;
        self.current = outer;
        result
    }
}
