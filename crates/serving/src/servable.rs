//! [`Servable`]: a loaded version of a model.

use crate::batching::{Gain, Parameters};
use ferroflow_base::{Result, failed_precondition, invalid_argument, ordered_map};
use ferroflow_model::proto::{MetaGraphDef, SignatureDef, TensorInfo, tensor_info::Encoding};
use ferroflow_model::shape_to_proto;
use ferroflow_runtime::{
    Callable, CompileRequest, CompiledModel, DEFAULT_SIGNATURE, ModelSignature, Pool, RunOptions,
    SavedModel, Session, SessionOptions, Signature, SignatureTensor, Tensor, outputs, placeholders,
};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The method of signatures that take and return tensors.
pub const PREDICT: &str = "tensorflow/serving/predict";

/// How models are opened.
#[derive(Clone)]
pub struct LoadOptions {
    /// Tags of the graph in a SavedModel.
    pub tags: Vec<String>,
    /// The threads that all models share.
    pub pool: Arc<Pool>,
    /// The folder of compiled models, if they are cached.
    pub cache: Option<PathBuf>,
}

/// A loaded version of a model.
pub struct Servable {
    name: String,
    version: i64,
    path: PathBuf,
    defs: HashMap<String, SignatureDef>,
    programs: BTreeMap<String, Program>,
    model: Model,
    /// Parameters of its batches, if it has its own.
    pub(crate) batching: OnceLock<Option<Arc<Parameters>>>,
}

/// What runs the signatures.
enum Model {
    Saved(Box<SavedModel>),
    Frozen(Box<Session>),
    /// One compiled model for each signature.
    Compiled(BTreeMap<String, CompiledModel>),
}

/// A signature that can be run.
pub struct Program {
    /// Inputs and outputs, sorted by key.
    pub ports: ModelSignature,
    callable: OnceLock<Arc<Callable>>,
    /// The callables of some of the outputs, by their positions.
    partial: Mutex<HashMap<Vec<usize>, Arc<Callable>>>,
    /// What merging its requests is worth.
    pub(crate) gain: Gain,
}

impl Program {
    fn new(ports: ModelSignature) -> Program {
        Program {
            ports,
            callable: OnceLock::new(),
            partial: Mutex::default(),
            gain: Gain::default(),
        }
    }
}

impl Servable {
    /// Opens a version: the directory of a SavedModel, or a file with a frozen graph or a compiled model.
    ///
    /// # Errors
    /// Those of opening the model and of compiling its default signature.
    pub fn open(name: &str, version: i64, path: &Path, options: &LoadOptions) -> Result<Servable> {
        let session = SessionOptions {
            pool: Some(options.pool.clone()),
            ..Default::default()
        };
        let cached = options.cache.as_ref().map(|folder| {
            let key = crate::cache::key(path, &options.tags);
            folder.join(format!("{name}-{version}-{key:016x}"))
        });
        let from_cache = cached
            .as_ref()
            .and_then(|folder| crate::cache::open(folder, &session));
        let (model, defs, ports) = match from_cache {
            Some((models, defs)) => {
                let ports = models.iter().map(|(n, m)| (n.clone(), m.ports().clone()));
                let ports = ordered_map(ports);
                (Model::Compiled(models), defs, ports)
            }
            None => Self::read(path, options, session)?,
        };
        let is_source = !matches!(model, Model::Compiled(_));
        let programs = ports.into_iter().map(|(n, p)| (n, Program::new(p)));
        let servable = Servable {
            name: name.to_string(),
            version,
            path: path.to_path_buf(),
            defs,
            programs: ordered_map(programs),
            model,
            batching: OnceLock::new(),
        };
        if let Some(program) = servable.programs.get(DEFAULT_SIGNATURE) {
            servable.callable(DEFAULT_SIGNATURE, program, &[])?;
        }
        if let Some(folder) = cached.filter(|_| is_source) {
            servable.write_cache(&folder);
        }
        Ok(servable)
    }

    #[allow(clippy::type_complexity, reason = "used once")]
    fn read(
        path: &Path,
        options: &LoadOptions,
        session: SessionOptions,
    ) -> Result<(
        Model,
        HashMap<String, SignatureDef>,
        BTreeMap<String, ModelSignature>,
    )> {
        if SavedModel::is_at(path) {
            let tags: Vec<&str> = options.tags.iter().map(String::as_str).collect();
            let (model, meta) = SavedModel::open_with_meta_graph(path, &tags, session)?;
            check_complete(path, &meta)?;
            let ports = model.signatures().clone();
            return Ok((Model::Saved(Box::new(model)), meta.signature_def, ports));
        }
        if path.is_dir() {
            return Err(ferroflow_base::not_found!(
                "Could not find SavedModel .pb or .pbtxt at supplied export directory path: {}",
                path.display()
            ));
        }
        let (model, ports) = match CompiledModel::is_at(path) {
            true => {
                let model = CompiledModel::open(path, session)?;
                let ports = model.ports().clone();
                let models = [(DEFAULT_SIGNATURE.to_string(), model)];
                (Model::Compiled(models.into()), ports)
            }
            false => {
                let session = Session::open(path, session)?;
                let ports = frozen_ports(&session)?;
                (Model::Frozen(Box::new(session)), ports)
            }
        };
        let ports = ModelSignature {
            method_name: PREDICT.to_string(),
            ..ports
        };
        let name = DEFAULT_SIGNATURE.to_string();
        let defs = HashMap::from([(name.clone(), signature_def(&ports))]);
        Ok((model, defs, ordered_map([(name, ports)])))
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version's number.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The signatures as the model has them.
    pub fn signature_defs(&self) -> &HashMap<String, SignatureDef> {
        &self.defs
    }

    /// The signature called `name`, if any.
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.programs.get(name)
    }

    /// The names of the signatures, sorted.
    pub fn signatures(&self) -> impl Iterator<Item = &str> {
        self.programs.keys().map(String::as_str)
    }

    /// The compiled form of a signature; `outputs` are the positions of the outputs that are fetched, all if
    /// empty.
    ///
    /// # Errors
    /// Those of compiling.
    pub fn callable(
        &self,
        name: &str,
        program: &Program,
        outputs: &[usize],
    ) -> Result<Option<Arc<Callable>>> {
        let make = || match &self.model {
            Model::Saved(model) if outputs.is_empty() => model.callable(name).map(Some),
            Model::Saved(model) => model
                .session()
                .callable(&named(&program.ports, outputs))
                .map(Some),
            Model::Frozen(session) => session.callable(&named(&program.ports, outputs)).map(Some),
            Model::Compiled(_) => Ok(None),
        };
        if outputs.is_empty() {
            if let Some(callable) = program.callable.get() {
                return Ok(Some(callable.clone()));
            }
            return Ok(make()?.map(|made| program.callable.get_or_init(|| made).clone()));
        }
        let mut partial = program
            .partial
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(callable) = partial.get(outputs) {
            return Ok(Some(callable.clone()));
        }
        let made = make()?;
        if let Some(made) = &made {
            partial.insert(outputs.to_vec(), made.clone());
        }
        Ok(made)
    }

    /// Returns whether a step is expected to end too soon to be worth a switch of threads.
    pub fn is_short(&self, name: &str, program: &Program) -> bool {
        match &self.model {
            Model::Compiled(models) => models.get(name).is_some_and(|m| m.callable().is_short()),
            _ => program.callable.get().is_some_and(|c| c.is_short()),
        }
    }

    /// Runs a signature with its inputs in order; returns the outputs at the positions `outputs`, all if
    /// empty.
    ///
    /// # Errors
    /// Those of compiling and of the step.
    pub fn run(
        &self,
        name: &str,
        args: Vec<Tensor>,
        outputs: &[usize],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        let program = self
            .programs
            .get(name)
            .ok_or_else(|| failed_precondition!("Serving signature key \"{name}\" not found."))?;
        let began = std::time::Instant::now();
        let session = match &self.model {
            Model::Saved(model) => model.session(),
            Model::Frozen(session) => session,
            Model::Compiled(models) => {
                let model = models.get(name).ok_or_else(|| {
                    failed_precondition!("Serving signature key \"{name}\" not found.")
                })?;
                let callable = model.callable();
                let all = model.session().run_callable(callable, args, options)?;
                callable.note_time(began.elapsed());
                return Ok(select(all, outputs));
            }
        };
        let callable = self.callable(name, program, outputs)?;
        let callable =
            callable.ok_or_else(|| invalid_argument!("the signature '{name}' cannot be run"))?;
        let results = session.run_callable(&callable, args, options)?;
        callable.note_time(began.elapsed());
        Ok(results)
    }

    /// Compiles all signatures into `folder`. Models that have state are not cached.
    fn write_cache(&self, folder: &Path) {
        let session = match &self.model {
            Model::Saved(model) => model.session(),
            Model::Frozen(session) => session,
            Model::Compiled(_) => return,
        };
        let requests = self.programs.iter().map(|(name, program)| {
            let keys = |ports: &[SignatureTensor]| ports.iter().map(|p| p.key.clone()).collect();
            let request = CompileRequest {
                signature: named(&program.ports, &[]),
                feed_keys: keys(&program.ports.inputs),
                fetch_keys: keys(&program.ports.outputs),
                plain: false,
                ..Default::default()
            };
            (name.as_str(), request)
        });
        if let Err(e) = crate::cache::write(folder, &self.path, session, requests, &self.defs) {
            tracing::info!(model = self.name, version = self.version, "not cached: {e}");
        }
    }
}

/// Checks that a SavedModel with variables has a checkpoint of them. TensorFlow loads one without, whose steps then fail;
/// here a directory that is being copied must not replace a version that serves.
fn check_complete(path: &Path, meta: &MetaGraphDef) -> Result<()> {
    let restores = meta
        .saver_def
        .as_ref()
        .is_some_and(|s| !s.restore_op_name.is_empty());
    let nodes = meta.graph_def.as_ref().map_or(&[][..], |g| &g.node);
    let is_variable = |op: &str| ["VarHandleOp", "VariableV2", "Variable"].contains(&op);
    let has_variables = nodes.iter().any(|n| is_variable(&n.op));
    let index = path.join("variables/variables.index");
    match restores && has_variables && !index.exists() {
        true => Err(ferroflow_base::not_found!(
            "{} does not exist: the SavedModel has variables, and may not have been copied as a whole",
            index.display()
        )),
        false => Ok(()),
    }
}

/// The outputs at some positions, all if there are none.
fn select(all: Vec<Tensor>, positions: &[usize]) -> Vec<Tensor> {
    match positions {
        [] => all,
        _ => positions
            .iter()
            .filter_map(|&i| all.get(i).cloned())
            .collect(),
    }
}

/// The feeds and fetches of a signature by their names in the graph.
fn named(ports: &ModelSignature, outputs: &[usize]) -> Signature {
    let all: Vec<String> = ports.outputs.iter().map(|p| p.name.clone()).collect();
    Signature {
        feeds: ports.inputs.iter().map(|p| p.name.clone()).collect(),
        fetches: match outputs {
            [] => all,
            _ => outputs
                .iter()
                .filter_map(|&i| all.get(i).cloned())
                .collect(),
        },
        targets: Vec::new(),
    }
}

/// The signature of a graph without one: its placeholders and the outputs that no node reads. The keys are the
/// names without `:0`.
fn frozen_ports(session: &Session) -> Result<ModelSignature> {
    let graph = session.graph();
    let fetches = outputs(&graph);
    let feeds = placeholders(&graph, &[], &fetches, &[])?;
    let ports = |names: Vec<String>| -> Result<Vec<SignatureTensor>> {
        let mut ports = Vec::new();
        for name in names {
            let output = graph.find_output(&name, "the signature")?;
            let node = graph.node(output.node);
            let Some(dtype) = graph.dtype(output) else {
                continue;
            };
            ports.push(SignatureTensor {
                key: name.strip_suffix(":0").unwrap_or(&name).to_string(),
                shape: node.attrs.shape("shape").cloned().unwrap_or_default(),
                dtype,
                name,
            });
        }
        ports.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(ports)
    };
    Ok(ModelSignature {
        inputs: ports(feeds)?,
        outputs: ports(fetches)?,
        ..Default::default()
    })
}

/// The message of a signature.
fn signature_def(ports: &ModelSignature) -> SignatureDef {
    let infos = |ports: &[SignatureTensor]| {
        let infos = ports.iter().map(|p| {
            let info = TensorInfo {
                dtype: p.dtype as i32,
                tensor_shape: Some(shape_to_proto(&p.shape)),
                encoding: Some(Encoding::Name(p.name.clone())),
            };
            (p.key.clone(), info)
        });
        infos.collect()
    };
    SignatureDef {
        inputs: infos(&ports.inputs),
        outputs: infos(&ports.outputs),
        method_name: ports.method_name.clone(),
        defaults: HashMap::new(),
    }
}
