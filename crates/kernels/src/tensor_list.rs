//! [`TensorList`]: what a variant of the TensorList ops holds.

use crate::sequence::{merged, shape_from_tensor};
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, Variant};
use std::sync::Arc;

/// Tensors of one dtype and of shapes that fit one partial shape. A clone shares the tensors.
#[derive(Clone)]
pub struct TensorList {
    /// Dtype of the elements.
    pub dtype: DType,
    /// What is known of the shape of every element.
    pub element_shape: PartialShape,
    /// The elements; those never written are `None` and read as zeros.
    pub elements: Vec<Option<Tensor>>,
    /// The most elements that may be pushed.
    pub max_elements: Option<usize>,
}

impl TensorList {
    /// An empty list.
    pub fn new(dtype: DType, element_shape: PartialShape) -> Self {
        TensorList {
            dtype,
            element_shape,
            elements: Vec::new(),
            max_elements: None,
        }
    }

    /// The list as a variant scalar.
    pub fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_variants(Shape::scalar(), vec![self.into_variant()])
    }

    pub(crate) fn into_variant(self) -> Variant {
        Variant(Some(Arc::new(self)))
    }

    /// Checks the dtype that an op expects.
    pub(crate) fn expect_dtype(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        Err(invalid_argument!(
            "Invalid data types; op elements {dtype} but list elements {}",
            self.dtype
        ))
    }

    /// The element shape together with what input `i` says.
    pub(crate) fn shape_with(&self, ctx: &KernelCtx, i: usize) -> Result<PartialShape> {
        merged(&shape_from_tensor(ctx.input(i)?)?, &self.element_shape)
    }

    /// `shape` together with the shapes of `elements`.
    pub(crate) fn shape_of<'a>(
        mut shape: PartialShape,
        elements: impl IntoIterator<Item = &'a Option<Tensor>>,
    ) -> Result<PartialShape> {
        for element in elements.into_iter().flatten() {
            if !shape.matches(element.shape()) || shape.to_full().is_none() {
                shape = merged(&shape, &element.shape().into())?;
            }
        }
        Ok(shape)
    }
}

#[cold]
fn no_list(at: &str) -> Status {
    invalid_argument!("Input handle{at} is not a list. Saw: 'no TensorList'")
}

fn list_in(variant: &Variant) -> Option<&TensorList> {
    variant.0.as_deref()?.downcast_ref()
}

/// The list of a variant that is element `i` of a batch.
pub(crate) fn list_at(variant: &Variant, i: usize) -> Result<&TensorList> {
    list_in(variant).ok_or_else(|| no_list(&format!(" at index {i}")))
}

/// The list that input `i` holds.
pub(crate) fn list_input<'c>(ctx: &'c KernelCtx, i: usize) -> Result<&'c TensorList> {
    let t = ctx.input(i)?;
    if !t.shape().is_scalar() {
        return Err(invalid_argument!(
            "Input list must be a scalar saw: {}",
            t.shape()
        ));
    }
    t.variants()?
        .first()
        .and_then(list_in)
        .ok_or_else(|| no_list(""))
}

/// Changes the list of input `i` and makes it output `o`: in place when this node is the last to
/// hold it, else on a copy.
pub(crate) fn change(
    ctx: &mut KernelCtx,
    i: usize,
    o: usize,
    f: impl FnOnce(&mut TensorList) -> Result<()>,
) -> Result<()> {
    list_input(ctx, i)?;
    let mut handle = ctx.take_input(i)?;
    let [slot] = handle.items_mut::<Variant>()? else {
        return Err(internal!("a scalar without its element"));
    };
    change_variant(slot, 0, f)?;
    ctx.set_output(o, handle)
}

/// Changes the list of a variant, in place when nobody else holds it.
pub(crate) fn change_variant(
    slot: &mut Variant,
    i: usize,
    f: impl FnOnce(&mut TensorList) -> Result<()>,
) -> Result<()> {
    let shared = slot
        .0
        .take()
        .ok_or_else(|| no_list(&format!(" at index {i}")))?;
    let mut list: Arc<TensorList> = shared
        .downcast()
        .map_err(|_| no_list(&format!(" at index {i}")))?;
    f(Arc::make_mut(&mut list))?;
    slot.0 = Some(list);
    Ok(())
}
