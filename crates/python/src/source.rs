//! Files of models, of every kind.

use crate::error::{error, invalid};
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_model::{CheckpointState, has_checkpoint};
use ferroflow_runtime::{
    CompiledModel, ModelSignature, Pool, SavedModel, Session, SessionOptions, Signature,
    SignatureTensor, outputs,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// An opened model.
pub enum Source {
    /// A SavedModel.
    Saved(SavedModel),
    /// A graph.
    Graph(Session),
    /// One signature, compiled earlier.
    Compiled(CompiledModel),
}

/// What a path holds.
pub enum Kind {
    /// The directory of a SavedModel.
    Saved,
    /// A compiled model.
    Compiled,
    /// A checkpoint, by its prefix.
    Checkpoint(PathBuf),
    /// A `GraphDef`, binary or text.
    Graph,
}

impl Kind {
    /// Returns what is at `path`.
    pub fn at(path: &Path) -> Result<Kind> {
        if path.is_dir() {
            if SavedModel::is_at(path) {
                return Ok(Kind::Saved);
            }
            let state = CheckpointState::read(path)?;
            if let Some(latest) = state.as_ref().and_then(CheckpointState::latest) {
                return Ok(Kind::Checkpoint(path.join(latest)));
            }
            return Err(not_found!(
                "{} has neither a saved_model.pb nor a checkpoint",
                path.display()
            ));
        }
        let text = path.to_string_lossy();
        let prefix = text.strip_suffix(".index").map_or(path, Path::new);
        if has_checkpoint(prefix) {
            return Ok(Kind::Checkpoint(prefix.to_path_buf()));
        }
        if CompiledModel::is_at(path) {
            return Ok(Kind::Compiled);
        }
        Ok(Kind::Graph)
    }
}

/// The ops that save and restore variables (`SaverDef`).
#[derive(Clone, Default)]
pub struct Saver {
    /// The tensor that is fed the prefix of the checkpoint.
    pub filename: String,
    /// The tensor whose computation writes the checkpoint.
    pub save: String,
    /// The op that reads it.
    pub restore: String,
}

impl Source {
    /// Opens a model that is not a checkpoint.
    pub fn open(
        path: &Path,
        kind: &Kind,
        tags: &[&str],
        options: SessionOptions,
    ) -> Result<Source> {
        Ok(match kind {
            Kind::Saved => Source::Saved(SavedModel::open(path, tags, options)?),
            Kind::Compiled => Source::Compiled(CompiledModel::open(path, options)?),
            Kind::Graph | Kind::Checkpoint(_) => Source::Graph(Session::open(path, options)?),
        })
    }

    /// The session that runs it.
    pub fn session(&self) -> &Session {
        match self {
            Source::Saved(model) => model.session(),
            Source::Graph(session) => session,
            Source::Compiled(model) => model.session(),
        }
    }

    /// The names of the signatures and the signatures.
    pub fn signatures(&self) -> Result<Vec<(String, ModelSignature)>> {
        Ok(match self {
            Source::Saved(model) => {
                let all = model.signatures().iter();
                all.map(|(name, s)| (name.clone(), s.clone())).collect()
            }
            Source::Compiled(model) => {
                vec![(DEFAULT.to_string(), model.ports().clone())]
            }
            Source::Graph(session) => vec![(DEFAULT.to_string(), whole(session)?)],
        })
    }
}

/// The name of a model's only signature.
pub const DEFAULT: &str = ferroflow_runtime::DEFAULT_SIGNATURE;

/// The signature of a graph: its placeholders, and the tensors that no node reads. Keys are names of nodes,
/// of tensors if a node has several outputs.
fn whole(session: &Session) -> Result<ModelSignature> {
    let graph = session.graph();
    let key = |name: &str| {
        let node = name.strip_suffix(":0").unwrap_or(name);
        let n_outputs = graph.find(node).map(|id| graph.node(id).outputs.len());
        (if n_outputs == Some(1) { node } else { name }).to_string()
    };
    let is_input = |op: &str| matches!(op, "Placeholder" | "PlaceholderV2");
    let placeholders = graph.iter().filter(|(_, n)| is_input(n.op()));
    let inputs = placeholders.map(|(_, n)| SignatureTensor {
        key: n.name.clone(),
        name: format!("{}:0", n.name),
        dtype: n.outputs[0],
        shape: n.attrs.shape("shape").cloned().unwrap_or_default(),
    });
    let inputs: Vec<SignatureTensor> = inputs.collect();
    let names = outputs(&graph);
    let feeds = inputs.iter().map(|i| i.name.clone()).collect();
    let signature = Signature {
        feeds,
        fetches: names.clone(),
        targets: Vec::new(),
    };
    let shapes = session.graph_after(&signature, None).ok();
    let mut results = Vec::new();
    for name in names {
        let output = graph.find_output(&name, "output")?;
        let shape = shapes.as_ref().and_then(|(after, shapes)| {
            let output = after.find_output(&name, "output").ok()?;
            Some(shapes.get(output))
        });
        results.push(SignatureTensor {
            key: key(&name),
            dtype: graph.node(output.node).outputs[output.slot as usize],
            shape: shape.unwrap_or_default(),
            name,
        });
    }
    Ok(ModelSignature {
        inputs,
        outputs: results,
        ..Default::default()
    })
}

/// Threads of a session at most.
const MAX_THREADS: usize = 4096;

/// Returns the pool of `threads` threads, 0 meaning all processors. Sessions share the pools, which are never
/// dropped: that would wait for their threads, which may wait for the interpreter's lock.
pub fn pool(threads: usize) -> Result<Arc<Pool>> {
    static POOLS: Mutex<BTreeMap<usize, Arc<Pool>>> = Mutex::new(BTreeMap::new());
    let threads = match threads {
        0 => Pool::available_threads(),
        n if n <= MAX_THREADS => n,
        n => {
            return Err(invalid_argument!(
                "{n} threads, at most {MAX_THREADS} are allowed"
            ));
        }
    };
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pools
        .entry(threads)
        .or_insert_with(|| Arc::new(Pool::new(threads)));
    Ok(pool.clone())
}

/// Options of a session.
pub fn options(threads: usize, optimize: bool) -> Result<SessionOptions> {
    let mut options = SessionOptions {
        pool: Some(pool(threads)?),
        ..Default::default()
    };
    options.compile.optimize = optimize;
    Ok(options)
}

/// A graph that a program gave: a path, bytes, text, or a message of TensorFlow's.
pub fn graph(
    value: &Bound<'_, PyAny>,
    options: SessionOptions,
) -> PyResult<(Source, Option<Saver>)> {
    let py = value.py();
    if value.hasattr("graph_def")? {
        let saver = saver_of(&value.getattr("saver_def")?)?;
        let (source, _) = graph(&value.getattr("graph_def")?, options)?;
        return Ok((source, saver));
    }
    if value.hasattr("as_graph_def")? {
        return graph(&value.call_method0("as_graph_def")?, options);
    }
    if value.hasattr("SerializeToString")? {
        return graph(&value.call_method0("SerializeToString")?, options);
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        let bytes = bytes.as_bytes().to_vec();
        let session = py
            .detach(|| Session::from_bytes(bytes, options))
            .map_err(error)?;
        return Ok((Source::Graph(session), None));
    }
    if let Ok(text) = value.cast::<PyString>()
        && text.to_str()?.contains('{')
    {
        let session = Session::from_text(text.to_str()?, options).map_err(error)?;
        return Ok((Source::Graph(session), None));
    }
    let Ok(path) = value.extract::<PathBuf>() else {
        return Err(invalid(format!(
            "a graph is bytes, text, a path or a GraphDef, not {}",
            value.get_type().name()?
        )));
    };
    let source = py.detach(|| Session::open(&path, options));
    Ok((Source::Graph(source.map_err(error)?), None))
}

fn saver_of(def: &Bound<'_, PyAny>) -> PyResult<Option<Saver>> {
    let text = |name: &str| def.getattr(name)?.extract::<String>();
    let saver = Saver {
        filename: text("filename_tensor_name")?,
        save: text("save_tensor_name")?,
        restore: text("restore_op_name")?,
    };
    Ok((!saver.filename.is_empty()).then_some(saver))
}

/// The saver of a SavedModel, if it has one.
pub fn saver_in(model: &SavedModel) -> Option<Saver> {
    let def = model.saver()?;
    let saver = Saver {
        filename: def.filename_tensor_name.clone(),
        save: def.save_tensor_name.clone(),
        restore: def.restore_op_name.clone(),
    };
    (!saver.filename.is_empty()).then_some(saver)
}
