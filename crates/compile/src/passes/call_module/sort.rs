//! Sorts.

use super::attrs::{dim, flag, text};
use super::scope::{Scope, typed};
use super::{function_ref, type_list};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Output;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Block, Op, Type, ValueId};
use ferroflow_tensor::{DType, Tensor};

impl Scope<'_, '_> {
    /// Adds a sort: by integers, if the comparison is of the same function of two elements, or of several such.
    pub(super) fn sort(&mut self, op: &Op) -> Result<()> {
        let axis = dim(op, "dimension")?;
        let rank = self.ty(self.operand(op, 0)?)?.dims.len();
        let n_args = op.regions.first().map_or(0, |r| r.args.len());
        if axis >= rank || op.results.len() != op.operands.len() || n_args != 2 * op.operands.len()
        {
            return Err(invalid_argument!("the parts of the sort do not fit"));
        }
        let region = op.regions.first();
        let region = region.ok_or_else(|| invalid_argument!("the sort has no region"))?;
        let orders = Order::all(region, &|id| self.constants.contains_key(&id));
        if !orders.is_empty() {
            let keys = orders.iter().map(|order| self.keys(op, region, order));
            let keys: Vec<(Output, DType)> = keys.collect::<Result<_>>()?;
            return self.sort_by(op, axis, &keys);
        }
        let function = self.pure_region(op, 0)?;
        let (mut inputs, dtypes) = self.inputs(&op.operands)?;
        inputs.push(self.constant(Tensor::scalar(axis as i32))?);
        let attrs = Attrs::default()
            .with("T", type_list(&dtypes))
            .with("comparator", function_ref(&function))
            .with("is_stable", AttrValue::Bool(flag(op, "is_stable")));
        let made = self.node("XlaVariadicSort", attrs, &inputs)?;
        self.set_all(op, made)
    }

    /// Integers whose descending order is that of a sort, and their dtype.
    fn keys(&mut self, op: &Op, region: &Block, order: &Order) -> Result<(Output, DType)> {
        let operand = op.operands[order.operand];
        let of = self.value(operand)?.clone();
        let whole = of.ty.clone();
        // What the region computes of one element, for all elements.
        self.values.insert(region.args[2 * order.operand].0, of);
        for own in &order.left {
            let mut own = region.ops[*own].clone();
            for (_, t) in &mut own.results {
                if own.name != "constant"
                    && let Type::Tensor(t) = t
                {
                    t.dims.clone_from(&whole.dims);
                }
            }
            self.op(&own)?;
        }
        let dtype = self.ty(order.key)?.dtype;
        let mut key = self.full(order.key)?;
        if dtype.is_floating() && !order.is_total {
            let zero = self.number(0, dtype)?;
            key = self.node("AddV2", typed(dtype), &[key, zero])?;
        }
        let (mut key, dtype) = match dtype {
            DType::Bool => (self.cast(key, dtype, DType::Int32)?, DType::Int32),
            t if t.is_floating() => (self.total(key, t)?, super::elementwise::signed(t)),
            t => (key, t),
        };
        if order.is_ascending {
            key = self.node("Invert", typed(dtype), &[key])?;
        }
        Ok((key, dtype))
    }

    /// Sorts all operands by the descending order of integers, by the next ones where these are equal; equal ones stay in
    /// their order.
    fn sort_by(&mut self, op: &Op, axis: usize, keys: &[(Output, DType)]) -> Result<()> {
        let rank = self.ty(op.operands[0])?.dims.len();
        let mut perm: Vec<usize> = (0..rank).filter(|d| *d != axis).collect();
        perm.push(axis);
        let back: Vec<usize> = (0..rank)
            .map(|d| perm.iter().position(|p| *p == d).unwrap_or(d))
            .collect();
        let (mut n, mut found): (Option<Output>, Option<Output>) = (None, None);
        for &(keys, of) in keys.iter().rev() {
            let mut keys = self.transpose(keys, of, &perm)?;
            let count = match (n, self.ty(op.operands[0])?.dims[axis]) {
                (Some(n), _) => n,
                (None, Some(n)) => self.constant(Tensor::scalar(n as i32))?,
                (None, None) => self.size_along(keys, of, rank - 1)?,
            };
            n = Some(count);
            if let Some(places) = found {
                keys = self.at_places(keys, of, places, rank)?;
            }
            let mut places = self.top_places(keys, of, count)?;
            if let Some(before) = found {
                places = self.at_places(before, DType::Int32, places, rank)?;
            }
            found = Some(places);
        }
        let places = found.ok_or_else(|| invalid_argument!("the sort has no keys"))?;
        for (i, (id, t)) in op.results.iter().enumerate() {
            let (dtype, x) = (self.ty(op.operands[i])?.dtype, self.full(op.operands[i])?);
            let x = self.transpose(x, dtype, &perm)?;
            let y = self.at_places(x, dtype, places, rank)?;
            let y = self.transpose(y, dtype, &back)?;
            self.define(*id, super::scope::tensor_type(t)?.clone(), y);
        }
        Ok(())
    }

    /// The places of the `n` largest integers of each row, in descending order.
    pub(super) fn top_places(&mut self, keys: Output, of: DType, n: Output) -> Result<Output> {
        let attrs = typed(of).with("sorted", AttrValue::Bool(true));
        let top = self.node("TopKV2", attrs, &[keys, n])?;
        Ok(Output::new(top.node, 1))
    }

    /// The elements at places of each row.
    pub(super) fn at_places(
        &mut self,
        x: Output,
        dtype: DType,
        places: Output,
        rank: usize,
    ) -> Result<Output> {
        let last = self.constant(Tensor::scalar(rank as i32 - 1))?;
        let attrs = Attrs::default()
            .with("Tparams", AttrValue::Type(dtype))
            .with("Tindices", AttrValue::Type(DType::Int32))
            .with("Taxis", AttrValue::Type(DType::Int32))
            .with("batch_dims", AttrValue::Int(rank as i64 - 1));
        self.node("GatherV2", attrs, &[x, places, last])
    }
}

/// A comparison of the same function of two elements.
struct Order {
    /// The operand whose elements are compared.
    operand: usize,
    /// The ops of the region that compute the key of the left element.
    left: Vec<usize>,
    key: ValueId,
    is_ascending: bool,
    is_total: bool,
}

impl Order {
    /// The orders of a region, each of which counts where those before it say equal; none if it is another comparison.
    /// `is_constant` tells which values around it are constants.
    fn all(region: &Block, is_constant: &dyn Fn(ValueId) -> bool) -> Vec<Order> {
        let mut orders = Vec::new();
        let last = region.ops.last().map(|op| &op.operands[..]);
        let mut next = match last {
            Some(&[root]) => Some(root),
            _ => None,
        };
        while let Some(root) = next {
            let Some((compare, rest)) = split(region, root) else {
                return Vec::new();
            };
            let Some(order) = Order::of(region, compare, is_constant) else {
                return Vec::new();
            };
            // Numbers that have no order are not equal, so that the next order does not count.
            let is_partial = is_float(region, order.key) && !order.is_total;
            if is_partial && (rest.is_some() || !orders.is_empty()) {
                return Vec::new();
            }
            orders.push(order);
            next = rest;
        }
        orders
    }

    /// The order of a comparison of a region.
    fn of(region: &Block, compare: &Op, is_constant: &dyn Fn(ValueId) -> bool) -> Option<Order> {
        let ops = &region.ops[..];
        let is_ascending = match text(compare, "comparison_direction").ok()? {
            "LT" => true,
            "GT" => false,
            _ => return None,
        };
        let [x, y] = compare.operands[..] else {
            return None;
        };
        let (left, right) = (
            Slice::of(ops, x, is_constant)?,
            Slice::of(ops, y, is_constant)?,
        );
        let place = |arg: ValueId| region.args.iter().position(|(id, _)| *id == arg);
        let (a, b) = (place(left.arg)?, place(right.arg)?);
        let is_pair = a % 2 == 0 && b == a + 1;
        (is_pair && left.is_like(&right, ops)).then_some(Order {
            operand: a / 2,
            left: left.ops,
            key: x,
            is_ascending,
            is_total: text(compare, "compare_type").is_ok_and(|t| t == "TOTALORDER"),
        })
    }
}

/// The op of a region that makes a value.
fn maker(region: &Block, value: ValueId) -> Option<&Op> {
    let makes = |op: &&Op| matches!(&op.results[..], [(id, _)] if *id == value);
    region.ops.iter().rfind(makes)
}

/// Splits `compare(x, y) | x == y & rest`: the comparison and the rest, if there is one.
fn split(region: &Block, root: ValueId) -> Option<(&Op, Option<ValueId>)> {
    let root = maker(region, root)?;
    if root.name == "compare" {
        return Some((root, None));
    }
    let operands = |op: &Op, name: &str| match op.operands[..] {
        [a, b] if op.name == name => Some([[a, b], [b, a]]),
        _ => None,
    };
    let compare = |id: ValueId| maker(region, id).filter(|op| op.name == "compare");
    for [first, behind] in operands(root, "or")? {
        let (Some(first), Some(behind)) = (compare(first), maker(region, behind)) else {
            continue;
        };
        for [equal, rest] in operands(behind, "and").into_iter().flatten() {
            let is_equal = |op: &Op| {
                let kind = |op: &Op| text(op, "compare_type").map(str::to_string).ok();
                op.operands == first.operands
                    && kind(op) == kind(first)
                    && text(op, "comparison_direction").is_ok_and(|d| d == "EQ")
            };
            if compare(equal).is_some_and(is_equal) {
                return Some((first, Some(rest)));
            }
        }
    }
    None
}

fn is_float(region: &Block, value: ValueId) -> bool {
    let of_ops = region.ops.iter().flat_map(|op| &op.results);
    let found = region
        .args
        .iter()
        .chain(of_ops)
        .find(|(id, _)| *id == value);
    matches!(found, Some((_, Type::Tensor(t))) if t.dtype.is_floating())
}

/// The ops that a value of a region depends on, in order, and the one argument that they read.
struct Slice {
    ops: Vec<usize>,
    arg: ValueId,
}

impl Slice {
    fn of(ops: &[Op], value: ValueId, is_constant: &dyn Fn(ValueId) -> bool) -> Option<Slice> {
        let mut needed = vec![value];
        let mut own = Vec::new();
        let mut args = Vec::new();
        let mut at = 0;
        while let Some(id) = needed.get(at).copied() {
            at += 1;
            let maker = ops
                .iter()
                .position(|op| matches!(&op.results[..], [(r, _)] if *r == id));
            match maker {
                Some(i) => {
                    if !ops[i].regions.is_empty() {
                        return None;
                    }
                    own.push(i);
                    for operand in &ops[i].operands {
                        if !needed.contains(operand) {
                            needed.push(*operand);
                        }
                    }
                }
                None if is_constant(id) => {}
                None => args.push(id),
            }
        }
        own.sort_unstable();
        own.dedup();
        match args[..] {
            [arg] => Some(Slice { ops: own, arg }),
            _ => None,
        }
    }

    /// Whether both compute the same function. Constants may be shared.
    fn is_like(&self, other: &Slice, ops: &[Op]) -> bool {
        let own = |slice: &Slice| {
            let mut names = Vec::new();
            let mut place = rustc_hash::FxHashMap::default();
            place.insert(slice.arg, usize::MAX);
            for (n, i) in slice.ops.iter().enumerate() {
                let op = &ops[*i];
                // What is not of the region is known by its number.
                let read = |id: &ValueId| place.get(id).copied().ok_or(*id);
                let reads: Vec<_> = op.operands.iter().map(read).collect();
                names.push(format!("{} {reads:?} {:?}", op.name, op.attrs));
                for (id, _) in &op.results {
                    place.insert(*id, n);
                }
            }
            names
        };
        own(self) == own(other)
    }
}
