//! [`TensorList`]: the value of the TensorList ops' variants (TensorFlow:
//! `core/kernels/tensor_list.h`).

use crate::numeric::Num;
use crate::optional::Optional;
use crate::ragged::Ragged;
use crate::sequence::{merged, shape_from_tensor};
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, PartialShape, Shape, Tensor, Variant, bf16, dispatch, f16,
};
use std::any::Any;
use std::sync::Arc;

/// Tensors of one dtype whose shapes fit one partial shape. A clone shares the tensors.
#[derive(Clone)]
pub struct TensorList {
    /// Dtype of the elements.
    pub dtype: DType,
    /// The common shape of the elements, as far as known.
    pub element_shape: PartialShape,
    /// The elements; those never written are `None` and read as zeros.
    pub elements: Vec<Option<Tensor>>,
    /// The maximal number of elements.
    pub max_elements: Option<usize>,
}

impl TensorList {
    /// Creates an empty list.
    pub fn new(dtype: DType, element_shape: PartialShape) -> Self {
        TensorList {
            dtype,
            element_shape,
            elements: Vec::new(),
            max_elements: None,
        }
    }

    /// Returns the list as a variant scalar.
    ///
    /// # Errors
    /// Those of [`Tensor::from_variants`], which do not occur here.
    pub fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_variants(Shape::scalar(), vec![self.into_variant()])
    }

    /// Wraps the list as a variant.
    pub fn into_variant(self) -> Variant {
        Variant(Some(Arc::new(self)))
    }

    /// Checks that the elements have the dtype that an op expects.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it differs.
    pub fn expect_dtype(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        Err(invalid_argument!(
            "Invalid data types; op elements {dtype} but list elements {}",
            self.dtype
        ))
    }

    /// Returns the element shape merged with the shape in input `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes are not compatible.
    pub fn shape_with(&self, ctx: &KernelCtx, i: usize) -> Result<PartialShape> {
        merged(&shape_from_tensor(ctx.input(i)?)?, &self.element_shape)
    }

    /// Returns `shape` merged with the shapes of `elements`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes are not compatible.
    pub fn shape_of<'a>(
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

    /// Returns the elements at the positions `wanted`, and their shape: `shape`, or theirs where it is open.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such element, or the shape stays open.
    pub fn gathered(
        &self,
        wanted: &[i64],
        shape: PartialShape,
    ) -> Result<(Vec<&Option<Tensor>>, Shape)> {
        if wanted.is_empty() && shape.to_full().is_none() {
            return Err(invalid_argument!(
                "Tried to gather 0-elements from a list with non-fully-defined shape: {shape}"
            ));
        }
        let element = |&i: &i64| {
            let found = usize::try_from(i).ok().and_then(|i| self.elements.get(i));
            found.ok_or_else(|| {
                invalid_argument!(
                    "Trying to gather element {i} in a list with {} elements.",
                    self.elements.len()
                )
            })
        };
        let picked = wanted.iter().map(element).collect::<Result<Vec<_>>>()?;
        let shape = TensorList::shape_of(shape, picked.iter().copied())?;
        match shape.to_full() {
            Some(full) => Ok((picked, full)),
            None => Err(invalid_argument!(
                "Tried to gather uninitialized tensors from a list with non-fully-defined \
                 element_shape: {shape}"
            )),
        }
    }
}

#[cold]
fn no_list(at: &str) -> Status {
    invalid_argument!("Input handle{at} is not a list. Saw: 'no TensorList'")
}

fn list_in(variant: &Variant) -> Option<&TensorList> {
    variant.0.as_deref()?.downcast_ref()
}

/// Returns the list of a variant that is element `i` of a batch.
///
/// # Errors
/// INVALID_ARGUMENT if the variant is not a list.
pub fn list_at(variant: &Variant, i: usize) -> Result<&TensorList> {
    list_in(variant).ok_or_else(|| no_list(&format!(" at index {i}")))
}

/// Returns the list of input `i`.
///
/// # Errors
/// INVALID_ARGUMENT if the input is not a scalar that holds a list.
pub fn list_input<'c>(ctx: &'c KernelCtx, i: usize) -> Result<&'c TensorList> {
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

/// Changes the list of input `i` and makes it output `o`: in place if this node has the last
/// reference, else on a copy.
///
/// # Errors
/// INVALID_ARGUMENT if the input is not a list; those of `f`.
pub fn change(
    ctx: &mut KernelCtx,
    i: usize,
    o: usize,
    f: impl FnOnce(&mut TensorList) -> Result<()>,
) -> Result<()> {
    if !ctx.shape(i)?.is_scalar() {
        // Its error.
        list_input(ctx, i)?;
    }
    let mut handle = ctx.take_input(i)?;
    let [slot] = handle.items_mut::<Variant>()? else {
        return Err(internal!("a scalar without an element"));
    };
    change_in(slot, &|| no_list(""), f)?;
    ctx.set_output(o, handle)
}

/// Changes the list of a variant, in place if it is not shared.
///
/// # Errors
/// INVALID_ARGUMENT if the variant is not a list; those of `f`.
pub fn change_variant(
    slot: &mut Variant,
    i: usize,
    f: impl FnOnce(&mut TensorList) -> Result<()>,
) -> Result<()> {
    change_in(slot, &|| no_list(&format!(" at index {i}")), f)
}

fn change_in(
    slot: &mut Variant,
    no_list: &dyn Fn() -> Status,
    f: impl FnOnce(&mut TensorList) -> Result<()>,
) -> Result<()> {
    let shared = slot.0.take().ok_or_else(no_list)?;
    let mut list: Arc<TensorList> = shared.downcast().map_err(|_| no_list())?;
    f(Arc::make_mut(&mut list))?;
    slot.0 = Some(list);
    Ok(())
}

/// Maximal nesting of lists, where all of them are visited.
const MAX_DEPTH: usize = 64;

fn too_deep() -> Status {
    invalid_argument!("lists are nested more than {MAX_DEPTH} levels deep")
}

/// Returns lists as long as those of `t`, with zeros for their elements.
///
/// # Errors
/// INVALID_ARGUMENT if lists are nested too deeply; RESOURCE_EXHAUSTED if the zeros do not fit
/// into memory.
pub fn zeros(t: &Tensor) -> Result<Tensor> {
    zeros_at(t, MAX_DEPTH)
}

/// Returns a tensor, or the lists that it holds, with elements that the host reaches.
///
/// # Errors
/// Those of [`Tensor::on_host`]; INVALID_ARGUMENT if lists are nested too deeply.
pub fn on_host(t: &Tensor) -> Result<Tensor> {
    on_host_at(t, MAX_DEPTH)
}

fn on_host_at(t: &Tensor, depth: usize) -> Result<Tensor> {
    if t.dtype() != DType::Variant {
        return t.on_host();
    }
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let copied = |v: &Variant| -> Result<Variant> {
        let Some(list) = list_in(v) else {
            return Ok(v.clone());
        };
        let elements = list.elements.iter();
        let copies = elements.map(|e| e.as_ref().map(|e| on_host_at(e, depth)).transpose());
        let copy = TensorList {
            elements: copies.collect::<Result<_>>()?,
            ..list.clone()
        };
        Ok(copy.into_variant())
    };
    let all = t.variants()?.iter().map(copied).collect::<Result<_>>()?;
    Tensor::from_variants(t.shape().clone(), all)
}

fn zeros_at(t: &Tensor, depth: usize) -> Result<Tensor> {
    if t.dtype() != DType::Variant {
        return Tensor::zeros(t.dtype(), t.shape().clone());
    }
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let zeros_of = |v: &Variant| -> Result<Variant> {
        if let Some(optional) = Optional::of(v) {
            let zeros = optional.map(|t| zeros_at(t, depth))?;
            return Ok(zeros.into_variant());
        }
        if let Some(ragged) = Ragged::of(v) {
            let values = zeros_at(&ragged.values, depth)?;
            return Ok(ragged.with_values(values).variant());
        }
        if let Some(zero) = plain_zero(v) {
            return Ok(zero);
        }
        let list = list_at(v, 0)?;
        let elements = list.elements.iter();
        let zeros = elements.map(|e| e.as_ref().map(|e| zeros_at(e, depth)).transpose());
        let elements = zeros.collect::<Result<_>>()?;
        let copy = TensorList {
            dtype: list.dtype,
            element_shape: list.element_shape.clone(),
            elements,
            max_elements: list.max_elements,
        };
        Ok(copy.into_variant())
    };
    let all = t.variants()?.iter().map(zeros_of).collect::<Result<_>>()?;
    Tensor::from_variants(t.shape().clone(), all)
}

/// Returns zero if a variant holds one of the plain types of
/// `core/framework/variant_op_registry.cc`.
fn plain_zero(variant: &Variant) -> Option<Variant> {
    fn zero<T: Any + Default + Send + Sync>(value: &dyn Any) -> Option<Variant> {
        value
            .is::<T>()
            .then(|| Variant(Some(Arc::new(T::default()))))
    }
    let value = variant.0.as_deref()?;
    zero::<i32>(value)
        .or_else(|| zero::<f32>(value))
        .or_else(|| zero::<f64>(value))
        .or_else(|| zero::<bool>(value))
}

/// Returns the sum of two variants of the same plain type.
fn plain_sum(a: &Variant, b: &Variant) -> Option<Variant> {
    fn sum<T: Any + Copy + Send + Sync>(
        a: &dyn Any,
        b: &dyn Any,
        add: fn(T, T) -> T,
    ) -> Option<Variant> {
        let sum = add(*a.downcast_ref()?, *b.downcast_ref()?);
        Some(Variant(Some(Arc::new(sum))))
    }
    let (a, b) = (a.0.as_deref()?, b.0.as_deref()?);
    sum(a, b, i32::wrapping_add)
        .or_else(|| sum(a, b, |a: f32, b| a + b))
        .or_else(|| sum(a, b, |a: f64, b| a + b))
        .or_else(|| sum(a, b, |a: bool, b| a | b))
}

/// Checks that two lists can be added, and returns the element shape of their sum.
fn check_addable(a: &TensorList, b: &TensorList) -> Result<PartialShape> {
    if a.dtype != b.dtype {
        return Err(invalid_argument!(
            "Trying to add two lists of tensors of different dtypes. One is {} and the other is {}",
            a.dtype,
            b.dtype
        ));
    }
    let Some(element_shape) = a.element_shape.merge(&b.element_shape) else {
        return Err(invalid_argument!(
            "Trying to add two lists of tensors with incompatible element shapes. One is {} and \
             the other is {}",
            a.element_shape,
            b.element_shape
        ));
    };
    if a.elements.len() != b.elements.len() {
        return Err(invalid_argument!(
            "Trying to add two lists of tensors with different lengths. One is {} and the other is {}",
            a.elements.len(),
            b.elements.len()
        ));
    }
    Ok(element_shape)
}

/// Adds two tensors, or the lists that they hold, element by element.
///
/// # Errors
/// INVALID_ARGUMENT if dtypes, shapes or lengths differ, the dtype has no sum, or lists are
/// nested too deeply.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    add_by(a, b, &add_elements)
}

/// Adds what an element of a list is to that of another one.
pub type AddElements<'a> = dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + 'a;

/// As [`add`], where `add_elements` adds tensors of the same shape and dtype.
///
/// # Errors
/// As for [`add`]; those of `add_elements`.
pub fn add_by(a: &Tensor, b: &Tensor, add_elements: &AddElements) -> Result<Tensor> {
    add_at(a, b, add_elements, MAX_DEPTH)
}

/// Adds tensors of the same shape and dtype.
///
/// # Errors
/// INVALID_ARGUMENT if the dtype has no sum.
pub fn add_elements(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match a.dtype() {
        DType::Half => sum::<f16>(a, b, |x, y| x + y),
        DType::Bfloat16 => sum::<bf16>(a, b, |x, y| x + y),
        dtype => dispatch!(dtype, T in [
            f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
        ] => sum::<T>(a, b, <T as Num>::add),
        else Err(invalid_argument!("lists of {dtype} cannot be added"))),
    }
}

fn add_at(a: &Tensor, b: &Tensor, leaf: &AddElements, depth: usize) -> Result<Tensor> {
    if a.dtype() != b.dtype() {
        return Err(invalid_argument!(
            "Trying to add two tensors with incompatible element types. One is {} and the other is {}",
            a.dtype(),
            b.dtype()
        ));
    }
    if a.shape() != b.shape() {
        return Err(invalid_argument!(
            "Trying to add two tensors with incompatible element shapes. One is {} and the other is {}",
            a.shape(),
            b.shape()
        ));
    }
    if a.dtype() != DType::Variant {
        return leaf(a, b);
    }
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let sum_of = |(a, b): (&Variant, &Variant)| -> Result<Variant> {
        if let (Some(a), Some(b)) = (Optional::of(a), Optional::of(b)) {
            let sum = a.zip(b, |a, b| add_at(a, b, leaf, depth))?;
            return Ok(sum.into_variant());
        }
        if let (Some(a), Some(b)) = (Ragged::of(a), Ragged::of(b)) {
            let sum = add_at(&a.values, &b.values, leaf, depth)?;
            return Ok(a.with_values(sum).variant());
        }
        if let Some(sum) = plain_sum(a, b) {
            return Ok(sum);
        }
        let (a, b) = (list_at(a, 0)?, list_at(b, 0)?);
        let element_shape = check_addable(a, b)?;
        let both = a.elements.iter().zip(&b.elements);
        let sums = both.map(|pair| match pair {
            (Some(x), Some(y)) => add_at(x, y, leaf, depth).map(Some),
            (x, y) => Ok(x.as_ref().or(y.as_ref()).cloned()),
        });
        let elements = sums.collect::<Result<_>>()?;
        let sum = TensorList {
            dtype: a.dtype,
            element_shape,
            elements,
            max_elements: a.max_elements,
        };
        Ok(sum.into_variant())
    };
    let pairs = a.variants()?.iter().zip(b.variants()?);
    let all = pairs.map(sum_of).collect::<Result<_>>()?;
    Tensor::from_variants(a.shape().clone(), all)
}

fn sum<T: Element>(a: &Tensor, b: &Tensor, add: fn(T, T) -> T) -> Result<Tensor> {
    let both = a.slice::<T>()?.iter().zip(b.slice::<T>()?);
    let sums: Vec<T> = both.map(|(x, y)| add(*x, *y)).collect();
    Tensor::from_slice(a.shape().clone(), &sums)
}
