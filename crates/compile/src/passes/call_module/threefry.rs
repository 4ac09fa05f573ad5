//! JAX's generator of random bits, which its programs have as a function of shifts and sums in a loop: one op in place of
//! some 300.

use super::attrs::{integers, ints, text};
use super::scope::{Scope, tensor_type};
use ferroflow_base::Result;
use ferroflow_opdef::Attrs;
use ferroflow_stablehlo::{Attr, Block, Module, Op, TensorType, Type, ValueId};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;

/// What the names of the functions begin with.
const NAME: &str = "threefry2x32";

/// Keys and words, and what they are encrypted to (the first three from the tests of Random123, the library of the paper).
const KNOWN: [[u32; 6]; 5] = [
    [0, 0, 0, 0, 0x6b20_0159, 0x99ba_4efe],
    [!0, !0, !0, !0, 0x1cb9_96fc, 0xbb00_2be7],
    [
        0x1319_8a2e,
        0x0370_7344,
        0x243f_6a88,
        0x85a3_08d3,
        0xc492_3a9c,
        0x483d_f7a0,
    ],
    [1, 2, 3, 4, 0x5df4_33ec, 0x8617_198e],
    [0x8000_0001, 7, 0xdead_beef, 99, 0xf89a_7503, 0x2fe1_d759],
];

impl Scope<'_, '_> {
    /// Adds a call of the generator; `false` if the function is another one.
    pub(super) fn random_words(&mut self, op: &Op, callee: &str) -> Result<bool> {
        if !callee.starts_with(NAME) || op.operands.len() != 4 || op.results.len() != 2 {
            return Ok(false);
        }
        let types: Vec<TensorType> = op
            .operands
            .iter()
            .map(|id| self.ty(*id).cloned())
            .collect::<Result<_>>()?;
        let words = &types[2].dims;
        let fits = |t: &TensorType| t.dtype == DType::Uint32 && t.dims == *words;
        let is_key = |t: &TensorType| fits(t) || (t.dtype == DType::Uint32 && t.dims.is_empty());
        let results = op.results.iter().map(|(_, t)| tensor_type(t));
        let results: Vec<&TensorType> = results.collect::<Result<_>>()?;
        let has_types =
            is_key(&types[0]) && is_key(&types[1]) && types[2..].iter().chain(results).all(fits);
        if !has_types || !is_threefry(self.translator.module, callee) {
            return Ok(false);
        }
        let (inputs, _) = self.inputs(&op.operands)?;
        let made = self.node("_Threefry2x32", Attrs::default(), &inputs)?;
        self.set_all(op, made)?;
        Ok(true)
    }
}

/// Whether a function of a program computes what the generator does.
fn is_threefry(module: &Module, name: &str) -> bool {
    KNOWN.iter().all(|case| {
        let words = case.map(|n| vec![u64::from(n)]);
        let (args, expected) = words.split_at(4);
        let mut machine = Machine { module, n_ops: 0 };
        let made = machine.call(name, args.to_vec());
        made.is_some_and(|made| made == expected)
    })
}

/// The ops that a function may take.
const MAX_OPS: usize = 10_000;

/// The elements of a value; all tensors that the words are as large as have one.
type Elements = Vec<u64>;

/// Computes functions of integers, where each dimension that the words have is of size 1.
struct Machine<'m> {
    module: &'m Module,
    n_ops: usize,
}

impl Machine<'_> {
    fn call(&mut self, name: &str, args: Vec<Elements>) -> Option<Vec<Elements>> {
        let function = self.module.function(name)?;
        self.block(&function.body, args, &FxHashMap::default())
    }

    fn block(
        &mut self,
        block: &Block,
        args: Vec<Elements>,
        around: &FxHashMap<ValueId, Elements>,
    ) -> Option<Vec<Elements>> {
        let mut values = around.clone();
        values.extend(block.args.iter().map(|(id, _)| *id).zip(args));
        for op in &block.ops {
            self.n_ops += 1;
            let x = op.operands.iter().map(|id| values.get(id).cloned());
            let x: Vec<Elements> = x.collect::<Option<_>>()?;
            if self.n_ops > MAX_OPS {
                return None;
            }
            let made = match op.name.as_str() {
                "return" => return Some(x),
                "call" => self.call(text(op, "callee").ok()?, x)?,
                "while" => self.repeat(op, x, &values)?,
                _ => vec![computed(op, &x)?],
            };
            values.extend(op.results.iter().map(|(id, _)| *id).zip(made));
        }
        None
    }

    fn repeat(
        &mut self,
        op: &Op,
        mut x: Vec<Elements>,
        around: &FxHashMap<ValueId, Elements>,
    ) -> Option<Vec<Elements>> {
        let [test, body] = &op.regions[..] else {
            return None;
        };
        while self.block(test, x.clone(), around)? == [[1]] {
            x = self.block(body, x, around)?;
        }
        Some(x)
    }
}

/// The bits of the integers of a type.
fn width(op: &Op) -> Option<u32> {
    match &op.results.first()?.1 {
        Type::Tensor(t) => match t.dtype {
            DType::Bool => Some(1),
            DType::Int32 | DType::Uint32 => Some(32),
            _ => None,
        },
        _ => None,
    }
}

/// The result of an op without regions.
fn computed(op: &Op, x: &[Elements]) -> Option<Elements> {
    let bits = width(op)?;
    let kept = |n: u64| n & ((1 << bits) - 1);
    match (op.name.as_str(), x) {
        ("constant", []) => match op.attr("value")? {
            Attr::Tensor(tensor) => constant(tensor),
            _ => None,
        },
        ("slice", [x]) => {
            let [from, to] = ["start_indices", "limit_indices"].map(|name| ints(op, name).ok());
            let [&[from], &[to]] = [&from?[..], &to?[..]] else {
                return None;
            };
            let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
            x.get(range).map(<[u64]>::to_vec)
        }
        // Each element of the result would be the same.
        ("broadcast_in_dim", [x]) if x.len() == 1 => Some(x.clone()),
        ("reshape" | "convert", [x]) => Some(x.iter().map(|n| kept(*n)).collect()),
        (name, [a, b]) if a.len() == 1 && b.len() == 1 => {
            let (a, b) = (a[0], b[0]);
            let shifted = |n: Option<u64>| n.filter(|_| b < u64::from(bits)).unwrap_or(0);
            Some(vec![kept(match name {
                "compare" => u64::from(match text(op, "comparison_direction").ok()? {
                    "LT" => a < b,
                    "NE" => a != b,
                    _ => return None,
                }),
                "add" => a.wrapping_add(b),
                "subtract" => a.wrapping_sub(b),
                "xor" => a ^ b,
                "or" => a | b,
                "and" => a & b,
                "shift_left" => shifted(a.checked_shl(b as u32)),
                "shift_right_logical" => shifted(a.checked_shr(b as u32)),
                _ => return None,
            })])
        }
        _ => None,
    }
}

fn constant(tensor: &Tensor) -> Option<Elements> {
    match tensor.dtype() {
        DType::Uint32 => Some(
            tensor
                .slice::<u32>()
                .ok()?
                .iter()
                .map(|n| u64::from(*n))
                .collect(),
        ),
        DType::Int32 => {
            let all = integers(tensor)?.into_iter();
            Some(all.map(|n| u64::from(n as u32)).collect())
        }
        _ => None,
    }
}
