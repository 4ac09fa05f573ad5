//! Declarations of `include/ferroflow_kernels.h`, field by field.

use crate::call::{Call, Later};
use crate::registration::Registration;
use std::ffi::{c_char, c_int, c_void};

pub(crate) const CHAIN: u32 = 0;
pub(crate) const UI8: u32 = 1;
pub(crate) const UI16: u32 = 2;
pub(crate) const UI32: u32 = 3;
pub(crate) const UI64: u32 = 4;
pub(crate) const I1: u32 = 5;
pub(crate) const I8: u32 = 6;
pub(crate) const I16: u32 = 7;
pub(crate) const I32: u32 = 8;
pub(crate) const I64: u32 = 9;
pub(crate) const F32: u32 = 10;
pub(crate) const F64: u32 = 11;
pub(crate) const STRING: u32 = 16;
pub(crate) const OBJECT: u32 = 255;

/// `ferroflow_value`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Value {
    pub(crate) kind: u32,
    pub(crate) content: Content,
}

/// The union of `ferroflow_value`; `kind` determines the valid field.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Content {
    pub(crate) ui8: u8,
    pub(crate) ui16: u16,
    pub(crate) ui32: u32,
    pub(crate) ui64: u64,
    pub(crate) i8: i8,
    pub(crate) i16: i16,
    pub(crate) i32: i32,
    pub(crate) i64: i64,
    pub(crate) f32: f32,
    pub(crate) f64: f64,
    pub(crate) string: Text,
    pub(crate) object: ObjectParts,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Text {
    pub(crate) data: *const c_char,
    pub(crate) length: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ObjectParts {
    pub(crate) data: *mut c_void,
    pub(crate) destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    pub(crate) type_name: *const c_char,
}

/// `ferroflow_tensor`
#[repr(C)]
pub(crate) struct TensorParts {
    pub(crate) dtype: u32,
    pub(crate) rank: u32,
    pub(crate) dims: *const i64,
    pub(crate) data: *mut c_void,
    pub(crate) n_bytes: usize,
}

// `kernels.c` of the tests asserts the same of the header.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<Value>() == 32
        && std::mem::offset_of!(Value, content) == 8
        && size_of::<TensorParts>() == 32
        && size_of::<Api>() == 8 + 17 * 8
);

pub(crate) type Kernel = unsafe extern "C" fn(*mut Call<'_, '_>, *mut c_void);
pub(crate) type UseTensor = unsafe extern "C" fn(*const TensorParts, *mut c_void);
type AddKernel = unsafe extern "C" fn(
    *mut Registration<'_>,
    *const c_char,
    Option<Kernel>,
    *mut c_void,
) -> c_int;
type Count = unsafe extern "C" fn(*const Call<'_, '_>) -> usize;

/// `ferroflow_api`
#[repr(C)]
pub(crate) struct Api {
    pub(crate) version: u32,
    pub(crate) n_bytes: u32,
    pub(crate) add_kernel: AddKernel,
    pub(crate) add_sync_kernel: AddKernel,
    pub(crate) n_args: Count,
    pub(crate) n_results: Count,
    pub(crate) n_attributes: Count,
    pub(crate) arg: unsafe extern "C" fn(*mut Call<'_, '_>, usize, *mut Value) -> c_int,
    pub(crate) set_result: unsafe extern "C" fn(*mut Call<'_, '_>, usize, *const Value) -> c_int,
    pub(crate) forward_arg: unsafe extern "C" fn(*mut Call<'_, '_>, usize, usize) -> c_int,
    pub(crate) attribute: unsafe extern "C" fn(*mut Call<'_, '_>, usize, *mut Value) -> c_int,
    pub(crate) array_attribute: unsafe extern "C" fn(
        *mut Call<'_, '_>,
        usize,
        u32,
        *mut *const c_void,
        *mut usize,
    ) -> c_int,
    pub(crate) read_tensor:
        unsafe extern "C" fn(*mut Call<'_, '_>, usize, Option<UseTensor>, *mut c_void) -> c_int,
    pub(crate) set_tensor: unsafe extern "C" fn(
        *mut Call<'_, '_>,
        usize,
        *const TensorParts,
        Option<UseTensor>,
        *mut c_void,
    ) -> c_int,
    pub(crate) set_later: unsafe extern "C" fn(*mut Call<'_, '_>, usize) -> *mut Later,
    pub(crate) settle: unsafe extern "C" fn(*mut Later, *const Value),
    pub(crate) settle_error: unsafe extern "C" fn(*mut Later, c_int, *const c_char),
    pub(crate) fail: unsafe extern "C" fn(*mut Call<'_, '_>, c_int, *const c_char),
    pub(crate) print: unsafe extern "C" fn(*mut Call<'_, '_>, *const c_char, usize),
}

/// `ferroflow_register_kernels`
pub(crate) type Register = unsafe extern "C" fn(*const Api, *mut Registration<'_>) -> c_int;
