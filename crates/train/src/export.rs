//! Writing a SavedModel.

use super::{Trainer, saver};
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_graph::{Graph, NodeId, Output, export_graph, infer_shapes};
use ferroflow_model::proto::{
    AssetFileDef, CollectionDef, MetaGraphDef, SavedModel, SaverDef, SignatureDef, TensorInfo,
    VariableDef, collection_def, meta_graph_def::MetaInfoDef, saver_def::CheckpointFormatVersion,
    tensor_info::Encoding,
};
use ferroflow_model::{copy_asset, encode, shape_to_proto, write_saved_model};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A signature of a SavedModel: inputs and outputs by key, each a tensor name such as
/// `probabilities:0`.
#[derive(Clone, Copy, Debug)]
pub struct Signature<'a> {
    /// The signature's name.
    pub name: &'a str,
    /// Keys and tensors of the inputs.
    pub inputs: &'a [(&'a str, &'a str)],
    /// Keys and tensors of the outputs.
    pub outputs: &'a [(&'a str, &'a str)],
}

impl Trainer {
    /// Writes a SavedModel with the signature `serving_default`: inputs and outputs by key, each
    /// a tensor name such as `probabilities:0`. The folder must be empty or not exist, and is so
    /// again after an error.
    ///
    /// It holds the nodes that the signature, saving and restoring need, and all their variables.
    /// TensorFlow loads it with `tf.saved_model.load`.
    ///
    /// # Errors
    /// As for [`Trainer::export_signatures`].
    pub fn export(
        &self,
        folder: &Path,
        inputs: &[(&str, &str)],
        outputs: &[(&str, &str)],
    ) -> Result<()> {
        let name = ferroflow_runtime::DEFAULT_SIGNATURE;
        self.export_signatures(
            folder,
            &[Signature {
                name,
                inputs,
                outputs,
            }],
        )
    }

    /// Like [`Trainer::export`], with several signatures.
    ///
    /// ```
    /// # use ferroflow_train::{Network, Signature, Trainer};
    /// # use ferroflow_runtime::{DType, SavedModel, SessionOptions, Tensor};
    /// let mut net = Network::new(1);
    /// let x = net.input("x", DType::Float, &[None])?;
    /// for op in ["Exp", "Neg"] {
    ///     let y = net.op(op).input(x).output()?;
    ///     net.name(&op.to_lowercase(), y)?;
    /// }
    /// let trainer = Trainer::new(net, SessionOptions::default())?;
    /// let folder = std::env::temp_dir().join(format!("ferroflow-two-{}", std::process::id()));
    /// let signature = |name, outputs| Signature { name, inputs: &[("x", "x:0")], outputs };
    /// let both = [signature("grow", &[("y", "exp:0")]), signature("turn", &[("y", "neg:0")])];
    /// trainer.export_signatures(&folder, &both)?;
    /// let model = SavedModel::open(&folder, &["serve"], SessionOptions::default())?;
    /// let out = model.run("turn", &[("x", Tensor::vector(&[2f32])?)])?;
    /// assert_eq!(out[0].1.slice::<f32>()?, [-2.0]);
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), ferroflow_runtime::Status>(())
    /// ```
    ///
    /// # Errors
    /// ALREADY_EXISTS if the folder is not empty; INVALID_ARGUMENT if there are no signatures, two
    /// of one name, or one without outputs; NOT_FOUND if a tensor does not exist; file system
    /// errors.
    pub fn export_signatures(&self, folder: &Path, signatures: &[Signature]) -> Result<()> {
        let is_used = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if is_used {
            return Err(ferroflow_base::already_exists!(
                "{} is not empty: a SavedModel needs a folder of its own",
                folder.display()
            ));
        }
        let graph = &*self.session.graph();
        let defs = signature_defs(graph, signatures)?;
        let mut def = export_graph(graph)?;
        let ends = signatures
            .iter()
            .flat_map(|s| s.inputs.iter().chain(s.outputs));
        let wanted = ends.map(|(_, name)| *name);
        let wanted = wanted.chain([saver::SAVED, saver::RESTORE]);
        let wanted = wanted.chain(self.has_tables.then_some(saver::TABLES));
        let wanted = wanted.map(|name| name.split(':').next().unwrap_or(name));
        let kept = needed(&def, wanted.chain(self.initializers(graph)));
        def.node.retain(|n| kept.contains(n.name.as_str()));
        if self.is_spread {
            // The model is for any session, not for the tasks that trained it.
            def.node.iter_mut().for_each(|n| n.device.clear());
        }
        let assets = self.assets.iter();
        let assets: Vec<(&str, &Path)> = assets
            .map(|(tensor, file)| (tensor.as_str(), file.as_path()))
            .filter(|(tensor, _)| tensor.split(':').next().is_some_and(|n| kept.contains(n)))
            .collect();
        let assets = named_assets(&assets)?;
        let meta = MetaGraphDef {
            meta_info_def: Some(MetaInfoDef {
                tags: vec![ferroflow_runtime::SERVE.to_string()],
                tensorflow_version: "2.21.0".to_string(),
                ..Default::default()
            }),
            graph_def: Some(def),
            object_graph_def: None,
            saver_def: Some(saver_def()),
            collection_def: self.collections(graph, &assets),
            asset_file_def: assets.iter().map(|a| a.def.clone()).collect(),
            signature_def: defs,
        };
        let model = SavedModel {
            saved_model_schema_version: 1,
            meta_graphs: vec![meta],
        };
        let write = || {
            self.save_as(&folder.join("variables").join("variables"))?;
            for asset in &assets {
                copy_asset(folder, asset.file, &asset.def.filename)?;
            }
            write_saved_model(folder, &model)
        };
        // Partial output would block the next attempt.
        let existed = folder.exists();
        write().inspect_err(|_| clear(folder, existed))
    }

    fn initializers<'g>(&self, graph: &'g Graph) -> impl Iterator<Item = &'g str> {
        let nodes: Vec<NodeId> = self.variables.iter().map(|v| v.initializer).collect();
        nodes.into_iter().map(|id| graph.node(id).name.as_str())
    }

    /// Returns the collections of variables, files and table initializers, under TensorFlow's keys.
    fn collections(&self, graph: &Graph, assets: &[Asset]) -> HashMap<String, CollectionDef> {
        let mut all = Vec::new();
        let mut trainable = Vec::new();
        for variable in &self.variables {
            let def = VariableDef {
                variable_name: tensor_name(graph, variable.handle),
                snapshot_name: tensor_name(graph, variable.value),
                initializer_name: graph.node(variable.initializer).name.clone(),
                initial_value_name: tensor_name(graph, variable.initial),
                is_resource: true,
                trainable: variable.trainable,
            };
            let bytes = encode(&def);
            if variable.trainable {
                trainable.push(bytes.clone());
            }
            all.push(bytes);
        }
        let collection = |value: Vec<Vec<u8>>| CollectionDef {
            kind: Some(collection_def::Kind::BytesList(collection_def::BytesList {
                value: value.into_iter().map(Into::into).collect(),
            })),
        };
        let mut collections = HashMap::from([
            ("variables".to_string(), collection(all)),
            ("trainable_variables".to_string(), collection(trainable)),
        ]);
        let nodes = |value: Vec<String>| CollectionDef {
            kind: Some(collection_def::Kind::NodeList(collection_def::NodeList {
                value,
            })),
        };
        if self.has_tables {
            let op = vec![saver::TABLES.to_string()];
            collections.insert("saved_model_main_op".to_string(), nodes(op));
        }
        if !assets.is_empty() {
            let paths = assets.iter().map(|a| a.tensor.to_string()).collect();
            collections.insert("asset_filepaths".to_string(), nodes(paths));
        }
        collections
    }
}

/// Deletes the content of a folder, or the folder, as far as possible.
fn clear(folder: &Path, keep: bool) {
    if !keep {
        let _ = std::fs::remove_dir_all(folder);
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = match path.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
    }
}

/// Returns a tensor's name with its slot, which collections require.
pub(super) fn tensor_name(graph: &Graph, output: Output) -> String {
    format!("{}:{}", graph.node(output.node).name, output.slot)
}

/// A file of a model.
struct Asset<'a> {
    tensor: &'a str,
    file: &'a Path,
    def: AssetFileDef,
}

/// Assigns each file a unique name in the folder of assets; a file that is used twice is stored
/// once.
fn named_assets<'a>(assets: &[(&'a str, &'a Path)]) -> Result<Vec<Asset<'a>>> {
    let mut named: Vec<Asset> = Vec::new();
    for &(tensor, file) in assets {
        let name = file.file_name().and_then(|n| n.to_str());
        let name =
            name.ok_or_else(|| invalid_argument!("Invalid asset path {}", file.display()))?;
        let same = named.iter().find(|a| a.file == file);
        let filename = match same {
            Some(same) => same.def.filename.clone(),
            None => {
                let is_free = |name: &String| named.iter().all(|a| a.def.filename != *name);
                let others = (1..).map(|i| format!("{name}_{i}"));
                let mut names = std::iter::once(name.to_string()).chain(others);
                names.find(is_free).unwrap_or_default()
            }
        };
        let tensor_info = TensorInfo {
            encoding: Some(Encoding::Name(tensor.to_string())),
            ..Default::default()
        };
        let def = AssetFileDef {
            tensor_info: Some(tensor_info),
            filename,
        };
        named.push(Asset { tensor, file, def });
    }
    Ok(named)
}

fn signature_defs(
    graph: &Graph,
    signatures: &[Signature],
) -> Result<HashMap<String, SignatureDef>> {
    let mut defs = HashMap::new();
    for Signature {
        name,
        inputs,
        outputs,
    } in signatures
    {
        if outputs.is_empty() {
            return Err(invalid_argument!("signature '{name}' has no outputs"));
        }
        let def = SignatureDef {
            inputs: infos(graph, inputs)?,
            outputs: infos(graph, outputs)?,
            method_name: "tensorflow/serving/predict".to_string(),
            ..Default::default()
        };
        if defs.insert(name.to_string(), def).is_some() {
            return Err(invalid_argument!("duplicate signature '{name}'"));
        }
    }
    if defs.is_empty() {
        return Err(invalid_argument!(
            "a SavedModel needs at least one signature"
        ));
    }
    Ok(defs)
}

fn saver_def() -> SaverDef {
    SaverDef {
        filename_tensor_name: saver::FILENAME.to_string(),
        save_tensor_name: saver::SAVED.to_string(),
        restore_op_name: saver::RESTORE.to_string(),
        max_to_keep: 5,
        version: CheckpointFormatVersion::V2 as i32,
        ..Default::default()
    }
}

fn infos(graph: &Graph, tensors: &[(&str, &str)]) -> Result<HashMap<String, TensorInfo>> {
    let shapes = infer_shapes(graph, ferroflow_runtime::registry())?;
    let info = |(key, name): &(&str, &str)| {
        let output = graph.find_output(name, "signature")?;
        let dtype = graph.dtype(output);
        let dtype = dtype.ok_or_else(|| not_found!("tensor '{name}' does not exist"))?;
        let info = TensorInfo {
            dtype: dtype as i32,
            tensor_shape: Some(shape_to_proto(&shapes.get(output))),
            encoding: Some(Encoding::Name(tensor_name(graph, output))),
        };
        Ok((key.to_string(), info))
    };
    tensors.iter().map(info).collect()
}

/// Returns the nodes that `roots` need.
fn needed<'a>(
    def: &'a ferroflow_model::proto::GraphDef,
    roots: impl Iterator<Item = &'a str>,
) -> HashSet<String> {
    let by_name: HashMap<&str, &ferroflow_model::proto::NodeDef> =
        def.node.iter().map(|n| (n.name.as_str(), n)).collect();
    let mut stack: Vec<&str> = roots.collect();
    let mut found = HashSet::new();
    while let Some(name) = stack.pop() {
        let Some(node) = by_name.get(name) else {
            continue;
        };
        if found.insert(name.to_string()) {
            let names = node.input.iter().map(|i| i.trim_start_matches('^'));
            stack.extend(names.map(|i| i.split(':').next().unwrap_or(i)));
        }
    }
    found
}
