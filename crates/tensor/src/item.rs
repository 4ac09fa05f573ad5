//! Elements as they are stored, for kernels that move them without interpreting them.

use crate::{DType, ResourceHandle, Tensor, Variant};
use bytes::Bytes;

mod raw {
    pub trait Sealed {}
}

/// Storage type of elements, for kernels that move elements without interpreting them.
///
/// [`dispatch_items!`](crate::dispatch_items) picks the item type of a dtype.
pub trait Item: raw::Sealed + Clone + Default + Send + Sync + 'static {
    #[doc(hidden)]
    fn get(t: &Tensor) -> Option<&[Self]>;
    #[doc(hidden)]
    fn get_mut(t: &mut Tensor) -> Option<&mut [Self]>;
}

macro_rules! plain_items {
    ($($ty:ty),*) => {$(
        impl raw::Sealed for $ty {}
        impl Item for $ty {
            #[inline]
            fn get(t: &Tensor) -> Option<&[Self]> {
                let fits = t.dtype().size() == size_of::<$ty>() && t.dtype() != DType::Bool;
                // SAFETY: integers accept every bit pattern, and the size fits the dtype.
                fits.then(|| unsafe { t.typed() })
            }
            #[inline]
            fn get_mut(t: &mut Tensor) -> Option<&mut [Self]> {
                let fits = t.dtype().size() == size_of::<$ty>() && t.dtype() != DType::Bool;
                // SAFETY: as above; non-bool plain dtypes accept every bit pattern too.
                if fits { unsafe { t.typed_mut() } } else { None }
            }
        }
    )*};
}
plain_items!(u8, u16, u32, u64, [u64; 2]);

impl raw::Sealed for bool {}
impl Item for bool {
    fn get(t: &Tensor) -> Option<&[Self]> {
        t.slice().ok()
    }
    fn get_mut(t: &mut Tensor) -> Option<&mut [Self]> {
        t.slice_mut().ok()
    }
}

macro_rules! owned_items {
    ($($ty:ty, $get:ident, $get_mut:ident;)*) => {$(
        impl raw::Sealed for $ty {}
        impl Item for $ty {
            fn get(t: &Tensor) -> Option<&[Self]> {
                t.$get()
            }
            fn get_mut(t: &mut Tensor) -> Option<&mut [Self]> {
                t.$get_mut()
            }
        }
    )*};
}
owned_items! {
    Bytes, string_items, string_items_mut;
    ResourceHandle, resource_items, resource_items_mut;
    Variant, variant_items, variant_items_mut;
}

/// Runs `$body` with `$T` bound to the [`Item`] type that stores elements of `$dtype`.
///
/// ```
/// use ferroflow_tensor::{Tensor, dispatch_items};
/// let t = Tensor::from_slice([3], &[1.0f32, 2.0, 3.0]).unwrap();
/// let n = dispatch_items!(t.dtype(), T => t.items::<T>().unwrap().len());
/// assert_eq!(n, 3);
/// ```
#[macro_export]
macro_rules! dispatch_items {
    ($dtype:expr, $T:ident => $body:expr) => {{
        let dtype: $crate::DType = $dtype;
        match (dtype, dtype.size()) {
            ($crate::DType::Bool, _) => {
                type $T = bool;
                $body
            }
            ($crate::DType::Resource, _) => {
                type $T = $crate::ResourceHandle;
                $body
            }
            ($crate::DType::Variant, _) => {
                type $T = $crate::Variant;
                $body
            }
            (_, 1) => {
                type $T = u8;
                $body
            }
            (_, 2) => {
                type $T = u16;
                $body
            }
            (_, 4) => {
                type $T = u32;
                $body
            }
            (_, 8) => {
                type $T = u64;
                $body
            }
            (_, 16) => {
                type $T = [u64; 2];
                $body
            }
            _ => {
                type $T = $crate::Bytes;
                $body
            }
        }
    }};
}
