//! The table of all ops, by name.

use crate::{Op, OpDef};
use ferroflow_base::Result;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};

/// Ops by name. Signatures are parsed when an op is first looked up.
pub struct Registry {
    ops: FxHashMap<&'static str, Entry>,
}

struct Entry {
    op: &'static Op,
    def: OnceLock<Result<Arc<OpDef>>>,
}

impl Registry {
    /// Returns a registry of the ops in `groups`, each a list of op files; a later row replaces an earlier one of the same name.
    pub fn new(groups: &[&[&'static [Op]]]) -> Self {
        let mut ops = FxHashMap::default();
        for op in groups.iter().flat_map(|g| g.iter()).flat_map(|f| f.iter()) {
            ops.insert(
                op.name,
                Entry {
                    op,
                    def: OnceLock::new(),
                },
            );
        }
        Registry { ops }
    }

    /// The row of op `name`.
    pub fn op(&self, name: &str) -> Option<&'static Op> {
        Some(self.ops.get(name)?.op)
    }

    /// The schema of op `name`, if there is such an op.
    pub fn def(&self, name: &str) -> Result<Option<Arc<OpDef>>> {
        let Some(entry) = self.ops.get(name) else {
            return Ok(None);
        };
        entry
            .def
            .get_or_init(|| OpDef::parse(entry.op.name, entry.op.signature).map(Arc::new))
            .clone()
            .map(Some)
    }

    /// All ops, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &'static Op> {
        self.ops.values().map(|e| e.op)
    }
}
