//! Code of single functions, with the results of the kernels: integers wrap around, the larger and
//! smaller of two floats is NaN if one is, a float out of range becomes the smallest integer.

use crate::helpers::Helper;
use crate::translate::Translator;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use ferroflow_opdef::{ScalarBinary, ScalarType, ScalarUnary};

/// The type of a scalar in a register.
pub(crate) fn machine_type(ty: ScalarType) -> Type {
    match ty {
        ScalarType::Bool => types::I8,
        ScalarType::I32 => types::I32,
        ScalarType::I64 => types::I64,
        ScalarType::F32 => types::F32,
        ScalarType::F64 => types::F64,
    }
}

impl Translator<'_> {
    fn float(&mut self, ty: ScalarType, x: f64) -> Value {
        match ty {
            ScalarType::F32 => self.b.ins().f32const(x as f32),
            _ => self.b.ins().f64const(x),
        }
    }

    fn int(&mut self, ty: ScalarType, x: i64) -> Value {
        self.b.ins().iconst(machine_type(ty), x)
    }

    /// A function of one scalar; `None` if there is no code for it.
    pub(crate) fn unary(&mut self, f: ScalarUnary, ty: ScalarType, a: Value) -> Option<Value> {
        use ScalarUnary as F;
        let is_float = ty.is_float();
        let helper = Helper::Unary(f, ty);
        if helper.address().is_some() {
            let ty = machine_type(ty);
            return self.call(helper, &[a], &[ty], ty);
        }
        Some(match f {
            F::Neg if is_float => self.b.ins().fneg(a),
            F::Neg => self.b.ins().ineg(a),
            F::Abs if is_float => self.b.ins().fabs(a),
            F::Abs => self.b.ins().iabs(a),
            F::Square if is_float => self.b.ins().fmul(a, a),
            F::Square => self.b.ins().imul(a, a),
            F::Sqrt => self.b.ins().sqrt(a),
            F::Reciprocal => {
                let one = self.float(ty, 1.0);
                self.b.ins().fdiv(one, a)
            }
            F::Floor => self.b.ins().floor(a),
            F::Ceil => self.b.ins().ceil(a),
            F::Rint => self.b.ins().nearest(a),
            F::Sign => {
                let (zero, minus) = (self.int(ty, 0), self.int(ty, -1));
                let positive = self.b.ins().icmp(IntCC::SignedGreaterThan, a, zero);
                let positive = self.b.ins().uextend(machine_type(ty), positive);
                let negative = self.b.ins().icmp(IntCC::SignedLessThan, a, zero);
                self.b.ins().select(negative, minus, positive)
            }
            F::IsNan => self.b.ins().fcmp(FloatCC::Unordered, a, a),
            F::IsInf | F::IsFinite => {
                let infinity = self.float(ty, f64::INFINITY);
                let size = self.b.ins().fabs(a);
                let cc = match f {
                    F::IsInf => FloatCC::Equal,
                    _ => FloatCC::LessThan,
                };
                self.b.ins().fcmp(cc, size, infinity)
            }
            F::Not => {
                let one = self.int(ScalarType::Bool, 1);
                self.b.ins().bxor(a, one)
            }
            F::Invert => self.b.ins().bnot(a),
            _ => return None,
        })
    }

    /// A function of two scalars of type `ty`; `None` if there is no code for it.
    pub(crate) fn binary(
        &mut self,
        f: ScalarBinary,
        ty: ScalarType,
        a: Value,
        b: Value,
        divisor: Option<i64>,
    ) -> Option<Value> {
        use ScalarBinary as F;
        let helper = Helper::Binary(f, ty);
        if helper.address().is_some() {
            if f == F::Pow && ty.is_int() {
                let zero = self.int(ty, 0);
                let negative = self.b.ins().icmp(IntCC::SignedLessThan, b, zero);
                self.leave_if(negative);
            }
            let ty = machine_type(ty);
            return self.call(helper, &[a, b], &[ty, ty], ty);
        }
        if let Some((int, float)) = comparison(f) {
            return Some(match ty.is_float() {
                true => self.b.ins().fcmp(float, a, b),
                false => self.b.ins().icmp(int, a, b),
            });
        }
        match ty.is_float() {
            true => self.float_binary(f, ty, a, b),
            false => self.int_binary(f, ty, a, b, divisor),
        }
    }

    fn float_binary(
        &mut self,
        f: ScalarBinary,
        ty: ScalarType,
        a: Value,
        b: Value,
    ) -> Option<Value> {
        use ScalarBinary as F;
        Some(match f {
            F::Add => self.b.ins().fadd(a, b),
            F::Sub => self.b.ins().fsub(a, b),
            F::Mul => self.b.ins().fmul(a, b),
            F::Div => self.b.ins().fdiv(a, b),
            F::Maximum | F::Minimum => {
                let cc = match f {
                    F::Maximum => FloatCC::GreaterThan,
                    _ => FloatCC::LessThan,
                };
                let (chosen, nan) = (
                    self.b.ins().fcmp(cc, a, b),
                    self.b.ins().fcmp(FloatCC::Unordered, a, a),
                );
                let chosen = self.b.ins().bor(chosen, nan);
                self.b.ins().select(chosen, a, b)
            }
            F::SquaredDifference => {
                let d = self.b.ins().fsub(a, b);
                self.b.ins().fmul(d, d)
            }
            F::FloorDiv | F::TruncateDiv => {
                let q = self.b.ins().fdiv(a, b);
                match f {
                    F::FloorDiv => self.b.ins().floor(q),
                    _ => self.b.ins().trunc(q),
                }
            }
            F::DivNoNan => {
                let zero = self.float(ty, 0.0);
                let q = self.b.ins().fdiv(a, b);
                let is_zero = self.b.ins().fcmp(FloatCC::Equal, b, zero);
                self.b.ins().select(is_zero, zero, q)
            }
            _ => return None,
        })
    }

    fn int_binary(
        &mut self,
        f: ScalarBinary,
        ty: ScalarType,
        a: Value,
        b: Value,
        divisor: Option<i64>,
    ) -> Option<Value> {
        use ScalarBinary as F;
        Some(match f {
            F::Add => self.b.ins().iadd(a, b),
            F::Sub => self.b.ins().isub(a, b),
            F::Mul => self.b.ins().imul(a, b),
            F::Maximum => self.b.ins().smax(a, b),
            F::Minimum => self.b.ins().smin(a, b),
            F::SquaredDifference => {
                let d = self.b.ins().isub(a, b);
                self.b.ins().imul(d, d)
            }
            F::And | F::LogicalAnd => self.b.ins().band(a, b),
            F::Or | F::LogicalOr => self.b.ins().bor(a, b),
            F::Xor => self.b.ins().bxor(a, b),
            F::LeftShift | F::RightShift => {
                let bits = i64::from(machine_type(ty).bits()) - 1;
                let (low, high) = (self.int(ty, 0), self.int(ty, bits));
                let count = self.b.ins().smax(b, low);
                let count = self.b.ins().smin(count, high);
                match f {
                    F::LeftShift => self.b.ins().ishl(a, count),
                    _ => self.b.ins().sshr(a, count),
                }
            }
            F::Div | F::FloorDiv | F::TruncateDiv | F::FloorMod | F::TruncateMod => {
                self.division(f, ty, a, b, divisor)
            }
            _ => return None,
        })
    }

    /// A division or remainder; leaves if the divisor is zero.
    fn division(
        &mut self,
        f: ScalarBinary,
        ty: ScalarType,
        a: Value,
        b: Value,
        divisor: Option<i64>,
    ) -> Value {
        use ScalarBinary as F;
        if let (Some(d), F::FloorDiv | F::FloorMod) = (divisor, f)
            && d > 0
            && (d as u64).is_power_of_two()
        {
            // Shifts and masks round down.
            return match f {
                F::FloorDiv => self.b.ins().sshr_imm(a, i64::from(d.trailing_zeros())),
                _ => self.b.ins().band_imm(a, d - 1),
            };
        }
        let zero = self.int(ty, 0);
        let (quotient, remainder) = match divisor {
            Some(d) if d != 0 && d != -1 => (self.b.ins().sdiv(a, b), None),
            _ => {
                let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
                self.leave_if(is_zero);
                // The quotient of the smallest integer and -1 would trap instead of wrapping.
                let minus = self.b.ins().icmp_imm(IntCC::Equal, b, -1);
                let one = self.int(ty, 1);
                let safe = self.b.ins().select(minus, one, b);
                let (q, negated) = (self.b.ins().sdiv(a, safe), self.b.ins().ineg(a));
                (self.b.ins().select(minus, negated, q), None::<Value>)
            }
        };
        let remainder = remainder.unwrap_or_else(|| {
            let product = self.b.ins().imul(quotient, b);
            self.b.ins().isub(a, product)
        });
        match f {
            F::TruncateMod => return remainder,
            F::Div | F::TruncateDiv => return quotient,
            _ => {}
        }
        // Rounds down if the remainder and the divisor differ in sign.
        let inexact = self.b.ins().icmp(IntCC::NotEqual, remainder, zero);
        let signs = self.b.ins().bxor(remainder, b);
        let opposite = self.b.ins().icmp(IntCC::SignedLessThan, signs, zero);
        let adjust = self.b.ins().band(inexact, opposite);
        match f {
            F::FloorDiv => {
                let less = self.b.ins().iadd_imm(quotient, -1);
                self.b.ins().select(adjust, less, quotient)
            }
            _ => {
                let sum = self.b.ins().iadd(remainder, b);
                self.b.ins().select(adjust, sum, remainder)
            }
        }
    }

    /// A conversion with the results of the op Cast.
    pub(crate) fn cast(&mut self, from: ScalarType, to: ScalarType, a: Value) -> Value {
        use ScalarType as T;
        let machine = machine_type(to);
        match (from, to) {
            (from, to) if from == to => a,
            (T::Bool, T::F32 | T::F64) => {
                let wide = self.b.ins().uextend(types::I32, a);
                self.b.ins().fcvt_from_sint(machine, wide)
            }
            (T::Bool, _) => self.b.ins().uextend(machine, a),
            (T::F32 | T::F64, T::Bool) => {
                let zero = self.float(from, 0.0);
                self.b.ins().fcmp(FloatCC::NotEqual, a, zero)
            }
            (_, T::Bool) => self.b.ins().icmp_imm(IntCC::NotEqual, a, 0),
            (T::I32, T::I64) => self.b.ins().sextend(machine, a),
            (T::I64, T::I32) => self.b.ins().ireduce(machine, a),
            (T::I32 | T::I64, _) => self.b.ins().fcvt_from_sint(machine, a),
            (T::F32, T::F64) => self.b.ins().fpromote(machine, a),
            (T::F64, T::F32) => self.b.ins().fdemote(machine, a),
            _ => {
                let half = if to == T::I32 { 31 } else { 63 };
                let bound = 2f64.powi(half);
                let (low, high) = (self.float(from, -bound), self.float(from, bound));
                let least = self.int(
                    to,
                    if to == T::I32 {
                        i32::MIN.into()
                    } else {
                        i64::MIN
                    },
                );
                let above = self.b.ins().fcmp(FloatCC::GreaterThanOrEqual, a, low);
                let below = self.b.ins().fcmp(FloatCC::LessThan, a, high);
                let is_within = self.b.ins().band(above, below);
                let value = self.b.ins().fcvt_to_sint_sat(machine, a);
                self.b.ins().select(is_within, value, least)
            }
        }
    }
}

fn comparison(f: ScalarBinary) -> Option<(IntCC, FloatCC)> {
    Some(match f {
        ScalarBinary::Equal => (IntCC::Equal, FloatCC::Equal),
        ScalarBinary::NotEqual => (IntCC::NotEqual, FloatCC::NotEqual),
        ScalarBinary::Less => (IntCC::SignedLessThan, FloatCC::LessThan),
        ScalarBinary::LessEqual => (IntCC::SignedLessThanOrEqual, FloatCC::LessThanOrEqual),
        ScalarBinary::Greater => (IntCC::SignedGreaterThan, FloatCC::GreaterThan),
        ScalarBinary::GreaterEqual => {
            (IntCC::SignedGreaterThanOrEqual, FloatCC::GreaterThanOrEqual)
        }
        _ => return None,
    })
}
