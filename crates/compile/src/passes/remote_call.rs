//! Calls of functions on a device that their first input names (TensorFlow: `RemoteCallOp` in
//! `core/kernels/function_ops.cc`).
//!
//! A call becomes one of a function whose nodes ask for the device, so that placement and partition bring its
//! tensors there, to other tasks too. If the name is only known in the step, a Case has a branch for each
//! device that the session has.

use crate::PassCtx;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{DeviceSet, DeviceSpec, Graph, Node, NodeClass, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef};
use ferroflow_tensor::{DType, Tensor};

/// Makes the calls of a graph those of functions on devices. Calls in functions stay: their targets are
/// devices of the task that runs the function.
pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx, devices: &DeviceSet) -> Result<()> {
    let calls = graph
        .iter()
        .filter(|(_, n)| n.class() == NodeClass::RemoteCall);
    let calls: Vec<NodeId> = calls.map(|(id, _)| id).collect();
    let mut patch = Patch::new();
    for id in calls {
        let node = graph.node(id).clone();
        let mut rewrite = Rewrite {
            graph,
            patch: &mut patch,
            ctx,
            devices,
            node: &node,
        };
        let call = rewrite
            .call()
            .map_err(|e| e.at_node(&node.name, node.op()))?;
        *patch.edit(graph, id) = call;
    }
    patch.apply(graph);
    Ok(())
}

struct Rewrite<'a> {
    graph: &'a mut Graph,
    patch: &'a mut Patch,
    ctx: &'a PassCtx<'a>,
    devices: &'a DeviceSet,
    /// The RemoteCall.
    node: &'a Node,
}

impl Rewrite<'_> {
    fn call(&mut self) -> Result<Node> {
        let target = self.node.inputs.first();
        let target = *target.ok_or_else(|| invalid_argument!("the call has no target"))?;
        let mut call = self.node.clone();
        call.inputs.remove(0);
        let f = match call.attrs.remove("f") {
            Some(AttrValue::Func(f)) => f,
            _ => return Err(invalid_argument!("the call has no function")),
        };
        let source = self.graph.node(target.node);
        if source.class() == NodeClass::Const {
            let name = source.attrs.tensor("value")?.get()?;
            let name = name.strings()?.first().cloned().unwrap_or_default();
            let name = String::from_utf8_lossy(&name).into_owned();
            let device = self.devices.place(&self.node.name, &name)?;
            let on_device = AttrValue::Func(self.function_on(&f, device)?);
            call.attrs.set("f", on_device);
            call.def = self.ctx.def("StatefulPartitionedCall")?;
        } else {
            let branches = (0..self.devices.names.len())
                .map(|device| Ok(AttrValue::Func(self.function_on(&f, device)?)))
                .collect::<Result<_>>()?;
            let (index, check) = self.index(target)?;
            call.inputs.insert(0, index);
            call.controls.push(check);
            call.attrs.set("branches", AttrValue::List(branches));
            call.attrs
                .set("_lower_using_switch_merge", AttrValue::Bool(true));
            call.def = self.ctx.def("Case")?;
        }
        call.def.complete_attrs(&mut call.attrs)?;
        Ok(call)
    }

    /// The function whose nodes ask for a device, where they leave it open.
    fn function_on(&mut self, f: &FuncRef, device: usize) -> Result<FuncRef> {
        let device = &self.devices.names[device];
        let spec = DeviceSpec::parse(device)?;
        let name = format!("{}_on{}", f.name, device.replace(['/', ':'], "_"));
        let library = self.graph.library().clone();
        let function = library.get(&f.name)?.clone();
        let mut body = library.graph(&f.name)?;
        let mut edits = Patch::new();
        let ids: Vec<NodeId> = body.iter().map(|(id, _)| id).collect();
        for id in ids {
            let asked = DeviceSpec::parse(&body.node(id).device)?;
            edits.edit(&body, id).device = asked.or(&spec).to_string();
        }
        edits.apply(&mut body);
        self.patch
            .add_function(self.graph, &name, function.with_body(body));
        Ok(FuncRef {
            name,
            attrs: Attrs::default(),
        })
    }

    /// The position of the device that `target` names, and a node that fails if there is none.
    fn index(&mut self, target: Output) -> Result<(Output, NodeId)> {
        let boolean = Attrs::default().with("T", AttrValue::Type(DType::Bool));
        let mut is_device = Vec::with_capacity(self.devices.names.len());
        let own = match self.node.device.as_str() {
            "" => 0,
            asked => self.devices.place(&self.node.name, asked)?,
        };
        let own = &self.devices.names[own];
        for (i, device) in self.devices.names.iter().enumerate() {
            let pattern = AttrValue::Str(pattern(device, own).into());
            let attrs = Attrs::default().with("pattern", pattern);
            is_device.push(self.add(
                &format!("is_{i}"),
                "StaticRegexFullMatch",
                &[target],
                attrs,
            )?);
        }
        let count = AttrValue::Int(is_device.len() as i64);
        let all = self.add("all", "Pack", &is_device, boolean.with("N", count))?;
        let cast = Attrs::default()
            .with("SrcT", AttrValue::Type(DType::Bool))
            .with("DstT", AttrValue::Type(DType::Int32));
        let numbers = self.add("numbers", "Cast", &[all], cast)?;
        let axis = self.constant("axis", Tensor::scalar(0i32))?;
        let attrs = Attrs::default()
            .with("T", AttrValue::Type(DType::Int32))
            .with("Tidx", AttrValue::Type(DType::Int32))
            .with("output_type", AttrValue::Type(DType::Int32));
        let index = self.add("index", "ArgMax", &[numbers, axis], attrs)?;
        let any = self.add("any", "Any", &[all, axis], Attrs::default())?;
        let text = format!("{}: no device of this session is called", self.node.name);
        let text = self.constant("text", Tensor::string(text))?;
        let types = AttrValue::List(vec![DType::String.into(); 2]);
        let attrs = Attrs::default().with("T", types);
        let check = self.add("check", "Assert", &[any, text, target], attrs)?;
        Ok((index, check.node))
    }

    fn constant(&mut self, name: &str, value: Tensor) -> Result<Output> {
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(value.dtype()))
            .with("value", AttrValue::Tensor(value.into()));
        self.add(name, "Const", &[], attrs)
    }

    fn add(&mut self, name: &str, op: &str, inputs: &[Output], attrs: Attrs) -> Result<Output> {
        let name = self
            .graph
            .unique_name(&format!("{}/_{name}", self.node.name));
        let mut node = self.ctx.node(name, op, attrs, inputs, &[])?;
        node.device.clone_from(&self.node.device);
        Ok(Output::new(self.patch.add(self.graph, node)?, 0))
    }
}

/// A regular expression of all names of a device. What a name leaves out is as in `own`, the device of the call
/// (TensorFlow: `DeviceNameUtils::CanonicalizeDeviceName`).
fn pattern(device: &str, own: &str) -> String {
    let split = |device: &str| -> (String, String, String) {
        let (task, kind) = device.rsplit_once("/device:").unwrap_or((device, ""));
        let (kind, index) = kind.split_once(':').unwrap_or((kind, "0"));
        (task.to_string(), kind.to_string(), index.to_string())
    };
    let ((task, kind, index), of_own) = (split(device), split(own));
    let own_parts: Vec<&str> = of_own.0.split('/').collect();
    let mut all = String::new();
    for part in task.split('/').filter(|part| !part.is_empty()) {
        all += &match own_parts.contains(&part) || part == "replica:0" {
            true => format!("(/{part})?"),
            false => format!("/{part}"),
        };
    }
    let last = format!("/(device:)?(?i:{kind}):{index}");
    match (&kind, &index) == (&of_own.1, &of_own.2) {
        true => format!("{all}({last})?"),
        false => all + &last,
    }
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn names_may_leave_out_what_the_calls_device_has() {
        let device =
            |task: usize, cpu: usize| format!("/job:w/replica:0/task:{task}/device:CPU:{cpu}");
        for (of, expected) in [
            (
                device(1, 0),
                "(/job:w)?(/replica:0)?(/task:1)?(/(device:)?(?i:CPU):0)?",
            ),
            (
                device(0, 0),
                "(/job:w)?(/replica:0)?/task:0(/(device:)?(?i:CPU):0)?",
            ),
            (
                device(1, 1),
                "(/job:w)?(/replica:0)?(/task:1)?/(device:)?(?i:CPU):1",
            ),
        ] {
            assert_eq!(pattern(&of, &device(1, 0)), expected);
        }
    }
}
