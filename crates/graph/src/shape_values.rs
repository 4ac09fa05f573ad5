//! Compile-time values of small integer tensors that hold shapes: `Shape(x)` of a partly
//! known `x`, and what graphs compute from it on the way to a Reshape.

use crate::{Graph, Node, Output, ShapeMap};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;

/// The elements of an integer tensor of rank 0 or 1, as far as they are known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShapeValue {
    pub(crate) is_scalar: bool,
    pub(crate) elements: Vec<Option<usize>>,
}

/// Longest vector that is followed.
const MAX_ELEMENTS: usize = 16;

/// The shape values of the nodes seen so far.
#[derive(Clone, Default)]
pub(crate) struct ShapeValues {
    values: FxHashMap<Output, ShapeValue>,
}

impl ShapeValues {
    /// The vector that `output` holds.
    pub(crate) fn vector(&self, graph: &Graph, output: Output) -> Option<Vec<Option<usize>>> {
        let value = self.get(graph, output)?;
        (!value.is_scalar).then_some(value.elements)
    }

    fn get(&self, graph: &Graph, output: Output) -> Option<ShapeValue> {
        match self.values.get(&output) {
            Some(value) => Some(value.clone()),
            None => constant(graph.get(output.node)?),
        }
    }

    /// Notes what the node's output holds. Its inputs were noted before.
    pub(crate) fn note(&mut self, graph: &Graph, output: Output, shapes: &ShapeMap) {
        let node = graph.node(output.node);
        if !matches!(node.outputs.first(), Some(DType::Int32 | DType::Int64)) {
            return;
        }
        if let Some(value) = self.evaluate(graph, node, shapes)
            && value.elements.len() <= MAX_ELEMENTS
        {
            self.values.insert(output, value);
        }
    }

    fn evaluate(&self, graph: &Graph, node: &Node, shapes: &ShapeMap) -> Option<ShapeValue> {
        let input = |i: usize| self.get(graph, *node.inputs.get(i)?);
        let vector = |elements| {
            Some(ShapeValue {
                is_scalar: false,
                elements,
            })
        };
        match node.op() {
            "Shape" => vector(shapes.get(*node.inputs.first()?).dims()?.to_vec()),
            "Identity" | "Cast" | "StopGradient" => input(0),
            "Pack" => {
                let parts: Vec<ShapeValue> = (0..node.inputs.len())
                    .map(|i| {
                        // An element that is not followed is unknown, but is still one element.
                        input(i).or_else(|| {
                            let shape = shapes.get(node.inputs[i]);
                            let unknown = ShapeValue {
                                is_scalar: true,
                                elements: vec![None],
                            };
                            (shape.rank() == Some(0)).then_some(unknown)
                        })
                    })
                    .collect::<Option<_>>()?;
                let scalars = parts.iter().all(|p| p.is_scalar);
                scalars
                    .then(|| parts.iter().map(|p| p.elements[0]).collect())
                    .and_then(vector)
            }
            "ConcatV2" => {
                let n = node.inputs.len().checked_sub(1)?;
                let parts: Vec<ShapeValue> = (0..n).map(input).collect::<Option<_>>()?;
                if parts.iter().any(|p| p.is_scalar) {
                    return None;
                }
                vector(parts.into_iter().flat_map(|p| p.elements).collect())
            }
            "GatherV2" => {
                let (params, indices) = (input(0)?, input(1)?);
                if input(2)?.elements != [Some(0)] || params.is_scalar {
                    return None;
                }
                let picked = indices
                    .elements
                    .iter()
                    .map(|i| params.elements.get((*i)?).copied());
                let elements = picked.collect::<Option<_>>()?;
                Some(ShapeValue {
                    is_scalar: indices.is_scalar,
                    elements,
                })
            }
            "StridedSlice" => strided_slice(node, &input(0)?, &input(1)?, &input(2)?, &input(3)?),
            "Prod" => {
                let product = input(0)?
                    .elements
                    .iter()
                    .try_fold(1usize, |n, d| n.checked_mul((*d)?));
                let keep = node.attrs.bool("keep_dims").ok()?;
                (!keep).then_some(ShapeValue {
                    is_scalar: true,
                    elements: vec![product],
                })
            }
            _ => None,
        }
    }
}

/// `x[begin:end:1]` or `x[begin]` of a vector.
fn strided_slice(
    node: &Node,
    x: &ShapeValue,
    begin: &ShapeValue,
    end: &ShapeValue,
    strides: &ShapeValue,
) -> Option<ShapeValue> {
    let mask = |name: &str| node.attrs.int(name).unwrap_or(0);
    let one = |v: &ShapeValue| match v.elements[..] {
        [v] => v,
        _ => None,
    };
    if x.is_scalar || one(strides)? != 1 || mask("ellipsis_mask") != 0 || mask("new_axis_mask") != 0
    {
        return None;
    }
    let n = x.elements.len();
    let from = if mask("begin_mask") & 1 == 1 {
        0
    } else {
        one(begin)?.min(n)
    };
    if mask("shrink_axis_mask") & 1 == 1 {
        return Some(ShapeValue {
            is_scalar: true,
            elements: vec![*x.elements.get(from)?],
        });
    }
    let to = if mask("end_mask") & 1 == 1 {
        n
    } else {
        one(end)?.min(n)
    };
    let elements = x.elements.get(from..to.max(from))?.to_vec();
    Some(ShapeValue {
        is_scalar: false,
        elements,
    })
}

/// The elements of an int32 or int64 tensor.
pub fn integers(tensor: &Tensor) -> Option<Vec<i64>> {
    match tensor.dtype() {
        DType::Int32 => {
            let values = tensor.slice::<i32>().ok()?.iter();
            Some(values.map(|v| i64::from(*v)).collect())
        }
        DType::Int64 => tensor.slice::<i64>().ok().map(<[i64]>::to_vec),
        _ => None,
    }
}

fn constant(node: &Node) -> Option<ShapeValue> {
    if node.class() != ferroflow_opdef::NodeClass::Const {
        return None;
    }
    let value = node.attrs.tensor("value").ok()?;
    if value.shape().rank() > 1 || value.shape().num_elements() > MAX_ELEMENTS {
        return None;
    }
    let elements = integers(&value.get().ok()?)?.into_iter();
    let elements = elements.map(|v| usize::try_from(v).ok()).collect();
    Some(ShapeValue {
        is_scalar: value.shape().is_scalar(),
        elements,
    })
}
