//! [`Module`]: a program in memory.

use ferroflow_tensor::{DType, Tensor};

/// A program: functions, of which `main` is called.
#[derive(Clone, Debug)]
pub struct Module {
    /// The functions in the order of the file.
    pub functions: Vec<Function>,
}

impl Module {
    /// Returns the function of a name, if any.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|f| f.name == name)
    }
}

/// A function of tensors.
#[derive(Clone, Debug)]
pub struct Function {
    /// The name, without `@`.
    pub name: String,
    /// The types of the results.
    pub results: Vec<Type>,
    /// The parameters and the ops.
    pub body: Block,
}

/// Ops in the order in which they run; the last one ends the block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The parameters.
    pub args: Vec<(ValueId, Type)>,
    /// The ops.
    pub ops: Vec<Op>,
}

/// The number of a value, different for all values of a function, those of its regions included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// An op.
#[derive(Clone, Debug)]
pub struct Op {
    /// The name without dialect and version, such as `add`, `dot_general`, `call` or `return`.
    pub name: String,
    /// The values that it reads.
    pub operands: Vec<ValueId>,
    /// The values that it makes.
    pub results: Vec<(ValueId, Type)>,
    /// The attributes by name.
    pub attrs: Vec<(String, Attr)>,
    /// The regions, of a block each.
    pub regions: Vec<Block>,
}

impl Op {
    /// Returns the attribute of a name, if any.
    pub fn attr(&self, name: &str) -> Option<&Attr> {
        let found = self.attrs.iter().find(|(n, _)| n == name);
        found.map(|(_, attr)| attr)
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// What orders effects.
    Token,
    /// Several values.
    Tuple(Vec<Type>),
    /// Any other type, as text.
    Other(String),
}

/// The type of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorType {
    /// The dimensions; `None` are dynamic.
    pub dims: Vec<Option<usize>>,
    /// The dtype of the elements: integers without sign are signed.
    pub dtype: DType,
}

/// An attribute.
#[derive(Clone, Debug)]
pub enum Attr {
    /// `unit`, whose presence counts.
    Unit,
    /// A boolean.
    Bool(bool),
    /// An integer, sign-extended.
    Int(i64),
    /// A float.
    Float(f64),
    /// A string, or the name of a symbol.
    Str(String),
    /// Attributes in order.
    Array(Vec<Attr>),
    /// Attributes by name.
    Dict(Vec<(String, Attr)>),
    /// A constant tensor; a splat has all elements.
    Tensor(Tensor),
    /// A type.
    Type(Type),
    /// A value of an enumeration by its name, such as `GT`.
    Enum(&'static str),
    /// Any other attribute, as text.
    Other(String),
}
