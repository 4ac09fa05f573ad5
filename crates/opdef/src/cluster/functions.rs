//! The functions of scalars, named after TensorFlow's ops.

use super::ScalarType;

macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $($op:literal)|+),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "named after TensorFlow's ops")]
        pub enum $name { $($variant),* }

        impl $name {
            const ALL: &'static [(&'static str, $name)] = &[$($(($op, $name::$variant)),+),*];

            /// Returns the function of the op `op`, if it has one.
            pub fn of_op(op: &str) -> Option<$name> {
                let found = Self::ALL.iter().find(|(name, _)| *name == op);
                found.map(|(_, f)| *f)
            }

            /// Returns the op that the function is named after.
            pub fn name(self) -> &'static str {
                let found = Self::ALL.iter().find(|(_, f)| *f == self);
                found.map_or("", |(name, _)| name)
            }
        }
    };
}

functions! {
    /// A function of one scalar.
    ScalarUnary {
        Neg = "Neg", Abs = "Abs", Sign = "Sign", Square = "Square", Sqrt = "Sqrt", Rsqrt = "Rsqrt",
        Reciprocal = "Reciprocal" | "Inv", Exp = "Exp", Expm1 = "Expm1", Log = "Log",
        Log1p = "Log1p", Sin = "Sin", Cos = "Cos", Tan = "Tan", Asin = "Asin", Acos = "Acos",
        Atan = "Atan", Sinh = "Sinh", Cosh = "Cosh", Tanh = "Tanh", Asinh = "Asinh",
        Acosh = "Acosh", Atanh = "Atanh", Sigmoid = "Sigmoid", Erf = "Erf", Erfc = "Erfc",
        Floor = "Floor", Ceil = "Ceil", Rint = "Rint" | "Round", IsNan = "IsNan", IsInf = "IsInf",
        IsFinite = "IsFinite", Not = "LogicalNot", Invert = "Invert",
    }
}

functions! {
    /// A function of two scalars of one type.
    ScalarBinary {
        Add = "AddV2" | "Add", Sub = "Sub", Mul = "Mul", Maximum = "Maximum", Minimum = "Minimum",
        SquaredDifference = "SquaredDifference", Div = "RealDiv" | "Div", FloorDiv = "FloorDiv",
        TruncateDiv = "TruncateDiv", FloorMod = "FloorMod", TruncateMod = "TruncateMod" | "Mod",
        DivNoNan = "DivNoNan", Pow = "Pow", Atan2 = "Atan2", And = "BitwiseAnd",
        Or = "BitwiseOr", Xor = "BitwiseXor", LeftShift = "LeftShift", RightShift = "RightShift",
        LogicalAnd = "LogicalAnd", LogicalOr = "LogicalOr", Equal = "Equal",
        NotEqual = "NotEqual", Less = "Less", LessEqual = "LessEqual", Greater = "Greater",
        GreaterEqual = "GreaterEqual",
    }
}

impl ScalarUnary {
    /// Returns the type of the result for an operand of type `ty`, if the function takes one.
    pub fn result(self, ty: ScalarType) -> Option<ScalarType> {
        use ScalarUnary::*;
        match self {
            Neg | Abs | Sign | Square => (ty != ScalarType::Bool).then_some(ty),
            IsNan | IsInf | IsFinite => ty.is_float().then_some(ScalarType::Bool),
            Not => (ty == ScalarType::Bool).then_some(ty),
            Invert => ty.is_int().then_some(ty),
            _ => ty.is_float().then_some(ty),
        }
    }
}

impl ScalarBinary {
    /// Returns the type of the result for operands of type `ty`, if the function takes them.
    pub fn result(self, ty: ScalarType) -> Option<ScalarType> {
        use ScalarBinary::*;
        let is_number = ty != ScalarType::Bool;
        match self {
            Equal | NotEqual => Some(ScalarType::Bool),
            Less | LessEqual | Greater | GreaterEqual => is_number.then_some(ScalarType::Bool),
            LogicalAnd | LogicalOr => (!is_number).then_some(ty),
            And | Or | Xor | LeftShift | RightShift => ty.is_int().then_some(ty),
            DivNoNan | Atan2 => ty.is_float().then_some(ty),
            _ => is_number.then_some(ty),
        }
    }
}
