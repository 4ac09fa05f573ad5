//! Reductions that are known by the op that their function consists of.

use crate::axis::Covered;
use crate::function::Rows;
use ferroflow_functors::reduce::{All, Any, Max, Min, Prod, Reduce, Reducer, Sum};
use ferroflow_primitives::vectorized;
use ferroflow_tensor::{Complex32, Complex64, DType, Element};

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident: $start:expr, $op:tt;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;
        bits!(@types $name, $start, $op, i8 i16 i32 i64);
    )*};
    (@types $name:ident, $start:expr, $op:tt, $($ty:ty)*) => {$(
        impl Reduce<$ty> for $name {
            type Then = $name;
            const START: $ty = $start;
            #[inline(always)]
            fn step(acc: $ty, x: $ty) -> $ty { acc $op x }
        }
    )*};
}
bits! {
    /// The bits that all elements have.
    BitAnd: -1, &;
    /// The bits that any element has.
    BitOr: 0, |;
    /// The bits that an odd number of elements has.
    BitXor: 0, ^;
}

/// An element type with reductions that are known by their op.
pub(crate) trait Reducible: Element {
    fn reducer(op: &str) -> Option<Reducer<Self>>;
    fn windows(op: &str) -> Option<Windows<Self>>;
}

macro_rules! reducers {
    ([$($ty:ty),*] $rules:tt) => {$( reducers!(@one $ty, $rules); )*};
    (@one $ty:ty, { $($op:pat => $reduce:ident,)* }) => {
        impl Reducible for $ty {
            fn reducer(op: &str) -> Option<Reducer<Self>> {
                match op {
                    $($op => Some(Reducer::of::<$reduce>()),)*
                    _ => None,
                }
            }

            fn windows(op: &str) -> Option<Windows<Self>> {
                match op {
                    $($op => Some(Windows::of::<$reduce>()),)*
                    _ => None,
                }
            }
        }
    };
}
reducers!([f32, f64, u8, u16, u32, u64] {
    "Add" | "AddV2" => Sum,
    "Mul" => Prod,
    "Maximum" => Max,
    "Minimum" => Min,
});
reducers!([i8, i16, i32, i64] {
    "Add" | "AddV2" => Sum,
    "Mul" => Prod,
    "Maximum" => Max,
    "Minimum" => Min,
    "BitwiseAnd" => BitAnd,
    "BitwiseOr" => BitOr,
    "BitwiseXor" => BitXor,
});
reducers!([Complex32, Complex64] {
    "Add" | "AddV2" => Sum,
    "Mul" => Prod,
});
reducers!([bool] {
    "LogicalAnd" => All,
    "LogicalOr" => Any,
});

/// Returns the dtype whose elements an op combines in the same way; those of bits have no sign.
pub(crate) fn signed(op: &str, dtype: DType) -> DType {
    match dtype {
        _ if !op.starts_with("Bitwise") => dtype,
        DType::Uint8 => DType::Int8,
        DType::Uint16 => DType::Int16,
        DType::Uint32 => DType::Int32,
        DType::Uint64 => DType::Int64,
        _ => dtype,
    }
}

/// Loops of a reduction over windows along one dimension.
#[derive(Clone, Copy)]
pub(crate) struct Windows<T> {
    /// Combines two elements.
    pub(crate) step: fn(T, T) -> T,
    /// Combines each element of a row with one of another row.
    pub(crate) row: Rows<T>,
    /// Reduces what is covered of a line.
    pub(crate) line: fn(&[T], &[Covered], &mut [T]),
    /// As `line`, if each window continues the one before it.
    pub(crate) scan: fn(&[T], &[Covered], &mut [T]),
    /// As `line`, if each window continues the one behind it.
    pub(crate) scan_back: fn(&[T], &[Covered], &mut [T]),
}

impl<T: Element> Windows<T> {
    fn of<R: Reduce<T>>() -> Windows<T> {
        Windows {
            step: R::step,
            row: row::<T, R>,
            line: line::<T, R>,
            scan: scan::<T, R>,
            scan_back: scan_back::<T, R>,
        }
    }
}

fn row<T: Element, R: Reduce<T>>(acc: &mut [T], x: &[T]) {
    vectorized(
        #[inline(always)]
        || {
            for (acc, x) in acc.iter_mut().zip(x) {
                *acc = R::step(*acc, *x);
            }
        },
    );
}

fn line<T: Element, R: Reduce<T>>(x: &[T], covered: &[Covered], out: &mut [T]) {
    for (out, &Covered { first, n, step }) in out.iter_mut().zip(covered) {
        let all = x.get(first..).unwrap_or_default().iter();
        let all = all.step_by(step.max(1)).take(n);
        if let Some(acc) = all.copied().reduce(R::step) {
            *out = acc;
        }
    }
}

fn scan<T: Element, R: Reduce<T>>(x: &[T], covered: &[Covered], out: &mut [T]) {
    let Some(&first) = covered.first().and_then(|c| x.get(c.first)) else {
        return;
    };
    let (mut acc, mut end) = (first, covered[0].first + 1);
    for (out, c) in out.iter_mut().zip(covered) {
        while end < c.first + c.n {
            acc = R::step(acc, x[end]);
            end += 1;
        }
        *out = acc;
    }
}

fn scan_back<T: Element, R: Reduce<T>>(x: &[T], covered: &[Covered], out: &mut [T]) {
    let last = covered.last().map(|c| c.first + c.n);
    let Some((mut start, &last)) = last.and_then(|end| Some((end - 1, x.get(end - 1)?))) else {
        return;
    };
    let mut acc = last;
    for (out, c) in out.iter_mut().zip(covered).rev() {
        while start > c.first {
            start -= 1;
            acc = R::step(x[start], acc);
        }
        *out = acc;
    }
}
