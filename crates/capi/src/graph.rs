//! `TF_Graph` and its nodes, `TF_Operation` (`tensorflow/c/c_api.h`).

use crate::guard::{delete, guard, guard_plain, handle, list, list_mut, shared, text, unique};
use crate::{TF_Buffer, TF_Status};
use ferroflow_base::{Code, Result, invalid_argument};
use ferroflow_graph::{ClientGraph, NodeId, Output};
use ferroflow_tensor::PartialShape;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A graph. Sessions keep what is behind it alive.
pub struct TF_Graph {
    pub(crate) state: Arc<GraphState>,
}

/// What a graph and its sessions share.
pub(crate) struct GraphState {
    inner: Mutex<Inner>,
    /// The number of nodes and of later changes to nodes: sessions compare it without the lock.
    version: AtomicUsize,
}

/// A graph with the handles of its nodes.
pub(crate) struct Inner {
    pub(crate) graph: ClientGraph,
    #[allow(clippy::vec_box, reason = "clients hold the addresses")]
    operations: Vec<Box<TF_Operation>>,
}

/// A node of a graph. Its strings never change their addresses.
pub struct TF_Operation {
    graph: *const GraphState,
    pub(crate) id: NodeId,
    name: CString,
    op: CString,
    device: CString,
}

/// An output of a node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_Output {
    /// The node.
    pub oper: *mut TF_Operation,
    /// The output's number.
    pub index: c_int,
}

/// An input of a node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_Input {
    /// The node.
    pub oper: *mut TF_Operation,
    /// The input's number.
    pub index: c_int,
}

/// What stands for no output.
pub(crate) const NO_OUTPUT: TF_Output = TF_Output {
    oper: std::ptr::null_mut(),
    index: -1,
};

// SAFETY: the pointer to the graph is only followed by functions that the client calls while the
// graph lives.
unsafe impl Send for TF_Operation {}
// SAFETY: as above.
unsafe impl Sync for TF_Operation {}

impl GraphState {
    pub(crate) fn new() -> Arc<GraphState> {
        Arc::new(GraphState {
            inner: Mutex::new(Inner {
                graph: ClientGraph::new(ferroflow_runtime::registry()),
                operations: Vec::new(),
            }),
            version: AtomicUsize::new(0),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes with every node and every change to a node.
    pub(crate) fn version(&self) -> usize {
        self.version.load(Ordering::Acquire)
    }

    /// Changes the graph and makes handles for its new nodes.
    pub(crate) fn change<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut ClientGraph) -> Result<T>,
    ) -> Result<T> {
        let mut inner = self.lock();
        let result = change(&mut inner.graph);
        inner.sync(Arc::as_ptr(self));
        let version = inner.graph.len() + inner.graph.mutations().len();
        self.version.store(version, Ordering::Release);
        result
    }
}

impl Inner {
    /// Makes handles for new nodes, and forgets those of nodes that were taken back.
    fn sync(&mut self, graph: *const GraphState) {
        self.operations.truncate(self.graph.len());
        for i in self.operations.len()..self.graph.len() {
            let id = NodeId::new(i);
            let node = self.graph.node(id);
            let c_string = |text: &str| CString::new(text).unwrap_or_default();
            self.operations.push(Box::new(TF_Operation {
                graph,
                id,
                name: c_string(node.map_or("", |n| &n.name)),
                op: c_string(node.map_or("", |n| n.op())),
                device: c_string(node.map_or("", |n| &n.device)),
            }));
        }
    }

    /// The handle of a node.
    pub(crate) fn operation(&self, id: NodeId) -> *mut TF_Operation {
        let found = self.operations.get(id.index());
        found.map_or(std::ptr::null_mut(), |op| {
            std::ptr::from_ref(&**op).cast_mut()
        })
    }

    /// The handle of an output.
    pub(crate) fn output(&self, output: Output) -> TF_Output {
        TF_Output {
            oper: self.operation(output.node),
            index: output.slot as c_int,
        }
    }
}

impl TF_Operation {
    /// The graph that the node is in.
    ///
    /// # Safety
    /// The graph lives.
    pub(crate) unsafe fn graph(&self) -> &GraphState {
        // SAFETY: as this function's.
        unsafe { &*self.graph }
    }

    /// Whether the node is in a graph.
    pub(crate) fn is_in(&self, graph: &GraphState) -> bool {
        std::ptr::eq(self.graph, graph)
    }

    pub(crate) fn name(&self) -> &str {
        self.name.to_str().unwrap_or("")
    }
}

impl TF_Output {
    /// No output.
    pub(crate) const NONE: TF_Output = TF_Output {
        oper: std::ptr::null_mut(),
        index: -1,
    };

    /// The output in the terms of the graph.
    ///
    /// # Safety
    /// The node is NULL or lives.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node is NULL or the index negative.
    pub(crate) unsafe fn output(self) -> Result<Output> {
        // SAFETY: as this function's.
        let operation = unsafe { self.oper.as_ref() };
        let operation = operation.ok_or_else(|| invalid_argument!("Node is null"))?;
        let index = usize::try_from(self.index).map_err(|_| {
            invalid_argument!(
                "Node '{}' does not have output {}",
                operation.name(),
                self.index
            )
        })?;
        Ok(Output::new(operation.id, index))
    }
}

impl TF_Graph {
    /// Checks that a node is in the graph (`Graph::IsValidNode`).
    ///
    /// # Safety
    /// The node is NULL or lives.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is not.
    pub(crate) unsafe fn check_node(&self, oper: *const TF_Operation) -> Result<()> {
        // SAFETY: as this function's.
        let oper = unsafe { oper.as_ref() }.ok_or_else(|| invalid_argument!("Node is null"))?;
        if oper.is_in(&self.state) {
            return Ok(());
        }
        // TensorFlow's graphs have two nodes of their own.
        let (id, n) = (oper.id.index() + 2, self.state.lock().graph.len() + 2);
        Err(match id < n {
            true => invalid_argument!(
                "Node with id {id} is different from the passed in node. Does it belong to a different graph?"
            ),
            false => invalid_argument!("node id {id} is >= than number of nodes in graph {n}"),
        })
    }
}

/// The outputs in the terms of the graph.
///
/// # Safety
/// The nodes are NULL or live.
///
/// # Errors
/// INVALID_ARGUMENT if a node is NULL or an index negative.
pub(crate) unsafe fn outputs_of(list: &[TF_Output]) -> Result<Vec<Output>> {
    // SAFETY: as this function's.
    list.iter()
        .map(|output| unsafe { output.output() })
        .collect()
}

/// Creates an empty graph.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewGraph() -> *mut TF_Graph {
    guard_plain(std::ptr::null_mut(), || {
        handle(TF_Graph {
            state: GraphState::new(),
        })
    })
}

/// Deletes a graph; sessions of it go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteGraph(g: *mut TF_Graph) {
    // SAFETY: the contract of the header.
    unsafe { delete(g) }
}

/// Returns the node named `oper_name`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphOperationByName(
    graph: *mut TF_Graph,
    oper_name: *const c_char,
) -> *mut TF_Operation {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (graph, name) = unsafe { (shared(graph)?, text(oper_name)?) };
        let inner = graph.state.lock();
        let found = inner.graph.find(name);
        Ok(found.map_or(std::ptr::null_mut(), |id| inner.operation(id)))
    })
}

/// Returns the node at `*pos` and advances `*pos`; NULL behind the last one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphNextOperation(
    graph: *mut TF_Graph,
    pos: *mut usize,
) -> *mut TF_Operation {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (graph, pos) = unsafe { (shared(graph)?, unique(pos)?) };
        let inner = graph.state.lock();
        if *pos >= inner.graph.len() {
            return Ok(std::ptr::null_mut());
        }
        *pos += 1;
        Ok(inner.operation(NodeId::new(*pos - 1)))
    })
}

/// The node's handle in its graph, its output checked.
///
/// # Safety
/// The node is NULL or lives.
unsafe fn checked(graph: &TF_Graph, inner: &Inner, output: TF_Output) -> Result<Output> {
    // SAFETY: as this function's.
    let (found, oper) = unsafe { (output.output()?, shared(output.oper)?) };
    if !oper.is_in(&graph.state) {
        return Err(invalid_argument!(
            "Node {} was not found in the graph",
            oper.name()
        ));
    }
    inner.graph.dtype(found)?;
    Ok(found)
}

/// A shape of the header: one of negative rank is unknown, and so are negative dimensions.
///
/// # Safety
/// `dims` is NULL or has `num_dims` elements.
pub(crate) unsafe fn shape_of(dims: *const i64, num_dims: c_int) -> PartialShape {
    if num_dims < 0 {
        return PartialShape::unknown();
    }
    // SAFETY: as this function's.
    let dims = unsafe { list(dims, num_dims) }.iter();
    PartialShape::of(dims.map(|d| usize::try_from(*d).ok()))
}

/// Merges the shape of an output with what the client knows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphSetTensorShape(
    graph: *mut TF_Graph,
    output: TF_Output,
    dims: *const i64,
    num_dims: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, shape) = unsafe { (shared(graph)?, shape_of(dims, num_dims)) };
        let mut inner = graph.state.lock();
        // SAFETY: the contract of the header.
        let output = unsafe { checked(graph, &inner, output) }.map_err(|e| {
            if e.code() != Code::OutOfRange {
                return e;
            }
            // SAFETY: as above.
            let oper = unsafe { output.oper.as_ref() };
            let n = oper.and_then(|o| inner.graph.node(o.id));
            invalid_argument!(
                "output_port '{}' is out of range, node '{}' has {} outputs",
                output.index,
                oper.map_or("", TF_Operation::name),
                n.map_or(0, |n| n.outputs.len())
            )
        })?;
        inner.graph.set_shape(output, &shape)
    });
}

/// Returns the rank of an output; -1 if it is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphGetTensorNumDims(
    graph: *mut TF_Graph,
    output: TF_Output,
    status: *mut TF_Status,
) -> c_int {
    guard(status, -1, || {
        // SAFETY: the contract of the header.
        let graph = unsafe { shared(graph) }?;
        let inner = graph.state.lock();
        // SAFETY: the contract of the header.
        let shape = inner
            .graph
            .shape(unsafe { checked(graph, &inner, output) }?)?;
        Ok(shape.rank().map_or(-1, |rank| rank as c_int))
    })
}

/// Writes the dimensions of an output; -1 where one is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphGetTensorShape(
    graph: *mut TF_Graph,
    output: TF_Output,
    dims: *mut i64,
    num_dims: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let graph = unsafe { shared(graph) }?;
        let inner = graph.state.lock();
        // SAFETY: the contract of the header.
        let shape = inner
            .graph
            .shape(unsafe { checked(graph, &inner, output) }?)?;
        let rank = shape.rank().map_or(-1, |rank| rank as c_int);
        if num_dims != rank {
            return Err(invalid_argument!(
                "Expected rank is {num_dims} but actual rank is {rank}"
            ));
        }
        // SAFETY: the contract of the header.
        let dims = unsafe { list_mut(dims, num_dims) };
        for (to, dim) in dims.iter_mut().zip(shape.dims().unwrap_or(&[])) {
            *to = dim.map_or(-1, |d| d as i64);
        }
        Ok(())
    });
}

/// Writes the graph as a `GraphDef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphToGraphDef(
    graph: *mut TF_Graph,
    output_graph_def: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let def = shared(graph)?.state.lock().graph.to_graph_def()?;
            crate::buffer::fill_message(output_graph_def, &def)
        }
    });
}

/// Writes the graph's `VersionDef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphVersions(
    graph: *mut TF_Graph,
    output_version_def: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let versions = shared(graph)?.state.lock().graph.versions();
            crate::buffer::fill_message(output_version_def, &versions)
        }
    });
}

/// Writes the `OpDef` of an op or of a function of the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphGetOpDef(
    graph: *mut TF_Graph,
    op_name: *const c_char,
    output_op_def: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let def = shared(graph)?.state.lock().graph.op_def(text(op_name)?)?;
            let def = ferroflow_graph::op_def_to_proto(&def)?;
            crate::buffer::fill_message(output_op_def, &def)
        }
    });
}

/// Returns the graph as text that the client frees with `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphDebugString(
    graph: *mut TF_Graph,
    len: *mut usize,
) -> *const c_char {
    guard(std::ptr::null_mut(), std::ptr::null(), || {
        // SAFETY: the contract of the header.
        let graph = unsafe { shared(graph) }?;
        let debug = ferroflow_graph::to_text(graph.state.lock().graph.graph());
        // SAFETY: the contract of the header.
        if let Some(len) = unsafe { len.as_mut() } {
            *len = debug.len();
        }
        let debug = CString::new(debug).unwrap_or_default();
        // SAFETY: `strdup` copies a NUL-terminated text.
        Ok(unsafe { libc::strdup(debug.as_ptr()) }.cast_const())
    })
}

/// Makes an input read another output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_UpdateEdge(
    graph: *mut TF_Graph,
    new_src: TF_Output,
    dst: TF_Input,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, source, node) =
            unsafe { (shared(graph)?, new_src.output()?, shared(dst.oper)?) };
        let i = usize::try_from(dst.index)
            .map_err(|_| invalid_argument!("Node '{}' has no input {}", node.name(), dst.index))?;
        graph.state.change(|g| g.update_edge(source, node.id, i))
    });
}

/// Text of a node that lives as long as it.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident = $field:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(oper: *mut TF_Operation) -> *const c_char {
                // SAFETY: the contract of the header.
                unsafe { oper.as_ref() }.map_or(std::ptr::null(), |op| CStr::as_ptr(&op.$field))
            }
        )*
    };
}

texts! {
    /// Returns the node's name.
    TF_OperationName = name;
    /// Returns the node's op type.
    TF_OperationOpType = op;
    /// Returns the device that the node requests.
    TF_OperationDevice = device;
}

/// Sets the requested device of a node that is in the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetRequestedDevice(
    graph: *mut TF_Graph,
    op: *mut TF_Operation,
    device: *const c_char,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let (graph, operation, device) = unsafe { (shared(graph)?, unique(op)?, text(device)?) };
        operation.device = CString::new(device).unwrap_or_default();
        let id = operation.id;
        graph.state.change(|g| {
            g.set_device(id, device);
            Ok(())
        })
    });
}
