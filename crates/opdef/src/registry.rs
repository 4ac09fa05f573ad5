//! The registry of ops, by name.

use crate::{Op, OpDef};
use ferroflow_base::Result;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};

/// A source file's name without extension, and its ops.
pub type OpFile = (&'static str, &'static [Op]);

/// An op group's name and its files.
pub type OpGroup = (&'static str, &'static [OpFile]);

/// Ops by name. Signatures are parsed on first lookup.
pub struct Registry {
    ops: FxHashMap<&'static str, Entry>,
}

struct Entry {
    op: RegisteredOp,
    def: OnceLock<Result<Arc<OpDef>>>,
}

/// An op and where it is defined: `crates/ops/<group>/src/<file>.rs`.
#[derive(Clone, Copy)]
pub struct RegisteredOp {
    /// The op.
    pub op: &'static Op,
    /// Its group, such as `array`.
    pub group: &'static str,
    /// Its source file within the group, without extension.
    pub file: &'static str,
}

impl Registry {
    /// Returns a registry of the ops in `groups`; a later op replaces an earlier one of the same
    /// name.
    pub fn new(groups: &[OpGroup]) -> Self {
        let mut ops = FxHashMap::default();
        for &(group, files) in groups {
            for &(file, file_ops) in files {
                ops.extend(file_ops.iter().map(|op| {
                    let op = RegisteredOp { op, group, file };
                    let def = OnceLock::new();
                    (op.op.name, Entry { op, def })
                }));
            }
        }
        Registry { ops }
    }

    /// Returns the op called `name`, if any.
    pub fn op(&self, name: &str) -> Option<&'static Op> {
        Some(self.ops.get(name)?.op.op)
    }

    /// Returns the schema of the op called `name`, if any.
    ///
    /// # Errors
    /// INTERNAL if the op's signature does not parse.
    pub fn def(&self, name: &str) -> Result<Option<Arc<OpDef>>> {
        let Some(entry) = self.ops.get(name) else {
            return Ok(None);
        };
        entry
            .def
            .get_or_init(|| OpDef::parse(entry.op.op.name, entry.op.op.signature).map(Arc::new))
            .clone()
            .map(Some)
    }

    /// Returns all ops, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &'static Op> {
        self.ops.values().map(|e| e.op.op)
    }

    /// Returns all ops with their groups and files, sorted by name.
    pub fn sorted(&self) -> Vec<RegisteredOp> {
        let mut all: Vec<RegisteredOp> = self.ops.values().map(|e| e.op).collect();
        all.sort_unstable_by_key(|e| e.op.name);
        all
    }
}
