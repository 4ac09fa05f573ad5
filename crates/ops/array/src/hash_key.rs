//! Element values as hash keys, for Unique and ListDiff.

use ferroflow_tensor::{Bytes, DType, Item, bf16, f16};
use std::hash::Hash;

macro_rules! bits {
    ($($ty:ty, $dtype:pat => $float:expr;)*) => {$(
        impl Key for $ty {
            type Key = $ty;
            fn key(&self, dtype: DType) -> Option<$ty> {
                match dtype {
                    $dtype => $float(*self),
                    _ => Some(*self),
                }
            }
        }
    )*};
}

/// Returns the bits of a float; both zeros are one key, and NaN has none.
macro_rules! float_bits {
    ($float:ty) => {
        |bits| {
            let v = <$float>::from_bits(bits);
            match v {
                v if v.is_nan() => None,
                v if v == <$float>::default() => Some(0),
                _ => Some(bits),
            }
        }
    };
}

/// Runs `$body` for the item type of a dtype that supports comparison.
macro_rules! dispatch_keys {
    ($build:expr, $dtype:expr, $T:ident => $body:expr) => {{
        let dtype: DType = $dtype;
        match (dtype, dtype.size()) {
            (DType::Resource | DType::Variant, _) => Err($build.unsupported(dtype)),
            (DType::Bool, _) => {
                type $T = bool;
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
                type $T = Bytes;
                $body
            }
        }
    }};
}
pub(crate) use dispatch_keys;

/// A value as a hash key. `None` for a value that does not equal itself.
pub(crate) trait Key: Item {
    type Key: Hash + Eq + Ord + Clone + Send + Sync;
    fn key(&self, dtype: DType) -> Option<Self::Key>;
}

bits! {
    u8, DType::String => Some;
    u32, DType::Float => float_bits!(f32);
    u64, DType::Double => float_bits!(f64);
    [u64; 2], DType::String => Some;
}

impl Key for u16 {
    type Key = u16;
    fn key(&self, dtype: DType) -> Option<u16> {
        match dtype {
            DType::Half => float_bits!(f16)(*self),
            DType::Bfloat16 => float_bits!(bf16)(*self),
            _ => Some(*self),
        }
    }
}

impl Key for bool {
    type Key = bool;
    fn key(&self, _: DType) -> Option<bool> {
        Some(*self)
    }
}

impl Key for Bytes {
    type Key = Bytes;
    fn key(&self, _: DType) -> Option<Bytes> {
        Some(self.clone())
    }
}
