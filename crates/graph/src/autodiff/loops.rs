//! Gradients of loops and conditionals made of Switch, Merge, Enter, Exit and NextIteration.

use super::Gradient;
use super::emit::{Emit, Place};
use super::walk::Walk;
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, internal, unimplemented_error};

/// What carries values of a loop into its reverse.
pub(super) struct Carrier {}

/// What was added to the loops that are reversed.
#[derive(Default)]
pub(super) struct Loops {}

impl Emit<'_, '_> {
    /// `value` as `region` sees it.
    pub(super) fn bring(&mut self, value: Output, region: usize) -> Result<Output> {
        let here = match region {
            0 => Place::Forward(self.regions[0].of),
            r => Place::Backward(r),
        };
        match self.place(value) {
            Place::Anywhere => Ok(value),
            place if place == here => Ok(value),
            _ => Err(internal!(
                "'{}' is in another loop",
                self.builder.graph.output_name(value)
            )),
        }
    }
}

impl Walk<'_, '_, '_> {
    /// The gradients of a Switch or Merge; `None` for other ops.
    pub(super) fn of_control_flow(
        &self,
        _id: NodeId,
        _node: &Node,
        _arrived: &[Option<Gradient>],
    ) -> Result<Option<Vec<Option<Gradient>>>> {
        Ok(None)
    }

    /// Writes a loop that goes through the iterations of loop `of` from the last to the first.
    pub(super) fn reverse(&mut self, _of: usize, _region: usize) -> Result<()> {
        Err(unimplemented_error!(
            "gradients of loops are not written yet"
        ))
    }
}
