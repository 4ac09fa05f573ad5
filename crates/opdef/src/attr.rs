//! Attribute values of nodes.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::{Bytes, DType, LazyTensor, PartialShape};
use std::borrow::Cow;

/// A name that is usually static text of an op's signature.
pub type Name = Cow<'static, str>;

/// A function by name, with the attrs it is instantiated with.
#[derive(Clone, Debug, Default)]
pub struct FuncRef {
    /// The function's name in the library.
    pub name: String,
    /// Instantiation attrs.
    pub attrs: Attrs,
}

/// The value of an attr; the variants mirror TensorFlow's `AttrValue`.
#[derive(Clone, Debug)]
pub enum AttrValue {
    /// `s`: bytes, usually UTF-8.
    Str(Bytes),
    /// `i`
    Int(i64),
    /// `f`
    Float(f32),
    /// `b`
    Bool(bool),
    /// `type`
    Type(DType),
    /// `shape`
    Shape(PartialShape),
    /// `tensor`
    Tensor(LazyTensor),
    /// `func`
    Func(FuncRef),
    /// `placeholder`: the name of an attr of the enclosing function.
    Placeholder(String),
    /// `list`
    List(Vec<AttrValue>),
}

impl AttrValue {
    /// Returns a string value.
    pub fn str(s: &str) -> Self {
        AttrValue::Str(Bytes::copy_from_slice(s.as_bytes()))
    }

    /// Returns a list of integers.
    pub fn ints(values: &[i64]) -> Self {
        AttrValue::List(values.iter().map(|&i| AttrValue::Int(i)).collect())
    }

    /// Returns a list of strings.
    pub fn strs(values: &[&str]) -> Self {
        AttrValue::List(values.iter().map(|s| AttrValue::str(s)).collect())
    }

    /// Returns whether both are the same value; tensors compare as [`LazyTensor::same_value`].
    pub fn same_value(&self, other: &AttrValue) -> bool {
        use AttrValue::*;
        match (self, other) {
            (Str(a), Str(b)) => a == b,
            (Int(a), Int(b)) => a == b,
            (Float(a), Float(b)) => a.to_bits() == b.to_bits(),
            (Bool(a), Bool(b)) => a == b,
            (Type(a), Type(b)) => a == b,
            (Shape(a), Shape(b)) => a == b,
            (Tensor(a), Tensor(b)) => a.same_value(b),
            (Func(a), Func(b)) => a.name == b.name && a.attrs.same_values(&b.attrs),
            (Placeholder(a), Placeholder(b)) => a == b,
            (List(a), List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.same_value(y))
            }
            _ => false,
        }
    }

    /// Returns the kind of the value, as errors name it.
    pub fn kind(&self) -> &'static str {
        match self {
            AttrValue::Str(_) => "string",
            AttrValue::Int(_) => "int",
            AttrValue::Float(_) => "float",
            AttrValue::Bool(_) => "bool",
            AttrValue::Type(_) => "type",
            AttrValue::Shape(_) => "shape",
            AttrValue::Tensor(_) => "tensor",
            AttrValue::Func(_) => "func",
            AttrValue::Placeholder(_) => "placeholder",
            AttrValue::List(_) => "list",
        }
    }
}

macro_rules! attr_from {
    ($($ty:ty => $variant:ident;)*) => {$(
        impl From<$ty> for AttrValue {
            fn from(value: $ty) -> Self {
                AttrValue::$variant(value)
            }
        }
    )*};
}
attr_from! {
    bool => Bool;
    i64 => Int;
    f32 => Float;
    DType => Type;
    PartialShape => Shape;
}

impl From<&str> for AttrValue {
    fn from(value: &str) -> Self {
        AttrValue::str(value)
    }
}

/// The attrs of one node, sorted by name.
///
/// ```
/// use ferroflow_opdef::{AttrValue, Attrs};
/// let mut a = Attrs::default();
/// a.set("N", AttrValue::Int(3));
/// assert_eq!(a.int("N").unwrap(), 3);
/// assert!(a.str("N").is_err());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attrs(Vec<(Name, AttrValue)>);

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident -> $ty:ty, $pat:pat => $value:expr, $kind:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// INVALID_ARGUMENT if the attr is missing or of another kind.
        pub fn $name(&self, name: &str) -> Result<$ty> {
            match self.require(name)? {
                $pat => Ok($value),
                other => Err(invalid_argument!(
                    "attr '{name}' is a {}, expected a {}", other.kind(), $kind
                )),
            }
        }
    )*};
}

impl Attrs {
    /// Sets `name`, replacing a former value.
    pub fn set(&mut self, name: impl Into<Name>, value: AttrValue) {
        let name = name.into();
        match self.0.binary_search_by(|(n, _)| n.as_ref().cmp(&name)) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (name, value)),
        }
    }

    /// Returns the same, for building in one expression.
    #[must_use]
    pub fn with(mut self, name: impl Into<Name>, value: AttrValue) -> Self {
        self.set(name, value);
        self
    }

    /// Removes `name` and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<AttrValue> {
        let i = self
            .0
            .binary_search_by(|(n, _)| n.as_ref().cmp(name))
            .ok()?;
        Some(self.0.remove(i).1)
    }

    /// Returns the value of `name`.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&AttrValue> {
        let i = self
            .0
            .binary_search_by(|(n, _)| n.as_ref().cmp(name))
            .ok()?;
        Some(&self.0[i].1)
    }

    /// Returns all attrs, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &AttrValue)> {
        self.0.iter().map(|(n, v)| (n, v))
    }

    /// Returns the number of attrs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no attrs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether both have the same names and values.
    pub fn same_values(&self, other: &Attrs) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|(a, b)| a.0 == b.0 && a.1.same_value(&b.1))
    }

    fn require(&self, name: &str) -> Result<&AttrValue> {
        self.get(name)
            .ok_or_else(|| invalid_argument!("attr '{name}' is missing"))
    }

    getters! {
        /// Returns an int attr.
        int -> i64, AttrValue::Int(i) => *i, "int";
        /// Returns a float attr.
        float -> f32, AttrValue::Float(f) => *f, "float";
        /// Returns a bool attr.
        bool -> bool, AttrValue::Bool(b) => *b, "bool";
        /// Returns a type attr.
        dtype -> DType, AttrValue::Type(t) => *t, "type";
        /// Returns a shape attr.
        shape -> &PartialShape, AttrValue::Shape(s) => s, "shape";
        /// Returns a tensor attr.
        tensor -> &LazyTensor, AttrValue::Tensor(t) => t, "tensor";
        /// Returns a function attr.
        func -> &FuncRef, AttrValue::Func(f) => f, "func";
        /// Returns a list attr of any kind.
        list -> &[AttrValue], AttrValue::List(l) => l, "list";
        /// Returns a string attr as bytes.
        bytes -> &Bytes, AttrValue::Str(s) => s, "string";
    }

    /// Returns a string attr.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attr is missing, of another kind, or not UTF-8.
    pub fn str(&self, name: &str) -> Result<&str> {
        std::str::from_utf8(self.bytes(name)?)
            .map_err(|_| invalid_argument!("attr '{name}' is not valid UTF-8"))
    }

    /// Returns a list of ints.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attr is missing or of another kind.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        self.typed_list(name, "int", |v| match v {
            AttrValue::Int(i) => Some(*i),
            _ => None,
        })
    }

    /// Returns a list of floats.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attr is missing or of another kind.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>> {
        self.typed_list(name, "float", |v| match v {
            AttrValue::Float(f) => Some(*f),
            _ => None,
        })
    }

    /// Returns a list of dtypes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attr is missing or of another kind.
    pub fn dtypes(&self, name: &str) -> Result<Vec<DType>> {
        self.typed_list(name, "type", |v| match v {
            AttrValue::Type(t) => Some(*t),
            _ => None,
        })
    }

    /// Returns a list of shapes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attr is missing or of another kind.
    pub fn shapes(&self, name: &str) -> Result<Vec<PartialShape>> {
        self.typed_list(name, "shape", |v| match v {
            AttrValue::Shape(s) => Some(s.clone()),
            _ => None,
        })
    }

    /// Returns a list of UTF-8 strings.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attr is missing or of another kind.
    pub fn strs(&self, name: &str) -> Result<Vec<&str>> {
        self.list(name)?
            .iter()
            .map(|v| match v {
                AttrValue::Str(s) => std::str::from_utf8(s).ok(),
                _ => None,
            })
            .collect::<Option<_>>()
            .ok_or_else(|| invalid_argument!("attr '{name}' is not a list of strings"))
    }

    fn typed_list<T>(
        &self,
        name: &str,
        kind: &str,
        f: impl Fn(&AttrValue) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.list(name)?
            .iter()
            .map(f)
            .collect::<Option<_>>()
            .ok_or_else(|| invalid_argument!("attr '{name}' is not a list of {kind} values"))
    }
}

impl FromIterator<(Name, AttrValue)> for Attrs {
    fn from_iter<I: IntoIterator<Item = (Name, AttrValue)>>(iter: I) -> Self {
        let mut list: Vec<_> = iter.into_iter().collect();
        list.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        list.dedup_by(|a, b| a.0 == b.0);
        Attrs(list)
    }
}
