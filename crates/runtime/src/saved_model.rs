//! [`SavedModel`]: a directory with a graph, variables, assets and signatures.

use crate::object_graph;
use crate::session::registry;
use crate::{Callable, RunOptions, Session, SessionOptions, Signature};
use ferroflow_base::{Result, Status, invalid_argument, not_found, ordered_map, try_ordered_map};
use ferroflow_graph::{LeftOut, parse_tensor_name, supported_part};
use ferroflow_model::proto::{
    AssetFileDef, MetaGraphDef, SaverDef, SignatureDef, TensorInfo, collection_def::Kind,
    tensor_info::Encoding,
};
use ferroflow_model::{
    GraphFile, SavedModelFile, decode_asset, has_checkpoint, shape_from_proto, tensor_from_proto,
};
use ferroflow_tensor::{DType, MappedFile, PartialShape, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The signature whose only output is the init op.
const INIT_SIGNATURE: &str = "__saved_model_init_op";
/// Collections that name the init op in older models, newest first.
const INIT_COLLECTIONS: [&str; 2] = ["saved_model_main_op", "legacy_init_op"];
/// The collection of assets in older models.
const ASSETS: &str = "saved_model_assets";
/// The tag of graphs for inference.
pub const SERVE: &str = "serve";
/// The default signature.
pub const DEFAULT_SIGNATURE: &str = "serving_default";

/// An input or output of a signature.
#[derive(Clone, Debug)]
pub struct SignatureTensor {
    /// Its key in the signature.
    pub key: String,
    /// Its name in the graph.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape, as far as it is known.
    pub shape: PartialShape,
}

/// The interface of a model: a `SignatureDef`.
///
/// Sparse and composite tensors appear as their parts, with keys such as `key/indices`.
#[derive(Clone, Debug, Default)]
pub struct ModelSignature {
    /// Inputs, sorted by key.
    pub inputs: Vec<SignatureTensor>,
    /// Outputs, sorted by key.
    pub outputs: Vec<SignatureTensor>,
    /// The method, e.g. `tensorflow/serving/predict`.
    pub method_name: String,
    /// Default values of inputs, by key.
    pub defaults: BTreeMap<String, Tensor>,
}

/// A loaded SavedModel: variables are restored, tables initialized.
///
/// ```no_run
/// use ferroflow_runtime::{SavedModel, SessionOptions, Tensor};
/// let model = SavedModel::open("my_model".as_ref(), &["serve"], SessionOptions::default())?;
/// let x = Tensor::from_slice([1, 2], &[0.5f32, 1.0])?;
/// for (key, value) in model.run("serving_default", &[("x", x)])? {
///     println!("{key}: {value}");
/// }
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
pub struct SavedModel {
    session: Session,
    directory: PathBuf,
    signatures: BTreeMap<String, ModelSignature>,
    /// The compiled signatures that were run.
    callables: BTreeMap<String, OnceLock<Arc<Callable>>>,
    left_out: LeftOut,
    saver: Option<SaverDef>,
}

impl SavedModel {
    /// Returns whether `path` is the directory of a SavedModel.
    pub fn is_at(path: &Path) -> bool {
        SavedModelFile::is_in(path)
    }

    /// Opens the graph that was saved with exactly these tags, restores its variables and runs its
    /// init op.
    ///
    /// # Errors
    /// NOT_FOUND if no graph has these tags; those of reading, importing, restoring and of the init op.
    pub fn open(directory: &Path, tags: &[&str], options: SessionOptions) -> Result<SavedModel> {
        let read = Self::read(directory, tags);
        let loaded = read.and_then(|(meta, file)| Self::load(directory, meta, file, options));
        loaded.map_err(|e| in_model(e, directory))
    }

    /// [`SavedModel::open`], and the graph as it is in the file, with its signatures.
    ///
    /// # Errors
    /// As [`SavedModel::open`].
    pub fn open_with_meta_graph(
        directory: &Path,
        tags: &[&str],
        options: SessionOptions,
    ) -> Result<(SavedModel, MetaGraphDef)> {
        let (mut meta, file) = Self::read(directory, tags).map_err(|e| in_model(e, directory))?;
        let model = Self::load(directory, meta.clone(), file, options);
        // Only a part of it is read.
        meta.object_graph_def = None;
        Ok((model.map_err(|e| in_model(e, directory))?, meta))
    }

    fn read(directory: &Path, tags: &[&str]) -> Result<(MetaGraphDef, Option<Arc<MappedFile>>)> {
        let SavedModelFile { mut model, file } = SavedModelFile::open(directory)?;
        let at = find_graph(&model.meta_graphs, tags)?;
        Ok((model.meta_graphs.swap_remove(at), file))
    }

    fn load(
        directory: &Path,
        mut meta: MetaGraphDef,
        file: Option<Arc<MappedFile>>,
        options: SessionOptions,
    ) -> Result<SavedModel> {
        let graph = meta.graph_def.take().unwrap_or_default();
        let (graph, left_out) = supported_part(&graph, registry());
        let session = Session::from_file(GraphFile { graph, file }, options)?;
        let mut signatures = BTreeMap::new();
        for (name, def) in &meta.signature_def {
            if name != INIT_SIGNATURE {
                let signature =
                    signature(def).map_err(|e| e.note(format!("in signature '{name}'")))?;
                signatures.insert(name.clone(), signature);
            }
        }
        let model = SavedModel {
            session,
            directory: directory.to_path_buf(),
            callables: ordered_map(signatures.keys().map(|k| (k.clone(), OnceLock::new()))),
            signatures,
            left_out,
            saver: meta.saver_def.clone(),
        };
        model.prepare(&meta)?;
        Ok(model)
    }

    /// Restores variables, then runs the init op.
    fn prepare(&self, meta: &MetaGraphDef) -> Result<()> {
        let assets = self.assets(meta)?;
        let prefix = self.variables_prefix();
        if let Some(saver) = &meta.saver_def
            && !saver.restore_op_name.is_empty()
            && has_checkpoint(&prefix)
        {
            let prefix = Tensor::string(prefix.to_string_lossy().into_owned().into_bytes());
            let mut feeds = vec![(saver.filename_tensor_name.as_str(), prefix)];
            feeds.extend(
                assets
                    .iter()
                    .map(|(name, path)| (name.as_str(), path.clone())),
            );
            self.run_op(&feeds, &saver.restore_op_name)
                .map_err(|e| e.note("when restoring variables"))?;
        }
        let prefix = self.variables_prefix();
        if let Some(objects) = &meta.object_graph_def
            && has_checkpoint(&prefix)
        {
            let (graph, resources) = (self.session.graph(), self.session.resources());
            object_graph::restore(objects, &prefix, &graph, resources)
                .map_err(|e| e.note("when restoring variables of objects"))?;
        }
        if let Some(op) = init_op(meta) {
            let feeds: Vec<_> = assets
                .iter()
                .map(|(name, path)| (name.as_str(), path.clone()))
                .collect();
            self.run_op(&feeds, op)
                .map_err(|e| e.note("when running the init op"))?;
        }
        Ok(())
    }

    fn run_op(&self, feeds: &[(&str, Tensor)], op: &str) -> Result<()> {
        let node = parse_tensor_name(op)?.0;
        self.check_supported(node)?;
        self.session.run(feeds, &[], &[node]).map(|_| ())
    }

    /// The asset tensors of the graph, with the paths to feed.
    fn assets(&self, meta: &MetaGraphDef) -> Result<Vec<(String, Tensor)>> {
        let mut defs: Vec<AssetFileDef> = meta.asset_file_def.clone();
        if defs.is_empty()
            && let Some(Kind::AnyList(list)) = meta
                .collection_def
                .get(ASSETS)
                .and_then(|c| c.kind.as_ref())
        {
            let assets = list.value.iter().map(|any| decode_asset(&any.value));
            defs = assets.collect::<Result<_>>()?;
        }
        let mut out: Vec<(String, Tensor)> = Vec::new();
        for def in defs {
            let Some(Encoding::Name(name)) = def.tensor_info.and_then(|t| t.encoding) else {
                continue;
            };
            let exists = self.session.graph().find_output(&name, "asset").is_ok();
            if exists && !out.iter().any(|(n, _)| *n == name) {
                let path = self.directory.join("assets").join(&def.filename);
                let path = path.to_string_lossy().into_owned();
                out.push((name, Tensor::string(path.into_bytes())));
            }
        }
        Ok(out)
    }

    /// The signatures, by name.
    pub fn signatures(&self) -> &BTreeMap<String, ModelSignature> {
        &self.signatures
    }

    /// The signature called `name`.
    ///
    /// # Errors
    /// NOT_FOUND if the model has no such signature.
    pub fn signature(&self, name: &str) -> Result<&ModelSignature> {
        self.signatures.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.signatures.keys().map(String::as_str).collect();
            not_found!(
                "the model has no signature '{name}'; it has: {}",
                names.join(", ")
            )
        })
    }

    /// Checks that a signature needs no unsupported op.
    ///
    /// # Errors
    /// NOT_FOUND with the op and the node otherwise.
    pub fn check(&self, signature: &ModelSignature) -> Result<()> {
        for tensor in signature.outputs.iter().chain(&signature.inputs) {
            self.check_supported(parse_tensor_name(&tensor.name)?.0)?;
        }
        Ok(())
    }

    fn check_supported(&self, node: &str) -> Result<()> {
        match self.left_out.get(node) {
            Some(op) => Err(self.unsupported(node, op)),
            None => Ok(()),
        }
    }

    #[cold]
    fn unsupported(&self, node: &str, op: &str) -> Status {
        not_found!("Op type not registered '{op}', which '{node}' needs")
    }

    /// The nodes that were left out because they need an unsupported op.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// The nodes that save and restore the variables, if the graph has them.
    pub fn saver(&self) -> Option<&SaverDef> {
        self.saver.as_ref()
    }

    /// The session, for running nodes by their names in the graph.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The prefix of the variables' checkpoint.
    pub fn variables_prefix(&self) -> PathBuf {
        self.directory.join("variables").join("variables")
    }

    /// The compiled form of a signature: its feeds and fetches are the inputs and outputs in order.
    ///
    /// # Errors
    /// NOT_FOUND if the model has no such signature, or if the signature needs an op that is not supported;
    /// those of [`Session::callable`].
    pub fn callable(&self, signature: &str) -> Result<Arc<Callable>> {
        let compiled = self.callables.get(signature);
        if let Some(callable) = compiled.and_then(OnceLock::get) {
            return Ok(callable.clone());
        }
        let ports = self.signature(signature)?;
        self.check(ports)?;
        let names = |ports: &[SignatureTensor]| ports.iter().map(|p| p.name.clone()).collect();
        let callable = self.session.callable(&Signature {
            feeds: names(&ports.inputs),
            fetches: names(&ports.outputs),
            targets: Vec::new(),
        })?;
        if let Some(compiled) = compiled {
            let _ = compiled.set(callable.clone());
        }
        Ok(callable)
    }

    /// Runs a signature with inputs by key; returns all outputs by key, sorted.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an input is missing or unknown; those of [`SavedModel::callable`] and of
    /// [`Session::run_callable`].
    pub fn run(&self, signature: &str, feeds: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>> {
        self.run_with(signature, feeds, &RunOptions::default())
    }

    /// [`SavedModel::run`] with a timeout, a cancellation token or a trace.
    ///
    /// # Errors
    /// As [`SavedModel::run`].
    pub fn run_with(
        &self,
        signature: &str,
        feeds: &[(&str, Tensor)],
        options: &RunOptions,
    ) -> Result<Vec<(String, Tensor)>> {
        let callable = self.callable(signature)?;
        let signature = self.signature(signature)?;
        let args = signature.args(feeds)?;
        let results = self.session.run_callable(&callable, args, options)?;
        let keys = signature.outputs.iter().map(|o| o.key.clone());
        Ok(keys.zip(results).collect())
    }
}

impl ModelSignature {
    /// The input with this key.
    pub fn input(&self, key: &str) -> Option<&SignatureTensor> {
        self.inputs.iter().find(|i| i.key == key)
    }

    /// The output with this key.
    pub fn output(&self, key: &str) -> Option<&SignatureTensor> {
        self.outputs.iter().find(|o| o.key == key)
    }

    /// The tensors to feed, in the order of the inputs; each must be fed or have a default.
    pub(crate) fn args(&self, feeds: &[(&str, Tensor)]) -> Result<Vec<Tensor>> {
        let keys = || {
            let keys: Vec<&str> = self.inputs.iter().map(|i| i.key.as_str()).collect();
            keys.join(", ")
        };
        if let Some((key, _)) = feeds.iter().find(|(key, _)| self.input(key).is_none()) {
            return Err(invalid_argument!(
                "the signature has no input '{key}'; it has: {}",
                keys()
            ));
        }
        let value = |input: &SignatureTensor| {
            let fed = feeds.iter().find(|(key, _)| *key == input.key);
            fed.map(|(_, value)| value)
                .or_else(|| self.defaults.get(&input.key))
                .cloned()
        };
        let arg = |input: &SignatureTensor| {
            value(input).ok_or_else(|| {
                invalid_argument!(
                    "input '{}' of the signature is not fed; its inputs are: {}",
                    input.key,
                    keys()
                )
            })
        };
        self.inputs.iter().map(arg).collect()
    }
}

fn in_model(error: Status, directory: &Path) -> Status {
    error.note(format!("in SavedModel {}", directory.display()))
}

fn find_graph(graphs: &[MetaGraphDef], tags: &[&str]) -> Result<usize> {
    let mut wanted = tags.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let of = |graph: &MetaGraphDef| -> Vec<String> {
        let info = graph.meta_info_def.as_ref();
        let mut tags = info.map_or(Vec::new(), |i| i.tags.clone());
        tags.sort_unstable();
        tags.dedup();
        tags
    };
    graphs.iter().position(|g| of(g) == wanted).ok_or_else(|| {
        let has: Vec<String> = graphs
            .iter()
            .map(|g| format!("{{ {} }}", of(g).join(", ")))
            .collect();
        not_found!(
            "Could not find meta graph def matching supplied tags: {{ {} }}. The model has: {}",
            wanted.join(" "),
            has.join(", ")
        )
    })
}

/// The init op, if any: it initializes tables and other state after restoring.
fn init_op(meta: &MetaGraphDef) -> Option<&str> {
    if let Some(signature) = meta.signature_def.get(INIT_SIGNATURE) {
        let output = signature.outputs.get(INIT_SIGNATURE)?;
        return match &output.encoding {
            Some(Encoding::Name(name)) if !name.is_empty() => Some(name),
            _ => None,
        };
    }
    INIT_COLLECTIONS.iter().find_map(|name| {
        match meta.collection_def.get(*name)?.kind.as_ref()? {
            Kind::NodeList(nodes) => nodes.value.first().map(String::as_str),
            _ => None,
        }
    })
}

fn signature(def: &SignatureDef) -> Result<ModelSignature> {
    let tensors = |map: &std::collections::HashMap<String, TensorInfo>| {
        let mut out = Vec::new();
        for (key, info) in map {
            parts(key, info, &mut out).map_err(|e| e.note(format!("at '{key}'")))?;
        }
        out.sort_unstable_by(|a: &SignatureTensor, b| a.key.cmp(&b.key));
        Ok::<_, Status>(out)
    };
    let defaults = def.defaults.iter().map(|(key, value)| {
        let value = tensor_from_proto(value, None)?.get()?;
        Ok((key.clone(), value))
    });
    Ok(ModelSignature {
        inputs: tensors(&def.inputs)?,
        outputs: tensors(&def.outputs)?,
        method_name: def.method_name.clone(),
        defaults: try_ordered_map(defaults)?,
    })
}

/// Appends the tensors of an entry of a signature: its components, if it is composite.
fn parts(key: &str, info: &TensorInfo, out: &mut Vec<SignatureTensor>) -> Result<()> {
    let tensor = |key: String, name: &str, dtype: DType, shape: PartialShape| SignatureTensor {
        key,
        name: name.to_string(),
        dtype,
        shape,
    };
    match &info.encoding {
        Some(Encoding::Name(name)) => {
            let dtype = dtype(info.dtype)?;
            let shape = info.tensor_shape.as_ref();
            let shape = shape.map_or(Ok(PartialShape::unknown()), shape_from_proto)?;
            out.push(tensor(key.to_string(), name, dtype, shape));
        }
        Some(Encoding::CooSparse(sparse)) => {
            let (values, indices) = (&sparse.values_tensor_name, &sparse.indices_tensor_name);
            let rank = info.tensor_shape.as_ref();
            let rank = rank
                .map_or(Ok(PartialShape::unknown()), shape_from_proto)?
                .rank();
            let vector = |n| PartialShape::of([n]);
            let matrix = PartialShape::of([None, rank]);
            let dense = &sparse.dense_shape_tensor_name;
            let values_type = dtype(info.dtype)?;
            out.push(tensor(
                format!("{key}/values"),
                values,
                values_type,
                vector(None),
            ));
            out.push(tensor(
                format!("{key}/indices"),
                indices,
                DType::Int64,
                matrix,
            ));
            out.push(tensor(
                format!("{key}/dense_shape"),
                dense,
                DType::Int64,
                vector(rank),
            ));
        }
        Some(Encoding::CompositeTensor(composite)) => {
            for (i, part) in composite.components.iter().enumerate() {
                parts(&format!("{key}/{i}"), part, out)?;
            }
        }
        None => {}
    }
    Ok(())
}

/// The dtype of an enum number, without the reference bit.
fn dtype(number: i32) -> Result<DType> {
    let plain = if number > 100 { number - 100 } else { number };
    DType::from_number(plain).ok_or_else(|| invalid_argument!("unknown dtype number {number}"))
}
