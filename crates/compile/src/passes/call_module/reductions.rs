//! Reductions, windows and sorts.

use super::attrs::{dims, integers, text};
use super::scope::{Scope, typed};
use super::{function_ref, type_list};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Output;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Block, Op, TensorType, ValueId};
use ferroflow_tensor::{DType, Tensor};

/// The op that a region applies to its two arguments, if it does nothing else.
pub(super) fn only_op(block: &Block) -> Option<&str> {
    let ([(a, _), (b, _)], [op, last]) = (&block.args[..], &block.ops[..]) else {
        return None;
    };
    let is_of_args = op.operands == [*a, *b] || op.operands == [*b, *a];
    let is_result = matches!(&op.results[..], [(y, _)] if last.operands == [*y]);
    (is_of_args && is_result).then_some(op.name.as_str())
}

/// TensorFlow's reduction by an op.
fn reduction(op: &str, dtype: DType) -> Option<&'static str> {
    Some(match (op, dtype) {
        ("and" | "minimum" | "multiply", DType::Bool) => "All",
        ("or" | "maximum" | "add", DType::Bool) => "Any",
        ("add", _) => "Sum",
        ("multiply", _) => "Prod",
        ("maximum", _) => "Max",
        ("minimum", _) => "Min",
        _ => return None,
    })
}

/// A scalar as a number, infinite where it is the last integer.
pub(super) fn number(value: &Tensor) -> Option<f64> {
    let float = |x: f32| Some(f64::from(x));
    match value.dtype() {
        DType::Float => float(*value.slice::<f32>().ok()?.first()?),
        DType::Double => value.slice::<f64>().ok()?.first().copied(),
        DType::Half => float(f32::from(*value.slice::<half::f16>().ok()?.first()?)),
        DType::Bfloat16 => float(f32::from(*value.slice::<half::bf16>().ok()?.first()?)),
        DType::Int32 => Some(match *value.slice::<i32>().ok()?.first()? {
            i32::MIN => f64::NEG_INFINITY,
            i32::MAX => f64::INFINITY,
            n => f64::from(n),
        }),
        DType::Int64 => Some(match *value.slice::<i64>().ok()?.first()? {
            i64::MIN => f64::NEG_INFINITY,
            i64::MAX => f64::INFINITY,
            n => n as f64,
        }),
        DType::Int8 => Some(match *value.slice::<i8>().ok()?.first()? {
            i8::MIN => f64::NEG_INFINITY,
            i8::MAX => f64::INFINITY,
            n => f64::from(n),
        }),
        DType::Uint8 => Some(match *value.slice::<u8>().ok()?.first()? {
            u8::MAX => f64::INFINITY,
            n => f64::from(n),
        }),
        _ => integers(value)?.first().map(|n| *n as f64),
    }
}

/// Whether combining with a number changes nothing.
pub(super) fn is_identity(op: &str, value: f64, dtype: DType) -> bool {
    match (op, dtype) {
        ("and" | "minimum" | "multiply", DType::Bool) => value == 1.0,
        ("or" | "maximum", DType::Bool) => value == 0.0,
        ("add", _) => value == 0.0,
        ("multiply", _) => value == 1.0,
        ("maximum", DType::Uint8) => value == 0.0,
        ("maximum", _) => value == f64::NEG_INFINITY,
        ("minimum", _) => value == f64::INFINITY,
        _ => false,
    }
}

impl Scope<'_, '_> {
    /// Adds a reduction, a window or a sort; `false` if the op is none.
    pub(super) fn reduction(&mut self, op: &Op) -> Result<bool> {
        match op.name.as_str() {
            "reduce" => self.reduce(op)?,
            "reduce_window" => self.reduce_window(op)?,
            "dynamic_reduce_window" => {
                let function = self.pure_region(op, 0)?;
                self.dynamic_reduce_window(op, &function)?;
            }
            "select_and_scatter" => self.select_and_scatter(op)?,
            "sort" => self.sort(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn reduce(&mut self, op: &Op) -> Result<()> {
        let n = op.operands.len() / 2;
        let axes = dims(op, "dimensions")?;
        let region = op.regions.first();
        let region = region.ok_or_else(|| invalid_argument!("the reduction has no region"))?;
        if n == 1
            && let Some(by) = only_op(region)
        {
            let ty = self.ty(op.operands[0])?.clone();
            if let Some(name) = reduction(by, ty.dtype) {
                return self.simple_reduce(op, &ty, (name, by), &axes);
            }
        }
        if n == 2
            && let [axis] = axes[..]
            && let Some(is_max) = self.arg_extreme(op, region, axis)?
        {
            return self.arg_reduce(op, is_max, axis);
        }
        let function = self.pure_region(op, 0)?;
        let (inputs, dtypes) = self.inputs(&op.operands)?;
        let axes: Vec<i64> = axes.iter().map(|a| *a as i64).collect();
        let attrs = Attrs::default()
            .with("T", type_list(&dtypes[..n]))
            .with("dimensions_to_reduce", AttrValue::ints(&axes))
            .with("reducer", function_ref(&function));
        let made = self.node("XlaVariadicReduceV2", attrs, &inputs)?;
        self.set_all(op, made)
    }

    fn reduced(&mut self, name: &str, x: Output, dtype: DType, axes: &[usize]) -> Result<Output> {
        let axes = self.shape_constant(axes)?;
        let attrs = match name {
            "All" | "Any" => Attrs::default(),
            _ => typed(dtype),
        };
        self.node(
            name,
            attrs.with("Tidx", AttrValue::Type(DType::Int64)),
            &[x, axes],
        )
    }

    fn simple_reduce(
        &mut self,
        op: &Op,
        ty: &TensorType,
        (name, by): (&str, &str),
        axes: &[usize],
    ) -> Result<()> {
        let x = self.full(op.operands[0])?;
        let y = self.reduced(name, x, ty.dtype, axes)?;
        let init = self.known_scalar(op.operands[1])?.as_ref().and_then(number);
        if init.is_some_and(|v| is_identity(by, v, ty.dtype)) {
            return self.set(op, y);
        }
        // The value that the reduction starts with.
        let init = self.full(op.operands[1])?;
        let (binary, attrs) = match name {
            "All" => ("LogicalAnd", Attrs::default()),
            "Any" => ("LogicalOr", Attrs::default()),
            "Sum" => ("AddV2", typed(ty.dtype)),
            "Prod" => ("Mul", typed(ty.dtype)),
            "Max" => ("Maximum", typed(ty.dtype)),
            _ => ("Minimum", typed(ty.dtype)),
        };
        let y = self.node(binary, attrs, &[y, init])?;
        self.set(op, y)
    }

    /// Whether a reduction finds the largest (`true`) or the smallest element and the first place where it is.
    fn arg_extreme(&self, op: &Op, region: &Block, axis: usize) -> Result<Option<bool>> {
        let is_iota = self.iotas.get(&op.operands[1]) == Some(&axis);
        let index = self.ty(op.operands[1])?.dtype;
        let inits = [
            self.known_scalar(op.operands[2])?,
            self.known_scalar(op.operands[3])?,
        ];
        let [Some(first), Some(place)] = inits else {
            return Ok(None);
        };
        let is_index = matches!(index, DType::Int32 | DType::Int64);
        if !is_iota || !is_index || number(&place) != Some(0.0) {
            return Ok(None);
        }
        let of = self.ty(op.operands[0])?.dtype;
        let is_max = match number(&first) {
            Some(first) if is_identity("maximum", first, of) => true,
            Some(first) if is_identity("minimum", first, of) => false,
            _ => return Ok(None),
        };
        let is_known = of.is_floating()
            || matches!(of, DType::Int8 | DType::Uint8 | DType::Int32 | DType::Int64);
        Ok((is_known && picks(region, is_max, of.is_floating())).then_some(is_max))
    }

    fn arg_reduce(&mut self, op: &Op, is_max: bool, axis: usize) -> Result<()> {
        let dtype = self.ty(op.operands[0])?.dtype;
        let index = self.ty(op.operands[1])?.dtype;
        let x = self.full(op.operands[0])?;
        let (arg, extreme) = match is_max {
            true => ("ArgMax", "Max"),
            false => ("ArgMin", "Min"),
        };
        let at = self.constant(Tensor::scalar(axis as i32))?;
        let attrs = |dtype: DType| {
            typed(dtype)
                .with("Tidx", AttrValue::Type(DType::Int32))
                .with("output_type", AttrValue::Type(index))
        };
        let mut place = self.node(arg, attrs(dtype), &[x, at])?;
        let mut value = self.reduced(extreme, x, dtype, &[axis])?;
        if dtype.is_floating() {
            // The first NaN, if there is one, is the result.
            let is_nan = self.node("IsNan", typed(dtype), &[x])?;
            let any = self.reduced("Any", is_nan, DType::Bool, &[axis])?;
            let ones = self.cast(is_nan, DType::Bool, DType::Float)?;
            let first = self.node("ArgMax", attrs(DType::Float), &[ones, at])?;
            place = self.node("SelectV2", typed(index), &[any, first, place])?;
            let nan = self.constant(Tensor::scalar(f32::NAN))?;
            let nan = self.cast(nan, DType::Float, dtype)?;
            value = self.node("SelectV2", typed(dtype), &[any, nan, value])?;
        }
        for ((id, t), output) in op.results.iter().zip([value, place]) {
            self.define(*id, super::scope::tensor_type(t)?.clone(), output);
        }
        Ok(())
    }
}

/// Whether a region of two pairs of a value and its place keeps the larger (or smaller) value, the first of equal ones, and
/// NaN above all.
fn picks(region: &Block, is_max: bool, is_float: bool) -> bool {
    let sign = if is_max { 1.0 } else { -1.0 };
    let nan = f64::NAN;
    let mut cases = vec![
        ([1.0, 0.0, 2.0, 1.0], [2.0, 1.0]),
        ([2.0, 0.0, 1.0, 1.0], [2.0, 0.0]),
        ([1.0, 0.0, 1.0, 1.0], [1.0, 0.0]),
        ([1.0, 3.0, 1.0, 1.0], [1.0, 1.0]),
        ([-1.0, 5.0, -7.0, 2.0], [-1.0, 5.0]),
        ([-3.0, 1.0, 4.0, 0.0], [4.0, 0.0]),
    ];
    if is_float {
        cases.push(([nan, 0.0, 1.0, 1.0], [nan, 0.0]));
        cases.push(([1.0, 0.0, nan, 1.0], [nan, 1.0]));
        cases.push(([nan, 0.0, nan, 1.0], [nan, 0.0]));
    }
    cases.into_iter().all(|([a, i, b, j], [value, place])| {
        let got = evaluate(region, &[sign * a, i, sign * b, j]);
        let same = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan());
        matches!(got.as_deref(), Some([v, p]) if same(*v, sign * value) && *p == place)
    })
}

/// Computes a region of comparisons and choices of numbers.
fn evaluate(region: &Block, args: &[f64]) -> Option<Vec<f64>> {
    let mut values: rustc_hash::FxHashMap<ValueId, f64> = region
        .args
        .iter()
        .zip(args)
        .map(|((id, _), v)| (*id, *v))
        .collect();
    for op in &region.ops {
        let x: Vec<f64> = op
            .operands
            .iter()
            .map(|id| values.get(id).copied())
            .collect::<Option<_>>()?;
        let truth = |t: bool| f64::from(u8::from(t));
        let y = match (op.name.as_str(), &x[..]) {
            ("return", results) => return Some(results.to_vec()),
            ("compare", [a, b]) => truth(match text(op, "comparison_direction").ok()? {
                "EQ" => a == b,
                "NE" => a != b,
                "LT" => a < b,
                "LE" => a <= b,
                "GT" => a > b,
                "GE" => a >= b,
                _ => return None,
            }),
            ("select", [c, a, b]) => {
                if *c != 0.0 {
                    *a
                } else {
                    *b
                }
            }
            ("or", [a, b]) => truth(*a != 0.0 || *b != 0.0),
            ("and", [a, b]) => truth(*a != 0.0 && *b != 0.0),
            ("not", [a]) => truth(*a == 0.0),
            ("maximum", [a, b]) => {
                if a.is_nan() || a > b {
                    *a
                } else {
                    *b
                }
            }
            ("minimum", [a, b]) => {
                if a.is_nan() || a < b {
                    *a
                } else {
                    *b
                }
            }
            _ => return None,
        };
        values.insert(op.results.first()?.0, y);
    }
    None
}
