//! Shapes that a client declares.

use super::ClientGraph;
use crate::{HandleData, Output};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::PartialShape;

impl ClientGraph {
    /// Merges the inferred shape of an output with `shape`, which the client knows.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they contradict each other, or there is no such output.
    pub fn set_shape(&mut self, output: Output, shape: &PartialShape) -> Result<()> {
        let old = self.shape(output)?;
        let merged = old.merge(shape).ok_or_else(|| mismatch(&old, shape))?;
        self.refiner.set(output, merged);
        Ok(())
    }

    /// What the handle in an output refers to, if known.
    ///
    /// # Errors
    /// OUT_OF_RANGE if there is no such output.
    pub fn handle_data(&self, output: Output) -> Result<Option<Vec<HandleData>>> {
        self.dtype(output)?;
        Ok(self.refiner.handle(&self.graph, output))
    }

    /// Declares what the handle in an output refers to, for the shapes of nodes that are added later.
    ///
    /// # Errors
    /// OUT_OF_RANGE if there is no such output.
    pub fn set_handle_data(&mut self, output: Output, data: Vec<HandleData>) -> Result<()> {
        self.dtype(output)?;
        self.refiner.set_handle(output, data);
        Ok(())
    }
}

/// The error of merging shapes that differ (`core/framework/shape_inference.cc`).
fn mismatch(a: &PartialShape, b: &PartialShape) -> ferroflow_base::Status {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return invalid_argument!("Shapes {a} and {b} are not compatible");
    };
    if x.len() != y.len() {
        return invalid_argument!(
            "Shapes must be equal rank, but are {} and {}",
            x.len(),
            y.len()
        );
    }
    let differs = |(_, (x, y)): &(usize, (&Option<usize>, &Option<usize>))| matches!((x, y), (Some(x), Some(y)) if x != y);
    match x.iter().zip(y).enumerate().find(differs) {
        Some((i, (Some(x), Some(y)))) => invalid_argument!(
            "Dimension {i} in both shapes must be equal, but are {x} and {y}. Shapes are {a} and {b}."
        ),
        _ => invalid_argument!("Shapes {a} and {b} are not compatible"),
    }
}
