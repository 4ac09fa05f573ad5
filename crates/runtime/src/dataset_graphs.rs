//! [`SessionDatasetGraphs`]: datasets written as graphs, and made from them (TensorFlow:
//! `core/data/serialization_utils.cc`).

use crate::eager::functions::Functions;
use crate::{Pool, RunOptions, Session, SessionOptions};
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_graph::{export_attr, reachable_functions};
use ferroflow_model::proto::{
    AttrValue as AttrProto, FunctionDef, FunctionDefLibrary, GraphDef, NodeDef, VersionDef,
    attr_value,
};
use ferroflow_model::tensor_to_attr_proto;
use ferroflow_opdef::{
    AttrValue, DatasetGraphs, FUNCTION_LIBRARY, FuncRef, LocalGraph, StepServices,
};
use ferroflow_resources::dataset::Dataset;
use ferroflow_resources::table::Table;
use ferroflow_tensor::{DType, Tensor};
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;

/// The version of `GraphDef`s that are written.
const PRODUCER: i32 = 1395;
/// What the node of the result is called.
const RESULT: &str = "dataset";

/// Converts datasets for the kernels of sessions.
#[derive(Default)]
pub(crate) struct SessionDatasetGraphs {
    /// Those of an eager context, if any: datasets may come from other functions.
    functions: Option<Arc<Functions>>,
}

impl SessionDatasetGraphs {
    /// Finds functions that a graph's library lacks among those of a context.
    pub(crate) fn with_functions(functions: Arc<Functions>) -> Self {
        SessionDatasetGraphs {
            functions: Some(functions),
        }
    }
}

impl DatasetGraphs for SessionDatasetGraphs {
    fn graph_of(&self, dataset: &Tensor, library: &[u8]) -> Result<Vec<u8>> {
        self.write(&mut Writer::default(), dataset, library)
    }

    fn local_graph_of(&self, dataset: &Tensor, library: &[u8]) -> Result<LocalGraph> {
        let mut writer = Writer {
            feeds: Some(Vec::new()),
            ..Default::default()
        };
        let graph = self.write(&mut writer, dataset, library)?;
        let feeds = writer.feeds.unwrap_or_default();
        Ok(LocalGraph { graph, feeds })
    }

    fn dataset_of(
        &self,
        graph: &[u8],
        feeds: &[(String, Tensor)],
        services: &StepServices,
    ) -> Result<Tensor> {
        let mut graph = GraphDef::decode(graph)
            .map_err(|e| invalid_argument!("Could not parse GraphDef: {e}"))?;
        let result = graph.node.iter().position(|n| n.op == "_Retval");
        let result = result.map(|i| graph.node.remove(i));
        let output = result.and_then(|n| n.input.into_iter().next());
        let output = output
            .ok_or_else(|| invalid_argument!("the graph has no _Retval node with a dataset"))?;
        let fetch = match output.contains(':') {
            true => output,
            false => format!("{output}:0"),
        };
        let options = SessionOptions {
            pool: Some(Arc::new(Pool::new(1))),
            resources: services.resources.clone(),
            freeze_variables: false,
            ..Default::default()
        };
        let session = Session::from_graph_def(graph, options)?;
        let run = RunOptions {
            cancel: Some(services.cancel.clone()),
            ..Default::default()
        };
        let feeds: Vec<(&str, Tensor)> = feeds
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        let made = session.run_with(&feeds, &[&fetch], &[], &run)?;
        let made = made.into_iter().next();
        made.ok_or_else(|| invalid_argument!("the graph makes no dataset"))
    }
}

impl SessionDatasetGraphs {
    fn write(&self, writer: &mut Writer, dataset: &Tensor, library: &[u8]) -> Result<Vec<u8>> {
        let mut library = FunctionDefLibrary::decode(library)
            .map_err(|e| invalid_argument!("the function library is damaged: {e}"))?;
        let name = writer.dataset(&*Dataset::of(dataset)?)?;
        let attrs = [
            (
                "T".to_string(),
                attr_value::Value::Type(DType::Variant as i32),
            ),
            ("index".to_string(), attr_value::Value::I(0)),
        ];
        writer.nodes.push(NodeDef {
            name: RESULT.to_string(),
            op: "_Retval".to_string(),
            input: vec![name],
            attr: attrs
                .into_iter()
                .map(|(name, value)| (name, AttrProto { value: Some(value) }))
                .collect(),
            ..Default::default()
        });
        library.function.append(&mut writer.library);
        let library = self.reachable(&writer.functions, library)?;
        let graph = GraphDef {
            node: std::mem::take(&mut writer.nodes),
            library: Some(library),
            versions: Some(VersionDef {
                producer: PRODUCER,
                ..Default::default()
            }),
            ..Default::default()
        };
        Ok(graph.encode_to_vec())
    }
}

/// The nodes that make a dataset, inputs first.
#[derive(Default)]
struct Writer {
    /// The functions that datasets of other tasks bring along.
    library: Vec<FunctionDef>,
    nodes: Vec<NodeDef>,
    /// The nodes of datasets and tables that several read.
    known: HashMap<usize, String>,
    functions: Vec<String>,
    /// The values of placeholders, if the graph may have some.
    feeds: Option<Vec<(String, Tensor)>>,
}

impl Writer {
    fn dataset(&mut self, dataset: &Dataset) -> Result<String> {
        let address = Arc::as_ptr(&dataset.source).cast::<()>() as usize;
        if let Some(known) = self.known.get(&address) {
            return Ok(known.clone());
        }
        let node = &dataset.node;
        if node.op.is_empty() {
            return Err(failed_precondition!(
                "a dataset that another one makes of its elements has no graph"
            ));
        }
        if let Some(AttrValue::Str(library)) = node.attrs.get(FUNCTION_LIBRARY) {
            let library = FunctionDefLibrary::decode(&**library);
            let library =
                library.map_err(|e| invalid_argument!("the function library is damaged: {e}"))?;
            self.library.extend(library.function);
        }
        let inputs = node.inputs.iter().map(|t| self.tensor(t, &node.op));
        let input = inputs.collect::<Result<_>>()?;
        let attrs = node
            .attrs
            .iter()
            .filter(|(name, _)| **name != *FUNCTION_LIBRARY);
        let mut attr = HashMap::new();
        for (name, value) in attrs {
            self.collect_functions(value);
            attr.insert(name.to_string(), export_attr(value)?);
        }
        let name = format!("{}/_{}", node.op, self.nodes.len());
        self.nodes.push(NodeDef {
            name: name.clone(),
            op: node.op.clone(),
            input,
            attr,
            ..Default::default()
        });
        self.known.insert(address, name.clone());
        Ok(name)
    }

    fn tensor(&mut self, tensor: &Tensor, op: &str) -> Result<String> {
        if tensor.dtype() == DType::Variant
            && tensor.shape().is_scalar()
            && let Ok(dataset) = Dataset::of(tensor)
            && (self.feeds.is_none() || !dataset.node.op.is_empty())
        {
            return self.dataset(&dataset);
        }
        if self.feeds.is_some() && matches!(tensor.dtype(), DType::Variant | DType::Resource) {
            let dtype = attr_value::Value::Type(tensor.dtype() as i32);
            let name = self.node("Placeholder", Vec::new(), [("dtype", dtype)]);
            if let Some(feeds) = &mut self.feeds {
                feeds.push((format!("{name}:0"), tensor.clone()));
            }
            return Ok(name);
        }
        // The handle of a generator of seeds names none elsewhere: there is a new one then.
        let is_seeds = op.starts_with("ShuffleDataset") || op.starts_with("ShuffleAndRepeat");
        if tensor.dtype() == DType::Resource && !is_seeds {
            return self.resource(tensor, op);
        }
        self.constant(tensor)
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<String> {
        let value = tensor_to_attr_proto(tensor)?;
        let attrs = [
            ("dtype", attr_value::Value::Type(tensor.dtype() as i32)),
            ("value", attr_value::Value::Tensor(Box::new(value))),
        ];
        Ok(self.node("Const", Vec::new(), attrs))
    }

    /// Adds the nodes of a table with its contents; other resources have no graph.
    fn resource(&mut self, tensor: &Tensor, op: &str) -> Result<String> {
        let value = tensor.resources()?.first().and_then(|h| h.value.clone());
        let table = value.and_then(|value| value.downcast::<Table>().ok());
        let table = table.ok_or_else(|| {
            failed_precondition!(
                "{op} uses a resource other than a table, which a graph of the dataset cannot hold"
            )
        })?;
        let address = Arc::as_ptr(&table).cast::<()>() as usize;
        if let Some(known) = self.known.get(&address) {
            return Ok(known.clone());
        }
        let (keys, values) = table.dtypes();
        let types = |names: [&'static str; 2]| {
            let [k, v] = names;
            let of = |dtype: DType| attr_value::Value::Type(dtype as i32);
            [(k, of(keys)), (v, of(values))]
        };
        let (kind, fill) = match table.is_static() {
            true => ("HashTableV2", ("InitializeTableV2", ["Tkey", "Tval"])),
            false => (
                "MutableHashTableV2",
                ("LookupTableImportV2", ["Tin", "Tout"]),
            ),
        };
        let node = self.node(kind, Vec::new(), types(["key_dtype", "value_dtype"]));
        let (keys, values) = table.export()?;
        let contents = vec![node.clone(), self.constant(&keys)?, self.constant(&values)?];
        let filled = self.node(fill.0, contents, types(fill.1));
        let resource = attr_value::Value::Type(DType::Resource as i32);
        let filled = self.node(
            "Identity",
            vec![node, format!("^{filled}")],
            [("T", resource)],
        );
        self.known.insert(address, filled.clone());
        Ok(filled)
    }

    fn node<const N: usize>(
        &mut self,
        op: &str,
        input: Vec<String>,
        attrs: [(&str, attr_value::Value); N],
    ) -> String {
        let name = format!("{op}/_{}", self.nodes.len());
        let attr = |(name, value): (&str, _)| (name.to_string(), AttrProto { value: Some(value) });
        self.nodes.push(NodeDef {
            name: name.clone(),
            op: op.to_string(),
            input,
            attr: attrs.into_iter().map(attr).collect(),
            ..Default::default()
        });
        name
    }

    fn collect_functions(&mut self, value: &AttrValue) {
        match value {
            AttrValue::Func(FuncRef { name, .. }) => self.functions.push(name.clone()),
            AttrValue::List(items) => items.iter().for_each(|item| self.collect_functions(item)),
            _ => {}
        }
    }
}

impl SessionDatasetGraphs {
    /// The functions that `roots` need: of a library or of the context.
    fn reachable(
        &self,
        roots: &[String],
        library: FunctionDefLibrary,
    ) -> Result<FunctionDefLibrary> {
        let mut by_name: HashMap<String, FunctionDef> = HashMap::new();
        for function in library.function {
            let name = function.signature.as_ref().map(|s| s.name.clone());
            by_name.insert(name.unwrap_or_default(), function);
        }
        let mut find = |name: &str| {
            let known = by_name.remove(name);
            let context = self.functions.as_ref();
            known.or_else(|| context?.get(name).map(|f| FunctionDef::clone(&f)))
        };
        let mut missing = None;
        let function = reachable_functions(roots, |name| {
            let found = find(name);
            // An op, unless the dataset itself calls it.
            if found.is_none() && roots.iter().any(|root| root == name) {
                missing = Some(name.to_owned());
            }
            found
        });
        match missing {
            Some(name) => Err(failed_precondition!(
                "the dataset's function '{name}' is not in the library of the graph that writes it"
            )),
            None => Ok(FunctionDefLibrary {
                function,
                ..Default::default()
            }),
        }
    }
}
