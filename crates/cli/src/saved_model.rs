//! `ferroflow inspect` of a SavedModel.

use crate::inspect::print_ops;
use crate::model::{Model, ModelArgs};
use crate::out::say;
use ferroflow_base::internal;
use ferroflow_model::{SavedModelFile, TensorBundle, has_checkpoint};
use ferroflow_runtime::{Result, SavedModel, SignatureTensor};
use std::collections::BTreeMap;

/// Prints tags, signatures, variables and ops.
pub fn show(args: &ModelArgs, model: &Model) -> Result<()> {
    let Model::Saved(model) = model else {
        return Err(internal!("a frozen graph has no signatures"));
    };
    say!("graphs, by their tags:");
    for graph in SavedModelFile::open(&args.model)?.model.meta_graphs {
        let info = graph.meta_info_def.unwrap_or_default();
        let version = match info.tensorflow_version.as_str() {
            "" => String::new(),
            version => format!("  (TensorFlow {version})"),
        };
        say!("  {}{version}", info.tags.join(", "));
    }
    for (name, signature) in model.signatures() {
        say!("signature {name}:  {}", signature.method_name);
        print_tensors("inputs", &signature.inputs);
        print_tensors("outputs", &signature.outputs);
        if let Err(e) = model.check(signature) {
            say!("  cannot run: {}", e.message());
        }
    }
    print_variables(model)?;
    print_left_out(model);
    say!("nodes: {}", model.session().graph().len());
    print_ops(&model.session().graph());
    Ok(())
}

fn print_tensors(what: &str, tensors: &[SignatureTensor]) {
    say!("  {what}:");
    for t in tensors {
        let name = &t.name;
        say!("    {}  {}{}  {name}", t.key, t.dtype.numpy_name(), t.shape);
    }
}

fn print_variables(model: &SavedModel) -> Result<()> {
    let prefix = model.variables_prefix();
    if !has_checkpoint(&prefix) {
        return Ok(());
    }
    let bundle = TensorBundle::open(&prefix.to_string_lossy())?;
    let (mut n, mut n_elements, mut n_bytes) = (0, 0, 0);
    for name in bundle.names() {
        let (dtype, shape) = bundle.dtype_and_shape(name)?;
        if dtype.is_floating() {
            n += 1;
            n_elements += shape.num_elements();
            n_bytes += shape.num_elements() * dtype.size();
        }
    }
    let megabytes = n_bytes as f64 / 1e6;
    say!("parameters: {n_elements} in {n} variables ({megabytes:.1} MB)");
    Ok(())
}

/// Prints the unsupported parts of the model.
pub fn print_left_out(model: &SavedModel) {
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    for op in model.left_out().values() {
        *ops.entry(op).or_default() += 1;
    }
    if ops.is_empty() {
        return;
    }
    say!("left out because of unsupported ops (with the nodes that need them):");
    for (op, n) in ops {
        say!("  {op:<32} {n:>6}");
    }
}
