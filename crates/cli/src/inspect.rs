//! `ferroflow inspect`.

use crate::draw;
use crate::model::{Model, ModelArgs, RunArgs};
use crate::out::say;
use ferroflow_base::invalid_argument;
use ferroflow_model::GraphFile;
use ferroflow_runtime::{
    CompiledModel, Graph, NodeId, PIPELINE, Result, Session, ShapeMap, Signature, flops, outputs,
    registry, to_text,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Shows a model's inputs, outputs, ops, parameters, FLOPs and unsupported ops.
#[derive(clap::Args)]
#[command(after_help = passes_help())]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Writes the graph for Graphviz.
    #[arg(long, value_name = "FILE.dot")]
    dot: Option<PathBuf>,
    /// Draws the graph.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Prints the graph, one node per line, after this compile pass; `last` means after all.
    #[arg(long, value_name = "PASS")]
    after: Option<String>,
    /// Shows where each node would run on the tasks of this cluster if it were placed by cost, and why.
    #[arg(long, value_name = "JOB=TASKS;…")]
    place: Option<String>,
    /// Prints the programs of clusters, which run as machine code.
    #[arg(long)]
    clusters: bool,
    /// Lists the ops without gradient, including those of functions.
    #[arg(long)]
    gradients: bool,
    /// Runs two steps and shows the memory of their tensors: what is planned in one arena, and which blocks are alive
    /// when it is fullest. Inputs that are not fed are zeros, unknown dimensions are taken as 1.
    #[arg(long)]
    memory: bool,
    #[command(flatten)]
    run: RunArgs,
}

fn passes_help() -> String {
    let mut out = String::from("Compile passes, in order:\n");
    for pass in PIPELINE {
        out += &format!("  {:<16} {}\n", pass.name, pass.about);
    }
    out
}

fn inputs(graph: &Graph) -> Vec<NodeId> {
    graph
        .iter()
        .filter(|(_, n)| n.op().starts_with("Placeholder"))
        .map(|(id, _)| id)
        .collect()
}

impl Args {
    fn shows_graph(&self) -> bool {
        self.after.is_some() || self.dot.is_some() || self.svg.is_some() || self.clusters
    }
}

/// Prints the clusters of an optimized graph and of its functions.
fn show_clusters(graph: &Graph) {
    let library = graph.library();
    let functions = library
        .names()
        .into_iter()
        .filter_map(|n| library.get(n).ok());
    let graphs = std::iter::once(graph).chain(functions.map(|f| &f.graph));
    let clusters = graphs.flat_map(|g| g.iter().filter(|(_, n)| n.op() == "_Cluster"));
    for (_, node) in clusters {
        say!("{}:", node.name);
        for line in node.attrs.str("program").unwrap_or_default().lines() {
            say!("  {line}");
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if args.memory {
        return crate::memory::show(&args.model.open()?, &args.run);
    }
    if !args.run.is_default() {
        return Err(invalid_argument!(
            "feeds, fetches, targets and initializers are options of `inspect --memory`, which runs a step"
        ));
    }
    if CompiledModel::is_at(&args.model.model) {
        return show_compiled_file(args);
    }
    let is_directory = args.model.is_directory();
    if !is_directory {
        check_supported(args)?;
    }
    let model = args.model.open()?;
    if show_view(args, &model)? {
        return Ok(());
    }
    match is_directory {
        true => crate::saved_model::show(&args.model, &model),
        false => summarize(&model.session().graph()),
    }
}

/// Shows what the arguments ask for other than a summary. Returns whether they do.
fn show_view(args: &Args, model: &Model) -> Result<bool> {
    let session = model.session();
    if args.shows_graph() {
        show_graph(args, session)?;
    } else if let Some(cluster) = &args.place {
        let graph = session.graph();
        crate::place::show(&graph, &whole(&graph), cluster)?;
    } else if args.gradients {
        show_gradients(&session.graph());
        if let Model::Saved(model) = model {
            crate::saved_model::print_left_out(model);
        }
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// Shows a compiled model.
fn show_compiled_file(args: &Args) -> Result<()> {
    if args.shows_graph() || args.gradients || args.place.is_some() {
        return Err(invalid_argument!(
            "--after, --clusters, --dot, --svg, --place and --gradients need the graph, which a compiled model does \
             not hold; `ferroflow translate --bef-to-mlir {}` prints its functions",
            args.model.model.display()
        ));
    }
    if let Model::Compiled(model) = args.model.open()? {
        show_compiled(&model);
    }
    Ok(())
}

/// Lists the op types that are not supported, if any, which is an error.
fn check_supported(args: &Args) -> Result<()> {
    let unsupported = unsupported(args)?;
    if unsupported.is_empty() {
        return Ok(());
    }
    crate::inspect_file::show(&args.model.model)?;
    say!("not supported yet:");
    for (op, n) in &unsupported {
        say!("  {op:<32} {n:>6}");
    }
    let (n, types) = match unsupported.len() {
        1 => (1, "type is"),
        n => (n, "types are"),
    };
    Err(invalid_argument!("{n} op {types} not supported"))
}

/// Prints the inputs, outputs, sizes and ops of a graph.
fn summarize(graph: &Graph) -> Result<()> {
    let options = ferroflow_runtime::SessionOptions {
        threads: 1,
        compile: ferroflow_runtime::CompileOptions::none(),
        ..Default::default()
    };
    let session = Session::new(graph.clone(), options);
    let (pruned, shapes) = session.graph_after(&whole(graph), None)?;
    say!("inputs:");
    for id in inputs(graph) {
        let node = graph.node(id);
        let shape = node.attrs.shape("shape").cloned().unwrap_or_default();
        say!("  {}:0  {}{shape}", node.name, node.outputs[0].numpy_name());
    }
    say!("outputs:");
    for name in outputs(graph) {
        let output = graph.find_output(&name, "output")?;
        let dtype = graph.node(output.node).outputs[0].numpy_name();
        say!(
            "  {name}  {dtype}{}",
            shape_by_name(&pruned, &shapes, &name)
        );
    }
    let (mut n_parameters, mut n_bytes) = (0, 0);
    for (_, node) in graph.iter() {
        if let Ok(value) = node.attrs.tensor("value")
            && value.dtype().is_floating()
        {
            n_parameters += value.shape().num_elements();
            n_bytes += value.shape().num_elements() * value.dtype().size();
        }
    }
    say!("nodes: {}", graph.len());
    say!(
        "parameters: {n_parameters} ({:.1} MB)",
        n_bytes as f64 / 1e6
    );
    let flops: f64 = pruned
        .iter()
        .map(|(id, _)| flops(&pruned, &shapes, id))
        .sum();
    say!(
        "FLOPs of one run, unknown dimensions taken as 1: {:.3} G",
        flops / 1e9
    );
    print_ops(graph);
    Ok(())
}

/// Lists the ops without gradient.
fn show_gradients(graph: &Graph) {
    let missing = ferroflow_runtime::building::without_gradient(graph);
    if missing.is_empty() {
        say!("gradients go through all ops");
    } else {
        say!("ops without gradient:");
    }
    for (op, n) in missing {
        say!("  {op:<32} {n:>6}");
    }
}

/// Prints the number of nodes of each op, most frequent first.
pub fn print_ops(graph: &Graph) {
    let mut histogram: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, node) in graph.iter() {
        *histogram.entry(node.op()).or_default() += 1;
    }
    print_histogram(histogram);
}

fn print_histogram(histogram: BTreeMap<&str, usize>) {
    say!("ops:");
    let mut ops: Vec<_> = histogram.into_iter().collect();
    ops.sort_unstable_by_key(|(op, n)| (usize::MAX - n, *op));
    for (op, n) in ops {
        say!("  {op:<32} {n:>6}");
    }
}

/// Returns the ops of the model that are not in the registry, with their counts.
fn unsupported(args: &Args) -> Result<BTreeMap<String, usize>> {
    let file = GraphFile::open(&args.model.model)?;
    let mut missing = BTreeMap::new();
    let bodies = file
        .graph
        .library
        .iter()
        .flat_map(|l| &l.function)
        .flat_map(|f| &f.node_def);
    for node in file.graph.node.iter().chain(bodies) {
        if registry().op(&node.op).is_none() {
            *missing.entry(node.op.clone()).or_default() += 1;
        }
    }
    Ok(missing)
}

fn show_compiled(model: &CompiledModel) {
    let ports = model.ports();
    for (what, tensors) in [("inputs:", &ports.inputs), ("outputs:", &ports.outputs)] {
        say!("{what}");
        for t in tensors {
            say!("  {}  {}{}", t.key, t.dtype.numpy_name(), t.shape);
        }
    }
    let summary = model.summary();
    say!("nodes: {}", summary.n_nodes);
    say!(
        "parameters: {} ({:.1} MB)",
        summary.n_parameters,
        summary.parameter_bytes as f64 / 1e6
    );
    for (dtype, bytes) in &summary.bytes_by_dtype {
        say!("  in {dtype}: {:.1} MB", *bytes as f64 / 1e6);
    }
    let ops = summary.ops.iter().map(|(op, n)| (&**op, *n));
    print_histogram(ops.collect());
}

/// Returns the signature of the whole model, from its placeholders.
fn whole(graph: &Graph) -> Signature {
    Signature {
        feeds: inputs(graph)
            .iter()
            .map(|id| format!("{}:0", graph.node(*id).name))
            .collect(),
        fetches: outputs(graph),
        targets: Vec::new(),
    }
}

fn shape_by_name(graph: &Graph, shapes: &ShapeMap, name: &str) -> String {
    match graph.find_output(name, "output") {
        Ok(output) => shapes.get(output).to_string(),
        Err(_) => String::new(),
    }
}

fn show_graph(args: &Args, session: &Session) -> Result<()> {
    let signature = whole(&session.graph());
    let write = |path: &PathBuf, text: String| {
        ferroflow_model::write_output(path, text.as_bytes())?;
        say!("written: {}", path.display());
        Ok::<(), ferroflow_base::Status>(())
    };
    if args.clusters {
        show_clusters(&session.graph_after(&signature, None)?.0);
        return Ok(());
    }
    let graph = match args.after.as_deref() {
        None => (*session.graph()).clone(),
        Some("last") => session.graph_after(&signature, None)?.0,
        Some(pass) => session.graph_after(&signature, Some(pass))?.0,
    };
    if let Some(path) = &args.dot {
        write(path, draw::dot(&graph))?;
    }
    if let Some(path) = &args.svg {
        write(path, draw::svg(&graph)?)?;
    }
    if args.dot.is_none() && args.svg.is_none() {
        crate::out::print(format_args!("{}", to_text(&graph)));
    }
    Ok(())
}
