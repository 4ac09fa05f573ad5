//! The registry of ops, by name.

use crate::kernel_def::{device_type, select};
use crate::{
    ArgDef, Attrs, DefinedShapeFn, KERNEL_LABEL, KernelBuild, KernelDef, KernelFactory, Op, OpDef,
    OpKernel, no_kernel,
};
use ferroflow_base::{Result, already_exists, invalid_argument, not_found};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A source file's name without extension, and its ops.
pub type OpFile = (&'static str, &'static [Op]);

/// An op group's name and its files.
pub type OpGroup = (&'static str, &'static [OpFile]);

/// Ops by name. Signatures are parsed on first lookup.
///
/// Its maps are arrays and B-trees: to leak checkers, what only the pointers of a hash table reach, which point into
/// its memory, is possibly lost at the end of the process.
pub struct Registry {
    /// The hashes of the names, ascending.
    hashes: Vec<u64>,
    /// In the order of the hashes.
    ops: Vec<Entry>,
    /// Ops that a program defined while it ran.
    defined: RwLock<BTreeMap<&'static str, (&'static Op, Arc<OpDef>)>>,
    /// Kernels that a program registered while it ran, and the built-in one of their op, by the op that
    /// nodes have for the label.
    kernels: RwLock<BTreeMap<String, Arc<[Arc<KernelDef>]>>>,
    /// What becomes of kernels of CPUs on other types of devices.
    adapters: RwLock<Vec<(&'static str, KernelAdapter)>>,
}

/// Makes a kernel of CPUs one for nodes of a device: see [`Registry::adapt_kernels`].
pub type KernelAdapter = fn(Box<dyn OpKernel>) -> Box<dyn OpKernel>;

fn hash(name: &str) -> u64 {
    FxBuildHasher.hash_one(name)
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
        let mut ops: Vec<Entry> = ops.into_values().collect();
        ops.sort_by_cached_key(|entry| hash(entry.op.op.name));
        Registry {
            hashes: ops.iter().map(|entry| hash(entry.op.op.name)).collect(),
            ops,
            defined: RwLock::default(),
            kernels: RwLock::default(),
            adapters: RwLock::default(),
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
        if self.op(&def.name).is_some() {
            return Err(already_exists!("Op with name {}", def.name));
        }
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
        if self.entry(name).is_some() || defined.contains_key(name) {
            return Err(already_exists!("Op with name {name}"));
        }
        defined.insert(name, (Box::leak(Box::new(op)), Arc::new(def)));
        Ok(())
    }

    /// Registers a kernel of an op in addition to those that it has. It lasts as long as the process.
    ///
    /// Of the kernels that are for a node, it has the one of the highest priority, else the one that is for
    /// the fewest nodes. A kernel with a label is for nodes that ask for it.
    ///
    /// # Errors
    /// NOT_FOUND if the op does not exist; INVALID_ARGUMENT if it lacks an attr or an argument that the kernel
    /// names.
    pub fn register_kernel(&self, kernel: KernelDef) -> Result<()> {
        let def = self.def(&kernel.op)?;
        let def = def.ok_or_else(|| not_found!("Op type not registered '{}'", kernel.op))?;
        if let Some(attr) = kernel.restricted().find(|attr| def.attr(attr).is_none()) {
            return Err(invalid_argument!(
                "OpKernel '{}' has constraint on attr '{attr}' not in NodeDef, KernelDef: '{kernel}'",
                kernel.op
            ));
        }
        let arguments = || def.inputs.iter().chain(&def.outputs).map(ArgDef::name);
        let is_missing = |name: &&String| !arguments().any(|argument| argument == name.as_str());
        if let Some(missing) = kernel.host_memory.iter().find(is_missing) {
            return Err(invalid_argument!(
                "HostMemory args '{missing}' not found in OpDef: {}",
                def.name
            ));
        }
        let row = self.op(&kernel.op);
        let mut kernels = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        let key = labelled_op(&kernel.op, &kernel.label);
        if !kernel.label.is_empty() && self.op(&key).is_none() {
            let unlabelled = row.ok_or_else(|| not_found!("Op type not registered"))?;
            let (mut def, name) = (OpDef::clone(&def), &*key.clone().leak());
            def.name = name.into();
            let op = Op {
                name,
                kernel: None,
                ..*unlabelled
            };
            self.insert(def, op)?;
        }
        let mut all = kernels
            .get(&key)
            .map(|known| known.to_vec())
            .unwrap_or_default();
        let built_in = row
            .and_then(|op| op.kernel)
            .filter(|_| kernel.label.is_empty());
        if let (true, Some(built_in)) = (all.is_empty(), built_in) {
            all.push(Arc::new(KernelDef::new(&kernel.op, move |b| {
                b.kernel(built_in)
            })));
        }
        all.push(Arc::new(kernel));
        kernels.insert(key, all.into());
        Ok(())
    }

    /// Returns the op that nodes of `op` become that ask for kernels with a label: it has those kernels.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is none.
    pub fn labelled(&self, node: &str, op: &str, attrs: &Attrs) -> Result<Arc<OpDef>> {
        let label = attrs.str(KERNEL_LABEL)?;
        let found = self.def(&labelled_op(op, label))?;
        found.ok_or_else(|| no_kernel(op, node, attrs, &self.kernel_lines(op)))
    }

    /// Builds the kernel of a node.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no kernel is for the node, or several are and none is preferred; those of the
    /// kernel's factory.
    pub fn build_kernel(&self, build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
        let op = &*build.def.name;
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        let Some(registered) = kernels.get(op).cloned() else {
            drop(kernels);
            return match self.op(op).and_then(|op| op.kernel) {
                Some(factory) => Ok(self.adapted(build.kernel(factory)?, build)),
                None => Err(no_kernel(op, build.node, build.attrs, NO_KERNELS)),
            };
        };
        drop(kernels);
        match select(&registered, build)? {
            Some(kernel) if kernel.device_type == "CPU" => {
                Ok(self.adapted(kernel.build(build)?, build))
            }
            Some(kernel) => kernel.build(build),
            None => Err(no_kernel(
                op,
                build.node,
                build.attrs,
                &self.kernel_lines(op),
            )),
        }
    }

    /// Sets what becomes of kernels of CPUs that nodes on a type of devices have: their inputs may be on the device.
    ///
    /// ```
    /// use ferroflow_opdef::{KernelBuild, KernelCtx, KernelDef, Registry};
    /// let registry = Registry::new(&[]);
    /// registry.define("Nothing", "->").unwrap();
    /// let kernel = |_: &KernelBuild| Ok(Box::new(|_: &mut KernelCtx| Ok(())) as _);
    /// registry.register_kernel(KernelDef::new("Nothing", kernel)).unwrap();
    /// registry.adapt_kernels("GPU", |kernel| kernel);
    /// ```
    pub fn adapt_kernels(&self, device_type: &'static str, adapt: KernelAdapter) {
        let adapters = self.adapters.write();
        let mut adapters = adapters.unwrap_or_else(PoisonError::into_inner);
        adapters.retain(|(known, _)| *known != device_type);
        adapters.push((device_type, adapt));
    }

    fn adapted(&self, kernel: Box<dyn OpKernel>, build: &KernelBuild) -> Box<dyn OpKernel> {
        let adapters = self.adapters.read().unwrap_or_else(PoisonError::into_inner);
        let own = (!adapters.is_empty()).then(|| device_type(build.device));
        let found = adapters.iter().find(|(known, _)| Some(*known) == own);
        match found {
            Some((_, adapt)) => adapt(kernel),
            None => kernel,
        }
    }

    /// Returns whether `op` has kernels, for some nodes at least.
    pub fn has_kernel(&self, op: &str) -> bool {
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        kernels.contains_key(op) || self.op(op).is_some_and(|op| op.kernel.is_some())
    }

    /// Returns whether a kernel was registered for devices of a type and for nodes with these attrs. Those
    /// for any type of device do not count.
    pub fn has_kernel_on(&self, device_type: &str, op: &str, attrs: &Attrs) -> bool {
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        let of_op = kernels.get(op).map_or(&[][..], |kernels| kernels);
        of_op
            .iter()
            .any(|kernel| kernel.device_type == device_type && kernel.matches(attrs))
    }

    /// The kernels of an op and of its labels, as errors list them.
    fn kernel_lines(&self, op: &str) -> String {
        let kernels = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        let base = op.split('[').next().unwrap_or(op);
        let all = kernels.values().flat_map(|kernels| kernels.iter());
        let mut lines: Vec<String> = all
            .filter(|kernel| kernel.op == base)
            .map(|kernel| kernel.line())
            .collect();
        if !kernels.contains_key(base) && self.op(base).is_some_and(|op| op.kernel.is_some()) {
            lines.push("device='CPU'".to_string());
        }
        lines.sort_unstable();
        match lines.is_empty() {
            true => NO_KERNELS.to_string(),
            false => lines.join("\n  "),
        }
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
        defs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(defs)
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        let hash = hash(name);
        let first = self.hashes.partition_point(|h| *h < hash);
        let equal = self.hashes[first..].iter().take_while(|h| **h == hash);
        let mut entries = self.ops[first..].iter().zip(equal);
        entries.find_map(|(entry, _)| (entry.op.op.name == name).then_some(entry))
    }

    /// Returns the op called `name`, if any.
    pub fn op(&self, name: &str) -> Option<&'static Op> {
        if let Some(entry) = self.entry(name) {
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
        let Some(entry) = self.entry(name) else {
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
        self.ops.iter().map(|e| e.op.op)
    }

    /// Returns all ops with their groups and files, sorted by name.
    pub fn sorted(&self) -> Vec<RegisteredOp> {
        let mut all: Vec<RegisteredOp> = self.ops.iter().map(|e| e.op).collect();
        all.sort_unstable_by_key(|e| e.op.name);
        all
    }
}

/// What errors list of an op without kernels.
const NO_KERNELS: &str = "<no registered kernels>";

/// The name of the op with the kernels of a label.
fn labelled_op(op: &str, label: &str) -> String {
    match label {
        "" => op.to_string(),
        label => format!("{op}[{label}]"),
    }
}
