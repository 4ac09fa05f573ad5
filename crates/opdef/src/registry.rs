//! The registry of ops, by name.

use crate::{DefinedShapeFn, KernelFactory, Op, OpDef};
use ferroflow_base::{Result, already_exists};
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A source file's name without extension, and its ops.
pub type OpFile = (&'static str, &'static [Op]);

/// An op group's name and its files.
pub type OpGroup = (&'static str, &'static [OpFile]);

/// Ops by name. Signatures are parsed on first lookup.
pub struct Registry {
    ops: FxHashMap<&'static str, Entry>,
    /// Ops that a program defined while it ran.
    defined: RwLock<FxHashMap<&'static str, (&'static Op, Arc<OpDef>)>>,
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
        Registry {
            ops,
            defined: RwLock::default(),
        }
    }

    /// Defines an op without kernels and with unknown output shapes: graphs may have such nodes.
    /// The definition lasts as long as the process.
    ///
    /// ```
    /// use ferroflow_opdef::Registry;
    /// let registry = Registry::new(&[]);
    /// registry.define("Twice", "x: T -> y: T | T: type").unwrap();
    /// assert!(registry.op("Twice").is_some());
    /// assert!(registry.define("Twice", "->").is_err());
    /// ```
    ///
    /// # Errors
    /// ALREADY_EXISTS if there is an op of this name; INVALID_ARGUMENT or INTERNAL if the signature
    /// does not parse.
    pub fn define(&self, name: &str, signature: &str) -> Result<()> {
        let name: &'static str = name.to_string().leak();
        let signature: &'static str = signature.to_string().leak();
        let def = OpDef::parse(name, signature)?;
        self.insert(def, Op::new(name, signature))
    }

    /// Defines an op by its schema, with a shape function and kernels. The definition lasts as long as the
    /// process.
    ///
    /// ```
    /// use ferroflow_opdef::{OpDef, Registry};
    /// let registry = Registry::new(&[]);
    /// registry.define_op(OpDef::unknown("Nothing"), None, None).unwrap();
    /// assert!(registry.op("Nothing").is_some());
    /// ```
    ///
    /// # Errors
    /// ALREADY_EXISTS if there is an op of this name.
    pub fn define_op(
        &self,
        def: OpDef,
        shape: Option<DefinedShapeFn>,
        kernel: Option<KernelFactory>,
    ) -> Result<()> {
        let name: &'static str = def.name.to_string().leak();
        let op = Op {
            defined_shape: shape,
            kernel,
            ..Op::new(name, "")
        };
        self.insert(def, op)
    }

    fn insert(&self, def: OpDef, op: Op) -> Result<()> {
        let name = op.name;
        let mut defined = self.defined.write().unwrap_or_else(PoisonError::into_inner);
        if self.ops.contains_key(name) || defined.contains_key(name) {
            return Err(already_exists!("Op with name {name}"));
        }
        defined.insert(name, (Box::leak(Box::new(op)), Arc::new(def)));
        Ok(())
    }

    /// Returns the schemas of all ops, those defined by [`Registry::define`] included, by name.
    ///
    /// # Errors
    /// INTERNAL if an op's signature does not parse.
    pub fn defs(&self) -> Result<Vec<Arc<OpDef>>> {
        let names = self.sorted().into_iter().map(|e| e.op.name);
        let mut defs: Vec<Arc<OpDef>> = Vec::new();
        for name in names {
            defs.extend(self.def(name)?);
        }
        let defined = self.defined.read().unwrap_or_else(PoisonError::into_inner);
        defs.extend(defined.values().map(|(_, def)| def.clone()));
        defs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(defs)
    }

    /// Returns the op called `name`, if any.
    pub fn op(&self, name: &str) -> Option<&'static Op> {
        if let Some(entry) = self.ops.get(name) {
            return Some(entry.op.op);
        }
        let defined = self.defined.read().unwrap_or_else(PoisonError::into_inner);
        Some(defined.get(name)?.0)
    }

    /// Returns the schema of the op called `name`, if any.
    ///
    /// # Errors
    /// INTERNAL if the op's signature does not parse.
    pub fn def(&self, name: &str) -> Result<Option<Arc<OpDef>>> {
        let Some(entry) = self.ops.get(name) else {
            let defined = self.defined.read().unwrap_or_else(PoisonError::into_inner);
            return Ok(defined.get(name).map(|(_, def)| def.clone()));
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
