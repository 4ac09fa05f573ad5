//! [`CompiledModel`]: a signature of a graph, compiled to a BEF file.

use crate::calibration::Calibration;
use crate::callable::{Callable, Feed};
use crate::freeze::{Freeze, Frozen};
use crate::saved_model::{ModelSignature, SignatureTensor};
use crate::session::{Engine, RunOptions, Session, SessionOptions, registry};
use crate::weights::{self, Precision};
use ferroflow_base::{Result, Status, failed_precondition, invalid_argument};
use ferroflow_compile::{Int8, emit, optimize};
use ferroflow_executor::Executor;
use ferroflow_functors::prepack::{packing, wants_bf16};
use ferroflow_graph::{ARG, Output, RETVAL, Signature, infer_shapes};
use ferroflow_model::AtomicFile;
use ferroflow_program::bef::{File, FileBytes, Model, Port, write_model};
use ferroflow_program::{Body, KernelEntry};
use ferroflow_tensor::{DType, MappedFile, Tensor};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// What [`Session::compile_to`] writes.
#[derive(Clone, Debug, Default)]
pub struct CompileRequest {
    /// The feeds, fetches and targets.
    pub signature: Signature,
    /// The keys of the feeds; their names in the graph if empty.
    pub feed_keys: Vec<String>,
    /// The keys of the fetches; their names in the graph if empty.
    pub fetch_keys: Vec<String>,
    /// Does not prepack weights: the file is smaller and portable, and each opening packs them.
    pub plain: bool,
    /// How weights are stored. Those stored in fewer bits are not prepacked.
    pub weights: Precision,
    /// Runs products and convolutions on 8-bit codes where ranges are known, with less exact results.
    pub int8: Option<Calibration>,
}

/// A compiled model.
///
/// Opening one maps the file, verifies its function bodies and builds their kernels.
///
/// ```
/// use ferroflow_runtime::{
///     CompileRequest, CompiledModel, Session, SessionOptions, Signature, Tensor,
/// };
/// let graph = "
///     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
///     node { name: 'y' op: 'Square' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
/// let session = Session::from_text(graph, SessionOptions::default())?;
/// let signature = Signature {
///     feeds: vec!["x:0".into()],
///     fetches: vec!["y:0".into()],
///     targets: vec![],
/// };
/// let request = CompileRequest { signature, ..Default::default() };
/// # let path = std::env::temp_dir().join(format!("square-{}.bef", std::process::id()));
/// session.compile_to(&path, &request)?;
///
/// let model = CompiledModel::open(&path, SessionOptions::default())?;
/// let y = model.run(&[("x:0", Tensor::scalar(3.0f32))])?;
/// assert_eq!(y[0].1.to_scalar::<f32>()?, 9.0);
/// # std::fs::remove_file(path).ok();
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
pub struct CompiledModel {
    session: Session,
    callable: Arc<Callable>,
    ports: ModelSignature,
    is_packed: bool,
    summary: ModelSummary,
}

/// Size of a compiled model.
#[derive(Clone, Debug, Default)]
pub struct ModelSummary {
    /// Number of nodes in all functions.
    pub n_nodes: usize,
    /// Number of nodes by op.
    pub ops: BTreeMap<String, usize>,
    /// Number of elements of floating-point constants, and of weights in 8 bits.
    pub n_parameters: usize,
    /// Bytes of these constants.
    pub parameter_bytes: usize,
    /// Bytes of constants of each dtype that takes part in products: floats, and weights in 8 bits.
    pub bytes_by_dtype: BTreeMap<&'static str, usize>,
}

impl ModelSummary {
    fn of(body: &Body) -> ModelSummary {
        let mut summary = ModelSummary::default();
        all_bodies(body).into_iter().for_each(|b| summary.add(b));
        summary
    }

    fn add(&mut self, body: &Body) {
        self.n_nodes += body.nodes.len();
        for node in &body.nodes {
            *self.ops.entry(node.info.op.clone()).or_default() += 1;
        }
        let is_parameter = |dtype: DType| dtype.is_floating() || dtype == DType::Int8;
        for constant in body.consts.iter().filter(|c| is_parameter(c.dtype())) {
            self.n_parameters += constant.shape().num_elements();
            self.parameter_bytes += constant.byte_len();
            let name = constant.dtype().numpy_name();
            *self.bytes_by_dtype.entry(name).or_default() += constant.byte_len();
        }
    }
}

/// Returns a body and the functions that it reaches, each once.
fn all_bodies(main: &Body) -> Vec<&Body> {
    let (mut bodies, mut seen, mut next) = (vec![main], HashSet::new(), 0);
    while let Some(body) = bodies.get(next).copied() {
        next += 1;
        let functions = body.functions.values();
        bodies.extend(
            functions
                .filter(|f| seen.insert(Arc::as_ptr(f)))
                .map(|f| &**f),
        );
    }
    bodies
}

impl Session {
    /// Compiles a signature as [`Session::callable`] does and writes it to a BEF file, which
    /// [`CompiledModel::open`] opens.
    ///
    /// The signature may only read variables and lookup tables that are initialized: a file has no state.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the signature uses state; those of compiling and of writing the file.
    pub fn compile_to(&self, path: &Path, request: &CompileRequest) -> Result<()> {
        let model = self.compiled_model(request)?;
        let mut file = AtomicFile::create_output(path)?;
        write_model(&model, &mut |bytes| file.write(bytes))?;
        file.commit()
    }

    /// [`Session::compile_to`] in memory, for [`CompiledModel::from_bytes`].
    ///
    /// # Errors
    /// As [`Session::compile_to`].
    pub fn compile_to_bytes(&self, request: &CompileRequest) -> Result<Vec<u8>> {
        let model = self.compiled_model(request)?;
        let mut file = Vec::new();
        write_model(&model, &mut |bytes| {
            file.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(file)
    }

    fn compiled_model(&self, request: &CompileRequest) -> Result<Model> {
        let signature = &request.signature;
        let mut expanded = self.expanded(signature, &[])?;
        let graph = expanded.graph();
        let shapes = infer_shapes(graph, registry())?;
        let ports = |op: &str, keys: &[String], names: &[String]| {
            let nodes = graph.iter().filter(|(_, n)| n.op() == op);
            let mut ports = Vec::new();
            for (i, ((id, node), name)) in nodes.zip(names).enumerate() {
                let output = match node.inputs.first() {
                    Some(input) if op == RETVAL => *input,
                    _ => Output::new(id, 0),
                };
                ports.push(Port {
                    key: keys.get(i).unwrap_or(name).clone(),
                    name: name.clone(),
                    dtype: node.attrs.dtype("T")?,
                    shape: shapes.get(output),
                });
            }
            Result::Ok(ports)
        };
        let feeds = ports(ARG, &request.feed_keys, &signature.feeds)?;
        let fetches = ports(RETVAL, &request.fetch_keys, &signature.fetches)?;
        self.freeze(&mut expanded, Freeze::All)?;
        let mut options = self.compile_options().clone();
        let placed = self.on_one_device(expanded)?;
        if let Some(calibration) = &request.int8 {
            let ranges = self.calibrate(&placed, signature, &feeds, calibration)?;
            options.int8 = Int8::On(Arc::new(ranges));
        }
        let optimized = optimize(placed, registry(), &options, &mut |_, _| {})?;
        let mut main = emit(&optimized, registry(), &options)?;
        drop(optimized);
        check_stateless(&main)?;
        weights::narrow(&mut main, request.weights)?;
        if !request.plain {
            main.prepack(registry())?;
        }
        Ok(Model {
            packing: packing(multiplies_bf16(&main)),
            main,
            feeds,
            fetches,
            targets: signature.targets.clone(),
        })
    }
}

/// Whether a body, or one that it calls, has products that are computed in bfloat16 where that is possible.
fn multiplies_bf16(body: &Body) -> bool {
    let mut entries = all_bodies(body).into_iter().flat_map(Body::kernels);
    entries.any(|(_, entry)| wants_bf16(&entry.attrs))
}

/// Whether weights that were packed for `packing` are as this machine packs them.
fn fits(packed_for: &str, body: &Body) -> bool {
    packed_for == packing(multiplies_bf16(body)) || packed_for == packing(true)
}

fn check_stateless(body: &Body) -> Result<()> {
    let keeps_state = |entry: &KernelEntry| {
        let is_handle = entry.outputs.contains(&DType::Resource) && entry.inputs.is_empty();
        let is_shared = entry.attrs.get("shared_name").is_some();
        let def = registry().def(&entry.op).ok().flatten();
        let is_ref = def.is_some_and(|def| def.outputs.iter().any(|o| o.is_ref()));
        is_handle || is_shared || is_ref
    };
    let mut entries = all_bodies(body).into_iter().flat_map(Body::kernels);
    if let Some((_, entry)) = entries.find(|(_, entry)| keeps_state(entry)) {
        return Err(failed_precondition!(
            "the signature uses state that outlives a step, which a compiled model cannot hold; it may \
             only read variables and lookup tables, which must be initialized"
        )
        .at_node(&entry.node, &entry.op));
    }
    Ok(())
}

#[cold]
fn not_a_model() -> Status {
    invalid_argument!(
        "the BEF file is a host program, not a compiled model; `ferroflow exec` runs it"
    )
}

impl CompiledModel {
    /// Returns whether the file begins with the magic number of BEF files.
    pub fn is_at(path: &Path) -> bool {
        let mut magic = [0; 2];
        let read = std::fs::File::open(path)
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
        read.is_ok() && magic == [0x0b, 0xef]
    }

    /// Maps a file, verifies its function bodies and builds their kernels. Weights are read when a step
    /// first needs them.
    ///
    /// # Errors
    /// DATA_LOSS if the file is damaged or has another layout, INVALID_ARGUMENT if it is not a compiled
    /// model.
    pub fn open(path: &Path, options: SessionOptions) -> Result<CompiledModel> {
        let model = MappedFile::open(path).and_then(|mapping| {
            let mapping = Arc::new(mapping);
            Self::find(mapping.clone(), Some(&mapping), options)?.ok_or_else(not_a_model)
        });
        model.map_err(|e| e.note(format!("in {}", path.display())))
    }

    /// Opens a file that is in memory already.
    ///
    /// # Errors
    /// As [`CompiledModel::open`].
    pub fn from_bytes(bytes: &[u8], options: SessionOptions) -> Result<CompiledModel> {
        Self::find(Arc::new(bytes.to_vec()), None, options)?.ok_or_else(not_a_model)
    }

    /// Opens the model in a file; `None` if the file is a host program. Large tensors stay in `mapping` if
    /// it maps the file.
    ///
    /// # Errors
    /// DATA_LOSS as for [`CompiledModel::open`].
    pub fn find(
        bytes: FileBytes,
        mapping: Option<&Arc<MappedFile>>,
        options: SessionOptions,
    ) -> Result<Option<CompiledModel>> {
        let file = File::open(bytes)?;
        let model = file.model(mapping, &mut |body, packed_for| {
            let fits = fits(packed_for, body);
            body.check_ops(registry(), fits)
        })?;
        let Some(mut model) = model else {
            return Ok(None);
        };
        let summary = ModelSummary::of(&model.main);
        let is_packed = fits(&model.packing, &model.main);
        weights::widen(&mut model.main)?;
        let plan = model.main.load(registry())?;
        let names = |ports: &[Port]| ports.iter().map(|p| p.name.clone()).collect();
        let signature = Signature {
            feeds: names(&model.feeds),
            fetches: names(&model.fetches),
            targets: model.targets,
        };
        let feeds = model.feeds.iter().map(Feed::of_port).collect();
        let engine = Engine::One(Executor::new(Arc::new(plan)));
        let callable = Callable::new(engine, Frozen::default(), signature, feeds);
        let callable = Arc::new(callable);
        let tensors = |ports: Vec<Port>| {
            let tensors = ports.into_iter().map(|p| SignatureTensor {
                key: p.key,
                name: p.name,
                dtype: p.dtype,
                shape: p.shape,
            });
            tensors.collect()
        };
        Ok(Some(CompiledModel {
            session: Session::of_callable(&callable, options),
            callable,
            ports: ModelSignature {
                inputs: tensors(model.feeds),
                outputs: tensors(model.fetches),
                ..Default::default()
            },
            is_packed,
            summary,
        }))
    }

    /// The signature of the model.
    pub fn signature(&self) -> &Signature {
        self.callable.signature()
    }

    /// The compiled signature.
    pub fn callable(&self) -> &Arc<Callable> {
        &self.callable
    }

    /// The inputs and outputs, in the order of the signature.
    pub fn ports(&self) -> &ModelSignature {
        &self.ports
    }

    /// Returns whether the file has weights packed for this machine; otherwise opening packed them.
    pub fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// The size of the model.
    pub fn summary(&self) -> &ModelSummary {
        &self.summary
    }

    /// A session that runs this signature only.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Runs a step with inputs by key, in any order; returns all outputs by key.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an input is missing or unknown; those of [`Session::run_callable`].
    pub fn run(&self, feeds: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>> {
        self.run_with(feeds, &RunOptions::default())
    }

    /// [`CompiledModel::run`] with a timeout, a cancellation token or a trace.
    ///
    /// # Errors
    /// As [`CompiledModel::run`].
    pub fn run_with(
        &self,
        feeds: &[(&str, Tensor)],
        options: &RunOptions,
    ) -> Result<Vec<(String, Tensor)>> {
        let args = self.ports.args(feeds)?;
        let results = self.session.run_callable(&self.callable, args, options)?;
        let keys = self.ports.outputs.iter().map(|o| o.key.clone());
        Ok(keys.zip(results).collect())
    }
}
