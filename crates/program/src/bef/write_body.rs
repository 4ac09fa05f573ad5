//! The body of a function to a file: registers, kernels and the readers of each register.

use super::format::{INVALID_INDEX, NON_STRICT, PSEUDO_CODE, PSEUDO_LOCATION, Writer};
use super::write::{Emitter, function_list, is_hidden, is_return};
use crate::mlir::{Op, Region, Value, has_typed_attributes};
use std::collections::HashMap;

pub(super) struct BodyEmitter<'e, 'm> {
    emitter: &'e Emitter<'m>,
    registers: HashMap<Value, usize>,
}

impl<'e, 'm> BodyEmitter<'e, 'm> {
    pub(super) fn new(emitter: &'e Emitter<'m>) -> Self {
        BodyEmitter {
            emitter,
            registers: HashMap::new(),
        }
    }

    fn register(&self, value: Value) -> usize {
        self.registers.get(&value).copied().unwrap_or(0)
    }

    /// The readers of each register, the latest first, as MLIR lists the uses of a value.
    fn users(&self, kernels: &[&Op], n_registers: usize) -> Vec<Vec<u32>> {
        let mut users: Vec<Vec<u32>> = vec![Vec::new(); n_registers];
        for (id, op) in (1u32..).zip(kernels) {
            for operand in &op.operands {
                users[self.register(*operand)].push(id);
            }
        }
        users.iter_mut().for_each(|list| list.reverse());
        users
    }

    pub(super) fn emit(
        mut self,
        region: &Region,
        op: &Op,
        out: &mut Writer,
        names: &mut Writer,
        types: &mut Writer,
    ) {
        let results = region.ops.iter().flat_map(|op| &op.results);
        let values: Vec<Value> = region.args.iter().chain(results).copied().collect();
        for (i, value) in values.iter().enumerate() {
            self.registers.insert(*value, i);
        }
        let kernels: Vec<&Op> = region.ops.iter().filter(|op| !is_return(op)).collect();
        let no_operands = (1u32..)
            .zip(&kernels)
            .filter(|(_, op)| op.operands.is_empty());
        let sources: Vec<u32> = no_operands.map(|(id, _)| id).collect();
        let users = self.users(&kernels, values.len());
        let mut n_uses = vec![0usize; values.len()];
        for operand in region.ops.iter().flat_map(|op| &op.operands) {
            if let Some(n) = n_uses.get_mut(self.register(*operand)) {
                *n += 1;
            }
        }
        out.int(self.emitter.position(op));
        out.int(values.len());
        types.int(values.len());
        for (value, n) in values.iter().zip(&n_uses) {
            out.int(*n);
            types.int(self.emitter.type_id(&self.emitter.module.ty(*value)));
        }
        let used_by = |value: &Value| &users[self.register(*value)][..];
        out.int(kernels.len() + 1);
        names.int(kernels.len() + 1);
        let mut list = Writer::default();
        out.int(0);
        out.int(0);
        names.byte(0);
        self.arguments(region, &sources, values.len(), &mut list, &used_by);
        for op in &kernels {
            let non_strict = op.attr("bef.nonstrict").is_some();
            out.int(list.bytes.len());
            out.int(match non_strict {
                true => op.operands.len().min(1),
                false => op.operands.len(),
            });
            names.byte(u8::from(non_strict));
            self.kernel(op, non_strict, &mut list, names, &used_by);
        }
        let last = region.ops.last().filter(|op| is_return(op));
        for operand in last.into_iter().flat_map(|op| &op.operands) {
            out.int(self.register(*operand));
        }
        out.align(4);
        out.append(&list);
    }

    /// The kernel that defines the arguments, and a value for kernels without any.
    fn arguments<'u>(
        &self,
        region: &Region,
        sources: &[u32],
        n_registers: usize,
        list: &mut Writer,
        used_by: &dyn Fn(&Value) -> &'u [u32],
    ) {
        let n_results = region.args.len() as u32 + 1;
        for word in [PSEUDO_CODE, PSEUDO_LOCATION, 0, 0, 0, n_results, 0] {
            list.u32(word);
        }
        list.u32(sources.len() as u32);
        for arg in &region.args {
            list.u32(used_by(arg).len() as u32);
        }
        list.u32(n_registers as u32);
        for arg in &region.args {
            list.u32(self.register(*arg) as u32);
        }
        sources.iter().for_each(|id| list.u32(*id));
        for id in region.args.iter().flat_map(used_by) {
            list.u32(*id);
        }
    }

    fn kernel<'u>(
        &self,
        op: &Op,
        non_strict: bool,
        list: &mut Writer,
        names: &mut Writer,
        used_by: &dyn Fn(&Value) -> &'u [u32],
    ) {
        let entities = &self.emitter.entities;
        let typed = has_typed_attributes(&op.name);
        let mut attributes = Vec::new();
        let mut functions = Vec::new();
        for (name, attr) in &op.attrs {
            if is_hidden(name) {
                continue;
            }
            if let Some(list) = function_list(attr) {
                let id = |name| entities.named_functions.get(name).copied().unwrap_or(0);
                functions.extend(list.into_iter().map(id));
                continue;
            }
            if let Some(function) = attr.as_symbol() {
                functions.push(entities.named_functions.get(function).copied().unwrap_or(0));
                continue;
            }
            let string = entities.strings.get(name).copied();
            names.int(string.unwrap_or(INVALID_INDEX));
            let offset = self.emitter.attribute_offsets.get(&(attr.clone(), typed));
            attributes.push(offset.copied().unwrap_or(0));
        }
        for region in &op.regions {
            let id = entities.region_functions.get(&(region as *const Region));
            functions.push(id.copied().unwrap_or(0));
        }
        let code = entities.kernels.get_index_of(&*op.name).unwrap_or(0);
        let counts = [
            code,
            self.emitter.position(op),
            op.operands.len(),
            attributes.len(),
            functions.len(),
            op.results.len(),
        ];
        counts.iter().for_each(|n| list.u32(*n as u32));
        list.u32(if non_strict { NON_STRICT } else { 0 });
        for result in &op.results {
            list.u32(used_by(result).len() as u32);
        }
        let operands = op.operands.iter().map(|v| self.register(*v));
        let results = op.results.iter().map(|v| self.register(*v));
        for entry in operands.chain(attributes).chain(functions).chain(results) {
            list.u32(entry as u32);
        }
        for id in op.results.iter().flat_map(used_by) {
            list.u32(*id);
        }
    }
}
