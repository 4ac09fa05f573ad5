//! [`ShapeCtx`]: the context of shape functions.

use crate::Attrs;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// Inputs of shape inference for one node, and where the results go.
///
/// Outputs start as unknown; a shape function narrows what it can and reports contradictions.
pub struct ShapeCtx<'a> {
    attrs: &'a Attrs,
    inputs: &'a [PartialShape],
    dtypes: &'a [DType],
    constants: &'a [Option<Tensor>],
    shape_values: &'a [Option<Vec<Option<usize>>>],
    handles: &'a [Option<PartialShape>],
    outputs: Vec<PartialShape>,
}

impl<'a> ShapeCtx<'a> {
    /// Creates a context for a node with these inputs; `constants[i]` is the value of input `i` if
    /// known.
    pub fn new(
        attrs: &'a Attrs,
        inputs: &'a [PartialShape],
        dtypes: &'a [DType],
        constants: &'a [Option<Tensor>],
        n_outputs: usize,
    ) -> Self {
        let outputs = vec![PartialShape::unknown(); n_outputs];
        ShapeCtx {
            attrs,
            inputs,
            dtypes,
            constants,
            shape_values: &[],
            handles: &[],
            outputs,
        }
    }

    /// Adds what is known of inputs that hold shapes, such as the sizes of a Reshape: one number
    /// for each element, `None` if it depends on the step.
    #[must_use]
    pub fn with_shape_values(mut self, values: &'a [Option<Vec<Option<usize>>>]) -> Self {
        self.shape_values = values;
        self
    }

    /// Adds the shapes of the variables that inputs are handles of.
    #[must_use]
    pub fn with_handles(mut self, handles: &'a [Option<PartialShape>]) -> Self {
        self.handles = handles;
        self
    }

    /// Returns the shape of the variable that input `i` is a handle of, as far as it is known.
    pub fn handle_shape(&self, i: usize) -> PartialShape {
        let known = self.handles.get(i).cloned().flatten();
        known.unwrap_or_default()
    }

    /// Returns the shape that input `i` holds as its value, as far as it is known.
    pub fn shape_value(&self, i: usize) -> Option<&'a [Option<usize>]> {
        self.shape_values.get(i)?.as_deref()
    }

    /// Returns the node's attrs.
    pub fn attrs(&self) -> &'a Attrs {
        self.attrs
    }

    /// Returns the number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of outputs.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Returns the shape of input `i`; unknown if there is no such input.
    pub fn input(&self, i: usize) -> PartialShape {
        self.inputs.get(i).cloned().unwrap_or_default()
    }

    /// Returns the dtype of input `i`.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.dtypes.get(i).copied()
    }

    /// Returns the value of input `i` if it is a constant.
    pub fn constant(&self, i: usize) -> Option<&'a Tensor> {
        self.constants.get(i)?.as_ref()
    }

    /// Returns the value of a constant int32 or int64 input as 64-bit integers.
    pub fn constant_ints(&self, i: usize) -> Option<Vec<i64>> {
        let t = self.constant(i)?;
        match t.dtype() {
            DType::Int32 => Some(t.slice::<i32>().ok()?.iter().map(|&v| v as i64).collect()),
            DType::Int64 => Some(t.slice::<i64>().ok()?.to_vec()),
            _ => None,
        }
    }

    /// Sets the shape of output `i`.
    pub fn set(&mut self, i: usize, shape: PartialShape) {
        if let Some(slot) = self.outputs.get_mut(i) {
            *slot = shape;
        }
    }

    /// Checks that input `i`, as far as known, has rank `rank`; returns its shape with that rank.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the rank is known and differs.
    pub fn with_rank(&self, i: usize, rank: usize) -> Result<PartialShape> {
        let shape = self.input(i);
        match shape.rank() {
            None => Ok(PartialShape::of_rank(rank)),
            Some(r) if r == rank => Ok(shape),
            Some(r) => Err(invalid_argument!(
                "Shape must be rank {rank} but is rank {r} for input {i} with shape {shape}"
            )),
        }
    }

    /// Checks that input `i`, as far as known, has at least rank `rank`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the rank is known and smaller.
    pub fn with_rank_at_least(&self, i: usize, rank: usize) -> Result<PartialShape> {
        let shape = self.input(i);
        match shape.rank() {
            Some(r) if r < rank => Err(invalid_argument!(
                "Shape must be at least rank {rank} but is rank {r} for input {i} with shape {shape}"
            )),
            _ => Ok(shape),
        }
    }

    /// Merges two shapes that must agree.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they differ in a known dimension or rank.
    pub fn merge(&self, a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
        a.merge(b)
            .ok_or_else(|| invalid_argument!("Shapes {a} and {b} are not compatible"))
    }

    /// Returns the inferred output shapes.
    pub fn into_outputs(self) -> Vec<PartialShape> {
        self.outputs
    }
}
