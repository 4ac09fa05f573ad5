//! [`Instr`]: a decoded instruction.

/// The type of an instruction or a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ty {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    B32,
    U32,
    S32,
    F32,
    Tf32,
    F16x2,
    Bf16x2,
    B64,
    U64,
    S64,
    F64,
}

impl Ty {
    pub(crate) fn parse(name: &str) -> Option<Ty> {
        Some(match name {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "u8" => Ty::U8,
            "s8" => Ty::S8,
            "b16" => Ty::B16,
            "u16" => Ty::U16,
            "s16" => Ty::S16,
            "f16" => Ty::F16,
            "bf16" => Ty::Bf16,
            "b32" => Ty::B32,
            "u32" => Ty::U32,
            "s32" => Ty::S32,
            "f32" => Ty::F32,
            "tf32" => Ty::Tf32,
            "f16x2" => Ty::F16x2,
            "bf16x2" => Ty::Bf16x2,
            "b64" => Ty::B64,
            "u64" => Ty::U64,
            "s64" => Ty::S64,
            "f64" => Ty::F64,
            _ => return None,
        })
    }

    /// Bytes; 0 for a predicate.
    pub(crate) fn size(self) -> usize {
        match self {
            Ty::Pred => 0,
            Ty::B8 | Ty::U8 | Ty::S8 => 1,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::Bf16 => 2,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 8,
            _ => 4,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Ty::F16 | Ty::Bf16 | Ty::F32 | Ty::F64)
    }

    fn is_bits(self) -> bool {
        matches!(
            self,
            Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::Tf32 | Ty::F16x2 | Ty::Bf16x2
        )
    }

    /// Whether an instruction of this type takes a register that was declared as `declared`; if `is_wide`, also a larger one.
    pub(crate) fn takes(self, declared: Ty, is_wide: bool) -> bool {
        let fits = match is_wide && !self.is_float() {
            true => declared.size() >= self.size() && declared != Ty::Pred,
            false => declared.size() == self.size(),
        };
        let same_kind = self.is_float() == declared.is_float();
        fits && (self == declared || self.is_bits() || declared.is_bits() || same_kind)
    }
}

/// How a result is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    Nearest,
    /// Ties away from zero.
    Away,
    Zero,
    Down,
    Up,
}

/// Functions of integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Int {
    Add,
    Sub,
    Mul,
    MulHigh,
    MulWide,
    Mad,
    MadWide,
    Div,
    Rem,
    Min,
    Max,
    Neg,
    Abs,
    Shl,
    Shr,
    And,
    Or,
    Xor,
    Not,
    /// Of a field, a base, a position and a length.
    Insert,
}

/// Functions of floats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Float {
    Add(Round),
    Sub(Round),
    Mul(Round),
    Fma(Round),
    Div,
    /// `a / b`, which is 0 for very large divisors.
    DivApprox,
    Min,
    Max,
    Neg,
    Abs,
    Sqrt,
    Rcp,
    /// `ftz`: subnormal numbers are zeros.
    RcpApprox(bool),
    RsqrtApprox(bool),
    SqrtApprox(bool),
    Exp2Approx(bool),
    Log2Approx(bool),
    SinApprox,
    CosApprox,
    TanhApprox,
}

/// A comparison; floats that are not ordered fulfil those that say so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cmp {
    pub(crate) less: bool,
    pub(crate) equal: bool,
    pub(crate) greater: bool,
    pub(crate) unordered: bool,
}

impl Cmp {
    pub(crate) fn parse(name: &str, is_float: bool) -> Option<Cmp> {
        let (less, equal, greater, unordered) = match name {
            "eq" => (false, true, false, false),
            // Of integers and bits.
            "ne" => (true, false, true, false),
            "lt" => (true, false, false, false),
            "le" => (true, true, false, false),
            "gt" => (false, false, true, false),
            "ge" => (false, true, true, false),
            "equ" if is_float => (false, true, false, true),
            "neu" if is_float => (true, false, true, true),
            "ltu" if is_float => (true, false, false, true),
            "leu" if is_float => (true, true, false, true),
            "gtu" if is_float => (false, false, true, true),
            "geu" if is_float => (false, true, true, true),
            "num" if is_float => (true, true, true, false),
            "nan" if is_float => (false, false, false, true),
            _ => return None,
        };
        Some(Cmp {
            less,
            equal,
            greater,
            unordered,
        })
    }
}

/// Where a load or a store goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shuffle {
    Xor,
    Up,
    Down,
    Index,
}

/// What the operands of a product of matrices are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Matrix {
    F16,
    Bf16,
    Tf32,
}

/// What an instruction does with its rows: `d` is the destination, `s` are the sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Mov,
    Int(Int, Ty),
    F32(Float),
    F64(Float),
    Compare(Cmp, Ty),
    /// `s[2] ? s[0] : s[1]`.
    Select,
    Convert {
        to: Ty,
        from: Ty,
        round: Round,
        /// Whether the result of a conversion between floats is an integer.
        is_whole: bool,
        /// Clamps to 0 to 1.
        saturates: bool,
    },
    /// Joins words of this number of bits.
    Pack(u32),
    Unpack(u32),
    /// `s[0]` is the address.
    Load(Space, Ty, i64),
    /// The values follow the address.
    Store(Space, Ty, i64),
    /// Adds a float to memory.
    Reduce(i64),
    Shuffle(Shuffle),
    Matrix(Matrix),
    /// Loads matrices of 8 x 8 elements of 16 bits.
    LoadMatrix {
        is_turned: bool,
        offset: i64,
    },
    /// From `s[1]` to `s[0]`; `s[2]`, if any, says how many bytes are no zeros.
    CopyAsync {
        bytes: usize,
        to: i64,
        from: i64,
    },
    CopyCommit,
    /// Waits until no more groups than these are left; `None`: all copies.
    CopyWait(Option<u32>),
    Barrier,
    Branch(u32),
    Exit,
}

/// An instruction whose operands are rows of a warp's registers.
#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) op: Op,
    /// The predicate, and the value of it with which the instruction runs.
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) d: Box<[u32]>,
    pub(crate) s: Box<[u32]>,
}

impl Instr {
    /// Whether lanes of a warp wait for each other.
    pub(crate) fn is_joint(&self) -> bool {
        matches!(
            self.op,
            Op::Shuffle(_) | Op::Matrix(_) | Op::LoadMatrix { .. }
        )
    }
}
