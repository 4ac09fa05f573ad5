//! Ops that compute elements one by one.

use super::attrs::{int, text};
use super::scope::{Scope, Small, typed};
use ferroflow_base::{Result, unimplemented_error};
use ferroflow_graph::Output;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Op, ValueId};
use ferroflow_tensor::{DType, Tensor};

/// Ops of TensorFlow that do the same for every dtype that both have.
const SAME: &[(&str, &str)] = &[
    ("add", "AddV2"),
    ("atan2", "Atan2"),
    ("ceil", "Ceil"),
    ("cosine", "Cos"),
    ("exponential", "Exp"),
    ("exponential_minus_one", "Expm1"),
    ("floor", "Floor"),
    ("is_finite", "IsFinite"),
    ("log", "Log"),
    ("log_plus_one", "Log1p"),
    ("logistic", "Sigmoid"),
    ("maximum", "Maximum"),
    ("minimum", "Minimum"),
    ("multiply", "Mul"),
    ("negate", "Neg"),
    ("power", "Pow"),
    ("round_nearest_even", "Round"),
    ("rsqrt", "Rsqrt"),
    ("sign", "Sign"),
    ("sine", "Sin"),
    ("sqrt", "Sqrt"),
    ("subtract", "Sub"),
    ("tan", "Tan"),
    ("tanh", "Tanh"),
];

/// The same of conditions, which TensorFlow has ops of their own for.
const OF_CONDITIONS: &[(&str, &str)] = &[
    ("add", "LogicalOr"),
    ("and", "LogicalAnd"),
    ("maximum", "LogicalOr"),
    ("minimum", "LogicalAnd"),
    ("multiply", "LogicalAnd"),
    ("not", "LogicalNot"),
    ("or", "LogicalOr"),
];

const OF_BITS: &[(&str, &str)] = &[
    ("and", "BitwiseAnd"),
    ("not", "Invert"),
    ("or", "BitwiseOr"),
    ("xor", "BitwiseXor"),
];

fn named(table: &'static [(&str, &str)], name: &str) -> Option<&'static str> {
    let found = table.iter().find(|(n, _)| *n == name);
    found.map(|(_, op)| *op)
}

/// The unsigned integers of the size of a dtype.
fn unsigned(dtype: DType) -> DType {
    match dtype {
        DType::Int8 => DType::Uint8,
        DType::Int16 => DType::Uint16,
        DType::Int32 => DType::Uint32,
        DType::Int64 => DType::Uint64,
        other => other,
    }
}

fn is_unsigned(dtype: DType) -> bool {
    dtype.is_integer() && dtype == unsigned(dtype)
}

impl Scope<'_, '_> {
    /// Adds an elementwise op; `false` if it is none.
    pub(super) fn elementwise(&mut self, op: &Op) -> Result<bool> {
        let Some(first) = op.operands.first() else {
            return Ok(false);
        };
        let dtype = self.ty(*first)?.dtype;
        let simple = match dtype {
            DType::Bool => named(OF_CONDITIONS, &op.name),
            // TensorFlow's Neg and Sign are of numbers with sign.
            t if is_unsigned(t) && matches!(&*op.name, "negate" | "sign") => None,
            t if t.is_integer() => named(OF_BITS, &op.name).or(named(SAME, &op.name)),
            _ => named(SAME, &op.name),
        };
        if let Some(simple) = simple {
            let attrs = match simple {
                "LogicalAnd" | "LogicalOr" | "LogicalNot" => Attrs::default(),
                _ => typed(dtype),
            };
            self.map(op, |this, x| this.node(simple, attrs, x))?;
            return Ok(true);
        }
        self.other_elementwise(op, dtype)
    }

    /// Applies nodes to operands that are broadcast together.
    fn map(
        &mut self,
        op: &Op,
        make: impl FnOnce(&mut Self, &[Output]) -> Result<Output>,
    ) -> Result<()> {
        let inputs = self.broadcastable(&op.operands)?;
        let y = make(self, &inputs.outputs)?;
        let (id, ty) = self.result(op)?;
        match inputs.broadcast {
            Some((target, is_scalar)) => {
                let small = Small {
                    output: y,
                    target,
                    is_scalar,
                };
                self.define_broadcast(id, ty.clone(), small);
            }
            None => self.define(id, ty.clone(), y),
        }
        Ok(())
    }

    fn other_elementwise(&mut self, op: &Op, dtype: DType) -> Result<bool> {
        match op.name.as_str() {
            "abs" => self.map(op, |this, x| match dtype {
                t if t.is_complex() => this.node("ComplexAbs", to(dtype, real(dtype)), x),
                t if is_unsigned(t) => Ok(x[0]),
                _ => this.node("Abs", typed(dtype), x),
            })?,
            "negate" => self.map(op, |this, x| {
                let zero = this.number(0, dtype)?;
                this.node("Sub", typed(dtype), &[zero, x[0]])
            })?,
            "sign" => self.map(op, |this, x| {
                let one = this.number(1, dtype)?;
                this.node("Minimum", typed(dtype), &[x[0], one])
            })?,
            "real" | "imag" if !dtype.is_complex() => self.map(op, |this, x| match &*op.name {
                "real" => Ok(x[0]),
                _ => this.node("ZerosLike", typed(dtype), x),
            })?,
            "real" => self.map(op, |this, x| this.node("Real", to(dtype, real(dtype)), x))?,
            "imag" => self.map(op, |this, x| this.node("Imag", to(dtype, real(dtype)), x))?,
            "complex" => {
                let whole = match dtype {
                    DType::Double => DType::Complex128,
                    _ => DType::Complex64,
                };
                self.map(op, |this, x| this.node("Complex", to(dtype, whole), x))?;
            }
            "xor" => self.map(op, |this, x| this.node("NotEqual", typed(dtype), x))?,
            "cbrt" => self.map(op, |this, x| this.cbrt(x[0], dtype))?,
            "round_nearest_afz" => self.map(op, |this, x| this.round_away(x[0], dtype))?,
            "popcnt" => self.map(op, |this, x| {
                let bits = this.node("PopulationCount", typed(dtype), x)?;
                this.cast(bits, DType::Uint8, dtype)
            })?,
            "count_leading_zeros" => self.map(op, |this, x| this.leading_zeros(x[0], dtype))?,
            "divide" | "remainder" => self.divide(op, dtype)?,
            "shift_left" | "shift_right_logical" | "shift_right_arithmetic" => {
                self.shift(op, dtype)?;
            }
            "compare" => self.compare(op, dtype)?,
            "select" => {
                let of = self.ty(self.operand(op, 1)?)?.dtype;
                self.map(op, |this, x| this.node("SelectV2", typed(of), x))?;
            }
            "clamp" => {
                let [low, x, high] = op.operands[..] else {
                    return Ok(false);
                };
                let ids: [ValueId; 3] = [low, x, high];
                let clamped = Op {
                    operands: ids.to_vec(),
                    ..op.clone()
                };
                self.map(&clamped, |this, x| {
                    let at_least = this.node("Maximum", typed(dtype), &[x[1], x[0]])?;
                    this.node("Minimum", typed(dtype), &[at_least, x[2]])
                })?;
            }
            "convert" => {
                let to = self.result(op)?.1.dtype;
                self.map(op, |this, x| this.convert(x[0], dtype, to))?;
            }
            "reduce_precision" => {
                let attrs = typed(dtype)
                    .with("exponent_bits", AttrValue::Int(int(op, "exponent_bits")?))
                    .with("mantissa_bits", AttrValue::Int(int(op, "mantissa_bits")?));
                self.map(op, |this, x| this.node("XlaReducePrecision", attrs, x))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `x` of another dtype: what is not zero is true, and complex numbers lose their imaginary part.
    pub(super) fn convert(&mut self, x: Output, from: DType, to_dtype: DType) -> Result<Output> {
        match (from, to_dtype) {
            (DType::Bool, _) | (_, DType::Bool) if from == to_dtype => Ok(x),
            (_, DType::Bool) => {
                let zero = self.number(0, from)?;
                self.node("NotEqual", typed(from), &[x, zero])
            }
            (from, to_dtype) if from.is_complex() && !to_dtype.is_complex() => {
                let part = self.node("Real", to(from, real(from)), &[x])?;
                self.cast(part, real(from), to_dtype)
            }
            (from, to_dtype) if from.is_floating() && to_dtype.is_integer() => {
                self.integer_of(x, from, to_dtype)
            }
            _ => self.cast(x, from, to_dtype),
        }
    }

    /// Floats as integers: what is outside becomes the next one, and NaN becomes 0.
    fn integer_of(&mut self, x: Output, from: DType, to_dtype: DType) -> Result<Output> {
        let of = DType::Double;
        let bits = 8 * to_dtype.size() as i32;
        let (least, above) = match is_unsigned(to_dtype) {
            true => (0.0, 2f64.powi(bits)),
            false => (-2f64.powi(bits - 1), 2f64.powi(bits - 1)),
        };
        let x = self.cast(x, from, of)?;
        let zero = self.constant(Tensor::scalar(0f64))?;
        let least = self.constant(Tensor::scalar(least))?;
        let above = self.constant(Tensor::scalar(above))?;
        let is_nan = self.node("IsNan", typed(of), &[x])?;
        let x = self.node("SelectV2", typed(of), &[is_nan, zero, x])?;
        let x = self.node("Maximum", typed(of), &[x, least])?;
        let is_above = self.node("GreaterEqual", typed(of), &[x, above])?;
        let x = self.node("SelectV2", typed(of), &[is_above, zero, x])?;
        let y = self.cast(x, of, to_dtype)?;
        let last = self.largest(to_dtype)?;
        self.node("SelectV2", typed(to_dtype), &[is_above, last, y])
    }

    /// A scalar.
    pub(super) fn number(&mut self, value: i32, dtype: DType) -> Result<Output> {
        let one = self.constant(Tensor::scalar(value))?;
        self.cast(one, DType::Int32, dtype)
    }

    /// The bits above the first that is set: those that are not set when all below it are.
    fn leading_zeros(&mut self, x: Output, dtype: DType) -> Result<Output> {
        let of = unsigned(dtype);
        let mut bits = match dtype == of {
            true => x,
            false => self.node("Bitcast", bitcast(dtype, of), &[x])?,
        };
        let n = 8 * dtype.size() as i32;
        let mut distance = 1;
        while distance < n {
            let by = self.number(distance, of)?;
            let moved = self.node("RightShift", typed(of), &[bits, by])?;
            bits = self.node("BitwiseOr", typed(of), &[bits, moved])?;
            distance *= 2;
        }
        let set = self.node("PopulationCount", typed(of), &[bits])?;
        let set = self.cast(set, DType::Uint8, dtype)?;
        let all = self.number(n, dtype)?;
        self.node("Sub", typed(dtype), &[all, set])
    }

    fn cbrt(&mut self, x: Output, dtype: DType) -> Result<Output> {
        let sign = self.node("Sign", typed(dtype), &[x])?;
        let size = self.node("Abs", typed(dtype), &[x])?;
        let third = self.constant(Tensor::scalar(1.0f64 / 3.0))?;
        let third = self.cast(third, DType::Double, dtype)?;
        let root = self.node("Pow", typed(dtype), &[size, third])?;
        self.node("Mul", typed(dtype), &[sign, root])
    }

    /// `x` rounded, halves away from zero.
    fn round_away(&mut self, x: Output, dtype: DType) -> Result<Output> {
        let sign = self.node("Sign", typed(dtype), &[x])?;
        let size = self.node("Abs", typed(dtype), &[x])?;
        let floor = self.node("Floor", typed(dtype), &[size])?;
        let rest = self.node("Sub", typed(dtype), &[size, floor])?;
        let half = self.constant(Tensor::scalar(0.5f32))?;
        let half = self.cast(half, DType::Float, dtype)?;
        let is_up = self.node("GreaterEqual", typed(dtype), &[rest, half])?;
        let one = self.cast(is_up, DType::Bool, dtype)?;
        let rounded = self.node("AddV2", typed(dtype), &[floor, one])?;
        self.node("Mul", typed(dtype), &[sign, rounded])
    }

    /// Integers divided by zero are -1, and the remainder is what was divided; the smallest integer by -1 is itself, with the
    /// remainder 0.
    fn divide(&mut self, op: &Op, dtype: DType) -> Result<()> {
        let is_quotient = op.name == "divide";
        if !dtype.is_integer() {
            let name = if is_quotient {
                "RealDiv"
            } else {
                "TruncateMod"
            };
            return self.map(op, |this, x| this.node(name, typed(dtype), x));
        }
        let divisor = self.known_scalar(self.operand(op, 1)?)?;
        let is_safe = divisor.is_some_and(|d| super::attrs::integers(&d).is_some_and(|d| d[0] > 0));
        self.map(op, |this, x| match is_safe {
            true => this.quotient([x[0], x[1]], dtype, is_quotient),
            false => this.guarded_quotient([x[0], x[1]], dtype, is_quotient),
        })
    }

    /// A quotient, or a remainder, by what is neither 0 nor -1.
    fn quotient(&mut self, x: [Output; 2], dtype: DType, is_quotient: bool) -> Result<Output> {
        let is_signed = !is_unsigned(dtype);
        let name = match (is_quotient, is_signed) {
            (true, true) => "TruncateDiv",
            (false, true) => "TruncateMod",
            (true, false) => "FloorDiv",
            (false, false) => "FloorMod",
        };
        if dtype.size() >= 4 || !is_signed {
            return self.node(name, typed(dtype), &x);
        }
        // TruncateMod has no short integers.
        let wide = [
            self.cast(x[0], dtype, DType::Int32)?,
            self.cast(x[1], dtype, DType::Int32)?,
        ];
        let y = self.node(name, typed(DType::Int32), &wide)?;
        self.cast(y, DType::Int32, dtype)
    }

    fn guarded_quotient(
        &mut self,
        x: [Output; 2],
        dtype: DType,
        is_quotient: bool,
    ) -> Result<Output> {
        let (zero, one) = (self.number(0, dtype)?, self.number(1, dtype)?);
        let all_ones = self.node("Invert", typed(dtype), &[zero])?;
        let is_zero = self.node("Equal", typed(dtype), &[x[1], zero])?;
        let mut is_off = is_zero;
        let is_signed = !is_unsigned(dtype);
        if is_signed {
            let is_minus_one = self.node("Equal", typed(dtype), &[x[1], all_ones])?;
            is_off = self.node("LogicalOr", Attrs::default(), &[is_zero, is_minus_one])?;
        }
        let safe = self.node("SelectV2", typed(dtype), &[is_off, one, x[1]])?;
        let plain = self.quotient([x[0], safe], dtype, is_quotient)?;
        let by_minus_one = match (is_quotient, is_signed) {
            (true, true) => self.node("Neg", typed(dtype), &[x[0]])?,
            (true, false) => plain,
            (false, _) => zero,
        };
        let by_zero = if is_quotient { all_ones } else { x[0] };
        let off = self.node("SelectV2", typed(dtype), &[is_zero, by_zero, by_minus_one])?;
        self.node("SelectV2", typed(dtype), &[is_off, off, plain])
    }

    /// Bits that are shifted out are lost, all of them if the distance is as large as the integer.
    fn shift(&mut self, op: &Op, dtype: DType) -> Result<()> {
        let bits = 8 * dtype.size() as i64;
        let known = self.known_scalar(self.operand(op, 1)?)?;
        let known = known.and_then(|d| super::attrs::integers(&d));
        let is_safe = known.is_some_and(|d| (0..bits).contains(&d[0]));
        let (name, of) = match &*op.name {
            "shift_left" => ("LeftShift", dtype),
            "shift_right_arithmetic" => ("RightShift", dtype),
            _ => ("RightShift", unsigned(dtype)),
        };
        self.map(op, |this, x| {
            let mut inputs = [x[0], x[1]];
            if of != dtype {
                for input in &mut inputs {
                    *input = this.node("Bitcast", bitcast(dtype, of), &[*input])?;
                }
            }
            let mut y = this.node(name, typed(of), &inputs)?;
            if of != dtype {
                y = this.node("Bitcast", bitcast(of, dtype), &[y])?;
            }
            if is_safe {
                return Ok(y);
            }
            // A distance below zero is a large one without sign.
            let distance = this.node("Bitcast", bitcast(dtype, unsigned(dtype)), &[x[1]])?;
            let distance = this.cast(distance, unsigned(dtype), DType::Uint64)?;
            let limit = this.number(bits as i32, DType::Uint64)?;
            let fits = this.node("Less", typed(DType::Uint64), &[distance, limit])?;
            let zero = this.number(0, dtype)?;
            let lost = match &*op.name {
                "shift_right_arithmetic" => {
                    let is_negative = this.node("Less", typed(dtype), &[x[0], zero])?;
                    let all_ones = this.node("Invert", typed(dtype), &[zero])?;
                    this.node("SelectV2", typed(dtype), &[is_negative, all_ones, zero])?
                }
                _ => zero,
            };
            this.node("SelectV2", typed(dtype), &[fits, y, lost])
        })
    }

    fn compare(&mut self, op: &Op, dtype: DType) -> Result<()> {
        let is_total = text(op, "compare_type").is_ok_and(|t| t == "TOTALORDER");
        let direction = text(op, "comparison_direction")?.to_string();
        let name = match (&*direction, dtype) {
            ("EQ", _) => "Equal",
            ("NE", _) => "NotEqual",
            ("LT", _) => "Less",
            ("LE", _) => "LessEqual",
            ("GT", _) => "Greater",
            ("GE", _) => "GreaterEqual",
            (other, _) => {
                return Err(unimplemented_error!(
                    "comparisons '{other}' are not implemented"
                ));
            }
        };
        self.map(op, |this, x| {
            match (is_total && dtype.is_floating(), dtype) {
                (true, _) => {
                    let keys = [this.total(x[0], dtype)?, this.total(x[1], dtype)?];
                    let of = signed(dtype);
                    this.node(name, typed(of), &keys)
                }
                // TensorFlow orders no conditions.
                (false, DType::Bool) if !matches!(name, "Equal" | "NotEqual") => {
                    let x = [
                        this.cast(x[0], DType::Bool, DType::Int32)?,
                        this.cast(x[1], DType::Bool, DType::Int32)?,
                    ];
                    this.node(name, typed(DType::Int32), &x)
                }
                _ => this.node(name, typed(dtype), x),
            }
        })
    }

    /// Integers in the order of all floats: -NaN, -inf, -0, 0, inf, NaN.
    pub(super) fn total(&mut self, x: Output, dtype: DType) -> Result<Output> {
        let of = signed(dtype);
        let bits = self.node("Bitcast", bitcast(dtype, of), &[x])?;
        let (zero, largest) = (self.number(0, of)?, self.largest(of)?);
        let is_negative = self.node("Less", typed(of), &[bits, zero])?;
        let turned = self.node("BitwiseXor", typed(of), &[bits, largest])?;
        self.node("SelectV2", typed(of), &[is_negative, turned, bits])
    }

    /// The largest integer.
    fn largest(&mut self, dtype: DType) -> Result<Output> {
        let value = match dtype {
            DType::Int8 => Tensor::scalar(i8::MAX),
            DType::Int16 => Tensor::scalar(i16::MAX),
            DType::Int64 => Tensor::scalar(i64::MAX),
            DType::Uint8 => Tensor::scalar(u8::MAX),
            DType::Uint16 => Tensor::scalar(u16::MAX),
            DType::Uint32 => Tensor::scalar(u32::MAX),
            DType::Uint64 => Tensor::scalar(u64::MAX),
            _ => Tensor::scalar(i32::MAX),
        };
        self.constant(value)
    }
}

/// The signed integers of the size of a float.
pub(super) fn signed(dtype: DType) -> DType {
    match dtype.size() {
        2 => DType::Int16,
        8 => DType::Int64,
        _ => DType::Int32,
    }
}

pub(super) fn bitcast(from: DType, to: DType) -> Attrs {
    typed(from).with("type", AttrValue::Type(to))
}

/// The dtype of the parts of a complex number.
pub(super) fn real(dtype: DType) -> DType {
    match dtype {
        DType::Complex128 => DType::Double,
        DType::Complex64 => DType::Float,
        other => other,
    }
}

fn to(from: DType, to: DType) -> Attrs {
    typed(from).with("Tout", AttrValue::Type(to))
}
