//! Compiled models in BEF files: functions of kind `dataflow`, in sections that TFRT's reader skips.
//!
//! One section has the bodies of the functions, one what the model is called from outside, one the
//! table of tensors, and one, on cache lines, the tensors' bytes.

use super::codec::{Codec, Decoder, Encoder};
use super::format::{FunctionKind, Section, Writer, corrupt};
use super::read::File;
use super::tensors::{read_tensors, write_tensors};
use crate::dataflow::Body;
use crate::mlir::{Attr, Module, Op, Region, Type};
use ferroflow_base::{Result, Status, data_loss, internal};
use ferroflow_tensor::{DType, LazyTensor, MappedFile, PartialShape};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The function that a step of a compiled model calls.
pub const MAIN: &str = "main";

/// The layout of the sections here. Layout 1 had a graph instead of function bodies, layout 2 bodies
/// with what loading derives.
pub(super) const LAYOUT: u32 = 3;

/// The maximum nesting of functions that kernels call.
const MAX_DEPTH: usize = 40;

/// A tensor that a model takes or returns.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name for users.
    pub key: String,
    /// Its name in the graph.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape, as far as it is known.
    pub shape: PartialShape,
}

/// A compiled model.
pub struct Model {
    /// The function that a step calls.
    pub main: Body,
    /// Its inputs, in the order of its arguments.
    pub feeds: Vec<Port>,
    /// Its outputs, in the order of its results.
    pub fetches: Vec<Port>,
    /// Nodes that run for their effects.
    pub targets: Vec<String>,
    /// The machine that weights were packed for.
    pub packing: String,
}

/// All of a [`Model`] but its functions.
pub(super) struct Interface {
    pub(super) feeds: Vec<Port>,
    pub(super) fetches: Vec<Port>,
    pub(super) targets: Vec<String>,
    pub(super) packing: String,
}

/// The error of a file whose sections have another layout.
#[cold]
pub(super) fn other_layout(layout: u32) -> Status {
    data_loss!(
        "the compiled model has layout {layout}, and this version of Ferroflow reads layout {LAYOUT}; \
         compile the model again"
    )
}

/// Functions that kernels call, callees before callers, each once.
fn callees(body: &Body, seen: &mut HashSet<*const Body>, list: &mut Vec<(String, Arc<Body>)>) {
    for (name, function) in &body.functions {
        if seen.insert(Arc::as_ptr(function)) {
            callees(function, seen, list);
            list.push((name.clone(), function.clone()));
        }
    }
}

/// The index of a model's functions: as a program of functions without bodies.
fn index<'a>(bodies: impl Iterator<Item = &'a (String, &'a Body)>) -> Module {
    let mut taken = HashSet::new();
    let mut module = Module::default();
    for (name, body) in bodies {
        let tensors = |n| vec![Type::new("!tf.tensor"); n];
        let (n_args, n_results) = body.arity();
        let name = symbol(name, &mut taken);
        let mut op = Op::func(&name, tensors(n_args), tensors(n_results));
        op.set_attr("sym_visibility", Attr::string("private"));
        op.set_attr("tfrt.dataflow", Attr::Unit);
        op.regions.push(Region::default());
        module.ops.push(op);
    }
    module
}

/// `name` as a symbol that is not taken yet.
pub(super) fn symbol(name: &str, taken: &mut HashSet<String>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
    let plain = |c| if is_plain(c) { c } else { '_' };
    let mut symbol: String = name.chars().map(plain).collect();
    if !symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        symbol.insert(0, '_');
    }
    let mut candidate = symbol.clone();
    let mut n = 2;
    while !taken.insert(candidate.clone()) {
        candidate = format!("{symbol}.{n}");
        n += 1;
    }
    candidate
}

/// Writes a compiled model as a BEF file, piece by piece, to `out`.
///
/// # Errors
/// A constant has a dtype that files cannot hold, or `out` fails.
pub fn write_model(model: &Model, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut called = Vec::new();
    callees(&model.main, &mut HashSet::new(), &mut called);
    let callees = called.iter().map(|(name, body)| (name.clone(), &**body));
    let bodies: Vec<(String, &Body)> = callees.chain([(MAIN.to_string(), &model.main)]).collect();
    let mut file = Writer::default();
    file.bytes = super::write::write_index(&index(bodies.iter().rev()))
        .map_err(|_| internal!("the index of the model's functions cannot be written"))?;
    let interface = Interface {
        feeds: model.feeds.clone(),
        fetches: model.fetches.clone(),
        targets: model.targets.clone(),
        packing: model.packing.clone(),
    };
    file.section(Section::Interface, &Encoder::section(&interface)?);
    let mut encoder = Encoder::default();
    encoder.out.u32(LAYOUT);
    for (i, (_, body)) in bodies.iter().enumerate() {
        body.verify()?;
        body.encode(&mut encoder)?;
        encoder.functions.insert(*body, i);
    }
    file.section(Section::Bodies, &encoder.out);
    write_tensors(file, &encoder.tensors.tensors, out)
}

impl File {
    /// The compiled model in the file, if there is one. Large tensors stay in `mapping`, if the file is
    /// what it maps. `check` sees the body of each function, and what weights were packed for.
    ///
    /// # Errors
    /// DATA_LOSS if a section is missing or corrupted, and the errors of `check`.
    pub fn model(
        &self,
        mapping: Option<&Arc<MappedFile>>,
        check: &mut dyn FnMut(&mut Body, &str) -> Result<()>,
    ) -> Result<Option<Model>> {
        let is_dataflow = |f: &&super::read::Function| f.kind == FunctionKind::Dataflow;
        let functions: Vec<_> = self.functions().iter().filter(is_dataflow).collect();
        let sections = [
            Section::Interface,
            Section::Bodies,
            Section::Tensors,
            Section::Weights,
        ];
        let n_present = sections.iter().filter(|s| self.is_present(**s)).count();
        if functions.is_empty() && n_present == 0 {
            return Ok(None);
        }
        if n_present < sections.len() {
            return Err(corrupt(
                "a section of the compiled model is missing in the BEF file",
            ));
        }
        let interface: Interface = Decoder::section(self.section(Section::Interface))?;
        let Interface {
            feeds,
            fetches,
            targets,
            packing,
        } = interface;
        let tensors = read_tensors(self, mapping)?;
        let mut check = |body: &mut Body| check(body, &packing);
        let main = self.bodies(functions.len(), &tensors, &mut check)?;
        let names_main = functions.first().is_some_and(|f| f.name == MAIN);
        if !names_main || main.arity() != (feeds.len(), fetches.len()) {
            return Err(corrupt(
                "the compiled model does not match its declared interface",
            ));
        }
        Ok(Some(Model {
            main,
            feeds,
            fetches,
            targets,
            packing,
        }))
    }

    /// Decodes the bodies of `n` functions, callees before callers; returns the last.
    fn bodies(
        &self,
        n: usize,
        tensors: &[LazyTensor],
        check: &mut dyn FnMut(&mut Body) -> Result<()>,
    ) -> Result<Body> {
        let bad = || corrupt("invalid section of function bodies in BEF file");
        let (layout, bytes) = self
            .section(Section::Bodies)
            .split_first_chunk()
            .ok_or_else(bad)?;
        let layout = u32::from_le_bytes(*layout);
        if layout != LAYOUT {
            return Err(other_layout(layout));
        }
        let mut decoder = Decoder::new(bytes, tensors);
        let mut depths: HashMap<*const Body, usize> = HashMap::new();
        for i in 1..=n {
            let mut body: Body = decoder.value()?;
            check(&mut body)?;
            body.verify()?;
            if i == n {
                return decoder.finish().map(|()| body);
            }
            let callees = body.functions.values();
            let depth = callees.filter_map(|f| depths.get(&Arc::as_ptr(f))).max();
            let depth = depth.map_or(1, |depth| depth + 1);
            if depth > MAX_DEPTH {
                return Err(bad());
            }
            let body = Arc::new(body);
            depths.insert(Arc::as_ptr(&body), depth);
            decoder.functions.push(body);
        }
        Err(bad())
    }
}
