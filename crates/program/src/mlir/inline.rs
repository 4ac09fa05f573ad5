//! Calls of functions become what the functions do.

use super::ir::{Attr, Module, Op, Region, Value};
use std::collections::{HashMap, HashSet};

/// Programs that would grow beyond this many values keep their calls.
const MAX_VALUES: usize = 1 << 20;

/// Replaces each `tfrt.call` of a function that does not call itself by the function's body, and
/// removes private functions without remaining references.
///
/// ```
/// use ferroflow_program::mlir;
/// let text = "func private @one() -> i32 {
///   %a = tfrt.constant.i32 1
///   tfrt.return %a : i32
/// }
/// func @f() -> i32 {
///   %a = tfrt.call @one() : () -> i32
///   tfrt.return %a : i32
/// }";
/// let mut module = mlir::parse(text, "f.mlir", 0).expect("well formed");
/// mlir::inline_calls(&mut module);
/// let text = mlir::print(&module, mlir::PrintOptions::default());
/// assert!(!text.contains("tfrt.call") && !text.contains("@one"));
/// ```
pub fn inline_calls(module: &mut Module) {
    let mut ops = std::mem::take(&mut module.ops);
    let mut inliner = Inliner {
        functions: callees(&ops),
        inlined: HashSet::new(),
        module,
    };
    // Host programs have no others.
    for op in ops
        .iter_mut()
        .filter(|op| op.is_func() && has_single_blocks(op))
    {
        for region in &mut op.regions {
            inliner.region(region, &mut HashMap::new());
        }
    }
    let inlined = inliner.inlined;
    loop {
        let mut used = HashSet::new();
        ops.iter().for_each(|op| references(op, &mut used));
        let is_dead = |op: &Op| {
            let name = op.symbol().unwrap_or("");
            let is_private = op.attr("sym_visibility") == Some(&Attr::string("private"));
            op.is_func() && is_private && inlined.contains(name) && !used.contains(name)
        };
        let before = ops.len();
        ops.retain(|op| !is_dead(op));
        if ops.len() == before {
            break;
        }
    }
    module.ops = ops;
}

/// Whether no region within has several blocks.
fn has_single_blocks(op: &Op) -> bool {
    let mut all = true;
    each_op(op, &mut |op| {
        all &= op.regions.iter().all(|r| r.others.is_empty())
    });
    all
}

/// The function that `op` calls, if it is a plain call.
fn callee(op: &Op) -> Option<&str> {
    let name = op.attr("callee").and_then(Attr::as_symbol);
    name.filter(|_| &*op.name == "tfrt.call")
}

fn each_op<'o>(op: &'o Op, see: &mut dyn FnMut(&'o Op)) {
    see(op);
    for inner in op.regions.iter().flat_map(Region::all_ops) {
        each_op(inner, see);
    }
}

fn references(op: &Op, names: &mut HashSet<String>) {
    fn attribute(attr: &Attr, names: &mut HashSet<String>) {
        match attr {
            Attr::Symbol(path) => names.extend(path.first().cloned()),
            Attr::Array(items) => items.iter().for_each(|a| attribute(a, names)),
            Attr::Dict(items) => items.iter().for_each(|(_, a)| attribute(a, names)),
            _ => {}
        }
    }
    each_op(op, &mut |op| {
        op.attrs.iter().for_each(|(_, a)| attribute(a, names));
    });
}

/// Functions whose calls can be replaced: with a body, and without a way back to themselves.
fn callees(ops: &[Op]) -> HashMap<String, Op> {
    let mut calls: HashMap<&str, HashSet<&str>> = HashMap::new();
    for op in ops {
        let mut called = HashSet::new();
        each_op(op, &mut |op| called.extend(callee(op)));
        calls.insert(op.symbol().unwrap_or(""), called);
    }
    let is_recursive = |name: &str| {
        let mut seen = HashSet::new();
        let mut open: Vec<&str> = calls.get(name).into_iter().flatten().copied().collect();
        while let Some(next) = open.pop() {
            if seen.insert(next) {
                open.extend(calls.get(next).into_iter().flatten());
            }
        }
        seen.contains(name)
    };
    let functions = ops.iter().filter(|op| {
        let plain = ["tfrt.native", "tfrt.sync", "tfrt.dataflow"];
        let has_body = op.regions.first().is_some_and(|r| r.n_blocks == 1);
        let is_plain = plain.iter().all(|a| op.attr(a).is_none());
        op.is_func() && has_body && is_plain && has_single_blocks(op)
    });
    let named = functions.filter_map(|op| Some((op.symbol()?.to_string(), op.clone())));
    named.filter(|(name, _)| !is_recursive(name)).collect()
}

struct Inliner<'m> {
    functions: HashMap<String, Op>,
    inlined: HashSet<String>,
    module: &'m mut Module,
}

type Renamed = HashMap<Value, Value>;

fn renamed(values: &mut [Value], names: &Renamed) {
    for value in values {
        // The result of a call has a new name, and then that of what the function returns.
        while let Some(new) = names.get(value) {
            *value = *new;
        }
    }
}

impl Inliner<'_> {
    fn region(&mut self, region: &mut Region, names: &mut Renamed) {
        let mut ops = Vec::with_capacity(region.ops.len());
        for mut op in std::mem::take(&mut region.ops) {
            renamed(&mut op.operands, names);
            let function = callee(&op).and_then(|name| self.functions.get(name).cloned());
            match function.filter(|_| self.module.values.len() < MAX_VALUES) {
                Some(function) => self.call(&op, function, &mut ops, names),
                None => {
                    for inner in &mut op.regions {
                        self.region(inner, names);
                    }
                    ops.push(op);
                }
            }
        }
        region.ops = ops;
    }

    /// Appends the body of `function` in place of the call `op`.
    fn call(&mut self, op: &Op, function: Op, ops: &mut Vec<Op>, names: &mut Renamed) {
        self.inlined.extend(function.symbol().map(str::to_string));
        let Some(mut body) = function.regions.into_iter().next() else {
            return;
        };
        let mut inner: Renamed = body.args.iter().copied().zip(op.operands.clone()).collect();
        self.fresh(&mut body, &mut inner);
        // What the body calls.
        self.region(&mut body, &mut inner);
        if let Some(last) = body.ops.pop() {
            names.extend(op.results.iter().copied().zip(last.operands));
        }
        ops.append(&mut body.ops);
    }

    /// Renames all values that the region defines.
    fn fresh(&mut self, region: &mut Region, names: &mut Renamed) {
        for op in &mut region.ops {
            self.renew(&mut op.results, names);
            for inner in &mut op.regions {
                self.renew(&mut inner.args, names);
                self.fresh(inner, names);
            }
        }
    }

    fn renew(&mut self, values: &mut [Value], names: &mut Renamed) {
        for value in values {
            if let Some(old) = self.module.values.get(value.index()).cloned() {
                let new = self.module.add_value(old.ty, old.loc);
                names.insert(*value, new);
                *value = new;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PrintOptions, parse, print, verify};
    use super::*;

    fn check(text: &str, want: &str) {
        let mut module = parse(text, "f.mlir", 0).expect("well formed");
        inline_calls(&mut module);
        assert!(verify(&module).is_empty(), "{text}");
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
            lines.map(str::to_string).collect()
        };
        assert_eq!(
            lines(&print(&module, PrintOptions::default())),
            lines(want),
            "{text}"
        );
    }

    #[test]
    fn calls_become_bodies() {
        // A private function goes, one that calls others is inlined whole, names are new.
        check(
            "func private @twice(%x: i32) -> i32 {
               %y = tfrt.add.i32 %x, %x
               tfrt.return %y : i32
             }
             func private @four(%x: i32) -> i32 {
               %a = tfrt.call @twice(%x) : (i32) -> i32
               %b = tfrt.call @twice(%a) : (i32) -> i32
               tfrt.return %b : i32
             }
             func @f(%x: i32) -> i32 {
               %a = tfrt.call @four(%x) : (i32) -> i32
               tfrt.return %a : i32
             }",
            "func @f(%arg0: i32) -> i32 {
               %0 = tfrt.add.i32 %arg0, %arg0
               %1 = tfrt.add.i32 %0, %0
               tfrt.return %1 : i32
             }",
        );
        // What calls itself stays, and so do functions that others refer to.
        let recursive = "func private @f(%arg0: i32) -> i32 {
               %0 = tfrt.call @f(%arg0)  : (i32) -> i32
               tfrt.return %0 : i32
             }
             func @g(%arg0: i32) -> i32 {
               %0 = tfrt.call @f(%arg0)  : (i32) -> i32
               tfrt.return %0 : i32
             }";
        check(recursive, recursive);
    }
}
