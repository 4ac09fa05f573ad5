//! The dtype table: TensorFlow's `DataType` numbers, names and element sizes, in one place.

use half::{bf16, f16};
use num_complex::{Complex32, Complex64};
use std::fmt;

mod sealed {
    pub trait Sealed {}
}

/// A plain element type: fixed size, no padding, copied bit for bit.
///
/// Sealed: the dtype table is the list of them.
pub trait Element:
    sealed::Sealed + Copy + Default + PartialEq + Send + Sync + fmt::Debug + 'static
{
    /// The dtype whose buffers hold this type.
    const DTYPE: DType;
}

macro_rules! dtypes {
    ($($variant:ident = $num:literal, $name:literal, $size:literal $(, $ty:ty)?;)*) => {
        /// An element type; the discriminant is TensorFlow's `DataType` number.
        ///
        /// ```
        /// use ferroflow_tensor::DType;
        /// assert_eq!(DType::from_name("float"), Some(DType::Float));
        /// assert_eq!(DType::Bfloat16 as u8, 14);
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "TensorFlow's names")]
        pub enum DType { $($variant = $num,)* }

        impl DType {
    /// What an element of 2 or 4 bits is in a byte, of which TensorFlow sets and reads the lower bits only: signed ones
    /// are extended. None for other dtypes.
    pub(crate) fn narrow(self) -> Option<fn(u8) -> u8> {
        match self {
            DType::Int4 => Some(|byte| ((byte << 4).cast_signed() >> 4).cast_unsigned()),
            DType::Uint4 | DType::Float4E2m1fn => Some(|byte| byte & 15),
            DType::Int2 => Some(|byte| ((byte << 6).cast_signed() >> 6).cast_unsigned()),
            DType::Uint2 => Some(|byte| byte & 3),
            _ => None,
        }
    }

            /// Every dtype, by number.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// Returns the dtype with TensorFlow's number `num`; reference types (number + 100) are
            /// not dtypes of their own.
            pub fn from_number(num: i32) -> Option<DType> {
                match num { $($num => Some(DType::$variant),)* _ => None }
            }

            /// Returns the dtype with TensorFlow's attr name, e.g. `float`, `half`, `int32`.
            pub fn from_name(name: &str) -> Option<DType> {
                match name { $($name => Some(DType::$variant),)* _ => None }
            }

            /// Returns TensorFlow's attr name.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Returns the size of an element in bytes; 0 for string, resource and variant, which
            /// own their data.
            pub fn size(self) -> usize {
                match self { $(DType::$variant => $size,)* }
            }
        }

        $($(
            impl sealed::Sealed for $ty {}
            impl Element for $ty { const DTYPE: DType = DType::$variant; }
            const _: () = assert!(size_of::<$ty>() == $size);
        )?)*
    };
}

dtypes! {
    Float = 1, "float", 4, f32;
    Double = 2, "double", 8, f64;
    Int32 = 3, "int32", 4, i32;
    Uint8 = 4, "uint8", 1, u8;
    Int16 = 5, "int16", 2, i16;
    Int8 = 6, "int8", 1, i8;
    String = 7, "string", 0;
    Complex64 = 8, "complex64", 8, Complex32;
    Int64 = 9, "int64", 8, i64;
    Bool = 10, "bool", 1, bool;
    Qint8 = 11, "qint8", 1;
    Quint8 = 12, "quint8", 1;
    Qint32 = 13, "qint32", 4;
    Bfloat16 = 14, "bfloat16", 2, bf16;
    Qint16 = 15, "qint16", 2;
    Quint16 = 16, "quint16", 2;
    Uint16 = 17, "uint16", 2, u16;
    Complex128 = 18, "complex128", 16, Complex64;
    Half = 19, "half", 2, f16;
    Resource = 20, "resource", 0;
    Variant = 21, "variant", 0;
    Uint32 = 22, "uint32", 4, u32;
    Uint64 = 23, "uint64", 8, u64;
    Float8E5m2 = 24, "float8_e5m2", 1;
    Float8E4m3fn = 25, "float8_e4m3fn", 1;
    Float8E4m3fnuz = 26, "float8_e4m3fnuz", 1;
    Float8E4m3b11fnuz = 27, "float8_e4m3b11fnuz", 1;
    Float8E5m2fnuz = 28, "float8_e5m2fnuz", 1;
    Int4 = 29, "int4", 1;
    Uint4 = 30, "uint4", 1;
    Int2 = 31, "int2", 1;
    Uint2 = 32, "uint2", 1;
    Float4E2m1fn = 33, "float4_e2m1fn", 1;
}

impl DType {
    /// Returns whether elements are plain bytes.
    pub fn is_plain(self) -> bool {
        self.size() > 0
    }

    /// Returns whether this is a real floating-point dtype.
    pub fn is_floating(self) -> bool {
        matches!(
            self,
            DType::Float | DType::Double | DType::Half | DType::Bfloat16
        )
    }

    /// Returns whether this is a complex dtype.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }

    /// Returns whether this is a signed or unsigned integer; bool and quantized dtypes are not.
    pub const fn is_integer(self) -> bool {
        use DType::*;
        matches!(
            self,
            Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | Uint32 | Uint64
        )
    }

    /// Returns MLIR's name of a bool, integer or float.
    pub fn mlir_name(self) -> Option<&'static str> {
        Some(match self {
            DType::Bool => "i1",
            DType::Half => "f16",
            DType::Bfloat16 => "bf16",
            DType::Float => "f32",
            DType::Double => "f64",
            DType::Int8 => "i8",
            DType::Int16 => "i16",
            DType::Int32 => "i32",
            DType::Int64 => "i64",
            DType::Uint8 => "ui8",
            DType::Uint16 => "ui16",
            DType::Uint32 => "ui32",
            DType::Uint64 => "ui64",
            _ => return None,
        })
    }

    /// Returns the Python-side name that messages use: `float32` for `float` and so on.
    pub fn numpy_name(self) -> &'static str {
        match self {
            DType::Float => "float32",
            DType::Double => "float64",
            DType::Half => "float16",
            other => other.name(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs `$body` with the type alias `$T` bound to the element type of `$dtype`, which must be one
/// of the listed types; otherwise evaluates `$otherwise`.
///
/// ```
/// use ferroflow_tensor::{DType, dispatch};
/// let n = dispatch!(DType::Int64, T in [f32, i64] => size_of::<T>(), else 0);
/// assert_eq!(n, 8);
/// ```
#[macro_export]
macro_rules! dispatch {
    ($dtype:expr, $T:ident in [$($ty:ty),+ $(,)?] => $body:expr, else $otherwise:expr) => {{
        let dtype: $crate::DType = $dtype;
        $(if dtype == <$ty as $crate::Element>::DTYPE {
            type $T = $ty;
            $body
        } else)+ {
            $otherwise
        }
    }};
}
