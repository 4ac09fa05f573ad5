//! [`CompiledModel`]: a signature of a graph that was optimized earlier and lies in a BEF file, its
//! weights ready to be used where they are.

use crate::callable::{Callable, Feed};
use crate::engine::Engine;
use crate::freeze::{Frozen, freeze};
use crate::saved_model::{ModelSignature, SignatureTensor};
use crate::session::{RunOptions, Session, SessionOptions, registry};
use ferroflow_base::{Result, data_loss, failed_precondition, invalid_argument};
use ferroflow_compile::{Options, emit, optimize_all, pack, unpack};
use ferroflow_executor::Executor;
use ferroflow_executor::host::HostExecutor;
use ferroflow_functors::prepack::packing;
use ferroflow_graph::{
    ARG, Graph, Node, Output, RETVAL, Signature, infer_shapes, prune, read_compact, write_compact,
};
use ferroflow_model::AtomicFile;
use ferroflow_program::bef::{
    File, FunctionKind, GraphProgram, Port, TensorTable, read_graph, write_graph,
};
use ferroflow_program::lower::{MAIN, dataflow_program};
use ferroflow_program::to_host_program;
use ferroflow_tensor::{DType, MappedFile, Tensor};
use std::path::Path;
use std::sync::Arc;

/// How a signature is written.
#[derive(Clone, Debug, Default)]
pub struct CompileRequest {
    /// What is fed, fetched and run.
    pub signature: Signature,
    /// What users call the feeds; their names in the graph if empty.
    pub feed_keys: Vec<String>,
    /// What users call the fetches; their names in the graph if empty.
    pub fetch_keys: Vec<String>,
    /// Leaves packed weights out: the file is smaller, fits every machine, and each opening packs.
    pub plain: bool,
}

/// A model that needs no compilation any more.
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
    signature: Signature,
    ports: ModelSignature,
    is_packed: bool,
}

impl Session {
    /// Compiles a signature as [`Session::callable`] does and writes it to a BEF file, which
    /// [`CompiledModel::open`] opens.
    ///
    /// Variables must be such that the signature only reads them: a file has no state.
    pub fn compile_to(&self, path: &Path, request: &CompileRequest) -> Result<()> {
        let program = self.compiled_program(request)?;
        let mut file = AtomicFile::create_output(path)?;
        write_graph(&program, &mut |bytes| file.write(bytes))?;
        file.commit()
    }

    /// [`Session::compile_to`] in memory, for [`CompiledModel::from_bytes`].
    pub fn compile_to_bytes(&self, request: &CompileRequest) -> Result<Vec<u8>> {
        let program = self.compiled_program(request)?;
        let mut file = Vec::new();
        write_graph(&program, &mut |bytes| {
            file.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(file)
    }

    fn compiled_program(&self, request: &CompileRequest) -> Result<GraphProgram> {
        let signature = &request.signature;
        let mut graph = prune(self.graph(), signature, registry())?;
        let shapes = infer_shapes(&graph, registry())?;
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
        let options = self.compile_options();
        if options.optimize {
            freeze(&mut graph, registry(), self.resources())?;
        }
        optimize_all(&mut graph, registry(), options)?;
        check_stateless(&graph)?;
        for name in graph.library().names() {
            check_stateless(&graph.library().get(name)?.graph)?;
        }
        if !request.plain {
            pack(&mut graph, registry())?;
        }
        let mut tensors = TensorTable::default();
        let bytes = write_compact(&graph, &mut |t| tensors.add(t))?;
        drop(graph);
        let tensors = tensors.finish();
        // As whoever opens the file will number the nodes.
        let graph = read_compact(&bytes, &|i| tensors.get(i).cloned(), registry())?;
        let plan = emit(&graph, registry(), &Options::none())?;
        let functions = to_host_program(&plan).unwrap_or_else(|| dataflow_program(&plan));
        Ok(GraphProgram {
            functions,
            feeds,
            fetches,
            targets: signature.targets.clone(),
            packing: packing(),
            graph: bytes,
            tensors,
        })
    }
}

fn check_stateless(graph: &Graph) -> Result<()> {
    let keeps_state = |node: &Node| {
        let is_handle = node.outputs.contains(&DType::Resource) && node.inputs.is_empty();
        let is_shared = node.attrs.get("shared_name").is_some();
        let is_ref = node.def.outputs.iter().any(|o| o.is_ref());
        (is_handle && node.op() != ARG) || is_shared || is_ref
    };
    match graph.iter().find(|(_, n)| keeps_state(n)) {
        None => Ok(()),
        Some((_, node)) => Err(failed_precondition!(
            "the signature uses what outlives a step, which a compiled model cannot hold; of \
             variables it may only read those that are initialized"
        )
        .at_node(&node.name, node.op())),
    }
}

impl CompiledModel {
    /// Whether the file begins as BEF files do.
    pub fn is_at(path: &Path) -> bool {
        let mut magic = [0; 2];
        let read = std::fs::File::open(path)
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
        read.is_ok() && magic == [0x0b, 0xef]
    }

    /// Maps a file; only what describes the graph is read, weights when a step first needs them.
    pub fn open(path: &Path, options: SessionOptions) -> Result<CompiledModel> {
        let mapping = Arc::new(MappedFile::open(path)?);
        let program = read_graph((*mapping).as_ref(), Some(&mapping));
        program
            .and_then(|program| Self::load(program, File::open(mapping)?, options))
            .map_err(|e| e.note(format!("in {}", path.display())))
    }

    /// Opens a file that is in memory already.
    pub fn from_bytes(bytes: &[u8], options: SessionOptions) -> Result<CompiledModel> {
        let program = read_graph(bytes, None)?;
        Self::load(program, File::open(Arc::new(bytes.to_vec()))?, options)
    }

    fn load(
        program: Option<GraphProgram>,
        file: File,
        options: SessionOptions,
    ) -> Result<CompiledModel> {
        let program = program.ok_or_else(|| {
            invalid_argument!(
                "the BEF file holds a host program and no graph; `ferroflow exec` runs it"
            )
        })?;
        let tensor = |i: usize| program.tensors.get(i).cloned();
        let mut graph = read_compact(&program.graph, &tensor, registry())?;
        let is_packed = program.packing == packing();
        if !is_packed {
            unpack(&mut graph)?;
        }
        check_interface(&graph, ARG, &program.feeds)?;
        check_interface(&graph, RETVAL, &program.fetches)?;
        let plan = emit(&graph, registry(), &Options::none())?;
        let names = |ports: &[Port]| ports.iter().map(|p| p.name.clone()).collect();
        let signature = Signature {
            feeds: names(&program.feeds),
            fetches: names(&program.fetches),
            targets: program.targets,
        };
        let feeds = program.feeds.iter().map(Feed::of_port).collect();
        let main = file.function(MAIN).and_then(|i| file.functions().get(i));
        let engine = match main.map(|f| f.kind) {
            Some(FunctionKind::Dataflow) => Engine::One(Executor::new(Arc::new(plan))),
            _ => {
                let kernels = ferroflow_host_kernels::of_models();
                Engine::Host(HostExecutor::new(Arc::new(plan), file, kernels)?)
            }
        };
        let callable = Callable::new(engine, Frozen::default(), signature.clone(), feeds);
        let tensors = |ports: Vec<Port>| {
            let tensors = ports.into_iter().map(|p| SignatureTensor {
                key: p.key,
                name: p.name,
                dtype: p.dtype,
                shape: p.shape,
            });
            tensors.collect()
        };
        Ok(CompiledModel {
            session: Session::of_callable(callable, options)?,
            signature,
            ports: ModelSignature {
                inputs: tensors(program.feeds),
                outputs: tensors(program.fetches),
                ..Default::default()
            },
            is_packed,
        })
    }

    /// The one signature: what [`CompiledModel::session`] has compiled.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// What the model takes and gives, in the order of the signature.
    pub fn ports(&self) -> &ModelSignature {
        &self.ports
    }

    /// Whether the weights are packed for this machine; otherwise opening has packed them.
    pub fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// A session that can run the signature and nothing else.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Runs a step with inputs by key, in any order; returns all outputs by key.
    pub fn run(&self, feeds: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>> {
        self.run_with(feeds, &RunOptions::default())
    }

    /// [`CompiledModel::run`] with a timeout, a cancellation token or a trace.
    pub fn run_with(
        &self,
        feeds: &[(&str, Tensor)],
        options: &RunOptions,
    ) -> Result<Vec<(String, Tensor)>> {
        let args = self.ports.feeds(feeds)?;
        let args = args.into_iter().map(|(_, value)| value).collect();
        let callable = self.session.callable(&self.signature)?;
        let results = self.session.call(&callable, args, options)?;
        let keys = self.ports.outputs.iter().map(|o| o.key.clone());
        Ok(keys.zip(results).collect())
    }
}

/// Every port has one node of its type.
fn check_interface(graph: &Graph, op: &str, ports: &[Port]) -> Result<()> {
    let bad =
        || data_loss!("the graph of the BEF file does not have the feeds and fetches it says");
    let mut seen = vec![false; ports.len()];
    for (_, node) in graph.iter().filter(|(_, n)| n.op() == op) {
        let at = usize::try_from(node.attrs.int("index")?).map_err(|_| bad())?;
        let (port, seen) = ports.get(at).zip(seen.get_mut(at)).ok_or_else(bad)?;
        if std::mem::replace(seen, true) || node.attrs.dtype("T")? != port.dtype {
            return Err(bad());
        }
    }
    match seen.into_iter().all(|s| s) {
        true => Ok(()),
        false => Err(bad()),
    }
}
