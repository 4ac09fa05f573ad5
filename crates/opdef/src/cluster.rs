//! [`Cluster`]: the program of a `_Cluster` node, which stands for a loop, a conditional or a group
//! of small ops: typed scalars in static single assignment with structured control.
//!
//! Tensors of a few elements are one value for each element. Arrays are memory of a length that is
//! known when the program runs; loads and stores name them by their slot. Everything is pure but
//! for the program's own arrays and its streams of random numbers, which the caller keeps if a run
//! does not end, so that a run that fails may be repeated by other means: an
//! instruction that cannot go on (a division by zero, an index out of range) leaves the program,
//! and the caller runs the nodes that it was made of, which report the error.
//!
//! [`Cluster::verify`] lists the rules that engines rely on.

mod functions;
mod parse;
mod print;
mod random;
mod verify;

use ferroflow_tensor::DType;
pub use functions::{ScalarBinary, ScalarUnary};
pub use random::{Distribution, Draw, RandomSource};

/// A value: a scalar that one instruction or parameter defines.
pub type ValueId = u32;

/// The type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named after Rust's types")]
pub enum ScalarType {
    Bool,
    I32,
    I64,
    F32,
    F64,
}

impl ScalarType {
    const ALL: [(&'static str, ScalarType); 5] = [
        ("bool", ScalarType::Bool),
        ("i32", ScalarType::I32),
        ("i64", ScalarType::I64),
        ("f32", ScalarType::F32),
        ("f64", ScalarType::F64),
    ];

    /// Returns the type of the elements of a tensor, if programs can compute with them.
    pub fn of(dtype: DType) -> Option<ScalarType> {
        Some(match dtype {
            DType::Bool => ScalarType::Bool,
            DType::Int32 => ScalarType::I32,
            DType::Int64 => ScalarType::I64,
            DType::Float => ScalarType::F32,
            DType::Double => ScalarType::F64,
            _ => return None,
        })
    }

    /// Returns the dtype of tensors of such elements.
    pub fn dtype(self) -> DType {
        match self {
            ScalarType::Bool => DType::Bool,
            ScalarType::I32 => DType::Int32,
            ScalarType::I64 => DType::Int64,
            ScalarType::F32 => DType::Float,
            ScalarType::F64 => DType::Double,
        }
    }

    /// Returns whether the type is an integer.
    pub fn is_int(self) -> bool {
        matches!(self, ScalarType::I32 | ScalarType::I64)
    }

    /// Returns whether the type is a float.
    pub fn is_float(self) -> bool {
        matches!(self, ScalarType::F32 | ScalarType::F64)
    }

    /// Returns the name in the text form of programs.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, t)| *t == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns the type of this name.
    pub fn from_name(name: &str) -> Option<ScalarType> {
        let found = Self::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, t)| *t)
    }
}

/// An input of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterInput {
    /// A tensor of this shape; its elements are the next values.
    Tensor(ScalarType, Vec<usize>),
    /// A vector of any length, the next array.
    Array(ScalarType),
}

/// An output of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterOutput {
    /// A tensor of this shape with these elements.
    Tensor(ScalarType, Vec<usize>, Vec<ValueId>),
    /// The array in this slot, as a vector.
    Array(u32),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are explained with the variants")]
pub enum ClusterInst {
    /// A constant with these bits, zero-extended.
    Const {
        out: ValueId,
        ty: ScalarType,
        bits: u64,
    },
    /// A function of one scalar.
    Unary {
        out: ValueId,
        f: ScalarUnary,
        a: ValueId,
    },
    /// A function of two scalars of one type.
    Binary {
        out: ValueId,
        f: ScalarBinary,
        a: ValueId,
        b: ValueId,
    },
    /// A conversion, with the results of the op Cast.
    Cast {
        out: ValueId,
        to: ScalarType,
        a: ValueId,
    },
    /// `a` if `cond`, else `b`.
    Select {
        out: ValueId,
        cond: ValueId,
        a: ValueId,
        b: ValueId,
    },
    /// Leaves the program if `cond`.
    LeaveIf { cond: ValueId },
    /// The number of elements of an array, an i64.
    Len { out: ValueId, array: u32 },
    /// Makes an array of zeros, whose length is an i64.
    Alloc { array: u32, len: ValueId },
    /// The element at `index`, an i64; leaves the program if there is none.
    Load {
        out: ValueId,
        array: u32,
        index: ValueId,
    },
    /// Changes the element at `index`, an i64; leaves the program if there is none.
    Store {
        array: u32,
        index: ValueId,
        value: ValueId,
    },
    /// Random numbers; leaves the program if the range is empty.
    Random { outs: Vec<ValueId>, draw: Draw },
    /// The results of one of two blocks.
    If {
        outs: Vec<ValueId>,
        cond: ValueId,
        then: ClusterBlock,
        otherwise: ClusterBlock,
    },
    /// A loop. Each iteration runs `head`; unless `cond`, the loop ends with `exits`, else it runs
    /// `body` and continues with `next`.
    Loop(Box<ClusterLoop>),
}

/// Instructions in order, and the values that they result in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterBlock {
    /// The instructions.
    pub insts: Vec<ClusterInst>,
    /// The results.
    pub results: Vec<ValueId>,
}

/// The parts of [`ClusterInst::Loop`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterLoop {
    /// The variables.
    pub params: Vec<ValueId>,
    /// Their first values.
    pub init: Vec<ValueId>,
    /// What every iteration runs, the last one included.
    pub head: Vec<ClusterInst>,
    /// Whether to go on.
    pub cond: ValueId,
    /// What the loop results in, as seen by the end of `head`.
    pub exits: Vec<ValueId>,
    /// What follows `head`, whose values it sees.
    pub body: Vec<ClusterInst>,
    /// The next values of the variables.
    pub next: Vec<ValueId>,
    /// The results.
    pub outs: Vec<ValueId>,
}

/// A program; see the [module](self).
///
/// ```
/// use ferroflow_opdef::Cluster;
/// let text = "in i32[];
///     v1 = const i32 0x0;
///     loop (v2 = v0, v3 = v1) {
///         v4 = Greater(v2, v1);
///     } while v4 exit (v3) as (v7) {
///         v5 = AddV2(v3, v2);
///         v6 = Sub(v2, v5);
///     } next (v6, v5);
///     out i32[](v7);";
/// let program = Cluster::decode(text)?;
/// assert_eq!(Cluster::decode(&program.to_string())?, program);
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// The inputs; their elements are the first values, their arrays the first slots.
    pub inputs: Vec<ClusterInput>,
    /// The types of the arrays that the program makes, in the slots after those of the inputs.
    pub arrays: Vec<ScalarType>,
    /// The number of streams of random numbers that continue from run to run; a run that leaves draws nothing.
    pub n_streams: u32,
    /// The instructions.
    pub insts: Vec<ClusterInst>,
    /// The outputs.
    pub outputs: Vec<ClusterOutput>,
}

/// Instructions that take as long as to draw a random number.
const DRAW: usize = 16;

impl Cluster {
    /// Returns the types of the values that inputs define, in order.
    pub fn input_values(&self) -> impl Iterator<Item = ScalarType> + '_ {
        self.inputs.iter().flat_map(|input| match input {
            ClusterInput::Tensor(ty, dims) => {
                std::iter::repeat_n(*ty, dims.iter().product::<usize>())
            }
            ClusterInput::Array(ty) => std::iter::repeat_n(*ty, 0),
        })
    }

    /// Returns the number of instructions that a run executes at most; `None` if the program has loops, so that it may
    /// execute any number.
    pub fn max_insts(&self) -> Option<usize> {
        fn count(insts: &[ClusterInst]) -> Option<usize> {
            let each = insts.iter().map(|inst| match inst {
                ClusterInst::Loop(_) => None,
                ClusterInst::Random { outs, .. } => Some(DRAW * outs.len()),
                ClusterInst::If {
                    then, otherwise, ..
                } => Some(1 + count(&then.insts)?.max(count(&otherwise.insts)?)),
                _ => Some(1),
            });
            each.sum()
        }
        count(&self.insts)
    }

    /// Returns the types of all arrays, by slot.
    pub fn array_types(&self) -> Vec<ScalarType> {
        let inputs = self.inputs.iter().filter_map(|input| match input {
            ClusterInput::Array(ty) => Some(*ty),
            ClusterInput::Tensor(..) => None,
        });
        inputs.chain(self.arrays.iter().copied()).collect()
    }
}
